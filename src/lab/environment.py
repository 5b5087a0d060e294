"""Describe the environment without a run: versions, code, machine, and what a run of a config would choose here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lab.config import check
from lab.experiment import Experiment, flop_of_sample
from lab.project import PROJECT
from lab.statistics import SOME_ROWS
from samebits.code import code_here, surroundings, version_of
from samebits.config import compose_here
from samebits.device import count_processes, resolve_auto
from samebits.errors import ConfigError, first_line
from samebits.files import amount, in_words
from samebits.host import (
    available_memory,
    cgroup_cores,
    count_gpus,
    driver,
    gpu_facts,
    held_by_others,
    library_versions,
    machine_facts,
    memory_limit,
)
from samebits.world import backend

CHANGED = re.compile(r'^(?:diff --git "?a/(.*?)"? "?b/|# \w+, not in this patch: (.*))', re.MULTILINE)
OF_A_START = ("resume=", "sweep=", "sweep.", "hydra/", "hydra.")
STRATEGIES = ("single", "ddp", "fsdp")


def facts() -> dict[str, Any]:
    """Return {code, packages, machine}: what a run writes to environment.json, the limits of this process, and each
    GPU. Sizes are bytes. Initializes CUDA."""
    known = surroundings(PROJECT.root)
    found, code = known.environment, code_here(PROJECT.root, known)
    gpus, failure = list[dict[str, Any]](), None
    try:
        gpus = [gpu for index in range(count_gpus()) if (gpu := gpu_facts(torch.device("cuda", index)))]
    except RuntimeError as error:  # a driver that is too old, or a GPU that has failed
        failure = first_line(error)
    machine = machine_facts(torch.device("cuda", 0) if gpus else torch.device("cpu"), gpus)
    for name in ("gpu", "gpus_of_ranks", "threads"):  # of the ranks of a run
        machine.pop(name, None)
    return {
        "code": {
            "project": str(PROJECT.root),
            "commit": found["git_commit"],
            "dirty": found["git_dirty"],
            "changed": [first or second for first, second in CHANGED.findall(known.diff)],
            "source": code.source,
            "name": str(code),
        },
        "packages": {**found["packages"], "h5rows": version_of("h5rows")},
        "machine": {
            "host": found["host"],
            "platform": found["platform"],
            **machine,
            "cores_of_host": found["cpus"],
            "cores_of_container": cgroup_cores(),
            "memory_of_container": memory_limit(),
            "memory_available": available_memory(),
            "driver": driver(),
            "gpus": gpus,
            "gpu_error": failure,
        },
    }


def choices(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `./run train <overrides>` would choose on this machine, without a run. Raise ConfigError for a
    mistake in the config, for an override that only a start reads, or if its data or model cannot be built. The loader
    is measured for a moment."""
    for text in overrides:
        if text.lstrip("+~").startswith(OF_A_START):
            raise ConfigError(f"{text}: has no effect here, because no run is started - remove it")
    config = check(compose_here(PROJECT, overrides, Path.cwd()))
    processes = {}
    for strategy in STRATEGIES:
        with suppress(ConfigError):  # not possible here, such as single in one of several ranks
            processes[strategy] = count_processes(config.hardware, replace(config.trainer, strategy=strategy))
    experiment = Experiment.of_first_rank(config, apply=False, max_rows=SOME_ROWS)
    model, task = experiment.in_one_process().build_model_and_task()
    hardware = resolve_auto(experiment.hardware, flop_of_sample(model, task))
    with replace(experiment, hardware=hardware).train_loader() as loader:
        why = loader.why
    return {
        "device": hardware.device,
        "strategy": config.trainer.strategy,
        "processes": hardware.num_procs,
        "devices_of_process": hardware.devices,
        "backend": backend(hardware.device) if hardware.num_procs > 1 else None,
        "precision": hardware.precision,
        "precision_why": hardware.precision_why or ("auto" if hardware.precision_is_auto else "hardware.precision"),
        "threads": hardware.threads.count,
        "threads_why": hardware.threads.why,
        "global_batch_size": config.trainer.global_batch_size,
        "micro_batch_sizes": hardware.micro_batch_sizes,
        "micro_batch_is_measured": config.hardware.micro_batch_size == "auto",
        "eval_batch_size": hardware.eval_batch_size,
        "compile": hardware.compile,
        "loader": why,
        "binding": hardware.binding or None,
        "processes_by_strategy": processes,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def facts_text(found: dict[str, Any]) -> str:
    """Return the facts as text, a line for each topic."""
    code, machine = found["code"], found["machine"]
    changed = f", {len(code['changed'])} uncommitted files" if code["changed"] else ""
    limits = [f"{machine['cores_of_host']} of the host"]
    if machine["cores_of_container"] is not None:
        limits.append(f"{machine['cores_of_container']:g} of the container")
    memory = [f"{in_words(machine['memory'])} of the host"] if machine["memory"] else []
    if machine["memory_of_container"] is not None:
        memory.append(f"{in_words(machine['memory_of_container'])} of the container")
    rows = [
        ("code", f"{code['name']}{changed}; {code['project']}"),
        ("python", machine["python"]),
        ("packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items())),
        ("host", f"{machine['host']}, {machine['platform']}"),
        ("cpu", f"{machine['cpu']}, {machine['capability']}"),
        ("cores", f"{machine['cores']} for this process ({', '.join(limits)})"),
        ("memory", f"{in_words(machine['memory_available'])} available ({', '.join(memory)})"),
    ]
    for index, gpu in enumerate(machine["gpus"]):
        parts = [gpu["name"], f"GPU-{gpu['uuid'].removeprefix('GPU-')}" if gpu["uuid"] else "", gpu["pci"] or ""]
        parts.append(f"{in_words(gpu['memory'])}, {in_words(gpu['memory'] - gpu['held_beside'])} free")
        parts += [held_by_others(gpu)] if gpu["holders"] else []
        rows.append((f"gpu {index}", ", ".join(filter(None, parts))))
    if machine["gpus"]:
        rows.append(("libraries", library_versions(machine)))
    elif machine["gpu_error"]:
        rows.append(("gpu", f"CUDA does not start: {machine['gpu_error']} (driver {machine['driver']})"))
    elif machine["driver"]:
        built = torch.version.cuda or torch.version.hip
        why = f"torch for CUDA {built} finds none" if built else "this build of torch is without CUDA"
        rows.append(("gpu", f"none, although driver {machine['driver']} is loaded: {why}"))
    else:
        rows.append(("gpu", "none"))
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def choices_text(chosen: dict[str, Any]) -> str:
    """Return what a run would choose as text, a line for each topic."""
    share, count = chosen["micro_batch_sizes"], chosen["processes"]
    others: dict[int, list[str]] = {}
    for strategy, number in chosen["processes_by_strategy"].items():
        if strategy != chosen["strategy"]:
            others.setdefault(number, []).append(f"trainer={strategy}")
    by = "; ".join(f"{' or '.join(names)}: {number}" for number, names in others.items())
    batch = f"{amount(chosen['global_batch_size'], 'sample')} a step = {count} x {sum(share)}"
    if chosen["micro_batch_is_measured"]:
        batch += ", in micro-batches of a size that is measured when the run starts"
    elif len(share) > 1:
        batch += f" in {len(share)} micro-batches of up to {share[0]}"
    devices = f" on {chosen['devices_of_process']} devices" if chosen["devices_of_process"] > 1 else ""
    rows = [
        ("device", chosen["device"] + (f", bound to {chosen['binding']}" if chosen["binding"] else "")),
        ("strategy", f"{chosen['strategy']}{devices}"),
        ("processes", f"{count}{f' ({by})' if by else ''}"),
        ("backend", chosen["backend"] or "none, because there is one process"),
        ("precision", f"{chosen['precision']} ({chosen['precision_why']})"),
        ("threads", f"{chosen['threads']}{' per process' * (count > 1)} ({chosen['threads_why']})"),
        ("batch", f"{batch}; {chosen['eval_batch_size']} in evaluations"),
        ("compile", chosen["compile"] or "false"),
        ("loader", chosen["loader"]),
    ]
    return "\n".join(f"  {name:<10} {text}" for name, text in rows)
