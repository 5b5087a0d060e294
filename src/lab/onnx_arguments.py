"""The arguments of `./run export --to onnx`. lab.onnx, which needs torch, is imported when a file is written."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that only ONNX has."""
    about = "for onnx: overrides of the run's config, such as data.path"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=about)
    about = "for onnx: split whose first batch is compared; default: test, or val if there is none"
    parser.add_argument("--split", help=about)


def move_override(args: Namespace) -> None:
    """Take an override in the place of the file as an override."""
    if args.file is not None and "=" in args.file and not args.file.endswith((".pt", ".safetensors", ".onnx")):
        args.file, args.overrides = None, [args.file, *args.overrides]


def check_arguments(args: Namespace, to: str) -> None:
    """Raise ConfigError if these arguments are given for another format."""
    from samebits.errors import ConfigError

    if to != "onnx" and (args.split or args.overrides):
        unused = "--split" if args.split else args.overrides[0]
        raise ConfigError(f"{unused}: has an effect only on --to onnx, because other formats have only the weights")


def write_onnx(args: Namespace, target: Path, to: str) -> tuple[Path, str]:
    """Write the ONNX model. Return (the checkpoint, a text about the file)."""
    from lab.onnx import export_onnx

    made = export_onnx(args.run, target, args.overwrite, args.split, args.overrides)
    inputs = "; ".join(f"{name}: {kind}" for name, kind in made.inputs.items())
    about = f"inputs {inputs}; outputs {', '.join(made.outputs)}; largest difference to the model's outputs "
    return made.source, about + f"{made.difference:.2g} (batches of {', '.join(map(str, made.batches))})"
