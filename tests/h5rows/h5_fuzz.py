"""Random HDF5 files, whole and damaged: each is written, read by h5py and read by this project in a process of its own.

    PYTHONPATH=src python tests/h5rows/h5_fuzz.py files 0 100        # or another of KINDS; first seed, how many

prints what differs, and last how many files and fields there were.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from h5_again import compare, look_and_repack
from h5_changed import judge_changed
from h5_damage import damage, judge_damaged
from h5_files import write
from h5_hostile import bombs, circles, places, sparse
from h5_judge import Judge
from h5_swmr import judge_swmr
from h5_truth import truth
from h5_virtual import MAIN

torch.set_num_threads(1)
for name in (
    "numpy.ma",
    "numpy.random",
    "deflate",
    "isal.isal_zlib",
    "blosc",
    "zstandard",
    "lz4.block",
):  # once, not in each child
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
SECONDS, MEMORY = 60, 6 << 30  # of one process


def apart(work: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    """("well", what it returns) | ("signal", its number) | ("raised", the traceback): in a process that may die."""
    from conftest import limit  # of tests/, which a script finds only from __main__ on

    read, out, seconds = *os.pipe(), round(limit(SECONDS))
    if (pid := os.fork()) == 0:
        os.close(read)
        gc.disable()  # it would copy all memory that is shared with the parent
        faulthandler.disable()  # a crash of HDF5's is an answer here, not for the screen of the test run
        if not os.environ.get("LAB_TEST_SHOW"):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # glibc's word about a damaged heap
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's would raise here, as if the test had ended
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            answer: tuple[str, Any] = "well", work(*args)
        except BaseException:
            answer = "raised", traceback.format_exc()
        with open(out, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(out)
    with open(read, "rb") as pipe:
        raw = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return pickle.loads(raw) if raw and status == 0 else ("signal", status)


def truths(path: Path, names: list[str]) -> dict[str, Any]:
    return {name: truth(path, name) for name in names}


def judge(path: Path, found: dict[str, Any], seed: int) -> tuple[list[str], Counter[str]]:
    made = Judge(path, found, seed)
    for name in found:
        made.field(name)
    return made.wrong, made.seen


Found = tuple[list[str], Counter[str]]


def made(folder: Path, seed: int) -> tuple[dict[str, Any], str]:
    """Write the files of a seed -> (what h5py reads of each field, "" or why there is none)."""
    done, names = apart(write, folder, seed)
    if done == "raised":
        raise RuntimeError(names)
    if done != "well":
        return {}, "killed while written"
    done, found = apart(truths, folder / MAIN, names)
    if done == "raised":
        raise RuntimeError(found)
    return (found, "") if done == "well" else ({}, "killed h5py")


def files(folder: Path, seed: int) -> Found:
    found, why = made(folder, seed)
    if why:
        return [], Counter({why: 1})
    done, said = apart(judge, folder / MAIN, found, seed)
    return (said[0], said[1] + Counter(files=1)) if done == "well" else ([f"{done} {said}"], Counter(files=1))


def damaged(folder: Path, seed: int) -> Found:
    before, why = made(folder, seed)
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    whole = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    rng = np.random.default_rng([seed, 1])
    for k in range(5 if before else 0):
        victims = [path for path in whole if path.name == MAIN or (whole[path] and rng.random() < 0.1)]
        what = [damage(path, 1000 * seed + 10 * k + j) for path in victims for j in range(1 + k % 3)]
        found, said, again = (*read_damaged(folder / MAIN, before, seed), before)
        if said[0] == "well" and said[1][0]:  # is it that h5py itself reads another thing each time?
            again = apart(truths, folder / MAIN, list(before))[1]
        if found is None:
            seen["killed h5py"] += 1
        elif said[0] != "well":
            wrong.append(f"{what}: {said}")
        elif again == found or again is before:
            wrong += [f"{what}: {line}" for line in said[1][0]]
            seen += said[1][1] + Counter({"files": 1, "files that h5py reads otherwise": int(found != before)})
        for path, raw in whole.items():
            path.write_bytes(raw)
    return wrong, seen + Counter({why: 1} if why else {})


def read_damaged(path: Path, before: dict[str, Any], seed: int) -> tuple[Any, Any]:
    done, found = apart(truths, path, list(before))
    if done == "raised":
        raise RuntimeError(found)
    return (found, apart(judge_damaged, path, found, before, seed)) if done == "well" else (None, ("", None))


def again(folder: Path, seed: int) -> Found:
    """Inspected and repacked."""
    before, why = made(folder, seed)
    if why:
        return [], Counter({why: 1})
    done, said = apart(look_and_repack, folder / MAIN, seed, before)
    if done != "well" or said or not (folder / "new.h5").exists():
        return ([f"{done} {said}"] if done != "well" else said), Counter(files=1)
    done, found = apart(compare, folder / MAIN, before)
    return found if done == "well" else ([f"{done} {found}"], Counter(files=1))


def changed(folder: Path, seed: int) -> Found:
    """Changed while they are open."""
    found, why = made(folder, seed)
    _, why = made(folder / "other", seed + 1 << 30) if not why else ({}, why)
    if why:
        return [], Counter({why: 1})
    done, said = apart(judge_changed, folder / MAIN, found, seed, folder / "other" / MAIN)
    return said if done == "well" else ([f"{done} {said}"], Counter(files=1))


def growing(folder: Path, seed: int) -> Found:
    done, said = apart(judge_swmr, folder / MAIN, seed)
    return said if done == "well" else ([f"{done} {said}"], Counter(files=1))


KINDS: dict[str, Callable[[Path, int], Found]] = {
    "files": files,
    "damage": damaged,
    "again": again,
    "changed": changed,
    "growing": growing,
    "sparse": partial(sparse, apart),
    "bombs": partial(bombs, apart),
    "circles": partial(circles, apart),
    "places": partial(places, apart),
}


def run(kind: str, first: int, count: int, show: Callable[[str], None] = print) -> tuple[list[str], Counter[str]]:
    """-> (faults, how many of what)."""
    total: Counter[str] = Counter()
    faults: list[str] = []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            wrong, seen = KINDS[kind](Path(folder, "set"), seed)
        total += seen
        for line in wrong:
            faults.append(f"{kind} {seed}: {line}")
            show(faults[-1])
    return faults, total


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    faults, total = run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"faults": len(faults), **dict(sorted(total.items()))}))
    sys.exit(bool(faults))
