"""Tests of what every method guarantees (docs/tasks.md), on small runs: `class TestMine(TaskTests)` in a test file."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from samebits.checkpoints import load_checkpoint, save_checkpoint
from samebits.errors import RunFailed
from samebits.testing.devices import ON_A_GPU, gpu_environment, refused_in_steps
from samebits.testing.processes import limit, module, program, slow
from samebits.testing.runs import (
    assert_equal,
    assert_undisturbed,
    compose,
    last_checkpoint,
    metrics,
    raise_at_step,
    resume_run,
    scores,
    start_run,
    values,
    without_code_generator,
)

SMALL = (
    "logger=none", "hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.max_steps=12",
    "trainer.global_batch_size=12", "trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=5",
)  # fmt: skip
WAYS = {
    "micro-batches": ("hardware.micro_batch_size=5",),
    "2 ranks": ("trainer=ddp", "hardware.num_procs=2"),
    "2 ranks, micro-batches": ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=4"),
    "3 ranks": ("trainer=ddp", "hardware.num_procs=3"),
    "3 ranks, micro-batches": ("trainer=ddp", "hardware.num_procs=3", "hardware.micro_batch_size=3"),
}


MADE: dict[tuple[type, tuple[str, ...]], Path] = {}  # {(class of tests, overrides): directory of its run}


class Killed(Exception):
    """Raised in a run to end it as a kill would."""


class TaskTests:
    """Test what every method guarantees (docs/tasks.md). A subclass has a fixture `run`, which returns the overrides of
    a small run as a tuple; they are added to SMALL.

    Attributes to set in a subclass if its method differs from the defaults:

    loss_names: names of the losses that are scored in addition to `loss`.
    logged: names of the logged training values, such as those of several optimizers; None: `loss` and loss_names.
    needs_global_batch: True if a loss compares samples with each other, so that micro-batches cannot be used.
    averages: True if the method averages the weights itself, instead of trainer.ema_decay.
    steps: number of steps of each run, at least 12, because it is killed twice. global_batch_size: samples per step.
    monitor: the training value that must fall (or rise if `rises` is True) when the run overfits 32 samples: after
    `overfit_steps` steps it must be below `overfits_to` times its first value.
    overfit_with: overrides only for that run, such as a shorter queue.
    relative, absolute: tolerances for values with other numbers of ranks and micro-batches, and with compiled kernels.
    absolute_of_weights: the absolute tolerance for weights and buffers.
    reads_nan: False if the losses convert data to tokens, rows or classes, which fails for NaN.
    half_precision: tolerance for values in bf16, as a fraction of their range in fp32.
    kills: steps before which a run is killed: by default after the saves at 5 and 10, and a log.
    ranks: cases of the number of ranks of runs that are killed or skip a step. ways: cases of WAYS.
    """

    loss_names: tuple[str, ...] = ()
    logged: tuple[str, ...] | None = None
    needs_global_batch = False
    averages = False
    steps = 12
    global_batch_size = 12
    monitor = "loss"
    rises = False
    overfits_to = 0.1
    overfit_steps = 100
    overfit_with: tuple[str, ...] = ()
    relative, absolute = 1e-3, 1e-5
    absolute_of_weights = 1e-4
    reads_nan = True
    half_precision = 0.25
    kills = (7, 11)
    ranks: tuple[Any, ...] = (1, slow(2))
    ways: tuple[Any, ...] = (["micro-batches", "2 ranks"], slow(["3 ranks, micro-batches"]))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests by `ranks` and `ways`."""
        for name in ("ranks", "ways"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, getattr(self, name))

    @pytest.fixture
    def small(self, run: tuple[str, ...]) -> tuple[str, ...]:
        """Return the overrides of the undisturbed run."""
        sizes = (f"trainer.max_steps={self.steps}", f"trainer.global_batch_size={self.global_batch_size}")
        return (*SMALL, *sizes, *(() if self.averages else ("trainer.ema_decay=0.9",)), *run)

    @pytest.fixture
    def straight(self, tmp_path_factory: pytest.TempPathFactory, small: tuple[str, ...]) -> Path:
        """Return the undisturbed run of one rank. All tests of the class share it and must not change it."""
        return self.undisturbed(tmp_path_factory, small)

    def undisturbed(self, folders: pytest.TempPathFactory, overrides: tuple[str, ...]) -> Path:
        """Return the undisturbed run with these overrides. All tests of the class share it and must not change it."""
        key = (type(self), overrides)
        if key not in MADE:
            MADE[key] = start_run(folders.mktemp("straight"), *overrides)
        return MADE[key]

    def test_killed_twice_is_undisturbed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: tuple[str, ...], ranks: int,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:  # fmt: skip
        """Test that checkpoint (with the state of the task), metrics and final scores are equal bit for bit.

        Two ranks are killed once: a checkpoint of a resumed run equals the undisturbed one, as do resumes from it.
        """
        small, kills = (small, self.kills) if ranks == 1 else ((*small, *WAYS["2 ranks"]), self.kills[-1:])
        killed = broken_off(tmp_path / "killed", monkeypatch, kills, *small)
        assert_undisturbed(killed, self.undisturbed(tmp_path_factory, small))

    def monitored(self, folder: Path) -> list[float]:
        """Return the logged values of `monitor`. Raise AssertionError if there are none."""
        found = values(folder, f"train/{self.monitor}")
        assert found, (
            f"train/{self.monitor} is not logged: with several optimizers, set `monitor` of the test to one of their "
            f"losses ({type(self).__name__}.monitor = 'critic/loss')"
        )
        return found

    def check_terms(self, folder: Path) -> None:
        """Assert that every loss is in every log, in every evaluation and in the final scores."""
        logs, evaluations = (-(-self.steps // every) for every in (3, 4))
        for name in ("loss", *self.loss_names) if self.logged is None else self.logged:
            assert len(values(folder, f"train/{name}")) == logs, (
                f"train/{name} is not logged {logs} times: with several optimizers, set `logged` of the test to the "
                f"names of values that all steps log ({type(self).__name__}.logged = ('critic/loss', 'generator/loss')"
                "); "
                f"logged are {sorted({key for line in metrics(folder) for key in line if key.startswith('train/')})}"
            )
        for name in ("loss", *self.loss_names):
            assert len(values(folder, f"val/{name}")) == evaluations, name
            assert f"val/{name}" in scores(folder)

    @pytest.mark.parametrize("precision", ["bf16", slow("bf16-weights")])
    def test_no_step_waits_for_the_device(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: tuple[str, ...], straight: Path, precision: str
    ) -> None:
        """Test runs in half precision that may skip steps, with a moving average and micro-batches; they must learn as
        in fp32. Model, task and losses must not wait. Code of a data set, optimizers without a fused kernel, and tasks
        with `reads_device = True` may wait."""
        waits_by_nature = task_class(straight).reads_device
        steps = [*range(self.steps)] if waits_by_nature else refused_in_steps(monkeypatch, of_optimizers=False)
        ways = (f"hardware.precision={precision}", "trainer.non_finite=skip")
        folder = start_run(tmp_path, *small, *ways, *(() if self.needs_global_batch else WAYS["micro-batches"]))
        assert steps == list(range(self.steps))
        half, full = self.monitored(folder), self.monitored(straight)
        apart, learned = max(abs(a - b) for a, b in zip(half, full, strict=True)), max(full) - min(full)
        assert apart <= self.half_precision * learned, f"train/{self.monitor}: {precision} {half}, fp32 {full}"
        held = last_checkpoint(folder)["model"].values()
        assert {value.dtype for value in held if value.is_floating_point()} == {torch.float32}

    @pytest.mark.gpu
    def test_no_step_waits_for_a_gpu(self, tmp_path: Path, small: tuple[str, ...]) -> None:
        """Test the same on a GPU, with torch's sync debug mode, which raises when the host waits."""
        task: Any = get_class(compose(*small).task._target_)
        if task.reads_device:
            pytest.skip("the method sets `reads_device = True`")
        on_gpu = [one for one in small if not one.startswith("hardware.") and one != "hardware=cpu"]
        done = subprocess.run(
            [sys.executable, "-c", ON_A_GPU.format(package=program().package), *on_gpu, "hardware=gpu",
             "hardware.num_procs=1", f"hydra.run.dir={tmp_path}"],
            env=gpu_environment(), capture_output=True, text=True, timeout=limit(300),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def test_a_skipped_step_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: tuple[str, ...], ranks: int
    ) -> None:
        """Test a step whose data and losses are NaN on the last rank, after a normal step. Weights, average, optimizer
        and the state of model and task are the same as after the first step, except for the learning rate; buffers in
        `not_restored_on_skip` are finite. No evaluation is between the steps, as callbacks may change state there. The
        average of a method that averages itself may change."""
        steps = ("trainer.non_finite=skip", "trainer.save_every=1", "trainer.log_every=1", "trainer.eval_every=9")
        poison(monkeypatch, step=1, rank=ranks - 1, data=self.reads_nan)
        folder = tmp_path / "run"
        with pytest.raises(SystemExit):  # because of stop_at_step
            start_run(folder, *small, *steps, "process.stop_at_step=2", *(WAYS["2 ranks"] if ranks == 2 else ()))
        before, after = map(load_checkpoint, sorted((folder / "checkpoints").glob("last_*.pt")))
        assert (before["step"], after["step"]) == (1, 2)
        assert any(line.get("train/skipped_steps") for line in metrics(folder))
        keeps = task_class(folder).not_restored_on_skip
        for part in ("model", "task", "optimizer", *(() if self.averages else ("ema",))):
            mine, theirs = after[part], before[part]
            if part == "task":
                kept = {name for name in mine if name.startswith(tuple(f"{one}." for one in keeps))}
                assert all(mine[name].isfinite().all() for name in kept)
                mine, theirs = ({k: v for k, v in one.items() if k not in kept} for one in (mine, theirs))
            if part == "optimizer":
                for group in (*mine["param_groups"], *theirs["param_groups"]):
                    del group["lr"]
                # an objective that is optimized for the first time: its state begins at zero
                for number in mine["state"].keys() - theirs["state"].keys():
                    made = mine["state"].pop(number)
                    assert not any(torch.as_tensor(value).any() for value in made.values() if value is not None)
            assert_equal(mine, theirs, f"a skipped step has changed {part}")

    @pytest.mark.slow
    def test_compiling_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: tuple[str, ...], straight: Path
    ) -> None:
        """Test a compiled run without torch's code generator, which takes a minute; test_compile.py tests it."""
        with without_code_generator(monkeypatch) as asked:
            compiled = start_run(tmp_path, *small, "hardware.compile=true")
        assert asked
        self.assert_close("compiled", scores(compiled), scores(straight))

    def test_ranks_and_micro_batches_change_nothing(
        self, small: tuple[str, ...], straight: Path, ways: list[str], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Test that all logged values, losses, weights, buffers and scores equal those of one rank, up to rounding."""
        self.check_terms(straight)
        for way in ways:
            if self.needs_global_batch:
                way = way.removesuffix("micro-batches").removesuffix(", ")
            if not way:
                continue
            other = self.undisturbed(tmp_path_factory, (*small, *WAYS[way]))
            assert len(metrics(other)) == len(metrics(straight))
            for mine, theirs in zip(metrics(other), metrics(straight)):
                self.assert_close(f"{way}: step {theirs['step']}", mine, theirs)
            self.assert_close(f"{way}: the end", scores(other), scores(straight))
            for part in ("model", "task", "ema"):
                mine, theirs = last_checkpoint(other)[part], last_checkpoint(straight)[part]
                assert mine.keys() == theirs.keys()
                for name, value in theirs.items():
                    torch.testing.assert_close(
                        mine[name], value, rtol=self.relative, atol=self.absolute_of_weights,
                        msg=f"{way}: {part}.{name}: {{}}\n(Adam divides by gradients that are zero up to rounding: "
                        "try +optim.eps=1e-5)".format,
                    )  # fmt: skip

    def assert_close(self, where: str, mine: dict[str, float], theirs: dict[str, float]) -> None:
        """Assert that both have the same names, and values within the tolerances."""
        assert mine.keys() == theirs.keys(), where
        apart = {
            name: f"{mine[name]:.7g}, not {value:.7g}"
            for name, value in theirs.items()
            if mine[name] != pytest.approx(value, rel=self.relative, abs=self.absolute)
        }
        assert not apart, f"{where}: {apart}"

    @pytest.mark.slow
    def test_the_average_is_scored(self, tmp_path: Path, straight: Path) -> None:
        """Test that scores are computed with the moving average; scores of the last weights differ."""
        score_checkpoint = module("restore").score_checkpoint
        folder = Path(shutil.copytree(straight, tmp_path / "copy"))
        file = max((folder / "checkpoints").glob("best_*.pt"))
        wanted = {name.removeprefix("val/"): score for name, score in scores(folder).items() if name.startswith("val/")}
        assert score_checkpoint(file, "val", []) == pytest.approx(wanted, rel=1e-4)
        save_checkpoint(load_checkpoint(file) | {"ema": None}, file)
        assert score_checkpoint(file, "val", [])["loss"] != pytest.approx(wanted["loss"], rel=1e-4)

    @pytest.mark.slow
    def test_debug_overfit(self, tmp_path: Path, run: tuple[str, ...]) -> None:
        """Test that debug=overfit reaches the wanted value of `monitor`."""
        own = [option for option in SMALL if not option.startswith(("trainer.", "logger"))]
        steps = (f"trainer.max_steps={self.overfit_steps}", "trainer.log_every=1")
        folder = start_run(tmp_path, *own, *run, "debug=overfit", *steps, *self.overfit_with)
        seen = self.monitored(folder)
        last, limit = sum(seen[-5:]) / 5, self.overfits_to * seen[0]
        assert last > limit if self.rises else last < limit, (
            f"train/{self.monitor} is {last:.4g} at the end, but must be {'above' if self.rises else 'below'} "
            f"{limit:.4g} = overfits_to {self.overfits_to:g} x {seen[0]:.4g} (first step); every tenth value: "
            f"{[round(value, 4) for value in seen[::10]]}"
        )


def task_class(folder: Path) -> Any:
    """Return the class of the task of the run in `folder`."""
    return get_class(OmegaConf.load(folder / "config.yaml").task._target_)


def broken_off(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[int], *overrides: str) -> Path:
    """Return a run that is killed before each of these steps, after a save, is resumed each time, and then finishes."""
    for step in steps:
        with monkeypatch.context() as patch:
            raise_at_step(patch, step, Killed)
            with pytest.raises((Killed, RunFailed)):
                resume_run(folder) if (folder / "config.yaml").exists() else start_run(folder, *overrides)
        assert 0 < last_checkpoint(folder)["step"] <= step
    resume_run(folder)
    return folder


def poison(monkeypatch: pytest.MonkeyPatch, step: int, rank: int, data: bool = True) -> None:
    """Make the losses of this rank NaN in this step, and also the floats of its batches if `data`."""
    loop, optimizer_step = module("loop"), module("optimizer_step")
    train_step, check_losses = loop.train_step, optimizer_step.check_losses
    bad = [False]

    def noted(loss_modules: Any, state: Any, batches: Any, trainer: Any, hardware: Any, world: Any, *rest: Any) -> Any:
        bad[0] = state.step == step and world.rank == rank
        if not (bad[0] and data):
            return train_step(loss_modules, state, batches, trainer, hardware, world, *rest)
        batches = ({name: not_numbers(value) for name, value in one.items()} for one in batches)
        try:
            return train_step(loss_modules, state, batches, trainer, hardware, world, *rest)
        except Exception as error:
            raise RunFailed(
                f"your losses fail for batches of NaN, which this test uses: {type(error).__name__}: "
                f"{error} - set `reads_nan = False` in the test's class to make only the losses NaN"
            ) from error

    def checked(key: str, losses: dict[str, torch.Tensor], *rest: Any) -> None:
        check_losses(key, losses, *rest)
        if bad[0]:
            losses.update({name: value * math.nan for name, value in losses.items()})

    monkeypatch.setattr(loop, "train_step", noted)
    monkeypatch.setattr(optimizer_step, "check_losses", checked)


def not_numbers(value: Any) -> Any:
    """Return the value with its floats replaced by NaN, in lists and tuples too."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(not_numbers, value))
    return value * math.nan if isinstance(value, torch.Tensor) and value.is_floating_point() else value
