"""Report on a sweep, while it runs or after, or compare any run directories.

    ./run report outputs/default/sweeps/lr
    ./run report outputs/default/2026-11-20_* outputs/other/2026-11-21_10-00-00-4f0c1e --out outputs/compare
    ./run report outputs/default/sweeps/lr --save-best      # conf/experiment/best_lr.yaml
    ./run report outputs/default/sweeps/all --rows model --metrics test/accuracy test/loss      # a paper's table, figures

Exit status: 0 done, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import sys

from lab.project import PROJECT
from samebits.sweeps.report import report


def main() -> int:
    return report(PROJECT)


if __name__ == "__main__":
    sys.exit(main())
