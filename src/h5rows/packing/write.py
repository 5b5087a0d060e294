"""Write HDF5 files: source -> splits and order -> a file made whole -> workers fill it in place -> checked -> named.

    pack(open_source("photos/", options), "photos.h5", options, provenance)

Killed at any moment, nothing has the final name; the same command goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.errors import ConfigError
from h5rows.importers.base import Source, UnlikeSample
from h5rows.packing.account import Account
from h5rows.packing.file import (
    Span,
    bytes_of,
    crc_of,
    create,
    damaged,
    flushing,
    full_disk,
    offsets,
    publish,
    pwrite_all,
    verify,
)
from h5rows.packing.journal import Journal, check_target, work_on
from h5rows.packing.options import PackOptions
from h5rows.packing.plan import (
    Block,
    Part,
    columns,
    cut_blocks,
    measure,
    place_groups,
    plan_parts,
    shard_name,
    total_bytes,
)
from h5rows.packing.pool import Task, in_flight, make_pool, write_rows
from h5rows.packing.summary import summary


def pack(source: Source, out: str | Path, options: PackOptions, provenance: dict[str, Any]) -> Path:
    """Write the source's selected fields -> the path, with the shard in its name. provenance: root attributes."""
    out = shard_name(Path(out), options.shard)
    check_target(out, options.overwrite)
    parts = plan_parts(source, options)
    temp, progress = work_on(out)
    journal = Journal(progress)
    pool = make_pool(source, temp, options.workers)
    try:
        with full_disk(out, lambda: sum(total_bytes(source, part) for part in parts), temp):
            Run(source, parts, temp, journal, options, provenance).go(pool, out)
        journal.remove()
    except BrokenProcessPool:
        raise ConfigError(
            f"{out}: a worker was killed, perhaps for lack of memory; go on with the same command and fewer --workers"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        journal.close()
    return out


def excuse(account: Account, patterns: Sequence[str]) -> None:
    """What --leave-out names is no loss."""
    for kind, names in account.left.items():
        asked = [name for name in names if any(fnmatch(name.partition(" (")[0], pattern) for pattern in patterns)]
        account.left[kind] = [name for name in names if name not in set(asked)]
        account.asked[kind] += len(asked)


def same_attr(found: Any, name: str, value: Any) -> bool:
    """Read back as it was given."""
    if name not in found:
        return False
    got, want = found[name], value
    if isinstance(value, (str, list)):
        return bool(np.array_equal(np.asarray(got, object), np.asarray(value, object)))
    want = np.asarray(value)
    return np.asarray(got).dtype == want.dtype and bytes_of(np.asarray(got)).tobytes() == bytes_of(want).tobytes()


class Run:
    """One pack, from the plan to the name."""

    def __init__(
        self,
        source: Source,
        parts: list[Part],
        temp: Path,
        journal: Journal,
        options: PackOptions,
        provenance: dict[str, Any],
    ) -> None:
        self.source, self.parts, self.temp, self.journal = source, parts, temp, journal
        self.options, self.provenance = options, provenance
        self.groups = place_groups(source, parts, {**provenance, "skipped": None})
        self.records: dict[int, dict[str, Any]] = {}
        self.places: dict[str, int] = {}

    def go(self, pool: Executor, out: Path) -> None:
        measure(self.parts, self.source, pool, self.options.quiet)
        self.starts = {(k, n): p.elements(n) for k, p in enumerate(self.parts) for n in p.shapes}
        self.blocks = cut_blocks(self.parts, self.source)
        self.prepare()
        try:
            self.fill(pool)
        except UnlikeSample:  # other options will be needed: nothing here to go on from
            self.discard()
            raise
        bad = self.bad_rows()
        final, spans = (self.temp, self.spans()) if not bad else self.compact(bad)
        spans += self.write_offsets(final)
        with flushing(final):
            verify(final, spans, self.options.workers, self.options.quiet)
            self.count(final)
        if bad:
            self.temp.unlink()  # before the name is given: a journal alone is that of a pack that is done
        publish(final, out)
        for line in self.source.account.lines():
            print(line)
        if not self.options.quiet:
            print(summary(out, self.parts, self.source, sum(span.size for span in spans)))

    def count(self, path: Path) -> None:
        """What the source holds and what is read in the file; what was left out."""
        account, source = self.source.account, self.source
        account.held["rows"] = sum(map(len, source.splits.values()))
        account.asked["rows"] = account.held["rows"] - sum(len(part.rows) for part in self.parts)
        with h5py.File(path) as file:
            for part in self.parts:
                places = [file[name] for name in part.paths.values()]
                rows = [len(p["offsets"]) - 1 if isinstance(p, h5py.Group) else len(p) for p in places]
                account.taken["rows"] += min(rows)
            attrs = {c.path: c.attrs for part in self.parts for c in columns(part, source.fields)} | self.groups
            for path_in, values in attrs.items():
                for name, value in values.items():
                    if not same_attr(file[path_in or "/"].attrs, name, value):
                        raise ConfigError(f"{path}: {path_in}: attribute {name} is not what was written; pack again")
            account.taken["attributes"] = account.held["attributes"] - len(account.left.get("attributes", ()))
        for block in self.blocks:  # an older version began this pack, and lost something of its samples
            for kind, name, why in self.records[block.number].get("left", ()):
                account.leave(kind, name, why)
        excuse(account, self.options.leave_out)

    # -- begin or go on

    def prepare(self) -> None:
        made = [c for part in self.parts for c in columns(part, self.source.fields)]
        plan = {
            "source": self.source.identity(),
            "options": self.options.identity(),
            "columns": [[c.path, list(c.shape), c.dtype.descr if c.dtype.fields else c.dtype.str] for c in made],
            "blocks": len(self.blocks),
        }
        plan = json.loads(json.dumps(plan))
        header, records = self.journal.load()
        if records and header != plan and not self.options.overwrite:
            differ = next(k for k in plan if (header or {}).get(k) != plan[k])
            raise ConfigError(
                f"{self.temp} is an unfinished pack of something else (its {differ} differs); --overwrite begins anew"
            )
        if header != plan or not self.temp.exists():
            self.journal.begin({})
            self.temp.unlink(missing_ok=True)
            try:
                create(self.temp, made, self.provenance, self.groups)
            except OSError:
                self.discard()
                raise
            self.journal.begin(plan)
            records = {}
        self.places = offsets(self.temp)
        self.records = {k: r for k, r in records.items() if self.stands(r)}
        if self.records and not self.options.quiet:
            rows = sum(self.blocks[k].end - self.blocks[k].begin for k in self.records)
            print(f"going on: {rows} of {sum(len(p.rows) for p in self.parts)} rows stand already in {self.temp}")

    def discard(self) -> None:
        self.temp.unlink(missing_ok=True)
        self.journal.remove()

    def stands(self, record: dict[str, Any]) -> bool:
        spans = self.spans_of(record)
        with open(self.temp, "rb") as file:
            return all(crc_of(file.fileno(), self.places.get(s.path, 0) + s.begin, s.size) == s.crc for s in spans)

    # -- rows

    def task(self, block: Block) -> Task:
        part, here = self.parts[block.part], slice(block.begin, block.end)
        places = {}
        for name in part.paths:
            path, begin = self.locate(block, name)
            places[name] = self.places.get(path, 0) + begin
        return part.rows[here], places, {name: shapes[here] for name, shapes in part.shapes.items()}

    def locate(self, block: Block, name: str) -> tuple[str, int]:
        """(path of the dataset that takes the field's values, first byte of the block in it)."""
        what, path = self.source.fields[name], self.parts[block.part].paths[name]
        if what.ragged:
            return f"{path}/values", int(self.starts[block.part, name][block.begin]) * what.dtype.itemsize
        return path, block.begin * what.row_bytes

    def fill(self, pool: Executor) -> None:
        todo = ((b, self.task(b)) for b in self.blocks if b.number not in self.records)
        total = sum(len(p.rows) for p in self.parts)
        done = sum(self.blocks[k].end - self.blocks[k].begin for k in self.records)
        with tqdm(
            total=total, initial=done, unit=" rows", unit_scale=True, disable=self.options.quiet, desc="pack"
        ) as bar:
            for block, (written, bad) in in_flight(pool, write_rows, todo, 2 * self.options.workers):
                if bad and self.options.on_error == "stop":
                    raise ConfigError(
                        f"{bad[0].name}: {bad[0].reason}; --on-error skip leaves such samples out and lists them"
                    )
                record = {
                    "block": block.number,
                    "written": {name: list(w) for name, w in written.items()},
                    "bad": [[b.place, b.name, b.reason] for b in bad],
                }
                self.journal.add(record)
                self.records[block.number] = record
                bar.update(block.end - block.begin)

    def spans_of(self, record: dict[str, Any]) -> list[Span]:
        block = self.blocks[record["block"]]
        return [Span(*self.locate(block, name), size, crc) for name, (size, crc) in record["written"].items() if size]

    def spans(self) -> list[Span]:
        return [span for block in self.blocks for span in self.spans_of(self.records[block.number])]

    # -- samples that were skipped

    def bad_rows(self) -> list[tuple[int, int, str, str]]:
        """(part, row in it, name, reason)."""
        found = []
        for block in self.blocks:
            for place, name, why in self.records[block.number]["bad"]:
                found.append((block.part, block.begin + place, name, why))
        return found

    def compact(self, bad: list[tuple[int, int, str, str]]) -> tuple[Path, list[Span]]:
        """Copy the rows that are there into a file without the gaps; a contiguous dataset cannot shrink."""
        listed = [f"{name}: {why}" for _, _, name, why in bad]
        print(f"skipped {len(bad)} samples:", *listed[:20], *["..."] * (len(bad) > 20), sep="\n  ")
        for k, part in enumerate(self.parts):
            keep = np.ones(len(part.rows), bool)
            keep[[row for p, row, _, _ in bad if p == k]] = False
            if not keep.any() and len(keep):
                raise ConfigError(f"no sample of {sorted(part.paths.values())} could be read; the first: {listed[0]}")
            part.shapes = {name: shapes[keep] for name, shapes in part.shapes.items()}
            part.rows = np.asarray(part.rows)[keep]
        final = self.temp.with_name(self.temp.name + ".compact")
        made = [c for part in self.parts for c in columns(part, self.source.fields)]
        create(final, made, {**self.provenance, "skipped": listed}, self.groups)
        places, filled, moved = offsets(final), dict.fromkeys((c.path for c in made), 0), []
        source, target = os.open(self.temp, os.O_RDONLY), os.open(final, os.O_RDWR)
        try:
            for span in self.spans():
                data = np.frombuffer(os.pread(source, span.size, self.places[span.path] + span.begin), np.uint8)
                if pwrite_all(target, data, places[span.path] + filled[span.path]) != span.crc:
                    raise damaged(self.temp, span)
                moved.append(Span(span.path, filled[span.path], span.size, span.crc))
                filled[span.path] += span.size
        finally:
            os.close(source)
            os.close(target)
        return final, moved

    def write_offsets(self, path: Path) -> list[Span]:
        """The offsets and shapes of the ragged fields, now that it is known which samples there are."""
        places, spans = offsets(path), []
        fd = os.open(path, os.O_RDWR)
        try:
            for part in self.parts:
                for name, shapes in part.shapes.items():
                    unit = math.prod(self.source.fields[name].unit)
                    tables = {"offsets": part.elements(name) // unit, "shapes": shapes}
                    for kind, table in tables.items():
                        if (where := f"{part.paths[name]}/{kind}") in places:
                            spans.append(Span(where, 0, table.nbytes, pwrite_all(fd, table, places[where])))
        finally:
            os.close(fd)
        return spans
