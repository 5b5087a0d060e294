"""docs/: links resolve, keys compose, messages and tests that are named exist, tutorials run as typed. conf/: the
commands in comments compose. The commands of other pages: test_docs_run.py."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
import yaml
from common import LIBRARIES, ROOT
from fork import copy_of_the_project, run_python, with_fewer_digits
from pages import DOCS, FENCE, OURS, README, WALKED, commands, is_run, lines_of, prose
from PIL import Image
from pyarrow import parquet

from samebits.testing import compose
from samebits.testing.processes import called, sample_of, slow

pytestmark = pytest.mark.skipif(not OURS, reason="of the template's docs; this project has some of its own")

TOP = {path.name: path.read_text() for path in sorted(ROOT.glob("*.md"))}
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OVERRIDE = r"'?[+~]?[\w/@.]+=\S+"
SHOWN = {file for page in DOCS.values() for file, _, _ in FENCE.findall(page) if file}


@cache
def anchors(page: str) -> set[str]:
    """As the site makes them of headings; GitHub's are the same for these characters."""
    ids = set(re.findall(r'<a id="([^"]+)"></a>', page))  # of generated pages
    titles = [re.sub(r"[`*]|<!--.*-->", "", title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]
    return ids | {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("name", [*TOP, *DOCS])
def test_links_resolve(name: str) -> None:
    file = ROOT / name if name in TOP else ROOT / "docs" / name
    page = prose(file.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve() if path else file
        assert found.exists(), target
        assert name in TOP or found.parent == ROOT / "docs" or "assets" in path, f"{target}: not a page of the site"
        assert not anchor or anchor in anchors(found.read_text()), target


@pytest.mark.parametrize("name", [*TOP, *DOCS])
def test_files_that_are_named_exist(name: str) -> None:
    page = re.sub(r"https?://\S+", "", (TOP | DOCS)[name])
    for path in re.findall(r"`((?:src|packages|conf|tests|benchmarks|data|docs|notebooks|tools)/[\w./-]+)`", page):
        assert (ROOT / path).exists() or path in SHOWN or re.search(r"\bx[._/]|/x\b|_x\b", path), path


@pytest.mark.parametrize("name", [*TOP, *DOCS])
def test_a_heading_begins_its_line(name: str) -> None:
    """In the middle of one, markdown shows it as text, and the section is missing in the table of contents."""
    assert re.findall(r"^.*[^#\s] #{2,} \w.*$", prose((TOP | DOCS)[name]), re.MULTILINE) == []


def test_pages_name_modules_of_the_libraries_not_their_files() -> None:
    """A fork may have the libraries as wheels. Tests are named by their files, because only the template has them."""
    named = re.compile(r"packages/\w+/(?!tests/)[\w/]+\.(?:py|md)")
    kept = ("fork.md", "api_")
    pages = [page for page in (ROOT / "docs").glob("*.md") if not page.name.startswith(kept)]
    assert {page.name: found for page in pages if (found := named.findall(page.read_text(encoding="utf-8")))} == {}


def test_every_page_is_in_the_navigation() -> None:
    def pages(node: object) -> Iterator[str]:
        for entry in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from [entry] if isinstance(entry, str) else pages(entry)

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages(config["nav"])) == sorted(DOCS)
    assert config["strict"] is True


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("material") is None, reason="needs the extra `docs`")
def test_the_site_builds(tmp_path: Path) -> None:
    called([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], cwd=ROOT, fresh=True)
    assert all((tmp_path / path).exists() for path in ("index.html", "my_data/index.html"))


# -- commands and keys -----------------------------------------------------------------------------------------------


def script_of(words: list[str]) -> tuple[str, list[str]] | None:
    """(train, its arguments) of a command that starts one of src/*.py; None for other programs."""
    for i, word in enumerate(words):
        if found := re.fullmatch(r"(?:\S*/)?src/(\w+)\.py", word):
            return found[1], words[i + 1 :]
        if word.endswith("./run"):
            return words[i + 1], words[i + 2 :]
    return None


def each_alone(words: list[str]) -> Iterator[list[str]]:
    """The overrides of a sweep with its first values, then with each other option of one group."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    def choices(word: str) -> list[str]:
        try:
            override = OverridesParser.create().parse_override(word)
        except OverrideParseException:
            return [word]
        if not override.is_sweep_override() or override.is_interval_sweep() or "tag(" in word:
            return [] if "tag(" in word or override.is_sweep_override() else [word]
        return [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]

    found = [values for values in map(choices, words) if values]
    first = [values[0] for values in found]
    yield first
    for i, values in enumerate(found):
        for value in values[1:] if (ROOT / "conf" / values[0].partition("=")[0]).is_dir() else ():
            yield [*first[:i], value, *first[i + 1 :]]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, for the commands whose data.path is a text of the reader's. Beside it photos/, a folder of images, and
    other.h5, with sequences, poses, captions and pairs."""
    path = tmp_path_factory.mktemp("text") / "text.h5"
    for kind in ("cat", "dog"):
        (path.parent / "photos" / kind).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(path.parent / "photos" / kind / "1.png")
    with h5py.File(path, "w") as file:
        for split in ("train", "val"):
            file[f"{split}/tokens"] = np.arange(4096, dtype=np.uint8) % 64
            file[f"{split}/tokens"].attrs["classes"] = [chr(33 + i) for i in range(64)]
            file[f"{split}/tokens"].attrs["tokenizer"] = "chars"
    columns = {name: [1.0, 2.0] * 9 for name in ("age", "height", "weight", "x")}
    columns |= {name: ["a", "b"] * 9 for name in ("species", "label")}
    parquet.write_table(pyarrow.table(columns), path.with_name("rows.parquet"))
    with h5py.File(path.with_name("other.h5"), "w") as file:
        for split in ("train", "val", "test"):
            for name in ("x", "text"):
                file[f"{split}/{name}/values"], file[f"{split}/{name}/offsets"] = np.arange(30) % 7, [0, 9, 30]
            file[f"{split}/label"] = [0, 1]
            file[f"{split}/images"], file[f"{split}/part"], file[f"{split}/S"] = (
                ["1.jpg"], np.zeros((1, 17, 2)), np.zeros((1, 17, 3))
            )  # fmt: skip
            file[f"{split}/image"] = np.zeros((2, 1, 8, 8), dtype=np.uint8)
            file[f"{split}/caption/values"], file[f"{split}/caption/offsets"] = np.arange(30) % 7, np.array([0, 9, 30])
            for name in ("chosen", "chosen_mask", "rejected", "rejected_mask"):
                file[f"{split}/{name}"] = np.ones((3, 5), dtype=np.uint8)
    return path


def check_overrides(words: list[str], text: Path) -> None:
    """A reader's own files are left out, or stand-ins."""
    dropped = ("data.path=", "resume=", "hydra.run.dir=", "task.weights=", "experiment=best_")
    kept = [word for word in words if not word.startswith(dropped)]
    if any(word.startswith("resume=") for word in words):
        kept.insert(0, "trainer=fsdp")  # of the run that goes on; a strategy that a command gives comes after it
    of_tokens = {path.stem for path in (ROOT / "conf/experiment").glob("*.yaml") if "/data: tokens" in path.read_text()}
    if {"data=tokens", *(f"experiment={stem}" for stem in of_tokens)} & set(words):
        kept.append(f"data.path={text}")
    if {"data=image_folder", "experiment=image_folder"} & set(words):
        kept.append(f"data.path={text.parent / 'photos'}")
    if "data=parquet" in words:
        kept.append(f"data.path={text.with_name('rows.parquet')}")
    if {"task=pose", "task=clip", "data=texts", "experiment=sequences", "experiment=preferences"} & set(words):
        kept.append(f"data.path={text.with_name('other.h5')}")
    if {"task=finetune", "experiment=preferences"} & set(words):
        kept.append(f"task.weights={text}")
    for overrides in each_alone(kept):
        compose(*overrides)


def check_command(command: str, text: Path) -> None:
    words = shlex.split(command)
    found = script_of(words)
    if found is None:
        assert not is_run(command), command
        return
    script, arguments = found
    if script in ("train", "tune"):
        check_overrides([word for word in arguments if "=" in word], text)
    elif script in ("test", "lint", "format", "fork", "schema"):
        assert script in (ROOT / "run").read_text()
    elif script == "python":
        assert arguments[0] == "-m" or (ROOT / arguments[0]).exists(), command
    elif script != "pip":
        library = {"h5": "packages/h5rows/src/h5rows", "report": "packages/samebits/src/samebits/sweeps/report"}
        source = (ROOT / (f"{library[script]}/command.py" if script in library else f"src/{script}.py")).read_text()
        assert not [flag for flag in arguments if flag.startswith("--") and f'"{flag}"' not in source], command


def test_commands_that_cannot_run_here_compose(text_file: Path) -> None:
    """All others run: test_docs_run.py."""
    found = [command for page in DOCS.values() for command in commands(page) if not is_run(command)]
    assert len(found) > 5
    for command in found:
        check_command(command, text_file)


EXAMPLE = re.compile(r"^# (\./run .*?)(?: {2,}\(.*)?$", re.MULTILINE)  # in the comments of a yaml; (more words)
EXAMPLES = {
    str(path.relative_to(ROOT / "conf")): found
    for path in sorted((ROOT / "conf").rglob("*.yaml"))
    if (found := EXAMPLE.findall(path.read_text().replace("\\\n#", "")))
}


@pytest.mark.one_quick
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_yamls_compose(name: str, text_file: Path) -> None:
    for command in "; ".join(EXAMPLES[name]).split("; "):
        check_command(command, text_file)


BY_PYTHON = re.compile(
    rf"(?<!/run )(?<![\w./-])python[\d.]*(?: |['\"], ?['\"]|, )(?:\S*/)?"
    rf"(?:src/(?:{'|'.join(path.stem for path in (ROOT / 'src').glob('*.py'))})\.py|(?:tools|benchmarks)/\w+\.py)"
)


def test_commands_are_typed_in_one_way() -> None:
    """`./run ...`: Debian and Ubuntu have no `python`. In pages, in what the program prints, in its own docstrings."""
    for said in (
        "x: python src/train.py a",
        'join(["python", "src/h5.py"',
        "[python, src/sync.py",
        "`python tools/fork.py`",
    ):
        assert BY_PYTHON.search(said), said
    folders = ("docs", "conf", "src", "packages", "tools", "benchmarks", "notebooks")
    files = [
        path
        for name in folders
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".md", ".yaml", ".py", ".ipynb")
    ]
    assert len(files) > 200
    pages = [*ROOT.glob("*.md"), *files]
    found = {str(path.relative_to(ROOT)): BY_PYTHON.findall(path.read_text()) for path in pages}
    assert len(found) == len(pages)
    assert found.pop("docs/installation.md") == ["python src/train.py"]  # once as it is without ./run
    assert "`python src/train.py trainer=ddp`" in DOCS["installation.md"]
    assert {name: lines for name, lines in found.items() if lines} == {}


def keys_of(page: str, column: int | None = 0) -> list[str]:
    """Return the code that is overrides only, in tables from `column` on; None: in the whole page without quotes."""
    found = []
    for row in re.findall(r"^\|(.*)\|$", prose(page), re.MULTILINE) if column is not None else ():
        cells = re.split(r"(?<!\\)\|", row)
        found += [span for cell in cells[column:] for span in SPAN.findall(cell)]
    if column is None:
        found = SPAN.findall(re.sub(r"^>.*$", "", prose(page), flags=re.MULTILINE))
    own = [span.removeprefix("-m ") for span in found]
    return [
        one
        for one in own
        if re.fullmatch(rf"{OVERRIDE}( {OVERRIDE})*", one) and not re.search(r"\.\.\.|[A-Z]{3}|<", one)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column"),
    [
        *(slow(f"from_{name}.md", 1) for name in ("pytorch", "lightning", "template", "accelerate")),
        slow("sweeps.md", 0), ("troubleshooting.md", None),
    ],
)  # fmt: skip
def test_keys_in_tables_compose(name: str, column: int | None, text_file: Path) -> None:
    found = keys_of(DOCS[name], column)
    assert len(found) > 10
    for span in found[:: sample_of(4, 1)]:
        check_overrides(shlex.split(span), text_file)


# -- what pages say of the code --------------------------------------------------------------------------------------


@cache
def texts() -> str:
    """All strings of src/ and the libraries, with {} for what is put in."""
    found = []
    for path in (path for source in (ROOT / "src", *LIBRARIES) for path in source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
    return "\n".join(found)


@pytest.mark.slow
def test_messages_are_those_of_the_code() -> None:
    quoted = re.findall(r"^> (.*)$", DOCS["troubleshooting.md"], re.MULTILINE)  # below the heading of each message
    messages = [span for line in quoted for span in SPAN.findall(line)]
    assert len(messages) == len(quoted) > 25
    parts = [part.strip(" :;()") for message in messages for part in message.split("...")]
    assert not [part for part in parts if part not in texts()]


OPTIONS = {
    "callback": "callbacks.md", "data/order": "data_orders.md", "data/transforms": "transforms.md",
    "debug": "configure.md",
    "hydra/launcher": "configure.md", "hydra/sweeper/pruner": "search.md", "hydra/sweeper/sampler": "search.md",
    "logger": "logging.md", "optim": "rates_optimizers.md", "optim/schedule": "rates_optimizers.md", "task": "tasks.md",
}  # fmt: skip


@pytest.mark.parametrize(("group", "page"), OPTIONS.items())
def test_each_option_is_on_the_page_of_its_group(group: str, page: str) -> None:
    named = {word for span in SPAN.findall(prose(DOCS[page])) for word in re.findall(r"\w+", span)}
    options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")} - {"none"}
    assert len(options) > 2
    assert options - named == set()


def test_tests_that_hold_the_contract_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DOCS["guarantees.md"])
    assert len(named) > 25
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


def test_the_glossary_is_sorted_and_has_each_term_once() -> None:
    terms = [term.replace("`", "").lower() for term in re.findall(r"^\| (.+?) \|", DOCS["glossary.md"], re.MULTILINE)][
        1:
    ]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_each_guarantee_has_the_test_with_its_number() -> None:
    sections = [part for part in DOCS["guarantees.md"].split("\n## ") if "<summary>Tests" in part]
    assert len(sections) > 5
    for section in sections:
        rows, tests = section.split("<summary>Tests")
        numbers = re.findall(r"^(\d+)\. ", rows, re.MULTILINE)
        assert numbers == [str(i + 1) for i in range(len(numbers))] == re.findall(r"^(\d+)\. ", tests, re.MULTILINE)


def test_figures_are_those_of_the_benchmarks() -> None:
    results = set(re.findall(r"\d[\d,.]*\d|\d", (ROOT / "benchmarks/RESULTS.md").read_text()))
    rows = re.findall(r"^\|(.*)\|$", DOCS["performance.md"], re.MULTILINE)
    figures = {number for row in rows for cell in row.split("|")[1:] for number in re.findall(r"\d[\d,.]*\d|\d", cell)}
    assert len(figures) > 15
    assert not figures - results


def test_callbacks_are_called_as_written() -> None:
    from lab.callbacks.base import Callback

    written = dict(re.findall(r"^\| `(\w+)\(([\w, ]*)\)` \|", DOCS["callbacks.md"], re.MULTILINE))
    events = {name: method for name, method in vars(Callback).items() if inspect.isfunction(method)}
    assert written == {name: ", ".join([*inspect.signature(method).parameters][1:]) for name, method in events.items()}


# -- tutorials, as typed ---------------------------------------------------------------------------------------------


def python_of(command: str) -> list[str]:
    """What Python is given by `./run X ...` and `python src/X.py ...`, without W&B's logger."""
    found = script_of(shlex.split(command))
    assert found is not None, command
    name, words = found
    if name == "python":
        return words
    if name == "test":
        return ["-m", "pytest", *words]
    return [f"src/{name}.py", *words, *(["logger=none"] if name == "train" else [])]


@pytest.mark.parametrize("file", sorted(file for file in SHOWN if file.endswith((".py", ".yaml"))))
def test_the_files_of_a_page_can_be_read(file: str) -> None:
    for body in (body for page in DOCS.values() for shown, _, body in FENCE.findall(page) if shown == file):
        assert ast.parse(body) if file.endswith(".py") else yaml.safe_load(body)


@pytest.mark.slow
def test_the_files_of_pages_pass_the_checks_of_a_commit(tmp_path: Path) -> None:
    """Those of the README, too: who commits them as they are shown has nothing to mend."""
    clone = copy_of_the_project(tmp_path)
    shown = [(file, body) for page in DOCS.values() for file, _, body in FENCE.findall(page) if file.endswith(".py")]
    shown += [(body.split()[1], body) for _, _, body in FENCE.findall(README) if re.match(r"# src/\S+\.py\n", body)]
    assert "src/lab/models/two_layers.py" in dict(shown)
    for file, body in shown:
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        (clone / file).write_text(body)
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        called([sys.executable, "-m", *command, *dict(shown)], cwd=clone, fresh=True)
    cache = ROOT / ".mypy_cache"  # what differs is looked at
    shutil.copytree(cache, clone / cache.name) if cache.exists() else None
    called([sys.executable, "-m", "mypy"], seconds=240, cwd=clone, fresh=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample_of(WALKED[:3], WALKED))
def test_a_page_works_as_typed(tmp_path: Path, name: str) -> None:
    """From its beginning to its end, in a copy of the project: each file, each command."""
    clone = with_fewer_digits(copy_of_the_project(tmp_path / "clone"))
    for file, kind, body in FENCE.findall(DOCS[name]):
        if file:
            (clone / file).parent.mkdir(parents=True, exist_ok=True)
            (clone / file).write_text(body)
        for command in lines_of(body) if kind == "bash" else ():
            run_python(clone, *python_of(command))
    ours = [file for file, _, _ in FENCE.findall(DOCS[name]) if file.endswith(".py")]
    called([sys.executable, "-m", "ruff", "check", "--select", "E,F,W,I", *ours], cwd=clone, fresh=True)
