"""What a checkpoint's artifact has, and where W&B's key is found."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.loggers.options import LoggerConfig
from samebits.loggers.wandb_upload import own_checkpoint
from samebits.status import SHARED_WEIGHTS


def test_a_checkpoint_outside_of_the_run_is_not_uploaded(tmp_path: Path) -> None:
    """Whatever result.json names, and wherever a link leads."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for file in (tmp_path / "best_000000001.pt", run / "checkpoints/best_000000002.pt"):
        file.write_bytes(b"weights")
    (run / "checkpoints/best_000000003.pt").symlink_to(tmp_path / "best_000000001.pt")
    (tmp_path / "link").symlink_to(run)
    named = {
        "checkpoints/best_000000002.pt": True, f"{run}/checkpoints/best_000000002.pt": True, "": False, "..": False,
        str(tmp_path / "best_000000001.pt"): False, "../best_000000001.pt": False,
        "checkpoints/best_000000003.pt": False,
    }  # fmt: skip
    for where in (run, tmp_path / "link"):
        found = {name: own_checkpoint(where, {"best_checkpoint": name}) for name in named}
        assert {name: path is not None and path.is_file() for name, path in found.items()} == named
        assert own_checkpoint(where, {}) is None


@pytest.mark.slow
def test_an_artifact_has_what_its_checkpoint_needs(tmp_path: Path) -> None:
    from samebits.loggers.wandb_upload import log_artifact

    for name in ("best_000000004.pt", SHARED_WEIGHTS):
        (tmp_path / name).write_bytes(b"weights")
    logged: list[Any] = []
    run = SimpleNamespace(id="x", offline=True, log_artifact=lambda artifact, aliases: logged.append(artifact))
    log_artifact(run, {"best_step": 4}, tmp_path / "best_000000004.pt")
    assert sorted(logged[0].manifest.entries) == ["best_000000004.pt", SHARED_WEIGHTS]


def test_a_key_is_found_where_wandb_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.loggers.wandb_log import _server, auto_wandb_mode

    for name in ("MODE", "API_KEY", "BASE_URL", "IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    assert auto_wandb_mode() == "offline"
    for host in ("api.wandb.ai", "api.forge.coreweave.com"):  # as older and newer versions of wandb save it
        (tmp_path / "mine").write_text(f"machine {host} login user password " + "0" * 40)
        with monkeypatch.context() as patch:
            patch.setenv("NETRC", str(tmp_path / "mine"))
            assert auto_wandb_mode() == "online"
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        assert auto_wandb_mode() == "online"
    (tmp_path / ".netrc").write_text("machine my.server:8080 login user password " + "0" * 40)
    assert auto_wandb_mode() == "offline"
    (tmp_path / "config").mkdir()
    (tmp_path / "config/settings").write_text("[default]\nbase_url = http://my.server:8080\n")  # wandb login --host
    assert (auto_wandb_mode(), _server()) == ("online", ("my.server", 8080))


def test_online_without_a_key_is_a_mistake_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.loggers import check_wandb_key

    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("API_KEY", "BASE_URL", "IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    with pytest.raises(ConfigError, match=r"^logger\.mode=online: W&B has no API key - run"):
        check_wandb_key(LoggerConfig(kind="wandb", mode="online"))
    check_wandb_key(LoggerConfig(kind="wandb", mode="offline"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_wandb_key(LoggerConfig(kind="wandb", mode="online"))


@pytest.mark.parametrize(
    ("url", "open_hosts", "reached"),
    [
        ("", {"api.wandb.ai"}, True),
        ("", {"api.forge.coreweave.com"}, True),
        ("", {"my.server"}, False),
        ("http://my.server", {"my.server"}, True),
        ("http://my.server", {"api.wandb.ai"}, False),
    ],
)
def test_the_public_server_is_reached_by_either_of_its_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, open_hosts: set[str], reached: bool
) -> None:
    from samebits.loggers.wandb_log import wandb_reachable

    def connect(address: tuple[str, int], timeout: float) -> Any:
        if address[0] not in open_hosts:
            raise TimeoutError
        return SimpleNamespace(close=lambda: None)

    for name in ("WANDB_CONFIG_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setattr("samebits.loggers.wandb_log.socket.create_connection", connect)
    assert wandb_reachable(0.1) is reached


@pytest.mark.parametrize("url", ["http://host:port", "http://[::1", "host:8080", "host"])
def test_an_invalid_url_of_the_server_is_one_line_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    from samebits.loggers.wandb_log import choose_wandb_mode

    monkeypatch.setenv("WANDB_BASE_URL", url)
    with pytest.raises(ConfigError, match=f"^WANDB_BASE_URL: must be the URL of a server, .*, got {re.escape(url)}$"):
        choose_wandb_mode(LoggerConfig(mode="online"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (".netrc", "machine bücher.de login user password x".encode("latin-1"), "no key is taken from"),
        (
            ".netrc",
            b"machine api.wandb.ai login user passwrd x",
            "no key is taken from .* bad follower",
        ),
        ("settings", b"mode = online", "is ignored, because it cannot be read: File contains no section headers"),
    ],
)
def test_a_damaged_file_has_no_key_and_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, said: str
) -> None:
    from samebits.loggers import wandb_log

    lines: list[str] = []
    monkeypatch.setattr(wandb_log.log, "warning", lines.append)
    (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for variable in ("API_KEY", "MODE", "IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"WANDB_{variable}", raising=False)
    assert wandb_log.wandb_key() is None
    assert wandb_log.auto_wandb_mode() == "offline"
    (line,) = lines
    assert str(tmp_path / name) in line
    assert re.search(said, line)
    assert "\n" not in line


def test_a_sync_without_wandb_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits import extras
    from samebits.loggers.wandb_sync import check_online

    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^\./run sync needs wandb, which is not installed - .*pip install wandb$"):
        check_online()
