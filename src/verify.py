"""Recompute a run: start it again from its own config and code, and compare bit for bit. The run is not changed.

    ./run verify outputs/default/2026-11-20_21-35-11-adaa11
    ./run verify RUN --steps 200             # its first steps, up to the next at which it saved its weights
    ./run verify RUN data.path=/here/x.h5    # a run from another machine
    ./run verify RUN --commit own            # with the run's commit, not with the files as they are
    ./run verify RUN --diff                  # with its uncommitted.diff too: read that first

Compared are the logged metrics, the checkpoints that both have and, at the end, the scores. The code is the present
files, unless asked otherwise: the run may be somebody else's. Other code lies in a temporary git worktree. Where the
machine, torch or the number of threads or ranks differ, and on a GPU without hardware.deterministic=true, equal means
to --rounding.

Exit status: 0 equal, 1 different or no weights compared, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import sys

from lab.program import PROGRAM
from samebits.sweeps.verify import verify_command


def main() -> int:
    return verify_command(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
