"""TensorBoard, MLflow and metrics.csv hold what metrics.jsonl holds, once, after a resume too; media are files of the
run."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
import sys
import threading
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, TRAIN
from sweeps import call

from lab.callbacks.pictures import Pictures
from lab.program import PROGRAM
from lab.tasks.base import Task
from samebits.errors import ConfigError
from samebits.extras import missing
from samebits.locks import Lock, is_locked
from samebits.loggers import Audio, Histogram, LoggerConfig, RunLogger, Svg, Table, log_to, sync_mlflow
from samebits.loggers.mlflow_log import MLflowThread, name_there
from samebits.loggers.options import MLflowConfig
from samebits.runs import claimed, fill_directory, keep_files, reopen_directory, write_config
from samebits.saved import read_config
from samebits.testing import compose, kill_at, metrics, start_run, status
from samebits.testing.processes import called, limit, wait_for

RUN = (*(text for text in QUICK if not text.startswith("logger=")), "trainer.max_steps=12", "trainer.log_every=2",
       "trainer.eval_every=4", "trainer.save_every=4")  # fmt: skip


def logged(run: Path) -> list[tuple[str, int, float]]:
    """(name, step, value) of all that metrics.jsonl holds."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return sorted((k, line["step"], v) for line in lines for k, v in line.items() if "/" in k)


def tensorboard(run: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = (tag for tag in events.Tags()["scalars"] if not tag.startswith("final/"))  # which are of result.json
    return sorted((tag, e.step, e.value) for tag in tags for e in events.Scalars(tag))


def table(run: Path) -> list[tuple[str, int, float]]:
    with open(run / "metrics.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head[0] == "step"
    assert len({*head}) == len(head)
    assert {len(row) for row in rows} <= {len(head)}
    steps = [int(row[0]) for row in rows]
    assert steps == sorted({*steps})
    return sorted((n, int(row[0]), float(cell)) for row in rows for n, cell in zip(head[1:], row[1:]) if cell)


def mlflow(run: Path, uri: str) -> tuple[Any, list[tuple[str, int, float]]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("default")
    [record] = client.search_runs([experiment.experiment_id])
    points = [
        (n, p.step, p.value) for n in record.data.metrics for p in client.get_metric_history(record.info.run_id, n)
    ]
    return record, sorted(points)


def close(found: list[tuple[str, int, float]], expected: list[tuple[str, int, float]]) -> None:
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    # TensorBoard holds float32
    np.testing.assert_allclose([entry[2] for entry in found], [entry[2] for entry in expected], rtol=1e-6)


@pytest.mark.slow
def test_both_hold_what_metrics_holds_after_a_kill_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"file:{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # of this process, which reads
    run = tmp_path / "run"
    overrides = (*RUN, "logger=[tensorboard,mlflow,csv]", "trainer.max_steps=400", "trainer.log_every=25",
                 "trainer.eval_every=100", "trainer.save_every=40", f"hydra.run.dir={run}")  # fmt: skip
    kill_at(run, 80, overrides)
    called([*TRAIN, *overrides, "resume=auto"], seconds=120)
    close(tensorboard(run), logged(run))
    assert table(run) == logged(run)
    record, points = mlflow(run, uri)
    close(points, logged(run))
    assert record.info.status == "FINISHED"
    assert record.data.params["optim.lr"] == str(compose(*overrides[:-1]).optim.lr)
    assert "final/test/loss" in record.data.tags


@pytest.mark.slow
def test_each_kind_of_media_is_a_file_and_reaches_tensorboard(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    write_config(PROGRAM, tmp_path, compose(*RUN, "logger=none"))
    figure = plt.figure()
    plt.plot([0, 1])
    ramp = torch.linspace(0, 1, 20).reshape(4, 5)
    with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none", tensorboard=True), 0, 60.0) as logger:
        logger.begin(0, 10)
        logger.show(3, "val/figure", figure)
        logger.show(3, "val/image", ramp)
        logger.show(3, "val/colour", np.zeros((3, 8, 9), np.uint8))
        logger.show(3, "weights", Histogram(torch.tensor([0.0, 1.0, 1.0, float("nan")], dtype=torch.bfloat16), bins=2))
        logger.show(3, "voice", Audio(torch.tensor([0.0, 1.0, -1.0, 2.0]), 8000))
        logger.show(3, "text", "said")
        logger.show(3, "drawing", Svg("<svg/>"))
        logger.show(3, "errors", Table(["image", "label"], [[7, "cat"]]))
    plt.close(figure)
    media = tmp_path / "media"
    from PIL import Image

    image = np.asarray(Image.open(media / "val/image/00000003.png"))
    np.testing.assert_array_equal(image, (ramp * 255).round().numpy())
    assert Image.open(media / "val/colour/00000003.png").size == (9, 8)
    assert Image.open(media / "val/figure/00000003.png").size[0] > 100
    assert (media / "text/00000003.txt").read_text() == "said"
    assert (media / "drawing/00000003.svg").read_text() == "<svg/>"
    assert list(csv.reader((media / "errors/00000003.csv").open())) == [["image", "label"], ["7", "cat"]]
    assert list(csv.reader((media / "weights/00000003.csv").open()))[1:] == [["0.0", "0.5", "1"], ["0.5", "1.0", "2"]]
    with wave.open(str(media / "voice/00000003.wav")) as file:
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 32767, -32767, 32767]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert sorted(tags["images"]) == ["val/colour", "val/figure", "val/image"]
    assert tags["histograms"] == ["weights"]
    assert tags["audio"] == ["voice"]
    assert {"text/text_summary", "drawing/text_summary", "errors/text_summary", "config/text_summary"} <= set(
        tags["tensors"]
    )


def test_a_resume_drops_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    """A signal may put an evaluation off until after its step's checkpoint, so the number of lines decides."""
    write_config(PROGRAM, tmp_path, compose(*RUN, "logger=none"))

    def log(from_step: int, lines: int | None, *values: tuple[int, float]) -> list[tuple[int, float]]:
        with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), from_step, 60.0, lines) as logger:
            logger.begin(from_step, 10)
            for step, value in values:
                logger.log(step, {"train/loss": value})
        return [(line["step"], line["train/loss"]) for line in metrics(tmp_path)]

    assert log(0, 0, (1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4)) == [(1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4)]
    assert RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), 2, 60.0, 2).latest("train") == {"train/loss": 0.2}
    assert log(2, 2, (3, 0.5)) == [(1, 0.1), (2, 0.2), (3, 0.5)]
    assert log(2, None, (3, 0.6)) == [(1, 0.1), (2, 0.2), (3, 0.6)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk_costs_the_lines_of_train_log_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(PROGRAM, tmp_path, compose(*RUN, "logger=none"))
    monkeypatch.setattr("samebits.loggers.logger.TRAIN_LOG", "/dev/full")
    with log_to(tmp_path), RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), 0, 60.0) as logger:
        logger.begin(0, 10)
        for step in (1, 2):
            logger.log(step, {"train/loss": 0.5})
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]
    assert capsys.readouterr().err.count("/dev/full cannot be written: [Errno 28]") == 1


def test_columns_of_the_csv_may_come_later(tmp_path: Path) -> None:
    """It is a valid csv after each line, and a resume drops the rows that are logged again."""
    odd = 'val/"a,b"'

    def log(from_step: int, lines: int | None, *values: tuple[int, dict[str, float]]) -> None:
        with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none", csv=True), from_step, 60.0, lines) as logger:
            logger.begin(from_step, 10)
            (copy,) = logger._copies
            for n, (step, one) in enumerate(values):
                logger.log(step, one)
                if n == 0 or not from_step:  # otherwise the thread is behind
                    written = threading.Event()
                    copy._calls.put(written.set)  # type: ignore[union-attr] # a thread
                    assert written.wait(limit(10))
                    table(tmp_path)

    nan = {"train/loss": float("nan")}
    log(0, None, (1, {"train/loss": 0.5}), (2, {"train/loss": 0.25}), (2, {odd: 1e-7}), (3, nan))
    first = 'step,train/loss,"val/""a,b"""'
    assert (tmp_path / "metrics.csv").read_text() == f"{first}\n1,0.5,\n2,0.25,1e-07\n3,,\n"
    end = {"train/loss": 2.0, "test/loss": 7}
    log(2, 3, (3, {"train/loss": 4.0}), (4, {"train/loss": 0.125}), (4, end), (1, {"x": 1}))
    text = (tmp_path / "metrics.csv").read_text()
    assert text == f"{first},test/loss,x\n1,0.5,,,1\n2,0.25,1e-07,,\n3,4.0,,,\n4,2.0,,7,\n"
    (tmp_path / "metrics.csv").unlink()  # of a run that did not have this logger
    log(4, None, (5, {"train/loss": 0.0}))
    assert (tmp_path / "metrics.csv").read_text() == text + "5,0.0,,,\n"


def test_what_the_csv_misses_is_written_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none", csv=True), 0, 60.0) as logger:
        logger.begin(0, 10)
        logger.log(1, {"train/loss": 0.5})
        wait_for(lambda: logger._copies[0].lacks)  # type: ignore[union-attr] # a thread
        (tmp_path / "metrics.csv").rmdir()
        logger.log(2, {"train/loss": 0.25})
    assert table(tmp_path) == [("train/loss", 1, 0.5), ("train/loss", 2, 0.25)]


def test_a_step_is_a_number(tmp_path: Path) -> None:
    with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), 0, 60.0) as logger:
        logger.begin(0, 10)
        with pytest.raises(ConfigError, match=r"^log\('step'\): expected a number, got str - "):
            logger.log("1", {"train/loss": 0.5})  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_hparams_tab_has_a_row_for_each_job_of_a_sweep(tmp_path: Path) -> None:
    """As TensorBoard itself reads it: the values of each job, and the scores of its result.json."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    run = ("-m", *RUN, "logger=tensorboard", f"hydra.sweep.dir={tmp_path}/s")
    call(*run, "optim=adamw,sgd", "optim.lr=1e-3,0.1", "sweep.zip=optim,optim.lr")
    call(*run, "optim=adamw", "optim.lr=1e-3", "model.dropout=0.5")  # another key
    events, request_context = EventMultiplexer(), RequestContext()
    events.AddRunsFromDirectory(str(tmp_path / "s"))
    events.Reload()
    provider = MultiplexerDataProvider(events, str(tmp_path / "s"))
    context = backend_context.Context(TBContext(data_provider=provider))
    data = context.hparams_metadata(request_context, "")
    others = provider.list_hyperparameters(request_context, experiment_ids=[""])
    found = context.experiment_from_metadata(request_context, "", True, data, others)
    kinds = {info.name: info.type for info in found.hparam_infos}
    assert kinds["optim.lr"] == api_pb2.DATA_TYPE_FLOAT64
    assert kinds["optim"] == api_pb2.DATA_TYPE_STRING
    assert {"seed", "model.dropout", "trainer.max_steps"} <= kinds.keys()
    assert not {"logger", "hardware", "sweep.zip"} & kinds.keys()
    metric = api_pb2.MetricName(tag="final/test/loss")
    assert metric in [info.name for info in found.metric_infos]
    request = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_SUCCESS], slice_size=10, col_params=[{"metric": metric}],
    )  # fmt: skip
    shown = list_session_groups.Handler(request_context, context, "", request).run()
    rows = {}
    for group in shown.session_groups:
        (score,) = (one.value for one in group.metric_values if one.name == metric)
        optim, *numbers = (group.hparams[key] for key in ("optim", "optim.lr", "model.dropout"))
        rows[(optim.string_value, *(one.number_value for one in numbers))] = score
    scores = {}
    for path in (tmp_path / "s").glob("*/result.json"):
        config = read_config(PROGRAM, path.parent)
        optim = "sgd" if config.optim._target_.endswith("SGD") else "adamw"
        scores[optim, config.optim.lr, config.model.dropout] = json.loads(path.read_text())["test/loss"]
    assert len(rows) == 3
    assert rows == pytest.approx(scores, rel=1e-6)


@pytest.mark.one_quick
@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "")])
def test_a_library_that_is_missing_is_said_before_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"^{re.escape(missing(f'logger={name}', name, extra))}$"):
        compose(*RUN, f"logger={name}")


@pytest.mark.slow
def test_an_error_of_a_library_does_not_stop_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlruns").write_text("a file where MLflow's folder should be")
    run = start_run(tmp_path / "run", *RUN, "logger=mlflow", f"logger.mlflow.tracking_uri=file:{tmp_path}/mlruns")
    assert metrics(run)[-1]["step"] == 12
    said = capfd.readouterr().err
    assert said.count("training continues, and values that are missing in MLflow") == 1
    assert f"MLflow: some values of metrics.jsonl are missing; later: ./run sync {run}" in said
    (tmp_path / "mlruns").unlink()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # of this process, which reads
    for _ in range(2):
        assert sync_mlflow(PROGRAM, run, 60.0) == "MLflow is complete"
        record, points = mlflow(run, f"file:{tmp_path}/mlruns")
        close(points, logged(run))
        assert (record.info.status, "final/test/loss" in record.data.tags) == ("FINISHED", True)


class Refusing:
    """A client of MLflow whose server knows the rules of names, and is away for some calls."""

    def __init__(self, away: set[int]) -> None:
        self.away, self.calls, self.held = away, 0, []

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
        from mlflow.utils.validation import _validate_metric, _validate_param

        self.calls += 1
        if self.calls in self.away:
            raise MlflowException("API request failed\nwith a long story")
        for metric in metrics:
            if metric.value == 13:
                raise MlflowException("unlucky\nfor a long time", error_code=INVALID_PARAMETER_VALUE)
            _validate_metric(metric.key, metric.value, metric.timestamp, metric.step)
        for param in params:
            _validate_param(param.key, param.value)
        self.held += [(metric.key, metric.step, metric.value) for metric in metrics]

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params={}, metrics={name for name, *_ in self.held}))

    def get_metric_history(self, run_id: str, name: str) -> Any:
        return [SimpleNamespace(step=step) for key, step, _ in self.held if key == name]

    def search_experiments(self, max_results: int) -> None: ...

    def update_run(self, *_: str, **__: str) -> None: ...

    def set_tag(self, *_: str) -> None: ...

    def set_terminated(self, *_: str) -> None: ...


@pytest.mark.slow
def test_mlflow_gets_each_value_of_a_running_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a run without a network, by ./run sync --watch; not while the run logs itself."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/of_the_run")
    run = start_run(tmp_path / "run", *RUN, "logger=mlflow", "logger.mlflow.tracking_uri=null")
    uri = f"file:{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    end, lines = status(run), (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "mlflow.json").unlink()
    with claimed(run):
        (run / "status.json").write_text(json.dumps({**end, "status": "running"}))
        for count in (2, 2, 4):
            (run / "metrics.jsonl").write_text("".join(lines[:count]) + lines[count][:9])
            assert sync_mlflow(PROGRAM, run, 60.0) == "MLflow has all values so far"
            record, points = mlflow(run, uri)
            assert record.info.status == "RUNNING"
            assert len(points) == len(set(points)) > 0
        with Lock(run / ".mlflow"):
            assert sync_mlflow(PROGRAM, run, 60.0) == "is running, and logs to MLflow itself"
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "status.json").write_text(json.dumps(end))
    assert sync_mlflow(PROGRAM, run, 60.0) == "MLflow is complete"
    record, points = mlflow(run, uri)
    assert record.info.status == "FINISHED"
    close(points, logged(run))


@pytest.mark.parametrize(("change", "is_new"), [("optim.lr=5", True), ("data.path={}/b", False)])
def test_only_the_first_step_of_a_resume_begins_another_run(tmp_path: Path, change: str, is_new: bool) -> None:
    """A resume that ends before it is undone. The same data at another path change no value."""
    for name in ("a", "b"):
        shutil.copy(compose(*RUN).data.path, tmp_path / name)
    (run := tmp_path / "run").mkdir()
    own, change = [*RUN, f"data.path={tmp_path}/a"], change.format(tmp_path)
    fill_directory(PROGRAM, run, cfg := compose(*own), own)
    keep_files(PROGRAM.root, run, cfg, begins=True)
    (run / "checkpoints").mkdir()
    (run / "checkpoints/last_000000002.pt").touch()
    (run / "metrics.jsonl").write_text('{"step": 2}\n{"step": 4}\n')
    (run / "mlflow.json").write_text("{}")
    before = status(run)["wandb_id"]
    reopen_directory(PROGRAM, run, compose(*own, change), [change])
    with RunLogger(PROGRAM, run, LoggerConfig(kind="none"), 2, 60.0, 1) as logger:
        logger.begin(2, 9)
        assert (run / "mlflow.json").exists()
        logger.progress(3)
    assert (run / "mlflow.json").exists() != is_new
    assert (status(run)["wandb_id"] != before) == is_new


@pytest.mark.slow
@pytest.mark.parametrize("away", [set(), {2}, {2, 3}, {1, 4}])
def test_what_mlflow_refuses_or_misses_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    import mlflow.tracking

    client = Refusing({count + 1 for count in away})  # the first call sends the config
    monkeypatch.setattr(mlflow.tracking, "MlflowClient", lambda tracking_uri: client)
    monkeypatch.setattr(MLflowThread, "_new_run", lambda _: "x")
    monkeypatch.setattr(logging.getLogger("samebits"), "propagate", True)
    write_config(PROGRAM, tmp_path, compose(*RUN, "logger=mlflow", "logger.mlflow.tracking_uri=http://x"))
    names = ("val/acc@5", "val/acc%5", "val/acc_5", "val//x", "/val/x", "val/../x", "val/" + "x" * 300, "val/\u00e9")
    values = [{name: step + i / 8 for i, name in enumerate(names)} | {"val/bad": 13.0} for step in range(4)]
    config = LoggerConfig(kind="none", mlflow=MLflowConfig("http://x"))
    with RunLogger(PROGRAM, tmp_path, config, 0, 60.0) as logger:
        logger.begin(0, 4)
        for step, one in enumerate(values):
            logger.log(step, one)
    wanted = {(name_there(name), step, one[name]) for step, one in enumerate(values) for name in names}
    assert (set(client.held), len(client.held)) == (wanted, len(names) * 4)
    ((_, line),) = {(one.created, one.getMessage()) for one in caplog.records if one.levelno >= logging.WARNING}
    assert "\n" not in line
    assert "story" not in line
    assert name_there("val/acc_5") == "val/acc_5"


def test_mlflow_is_free_again_when_a_late_upload_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """./run sync --watch sends a run again after an upload that took too long."""
    import mlflow.tracking

    client, answer = Refusing(set()), threading.Event()
    monkeypatch.setattr(client, "set_terminated", lambda *_: answer.wait())
    monkeypatch.setattr(mlflow.tracking, "MlflowClient", lambda tracking_uri: client)
    monkeypatch.setattr(MLflowThread, "_new_run", lambda _: "x")
    write_config(PROGRAM, tmp_path, compose(*RUN, "logger=mlflow", "logger.mlflow.tracking_uri=http://x"))
    thread = MLflowThread(MLflowConfig("http://x"), PROGRAM, tmp_path, 0, 60.0)
    wait_for(lambda: thread._has_begun)  # not is_locked, which holds the lock for a moment: the thread would be refused
    assert is_locked(tmp_path / ".mlflow")
    thread.finish("finished", 0.1)
    assert is_locked(tmp_path / ".mlflow")
    answer.set()
    wait_for(lambda: not is_locked(tmp_path / ".mlflow"), seconds=10)


@pytest.mark.slow
def test_pictures_of_predictions_at_each_evaluation(tmp_path: Path) -> None:
    overrides = (*RUN, "logger=none", "callback=pictures", "callback.pictures.count=3", "trainer.max_steps=8")
    run = start_run(tmp_path / "run", *overrides, "trainer=ddp", "hardware.num_procs=2")
    pictures = sorted((run / "media/val/predictions").iterdir())
    assert [path.name for path in pictures] == ["00000004.png", "00000008.png"]


def test_what_was_logged_after_the_checkpoint_is_logged_again_alone(tmp_path: Path) -> None:
    """A resume takes its lines back at its first line, whichever way they are counted; before it none is lost."""
    for lines in (2, None):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), 0, 60.0) as logger:
            for step in (1, 2, 3):
                logger.log(step, {"train/loss": float(step)})
        with RunLogger(PROGRAM, tmp_path, LoggerConfig(kind="none"), 2, 60.0, lines) as logger:
            assert logger.latest("train/") == {"train/loss": 2.0}
            assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3]
            logger.log(3, {"train/loss": 7.0})
        assert [(line["step"], line["train/loss"]) for line in metrics(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 7.0)]


def test_pictures_are_of_both_show_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(Task):
        def show(self, output: Any, batch: Any, count: int) -> dict[str, Any]:
            return {"rebuilt": output[:count]}

        def sample(self, model: Any, count: int) -> Any:
            return torch.zeros(count)

    logged: list[Any] = []
    monkeypatch.setattr("lab.callbacks.pictures.generate_samples", lambda state, run, count: {"new": count})
    logger = SimpleNamespace(show=lambda step, name, value: logged.append((step, name, value)))
    callback: Any = Pictures(2, "x", "y", "val/predictions")
    callback.task, callback.run = Shown(), SimpleNamespace(world=SimpleNamespace(is_main=True), logger=logger)
    for output in ("first batch", "second"):
        callback.on_eval_batch(output, {})
    callback.on_eval(SimpleNamespace(step=7), {})
    assert logged == [(7, "val/rebuilt", "fi"), (7, "val/new", 2)]
