"""Write a trained model to one file: its weights, also from sharded checkpoints, or an ONNX model.

    ./run export outputs/default/2026-11-20_21-35-11-adaa11 model.pt
    ./run export RUN_DIR_OR_CHECKPOINT --to safetensors      # RUN_DIR/model.safetensors
    ./run export RUN_DIR_OR_CHECKPOINT model.onnx --overwrite
    ./run export RUN_DIR_OR_CHECKPOINT --to onnx --split val data.path=other.h5

The weights are those that were evaluated: the weight average if the run has one, and rounded if the run has
`quantization`. To load the first file:
model.load_state_dict(torch.load("model.pt", weights_only=True)). An ONNX model computes what `./run predict` writes,
for batches of any size; it is compared with the model on a batch of the run's data. Exit status: 0 done, 1 the outputs
of the ONNX model differ, 2 a mistake in the arguments, or a model that cannot be exported or written.
"""

from __future__ import annotations

import _python  # first

# isort: split
import argparse
import sys
from pathlib import Path

FORMATS = ("pt", "safetensors", "onnx")


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run export", description="Write a trained model to one file.")
    parser.add_argument("run", type=Path, help="run directory (uses its best checkpoint) or checkpoint file")
    parser.add_argument("file", nargs="?", help="the file to write; default: model.<format> in the run directory")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="for onnx: overrides of the run's config, such as data.path",
    )
    parser.add_argument(
        "--to", choices=FORMATS, help="format; default: by the suffix of FILE; pt for pth, ckpt, bin and none"
    )
    parser.add_argument(
        "--split", help="for onnx: split whose first batch is compared; default: test, or val if there is none"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    args = parser.parse_intermixed_args()
    from samebits.errors import ConfigError, RunFailed, plain_output

    plain_output()
    try:
        target, to = target_of(args)
        if to == "onnx":
            from lab.onnx import export_onnx

            made = export_onnx(args.run, target, args.overwrite, args.split, args.overrides)
            source = made.source
            inputs = "; ".join(f"{name}: {kind}" for name, kind in made.inputs.items())
            about = f"inputs {inputs}; outputs {', '.join(made.outputs)}; largest difference to the model's outputs "
            about += f"{made.difference:.2g} (batches of {', '.join(map(str, made.batches))})"
        else:
            from lab.model_io import exported
            from samebits.checkpoints import export

            source, count = export(args.run, target, args.overwrite, to, exported)
            about = f"{count:,} values"
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {about}, {target.stat().st_size:,} bytes, from {source}")
    return 0


def target_of(args: argparse.Namespace) -> tuple[Path, str]:
    """Return (the file to write, its format). Raise ConfigError for arguments that contradict each other."""
    from samebits.errors import ConfigError

    if args.file is not None and "=" in args.file and not args.file.endswith(tuple(f".{to}" for to in FORMATS)):
        args.file, args.overrides = None, [args.file, *args.overrides]
    suffix = Path(args.file).suffix.removeprefix(".") if args.file else ""
    to = args.to or (suffix if suffix in FORMATS else "pt")
    if args.file is None and args.to is None:
        raise ConfigError(f"give a file, such as model.pt, or a format: --to {', --to '.join(FORMATS)}")
    if suffix not in ("", "pth", "bin", "ckpt", *FORMATS) and args.to is None:
        raise ConfigError(f"{args.file}: the formats are {', '.join(FORMATS)}; give a suffix of these in small letters")
    if suffix in FORMATS and suffix != to:
        raise ConfigError(f"{args.file}: its suffix does not fit --to {to}; remove one of them")
    if to != "onnx" and (args.split or args.overrides):
        unused = "--split" if args.split else args.overrides[0]
        raise ConfigError(f"{unused}: has an effect only on --to onnx, because other formats have only the weights")
    if args.file is None:
        from samebits.checkpoints import run_directory

        return run_directory(args.run) / f"model.{to}", to
    return Path(args.file), to


if __name__ == "__main__":
    _python.exit_with(main)
