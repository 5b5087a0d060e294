#!/usr/bin/env python3
"""Make a project of your own out of this template: another package name than `lab`, without the parts you do not want.

    ./run fork mypackage --title "My project" --author "Ada Lovelace" --without gan vae search
    ./run fork --without reports               # later, in a fork
    ./run fork mypackage --into ../my-project  # leaves this folder as it is; what copier runs

Reads the files that git tracks. The libraries in packages/ are copied byte for byte, less the parts left out. Needs
git, ruff and nothing else, so that it runs before an environment is made. parts.py lists what can be left out.

Exit status: 0 done, 2 a mistake in what was asked; nothing was changed then.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import gc
import json
import keyword
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from parts import PARTS, TEMPLATE_ONLY, Part
from prune import bound_by, count_tests, prune_schema, prune_tests, without

ROOT = Path(__file__).resolve().parents[1]
OLD, LONGEST = "lab", 20
ENGINE = "packages/"
README_INTRO = re.compile(r"\A.*?(?=^## )", re.DOTALL | re.MULTILINE)
# Files that name the template's package and go on to: history, runs of older versions, the engine, and this.
VERBATIM = (ENGINE, "checks/runs/", "tools/", "docs/fork.md", "docs/remote.md", "CHANGELOG.md", "LICENSE")
SAVED_TARGET = r'(?![\w.]*": )'  # not the keys of `moved` in project.py: import paths that saved configs have
ANSWERS = ".copier-answers.yml"


class Mistake(Exception):
    """One line for the user."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", help=f"import name of your code, instead of {OLD}")
    parser.add_argument("--title", help="first line of the README; default: the package")
    parser.add_argument("--author", default="", help="for LICENSE and pyproject.toml")
    parser.add_argument("--license", choices=("MIT", "none"), default="MIT", help="of your code; none: all rights kept")
    parser.add_argument("--without", nargs="*", default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write there; default: change this checkout")
    args = parser.parse_args()
    try:
        present = own_package(ROOT)
        package = args.package or present
        without = chosen([name for text in args.without for name in text.split(",") if name])
        if not args.package and not without:
            raise Mistake("give a package name, or --without and parts to leave out; --help has more")
        if args.package and os.environ.get("COPIER_OPERATION") != "update":  # else it has its name
            check_name(package, present)
        check_folder(args.into or ROOT, keeps=args.into is not None)
        with tempfile.TemporaryDirectory() as folder:
            tree, names = Path(folder), tracked(ROOT)
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            remarks = leave_out(tree, TEMPLATE_ONLY, present) if args.package else []
            for name in without:
                remarks += [f"{name}: {remark}" for remark in leave_out(tree, PARTS[name], present)]
            prune_tests(tree, ROOT)
            lines_of_tests = tests_report(count_tests(ROOT), count_tests(tree))
            prune_schema(tree)
            functions = [spelled(name, present) for part in without for name in PARTS[part].files if "::" in name]
            forget(tree, [*functions, *(name for name in names if not (tree / name).exists())])
            if args.package:
                rename(tree, package)
                name_owner(tree, args.title or package, args.author, args.license)
            tidy(tree)
            place_whole(tree, args.into) if args.into else place(tree, ROOT, gone=names)
    except Mistake as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for remark in remarks:
        print(remark, file=sys.stderr)
    for line in lines_of_tests:
        print(line)
    if "COPIER_OPERATION" not in os.environ:  # copier has words of its own, and makes several copies for an update
        folder = (args.into or ROOT).resolve()
        left = f", left out: {', '.join(without)}" if without else ""
        print(f"{folder}: the package is {package}{left}")
        print(f"next, in {folder} (docs/fork.md says how to update):")
        for command in next_commands(folder, wheel="engine" in without):
            print(f"  {command}")
    return 0


def next_commands(folder: Path, wheel: bool) -> list[str]:
    """What to type there. wheel: the engine is one, which no index has, so it is built of the template's commit."""
    commands = [] if (folder / ".git").exists() else ["git init"]
    commands += ['git add -A && git commit -m "Fork"']
    if wheel:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        builds = subprocess.run(
            ["git", "cat-file", "-e", "HEAD:packages/samebits"], cwd=ROOT, stderr=subprocess.DEVNULL
        )
        # a fork has no packages/samebits
        source = "ADDRESS-OF-THE-TEMPLATE" if builds.returncode else f"{ROOT.as_uri()}@{commit.strip()}"
        wheels = [shlex.quote(f"git+{source}#subdirectory=packages/{name}") for name in ("h5rows", "samebits")]
        commands += [f"./run pip install --no-deps {' '.join(wheels)}"]
    return [*commands, "./run train", "./run test"]


# -- what was asked --------------------------------------------------------------------------------------------------


def own_package(root: Path) -> str:
    """The folder of src that hands the project to the engine."""
    found = [path.parent.name for path in (root / "src").glob("*/project.py")]
    if len(found) != 1:
        raise Mistake(f"src: expected one package with a project.py, found {found or 'none'}")
    return found[0]


def chosen(names: list[str]) -> list[str]:
    """In the order of PARTS, with the parts that need one of these."""
    for name in names:
        if name not in PARTS:
            near = difflib.get_close_matches(name, PARTS, 1)
            hint = f" - did you mean {near[0]}?" if near else ""
            raise Mistake(f"--without {name}: no such part{hint} (there are: {', '.join(PARTS)})")
    return [name for name, part in PARTS.items() if name in names or set(part.needs) & set(names)]


def check_name(name: str, present: str) -> None:
    if present != OLD:
        raise Mistake(f"{name}: this fork has its name, {present}; there is no src/{OLD} to rename")
    problem = None
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        problem = "expected a name of lower-case letters, digits and _, such as my_project"
    elif keyword.iskeyword(name) or name in keyword.softkwlist:
        problem = "is a keyword of Python"
    elif len(name) > LONGEST:
        problem = f"has more than {LONGEST} letters, and stands in every import"
    elif name in sys.stdlib_module_names:
        problem = "is a module of Python's own library"
    elif name == OLD:
        problem = "is the template's own name"
    elif name in required() or installed(name):
        problem = "is an installed or required package, which yours would hide"
    elif name in own_names():
        problem = "is a module or folder of this project already"
    elif file := file_with_variable(name):
        problem = f"is a variable in {file}, where the package is imported too"
    if problem:
        raise Mistake(f"{name}: {problem} - choose another name")


def own_names() -> set[str]:
    """Top-level folders, and modules that commands and tests import by their bare name."""
    files = [*ROOT.glob("src/*"), *ROOT.glob("packages/*"), *ROOT.glob("tests/*"), *ROOT.glob("tools/*")]
    return {path.stem for path in files} | {path.name for path in ROOT.iterdir() if path.is_dir()}


def file_with_variable(name: str) -> str | None:
    for path in (ROOT / one for one in tracked(ROOT) if one.endswith(".py") and not one.startswith((ENGINE, "tools/"))):
        if name in (text := path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(text)):
                if name in (getattr(node, "id", None), getattr(node, "arg", None), getattr(node, "name", None)):
                    return path.relative_to(ROOT).as_posix()
    return None


def installed(name: str) -> bool:
    """Not a fork of this name that is there already, which copier updates from its own environment."""
    spec = find_spec(name)
    return spec is not None and "-packages/" in f"{spec.origin} {spec.submodule_search_locations}"


def required() -> set[str]:
    """Import names of what pyproject.toml names: its distributions, as far as these are spelled like their modules."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = {re.split(r"[-_]", found)[0] for found in re.findall(r'"([a-z0-9_-]+)>=', text)}
    return named | set(re.findall(r'"([a-z0-9_]+)(?:>=|",)', text))


def check_folder(folder: Path, keeps: bool) -> None:
    """What is overwritten must be in git. keeps: the folder is another than this one, and may be new."""
    if keeps and (not folder.exists() or not {path.name for path in folder.iterdir()} - {".git", ANSWERS}):
        return
    command = ["git", "status", "--porcelain", "--untracked-files=normal"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        undo = "nothing could be undone - git init, git add, git commit"
        raise Mistake(f"{folder}: is there already, and no git checkout, so {undo}, or remove it")
    if changed := [line[3:] for line in done.stdout.splitlines() if line[3:] != ANSWERS]:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Mistake(f"{folder}: {changed[0]}{more} not committed - commit or stash first, so that git can undo this")


def tracked(root: Path) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise Mistake(f"{root}: is not a git checkout - git init, git add, git commit")
    return [name for name in os.fsdecode(done.stdout).split("\0") if name and (root / name).is_file()]


# -- leaving out -----------------------------------------------------------------------------------------------------


def leave_out(tree: Path, part: Part, package: str) -> list[str]:
    """Delete a part's files, functions and lines. Returns what was not found, a line each."""
    missing = []
    for name in (spelled(one, package) for one in part.files):
        path, _, function = name.partition("::")
        if not any(function_of(one, function) if function else True for one in ROOT.glob(path)):
            missing.append(f"{path} has no {function}" if function else f"there is no {path}")
        for one in tree.glob(path):
            if function:
                delete_function(one, function)
            elif one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink()
    changes = [(name, rf"^.*{line}.*\n", "", f"line {line!r}") for name, lines in part.lines.items() for line in lines]
    changes += [(name, old, new, repr(old)) for name, texts in part.texts.items() for old, new in texts.items()]
    for name, pattern, new, said in (tuple(spelled(one, package) for one in change) for change in changes):
        edit(tree / name, pattern, new)
        # asked of the project as it was: in the tree another part may have taken it
        if (ROOT / name).exists() and not re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            missing.append(f"{name} has no {said}")
    return missing


def spelled(text: str, package: str) -> str:
    """parts.py names the template's package."""
    return re.sub(rf"\b{OLD}\b", package, text)


def edit(path: Path, pattern: str, new: str | Callable[[re.Match[str]], str]) -> None:
    if path.exists():
        path.write_text(re.sub(pattern, new, path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def function_of(path: Path, name: str) -> ast.stmt | None:
    """A function, class or assignment of a module."""
    return next((node for node in ast.parse(path.read_text(encoding="utf-8")).body if name in bound_by(node)), None)


def delete_function(path: Path, name: str) -> None:
    if (node := function_of(path, name)) is not None:
        path.write_text(without(path.read_text(encoding="utf-8"), [node]), encoding="utf-8")


def tests_report(before: dict[str, list[str]], left: dict[str, list[str]]) -> list[str]:
    """How many test functions are left, and which are not: by folder, file or function, as much as has gone whole."""
    gone = {name: [one for one in tests if one not in left.get(name, ())] for name, tests in before.items()}
    gone = {name: tests for name, tests in gone.items() if tests}
    number, kept = sum(map(len, before.values())), sum(map(len, left.values()))
    lines = [f"tests: {kept} of {number} functions are kept" + (", gone are:" if gone else "")]
    folders = {parent for name in gone for parent in Path(name).parents}
    whole = {one.as_posix() for one in folders if not any(Path(name).is_relative_to(one) for name in left)}
    outer: dict[str, int] = {}
    for name, tests in gone.items():
        inside = [one for one in (*reversed(Path(name).parents), Path(name)) if one.as_posix() in whole]
        if inside or name not in left:
            place = f"{inside[0].as_posix()}/" if inside else name
            outer[place] = outer.get(place, 0) + len(tests)
        else:
            lines.append(f"  {name}: {', '.join(tests)}")
    return [lines[0], *(f"  {place}: {count}" for place, count in outer.items()), *lines[1:]]


def forget(tree: Path, deleted: list[str]) -> None:
    """Take what names a deleted file or option out of the pages: rows of tables, sentences, lines of code."""
    names = set(deleted) | {name.removeprefix("src/") for name in deleted}
    names |= {Path(name).name for name in deleted if name.startswith("docs/")}
    for group, option in re.findall(r"^conf/(.+)/(\w+)\.yaml$", "\n".join(deleted), re.MULTILINE):
        names |= {f"{group}={option}"}
    names |= {f"./run {command}" for command in re.findall(r"^src/(\w+)\.py$", "\n".join(deleted), re.MULTILINE)}
    folders = {f"{parent}/" for name in deleted for parent in Path(name).parents if not (tree / parent).exists()}
    if not names:
        return
    told = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, names | folders))})(?![\w=])")
    for page in [*(tree / "docs").glob("*.md"), *tree.glob("*.md"), tree / "mkdocs.yml"]:
        if page.exists() and page.name not in ("fork.md", "CHANGELOG.md"):
            page.write_text(without_sentences(page.read_text(encoding="utf-8"), told), encoding="utf-8")


def without_sentences(text: str, told: re.Pattern[str]) -> str:
    """Without the sentences that match; of a table the clauses, or the row; of code and yaml the lines."""
    kept, code = [], False
    for block in re.split(r"(?<=\n)(?=\n|\||```|    |  - |- |\d+\. |#)", text):
        code ^= block.startswith("```")
        if not told.search(block):
            kept.append(block)
        elif code or block.startswith(("    ", "  - ")):
            kept += [line for line in block.splitlines(keepends=True) if not told.search(line)]
        elif block.startswith("|"):
            clauses = [re.split(r"(?<=;) |(?<=`), ", cell.strip()) for cell in block.strip("|\n").split("|")]
            cells = ["; ".join(one.rstrip(";") for one in cell if not told.search(one)) for cell in clauses]
            kept += [f"| {' | '.join(cells)} |\n"] if all(cells) else []
        else:
            begin, body = re.fullmatch(r"(\n*(?:- |\d+\. )?)(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
            rest = "".join(
                one for one in re.findall(r".+?(?:[.!?](?=\s)\s|\Z)", body, re.DOTALL) if not told.search(one)
            )
            kept.append(f"{begin}{rest.rstrip()}\n" if rest.strip() else "\n" * begin.count("\n"))
    return re.sub(r"```\w*\n```\n+", "", "".join(kept))


# -- the new name ----------------------------------------------------------------------------------------------------


def rename(tree: Path, package: str) -> None:
    """The word, wherever it stands alone, in contents and in paths."""
    for path in sorted(one for one in tree.rglob("*") if one.is_file()):
        name = path.relative_to(tree).as_posix()
        if name.startswith(VERBATIM):
            continue
        saved = SAVED_TARGET if name == f"src/{OLD}/project.py" else ""
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # an HDF5 file
            text = ""
        changed = re.sub(rf"(?<![\w-]){OLD}(?![\w-]){saved}", package, text)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    if more := 3 * (len(package) - len(OLD)):  # lines that name it up to three times; the formatter's limit stays
        edit(tree / "pyproject.toml", r"^max-line-length = 120.*$", f"max-line-length = {120 + max(more, 0)}")
        edit(tree / ".yamllint", r"max: 120", f"max: {120 + max(more, 0)}")
    for folder in sorted(tree.rglob(OLD), reverse=True):
        if folder.is_dir() and not folder.relative_to(tree).as_posix().startswith(VERBATIM):
            folder.rename(folder.with_name(package))


def name_owner(tree: Path, title: str, author: str, terms: str) -> None:
    """README, LICENSE and pyproject.toml are the fork's."""
    intro = f"# {title}\n\nMade from a template for PyTorch experiments; `docs/fork.md` says how it is updated.\n\n"
    readme = (tree / "README.md").read_text(encoding="utf-8")
    (tree / "README.md").write_text(README_INTRO.sub(lambda _: intro, readme, count=1), encoding="utf-8")
    edit(tree / "mkdocs.yml", r"^site_name: .*$", lambda _: f"site_name: {json.dumps(title)}")
    edit(tree / "pyproject.toml", r"^description = .*$", lambda _: f"description = {json.dumps(title)}")
    if author:
        authors = f"authors = [{{ name = {json.dumps(author)} }}]"
        edit(tree / "pyproject.toml", r"^requires-python = .*$", lambda m: f"{authors}\n{m[0]}")
    notice = r"^(Copyright \(c\) .*)$"
    if terms == "none":  # the engine has its own
        (tree / "LICENSE").unlink()
        edit(tree / "pyproject.toml", r"^license = .*\n", "")
    elif author:
        edit(tree / "LICENSE", notice, lambda m: f"{m[1]}\nCopyright (c) {author}")


# -- writing ---------------------------------------------------------------------------------------------------------


def tidy(tree: Path) -> None:
    """Sort imports and format: the package's name has another length and place. The engine stays as it is."""
    names = [path.relative_to(tree).as_posix() for path in tree.rglob("*.py")]
    files = [name for name in names if not name.startswith(ENGINE)]
    for command in (["check", "--fix", "--exit-zero"], ["format"]):
        done = subprocess.run([*ruff(), *command, "--quiet", "--no-cache", *files], cwd=tree, check=False)
        if done.returncode:
            raise Mistake(f"ruff {command[0]} failed, see above")


def ruff() -> list[str]:
    if find_spec("ruff") is not None:
        return [sys.executable, "-m", "ruff"]
    if found := shutil.which("ruff"):
        return [found]
    raise Mistake(
        "needs ruff, which sorts and formats the imports of a renamed package - type ./run fork, "
        "or for copier: pipx inject copier ruff"
    )


def place(tree: Path, folder: Path, gone: list[str]) -> None:
    """Copy the tree into the folder. gone: files there that are deleted if the tree has none of their name."""
    files = [path for path in tree.rglob("*") if path.is_file()]
    names = {path.relative_to(tree).as_posix() for path in files}
    for name in set(gone) - names:
        (folder / name).unlink()
    for parent in sorted({folder / one for name in gone for one in Path(name).parents}, reverse=True):
        if parent.is_dir() and all(path.name == "__pycache__" for path in parent.iterdir()):
            shutil.rmtree(parent)  # else Python would find the old package still
    for path in files:
        target = folder / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def place_whole(tree: Path, folder: Path) -> None:
    """Into a folder that is not there yet: all of it or, if this process is killed, nothing of its name."""
    if folder.exists():  # copier's, or an earlier fork's, which git can restore
        place(tree, folder, gone=[])
        return
    partial = folder.absolute().with_name(f"{folder.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by one that was killed
    place(tree, partial, gone=[])
    partial.rename(folder)


if __name__ == "__main__":
    gc.disable()  # all tests are held parsed: looking through them for garbage takes a third of the time
    sys.exit(main())
