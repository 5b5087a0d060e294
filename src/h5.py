"""Write and look at HDF5 files: the command of h5rows, which says how to train on what was packed.

./run h5 pack photos/ photos.h5 --size 224 --crop center --split val=0.1
./run h5 inspect photos.h5
./run h5 repack old.h5 new.h5 --codec zstd
"""

from __future__ import annotations

import engine.interpreter  # noqa: F401 - first

# isort: split
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from h5rows import run
from lab.project import train_on


def train_command(out: Path | str, paths: Sequence[str], sequences: Sequence[str]) -> str:
    """How data=h5 reads the file: what differs from the config's own names and splits. sequences: fields of token ids
    of different length."""
    groups = {path.rpartition("/")[0] for path in paths}
    names = list(dict.fromkeys(path.rpartition("/")[2] for path in paths))
    if names == ["tokens"]:
        return "train on it: " + shlex.join(["./run", "train", "experiment=shakespeare", f"data.path={out}"])
    command = ["./run", "train", f"data.path={out}"]
    if len(names) == 1 and names == sequences:
        command[2:2] = ["experiment=sequences"]
        command += [f"data.fields.tokens={names[0]}"]
    else:
        command += [f"data.fields.{field}={name}" for field, name in zip("xy", names) if name not in ("image", "label")]
    if groups == {""}:
        shares = {"train": "[0,0.8]", "val": "[0.8,0.9]", "test": "[0.9,1]"}
        for split, rows in shares.items():
            command += [f"data.splits.{split}.group=/", f"data.splits.{split}.rows={rows}"]
    else:
        command += [f"data.splits.{split}=null" for split in ("val", "test") if split not in groups]
    return f"train on it: {shlex.join(command)}"


if __name__ == "__main__":
    sys.exit(run(("./run", "h5"), train_command, train_on))
