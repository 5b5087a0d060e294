"""hardware.cuda_graph, on a CPU: what is captured is run again on the same memory, instead of a GPU's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QUICK, assert_equal, last_checkpoint, metrics, start_run

import engine.device.captured as captured
import lab.run
from engine.device import resolve_hardware

SMALL = (*QUICK[:3], "trainer.max_epochs=null", "trainer.max_steps=12", "trainer.global_batch_size=24",
         "trainer.log_every=4", "trainer.eval_every=6", "trainer.save_every=6", "model.hidden=[16]")  # fmt: skip


class Again:
    """In the place of a graph: `step` is called again, on inputs that stay where they are."""

    made = 0

    def __init__(self, step: Callable[..., Any], inputs: Sequence[Any]) -> None:
        type(self).made += 1
        self.step, self.inputs = step, inputs

    def __call__(self) -> Any:
        return self.step(self.inputs)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = lab.run.resolve_hardware
    monkeypatch.setattr(captured, "Graph", Again)
    monkeypatch.setattr(lab.run, "resolve_hardware", lambda *given: replace(resolve(*given), cuda_graph=True))
    Again.made = 0


@pytest.mark.parametrize("more", [(), ("optim=sgd", "hardware.micro_batch_size=10", "trainer.ema_decay=0.9")])
def test_a_run_of_replays_is_a_run_of_steps(tmp_path: Path, on_cpu: None, more: tuple[str, ...]) -> None:
    """To rounding: a rate on the device is a float32."""
    run = start_run(tmp_path / "graph", *SMALL, *more)
    assert Again.made == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab.run, "resolve_hardware", resolve_hardware)
        plain = start_run(tmp_path / "plain", *SMALL, *more)
    a, b = last_checkpoint(run), last_checkpoint(plain)
    torch.testing.assert_close(a["model"], b["model"], rtol=1e-5, atol=1e-6)
    assert a["optimizer"]["param_groups"] == b["optimizer"]["param_groups"]
    assert [line["step"] for line in metrics(run)] == [line["step"] for line in metrics(plain)]


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path, on_cpu: None) -> None:
    straight = start_run(tmp_path / "straight", *SMALL)
    cut = start_run(tmp_path / "cut", *SMALL)
    for later in cut.glob("checkpoints/*12.pt"):
        later.unlink()
    start_run(cut, *SMALL, "resume=auto")
    assert_equal(last_checkpoint(straight)["model"], last_checkpoint(cut)["model"])
