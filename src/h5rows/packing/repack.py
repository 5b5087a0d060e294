"""Another layout, chunking or codec for the same values.

contiguous   as a pack: in place, goes on after a kill
chunks       threads compress, one writes; begun anew after a kill. Read back through HDF5's own filters.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.errors import ConfigError
from h5rows.importers.base import Source, one_line, printable
from h5rows.importers.hdf5 import Contents, H5Source, Wanted, scan
from h5rows.packing.account import MOST_NAMES, Account
from h5rows.packing.comparing import Comparison
from h5rows.packing.copying import SMALL, Copier, creation, file_properties
from h5rows.packing.encode import Encoding
from h5rows.packing.file import Column, allocate, bytes_of, crc32, flushing, full_disk, in_words, new_file, publish
from h5rows.packing.journal import Journal, forget_finished, work_on
from h5rows.packing.options import PackOptions
from h5rows.packing.plan import BLOCK_BYTES, Part, plan_parts, shard_name
from h5rows.packing.pool import in_flight
from h5rows.packing.tree import NOTE, Tree, grows
from h5rows.packing.write import pack, write_parts
from h5rows.program import typed
from h5rows.reading.external import REFUSE_EXTERNAL
from h5rows.reading.opening import open_h5

MOST_TIMES, MOST_BYTES = 20, 1 << 30  # of the source's size, that a copy may have without being asked for


def pack_encoded(
    source: Source, out: str, options: PackOptions, encoding: Encoding, provenance: dict[str, Any]
) -> Account:
    """Pack -> what was left out. With a codec in two steps, contiguous into OUT.raw, then repack: it can go on after a
    kill, and skip."""
    final = shard_name(Path(out), options.shard)
    if encoding.contiguous:
        pack(source, out, options, provenance)
        return source.account
    raw = final.with_name(final.name + ".raw")
    counted = raw.with_name(raw.name + ".account")
    if final.exists() and not options.overwrite:
        forget_finished(final)
        if raw.exists() and raw.stat().st_mtime_ns <= final.stat().st_mtime_ns and made_by(raw, provenance):
            counted.unlink(missing_ok=True)
            raw.unlink()  # it was killed when the file made from this one had its name already
        raise ConfigError(f"{final} exists; --overwrite replaces it")
    if raw.exists() and counted.exists() and made_by(raw, provenance):
        forget_finished(raw)
        held, taken, asked, left = json.loads(counted.read_text())
        source.account = Account(Counter(held), Counter(taken), Counter(asked), left)
    else:
        if raw.exists() and made_by(raw, provenance):
            raw.unlink()  # killed before what was left out had been written down
        write_parts(source, plan_parts(source, options, out), raw, options, provenance)
        partial = counted.with_name(counted.name + ".partial")  # a name that the next try writes again
        partial.write_text(json.dumps([getattr(source.account, f.name) for f in fields(Account)]))
        partial.replace(counted)
    repack_file(str(raw), str(final), options, encoding, {})
    counted.unlink()
    raw.unlink()
    return source.account


def made_by(raw: Path, provenance: dict[str, Any]) -> bool:
    with open_h5(raw) as file:
        return all(file.attrs.get(name) == provenance.get(name) for name in ("source", "options"))


def repack_file(
    source: str,
    out: str,
    options: PackOptions,
    encoding: Encoding,
    provenance: dict[str, Any],
    flatten: bool = False,
    external: str = REFUSE_EXTERNAL,
    fixed: bool = False,
    inflate: bool = False,
) -> Account:
    """-> what was left out. provenance: its command and date become the attribute `repacked`.

    external: refuse or allow datasets whose bytes lie in other files, which are copied.
    flatten: HDF5's variable length and strings become groups of flat `values` and `offsets`.
    fixed: what can grow becomes contiguous too, and can grow no more.
    inflate: write also many times what the source holds.
    """
    if flatten and not encoding.contiguous:
        raise ConfigError("--flatten: the flat values are mapped, so leave --codec and --rows-per-chunk out")
    old, new = Path(source), Path(out)
    if new.exists() and (not options.overwrite or new.samefile(old)):
        forget_finished(new)
        raise ConfigError(
            f"{out} exists; " + ("--overwrite replaces it" if not new.samefile(old) else "name another file")
        )
    small = 0 if options.shuffle else SMALL
    with one_line(source):
        with open_h5(old) as file:
            contents = scan(file, Account(), Wanted(flatten, external, fixed, encoding.rows, small))
            if encoding.contiguous and not inflate:
                check_size(file, contents)
        account = contents.tree.account
        account.held.update(contents.tree.counts)
        attrs = {NOTE.decode(): f"{provenance['created']} {provenance['command']}"} if provenance else {}
        rows = H5Source(old, contents)
        try:
            parts = make_parts(rows, contents, options)
            structure = Whole(old, contents, encoding, options, fixed)
            if encoding.contiguous:
                write_parts(rows, parts, new, options, attrs, structure)
            else:
                write_chunks(rows, parts, contents, new, options, encoding, attrs, structure)
        finally:
            rows.close()
    if not encoding.contiguous:
        print(*[f"{line}\n" for line in account.lines()], sep="", end="")
    if not options.quiet:
        tell(old, new, contents)
    return account


def tell(old: Path, new: Path, contents: Contents) -> None:
    why: dict[str, list[str]] = {}
    for path, reason in contents.kept.items():
        why.setdefault(reason, []).append(path)
    for reason, paths in why.items():
        if reason:
            shown = ", ".join(paths[:MOST_NAMES]) + f" and {len(paths) - MOST_NAMES} more" * (len(paths) > MOST_NAMES)
            print(f"kept as they lie in the file, being {reason}: {printable(shown)}")
    held = ", ".join(f"{count:,} {kind}" for kind, count in contents.tree.account.held.items() if count)
    print(f"{old} holds {held}; {new}: {contents.tree.account.closing}")
    before, after = old.stat().st_size, new.stat().st_size
    print(f"{old}: {before / 1e6:,.1f} MB -> {new}: {after / 1e6:,.1f} MB; look with: {look(new)}")


def check_size(file: h5py.File, contents: Contents) -> None:
    """What was hardly written, or compresses a thousandfold, would fill a disk."""
    sizes = {path: file[path].nbytes for path in contents.plain if not (file[path].is_virtual or file[path].external)}
    size, need = Path(file.filename).stat().st_size, sum(sizes.values())
    if need > MOST_TIMES * size and need > MOST_BYTES:
        path = max(sizes, key=sizes.__getitem__)
        raise ConfigError(
            f"{file.filename} has {in_words(size)}, a contiguous copy would have {in_words(need)} ({path} alone "
            f"{in_words(sizes[path])}); --inflate writes it, --codec gzip keeps it small"
        )


class Whole:
    """All that a file holds, as `file.Structure` for its copy."""

    def __init__(self, old: Path, contents: Contents, encoding: Encoding, options: PackOptions, fixed: bool) -> None:
        self.old, self.contents, self.encoding, self.options, self.fixed = old, contents, encoding, options, fixed

    def properties(self) -> Any:
        with open_h5(self.old) as file:
            return file_properties(file)

    def build(self, file: h5py.File, columns: list[Column]) -> None:
        """Without columns: chunks, or what else `encoding` says."""
        by_path = {column.path: column for column in columns}

        def make(path: str, dset: Any, tid: Any) -> Any:
            path = path.lstrip("/")
            if path in self.contents.plain:
                return self.plain(file, path, dset, tid)
            if path in self.contents.vlen:
                group = h5py.h5g.create(file.id, None)
                for name in ("values", "offsets"):
                    allocate(file, by_path[f"{path}/{name}"], h5py.h5p.create(h5py.h5p.DATASET_CREATE), None, group)
                return group
            return None

        with open_h5(self.old) as source:
            Copier(self.contents.tree, source, file, make, self.options.shuffle).copy()

    def plain(self, file: h5py.File, path: str, dset: Any, tid: Any) -> Any:
        shape, dtype = self.contents.plain[path]
        kind = tid if tid.committed() else h5py.h5t.py_create(dtype, logical=True)
        plan, chunk_rows = creation(dset), self.encoding.rows(shape, dtype)
        if not chunk_rows:
            if not self.encoding.contiguous:
                return h5py.h5d.create(file.id, None, kind, h5py.h5s.create_simple(shape), plan)
            return allocate(file, Column(path, shape, dtype), plan, kind)
        most = h5py.Dataset(dset).maxshape
        how = {"chunks": (chunk_rows, *shape[1:]), **self.encoding.create_options(dtype)}
        if grows(dset) and not self.fixed and dset.get_create_plist().get_layout() == h5py.h5d.CHUNKED:
            how["maxshape"] = most
        return file.create_dataset(None, shape, h5py.Datatype(kind), dcpl=plan, **how).id

    def finish(self, path: Path) -> None:
        with open_h5(self.old) as file:
            size = file.userblock_size
        if size:
            with open(self.old, "rb") as old, open(path, "r+b") as new:
                new.write(old.read(size))

    def compare(self, path: Path) -> None:
        contents, account = self.contents, self.contents.tree.account
        replaced = {f"/{name}" for name in (*contents.plain, *contents.vlen)}
        with open_h5(self.old) as old, h5py.File(path, "r") as new:
            Comparison(contents.tree, old, new, replaced).run()
            flat = {f"/{name}": rows for name, rows in contents.vlen.items()}
            account.taken = Tree(new, Account(), flat).counts


def look(path: Path) -> str:
    return typed("inspect", str(path))


def make_parts(source: H5Source, contents: Contents, options: PackOptions) -> list[Part]:
    if not options.shuffle:
        sizes = {name: shape[0] for name, (shape, _) in contents.plain.items()} | contents.vlen
        return [Part(range(size), {name: name}) for name, size in sizes.items()]
    if contents.vlen:
        raise ConfigError("--shuffle: samples of different length are shuffled when packed; leave --flatten out")
    together: dict[tuple[str, int], list[str]] = {}
    for name, (shape, _) in contents.plain.items():
        if name.endswith("/offsets") and f"{name[: -len('offsets')]}values" in contents.plain:
            raise ConfigError(f"--shuffle: {name} belongs to samples of different length; shuffle when packing them")
        if not source.mapped(name):
            raise ConfigError(
                f"--shuffle: {name} is chunked; repack it without --shuffle first, then shuffle that file"
            )
        together.setdefault((name.rpartition("/")[0], shape[0]), []).append(name)
    groups = {group for group, _ in together}
    for name, why in contents.kept.items():
        if why:
            raise ConfigError(f"--shuffle: {name} would keep its order, being {why}")
    for name, size in contents.rows.items():
        if (name.rpartition("/")[0], size) in together and size > 1:
            raise ConfigError(f"--shuffle: {name} has {size} rows of strings or the like, which would keep their order")
    if len(groups) < len(together):
        raise ConfigError(
            "--shuffle: the datasets of one group differ in length, so which rows belong together is unknown"
        )
    return [
        Part(np.random.default_rng([options.seed, k + 1]).permutation(size), {name: name for name in names})
        for k, ((_, size), names) in enumerate(together.items())
    ]


def write_chunks(
    source: H5Source,
    parts: list[Part],
    contents: Contents,
    out: Path,
    options: PackOptions,
    encoding: Encoding,
    attrs: dict[str, Any],
    structure: Whole,
) -> None:
    temp, progress = work_on(out)
    journal = Journal(progress)
    try:
        need = sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in contents.plain.values())
        with full_disk(out, lambda: need, temp):
            sums = _write(source, parts, contents, temp, options, encoding, attrs, structure)
            with flushing(temp):
                _verify(temp, sums, options)
                structure.compare(temp)
            publish(temp, out)
    finally:
        temp.unlink(missing_ok=True)
        journal.remove()
        journal.close()


Sums = dict[tuple[str, int, int], int]  # (dataset, first row, end) -> crc32


def _write(
    source: H5Source,
    parts: list[Part],
    contents: Contents,
    temp: Path,
    options: PackOptions,
    encoding: Encoding,
    attrs: dict[str, Any],
    structure: Whole,
) -> Sums:
    # chunks need no pages, but numbers at odd addresses are slow to read
    with new_file(temp, structure, (1, 8)) as file, ThreadPoolExecutor(options.workers) as pool:
        structure.build(file, [])
        tasks, steps = [], {}
        for part in parts:
            for name in part.paths:
                shape, dtype = contents.plain[name]
                chunk_rows = encoding.rows(shape, dtype)
                row_bytes = max(1, int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize)
                step = max(1, BLOCK_BYTES // row_bytes)
                step = max(1, step // chunk_rows) * chunk_rows if chunk_rows else step
                steps[name] = chunk_rows
                encode = encoding.encoder(dtype) if chunk_rows else None
                for begin in range(0, shape[0], step):
                    end = min(begin + step, shape[0])
                    tasks.append(((name, begin, end), (name, part.rows[begin:end], chunk_rows, encode)))
        for name, value in attrs.items():
            file.attrs[name] = value
        sums: Sums = {}

        def work(task: Any) -> tuple[Any, int]:
            name, rows, chunk_rows, encode = task
            values = np.ascontiguousarray(source.read(rows, [name])[0][name])
            crc = crc32(bytes_of(values))
            if encode is None:
                return values, crc
            return [
                encode(whole(values[k : k + chunk_rows], chunk_rows)) for k in range(0, len(values), chunk_rows)
            ], crc

        total = sum(end - begin for (_, begin, end), _ in tasks)
        with tqdm(total=total, unit=" rows", unit_scale=True, disable=options.quiet, desc="repack") as bar:
            for (name, begin, end), (made, crc) in in_flight(pool, work, tasks, 2 * options.workers):
                dset = file[name]
                if dset.chunks is None:
                    dset[begin:end] = made
                else:
                    for k, chunk in enumerate(made):
                        dset.id.write_direct_chunk((begin + k * steps[name], *[0] * (dset.ndim - 1)), chunk)
                sums[name, begin, end] = crc
                bar.update(end - begin)
    structure.finish(temp)
    return sums


def whole(rows: np.ndarray, chunk_rows: int) -> np.ndarray:
    """The last chunk is stored whole, too."""
    if len(rows) == chunk_rows:
        return rows
    return np.concatenate([rows, np.zeros((chunk_rows - len(rows), *rows.shape[1:]), rows.dtype)])


def _verify(temp: Path, sums: Sums, options: PackOptions) -> None:
    with h5py.File(temp, "r") as file:
        for (name, begin, end), crc in tqdm(sums.items(), desc="verify", unit=" blocks", disable=options.quiet):
            if crc32(bytes_of(file[name][begin:end])) != crc:
                raise ConfigError(f"{temp}: {name}, rows {begin} to {end}: what was read back is not what was written")
