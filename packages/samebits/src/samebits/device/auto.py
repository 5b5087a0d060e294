"""Resolve options with `auto` that depend on the model: the number of CPU threads and the precision on a GPU. The rules
use shapes, not measurements. The run directory keeps the result (environment.json) for resumes and evaluations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from samebits.code import ENVIRONMENT
from samebits.device.hardware import Hardware
from samebits.device.threads import Threads, recorded_threads, threads_for
from samebits.files import read_json, write_json
from samebits.world import World

# FLOP of a step of all ranks. A smaller step is limited by kernel launches on a GPU, and autocast adds a third of them
# or more; its matrix products take less than a millisecond even in fp32. See benchmarks/RESULTS.md, "On a GPU".
LAUNCHES_BOUND_FLOP = 1e10


def resolve_auto(machine: Hardware, flop: float) -> Hardware:
    """Return `machine` resolved by the rules. flop: FLOP per sample, see `rough_flop`."""
    micro = machine.micro_batch_sizes
    machine = replace(machine, threads=threads_for(machine.threads, flop * micro[0]))
    may_be_bf16 = machine.precision_is_auto and machine.precision == "bf16"
    if may_be_bf16 and flop * sum(micro) * machine.num_procs < LAUNCHES_BOUND_FLOP:
        machine = replace(machine, precision="fp32", precision_why="a small step")
    return machine


def resolve_auto_of_run(machine: Hardware, run_dir: Path, world: World, flop: float, begins: bool) -> Hardware:
    """Return `machine` resolved by the rules or as recorded; apply it to this process and record it in run_dir.

    All ranks must call this; rank 0 decides. flop: FLOP per sample. begins: False if the run resumes from a checkpoint.
    """
    if not (machine.threads.auto or machine.precision_is_auto):
        return machine
    if machine.threads.auto:
        most = -world.all_max([-machine.threads.most])()[0]
        limited = replace(machine.threads, count=min(machine.threads.count, most), most=most)
        machine = replace(machine, threads=limited)
    chosen = None
    if world.is_main:
        environment = read_json(run_dir / ENVIRONMENT)
        known = environment if begins else environment | {"precision": recorded_precision(environment)}
        ruled = resolve_auto(machine, flop)
        decided: dict[str, Any] = {"threads": asdict(ruled.threads)} if machine.threads.auto else {}
        decided |= {"precision": known.get("precision", ruled.precision)} if machine.precision_is_auto else {}
        if not decided.keys() <= environment.keys():
            write_json(run_dir / ENVIRONMENT, decided | environment)
        ruled = _as_recorded(machine, known, ruled)
        chosen = [asdict(ruled.threads), ruled.precision, ruled.precision_why]
    threads, precision, why = world.broadcast_object(chosen)
    machine = replace(machine, threads=Threads(**threads), precision=precision, precision_why=why)
    machine.set_arithmetic()
    return machine


def resolve_auto_as_recorded(machine: Hardware, run_dir: Path) -> Hardware:
    """Return `machine` as recorded in run_dir, to evaluate the run's checkpoints."""
    known = read_json(run_dir / ENVIRONMENT)
    unknown = machine
    if machine.threads.auto:
        threads = replace(machine.threads, count=machine.threads.most, why="none was recorded")
        unknown = replace(machine, threads=threads)
    return _as_recorded(machine, known | {"precision": recorded_precision(known)}, unknown)


def recorded_precision(environment: dict[str, Any]) -> str:
    """Return the precision of a run that used hardware.precision=auto. Versions that recorded none used bf16 on every
    GPU with bf16."""
    on_cpu = "machine" in environment and "gpus" not in environment["machine"]
    return str(environment.get("precision", "fp32" if on_cpu else "bf16"))


def _as_recorded(machine: Hardware, known: dict[str, Any], unknown: Hardware) -> Hardware:
    """Return `machine` with recorded values. machine: has the limits of this machine. unknown: used for values that are
    not recorded."""
    if machine.threads.auto and "threads" in known:
        unknown = replace(unknown, threads=recorded_threads(known["threads"]["count"], machine.threads.most))
    if machine.precision_is_auto and "precision" in known:
        taken, why = known["precision"], "as when the run started"
        if taken == "bf16" != machine.precision:
            taken, why = machine.precision, "the run started with bf16, so rounding changes"
        unknown = replace(unknown, precision=taken, precision_why=why)
    return unknown
