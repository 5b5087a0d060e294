"""Whatever stands where something is to be built, or where a group is to be chosen: one line that names the key."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, compose, sample_of
from omegaconf import OmegaConf

from engine.config import compose_here, resolved, run_hydra, yamls
from engine.errors import ConfigError
from lab.config import check
from lab.program import PROGRAM

WRONG = (None, 3, [1], "x", {"a": 1})
GROUPS = ("data", "model", "task", "optim", "callback")
FILES_MISSING = {
    "none",  # has no target
    "sequences",
    "tokens",
    "image_folder",
    "lora",
    "pairs",
    "pretrained",
    "sample_text",
    "texts",
}
CASES = [
    f"{group}={path.stem}" for group in GROUPS for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
    if path.stem not in FILES_MISSING
]  # fmt: skip
NORMALIZE = "+data.transforms.normalize={_target_: lab.transforms.fields.Normalize, field: x, mean: [0.1], std: [0.3]}"
MORE = {  # what an option asks for
    "task=finetune": ["task.weights=x"],
    "task=dpo": ["task.weights=x"],
    "task=distillation": ["task.teacher=x"],
    "task=whitened": ["data=h5", NORMALIZE],
    "data=mixed": ["+data@data.parts.some=h5", "+data.weights.some=1"],
}


def targets(node: Any, key: str = "") -> Iterator[str]:
    """The dotted keys of all nodes with a _target_; not within a module of torch, whose annotations are not read: it
    says itself what it was given, in one line, when it is built."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield key
            if node["_target_"].startswith("torch.nn."):
                return
        for name, inner in node.items():
            yield from targets(inner, f"{key}.{name}" if key else str(name))


def given(choice: str) -> list[str]:
    more = MORE.get(choice, [])
    data = [] if choice.startswith("data=") or "data=h5" in more else ["data=synthetic"]
    return [choice, *data, *more]


# of each group some, so that each kind of place is there: a list, a mapping, a part of a part
SOME = [*CASES[::7], "task=classification", "optim=muon"]


@pytest.mark.one_quick
@pytest.mark.parametrize("choice", sample_of([*dict.fromkeys(SOME)], CASES))
def test_each_target_needs_one(choice: str) -> None:
    values: Any = OmegaConf.to_container(compose(*given(choice), checked=False))
    group = choice.partition("=")[0]
    keys = [key for key in targets(values) if key.split(".")[0] == group]
    assert keys, choice
    for key in keys:
        for wrong in WRONG:
            cfg = OmegaConf.create(values)
            OmegaConf.update(cfg, key, wrong, merge=False)
            plain = OmegaConf.to_container(cfg)
            with pytest.raises(ConfigError) as error:
                check(plain)
            assert str(error.value).startswith(key), (key, wrong, error.value)
            assert "\n" not in str(error.value)


EMPTY = ("", "3", "- a", "text", "null")  # a file that holds no keys
BARE = {
    "a group": "{group}: {option}",
    "nothing": "{group}:",
    "a number": "{group}: 3",
    "a list": "{group}: [{option}]",
}


@pytest.mark.parametrize("text", BARE.values(), ids=list(BARE))
@pytest.mark.parametrize(("group", "option"), [("model", "mlp"), ("optim/schedule", "constant")])
def test_a_group_that_is_given_a_bare_value(text: str, group: str, option: str, tmp_path: Path) -> None:
    """In an experiment, in what it includes, and whatever comes after it; the line says how a group is chosen."""
    outer, _, inner = group.rpartition("/")
    line = text.format(group=inner, option=option)
    line = f"{outer}: {{{line}}}" if outer else line
    files = {
        "experiment/wrong": f"# @package _global_\n{line}\n",
        "experiment/whole": "# @package _global_\ndefaults: [wrong]\n",
    }
    if outer:
        files[f"{outer}/mine"] = f"defaults: [adamw]\n{text.format(group=inner, option=option)}\n"
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(content)
    for name in files:
        argv = ["--config-dir", str(tmp_path), name.replace("/", "="), "debug=fast"]
        with pytest.raises(ConfigError) as error:
            yamls.check_bare(argv, PROGRAM.conf)
        wrong = tmp_path / f"{name.replace('whole', 'wrong')}.yaml"
        assert str(error.value).startswith(f"{wrong}: ")
        assert f"`defaults: - override /{group}: " in str(error.value)


@pytest.mark.parametrize("more", [(), ("debug=fast",), ("--cfg", "job"), ("-m", "seed=1,2")])
def test_the_command_says_so_before_it_prints_or_runs(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nlogger: none\n")
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-dir", str(tmp_path), "experiment=mine", *more])
    with pytest.raises(ConfigError, match=f"^{file}: logger: none - a group is chosen in the list of defaults"):
        run_hydra(PROGRAM, lambda cfg: pytest.fail("ran"))
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "content"),
    [
        (group, content) for k, group in enumerate(GROUPS)
        for content in sample_of((EMPTY[(k + 2) % 5],), EMPTY)
        if group != "callback" or content not in ("", "null")  # none
    ],
)  # fmt: skip
def test_a_yaml_of_a_group_that_holds_no_keys(
    group: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(content + "\n")
    argv = ["--config-dir", str(tmp_path), f"{group}=mine", *(["data=synthetic"] if group != "data" else [])]
    monkeypatch.setattr(sys, "argv", ["train.py", *argv])

    def job(cfg: Any) -> None:
        check(resolved(PROGRAM, cfg, tmp_path))

    with pytest.raises(ConfigError) as error:
        run_hydra(PROGRAM, job)
    assert "\n" not in str(error.value)
    assert re.search(rf"\b{group}\b", str(error.value)), error.value


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["data.path=nope.h5"], r"data\.path=\S*nope\.h5: no such file"),
        (["data.path=[]"], r"data\.path is empty"),
        (["data.path=README.md"], r"data\.path: \S*README\.md: cannot be opened"),
        (["data.fields.x=nope"], r"data\.fields\.x: \S*: /train has no 'nope'"),
        (["data.fields.y=nope"], r"data\.fields\.y: \S*: /train has no 'nope'"),
        (["data.splits.train.group=nope"], r"data\.\w+"),
        (["data=image_folder", "data.path=/nope"], r"data\.path: /nope does not exist"),
        (["data=tokens", "data.path=nope.h5"], r"data\.path=\S*nope\.h5: no such file"),
        (["data=sequences", "data.path=nope.h5"], r"data\.path=\S*nope\.h5: no such file"),
    ],
)
def test_what_is_wrong_with_the_data_names_the_key_that_was_typed(overrides: list[str], line: str) -> None:
    """Not the key, data.input_shape, whose value was being asked of the file."""
    with pytest.raises(ConfigError, match=f"^{line}"):
        compose_here(PROGRAM, overrides, ROOT)
