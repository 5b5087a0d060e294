"""What a run directory survives: a resume that fails, a full disk, files that are damaged, gone or somebody else's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from common import QUICK
from omegaconf import OmegaConf

import lab.evaluation
import lab.loop
from lab.builders import count_steps
from lab.options import TrainerConfig
from lab.program import PROGRAM, start
from samebits.errors import ConfigError, RunFailed
from samebits.runs import BEFORE, choose_run, claimed, reopen_directory, undo_resume
from samebits.runs.resume import check_followers
from samebits.status import newest_checkpoint, write_status
from samebits.sweeps.report import read_study
from samebits.testing import compose, last_checkpoint, metrics, result, resume_run, start_run, status

SHORT = (*QUICK, "trainer.max_steps=6", "trainer.log_every=2", "trainer.eval_every=3", "trainer.save_every=3")
LOGS = ("train.log", ".lock")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("finished") / "run", *SHORT)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def files(run_dir: Path) -> dict[str, bytes]:
    found = [path for path in run_dir.rglob("*") if path.is_file() and path.name not in LOGS]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in found}


def failing(error: BaseException | None, at_call: int = 1) -> Callable[..., Any]:
    original, calls = lab.loop.train_step, [0]

    def train_step(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == at_call and error is not None:
            raise error
        return original(*args)

    return train_step


ERRORS = [ZeroDivisionError("x"), RunFailed("x"), KeyboardInterrupt()]


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_resume_that_fails_before_its_first_step_leaves_the_run_as_it_was(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write_status(run, "preempted", signal="SIGTERM")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "time": 1.0}\n')  # after the checkpoint: to be cut once the run goes on
    before = files(run)
    monkeypatch.setattr(lab.loop, "train_step", failing(error))
    with pytest.raises((RunFailed, KeyboardInterrupt)):
        resume_run(run, trainer__max_steps=9, optim__weight_decay=0.5)
    assert files(run) == before
    monkeypatch.undo()
    monkeypatch.setattr(lab.loop, "train_step", failing(error, at_call=2))
    with pytest.raises((RunFailed, KeyboardInterrupt)):
        resume_run(run, trainer__max_steps=9)
    assert OmegaConf.load(run / "config.yaml").trainer.max_steps == 9  # it was at it
    assert status(run)["status"] in ("failed", "interrupted")
    assert not (run / BEFORE).exists()
    assert metrics(run)[-1]["step"] == 6


@pytest.mark.parametrize("killed", [False, True])
def test_an_undone_resume_restores_the_files_that_were_there_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """killed: the undo is repeated, because the first one was killed when it had restored all files."""
    before = dict.fromkeys(("config.yaml", "environment.json", "failure.json"), b"old")
    (tmp_path / BEFORE).mkdir()
    for name, content in before.items():
        (tmp_path / BEFORE / name).write_bytes(content)
    (tmp_path / "uncommitted.diff").write_text("of the resume")
    if killed:
        monkeypatch.setattr(shutil, "rmtree", lambda *given, **named: None)
        undo_resume(tmp_path)
        monkeypatch.undo()
    undo_resume(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("name", "read"), [("1", 1), ("007", 7), ("true", True)])
def test_a_directory_whose_name_is_no_text_to_hydra_is_found_as_typed(name: str, read: Any, tmp_path: Path) -> None:
    cfg = compose(*SHORT)
    cfg.resume = read
    with pytest.raises(ConfigError, match=rf"^resume={tmp_path}/{name}: not a run directory"):
        choose_run(PROGRAM, cfg, tmp_path, [f"resume={name}"], tmp_path)


@pytest.mark.slow
def test_a_resume_that_was_killed_before_its_first_step_is_undone_by_the_next(run: Path) -> None:
    before = files(run)
    changed: Any = OmegaConf.load(run / "config.yaml")
    changed.trainer.max_steps = 50
    with claimed(run):
        reopen_directory(PROGRAM, run, changed, ["trainer.max_steps=50"])
        write_status(run, "running")
        with pytest.raises(ConfigError, match="another process"):
            choose_run(PROGRAM, compose(*SHORT, f"resume={run}"), run, [], Path.cwd())
    cfg, _ = choose_run(PROGRAM, compose(*SHORT, f"resume={run}"), run, [], Path.cwd())
    assert cfg.trainer.max_steps == 6
    assert files(run) == before


def test_the_values_logged_last_outlive_the_process(run: Path) -> None:
    """A run that was killed during its final scores: what is left to do is no training."""
    before = result(run)
    assert "train/loss" in before
    (run / "result.json").unlink()
    write_status(run, "running")
    resume_run(run)
    depends = {"seconds": 0.0, "best_checkpoint": ""}  # on the time and the place
    assert {**result(run), **depends} == {**before, **depends}


@pytest.mark.slow
def test_a_new_run_does_not_go_on_from_foreign_files(run: Path, tmp_path: Path) -> None:
    for names in (["checkpoints"], ["metrics.jsonl", "result.json"]):
        target = tmp_path / names[0]
        for name in names:
            copy = shutil.copytree if (run / name).is_dir() else shutil.copy
            target.mkdir(exist_ok=True)
            copy(run / name, target / name)
        before = files(target)
        for resume in ((), ("resume=auto",)):
            with pytest.raises(ConfigError, match=f"{target}: has no config.yaml, but contains {names[0]}") as caught:
                choose_run(PROGRAM, compose(*SHORT, *resume), target, [], Path.cwd())
            assert "\n" not in str(caught.value)
        assert files(target) == before
    new = tmp_path / "new"
    (new / "checkpoints").mkdir(parents=True)
    (new / "notes.txt").write_text("mine")
    choose_run(PROGRAM, compose(*SHORT), new, [], Path.cwd())


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\x00\xfe", b"[" * 100_000], ids=range(4))
def test_a_damaged_status_does_not_stop_a_run(run: Path, content: bytes) -> None:
    (run / "status.json").write_bytes(content)
    resume_run(run, trainer__max_steps=7)
    assert status(run)["status"] == "finished"
    assert status(run)["wandb_id"]
    assert last_checkpoint(run)["step"] == 7


def test_bad_lines_of_the_metrics_are_left_out(run: Path) -> None:
    before = metrics(run)
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'[1]\n{"loss": 1}\n\xff\xfe\n{"step": "x"}\n\n3\n{"step": 5, "val/loss": NaN}\n{"step": 4, "ti')
    resume_run(run, trainer__max_steps=8)
    assert metrics(run)[: len(before)] == before
    assert {line["step"] for line in metrics(run)[len(before) :]} == {8}, (
        "a line that the run did not log is no part of it"
    )
    assert read_study(PROGRAM, [run]).jobs[0].status == "finished"


def test_a_best_checkpoint_counts_as_any_other(run: Path) -> None:
    """Where a resume goes on from one, its changes are noted behind that step, and a restart sees progress."""
    (best,) = (run / "checkpoints").glob("best_*")
    for last in (run / "checkpoints").glob("last_*"):
        last.unlink()
    assert newest_checkpoint(run) == best.name
    cfg: Any = OmegaConf.load(run / "config.yaml")
    cfg.trainer.max_steps = 99
    reopen_directory(PROGRAM, run, cfg, ["trainer.max_steps=99"])
    (change,) = json.loads((run / "environment.json").read_text())["changes"]
    assert change["after"] == int(best.stem[5:])


def is_clean(run_dir: Path) -> bool:
    left = {path.name for path in run_dir.rglob(".*")} - {".lock"}
    return not left and not list(run_dir.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "begin", "unmounted"),
    [
        ((), "", False),
        ((), "", True),
        (("trainer=ddp", "hardware.num_procs=2"), r"rank \d: ", False),
        (("trainer=fsdp", "hardware.num_procs=2"), r"rank \d: ", False),
    ],
)
def test_a_run_directory_that_has_gone_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ranks: Any,
    begin: str,
    unmounted: bool,
) -> None:
    run_dir = tmp_path / "run"
    original, real = lab.loop.train_step, os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(run_dir)):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", str(path))
        return real(path, **more)

    def train_step(net: Any, state: Any, *more: Any) -> Any:
        if state.step == 2:
            shutil.rmtree(run_dir, ignore_errors=True)
            if unmounted:
                monkeypatch.setattr(os, "stat", stat)
        return original(net, state, *more)

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    with pytest.raises(RunFailed, match=rf"^{begin}.*run is missing: it was removed, renamed or unmounted during"):
        start_run(run_dir, *SHORT, *ranks)
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 300 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(folder: Path) -> None:
    with suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with suppress(OSError), open(folder / "filler", "ab", buffering=0) as file:
        while True:
            file.write(b"x")


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["checkpoint", "metrics", "record"])
def test_a_full_disk_is_one_line(
    small_disk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    """Whatever is to be written next; and the same directory goes on when there is room again."""
    original, run = lab.loop.train_step, small_disk / "run"
    never = ["trainer.save_every=null", "trainer.keep_best=0", "trainer.eval_every=null", "trainer.log_every=null"]
    often = {"metrics": ["trainer.log_every=1"], "checkpoint": ["trainer.save_every=1"]}.get(writes, [])

    def train_step(net: Any, state: Any, *more: Any) -> Any:
        if state.step == 3:
            fill_disk(small_disk)
            if writes == "record":
                raise ValueError("the cause")
        return original(net, state, *more)

    common = (*QUICK, "trainer.max_steps=5", *never, *often)
    with monkeypatch.context() as patch:
        patch.setattr(lab.loop, "train_step", train_step)
        with pytest.raises(RunFailed) as caught:
            start_run(run, *common)
    shown = capfd.readouterr().err
    assert "\n" not in str(caught.value)
    assert "Logging error" not in shown
    assert is_clean(run)
    assert status(run)["status"] == "failed"
    if writes == "record":
        assert "could not be recorded" in str(caught.value)
        assert shown.count("Traceback") == 1
        assert status(run)["error"] == "ValueError: the cause"
    else:
        assert "No space left on device" in str(caught.value)
        assert "No space left on device" in status(run)["error"]
        assert "Traceback" not in shown
    (small_disk / "filler").unlink()
    start_run(run, *common)
    assert result(run)["step"] == 5


SGD = {
    "_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01,
    "decay_norms_and_biases": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optim": {"weight_decay": 0.0}}, "parameter groups"),
        ({"optim": {"decay_norms_and_biases": True}}, "parameter groups"),
        ({"optim": SGD}, "another optimizer than SGD"),
        ({"trainer": {"global_batch_size": 128, "max_steps": None, "max_epochs": 0.1}}, "give more"),
    ],
)
def test_what_a_checkpoint_does_not_fit_is_one_line(run: Path, changed: dict[str, Any], says: str) -> None:
    before = files(run)
    cfg: Any = OmegaConf.load(run / "config.yaml")
    for group, values in changed.items():
        own = ("schedule", "decay_norms_and_biases", "lr_factors", "objectives")
        kept = {name: cfg.optim[name] for name in own} if values is SGD else cfg[group]
        cfg[group] = {**kept, **values}
    with pytest.raises(ConfigError, match=says) as caught:
        start(cfg, run, [], own_process=False)
    assert "\n" not in str(caught.value)
    assert files(run) == before


@pytest.mark.slow
def test_epochs_are_counted_in_samples(run: Path) -> None:
    """Another batch size at a resume: as many samples are seen as the epochs have."""
    resume_run(run, trainer__max_steps=None, trainer__max_epochs=1, trainer__global_batch_size=128)
    payload = last_checkpoint(run)
    assert payload["step"] == 6 + round((1297 - 6 * 64) / 128)
    assert abs(payload["samples"] - 1297) <= 64
    resume_run(run, trainer__max_epochs=2, trainer__global_batch_size=64)
    assert abs(last_checkpoint(run)["samples"] - 2 * 1297) <= 32


@pytest.mark.parametrize("epochs", [0.5, 2.5])
def test_a_run_that_goes_on_has_as_many_steps_as_before(epochs: float) -> None:
    for samples in (1280, 1297, 100):
        trainer = TrainerConfig(max_epochs=epochs, global_batch_size=256)
        total = count_steps(trainer, samples)
        assert {count_steps(trainer, samples, step, step * 256) for step in range(total + 1)} == {total}


@pytest.mark.parametrize(("before", "now"), [(128, 256), (256, 64), (100, 77)])
def test_epochs_are_counted_in_samples_when_the_batch_has_changed(before: int, now: int) -> None:
    """Wherever the run is taken up, all that it trains is its epochs, to half a step."""
    for done in range(0, 30 * 1297 // before, 7):
        total = count_steps(TrainerConfig(max_epochs=30, global_batch_size=now), 1297, done, done * before)
        assert abs(done * before + (total - done) * now - 30 * 1297) <= now / 2


@pytest.mark.slow
def test_what_follows_from_a_changed_value_must_be_given_too(run: Path) -> None:
    """model.num_outputs is ${data.num_outputs} in the yaml of a model; in a run it is a number."""
    cfg: Any = OmegaConf.load(run / "config.yaml")
    cfg.data.num_outputs = 128
    with pytest.raises(
        ConfigError, match=r"num_outputs=128: model.num_outputs depends on it; add model.num_outputs=128$"
    ):
        check_followers(PROGRAM, cfg, {}, list(SHORT), ["data.num_outputs"])
    cfg.model.num_outputs = 128
    check_followers(PROGRAM, cfg, {}, list(SHORT), ["data.num_outputs", "model.num_outputs"])
    check_followers(PROGRAM, cfg, {}, ["no_such=group"], ["data.num_outputs"])


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_a_new_run_on_a_full_disk_is_one_line_and_leaves_nothing(small_disk: Path, free: int) -> None:
    fill_disk(small_disk)
    os.truncate(small_disk / "filler", (small_disk / "filler").stat().st_size - free * os.sysconf("SC_PAGESIZE"))
    with pytest.raises(ConfigError, match=r"run: cannot be written: No space left on device$"):
        start_run(small_disk / "run", *QUICK, "trainer.max_steps=2")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_run_requires_a_key_of_wandb_but_its_config_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of SLURM may get the key from hydra.launcher.setup, so a sweep is composed without it."""
    online = (*QUICK, "trainer.max_steps=2", "logger=wandb", "logger.mode=online")
    monkeypatch.setattr("samebits.loggers.wandb_log.has_wandb_key", lambda: False)
    compose(*online)
    with pytest.raises(ConfigError, match=r"^logger\.mode=online: W&B has no API key"):
        start_run(tmp_path / "run", *online)
    assert not [*tmp_path.iterdir()]


def test_a_copy_that_fails_names_its_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full TMPDIR, to which git's index is copied."""

    def copy(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/source", None, "/destination")

    monkeypatch.setattr("samebits.process.parent.fill_directory", copy)
    with pytest.raises(ConfigError, match=r"^/destination: No space left on device$"):
        start_run(tmp_path / "run", *QUICK, "trainer.max_steps=2")


@pytest.mark.slow
def test_a_resume_on_a_full_disk_is_one_line_and_changes_nothing(small_disk: Path) -> None:
    run = small_disk / "run"
    start_run(run, *QUICK, "trainer.max_steps=2")
    before = {path.name for path in run.iterdir()}
    fill_disk(small_disk)
    with pytest.raises(RunFailed, match=rf"^{run} cannot be resumed: No space left on device; nothing was changed"):
        start_run(run, *QUICK, "trainer.max_steps=3")
    assert {path.name for path in run.iterdir()} == before
    (small_disk / "filler").unlink()
    start_run(run, *QUICK, "trainer.max_steps=3")
    assert result(run)["step"] == 3
