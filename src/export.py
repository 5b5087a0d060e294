"""Write a trained model's weights, whole, as one plain file: from any checkpoint, also one that lies in parts.

    ./run export outputs/default/2026-11-20_21-35-11-adaa11 model.pt
    ./run export RUN_DIR_OR_CHECKPOINT FILE --overwrite

In a model of one's own: model.load_state_dict(torch.load("model.pt", weights_only=True)). The weights are those that
were evaluated: the moving average where the run kept one. Exit status: 0 done, 2 a mistake in what was asked.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser("./run export", description="Write a trained model's weights as one plain file.")
    parser.add_argument("run", type=Path, help="a run directory (its best checkpoint) or one checkpoint")
    parser.add_argument("file", type=Path, help="what to write, such as model.pt")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")
    args = parser.parse_args()
    from samebits.errors import ConfigError, RunFailed, plain_output

    plain_output()
    try:
        from samebits.checkpoints import export

        source, count = export(args.run, args.file, args.overwrite)
    except (ConfigError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.file}: {count:,} values, {args.file.stat().st_size:,} bytes, from {source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
