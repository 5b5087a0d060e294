#!/usr/bin/env python3
"""Mutate one line of the source at a time and check that a test fails (mutation testing).

    ./run python tools/mutate.py --table contract                       # mutations of checks/helpers/mutations.py
    ./run python tools/mutate.py --table names --part 1/4
    ./run python tools/mutate.py src/lab/loop.py --sample 40 --seed 1   # operators and statements; tests: see TESTS
    ./run python tools/mutate.py src/lab/optim.py --lines 90-120

It works in a copy of the tracked files. torch is imported once; for each mutation a forked process imports the broken
project and runs the tests until the first failure; processes that tests start read the copy too. Mutations that no test
notices are listed at the end; one that exceeds its time limit counts as noticed. Exit status: 1 if a mutation of a
table is not noticed, or a smaller share of a module's than --at-least; 2 for a mistake, or if tests fail without a
mutation.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import copy
import gc
import json
import os
import py_compile
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
# module -> arguments of pytest: the tests that should notice a mutation of the module, the fastest first
TESTS = {
    "src/lab/loop.py": (
        "tests/lab/test_loop.py", "tests/lab/test_reference.py::test_a_run_is_what_a_plain_loop_computes",
    ),
    "src/lab/optimizer_step.py": (
        "tests/lab/test_loop.py", "tests/lab/test_reference.py::test_a_run_is_what_a_plain_loop_computes",
        "tests/lab/test_task_sam.py",
    ),
    "src/lab/evaluation.py": ("tests/lab/test_loop.py", "tests/lab/test_eval_loader.py"),
    "src/lab/average.py": ("tests/lab/test_task_swa.py", "tests/lab/test_loop.py"),
    "src/lab/logging.py": ("tests/lab/test_loop.py",),
    "src/lab/state.py": ("tests/lab/test_loop.py", "tests/lab/test_state.py"),
    "src/lab/optim.py": ("tests/lab/test_optim.py",),
    "packages/samebits/src/samebits/steps/seed.py": ("checks/samebits/device/test_seed.py",),
    "packages/samebits/src/samebits/data/order.py": (
        "checks/project/test_experiments.py", "-k=not class and not chunks and not windows and not independent and not "
        "length and not equally and not place and not cost and not experiment",
    ),
    "packages/samebits/src/samebits/data/loading/loader.py": (
        "packages/samebits/tests/data/test_loader.py", "-k=not process_with_a_ring",
    ),
    "packages/samebits/src/samebits/checkpoints/checkpoint.py": (
        "packages/samebits/tests/runs/test_checkpoint.py", "checks/samebits/data/test_damage.py",
    ),
    "packages/samebits/src/samebits/sweeps/ledger.py": (
        "checks/sweeps/test_ledger.py", "checks/sweeps/test_sweep_alike.py",
    ),
}  # fmt: skip
LIMIT_S = 1500.0  # time limit of the tests without a mutation, on a shared machine

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Mistake(Exception):
    pass


@dataclass(frozen=True)
class Mutation:
    file: str
    line: int
    what: str  # before -> after
    source: str  # the whole broken module
    tests: Sequence[str]
    unseen_as: str = ""  # why no test can notice it

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.what}"


class _Breaker(ast.NodeTransformer):
    """Apply the `wanted`-th possible mutation, counted in the order of the tree; `what` stays None beyond the last."""

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
        # skip messages, annotations and invariants: no test can observe them
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
        if isinstance(node, ast.ClassDef):  # without its decorators: frozen=True of a dataclass is for readers
            node.body = [self.visit(s) for s in node.body]  # type: ignore[misc]
            return node
        for broken in _mutations(node):
            made = self._here(node, broken)
            if self.what is not None:
                return made
        return self.generic_visit(node)


def _mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the broken versions of this node."""
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


def mutations_of(file: str, tests: Sequence[str]) -> list[Mutation]:
    """Return all mutations that _Breaker finds in a module."""
    tree, found = ast.parse((ROOT / file).read_text(encoding="utf-8")), []
    while True:
        breaker = _Breaker(len(found))
        broken = breaker.visit(copy.deepcopy(tree))
        if breaker.what is None:
            return found
        source = ast.unparse(ast.fix_missing_locations(broken))
        found.append(Mutation(file, breaker.line, breaker.what, source, tests))


def mutations_in(table: str) -> list[Mutation]:
    """Return the mutations of a table. Raise Mistake if a row's text is not in its file exactly once."""
    found, misplaced = [], []
    for file, old, new, tests, *unseen_as in runpy.run_path(str(ROOT / "checks/helpers/mutations.py"))[table.upper()]:
        places = [ROOT / file, *ROOT.glob(f"packages/*/src/{file}")]
        place = next((place for place in places if place.is_file()), None)
        text = "" if place is None else place.read_text(encoding="utf-8")
        if (count := text.count(old)) != 1:
            misplaced.append(f"checks/helpers/mutations.py: {file} has {count} times, not once: {old}")
            continue
        source, line = text.replace(old, new), text[: text.index(old)].count("\n") + 1
        try:
            ast.parse(source if file.endswith(".py") else "")
        except SyntaxError as error:
            raise Mistake(
                f"checks/helpers/mutations.py: {file}: not Python with {new!r} for {old!r}: {error}"
            ) from None
        what = "  ->  ".join(" ".join(part.split()) for part in (old, new))
        assert place is not None
        found.append(
            Mutation(
                str(place.relative_to(ROOT)),
                line,
                what,
                source,
                (tests,) if isinstance(tests, str) else tests,
                *unseen_as,
            )
        )
    if misplaced:
        raise Mistake("\n".join(misplaced))
    return found


def check_tests(tests: Sequence[str]) -> None:
    for test in tests:
        if not test.startswith("-") and not (ROOT / test.split("::")[0]).is_file():
            raise Mistake(f"no such file of tests: {test}")


@contextlib.contextmanager
def copied_project() -> Iterator[Path]:
    """Yield a temporary folder with the tracked and new files. At the end, kill all processes that work there."""
    listed = ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    project = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
    try:
        for name in names:
            if name and (ROOT / name).is_file():
                (project / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, project / name)
        # checked by content: two sources of equal size, written in the same second, would count as the same
        by_bytes = py_compile.PycInvalidationMode.CHECKED_HASH
        for code in (project / "src", *project.glob("packages/*/src")):
            compileall.compile_dir(str(code), quiet=1, invalidation_mode=by_bytes)
        yield project
    finally:
        end_all_in(project)
        shutil.rmtree(project, ignore_errors=True)


def end_all_in(folder: Path) -> None:
    """Send SIGKILL to all processes whose current directory is in a folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                os.kill(int(entry.name), signal.SIGKILL)


class _Plugin:
    """Give each test the time limit of the run, so that conftest.py does not measure the machine; and turn off
    hypothesis' shrinking, because nobody reads its examples."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("broken", settings(), phases=phases, database=None)
        settings.load_profile("broken")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        import pytest

        for item in items:
            item.add_marker(pytest.mark.timeout(self.limit_s))


def run_tests(project: Path, arguments: Sequence[str], limit_s: float) -> str:
    """Run pytest in a fork of this process. Return passed, failed, late, or its exit status as text."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        status = 3
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            os.chdir(project)
            out = os.open("mutant.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            folders = ("src", "tests", "checks/helpers", *(f"packages/{name}/src" for name in ("h5rows", "samebits")))
            sys.path[:0] = [str(project / folder) for folder in folders]
            import pytest

            options = ["-x", "-q", "--tb=short", "--assert=plain", "-p", "pytest_timeout", "--basetemp=basetemp"]
            for plugin in ("cacheprovider", "unraisableexception", "threadexception"):
                options += ["-p", f"no:{plugin}"]
            status = int(pytest.main([*options, f"--rootdir={project}", *arguments], plugins=[_Plugin(limit_s)]))
        finally:
            sys.stdout.flush()
            os._exit(status)
    end, status = time.monotonic() + limit_s, None
    try:
        while status is None and time.monotonic() < end:
            time.sleep(0.02)
            done, code = os.waitpid(pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # processes that the tests left or, after the limit, all of them
    if status is None:
        os.waitpid(pid, 0)
        return "late"
    end_all_in(project)
    return {0: "passed", 1: "failed"}.get(status, f"pytest ended with {status}")


def judge(project: Path, mutations: Sequence[Mutation], options: Sequence[str], out: Path | None) -> list[Mutation]:
    """Run the tests on each mutation. Return the mutations that no test noticed."""
    began, tests = time.monotonic(), list(dict.fromkeys(test for b in mutations for test in b.tests))
    if (outcome := run_tests(project, [*options, *tests], LIMIT_S)) != "passed":
        log = (project / "mutant.log").read_text()[-3000:]
        raise Mistake(f"{log}\nthe tests are red before anything is broken ({outcome})")
    limit_s, unseen = 15 + 2 * (time.monotonic() - began), []
    for number, b in enumerate(mutations, start=1):
        began, whole = time.monotonic(), (project / b.file).read_bytes()
        (project / b.file).write_text(b.source, encoding="utf-8")
        outcome = run_tests(project, [*options, *b.tests], limit_s)
        (project / b.file).write_bytes(whole)
        if outcome == "passed":
            unseen.append(b)
        elif outcome.startswith("pytest"):  # an import error, for example: no test has run
            raise Mistake(f"{(project / 'mutant.log').read_text()[-3000:]}\n{b}: {outcome}")
        said = "UNSEEN " if outcome == "passed" else "noticed"
        print(f"{number}/{len(mutations)} {said} {time.monotonic() - began:5.1f} s  {b}", flush=True)
        if out:
            with open(out, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"file": b.file, "line": b.line, "what": b.what, "outcome": outcome}) + "\n")
    return unseen


def ended(number: int, frame: Any) -> NoReturn:
    sys.exit(128 + number)  # unlike the signal, this runs the `finally` of copied_project


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="?", help=f"one of {', '.join(TESTS)}, or any with --tests")
    parser.add_argument("--table", choices=("contract", "names"), help="mutations of checks/helpers/mutations.py")
    parser.add_argument("--part", help="every n-th mutation from the k-th: 2/4")
    parser.add_argument("--tests", nargs="+", help="pytest's arguments instead of those of TESTS")
    parser.add_argument("--sample", type=int, help="so many mutations, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", help="only mutations of these lines: 90-120")
    parser.add_argument("--list", action="store_true", help="list the mutations, run nothing")
    parser.add_argument("--out", type=Path, help="a .jsonl to add the outcomes to")
    parser.add_argument("--at-least", type=float, default=0.0)
    given = parser.parse_args()
    if (given.module is None) == (given.table is None):
        parser.error("give a module or --table")
    if given.module and not given.tests and given.module not in TESTS:
        parser.error(f"{given.module}: give its --tests, or one of {', '.join(TESTS)}")
    signal.signal(signal.SIGTERM, ended)
    try:
        if given.table:
            mutations = mutations_in(given.table)
        else:
            mutations = mutations_of(given.module, given.tests or TESTS[given.module])
        check_tests([test for b in mutations for test in b.tests])
        if given.lines:
            first, last = map(int, given.lines.split("-"))
            mutations = [b for b in mutations if first <= b.line <= last]
        if given.part:
            k, n = map(int, given.part.split("/"))
            mutations = mutations[k - 1 :: n]
        if given.sample and given.sample < len(mutations):
            mutations = sorted(random.Random(given.seed).sample(mutations, given.sample), key=lambda b: b.line)
        if given.list or not mutations:
            print(*mutations, sep="\n")
            return 0
        import h5py
        import hydra
        import hypothesis
        import pytest
        import torch

        _ = h5py, hydra, hypothesis, pytest  # imported here, so that the forks do not import them again
        torch.set_num_threads(1)
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:  # set by a test that runs this script
            del os.environ[name]
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        gc.freeze()  # so that garbage collections in the forks skip the objects of the imports
        with copied_project() as project:
            unseen = judge(project, mutations, ("-m", ""), given.out)  # by slow tests too
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    noticed = len(mutations) - len(unseen)
    share = f"{noticed} of {len(mutations)} mutations noticed ({noticed / len(mutations):.0%})"
    print(f"\n{given.module or given.table}: {share}")
    for b in unseen:
        print(f"  unseen  {b}{b.unseen_as and f'  ({b.unseen_as})'}")
    if given.table:
        return int(any(not b.unseen_as for b in unseen))
    return int(noticed / len(mutations) < given.at_least)


if __name__ == "__main__":
    sys.exit(main())
