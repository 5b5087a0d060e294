"""Measure good values of some options, and print them as overrides to paste.

    ./run tune experiment=digits                 micro_batch, loader and lr, one after the other
    ./run tune threads lr experiment=digits      only these
      micro_batch   the largest hardware.micro_batch_size that fits in memory (auto finds it when a run starts)
      loader        data.loader and data.num_workers that deliver batches as fast as the steps use them
      lr            a learning-rate range test (Smith 2017): lr.png and optim.lr
      threads       hardware.num_threads with the shortest step on a CPU; only if named, because it changes rounding

Exit status: 0 done, 1 a trial failed, 2 a mistake in the configuration.
"""

from __future__ import annotations

import _python  # first

# isort: split
import sys

from lab.program import PROGRAM
from samebits.process import tune


def main() -> int:
    """Run the command, or print its help. Return its exit status."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    return tune(PROGRAM, "optim.lr")


if __name__ == "__main__":
    _python.exit_with(main)
