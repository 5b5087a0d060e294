"""What a pack says when it is done: the datasets, and what to type to look at the file and to read it."""

from __future__ import annotations

from pathlib import Path

from h5rows.errors import printable
from h5rows.importers.base import Source
from h5rows.packing.plan import Part
from h5rows.program import calling, typed


def summary(out: Path, parts: list[Part], source: Source) -> str:
    account = source.account
    lines = [f"{out}: {out.stat().st_size / 1e6:,.1f} MB, {account.closing}"]
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
    lines.append(f"look at it: {typed('inspect', str(out))}")
    sequences = [
        new.rpartition("/")[2]
        for name, new in parts[0].paths.items()
        if (what := source.fields[name]).shape == (None,) and what.dtype.kind in "iu" and "encoding" not in what.attrs
    ]
    return "\n".join([*lines, calling.reading(out, [path for p in parts for path in p.paths.values()], sequences)])
