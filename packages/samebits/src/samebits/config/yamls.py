"""Read the yaml files of the config without Hydra, to explain why Hydra cannot compose them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import GrammarParseError
from omegaconf.grammar_parser import parse

from samebits.errors import ConfigError
from samebits.schema import at, nearest, show, walk

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, which is written in C
DIRECTORY_OPTIONS, NAME_OPTIONS = ("--config-dir", "-cd"), ("--config-name", "-cn")


def option_value(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of a command line option, given as `-cn VALUE` or `--config-name=VALUE`; None if it is not
    given."""
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else next(iter(argv[index + 1 :]), None)
    return None


def folders(argv: Sequence[str], conf: Path) -> list[Path]:
    """Return the folders of the config: `conf` and that of --config-dir."""
    more = option_value(argv, DIRECTORY_OPTIONS)
    return [conf, *([Path(more)] if more else [])]


def read(name: str, argv: Sequence[str], conf: Path) -> tuple[Path, Any] | None:
    """Return (file, content) of group/option; None if the file does not exist or is not valid yaml."""
    for folder in folders(argv, conf):
        file = folder / f"{name}.yaml"
        try:
            return file, yaml.load(file.read_text(), LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
    return None


def chosen(argv: Sequence[str]) -> list[str]:
    """Return the chosen options: model=mlp -> model/mlp; each option of logger=[wandb,mlflow] and of a sweep
    model=mlp,gpt."""
    pairs = (argument.lstrip("+").partition("=") for argument in argv if not argument.startswith(("-", "~")))
    return [
        f"{group.partition('@')[0]}/{option.strip()}"
        for group, equals, options in pairs
        if equals
        for option in options.strip("[]").split(",")
        if option.strip()
    ]


def options(group: str, argv: Sequence[str], conf: Path) -> list[str]:
    """Return the names of a group's options, sorted."""
    return sorted({path.stem for folder in folders(argv, conf) for path in (folder / group).glob("*.yaml")})


def included(name: str, content: Any) -> Iterator[str]:
    """Yield the files that a defaults list includes, as group/option; `override` entries include none."""
    entries = content.get("defaults") if isinstance(content, Mapping) else None
    group = name.rpartition("/")[0]
    for entry in entries if isinstance(entries, list) else ():
        pairs = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for key, option in pairs:
            key = str(key).removeprefix("optional ").partition("@")[0]
            if key.startswith("override ") or not isinstance(option, str) or option == "_self_":
                continue
            path = f"{key}/{option.partition('@')[0]}" if key else option.partition("@")[0]
            yield path.lstrip("/") if path.startswith("/") or not group else f"{group}/{path}"


def composed(argv: Sequence[str], conf: Path, first: Sequence[str] = ()) -> Iterator[tuple[str, Path, Any]]:
    """Yield (group/option, file, content) of each yaml that is composed, as far as they can be read. first: names of
    yamls; if given, only these and those that they include."""
    todo, seen = [*first] or ["train", *chosen(argv)], set()
    while todo:
        name = todo.pop()
        if name in seen or (found := read(name, argv, conf)) is None:
            continue
        seen.add(name)
        yield name, *found
        todo += included(name, found[1])


def no_interpolation(argv: Sequence[str], conf: Path) -> str | None:
    """Return the line for the first composed value whose ${...} cannot be parsed; None if there is none."""
    for _, file, content in composed(argv, conf):
        for key, value in walk(content):
            if not isinstance(value, str) or "${" not in value:
                continue
            try:
                parse(value)
            except GrammarParseError:
                return f"{file}: {key}: {value} - not a valid interpolation; refer to another key as ${{group.key}}"
    return None


def emptied(overrides: Sequence[str], conf: Path) -> Iterator[tuple[str, Path]]:
    """Yield (dotted key, file) of each mapping {} in the chosen yamls that override the whole config."""
    for first in (name for name in chosen(overrides) if name.startswith(("experiment/", "debug/"))):
        for _, file, content in composed(sys.argv[1:], conf, [first]):
            yield from ((key, file) for key, value in walk(content) if value == {})


def overridden_twice(content: Any) -> str | None:
    """Return the first `override /group` that is twice in a defaults list; None if there is none."""
    listed = content.get("defaults") if isinstance(content, Mapping) else None
    mappings = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    found = [str(key) for one in mappings for key in one]
    return next((key for key in found if key.startswith("override ") and found.count(key) > 1), None)


def not_utf8(argv: Sequence[str], conf: Path) -> str | None:
    """Return the line for the first yaml that is not UTF-8, composed ones first; None if all are."""
    names = [*chosen(argv), *(more for name, _, content in composed(argv, conf) for more in included(name, content))]
    first = [folder / f"{name}.yaml" for folder in folders(argv, conf) for name in names]
    every = (file for folder in folders(argv, conf) for file in sorted(folder.rglob("*.yaml")))
    for file in (*filter(Path.is_file, first), *every):
        try:
            file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            return f"{file}: not valid yaml: byte {error.start} is not UTF-8 - save it as UTF-8"
    return None


def chosen_twice(group: str, argv: Sequence[str], conf: Path) -> str:
    """Return the line for a group that is chosen by train.yaml and a second time elsewhere."""
    if any(argument.partition("=")[0] == f"+{group}" for argument in argv):
        return f"{group}: is already chosen, so + cannot add it - write {group}=..., without the +"
    for name, file, content in composed(argv, conf):
        again = [path for path in included(name, content) if path.rpartition("/")[0] == group]
        if again and name != "train":
            option = again[0].rpartition("/")[2]
            return f"{file}: {group}: is already chosen - write `override /{group}: {option}` in its defaults list"
    return f"{group}: is chosen twice in the defaults lists - write `override /{group}: ...` in the second one"


def check_bare(argv: Sequence[str], conf: Path) -> None:
    """Raise ConfigError if a composed yaml contains no keys, or sets a group to a bare value, e.g. logger: none.

    Hydra would replace the whole group by that text, and a later yaml would replace the text by a mapping of only its
    keys.
    """
    groups = [path.relative_to(conf).parts for path in sorted(conf.rglob("*")) if any(path.glob("*.yaml"))]
    for key, _, value in (argument.partition("=") for argument in argv):
        inner = key.replace(".", "/")
        if "." in key and (*key.split("."),) in groups and {*value.split(",")} <= {*options(inner, argv, conf)}:
            raise ConfigError(f"{key}={value}: a group inside a group has a slash - write {inner}={value}")
    for name, file, content in composed(argv, conf):
        for again in (folder / f"{name}.yaml" for folder in folders(argv, conf)):
            if again.is_file() and not again.samefile(file):
                raise ConfigError(f"{again}: has no effect, because {file} has the same name - rename one of them")
        if (text := file.read_text()).startswith("\ufeff") and "@package" in text:
            raise ConfigError(
                f"{file}: starts with a byte order mark (BOM), so Hydra ignores its '# @package' - save it as UTF-8 "
                "without BOM"
            )
        if twice := overridden_twice(content):
            raise ConfigError(
                f"{file}: `{twice}` is twice in its defaults list, so the second has no effect - remove one"
            )
        for key, value in dotted(content, package(file, name)):
            *outer, last = key.split(".")
            shown = "".join(f"{part}: {{" for part in outer) + f"{last}: {show(value)}" + "}" * len(outer)
            raise ConfigError(f"{file}: {key}: in yaml a dot is part of the name - write {shown}")
        if content is not None and not isinstance(content, Mapping):
            kind = "a list" if isinstance(content, list) else f"the single value {content!r}"
            raise ConfigError(
                f"{file}: contains {kind}; a config contains keys and values, e.g. trainer: {{max_steps: 3}}"
            )
        for group in groups if content is not None else ():
            if (keys := below(package(file, name), group)) is None:
                continue
            node: Any = content
            for part in keys:
                node = node.get(part, {}) if isinstance(node, Mapping) else {}
            if not isinstance(node, Mapping) and "${" not in str(node):
                text = "null" if node is None else str(node)
                there = options("/".join(group), argv, conf)
                option = text if text in there else there[0] if len(there) == 1 else f"one of {', '.join(there)}"
                change = "" if name == "train" else "override /"
                raise ConfigError(
                    f"{file}: {'.'.join(keys)}: {text} - choose an option of a group in the defaults list, "
                    f"`defaults: - {change}{'/'.join(group)}: {option}`"
                )


def dotted(content: Any, package: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of keys with dots that are meant as keys of the config, at the level of groups. Deeper ones
    may be names of parameters, e.g. in optim.lr_factors."""
    for name, value in content.items() if isinstance(content, Mapping) else ():
        if re.fullmatch(r"[a-z]\w*(\.\w+)+", str(name)):
            yield str(name), value
        if not package:
            yield from dotted(value, (str(name),))


def package(file: Path, name: str) -> tuple[str, ...]:
    """Return the keys under which a file's content is placed: its group, unless a line # @package sets them."""
    stated = re.search(r"^#\s*@package\s+(\S+)", file.read_text(), re.MULTILINE)
    text = stated[1] if stated else "_group_"
    text = text.replace("_group_", ".".join(Path(name).parent.parts)).replace("_global_", "")
    return tuple(part for part in text.split(".") if part)


def below(package: tuple[str, ...], group: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the keys of a group within a file of this package; None if the group is not below it."""
    return group[len(package) :] or None if group[: len(package)] == package else None


def option_with(key: str, argv: Sequence[str], conf: Path) -> str | None:
    """Return the option of a group whose file has a mapping at this key: trainer.fsdp -> trainer=fsdp."""
    group, *inner = key.split(".")
    for option in options(group, argv, conf):
        found = read(f"{group}/{option}", argv, conf)
        if isinstance(at(found and found[1], inner), Mapping):
            return f"{group}={option}"
    return None


def option_for(key: str, node: Mapping[str, Any], argv: Sequence[str], conf: Path) -> str:
    """Return the choices of options with which the unknown `key` exists: the option of this name or a similar one
    (data.transforms.flip -> data/transforms=[to_float,flip]), or those that have the key (optim.schedule.every ->
    optim/schedule=step_every). An empty text if there is none. node: the config of the key's group."""
    above, _, name = key.rpartition(".")
    group = above.replace(".", "/")
    there, several = options(group, argv, conf), takes_several(group, argv, conf)
    if match := nearest(name, [one for one in there if one not in node]):
        names = [*(one for one in node if one in there and several), match]
        return f"{group}={','.join(names)}" if len(names) == 1 else f"{group}=[{','.join(names)}]"
    having = [] if several else [one for one in there if name in content_of(f"{group}/{one}", argv, conf)]
    return " or ".join(f"{group}={one}" for one in having[:3])


def takes_several(group: str, argv: Sequence[str], conf: Path) -> bool:
    """Return True if several options of a group can be chosen, because each has a key of its own, its name, with a
    node."""
    own = (content_of(f"{group}/{one}", argv, conf).get(one) for one in options(group, argv, conf))
    return any(isinstance(node, Mapping) and "_target_" in node for node in own)


def content_of(name: str, argv: Sequence[str], conf: Path) -> Mapping[str, Any]:
    """Return the content of group/option; an empty one if it cannot be read."""
    found = read(name, argv, conf)
    return found[1] if found and isinstance(found[1], Mapping) else {}


def recipe_hint(error: str, choices: Mapping[str, Any], argv: Sequence[str], conf: Path) -> str:
    """Return the hint at the command with which the yaml of a chosen option begins, `# ./run train ...`, if it sets
    what the command line lacks, in a group that the error names; otherwise an empty text.

    error: its line. choices: {group: chosen option}. An error that names no key may be about any key of that command,
    unless the user has typed some of them. Values are not compared, because that command may have placeholders."""
    named = re.match(r"([a-z_]+)(?=[.=:/])", error)
    about = {"experiment", named[1], *re.findall(r"\b([a-z_]+)\.\w", error)} if named else set()
    for group, _, option in (argument.partition("=") for argument in argv):
        if choices.get(group) != option:
            continue
        file = next((f for folder in folders(argv, conf) if (f := folder / group / f"{option}.yaml").is_file()), None)
        lines = re.search(r"^# \./run train ((?:.*\\\n#)*.*)", file.read_text(), re.MULTILINE) if file else None
        # a remark may follow after several spaces
        command = re.sub(r"\s*\\\n#\s*", " ", lines[1]).partition("  ")[0].strip() if lines else ""
        words = re.findall(r"(?<!\S)['\"]?([\w+~][\w./@]*=[^\s'\"]*)", command)
        lacking = [key_of(word) for word in words if lacks(argv, choices, word)]
        if about:
            is_about = any(re.split(r"[./@]", key)[0] in about for key in lacking)
        else:
            is_about = bool(lacking) and all(key in lacking or key in choices for key in map(key_of, words))
        if is_about:
            return f" - conf/{group}/{option}.yaml begins with a command that trains it: ./run train {command}"
    return ""


def missing_defaults(error: str, choices: Mapping[str, Any], argv: Sequence[str], conf: Path) -> str:
    """Return the line for a key of a group that is missing because the yaml of its option lacks entries in its defaults
    list; other errors are returned unchanged. choices: {group: chosen option}.

    The line suggests the entries of the option that train.yaml chooses: the yaml with the group's common keys, and the
    group inside it that the error names."""
    referred = re.search(r": there is no key (\w+)\.(\w+), to which ", error)
    named = referred or re.match(r"(\w+)\.(\w+): is missing - set ", error)
    if named is None or (found := read(f"{named[1]}/{choices.get(named[1])}", argv, conf)) is None:
        return error
    if referred:
        return error if found[1] else f"{found[0]}: is empty, so {error}"
    group, name = named[1], named[2]
    usual = content_of(f"{group}/{entries(content_of('train', argv, conf)).get(group)}", argv, conf)
    own, file = entries(found[1]), found[0]
    wanted = {one: option for one, option in entries(usual).items() if one not in own and (not option or one == name)}
    if not wanted:
        return error
    text = ", ".join(f"{one}: {option}" if option else one for one, option in wanted.items())
    remedy = f"add to the defaults list of {file}: [{text}]" if own else f"begin {file} with `defaults: [{text}]`"
    return f"{group}.{name}: is missing - {remedy}"


def entries(content: Any) -> dict[str, Any]:
    """Return the entries of a yaml's defaults list: {group: option}, and {file: None} for entries without a group."""
    found: dict[str, Any] = {}
    listed = content.get("defaults") if isinstance(content, Mapping) else None
    for one in listed if isinstance(listed, list) else ():
        found |= one if isinstance(one, Mapping) else {str(one): None}
    return found


def lacks(argv: Sequence[str], choices: Mapping[str, Any], word: str) -> bool:
    """Return True if `word` names an option that is not chosen, or a key that argv does not set, nor one below it."""
    key, option = key_of(word), word.partition("=")[2]
    if key in choices:
        return word not in argv and choices[key] != option
    return not any(f"{key_of(argument)}.".startswith(f"{key}.") for argument in argv)


def key_of(argument: str) -> str:
    """Return the key or group of an override: +data.weights.old=1 -> data.weights.old."""
    return argument.lstrip("+~").partition("=")[0]


def check_primary(argv: Sequence[str], conf: Path) -> None:
    """Raise ConfigError if --config-name names a yaml without defaults (wandb_sweep), which is not the config of a
    run."""
    name = option_value(argv, NAME_OPTIONS)
    found = read(name.removesuffix(".yaml"), argv, conf) if name else None
    if found is not None and not {"defaults", "trainer"} & set(found[1] if isinstance(found[1], Mapping) else ()):
        remedy = "start it with `defaults: [train, _self_]`"
        raise ConfigError(f"--config-name {name}: {found[0]} is not the config of a run - {remedy}")
