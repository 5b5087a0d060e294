"""What a pack says when it is done: the datasets, and the commands to look at the file and to train on it."""

from __future__ import annotations

import shlex
from pathlib import Path

from h5rows.importers.base import Source, printable
from h5rows.packing.plan import Part


def summary(out: Path, parts: list[Part], source: Source, size: int) -> str:
    account = source.account
    lines = [f"{out}: {size / 1e6:,.1f} MB, {account.closing}"]
    counted = [f"{account.taken[kind]:,} of {count:,} {kind}" for kind, count in account.held.items() if count]
    lines += [f"  counted in it: {', '.join(counted)}"] * bool(counted)
    for part in parts:
        for name, path in part.paths.items():
            what = source.fields[name]
            shape = "x".join("?" if side is None else str(side) for side in what.shape) + " " * bool(what.shape)
            classes = what.attrs.get("classes", [])
            shown = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
            named = f", {len(classes):,} classes: {printable(shown)}" if len(classes) else ""
            lines.append(f"  {path}: {len(part.rows):,} rows of {shape}{what.dtype}{named}")
    lines.append(f"look at it: {shlex.join(['./run', 'h5', 'inspect', str(out)])}")
    sequences = [
        new.rpartition("/")[2]
        for name, new in parts[0].paths.items()
        if (what := source.fields[name]).shape == (None,) and what.dtype.kind in "iu" and "encoding" not in what.attrs
    ]
    command = train_command(out, [path for p in parts for path in p.paths.values()], sequences)
    return "\n".join([*lines, f"train on it: {command}"])


def train_command(out: Path, paths: list[str], sequences: list[str]) -> str:
    """How data=h5 reads the file: what differs from the config's own names and splits. sequences: fields of token ids
    of different length."""
    groups = {path.rpartition("/")[0] for path in paths}
    names = list(dict.fromkeys(path.rpartition("/")[2] for path in paths))
    if names == ["tokens"]:
        return shlex.join(["./run", "train", "experiment=shakespeare", f"data.path={out}"])
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
    return shlex.join(command)
