"""Write a trained model's weights to one plain file, from any checkpoint, including sharded ones.

    ./run export outputs/default/2026-11-20_21-35-11-adaa11 model.pt
    ./run export RUN_DIR_OR_CHECKPOINT FILE --overwrite

To load the file: model.load_state_dict(torch.load("model.pt", weights_only=True)). The weights are those that were
evaluated: the weight average if the run has one. Exit status: 0 done, 2 a mistake in the arguments.
"""

from __future__ import annotations

import _python  # noqa: F401 - first

# isort: split
import argparse
import sys
from pathlib import Path


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run export", description="Write a trained model's weights to one plain file.")
    parser.add_argument("run", type=Path, help="run directory (uses its best checkpoint) or checkpoint file")
    parser.add_argument("file", type=Path, help="the file to write, such as model.pt")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
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
