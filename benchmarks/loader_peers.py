"""The usual ways of delivering a shuffled epoch, each as good as it gets: what loader_figures.py compares with.

Every way is `open(folder, batch_size, num_workers) -> epoch`, where epoch() iterates over one epoch's batches, tensors
(B, *shape) in this process. Files are written by `write`.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

Epoch = Callable[[], Iterator[Tensor]]
SMALL_BYTES = 50_000


def write(folder: Path, size: int, shape: tuple[int, ...]) -> None:
    """The same random uint8 samples in every format."""
    import lmdb
    import zarr

    values = np.random.default_rng(0).integers(0, 256, (size, *shape), dtype=np.uint8)
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = values
    np.save(folder / "x.npy", values)
    with (
        lmdb.open(str(folder / "lmdb"), map_size=4 * values.nbytes + (1 << 26)) as store,
        store.begin(write=True) as put,
    ):
        for i, value in enumerate(values):
            put.put(str(i).encode(), value.tobytes())
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(shard, size, 4):
                entry = tarfile.TarInfo(f"{i:08}.bin")
                entry.size = values[i].nbytes
                tar.addfile(entry, io.BytesIO(values[i].tobytes()))
    one = (1, *shape)
    array = zarr.create_array(
        store=str(folder / "x.zarr"),
        shape=values.shape,
        chunks=one,
        shards=(size // 4, *shape),
        dtype="u1",
        compressors=None,
    )
    array[:] = values
    with contextlib.suppress(ImportError):  # then their rows are left out
        write_datasets(folder, values)
    with contextlib.suppress(ImportError):
        write_litdata(folder, values)


def write_datasets(folder: Path, values: np.ndarray) -> None:
    """Write Arrow as `datasets` does: bytes are the fastest to read for small samples, its arrays for large ones."""
    import datasets

    datasets.disable_progress_bars()
    small = values[0].nbytes <= SMALL_BYTES
    kind = datasets.Value("binary") if small else datasets.Array3D(values.shape[1:], "uint8")

    def samples() -> Iterator[dict[str, Any]]:
        for value in values:
            yield {"x": value.tobytes() if small else value}

    features = datasets.Features({"x": kind})
    written = datasets.Dataset.from_generator(samples, features=features, cache_dir=str(folder / "cache"))
    written.save_to_disk(str(folder / "arrow"))


def write_litdata(folder: Path, values: np.ndarray) -> None:
    """Write chunks of its usual 64 MB."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder / "litdata"), chunk_bytes="64MB")
    for i, value in enumerate(values):
        writer[i] = {"x": torch.from_numpy(value)}
    writer.done()
    writer.merge()


class _Lazy(Dataset):
    """Opens in the process that reads."""

    def __init__(self, folder: Path, size: int, shape: tuple[int, ...]) -> None:
        self.folder, self.size, self.shape = folder, size, shape
        self.handle: Any = None

    def __len__(self) -> int:
        return self.size


class NaiveH5(_Lazy):
    """What people write: f['x'][i]."""

    def __getitem__(self, i: int) -> Tensor:
        if self.handle is None:
            self.handle = h5py.File(self.folder / "x.h5", "r")
        return torch.from_numpy(self.handle["x"][i])


class KeptH5(_Lazy):
    """A held dataset and no sieve buffer; whole batches of sorted rows where a sample is small, else one by one."""

    def __getitem__(self, rows: list[int]) -> Tensor:
        if self.handle is None:
            access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
            access.set_sieve_buf_size(0)
            name = str(self.folder / "x.h5").encode()
            self.handle = h5py.File(h5py.h5f.open(name, h5py.h5f.ACC_RDONLY, fapl=access))["x"]
        if np.prod(self.shape) > SMALL_BYTES:
            out = np.empty((len(rows), *self.shape), np.uint8)
            for k, i in enumerate(rows):
                self.handle.read_direct(out, np.s_[i], np.s_[k])
            return torch.from_numpy(out)
        order = np.argsort(rows)
        out = self.handle[np.asarray(rows)[order]]
        return torch.from_numpy(out[np.argsort(order)])


class KeptH5BySample(_Lazy):
    """The dataset is held open, and nothing else is done."""

    def __getitem__(self, i: int) -> Tensor:
        if self.handle is None:
            self.handle = h5py.File(self.folder / "x.h5", "r")["x"]
        return torch.from_numpy(self.handle[i])


class MemmapBySample(_Lazy):
    def __getitem__(self, i: int) -> Tensor:
        if self.handle is None:
            self.handle = np.load(self.folder / "x.npy", mmap_mode="r")
        return torch.from_numpy(self.handle[i].copy())


class Memmap(_Lazy):
    def __getitem__(self, rows: list[int]) -> Tensor:
        if self.handle is None:
            self.handle = np.load(self.folder / "x.npy", mmap_mode="r")
        return torch.from_numpy(self.handle[rows])


class Lmdb(_Lazy):
    def __getitem__(self, i: int) -> Tensor:
        import lmdb

        if self.handle is None:
            self.handle = lmdb.open(str(self.folder / "lmdb"), readonly=True, lock=False, readahead=False).begin(
                buffers=True
            )
        return torch.from_numpy(np.frombuffer(self.handle.get(str(i).encode()), np.uint8).reshape(self.shape).copy())


class Arrow(_Lazy):
    """Hugging Face datasets, whole batches."""

    def __getitem__(self, rows: list[int]) -> Tensor:
        if self.handle is None:
            import datasets

            self.handle = datasets.load_from_disk(str(self.folder / "arrow")).with_format("numpy", dtype=np.uint8)
            if np.prod(self.shape) <= SMALL_BYTES:
                self.handle = self.handle.with_format(None)
        found = self.handle[rows]["x"]
        if isinstance(found, np.ndarray):
            return torch.from_numpy(found)
        return torch.stack([torch.frombuffer(bytearray(one), dtype=torch.uint8).view(self.shape) for one in found])


class Zarr(_Lazy):
    def __getitem__(self, i: int) -> Tensor:
        import zarr

        if self.handle is None:
            self.handle = zarr.open_array(str(self.folder / "x.zarr"), mode="r")
        return torch.from_numpy(np.asarray(self.handle[i]))


def by_sample(kind: type[_Lazy]) -> Callable[..., Epoch]:
    """DataLoader's own batches: one __getitem__ per sample, collated."""

    def open_(folder: Path, size: int, shape: tuple[int, ...], batch_size: int, num_workers: int) -> Epoch:
        dataset, lasting = kind(folder, size, shape), num_workers > 0
        loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=num_workers, persistent_workers=lasting)
        return lambda: iter(loader)

    return open_


def by_batch(kind: type[_Lazy]) -> Callable[..., Epoch]:
    """One __getitem__ per batch of rows: no collation."""

    def open_(folder: Path, size: int, shape: tuple[int, ...], batch_size: int, num_workers: int) -> Epoch:
        dataset = kind(folder, size, shape)
        dataset[[0]]  # raises ImportError here, not in a worker
        dataset.handle = None
        sampler, lasting = BatchSampler(RandomSampler(range(size)), batch_size, drop_last=False), num_workers > 0
        loader = DataLoader(dataset, None, sampler=sampler, num_workers=num_workers, persistent_workers=lasting)
        return lambda: iter(loader)

    return open_


def webdataset(folder: Path, size: int, shape: tuple[int, ...], batch_size: int, num_workers: int) -> Epoch:
    """Its way of shuffling: shards in random order and a buffer of 1,000 samples."""
    import webdataset as wds

    def sample(entry: dict[str, Any]) -> Tensor:
        return torch.from_numpy(np.frombuffer(entry["bin"], np.uint8).reshape(shape).copy())

    shards = [str(folder / f"{shard}.tar") for shard in range(4)]
    stream = wds.WebDataset(shards, shardshuffle=4, empty_check=False).shuffle(1000).map(sample)
    loader = wds.WebLoader(
        stream.batched(batch_size, collation_fn=torch.stack),
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    return lambda: iter(loader)


def litdata(folder: Path, size: int, shape: tuple[int, ...], batch_size: int, num_workers: int) -> Epoch:
    """Its way of shuffling: chunks in random order, and the samples within a chunk."""
    from litdata import StreamingDataLoader, StreamingDataset

    stream = StreamingDataset(str(folder / "litdata"), shuffle=True)
    loader = StreamingDataLoader(
        stream, batch_size=batch_size, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    return lambda: (batch["x"] for batch in loader)


# name -> (way, numbers of workers to try: the best counts). Workers first: LMDB may not be open where they are forked.
PEERS: dict[str, tuple[Callable[..., Epoch], tuple[int, ...]]] = {
    "DataLoader, 2 workers, f['x'][i]": (by_sample(NaiveH5), (2,)),
    "h5py, kept handle": (by_sample(KeptH5BySample), (2, 0)),
    "h5py, kept handle, no sieve, sorted whole batches": (by_batch(KeptH5), (2, 0)),
    "memmap": (by_sample(MemmapBySample), (2, 0)),
    "memmap, whole batches": (by_batch(Memmap), (2, 0)),
    "LMDB": (by_sample(Lmdb), (2, 0)),
    "webdataset": (webdataset, (2, 0)),
    "litdata": (litdata, (2, 0)),
    "Hugging Face datasets, whole batches": (by_batch(Arrow), (2, 0)),
    "zarr": (by_sample(Zarr), (2, 0)),
}
