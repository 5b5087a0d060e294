"""Evaluate a trained model on a split.

    ./run evaluate outputs/default/2026-11-20_21-35-11-adaa11
    ./run evaluate RUN_DIR_OR_CHECKPOINT --split val data.path=other.h5 hardware.device=cpu

Overrides change the config of the run. Exit status: 0 done, 2 a mistake in the arguments.
"""

from __future__ import annotations

import _python  # first

# isort: split
import argparse
import sys
from pathlib import Path


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run evaluate", allow_abbrev=False)
    parser.description = "Evaluate a trained model on a split of its data, or of other data."
    parser.add_argument("run", type=Path, help="run directory (uses its best checkpoint) or checkpoint file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="overrides of data, task and hardware"
    )
    parser.add_argument(
        "--split", default="test", help="train, val, test or another name in data.splits; default: test"
    )
    parser.add_argument("--json", action="store_true", help="print the scores as one JSON object")
    args = parser.parse_intermixed_args()
    from samebits.errors import ConfigError, RunFailed, plain_output
    from samebits.files import as_json, decimals

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
        print("\n".join(f"{key:<20} {decimals(value)}" for key, value in scores.items()))
    return 0


if __name__ == "__main__":
    _python.exit_with(main)
