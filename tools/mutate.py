#!/usr/bin/env python3
"""Break one line of the core at a time and see whether a test turns red (mutation testing).

    ./run python tools/mutate.py src/engine/ranks/seed.py
    ./run python tools/mutate.py src/lab/loop.py --sample 40 --seed 1
    ./run python tools/mutate.py src/lab/optim.py --lines 90-120

Works in a copy of the tracked files. torch is imported once; each break is a fork that imports the broken module and
runs the tests of TESTS until the first failure. What no test notices is listed at the end with its line; a run that
exceeds its limit counts as noticed. Exit status 1 if less than --at-least of the breaks were noticed.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import copy
import gc
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# module -> arguments of pytest that one would expect to notice a break in it, the quickest first
TESTS = {
    "src/lab/loop.py": ["tests/test_loop.py", "tests/test_reference.py::test_a_run_is_what_a_plain_loop_computes"],
    "src/lab/state.py": ["tests/test_loop.py", "tests/test_state.py"],
    "src/lab/optim.py": ["tests/test_optim.py"],
    "src/engine/ranks/seed.py": ["tests/test_seed.py"],
    "src/engine/data/order.py": [
        "tests/test_order.py", "-k=not class and not chunks and not windows and not independent and not length and not "
        "equally and not place and not cost and not experiment",
    ],
    "src/engine/data/loader.py": ["tests/test_loader.py", "-k=not process_with_a_ring"],
    "src/engine/checkpoints/checkpoint.py": ["tests/test_checkpoint.py", "tests/test_damage.py"],
    "src/engine/sweeps/ledger.py": ["tests/test_ledger.py", "tests/test_sweep_alike.py"],
}  # fmt: skip
LIMIT_S = 240.0

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Break:
    line: int
    what: str  # before -> after
    source: str  # the whole broken module


class _Breaker(ast.NodeTransformer):
    """Applies the `wanted`-th possible break, counted in the order of the tree; `what` stays None beyond the last."""

    def __init__(self, wanted: int) -> None:
        self.left, self.what, self.line = wanted, None, 0

    def _here(self, node: ast.AST, make: ast.AST, kind: str = "") -> ast.AST:
        if self.left == 0 and self.what is None:
            before, after = (" ".join(ast.unparse(n).split())[:70] for n in (node, make))
            self.what, self.line = f"{kind}{before}  ->  {after}", node.lineno  # type: ignore[attr-defined]
            self.left -= 1
            return ast.copy_location(make, node)
        self.left -= 1
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        if self.what is not None:
            return node
        # messages, annotations and invariants are no behaviour that a test could see
        if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.arg)):
            return node
        if isinstance(node, ast.Raise):
            return self._here(node, ast.Pass())
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return node
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):  # a docstring
                return node
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith(("log.", "logger.say")):
                return node
            if not isinstance(node.value, (ast.Yield, ast.YieldFrom)):
                broken = self._here(node, ast.Pass())
                return broken if self.what is not None else self.generic_visit(node)
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)  # type: ignore[assignment]
            return node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.args.defaults = [self.visit(d) for d in node.args.defaults]  # type: ignore[misc]
            node.body = [self.visit(s) for s in node.body]  # type: ignore[misc]
            return node
        if isinstance(node, ast.ClassDef):  # without its decorators: that a dataclass is frozen is for its readers
            node.body = [self.visit(s) for s in node.body]  # type: ignore[misc]
            return node
        for broken in _breaks(node):
            made = self._here(node, broken)
            if self.what is not None:
                return made
        return self.generic_visit(node)


def _breaks(node: ast.AST) -> Iterator[ast.AST]:
    """What this node could be broken to."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1:
        new.ops = [COMPARE[type(new.ops[0])]()]
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, (ast.Not, ast.USub)):
        yield new.operand
    elif isinstance(new, ast.BinOp) and type(new.op) in ARITHMETIC and not _is_text(new):
        new.op = ARITHMETIC[type(new.op)]()
        yield new
    elif isinstance(new, ast.AugAssign) and type(new.op) in ARITHMETIC:
        new.op = ARITHMETIC[type(new.op)]()
        yield new
        yield ast.Pass()
    elif isinstance(new, ast.Constant) and isinstance(new.value, (bool, int, float)):
        yield ast.Constant((not new.value) if isinstance(new.value, bool) else new.value + 1)
    elif isinstance(new, (ast.If, ast.IfExp)) and not isinstance(new.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield ast.fix_missing_locations(new)
    elif isinstance(new, ast.Return) and new.value is not None and not _is_none(new.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(new, ast.Assign) and not isinstance(new.targets[0], (ast.Name, ast.Tuple)):
        yield ast.Pass()  # an attribute or an item that is not set
    elif isinstance(new, (ast.Delete, ast.Continue, ast.Break)):
        yield ast.Pass()


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", None), str) for n in ast.walk(node))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def breaks_of(path: Path) -> list[Break]:
    text, found = path.read_text(encoding="utf-8"), []
    tree = ast.parse(text)
    while True:
        breaker = _Breaker(len(found))
        broken = breaker.visit(copy.deepcopy(tree))
        if breaker.what is None:
            return found
        found.append(Break(breaker.line, breaker.what, ast.unparse(ast.fix_missing_locations(broken))))


def copy_project() -> Path:
    target = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    compileall.compile_dir(str(target / "src"), quiet=1)
    return target


class _Bounded:
    """A plugin: conftest.py need not measure how slow the machine is, as each run of the tests has a limit here."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        import pytest

        for item in items:
            item.add_marker(pytest.mark.timeout(self.limit_s))


def depending(project: Path, target: Path) -> set[str]:
    """The modules that import `target`, itself among them, at any depth: these alone are imported anew in each fork."""
    imports: dict[str, set[str]] = {}
    for path in (project / "src").rglob("*.py"):
        name = ".".join(path.relative_to(project / "src").with_suffix("").parts).removesuffix(".__init__")
        found = imports.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if path == target:
            reached = {name}
    while more := {name for name, found in imports.items() if name not in reached and found & reached}:
        reached |= more
    return reached


def import_what_stays(project: Path, target: Path, names: list[str]) -> None:
    """Of the modules that the tests had loaded at their end: those that no break changes, once and not in each fork."""
    changing = depending(project, target)
    sys.path.insert(0, str(project / "src"))
    for name in names:
        if name not in changing:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def run_tests(project: Path, tests: list[str], log: Path, limit_s: float, loaded: Path | None = None) -> str:
    """pytest in a fork of this process: passed, failed or late. loaded: a file to list the modules in that it had."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        with open(log, "wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(project)
        sys.path[:0] = [str(project / "src"), str(project / "tests")]
        status = 3
        try:
            import hypothesis
            import pytest

            # the same examples for all breaks, and none made smaller: what fails need not be read
            hypothesis.settings.register_profile(
                "broken", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], database=None, derandomize=True
            )
            hypothesis.settings.load_profile("broken")
            options = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "pytest_timeout"]
            for plugin in ("cacheprovider", "unraisableexception", "threadexception"):
                options += ["-p", f"no:{plugin}"]
            status = int(pytest.main([*options, "--rootdir", str(project), *tests], plugins=[_Bounded(limit_s)]))
            if loaded is not None:
                tests_of = str(project / "tests")
                own = (n for n, m in sys.modules.items() if not str(getattr(m, "__file__", "")).startswith(tests_of))
                loaded.write_text(json.dumps(list(own)))
        finally:
            sys.stdout.flush()
            os._exit(status)
    end, status = time.monotonic() + limit_s, None
    while status is None and time.monotonic() < end:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the tests left, or all of it
    if status is None:
        os.waitpid(pid, 0)
        return "late"
    return "passed" if status == 0 else "failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help=f"one of {', '.join(TESTS)}, or any with --tests")
    parser.add_argument("--tests", nargs="+", help="pytest's arguments instead of those of TESTS")
    parser.add_argument("--sample", type=int, help="so many breaks, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", help="only breaks of these lines: 90-120")
    parser.add_argument("--list", action="store_true", help="list the breaks, run nothing")
    parser.add_argument("--out", type=Path, help="a .jsonl to add the outcomes to")
    parser.add_argument("--at-least", type=float, default=0.0)
    given = parser.parse_args()
    breaks = breaks_of(ROOT / given.module)
    if given.lines:
        first, last = map(int, given.lines.split("-"))
        breaks = [b for b in breaks if first <= b.line <= last]
    if given.sample and given.sample < len(breaks):
        breaks = sorted(random.Random(given.seed).sample(breaks, given.sample), key=lambda b: b.line)
    if given.list:
        for b in breaks:
            print(f"{given.module}:{b.line}  {b.what}")
        return 0
    import torch

    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    project = copy_project()
    tests = given.tests or [t for t in TESTS[given.module] if t.startswith("-") or (ROOT / t.split("::")[0]).exists()]
    target, log, loaded = project / given.module, project / "mutant.log", project / "loaded.json"
    began = time.monotonic()
    if (outcome := run_tests(project, tests, log, LIMIT_S, loaded)) != "passed":
        print(log.read_text()[-3000:], f"the tests are red before anything is broken ({outcome}): {project}", sep="\n")
        return 2
    limit_s = 15 + 2 * (time.monotonic() - began)
    import_what_stays(project, target, json.loads(loaded.read_text()))
    gc.freeze()  # no fork has to look through all of this
    # the tests are compiled now; of the module to break nothing compiled may be there, as sources of one second and
    # one size are taken for the same
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for path in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        path.unlink()
    unseen = []
    for number, b in enumerate(breaks, start=1):
        target.write_text(b.source, encoding="utf-8")
        outcome = run_tests(project, tests, log, limit_s)
        if outcome == "passed":
            unseen.append(b)
        said = "UNSEEN " if outcome == "passed" else "noticed"
        print(f"{number}/{len(breaks)} {said} {given.module}:{b.line}  {b.what}", flush=True)
        if given.out:
            with open(given.out, "a", encoding="utf-8") as out:
                line = {"module": given.module, "line": b.line, "what": b.what, "outcome": outcome}
                out.write(json.dumps(line) + "\n")
    shutil.rmtree(project, ignore_errors=True)
    noticed = len(breaks) - len(unseen)
    print(f"\n{given.module}: {noticed} of {len(breaks)} breaks noticed ({noticed / max(len(breaks), 1):.0%})")
    for b in unseen:
        print(f"  unseen  {given.module}:{b.line}  {b.what}")
    return 1 if breaks and noticed / len(breaks) < given.at_least else 0


if __name__ == "__main__":
    sys.exit(main())
