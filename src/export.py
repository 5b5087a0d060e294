"""Write a trained model to one file: its weights, also from sharded checkpoints.

    ./run export outputs/default/2026-11-20_21-35-11-adaa11 model.pt
    ./run export RUN_DIR_OR_CHECKPOINT --to safetensors --overwrite      # RUN_DIR/model.safetensors
    ./run export RUN_DIR_OR_CHECKPOINT --to onnx --split val data.path=other.h5

The weights are those that were evaluated: the weight average if the run has one, and rounded if the run has
`quantization`. To load the first file: model.load_state_dict(torch.load("model.pt", weights_only=True)).
An ONNX model computes what `./run predict` writes, for batches of any size; it is compared with the model on a batch.
Exit status: 0 done, 1 failed, 2 a mistake in the arguments, or a model that cannot be exported or written.
"""

from __future__ import annotations

import _python  # first

# isort: split
import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lab.onnx_arguments import add_arguments, check_arguments, move_override, write_onnx


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run export", allow_abbrev=False)
    parser.description = "Write a trained model to one file."
    parser.add_argument("run", type=Path, help="run directory (uses its best checkpoint) or checkpoint file")
    parser.add_argument("file", nargs="?", help="the file to write; default: model.<format> in the run directory")
    add_arguments(parser)  # lab.onnx_arguments
    parser.add_argument(
        "--to", choices=WRITERS, help="format; default: by the suffix of FILE; pt for pth, ckpt, bin and none"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    args = parser.parse_intermixed_args()
    from samebits.errors import ConfigError, RunFailed, plain_output

    plain_output()
    try:
        target, to = target_of(args)
        source, about = WRITERS[to](args, target, to)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {about}, {target.stat().st_size:,} bytes, from {source}")
    return 0


def write_weights(args: argparse.Namespace, target: Path, to: str) -> tuple[Path, str]:
    """Write the weights. Return (the checkpoint, a text about the file)."""
    from lab.model_io import exported
    from samebits.checkpoints import export

    source, count = export(args.run, target, args.overwrite, to, exported)
    return source, f"{count:,} values"


# {format: function that writes it}
WRITERS: dict[str, Callable[[argparse.Namespace, Path, str], tuple[Path, str]]] = {
    "pt": write_weights,
    "safetensors": write_weights,
    "onnx": write_onnx,  # lab.onnx_arguments
}


def target_of(args: argparse.Namespace) -> tuple[Path, str]:
    """Return (the file to write, its format). Raise ConfigError for arguments that contradict each other."""
    from samebits.errors import ConfigError

    move_override(args)  # lab.onnx_arguments
    suffix = Path(args.file).suffix.removeprefix(".") if args.file else ""
    to = args.to or (suffix if suffix in WRITERS else "pt")
    if args.file is None and args.to is None:
        raise ConfigError(f"give a file, such as model.pt, or a format: --to {', --to '.join(WRITERS)}")
    if suffix not in ("", "pth", "bin", "ckpt", *WRITERS) and args.to is None:
        raise ConfigError(f"{args.file}: the formats are {', '.join(WRITERS)}; give a suffix of these in small letters")
    if suffix in WRITERS and suffix != to:
        raise ConfigError(f"{args.file}: its suffix does not fit --to {to}; remove one of them")
    check_arguments(args, to)  # lab.onnx_arguments
    if args.file is None:
        from samebits.checkpoints import run_directory

        return run_directory(args.run) / f"model.{to}", to
    return Path(args.file), to


if __name__ == "__main__":
    _python.exit_with(main)
