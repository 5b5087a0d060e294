"""Write a report of a sweep, during or after it, or compare any run directories.

    ./run report outputs/default/sweeps/lr
    ./run report outputs/default/2026-11-20_* outputs/other/2026-11-21_10-00-00-4f0c1e --out outputs/compare
    ./run report outputs/default/sweeps/lr --save-best      # writes conf/experiment/best_lr.yaml
    ./run report outputs/default/sweeps/all --rows model --metrics test/accuracy test/loss    # for a paper
    ./run report --serve                   # a local page of all runs below outputs/ that updates itself

Exit status: 0 done, 2 a mistake in the arguments, 130 Ctrl-C.
"""

from __future__ import annotations

import _python  # first

# isort: split

from lab.project import PROJECT
from samebits.sweeps.report import report


def main() -> int:
    """Run the command. Return its exit status."""
    return report(PROJECT)


if __name__ == "__main__":
    _python.exit_with(main)
