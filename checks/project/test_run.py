"""A run from the command line to its directory: what starts, what ends, what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, ROOT, TRAIN
from omegaconf import OmegaConf
from torch import Tensor

import lab.loop
import lab.objective
import samebits
from lab import load_run
from samebits.errors import ConfigError, RunFailed
from samebits.testing import last_checkpoint, metrics, result, resume_run, start_run, status, values
from samebits.testing.processes import called, limit, processes_with, wait_for, warm

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SHORT = (*QUICK, "trainer.max_steps=4")
CONTENTS = {
    "config.yaml", "overrides.yaml", "environment.json", "metrics.jsonl", "train.log", "status.json", "result.json",
    "checkpoints",
}  # fmt: skip


def run_dirs(folder: Path) -> list[Path]:
    return sorted(p.parent for p in folder.rglob("config.yaml"))


@pytest.mark.slow
def test_a_run_is_one_directory(train_command: Command, tmp_path: Path) -> None:
    train_command(*SHORT, "hydra.run.dir=runs/a", "data.path=" + os.path.relpath(ROOT / "data/digits.h5", tmp_path))
    assert run_dirs(tmp_path) == [tmp_path / "runs/a"]
    names = {p.name for p in (tmp_path / "runs/a").iterdir()}
    assert names >= CONTENTS
    assert not [p for p in tmp_path.iterdir() if p.name != "runs"], "something was written outside the run directory"
    assert "${" not in (tmp_path / "runs/a/config.yaml").read_text().replace("${root:}/", "")
    environment = json.loads((tmp_path / "runs/a/environment.json").read_text())
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["packages"]["samebits"] == samebits.__version__
    again = train_command(*SHORT, "hydra.run.dir=runs/a", code=2)
    assert again.stderr.startswith("error: hydra.run.dir=") and "resume=auto" in again.stderr  # noqa: PT018
    assert again.stderr.count("\n") == 1


@pytest.mark.slow
def test_torchrun_ranks_share_one_directory(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, TRAIN[1], *SHORT, "trainer=ddp", f"hydra.run.dir={tmp_path}/run"]
    called(command)
    assert run_dirs(tmp_path) == [tmp_path / "run"]
    assert len(last_checkpoint(tmp_path / "run")["ranks"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "number"), [(2, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_signal_saves_and_resume_goes_on(tmp_path: Path, ranks: int, number: signal.Signals) -> None:
    run = tmp_path / "run"
    more = ("trainer=ddp", f"hardware.num_procs={ranks}") if ranks > 1 else ("trainer=single",)
    command = [*TRAIN, *QUICK, *more, "trainer.max_steps=1000000", "trainer.log_every=1000", "trainer.save_every=null"]
    command.append("trainer.eval_every=null")  # so the ranks meet at nothing but the steps
    process = warm.Popen([*command, f"hydra.run.dir={run}"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: (run / "metrics.jsonl").exists(), process)
    time.sleep(0.3)  # at any moment of the training
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # what a terminal does
    else:
        process.send_signal(number)  # what a scheduler or `kill` does
    _, shown = process.communicate(timeout=limit(60))
    assert process.returncode == (130 if number == signal.SIGINT else 75), shown
    assert "Traceback" not in shown
    assert status(run)["status"] == ("interrupted" if number == signal.SIGINT else "preempted")
    assert status(run)["signal"] == number.name
    step = last_checkpoint(run)["step"]
    assert f"at step {step}" in shown
    called([*TRAIN, f"resume={run}", f"trainer.max_steps={step + 3}"])
    assert result(run)["step"] == step + 3
    assert status(run)["status"] == "finished"
    assert not processes_with(str(run))


def poisoned(at_call: int, rank: int) -> Callable[..., Any]:
    """A forward_loss whose loss is NaN once, on one rank. Calls before the first step do not count."""
    original, calls = lab.objective.forward_loss, [0]

    def forward_loss(*args: Any) -> Any:
        if not calls[0] and not torch.is_grad_enabled():
            return original(*args)
        calls[0] += 1
        bad = calls[0] == at_call and int(os.environ.get("RANK", "0")) == rank
        return spoiled(original(*args)) if bad else original(*args)

    return forward_loss


def spoiled(found: tuple[dict[str, Tensor], Any]) -> tuple[dict[str, Tensor], Any]:
    losses, output = found
    return {name: value * float("nan") for name, value in losses.items()}, output


@pytest.mark.parametrize(("rules", "evaluated"), [(1, [20, 40, 41]), (2, [20, 41])])
def test_the_last_epoch_ends_with_the_run(tmp_path: Path, rules: int, evaluated: list[int]) -> None:
    """Two epochs of 20.27 steps: one evaluation and one checkpoint each. A run from before keeps to its steps."""
    run = start_run(tmp_path, *QUICK, "trainer.max_epochs=2", f"rules={rules}")
    assert [line["step"] for line in metrics(run) if "val/loss" in line] == evaluated


@pytest.mark.slow
def test_non_finite_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN on one rank: skip leaves that step out on all, stop ends the run before a bad checkpoint is written."""
    common = (
        *QUICK, "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=6", "trainer.log_every=3",
        "trainer.eval_every=null", "trainer.save_every=2",
    )  # fmt: skip
    monkeypatch.setattr(lab.objective, "forward_loss", poisoned(5, 1))
    skipped = start_run(tmp_path / "skip", *common, "trainer.non_finite=skip")
    payload = last_checkpoint(skipped)
    assert all(torch.isfinite(v).all() for v in payload["model"].values())
    assert [m.get("train/skipped_steps") for m in metrics(skipped)] == [None, 1.0]
    monkeypatch.setattr(lab.objective, "forward_loss", poisoned(5, 1))
    with pytest.raises(RunFailed, match=r"not finite within the steps 4 to 6.*debug=nan"):
        start_run(tmp_path / "stop", *common)
    kept = last_checkpoint(tmp_path / "stop")
    assert kept["step"] == 4
    assert all(torch.isfinite(v).all() for v in kept["model"].values())


@pytest.mark.slow
def test_nan_hunter_names_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lab.models.mlp

    original = lab.models.mlp.MLP.__init__

    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with torch.no_grad():
            list(self.parameters())[-1][0] = float("inf")

    monkeypatch.setattr(lab.models.mlp.MLP, "__init__", broken)
    with pytest.raises(RunFailed, match=r"output of module '\w+' \(Linear\) is not finite; its bias is not finite"):
        start_run(tmp_path / "run", *SHORT, "debug='nan'")


@pytest.mark.slow
def test_the_example_experiment_reaches_its_score(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", "experiment=digits", "logger=none", "hardware=cpu")
    assert result(run)["test/accuracy"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("debug", "more"), [("fast", ()), ("anomaly", ("trainer.max_epochs=null", "trainer.max_steps=3")), ("overfit", ())]
)
def test_debug_configs_run(tmp_path: Path, debug: str, more: tuple[str, ...]) -> None:
    run = start_run(tmp_path / "run", "hardware=cpu", f"debug={debug}", *more)
    assert status(run)["status"] == "finished"
    assert debug != "overfit" or values(run, "train/loss")[-1] < 0.01


def test_load_run_and_evaluate_agree_with_the_run(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *QUICK, "trainer.max_steps=40", "trainer.ema_decay=0.9")
    moved = tmp_path / "moved"
    shutil.move(run, moved)
    config = (moved / "config.yaml").read_text()
    assert config.count("cuda_graph: false") == 1
    (moved / "config.yaml").write_text(config.replace("cuda_graph: false", "cuda_graph: true"))  # as one of a GPU
    model, cfg = load_run(moved)
    assert not model.training
    assert cfg.trainer.max_steps == 40
    command = [sys.executable, str(ROOT / "src/evaluate.py"), str(moved), "--split", "val", "--json"]
    done = called(command)
    for key, value in json.loads(done.stdout).items():
        assert value == pytest.approx(result(moved)[f"val/{key}"], rel=1e-6)
    command = [sys.executable, str(ROOT / "src/evaluate.py"), str(moved), "data.pth=x"]
    bad = called(command, code=2)
    assert "data.pth" in bad.stderr
    assert bad.stderr.count("\n") == 1


def test_a_best_checkpoint_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    """The first evaluation stays the best, as nothing is learned; if its file is gone, the next one is kept."""
    run = (*QUICK, "trainer.max_steps=4", "trainer.eval_every=1", "trainer.keep_best=1", "optim.lr=0")
    with pytest.raises(SystemExit):
        start_run(tmp_path / "run", *run, "process.stop_at_step=2")
    (gone,) = (tmp_path / "run/checkpoints").glob("best_*")
    assert gone.name == "best_000000001.pt"
    gone.unlink()
    start_run(tmp_path / "run", *run)
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("best_*")] == ["best_000000003.pt"]
    assert result(tmp_path / "run")["best_step"] == 3


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.checkpoints import checkpoint

    original = torch.save

    def full(payload: Any, file: Any) -> None:
        if isinstance(payload, dict) and payload.get("step") == 6:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        original(payload, file)

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(RunFailed):
        start_run(tmp_path / "run", *QUICK, "trainer.max_steps=10", "trainer.save_every=3", "trainer.eval_every=null")
    assert last_checkpoint(tmp_path / "run")["step"] == 3
    assert "No space left" in status(tmp_path / "run")["error"]
    assert not list((tmp_path / "run/checkpoints").glob(".*"))


def test_two_processes_never_share_a_directory(tmp_path: Path) -> None:
    from samebits.runs import claimed

    with claimed(tmp_path / "run"), pytest.raises(ConfigError, match="is in use by another process"):
        start_run(tmp_path / "run", *SHORT)


@pytest.mark.slow
def test_fp16_survives_an_overflow_in_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.objective, "forward_loss", poisoned(1, 0))
    more = ("hardware.precision=fp16", "trainer.max_steps=20", "trainer.log_every=4", "optim.lr=0.01")
    run = start_run(tmp_path / "run", *QUICK, *more)
    payload = last_checkpoint(run)
    assert sum(m.get("train/skipped_steps", 0) for m in metrics(run)) == 1
    assert all(torch.isfinite(v).all() for v in payload["model"].values())
    losses = values(run, "train/loss")
    assert losses[-1] < losses[0] < 3


@pytest.mark.slow
def test_fp16_that_never_recovers_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = lab.objective.forward_loss
    monkeypatch.setattr(lab.objective, "forward_loss", lambda *args: spoiled(original(*args)))
    with pytest.raises(RunFailed, match=r"loss scale has fallen"):
        start_run(tmp_path / "run", *QUICK, "hardware.precision=fp16", "trainer.max_steps=60", "trainer.log_every=10")
    assert "train/loss" not in metrics(tmp_path / "run")[0]


@pytest.mark.slow
def test_damaged_checkpoints(tmp_path: Path) -> None:
    """The best ones do not cost the run; none that loads is an error, which leaves it as it was."""
    run = start_run(tmp_path / "run", *SHORT)
    for best in (run / "checkpoints").glob("best_*.pt"):
        os.truncate(best, 100)
    resume_run(run)
    assert "best_step" not in result(run)
    assert not load_run(run).model.training
    for file in (run / "checkpoints").glob("*.pt"):
        os.truncate(file, 100)
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match=r"all .* checkpoints are damaged"):
        resume_run(run)
    assert (run / "metrics.jsonl").read_text() == before


@pytest.mark.slow
def test_a_finished_run_and_what_resumes_it(train_command: Command, tmp_path: Path) -> None:
    """A mistake leaves it as it was. A value counts even where the run began with it: rates of 0.1, 0.01, 0.1."""
    run, began = tmp_path / "run", (*SHORT, "optim.lr=0.1", "hydra.run.dir=run", "resume=auto")
    train_command(*began)
    files = {name: (run / name).read_bytes() for name in ("config.yaml", "overrides.yaml", "status.json")}
    past = ("trainer.max_steps=2", "trainer.max_steps")
    for mistake, says in (("model.hidden=[7]", "does not fit the model: of another shape: "), past):
        done = train_command("resume=run", mistake, code=2)
        assert says in done.stderr
        assert {name: (run / name).read_bytes() for name in files} == files
        assert not (run / "failure.json").exists()
    missing = train_command("resume=nowhere", code=2)
    assert "resume=" in missing.stderr and "not a run directory" in missing.stderr  # noqa: PT018
    inside = train_command("resume=run/checkpoints", code=2)
    assert inside.stderr.endswith(f"; give resume={tmp_path}/run\n")
    # a key that is null can be changed, and what the optimizer was given holds
    train_command("resume=run", "trainer.max_steps=6", "optim.lr=0.01", "optim.weight_decay=0.5")
    assert last_checkpoint(run)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5
    assert result(run)["step"] == 6
    assert OmegaConf.load(run / "config.yaml").optim.lr == 0.01
    train_command("resume=run", "trainer.max_steps=8", "optim.lr=0.1")
    assert OmegaConf.load(run / "config.yaml").optim.lr == 0.1
    told = OmegaConf.load(run / "overrides.yaml")
    last = ["optim.lr=0.1", "trainer.max_steps=8"]
    assert sorted(o for o in told if o.startswith(("optim.lr", "trainer.max_steps"))) == last
    train_command(*began, "trainer.max_steps=10")
    assert result(run)["step"] == 10
