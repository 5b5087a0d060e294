"""What every method promises (docs/tasks.md), asked of a small run: `class TestMine(Promises)` in its test file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import waits
from conftest import (
    assert_equal,
    last_checkpoint,
    metrics,
    raise_at_step,
    result,
    slow,
    start_run,
    status,
    without_code_generator,
)

from engine.checkpoints import checkpoint
from engine.errors import RunFailed

SMALL = (
    "logger=none", "hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.max_steps=12",
    "trainer.global_batch_size=12", "trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=5",
)  # fmt: skip
WAYS = {
    "micro-batches": ("hardware.micro_batch_size=5",),
    "2 ranks": ("trainer=ddp", "hardware.num_procs=2"),
    "2 ranks, micro-batches": ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=4"),
    "3 ranks": ("trainer=ddp", "hardware.num_procs=3"),
}


class Killed(Exception):
    pass


class Promises:
    """A subclass has a fixture `run(self) -> tuple[str, ...]`, the overrides of a small run beside SMALL's."""

    terms: tuple[str, ...] = ()  # scored beside the loss
    logged: tuple[str, ...] | None = None  # of training, where these are others: the terms of several objectives
    across_samples = False  # it takes no micro-batches
    overfits_to = 0.1  # of the first step's loss, in 100 steps on 32 samples
    monitor = "loss"  # what falls

    @pytest.mark.parametrize("ranks", [1, slow(2)])
    def test_killed_twice_is_undisturbed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: tuple[str, ...], ranks: int
    ) -> None:
        """Bit for bit: the checkpoint with all that the task holds, the metrics, the final scores."""
        run = (*SMALL, "trainer.ema_decay=0.9", *run, *(WAYS["2 ranks"] if ranks == 2 else ()))
        straight, killed = start_run(tmp_path / "straight", *run), tmp_path / "killed"
        for step in (7, 11):  # after the saves at 5 and 10, and a log
            with monkeypatch.context() as patch:
                raise_at_step(patch, step, Killed)
                with pytest.raises((Killed, RunFailed)):
                    go_on(killed) if killed.exists() else start_run(killed, *run)
            assert last_checkpoint(killed)["step"] == step // 5 * 5
        go_on(killed)
        assert status(killed)["status"] == "finished"
        assert_equal(last_checkpoint(killed), last_checkpoint(straight))
        assert metrics(killed) == metrics(straight)
        assert scores(killed) == scores(straight)
        self.check_terms(straight)

    def check_terms(self, folder: Path) -> None:
        """Each is in every log, in every evaluation and among the final scores."""
        for name in self.logged or ("loss", *self.terms):
            assert len(values(folder, f"train/{name}")) == 4, (
                f"train/{name} is not logged 4 times: of several optimizers the values have their names, which "
                f"`logged` of the test lists ({type(self).__name__}.logged = ('critic/loss', 'generator/loss'), say); "
                f"logged are {sorted({key for line in metrics(folder) for key in line if key.startswith('train/')})}"
            )
        for name in ("loss", *self.terms):
            assert len(values(folder, f"val/{name}")) == 3, name
            assert f"val/{name}" in scores(folder)

    def test_no_step_waits_for_the_device(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: tuple[str, ...]
    ) -> None:
        """Where steps may be left out, with a moving average and with micro-batches."""
        steps = waits.refused_in_steps(monkeypatch)
        ways = ("hardware.precision=fp16", "trainer.non_finite=skip", "trainer.ema_decay=0.9")
        start_run(tmp_path, *SMALL, *run, *ways, *(() if self.across_samples else WAYS["micro-batches"]))
        assert steps == list(range(12))

    @pytest.mark.slow
    def test_compiling_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: tuple[str, ...]
    ) -> None:
        """The graphs of a compiled run; torch's code generator takes a minute for each, test_compile.py has it."""
        run = (*SMALL, *run, "trainer.max_steps=4")
        with without_code_generator(monkeypatch) as asked:
            compiled = start_run(tmp_path / "compiled", *run, "hardware.compile=true")
        assert asked
        assert scores(compiled) == pytest.approx(scores(start_run(tmp_path / "plain", *run)), rel=1e-3, abs=1e-5)

    @pytest.mark.parametrize("ways", [["micro-batches", "2 ranks"], slow(["2 ranks, micro-batches", "3 ranks"])])
    def test_ranks_and_micro_batches_change_nothing(
        self, tmp_path: Path, run: tuple[str, ...], ways: list[str]
    ) -> None:
        """Every value logged, every weight and buffer and every score is that of one rank, to rounding."""
        run = (*SMALL, "trainer.log_every=1", "trainer.ema_decay=0.9", *run)
        one = start_run(tmp_path / "one", *run)
        for way in ways:
            if self.across_samples and "micro" in way:
                continue
            other = start_run(tmp_path / way.replace(" ", "_"), *run, *WAYS[way])
            assert len(metrics(other)) == len(metrics(one))
            for mine, theirs in zip(metrics(other), metrics(one)):
                assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5), way
            assert scores(other) == pytest.approx(scores(one), rel=1e-3, abs=1e-5), way
            for part in ("model", "task", "ema"):
                mine, theirs = last_checkpoint(other)[part], last_checkpoint(one)[part]
                assert mine.keys() == theirs.keys()
                for name, value in theirs.items():
                    torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4, msg=f"{way}: {part}.{name}")

    @pytest.mark.slow
    def test_it_learns_in_half_precision(self, tmp_path: Path, run: tuple[str, ...]) -> None:
        folder = start_run(tmp_path, *SMALL, *run, "hardware.precision=bf16", "trainer.max_steps=24")
        losses = values(folder, f"train/{self.monitor}")
        assert losses[-1] < 0.95 * losses[0]
        assert all(value.dtype == torch.float32 for value in last_checkpoint(folder)["model"].values())

    @pytest.mark.slow
    def test_the_average_is_scored(self, tmp_path: Path, run: tuple[str, ...]) -> None:
        """The scores are those of the moving average, which differ from those of the last weights."""
        from lab.restore import score_checkpoint

        folder = start_run(tmp_path, *SMALL, *run, "trainer.ema_decay=0.95", "trainer.keep_best=0")
        file = sorted((folder / "checkpoints").glob("last_*.pt"))[-1]
        wanted = {name: value for name, value in scores(folder).items() if name.startswith("val/")}
        found = score_checkpoint(file, "val", [])
        assert {f"val/{name}": value for name, value in found.items()} == pytest.approx(wanted, rel=1e-4)
        checkpoint.save_checkpoint(checkpoint.load_checkpoint(file) | {"ema": None}, file)
        assert score_checkpoint(file, "val", [])["loss"] != pytest.approx(wanted["val/loss"], rel=1e-4)

    @pytest.mark.slow
    def test_debug_overfit(self, tmp_path: Path, run: tuple[str, ...]) -> None:
        own = [option for option in SMALL if not option.startswith(("trainer.", "logger"))]
        steps = ("trainer.max_steps=100", "trainer.log_every=1")
        folder = start_run(tmp_path, *own, *run, "debug=overfit", *steps)
        losses = values(folder, f"train/{self.monitor}")
        assert sum(losses[-5:]) / 5 < self.overfits_to * losses[0], losses[::10]


def go_on(folder: Path) -> None:
    from omegaconf import OmegaConf

    from lab.start import start

    start(OmegaConf.load(folder / "config.yaml"), folder, [], own_process=False)  # type: ignore[arg-type]


def values(folder: Path, name: str) -> list[float]:
    return [line[name] for line in metrics(folder) if name in line]


def scores(folder: Path) -> dict[str, float]:
    return {name: value for name, value in result(folder).items() if "/" in name and not name.startswith("balance/")}
