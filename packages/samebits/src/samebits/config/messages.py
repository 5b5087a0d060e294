"""Explain errors of Hydra, OmegaConf and yaml in one line: the key, the value and the remedy."""

from __future__ import annotations

import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin

import yaml
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
)

from samebits.config import yamls
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.schema import TYPED, at, did_you_mean, hints_of, leaves, nearest, no_such_key, one_typo, show

_NOISE = re.compile(r"^(full_key|object_type|reference_type|See https?:|Config search path|provider=)")
_NAMES_A_KEY = re.compile(r"[a-z]\w*(\.\w+)+(\[|=|: | )")
INVALID_OVERRIDE = (
    "not a valid override - write key=value, a list as key=[1,2], and text with special characters in two kinds of "
    "quotes, 'key=\"a,b\"'"
)
# files of this project that call Hydra to compose
CALLERS = ("samebits/config/compose.py", "samebits/config/messages.py", "train.py")
SHOW_CONFIG = ("--cfg", "-c", "--help", "-h", "--info", "-i")  # options of Hydra that show the composed config
Compose = Callable[[Project, Sequence[str]], dict[str, Any]]  # overrides -> the whole config


def explain(project: Project, error: BaseException, argv: Sequence[str], compose: Compose) -> str | None:
    """Return one line for an error, or None if it is not a mistake of the user. argv: Hydra's arguments."""
    for own in (error, error.__cause__):  # the cause, if Hydra failed to build a plugin
        if isinstance(own, ConfigError):
            return str(own)
    if isinstance(error, yaml.YAMLError):
        return _yaml(error)
    if isinstance(error, OverrideParseException):
        return no_override(error.override, argv)
    if isinstance(error, RecursionError) and _by_hydra(project.root, error):
        return f"{' '.join(argv)}: the defaults list of a yaml file includes itself - remove that entry"
    if isinstance(error, MissingConfigException):
        return _missing_config(error, argv, project.conf)
    if "'hydra/launcher/ray' with schema" in str(error):
        return "hydra/launcher=ray: hydra-ray-launcher has the same name - pip uninstall hydra-ray-launcher"
    if isinstance(error, ConfigCompositionException):
        return _composition(project, error, argv, compose)
    if isinstance(error, OmegaConfBaseException):
        return _interpolation(error)
    if isinstance(error, CompactHydraException):
        return one_line(error)
    if isinstance(error, OSError) and error.filename:  # Hydra creates the run's folder
        text = f"{error.filename}: {error.strerror}"
        if traceback.extract_tb(error.__traceback__)[-1].name == "mkdir":
            text += " - the run directory cannot be created; set another one, hydra.run.dir=... "
            text += "(to resume: hydra.run.dir=RUN resume=auto)"
        return text
    if isinstance(error, UnicodeDecodeError) and (line := yamls.not_utf8(argv, project.conf)):
        return line
    if isinstance(error, ValueError) and str(error).startswith("Config group override"):  # a number, null, true
        for group, _, value in (arg.lstrip("+~").partition("=") for arg in argv):
            options = yamls.options(group, argv, project.conf) if group else []
            if options and value not in options:
                return f"{group}={value}: no such option ({group} has: {', '.join(options)})"
    if isinstance(error, UserWarning) and (found := re.match(r"provider=(\S+) in .*, path=(.*) is not ", str(error))):
        return f"{found[1]}: {found[2]}: no such folder or package with yamls"
    if found := re.match(r"(?:Unknown plugin class :|Invalid plugin) '([^']+)'", str(error)):
        return _plugin(found[1])
    return one_line(error) if _by_hydra(project.root, error) else None


def no_override(text: str | None, argv: Sequence[str] = ()) -> str:
    """Return the line for an override that Hydra cannot parse. argv: all arguments, because a space splits one."""
    spaced = re.search(r"(?<!\S)([\w./@+~]+)(?: = ?| ?= )([^\s=]+)(?!\S)", " ".join(argv))
    if spaced and text in spaced[0].split():
        return f"{spaced[0]}: contains a space - write {spaced[1]}={spaced[2]}"
    if found := re.search(r"=\s*choice\((.*\bnull\b.*)\)", text or ""):
        return f"{text}: Hydra's choice() does not accept null - give the values without choice(), {found[1]}"
    if found := re.fullmatch(r"(\S+=)~(/\S*)?", text or ""):
        return f"{text}: the shell does not expand this ~ - write {found[1]}$HOME{found[2] or ''}"
    if text and os.path.isdir(text):  # Path.is_dir raises an error for a text that is too long for a name
        return f"{text}: is a folder, not key=value - to resume a run, give resume={text}"
    before = f"{argv[argv.index(text) - 1]} {text}" if text in argv[1:] else ""
    split = re.fullmatch(r"[\w.]+=(.*/.* [^=]+)", before)  # by the shell, unless `text` is a key without a value
    if split and ("/" in (text or "") or os.path.exists(split[1])):
        return f"{before}: contains a space - quote it, '{before}'"
    # of a number or a quote that was copied from a page
    odd = [one for one in text or "" if not one.isascii() and unicodedata.category(one)[0] in "PSZN"]
    if odd:
        name = unicodedata.name(odd[0], "no letter")
        return f"{text}: {odd[0]!r} is {name} - type the sign of the keyboard, or quote the text, 'key=\"...\"'"
    key, equals, value = (text or "").partition("=")
    if equals and not value.isascii() and not set(value) & set("\"'[{("):
        quoted = ",".join(f'"{one}"' for one in value.split(","))
        return f"{text}: contains a letter that is not ASCII - quote the text, '{key}={quoted}'"
    return f"{text}: {INVALID_OVERRIDE}"


def _by_hydra(root: Path, error: BaseException) -> bool:
    """Return True if Hydra raised it while composing, not the job and not code of this project that Hydra calls."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (f"{root}/src/", f"{root}/packages/", f"{Path(__file__).parents[1]}/")
    own = [f.filename for f in frames if f.filename.startswith(ours) and not f.filename.endswith(CALLERS)]
    return not own and not any(frame.name.endswith("run_job") for frame in frames)  # 1.4: _run_job


def _plugin(target: str) -> str:
    kind = next((kind for kind in ("sweeper", "launcher") if kind in target.lower()), "sweeper or hydra.launcher")
    return (
        f"hydra.{kind}._target_: {target}: no such Hydra plugin is installed - "
        "this project has hydra/sweeper=optuna, hydra/launcher=pool and others"
    )


def check_arguments(root: Path, argv: Sequence[str]) -> None:
    """Raise ConfigError for arguments that Hydra would misread. E.g. if a variable is unset (hydra.run.dir=$RUN), the
    run would use the working directory; and ${ in a folder's path would be an interpolation."""
    here = ""
    with suppress(FileNotFoundError):  # the folder was removed: Hydra reports that
        here = os.getcwd()
    for what, folder in (("working directory", here), ("project's folder", str(root))):
        if "${" in folder:
            raise ConfigError(f"the path of the {what} contains ${{, which Hydra reads as an interpolation: {folder}")
    resume = next((argument for argument in argv if argument.startswith("resume=") and argument != "resume=null"), "")
    for argument in argv:
        key, equals, value = argument.partition("=")
        if resume and key in SHOW_CONFIG:
            raise ConfigError(
                f"{argument}: shows the config of a new run, not of the run to resume - read its config.yaml, "
                f"or remove {resume}"
            )
        if (equals or argument.startswith("~")) and not key.lstrip("+~").partition("@")[0]:
            raise ConfigError(no_override(argument, argv))
        if key == "resume" and equals and not value.strip("'\" "):
            raise ConfigError("resume: is empty - set resume=..., or remove it")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and value.strip("'\" ") in ("", "null"):
            raise ConfigError(f"{key}: is empty - set a folder, {key}=..., or remove it to use a folder below outputs/")


def given_twice(overrides: Sequence[str]) -> tuple[str, str, str] | None:
    """Return (key, its first value, another value) of the first key that two neighbors set; None if there is none.

    Other repetitions are meant: a script has a base command, and the user overrides a value of it."""
    for (key, _, one), (again, _, other) in pairwise(text.lstrip("+").partition("=") for text in overrides):
        if key == again and one != other:
            return key, one, other
    return None


def say_repeated(overrides: Sequence[str]) -> None:
    """Print a line for each key that two overrides set to different values, because Hydra takes the last. If the last
    is +key=..., Hydra refuses it."""
    last = {text.lstrip("+").partition("=")[0]: text for text in overrides}
    for one in (text.lstrip("+") for text in overrides):
        after = last[one.partition("=")[0]]
        if after.lstrip("+") != one and not re.match(r"\+[^+]", after):
            print(f"{one}: has no effect, because {after.lstrip('+')} comes after it", file=sys.stderr)


def one_line(error: BaseException) -> str:
    """Return an error's text in one line, without details of Hydra's internals (_NOISE)."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    kept = [line.rstrip(".:") for line in lines if line and not _NOISE.match(line)]
    return " - ".join(kept) or type(error).__name__


def _yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}, line {mark.line + 1}: " if mark else ""
    return f"{where}not valid yaml: {' '.join(str(getattr(error, 'problem', None) or error).split())}"


def _missing_config(error: MissingConfigException, argv: Sequence[str], conf: Path) -> str:
    """Return the line for an unknown option of a group, or an unknown group in a defaults list."""
    missing = (error.missing_cfg_file or "").lstrip("/")
    for key, value in (one.split("=", 1) for one in argv if "=" in one):
        if missing == f"{key}/{value}" and ("/" in value or (key == "data" and Path(value).suffix)):
            hint = f" - give {key}.path={value}" * (key == "data")
            known = ", ".join(yamls.options(key, argv, conf))
            return f"{key}={value}: is a path, not an option{hint} ({key} has: {known})"
    group, _, option = missing.rpartition("/")
    options = sorted(error.options or yamls.options(group, argv, conf))
    if not group:
        files = yamls.options("", argv, conf)
        added = " - to add a folder to conf/, use --config-dir"  # --config-path replaces conf/
        return one_line(error) + (added if option in files else did_you_mean(option, files))
    source = re.match(r"In '([^']+)'", str(error))
    elsewhere = source and source[1] != "train" and f"={option}" not in "".join(argv)
    inside = f" (named in {source[1]}.yaml)" if source and elsewhere else ""
    if not options:
        return _no_such_group(group, conf) + inside
    hint = f" - did you mean {group}={match}?" if (match := nearest(option, options)) else ""
    if f"{group}={option}" == "profiler=advanced":
        hint = " - to profile functions, use Python's profiler: ./run python -m cProfile -s cumtime src/train.py ..."
    for file in (folder / group / f"{option}.yml" for folder in yamls.folders(argv, conf)):
        hint = f" - rename {file} to {option}.yaml, the only suffix that Hydra reads" if file.is_file() else hint
    return f"{group}={option}: no such option{hint} ({group} has: {', '.join(options)}){inside}"


def _composition(
    project: Project, error: ConfigCompositionException, argv: Sequence[str], compose: Compose
) -> str | None:
    text = str(error)
    cause = error.__cause__
    if isinstance(cause, yaml.YAMLError):
        return _yaml(cause)
    if isinstance(cause, GrammarParseError) and (line := yamls.no_interpolation(argv, project.conf)):
        return line
    source = re.match(r"In '([^']+)': ", text)
    if source and (recipe := source[1].partition("/")[0]) in ("experiment", "debug") and f"@{recipe}." in text:
        return f"{source[1]}.yaml: must begin with '# @package _global_' to override the whole config"
    if found := re.search(
        r"(?:Could not override|delete from config\.|Could not delete|Group Default for) '([^']+)'", text
    ):
        if any(arg.startswith(f"{found[1]}={{") for arg in argv):
            return (
                f"{found[1]}={{...}}: a mapping can only change existing keys; give each key separately, "
                f"{found[1]}.name=..., new keys with a plus, +{found[1]}.name=..., or use an experiment yaml"
            )
        line = unknown_key(project, found[1], argv, compose)
        return f"{line} (named in {source[1]}.yaml)" if source else line
    if found := re.search(r"already at '([^']+)'", text):
        if (twice := given_twice(argv)) and twice[0] == found[1]:
            return (
                f"{found[1]}: is given twice, {twice[1]} and {twice[2]} - remove one; write a mapping in quotes, "
                f"'+{found[1]}={{...}}', because a shell splits it"
            )
        return f"{found[1]}: already exists, so + cannot add it - write {found[1]}=..., without the +"
    if found := re.search(r"Ambiguous value for argument '([^=']+)=(.*)'", text):
        key, value = found[1], found[2]
        if key.rpartition(".")[2] in TYPED and at(_composed(project, argv, compose), key.split(".")) is None:
            return unknown_key(project, key, [], compose)
        return f"{key}={value}: several values are a sweep - add -m; a list is written {key}=[{value}]"
    if found := re.search(r"^(?:Multiple values for )?(\S+?)( appears more than once in|\. To override a )", text):
        return yamls.chosen_twice(found[1], argv, project.conf)
    if found := re.search(r"You must specify '([^']+)'", text):
        return f"{found[1]}: no option is chosen - set {found[1]}=... ({', '.join(text.split()[-1:])})"
    if found := re.search(r"Error merging override (.*)", text):
        key, _, value = found[1].rstrip(".").partition("=")
        if key.startswith("~"):
            return f"{found[1]}: this key cannot be deleted - set another value, or remove it"
        if isinstance(cause, TypeError):  # a list for a mapping, or a mapping for a list
            key = key.lstrip("+")
            group = key.replace(".", "/")
            hint = f" - to choose options, write {group}={value}" if group in _groups(project.conf) else ""
            return f"{key}: expected a {'mapping' if value.startswith('[') else 'list'}, got {value}{hint}"
        return f"{key}={value}: {one_line(cause) if cause else 'invalid value'}"
    if not text.strip():
        return one_line(cause) if cause else None
    return one_line(error)


def unknown_key(project: Project, key: str, argv: Sequence[str], compose: Compose) -> str:
    """Return the line for an unknown key or group. Known keys are read from the config without that override."""
    key, conf = key.lstrip("/"), project.conf
    if "/" in key or "@" in key:
        return _no_such_group(key, conf)
    cfg = _composed(project, argv, compose)
    own = {name: node for name, node in cfg.items() if name != "hydra"}
    elsewhere = [*own, *leaves(own)]
    parent, _, name = key.rpartition(".")
    node: Any = cfg
    for depth, part in enumerate(parent.split(".") if parent else []):
        if not isinstance(node, dict) or part not in node:
            # report the first wrong part of the key
            path = key.split(".")[: depth + 1]
            if isinstance(node, dict):
                return not_in(project, ".".join(path), node, [], argv)
            return no_group(key, ".".join(path[:-1]), node, argv, conf)
        node = node[part]
    if not isinstance(node, dict):
        return no_group(key, parent, node, argv, conf)
    if name in node:  # Hydra cannot delete a key whose value is null
        return f"~{key}: this key cannot be deleted; its value is already {show(node[name])}"
    if parent:
        return not_in(project, key, node, elsewhere, argv)
    groups = [g for g in _groups(conf) if "/" not in g]
    known = [*dict.fromkeys([*(k for k in node if k != "hydra"), *groups])]
    return no_such_key(name, known, elsewhere, project.moved_keys)


def not_in(project: Project, key: str, node: dict[str, Any], elsewhere: Sequence[str], argv: Sequence[str]) -> str:
    """Return the line for a key that `node` does not have. elsewhere: dotted keys of the whole config."""
    name, target = key.rpartition(".")[2], str(node.get("_target_", ""))
    # the yamls of other classes, such as torch's, do not have all of their arguments
    complete = not target or target.startswith(f"{project.package}.")
    close = any(one_typo(name, str(other)) for other in node)
    option = yamls.option_for(key, node, argv, project.conf) if complete and not close else ""
    more = "" if option else added(project, key, node, argv)
    if more:  # an argument, unless the same name exists elsewhere; a mapping without a class accepts any name
        in_group = key.count(".") == 1  # a.b.seed is not the top level's seed
        alike = [k for k in elsewhere if k.endswith(f".{name}") or (in_group and k == name)]
        elsewhere = alike if target and len(name) > 2 else []
    return no_such_key(key, node, elsewhere, project.moved_keys, option) + more


def no_group(key: str, parent: str, value: Any, argv: Sequence[str], conf: Path) -> str:
    """Return the line for a key below `parent`, which is null or a value."""
    option = yamls.option_with(parent, argv, conf) if value is None else None
    return f"{key}: {parent} is null - choose {option}" if option else f"{key}: {parent} is a value, not a group"


def added(project: Project, key: str, node: dict[str, Any], argv: Sequence[str]) -> str:
    """Return the hint to add `key` with a plus if `node` allows keys of any name, otherwise an empty text."""
    names = [name for name in node if not name.startswith("_")]
    open_ended = get_origin(hints_of(project.schema).get(key.partition(".")[0])) is dict
    if not open_ended or key.rpartition(".")[2] in TYPED or nearest(key.rpartition(".")[2], names):
        return ""
    given = next((argument for argument in argv if argument.startswith((f"{key}=", f"{key}."))), f"{key}=...")
    target = f", if {node['_target_']} accepts it" if "_target_" in node else ""
    if "_target_" not in given and yamls.takes_several(key.rpartition(".")[0].replace(".", "/"), argv, project.conf):
        given = f"{key}._target_=..."  # its entries are nodes
    return f" - add a new key with a plus, +{given}{target}"


def _composed(project: Project, argv: Sequence[str], compose: Compose) -> dict[str, Any]:
    """Return the config with only the group choices of argv; the default config if these do not compose."""
    single = [a for a in argv if "," not in re.sub(r"\[.*?\]", "", a)]  # lists, but no sweeps
    groups = {a: a.lstrip("+").partition("=")[0].partition("@")[0] for a in single}  # +group@place=option
    chosen = [a for a, group in groups.items() if (project.conf / group).is_dir()]
    try:
        return compose(project, chosen)
    except Exception:  # these choices contain another mistake
        return compose(project, [])


def _no_such_group(name: str, conf: Path) -> str:
    if name in _groups(conf):
        remedy = f"add it with a plus, +{name}=..., or to the defaults list of its yaml"
        return f"{name}: is not in the defaults list of the chosen {name.rpartition('/')[0] or 'config'} - {remedy}"
    if (whole := name.partition("@")[0].partition("/")[2]) in _groups(conf):  # Hydra reads it relative to the yaml
        return f"{name}: no such group - begin it with a slash, `override /{whole}: ...`"
    return f"{name}: no such group{did_you_mean(name, _groups(conf))} (groups: {', '.join(_groups(conf))})"


def _groups(conf: Path) -> list[str]:
    found = {str(path.parent.relative_to(conf)) for path in conf.rglob("*.yaml")}
    return sorted(g for g in found if g != "." and not g.startswith("hydra"))


def _interpolation(error: OmegaConfBaseException) -> str:
    """Return the line for a failed ${...}: its key and the reason."""
    text = str(error).splitlines()[0]
    key = getattr(error, "full_key", None) or "config"
    raised: BaseException | None = error  # the exception of the resolver, the cause of OmegaConf's exceptions
    while isinstance(raised, OmegaConfBaseException):
        raised = raised.__cause__ or raised.__context__  # OmegaConf clears the cause
    if isinstance(raised, ConfigError):
        # a resolver's error names the key to change, data.path; `key` is the one that was resolved
        return str(raised) if _NAMES_A_KEY.match(str(raised)) or key.startswith("hydra.") else f"{key}: {raised}"
    if isinstance(error, InterpolationToMissingValueError):
        name = text.rpartition(" ")[2]
        return f"{name}: is missing (???) - set {name}=..."
    if isinstance(error, InterpolationKeyError):
        name = text.split("'")[1]
        return f"{key}: there is no key {name}, to which ${{{name}}} refers"
    if found := re.match(r"Missing key (\S+)", text):
        return f"{found[1]}: is missing - set {found[1]}=..."
    return f"{key}: {raised.args[0] if isinstance(raised, KeyError) else one_line(error)}"
