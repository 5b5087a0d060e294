"""hardware.cuda_graph on a CPU: a step's operations are recorded and run again, in the place of a GPU's graph."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, needs
from torch import nn

import lab.callbacks.base
import lab.tasks.supervised
from lab.callbacks.base import Callback
from lab.config import Config
from lab.tasks.supervised import Supervised
from samebits.device import resolve_hardware
from samebits.errors import ConfigError
from samebits.testing import assert_equal, compose, last_checkpoint, metrics, start_run
from samebits.testing.devices import RecordedGraph
from samebits.testing.processes import slow

SMALL = (*QUICK[:3], "trainer.max_epochs=null", "trainer.max_steps=12", "trainer.global_batch_size=24",
         "trainer.log_every=4", "trainer.eval_every=6", "trainer.save_every=6", "model.hidden=[16]")  # fmt: skip


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    RecordedGraph.replace_graphs(monkeypatch)
    monkeypatch.setattr(
        "samebits.process.rank.resolve_hardware", lambda *given: replace(resolve_hardware(*given), cuda_graph=True)
    )


WAYS = [
    pytest.param((), marks=pytest.mark.slow),
    ("optim=sgd", "hardware.micro_batch_size=10", "trainer.ema_decay=0.9", "trainer.non_finite=skip"),
    pytest.param(("hardware.precision=bf16", "optim/schedule=plateau", "trainer.eval_every=2"), marks=pytest.mark.slow),
    pytest.param(
        ("pruning.sparsity=0.8", "pruning.every=2", "quantization.weight_bits=8", "trainer.ema_decay=0.9"),
        marks=pytest.mark.slow,
    ),
    pytest.param(("task=byol", "model.num_outputs=16"), marks=(needs("conf/task/byol.yaml"), pytest.mark.slow)),
    pytest.param(
        ("optim=lion", "optim/schedule=plateau", "trainer.ema_decay=0.9"),
        marks=(needs("conf/optim/lion.yaml"), pytest.mark.slow),
    ),
    pytest.param(("optim=muon",), marks=(needs("conf/optim/muon.yaml"), pytest.mark.slow)),
]


@pytest.mark.parametrize("more", WAYS)
def test_a_run_of_replays_is_a_run_of_steps(tmp_path: Path, on_cpu: None, more: tuple[str, ...]) -> None:
    """To rounding: a rate on the device is a float32. The checkpoint has numbers for rates, and can be gone on from
    without a graph."""
    graph = start_run(tmp_path / "graph", *SMALL, *more)
    assert RecordedGraph.made == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("samebits.process.rank.resolve_hardware", resolve_hardware)
        plain = start_run(tmp_path / "plain", *SMALL, *more)
        for late in graph.glob("checkpoints/*12.pt"):
            late.unlink()
        shutil.copytree(graph, tmp_path / "on")
        on = start_run(tmp_path / "on", *SMALL, *more, "resume=auto")
    start_run(graph, *SMALL, *more, "resume=auto")
    wanted = last_checkpoint(plain)
    for run in (graph, on):
        found = last_checkpoint(run)
        for part in ("model", "task"):
            torch.testing.assert_close(found[part], wanted[part], rtol=1e-4, atol=1e-5)
        assert found["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
        assert [line["step"] for line in metrics(run)] == [line["step"] for line in metrics(plain)]


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path, on_cpu: None) -> None:
    straight, cut = start_run(tmp_path / "straight", *SMALL), start_run(tmp_path / "cut", *SMALL)
    for late in cut.glob("checkpoints/*12.pt"):
        late.unlink()
    start_run(cut, *SMALL, "resume=auto")
    assert_equal(last_checkpoint(straight), last_checkpoint(cut))


class Changing(Supervised):
    """What `losses` does beside its work, by `way`."""

    __module__ = "lab.tasks.supervised"

    way = ""

    def losses(self, model: nn.Module, batch: Any) -> Any:
        if self.way == "counts":
            self.count = getattr(self, "count", 0) + 1
        if self.way == "keeps a batch":
            self.register_buffer("kept", batch["x"].clone(), persistent=False)
        if self.way == "asks" and batch["x"].mean().item() > 100:
            return super().losses(model, {**batch, "x": batch["x"].clamp(max=100)})
        for way, draw in {"torch": torch.rand, "numpy": np.random.rand}.items():
            draw(1) if self.way == way else None
        random.random() if self.way == "python" else None
        return super().losses(model, batch)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("counts", "a step changes task.count on the host, which a graph would not repeat"),
        ("keeps a batch", "a step changes the address of task.kept on the host, which a graph would not repeat"),
        ("asks", r"a graph cannot contain this step; it may read a value from the GPU \(\.item\(\)"),
        *(
            case(way, "a step draws random numbers on the host, which a graph would not repeat")
            for way, case in {"torch": pytest.param, "numpy": slow, "python": slow}.items()
        ),
    ],
)
def test_a_step_that_changes_the_host_is_refused(
    tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch, way: str, says: str
) -> None:
    monkeypatch.setattr(Changing, "way", way)
    monkeypatch.setattr(lab.tasks.supervised, "Changing", Changing, raising=False)
    with pytest.raises(ConfigError, match=rf"^hardware\.cuda_graph=true: {says}.* - set it to false"):
        start_run(tmp_path, *SMALL, "task._target_=lab.tasks.supervised.Changing")


class Turning(Callback):
    """A callback that changes what a step looks at."""

    __module__ = "lab.callbacks.base"

    def on_eval(self, state: Any, scores: Any) -> None:
        state.task.criterion.label_smoothing = 0.2 if state.step == 6 else 0.0


def test_what_a_callback_changes_is_captured_anew(
    tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.callbacks.base, "Turning", Turning, raising=False)
    run = start_run(
        tmp_path, *SMALL, "+callback.turning={_target_: lab.callbacks.base.Turning}", "trainer.eval_every=3"
    )
    assert RecordedGraph.made == 3  # at step 4, after the evaluation at step 6, after that at step 9
    assert metrics(run)[-1]["step"] == 12


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("trainer=ddp",), r"requires one GPU, not trainer=ddp - use trainer=single"),
        (("hardware=cpu",), r"requires a GPU, and hardware.device is cpu - use hardware=gpu"),
        (("hardware.compile=reduce-overhead",), r"cannot contain the graphs of hardware.compile=reduce-overhead"),
        (("hardware.precision=fp16",), r"does not support loss scaling of fp16 - use hardware.precision=bf16"),
        (("hardware.detect_anomaly=true",), r"cannot read values from the GPU, which detect_anomaly does"),
    ],
)
def test_what_no_graph_can_hold_is_refused_before_the_run(more: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^hardware\.cuda_graph=true: a graph of the step {says}"):
        Config.of(compose(*SMALL[:2], "hardware.cuda_graph=true", "hardware=auto", *more))


def test_a_profiler_of_the_parts_of_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^hardware\.cuda_graph=true: profiler=simple cannot time the parts"):
        Config.of(compose(*SMALL[:2], "hardware.cuda_graph=true", "hardware=auto", "profiler=simple"))


class Choosing(Supervised):
    __module__ = "lab.tasks.supervised"

    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> Any:
        return optimizer_step("", batches)


class Averaging(Supervised):
    __module__ = "lab.tasks.supervised"

    def averaging_factor(self, step: int) -> float | None:
        return 0.5 if step % 2 else None


class Updating(Supervised):
    __module__ = "lab.tasks.supervised"

    def on_step_end(self, model: nn.Module) -> None: ...


class Projecting(Supervised):
    __module__ = "lab.tasks.supervised"

    def project(self, model: nn.Module) -> None: ...


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("+optim.fused=false",), "AdamW has no fused kernel here and may read the learning rate from the GPU"),
        slow(("optim._target_=torch.optim.NAdam",), "NAdam has no fused kernel here"),
        (
            ("task._target_=lab.tasks.supervised.Choosing",),
            "Choosing.train_step may draw random numbers or branch on the host",
        ),
        slow(("task._target_=lab.tasks.supervised.Averaging",), "Averaging.averaging_factor may draw"),
        slow(
            ("task._target_=lab.tasks.supervised.Updating",),
            "Updating.on_step_end, whose class lacks `uses_rng = False`",
        ),
        (
            ("task._target_=lab.tasks.supervised.Projecting",),
            "Projecting.project, whose class lacks `uses_rng = False`",
        ),
    ],
)
def test_methods_that_choose_on_the_host_are_refused(
    tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], says: str
) -> None:
    for kind in (Choosing, Averaging, Updating, Projecting):
        monkeypatch.setattr(lab.tasks.supervised, kind.__name__, kind, raising=False)
    with pytest.raises(ConfigError, match=rf"^hardware\.cuda_graph=true: {says}"):
        start_run(tmp_path, *SMALL, *more)
