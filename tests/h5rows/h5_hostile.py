"""Files that are small and ask for much, or lead in circles, or to what is no file: h5py's values or one line, soon and
within little memory."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from h5_judge import Judge, one_line
from h5_truth import Truth, truth
from h5_types import Draw
from h5_virtual import MAIN

from h5rows.dataset import Dataset
from h5rows.importers import open_source
from h5rows.packing.inspect import inspect_file
from h5rows.packing.options import PackOptions
from h5rows.packing.repack import repack_file

CPU_S, MEMORY = 10.0, 400 << 20  # of opening and of a batch; some 2 s and 60 MB are usual
Found = tuple[list[str], Counter[str]]


class Bounded:
    """What a block takes of this process: CPU seconds and memory that was not needed before."""

    def __enter__(self) -> Bounded:
        self.before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return self

    def __exit__(self, *_: object) -> None:
        now = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds, size = now[0] - self.before[0], (now[1] - self.before[1]) << 10
        self.fault = f"took {seconds:.1f} s, {size >> 20} MB" if seconds > CPU_S or size > MEMORY else ""


# -- more rows than were ever written, and a row count of which a bit is wrong


def write_sparse(w: Draw, path: Path) -> bool:
    """-> whether it is whole."""
    rows = (1 << w.between(12, 31)) + w.one_of([0, 0, -1, 1, 12345])
    inner, kind = w.one_of([(), (), (2,), (3, 2)]), w.one_of(["u1", "<i2", "<f4", ">f4", "<i8"])
    contiguous = w.chance(0.2)
    options: dict[str, Any] = {}
    if not contiguous:
        options["chunks"] = (min(rows, w.one_of([1, 1, 7, 1000, 1 << 16])), *inner)
        options |= w.one_of([{}, {"compression": "gzip"}, {"compression": "lzf"}, dict(hdf5plugin.LZ4())])
        options |= {"shuffle": True} if w.chance(0.3) else {}
        options |= {"fletcher32": True} if w.chance(0.3) else {}
        options |= {"maxshape": w.one_of([(None, *inner), (rows * 2, *inner), (None,) * (1 + len(inner))])}
    if w.chance(0.5):
        options["fillvalue"] = 7
    with h5py.File(path, "w", libver=w.one_of([None, "latest", ("v108", "v110")])) as file:
        dset = file.create_dataset("x", (rows, *inner), kind, **options)
        for row in (
            [] if contiguous else {w.one_of([0, rows - 1, w.between(0, rows - 1)]) for _ in range(w.between(0, 4))}
        ):
            dset[row] = w.between(1, 100)
        if w.chance(0.3):
            file["y"] = np.arange(10)
    if w.chance(0.5):
        return True
    wanted, bit = rows.to_bytes(8, "little"), w.between(0, 62)
    with open(path, "r+b") as file:  # its descriptions come first; the rest may be large
        raw = file.read(1 << 16)
        at = w.one_of([k for k in range(len(raw)) if raw.startswith(wanted, k)]) + bit // 8
        file.seek(at)
        file.write(bytes([raw[at] ^ 1 << bit % 8]))
    return False


class HostileJudge(Judge):
    """whole: it must not be refused."""

    whole = False

    def sparse(self, whole: bool) -> None:
        truth = self.truths["x"]
        with Bounded() as use:
            data = self.opened("x")
        if use.fault:
            self.fault("x", "opening", use.fault)
        if data is None or truth.refused:
            if data is not None and whole:
                self.fault("x", "is read, but", truth.refused)
            return
        if not whole:
            self.seen["read though damaged"] += 1
        self.seen["read"] += 1
        known = [row for row, value in truth.values.items() if value is not None]
        with Bounded() as use:
            self.rows("x", data, truth, known, "gather")
            self.buffers("x", data, truth, known)
            self.pickled("x", data, truth, known)
            self.forked("x", data, truth, known)
            _ = data.nbytes, data.chunk_rows, data.describe(), data.cached_share(), data.advise(np.asarray(known[:9]))
        if use.fault:
            self.fault("x", "reading", use.fault)

    def refusal(self, name: str, truth: Truth, error: Exception) -> None:
        if self.whole or one_line(error, self.path):
            super().refusal(name, truth, error)
        else:
            self.seen["refused"] += 1


def judge_sparse(path: Path, truths: dict[str, Truth], seed: int, whole: bool) -> Found:
    made = HostileJudge(path, truths, seed)
    made.whole = whole
    made.sparse(whole)
    return made.wrong, made.seen


# -- chunks that hold far more than their dataset's chunks


BOMBS: list[Any] = [
    {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"compression": "gzip", "fletcher32": True},
    {"compression": "lzf"}, {"scaleoffset": 0}, {"compression": "szip"}, hdf5plugin.LZ4(), hdf5plugin.Zstd(),
    hdf5plugin.Blosc(cname="lz4"), hdf5plugin.Blosc(cname="zstd"), hdf5plugin.Blosc(cname="zlib"),
    hdf5plugin.Blosc2(cname="zstd"), hdf5plugin.Bitshuffle(cname="lz4"), hdf5plugin.BZip2(),
]  # fmt: skip


def write_bomb(w: Draw, path: Path) -> int:
    """A dataset of rows 0 to 9, one to a chunk -> the row whose chunk is another's, of far more bytes."""
    options, width = dict(w.one_of(BOMBS)), w.one_of([16, 64, 1000, 40000])
    own = options.get("compression") in ("gzip", 32001, 32004, 32015)  # else HDF5 takes its time over a large one
    kind, large, bad = w.one_of(["u1", "<i4"]), 1 << w.between(17, 26 if own else 20), w.between(1, 8)
    with h5py.File(path, "w") as file, h5py.File("donor", "w", driver="core", backing_store=False) as other:
        dset = file.create_dataset("x", (10, width), kind, chunks=(1, width), **options)
        dset[...] = np.arange(10)[:, None]
        donor = other.create_dataset("x", (1, large), kind, chunks=(1, large), **options)
        donor[...] = 3
        mask, raw = donor.id.read_direct_chunk((0, 0))
        if w.chance(0.2):  # twice, as streams may be
            raw += raw
        dset.id.write_direct_chunk((bad, 0), raw, mask)
    return bad


def judge_bomb(path: Path, bad: int, truths: dict[str, Truth], seed: int) -> Found:
    made = HostileJudge(path, truths, seed)  # the bomb's row may be among those that are read at the opening
    truth = truths["x"]
    data = made.opened("x")
    if data is None:
        return made.wrong, made.seen
    made.seen["read"] += 1
    rows = [row for row in range(10) if row != bad]
    for known in (rows, [bad]):
        with Bounded() as use:
            try:
                made.rows("x", data, truth, known, "gather")
            except Exception as error:
                made.seen["refused"] += 1
                if said := one_line(error, path) or ("" if known == [bad] else "refused"):
                    made.fault("x", f"rows {known}", f"{said}: {error}")
        if use.fault and data._fields["f0"][0].way != "h5py":  # how much HDF5 takes is its own
            made.fault("x", f"rows {known}", use.fault)
    return made.wrong, made.seen


# -- virtual datasets that lead back to themselves


def write_circle(w: Draw, folder: Path) -> bool:
    """A chain of virtual datasets over some files -> whether it ends in one that holds values."""
    length, files, ends = w.between(1, 6), [MAIN, "g.h5", "below/h.h5"][: w.between(1, 3)], w.chance(0.3)
    places = [(files[k % len(files)] if w.chance(0.7) else w.one_of(files), f"v{k}") for k in range(length)]
    places[0] = (MAIN, "v0")
    text = w.chance(0.2)
    kind: Any = w.one_of([h5py.string_dtype(), "S3"]) if text else w.one_of(["<i4", "u1", ">f8"])
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        h5py.File(folder / name, "w").close()
    many = w.chance(0.3)
    for k, (where, name) in enumerate(places):
        with h5py.File(folder / where, "a") as file:
            if k == length - 1 and ends:
                file.create_dataset(name, (8,), kind, data=["ab"] * 8 if text else np.arange(8))
                continue
            back = (k + 1) if k < length - 1 else w.between(0, length - 1)
            there, of = places[back]
            named = "." if there == where and w.chance(0.6) else os.path.relpath(there, os.path.dirname(where))
            if w.chance(0.2):  # through a link
                of, target = f"link{k}", of
                with_file = file if named == "." else None
                other = with_file if with_file is not None or there == where else h5py.File(folder / there, "a")
                (other or file)[of] = h5py.SoftLink(f"/{target}")
                if other is not None and other is not file:
                    other.close()
            elif w.chance(0.1):
                file[f"link{k}"] = h5py.ExternalLink(os.path.relpath(there, os.path.dirname(where)), of)
                named, of = ".", f"link{k}"
            layout = h5py.VirtualLayout((8,), kind)
            source = h5py.VirtualSource(named, of, (8,))
            if many and k < length - 1:  # each half shows the whole chain
                layout[:4], layout[4:] = source[:4], source[4:]
            else:
                layout[:] = source
            file.create_virtual_dataset(name, layout)
    return ends


def write_lattice(w: Draw, folder: Path) -> bool:
    """Each of two shows both of the next level: as many paths as 2 to the number of levels."""
    levels = w.between(10, 40)
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / MAIN, "w") as file:
        for name in "ab":
            file[f"{name}{levels}"] = np.arange(8)
        for level in reversed(range(levels)):
            for name in "ab":
                layout = h5py.VirtualLayout((8,), "i8")
                for part, other in enumerate("ab"):
                    layout[4 * part : 4 * part + 4] = h5py.VirtualSource(".", f"{other}{level + 1}", (8,))[
                        4 * part : 4 * part + 4
                    ]
                file.create_virtual_dataset(f"{name}{level}", layout)
        file["v0"] = h5py.SoftLink("/a0")
    return True


def judge_circle(path: Path, ends: bool) -> Found:
    wrong, seen = [], Counter({"files": 1, "fields": 1})
    with Bounded() as use:
        try:
            Dataset(str(path), {"x": "v0"}, "all", {"all": {"group": "/"}}).gather(np.arange(8))
            seen["read"] += 1
            if not ends:
                wrong.append("a circle is read")
        except Exception as error:
            seen["refused"] += 1
            wrong += [f"{said}" for said in [one_line(error, path)] if said]
            if not re.search("another file|which is virtual", str(error)):
                wrong.append(f"is refused: {error}")
        for work in (lambda: inspect_file(str(path)), lambda: _repack(path)):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    work()
            except Exception as error:
                wrong += [f"commands: {said}" for said in [one_line(error, path)] if said]
    if use.fault:
        wrong.append(use.fault)
    return wrong, seen


def _repack(path: Path) -> None:
    from h5rows.packing.encode import Encoding

    options = PackOptions(quiet=True, workers=1, overwrite=True)
    repack_file(str(path), str(path.with_name("new.h5")), options, Encoding("none", None, None), {})


# -- what is no file


def place_of(w: Draw, path: Path) -> str:
    """Put there something that is no regular file -> what."""
    kind = w.one_of(["fifo", "socket", "directory", "device", "dangling", "loop", "empty", "absent"])
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's name must be short
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to(w.one_of(["/dev/zero", "/dev/null", "/dev/tty"]))
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "empty":
        path.touch()
    return kind


SUFFIXES = [".npy", ".npz", ".pt", ".lmdb", ".zarr", ".n5", ".tfrecord", ".tar", ".csv", ".parquet", ".txt", "", ".xyz"]


def judge_place(folder: Path, seed: int) -> Found:
    w = Draw(seed)
    role = w.one_of(["path", "link", "virtual", "raw", "packed", "inside"])
    folder.mkdir(parents=True)
    path, victim = folder / MAIN, folder / "other.h5"
    values = np.arange(8)
    with h5py.File(path, "w") as file:
        with h5py.File(victim, "w") as other:
            other["y"] = values
        if role == "link":
            file["x"] = h5py.ExternalLink(victim.name, "y")
        elif role == "virtual":
            layout = h5py.VirtualLayout((8,), "i8")
            layout[:] = h5py.VirtualSource(victim.name, "y", (8,))
            file.create_virtual_dataset("x", layout)
        elif role == "raw":
            file.create_dataset("x", data=values, external=[(str(victim), 0, 64)])
        else:
            file["x"] = values
    used = w.chance(0.4) and role == "path"
    target = {"path": path, "packed": folder / f"in{w.one_of(SUFFIXES)}", "inside": folder / "in" / "0.png"}.get(
        role, victim
    )
    wrong, seen = [], Counter({"files": 1, "fields": 1})

    def opened() -> Dataset:
        return Dataset(str(path), {"x": "x"}, "all", {"all": {"group": "/"}})

    what = ""
    try:
        data = opened() if used else None
        what = place_of(w, target)
        if role in ("packed", "inside"):
            options = PackOptions(workers=1, overwrite=True, quiet=True)
            if w.chance(0.3) and role == "packed":
                options = PackOptions(
                    workers=1,
                    quiet=True,
                    format=w.one_of(
                        ["numpy", "torch", "lmdb", "tfrecord", "webdataset", "table", "text", "images", "samples"]
                    ),
                )
            from h5rows.packing.write import pack

            pack(
                open_source(str(target if role == "packed" else target.parent), options), folder / "out.h5", options, {}
            )
        elif data is None and w.chance(0.5):
            use = w.one_of(
                [lambda: inspect_file(str(path)), lambda: _repack(path), lambda: opened().gather(np.arange(8))]
            )
            use()
        else:
            found = (data or opened()).gather(np.arange(8))["x"]
            if found.tolist() != values.tolist():
                wrong.append(f"{role} {what}: {found} is read")
        seen["read"] += 1
    except Exception as error:
        seen["refused"] += 1
        names = [path.name, target.name, target.parent.name]
        said = one_line(error, path)
        if said.startswith("names no file") and any(name in str(error) for name in names):
            said = ""
        if said:
            wrong.append(f"{role} {what}: {said}")
        elif os.environ.get("LAB_TEST_SHOW"):
            print(role, what, error, flush=True)
    return wrong, seen + Counter({f"{role} {what}": 1})


# -- a seed of each


def sparse(apart: Callable[..., Any], folder: Path, seed: int) -> Found:
    folder.mkdir(parents=True)
    done, whole = apart(write_sparse, Draw(seed), folder / MAIN)
    if done != "well":
        return ([f"{whole}"] if done == "raised" else []), Counter({"killed while written": 1})
    done, found = apart(truth, folder / MAIN, "x")
    if done != "well":
        found = Truth("h5py dies of it")
    done, said = apart(judge_sparse, folder / MAIN, {"x": found}, seed, whole)
    return (said[0], said[1] + Counter(files=1)) if done == "well" else ([f"{done} {said}"], Counter(files=1))


def bombs(apart: Callable[..., Any], folder: Path, seed: int) -> Found:
    folder.mkdir(parents=True)
    done, bad = apart(write_bomb, Draw(seed), folder / MAIN)
    if done != "well":
        return ([f"{bad}"] if done == "raised" else []), Counter({"killed while written": 1})
    done, found = apart(truth, folder / MAIN, "x")
    if done != "well":
        return [], Counter({"killed h5py": 1})
    done, said = apart(judge_bomb, folder / MAIN, bad, {"x": found}, seed)
    return (said[0], said[1] + Counter(files=1)) if done == "well" else ([f"{done} {said}"], Counter(files=1))


def circles(apart: Callable[..., Any], folder: Path, seed: int) -> Found:
    w = Draw(seed)
    lattice = w.chance(0.1)
    done, ends = apart(write_lattice if lattice else write_circle, w, folder)
    if done != "well":
        return [f"{ends}"], Counter({"killed while written": 1})
    done, said = apart(judge_circle, folder / MAIN, ends)
    return said if done == "well" else ([f"{done} {said}"], Counter(files=1))


def places(apart: Callable[..., Any], folder: Path, seed: int) -> Found:
    done, said = apart(judge_place, folder, seed)
    return said if done == "well" else ([f"{done} {said}"], Counter(files=1))
