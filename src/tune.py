"""Find values by trying them, and print them as overrides to paste.

    ./run tune experiment=digits                 the first three, one after the other
    ./run tune threads lr experiment=digits      some of
      micro_batch   the largest hardware.micro_batch_size that fits (=auto finds it when a run starts)
      loader        data.loader and data.num_workers: what delivers as fast as the steps take
      lr            a learning-rate range test (Smith 2017): lr.png and optim.lr
      threads       hardware.num_threads: ms a step on a CPU; only when asked for, as another number rounds otherwise

Exit status: 0 done, 1 a trial failed, 2 a mistake in the configuration.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import sys

from lab.program import PROGRAM
from samebits.process import tune


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    return tune(PROGRAM, "optim.lr")


if __name__ == "__main__":
    sys.exit(main())
