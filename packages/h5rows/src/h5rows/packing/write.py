"""Write HDF5 files: plan splits and order, create the file in full size, let workers fill it, verify it, rename it.

After a kill no file has the final name. Repeat the command to start from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.account import Account
from h5rows.errors import ConfigError, clean, report
from h5rows.options import PackOptions
from h5rows.packing.file import Span, bytes_of, create, flushing, in_words, pwrite_all, under_work, verify
from h5rows.packing.plan import Block, Part, columns, cut_blocks, measure, place_groups, plan_parts
from h5rows.packing.pool import Task, in_flight, make_pool, write_rows
from h5rows.program import calling, typed
from h5rows.source import Source

Skipped = tuple[Part, int, str]  # a sample that cannot be read: its part, its row in it, its name and the reason


def pack(
    source: Source | Callable[[], Source], out: str | Path, options: PackOptions, provenance: dict[str, Any]
) -> Path:
    """Write the selected fields of the source. Return the path, which contains the shard.

    source: may be a function, which is called when it is known that `out` may be written. provenance: root
    attributes."""
    out, (k, n) = Path(out), options.shard
    out = out if n == 1 else out.with_name(f"{out.stem}.{k}-of-{n}{out.suffix}")
    with under_work(out, options.overwrite) as temp:
        source = source if isinstance(source, Source) else source()
        run = PackRun(source, temp, options, provenance)
        pool = make_pool(source, temp, options.workers)
        try:
            run.write(pool)
        except BrokenProcessPool:
            raise ConfigError(
                f"{out}: a worker was killed, perhaps because memory ran out; try fewer workers="
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for line in source.account.lines():
        report(line)
    if not options.quiet:
        report(summary(out, run.parts, source))
    return out


class PackRun:
    """One pack, from the plan to a complete and verified file."""

    def __init__(self, source: Source, temp: Path, options: PackOptions, provenance: dict[str, Any]) -> None:
        self.source, self.temp, self.options, self.provenance = source, temp, options, provenance
        self.parts = plan_parts(source, options)
        self.groups = place_groups(source, self.parts, {**provenance, "skipped": None})

    def write(self, pool: Executor) -> None:
        """Write, verify and count. Unreadable samples are skipped if options.on_error is skip."""
        measure(self.parts, self.source, pool, self.options.quiet)
        listed: list[str] = []
        while True:
            attrs = {**self.provenance, **({"skipped": listed} if listed else {})}
            self.columns = [c for part in self.parts for c in columns(part, self.source.fields)]
            self.begins = create(self.temp, self.columns, attrs, self.groups)
            spans, skipped = self.fill(pool)
            if not skipped:
                break
            listed += [what for _, _, what in skipped]
            self.leave_out(skipped)  # a contiguous dataset cannot shrink: repeat without them
        if listed:
            report("\n  ".join([f"skipped {len(listed)} samples:", *listed[:20], *["..."] * (len(listed) > 20)]))
        spans += self.write_offsets()
        with flushing(self.temp):
            verify(self.temp, spans, self.options.workers, self.options.quiet)
            self.count()

    def fill(self, pool: Executor) -> tuple[list[Span], list[Skipped]]:
        """Write the rows of all parts. Return (written spans, samples that cannot be read and were not written)."""
        tasks = ((block, self.task(block)) for block in cut_blocks(self.parts, self.source))
        spans: list[Span] = []
        skipped: list[Skipped] = []
        total, quiet = sum(len(part.rows) for part in self.parts), self.options.quiet
        with tqdm(total=total, unit=" rows", unit_scale=True, disable=quiet, desc="pack") as bar:
            for block, (written, bad) in in_flight(pool, write_rows, tasks, 2 * self.options.workers):
                if bad and self.options.on_error == "stop":
                    raise ConfigError(f"{bad[0].name}: {bad[0].reason}; on_error='skip' skips and lists such samples")
                for name, (size, crc) in written.items():
                    path, begin = block.places[name]
                    spans += [Span(path, begin, size, crc)] * bool(size)
                skipped += [(block.part, block.begin + b.place, f"{b.name}: {b.reason}") for b in bad]
                bar.update(block.end - block.begin)
        return spans, skipped

    def task(self, block: Block) -> Task:
        """Return the arguments of `write_rows` for a block."""
        part, rows = block.part, slice(block.begin, block.end)
        places = {name: self.begins.get(path, 0) + begin for name, (path, begin) in block.places.items()}
        return part.rows[rows], places, {name: shapes[rows] for name, shapes in part.shapes.items()}

    def leave_out(self, skipped: list[Skipped]) -> None:
        """Remove these samples from the plan. Raise ConfigError if none of a part could be read."""
        for part in self.parts:
            keep = np.ones(len(part.rows), bool)
            keep[[row for p, row, _ in skipped if p is part]] = False
            if not keep.any() and len(keep):
                paths, first = sorted(part.paths.values()), next(what for p, _, what in skipped if p is part)
                raise ConfigError(f"no sample of {paths} could be read; the first: {first}")
            part.shapes = {name: shapes[keep] for name, shapes in part.shapes.items()}
            part.rows = np.asarray(part.rows)[keep]

    def write_offsets(self) -> list[Span]:
        """Write the offsets and shapes of the ragged fields. Return the written spans."""
        spans = []
        with open(self.temp, "r+b", buffering=0) as file:
            for part in self.parts:
                for name, shapes in part.shapes.items():
                    unit = math.prod(self.source.fields[name].unit)
                    for kind, table in {"offsets": part.elements(name) // unit, "shapes": shapes}.items():
                        if (path := f"{part.paths[name]}/{kind}") in self.begins:
                            crc = pwrite_all(file.fileno(), table, self.begins[path])
                            spans.append(Span(path, 0, table.nbytes, crc))
        return spans

    def count(self) -> None:
        """Count what the source has, the file contains and was left out. Raise ConfigError for a wrong attribute."""
        account, source = self.source.account, self.source
        account.held["rows"] = sum(map(len, source.splits.values()))
        account.asked["rows"] = account.held["rows"] - sum(len(part.rows) for part in self.parts)
        with h5py.File(self.temp) as file:
            for part in self.parts:
                places = [file[name] for name in part.paths.values()]
                rows = [len(p["offsets"]) - 1 if isinstance(p, h5py.Group) else len(p) for p in places]
                account.taken["rows"] += min(rows)
            for path, values in [*((c.path, c.attrs) for c in self.columns), *self.groups.items()]:
                for name, value in values.items():
                    if not same_attr(file[path or "/"].attrs, name, value):
                        raise ConfigError(f"{self.temp}: {path}: attribute {name} was read back changed; pack again")
        account.taken["attributes"] = account.held["attributes"] - len(account.left.get("attributes", ()))
        excuse(account, self.options.ignore)


def excuse(account: Account, patterns: Sequence[str]) -> None:
    """Move what --ignore names from the losses to the requested omissions."""
    for kind, names in account.left.items():
        asked = [name for name in names if any(fnmatch(name.partition(" (")[0], pattern) for pattern in patterns)]
        account.left[kind] = [name for name in names if name not in set(asked)]
        account.asked[kind] += len(asked)


def same_attr(found: Any, name: str, value: Any) -> bool:
    """Return True if the attribute was read back with the same value and type."""
    if name not in found:
        return False
    if isinstance(value, (str, list)):
        return bool(np.array_equal(np.asarray(found[name], object), np.asarray(value, object)))
    got, want = np.asarray(found[name]), np.asarray(value)
    return got.dtype == want.dtype and bytes_of(got).tobytes() == bytes_of(want).tobytes()


def summary(out: Path, parts: list[Part], source: Source) -> str:
    """Return the printed summary: the datasets, and the commands that inspect and read the file."""
    account = source.account
    lines = [f"{out}: {in_words(out.stat().st_size)}, {account.closing}"]
    counted = [f"{account.taken[kind]:,} of {count:,} {kind}" for kind, count in account.held.items() if count]
    lines += [f"  counted in it: {', '.join(counted)}"] * bool(counted)
    for part in parts:
        for name, path in part.paths.items():
            what = source.fields[name]
            shape = "x".join("?" if side is None else str(side) for side in what.shape) + " " * bool(what.shape)
            classes = what.attrs.get("classes", [])
            shown = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
            named = f", {len(classes):,} classes: {clean(shown)}" if len(classes) else ""
            lines.append(f"  {clean(path)}: {len(part.rows):,} rows of {shape}{what.dtype}{named}")
    lines.append(f"inspect it: {typed('inspect', str(out))}")
    sequences = [
        new.rpartition("/")[2]
        for name, new in parts[0].paths.items()
        if (what := source.fields[name]).shape == (None,) and what.dtype.kind in "iu" and "encoding" not in what.attrs
    ]
    return "\n".join([*lines, calling.reading(out, [path for p in parts for path in p.paths.values()], sequences)])
