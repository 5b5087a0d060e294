"""What Weights & Biases gets of a run, from a server that keeps it; and that it can never hold up or end a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from common import QUICK
from wandb_server import KEY, Server, serving

from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.loggers import Audio, Histogram, LoggerConfig, RunLogger, Svg, Table, wandb_log, wandb_upload
from samebits.loggers.wandb_log import wandb_arguments
from samebits.runs import fill_directory, write_config
from samebits.status import write_status
from samebits.testing import compose, metrics, status
from samebits.testing.processes import processes_with, wait_for

RUN = tuple(o for o in QUICK if not o.startswith("logger"))
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def online(server: Server) -> dict[str, str]:
    """And sent at once what wandb would collect for 15 s."""
    often = {"WANDB__FILE_STREAM_TRANSMIT_INTERVAL": "0.5"}
    return {"WANDB_API_KEY": KEY, "WANDB_MODE": "online", "WANDB_BASE_URL": server.url, **often}


def assert_holds(server: Server, run_dir: Path, state: str = "finished") -> None:
    """The server has each line of metrics.jsonl once, in order, with its values, the config and the run's end."""
    run = status(run_dir)["wandb_id"]
    rows, wanted = server.rows(run), metrics(run_dir)
    assert [row["step"] for row in rows] == [line["step"] for line in wanted]
    assert [row["_step"] for row in rows] == list(range(len(wanted)))
    for row, line in zip(rows, wanted):
        values = {key: value for key, value in line.items() if value is not None and key != "media"}
        assert {key: row[key] for key in values} == pytest.approx(values, rel=1e-12)
        assert set(line.get("media") or ()) <= row.keys()
    assert not server.changed
    assert (server.states[run], server.summaries[run]["status"]) == (state, status(run_dir)["status"])
    assert server.configs[run]["run"]["value"]["directory"]


@contextlib.contextmanager
def no_process_left(folder: Path) -> Iterator[None]:
    """Ends the processes that go on sending where the server is away."""
    try:
        yield
    finally:
        for pid in processes_with(str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not processes_with(str(folder)))


@pytest.mark.slow
def test_an_online_run_holds_metrics_and_config(train_command: Command, tmp_path: Path, server: Server) -> None:
    more = ("trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=30", "trainer.log_every=10", "logger.tags=[a,b]")
    done = train_command(*RUN, *more, "logger.group=g", "callback=pictures", "logger.artifact=true",
                         "hydra.run.dir=run", **online(server))  # fmt: skip
    assert "wandb" not in done.stderr  # its own lines: wandb/upload.log
    run, name = tmp_path / "run", status(tmp_path / "run")["wandb_id"]
    wait_for(lambda: not processes_with(str(run)))
    assert_holds(server, run)
    config = server.configs[name]
    assert (config["optim"]["value"]["lr"], config["model"]["value"]["hidden"]) == (1e-3, [16])
    assert "trainer=ddp" in config["run"]["value"]["overrides"]
    assert config["run"]["value"]["git_commit"]
    assert (server.runs[name]["tags"], server.runs[name]["groupName"]) == (["a", "b"], "g")
    assert server.summaries[name]["final/val/loss"] == json.loads((run / "result.json").read_text())["val/loss"]
    shown = [file for file in server.files[name] if file.startswith("media/images/val/predictions_")]
    assert len(shown) == len([line for line in metrics(run) if "media" in line]) > 0
    (artifact,) = server.artifacts.values()
    assert (artifact["state"], artifact["artifactCollectionName"]) == ("COMMITTED", f"model-{name}")


@pytest.mark.parametrize("had", [0, 2, 4])
def test_each_line_is_sent_once_without_what_was_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: int
) -> None:
    begun(tmp_path / "run")
    sent: list[dict[str, Any]] = []
    run = SimpleNamespace(starting_step=had, log=sent.append)
    monkeypatch.setattr(wandb_upload, "begin_wandb", lambda *_: run)
    lines = [{"step": step, "time": 1.0, "train/loss": None if step == 30 else step / 10} for step in (10, 20, 30, 40)]
    assert wandb_upload.send_wandb(PROGRAM, tmp_path / "run", lines, tmp_path, "online") == (run, 4, had)
    wanted = [{"step": line["step"], "_timestamp": 1.0, "train/loss": line["train/loss"]} for line in lines[had:]]
    assert sent == [{key: value for key, value in row.items() if value is not None} for row in wanted]


def begun(run: Path, *overrides: str) -> LoggerConfig:
    """A run directory that a RunLogger can write to, without a training."""
    cfg = compose(*QUICK[1:], "logger=wandb", "trainer.max_steps=30", *overrides)
    run.mkdir(parents=True)
    fill_directory(PROGRAM, run, cfg, list(overrides), "running")
    write_config(PROGRAM, run, cfg)
    return LoggerConfig(kind="wandb", timeout_s=10)


@pytest.mark.slow
def test_each_kind_of_media_reaches_wandb(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in online(server).items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    config = begun(run)
    import numpy as np

    with RunLogger(PROGRAM, run, config, 0, 60.0) as logger:
        logger.begin(0, 10)
        logger.log(3, {"val/loss": 0.5})
        logger.show(3, "val/image", np.zeros((3, 8, 9), np.uint8))
        logger.show(3, "weights", Histogram([0.0, 1.0, 1.0], bins=2))
        logger.show(3, "voice", Audio([0.0, 0.5], 8000))
        logger.show(3, "text", "said")
        logger.show(3, "drawing", Svg(f"<svg xmlns={'x'!r}><script>alert(1)</script></svg>"))
        logger.show(3, "errors", Table(["image", "label"], [[7, "cat"], [0.5, "dog"]]))
        logger.summary({"balance/x": 2.0})
        write_status(run, "finished")
    wait_for(lambda: not processes_with(str(run)))
    assert_holds(server, run)
    name = status(run)["wandb_id"]
    made = {key: row[key] for row in server.rows(name)[1:] for key in row if not key.startswith("_") and key != "step"}
    kinds = {key: value["_type"] for key, value in made.items()}
    assert kinds == {"val/image": "image-file", "weights": "histogram", "voice": "audio-file", "text": "html-file",
                     "drawing": "html-file", "errors": "table-file"}  # fmt: skip
    assert (made["weights"]["values"], made["weights"]["bins"]) == ([1, 2], [0.0, 0.5, 1.0])
    table = json.loads(server.files[name][made["errors"]["path"]])
    assert (table["columns"], table["data"]) == (["image", "label"], [[7, "cat"], [0.5, "dog"]])
    assert {made[key]["path"] for key in ("val/image", "voice", "text")} <= server.files[name].keys()
    assert server.summaries[name]["balance/x"] == 2


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """In an empty folder, with a key and no other setting."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_the_command_that_sends_the_rest_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the process names its reason after the run has stopped waiting for it."""
    late = "import sys, time; sys.stdin.read(); time.sleep(1); print('status 401')"
    monkeypatch.setattr(wandb_log, "upload_command", lambda *_: [sys.executable, "-c", late])
    monkeypatch.setattr(wandb_log, "END_S", 0.1)
    monkeypatch.setattr(wandb_log.log, "propagate", True)  # runs in this process have ended that
    monkeypatch.setattr(wandb_log.log, "handlers", [])
    caplog.set_level("INFO", "samebits")
    process = wandb_log.WandbProcess(PROGRAM, tmp_path, LoggerConfig(kind="wandb", mode="online"))
    process.finish("finished")
    wait_for(lambda: "W&B: status 401" in caplog.text)
    assert caplog.text.count("./run sync") == 1


def test_wandb_offline_and_its_variables_are_obeyed_the_config_first(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from samebits.loggers.wandb_log import choose_wandb_mode

    auto, online = LoggerConfig(), LoggerConfig(mode="online")
    assert choose_wandb_mode(auto) == "online"
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/settings").write_text("[default]\nmode = offline\n")  # wandb offline
    assert (choose_wandb_mode(auto), choose_wandb_mode(online)) == ("offline", "online")
    for mode, meant in (("online", "online"), ("dryrun", "offline"), ("disabled", "disabled"), ("", "offline")):
        plain.setenv("WANDB_MODE", mode)
        assert choose_wandb_mode(auto) == meant
    plain.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigError, match=r"^WANDB_MODE: must be one of online, .*, got onlin$"):
        compose(*RUN, "logger=wandb", "trainer.max_steps=3")
    compose(*RUN, "logger=none", "trainer.max_steps=3")


def test_the_variables_of_wandb_name_a_run_unless_the_config_does(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sent(number: int, *typed: str) -> dict[str, Any]:
        begun(tmp_path / str(number), *typed)
        arguments = wandb_arguments(PROGRAM, tmp_path / str(number))[1]
        return {key: arguments[key] for key in ("project", "entity", "group", "job_type", "name", "tags")}

    usual = {"project": "default", "entity": None, "group": None, "job_type": "train", "name": "0", "tags": []}
    assert sent(0) == usual
    own = {"PROJECT": "p", "ENTITY": "e", "RUN_GROUP": "g", "JOB_TYPE": "j", "NAME": "n", "TAGS": "a b, c"}
    for name, value in own.items():
        plain.setenv(f"WANDB_{name}", value)
    assert sent(1) == dict(zip(usual, ["p", "e", "g", "j", "n", ["a b", "c"]]))
    typed = [f"logger.{key}=x" for key in ("project", "entity", "group", "job_type", "run_name")]
    assert sent(2, *typed, "logger.tags=[x]") == {**dict.fromkeys(usual, "x"), "tags": ["x"]}
    for name in own:
        plain.delenv(f"WANDB_{name}")
    assert wandb_arguments(PROGRAM, tmp_path / "1")[1]["project"] == "p", "sync sends it to the same place"
    for name in own:
        plain.setenv(f"WANDB_{name}", "")
    assert sent(3) == {**usual, "name": "3"}
    assert sent(4, "name=a/b")["project"] == "a-b", "W&B refuses the slash"
