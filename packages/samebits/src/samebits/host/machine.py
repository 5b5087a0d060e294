"""Describe the machine of a run, for environment.json and the log. Importing this module does not import torch."""

from __future__ import annotations

import csv
import os
import platform
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.host.cpu import cores
from samebits.host.gpu import count_gpus, held_beside_torch, pci_address
from samebits.host.memory import memory
from samebits.programs import NoAnswer, answer_of

if TYPE_CHECKING:
    import torch

SMI = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"]
SMI_S = 5.0
MUCH = 1 << 30  # bytes in use outside of torch above which the other processes are listed
SAME = ("gpus", "cpu", "capability", "torch", "cuda", "cudnn")  # facts that affect rounding
ONE_LINE = 120  # characters; a longer machine_line is split into two lines


def machine_facts(device: torch.device, ranks: Sequence[dict[str, Any] | None] = ()) -> dict[str, Any]:
    """Return facts about the machine and this process when a run starts. Sizes are bytes. ranks: gpu_facts of each
    rank."""
    import torch

    found: dict[str, Any] = {
        "cpu": _found(r"^model name\s*: (.+)$", Path("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),  # vector instructions that torch uses
        "cores": cores(),
        "memory": memory(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found |= of_gpus(device, [gpu for gpu in ranks if gpu] or [gpu_facts(device)])
    return found


def gpu_facts(device: torch.device) -> dict[str, Any] | None:
    """Return facts about this process's GPU; None if it has none."""
    import torch

    if device.type != "cuda":
        return None
    own: Any = torch.cuda.get_device_properties(device)
    beside = held_beside_torch(device)
    uuid = str(getattr(own, "uuid", ""))
    return {
        "name": own.name,
        "uuid": uuid,
        "pci": pci_address(device),
        "memory": own.total_memory,
        "held_beside": beside,  # includes the context of this process
        "holders": holders(uuid) if beside > MUCH else [],
    }


def of_gpus(device: torch.device, ranks: list[Any]) -> dict[str, Any]:
    """Return the facts about the GPUs of all ranks."""
    import torch

    return {
        "gpus": [torch.cuda.get_device_name(index) for index in range(count_gpus())],
        "gpu": ranks[0],
        **({"gpus_of_ranks": ranks} if len(ranks) > 1 else {}),
        "driver": driver(),
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
    }


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's driver, or None."""
    return _found(r"Kernel Module.*?\s(\d{3,}\.[\d.]+)", version)


def _found(pattern: str, file: Path) -> str | None:
    with suppress(OSError):
        if found := re.search(pattern, file.read_text(), re.MULTILINE):
            return found[1].strip()
    return None


def holders(uuid: str) -> list[dict[str, Any]]:
    """Return other processes with memory on this GPU, if they are visible (not from most containers)."""
    try:
        said = answer_of(SMI, limit_s=SMI_S).decode(errors="replace")
    except NoAnswer:  # then the line contains only the amount
        return []
    rows = [[value.strip() for value in row] for row in csv.reader(said.splitlines())]
    return [
        {"pid": int(pid), "process": name, "memory": int(used) << 20}
        for own, pid, name, used in (row for row in rows if len(row) == 4)
        if own.removeprefix("GPU-") == uuid.removeprefix("GPU-")
        and pid != str(os.getpid())
        and pid.isdecimal()
        and used.isdecimal()
    ]


def machine_line(found: dict[str, Any]) -> str:
    """Return the description for the log: one line, or two if it is long."""
    size = f", {found['memory'] / 1e9:,.0f} GB" if found["memory"] else ""
    hardware = [f"{found['cpu']}, {found['cores']} cores{size}"]
    versions = [f"Python {found['python']}, torch {found['torch']}"]
    if "gpu" in found:
        gpus = found.get("gpus_of_ranks", [found["gpu"]])
        kinds = Counter(f"{gpu['name']}, {gpu['memory'] / 1e9:,.0f} GB" for gpu in gpus)
        text = " + ".join(f"{count} x {kind}" if len(gpus) > 1 else kind for kind, count in kinds.items())
        held = [
            (f"rank {rank}: " if len(gpus) > 1 else "") + held_by_others(gpu)
            for rank, gpu in enumerate(gpus)
            if gpu["held_beside"] > MUCH
        ]
        hardware.insert(0, f"{text} ({'; '.join(held)})" if held else text)
        versions.append(library_versions(found))
    line = "; ".join([*hardware, *versions])
    return line if len(line) <= ONE_LINE else f"{'; '.join(hardware)}\n{'; '.join(versions)}"


def library_versions(found: dict[str, Any]) -> str:
    """Return the versions of the driver and of the libraries for GPUs, as text."""
    libraries = {"driver": found["driver"], "CUDA": found["cuda"], "cuDNN": cudnn(found), "NCCL": found["nccl"]}
    return ", ".join(f"{name} {version}" for name, version in libraries.items() if version)


def held_by_others(gpu: dict[str, Any]) -> str:
    """Return the memory that other processes use on a GPU, as text."""
    who = ", ".join(f"{h['process']} {h['pid']}" for h in gpu["holders"])
    return f"{gpu['held_beside'] / 1e9:.1f} GB held by others{who and ': ' + who}"


def cudnn(found: dict[str, Any]) -> str | None:
    """Return the version of cuDNN: 91002 -> 9.10.2, 8902 -> 8.9.2."""
    if not (number := found["cudnn"]):
        return None
    major = 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def machine_changes(began: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the differences to the machine on which the run started that may change rounding; "" if there are none."""
    unlike = [key for key in SAME if key in began and began[key] != found.get(key)]
    return ", ".join(f"{key} {shown(began[key])} -> {shown(found.get(key))}" for key in unlike)


def shown(value: Any) -> str:
    """Return a fact as text."""
    if isinstance(value, list):  # GPUs
        counts = Counter(map(str, value))
        return " + ".join(f"{count} x {name}" for name, count in counts.items())
    return "none" if value is None else str(value)
