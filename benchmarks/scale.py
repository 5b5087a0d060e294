"""What bounds a run on many GPUs: constants measured here, and what follows from them for 8, 64 and 1,024.

    ./run python benchmarks/scale.py [--rounds 5] [--quick] [--parameters 1e9] [--link-gb-s 50]

Measured: saving and loading a checkpoint, the order of 10^10 samples beside torch's DistributedSampler, small
reductions and gathers between local ranks (gloo), the meeting of a run's processes, time to the first step.
Calculated, from these: a model of --parameters, trained by DDP with AdamW in fp32 over links of --link-gb-s a GPU.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from startup import first_step

from samebits.checkpoints import load_verified, save_checkpoint
from samebits.data import TrainPlan, shuffled
from samebits.steps import rng_bytes, set_rng_bytes

SAMPLES = 10**10
SHARE = 32  # samples of a rank in a step


def median(measure: Callable[[], float], rounds: int) -> float:
    return statistics.median(measure() for _ in range(rounds))


def checkpoint_rates(rounds: int, megabytes: int = 400) -> tuple[float, float]:
    """(saved, loaded) MB/s of weights and AdamW's moments, on this machine's disk, as the run does it."""
    parts = [torch.randn(megabytes * 250_000 // 60) for _ in range(60)]
    payload = {"model": dict(zip(map(str, range(20)), parts)), "optimizer": parts[20:], "step": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"

        def timed(call: Callable[[], Any]) -> float:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began

        save_s = median(lambda: timed(lambda: save_checkpoint(payload, path)), rounds)
        load_s = median(lambda: timed(lambda: load_verified(path)), rounds)
        size = path.stat().st_size / 1e6
    return size / save_s, size / load_s


class Sized:
    """A data set of which the order needs but the size."""

    def __len__(self) -> int:
        return SAMPLES


def order_costs(num_ranks: int) -> tuple[float, float]:
    """(microseconds a step, MB) of one rank's share of the order of 10^10 samples."""
    tracemalloc.start()
    plan = TrainPlan(shuffled(Sized(), 0), SHARE * num_ranks, [SHARE], num_ranks - 1, num_ranks, SAMPLES // 2)
    steps = 2048
    plan(0)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        plan(step)
    seconds = time.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds / steps * 1e6, peak / 1e6


def distributed_sampler_costs(samples: int) -> tuple[float, float]:
    """(seconds, MB) per 10^10 samples of the list that torch's sampler makes in each rank, at each epoch: measured for
    `samples`."""
    tracemalloc.start()
    began = time.perf_counter()
    indices = torch.randperm(samples, generator=torch.Generator().manual_seed(0)).tolist()
    seconds = time.perf_counter() - began
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    assert len(indices) == samples
    return seconds * SAMPLES / samples, megabytes * SAMPLES / samples


def _rank(rank: int, size: int, store: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    scores, row = torch.zeros(4, dtype=torch.float64), rng_bytes(torch.device("cpu"))
    rows = row.new_empty(size if rank == 0 else 0, len(row))

    def timed(call: Callable[[], Any], times: int) -> float:
        call()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times

    reduce_s = timed(lambda: dist.all_reduce(scores), 500)
    gather_s = timed(lambda: dist.gather(row, list(rows.unbind()) or None, dst=0), 50)
    if rank == 0:
        torch.save([reduce_s, gather_s], results)
    dist.destroy_process_group()


def collectives(size: int) -> tuple[float, float]:
    """(microseconds of an all-reduce of 4 sums, milliseconds of the gather of all random states) by gloo, locally."""
    with tempfile.TemporaryDirectory() as folder:
        results = f"{folder}/results"
        mp.start_processes(_rank, (size, f"{folder}/store", results), nprocs=size, start_method="fork")
        reduce_s, gather_s = torch.load(results)
    return reduce_s * 1e6, gather_s * 1e3


def rank_states(ranks: int, rounds: int) -> list[float]:
    """Milliseconds for the random states of so many ranks: rank 0's copy for a checkpoint, in the main thread;
    torch.save; torch.load and taking one's own, which each rank does at a resume."""
    rows = rng_bytes(torch.device("cpu")).repeat(ranks, 1)
    took: list[list[float]] = []
    for _ in range(rounds):
        file, times = io.BytesIO(), [time.perf_counter()]
        copied = rows.clone()
        times.append(time.perf_counter())
        torch.save({"ranks": copied}, file)
        times.append(time.perf_counter())
        file.seek(0)
        set_rng_bytes(torch.load(file, weights_only=True)["ranks"][-1], torch.device("cpu"))
        times.append(time.perf_counter())
        took.append([1e3 * (b - a) for a, b in pairwise(times)])
    return [statistics.median(column) for column in zip(*took)]


def meeting_ms(followers: int) -> float:
    """Of rank 0's store with so many others, from the first connection to the last answer read."""
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def follow(index: int) -> None:
        store = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
        store.wait(["directory"], timedelta(seconds=60))
        store.get("directory")
        store.set(f"answer/{index}", "ok")
        store.wait(["verdict"], timedelta(seconds=60))

    began = time.perf_counter()
    threads = [threading.Thread(target=follow, args=(index,)) for index in range(followers)]
    for thread in threads:
        thread.start()
    server.set("directory", "x" * 100)
    keys = [f"answer/{index}" for index in range(followers)]
    server.wait(keys, timedelta(seconds=60))
    assert all(server.get(key) == b"ok" for key in keys)
    server.set("verdict", "go")
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of little: whether it works")
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--link-gb-s", type=float, default=50.0, help="of each GPU; 400 Gbit/s InfiniBand is 50")
    args = parser.parse_args()
    torch.set_num_threads(1)
    reductions = {size: collectives(size) for size in (2, 4)}  # first: forked before anything has started a thread
    rounds, megabytes, listed = (1, 4, 10**5) if args.quick else (args.rounds, 400, 10**7)
    save, load = checkpoint_rates(rounds, megabytes)
    orders = {ranks: order_costs(ranks) for ranks in (1, 8, 64, 1024)}
    sampler_s, sampler_mb = distributed_sampler_costs(listed)
    # the least: c10d asks DNS for the name of each peer, and where none answers some wait 5 s
    meetings = {count: min(meeting_ms(count) for _ in range(rounds)) for count in (8, 64, 256)}
    starts = {
        ranks: median(first_step("logger=none", "trainer=ddp", f"hardware.num_procs={ranks}"), rounds)
        for ranks in ((2,) if args.quick else (1, 2, 4))
    }
    print(f"measured on {os.cpu_count()} cores, torch {torch.__version__}, numpy {np.__version__}\n\n| | |\n|---|---|")
    print(f"| checkpoint saved, loaded | {save:,.0f}, {load:,.0f} MB/s |")
    for ranks, (us, mb) in orders.items():
        print(f"| order of 10^10 samples, one of {ranks:,} ranks | {us:.1f} us a step of {SHARE}, {mb:.2f} MB |")
    sampler = f"{sampler_s:,.0f} s an epoch, {sampler_mb / 1e3:,.0f} GB a rank"
    print(f"| DistributedSampler, 10^10 (from {listed:,}) | {sampler} |")
    for size, (us, ms) in reductions.items():
        print(f"| {size} ranks: all-reduce of 4 sums, gather of random states | {us:.0f} us, {ms:.2f} ms |")
    for ranks in (8, 128, 1024):
        copy, save_ms, load_ms = rank_states(ranks, rounds)
        print(
            f"| random states of {ranks:,} ranks: copied, saved, loaded | {copy:.2f}, {save_ms:.1f}, {load_ms:.1f} ms |"
        )
    for count, ms in meetings.items():
        print(f"| meeting of rank 0 and {count} others | {ms:.0f} ms |")
    for ranks, seconds in starts.items():
        print(f"| command to first step, {ranks} local ranks | {seconds:.2f} s |")
    calculated(args.parameters, args.link_gb_s, save, load, reductions, meetings)


def calculated(
    parameters: float, link: float, save: float, load: float, reductions: dict[int, Any], meetings: dict[int, float]
) -> None:
    """What the measured constants say of 8, 64 and 1,024 GPUs."""
    hop_us = reductions[2][0] / 2  # a ring of n passes a value 2 (n - 1) times
    other_ms = meetings[256] / 256
    print(f"\ncalculated: {parameters:.0e} parameters, fp32, AdamW, {link:.0f} GB/s a GPU, DDP\n")
    print("| GPUs | all-reduce, GB sent by each GPU a step | its time, ms | in bf16 (comm hook), ms |", end="")
    print(" stop flag by gloo, ms | meeting, s | checkpoint, GB | saved by rank 0, s | loaded, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for gpus in (8, 64, 1024):
        sent = 2 * (gpus - 1) / gpus * parameters * 4 / 1e9
        size = parameters * 12 / 1e9
        row = [f"{gpus:,}", f"{sent:.2f}", f"{sent / link * 1e3:.0f}", f"{sent / link / 2 * 1e3:.0f}"]
        row += [f"{2 * (gpus - 1) * hop_us / 1e3:.1f}", f"{gpus * other_ms / 1e3:.1f}"]
        row += [f"{size:.0f}", f"{size * 1e3 / save:.0f}", f"{size * 1e3 / load:.0f}"]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
