"""Another layout, chunking or codec for the same values.

contiguous   as a pack: in place, goes on after a kill
chunks       threads compress, one writes; begun anew after a kill. Read back through HDF5's own filters.
"""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from engine.data import REFUSE_EXTERNAL, Sources, open_h5
from engine.errors import ConfigError
from engine.packing.encode import Encoding
from engine.packing.file import bytes_of, crc32, flushing, full_disk, publish
from engine.packing.importers.base import Source, one_line
from engine.packing.importers.hdf5 import Contents, H5Source, copy_rest, scan
from engine.packing.journal import Journal
from engine.packing.options import PackOptions
from engine.packing.plan import BLOCK_BYTES, Part, plan_parts, shard_name
from engine.packing.pool import in_flight
from engine.packing.write import pack, write_parts


def pack_encoded(
    source: Source, out: str, options: PackOptions, encoding: Encoding, provenance: dict[str, Any]
) -> None:
    """Pack; with a codec in two steps, contiguous into OUT.raw, then repack: it can go on after a kill, and skip."""
    final = shard_name(Path(out), options.shard)
    if encoding.contiguous:
        pack(source, out, options, provenance)
        return
    if final.exists() and not options.overwrite:
        raise ConfigError(f"{final} exists; --overwrite replaces it")
    raw = final.with_name(final.name + ".raw")
    if not (raw.exists() and made_by(raw, provenance)):
        write_parts(source, plan_parts(source, options, out), raw, options, provenance)
    repack_file(str(raw), str(final), options, encoding, {})
    raw.unlink()


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
) -> None:
    """provenance: its command and date become the attribute `repacked`; the old file's attributes are kept.

    external: refuse or allow datasets whose bytes lie in files elsewhere, which are copied.
    flatten: HDF5's variable length and strings become groups of flat `values` and `offsets`.
    """
    if flatten and not encoding.contiguous:
        raise ConfigError("--flatten: the flat values are mapped, so leave --codec and --rows-per-chunk out")
    old, new = Path(source), Path(out)
    if new.exists() and (not options.overwrite or new.samefile(old)):
        raise ConfigError(
            f"{out} exists; " + ("--overwrite replaces it" if not new.samefile(old) else "name another file")
        )
    with one_line(source):
        with open_h5(old) as file:
            contents = scan(file, flatten, external)
            for name in [*contents.plain, *contents.vlen]:
                Sources(file[name])
        attrs = {"repacked": f"{provenance['created']} {provenance['command']}"} if provenance else {}
        rows = H5Source(old, contents)
        try:
            parts = make_parts(rows, contents, options)

            def rest(target: h5py.File) -> None:
                with open_h5(old) as file:
                    for line in copy_rest(file, target, contents):
                        print(f"left out: {line}")

            if encoding.contiguous:
                write_parts(rows, parts, new, options, attrs, rest)
            else:
                write_chunks(rows, parts, contents, new, options, encoding, attrs, rest)
        finally:
            rows.close()
    if not options.quiet:
        before, after = old.stat().st_size, new.stat().st_size
        print(f"{old}: {before / 1e6:,.1f} MB -> {new}: {after / 1e6:,.1f} MB; look with: {look(new)}")


def look(path: Path) -> str:
    return shlex.join(["python", "src/h5.py", "inspect", str(path)])


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
    rest: Any,
) -> None:
    temp = out.with_name(out.name + ".partial")
    journal = Journal(temp.with_name(temp.name + ".progress"))
    try:
        need = sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in contents.plain.values())
        with full_disk(out, lambda: need, temp):
            sums = _write(source, parts, contents, temp, options, encoding, attrs, rest)
            with flushing(temp):
                _verify(temp, sums, options)
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
    rest: Any,
) -> Sums:
    # chunks need no pages, but numbers at odd addresses are slow to read
    aligned = {"alignment_threshold": 1, "alignment_interval": 8}
    with (
        h5py.File(temp, "w", libver=("v108", "latest"), **aligned) as file,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        tasks, steps = [], {}
        for part in parts:
            for name in part.paths:
                shape, dtype = contents.plain[name]
                chunk_rows = encoding.rows(shape, dtype)
                chunked = {"chunks": (chunk_rows, *shape[1:]), **encoding.create_options(dtype)} if chunk_rows else {}
                file.create_dataset(name, shape, dtype, **chunked)
                row_bytes = max(1, int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize)
                step = max(1, BLOCK_BYTES // row_bytes)
                step = max(1, step // chunk_rows) * chunk_rows if chunk_rows else step
                steps[name] = chunk_rows
                encode = encoding.encoder(dtype) if chunk_rows else None
                for begin in range(0, shape[0], step):
                    end = min(begin + step, shape[0])
                    tasks.append(((name, begin, end), (name, part.rows[begin:end], chunk_rows, encode)))
        rest(file)
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
