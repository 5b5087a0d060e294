#!/usr/bin/env python3
"""Write the generated pages of the docs: configuration.md, commands.md and api*.md. `./run docs` runs this first.

    ./run python tools/reference.py            # write docs/configuration.md, docs/commands.md and docs/api*.md
    ./run python tools/reference.py --check    # exit status 1 if a page would change

configuration.md lists each key of conf/: its default from the yaml, its type from the schema of tools/schema.py and its
meaning from the comments of the yamls. A key without a comment has that of the default option of its group. A link to a
page is written if the page exists.

Exit status: 0 done, 1 with --check, if a page would change, 2 if a key or an option has no description. The pages are
written then, too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import reference_api
import reference_commands
import yaml
from reference_text import DOCS, GENERATED, breakable, cell, code, link, sentence, without_tags
from schema import (
    CONF,
    CONFIG,
    MODELINE,
    OURS,
    ROOT,
    Schema,
    build,
    comment_of,
    nodes,
    options,
    package_of,
    read,
    yamls,
)

PAGE = "configuration.md"
OWN = "Keys of no group"
OF_TRAIN = ("process", "sweep", "monitor", "pruning", "quantization")  # sections of train.yaml
# The sections in their order, and the page that explains a group. A page that does not exist is not linked.
GROUPS = {
    OWN: "configure.md",
    "process": "fault_tolerance.md",
    "sweep": "sweeps.md",
    "monitor": "checkpoints.md",
    "pruning": "compression.md",
    "quantization": "compression.md",
    "data": "my_data.md",
    "data.order": "data_orders.md",
    "data.transforms": "transforms.md",
    "model": "my_model.md",
    "task": "tasks.md",
    "optim": "rates_optimizers.md",
    "optim.schedule": "rates_optimizers.md",
    "trainer": "configure.md",
    "hardware": "profiling.md",
    "logger": "logging.md",
    "callback": "callbacks.md",
    "profiler": "profiling.md",
    "debug": "configure.md",
    "experiment": "configure.md",
    "hydra.launcher": "launch.md",
    "hydra.sweeper": "sweeps.md",
    "hydra.sweeper.sampler": "search.md",
    "hydra.sweeper.pruner": "search.md",
}
# The page that explains a key or an option, if it is not that of its group
PAGES = {
    "seed": "reproducibility.md",
    "resume": "checkpoints.md",
    "process.max_time": "checkpoints.md",
    "process.straggler_threshold": "troubleshooting.md",
    "trainer.strategy": "launch.md",
    "trainer.ddp": "launch.md",
    "trainer.fsdp": "fsdp.md",
    "trainer.save_every": "checkpoints.md",
    "trainer.keep_best": "checkpoints.md",
    "trainer.ema_decay": "rates_optimizers.md",
    "trainer.non_finite": "troubleshooting.md",
    "trainer.pad_eval_batches": "losses_metrics.md",
    "hardware.deterministic": "reproducibility.md",
    "hardware.num_procs": "launch.md",
    "hardware.compile": "profiling.md",
    "hardware.cuda_graph": "profiling.md",
    "data=huggingface": "parquet.md",
    "data=huggingface_stream": "parquet.md",
    "data=parquet": "parquet.md",
    "data=texts": "hugging_face.md",
    "data=captions": "clip.md",
    "data=mixed": "data_orders.md",
    "model=lora": "hugging_face.md",
    "model=pretrained": "hugging_face.md",
    "task=clip": "clip.md",
    "task=mae": "mae.md",
    "task=transformers": "hugging_face.md",
    "trainer=fsdp": "fsdp.md",
    "hydra/sweeper=optuna": "search.md",
}
UNITS = {"_s": "seconds", "_min": "minutes", "_mb": "MB", "_gb": "GB", "_tflops": "TFLOP/s"}
LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
KINDS = {"boolean": "true, false", "null": "null", "array": "list", "object": "mapping", "string": "text"}


EXPLAINED = ("data", "model", "task", "optim", "optim.schedule", "hydra.launcher", "hydra.sweeper")


# -- types and defaults ----------------------------------------------------------------------------------------------


def values_of(found: Schema, made: Mapping[str, Schema], key: str = "") -> str:
    """Return the type and the allowed values that a schema accepts, in words. `${...}` is accepted for any value."""
    found = resolved(found, made)
    words = list(dict.fromkeys(word for one in found.get("anyOf", [found]) for word in kinds_of(one, made)))
    if "null" in words:  # last
        words = [*(word for word in words if word != "null"), "null"]
    if "text" in words and "integer" in words:  # a name that looks like a number
        words.remove("integer")
    unit = next((f" ({unit})" for end, unit in UNITS.items() if key.endswith(end)), "")
    return ", ".join(f"{one}{unit}" if one.startswith(("integer", "number")) else one for one in words)


def resolved(found: Schema, made: Mapping[str, Schema]) -> Schema:
    while "$ref" in found:
        _, name, *inner = found["$ref"].removeprefix("#/").split("/")
        found = made[name]
        for part in inner:
            found = found[part]
    return found


def kinds_of(found: Schema, made: Mapping[str, Schema]) -> Iterator[str]:
    found = resolved(found, made)
    if found == made["later"]:
        return
    if "enum" in found:
        yield from (code(json.dumps(one) if not isinstance(one, str) else one) for one in found["enum"])
        return
    if "const" in found:
        yield code(str(found["const"]))
    types = found.get("type", [])
    limits = " and".join(f" {sign} {found[name]}" for name, sign in LIMITS.items() if name in found)
    wanted = found.get("patternErrorMessage", "").partition(", or ${")[0].removeprefix("expected ")
    for kind in [types] if isinstance(types, str) else types:
        if kind in ("integer", "number"):
            yield f"{kind}{limits}"
        elif kind == "array":
            items = found.get("items")
            inner = values_of(items, made) if isinstance(items, dict) else ""
            yield f"list of {inner}" if inner and "," not in inner else "list"
        elif kind != "string":
            yield KINDS[kind]
        elif "pattern" not in found:
            yield "text"
        elif ("epochs" in wanted or "duration" in wanted or "30m" in wanted) and "," not in wanted:
            yield wanted
        elif "epochs" in wanted:
            yield "epochs (1ep, 0.5ep)"
        elif r"[smhd]" in found["pattern"]:
            yield "duration (30s, 10m, 12h)"


def shown(value: yaml.Node, text: str) -> str:
    """Return a value as its yaml has it, on one line. A block or a long value is shortened to its keys."""
    if isinstance(value, yaml.CollectionNode) and not value.flow_style:
        names = [one[0].value if isinstance(one, tuple) else one.value for one in value.value]
        return "{...}" if isinstance(value, yaml.MappingNode) else f"[{len(names)} items]"
    source = " ".join(text[value.start_mark.index : value.end_mark.index].split())
    return source.strip("\"'") if source.startswith('"${') else source or '""'


# -- yamls -----------------------------------------------------------------------------------------------------------


class Conf:
    """The content of the yamls: nodes by dotted key, comments, headers."""

    def __init__(self) -> None:
        self.made: dict[str, Schema] = build()["definitions"]
        self.comments, _, _ = read()
        self.files = {path: path.read_text(encoding="utf-8") for path in yamls()}
        self.gaps: list[str] = []
        self.anchors: set[str] = set()

    def keys(self, path: Path) -> dict[str, yaml.Node]:
        """Return {dotted key: the node of its value} of a yaml, without the defaults list."""
        found = nodes(yaml.compose(self.files[path], yaml.SafeLoader), package_of(path))
        return {key: value for key, _, value in found if not re.search(r"(^|\.)defaults(\.|$)", key)}

    def said(self, path: Path) -> dict[str, str]:
        """Return {dotted key: its own comment} of a yaml."""
        lines = [*self.files[path].splitlines(), ""]
        found = nodes(yaml.compose(self.files[path], yaml.SafeLoader), package_of(path))
        return {key: said for key, name, value in found if (said := comment_of(lines, name, value))}

    def header(self, path: Path) -> tuple[str, list[str]]:
        """Return (the comment at the head of a yaml, the commands in it)."""
        body = MODELINE.sub("", self.files[path]).removeprefix("# @package _global_\n")
        body = re.sub(r"\A# @package .*\n", "", body)
        lines = re.sub(r"\\\n# *", "", re.match(r"(?:#.*\n)*", body)[0])  # type: ignore[index]
        rest = body[len(re.match(r"(?:#.*\n)*", body)[0]) :]  # type: ignore[index]
        if lines and re.match(r"\S+: (?!\{)\S", rest) and not rest.startswith("_"):
            first = next(iter(self.said(path)), "")
            if first and self.said(path)[first].startswith(lines.split("\n")[0].lstrip("# ")[:20]):
                return "", []  # it is the comment of the first key
        texts = [line.removeprefix("#").strip() for line in lines.splitlines()]
        typed = [re.split(r" {2,}", text, maxsplit=1) for text in texts if text.startswith("./run ")]
        commands = [f"`{one}`" for command, *_ in typed for one in command.split("; ")]
        if len(commands) == len(typed):  # the words after a command describe it
            commands = [
                " ".join([one, *(f"({note.strip('()')})" for note in notes)])
                for one, (_, *notes) in zip(commands, typed)
            ]
        return " ".join(one for one in texts if not one.startswith("./run ")), commands

    def row(self, key: str, default: str, values: str, meaning: str, anchor: str = "", short: bool = True) -> str:
        """Return the row of a key. anchor: of an option's row. short: whether the key itself is an anchor, too: of the
        default option, so that a fork without another one keeps its anchors."""
        if not meaning:
            self.gaps.append(key if not anchor else f"{key} ({anchor.partition(':')[0]})")
        names = [name for name in (key * short, anchor) if name and name not in self.anchors]
        self.anchors |= set(names)
        page = f"See {found}." if (found := link(PAGES.get(key, ""))) and PAGES[key] not in meaning else ""
        ids = "".join(f'<a id="{name}"></a>' for name in names)
        text = cell(f"{sentence(meaning)} {page}")
        name = f"{ids}[`{key}`](#{(names or [anchor])[0]})"
        return f"| {name} | {cell(breakable(default))} | {cell(values)} | {text} |"


def table(rows: Iterable[str]) -> list[str]:
    return ["| Key | Default | Values | Meaning |", "|---|---|---|---|", *rows, ""]


# -- sections --------------------------------------------------------------------------------------------------------


def typed_rows(conf: Conf, path: Path, prefix: str, found: Schema) -> Iterator[str]:
    """Yield the rows of a group's keys that a dataclass types, with the defaults of its yaml."""
    values = conf.keys(path)
    for key, node in values.items():
        if prefix and not f"{key}.".startswith(f"{prefix}."):
            continue
        inner = found
        for part in key.removeprefix(prefix).strip(".").split(".") if key != prefix else ():
            inner = resolved(inner, conf.made).get("properties", {}).get(part, {})
        is_group = key == prefix or resolved(inner, conf.made).get("properties")
        if not inner or (is_group and not isinstance(node, yaml.ScalarNode)):
            continue
        said = conf.comments.get(key, "")
        yield conf.row(key, shown(node, conf.files[path]), values_of(inner, conf.made, key), said)


def option_rows(conf: Conf, path: Path, group: str, base: Path, alike: Mapping[str, str]) -> Iterator[str]:
    """Yield the rows of an option's keys, with the types of its class's arguments; nested keys if they have a comment.
    alike: keys without a row, because they are equal in the default option."""
    said, values, option = conf.said(path), conf.keys(path), f"{spelled(group)}={path.stem}"
    target = values.get(f"{group}._target_")
    # the arguments of other libraries' classes depend on their version
    ours = isinstance(target, yaml.ScalarNode) and target.value.startswith(OURS)
    known = conf.made.get(target.value, {}).get("properties", {}) if ours else {}
    for key, node in values.items():
        name = key.removeprefix(f"{group}.")
        if name.split(".")[-1].startswith("_") or ("." in name and key not in said) or key in alike:
            continue
        # the default option describes the keys that others have too
        meaning = said.get(key) or conf.comments.get(f"{target.value}.{name}" if target else "", "")
        meaning = meaning or conf.comments.get(key, "") or conf.said(base).get(key, "")
        values_text = values_of(known[name], conf.made, key) if name in known else kind_of(node)
        yield conf.row(key, shown(node, conf.files[path]), values_text, meaning, f"{option}:{name}", path == base)


def as_in(conf: Conf, path: Path, group: str, base: Path) -> dict[str, str]:
    """Return {key: a link to its row} of the keys of an option that have the default and the meaning of `base`."""
    said, of_base, option = conf.said(path), conf.said(base), f"{spelled(group)}={base.stem}"
    values, values_of_base = conf.keys(path), conf.keys(base)
    return {
        key: f"[`{key}`](#{key})"
        for key, node in values.items()
        if path != base and key in conf.anchors and key in values_of_base
        if source(node, conf.files[path]) == source(values_of_base[key], conf.files[base])
        if said.get(key, of_base.get(key)) in (of_base.get(key), f"see {option}")
    }


def source(node: yaml.Node, text: str) -> str:
    return text[node.start_mark.index : node.end_mark.index].strip()


def kind_of(node: yaml.Node) -> str:
    """Return the type of a value in a yaml, for keys that no annotation types."""
    if isinstance(node, yaml.CollectionNode):
        return "mapping" if isinstance(node, yaml.MappingNode) else "list"
    value = yaml.safe_load(node.value)
    names = {bool: "true, false", int: "number", float: "number"}
    return names.get(type(value), "number" if re.fullmatch(r"[\d.]+e-?\d+", node.value) else "")


def spelled(group: str) -> str:
    return group.replace(".", "/")


def inherited(conf: Conf, path: Path, group: str) -> list[str]:
    """Return the options of the same group that a yaml builds on."""
    listed = (yaml.safe_load(conf.files[path]) or {}).get("defaults", [])
    return [f"{spelled(group)}={one}" for one in listed if isinstance(one, str) and re.fullmatch(r"[a-z]\w*", one)]


def paths_of(group: str) -> list[Path]:
    """Return the yamls of a group, the default option first."""
    listed = yaml.safe_load((CONF / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {key: value for one in listed if isinstance(one, dict) for key, value in one.items()}
    chosen |= {"optim.schedule": "cosine", "data.order": "shuffled", "data.transforms": "to_float"}
    chosen |= {"hydra.launcher": "one", "hydra.sweeper": "ledger"}
    found = [path for path in yamls() if path.parent == CONF.joinpath(*group.split("."))]
    return sorted(found, key=lambda path: (path.stem != chosen.get(group), path.stem))


def about(conf: Conf, path: Path, group: str) -> list[str]:
    """Return the description of an option: the header of its yaml, or the docstring of its class."""
    text, commands = conf.header(path)
    if not text:
        wanted = (f"{group}._target_", f"{group}.{path.stem}._target_")
        target = next((one for key, one in conf.keys(path).items() if key in wanted), None)
        ours = target is not None and target.value.startswith(OURS)
        text = conf.made.get(target.value, {}).get("description", "") if ours else ""
        if not text and group in EXPLAINED:
            conf.gaps.append(f"{spelled(group)}={path.stem}")
    found = [sentence(text)] if text else []
    found += [f"Example: {without_tags(one)}" for one in commands]
    page = PAGES.get(f"{spelled(group)}={path.stem}", "")
    return [*found, *([f"See {link(page)}."] if link(page) and f"({page})" not in "".join(found) else [])]


def section(conf: Conf, group: str) -> Iterator[str]:
    yield from (f"## {group}", "")
    if page := link(GROUPS[group]):
        yield from (f"Guide: {page}.", "")
    train, definitions = CONF / "train.yaml", conf.made["train"]["properties"]
    if group == OWN:
        own = [
            key for key in conf.keys(train) if "." not in key and key in definitions and key not in (*GROUPS, "hydra")
        ]
        yield from table(row for key in own for row in typed_rows(conf, train, key, definitions[key]))
    elif group in OF_TRAIN:
        yield from (sentence(conf.comments[group]), "")
        yield from table(typed_rows(conf, train, group, definitions[group]))
    elif group in ("trainer", "hardware", "logger", "profiler"):
        yield from typed_group(conf, group)
    elif group in ("debug", "experiment"):
        yield from recipes(conf, group)
    elif group in ("callback", "data.order", "data.transforms", "hydra.sweeper.sampler", "hydra.sweeper.pruner"):
        yield from compact(conf, group)
    else:
        if (shared := CONF / f"{group}_defaults.yaml") in conf.files:
            yield from (
                f"Keys of every option of `{group}`:",
                "",
                *table(typed_rows(conf, shared, group, own_of(conf, group))),
            )
        base = paths_of(group)[0]
        for path in paths_of(group):
            option = f"{spelled(group)}={path.stem}"
            yield from (f"### `{option}`", "")
            yield from (line for one in about(conf, path, group) for line in (one, ""))
            if others := inherited(conf, path, group):
                yield from (f"It also has the keys of {', '.join(f'`{one}`' for one in others)}.", "")
            if alike := as_in(conf, path, group, base):
                yield from (f"As in `{spelled(group)}={base.stem}`: {', '.join(alike.values())}.", "")
            if rows := list(option_rows(conf, path, group, base, alike)):
                yield from table(rows)


def own_of(conf: Conf, group: str) -> Schema:
    """Return the keys that the run reads in a group whose other keys are arguments of a class."""
    target = {"data": "lab.datasets.h5.Dataset", "optim": "torch.optim.AdamW"}[group]
    package = CONFIG.__name__.partition(".")[0]
    return conf.made[target.replace("lab.", f"{package}.", 1)]


def typed_group(conf: Conf, group: str) -> Iterator[str]:
    """Yield a table of all keys, each with its default in the first yaml that has it, then the options."""
    paths = [path for path in (CONF / f"{group}_defaults.yaml", *paths_of(group)) if path in conf.files]
    seen: set[str] = set()
    rows = []
    for path in paths:
        found = list(typed_rows(conf, path, group, conf.made[group]))
        names = [re.search(r"\[`([^`]+)`\]", row)[1] for row in found]  # type: ignore[index]
        rows += [row for name, row in zip(names, found) if name not in seen]
        seen |= set(names)
    yield from ("| Option | Description |", "|---|---|")
    for path in paths_of(group):
        text = cell("<br>".join(about(conf, path, group))) or f"Sets {changes(conf, path)}."
        yield f"| `{group}={path.stem}` | {text} |"
    yield ""
    # trainer.fsdp is null in one yaml and a mapping in another: both rows are of use
    yield from table(rows)


def changes(conf: Conf, path: Path) -> str:
    """Return the values that a yaml sets, as overrides."""
    found = [
        (key, node) for key, node in conf.keys(path).items() if isinstance(node, yaml.ScalarNode) or node.flow_style
    ]
    return cell(", ".join(f"`{key}={shown(node, conf.files[path])}`" for key, node in found if "_target_" not in key))


def recipes(conf: Conf, group: str) -> Iterator[str]:
    """Yield a section for each option of a group whose options override other groups."""
    for path in paths_of(group):
        yield from (f"### `{group}={path.stem}`", "")
        yield from (line for one in about(conf, path, group) for line in (one, ""))
        if group == "debug":
            yield from (f"Sets {changes(conf, path)}.", "")


def compact(conf: Conf, group: str) -> Iterator[str]:
    """Yield a table with a row for each option, for groups of small classes with few arguments."""
    yield from ("| Option | Description | Keys |", "|---|---|---|")
    for path in paths_of(group):
        keys = {key: node for key, node in conf.keys(path).items() if not key.rpartition(".")[2].startswith("_")}
        said, found = conf.said(path), []
        for key, node in keys.items():
            if isinstance(node, yaml.MappingNode):
                continue
            meaning = f": {cell(sentence(said[key], end=False))}" if key in said else ""
            found.append(f"{cell(breakable(f'{key}={shown(node, conf.files[path])}'))}{meaning}")
        text = cell("<br>".join(about(conf, path, group)))
        if not text:
            conf.gaps.append(f"{spelled(group)}={path.stem}")
        option = f"{spelled(group)}={path.stem}"
        yield f'| <a id="{option}"></a>`{option}` | {text} | {"<br>".join(found)} |'
    yield ""


# -- files -----------------------------------------------------------------------------------------------------------


def configuration() -> tuple[str, list[str]]:
    """Return the page, and the keys and options that no comment describes."""
    conf = Conf()
    body = [
        line for group in GROUPS if group in (OWN, *OF_TRAIN) or group in options() for line in section(conf, group)
    ]
    intro = f"""\
# Configuration reference

{GENERATED}

Every key of `conf/`, with its default, the values that it accepts and its meaning. Set a key on the command line
(`./run train trainer.clip_norm=0.5`) or in a yaml; choose an option of a group with `group=option`. Every key also
accepts an interpolation, `${{...}}`. Each key is a link to itself, so you can share its address.
"""
    return "\n".join([intro, *body]).rstrip() + "\n", list(dict.fromkeys(conf.gaps))


def pages() -> tuple[dict[Path, str], list[str]]:
    """Return {file: its text}, and the keys and options that no comment describes."""
    text, gaps = configuration()
    found = {PAGE: text, "commands.md": reference_commands.page(), **reference_api.pages()}
    return {DOCS / file: text for file, text in found.items()}, gaps


def main() -> int:
    parser = argparse.ArgumentParser(
        "./run python tools/reference.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page would change")
    check = parser.parse_args().check
    found, gaps = pages()
    stale = [path for path, text in found.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(found[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'is not up to date - ./run docs' if check else 'written'}")
    for gap in gaps:
        print(f"{gap}: has no description - write a comment in its yaml", file=sys.stderr)
    return 2 if gaps else int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
