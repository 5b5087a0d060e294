"""Searches from the command line: killed and gone on with, trials that fail, several objectives, pruned ddp jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, TRAIN
from sweeps import book, call, ended_at, environment, faulty_command, job_dirs, results, states

from samebits.extras import missing
from samebits.status import checkpoint_files
from samebits.testing import result, status
from samebits.testing.processes import called, limit, processes_with, wait_for, warm

optuna = pytest.importorskip("optuna", reason="needs the extra optuna")

SEARCH = ("-m", "hydra/sweeper=optuna", *QUICK, "trainer.max_steps=6", "trainer.log_every=3")
LR = "optim.lr=tag(log,interval(1e-4,1e-1))"
HIDDEN = "model.hidden=choice([8],[16])"


def study_of(sweep: Path) -> Any:
    [name] = optuna.get_all_study_names(f"sqlite:///{sweep}/study.db")
    return optuna.load_study(study_name=name, storage=f"sqlite:///{sweep}/study.db")


def trial_states(sweep: Path) -> list[str]:
    return [trial.state.name for trial in study_of(sweep).trials]


@pytest.mark.slow
def test_extended_killed_and_started_again_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """1 trial, then 3: SIGKILL in the middle of the second, which goes on in its directory, or anew if that was
    deleted."""
    long = (*SEARCH, LR, HIDDEN, "trainer.max_steps=40", "trainer.save_every=10", "trainer.eval_every=20")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    call(*long, f"hydra.sweep.dir={straight}", "hydra.sweeper.n_trials=3")
    call(*long, f"hydra.sweep.dir={killed}", "hydra.sweeper.n_trials=1")
    ended = ended_at(killed)
    assert len(ended) == 1
    again = [*long, f"hydra.sweep.dir={killed}", "hydra.sweeper.n_trials=3"]
    command = faulty_command("time.sleep(1000)", *again, key="trial_0001", step=25)
    process = warm.Popen(command, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: list((killed / "trial_0001").glob("checkpoints/last_*.pt")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not processes_with(str(killed)))
    assert trial_states(killed).count("RUNNING") >= 1
    ended |= ended_at(killed)
    lost = shutil.copytree(killed, tmp_path / "lost")
    shutil.rmtree(lost / "trial_0001")
    newest = checkpoint_files(killed / "trial_0001" / "checkpoints")[-1]  # after SIGKILL between two writes a best one
    call(*again)
    assert trial_states(killed) == ["COMPLETE"] * 3
    assert f", resumed from {newest.name}" in (killed / "trial_0001" / "train.log").read_text()
    assert ended.items() <= ended_at(killed).items()  # what had ended was not run again
    assert results(killed) == results(straight)
    assert [t.values for t in study_of(killed).trials] == [[r["val/loss"]] for _, r in sorted(results(killed).items())]
    call(*long, f"hydra.sweep.dir={lost}", "hydra.sweeper.n_trials=3")
    assert results(lost) == results(straight)
    nothing = call(*again)
    assert "3 trials, 0 to run, 3 complete before" in nothing.stderr
    assert len(job_dirs(killed)) == 3


@pytest.mark.slow
def test_a_renamed_search_goes_on_and_one_without_its_study_takes_no_other_trials_scores(tmp_path: Path) -> None:
    """Also with another sampler, which would draw other values for the trials that have run."""
    call(*SEARCH, LR, f"hydra.sweep.dir={tmp_path}/s", "hydra.sweeper.n_trials=1")
    renamed = (tmp_path / "s").rename(tmp_path / "renamed")
    again = (*SEARCH, LR, f"hydra.sweep.dir={renamed}", "hydra/sweeper/sampler=qmc", "hydra.sweeper.n_trials=2")
    assert "2 trials, 1 to run, 1 complete before" in call(*again).stderr
    shutil.rmtree(renamed / "trial_0001")
    (renamed / "study.db").unlink()
    for _ in range(2):
        said = call(*again, code=1).stderr.splitlines()[-1]
        assert re.match(r"failed: .*trial_0000: was started with optim.lr=.*, but the study has optim.lr=", said)


@pytest.mark.slow
def test_an_experiment_chooses_the_search(tmp_path: Path) -> None:
    """The shipped one, without -m. A trial, as a dashboard shows it, names its directory and has each evaluation."""
    quick = ("trainer.max_epochs=null", "trainer.max_steps=5", "trainer.eval_every=2")
    more = ("logger=none", "hardware=cpu", "hardware.num_threads=1", "hydra.sweeper.n_trials=2")
    call("experiment=digits_search", "sweep=x", *quick, *more, f"hydra.sweep.dir={tmp_path}/s")
    trials = study_of(tmp_path / "s").trials
    assert [trial.user_attrs["directory"] for trial in trials] == [str(path) for path in job_dirs(tmp_path / "s")]
    for trial in trials:
        assert set(trial.params) == {"optim.lr", "optim.weight_decay", "model.width"}
        lines = map(json.loads, (Path(trial.user_attrs["directory"]) / "metrics.jsonl").read_text().splitlines())
        assert list(trial.intermediate_values.values()) == [v["val/accuracy"] for v in lines if "val/accuracy" in v]
        assert list(trial.intermediate_values) == [0, 1, 2]  # the last one, at the end, too


@pytest.mark.slow
def test_trials_that_fail_or_end_without_a_number_are_recorded(tmp_path: Path) -> None:
    done = call(
        *SEARCH, "hydra/sweeper/sampler=grid", "optim.lr=1e-3,1e30", "trainer.non_finite=stop,skip",
        f"hydra.sweep.dir={tmp_path}/s",
    )  # fmt: skip
    trials = {(t.params["optim.lr"], t.params["trainer.non_finite"]): t for t in study_of(tmp_path / "s").trials}
    found = {key: trial.state.name for key, trial in trials.items()}
    assert found == {
        ("0.001", "stop"): "COMPLETE",
        ("0.001", "skip"): "COMPLETE",
        ("1e+30", "stop"): "FAIL",
        ("1e+30", "skip"): "FAIL",
    }
    assert trials["1e+30", "stop"].user_attrs["why"].startswith("RunFailed: gradients were not finite")
    assert trials["1e+30", "skip"].user_attrs["why"] == "val/loss is not a number (NaN)"
    nan = trials["1e+30", "skip"].number
    assert states(tmp_path / "s")[nan] == "finished"
    assert f"trial {nan} failed: val/loss is not a number (NaN)" in done.stderr
    assert "2 complete" in done.stderr
    assert "2 failed" in done.stderr
    assert "failed trials again, repeat the command with sweep=s sweep.retry_failed=true" in done.stderr

    hopeless = call(*SEARCH, "optim.lr=1e30,1e31", "hydra.sweeper.n_trials=2", f"hydra.sweep.dir={tmp_path}/h", code=1)
    assert "no trial gave a score: 2 trials failed" in hopeless.stderr


@pytest.mark.slow
def test_a_key_is_searched_only_with_the_option_that_has_it(tmp_path: Path) -> None:
    """optim=adamw has no momentum: a trial with it does not set one, and no message is about it."""
    momentum = "optim.momentum=tag('if optim=sgd',choice(0.5,0.9))"
    command = [*SEARCH, "hydra/sweeper/sampler=grid", momentum, "optim=sgd,adamw", f"hydra.sweep.dir={tmp_path}/s"]
    call(*command)
    found = {tuple(job["overrides"][-2:]) for job in book(tmp_path / "s")["jobs"]}
    sgd = {("optim=sgd", "optim.momentum=0.5"), ("optim=sgd", "optim.momentum=0.9")}
    assert found - sgd == {next(one for one in found if one[-1] == "optim=adamw")}
    assert len(book(tmp_path / "s")["jobs"]) == 3
    assert book(tmp_path / "s")["swept"] == ["optim", "optim.momentum"]
    assert trial_states(tmp_path / "s") == ["COMPLETE"] * 3
    assert "| adamw | - |" in (tmp_path / "s" / "report.md").read_text()
    other = call(*[text.replace("if optim=sgd", "if optim=adamw") for text in command], code=2)
    assert "contains another search" in other.stderr


@pytest.mark.slow
def test_a_choice_that_cannot_be_run_stops_the_search_before_it_starts(tmp_path: Path) -> None:
    done = call(
        *SEARCH, "hydra/sweeper/sampler=grid", "trainer=single,ddp", "hardware.num_procs=1,2",
        f"hydra.sweep.dir={tmp_path}/s", code=2)  # fmt: skip
    assert "trainer=single is one process, not 2" in done.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_several_objectives(tmp_path: Path) -> None:
    done = call(
        *SEARCH, LR, HIDDEN, "hydra.sweeper.objectives={val/accuracy: max, train/loss: min}",
        "hydra.sweeper.n_trials=3", "hydra/launcher=pool", "hydra.sweeper.n_jobs=2", f"hydra.sweep.dir={tmp_path}/s",
    )  # fmt: skip
    study = study_of(tmp_path / "s")
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    for trial in study.trials:
        scores = result(tmp_path / "s" / f"trial_{trial.number:04d}")
        assert trial.values == [scores["val/accuracy"], scores["train/loss"]]
    assert book(tmp_path / "s")["objectives"] == [
        {"key": "val/accuracy", "mode": "max"},
        {"key": "train/loss", "mode": "min"},
    ]
    assert "best: no other trial is better in every objective" in done.stderr
    assert sorted(job["key"] for job in book(tmp_path / "s")["jobs"]) == [f"trial_{n:04d}" for n in range(3)]


@pytest.mark.slow
def test_ddp_jobs_that_are_pruned_end_on_all_ranks(tmp_path: Path) -> None:
    """And leave nothing."""
    sweep = tmp_path / "s"
    done = call(
        *SEARCH, "hydra/sweeper/sampler=grid", "optim.lr=1e-2,1e-7,1e-8", "hydra.sweeper.seed=3", "trainer=ddp",
        "hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1",
        "hydra.sweeper.pruner.n_warmup_steps=1", "hardware.num_procs=2", "trainer.max_steps=40",
        "trainer.eval_every=4", f"hydra.sweep.dir={sweep}",
    )  # fmt: skip
    trials = study_of(sweep).trials
    assert {"COMPLETE", "PRUNED"} == {trial.state.name for trial in trials}
    for trial in trials:
        about = status(sweep / f"trial_{trial.number:04d}")
        assert about["sweep"] == {"sweep": "s", "job": trial.number, "trial": trial.number}
        if trial.state.name == "PRUNED":
            assert about["status"] == "pruned"
            assert about["step"] == 4 * len(trial.intermediate_values) < 40
            assert len(trial.intermediate_values) >= 2
        else:
            assert about["status"] == "finished"
    assert "pruned by the search at step" in done.stderr
    assert processes_with(str(sweep)) == []


@pytest.mark.slow
def test_a_search_whose_storage_cannot_be_written_goes_on_once_it_can(tmp_path: Path) -> None:
    """As on a mount that has become read-only between two trials."""

    def command(n_trials: int, mode: str) -> list[str]:
        storage = f"hydra.sweeper.storage='sqlite:///file:{tmp_path}/study.db?mode={mode}&uri=true'"
        return [*SEARCH, LR, storage, f"hydra.sweeper.n_trials={n_trials}", f"hydra.sweep.dir={tmp_path}/s"]

    call(*command(1, "rwc"))
    ended = ended_at(tmp_path / "s")
    refused = call(*command(2, "ro"), code=1).stderr.splitlines()
    line = "hydra.sweeper.storage: attempt to write a readonly database; fix this, then repeat the command to resume"
    assert refused[-1] == f"failed: {line}"
    assert not any("Traceback" in text for text in refused)
    assert ended_at(tmp_path / "s") == ended
    call(*command(2, "rwc"))
    assert states(tmp_path / "s") == ["finished"] * 2


@pytest.mark.slow
def test_one_process_drives_a_search(tmp_path: Path) -> None:
    command = [*SEARCH, LR, "trainer.max_steps=1000000", f"hydra.sweep.dir={tmp_path}/s"]
    first = warm.Popen([*TRAIN, *command], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "s" / "trial_0000" / "metrics.jsonl").exists())
        second = call(*command, code=2)
        assert "\nerror: sweep=s: another process runs this search" in second.stderr
    finally:
        first.send_signal(signal.SIGINT)
        assert first.wait(limit(60)) == 130
    assert states(tmp_path / "s") == ["interrupted"]
    assert trial_states(tmp_path / "s") == ["RUNNING"]


@pytest.mark.slow
def test_without_optuna_it_says_how_to_install_it(tmp_path: Path) -> None:
    hidden = "import sys\nsys.modules['optuna'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    command = [*TRAIN, *SEARCH, LR, f"hydra.sweep.dir={tmp_path}/s"]
    done = called(command, code=2, env={**os.environ, "PYTHONPATH": path}, fresh=True)
    assert done.stderr == f"error: {missing('hydra/sweeper=optuna', 'optuna', 'optuna')}\n"


@pytest.mark.slow
def test_the_config_is_shown_without_importing_optuna() -> None:
    code = (
        "import sys, train\nsys.argv = ['train.py', 'hydra/sweeper=optuna', '--cfg', 'job']\ntrain.main()\n"
        "print(sorted({'optuna', 'sqlalchemy', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    shown = called(command, env=environment(), fresh=True)
    assert shown.stderr.strip() == "[]"
