"""Machines unlike the one that the tests run on: fewer cores than they seem to have, more, or busy ones."""

from __future__ import annotations

import copy
import json
import math
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import QUICK, assert_equal, compose, start_run
from torch import nn

from engine.data.loader import Loader
from engine.errors import ConfigError
from engine.host import cpu as cores
from engine.ranks import threads
from engine.ranks.distributed import World
from lab.objective import Objective
from lab.tasks.supervised import Supervised

V2 = "26 1 0:24 {root} {mount} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def machine(tmp_path: Path, mounts: str, groups: str, limits: dict[str, str], root: str = "/") -> float | None:
    """What cgroup_cores() reads where the groups of a process and their limits are these."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    mount.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts.format(root=root, mount=mount))
    for name, text in limits.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    cores.cgroup_cores.cache_clear()
    try:
        return cores.cgroup_cores(proc)
    finally:
        cores.cgroup_cores.cache_clear()


@pytest.mark.parametrize(
    ("mounts", "groups", "root", "limits", "granted"),
    [
        (V2, "0::/\n", "/", {"cpu.max": "250000 100000\n"}, 2.5),  # a container that sees its own group as the root
        (V2, "0::/\n", "/", {}, None),  # the root of a host has no such file
        (V2, "0::/a/b\n", "/", {"a/b/cpu.max": "max 100000\n"}, None),
        (V2, "0::/a/b\n", "/", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "150000 50000\n"}, 3.0),  # the least
        (V2, "0::/../..\n", "/", {"cpu.max": "100000 100000\n"}, 1.0),  # the group lies outside of what can be seen
        (
            V1,
            "3:memory:/m\n4:cpu,cpuacct:/a\n",
            "/",
            {"a/cpu.cfs_quota_us": "50000", "a/cpu.cfs_period_us": "25000"},
            2,
        ),
        (V1, "4:cpu,cpuacct:/a\n", "/", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, None),
        (  # a container without a namespace of groups: the path is the host's, the mount the container's own
            V1,
            "4:cpu,cpuacct:/docker/1f\n",
            "/docker/1f",
            {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
            3,
        ),
    ],
)
def test_cpu_limits_of_containers(
    tmp_path: Path, mounts: str, groups: str, root: str, limits: dict[str, str], granted: float | None
) -> None:
    assert machine(tmp_path, mounts, groups, limits, root) == granted


def test_cores_and_threads_are_the_least_of_what_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LAB_CORES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    assert (cores.cores(), cores.threads_each(), cores.threads_each(4), cores.threads_each(32)) == (16, 16, 4, 1)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 6.5)
    assert (cores.cores(), cores.cores_each(2)) == (6, 3)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 0.5)
    assert cores.cores() == 1
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    monkeypatch.setenv("LAB_CORES", "8")
    assert cores.cores() == 8
    for text, count in (("2", 2), ("4,2", 4), (" 3 , 1", 3), ("64", 8), ("", 8), ("many", 8), ("0", 8), ("-2", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert cores.threads_each() == count, text
    assert cores.cores() == 8, "OMP_NUM_THREADS is about threads of one process: a pool's other cores stay"
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.cores() == 1


def decided(asked: int | str, device: str = "cpu", deterministic: bool = False, ranks: int = 1) -> tuple[int, str]:
    found = threads.decide_threads(asked, device, deterministic, ranks)
    return found.count, found.why


def test_what_decides_the_threads_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert decided(5) == (5, "hardware.num_threads")
    assert decided("auto") == decided("auto", "cuda") == decided("auto", deterministic=True) == (3, "OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert decided("auto") == (1, ""), "to be measured"
    assert decided("auto", deterministic=True) == (1, "hardware.deterministic")
    assert decided("auto", "cuda", ranks=2) == (4, "8 cores, 2 ranks")
    assert decided("auto", ranks=8) == (1, "8 cores, 8 ranks")


def step(work_s: float, join_s: float, parallel: float = 1.0, useful: int = 64) -> Callable[[int, int], float]:
    """A step of a model: `work_s` for a sample, of which a part can be shared among threads; joining them costs."""

    def seconds(count: int, samples: int) -> float:
        spent.append(work_s * samples * (1 - parallel + parallel / min(count, useful)) + (join_s if count > 1 else 0.0))
        return spent[-1]

    spent: list[float] = []
    seconds.spent = spent  # type: ignore[attr-defined]
    return seconds


@pytest.mark.parametrize(
    ("seconds", "size", "most", "chosen"),
    [
        (step(1e-5, join_s=0.05), 64, 2, "1 (measured: 1 is"),  # small steps on a busy machine
        (step(1e-5, join_s=1e-5), 64, 64, "64 (measured: 64 is 32.0x faster than 1)"),
        (step(1e-5, join_s=3e-4), 64, 16, "1 (measured: 2 is only 1.03x as fast as 1)"),
        (step(1e-3, join_s=1e-5), 64, 12, "12 (measured: 12 is 11."),
        (step(1e-3, join_s=1e-5, useful=4), 64, 16, "4 (measured: 4 is"),
        (step(1e-3, join_s=1e-5, parallel=0.1), 64, 16, "1 (measured: 2 is only 1.05x as fast as 1)"),
        (step(2e-3, join_s=math.inf), 64, 2, "1 (measured: 2 is far slower)"),
        (step(math.inf, join_s=0.0), 64, 16, "16 (all: the model's steps are long)"),
        (step(1e-3, join_s=0.0), 1, 2, "2 (measured"),
    ],
)
def test_more_threads_only_where_they_help(seconds: Any, size: int, most: int, chosen: str) -> None:
    count, why = threads.fastest(seconds, size, most)
    assert f"{count} ({why})".startswith(chosen)
    assert sum(s for s in seconds.spent if s < math.inf) < 0.4, "the start must not wait for this"


class Stateful(nn.Module):
    """All that a forward pass can leave behind: statistics, random numbers drawn, attributes."""

    def __init__(self, fails: Exception | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.calls, self.fails = 0, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        random.random()
        np.random.rand()
        x.add_(1)
        if self.fails:
            raise self.fails
        return self.layers(x)


class Even(Supervised):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        assert len(batch["names"]) == len(batch["x"])
        return super().losses(model, batch)


@pytest.mark.parametrize(
    ("fails", "why"),
    [(None, "measured: "), (ValueError(), "not measured: ValueError"), (ConfigError("the run says it too"), "")],
)
def test_measuring_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, fails: Exception | None, why: str) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # a pool of threads here would hang forks
    model = Stateful(fails)
    batch = {"x": torch.zeros(16, 4), "names": ["a"] * 16}
    before = copy.deepcopy(
        (model.state_dict(), batch, random.getstate(), np.random.get_state()[1], torch.get_rng_state())
    )

    found = threads.measure_threads(
        2, Objective(model, Even(lambda out, batch: out.square().sum(1), {})), lambda: batch, nullcontext
    )
    assert (found.count, found.why) == (1, why) if fails else found.why.startswith(why)
    after = (model.state_dict(), batch, random.getstate(), np.random.get_state()[1], torch.get_rng_state())
    assert np.array_equal(before[3], after[3])
    assert_equal([*before[:3], before[4]], [*after[:3], after[4]])
    assert model.calls == 0
    assert all(p.grad is None for p in model.parameters())


def test_one_rank_of_several_measures_without_the_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A criterion that gathers from all ranks would wait for ever on the one that measures."""
    from engine.ranks import hardware
    from lab import run
    from lab.config import Config
    from lab.tasks.base import Task

    config = Config.of(compose(*QUICK, "trainer.max_steps=1"))
    machine = hardware.resolve_hardware(config.hardware, config.trainer)
    monkeypatch.setattr(run, "settle_threads", lambda decided, run_dir, world, measure: measure(2))
    monkeypatch.setattr(run, "measure_threads", lambda most, net, first, autocast: type(net))
    gathering = Task()
    gathering.across_samples = True
    loader: Any = SimpleNamespace(first=None)
    for size, task, measured in (
        (1, Supervised(print, {}), Objective), (2, Supervised(print, {}), threads.ModelAlone),
        (1, gathering, Objective), (2, gathering, threads.ModelAlone), (2, Task(), Objective),
    ):  # fmt: skip
        world, net = World(0, size, 0, torch.device("cpu")), Objective(nn.Linear(4, 2), task)
        assert run.with_threads(machine, net, loader, world, Path()).threads is measured  # type: ignore[comparison-overlap]


def test_the_forward_pass_alone_reaches_every_output() -> None:
    layers = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"a": layers[0](x), "more": [layers[1](x), (layers[2](x), None)], "size": torch.tensor(len(x))}

    threads.ModelAlone(Model())({"x": torch.ones(5, 3)})[0]["loss"].sum().backward()
    assert all((p.grad != 0).all() for p in layers.parameters())


def test_the_first_batch_can_be_looked_at_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_loader import CPU, Table, endless

    for kind in ("device", "threads"):
        seen = []
        for looks in (0, 2):
            with Loader(Table(50), endless(50, 8), CPU, kind=kind, num_workers=1, seed=0) as loader:
                for _ in range(looks):
                    first = {name: value.clone() for name, value in loader.first().items()}
                batches = iter(loader)
                seen.append([{k: v.clone() for k, v in next(batches).items()} for _ in range(5)])
        assert_equal(seen[0], seen[1])
        assert_equal(seen[1][0], first)


def test_a_batch_that_does_not_fit_is_said_by_the_error_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "threads_each", lambda ranks: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # a pool of threads here would hang forks
    with pytest.raises(ConfigError, match=r"^SquaredError .*: choose task=classification"):
        start_run(tmp_path / "run", *QUICK, "task=regression", "hardware.num_threads=auto", "trainer.max_steps=2")
    assert ", threads: 1; " in capfd.readouterr().err


def test_a_run_keeps_the_number_of_threads_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured has the bits of the number given, and a resume takes that number, not a new measurement."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    options = [
        *QUICK,
        "hardware.num_threads=auto",
        "model.dropout=0.1",
        "optim/schedule=constant",
        "trainer.eval_every=2",
    ]

    def fake(seconds: Any, size: int, most: int) -> tuple[int, str]:
        assert seconds(most, size) > 0
        return 2, "measured: faked"

    monkeypatch.setattr(threads, "fastest", fake)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # a pool of threads here would hang forks
    run = start_run(tmp_path / "auto", *options, "trainer.max_steps=2")
    assert json.loads((run / "environment.json").read_text())["threads"]["count"] == 2
    assert "threads: 2 (measured: faked)" in (run / "train.log").read_text()
    monkeypatch.setattr(threads, "fastest", lambda *_: (1, "measured: otherwise"))
    start_run(run, *options, "trainer.max_steps=4")
    assert "threads: 2 (as the run began)" in (run / "train.log").read_text()
    fewer = threads.recorded(json.loads((run / "environment.json").read_text()), most=1)
    assert fewer is not None
    assert fewer.count == 1
    assert "the run began with 2, for which there are no cores now: rounding changes" in fewer.why
    straight = start_run(tmp_path / "two", *options, "hardware.num_threads=2", "trainer.max_steps=4")
    assert "threads: 2 (hardware.num_threads)" in (straight / "train.log").read_text()
    found = [torch.load(d / "checkpoints" / "last_000000004.pt", weights_only=True) for d in (run, straight)]
    assert_equal(found[0]["model"], found[1]["model"])
