"""What a model decides where the configuration says `auto`: CPU threads, and a GPU's precision, by a rule of shapes and
of nothing that is measured. A run keeps what was decided (environment.json) when it goes on, and is scored with it.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from samebits.code import ENVIRONMENT
from samebits.device.hardware import Hardware
from samebits.device.threads import Threads, recorded_threads, threads_for
from samebits.files import read_json, write_json
from samebits.world import World

# Of a step, on all ranks together. Below, a GPU's step takes as long as launching its kernels, of which autocast adds a
# third and more; its matrix products take less than a millisecond in fp32, too. benchmarks/RESULTS.md, "On a GPU".
LAUNCHES_BOUND_FLOP = 1e10


def resolve_auto(machine: Hardware, flop: float) -> Hardware:
    """`machine` by the rule. flop: of a sample, as `rough_flop` has it."""
    micro = machine.micro_batch_sizes
    machine = replace(machine, threads=threads_for(machine.threads, flop * micro[0]))
    may_be_bf16 = machine.precision_is_auto and machine.precision == "bf16"
    if may_be_bf16 and flop * sum(micro) * machine.num_procs < LAUNCHES_BOUND_FLOP:
        machine = replace(machine, precision="fp32", precision_why="a small step")
    return machine


def resolve_auto_of_run(machine: Hardware, run_dir: Path, world: World, flop: float, begins: bool) -> Hardware:
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
    """For an evaluation of the run's checkpoints."""
    known = read_json(run_dir / ENVIRONMENT)
    unknown = machine
    if machine.threads.auto:
        threads = replace(machine.threads, count=machine.threads.most, why="none was recorded")
        unknown = replace(machine, threads=threads)
    return _as_recorded(machine, known | {"precision": recorded_precision(known)}, unknown)


def recorded_precision(environment: dict[str, Any]) -> str:
    """What hardware.precision=auto has been to a run that has trained. A version that recorded nothing took bf16 for
    every step where a GPU had it."""
    on_cpu = "machine" in environment and "gpus" not in environment["machine"]
    return str(environment.get("precision", "fp32" if on_cpu else "bf16"))


def _as_recorded(machine: Hardware, known: dict[str, Any], unknown: Hardware) -> Hardware:
    """machine: with what it can do at most. unknown: for what is not recorded."""
    if machine.threads.auto and "threads" in known:
        unknown = replace(unknown, threads=recorded_threads(known["threads"]["count"], machine.threads.most))
    if machine.precision_is_auto and "precision" in known:
        taken, why = known["precision"], "as the run began"
        if taken == "bf16" != machine.precision:
            taken, why = machine.precision, "the run began with bf16: rounding changes"
        unknown = replace(unknown, precision=taken, precision_why=why)
    return unknown
