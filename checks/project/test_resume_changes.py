"""What a resume changes: its values hold from the next step on, all others stay, and what cannot be gone on with is
refused."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from omegaconf import OmegaConf
from sweeps import call

from lab.optim import check_optimizer
from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.runs import choose_run
from samebits.testing import last_checkpoint, start_run

RUN = (*QUICK, "trainer.max_steps=8", "trainer.eval_every=2", "trainer.save_every=4", "trainer.log_every=1")


def stopped(run: Path, *overrides: str) -> Path:
    """A run that was stopped after four of its eight steps."""
    with pytest.raises(SystemExit, match="75"):
        start_run(run, *RUN, *overrides, "process.stop_at_step=4")
    return run


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = ("optim.lr=0.02", "optim.schedule.warmup=0.5", "hardware.deterministic=true")
    return stopped(tmp_path_factory.mktemp("begun") / "run", *more)


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


@pytest.mark.slow
def test_another_score_has_a_best_of_its_own(run: Path) -> None:
    """A loss of 1.9 would stay the best of all accuracies."""
    assert last_checkpoint(run)["monitor"] == ["val/loss", "min"]
    done = call(f"resume={run}", "monitor.key=val/accuracy", "monitor.mode=max", "trainer.max_steps=16")
    said = "monitor: changed from val/loss min to val/accuracy max, so the best score is reset"
    assert said in done.stderr.splitlines(), done.stderr
    found = last_checkpoint(run)
    assert found["monitor"] == ["val/accuracy", "max"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [(line["val/accuracy"], line["step"]) for line in lines if "val/accuracy" in line and line["step"] > 4]
    assert len(scores) == 6
    assert found["best_score"] == max(scores)[0]


@pytest.mark.slow
def test_a_mapping_changes_what_it_names(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mappings = ("optim.schedule={final: 0.1}", "hardware={eval_batch_size: 7}", "monitor={mode: min}")
    assert typed(monkeypatch, capsys, f"resume={run}", *mappings)[0] in (0, 75)
    found = OmegaConf.load(run / "config.yaml")
    assert (found.optim.schedule.warmup, found.optim.schedule.final) == (0.5, 0.1)
    assert (found.hardware.deterministic, found.hardware.eval_batch_size) == (True, 7)


@pytest.mark.slow
def test_moments_stay_with_their_parameters(tmp_path: Path) -> None:
    """Layers of equal shapes: nothing else would tell. Of others, kernels would leave their memory."""
    model = "model.hidden=[32,32,32]"
    weights = stopped(tmp_path / "weights", model)
    tuned = stopped(tmp_path / "tuned", model, "task=finetune", f"task.weights={weights}", "task.freeze=[2.w,2.b]")
    assert "4.weight" in last_checkpoint(tuned)["parameter_names"]
    done = call(f"resume={tuned}", "task=finetune", f"task.weights={weights}", "task.freeze=[4.w,4.b]", code=2)
    assert "trains other parameters than this config: 4.weight in the place of 2.weight" in done.stderr


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


TAKEN = (  # each of one command
    {"callback.summary.depth=2": 2, "model.width=4": 4, "+optim.amsgrad=true": True, "process.stop_at_step=6": 6,
     "++trainer.max_steps=9": 9},
    {"+callback.summary.depth=1": 1},
    {"callback={summary: {depth: 1}}": {"summary": {"depth": 1}}},
)  # fmt: skip
REFUSED = (
    ("callback.summary.dept=2", "callback.summary.dept: lab.callbacks.summary.Summary does not accept 'dept'"),
    ("model.hidden=[3]", "model.hidden: lab.models.resnet.ResNet does not accept 'hidden'"),
    ("+model.foo=3", "model.foo: lab.models.resnet.ResNet does not accept 'foo'"),
    ("trainer.foo=3", "trainer.foo: no such key (trainer has: "),
    ("foo=3", "foo: no such key"), ("callback.pictures.count=2", "callback.pictures.count: no such key"),
    ("model=mlp", "keeps its groups"),
    ("optim/schedule=linear", "keeps its groups"),
    ("~optim.weight_decay", "keeps its groups"),
    ("process.stop_at_step=1", "process.stop_at_step=1: has no effect: the run in"),
    ("process.stop_at_step=4", "is already at step 4 - give a later step"),
    ("process={stop_at_step: 2}", "process.stop_at_step=2: has no effect"),
    ("hydra.run.dir=elsewhere", "hydra.run.dir=elsewhere: has no effect"),
    ("optim.lr=1,2", "error: optim.lr=1,2: several values"),
    ("data.split_ratio=80/10/10", "has no effect, because the run keeps its data.splits"),
    ("task.metrics={}", "task.metrics={}: has no effect, because the entries of task.metrics stay"),
)  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of other groups than conf/ composes by default."""
    quick = [text for text in RUN if not text.startswith("model.")]
    more = ("model=resnet", "model.width=4", "model.blocks=[1]", "callback=summary", "process.stop_at_step=4")
    with pytest.raises(SystemExit, match="75"):
        start_run(run := tmp_path_factory.mktemp("other") / "run", *quick, *more)
    return run


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """The command in this process, without the training. Returns (status, what it printed)."""
    import train
    from samebits.process import parent

    monkeypatch.setattr(sys, "argv", ["train.py", *overrides])
    monkeypatch.setattr(parent, "run_rank", lambda *_: None)
    return train.main(), capsys.readouterr().err


@pytest.mark.one_quick
@pytest.mark.parametrize("given", TAKEN, ids=list)
def test_a_resume_takes_values_of_the_runs_own_config(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    given: dict[str, Any],
) -> None:  # fmt: skip
    """Whatever conf/ composes by default has no say in it."""
    run = shutil.copytree(other, tmp_path / "run")
    before = OmegaConf.load(run / "config.yaml")
    assert typed(monkeypatch, capsys, f"resume={run}", *given)[0] in (0, 75)
    for override, value in given.items():
        OmegaConf.update(before, override.partition("=")[0].lstrip("+"), value, force_add=True)
        assert override.removeprefix("++") in OmegaConf.load(run / "overrides.yaml")
    assert OmegaConf.load(run / "config.yaml") == before


@pytest.mark.one_quick
@pytest.mark.parametrize(("override", "said"), REFUSED)
def test_a_resume_refuses_what_would_have_no_effect(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    override: str, said: str,
) -> None:  # fmt: skip
    """In one line with the true reason; the run stays as it was."""
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(other, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*.yaml")}
    status, printed = typed(monkeypatch, capsys, f"resume={run}", override)
    assert (status, printed.count("\n")) == (2, 1)
    assert said in printed
    assert {path: path.read_bytes() for path in run.rglob("*.yaml")} == before


@pytest.mark.slow
def test_a_command_that_is_repeated_may_have_stopped_there(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(other, tmp_path / "run")
    again = ("resume=auto", f"hydra.run.dir={run}", "process.stop_at_step=4")
    quick = ["model=resnet", *(text for text in RUN if not text.startswith("model."))]
    assert typed(monkeypatch, capsys, *quick, *again)[0] in (0, 75)
    assert "has no effect" in typed(monkeypatch, capsys, *again[:2], "process.stop_at_step=3")[1]


# -- where a resume logs -----------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """(url, the first lines of the requests) of a server that answers nothing else."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            asked.append(self.rfile.readline().decode())
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chosen(run: Path, *overrides: str, **logger: Any) -> Any:
    """The config with which a run that was saved with these values of its logger would go on."""
    saved = OmegaConf.load(run / "config.yaml")
    for key, value in logger.items():
        OmegaConf.update(saved, f"logger.{key}", value)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(saved))
    cfg = OmegaConf.create({"resume": str(run), "data": {}, "logger": saved.logger})
    return choose_run(PROGRAM, cfg, run, [f"resume={run}", *overrides], run)[0].logger


STRANGERS = {"mlflow": {"tracking_uri": "http://stranger", "experiment": "x"}, "kind": "wandb", "entity": "stranger",
             "project": "theirs", "mode": "online", "artifact": True}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("typed", [[], ["logger=mlflow", "logger.mlflow.tracking_uri=http://stranger"],
                                   ["logger=../../stranger"], ["experiment=stranger"], ["logger=${oc.env:HOME}"],
                                   ["hydra.searchpath=[file:///x]", "logger.kind=wandb", "name=${x}"]])  # fmt: skip
def test_a_resume_logs_where_the_present_config_says(
    run: Path, typed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the saved config nor the overrides that the run was begun with give an address."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine")
    (run / "overrides.yaml").write_text(OmegaConf.to_yaml(typed))
    found = chosen(run, **STRANGERS)
    assert "stranger" not in str(found)
    assert (found.entity, found.project, found.artifact) == (None, "default", False)
    assert found.mlflow is None or found.mlflow.tracking_uri == "http://mine"
    assert "logger.entity=null ('stranger' in the run)" in caplog.text


@pytest.mark.slow
def test_a_resume_keeps_its_own_logger(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that it chose from conf/, under its name, and what this command gives."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine")
    assert chosen(run).kind == "none", "it was begun with logger=none"
    assert chosen(run, "logger=[wandb,mlflow]").mlflow.tracking_uri == "http://mine"
    assert chosen(run, "logger.project=other").project == "other"
    (run / "overrides.yaml").write_text(OmegaConf.to_yaml(["logger=[wandb,mlflow]", "name=paper"]))
    saved = OmegaConf.load(run / "config.yaml")
    saved.name = "paper"
    (run / "config.yaml").write_text(OmegaConf.to_yaml(saved))
    found = chosen(run)
    assert (found.kind, found.project, found.mlflow.experiment) == ("wandb", "paper", "paper")


@pytest.mark.slow
def test_a_strangers_server_gets_no_request(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with listening() as (url, asked):
        chosen(run, **STRANGERS | {"mlflow": {"tracking_uri": url, "experiment": "x"}})
        monkeypatch.setenv("WANDB_BASE_URL", url)
        done = call(f"resume={run}", "process.stop_at_step=5", code=75)
        assert "at step 5" in done.stderr
        assert "a resumed run uses the logger options of this command" in done.stderr
    assert asked == []
