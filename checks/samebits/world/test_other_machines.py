"""What other machines have or lack: macOS, GPUs without NVML, networks without IPv4, a thousand ranks. With fakes: no
such machine is needed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from common import QUICK, ROOT

import samebits.world.launch
from lab.options import TrainerConfig
from samebits.device import HardwareConfig, choose_device, count_processes, free_memory, hardware, resolve_hardware
from samebits.errors import ConfigError
from samebits.host import count_gpus, gpu as cuda
from samebits.schema import typed
from samebits.sweeps.lease import visible_gpus
from samebits.testing import compose, result, start_run
from samebits.world import ClusterRole, cluster, cluster_role

LINUX_ONLY = [
    "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "SCHED_BATCH", "memfd_create", "posix_fadvise",
    "RWF_NOWAIT", "pidfd_open", "copy_file_range", "splice", "eventfd", "POSIX_FADV_WILLNEED", "POSIX_FADV_DONTNEED",
    "O_DIRECT", "O_TMPFILE",
]  # fmt: skip


def test_a_run_needs_no_name_that_linux_alone_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default run, with none of the names in `os` that macOS lacks."""
    for name in LINUX_ONLY:
        monkeypatch.delattr(os, name, raising=False)
    original = os.sysconf

    def sysconf(name: Any) -> int:
        if name in ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE"):
            raise ValueError("unrecognized configuration name")
        return original(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert free_memory(torch.device("cpu")) > 0
    run = start_run(tmp_path / "run", *QUICK, "trainer.max_steps=2")
    assert result(run)["step"] == 2
    with samebits.world.launch.store_file(forked=True) as path:
        assert not path.startswith("/proc")


def cuda_built(monkeypatch: pytest.MonkeyPatch, nvml: int, found: int, visible: str | None = None) -> list[int]:
    """A build of torch with CUDA -> processes in which CUDA was asked (and thereby started). nvml: what it says."""
    asked: list[int] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: nvml)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: asked.append(os.getpid()) or found)
    monkeypatch.setattr(cuda, "_counted", {})
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return asked


@pytest.mark.parametrize("nvml", [3, -1])
def test_gpus_are_counted_without_starting_cuda_here(nvml: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = cuda_built(monkeypatch, nvml, found=3)
    options = [typed(cls, node) for cls, node in ((HardwareConfig, "hardware"), (TrainerConfig, "trainer"))
               for node in [compose("trainer=ddp")[node]]]  # fmt: skip
    assert count_processes(*options) == 3  # type: ignore[arg-type]
    assert choose_device(options[0]) == "cuda"  # type: ignore[arg-type]
    assert visible_gpus() == ["0", "1", "2"]
    assert asked == [], "only a child may ask CUDA"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_gpus() == 0
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_two_ranks_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the plain command, and where others started the ranks."""
    monkeypatch.setattr(hardware, "count_gpus", lambda: 1)
    cfg = compose("trainer=ddp", "hardware.num_procs=2")
    options = typed(HardwareConfig, cfg.hardware, "hardware"), typed(TrainerConfig, cfg.trainer, "trainer")
    with pytest.raises(ConfigError, match=r"its own GPU .* visible GPUs: 1 - use fewer, or hardware=cpu"):
        count_processes(*options)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    with pytest.raises(ConfigError, match="rank 1 of this machine has no GPU: 1 are visible"):
        cluster.gpu_index(1, 1)


def test_no_file_asks_cuda_how_many_gpus_there_are() -> None:
    """One function knows how to ask; torch's own start CUDA where NVML does not answer."""
    for file in (ROOT / "src").rglob("*.py"):
        if file.name != "gpu.py":
            found = re.search(r"cuda\.(device_count|is_available)\(", file.read_text())
            assert found is None, f"{file}: {found and found.group()} - use samebits.host.gpu.count_gpus()"
            assert '"fork" if sys.platform' not in file.read_text(), f"{file}: use samebits.host.gpu.start_method()"


def test_a_run_on_the_cpu_leaves_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = cuda_built(monkeypatch, nvml=2, found=2)
    cfg = compose("hardware=cpu")
    options = typed(HardwareConfig, cfg.hardware, "hardware"), typed(TrainerConfig, cfg.trainer, "trainer")
    resolve_hardware(*options)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert asked == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # a notebook that has used a GPU goes on doing so
    resolve_hardware(*options)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.slow
def test_compiled_ddp_refuses_what_torch_cannot_cut() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.ddp\.bucket_cap_mb=0\.5: with hardware\.compile .* use 1 or more"):
        compose("trainer=ddp", "hardware.compile=true", "trainer.ddp.bucket_cap_mb=0.5")
    compose("trainer=ddp", "hardware.compile=true", "trainer.ddp.bucket_cap_mb=1")
    compose("trainer=ddp", "trainer.ddp.bucket_cap_mb=0.5")


def example(kind: str) -> dict[str, Any]:
    """The yaml of docs/launch.md with this line."""
    text = (ROOT / "docs" / "launch.md").read_text()
    (found,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if kind in block]
    return yaml.safe_load(found)


def within(node: Any, *keys: str | int) -> Any:
    for key in keys:
        node = node[key]
    return node


NODE = ("runtimePatches", 0, "trainingRuntimeSpec", "template", "spec", "replicatedJobs", 0, "template", "spec")


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("kind", "pod", "trainer", "keys"),
    [
        ("TrainJob", (*NODE, "template"), ("trainer",), {"runtimeRef", "trainer", "runtimePatches"}),
        *(
            ("PyTorchJob", at, (*at, "spec", "containers", 0), {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs"})
            for at in (("pytorchReplicaSpecs", name, "template") for name in ("Master", "Worker"))
        ),
    ],
)
def test_the_examples_for_kubernetes(kind: str, pod: tuple[str], trainer: tuple[str], keys: set[str]) -> None:
    """Their names fit each other, each container has shared memory, what they start is a command of this project."""
    job = example(f"kind: {kind}")
    assert job.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert job["spec"].keys() == keys
    spec = within(job["spec"], *pod, "spec")
    assert spec.keys() <= {"containers", "volumes", "terminationGracePeriodSeconds"}
    (container,) = spec["containers"]
    mounts, volumes = ({one["name"]: one for one in of} for of in (container["volumeMounts"], spec["volumes"]))
    assert mounts.keys() == volumes.keys()
    assert mounts["shm"]["mountPath"] == "/dev/shm"
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory"}
    program, script, *overrides = within(job["spec"], *trainer)["command"]
    assert (program, script) == ("./run", "train")
    assert any(text.startswith(f"hydra.run.dir={mounts['shared']['mountPath']}/") for text in overrides)
    assert compose(*overrides).trainer.strategy == "ddp"


def test_the_example_for_skypilot_starts_hosts(tmp_path: Path) -> None:
    task = example("file_mounts:")
    assert task.keys() == {"name", "num_nodes", "resources", "workdir", "file_mounts", "setup", "run"}
    (tmp_path / "run").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "run").chmod(0o755)
    sky = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    command = ["bash", "-c", task["run"]]
    done = subprocess.run(command, env={**os.environ, **sky}, cwd=tmp_path, capture_output=True, text=True, check=True)
    env = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert cluster_role(env) == ClusterRole("host", 1, 2, "10.0.0.7", 29500)
