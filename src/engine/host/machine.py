"""What a run computes on: for environment.json, and one line for its first screen. Importing this imports no torch."""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.host.cpu import cores
from engine.host.gpu import count_gpus, held_beside_torch, pci_address

if TYPE_CHECKING:
    import torch

SMI = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
SMI_S = 5.0
MUCH = 1 << 30  # bytes that are held beside torch: above this, their holders are asked for
SAME = ("gpus", "cpu", "torch", "cuda", "cudnn")  # what rounding depends on


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Facts of the machine and of this process's device, at a run's start. Sizes in bytes."""
    import torch

    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory": memory(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found |= of_gpus(device)
    return found


def memory() -> int | None:
    """Bytes; None on a system that does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def of_gpus(device: torch.device) -> dict[str, Any]:
    import torch

    own: Any = torch.cuda.get_device_properties(device)
    beside = held_beside_torch(device)
    uuid = str(getattr(own, "uuid", ""))
    return {
        "gpus": [torch.cuda.get_device_name(index) for index in range(count_gpus())],
        "gpu": {
            "name": own.name,
            "uuid": uuid,
            "pci": pci_address(device),
            "memory": own.total_memory,
            "held_beside": beside,  # of it the context of this process
            "holders": holders(uuid) if beside > MUCH else [],
        },
        "driver": driver(),
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
    }


def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    with suppress(OSError):
        if found := re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver."""
    with suppress(OSError):
        if found := re.search(r"Kernel Module.*?\s(\d{3,}\.[\d.]+)", version.read_text()):
            return found[1]
    return None


def holders(uuid: str) -> list[dict[str, Any]]:
    """Other processes with memory of this GPU, as far as they can be seen (not from most containers)."""
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[value.strip() for value in row] for row in csv.reader(done.stdout.splitlines())]
    return [
        {"pid": int(pid), "process": name, "memory": int(used) << 20}
        for own, pid, name, used in (row for row in rows if len(row) == 4)
        if own.removeprefix("GPU-") == uuid.removeprefix("GPU-") and pid != str(os.getpid()) and used.isdecimal()
    ]


def machine_line(found: dict[str, Any]) -> str:
    """For the first screen."""
    size = f", {found['memory'] / 1e9:,.0f} GB" if found["memory"] else ""
    parts = [f"{found['cpu']}, {found['cores']} cores{size}", f"torch {found['torch']}"]
    if "gpu" in found:
        gpu = found["gpu"]
        held = f" ({gpu['held_beside'] / 1e9:.1f} GB held by others" if gpu["held_beside"] > MUCH else ""
        who = ", ".join(f"{h['process']} {h['pid']}" for h in gpu["holders"])
        parts.insert(0, f"{gpu['name']}, {gpu['memory'] / 1e9:,.0f} GB{held}{who and ': ' + who}{')' if held else ''}")
        versions = {"driver": found["driver"], "CUDA": found["cuda"], "cuDNN": found["cudnn"], "NCCL": found["nccl"]}
        parts.append(", ".join(f"{name} {version}" for name, version in versions.items() if version))
    return "; ".join(parts)


def machine_changes(began: dict[str, Any], found: dict[str, Any]) -> str:
    """In what this machine differs from the one on which a run began, where that may change rounding; else empty."""
    unlike = [key for key in SAME if key in began and began[key] != found.get(key)]
    return ", ".join(f"{key} {shown(began[key])} -> {shown(found.get(key))}" for key in unlike)


def shown(value: Any) -> str:
    if isinstance(value, list):  # GPUs
        counts = {name: value.count(name) for name in value}
        return " + ".join(f"{count} x {name}" for name, count in counts.items())
    return "none" if value is None else str(value)
