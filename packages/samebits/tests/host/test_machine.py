"""What a run says and keeps of its machine. The GPU is made up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.code.environment import record_machine
from samebits.host import gpu, machine, memory_limit

GPU = torch.device("cuda", 0)
UUID = "11111111-2222-3333-4444-555555555555"
GB = 1 << 30


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """An H200; its figures may be changed."""
    memory = {"free": 100 * GB, "total": 140 * GB, "reserved": 10 * GB, "peak": 30 * GB}
    properties = SimpleNamespace(
        name="NVIDIA H200", uuid=UUID, total_memory=140 * GB, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0
    )
    for name, value in {
        "get_device_properties": lambda device: properties,
        "get_device_name": lambda index: "NVIDIA H200",
        "mem_get_info": lambda device: (memory["free"], memory["total"]),
        "memory_reserved": lambda device: memory["reserved"],
        "max_memory_reserved": lambda device: memory["peak"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(machine, "count_gpus", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(machine, "driver", lambda: "570.86")
    return memory


def test_the_first_line_names_the_gpu_and_who_else_is_on_it(
    made_up: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = f"GPU-{UUID}, 77, /usr/bin/python, 20480\nGPU-other, 78, other, 5\nGPU-{UUID}, {os.getpid()}, me, 9\nbad\n"
    monkeypatch.setattr(machine, "answer_of", lambda *_, **__: rows.encode())
    found = machine.machine_facts(GPU)
    json.dumps(found)
    assert found["gpus"] == ["NVIDIA H200"] * 2
    assert found["gpu"]["pci"] == "0000:3b:00.0"
    assert found["gpu"]["holders"] == [{"pid": 77, "process": "/usr/bin/python", "memory": 20 * GB}]
    text = machine.machine_line(found)
    for part in ("NVIDIA H200, 150 GB (32.2 GB held by others: /usr/bin/python 77)", "driver 570.86", "NCCL 2.27.5"):
        assert part in text, text
    made_up["free"] = 129 * GB + GB // 2  # 0.5 GB beside torch: its own context
    text = machine.machine_line(machine.machine_facts(GPU))
    assert text.startswith("NVIDIA H200, 150 GB; ")


def test_each_ranks_gpu_and_who_is_on_it(made_up: dict[str, int]) -> None:
    """On two lines, with all versions; whole in what environment.json keeps."""
    made_up["free"] = 129 * GB + GB // 2
    ranks: list[dict[str, Any] | None] = [machine.gpu_facts(GPU) for _ in range(4)]
    assert ranks[2] is not None
    ranks[2] |= {"held_beside": 8 * GB, "holders": [{"pid": 77, "process": "jupyter", "memory": 8 * GB}]}
    found = machine.machine_facts(GPU, ranks)
    assert found["gpus_of_ranks"] == ranks
    assert found["threads"] == torch.get_num_threads()
    first, second = machine.machine_line(found).splitlines()
    assert first.startswith("4 x NVIDIA H200, 150 GB (rank 2: 8.6 GB held by others: jupyter 77); ")
    assert first.endswith(" GB")
    assert second.startswith("Python 3.")
    assert second.endswith(f"torch {torch.__version__}; driver 570.86, CUDA 12.8, cuDNN 9.10.2, NCCL 2.27.5")
    assert machine.cudnn({"cudnn": 8902}) == "8.9.2"


def test_other_vector_instructions_round_in_another_way() -> None:
    began = machine.machine_facts(torch.device("cpu"))
    assert machine.machine_changes(began, began) == ""
    assert "capability " in machine.machine_changes(began, began | {"capability": "VSX"})
    assert machine.machine_changes({"cpu": began["cpu"]}, began) == "", "an older run has no such entry"


def test_nobody_is_asked_without_nvidia_smi(made_up: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SMI", ["no-such-command"])
    found = machine.machine_facts(GPU)
    assert found["gpu"]["holders"] == []
    assert "held by others)" in machine.machine_line(found)


def test_memory_counts_what_is_held_beside_torch(made_up: dict[str, int]) -> None:
    """Its cache, and a context; not what other processes hold."""
    made_up |= {"free": 140 * GB - 10 * GB - 600 * 2**20}
    assert gpu.memory_of_process(GPU) == 30 * GB + 600 * 2**20
    made_up |= {"free": 20 * GB}
    assert gpu.memory_of_process(GPU) == 30 * GB + gpu.MOST_CONTEXT


def test_the_drivers_version(tmp_path: Path) -> None:
    for text, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n", "570.86.10"),
        ("something else", None),
    ):
        (tmp_path / "version").write_text(text)
        assert machine.driver(tmp_path / "version") == version
    assert machine.driver(tmp_path / "none") is None


def test_a_resume_on_another_machine_is_said(made_up: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"host": "a", "threads": {"count": 1}}')
    began: dict[str, Any] = machine.machine_facts(GPU)
    assert record_machine(tmp_path, began) == ""
    known = json.loads((tmp_path / "environment.json").read_text())
    assert (known["host"], known["threads"], known["machine"]) == ("a", {"count": 1}, began)
    made_up["free"] -= GB
    assert record_machine(tmp_path, machine.machine_facts(GPU)) == "", "the same machine"
    found = began | {"gpus": ["NVIDIA A100"], "cudnn": 90800}
    assert record_machine(tmp_path, found) == "gpus 2 x NVIDIA H200 -> 1 x NVIDIA A100, cudnn 91002 -> 90800"
    assert json.loads((tmp_path / "environment.json").read_text()) == known, "what it began on stays"


def test_on_a_cpu() -> None:
    text = machine.machine_line(machine.machine_facts(torch.device("cpu")))
    assert f"torch {torch.__version__}" in text
    assert "None" not in text


@pytest.mark.parametrize(("limits", "expected"), [(("max", "4096"), 4096), (("8192", "4096"), 4096), (("max",), None)])
def test_the_memory_limit_is_the_smallest_of_all_levels(
    tmp_path: Path, limits: tuple[str, ...], expected: int | None
) -> None:
    folder = tmp_path / "control groups"
    for name, limit in zip(("job", "."), limits):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/job\n")
    place = str(folder).replace(" ", r"\040")  # as Linux writes it
    (tmp_path / "self/mountinfo").write_text(f"1 0 0:1 / {place} rw - cgroup2 cgroup2 rw\n")
    assert memory_limit(tmp_path) == expected
