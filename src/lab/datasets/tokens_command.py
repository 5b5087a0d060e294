"""The command that trains on a packed file of token ids."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def tokens_command(out: Path | str, paths: Sequence[str], sequences: Sequence[str]) -> str:
    """Return a line with the command, or "" if the file has other data. The arguments are those of src/h5.py."""
    groups = {path.rpartition("/")[0] for path in paths}
    names = list(dict.fromkeys(path.rpartition("/")[2] for path in paths))
    if names == ["tokens"]:  # one long text
        options = ["data=tokens", "model=gpt", "task=next_token", f"data.path={out}"]
    elif len(names) == 1 and names == sequences:  # texts of different lengths
        options = ["experiment=sequences", f"data.path={out}", f"data.fields.tokens={names[0]}"]
        if groups == {""}:
            options += ["data.split_ratio=80/10/10"]
        else:
            options += [f"data.splits.{split}=null" for split in ("val", "test") if split not in groups]
    else:
        return ""
    return f"train on it: {shlex.join(['./run', 'train', *options])}"
