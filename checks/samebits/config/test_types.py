"""A value of another type in a checkpoint, status.json or environment.json, by damage or of a stranger, is one line.

Nothing of the run is changed then, but for lines of train.log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, ROOT
from test_untrusted import main

from samebits.checkpoints import load_checkpoint, save_checkpoint
from samebits.errors import CorruptFileError
from samebits.files import KINDS, RESTORE, read_json
from samebits.testing import start_run
from samebits.testing.processes import sample_of

OTHERS: dict[str, Any] = {
    "null": None, "list": [], "nested": [[1]], "dict": {}, "deep": {"a": {"b": [1]}}, "text": "x", "number": 7,
    "negative": -1, "huge": 10**40, "nan": float("nan"), "bool": True,
}  # fmt: skip
COMMANDS = [name for name in ("report", "verify") if (ROOT / f"src/{name}.py").exists()]  # a fork may lack one
TENSORS = {
    "meta": lambda: torch.empty(2, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "stride of 0": lambda: torch.zeros(1).expand(30_000_000_000),
    "larger than its storage": lambda: torch.zeros(8).as_strided((4, 4), (1, 1)),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("begun") / "run"
    start_run(run, *QUICK, "trainer.max_steps=4", "trainer.eval_every=2", "trainer.save_every=2", "trainer.log_every=1",
              "trainer.ema_decay=0.5")  # fmt: skip
    return run


def tree(run: Path) -> dict[str, bytes]:
    left_out = ("train.log", ".lock")
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in left_out}


def others(value: Any) -> Iterator[tuple[str, Any]]:
    for name, other in OTHERS.items():
        if type(other) is not type(value):
            yield name, other


def paths(value: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    """To the value's entries and, down to `depth`, to theirs; of a list to its first."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (key,)
        yield from ((key, *more) for more in (paths(inner, depth - 1) if depth else ()))


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy with another value there."""
    if not path:
        return other
    if isinstance(value, list):
        return [put(one, path[1:], other) if number == path[0] else one for number, one in enumerate(value)]
    return {**value, path[0]: put(value[path[0]], path[1:], other)}


def at(value: Any, path: tuple[Any, ...]) -> Any:
    return at(value[path[0]], path[1:]) if path else value


def damage(read: Callable[[], Any]) -> str:
    """What it is said to be; empty: it is read."""
    try:
        read()
    except CorruptFileError as error:
        return str(error)
    return ""


def ended_well(status: int, error: str) -> None:
    """Without a mistake, or with one line."""
    assert "Traceback" not in error, error
    lines = [line for line in error.splitlines() if line.startswith(("error: ", "failed: "))]
    assert (status, len(lines)) in ((0, 0), (1, 1), (2, 1)), (status, error)


# ---- checkpoints


@pytest.mark.one_quick(5)
@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_without_memory_of_its_own_is_damage(kind: str, begun: Path, tmp_path: Path) -> None:
    """Each of them, wherever it is."""
    payload = load_checkpoint(begun / "checkpoints" / "last_000000004.pt")
    places = [
        ("model", next(iter(payload["model"]))),
        ("optimizer", "state", 0, "exp_avg"),
        ("schedule", "x"),
        ("order",),
    ]
    for place in places:
        content = put({**payload, "schedule": {**payload["schedule"], "x": 0}}, place, TENSORS[kind]())
        save_checkpoint(content, tmp_path / "a.pt")
        with pytest.raises(CorruptFileError, match=r"a\.pt does not load: it contains a .*(never saves|larger than)"):
            load_checkpoint(tmp_path / "a.pt")


def test_tensors_that_share_memory_and_sparse_ones_are_none(begun: Path, tmp_path: Path) -> None:
    payload = load_checkpoint(begun / "checkpoints" / "last_000000004.pt")
    whole = torch.arange(12.0)
    made = {"a": whole, "b": whole[3:7], "c": whole.view(3, 4).t(), "d": whole[:1].expand(1), "e": torch.empty(0, 3),
            "f": torch.eye(3).to_sparse(), "g": torch.zeros(())}  # fmt: skip
    save_checkpoint({**payload, "model": made}, tmp_path / "a.pt")
    found = load_checkpoint(tmp_path / "a.pt")["model"]
    assert all(torch.equal(found[name].to_dense(), value.to_dense()) for name, value in made.items())


def mutated(payload: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    for path in paths(payload, 2):
        for name, other in others(at(payload, path)):
            yield path, name, other


def test_an_entry_of_another_type_is_damage_or_harmless(begun: Path, tmp_path: Path) -> None:
    """All the entries that a run reads by itself; those of optimizers and weights are read by torch."""
    payload = load_checkpoint(begun / "checkpoints" / "last_000000004.pt")
    may_be = {"null": ("ema", "scaler", "source", "order", "best_score"), "list": ("best", "ranks"), "dict": ("ema",)}
    tried = 0
    for path, name, other in mutated(payload):
        if len(path) > 1 and path[0] in ("optimizer", "model", "ema", "task"):
            continue
        tried += 1
        torch.save(put(payload, path, other), tmp_path / "a.pt")
        if said := damage(lambda: load_checkpoint(tmp_path / "a.pt")):
            assert "\n" not in said
            continue
        top = str(path[0])
        empty = name in ("list", "dict", "null") or top in ("order", "scaler", "source")
        number = name in ("number", "bool", "nan", "huge", "negative") and top in ("best", "best_score")
        assert empty or number or top in may_be.get(name, ()) or (len(path), top) == (2, "schedule"), (path, name)
    assert tried > 150


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(sample_of(1, 8)))
def test_a_resume_and_an_evaluation_end_in_one_line(
    number: int, begun: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both checkpoints of a step changed alike: nothing else to go back to."""
    run, cases = tmp_path / "run", list(mutated(load_checkpoint(begun / "checkpoints" / "last_000000004.pt")))
    for path, name, other in cases[number :: sample_of(640, 80)]:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(begun, run)
        for file in sorted((run / "checkpoints").iterdir()):
            torch.save(put(torch.load(file, weights_only=True), path, other), file)
        before = tree(run)
        for command in (("evaluate.py", run), ("train.py", f"resume={run}", "trainer.max_steps=5")):
            status = main(*command)
            ended_well(status, capfd.readouterr().err)
            if status:
                assert tree(run) == before, (path, name)


# ---- status.json, environment.json


@pytest.mark.one_quick(3)
@pytest.mark.parametrize("name", ["environment.json", "status.json"])
@pytest.mark.parametrize("command", [*COMMANDS, "resume"])
def test_a_file_with_another_type_is_one_line(
    command: str, name: str, begun: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, run = json.loads((begun / name).read_text()), tmp_path / "run"
    cases = [(path, kind, other) for path in paths(content, 1) for kind, other in others(at(content, path))]
    for path, kind, other in cases[len(command) :: 83]:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(begun, run)
        (run / name).write_text(json.dumps(put(content, path, other)))
        before = tree(run)
        status = {
            "report": lambda: main(f"{command}.py", run, "--out", tmp_path / "report"),
            "verify": lambda: main("verify.py", run, "--steps", 1),
            "resume": lambda: main("train.py", f"resume={run}", "trainer.max_steps=5"),
        }[command]()
        ended_well(status, capfd.readouterr().err)
        if status:
            assert tree(run) == before, (path, kind)


def test_each_entry_has_a_type(begun: Path, tmp_path: Path) -> None:
    """Of what a run writes today; another type is said with the entry's name."""
    for name, kinds in KINDS.items():
        content = json.loads((begun / name).read_text())
        assert content.keys() <= kinds.keys()
        for key, value in content.items():
            found = 0
            for _, other in others(value):
                (tmp_path / name).write_text(json.dumps({**content, key: other}))
                if said := damage(partial(read_json, tmp_path / name)):
                    assert said == f"{tmp_path / name}: damaged, of another type than a run writes: {key}{RESTORE}"
                    found += 1
            assert found >= 6, key
