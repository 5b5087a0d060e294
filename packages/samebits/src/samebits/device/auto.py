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


def resolve_auto(hardware: Hardware, flop: float) -> Hardware:
    """Return `hardware` resolved by the rules. flop: FLOP per sample, see `rough_flop`."""
    micro = hardware.micro_batch_sizes
    hardware = replace(hardware, threads=threads_for(hardware.threads, flop * micro[0]))
    may_be_bf16 = hardware.precision_is_auto and hardware.precision == "bf16"
    if may_be_bf16 and flop * sum(micro) * hardware.num_procs < LAUNCHES_BOUND_FLOP:
        hardware = replace(hardware, precision="fp32", precision_why="a small step")
    return hardware


def resolve_auto_of_run(hardware: Hardware, run_dir: Path, world: World, flop: float, begins: bool) -> Hardware:
    """Return `hardware` resolved by the rules or as recorded; apply it to this process and record it in run_dir.

    All ranks must call this; rank 0 decides. flop: FLOP per sample. begins: False if the run resumes from a checkpoint.
    """
    if not (hardware.threads.auto or hardware.precision_is_auto):
        return hardware
    if hardware.threads.auto:
        most = -world.all_max([-hardware.threads.most])()[0]
        limited = replace(hardware.threads, count=min(hardware.threads.count, most), most=most)
        hardware = replace(hardware, threads=limited)
    chosen = None
    if world.is_main:
        environment = read_json(run_dir / ENVIRONMENT)
        known = environment if begins else environment | {"precision": recorded_precision(environment)}
        ruled = resolve_auto(hardware, flop)
        decided: dict[str, Any] = {"threads": asdict(ruled.threads)} if hardware.threads.auto else {}
        decided |= {"precision": known.get("precision", ruled.precision)} if hardware.precision_is_auto else {}
        if not decided.keys() <= environment.keys():
            write_json(run_dir / ENVIRONMENT, decided | environment)
        ruled = _as_recorded(hardware, known, ruled)
        chosen = [asdict(ruled.threads), ruled.precision, ruled.precision_why]
    threads, precision, why = world.broadcast_object(chosen)
    hardware = replace(hardware, threads=Threads(**threads), precision=precision, precision_why=why)
    hardware.set_arithmetic()
    return hardware


def resolve_auto_as_recorded(hardware: Hardware, run_dir: Path) -> Hardware:
    """Return `hardware` as recorded in run_dir, to evaluate the run's checkpoints."""
    known = read_json(run_dir / ENVIRONMENT)
    unknown = hardware
    if hardware.threads.auto:
        threads = replace(hardware.threads, count=hardware.threads.most, why="none was recorded")
        unknown = replace(hardware, threads=threads)
    return _as_recorded(hardware, known | {"precision": recorded_precision(known)}, unknown)


def recorded_precision(environment: dict[str, Any]) -> str:
    """Return the precision of a run that used hardware.precision=auto. Versions that recorded none used bf16 on every
    GPU with bf16."""
    on_cpu = "machine" in environment and "gpus" not in environment["machine"]
    return str(environment.get("precision", "fp32" if on_cpu else "bf16"))


def _as_recorded(hardware: Hardware, known: dict[str, Any], unknown: Hardware) -> Hardware:
    """Return `hardware`, which has the limits of this machine, with recorded values. unknown: used for values that are
    not recorded."""
    if hardware.threads.auto and "threads" in known:
        unknown = replace(unknown, threads=recorded_threads(known["threads"]["count"], hardware.threads.most))
    if hardware.precision_is_auto and "precision" in known:
        taken, why = known["precision"], "as when the run started"
        if taken == "bf16" != hardware.precision:
            taken, why = hardware.precision, "the run started with bf16, so rounding changes"
        unknown = replace(unknown, precision=taken, precision_why=why)
    return unknown
