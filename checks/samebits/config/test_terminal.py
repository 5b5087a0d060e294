"""What a stranger's run or file says is shown on the terminal and in train.log, and steers neither."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from common import QUICK, ROOT
from test_untrusted import main, stranger  # noqa: F401 - a fixture

from h5rows.integration import run as h5
from samebits.checkpoints import save_checkpoint
from samebits.errors import plain_output, visible
from samebits.loggers import log_to
from samebits.testing.processes import called

EVIL = "\x1b]0;title\x07\x1b[2J\x9b2J\rover\u202e"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b2J\rover\u202e"


def test_what_steers_is_shown_and_progress_still_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible(f"a\tb\n{EVIL}\x1b[31mé中\ud800") == f"a\tb\n{SHOWN}é中\\ud800"
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
        monkeypatch.setattr(sys, name, stream)
        plain_output()
        plain_output()
        for text in (f"error: {EVIL}\n", "\r 10 % of it\r", "\r\x1b[K", "\x1b[A", "\n", f"\r{EVIL}"):
            print(text, end="", file=stream)
        stream.flush()
        content = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
        assert content == f"error: {SHOWN}\n\r 10 % of it\\r\r\x1b[K\x1b[A\n\r{SHOWN}"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"\u6a21 \xe9"), ("latin-1", r"\u6a21 é"), ("utf-8", "模 é")]
)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_a_terminal_cannot_show_is_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str, errors: str
) -> None:
    """As with LC_ALL=C, or with PYTHONIOENCODING."""
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
        monkeypatch.setattr(sys, name, stream)
        plain_output()
        print("模 é", end="", file=stream)
        stream.flush()
        assert stream.buffer.getvalue().decode(encoding) == shown  # type: ignore[attr-defined]


@pytest.mark.slow
def test_names_of_another_script_on_a_terminal_of_ascii(tmp_path: Path) -> None:
    """From the pack to the report, in the environment that ./run makes of LC_ALL=C; all in one new Python."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "1", "PYTHONIOENCODING": "ascii"}
    path, run = tmp_path / "模.h5", tmp_path / "größe"
    with h5py.File(path, "w") as file:
        file["图像"], file["标签"] = np.zeros((40, 1, 8, 8), np.uint8), np.arange(40) % 3
        file["标签"].attrs["类"] = ["猫", "狗", "鱼"]

    fields = (
        "data=h5",
        f"data.path='{path}'",
        "data.fields.x='图像'",
        "data.fields.y='标签'",
        "data.split_ratio=80/10/10",
    )
    more = ("data.num_outputs=3", "trainer.max_steps=1", "name='模'", f"hydra.run.dir='{run}'")
    commands = [("h5", "inspect", path), ("train", *QUICK, *fields, *more), ("verify", run),
                ("report", run, "--out", tmp_path / "报告")]  # fmt: skip
    code = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT / "src")!r})
for name, *words in {[[*map(str, words)] for words in commands]!a}:
    sys.argv = [name + ".py", *words]
    assert not runpy.run_path({str(ROOT / "src")!r} + f"/{{name}}.py", run_name="command")["main"]()
"""
    said = called([sys.executable, "-c", code], env=environment, fresh=True).stdout
    assert r"x could be \u56fe\u50cf" in said
    assert r"gr\xf6\xdfe" in said
    assert r"\u56fe\u50cf" in (tmp_path / "报告" / "report.html").read_text("utf-8")  # in its JSON


def test_a_line_of_the_log_steers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log_to(tmp_path):
        logging.getLogger("samebits").warning("two\nlines, %s", EVIL)
    assert capsys.readouterr().err == f"two\nlines, {SHOWN}\n"
    assert (tmp_path / "train.log").read_text().endswith(f"two\nlines, {SHOWN}\n")


CHANGES = ("value", "key", "monitor", "target", "status", "environment", "weights")  # the first four: of its config


def changed(run: Path, name: str) -> None:
    """With a stranger's text at one place of a run's directory."""
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    if name == "value":
        cfg["model"]["hidden"] = EVIL
    elif name == "key":
        cfg["model"][EVIL] = 1
    elif name == "monitor":
        cfg["monitor"]["key"] = f"val/{EVIL}"
    elif name == "target":
        cfg["model"]["_target_"] = f"lab.{EVIL}"
    elif name == "status":
        (run / "status.json").write_text(json.dumps({"status": EVIL, "error": EVIL}))
    elif name == "environment":
        known = json.loads((run / "environment.json").read_text())
        known["packages"] = dict.fromkeys(["torch", "numpy"], EVIL)
        (run / "environment.json").write_text(json.dumps(known | {"python": EVIL, "git_commit": EVIL, "host": EVIL}))
    elif name == "weights":
        for path in (run / "checkpoints").iterdir():
            payload = torch.load(path, weights_only=True)
            for part in ("model", "ema"):
                payload[part] = {EVIL: torch.zeros(1)}
            save_checkpoint(payload, path)
    (run / "config.yaml").write_text(yaml.safe_dump(cfg))


@pytest.mark.one_quick(3)
@pytest.mark.parametrize("name", CHANGES)
def test_no_command_prints_what_steers_a_terminal(
    name: str, stranger: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    run = stranger()
    changed(run, name)
    named = run.rename(run.with_name("\x1b]0;x\x07run"))
    commands = (
        ("evaluate", named), ("report", named, named / "..", "--out", tmp_path / "report"),
        ("verify", named, "--steps", 1), ("train", f"resume='{named}'", "trainer.max_steps=5"),
        ("export", named, tmp_path / "w.pt"), ("sync", named, "--offline", tmp_path / "none" / "offline"),
    )  # fmt: skip
    number = CHANGES.index(name)
    # the config is checked at one door for all commands, so each of its changes is shown to every other one
    for command, *words in commands[number % 2 :: 2] if number < 4 else commands:
        if not (ROOT / f"src/{command}.py").exists():  # a fork may lack it
            continue
        main(f"{command}.py", *words)
        found = capfd.readouterr()
        text = found.out + found.err
        assert text.strip(), command
        assert not [c for c in text if c != "\n" and c != "\t" and not c.isprintable()], (command, text)
    log = (named / "train.log").read_text()
    assert "\x1b" not in log


def test_nor_does_what_an_h5_file_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(4, np.dtype([(f"m{EVIL[:-1]}", "f4"), ("b", "i4")]))
    monkeypatch.setattr(sys, "argv", ["h5", "inspect", str(tmp_path / "a.h5")])
    assert h5() == 0
    text = capsys.readouterr().out
    assert r"\x1b]0;title" in text
    assert "\x1b" not in text
