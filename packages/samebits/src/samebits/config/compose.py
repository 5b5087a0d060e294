"""Compose and resolve the config with Hydra 1.3 or 1.4. Imports neither torch nor h5py.

argv -> Hydra composes -> job(cfg) -> resolved(project, cfg): no interpolations, absolute paths
  \\-> any mistake: a ConfigError of one line
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import secrets
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from samebits.config import yamls
from samebits.config.messages import check_arguments, explain, given_twice, say_repeated
from samebits.config.wandb_agent import from_agent, run_folder
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.saved import say_renamed, taken_out, translate_typed_override
from samebits.schema import MISSING, at, below_outputs, plain, walk

_FULL_ERROR = "HYDRA_FULL_ERROR"  # unless it is 1, Hydra prints errors and exits, and does not raise
_AS_RUN = "hydra.mode=RUN"  # what Hydra adds to the overrides of a single run
_typed: list[str | None] = []  # values of _FULL_ERROR before each nested _full_error, the user's first
HYDRA_14 = "execution_whitelist" in inspect.signature(hydra.main).parameters
register_resolver: Callable[..., None] = OmegaConf.register_resolver
if "annotation_validation" in inspect.signature(register_resolver).parameters:
    # off, because it would warn of lists, which _as_node converts
    register_resolver = partial(register_resolver, annotation_validation="off")
else:  # OmegaConf 2.3 has another register_resolver, without a cache
    register_resolver = OmegaConf.register_new_resolver


def register_resolvers(project: Project) -> None:
    """Register the resolvers for ${...} and those of the project.

    root                    the project's folder
    suffix                  six random hex digits, the same everywhere in a config
    sweep_name:name         the name, or the time if it is null
    below_outputs:name      the name, checked
    run_folder:name         the name, or the ids of W&B's agent
    variable:NAME,other     an environment variable, or `other` if it is unset or empty
    variable_list:NAME      the parts of an environment variable between commas
    """

    def sweep_name(name: str | None) -> str:
        return name or f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"

    def variable_list(name: str) -> list[str]:
        return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]

    def register(name: str, resolver: Callable[..., Any], use_cache: bool = False) -> None:
        register_resolver(name, _as_node(resolver), use_cache=use_cache, replace=True)

    register("variable", lambda name, other: os.environ.get(name) or other)
    register("variable_list", variable_list)
    register("root", lambda: str(project.root))
    register("suffix", lambda: secrets.token_hex(3), use_cache=True)
    register("sweep_name", sweep_name, use_cache=True)
    register("below_outputs", below_outputs)  # before Hydra makes the run's folder
    register("run_folder", run_folder)
    for name, resolver in project.resolvers.items():
        register(name, _late(resolver) if isinstance(resolver, str) else resolver)


def _as_node(resolver: Callable[..., Any]) -> Callable[..., Any]:
    """Return the resolver with lists as ListConfig, because OmegaConf.resolve (`--cfg job --resolve`) rejects lists."""

    @wraps(resolver)  # OmegaConf reads the signature
    def call(*values: Any, **nodes: Any) -> Any:
        result = resolver(*values, **nodes)
        return OmegaConf.create(result) if isinstance(result, list) else result

    return call


def _late(name: str) -> Callable[..., Any]:
    """Return a resolver that imports the function module:name when it is called."""

    def call(*values: Any, _parent_: Any) -> Any:
        return resolve_name(name)(*values, _parent_=_parent_)

    return call


def run_hydra(project: Project, job: Callable[[DictConfig], Any]) -> None:
    """Compose from sys.argv and call `job` for each config. Raise ConfigError, or the exceptions of `job`.

    Samebits' Hydra plugins (hydra_plugins), which run sweeps, get the project from an attribute of the task function.
    Hydra raises errors only if HYDRA_FULL_ERROR is 1; `as_started` restores the user's value for jobs and sweeps.
    """
    check_arguments(project.root, sys.argv[1:])
    yamls.check_primary(sys.argv[1:], project.conf)
    yamls.check_bare(sys.argv[1:], project.conf)
    register_resolvers(project)
    warnings.filterwarnings("error", "provider=hydra.searchpath")  # a folder that does not exist: see `explain`

    def task(cfg: DictConfig) -> Any:
        return job(cfg)

    task.project = project  # type: ignore[attr-defined]
    shown = os.environ.get(_FULL_ERROR)
    arguments = quoted(project, from_agent(project, sys.argv[1:]))
    parser, args = parsed(for_a_run(project, arguments))
    if args.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun: not supported, because it unpickles a file - to resume a run, give resume=PATH"
        )
    say_repeated(args.overrides)
    # 1.4 requires an allowlist, and no version_base (see initialize)
    options: dict[str, Any] = {"execution_whitelist": project.allowed} if HYDRA_14 else {"version_base": None}

    @hydra.main(config_path=str(project.conf), config_name="train", **options)
    def run(args: Any) -> None:  # because it gets an argument, hydra.main does not parse sys.argv
        _run_hydra(args, parser, task_function=task, config_path=str(project.conf), config_name="train")

    try:
        with _full_error("1"), contextlib.nullcontext() if args.multirun or HYDRA_14 else composed_once():
            run(args)  # type: ignore[call-arg]
    except Exception as error:
        if (line := explain(project, error, sys.argv[1:], composed)) is None:
            raise
        if shown == "1":
            traceback.print_exception(error)
        raise ConfigError(line if for_a_run(project, arguments) == arguments else line.replace("++", "")) from error


@contextlib.contextmanager
def composed_once() -> Iterator[None]:
    """Let Hydra compose a single run once within this block.

    Hydra 1.3 composes twice: as for a multirun, to read hydra.mode, and then with hydra.mode=RUN. Here it composes the
    run first. If that has no hydra.mode, it is the result of the second time, otherwise Hydra composes as usual.
    For --help it copies its whole repository for each of 135 lists of options; here the repository itself lists them.
    """
    load: Callable[..., DictConfig] = ConfigLoaderImpl.load_configuration
    list_options = ConfigLoaderImpl.get_group_options
    first: list[tuple[list[str], DictConfig | Exception]] = []

    def load_once(
        self: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode, **options: Any
    ) -> DictConfig:
        if options.get("validate_sweep_overrides") is False:  # only to read hydra.mode
            typed = [*overrides, _AS_RUN]
            try:
                cfg = load(self, config_name, overrides, RunMode.RUN, **{**options, "validate_sweep_overrides": True})
            except Exception as error:  # a mistake, or a multirun that is chosen by hydra.mode
                first.append((typed, error))
                if isinstance(error.__cause__, OmegaConfBaseException):  # unknown key: a multirun has the same error
                    raise
                return load(self, config_name, overrides, run_mode, **options)
            if cfg.hydra.mode is None:
                first.append((typed, cfg))
            return cfg
        typed, found = first.pop() if first else ([], None)
        if found is None or typed != overrides or run_mode != RunMode.RUN:
            return load(self, config_name, overrides, run_mode, **options)
        if isinstance(found, Exception):
            raise found
        found.hydra.mode = RunMode.RUN
        found.hydra.overrides.hydra.append(_AS_RUN)
        return found

    def list_uncopied(self: ConfigLoaderImpl, group_name: str, *filters: Any, **options: Any) -> list[str]:
        if len(filters) > 1 or options.keys() - {"results_filter"}:  # a search path may be among the overrides
            return list_options(self, group_name, *filters, **options)
        return self.repository.get_group_options(group_name, *filters, **options)

    ConfigLoaderImpl.load_configuration = load_once  # type: ignore[method-assign, assignment]
    ConfigLoaderImpl.get_group_options = list_uncopied  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]
        ConfigLoaderImpl.get_group_options = list_options  # type: ignore[method-assign]


def parsed(arguments: Sequence[str]) -> tuple[Any, Any]:
    """Return (Hydra's parser, the parsed command line). Raise ConfigError for an unknown option, or a key that a
    multirun gives twice in a row: Hydra ignores the first.

    Like hydra.main, but not with sys.argv; overrides may be on both sides of -m, as in Hydra 1.4."""
    parser: Any = get_args_parser()
    parser.error, parser.allow_abbrev = _refuse, False
    args = parser.parse_intermixed_args(list(arguments))
    if args.package is not None and not args.cfg:
        raise ConfigError(f"--package {args.package}: has no effect without --cfg job - add it, or remove --package")
    if args.multirun and (twice := given_twice(args.overrides)):
        key, one, other = twice
        raise ConfigError(
            f"{key}: is given twice, {one} and {other}, so the first has no effect - write {key}={one},{other}, or "
            "remove one"
        )
    return parser, args


def _refuse(message: str) -> NoReturn:
    remedy = "write values as key=value, without dashes; see --help" if "unrecognized" in message else "see --help"
    raise ConfigError(f"{message} - {remedy}")


@contextlib.contextmanager
def _full_error(value: str | None) -> Iterator[None]:
    before = os.environ.get(_FULL_ERROR)
    _set(_FULL_ERROR, value)
    _typed.append(before)
    try:
        yield
    finally:
        _typed.pop()
        _set(_FULL_ERROR, before)


def as_started() -> contextlib.AbstractContextManager[None]:
    """Restore the user's HYDRA_FULL_ERROR within this block of run_hydra, also for processes started in it."""
    return _full_error(_typed[0]) if _typed else contextlib.nullcontext()


def quoted(project: Project, arguments: Sequence[str]) -> list[str]:
    """Quote debug=nan as debug='nan', because Hydra reads nan as a number, which is not an option's name; rewrite
    sweep=lr as sweep.name='lr', and sweep.zip=a,b as a list, because a shell may expand brackets."""

    def one(argument: str) -> str:
        if argument.startswith("sweep=") and not argument.startswith("sweep={"):
            return f"sweep.name='{argument.removeprefix('sweep=')}'"
        if argument.startswith("sweep.zip=") and re.fullmatch(r"[\w./@+]+(,[\w./@+]+)+", argument[10:]):
            return f"sweep.zip=[{argument[10:]}]"
        group, _, name = argument.partition("=")
        reads_as_value = name.lower() in ("nan", "inf", "null", "true", "false") or name.isdecimal()
        return f"{group}='{name}'" if reads_as_value and (project.conf / group / f"{name}.yaml").is_file() else argument

    return [one(_translated(project, argument, arguments)) for argument in arguments]


def _translated(project: Project, argument: str, arguments: Sequence[str]) -> str:
    """Return the argument with current names. The name stays if the chosen class still has an argument of that name."""
    key = argument.lstrip("+~").partition("=")[0]
    if key.rpartition(".")[2] in project.moved_arguments:
        options = [one for one in arguments if one.partition("=")[0] in ("data", "task", "experiment")]
        with contextlib.suppress(Exception):
            if at(composed(project, options), key.split(".")) is not None:
                return argument
    return translate_typed_override(project, argument)


def translate_keys(project: Project, cfg: DictConfig, values: dict[str, Any]) -> None:
    """Rename in place the keys that the user's yaml files have under an older name, and print a line for each.

    values: the same config as plain values, changed too."""
    for old, new, value in taken_out(project, values, project.aliases):
        above, _, name = old.rpartition(".")
        del OmegaConf.select(cfg, above)[name]
        OmegaConf.update(cfg, new, value, force_add=True)
        say_renamed(old, new)
    for key, value in walk(values):
        if key.rpartition(".")[2] == "_target_" and value in project.aliases:
            OmegaConf.update(cfg, key, project.moved[value])
            say_renamed(f"{key}={value}", project.moved[value])


def for_a_run(project: Project, arguments: Sequence[str]) -> list[str]:
    """With resume=RUN, convert key=value to ++key=value, because the run's config decides which keys exist, not the
    config that conf/ composes by default. (samebits.runs.resume uses the value and ignores the rest.)"""
    keys = [argument.partition("=")[0] for argument in arguments]
    if "resume" not in keys or {"resume=auto", "resume=null", "-m", "--multirun"} & set(arguments):
        return [*arguments]
    plainly = re.compile(r"[\w.]+")  # not a group, an addition, a deletion or an option

    def one(key: str, argument: str) -> str:
        chooses = (project.conf / key).is_dir() and not argument.startswith(f"{key}={{")
        is_value = "=" in argument and plainly.fullmatch(key) and not chooses
        return f"++{argument}" if is_value and key != "resume" and not key.startswith("hydra.") else argument

    return [*map(one, keys, arguments)]


def composed(project: Project, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the whole config for these overrides, including `hydra`, with unresolved interpolations."""
    return OmegaConf.to_container(_composed(project, overrides, with_hydra=True), resolve=False)  # type: ignore[return-value]


def initialize(conf: Path) -> contextlib.AbstractContextManager[Any]:
    """Initialize Hydra for this folder within a block. Hydra 1.4 warns about the version_base that 1.3 requires."""
    options: dict[str, Any] = {} if HYDRA_14 else {"version_base": None}
    return hydra.initialize_config_dir(str(conf), **options)


def _composed(project: Project, overrides: Sequence[str], with_hydra: bool) -> DictConfig:
    register_resolvers(project)
    words = quoted(project, overrides)
    at_work = GlobalHydra.instance()
    outer, at_work.hydra = at_work.hydra, None  # the sweep's Hydra, if a job's config has an error
    try:
        with initialize(project.conf):
            return hydra.compose("train", words, return_hydra_config=with_hydra)
    finally:
        at_work.hydra = outer


def compose_here(project: Project, overrides: Sequence[str], cwd: Path) -> DictConfig:
    """Return the resolved config for these overrides without a command line, for a notebook or a script."""
    yamls.check_bare(overrides, project.conf)
    say_repeated(overrides)
    try:
        cfg = _composed(project, overrides, with_hydra=False)
    except Exception as error:
        if (line := explain(project, error, overrides, composed)) is None:
            raise
        raise ConfigError(line) from error
    check_used(project.conf, cfg, overrides)
    return resolved(project, cfg, cwd)


def check_used(conf: Path, cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError for data.split_by without splits that the run makes, and for key={} in an override, or in an
    experiment that one chooses, if the key has entries in `cfg` that no +key.entry=... has added. Hydra merges
    mappings, so it removes none."""
    for key, data in walk(plain(cfg.get("data"), resolve=False), "data"):
        by = data.get("split_by", "random") if isinstance(data, dict) else "random"
        if by != "random" and data.get("split_ratio") is None and data.get("folds") is None:
            given = f"{key}.split_ratio"
            raise ConfigError(
                f"{key}.split_by={by}: has no effect without {given} - add {given}=80/10/10, or remove it"
            )
    added = tuple(f"{one.lstrip('+').partition('=')[0]}." for one in overrides if one.startswith("+"))
    typed = [(one.lstrip("+").removesuffix("={}"), None) for one in overrides if one.endswith("={}")]
    for key, file in [*typed, *yamls.emptied(overrides, conf)]:
        entries = OmegaConf.select(cfg, key, throw_on_resolution_failure=False)
        names = map(str, entries) if isinstance(entries, DictConfig) else ()
        if kept := [name for name in names if not any(one.startswith(f"{key}.{name}.") for one in added)]:
            given = f"{file}: {key}: {{}}" if file else f"{key}={{}}"
            remedy = f"{{{', '.join(f'{name}: null' for name in kept)}}}" if file else ""
            remedy = remedy or " ".join(f"'~{key}.{name}'" for name in kept)
            raise ConfigError(f"{given}: has no effect, because Hydra keeps the entries of {key} - write {remedy}")


def check_job_name(cfg: DictConfig, hydra: Any) -> None:
    """Raise ConfigError for hydra.job.name=... on the command line, unless a value refers to it, and for
    hydra.job.chdir, because printed paths would not be valid in the user's shell."""
    if hydra.job.chdir:
        raise ConfigError("hydra.job.chdir=true: a run does not change the working directory - remove it")
    typed = plain(hydra.overrides.hydra, resolve=False)
    given = next((text for text in typed if text.lstrip("+").startswith("hydra.job.name=")), None)
    if given is not None and "job.name}" not in f"{plain(cfg, resolve=False)}{plain(hydra, resolve=False)}":
        raise ConfigError(f"{given}: has no effect - set name=..., the folder of the run below outputs/, or remove it")


def resolved(project: Project, cfg: DictConfig, cwd: Path) -> DictConfig:
    """Return the config with interpolations resolved and paths (data.path, resume, ...) made absolute from `cwd`.
    Changes `cfg`, because a copy takes a sixth of the time."""
    register_resolvers(project)  # another project may have registered its resolvers since this config was composed
    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)  # type: ignore[assignment]
    for key, value in walk(values):
        if value == MISSING:
            raise ConfigError(f"{key}: is missing (???) - set {key}=...")
    OmegaConf.set_struct(cfg, False)
    OmegaConf.set_readonly(cfg, False)
    translate_keys(project, cfg, values)
    try:
        for key in (one for pattern in project.paths for one in keys_like(cfg, pattern)):
            if (value := OmegaConf.select(cfg, key)) is not None:
                OmegaConf.update(cfg, key, absolute(plain(value, resolve=False), cwd, key))
        project.expand(cfg)
        # converted to plain values, so that nodes that interpolations refer to are copied, not shared
        return DictConfig(OmegaConf.to_container(cfg, resolve=True))
    except Exception as error:
        if (line := explain(project, error, [], composed)) is None:
            raise
        raise ConfigError(line) from error


def keys_like(cfg: DictConfig, pattern: str) -> list[str]:
    """Expand a pattern: data.parts.*.path -> that key of each existing part. A key without * is returned itself."""
    above, star, below = pattern.partition(".*")
    if not star:
        return [pattern]
    node = OmegaConf.select(cfg, above)
    return [f"{above}.{name!s}{below}" for name in node] if isinstance(node, DictConfig) else []


def remove_if_empty(root: Path, folder: Path) -> None:
    """Remove a run's folder if it is empty, and its empty parents below outputs/. Hydra creates it before any check."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        outputs = root / "outputs"
        for parent in folder.parents:
            if outputs not in parent.parents:
                break
            parent.rmdir()


def absolute(value: Any, cwd: Path, key: str = "") -> Any:
    """Return a path, or a list of paths, made absolute from `cwd`. URLs and `auto` are not changed. With a key, raise
    ConfigError for an empty path, e.g. data.path=$DATA with an unset variable, which would be `cwd` itself."""
    if isinstance(value, list):
        return [absolute(item, cwd, key) for item in value]
    if key and isinstance(value, str) and not value.strip():
        raise ConfigError(f"{key}: is empty - set {key}=..., or remove it")
    if not isinstance(value, str) or value == "auto" or "://" in value:
        return value
    return os.path.normpath(cwd / Path(value).expanduser())


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
