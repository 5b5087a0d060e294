"""Score a trained model on any split.

    ./run evaluate outputs/default/2026-11-20_21-35-11-adaa11
    ./run evaluate RUN_DIR_OR_CHECKPOINT --split val data.path=other.h5 hardware.device=cpu

Overrides are values of the run's own config. Exit status: 0 done, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        "./run evaluate", description="Score a trained model on any split of its data, or of other data."
    )
    parser.add_argument("run", type=Path, help="a run directory (its best checkpoint) or one checkpoint")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values of data, task, hardware")
    parser.add_argument("--split", default="test", help="train, val, test or what else the data config names")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_intermixed_args()
    from samebits.errors import ConfigError, RunFailed, plain_output
    from samebits.files import as_json

    plain_output()
    try:
        from lab.restore import score_checkpoint

        scores = score_checkpoint(args.run, args.split, args.overrides)
    except (ConfigError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(as_json(scores))
    else:
        print("\n".join(f"{key:<20} {value:.4f}" for key, value in scores.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
