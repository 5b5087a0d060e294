"""docs/commands.md: the options of each `./run` command, read from its parser."""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from reference_text import GENERATED, cell, code, link, sentence

ROOT = Path(__file__).resolve().parents[1]
# Each command: (its module in src/ or tools/, the page that explains it). Its examples are in the module's docstring.
COMMANDS = {
    "train": ("train", "configure.md"),
    "evaluate": ("evaluate", "use_model.md"),
    "predict": ("predict", "use_model.md"),
    "export": ("export", "use_model.md"),
    "verify": ("verify", "verify.md"),
    "report": ("report", "report.md"),
    "tune": ("tune", "profiling.md"),
    "sync": ("sync", "logging.md"),
    "remote": ("remote", "remote_run.md"),
    "env": ("env", "environment.md"),
    "h5": ("h5", "pack_data.md"),
    "fork": ("fork", "fork.md"),
    "schema": ("schema", "editors.md"),
}
# Commands of ./run that pass their arguments on: (what it runs, the words of a usual call, the page)
OTHERS = {
    "test": ("pytest", "./run test -m ''", "../CONTRIBUTING.md"),
    "lint": ("pre-commit", "./run lint", "../CONTRIBUTING.md"),
    "format": ("ruff check --fix, then ruff format", "./run format", "../CONTRIBUTING.md"),
    "docs": ("tools/reference.py, then mkdocs", "./run docs serve", ""),
    "python": ("Python of .venv", "./run python", ""),
    "pip": ("pip of .venv", "./run pip install timm", ""),
}
# Options of Hydra that ./run train accepts in addition to overrides, and what it prints or does
HYDRA = {
    "--multirun, -m": "Run every combination of the values that are given as lists, as a sweep.",
    "--cfg job": "Print the composed config and exit. Add `--resolve` to resolve interpolations, "
    "`--package trainer` to print one group.",
    "--info defaults": "Print the defaults list: which yaml every group comes from.",
    "--config-name NAME": "Use the yaml of this name in `conf/` instead of `conf/train.yaml`.",
    "--help, -h": "Print the groups, their options and the whole config.",
    "--hydra-help": "Print all options of Hydra.",
}


NO_PARSER = ("train", "tune")  # Hydra parses their arguments


class Built(BaseException):
    """Carries a parser out of the command that has built it. Not an Exception, which a command may catch."""


def file_of(module: str) -> Path:
    return next(path for folder in ("src", "tools") if (path := ROOT / folder / f"{module}.py").is_file())


def doc_of(module: str) -> str:
    return ast.get_docstring(ast.parse(file_of(module).read_text(encoding="utf-8"))) or ""


def parser_of(module: str) -> argparse.ArgumentParser | None:
    """Return the parser that a command builds, without running the command; None if it builds none."""
    found: list[argparse.ArgumentParser] = []

    def caught(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        found.append(parser)
        raise Built

    names = ("parse_args", "parse_known_args", "parse_intermixed_args")
    saved = {name: getattr(argparse.ArgumentParser, name) for name in names}
    argv, path = sys.argv, sys.path.copy()
    try:
        sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
        sys.argv = [f"src/{module}.py"]
        for name in names:
            setattr(argparse.ArgumentParser, name, caught)
        # by its file: a test may have another module of this name
        spec = spec_from_file_location(f"command_{module}", file_of(module))
        assert spec is not None
        assert spec.loader is not None
        run = module_from_spec(spec)
        spec.loader.exec_module(run)
        with contextlib.suppress(Built):
            run.main()
    finally:
        sys.argv, sys.path[:] = argv, path
        for name, method in saved.items():
            setattr(argparse.ArgumentParser, name, method)
    return found[0] if found else None


def examples(module: str) -> list[str]:
    """Return the commands that the docstring of a command shows."""
    doc = doc_of(module)
    found = re.findall(r"^ *(\./run .*?)(?:  +.*| *)$", doc, re.MULTILINE)
    return [wrapped(re.sub(r"\s+#.*", "", one)) for one in found]


def wrapped(command: str, width: int = 80) -> str:
    """Return a command on several lines, as a shell reads them, if it is longer than the site shows."""
    if len(command) <= width:
        return command
    cut = command.rindex(" ", 0, width)
    return f"{command[:cut]} \\\n        {command[cut + 1 :]}"


def status_of(module: str, parser: argparse.ArgumentParser | None) -> str:
    """Return the exit status that the docstring of a command, or the description of its parser, documents."""
    texts = (doc_of(module), (parser.description if parser else None) or "")
    found = next((one for text in texts if (one := re.search(r"Exit status:? (.+?)(?=\n\n|\Z)", text, re.S))), None)
    return " ".join(found[1].split()).rstrip(".") if found else ""


def default_of(action: argparse.Action) -> str:
    if not action.option_strings and action.nargs in ("?", "*"):
        return ""
    if action.required:
        return "required"
    if isinstance(action, argparse.BooleanOptionalAction) or action.default in (None, argparse.SUPPRESS, []):
        named = re.search(r"\[([^\[\]]+)\]$", action.help or "")  # h5rows names its defaults in the help
        return named[1] if named else "" if action.nargs != 0 else "off"
    if action.nargs == 0:
        return "off"
    value = action.default
    return code(" ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def name_of(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return ", ".join(action.option_strings)
    metavar = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    shown = " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)
    return ", ".join(f"{one} {shown}{' ...' if action.nargs in ('+', '*') else ''}" for one in action.option_strings)


def table(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from ("| Argument | Default | Meaning |", "|---|---|---|")
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) or action.help == argparse.SUPPRESS:
            continue
        default, text = default_of(action), action.help or ""
        text = re.sub(r" \[[^\[\]]+\]$", "", text) if default and f"[{default.strip('`')}]" in text else text
        if not default and (named := re.search(r"[;,] default: (.+)$", text)):
            default, text = named[1], text[: named.start()]
        if not text:
            raise SystemExit(f"error: {parser.prog}: {name_of(action)} has no help")
        text = text.replace("%%", "%")
        words = ", ".join(code(str(one)) for one in action.choices or ())
        if words and action.metavar:
            text = f"{text}: {words}"
        yield f"| `{cell(name_of(action))}` | {cell(default)} | {cell(sentence(text))} |"
    yield ""


def section(command: str, module: str, page: str) -> Iterator[str]:
    marked = " <!-- its examples name parts: template only -->" if command == "fork" else ""
    yield from (f"## ./run {command}{marked}", "")
    parser = None if command in NO_PARSER else parser_of(module)
    about = doc_of(module)
    yield from (sentence(re.split(r"\n\n", about.strip())[0]), "")
    if page := link(page):
        yield from (f"Guide: {page}.", "")
    if parser is not None and not parser.prog.startswith("./run "):
        raise SystemExit(f"error: the usage of {command} begins with {parser.prog}, not ./run {command}: set prog")
    yield from (line for one in examples(module)[:4] for line in (f"    {one}",))
    yield ""
    if command in NO_PARSER:
        yield from hydra_options(command, about)
    for action in parser._actions if parser is not None else ():
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, inner in action.choices.items():
                yield from (f"### {inner.prog}", "", sentence(helps.get(name, "")), "", *table(inner))
            break
    else:
        if parser is not None:
            yield from table(parser)
    if status := status_of(module, parser):
        yield from (f"Exit status: {status}.", "")


def hydra_options(command: str, about: str) -> Iterator[str]:
    if command == "train":
        override = "`group=option` or `group.key=value`, such as `data=h5 optim.lr=1e-3`"
        yield from (f"Every other argument is an override: {override}. See {link('configuration.md')}.", "")
        rows = [*HYDRA.items()]
    else:
        yield from ("Every other argument is an override, as for `./run train`.", "")
        rows = [(name, sentence(text)) for name, text in re.findall(r"^ {6}(\w+) {2,}(.+)$", about, re.MULTILINE)]
    yield from ("| Argument | Meaning |", "|---|---|", *(f"| `{name}` | {cell(text)} |" for name, text in rows), "")


def page() -> str:
    here = [name for name in COMMANDS if name != "fork" or (ROOT / "src/lab").is_dir()]  # tools/fork.py deletes it
    body = [line for name in here for line in section(name, *COMMANDS[name])]
    rows = []
    for name, (runs, example, guide) in OTHERS.items():
        see = link(guide) if not guide.startswith("..") else ""
        rows.append(f"| `./run {name}` | {runs} | `{example}` |{f' {see} |' if see else ''}")
    others = [
        "## Commands that pass their arguments on",
        "",
        "| Command | Runs | Example |",
        "|---|---|---|",
        *rows,
        "",
    ]
    intro = f"""\
# Command reference

{GENERATED}

Every `./run` command with its options, as `./run COMMAND --help` prints them. `./run --help` lists the commands.
"""
    return re.sub(r"\n{3,}", "\n\n", "\n".join([intro, *body, *others])).rstrip() + "\n"
