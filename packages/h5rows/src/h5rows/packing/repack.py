"""Copy an HDF5 file with another layout, chunking or codec. All values, attributes and links are kept.

HDF5 writes OUT.partial block by block with its own filters, and each block is read back. After a kill, repeat the
command to start from the beginning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.account import Account
from h5rows.errors import ConfigError, clean, report
from h5rows.options import RepackOptions
from h5rows.packing import file as files
from h5rows.packing.copying import Copier, compare, creation, elsewhere, file_properties
from h5rows.packing.file import PAGE, Column, Span, bytes_of, crc32, flushing, full_disk, in_words, under_work
from h5rows.packing.plan import BLOCK_BYTES
from h5rows.packing.scan import Contents, as_numbers, scan
from h5rows.packing.survey import DATASET, NOTE, UNREADABLE, Survey, grows
from h5rows.packing.values import scattered
from h5rows.program import typed
from h5rows.reading.filters import FLETCHER32
from h5rows.reading.opening import open_h5
from h5rows.reading.stored import Stored
from h5rows.source import one_line

MOST_TIMES, MOST_BYTES = 20, 1 << 30  # a copy larger than both (times the source, bytes) needs allow_larger
VLEN_ROWS = 512  # samples of variable length to read at a time
SLACK_BYTES, OBJECT_BYTES = 1 << 18, 512  # reserved for metadata: of the file, and of each object
CACHE_BYTES = 1 << 26  # cache of decoded chunks of the source


def repack_file(source: str, out: str, options: RepackOptions, note: str) -> Account:
    """Write the copy and return the account of what was left out. note: stored as the root attribute `repacked`."""
    if options.flatten and not options.is_contiguous:
        raise ConfigError("flatten=True: flat values are always contiguous; remove codec= and rows_per_chunk=")
    old, new = Path(source), Path(out)
    if new.exists() and new.samefile(old):
        raise ConfigError(f"{out} is SOURCE itself; give another file")
    with under_work(new, options.overwrite) as temp, one_line(source), open_h5(old) as file:
        if file.id.get_create_plist().get_sizes() != (8, 8):  # H5Ocopy would write a file that cannot be read
            problem = f"{source}: its addresses do not have 8 bytes, and HDF5 copies such files wrongly"
            raise ConfigError(f"{problem}; copy its datasets to a new file with h5py")
        contents = scan(file, options)
        if not options.allow_larger:
            check_size(file, contents, options.is_contiguous)
        account = contents.survey.account
        with h5py.File(old, "r", rdcc_nbytes=CACHE_BYTES) as rows, full_disk(new, temp):
            Repack(file, rows, contents, options).write(temp, note)
    print(*[f"{line}\n" for line in [*account.lines(), *map(clean, contents.said)]], sep="", end="")
    if not options.quiet:
        held = ", ".join(f"{count:,} {kind}" for kind, count in account.held.items() if count)
        report(f"{old} contains {held}; {new}: {account.closing}")
        sizes = " -> ".join(f"{path}: {in_words(path.stat().st_size)}" for path in (old, new))
        report(f"{sizes}; inspect it with: {typed('inspect', str(new))}")
    return account


def check_size(file: h5py.File, contents: Contents, contiguous: bool) -> None:
    """Raise ConfigError if the copy would be much larger, as with sparse or highly compressed data: it fills a disk."""
    plain = [path for path in contents.plain if contiguous and not elsewhere(file[path].id)]
    sizes = {**contents.whole, **{path: file[path].nbytes for path in plain}}
    size, need = Path(file.filename).stat().st_size, sum(sizes.values())
    if need > MOST_TIMES * size and need > MOST_BYTES:
        path = max(sizes, key=sizes.__getitem__)
        copy = f"but its copy would have {in_words(need)} ({path}: {in_words(sizes[path])})"
        remedy = "allow_larger=True writes it, codec='gzip' keeps it small"
        raise ConfigError(f"{file.filename} has {in_words(size)}, {copy}; {remedy}")


class Repack:
    """One copy of a file. rows: the source, opened a second time with a chunk cache."""

    def __init__(self, source: h5py.File, rows: h5py.File, contents: Contents, options: RepackOptions) -> None:
        self.source, self.rows, self.contents, self.options = source, rows, contents, options
        self.ends = {name: ends_of(rows[name]) for name in contents.vlen}

    def write(self, temp: Path, note: str) -> None:
        """Write the copy to `temp` and compare it with the source. note: its root attribute `repacked`."""
        # chunks need not begin at a page, but unaligned numbers are slow to read
        alignment = (PAGE, PAGE) if self.options.is_contiguous else (1, 8)
        with files.new_file(temp, file_properties(self.source), alignment) as file:
            files.reserve(temp, 0, self.unchanged_bytes())
            Copier(self.contents.survey, file, self.made_anew(file)).copy()
            file.attrs[NOTE.decode()] = note
            file.flush()
            files.reserve(temp, 0, file.id.get_filesize() + SLACK_BYTES)
            spans = self.fill(file, temp)
            file.flush()
            size = file.id.get_filesize()
        os.truncate(temp, size)  # the reserved bytes that were not needed
        self.copy_user_block(temp)
        with flushing(temp):
            self.compare(temp, spans)

    def unchanged_bytes(self) -> int:
        """Return how many bytes the copy has at most before the rows with a new layout are written."""
        contents, file, survey = self.contents, self.source, self.contents.survey
        anew, kept, has_heap = {*contents.plain, *contents.vlen}, 0, False
        for node in survey.nodes.values():
            if node.what == DATASET and node.path.decode().lstrip("/") not in anew:
                with suppress(*UNREADABLE):  # reported when it is copied
                    dset = survey.open(node.path)
                    kept += dset.get_storage_size() + h5py.h5o.get_info(dset).meta_size.obj.index_size
                    has_heap |= scattered(dset.get_type())
        if has_heap:  # the sizes of texts are unknown, and so is the free space of the source (of deleted datasets)
            stored = sum(file[path].id.get_storage_size() for path in anew)
            kept = max(0, Path(file.filename).stat().st_size - stored)
        kept += sum(size for path, size in contents.whole.items() if elsewhere(file[path].id))
        return kept + OBJECT_BYTES * len(survey.nodes) + SLACK_BYTES

    def made_anew(self, file: h5py.File) -> Any:
        """Return the function that creates the datasets whose rows `fill` writes (see `copying.Make`)."""

        def make(path: str, dset: Any, tid: Any) -> Any:
            path = path.lstrip("/")
            if path in self.contents.plain:
                return self.make_plain(file, path, dset, tid)
            if path not in self.ends:
                return None
            kind, text = self.contents.vlen[path]
            ends, group = self.ends[path], h5py.h5g.create(file.id, None)
            for column in (
                Column(f"{path}/values", (int(ends[-1]),), kind, {"encoding": "utf-8"} if text else {}),
                Column(f"{path}/offsets", ends.shape, ends.dtype),
            ):
                files.allocate(file, column, h5py.h5p.create(h5py.h5p.DATASET_CREATE), None, group)
            return group

        return make

    def make_plain(self, file: h5py.File, path: str, dset: Any, tid: Any) -> Any:
        """Create a dataset of numbers with the new layout."""
        shape, dtype = self.contents.plain[path]
        kind = tid if tid.committed() else h5py.h5t.py_create(dtype, logical=True)
        plan, chunk_rows = creation(dset), self.options.rows(shape, dtype)
        checked = any(number == FLETCHER32 for number, _ in Stored(dset).pipeline)
        if not chunk_rows:
            if checked:
                self.contents.said.append(f"{path}: its checksums (fletcher32) are lost, as it is contiguous now")
            return files.allocate(file, Column(path, shape, dtype), plan, kind)
        how = {"chunks": (chunk_rows, *shape[1:]), "fletcher32": checked, **self.options.create_options(dtype)}
        if grows(dset) and not self.options.contiguous and dset.get_create_plist().get_layout() == h5py.h5d.CHUNKED:
            how["maxshape"] = h5py.Dataset(dset).maxshape
        return file.create_dataset(None, shape, h5py.Datatype(kind), dcpl=plan, **how).id

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Yield (dataset in the copy, first row, rows) of all datasets with a new layout."""
        for name, (shape, dtype) in self.contents.plain.items():
            row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            step, chunk = max(1, BLOCK_BYTES // max(1, row_bytes)), self.options.rows(shape, dtype) or 1
            step = max(1, step // chunk) * chunk
            for begin in range(0, shape[0], step):
                yield name, begin, np.asarray(self.rows[name][begin : begin + step], dtype)
        for name, ends in self.ends.items():
            kind, _ = self.contents.vlen[name]
            for begin in range(0, len(ends) - 1, VLEN_ROWS):
                samples = [as_numbers(v, kind) for v in self.rows[name][begin : begin + VLEN_ROWS]]
                yield f"{name}/values", int(ends[begin]), np.concatenate(samples)
            yield f"{name}/offsets", 0, ends

    def fill(self, file: h5py.File, temp: Path) -> list[Span]:
        """Write the rows of these datasets. Return the spans that were written."""
        spans = []
        total = sum(shape[0] for shape, _ in self.contents.plain.values())
        with tqdm(total=total, unit=" rows", unit_scale=True, disable=self.options.quiet, desc="repack") as bar:
            for name, begin, values in self.pieces():
                if len(values):
                    if chunk_rows := self.options.rows(values.shape, values.dtype):
                        index = 32 * (values.ndim + 2) * (len(values) // chunk_rows)  # bytes of its B-tree at most
                        files.reserve(temp, file.id.get_filesize(), values.nbytes + index + SLACK_BYTES)
                    file[name][begin : begin + len(values)] = values
                    row_bytes = values.nbytes // len(values)
                    spans.append(Span(name, begin * row_bytes, values.nbytes, crc32(bytes_of(values))))
                    bar.update(len(values))
        return spans

    def copy_user_block(self, path: Path) -> None:
        """Copy the user block, the bytes before the HDF5 data."""
        if size := self.source.userblock_size:
            with open(self.source.filename, "rb") as old, open(path, "r+b") as new:
                new.write(old.read(size))

    def compare(self, path: Path, spans: list[Span]) -> None:
        """Raise ConfigError if the copy differs from the source. Count what it contains."""
        contents, account = self.contents, self.contents.survey.account
        files.read_back(path, spans, self.options.quiet)
        with h5py.File(path, "r") as file:
            written = {f"/{name}".encode() for name in (*contents.plain, *contents.vlen)}
            flat = {f"/{name}".encode(): len(ends) - 1 for name, ends in self.ends.items()}
            copied = Survey(file, Account(), flat)
            compare(contents.survey, copied, written)
            account.held, account.taken = contents.survey.counts, copied.counts


def ends_of(dset: h5py.Dataset) -> np.ndarray:
    """Return the begin of each variable-length sample in the flat values, (rows + 1,) int64."""
    sizes = [len(v) for begin in range(0, len(dset), VLEN_ROWS) for v in dset[begin : begin + VLEN_ROWS]]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
