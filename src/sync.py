"""Send to Weights & Biases and MLflow what they lack of runs: logged offline, interrupted, cut off by an outage.

    ./run sync                                # all below outputs/
    ./run sync outputs/default/sweeps/lr
    ./run sync RUN_DIR --replay               # the whole run as a new W&B run, of a new id

Exit status: 0 all is there (or running), 1 something is not, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import sys

from lab.project import PROJECT
from samebits.sweeps.report import sync


def main() -> int:
    return sync(PROJECT)


if __name__ == "__main__":
    sys.exit(main())
