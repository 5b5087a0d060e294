"""./run env: what it says is what a run records and chooses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from common import QUICK, ROOT, called_here

import lab.environment
from samebits.errors import ConfigError
from samebits.testing import start_run
from samebits.testing.processes import called

UUID, GB = "11111111-2222-3333-4444-555555555555", 10**9


def env(*given: str, code: int = 0) -> Any:
    return called([sys.executable, str(ROOT / "src/env.py"), *given], code)


def test_it_says_what_a_run_records_and_chooses(tmp_path: Path) -> None:
    given = (*QUICK, "trainer.max_steps=1", "hardware.num_threads=auto", "trainer.global_batch_size=24")
    found = json.loads(called_here("env", "--json", *given, "hardware.micro_batch_size=7").stdout)
    run = start_run(tmp_path / "run", *given, "hardware.micro_batch_size=7")
    known = json.loads((run / "environment.json").read_text())
    assert found["code"]["commit"] == known["git_commit"]
    assert found["code"]["dirty"] == known["git_dirty"]
    assert found["code"]["source"] == known["source"]
    assert found["packages"].items() <= {**known["packages"], "h5rows": found["packages"]["h5rows"]}.items()
    for name in ("cpu", "capability", "cores", "memory", "python", "torch"):
        assert found["machine"][name] == known["machine"][name], name
    chosen, log = found["run"], (run / "train.log").read_text()
    assert chosen["threads"] == known["threads"]["count"]
    threads = f"threads: {chosen['threads']} ({chosen['threads_why']})"
    assert f"{chosen['device']}, {chosen['precision']}, {threads}; 24 samples a step = 1 x 24 in 4" in log
    assert chosen["micro_batch_sizes"] == [6] * 4
    assert f"loader={chosen['loader']}\n" in log
    assert chosen["backend"] is None


@pytest.mark.parametrize(
    "given", ["resume=auto", "sweep=lr", "sweep.fail_fast=true", "hydra.run.dir=x", "hydra/launcher=pool"]
)
def test_what_only_a_start_reads_is_refused(given: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{re.escape(given)}: has no effect here, because no run is started - remove"
    ):
        lab.environment.choices(["optim.lr=1", given])


@pytest.mark.slow
def test_ranks_share_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are those of one of two ranks, as in the run."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # it would decide alone
    given = ("hardware=cpu", "trainer=ddp", "hardware.num_procs=2", "hardware.deterministic=true")
    text = env(*given).stdout
    log = (start_run(tmp_path / "run", *given, "trainer.max_steps=1", "logger=none") / "train.log").read_text()
    count, why = re.findall(r"threads: (\d+) \((.+?)\)", log)[0]
    threads = f"threads    {count} per process ({why})"
    for line in ("strategy   ddp", "processes  2 (trainer=single: 1; trainer=fsdp: 2)", "backend    gloo", threads):
        assert f"  {line}\n" in text
    assert f"torch {torch.__version__}, " in text


def test_a_mistake_ends_with_an_error_after_the_facts() -> None:
    done = called_here("env", "optim.lrr=1", code=2)
    assert done.stderr.startswith("error: optim.lrr: no such key - did you mean optim.lr?")
    assert done.stdout.startswith("code ")
    assert done.stdout.endswith(" would choose:\n")
    found = json.loads(called_here("env", "--json", "data.path=no.h5", code=2).stdout)
    assert found["machine"]["cores"] >= 1
    assert "run" not in found
    assert found["run_error"].startswith("data.path=")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that are made up."""
    properties = SimpleNamespace(
        name="NVIDIA H200", uuid=UUID, total_memory=140 * GB, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0
    )
    for name, value in {
        "get_device_properties": lambda device: properties,
        "get_device_name": lambda index: "NVIDIA H200",
        "mem_get_info": lambda device: (100 * GB, 140 * GB),
        "memory_reserved": lambda device: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr("samebits.host.machine.count_gpus", lambda: 2)
    monkeypatch.setattr(lab.environment, "count_gpus", lambda: 2)
    for module in ("lab.environment", "samebits.host.machine"):
        monkeypatch.setattr(f"{module}.driver", lambda: "570.86")


def test_each_gpu_is_listed(two_gpus: None) -> None:
    found = lab.environment.facts()
    json.dumps(found)
    assert [gpu["uuid"] for gpu in found["machine"]["gpus"]] == [UUID] * 2
    lines = lab.environment.facts_text(found).splitlines()
    gpu = f"NVIDIA H200, GPU-{UUID}, 0000:3b:00.0, 140 GB, 100 GB free"
    assert lines[-3:] == [
        f"gpu 0      {gpu}",
        f"gpu 1      {gpu}",
        "libraries  driver 570.86, CUDA 12.8, cuDNN 9.10.2, NCCL 2.27.5",
    ]


def test_a_gpu_that_torch_cannot_use_is_explained(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: Any) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fails)
    text = lab.environment.facts_text(lab.environment.facts())
    assert text.endswith("gpu        CUDA does not start: The NVIDIA driver on your system is too old (driver 570.86)")
    monkeypatch.setattr(lab.environment, "count_gpus", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    text = lab.environment.facts_text(lab.environment.facts())
    assert text.endswith("gpu        none, although driver 570.86 is loaded: this build of torch is without CUDA")
