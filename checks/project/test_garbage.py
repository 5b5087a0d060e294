"""Python's garbage collector runs between steps, at the same ones on all ranks, and as before after the training."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT

import lab.loop
from samebits.host import collect_garbage, no_garbage_collection
from samebits.testing import start_run


@pytest.mark.slow
def test_it_runs_every_hundred_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    inside: list[tuple[bool, bool]] = []
    original = lab.loop.train_step

    def train_step(loss_modules: Any, state: Any, *rest: Any) -> Any:
        done.append(state.step)
        if state.step in (0, 150):  # the count goes through all objects
            inside.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return original(loss_modules, state, *rest)

    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and done and done[-1] < 204:
            collected.append(done[-1] + 1)

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    gc.callbacks.append(note)
    try:
        start_run(tmp_path / "run", *QUICK, "trainer.max_steps=205", "trainer.eval_every=null")
    finally:
        gc.callbacks.remove(note)
    assert collected == [100, 200]
    assert set(inside) == {(False, True)}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), no_garbage_collection():
            _ = 1 / (gc.isenabled())
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_outside_of_the_training_python_collects_by_itself() -> None:
    def note(phase: str, info: dict[str, int]) -> None:
        whole.append(info["generation"] == 2)

    whole: list[bool] = []
    assert gc.isenabled()
    gc.callbacks.append(note)
    try:
        collect_garbage(0)  # as the first batch of the final scores does
    finally:
        gc.callbacks.remove(note)
    assert not any(whole)


def test_what_was_there_before_is_not_looked_through() -> None:
    class Held:
        pass

    def cycle() -> None:
        a = Held()
        a.me = a  # type: ignore[attr-defined]

    def count() -> int:
        return sum(isinstance(one, Held) for one in gc.get_objects())

    with no_garbage_collection():
        cycle()
        collect_garbage(99)
        assert count() == 1
        collect_garbage(100)
        assert count() == 0


def test_a_command_collects_rarely_and_not_when_it_ends(tmp_path: Path) -> None:
    """Files are complete that are still open then, of objects that refer to each other."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 1000))  # called last\n"
        f"sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "import _python\n"
        "before = gc.get_stats()[0]['collections']\n"
        "kept = [[] for _ in range(20_000)]\n"
        "print('few', gc.get_stats()[0]['collections'] - before < 10)\n"
        "for held in (lambda: 1), (lambda: 2):\n"
        "    held.me, held.file = held, open(f'{sys.argv[1]}/{held()}', 'w')\n"
        "    held.file.write('kept')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["few True", "frozen True"]
    assert [(tmp_path / name).read_text() for name in ("1", "2")] == ["kept", "kept"]
