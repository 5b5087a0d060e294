"""MLflow: one run there for a run directory, on a tracking server or in a local folder."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from omegaconf import OmegaConf

from engine.config import flat, read_config
from engine.errors import ConfigError
from engine.files import read_json, write_json
from engine.loggers.background import Background
from engine.loggers.media import Media
from engine.loggers.options import MLflowConfig
from engine.loggers.wandb_log import run_name
from engine.runs import read_status

ID = "mlflow.json"  # in a run directory: {"run_id": ..., "tracking_uri": ...}
STATUS = {"finished": "FINISHED", "pruned": "FINISHED", "interrupted": "KILLED", "preempted": "KILLED"}
LONGEST = 6000  # characters of a parameter's value


class MLflowThread(Background):
    title = "MLflow"

    def __init__(self, config: MLflowConfig, *own: Any) -> None:
        self._client: Any = None
        self._run_id, self._config = "", config
        self._known: dict[str, set[int]] = {}  # {name: steps} that a resumed run has logged before
        super().__init__(*own)

    def _start(self) -> None:
        uri = self._config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            raise ConfigError("logger.mlflow.tracking_uri: null, and MLFLOW_TRACKING_URI is not set")
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions want a data base otherwise
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        held = read_json(self._directory / ID)
        if held.get("tracking_uri") == uri:
            self._run_id = held["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._run_id = self._new_run()
            write_json(self._directory / ID, {"run_id": self._run_id, "tracking_uri": uri})
        data = self._client.get_run(self._run_id).data  # of a new run: nothing
        for name, value in flat(OmegaConf.to_container(read_config(self._project, self._directory))).items():
            if name not in data.params:
                self._client.log_param(self._run_id, name, str(value)[:LONGEST])
        for name in data.metrics:
            self._known[name] = {point.step for point in self._client.get_metric_history(self._run_id, name)}
        self._again(self._known)

    def _new_run(self) -> str:
        from mlflow.exceptions import MlflowException

        name, find = self._config.experiment, self._client.get_experiment_by_name
        if find(name) is None:
            with suppress(MlflowException):  # another job of the sweep has made it in between
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
        # a resumed run repeats steps since its checkpoint, bit for bit the same, and MLflow would keep both
        new = {name: value for name, value in values.items() if step not in self._known.get(name, ())}
        metrics = [Metric(name, float(value), moment, step) for name, value in new.items()]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)

    def _summary(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._client.set_tag(self._run_id, name, str(value))

    def _show(self, step: int, name: str, media: Media) -> None:
        self._client.log_artifact(self._run_id, str(media.path), f"media/{name}")

    def _end(self, status: str) -> None:
        self._client.set_terminated(self._run_id, STATUS.get(status, "FAILED"))
