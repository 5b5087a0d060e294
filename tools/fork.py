#!/usr/bin/env python3
"""Make a project of your own out of this template: another package name than `lab`, without the parts you do not want.

    ./run fork mypackage --title "My project" --author "Ada Lovelace" --without gan vae search
    ./run fork mypackage --only gan            # leaves out every other part; --only without a name: all parts
    ./run fork mypackage --into ../my-project  # leaves this folder as it is; what copier runs
    ./run fork --without gan                   # later, in a fork
    ./run fork --update TEMPLATE@v0.3.1        # later, in a fork: newer libraries

It reads the files that git tracks, and needs only git, ruff and pip, so that it runs before there is an environment.
parts.py lists the parts that can be left out, libraries.py the places that the libraries can come from.

Exit status: 0 done, 1 a file could not be read or written, 2 a mistake in the arguments; then nothing is changed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import json
import keyword
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import libraries
from parts import NEEDS, PARTS, TEMPLATE_ONLY, WORDS, Part, with_needed
from schema_prune import prune_schema
from wheels import Mistake, git, git_environment

ROOT = Path(__file__).resolve().parents[1]
OLD, LONGEST = "lab", 20
ENGINE = "packages/"
README_INTRO = re.compile(r"\A.*?(?=^## )", re.DOTALL | re.MULTILINE)
# Files in which the package is not renamed: the libraries, the tools, and pages about the template or its history.
VERBATIM = (ENGINE, "vendor/", "tools/", "docs/fork.md", "docs/remote_data.md", "CHANGELOG.md", "LICENSE")
SAVED_TARGET = r'(?![\w.]*": "\w+\.)'  # not the keys of `moved` in project.py: import paths that saved configs have
FORGETTING = ("project.py", "builders.py")  # in these and in src/*.py, lines that name a deleted module are deleted
ANSWERS = ".copier-answers.yml"


def main() -> int:
    parser = argparse.ArgumentParser(
        "./run fork", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("package", nargs="?", help=f"import name of your code, instead of {OLD}")
    parser.add_argument("--title", help="first line of the README; default: the package")
    parser.add_argument("--author", default="", help="for LICENSE and pyproject.toml")
    parser.add_argument("--license", choices=("MIT", "none"), default="MIT", help="of your code; none: all rights kept")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--without", nargs="*", default=[], metavar="PART", help=", ".join(PARTS))
    choice.add_argument("--only", nargs="*", metavar="PART", help="leave out all parts but these and what they need")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write there; default: change this checkout")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--libraries", default=libraries.WHEELS, metavar="WHERE",
        help="wheels: built into vendor/ (default); git+ADDRESS@TAG: installed from there; copy: in packages/, to edit",
    )  # fmt: skip
    shape.add_argument(
        "--vendor", dest="libraries", action="store_const", const=libraries.COPY, help="the same as --libraries copy"
    )
    parser.add_argument("--update", metavar="TEMPLATE[@TAG]", help="in a fork: take the libraries of this template")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))  # so that temporary folders are removed
    try:
        present = own_package(ROOT)
        if args.update:
            return update(args.update, present)
        package = args.package or present
        without = left_out(args.without, args.only, tracked(ROOT))
        if not args.package and not without:
            raise Mistake("give a package name, or --without and parts to leave out; --help has more")
        if args.package:
            libraries.check(args.libraries)
            if os.environ.get("COPIER_OPERATION") != "update":  # an updated fork has its name already
                check_name(package, present)
        check_folder(args.into or ROOT, keeps=args.into is not None)
        origin = f" of {git(ROOT, 'log', '-1', '--format=%h').decode().strip()}" if args.package else ""
        with tempfile.TemporaryDirectory() as folder:
            tree, names, parts = Path(folder), tracked(ROOT), [PARTS[name] for name in without]
            for name in names:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            delete(tree, [name for part in parts for name in part.files(names)])
            if args.package:
                delete(tree, TEMPLATE_ONLY)
                delete_marked(tree)
                libraries.depend(tree, ROOT, args.libraries)
            delete_entries(tree, parts)
            prune_schema(tree)
            forget(tree, [name for name in names if not (tree / name).exists()], parts)
            if args.package:
                rename(tree, package)
                name_owner(tree, args.title or package, args.author, args.license)
            tidy(tree)
            # from here on, files are changed: half of them would be no project
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
            place_whole(tree, args.into) if args.into else place(tree, ROOT, gone=names)
    except Mistake as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or args.into or ROOT}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if "COPIER_OPERATION" not in os.environ:  # copier prints its own messages, and makes several copies for an update
        folder = (args.into or ROOT).resolve()
        left = f", left out: {', '.join(without)}" if without else ""
        print(f"{folder}: the package is {package}{left}")
        print(f"next, in {folder} (docs/fork.md says how to update):")
        begin = [] if (folder / ".git").exists() else ["git init"]
        for command in [*begin, f'git add -A && git commit -m "Fork{origin}"', "./run train", "./run test"]:
            print(f"  {command}")
    return 0


def update(source: str, package: str) -> int:
    if package == OLD:
        raise Mistake("--update: this is the template; its libraries are in packages/")
    check_folder(ROOT, keeps=False)
    for line in libraries.update(ROOT, source):
        print(line)
    print("next:")
    for command in ("./run test", 'git add -A && git commit -m "Newer libraries"'):
        print(f"  {command}")
    return 0


# -- arguments -------------------------------------------------------------------------------------------------------


def own_package(root: Path) -> str:
    """Return the name of the project's package: the folder of src that has a project.py."""
    found = [path.parent.name for path in (root / "src").glob("*/project.py")]
    if len(found) != 1:
        raise Mistake(f"src: expected one package with a project.py, found {found or 'none'}")
    return found[0]


def left_out(without: list[str], only: list[str] | None, names: list[str]) -> list[str]:
    """Return the parts to leave out, in the order of PARTS. names: the tracked files.

    Raise Mistake for a part that does not exist, and for one that another part needs, which stays."""
    option, given = ("--without", without) if only is None else ("--only", only)
    asked = [name for text in given for name in text.split(",") if name]
    for name in asked:
        if name not in PARTS:
            near = difflib.get_close_matches(name, PARTS, 1)
            hint = f" - did you mean {near[0]}?" if near else ""
            raise Mistake(f"{option} {name}: no such part{hint} (there are: {', '.join(PARTS)})")
    if only is not None:
        kept = with_needed(asked)
        asked = [name for name in PARTS if name not in kept]
    for gone in asked:
        needing = [name for name in PARTS if gone in NEEDS.get(name, ())]
        users = [name for name in needing if name not in asked and PARTS[name].files(names)]
        if users:
            need = f"{' '.join(users)} need{'s' * (len(users) == 1)} it"
            raise Mistake(f"--without {gone}: {need} - leave out {' '.join(users)} too, or keep {gone}")
    return [name for name in PARTS if name in asked]


def check_name(name: str, present: str) -> None:
    if present != OLD:
        raise Mistake(f"{name}: this fork has its name, {present}; there is no src/{OLD} to rename")
    problem = None
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", name):  # pip refuses an underscore at the end
        problem = "expected a name of lower-case letters, digits and _, such as my_project"
    elif keyword.iskeyword(name) or name in keyword.softkwlist:
        problem = "is a keyword of Python"
    elif len(name) > LONGEST:
        problem = f"has more than {LONGEST} letters, and stands in every import"
    elif name in sys.stdlib_module_names or name in dir(builtins):
        problem = "is a name of Python's own library"
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
    """Return names that a package cannot have: top-level folders, and modules that are imported without a package."""
    files = [*ROOT.glob("src/*"), *ROOT.glob("packages/*"), *ROOT.glob("tests/*"), *ROOT.glob("tools/*")]
    return {path.stem for path in files} | {path.name for path in ROOT.iterdir() if path.is_dir()} | {libraries.FOLDER}


def file_with_variable(name: str) -> str | None:
    outside = (ENGINE, "tools/", *TEMPLATE_ONLY)
    for path in (ROOT / one for one in tracked(ROOT) if one.endswith(".py") and not one.startswith(outside)):
        if name in (text := path.read_text(encoding="utf-8")):
            nodes = [*ast.walk(ast.parse(text))]
            used = {getattr(node, kind, None) for node in nodes for kind in ("id", "arg", "name")}
            if {name, OLD} <= used:
                return path.relative_to(ROOT).as_posix()
    return None


def installed(name: str) -> bool:
    """Return whether a package of this name is in site-packages. A fork that copier updates is not: it is editable."""
    spec = find_spec(name)
    return spec is not None and "-packages/" in f"{spec.origin} {spec.submodule_search_locations}"


def required() -> set[str]:
    """Return import names of the distributions in pyproject.toml, if these have the names of their modules."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = {re.split(r"[-_]", found)[0] for found in re.findall(r'"([a-z0-9_-]+)>=', text)}
    return named | set(re.findall(r'"([a-z0-9_]+)(?:>=|",)', text))


def check_folder(folder: Path, keeps: bool) -> None:
    """Raise Mistake unless git can restore all files that will be overwritten. keeps: True for a folder other than this
    one, which may be new."""
    if keeps and (not folder.exists() or not {path.name for path in folder.iterdir()} - {".git", ANSWERS}):
        return
    command = ["git", "status", "--porcelain", "--untracked-files=normal"]
    done = subprocess.run(
        command, cwd=folder, env=git_environment(), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        undo = "nothing could be undone - git init, git add, git commit"
        raise Mistake(f"{folder}: is there already, and no git checkout, so {undo}, or remove it")
    if changed := [line[3:] for line in done.stdout.splitlines() if line[3:] != ANSWERS]:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Mistake(f"{folder}: {changed[0]}{more} not committed - commit or stash first, so that git can undo this")


def tracked(root: Path) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, env=git_environment(), capture_output=True, check=False)
    if done.returncode or not done.stdout:
        raise Mistake(f"{root}: is not a git checkout with files - git init, git add, git commit")
    return [name for name in os.fsdecode(done.stdout).split("\0") if name and (root / name).is_file()]


# -- leaving out -----------------------------------------------------------------------------------------------------


def delete(tree: Path, names: Iterable[str]) -> None:
    """Delete files and folders, and then the folders that are empty."""
    for name in names:
        path = tree / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == tree or not parent.is_dir() or any(parent.iterdir()):
                break
            parent.rmdir()


def delete_marked(tree: Path) -> None:
    """Delete lines that end with `template only` (parts.py), and the sections of such headings."""
    section = r"^## .*template only -->\n(?:(?!## ).*\n)*"
    for name in tracked(ROOT):
        if not name.startswith(VERBATIM) and b"template only" in (ROOT / name).read_bytes():
            if name.endswith(".md"):
                edit(tree / name, section, "")
            edit(tree / name, r"^.*\btemplate only[^\w\n]*\n", "")


def delete_entries(tree: Path, parts: Iterable[Part]) -> None:
    """Delete lines of pyproject.toml that begin with a deleted folder, and the extras of parts."""
    file = tree / "pyproject.toml"
    for folder in (path.name for path in ROOT.iterdir() if path.is_dir() and not (tree / path.name).exists()):
        edit(file, rf'^ *"{re.escape(folder)}/.*\n', "")
    for name in (name for part in parts for name in part.names):
        edit(file, rf"^{re.escape(name)} = \[.*\n", "")
        edit(file, rf"(?<=[\[,]){re.escape(name)},|,{re.escape(name)}(?=\])", "")


def edit(path: Path, pattern: str, new: str | Callable[[re.Match[str]], str]) -> None:
    if path.exists():
        path.write_text(re.sub(pattern, new, path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def forget(tree: Path, deleted: Iterable[str], parts: Sequence[Part]) -> None:
    """Delete sentences, rows of tables and lines of code that name a deleted file, option or command, in pages and in
    comments of conf/. Pages other than the README may name packages/ and checks/, which the template has."""
    gone = list(deleted)
    outside = [name for name in gone if not name.startswith(("packages/", "checks/"))]
    words = [word for part in parts for word in WORDS.get(part.names[0], ())]
    # `name` and `name.Class`; only `name` if another file has it too
    named = [name for part in parts for name in part.names]
    rows = "|".join(re.escape(Path(name).name) if "/" in name else rf"{re.escape(name)}(?:\.\w+)?" for name in named)
    in_readme, elsewhere = naming(tree, gone, words), naming(tree, outside, words)
    for page in [
        *(tree / "docs").glob("*.md"),
        *tree.glob("*.md"),
        tree / "mkdocs.yml",
        tree / "pyproject.toml",
        *tree.glob("src/*.py"),
        *(path for name in FORGETTING for path in tree.glob(f"src/*/{name}")),
        *(tree / "conf").rglob("*.yaml"),
    ]:
        if not page.exists() or page.name in ("fork.md", "CHANGELOG.md"):
            continue
        text = page.read_text(encoding="utf-8")
        if rows and page.name == "commands.md":
            text = re.sub(rf"(?<=[{{,])(?:{rows}),|,(?:{rows})(?=\}})", "", text)
        if rows and page.suffix == ".md":
            text = re.sub(rf"^\| (?:(?:, )?`(?:{rows})`)+ \|.*\n", "", text, flags=re.MULTILINE)
        if told := in_readme if page.name == "README.md" else elsewhere:
            if page.suffix in (".py", ".toml"):
                text = "".join(line for line in text.splitlines(keepends=True) if not told.search(line))
            elif page.suffix == ".yaml":
                # a command may have several lines, each but the last with a backslash at its end
                text = re.sub(
                    r"^#(?:.*\\\n)*.*\n", lambda m: "" if told.search(m[0]) else m[0], text, flags=re.MULTILINE
                )
            else:
                text = without_sentences(without_sections(text, told), told)
        if page.suffix == ".md":  # tables without rows
            text = re.sub(r"^\|.*\n\|[-|]+\n\n", "", text, flags=re.MULTILINE)
        page.write_text(text, encoding="utf-8")


def naming(tree: Path, deleted: list[str], words: Iterable[str] = ()) -> re.Pattern[str] | None:
    """Return a pattern of the words by which a page names these files: name, module, folder, group=option,
    group=[option,...]. words: further ones."""
    names = set(deleted) | set(words) | {name.removeprefix("src/") for name in deleted}
    names |= {Path(name).name for name in deleted if name.startswith("docs/")}
    names |= {name[4:-3].replace("/", ".") for name in deleted if name.startswith("src/") and name.endswith(".py")}
    text = "\n".join(deleted)
    options = re.findall(r"^conf/(.+)/(\w+)\.yaml$", text, re.MULTILINE)
    names |= {f"{group}={option}" for group, option in options}
    lists = [rf"{re.escape(group)}=\[(?:[^\]]*,)?{option}(?:,[^\]]*)?\]" for group, option in options]
    folders = {parent for name in deleted for parent in Path(name).parents if not (tree / parent).exists()}
    names |= {f"{folder}/" for folder in folders}
    names |= {".".join(folder.parts[1:]) for folder in folders if folder.parts[0] == "conf"}
    return re.compile(rf"(?<![\w./-])({'|'.join([*map(re.escape, names), *lists])})(?![\w=])") if names else None


def without_sections(text: str, told: re.Pattern[str]) -> str:
    """Return a page without the sections that have such a name in their heading, as docs/configuration.md has."""
    sections = re.split(r"^(?=##)", text, flags=re.MULTILINE)
    kept = [one for one in sections if not (one.startswith(("## ", "### ")) and told.search(one.partition("\n")[0]))]
    return "".join(kept).rstrip("\n") + "\n"


def without_sentences(text: str, told: re.Pattern[str]) -> str:
    """Return a page without the sentences that match; in tables the clause or the row, in code and yaml the line."""
    kept, code = [], False
    blocks = re.split(r"(?<=\n)(?=\n|\||```|    |  - |- |\d+\. |#)", text)
    for block, following in zip(blocks, [*blocks[1:], "\n"]):
        code ^= block.startswith("```")
        if not told.search(block):
            kept.append(block)
        elif code or block.startswith(("    ", "  - ")):
            # a command may have several lines, each but the last with a backslash at its end
            kept += [line for line in re.findall(r"(?:.*\\\n)*.*\n|.+\Z", block) if not told.search(line)]
        elif block.startswith("|"):
            clauses = [re.split(r"(?<=;) |(?<=`), ", cell.strip()) for cell in block.strip("|\n").split("|")]
            cells = ["; ".join(one.rstrip(";") for one in cell if not told.search(one)) for cell in clauses]
            kept += [f"| {' | '.join(cells)} |\n"] if all(cells) else []
        else:
            begin, body = re.fullmatch(r"(\n*(?:- |\d+\. )?)(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
            rest = "".join(
                one for one in re.findall(r".+?(?:[.!?](?=\s)\s|\Z)", body, re.DOTALL) if not told.search(one)
            )
            if rest.strip():
                kept.append(f"{begin}{rest.rstrip()}\n")
            elif not following.startswith("\n"):  # of two blank lines, one is left
                kept.append("\n" * begin.count("\n"))
    # of a block without lines, and of the colon before it
    return re.sub(r":?\n+```\w*\n```\n+", lambda m: "." * m[0].startswith(":") + "\n\n", "".join(kept))


# -- the new name ----------------------------------------------------------------------------------------------------


def rename(tree: Path, package: str) -> None:
    """Rename the package in contents and in paths, if its name is a whole word there."""
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
    if more := 3 * (len(package) - len(OLD)):  # a line may name it three times; only the linter's limit is raised
        edit(tree / "pyproject.toml", r"^max-line-length = 120.*$", f"max-line-length = {120 + max(more, 0)}")
        edit(tree / ".yamllint", r"max: 120", f"max: {120 + max(more, 0)}")
    for folder in sorted(tree.rglob(OLD), reverse=True):
        if folder.is_dir() and not folder.relative_to(tree).as_posix().startswith(VERBATIM):
            folder.rename(folder.with_name(package))


def name_owner(tree: Path, title: str, author: str, terms: str) -> None:
    """Write the fork's title, author and license into README, LICENSE and pyproject.toml."""
    intro = f"# {title}\n\nMade from a template for PyTorch experiments; `docs/fork.md` explains how to update it.\n\n"
    readme = (tree / "README.md").read_text(encoding="utf-8")
    (tree / "README.md").write_text(README_INTRO.sub(lambda _: intro, readme, count=1), encoding="utf-8")
    edit(tree / "mkdocs.yml", r"^site_name: .*$", lambda _: f"site_name: {json.dumps(title)}")
    edit(tree / "pyproject.toml", r"^description = .*$", lambda _: f"description = {json.dumps(title)}")
    if author:
        authors = f"authors = [{{ name = {json.dumps(author)} }}]"
        edit(tree / "pyproject.toml", r"^requires-python = .*$", lambda m: f"{authors}\n{m[0]}")
    notice = r"^(Copyright \(c\) .*)$"
    if terms == "none":  # packages/ has its own license
        (tree / "LICENSE").unlink()
        edit(tree / "pyproject.toml", r"^license = .*\n", "")
    elif author:
        edit(tree / "LICENSE", notice, lambda m: f"{m[1]}\nCopyright (c) {author}")


# -- writing ---------------------------------------------------------------------------------------------------------


def tidy(tree: Path) -> None:
    """Sort imports and format, because the package's name has another length and place. Leave packages/ as it is."""
    names = [path.relative_to(tree).as_posix() for path in tree.rglob("*.py")]
    files = [name for name in names if not name.startswith(ENGINE)]
    # before the formatting some lines are too long, which is nothing to report
    for command in (["check", "--fix", "--exit-zero", "--silent"], ["format", "--quiet"]):
        done = subprocess.run([*ruff(), *command, "--no-cache", *files], cwd=tree, check=False)
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
            shutil.rmtree(parent)  # otherwise Python would still find the old package
    for path in files:
        target = folder / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def place_whole(tree: Path, folder: Path) -> None:
    """Write the tree to a new folder. If this fails or the process is killed, there is no folder of this name."""
    if folder.exists():  # copier's, or an earlier fork's, which git can restore
        place(tree, folder, gone=[])
        return
    partial = folder.absolute().with_name(f"{folder.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    try:
        place(tree, partial, gone=[])
        partial.rename(folder)
    except OSError:  # the disk is full
        shutil.rmtree(partial, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
