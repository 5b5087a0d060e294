"""Pack, inspect and repack HDF5 files: the command of h5rows, which also prints how to train on a file.

./run h5 pack photos/ photos.h5 --size 224 --crop center --split val=0.1
./run h5 inspect photos.h5
./run h5 repack old.h5 new.h5 --codec zstd
"""

from __future__ import annotations

import _python  # first

# isort: split
import shlex
from collections.abc import Sequence
from pathlib import Path

from h5rows.integration import proposal, run
from lab.datasets.tokens_command import tokens_command
from lab.h5_errors import H5_COMMAND
from lab.project import command_for
from samebits.errors import plain_output

VARYING = (
    "for x of 20 steps add data.fields.x=NAME 'data/transforms=[to_float,window,center_window]' "
    "data.transforms.window.size=20 data.transforms.center_window.size=20 data.input_shape=[20], or [20,F] for rows "
    "(T, F): docs/video_audio.md"
)


def train_command(out: Path | str, paths: Sequence[str], sequences: Sequence[str]) -> str:
    """Return the command that trains on a packed file, as a line to print.

    out: the file. paths: its data sets, such as train/x. sequences: names of fields with token ids of varying
    length."""
    commands = (
        tokens_command(out, paths, sequences),  # lab.datasets.tokens_command
        "\n".join(proposal(str(out))),
        f"to see how to train on it: {shlex.join(['./run', 'h5', 'inspect', str(out)])}",
    )
    return next(filter(None, commands))


def main() -> int:
    """Run the command. Return its exit status."""
    plain_output()
    return run(H5_COMMAND, train_command, command_for, VARYING)


if __name__ == "__main__":
    _python.exit_with(main)
