"""Log to MLflow: one MLflow run per run directory, on a tracking server or in a local folder."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from samebits.credentials import HIDDEN, redacted, restored
from samebits.errors import ConfigError, RunFailed
from samebits.files import read_json, write_json
from samebits.locks import Lock, is_locked
from samebits.loggers.background import Background
from samebits.loggers.media import Media
from samebits.loggers.options import MLflowConfig
from samebits.loggers.wandb_log import run_name
from samebits.project import Project
from samebits.runs import current_status, is_running
from samebits.saved import flat, read_config
from samebits.schema import typed
from samebits.status import METRICS, RESULT, read_status

ID = "mlflow.json"  # in a run directory: {"run_id": ..., "tracking_uri": ...}
STATUS = {"finished": "FINISHED", "pruned": "FINISHED", "interrupted": "KILLED", "preempted": "KILLED"}
SENDING = ".mlflow"  # in a run directory: the lock of the process that logs to MLflow, because MLflow keeps duplicates
LONGEST, LONGEST_NAME = 6000, 250  # characters of a parameter's value, and of a name
AT_ONCE = 100  # parameters per request
REFUSED = "INVALID_PARAMETER_VALUE"  # MLflow's error code for invalid names and values


def name_there(name: str) -> str:
    """Return the name to use in MLflow, which allows letters, digits, _-./: and spaces. Other characters are replaced
    and a digest is appended, so that two different names stay different."""
    clean = re.sub(r"[^/\w.\- :]", "_", name)
    if clean != posixpath.normpath(clean) or clean.startswith((".", "/")):
        clean = re.sub(r"^\W+|/", "_", clean)
    if clean == name and len(name) <= LONGEST_NAME:
        return name
    return f"{clean[: LONGEST_NAME - 9]}.{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


class MLflowThread(Background):
    """The thread that logs to MLflow. config: the options of MLflow; own: arguments of `Background`."""

    title, remedy = "MLflow", "; later: ./run sync {}"

    def __init__(self, config: MLflowConfig, *own: Any) -> None:
        self._client: Any = None
        self._lock: Lock | None = None
        self._run_id, self._config = "", config
        self._logged: dict[str, set[int]] = {}  # {name in MLflow: steps}
        super().__init__(*own)

    def _start(self) -> None:
        uri = self._config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            raise ConfigError(
                "logger.mlflow.tracking_uri: is null, and MLFLOW_TRACKING_URI is not set - set one of them"
            )
        uri, saved = restored(uri), redacted(uri)
        if f"{HIDDEN}@" in uri:
            raise ConfigError(
                f"logger.mlflow.tracking_uri: the password in {uri} is not saved; set MLFLOW_TRACKING_URI"
            )
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse a folder otherwise
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._client.search_experiments(max_results=1)  # without a network nothing is locked: ./run sync --watch sends
        self._lock = self._lock or Lock(self._directory / SENDING)
        held = read_json(self._directory / ID)
        if held.get("tracking_uri") == saved:
            self._run_id = held["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._new_run()
            write_json(self._directory / ID, {"run_id": self._run_id, "tracking_uri": saved})
        from mlflow.entities import Param

        params_there = self._client.get_run(self._run_id).data.params  # empty for a new run
        config = flat(redacted(OmegaConf.to_container(read_config(self._project, self._directory))))
        params = [Param(name_there(name), str(value)[:LONGEST]) for name, value in config.items()]
        new = [param for param in params if param.key not in params_there]
        for begin in range(0, len(new), AT_ONCE):
            self._send("params", new[begin : begin + AT_ONCE])
        if self._from_step:
            self._again(self._known(), self._from_step)
        elif held:
            self._known()  # ./run sync --watch may have logged values of this run

    def _known(self) -> dict[str, set[int]]:
        """Read which steps MLflow has, by their names in MLflow; _log skips them."""
        for name in self._client.get_run(self._run_id).data.metrics:
            self._logged[name] = {point.step for point in self._client.get_metric_history(self._run_id, name)}
        return {}

    def _send(self, kind: str, items: list[Any]) -> None:
        """Log metrics or params. If MLflow refuses one of them, log each separately."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run_id, **{kind: items})
        except (MlflowException, IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            if getattr(error, "error_code", REFUSED) != REFUSED:  # a failure of the server: retried later
                raise
            if len(items) == 1:
                self._refused(error)
                return
            for item in items:
                self._send(kind, [item])

    def _new_run(self) -> str:
        from mlflow.exceptions import MlflowException

        name, find = self._config.experiment, self._client.get_experiment_by_name
        if find(name) is None:
            with suppress(MlflowException):  # another job of the sweep created it in the meantime
                self._client.create_experiment(name)
        number = find(name).experiment_id
        tags = {"directory": str(self._directory)}
        if sweep := read_status(self._directory).get("sweep"):
            tags["sweep"] = str(sweep["sweep"])
        made = self._client.create_run(number, tags=tags, run_name=run_name(self._project, self._directory))
        return str(made.info.run_id)

    def _log(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        moment = int(1000 * time.time())
        # a resumed run repeats the steps after its checkpoint, with the same values, and MLflow would keep both
        new = {name_there(name): float(value) for name, value in values.items()}
        new = {name: value for name, value in new.items() if step not in self._logged.get(name, ())}
        if new:
            self._send("metrics", [Metric(name, value, moment, step) for name, value in new.items()])

    def _summary(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._client.set_tag(self._run_id, name_there(name), str(value))

    def _show(self, step: int, name: str, media: Media) -> None:
        self._client.log_artifact(self._run_id, str(media.path), f"media/{name}")

    def _end(self, status: str) -> None:
        if status != "running":  # ./run sync of a run that is still running
            self._client.set_terminated(self._run_id, STATUS.get(status, "FAILED"))

    def _work(self) -> None:
        try:
            super()._work()
        finally:  # here and not in `finish`, which may return before the thread ends
            if self._lock is not None:
                self._lock.close()


def sync_mlflow(project: Project, run_dir: Path, limit_s: float) -> str | None:
    """Log the values of a run that are missing in MLflow. Return a line for the user; None if the run does not log to
    MLflow. Raise RunFailed if values are still missing."""
    config = read_config(project, run_dir).logger.mlflow
    if config is None or not (run_dir / METRICS).exists():
        return None
    running, status = is_running(run_dir), current_status(run_dir)  # before the values: those of a later end may lack
    if running and is_locked(run_dir / SENDING):
        return "is running, and logs to MLflow itself"
    thread = MLflowThread(typed(MLflowConfig, config, "logger.mlflow"), project, run_dir, sys.maxsize, limit_s)
    thread.summary({f"final/{key}": value for key, value in read_json(run_dir / RESULT).items() if "/" in key})
    thread.finish("running" if running else status, limit_s)
    if thread.lacks:
        raise RunFailed("some values are still missing in MLflow")
    return "MLflow has all values so far" if running else "MLflow is complete"
