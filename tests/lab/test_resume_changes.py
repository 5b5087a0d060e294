"""What a resume changes: its values hold from the next step on, all others stay, and what cannot be gone on with is
refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import QUICK, last_checkpoint
from omegaconf import OmegaConf
from sweeps import call

from engine.errors import ConfigError
from engine.runs.resume import leaves_of
from lab.optim import check_optimizer, check_trained

RUN = (*QUICK, "trainer.max_steps=8", "trainer.eval_every=2", "trainer.save_every=4", "trainer.log_every=1")


def stopped(run: Path, *overrides: str) -> Path:
    """A run that was stopped after four of its eight steps."""
    done = call(*RUN, *overrides, "trainer.stop_at_step=4", f"hydra.run.dir={run}")
    assert "stopped by trainer.stop_at_step at step 4" in done.stderr
    return run


def resumed(run: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return call(f"resume={run}", *overrides)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return stopped(tmp_path / "run", "optim.lr=0.02", "optim.schedule.warmup=0.5", "hardware.deterministic=true")


def test_another_score_has_a_best_of_its_own(run: Path) -> None:
    """A loss of 1.9 would stay the best of all accuracies."""
    assert last_checkpoint(run)["monitor"] == ["val/loss", "min"]
    done = resumed(run, "monitor.key=val/accuracy", "monitor.mode=max", "trainer.max_steps=16")
    said = "monitor: val/loss min until now, val/accuracy max from here on: the best score begins anew"
    assert said in done.stderr.splitlines(), done.stderr
    found = last_checkpoint(run)
    assert found["monitor"] == ["val/accuracy", "max"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [(line["val/accuracy"], line["step"]) for line in lines if "val/accuracy" in line and line["step"] > 4]
    assert len(scores) == 6
    assert found["best_score"] == max(scores)[0]


def test_a_mapping_changes_what_it_names(run: Path) -> None:
    done = resumed(run, "optim.schedule={final: 0.1}", "hardware={eval_batch_size: 7}", "monitor={mode: min}")
    assert done.returncode == 0, done.stderr
    found = OmegaConf.load(run / "config.yaml")
    assert (found.optim.schedule.warmup, found.optim.schedule.final) == (0.5, 0.1)
    assert (found.hardware.deterministic, found.hardware.eval_batch_size) == (True, 7)


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("a.b=3", ["a.b"]), ("a={b: {c: 1}, d: {}}", ["a.b.c", "a.d"]), ("a=[1,2]", ["a"]), ("a={}", ["a"]),
        ("+a.b=3", ["+a.b"]), ("~a.b", ["~a.b"]), ("a=1,2", ["a"]), ("a.b='{c: 1}'", ["a.b"]),
    ],
)  # fmt: skip
def test_the_keys_of_an_override(override: str, keys: list[str]) -> None:
    assert leaves_of(override) == keys


def test_moments_stay_with_their_parameters(tmp_path: Path) -> None:
    """Layers of equal shapes: nothing else would tell. Of others, kernels would leave their memory."""
    model = "model.hidden=[32,32,32]"
    weights = stopped(tmp_path / "weights", model)
    tuned = stopped(tmp_path / "tuned", model, "task=finetune", f"task.weights={weights}", "task.frozen=[2.w,2.b]")
    assert "4.weight" in last_checkpoint(tuned)["trained"]
    done = resumed(tuned, "task=finetune", f"task.weights={weights}", "task.frozen=[4.w,4.b]")
    assert done.returncode == 2
    assert "trains other parameters than this config's: 4.weight where this has 2.weight" in done.stderr


def test_a_parameter_more_is_another() -> None:
    check_trained(["a", "b"], ["a", "b"])
    with pytest.raises(ConfigError, match="than this config's: b where this has no more"):
        check_trained(["a", "b"], ["a"])


def test_another_class_is_refused_where_the_checkpoints_arguments_would_undo_it() -> None:
    def groups(kind: Any) -> Any:
        return kind([torch.nn.Parameter(torch.zeros(2))])

    saved = groups(torch.optim.AdamW).state_dict()["param_groups"]
    check_optimizer(saved, groups(torch.optim.AdamW), "AdamW")
    for kind in (torch.optim.Adam, torch.optim.RAdam):
        with pytest.raises(ConfigError, match=r"another optimizer than K, .*keep the run's optim\._target_"):
            check_optimizer(saved, groups(kind), "K")
    older = [{key: value for key, value in group.items() if key != "decoupled_weight_decay"} for group in saved]
    check_optimizer(older, groups(torch.optim.AdamW), "AdamW")
