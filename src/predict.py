"""Write a trained model's outputs for all samples of a split to one file, in the order of the split.

    ./run predict outputs/default/2026-11-20_21-35-11-adaa11 --out predictions.h5
    ./run predict RUN_DIR_OR_CHECKPOINT --split val --fields y --out val.parquet data.path=other.h5
    ./run predict RUN_1 RUN_2 RUN_3 --activation softmax --out ensemble.npz

Several runs or checkpoints are an ensemble: the mean of their outputs is written. Overrides change the configs of the
runs; use data.fields.y=null if the data have no labels. Exit status: 0 done, 1 failed, 2 a mistake in the arguments.
"""

from __future__ import annotations

import _python  # first

# isort: split
import argparse
import sys
from pathlib import Path

RENAMED = {"--with": "--fields", "--apply": "--activation"}  # options of version 0.2: new names


def main() -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser("./run predict", allow_abbrev=False)
    parser.description = "Write a model's outputs for all samples of a split."
    parser.add_argument(
        "runs", nargs="+", metavar="run", help="run directories or checkpoint files, then overrides key=value"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .h5, .npz or .parquet")
    parser.add_argument(
        "--split", default="test", help="train, val, test or another name in data.splits; default: test"
    )
    parser.add_argument("--fields", default="", metavar="FIELD,...", help="fields of the batch to copy to the file")
    parser.add_argument(
        "--activation",
        choices=("softmax", "sigmoid"),
        help="apply this to each model's outputs, before the mean over models",
    )
    parser.add_argument("--procs", type=int, help="processes that share the samples; default: one per GPU")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    from samebits.errors import ConfigError, RunFailed, plain_output, translate_arguments

    args = parser.parse_intermixed_args(translate_arguments(sys.argv[1:], RENAMED))

    plain_output()
    overrides = [word for word in args.runs if "=" in word and not Path(word).exists()]
    paths = [Path(word) for word in args.runs if word not in overrides]
    fields = [name for name in args.fields.split(",") if name]
    try:
        from lab.predict import Prediction, predict

        request = Prediction(paths, args.split, args.out, overrides, fields, args.activation)
        spec = predict(request, args.procs, args.overwrite)
    except (ConfigError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    print(f"{args.out}: " + ", ".join(f"{name} {kind} {shape}" for name, (shape, kind) in spec.items()))
    return 0


if __name__ == "__main__":
    _python.exit_with(main)
