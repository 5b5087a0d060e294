"""A plain PyTorch loop, written without the project's loop, state or optimizer code, gives what a run gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import QUICK, ROOT, needs
from torch import nn
from torch.nn import functional as F

from lab.config import Config
from lab.model_io import make_model
from lab.restore import score_checkpoint
from samebits.data import shuffled
from samebits.steps import seed_everything
from samebits.testing import compose, last_checkpoint, metrics, result, start_run, values

STEPS, BATCH, LOG, EVAL, WARMUP = 45, 33, 10, 15, 0.2  # 45 x 33 samples cross the end of an epoch of 1,297
COMMON = (
    *QUICK, f"trainer.max_steps={STEPS}", f"trainer.global_batch_size={BATCH}", f"trainer.log_every={LOG}",
    f"trainer.eval_every={EVAL}", "trainer.save_every=20", "trainer.keep_best=2", "seed=4",
    "optim/schedule=constant", f"optim.schedule.warmup={WARMUP}",
)  # fmt: skip
CASES = {
    "adamw, clipped, averaged, micro-batches": (
        {"clip": 0.3, "ema": 0.8, "decay": 0.1, "smoothing": 0.1},
        ("trainer.clip_norm=0.3", "trainer.ema_decay=0.8", "optim.lr=3e-3", "optim.weight_decay=0.1",
         "task.criterion.label_smoothing=0.1", "hardware.micro_batch_size=7"),
    ),
    "sgd with momentum, whole batches, dropout": (
        {"clip": None, "ema": None, "decay": 0.0, "smoothing": 0.0, "sgd": True},
        ("trainer.clip_norm=null", "optim=sgd", "optim.lr=0.05", "optim.momentum=0.9", "optim.nesterov=false",
         "optim.weight_decay=0", "model.dropout=0.3"),
    ),
}  # fmt: skip


def digits(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    with h5py.File(ROOT / "data" / "digits.h5") as file:
        images, labels = file[split]["image"][:], file[split]["label"][:]
    return torch.from_numpy(images).float() / 255, torch.from_numpy(labels).long()


def reference(overrides: tuple[str, ...], given: dict[str, Any]) -> tuple[nn.Module, nn.Module | None, list[dict]]:
    """Model, averaged model, and the lines of metrics.jsonl of the run that `overrides` describe."""
    config = Config.of(compose(*overrides))
    seed_everything(4)
    model = make_model(config)
    average = make_model(config) if given["ema"] else None
    if average is not None:
        average.load_state_dict(model.state_dict())
    lr = config.optimizer["lr"]
    if given.get("sgd"):
        optimizer: Any = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    else:
        weights, biases = ([p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False))
        groups = [{"params": weights, "weight_decay": given["decay"]}, {"params": biases, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr)
    (x, y), (val_x, val_y) = digits("train"), digits("val")
    order = shuffled(x, 4)
    seed_everything(4, stream=1)
    lines, sums = [], {"loss": 0.0, "grad_norm": 0.0}
    for step in range(1, STEPS + 1):
        numbers = np.arange((step - 1) * BATCH, step * BATCH)
        rows = order(numbers)
        rate = lr * min(1.0, step / round(WARMUP * STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows], label_smoothing=given["smoothing"])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), given["clip"] or float("inf"))
        optimizer.step()
        if average is not None:
            for mean, value in zip(average.parameters(), model.parameters()):
                mean.data = given["ema"] * mean.data + (1 - given["ema"]) * value.data
        sums = {"loss": sums["loss"] + loss.item(), "grad_norm": sums["grad_norm"] + norm.item()}
        if step % LOG == 0 or step == STEPS:
            since = (step - 1) % LOG + 1
            means = {f"train/{name}": value / since for name, value in sums.items()}
            lines.append({"step": step, **means, "train/lr": rate, "train/epoch": step * BATCH / len(x)})
            sums = dict.fromkeys(sums, 0.0)
        if step % EVAL == 0:
            scored = (average or model).eval()
            with torch.no_grad():
                output = scored(val_x)
            scores = {
                "val/loss": F.cross_entropy(output, val_y, label_smoothing=given["smoothing"]).item(),
                "val/accuracy": (output.argmax(1) == val_y).double().mean().item(),
            }
            lines.append({"step": step, **scores})
            model.train()
    return model, average, lines


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_what_a_plain_loop_computes(tmp_path: Path, case: str) -> None:
    given, more = CASES[case]
    run = start_run(tmp_path / "run", *COMMON, *more)
    model, average, expected = reference((*COMMON, *more), given)
    payload = last_checkpoint(run)
    for part, wanted in (("model", model), ("ema", average)):
        state = None if wanted is None else dict(wanted.state_dict())
        torch.testing.assert_close(payload[part], state, rtol=2e-4, atol=2e-6)

    def merged(lines: list[dict[str, Any]]) -> dict[tuple[int, str], float]:
        return {(line["step"], key): value for line in lines for key, value in line.items() if "/" in key}

    got, wanted = merged(metrics(run)), merged(expected)
    assert got.keys() == wanted.keys(), "logged at the steps at which it is due, and nothing else"
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key

    # what a checkpoint and the result say of the run
    scores = sorted((value, step) for (step, key), value in got.items() if key == "val/loss")
    assert (payload["step"], payload["samples"]) == (STEPS, STEPS * BATCH)
    assert (payload["logged_step"], payload["scored_step"]) == (STEPS, STEPS)
    assert payload["best"] == [[value, step] for value, step in scores[:2]]
    assert payload["best_score"] == scores[0][0]
    best_step = scores[0][1]
    assert payload["evals_without_improvement"] == (STEPS - best_step) // EVAL
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == sorted(
        [f"best_{step:09d}.pt" for _, step in scores[:2]] + [f"last_{step:09d}.pt" for step in (40, STEPS)]
    )
    final = result(run)
    assert final["best_step"] == best_step
    assert final["val/loss"] == pytest.approx(scores[0][0], rel=1e-6), "the best weights are scored, not the last"


@pytest.mark.slow
@needs("conf/model/resnet.yaml")
def test_the_score_of_ranks_is_that_of_the_weights_that_are_saved(tmp_path: Path) -> None:
    """BatchNorm's statistics differ between training ranks: an evaluation uses those that the checkpoint holds."""
    run = start_run(
        tmp_path / "run", *[o for o in QUICK if not o.startswith("model.")], "trainer=ddp", "hardware.num_procs=2",
        "model=resnet", "model.width=4", "trainer.max_steps=3", "trainer.eval_every=3", "trainer.log_every=3",
        "trainer.global_batch_size=16", "trainer.max_eval_batches=4",
    )  # fmt: skip
    (logged,) = values(run, "val/loss")
    assert result(run)["val/loss"] == pytest.approx(logged, rel=1e-6)
    assert score_checkpoint(run, "val", [])["loss"] == pytest.approx(logged, rel=1e-5)


@pytest.mark.slow
def test_early_stopping_counts_over_a_resume(tmp_path: Path) -> None:
    """Scores never get better after the first (the rate is too small to move a weight): stopped 4 evaluations later."""
    overrides = (
        *QUICK, "trainer.eval_every=1", "trainer.log_every=1", "trainer.early_stop_patience=4", "optim.lr=1e-30",
        "trainer.max_eval_batches=1",
    )  # fmt: skip
    straight = start_run(tmp_path / "straight", *overrides, "trainer.max_steps=20")
    assert result(straight)["step"] == 5
    run = start_run(tmp_path / "run", *overrides, "trainer.max_steps=3")
    assert last_checkpoint(run)["evals_without_improvement"] == 2
    start_run(run, *overrides, "trainer.max_steps=20")
    assert result(run)["step"] == 5
