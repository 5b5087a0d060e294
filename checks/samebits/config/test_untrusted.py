"""A stranger's run directory can do no more than say what is wrong with it.

It runs no code, resolves no interpolation, reads and overwrites nothing of others.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import json
import pickle
import pkgutil
import re
import runpy
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from common import QUICK, ROOT
from omegaconf import OmegaConf

from lab import load_run
from lab.config import check
from lab.program import PROGRAM
from samebits.checkpoints import save_checkpoint, sharded
from samebits.errors import ConfigError
from samebits.loggers import log_to
from samebits.loggers.wandb_upload import own_checkpoint
from samebits.runs import claimed, fill_directory
from samebits.runs.directory import replace_text
from samebits.saved import check_run_dir, read_config, read_overrides
from samebits.sweeps import Ledger
from samebits.sweeps.report import read_study
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.text import groups_csv, jobs_csv, markdown
from samebits.sweeps.search.methods import ALLOWED
from samebits.targets import build_target, locate
from samebits.testing import compose

MLP = {"_target_": "lab.models.mlp.MLP", "input_shape": [1, 8, 8], "num_outputs": 10, "hidden": [16], "dropout": 0.0}


# -- targets -----------------------------------------------------------------------------------------------------------


def modules(prefixes: tuple[str, ...]) -> Iterator[ModuleType]:
    """All modules below the prefixes that are installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for prefix in prefixes:
            name = prefix.removesuffix(".*")
            try:
                package = importlib.import_module(name)
            except ImportError:
                continue
            yield package
            for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}.", onerror=lambda name: None):
                try:
                    yield importlib.import_module(found.name)
                except Exception:  # a part of torch that needs what is not installed
                    continue


OURS = tuple(prefix for prefix in PROGRAM.allowed if prefix.startswith(("lab.", "engine.")))
TORCH = tuple(prefix for prefix in PROGRAM.allowed if prefix not in OURS)


@pytest.mark.parametrize("allowed", [OURS, ALLOWED, pytest.param(TORCH, marks=pytest.mark.slow)])
def test_nothing_but_components_can_be_named(allowed: tuple[str, ...]) -> None:
    """Of all names below the prefixes: what can be located is a public class or function that is defined below them,
    and of libraries only classes are built; so none of os, pathlib, shutil, torch.hub or of our own machinery."""
    homes = tuple(prefix.removesuffix("*") for prefix in allowed)
    named = found = 0
    for module in modules(allowed):
        for name in list(vars(module)):
            path, named = f"{module.__name__}.{name}", named + 1
            try:
                target = locate(PROGRAM, path, "x", allowed)
            except ConfigError:
                continue
            found += 1
            assert not any(part.startswith("_") for part in path.split(".")), path
            assert inspect.isclass(target) or inspect.isfunction(target), path
            assert f"{target.__module__}.".startswith(homes), path
            assert not target.__module__.startswith("samebits.data.loading"), path
            if inspect.isfunction(target) and not path.startswith("lab.models."):
                with pytest.raises(ConfigError, match="is a function"):
                    build_target(PROGRAM, {"_target_": path}, "x", allowed)
            for attribute in ("__init__", "__class__", "mro", "load_state_dict", "__globals__"):
                with pytest.raises(ConfigError):
                    locate(PROGRAM, f"{path}.{attribute}", "x", allowed)
        for name in ("os.system", "sys.exit", "torch.load", "Path.unlink", "np.load", "importlib.import_module"):
            with pytest.raises(ConfigError):
                locate(PROGRAM, f"{module.__name__}.{name}", "x", allowed)
    assert named > found > 10


def attacks(folder: Path) -> dict[str, dict[str, Any]]:
    """Nodes that would make the file `folder`/pwned, or remove `folder`/kept/stuck."""
    pwned, path = str(folder / "pwned"), {"_target_": "samebits.runs.directory.Path", "_args_": [str(folder / "pwned")]}
    system = {"_target_": "os.system", "_args_": [f"touch {pwned}"]}
    return {
        "hub": {"_target_": "torch.hub.load", "repo_or_dir": str(folder / "code"), "source": "local", "model": "x"},
        "git alias": {"_target_": "samebits.programs.git", "_args_": ["/", "-c", f"alias.x=!touch {pwned}", "x"]},
        "write": {"_target_": "samebits.runs.directory.replace_text", "path": path, "text": "x"},
        "write json": {"_target_": "samebits.runs.directory.write_json", "path": path, "value": 1},
        "delete": {
            "_target_": "samebits.status.failures.forget_failure",
            "directory": {"_target_": "samebits.runs.directory.Path", "_args_": [str(folder / "kept")]},
        },
        "path": path,
        "path of a component": {**path, "_target_": "h5rows.reading.opening.Path"},
        "job": {"_target_": "samebits.sweeps.job.run_job", "directory": path},
        "system": system,
        "partial": {**system, "_partial_": True},
        "exec": {"_target_": "builtins.exec", "_args_": [f"open({pwned!r}, 'w')"]},
        "hydra": {"_target_": "hydra.utils.get_method", "path": "os.system"},
        "hydra's call": {"_target_": "hydra.utils.instantiate", "config": system},
        "nested": {**MLP, "hidden": system},
        "in a list": {**MLP, "hidden": [16, [system]]},
        "in _args_": {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.ReLU"}, system]},
        "in a dict": {**MLP, "hidden": {"a": {"b": system}}},
        "not recursive": {**MLP, "_recursive_": False, "hidden": system},
        "through a module": {**system, "_target_": "lab.datasets.h5.h5rows.dataset.h5py.os.system"},
        "a method": {"_target_": "lab.models.mlp.MLP.load_state_dict", "_args_": [1, 2]},
        "a function of torch": {"_target_": "torch.nn.functional.relu", "_args_": [1]},
        "machinery": {"_target_": "samebits.data.loading.loader.Loader"},
        "a function of ours": {"_target_": "samebits.data.sampling.column", "_args_": [MLP, "x"]},
    }


NAMES = list(attacks(Path()))


@cache
def saved_text() -> str:
    return OmegaConf.to_yaml(compose(*QUICK, "trainer.max_steps=8"))


@pytest.fixture
def stranger(tmp_path: Path) -> Callable[..., Path]:
    """A run directory as it may come from anybody: with these values in its config."""
    run_dir = tmp_path / "run"
    shutil.copytree(PROGRAM.root / "checks" / "runs" / "whole-stopped", run_dir)
    (run_dir / "config.yaml").write_text(saved_text())
    (tmp_path / "kept" / "stuck").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hubconf.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")

    def changed(**values: Any) -> Path:
        cfg = yaml.safe_load((run_dir / "config.yaml").read_text())
        (run_dir / "config.yaml").write_text(yaml.safe_dump(cfg | values))
        return run_dir

    return changed


def main(script: str, *arguments: object) -> int:
    """The exit status of one of the commands, in this process."""
    argv, sys.argv = sys.argv, [script, *map(str, arguments)]
    try:
        return runpy.run_path(str(PROGRAM.root / "src" / script), run_name="command")["main"]()
    finally:
        sys.argv = argv


@pytest.mark.slow
@pytest.mark.parametrize("name", ["git alias", "delete"])
def test_a_strangers_target_is_refused_everywhere(
    name: str, stranger: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = stranger(model=attacks(tmp_path)[name])
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match=r"^model\."):
        load_run(run_dir)
    for command in (("evaluate.py", run_dir), ("train.py", f"resume={run_dir}", "trainer.max_steps=3")):
        assert main(*command) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: model.")
        assert error.count("\n") == 1
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before
    assert main("export.py", run_dir, tmp_path / "weights.pt") == 0  # the weights alone, which build nothing
    assert not (tmp_path / "pwned").exists()
    assert (tmp_path / "kept" / "stuck").is_dir()


def test_build_checks_whatever_it_is_given(tmp_path: Path) -> None:
    """By itself, before anything is called, for config nodes too, whose targets may be interpolations."""
    made, whole = [], OmegaConf.to_container(compose(*QUICK, "trainer.max_steps=1"))
    for name, node in attacks(tmp_path).items():
        with pytest.raises(ConfigError) as error:
            build_target(PROGRAM, [{"_target_": "torch.nn.ReLU"}, {"x": node}], "here")
        assert str(error.value).startswith("here.1.x"), name
        assert "\n" not in str(error.value)
        made.append(name)
        with pytest.raises(ConfigError, match=r"^model\."):
            check({**whole, "model": node})
    assert made == NAMES
    root = OmegaConf.create({"t": "os.system", "node": {"_target_": "${t}", "_args_": ["true"]}})
    with pytest.raises(ConfigError, match=r"^node._target_: os.system is not allowed"):
        build_target(PROGRAM, root.node, "node")
    with pytest.raises(ConfigError, match=r"x.hidden: '\$\{oc.env:HOME\}' is an interpolation"):
        build_target(PROGRAM, {**MLP, "hidden": "${oc.env:HOME}"}, "x")
    for flag in ({"_partial_": 1}, {"_args_": "ab"}, {"_recursive_": "no"}, {"_convert_": 3}):
        with pytest.raises(ConfigError, match=f"x.{next(iter(flag))}: expected"):
            build_target(PROGRAM, {**MLP, **flag}, "x")
    assert not list(tmp_path.iterdir())


def test_a_fork_allows_its_own_library_in_one_place() -> None:
    node = {"_target_": "collections.Counter", "_args_": ["abb"]}
    with pytest.raises(ConfigError, match=r"add its library to `allowed` in src/lab/project\.py"):
        build_target(PROGRAM, node)
    assert build_target(PROGRAM, node, "x", ("collections.*",)) == {"a": 1, "b": 2}
    method = {"_target_": "collections.OrderedDict.fromkeys", "_args_": [[1]]}
    assert build_target(PROGRAM, method, "x", ("collections.OrderedDict.fromkeys",)) == {1: None}
    with pytest.raises(ConfigError, match=r"is part of collections\.OrderedDict"):
        build_target(PROGRAM, method, "x", ("collections.*",))


# -- saved configs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_config_is_not_resolved(
    stranger: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    run_dir = stranger(name="${oc.env:SECRET}")
    line = f"{run_dir}/config.yaml: name: '${{oc.env:SECRET}}' is an interpolation"
    with pytest.raises(ConfigError) as error:
        load_run(run_dir)
    assert str(error.value).startswith(line)
    for command in (("evaluate.py", run_dir), ("train.py", f"resume={run_dir}")):
        assert main(*command) == 2
        error_text = capsys.readouterr().err
        assert error_text.startswith(f"error: {line}")
        assert error_text.count("\n") == 1
    for node in ({"a": ["x", {"b": "${c}"}]}, {"${x}": 1}, {"a": "\\${x}"}):
        with pytest.raises(ConfigError, match="is an interpolation"):
            read_config(PROGRAM, stranger(callback=node))
    (run_dir / "overrides.yaml").write_text("- optim.lr=${oc.env:SECRET}\n")
    assert read_overrides(PROGRAM, run_dir) == ["optim.lr=${oc.env:SECRET}"]


# -- what a run writes -------------------------------------------------------------------------------------------------


def foreign(folder: Path) -> Path:
    (folder / "precious").write_text("precious\n")
    return folder / "precious"


@pytest.mark.one_quick
@pytest.mark.parametrize("name", ["train.log", ".lock", "checkpoints", "checkpoints/.last_000000004.pt.tmp", "wandb"])
def test_a_run_does_not_write_through_links(name: str, stranger: Callable[..., Path], tmp_path: Path) -> None:
    run_dir, target = stranger(), foreign(tmp_path)
    link = run_dir / name
    if name == "checkpoints":
        link.rename(tmp_path / "elsewhere")
        target = tmp_path / "elsewhere"
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(ConfigError, match=r"is a symbolic link to .*out of the run directory"), claimed(run_dir):
        raise AssertionError("claimed")
    link.unlink()
    (run_dir / "best.pt").symlink_to(run_dir / "config.yaml")  # within its directory: a name for what is there
    with claimed(run_dir):
        pass


def test_files_are_opened_without_following_links(tmp_path: Path) -> None:
    """Also where a link appears after the directory was claimed."""
    target = foreign(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("overrides.yaml", "config.yaml", "uncommitted.diff", "train.log", ".a.pt.tmp"):
        (run_dir / name).symlink_to(target)
    fill_directory(PROGRAM, run_dir, compose(*QUICK, "trainer.max_steps=1"), ["a=1"])
    replace_text(run_dir / "uncommitted.diff", "x")
    save_checkpoint({"a": torch.zeros(1)}, run_dir / "a.pt")
    with pytest.raises(OSError), log_to(run_dir):
        raise AssertionError("opened")
    assert target.read_text() == "precious\n"
    assert read_overrides(PROGRAM, run_dir) == ["a=1"]


HIDING = ("media", "media/val/x", "checkpoints", "checkpoints/best_000000004.dcp", "wandb", "wandb/other", "a/b")


def test_no_file_hides_a_link_from_the_door(
    stranger: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a config.yaml may be another run; it is looked into all the same, by each command (the last)."""
    run_dir, target = stranger(logger={"kind": "wandb"}), foreign(tmp_path)
    for folder in HIDING:
        link = run_dir / folder / "x" / "00000008.png"
        link.parent.mkdir(parents=True)
        (run_dir / folder / "config.yaml").write_text("a: 1\n")
        (run_dir / folder / "sweep.json").write_text(json.dumps({"jobs": [{"key": "x", "number": 0, "overrides": []}]}))
        (run_dir / "sweep.json").write_text(json.dumps({"jobs": [{"key": folder, "number": 0, "overrides": []}]}))
        link.symlink_to(target)
        with pytest.raises(ConfigError, match=f"{folder}/x/00000008.png: is a symbolic link to "):
            check_run_dir(run_dir)
        if folder != HIDING[-1]:
            link.unlink()
    for command, *words in (
        ("evaluate", run_dir), ("train", f"resume={run_dir}"), ("sync", run_dir, "--offline", tmp_path / "o"),
        ("report", run_dir / "checkpoints" / "..", "--out", tmp_path / "report"),
    ):  # fmt: skip
        if not (ROOT / f"src/{command}.py").exists():  # a fork may lack it
            continue
        assert main(f"{command}.py", *words) in (1, 2)
        assert f"{folder}/x/00000008.png: is a symbolic link to " in capsys.readouterr().err
    assert target.read_text() == "precious\n"


def test_a_sweeps_jobs_lie_in_its_folder(tmp_path: Path) -> None:
    for key in ("../x", "/etc", "a/b", ".."):
        (tmp_path / "sweep.json").write_text(json.dumps({"jobs": [{"key": key, "number": 0, "overrides": []}]}))
        with pytest.raises(ConfigError, match="is not a folder name"):
            Ledger(PROGRAM, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["name=null"], ["-m", "name=../../x", "seed=1,2"], ["name='~/x'"]])
def test_a_name_outside_outputs_leaves_no_folder(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a" / "project"
    root.mkdir(parents=True)
    (root / "conf").symlink_to(PROGRAM.root / "conf")
    monkeypatch.setattr("lab.program.PROGRAM", replace(PROGRAM, root=root))
    monkeypatch.chdir(tmp_path)
    assert main("train.py", *arguments, "data=synthetic", *QUICK) == 2
    assert capsys.readouterr().err.startswith("error: name: must be a folder below outputs/, got ")
    assert [p for p in tmp_path.rglob("*") if p not in (root, root / "conf")] == [root.parent]


def test_a_working_directory_with_an_interpolation_in_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "${oc.env:HOME}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main("train.py", "hydra.run.dir=run", *QUICK) == 2
    assert capsys.readouterr().err.startswith("error: the path of the working directory contains ${")
    assert not list(folder.iterdir())


# -- checkpoints in parts ----------------------------------------------------------------------------------------------


def test_the_index_of_a_sharded_checkpoint_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\nclass X: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [("evil_module", "X"), ("os", "system"), ("torch.hub", "load"), ("torch", "load"), ("builtins", "exec")]
    names += [("torch.distributed.checkpoint.filesystem", "FileSystemWriter"), ("torch.serialization", "load")]
    for module, name in names:
        path = tmp_path / "index"
        path.write_bytes(b"\x80\x02c" + f"{module}\n{name}\n".encode() + b".")
        with (
            pytest.raises(pickle.UnpicklingError, match=f"requires {module}.{name}, which a checkpoint never contains"),
            open(path, "rb") as file,
        ):
            sharded._Index(file).load()
    assert "evil_module" not in sys.modules
    assert not (tmp_path / "pwned").exists()


def test_an_upload_sends_no_foreign_file(stranger: Callable[..., Path], tmp_path: Path) -> None:
    """result.json of a stranger names the best checkpoint, which src/sync.py uploads as an artifact."""
    run_dir, target = stranger(), foreign(tmp_path)
    best = next((run_dir / "checkpoints").glob("best_*.pt"))
    assert own_checkpoint(run_dir, {"best_checkpoint": f"/moved/since/checkpoints/{best.name}"}) == best
    (run_dir / "checkpoints" / "best_9.pt").symlink_to(target)
    for named in (target, "best_9.pt", "../../precious", "..", "", run_dir / "config.yaml", tmp_path):
        assert own_checkpoint(run_dir, {"best_checkpoint": str(named)}) is None, named
    assert own_checkpoint(run_dir, {}) is None


# -- reports -----------------------------------------------------------------------------------------------------------

NASTY = {
    "formula": "=cmd|' /C calc'!A0",
    "at": "@SUM(1)",
    "plus": "+1+cmd",
    "tab": "\t=1+1",
    "return": "\r=1",
    "spaces": "  =1+1",
    "script": "<script>alert(1)</script>",
    "link": "[x](javascript:alert(1))",
    "reference": "[x]: javascript:alert(1)",
    "picture": "<img src=x onerror=alert(1)>",
    "row": "a\n\n# heading\n| b | c |",
    "pipe": "a|b\\|c",
    "fence": "```\n<script>alert(1)</script>\n```",
    "code": "`</code><script>`",
    "escape": "\x1b[31mred",
    "number": "-0.5",
}


def test_a_report_shows_values_and_interprets_none(tmp_path: Path) -> None:
    for number, (name, value) in enumerate(NASTY.items()):
        run_dir = tmp_path / f"run{number}"
        shutil.copytree(PROGRAM.root / "checks" / "runs" / "whole-finished", run_dir)
        cfg = yaml.safe_load((run_dir / "config.yaml").read_text())
        cfg["model"] |= {"dropout": -0.5 * number, "hidden": [16, 16], "note": value, value: name}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(cfg))
        (run_dir / "status.json").write_text(json.dumps({"status": "failed" if number else "finished", "error": value}))
    study = read_study(PROGRAM, sorted(tmp_path.iterdir()))
    for text in (jobs_csv(study), groups_csv(study)):
        rows = list(csv.reader(io.StringIO(text)))
        for cell in (cell for row in rows for cell in row):
            assert cell == "" or is_number(cell) or (cell.lstrip()[0] not in "=+-@" and cell[0] not in "\t\r"), repr(
                cell
            )
        assert {f"'{NASTY['formula']}", "-0.5", NASTY["script"]} <= {cell for row in rows for cell in row}
    lines = markdown(Facts(study)).splitlines()
    for line in lines:
        shown = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"\\[^\w\s]", "", line))  # neither code nor escaped
        assert not re.search(r"<\w|\]\(|\]:", shown), line
        assert line.isprintable()
    assert [line for line in lines if line.startswith("#")] == [
        lines[0],
        *(f"## {t}" for t in SECTIONS if f"## {t}" in lines),
    ]
    tables = [list(rows) for is_row, rows in groupby(lines, lambda line: line.startswith("|")) if is_row]
    assert len(tables) >= 3
    for rows in tables:  # as many cells in each row
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1, rows
    assert any("[16,16]" in line for line in lines) or "hidden" not in " ".join(study.swept)


SECTIONS = ("Review", "Configurations", "Importance", "Failures", "Jobs", "Differences of the configs")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
