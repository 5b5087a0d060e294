"""Three packages, walls, and rooms in layers: who imports whom, and that all are imported through their pages."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import get_origin, get_type_hints

import pytest
from common import LIBRARIES, ROOT

import lab
from h5rows.lazy_imports import names_of as listed_of
from lab.groups import RootConfig
from lab.options import TrainerConfig
from samebits.lazy_imports import names_of
from samebits.parallel import Strategy

SRC = ROOT / "src"
# each imports only those before it; below them the engine's single modules (errors, files, locks, ...)
ROOMS = (
    "host", "children", "targets", "saved", "config", "code", "status", "runs", "loggers", "world", "shards",
    "parallel", "steps", "device", "compiling", "checkpoints", "data", "profiling", "process",
)  # fmt: skip
TESTING = ("testing.processes", "testing.devices", "testing")
FOLDERS = (*ROOMS, "sweeps.report", "sweeps", "sweeps.verify", *TESTING)
SAMEBITS = ROOT / "packages/samebits/src/samebits"
PAGES = {f"samebits.{name}": SAMEBITS / name.replace(".", "/") / "__init__.py" for name in FOLDERS}
PAGES = {name: page for name, page in PAGES.items() if page.exists()}  # a fork may have no reports
NOT_YOURS = ("h5rows", "samebits")  # in a fork; neither imports the other
H5ROWS = ROOT / "packages/h5rows/src/h5rows"
LIBRARY = {"h5rows": "__init__.py", "h5rows.integration": "integration.py"}  # page for all, for programs


def modules() -> dict[str, Path]:
    """{module: file} of src/ and the libraries: a page is the module `samebits.<room>`, ..."""
    found = {path: source for source in (SRC, *LIBRARIES) for path in sorted(source.rglob("*.py"))}
    names = {path: ".".join(path.relative_to(source).with_suffix("").parts) for path, source in found.items()}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, in functions too; "a.b" of `from a import b` where that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            both = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else str(node.module) for full in both.values()}
    return found


MODULES = modules()
USERS = ("benchmarks", "tools")  # of the pages, beside src/


@cache
def imports() -> dict[str, set[str]]:
    return {name: imported(path) for name, path in MODULES.items()}


def room_of(module: str) -> str:
    """samebits.parallel of samebits.parallel.ddp; h5rows of what is in it; "" where it is in no room."""
    names = module.split(".")
    rooms = (".".join(names[:depth]) for depth in (3, 2))
    return next((room for room in rooms if room in PAGES), "h5rows" if names[0] == "h5rows" else "")


@pytest.mark.slow
@pytest.mark.parametrize("package", NOT_YOURS)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    """The libraries know nothing of each other, so that each can be used without the other."""
    ours = {path.stem for path in SRC.iterdir()} | {*NOT_YOURS} - {package}  # lab and the commands too
    assert {"lab", "train"} < ours
    inside = {name: wanted for name, wanted in imports().items() if name.partition(".")[0] == package}
    assert len(inside) > 10  # a fork may have no packing, no reports
    for name, wanted in inside.items():
        assert not {module.partition(".")[0] for module in wanted} & ours, name


def test_lab_translates_the_errors_of_h5rows_where_it_uses_it() -> None:
    """The engine takes h5rows.ConfigError for a failure of the run's code, with a traceback."""
    using = {
        name
        for name, wanted in imports().items()
        if name.startswith("lab.") and any(module.partition(".")[0] == "h5rows" for module in wanted)
    }
    assert {"lab.datasets.h5", "lab.datasets.tokens", "lab.loaders", "lab.project"} <= using
    assert {name for name in using if "lab.h5_errors" not in imports()[name]} == {"lab.h5_errors"}


MOST_LINES = 1492


def test_to_read_the_loop_is_to_read_few_files() -> None:
    """Counted are the lines of all files of lab that lab.loop imports, and that these import, in functions too."""
    found, todo = {"lab.loop"}, ["lab.loop"]
    while todo:
        further = {name for name in imports()[todo.pop()] if name.startswith("lab.")} - found
        found |= further
        todo += further
    lines = {name: len(MODULES[name].read_text().splitlines()) for name in found}
    assert {"lab.optimizer_step", "lab.state", "lab.tasks.base"} < found
    assert sum(lines.values()) <= MOST_LINES, sorted(lines.items(), key=lambda one: -one[1])


def test_no_files_and_no_folders_import_each_other() -> None:
    """Not through others either, and not in functions. A package's own files are above its folders and below them, and
    a page imports what it shows: neither counts as a folder's."""
    files = {name: {module for module in wanted if module in MODULES} for name, wanted in imports().items()}
    folders: dict[str, set[str]] = {}
    for name, wanted in files.items():
        ends = {(folder_of(name), folder_of(module)) for module in wanted if MODULES[name].stem != "__init__"}
        for begin, end in ends:
            if begin != end and "." in begin and "." in end:
                folders.setdefault(begin, set()).add(end)
    assert len(files) > 200
    assert len(folders) > 20
    for graph in (files, folders):
        TopologicalSorter(graph).prepare()  # raises CycleError, which names those of a circle


def folder_of(module: str) -> str:
    return module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]


@pytest.mark.slow
def test_the_engine_names_no_package_of_the_project() -> None:
    """A fork has another name for it, and this very engine: the Project has it. Comments may name the template's."""
    named = [(path, text) for path, text in texts_of_the_engine() if re.search(r"\blab[.\[]|src/lab", text)]
    assert named == []


@pytest.mark.slow
def test_the_engine_names_no_file_class_or_key_of_the_project() -> None:
    """They may be renamed. It knows the groups whose options it defines (samebits/*/options.py), `data`, of its own
    data sets, and of `trainer` what samebits.parallel and samebits.device read."""
    files = {path.stem for path in (SRC / "lab").rglob("*.py")} - {path.stem for path in engine_files()}
    words_of_hydra = {"Config"}
    classes = classes_of((SRC / "lab").rglob("*.py")) - classes_of(engine_files()) - words_of_hydra
    assert {"optimizer_step", "evaluation"} < files and {"TrainState", "Task"} < classes  # noqa: PT018
    schema = get_type_hints(RootConfig)
    open_ended = [name for name, kind in schema.items() if get_origin(kind) is dict and name != "data"]
    assert {"optim", "task", "model"} <= {*open_ended}
    known = {*vars(Strategy), "non_finite", "eval_every"}  # and that there are evaluations, for pruning
    of_trainer = [one.name for one in fields(TrainerConfig) if one.name not in known]
    assert {"save_every", "pad_eval_batches"} <= {*of_trainer}
    keys = rf"(?<![.\w])(({'|'.join(open_ended)})\.[a-z_]+|trainer\.({'|'.join(of_trainer)})\b)"
    words = rf"\b({'|'.join(classes)})\b|\b({'|'.join(files)})\.py\b|{keys}"
    assert [(path, text) for path, text in texts_of_the_engine() if re.search(words, text)] == []


def texts_of_the_engine() -> Iterator[tuple[Path, str]]:
    """(file, text) of each string in its code, but not of docstrings."""
    for path in engine_files():
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield path, node.value


def engine_files() -> list[Path]:
    """Those of samebits, and its plugins of Hydra; samebits.testing names what it replaces in a project."""
    return sorted(path for path in SAMEBITS.parent.rglob("*.py") if SAMEBITS / "testing" not in path.parents)


def classes_of(files: Iterable[Path]) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in files]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def test_no_room_imports_a_later_one() -> None:
    """So there are no circles, and one run knows nothing of many. Every folder must stand in the list; single modules
    import no room, and no test is needed to import any other."""
    folders = {path.parent.name for path in SAMEBITS.glob("*/__init__.py")}
    assert folders == {*ROOMS, "sweeps", "testing"}
    floor = {"": -1, "h5rows": -1, **{page: i for i, page in enumerate(PAGES)}}
    wrong = [
        f"{name} -> {module}"
        for name, wanted in imports().items()
        for module in wanted
        if name.startswith(NOT_YOURS) and floor[room_of(module)] > floor[room_of(name)]
    ]
    assert wrong == []


def test_the_folders_of_the_library_form_no_circle() -> None:
    """Nor do the modules beside them: importers give to a writer that knows none of them."""

    def place(module: str) -> str:
        return ".".join(module.split(".")[:2])

    graph: dict[str, set[str]] = {}
    for name, wanted in imports().items():
        if name.startswith("h5rows."):
            graph.setdefault(place(name), set()).update(place(module) for module in wanted if "h5rows." in module)
    for name, wanted in graph.items():
        wanted.discard(name)
    assert "h5rows.reading" in TopologicalSorter(graph).static_order()  # raises CycleError


def test_rooms_are_imported_through_their_pages() -> None:
    """`from samebits.world import World`, not `from samebits.world.collectives import World`, but inside of that room;
    and `from h5rows import Dataset` or `from h5rows.integration import open_h5`."""
    past = [
        f"{name} -> {module}"
        for name, wanted in imports().items()
        for module in wanted
        if room_of(module) not in ("", module) and room_of(module) != room_of(name) and module not in LIBRARY
        if not (name.startswith("samebits.testing") and module.startswith("samebits.testing"))
    ]
    assert past == []


CODE = re.compile(r"^\s*(?:from|import) (?:samebits|h5rows)\b.*$", re.MULTILINE)
# {file: why it reaches past a page: for what no page and no command gives}
ALLOWED = {
    "benchmarks/compose.py": "composing alone",
    "benchmarks/pack.py": "the writer alone",
    "benchmarks/read_chunks.py": "filters alone",
    "benchmarks/read_gather.py": "one reader alone",
    "benchmarks/remote_blocks.py": "windows and rings alone",
    "benchmarks/remote_hosts.py": "the size of a block",
    "benchmarks/scale_ranks.py": "counts the messages of ranks",
    "benchmarks/scale_shards.py": "saves of ranks that are not there",
    "benchmarks/seeds.py": "the tests of a report alone",
    "checks/project/test_resume_changes.py": "a step to stop at that has passed",
    "checks/project/test_suite.py": "how tests compose",
    "checks/samebits/test_wall.py": "how a page lists its names",
    "checks/h5rows/test_s3.py": "kills a pack between two shards",
    "checks/project/test_gpu.py": "ranks that share one GPU",
    "checks/project/test_many_ranks.py": "bytes of a rank in a table",
    "checks/project/test_profiling.py": "batches that come late",
    "checks/project/test_replicas.py": "blocks so small that a run has many",
    "checks/project/test_run.py": "a full disk in the middle of a save",
    "checks/project/test_said.py": "progress at every step",
    "checks/project/test_tune.py": "a GPU of a given memory",
    "checks/project/test_writes.py": "git is asked once, not after each kill",
    "checks/samebits/config/test_credentials.py": "what wandb.init is told",
    "checks/samebits/config/test_untrusted.py": "each reader of a stranger's files",
    "checks/samebits/data/test_damage.py": "a checkpoint in parts, without a run",
    "checks/samebits/data/test_worker_processes.py": "counts trials of loaders",
    "checks/samebits/device/test_small_steps.py": "the bound of a small step",
    "checks/samebits/loggers/test_loggers.py": "a server that refuses",
    "checks/samebits/loggers/test_wandb.py": "a server that refuses",
    "checks/samebits/loggers/test_wandb_invariant.py": "servers and senders that die anywhere",
    "checks/samebits/loggers/test_wandb_sweeps.py": "the variables of an agent",
    "checks/samebits/loggers/test_wandb_sync.py": "names of runs on a server",
    "checks/samebits/parallel/test_balance.py": "a clock that the test moves",
    "checks/samebits/parallel/test_data_parallel.py": "CPUs in the place of GPUs",
    "checks/samebits/parallel/test_fsdp.py": "parts and shares of one rank",
    "checks/samebits/runs/test_old_runs.py": "what was said once is said again",
    "checks/samebits/runs/test_run_directory.py": "overrides of a resume, without the resume",
    "checks/samebits/test_project.py": "configs before they are resolved",
    "checks/samebits/world/test_cluster.py": "short timeouts",
    "checks/samebits/world/test_hang.py": "a timer that is held",
    "checks/samebits/world/test_hosts.py": "blocks of a file that two hosts read",
    "checks/samebits/world/test_kill.py": "faults in the middle of ranks",
    "checks/samebits/world/test_meeting.py": "short timeouts",
    "checks/samebits/world/test_other_machines.py": "machines that are not there",
    "checks/samebits/world/test_threads_kept.py": "cores that are not there",
    "checks/sweeps/test_ledger.py": "the book is read and written without jobs",
    "checks/sweeps/test_pruned_runs.py": "trials of a study, without its search",
    "checks/sweeps/test_report.py": "parts of the page",
    "checks/sweeps/test_sweep_alike.py": "jobs that finish without a run",
    "checks/sweeps/test_sweep_lease.py": "a pool without jobs",
    "checks/sweeps/test_verify.py": "second runs that differ where the test says",
}


def past_a_page(path: Path) -> set[str]:
    """Modules of the libraries that a file outside of them imports though no page lists them; in functions and in
    strings of code, too. A page may list a module: `from samebits.testing.processes import warm`."""
    wanted: set[tuple[str, str]] = set()
    for tree in trees_of(path):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted |= {(alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                wanted |= {(str(node.module), alias.name) for alias in node.names}
    found = set()
    for page, name in wanted:
        module = f"{page}.{name}" if f"{page}.{name}" in MODULES else page
        if room_of(module) not in ("", module) and module not in LIBRARY and name not in listed_on(page):
            found.add(module)
    return found


def trees_of(path: Path) -> Iterator[ast.Module]:
    """A file, and the imports in its strings."""
    yield (tree := ast.parse(path.read_text()))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for line in CODE.findall(node.value):
                with contextlib.suppress(SyntaxError):  # prose
                    yield ast.parse(line.strip())


@cache
def listed_on(page: str) -> set[str]:
    """Names that a page has of its own folder."""
    if page not in PAGES:
        return set()
    nodes = ast.walk(ast.parse(PAGES[page].read_text()))
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("folder", ["tests", "checks", *USERS])
def test_what_is_outside_imports_through_pages(folder: str) -> None:
    """Tests of a library's inside are its own, in packages/*/tests, which need no project. A fork has tests/ alone, and
    no exceptions."""
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): modules for path in files if (modules := past_a_page(path))}
    assert {file: modules for file, modules in found.items() if file not in ALLOWED} == {}
    assert {file for file in ALLOWED if file.startswith(f"{folder}/")} == found.keys()  # and none that needs it no more
    assert not [file for file in ALLOWED if file.startswith("tests/")]


def test_a_page_holds_its_contract_and_names_that_exist() -> None:
    for page, path in PAGES.items():
        tree = ast.parse(path.read_text())
        assert 9 <= len((ast.get_docstring(tree) or "").splitlines()) <= 30, page
        names = names_of(path)
        listed = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert len(listed) == len(set(listed)), page
        assert not {f"{page}.{name}" for name in names} & MODULES.keys(), page  # else import order would decide
        for name, module in names.items():
            assert room_of(module) == page, f"{page}: {name} is of {module}"
            defined = getattr(import_module(module), name)
            assert getattr(import_module(page), name) is defined
            if isinstance(defined, (type, FunctionType)):
                assert defined.__module__ == module, f"{page}: {name} is defined in {defined.__module__}"


@pytest.mark.parametrize(("page", "most"), [("h5rows", 7), ("h5rows.integration", 24)])
def test_the_library_s_pages_name_what_there_is(page: str, most: int) -> None:
    """Few, each once, and dir() has them."""
    here = import_module(page)
    names = listed_of(str(H5ROWS / LIBRARY[page]))
    assert 0 < len(names) <= most
    for name, module in names.items():
        defined = getattr(here, name)
        assert defined.__module__ == module, name
        assert f"h5rows.{name}" not in MODULES
    assert set(names) <= set(dir(here))


def test_a_stranger_sees_the_library_s_names(tmp_path: Path) -> None:
    """No program's name is among them, and each is `import X as X`, which type checkers take for public."""
    page = tmp_path / "page.py"
    page.write_text("if TYPE_CHECKING:\n    from a import b, c as d, e as e\n")
    assert listed_of(str(page)) == {"e": "a"}
    own, programs = (listed_of(str(H5ROWS / LIBRARY[page])) for page in ("h5rows", "h5rows.integration"))
    assert not {*own} & {*programs}
    with pytest.raises(ImportError, match="cannot import name 'Roows' from 'h5rows'"):
        from h5rows import Roows  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.slow
def test_all_that_a_page_shows_is_used_or_documented() -> None:
    used = {
        (str(node.module), alias.name)
        for path in [
            *MODULES.values(),
            *(path for folder in (*USERS, "checks", "tests") for path in (ROOT / folder).rglob("*.py")),
        ]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    docs = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    shown = {page: names_of(path) for page, path in PAGES.items()}
    shown |= {page: listed_of(str(H5ROWS / file)) for page, file in LIBRARY.items()}
    idle = {f"{page}.{name}" for page, names in shown.items() for name in names if (page, name) not in used}
    assert {name for name in idle if name not in docs} == set()


def test_importing_all_pages_imports_no_library() -> None:
    pages = [page for page in PAGES if not page.startswith("samebits.testing")]  # it is for pytest
    code = (
        f"import sys, json; import {', '.join([*pages, *LIBRARY])}\n"
        "heavy = {'torch', 'h5py', 'wandb', 'numpy', 'hydra', 'omegaconf', 'optuna', 'matplotlib'}\n"
        "own = ('h5rows.errors', 'h5rows.lazy_imports', 'h5rows.integration')\n"
        "inner = [name for name in sys.modules if name.startswith('h5rows.') and name not in own or "
        f"name.startswith('samebits.') and name.count('.') > 1 and name not in {pages}]\n"
        "print(json.dumps([sorted(heavy & set(sys.modules)), inner]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SRC, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]


def test_a_name_that_a_page_lacks_is_named() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'Wurld' from 'samebits\.world'"):
        from samebits.world import Wurld  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("line", ["from a import b", "from a import b as c", "import a", "x = 1"])
def test_a_page_with_more_than_public_imports_is_refused(tmp_path: Path, line: str) -> None:
    page = tmp_path / "__init__.py"
    page.write_text(
        "import sys\nif sys.flags.debug:\n    from x import y\nif TYPE_CHECKING:\n    from a import b as b\n"
    )
    assert names_of(page) == {"b": "a"}
    page.write_text(page.read_text() + f"    {line}\n")
    with pytest.raises(ValueError, match="line 6: expected only `from MODULE import NAME as NAME`"):
        names_of(page)


def test_no_module_of_the_project_hides_a_name_that_it_offers() -> None:
    """`lab.fit` is the function: importing a module lab/fit.py would put itself in its place."""
    assert not {f"lab.{name}" for name in lab.__all__} & MODULES.keys()
