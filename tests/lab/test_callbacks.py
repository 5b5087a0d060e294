"""What callbacks are given, and when."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, needs

from lab.callbacks.base import Callback, overridden_methods
from lab.state import model_or_average
from samebits.checkpoints import load_checkpoint
from samebits.testing import assert_equal, last_checkpoint, metrics, result, start_run

WORST = (  # the highest loss is the best
    "+task.metrics.nll={_target_: lab.losses.cross_entropy.CrossEntropy, label_smoothing: 0.0}",
    "monitor.key=val/nll", "monitor.mode=max",
)  # fmt: skip
SHORT = (*QUICK, "trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=2", "trainer.global_batch_size=66")


class Pictures(Callback):
    """The first images of each evaluation, each with its prediction: the example of what a callback is written for."""

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        self.seen = batch["x"][:4].cpu(), output[:4].argmax(1).tolist()

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        if self.run.world.is_main:
            images, predicted = self.seen
            row = (torch.cat(list(images.flatten(0, 1)), 1) * 255).byte().numpy()
            names = "-".join(map(str, predicted))
            file = self.run.directory / f"step{state.step}_{names}.pgm"
            file.write_bytes(b"P5 %d %d 255\n" % row.shape[::-1] + row.tobytes())
            self.run.logger.say(f"predictions: {file.name}")


class Spy(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_start(self, state: Any) -> None:
        self.events.append(("start", state.step, self.run.directory.name, self.run.world.size))

    def on_step(self, state: Any) -> None:
        self.events.append(("step", state.step))

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        self.events.append(("log", state.step))

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        assert not torch.is_grad_enabled()
        assert len(output) == len(batch["y"])
        self.events.append(("batch", len(output)))

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        self.events.append(("eval", state.step, sorted(scores)))

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        self.events.append(("end", state.step, scores))


@dataclass(frozen=True)
class Older(Callback):
    """Written before on_end had scores; and what is frozen is given its run too."""

    seen: list[int]

    def on_end(self, state: Any) -> None:  # type: ignore[override]
        self.seen.append(state.step)
        assert self.run.world.is_main


@pytest.mark.slow
def test_callbacks_see_what_they_are_written_for(tmp_path: Path, use: Callable[..., None]) -> None:
    plain = start_run(tmp_path / "plain", *SHORT)
    spy, older = Spy(), Older([])
    use(spy, older, Pictures())
    run = start_run(tmp_path / "run", *SHORT, "hardware.eval_batch_size=100")
    scored = [("batch", 100), ("batch", 100), ("batch", 50)]
    keys = ["val/accuracy", "val/loss"]
    final = {key: value for key, value in result(run).items() if "/" in key}
    assert spy.events == [
        ("start", 0, "run", 1),
        *[("step", 1), ("step", 2), ("log", 2), ("step", 3), *scored, ("eval", 3, keys), ("step", 4), ("log", 4)],
        *[("step", 5), ("step", 6), ("log", 6), *scored, ("eval", 6, keys)],
        *scored,
        *scored,
        ("end", 6, final),
    ]
    assert {"test/loss", "val/accuracy"} <= set(final)
    assert older.seen == [6]
    pictures = sorted(run.glob("step*_*.pgm"))
    assert len(pictures) == 2
    assert pictures[0].read_bytes().startswith(b"P5 32 8 255\n")
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(plain)["model"])  # who only looks changes nothing


class Draws(Callback):
    """A callback that samples from the model draws noise."""

    def on_start(self, state: Any) -> None:
        self.numbers = [torch.rand(()).item()]

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        self.numbers.append(float(np.random.rand()))

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        self.numbers.append(torch.rand(()).item())


def test_random_numbers_of_a_callback_do_not_change_dropout(tmp_path: Path, use: Callable[..., None]) -> None:
    run = (*SHORT, "model.dropout=0.5")
    plain = start_run(tmp_path / "plain", *run)
    draws = Draws()
    use(draws)
    assert_equal(last_checkpoint(start_run(tmp_path / "run", *run))["model"], last_checkpoint(plain)["model"])
    assert len(set(draws.numbers)) == len(draws.numbers) == 6


@needs("conf/model/resnet.yaml")
def test_the_evaluated_model_at_the_end_is_the_best(tmp_path: Path, use: Callable[..., None]) -> None:
    """With the weight average, its BatchNorm statistics included, though the model has trained on."""
    kept: dict[str, torch.Tensor] = {}

    class Keeper(Callback):
        def on_end(self, state: Any, scores: dict[str, float]) -> None:
            kept.update(copy.deepcopy(model_or_average(state).state_dict()))

    use(Keeper())
    options = [option for option in SHORT if not option.startswith("model.")]
    run = start_run(
        tmp_path, *options, "model=resnet", "model.width=4", "model.blocks=[1]", "trainer.ema_decay=0.5",
        "trainer.max_eval_batches=1", *WORST,
    )  # fmt: skip
    assert result(run)["best_step"] == 3
    best = load_checkpoint(run / result(run)["best_checkpoint"])["ema"]
    assert sum("running" in name for name in best) > 0
    assert_equal(kept, dict(best))


def test_what_is_not_overridden_is_not_called() -> None:
    class Duck:
        """Not even a subclass."""

        def on_eval(self, state: Any, scores: Any) -> None: ...

    spy, duck = Spy(), Duck()
    assert overridden_methods([Callback(), spy, duck], "on_step") == [spy.on_step]
    assert overridden_methods([Callback(), spy, duck], "on_eval") == [spy.on_eval, duck.on_eval]


class Gathered(Callback):
    """Writes the samples (as sums of their pixels) that this rank was shown in each scoring."""

    def on_start(self, state: Any) -> None:
        self.samples: list[float] = []

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        self.samples += batch["x"].flatten(1).double().mv(torch.arange(64.0).double()).tolist()

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        (self.run.directory / f"seen{self.run.world.rank}.json").write_text(json.dumps(self.samples))
        self.samples = []


@pytest.mark.slow
def test_ranks_in_step_can_talk_in_an_evaluation(
    tmp_path: Path, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 samples on 3 ranks are 84, 83, 83: a criterion that gathers over ranks, as contrastive ones do, wants equal
    batches. Scores and what callbacks see are those of one rank."""
    import lab.losses.cross_entropy as module

    original = module.CrossEntropy.__call__

    def gathering(self: Any, output: Any, batch: Any) -> Any:
        import torch.distributed as dist

        if dist.is_initialized() and not torch.is_grad_enabled():
            everyone = [torch.empty_like(output) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, output)
            assert torch.equal(everyone[dist.get_rank()], output)
            (tmp_path / f"gathered{dist.get_rank()}").touch()
        return original(self, output, batch)

    monkeypatch.setattr(module.CrossEntropy, "__call__", gathering)
    use(Gathered())
    small = (*SHORT, "trainer.max_steps=3", "hardware.eval_batch_size=30", "trainer.pad_eval_batches=true")
    one = start_run(tmp_path / "1", *small)
    three = start_run(tmp_path / "3", *small, "trainer=ddp", "hardware.num_procs=3")
    lists = [json.loads((three / f"seen{rank}.json").read_text()) for rank in range(3)]
    assert [len(seen) for seen in lists] == [84, 83, 83]
    np.testing.assert_allclose(sorted(itertools.chain(*lists)), sorted(json.loads((one / "seen0.json").read_text())))
    assert len(list(tmp_path.glob("gathered*"))) == 3
    scores, wanted = ({k: v for k, v in metrics(run)[-1].items() if k.startswith("val/")} for run in (three, one))
    assert wanted
    assert scores == pytest.approx(wanted, rel=1e-4)
