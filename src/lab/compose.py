"""From the command line to a plain, resolved config, through Hydra 1.3 or 1.4. Imports neither torch nor h5py.

argv -> Hydra composes -> job(cfg) -> resolved(cfg): no interpolation left, paths absolute
  \\-> any mistake on the way: a ConfigError of one line
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lab import yamls
from lab.agent import from_agent
from lab.errors import ConfigError
from lab.explain import check_arguments, explain
from lab.schema import MISSING, below_outputs, join
from lab.targets import TARGETS_ALLOWED

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
_HYDRA_14 = "execution_whitelist" in inspect.signature(hydra.main).parameters


def register_resolvers() -> None:
    """${root:} the project; ${suffix:} six random hex digits, the same ones all over a config; ${sweep_name:name} the
    name, where there is none the time; ${below_outputs:name} the name, checked; ${h5_shape:field} and
    ${h5_outputs:field} what the data's file says about a field of the batch."""

    def h5_shape(field: str, _parent_: Any) -> Any:
        from lab.data import probe

        return list(probe.sample_shape(_parent_, field))

    def h5_outputs(field: str, _parent_: Any) -> Any:
        from lab.data import probe

        return int(probe.num_outputs(_parent_, field))

    def sweep_name(name: str | None) -> str:
        return name or f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"

    # OmegaConf 2.4 gives the name of an old function to the successor of 2.3's
    new = "use_cache" in inspect.signature(OmegaConf.register_resolver).parameters
    register: Callable[..., None] = OmegaConf.register_resolver if new else OmegaConf.register_new_resolver
    register("root", lambda: str(ROOT), replace=True)
    register("suffix", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    register("sweep_name", sweep_name, use_cache=True, replace=True)
    register("below_outputs", below_outputs, replace=True)  # before Hydra makes the run's folder
    register("h5_shape", h5_shape, replace=True)
    register("h5_outputs", h5_outputs, replace=True)


def run_hydra(job: Callable[[DictConfig], Any]) -> None:
    """Compose as sys.argv says and call `job` for each config; raises ConfigError, and what `job` raises."""
    check_arguments(sys.argv[1:])
    yamls.check_primary(sys.argv[1:], CONF)
    yamls.check_rerun(sys.argv[1:])
    register_resolvers()
    shown = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints and exits by itself
    # 1.4 wants an allowlist, and warns of the version_base that 1.3 wants
    options: dict[str, Any] = {"execution_whitelist": TARGETS_ALLOWED} if _HYDRA_14 else {"version_base": None}
    decorate = hydra.main(config_path=str(CONF), config_name="train", **options)
    try:
        with _argv(quoted(from_agent(sys.argv[1:]))), _argparse_raises():
            decorate(job)()
    except Exception as error:
        if shown == "1" or (line := explain(error, sys.argv[1:], CONF, composed)) is None:
            raise
        raise ConfigError(line) from error
    finally:
        _restore("HYDRA_FULL_ERROR", shown)


def quoted(arguments: Sequence[str]) -> list[str]:
    """debug=nan -> debug='nan': Hydra takes a bare nan for a number, and refuses it as the name of an option.
    sweep=lr -> sweep.name=lr, the short way to name a sweep."""

    def one(argument: str) -> str:
        if argument.startswith("sweep=") and not argument.startswith("sweep={"):
            return f"sweep.name='{argument.removeprefix('sweep=')}'"
        group, _, name = argument.partition("=")
        reads_as_value = name.lower() in ("nan", "inf", "null", "true", "false") or name.isdecimal()
        return f"{group}='{name}'" if reads_as_value and (CONF / group / f"{name}.yaml").is_file() else argument

    return [one(argument) for argument in arguments]


@contextlib.contextmanager
def _argv(arguments: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, [sys.argv[0], *arguments]
    try:
        yield
    finally:
        sys.argv = before


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The whole config, `hydra` included, as these overrides make it; interpolations stay."""
    register_resolvers()
    options: dict[str, Any] = {} if _HYDRA_14 else {"version_base": None}
    at_work = GlobalHydra.instance()
    outer, at_work.hydra = at_work.hydra, None  # of a sweep, whose job has a mistake
    try:
        with hydra.initialize_config_dir(str(CONF), **options):
            cfg = hydra.compose("train", quoted(overrides), return_hydra_config=True)
    finally:
        at_work.hydra = outer
    return OmegaConf.to_container(cfg, resolve=False)  # type: ignore[return-value]


def resolved(cfg: DictConfig, cwd: Path) -> DictConfig:
    """A copy without interpolations; `data.path` and `resume`, where they are relative, made absolute against `cwd`."""
    for key in missing_keys(OmegaConf.to_container(cfg, resolve=False)):
        raise ConfigError(f"{key}: a value is missing here (???) - give one, {key}=...")
    copy = cfg.copy()
    OmegaConf.set_struct(copy, False)
    OmegaConf.set_readonly(copy, False)
    try:
        for key in ("data.path", "resume"):
            if (value := OmegaConf.select(copy, key)) is not None:
                OmegaConf.update(
                    copy, key, absolute(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, cwd)
                )
        # through plain values: a node that an interpolation pointed to becomes a copy of its own
        return DictConfig(OmegaConf.to_container(copy, resolve=True))
    except Exception as error:
        if (line := explain(error, [], CONF, composed)) is None:
            raise
        raise ConfigError(line) from error


def missing_keys(node: Any, key: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from missing_keys(value, join(key, str(name)))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from missing_keys(value, join(key, str(index)))
    elif node == MISSING:
        yield key


def remove_if_empty(folder: Path) -> None:
    """Hydra makes a run's folder before any check: remove it and those above it, below outputs/, that are empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        outputs = ROOT / "outputs"
        for parent in folder.parents:
            if outputs not in parent.parents:
                break
            parent.rmdir()


def absolute(value: Any, cwd: Path) -> Any:
    """A path, or a list of them, against `cwd`."""
    if isinstance(value, list):
        return [absolute(item, cwd) for item in value]
    if not isinstance(value, str) or value == "auto" or "://" in value:
        return value
    return os.path.normpath(cwd / Path(value).expanduser())


@contextlib.contextmanager
def _argparse_raises() -> Iterator[None]:
    """`--lr=3` is a mistake like any other, not a page of usage."""

    def error(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise ConfigError(f"{message} - values are given as key=value, without dashes; see --help")

    before = argparse.ArgumentParser.error, argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.error = error  # type: ignore[method-assign]
    # as Hydra 1.4 does: overrides may stand on both sides of -m
    argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_intermixed_args  # type: ignore
    try:
        yield
    finally:
        argparse.ArgumentParser.error, argparse.ArgumentParser.parse_args = before  # type: ignore[method-assign]


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
