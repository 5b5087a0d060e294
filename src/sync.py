"""Upload runs that were logged offline, interrupted or cut off by an outage to Weights & Biases and MLflow.

    ./run sync                                # all runs below outputs/
    ./run sync outputs/default/sweeps/lr
    ./run sync RUN_DIR --replay               # upload the whole run as a new W&B run with a new id
    ./run sync outputs/default/sweeps/lr --watch    # upload again and again until all runs have ended

Exit status: 0 complete (or still running), 1 incomplete, 2 a mistake in the arguments, 130 Ctrl-C.
"""

from __future__ import annotations

import _python  # first

# isort: split

from lab.project import PROJECT
from samebits.sweeps.report import sync


def main() -> int:
    """Run the command. Return its exit status."""
    return sync(PROJECT)


if __name__ == "__main__":
    _python.exit_with(main)
