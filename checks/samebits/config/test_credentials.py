"""A user's password in an address is in no file of a run, and the run and those it starts have it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from common import QUICK

from lab.config import check
from lab.program import PROGRAM
from samebits.credentials import redacted, restored
from samebits.errors import ConfigError
from samebits.loggers.wandb_log import wandb_arguments
from samebits.runs import fill_directory
from samebits.saved import read_config, read_overrides
from samebits.testing import compose

RUN = (*(text for text in QUICK if not text.startswith("logger=")), "trainer.max_steps=12")
SECRET = "geh@im:x"
ADDRESS = f"https://me:{SECRET}@host:5000/x.h5"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.parametrize(
    ("address", "saved"),
    [
        (ADDRESS, "https://***@host:5000/x.h5"),
        ("postgresql+psycopg://u:p@host/db", "postgresql+psycopg://***@host/db"),
        ("https://token@host/x", "https://***@host/x"),
        ("logger.mlflow.tracking_uri='http://a:b@h'", "logger.mlflow.tracking_uri='http://***@h'"),
        ("s3://key:word@bucket/x", "s3://***@bucket/x"),
        ("postgresql://user@host/db", None),
        ("http://host:5000/a@b", None),
        ("https://host/a:b@c", None),
        ("sqlite:////tmp/a@b.db", None),
        ("me:x@host", None),
    ],
)
def test_an_address_is_saved_without_its_password(address: str, saved: str | None) -> None:
    assert redacted({"a": [address]}) == {"a": [saved or address]}
    assert restored(saved or address) == address


def test_no_file_of_a_run_has_it_and_the_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"logger.mlflow.tracking_uri=http://me:{SECRET}@host"
    typed = (*RUN, "logger=[wandb,mlflow]", uri, f"data.path={ADDRESS}")
    cfg = compose(*RUN, "logger=[wandb,mlflow]")
    cfg.logger.mlflow.tracking_uri, cfg.data.path = uri.partition("=")[2], ADDRESS
    monkeypatch.setattr("sys.argv", ["train.py", *typed])
    fill_directory(PROGRAM, tmp_path, cfg, list(typed))
    sent = json.dumps(wandb_arguments(PROGRAM, tmp_path)[1], default=str)
    for text in (*(file.read_text() for file in tmp_path.iterdir() if file.suffix != ".diff"), sent):
        assert SECRET not in text
    assert "data.path=https://***@host:5000/x.h5" in read_overrides(PROGRAM, tmp_path)
    cfg = read_config(PROGRAM, tmp_path)
    assert (cfg.logger.mlflow.tracking_uri, cfg.data.path) == (uri.partition("=")[2], ADDRESS)


def test_a_resume_without_it_says_what_to_give(tmp_path: Path) -> None:
    cfg = compose(*RUN, "logger=mlflow")
    cfg.logger.mlflow.tracking_uri, cfg.data.path = f"http://me:{SECRET}@host", ADDRESS
    fill_directory(PROGRAM, tmp_path, cfg, [])
    for name in [name for name in os.environ if name.startswith("ADDRESS_")]:
        del os.environ[name]
    os.environ["MLFLOW_TRACKING_URI"] = cfg.logger.mlflow.tracking_uri
    saved = read_config(PROGRAM, tmp_path)
    assert saved.logger.mlflow.tracking_uri == cfg.logger.mlflow.tracking_uri
    with pytest.raises(ConfigError, match=r"^data\.path: https://\*{3}@host:5000/x\.h5 has no password, .*data\.path="):
        check(saved)
