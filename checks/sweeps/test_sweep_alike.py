"""One sweep, made by several commands: which jobs repeat one configuration, and what finding that out costs."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from common import QUICK, needs

from lab.program import PROGRAM
from samebits.code import codes_of, environment
from samebits.config import initialize, register_resolvers
from samebits.saved import JobConfig, dependents, unswept
from samebits.status import RESULT, write_status
from samebits.sweeps import Work, drive, sweep
from samebits.sweeps.report import best_group, groups, read_study, save_best
from samebits.sweeps.report.best import override_list
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.page import data
from samebits.sweeps.report.text import groups_csv, jobs_csv, markdown

Command = Callable[..., str]
TINY = (*QUICK, "trainer.max_steps=6")


class Finishing:
    """A launcher whose jobs end at once, with a score that is their number."""

    def run_jobs(self, work: Work) -> None:
        for job in work.jobs:
            (job.directory / RESULT).write_text(json.dumps({"val/loss": float(job.number)}))
            write_status(job.directory, "finished")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return shutil.copytree(PROGRAM.conf, tmp_path / "conf")


@pytest.fixture
def command(tmp_path: Path, conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A sweep's command, composed with a conf/ that a test may edit -> what it says."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import open_dict

    register_resolvers(PROGRAM)
    monkeypatch.setattr(drive, "report", lambda ledger, changed: None)

    def call(*arguments: str) -> str:
        arguments = (*TINY, f"hydra.sweep.dir={tmp_path}/s", *arguments)
        with initialize(conf):
            loader = GlobalHydra.instance().config_loader()
            master = loader.load_configuration("train", list(arguments), RunMode.MULTIRUN)
            with open_dict(master):
                master.hydra.runtime.cwd = str(tmp_path)
            capsys.readouterr()
            sweep(PROGRAM, master, loader, Finishing(), arguments)  # type: ignore[arg-type]
        return capsys.readouterr().err

    return call


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
def test_jobs_of_an_edited_default_are_no_seeds_of_one_configuration(
    command: Command, conf: Path, tmp_path: Path
) -> None:
    """Said when they are added, and in each part of the report; a second edit, too."""
    said = command("seed=0,1")
    assert "not swept" not in said
    change(conf / "optim/adamw.yaml", "lr: 1e-3", "lr: 5e-2")
    said = command("seed=0,1,2")
    (line,) = [line for line in said.splitlines() if "not swept" in line]
    assert "optim.lr 0.001 -> 0.05" in line
    change(conf / "trainer/single.yaml", "clip_norm: ", "clip_norm: 7 # ")
    assert "trainer.clip_norm" in command("seed=0,1,2,3")

    study = read_study(PROGRAM, [tmp_path / "s"])
    assert [[job.number for job in group.jobs] for group in groups(study)] == [[0, 1], [2], [3]]
    best = best_group(study)
    assert best is not None
    # what the best had, not what conf/ says
    assert {"optim.lr=0.001", "trainer.clip_norm=1.0"} <= set(override_list(best))
    assert groups_csv(study).startswith("optim.lr,trainer.clip_norm,")
    assert "optim.lr" in jobs_csv(study).splitlines()[0]
    text = markdown(Facts(study))
    assert "optim.lr is 0.001 in 2 jobs (0, 1), 0.05 in 2 jobs (2, 3)" in text
    assert "`" + shlex.join(study.commands[0]) + "`; `" + shlex.join(study.commands[1]) + "`" in text  # all commands
    shown = data(Facts(study))
    assert "optim.lr is 0.001" in " ".join(line for section in shown["sections"]["first"] for line in section["lines"])
    assert {"optim.lr", "seed"} <= {column["key"] for column in shown["columns"]}


@pytest.mark.slow
def test_code_that_was_edited_between_two_commands_is_said(
    command: Command, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below src/, by commit or not; edits elsewhere and commits with the same src/ change nothing. A job that is queued
    gets the code with which it begins."""
    git = {"commit": "a" * 40, "diff": "", "source": "1"}
    monkeypatch.setattr(environment, "_status", lambda root: (git["commit"], ()))
    monkeypatch.setattr(environment, "uncommitted", lambda root, entries: git["diff"])
    monkeypatch.setattr(environment, "source_of", lambda root: git["source"])
    assert "src/" not in command("seed=0,1,2")
    git |= {"commit": "b" * 40, "diff": "diff --git a/docs/x.md b/docs/x.md\n+new\n"}
    assert "src/" not in command("seed=range(4)")
    git |= {"commit": "c" * 40, "source": "2"}
    (line,) = [line for line in command("seed=range(5)").splitlines() if "src/" in line]
    assert "other code (src/): jobs 0 to 3 with commit aaaaaaa ran before, now it is commit ccccccc. " in line
    git |= {"diff": "diff --git a/my/src/lab/x.py b/my/src/lab/x.py\n+new\ndiff --git a/b b/b\n", "source": "3"}
    (line,) = [line for line in command("seed=range(6)").splitlines() if "src/" in line]
    assert "job 4 with commit ccccccc ran before, now it is commit ccccccc with changes " in line

    study = read_study(PROGRAM, [tmp_path / "s"])
    text = markdown(Facts(study))
    assert "## Jobs ran with different code\n\njobs 0 to 3 with commit aaaaaaa, job 4 with commit " in text
    shown = data(Facts(study))
    lines = [line for section in shown["sections"]["first"] for line in section["lines"]]
    assert any(line.startswith("jobs 0 to 3 with commit aaaaaaa") for line in lines)

    job = study.jobs[5].path
    (job / RESULT).unlink()
    write_status(job, "queued")
    git |= {"diff": "", "source": "2"}
    command("seed=range(6)")
    assert not (job / "uncommitted.diff").exists()
    assert [str(code) for code in codes_of(job)] == ["commit ccccccc"]


@pytest.mark.slow
def test_what_the_jobs_were_told_is_no_difference(command: Command, conf: Path, tmp_path: Path) -> None:
    """Groups, recipes, unions of commands, values made of swept ones or of the job's number: jobs stay together."""
    (conf / "experiment/own.yaml").write_text(
        "# @package _global_\n"
        "trainer: { clip_norm: '${optim.lr}', max_eval_batches: '${seed}', keep_best: '${hydra:job.num}' }\n"
    )
    for arguments in (
        ["optim=adamw", "optim.lr=1e-3", "seed=1,2"],
        ["optim=sgd", "optim.lr=1e-1", "seed=1"],
        ["optim=sgd", "optim.lr=1e-1", "seed=1,2"],
        ["optim=sgd", "optim.lr=1e-1", "seed=2", "trainer.max_steps=9"],
    ):
        assert "not swept" not in command("experiment=own", *arguments)
    study = read_study(PROGRAM, [tmp_path / "s"])
    assert study.unswept == ()
    assert sorted(len(group.jobs) for group in groups(study)) == [1, 2, 2]
    # the same edit is seen where it may have changed what the option of a swept group has set, or another group
    change(conf / "optim/sgd.yaml", "momentum: ", "momentum: 0.123 # ")
    assert "optim.momentum 0.9 -> 0.123" in command("experiment=own", "optim=sgd", "optim.lr=1e-1", "seed=4")


@pytest.mark.parametrize(
    ("configs", "swept", "follows", "found"),
    [
        ([{"a": 1, "seed": 1}, {"a": 1, "seed": 2}], ["seed"], {}, []),
        ([{"a": 1, "seed": 1}, {"a": 2, "seed": 2}], ["seed"], {}, ["a"]),
        ([{"a": 1, "seed": 1}, {"a": 1, "b": 1, "seed": 2}], ["seed"], {}, ["b"]),
        ([{"a": float("nan"), "seed": 1}, {"a": float("nan"), "seed": 2}], ["seed"], {}, []),
        ([{"a": [1, float("nan")], "seed": 1}, {"a": [1, float("nan")], "seed": 2}], ["seed"], {}, []),
        ([{"a": [1, float("nan")], "seed": 1}, {"a": [2, float("nan")], "seed": 2}], ["seed"], {}, ["a"]),
        ([{"fold.x": 1}, {"fold.x": 2}], ["seed"], {"seed": ["fold"]}, []),
        ([{"a.b": 1}, {"a.b": 2}], ["+a.b"], {}, []),
        ([{"hardware.num_threads": 1}, {"hardware.num_threads": 2}], ["seed"], {}, []),
        ([{"logger.kind": 1, "name": "a", "sweep.name": 0}, {"logger.kind": 2, "name": "b"}], [], {}, []),
        ([{"to": "/x/job-0/best"}, {"to": "/y/job-1/best"}], ["seed"], {}, []),
        ([{"model.w": 1, "a": 1}, {"model.w": 2, "a": 1}], ["model"], {}, []),  # what the option says
        ([{"model.w": 1, "a": 1}, {"model.w": 1, "a": 2}], ["model"], {}, ["a"]),  # the model does not say it
    ],
)
def test_which_differences_were_swept(
    configs: list[dict[str, Any]], swept: list[str], follows: dict[str, list[str]], found: list[str]
) -> None:
    overrides = [[f"{key.lstrip('+')}={i}" for key in swept] for i in range(len(configs))]
    jobs = [JobConfig(values, overrides[i], f"job-{i}") for i, values in enumerate(configs)]
    assert unswept(PROGRAM, jobs, [key.lstrip("+") for key in swept], follows) == found


def test_what_is_made_of_a_key() -> None:
    raw = {"seed": 1, "data.path": "split-${seed}.h5", "data.shape": "${h5_shape:x}", "model.out": "${..data.shape}",
           "data.part.columns": "${h5_shape:${.field}}",
           "b.seed": "${.c}", "b.c": "${seed}", "d": ["${b}"], "e": "${seedling}", "f": "${hydra:job.num}"}  # fmt: skip
    follow = ["b.c", "b.seed", "d", "data.part.columns", "data.path", "data.shape", "model.out"]
    assert dependents(PROGRAM, raw, "seed") == follow
    assert dependents(PROGRAM, raw, "hydra") == ["f"]


@needs("conf/data/parquet.yaml")
def test_the_best_folds_of_data_without_a_default_path_are_an_experiment(command: Command, tmp_path: Path) -> None:
    """save_best composes it and compares it with the run's config. What follows from the data is not in the yaml. The
    jobs agree in their NaN."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"a": [0.0, 1.0, None] * 20, "b": [0.5] * 60, "kind": ["x", "y", "z"] * 20}
    (folder := tmp_path / "rows").mkdir()
    pq.write_table(pa.table(columns), folder / "all.parquet")
    data_of = ["data=parquet", f"data.path={folder}", "data.fields={x: [a, b], y: kind}", "data.missing=nan"]
    command(*data_of, "data.splits.val=null", "data.folds=2", "data.fold=0,1", "optim.lr=0.1,0.2")
    study = read_study(PROGRAM, [tmp_path / "s"])
    best = best_group(study)
    assert best is not None
    assert (best.label, len(best.jobs), study.unswept) == ("lr=0.1", 2, ())
    project = replace(PROGRAM, root=tmp_path)  # tests that run at the same time list the options of PROGRAM
    saved = yaml.safe_load(save_best(project, study, best).read_text())
    assert saved["data"].keys() == {"path", "fields", "splits", "folds", "fold", "missing"}
    assert saved["optim"] == {"lr": 0.1}
