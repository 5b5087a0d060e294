"""What a model decides where the configuration says `auto`: CPU threads, and a GPU's precision, by a rule of shapes and
of nothing that is measured. A run keeps what was decided (environment.json) when it goes on, and is scored with it.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.device.hardware import Hardware
from engine.device.threads import Threads, recorded_threads, threads_for
from engine.files import read_json, write_json
from engine.runs import ENVIRONMENT
from engine.world import World

# Of a step, on all ranks together. Below, a GPU's step takes as long as launching its kernels, of which autocast adds a
# third and more; its matrix products take less than a millisecond in fp32, too. benchmarks/RESULTS.md, "On a GPU".
LAUNCHES_BOUND_FLOP = 1e10


def settled(machine: Hardware, flop: float) -> Hardware:
    """`machine` by the rule. flop: of a sample, as `rough_flop` has it."""
    micro = machine.micro_batch_sizes
    small = machine.precision_is_auto and flop * sum(micro) * machine.num_procs < LAUNCHES_BOUND_FLOP
    threads = threads_for(machine.threads, flop * micro[0])
    return replace(machine, threads=threads, precision="fp32" if small else machine.precision)


def settle(machine: Hardware, run_dir: Path, world: World, flop: float, begins: bool) -> Hardware:
    """`machine` by the rule or as the run began, set in this process and kept in run_dir. All ranks call this; rank 0
    decides. flop: of a sample. begins: False where the run goes on from a checkpoint."""
    if not (machine.threads.auto or machine.precision_is_auto):
        return machine
    if machine.threads.auto:
        most = -world.all_max([-machine.threads.most])()[0]
        limited = replace(machine.threads, count=min(machine.threads.count, most), most=most)
        machine = replace(machine, threads=limited)
    chosen = None
    if world.is_main:
        environment = read_json(run_dir / ENVIRONMENT)
        ruled = settled(machine, flop)
        if not begins and "precision" not in environment:  # begun by a version that had no rule
            ruled = replace(ruled, precision=machine.precision)
        decided: dict[str, Any] = {"threads": asdict(ruled.threads)} if machine.threads.auto else {}
        decided |= {"precision": ruled.precision} if machine.precision_is_auto else {}
        if not decided.keys() <= environment.keys():
            write_json(run_dir / ENVIRONMENT, decided | environment)
        ruled = _as_recorded(ruled, environment)
        chosen = {"threads": asdict(ruled.threads), "precision": ruled.precision}
    chosen = world.share(chosen)
    machine = replace(machine, threads=Threads(**chosen["threads"]), precision=chosen["precision"])
    machine.set_arithmetic()
    return machine


def as_run_began(machine: Hardware, run_dir: Path) -> Hardware:
    """For an evaluation of the run's checkpoints."""
    known = read_json(run_dir / ENVIRONMENT)
    if machine.threads.auto and "threads" not in known:
        machine = replace(
            machine, threads=replace(machine.threads, count=machine.threads.most, why="none was recorded")
        )
    return _as_recorded(machine, known)


def _as_recorded(machine: Hardware, environment: dict[str, Any]) -> Hardware:
    if machine.threads.auto and "threads" in environment:
        machine = replace(machine, threads=recorded_threads(environment["threads"]["count"], machine.threads.most))
    if machine.precision_is_auto and "precision" in environment:
        machine = replace(machine, precision=environment["precision"])
    return machine
