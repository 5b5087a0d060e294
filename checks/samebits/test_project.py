"""A Project is handed down: two in one process do not disturb each other; whatever a project's files are called, they
run."""

from __future__ import annotations

import pickle
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT
from fork import copy_of_the_project, run_python

from lab.program import PROGRAM
from samebits.config import absolute, compose_here, quote_value, resolved
from samebits.config.compose import _composed
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.runs import write_config
from samebits.saved import portable, read_config
from samebits.targets import locate
from samebits.testing import metrics, result
from samebits.testing.processes import importing, warm

GIVEN = [text for text in QUICK if text != "trainer.max_epochs=null"]


@pytest.fixture
def other(tmp_path: Path) -> Project:
    """Its conf/ has another default, its resolver another answer, its list of what may be built one name."""
    root = tmp_path / "other"
    shutil.copytree(ROOT / "conf", root / "conf")
    (root / "data").mkdir()
    shutil.copy(ROOT / "data/digits.h5", root / "data")
    trainer = root / "conf/trainer/single.yaml"
    assert "max_epochs: 20" in trainer.read_text()
    trainer.write_text(trainer.read_text().replace("max_epochs: 20", "max_epochs: 7"))

    def shape(field: str, _parent_: Any) -> list[int]:
        return [3, 2, 1]

    return replace(
        PROGRAM, name="theirs.project", root=root, allowed=("torch.nn.Linear",),
        resolvers={**PROGRAM.resolvers, "h5_shape": shape}, moved_keys={"trainer.epochs": "trainer.max_epochs"},
    )  # fmt: skip


def told(cfg: Any) -> tuple[str, list[int], float]:
    return cfg.data.path, list(cfg.data.input_shape), cfg.trainer.max_epochs


@pytest.mark.slow
def test_two_projects_compose_in_one_process(other: Project, tmp_path: Path) -> None:
    ours = (f"{ROOT}/data/digits.h5", [1, 8, 8], 20)
    theirs = (f"{other.root}/data/digits.h5", [3, 2, 1], 7)
    for project, expected in ((PROGRAM, ours), (other, theirs), (PROGRAM, ours)):
        assert told(compose_here(project, GIVEN, tmp_path)) == expected
    first, second = (_composed(project, GIVEN, with_hydra=False) for project in (PROGRAM, other))
    assert told(resolved(PROGRAM, first, tmp_path)) == ours, "though the other was composed since"
    assert told(resolved(other, second, tmp_path)) == theirs


@pytest.mark.slow
def test_two_projects_save_and_read_their_own_configs(other: Project, tmp_path: Path) -> None:
    for name, project in (("a", PROGRAM), ("b", other)):
        (tmp_path / name).mkdir()
        write_config(project, tmp_path / name, compose_here(project, GIVEN, tmp_path))
        assert read_config(project, tmp_path / name).data.path == f"{project.root}/data/digits.h5"
        assert "${root:}/data/digits.h5" in (tmp_path / name / "config.yaml").read_text()
    assert read_config(other, tmp_path / "a").data.path == f"{other.root}/data/digits.h5", "moved to the other"
    assert portable(other.root, f"{ROOT}/x") == absolute(f"{ROOT}/x", tmp_path)


@pytest.mark.slow
def test_a_mistake_is_one_of_its_own_project(other: Project, tmp_path: Path) -> None:
    assert locate(PROGRAM, "lab.models.mlp.MLP", "model").__name__ == "MLP"
    with pytest.raises(ConfigError, match=r"`allowed` in src/theirs/project\.py"):
        locate(other, "lab.models.mlp.MLP", "model")
    for project, said in ((PROGRAM, "did you mean"), (other, "it was renamed to trainer.max_epochs")):
        with pytest.raises(ConfigError, match=f"trainer.epochs: no such key - {said}"):
            compose_here(project, [*GIVEN, "trainer.epochs=3"], tmp_path)


def test_a_project_goes_into_other_processes() -> None:
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).training.__module__)"
    command = [sys.executable, "-c", code]
    done = warm.run(command, input=pickle.dumps(PROGRAM), env=importing(ROOT / "src"), capture_output=True, check=True)
    assert done.stdout.decode().strip() == "lab.program"


# -- names -----------------------------------------------------------------------------------------------------------


def renamed(folder: Path) -> dict[str, str]:
    """Give each module of the package another name, in all that names it but the engine; {old: new}."""
    package = folder / "src/lab"
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    names = {}
    for path in files:
        module = ".".join(path.relative_to(folder / "src").with_suffix("").parts)
        names[module] = f"{module}_of_mine"
        path.rename(path.with_name(f"{path.stem}_of_mine.py"))
    whole = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names), key=len, reverse=True))})\b(?!\.yaml)")
    imports = re.compile(r"^( *from (lab[\w.]*) import )([\w, ]+)$", re.MULTILINE)

    def each(text: str, above: str) -> str:
        said = [part.strip().split(" as ") for part in text.split(",")]
        new = [f"{one[0]}_of_mine as {one[-1]}" if f"{above}.{one[0]}" in names else " as ".join(one) for one in said]
        return ", ".join(new)

    for path in [*package.rglob("*.py"), *(folder / "src").glob("*.py"), *(folder / "conf").rglob("*.yaml")]:
        text = imports.sub(lambda m: m[1] + each(m[3], m[2]), path.read_text())
        path.write_text(whole.sub(lambda m: names[m[1]], text))
    return names


@pytest.mark.slow
def test_a_project_of_other_file_names_trains_resumes_and_sweeps(tmp_path: Path) -> None:
    folder = copy_of_the_project(tmp_path / "copy")
    names = renamed(folder)
    assert {"lab.project", "lab.run", "lab.models.mlp"} < names.keys()
    assert len(names) > 50

    train, run = partial(run_python, folder, "src/train.py"), tmp_path / "run"
    train(*QUICK, "trainer.max_steps=4", f"hydra.run.dir={quote_value(str(run))}")
    assert result(run)["step"] == 4
    assert "lab.models.mlp_of_mine.MLP" in (run / "config.yaml").read_text()
    train(f"resume={quote_value(str(run))}", "trainer.max_steps=8")
    assert result(run)["step"] == 8
    assert [line["step"] for line in metrics(run)][-1] == 8
    swept = (*QUICK, "trainer.max_steps=2", "seed=0,1", f"hydra.sweep.dir={quote_value(str(tmp_path / 'sweep'))}")
    assert "2 finished" in train("-m", *swept, "hydra/launcher=pool").stderr
    mistake = train(*QUICK, "trainer.max_steps=2", "model._target_=timm.Net", code=2)
    assert "add its library to `allowed` in src/lab/project_of_mine.py" in mistake.stderr
