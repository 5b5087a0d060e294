"""tools/mutate.py and its table of mutations: each promise of docs/guarantees.md has a test that can fail."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mutations
import pytest
from common import ROOT

from samebits.testing.processes import limit, processes_with, sample_of, wait_for

MUTATE = [sys.executable, str(ROOT / "tools/mutate.py")]
SEED = ("packages/samebits/src/samebits/steps/seed.py", "--sample", "1")


@pytest.fixture(scope="module")
def mutate() -> Any:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools/mutate.py")
    assert spec is not None
    assert spec.loader is not None
    tool = sys.modules["mutate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_what_the_tool_names_is_there(mutate: ModuleType) -> None:
    for module, tests in mutate.TESTS.items():
        assert (ROOT / module).is_file()
        mutate.check_tests(tests)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["contract", "names"])
def test_each_mutation_changes_one_place(mutate: ModuleType, table: str) -> None:
    """And names tests that there are."""
    found = mutate.mutations_in(table)
    for one in found:
        mutate.check_tests(one.tests)
    assert len({(one.file, one.source) for one in found}) == len(found) > 0


def test_each_test_that_holds_the_contract_has_a_mutation() -> None:
    named = set(re.findall(r"`((?:tests|checks|packages)/[\w/]+\.py::\w+)`", (ROOT / "docs/guarantees.md").read_text()))
    assert len(named) > 25
    assert named - {test.partition("[")[0] for _, _, _, test, *_ in mutations.CONTRACT} == set()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("src/lab/loop.py", "no such text", "", "tests/lab/test_loop.py")], "src/lab/loop.py has 0 times, not once"),
        ([("src/lab/loop.py", "state", "", "tests/lab/test_loop.py")], r"src/lab/loop.py has \d+ times, not once"),
        ([("src/lab/gone.py", "state", "", "tests/lab/test_loop.py")], "src/lab/gone.py has 0 times, not once"),
        (
            [("src/lab/optimizer_step.py", "def clip(", "def (", "tests/lab/test_loop.py")],
            "src/lab/optimizer_step.py: not Python",
        ),
        (
            [("src/lab/optimizer_step.py", "def clip(", "def cut(", "tests/test_gone.py::test_a")],
            "no such file of tests: .*gone",
        ),
    ],
)
def test_a_mutation_that_is_none_is_a_mistake(
    mutate: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: list[Any], said: str
) -> None:
    monkeypatch.setattr(mutate.runpy, "run_path", lambda path: {"CONTRACT": rows})
    with pytest.raises(mutate.Mistake, match=said):
        mutate.check_tests([test for one in mutate.mutations_in("contract") for test in one.tests])


@pytest.mark.slow
def test_tests_that_are_missing_end_it_at_once() -> None:
    done = subprocess.run([*MUTATE, *SEED, "--tests", "tests/gone.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: no such file of tests: tests/gone.py\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks into /proc")
def test_ended_by_a_signal_it_leaves_nothing(tmp_path: Path) -> None:
    """Neither its forks nor what these have started, nor its copy of the project."""
    (temporary := tmp_path / "temporary").mkdir()
    hangs = tmp_path / "test_hangs.py"
    hangs.write_text(f"""import subprocess, sys, time

def test_hangs():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {str(temporary)!r}], start_new_session=True)
    time.sleep(600)
""")
    command = [*MUTATE, *SEED, "--tests", str(hangs)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    wait_for(lambda: processes_with(str(temporary)), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(limit(30)) == 128 + signal.SIGTERM
    assert processes_with(str(hangs)) == processes_with(str(temporary)) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", sample_of(["1/94"], ["1/4", "2/4", "3/4", "4/4"]))
def test_each_promise_has_a_test_that_can_fail(part: str) -> None:
    """Two; .github/workflows/test.yml asks for all, in a step of its own."""
    done = subprocess.run([*MUTATE, "--table", "contract", "--part", part], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
