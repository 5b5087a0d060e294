"""Random HDF5 files, whole and damaged: each is written, read by h5py and read by this project in a process of its own.

    python packages/h5rows/tests/h5_fuzz.py files 0 100        # or another of KINDS; first seed, how many

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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from h5_again import compare, look_and_repack
from h5_damage import damage, judge_damaged
from h5_files import write
from h5_judge import Judge
from h5_truth import truth
from h5_virtual import MAIN

torch.set_num_threads(1)
for name in ("numpy.ma", "numpy.random", "deflate", "isal.isal_zlib", "blosc", "zstandard"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)  # once, not in each child
SECONDS, MEMORY = 60, 6 << 30  # of one process
Found = tuple[list[str], Counter[str]]


def apart(work: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    """("well", what it returns) | ("signal", its number): in a process that may die. What it raises is raised."""
    from running import limit

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
    done, said = pickle.loads(raw) if raw and status == 0 else ("signal", status)
    if done == "raised":
        raise RuntimeError(said)
    return done, said


def truths(path: Path, names: list[str]) -> dict[str, Any]:
    return {name: truth(path, name) for name in names}


def judge(path: Path, found: dict[str, Any], seed: int) -> Found:
    made = Judge(path, found, seed)
    for name in found:
        made.field(name)
    return made.wrong, made.seen


def files(folder: Path, found: dict[str, Any], seed: int) -> Found:
    done, said = apart(judge, folder / MAIN, found, seed)
    return (said[0], said[1] + Counter(files=1)) if done == "well" else ([f"{done} {said}"], Counter(files=1))


def damaged(folder: Path, before: dict[str, Any], seed: int) -> Found:
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    whole = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    rng = np.random.default_rng([seed, 1])
    for k in range(5):
        victims = [path for path in whole if path.name == MAIN or (whole[path] and rng.random() < 0.1)]
        what = [damage(path, 1000 * seed + 10 * k + j) for path in victims for j in range(1 + k % 3)]
        done, found = apart(truths, folder / MAIN, list(before))
        if done != "well":
            seen["killed h5py"] += 1
        else:
            done, said = apart(judge_damaged, folder / MAIN, found, before, seed)
            if done != "well":
                wrong.append(f"{what}: {done} {said}")
            elif not said[0] or apart(truths, folder / MAIN, list(before))[1] == found:
                # else h5py itself reads another thing each time
                wrong += [f"{what}: {line}" for line in said[0]]
                seen += said[1] + Counter({"files": 1, "files that h5py reads otherwise": int(found != before)})
        for path, raw in whole.items():
            path.write_bytes(raw)
    return wrong, seen


def again(folder: Path, before: dict[str, Any], seed: int) -> Found:
    """Inspected and repacked."""
    done, said = apart(look_and_repack, folder / MAIN, seed, before)
    if done != "well" or said or not (folder / "new.h5").exists():
        return ([f"{done} {said}"] if done != "well" else said), Counter(files=1)
    done, found = apart(compare, folder / MAIN, before)
    return found if done == "well" else ([f"{done} {found}"], Counter(files=1))


KINDS: dict[str, Callable[[Path, dict[str, Any], int], Found]] = {"files": files, "damage": damaged, "again": again}


def one(kind: str, folder: Path, seed: int) -> Found:
    """HDF5 itself may die of what it is asked to write, and h5py of what is there."""
    done, names = apart(write, folder, seed)
    if done != "well":
        return [], Counter({"killed while written": 1})
    done, found = apart(truths, folder / MAIN, names)
    return KINDS[kind](folder, found, seed) if done == "well" else ([], Counter({"killed h5py": 1}))


def run(kind: str, first: int, count: int) -> tuple[list[str], Counter[str]]:
    """-> (faults, how many of what)."""
    total: Counter[str] = Counter()
    faults: list[str] = []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            wrong, seen = one(kind, Path(folder, "set"), seed)
        total += seen
        for line in wrong:
            faults.append(f"{kind} {seed}: {line}")
            print(faults[-1])
    return faults, total


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    faults, total = run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"faults": len(faults), **dict(sorted(total.items()))}))
    sys.exit(bool(faults))
