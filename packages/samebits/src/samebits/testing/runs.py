"""Small runs of the project in tests: compose a config like the command line, run it, and read its files."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from samebits.errors import ConfigError
from samebits.runs import is_claimed
from samebits.testing.processes import called, held_command, module, program, registered, wait_for, warm

_composed_options: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}
_yamls: dict[tuple[str, ...], Any] = {}  # {(name, folders of the config): what Hydra has read}


def _composed(overrides: tuple[str, ...]) -> tuple[DictConfig, DictConfig]:
    """Return the config as Hydra composes it, and its node `hydra`. Configs that differ in values share one
    composition, because Hydra, too, sets values after it has chosen all options."""
    from hydra._internal.config_repository import ConfigRepository
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf, open_dict

    from samebits.config import initialize, register_resolvers

    read = ConfigRepository.load_config

    def read_once(self: ConfigRepository, config_path: str) -> Any:
        """Return a copy of a yaml file. To parse all of them takes a third of a composition."""
        key = (config_path, *(source.path for source in self.sources))
        if key not in _yamls:
            _yamls[key] = read(self, config_path)
        return copy.deepcopy(_yamls[key])

    def load(texts: Sequence[str]) -> tuple[DictConfig, DictConfig]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConfigRepository, "load_config", read_once)
            cfg = loader.load_configuration("train", [*texts], RunMode.RUN)
        hydra = OmegaConf.masked_copy(cfg, "hydra")
        with open_dict(cfg):
            del cfg["hydra"]
        return cfg, hydra

    register_resolvers(program())
    with initialize(program().conf):
        loader: Any = GlobalHydra.instance().config_loader()
        values = [text for text in overrides if _is_value(loader, text)]
        options = tuple(text for text in overrides if text not in values)
        try:
            if options not in _composed_options:
                _composed_options[options] = load(options)
            base, hydra = _composed_options[options]
            cfg = copy.deepcopy(base)
            loader._apply_overrides_to_config([_parsed(text) for text in values], cfg)
        except Exception:
            return load(overrides)  # raises the error that Hydra has for the whole command
        return cfg, hydra


def _is_value(loader: Any, text: str) -> bool:
    """Return True if the override sets a value, False if it chooses an option or is about Hydra itself."""
    override = _parsed(text)
    chooses = loader.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
    return not (chooses or override.is_sweep_override() or override.is_hydra_override())


@cache
def _parsed(override: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def compose(*overrides: str, checked: bool = True) -> DictConfig:
    """Return the resolved config of these overrides, as a run has it. checked: raise ConfigError for a wrong value."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from samebits.config import quoted, resolved

    cfg, hydra = _composed(tuple(quoted(program(), overrides)))
    OmegaConf.set_readonly(hydra, False)
    hydra.hydra.runtime.output_dir = str(Path.cwd() / "run")
    hydra.hydra._set_parent(cfg)  # for interpolations of users' configs, as HydraConfig.set_config does
    current: Any = HydraConfig.instance()
    before, current.cfg = current.cfg, hydra
    try:
        cfg = resolved(program(), cfg, Path.cwd())
    finally:
        current.cfg = before
    if checked:
        program().check(cfg)
    return cfg


def import_once(*overrides: str) -> None:
    """Import the modules that a run with these overrides needs, so that forks of this process need not import them.
    Skip the test if torch is too old for trainer=fsdp."""
    if "trainer=fsdp" in overrides:
        from samebits.parallel import check_torch

        try:
            check_torch()
        except ConfigError as error:
            pytest.skip(str(error))
    later = [name for text, names in warm.LATER.items() if text in overrides for name in names]
    for name in (*warm.IMPORTS, *registered.imports, *later):
        importlib.import_module(name)


def start_run(run_dir: Path, *overrides: str, own_process: bool = False) -> Path:
    """Train a run with these overrides in `run_dir` to its end, and return `run_dir`. A run of one rank is trained in
    this process, unless own_process."""
    from samebits.process import start

    import_once(*overrides)
    threads = torch.get_num_threads()
    try:
        config = program().check(compose(*overrides, checked=False))
        start(program(), config, run_dir, list(overrides), own_process)
    finally:
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled():  # the call imports torch._inductor, which takes a second
            torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)
    return run_dir


def resume_run(run_dir: Path, **changed: Any) -> Path:
    """Resume the run of `run_dir` and train it to its end. changed: keys of its config, with __ for dots:
    resume_run(folder, optim__lr=0.1)."""
    from omegaconf import OmegaConf

    from samebits.process import start

    cfg = OmegaConf.load(run_dir / "config.yaml")
    for key, value in changed.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    overrides = [f"{key}={value}" for key, value in changed.items()]
    start(program(), program().read(cfg), run_dir, overrides, own_process=False)
    return run_dir


@contextlib.contextmanager
def without_code_generator(monkeypatch: pytest.MonkeyPatch, backend: str = "aot_eager") -> Iterator[list[Any]]:
    """Make torch.compile trace graphs as always, and run them with eager kernels, which saves the minute of its code
    generator. Yield the list of modes that torch.compile was called with."""
    real, asked = torch.compile, []

    def compile(target: Any, mode: str | None = None, **options: Any) -> Any:
        asked.append(mode)
        return real(target, backend=backend, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", compile)
        torch._dynamo.reset()
        yield asked
    torch._dynamo.reset()


def raise_at_step(patch: pytest.MonkeyPatch, step: int, error: BaseException | type[BaseException]) -> None:
    """Make each rank of a run raise `error` when the training step after `step` steps would begin."""
    loop = module("loop")
    original = loop.train_step

    def train_step(loss_modules: Any, state: Any, *rest: Any) -> Any:
        if state.step == step:
            raise error
        return original(loss_modules, state, *rest)

    patch.setattr(loop, "train_step", train_step)


def last_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Return the last checkpoint of a run; a sharded one is consolidated."""
    from samebits.checkpoints import load_checkpoint

    found = [path for path in (run_dir / "checkpoints").glob("last_*") if path.suffix in (".pt", ".dcp")]
    return load_checkpoint(max(found, key=lambda path: path.stem))


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without values that depend on the clock.

    The last line counts when it is whole: a run may be writing it.
    """
    whole, _, _ = (run_dir / "metrics.jsonl").read_text().rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    return [
        {k: v for k, v in line.items() if k != "time" and not k.startswith(("perf/", "balance/"))} for line in lines
    ]


def status(run_dir: Path) -> dict[str, Any]:
    """Return status.json of a run."""
    return json.loads((run_dir / "status.json").read_text())


def result(run_dir: Path) -> dict[str, Any]:
    """Return result.json of a run."""
    return json.loads((run_dir / "result.json").read_text())


def values(run_dir: Path, key: str) -> list[float]:
    """Return the values of `key` that the run has logged, in order: values(folder, "train/loss")."""
    return [line[key] for line in metrics(run_dir) if key in line]


def scores(run_dir: Path) -> dict[str, float]:
    """Return the final scores of a run, from its result.json."""
    return {key: value for key, value in result(run_dir).items() if "/" in key and not key.startswith("balance/")}


def assert_undisturbed(run_dir: Path, straight: Path) -> None:
    """Assert that last checkpoint, metrics and scores of the run equal those of `straight` bit for bit."""
    assert status(run_dir)["status"] == "finished"
    lost = "the resumed run differs, so a step uses a number, tensor or generator that is not saved: checkpoint"
    assert_equal(last_checkpoint(run_dir), last_checkpoint(straight), lost)
    assert metrics(run_dir) == metrics(straight)
    assert scores(run_dir) == scores(straight)


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    """Assert that two nested containers of tensors are equal bit for bit. where: the beginning of the message."""
    if isinstance(a, (list, tuple)):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), f"{where}: {a} != {b}"
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), f"{where}: {[*a]} != {[*b]}"
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    else:
        assert a == b, f"{where}: {a} != {b}"


def kill_at(run_dir: Path, step: int, overrides: tuple[str, ...], suffix: str = ".pt") -> None:
    """Start `./run train` with these overrides, send SIGKILL when a checkpoint of `step` or later exists, and wait
    until its ranks have ended. suffix: .dcp for sharded checkpoints."""
    command = [*held_command(step + 8, Path("/never")), *overrides]
    process = warm.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(int(p.stem[5:]) >= step for p in (run_dir / "checkpoints").glob(f"last_*{suffix}")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not is_claimed(run_dir))  # no rank outlives its parent


def killed_at(run_dir: Path, steps: Sequence[int], overrides: tuple[str, ...], suffix: str = ".pt") -> Path:
    """Return the directory of a run that was killed at each of these steps, resumed each time, and has finished."""
    for attempt, step in enumerate(steps):
        again = (f"resume={run_dir}",) if attempt else (*overrides, f"hydra.run.dir={run_dir}")
        kill_at(run_dir, step, again, suffix)
        assert status(run_dir)["status"] == "running"
    train = [sys.executable, str(program().root / "src" / "train.py")]
    called([*train, f"resume={run_dir}"])
    return run_dir
