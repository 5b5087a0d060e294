"""Values that are found by trying: src/tune.py and hardware.micro_batch_size=auto."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, ROOT
from omegaconf import OmegaConf

import lab.optimizer_step
from lab import tune
from lab.config import Config
from lab.state import TrainState
from samebits.children import run_in_subprocess
from samebits.errors import ConfigError
from samebits.host import cores
from samebits.process import trials
from samebits.profiling import memory
from samebits.testing import compose, metrics, result, start_run
from samebits.testing.processes import called, limit

TUNE = [sys.executable, str(ROOT / "src/tune.py")]
MB = 1_000_000
# activations outweigh all else: a step of 720 samples has three arrays of 58 MB at once
WIDE = ("model.hidden=[20000,8]", "data.splits.test=null", "trainer.global_batch_size=720", "trainer.max_steps=2")


Fresh = Callable[..., Any]
Tried = Callable[..., tuple[int, dict[int, bool]]]


@pytest.fixture(scope="module")
def fresh() -> Iterator[Fresh]:
    """fresh(free, function, *args) -> function(*args) where so many MB are free, in a child of a process that holds
    nothing else: what malloc keeps of earlier tests, hundreds of MB, would be found again beyond the limit."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:

        def call(free: int, function: Callable[..., Any], *args: Any) -> Any:
            return pool.submit(with_memory, free * MB, function, *args).result(limit(120))

        yield call


@pytest.fixture
def tried(fresh: Fresh) -> Tried:
    return lambda free, *overrides: fresh(free, tune.measure, "micro_batch", compose(*QUICK, *overrides))


def with_memory(free: int, function: Callable[..., Any], *args: Any) -> Any:
    # what a trial imports counts as its memory
    import torch.distributed.fsdp
    import torch.fx.experimental.symbolic_shapes  # noqa: F401 - the first backward does

    memory.free_memory = lambda device: free
    return run_in_subprocess("trial", function, *args)


@pytest.mark.slow
def test_the_largest_micro_batch_is_between_one_that_fits_and_one_that_does_not(tried: Tried) -> None:
    size, sizes = tried(120, *WIDE)
    good, bad = ([n for n, fits in sizes.items() if fits is kind] for kind in (True, False))
    assert size == max(good)
    assert bad
    parts = -(-720 // size)
    assert -(-720 // (parts - 1)) in bad  # the next size, which cuts the batch into fewer parts


@pytest.mark.slow
def test_a_search_that_takes_long_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cfg = compose(*QUICK, "trainer.global_batch_size=64", "trainer.max_steps=2")
    for silent_s, said in ((60.0, ""), (0.0, "hardware.micro_batch_size: trying 64\n")):
        monkeypatch.setattr(trials, "SILENT_S", silent_s)
        run_in_subprocess("trial", tune.measure, "micro_batch", cfg)
        assert capfd.readouterr().err == said


@pytest.mark.slow
def test_no_memory_for_a_single_sample_is_one_line(tried: Tried) -> None:
    with pytest.raises(ConfigError, match="trial: out of memory with one sample"):
        tried(20, "model.hidden=[1000000]", "trainer.global_batch_size=4", "trainer.max_steps=2")


@pytest.mark.slow
def test_auto_is_found_once_and_computes_what_its_number_does(fresh: Fresh, tmp_path: Path) -> None:
    given = (*QUICK, *WIDE, "trainer=ddp", "trainer.global_batch_size=1440", "hardware.num_procs=2")
    auto = fresh(240, start_run, tmp_path / "auto", *given, "hardware.micro_batch_size=auto")
    found = OmegaConf.load(auto / "config.yaml").hardware.micro_batch_size
    assert isinstance(found, int)
    assert 1 <= found < 720
    assert "hardware.micro_batch_size=auto" in OmegaConf.load(auto / "overrides.yaml")
    by_hand = start_run(tmp_path / "given", *given, f"hardware.micro_batch_size={found}")
    assert metrics(auto) == metrics(by_hand)


@pytest.mark.slow
def test_a_resume_does_not_look_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = [*QUICK, "trainer.max_steps=2", "hardware.micro_batch_size=auto", f"hydra.run.dir={run}"]
    command = [sys.executable, str(ROOT / "src/train.py"), *given]
    first = called(command)
    assert "hardware.micro_batch_size=auto: 64 samples fit, the whole batch of a rank" in first.stderr
    again = [*command, "resume=auto", "trainer.max_steps=4"]
    second = called(again)
    assert "samples fit" not in second.stderr
    assert result(run)["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "kernel"), [("hardware.precision=fp16", "foreach"), ("trainer.non_finite=skip", "fused")]
)
def test_a_trial_leaves_no_step_out(monkeypatch: pytest.MonkeyPatch, option: str, kernel: str) -> None:
    """One that is left out allocates no state of the optimizer, and what fits would be too much."""
    seen: list[TrainState] = []
    begin = tune.Trial.begin_run

    def noted(trial: tune.Trial) -> Any:
        seen.append((found := begin(trial))[0])
        return found

    monkeypatch.setattr(tune.Trial, "begin_run", noted)
    monkeypatch.setattr(lab.optimizer_step, "global_norm", lambda gradients: torch.tensor(math.inf))
    trial = tune.Trial.of(compose(*QUICK, "trainer.max_steps=4", option, f"+optim.{kernel}=true"))
    assert trials.step_fits(trial, 64, 2)
    assert [state["step"] for state in seen[0].optimizer[""].state.values()] == [2, 2, 2, 2]


@pytest.mark.slow
def test_what_cannot_be_tried_is_refused(tried: Tried) -> None:
    with pytest.raises(ConfigError, match="trainer=dp uses several - use trainer=ddp, or give a number"):
        trials.check_can_try(Config.of(compose(*QUICK, "trainer=dp", checked=False)))
    with pytest.raises(ConfigError, match="trainer=fsdp shards the model - give a number"):
        trials.check_can_try(Config.of(compose(*QUICK, "trainer=fsdp", "hardware.num_procs=2", "trainer.max_steps=2")))
    trials.check_can_try(Config.of(compose(*QUICK, "trainer=fsdp", "hardware.num_procs=1", "trainer.max_steps=2")))
    static = ("trainer=ddp", "trainer.ddp.static_graph=true", "hardware.num_procs=2")
    with pytest.raises(ConfigError, match=r"trainer.ddp.static_graph=true excludes smaller micro-batches"):
        tried(120, *WIDE, *static)


def test_the_ramp_goes_through_all_rates_and_keeps_the_factors() -> None:
    trial = tune.Trial.of(compose(*QUICK, "trainer.max_steps=2", "+optim.lr_factors={bias: 10}"))
    state, _ = trial.begin_run()
    state.schedule = tune.ramp(state)
    seen = []
    for step in range(len(tune.LR_RATES)):
        state.schedule.set_rates(step)
        seen.append([group["lr"] for group in state.optimizer.param_groups])
    assert [min(rates) for rates in seen] == pytest.approx(tune.LR_RATES)
    assert all(max(rates) == pytest.approx(10 * min(rates)) for rates in seen)


def test_the_suggested_rate_is_a_tenth_of_the_best() -> None:
    def loss(lr: float) -> float:
        return 1.0 - math.exp(-((math.log10(lr) + 2) ** 2))

    found = [(lr, loss(lr)) for lr in tune.LR_RATES]
    assert 5e-4 < trials.suggested_lr(found) < 4e-3  # smoothing moves the least of 1e-2 to the right
    assert not trials.diverged(found[:60])
    assert trials.diverged([*found[:80], (1.0, math.nan)])
    assert trials.diverged([*found[:80], *((1.0, 1e6),) * 3])
    with pytest.raises(ConfigError, match="not finite from the first step"):
        trials.suggested_lr([(1e-6, math.nan)])


def test_the_loader_with_the_fewest_workers_that_keeps_up_is_chosen() -> None:
    found = {("device", 0): 900.0, ("threads", 1): 1300.0, ("threads", 2): 2000.0, ("workers", 1): 5000.0}
    assert trials.best_loader(1000.0, found) == ("threads", 1)
    assert trials.best_loader(100.0, found) == ("device", 0)
    assert trials.best_loader(1e6, found) == ("workers", 1)


def test_the_fewest_threads_that_are_hardly_slower_are_chosen() -> None:
    assert trials.best_threads({1: 1.0, 2: 0.95, 4: 2.0}) == 1
    assert trials.best_threads({1: 1.0, 2: 0.6, 4: 0.5, 6: 0.47}) == 4


@pytest.mark.slow
def test_threads_are_measured_when_asked_for(tmp_path: Path) -> None:
    """In a process of its own: what is forked from one that has had several threads hangs with its first two."""
    env = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    given = [*QUICK, "trainer.max_steps=1", f"hydra.run.dir={tmp_path}/tune"]
    done = called([*TUNE, "threads", *given], env=env, fresh=True)
    record = json.loads((tmp_path / "tune/tune.json").read_text())
    assert {"1", str(cores())} <= set(record["threads"])
    (kept,) = record["overrides"].items()
    assert kept[0] == "hardware.num_threads"
    assert done.stdout.splitlines()[-1].endswith(f"hardware.num_threads={kept[1]}")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("lrs", "lrs: is neither a stage (micro_batch, threads, loader, lr) nor key=value"),
        ("task.metrics={}", "task.metrics={}: has no effect, because Hydra keeps the entries of task.metrics - write "
         "'~task.metrics.accuracy'"),
        *((word, f"{word}: has no effect on tune, which measures one new run - remove it")
          for word in ("-m", "resume=outputs/run", "sweep=x", "hydra/launcher=pool")),
    ],
)  # fmt: skip
def test_a_mistake_in_the_arguments_is_one_line(tmp_path: Path, word: str, line: str) -> None:
    done = called([*TUNE, word, *QUICK, f"hydra.run.dir={tmp_path}/tune"], 2)
    assert (done.stdout, done.stderr) == ("", f"error: {line}\n")
    assert not (tmp_path / "tune").exists()


@pytest.mark.slow
def test_a_stage_that_fails_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    given = [*QUICK, "trainer.max_steps=2", "hardware.channels_last=true", f"hydra.run.dir={tmp_path}/tune"]
    done = called([*TUNE, "lr", *given], 2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: tune lr: hardware.channels_last=true: MLP has no weights")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "tune").exists()


@pytest.mark.slow
def test_ranks_of_torchrun_do_not_tune(tmp_path: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
            "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "one"}  # fmt: skip
    done = called([*TUNE, *QUICK, f"hydra.run.dir={tmp_path}/tune"], code=2, env=os.environ | rank)
    assert done.stderr.startswith("error: tune: requires one process - run it without torchrun")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_prints_overrides_that_train(tmp_path: Path) -> None:
    given = [*QUICK, "trainer.max_steps=4", "logger.run_name='a b'", "optim.lr=1"]
    done = called([*TUNE, *given, f"hydra.run.dir={tmp_path}/tune"], seconds=120, cwd=tmp_path)
    pasted = shlex.split(done.stdout.splitlines()[-1])
    record = json.loads((tmp_path / "tune/tune.json").read_text())
    assert pasted == [*given[:-1], *(f"{key}={value}" for key, value in record["overrides"].items())]
    assert set(record["overrides"]) == {"hardware.micro_batch_size", "data.loader", "data.num_workers", "optim.lr"}
    assert 1e-5 < record["overrides"]["optim.lr"] < 0.1
    assert (tmp_path / "tune/lr.png").read_bytes().startswith(b"\x89PNG")
    run = start_run(tmp_path / "run", *pasted)
    assert math.isfinite(result(run)["train/loss"])
