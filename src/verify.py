"""Verify a run: repeat it with its own config, and compare the results bit for bit. The run is not changed.

    ./run verify outputs/default/2026-11-20_21-35-11-adaa11
    ./run verify RUN --steps 200             # only its first steps, up to the next checkpoint
    ./run verify RUN data.path=/here/x.h5    # a run from another machine
    ./run verify RUN --commit own            # with the code of the run's commit
    ./run verify RUN --diff                  # also with its uncommitted.diff: read that file first

The logged metrics, the checkpoints that both runs have and the final scores are compared. By default the run is
repeated with the present files, because it may be from somebody else; the code of a commit is checked out in a
temporary git worktree. If the machine, the version of torch or the number of threads or ranks differ, and on a GPU
without hardware.deterministic=true, values are equal if they differ by less than --rounding.

Exit status: 0 equal, 1 different or no weights compared, 2 a mistake in the arguments.
"""

from __future__ import annotations

import _python  # first

# isort: split

from lab.program import PROGRAM
from samebits.sweeps.verify import verify_command


def main() -> int:
    """Run the command. Return its exit status."""
    return verify_command(PROGRAM)


if __name__ == "__main__":
    _python.exit_with(main)
