"""One door to a directory of a run that may be anybody's: whatever its files are, each command says one line and ends.

It waits for no pipe, follows no link out of the directory, and reads nothing larger than a run writes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from common import QUICK
from omegaconf import OmegaConf
from test_untrusted import main

from lab import load_run
from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.files import LARGEST, LONGEST_LINE, read_file, read_json, records
from samebits.saved import check_run_dir, load_plain, read_config, saved_config
from samebits.sweeps import Ledger
from samebits.sweeps.report import read_study, runs_below
from samebits.testing import start_run

OUTSIDE = Path(__file__)
NESTED = 9  # levels of aliases, each of ten of the level before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    start_run(run, *QUICK, "trainer.max_steps=8", "trainer.eval_every=4", "trainer.log_every=2")
    (run / "uncommitted.diff").write_text("# new, not in this patch: x\n")
    (run / "media" / "deep").mkdir(parents=True)
    (run / "media" / "deep" / "000000001.png").write_bytes(b"x")
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def aliases() -> bytes:
    """A few lines that make 10 ** NESTED values."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(NESTED)]
    return "\n".join(lines).encode()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(OUTSIDE)


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def written(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content)

    return put


# what a file may be instead of what a run wrote
HOSTILE: dict[str, Callable[[Path], Any]] = {
    "pipe": fifo,
    "link": link,
    "folder": Path.mkdir,
    "huge": sparse,
    "aliases": written(aliases()),
    "deep": written(b"[" * 100_000),
    "garbage": written(bytes(range(256)) * 64),
}
DAMAGED = [kind for kind in HOSTILE if kind not in ("pipe", "link")]
OF_A_CONFIG = {"empty": written(b""), "list": written(b"[1, 2]")}  # some other files may hold that


def exchange(run: Path, name: str, kind: str) -> None:
    path = run / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    (HOSTILE | OF_A_CONFIG)[kind](path)


def resume(run: Path) -> int:
    return main("train.py", f"resume={run}", "trainer.max_steps=9")


def load(run: Path) -> int:
    """As in a notebook, with the status of a command."""
    try:
        load_run(run)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def weights_of(run: Path, task: str) -> int:
    given = (*QUICK, f"task={task}", f"task.weights={run}", "trainer.max_steps=1")
    return main("train.py", *given, f"hydra.run.dir={run.parent}/tuned")


ALL_OF_IT: dict[str, Callable[[Path], int]] = {
    "evaluate": lambda run: main("evaluate.py", run),
    "predict": lambda run: main("predict.py", run, "--out", run.parent / "p.h5"),
    "verify": lambda run: main("verify.py", run, "--steps", 8),
    "report": lambda run: main("report.py", run, "--out", run.parent / "report"),
    "sync": lambda run: main("sync.py", run, "--offline", run.parent / "offline"),
    "load_run": load,
    "resume": resume,
}
WEIGHTS_ALONE: dict[str, Callable[[Path], int]] = {
    "export": lambda run: main("export.py", run, run.parent / "w.pt"),
    "finetune": lambda run: weights_of(run, "finetune"),
}
COMMANDS = ALL_OF_IT | WEIGHTS_ALONE
CHECKPOINT = "checkpoints/best_000000008.pt"
# {file: the commands that need what is in it}
READ = {
    "config.yaml": list(ALL_OF_IT),
    "overrides.yaml": ["report", "sync", "resume"],
    "environment.json": ["report", "verify", "sync", "resume"],
    "status.json": ["report"],
    "result.json": ["report"],
    "metrics.jsonl": [],  # damaged lines are left out
    "uncommitted.diff": [],  # it is text
}


def damaged() -> list[tuple[str, str, str]]:
    """(command, file, kind): each file with each command that needs it; each kind of damage."""
    found = []
    for name, commands in READ.items():
        commands = [command for command in commands if command in COMMANDS]
        kinds = [*DAMAGED, *(OF_A_CONFIG if name == "config.yaml" else ())]
        found += [(command, name, kinds[(len(found) + number) % len(kinds)]) for number, command in enumerate(commands)]
    of_any_text = [("report", "metrics.jsonl", "folder"), ("verify", "metrics.jsonl", "huge"),
                   ("report", "uncommitted.diff", "huge"), ("verify", "uncommitted.diff", "folder")]  # fmt: skip
    return found + [case for case in of_any_text if case[0] in COMMANDS]


def tree(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else None
        for path in sorted(folder.rglob("*"))
        if path.name not in (".lock", "__pycache__")
    }


def refused(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command prints; nothing is written but what it says."""
    before = tree(run.parent)
    assert COMMANDS[command](run) in (1, 2)
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line.startswith(("error: ", "failed: "))]
    assert len(lines) == 1, shown.err
    assert "Traceback" not in shown.err
    after = tree(run.parent)
    assert {name: after[name] for name in before} == before
    assert not {name for name in after.keys() - before.keys() if not name.startswith(("offline", "tuned"))}
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_waits_for_a_pipe_or_follows_a_link(
    command: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By turns: the door looks at every entry, whatever is asked for."""
    name, kind = [(CHECKPOINT, "pipe"), ("media/deep/2.png", "link")][list(COMMANDS).index(command) % 2]
    exchange(run, name, kind)
    line = refused(command, run, capsys)
    assert f"{run}/{name}: is " in line


@pytest.mark.one_quick
@pytest.mark.parametrize(("command", "name", "kind"), damaged())
def test_a_file_that_no_run_wrote_is_one_line(
    command: str, name: str, kind: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange(run, name, kind)
    assert f"{run}/{name}" in refused(command, run, capsys)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_the_door_looks_at_every_entry(kind: str, run: Path) -> None:
    """Also at those that no command reads today."""
    check_run_dir(run)
    for path in [*run.rglob("*"), run / "new", run / "checkpoints" / "new"]:
        if path.is_dir():
            continue
        kept = path.read_bytes() if path.exists() else None
        exchange(run, str(path.relative_to(run)), kind)
        with pytest.raises(ConfigError, match=f"^{path}: is "):
            check_run_dir(run)
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    (run / "best.pt").symlink_to(run / CHECKPOINT)
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")  # as that library makes them
    (run / "wandb" / "debug.log").symlink_to("run-1/logs/debug.log")
    check_run_dir(run)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_sweeps_ledger_too(kind: str, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    exchange(sweep, "sweep.json", kind)
    readers: list[Callable[[], Any]] = [lambda: Ledger(PROGRAM, sweep)]
    readers += [lambda: main("report.py", sweep)]
    for read in readers:
        with contextlib.suppress(ConfigError):
            assert read() == 2


@pytest.mark.one_quick
@pytest.mark.parametrize(
    "text",
    ["a: &b 1", "a: [&b 1, *b]", "a: &a [*a]", "a: !!python/name:os.system x", "a: !!str 1", "a: !x {}",
     "a: " + "[" * 60 + "]" * 60, "a: " + "x" * (1 << 17), "a: [" + "1, " * 60_000 + "]", "a: " + "1:" * 40_000 + "1",
     "a: 1\n---\nb: 2", "\t", "a: 9" + "9" * 5000, "a: [", "? [x]\n: 1"],
)  # fmt: skip
def test_a_saved_yaml_holds_plain_values(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    for read in (read_config, saved_config, lambda project, _: load_plain(path, dict)):
        with pytest.raises(ConfigError, match=rf"^{path}: ") as error:
            read(PROGRAM, tmp_path)
        assert "\n" not in str(error.value)


def test_what_a_run_writes_is_read(tmp_path: Path) -> None:
    for values in ({"a": [1e-5, None, "null", "&x *y", "!z", "1e3", True, {"b": {}}]}, {"x": "a\nb: &c\n"}):
        (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(values)))
        assert saved_config(PROGRAM, tmp_path) == values


def test_sizes(tmp_path: Path) -> None:
    for name, most in [(name or "other", most) for name, most in LARGEST.items()]:
        path = tmp_path / (f"x{name}" if name.startswith(".") else name)
        with open(path, "wb") as file:
            file.truncate(most + 1)
        with pytest.raises(ConfigError, match=r"bytes, and no run writes more than .* there; remove it"):
            read_file(path)
    line = tmp_path / "metrics.jsonl"
    with open(line, "wb") as file:
        file.write(b'{"step": 1}\n')
        file.truncate(LONGEST_LINE * 3)
    with pytest.raises(ConfigError, match="has a line of more than"):
        list(records(line))
    for content, said in (
        (b"[" * 1_000_000, "it is not valid JSON"),
        (b"", "it is empty"),
        (b"[1]", "it holds no JSON"),
    ):
        (tmp_path / "deep.json").write_bytes(content)
        with pytest.raises(ConfigError, match=f"deep.json: damaged, {said}.* - restore it from a copy, or remove it$"):
            read_json(tmp_path / "deep.json")


def test_a_folder_without_a_run_is_named_beside_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a slip of the pen, or one of a pattern such as outputs/*."""
    for name in ("run", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    assert len(read_study(PROGRAM, [tmp_path / "run", tmp_path / "none"]).jobs) == 1
    assert f"{tmp_path / 'none'}: contains no run directory, so it is not in the report" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: is a file; give a sweep"):
        read_study(PROGRAM, [tmp_path / "run", tmp_path / "file"])


@pytest.mark.slow
def test_folders_that_lead_round_in_a_ring_or_deep_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).symlink_to(tmp_path)
    folder = str(tmp_path)
    for _ in range(sys.getrecursionlimit() + 50):
        folder += "/d"
        os.mkdir(folder)
    Path(folder, "config.yaml").touch()
    assert list(map(str, runs_below(tmp_path))) == [folder]
    assert caplog.text.count("is a link and was not followed") == 3
    subprocess.run(["rm", "-r", str(tmp_path / "d")], check=True)  # too deep for Python's own
