"""The command that finds values by measurements, and prints them as overrides to copy.

Exit status: 0 finished, 1 a measurement failed, 2 ConfigError.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from samebits.children import run_in_subprocess
from samebits.config import as_started, check_used, remove_if_empty, resolved, run_hydra
from samebits.errors import ConfigError, RunFailed, plain_output
from samebits.extras import missing
from samebits.files import write_json
from samebits.process.trials import best_loader, best_threads, smoothed, suggested_lr
from samebits.project import Program
from samebits.schema import plain
from samebits.status import shown
from samebits.world import cluster_role

NAMES = ("micro_batch", "threads", "loader", "lr")  # in this order: each uses the values found before
OF_A_RUN = ("resume=", "sweep=", "sweep.", "hydra/launcher", "hydra/sweeper", "hydra.launcher.", "hydra.sweep")


def tune(program: Program, rate: str) -> int:
    """Run the command. Return the exit status. rate: the key of the learning rate."""
    plain_output()
    stages = [word for word in sys.argv[1:] if word in NAMES]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in NAMES]
    for word in sys.argv[1:]:
        if "=" not in word and not word.startswith("-"):
            print(f"error: {word}: is neither a stage ({', '.join(NAMES)}) nor key=value", file=sys.stderr)
            return 2
        if word in ("-m", "--multirun") or word.startswith(OF_A_RUN):
            print(f"error: {word}: has no effect on tune, which measures one new run - remove it", file=sys.stderr)
            return 2

    failed: list[Exception] = []

    def job(cfg: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            with as_started():
                try_stages(program, rate, cfg, stages or [name for name in NAMES if name != "threads"], folder)
        except (ConfigError, RunFailed) as error:  # not raised here: Hydra would add its own message
            failed.append(error)
        finally:
            remove_if_empty(program.root, folder)

    try:
        run_hydra(program, job)
        for error in failed:
            raise error
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def try_stages(program: Program, rate: str, cfg: DictConfig, stages: list[str], folder: Path) -> None:
    """Run the stages, write tune.json to the folder, and print the overrides. rate: the key of the learning rate."""
    if cluster_role() is not None:
        raise ConfigError(
            "tune: requires one process - run it without torchrun or srun, and give the number of ranks with "
            "trainer=ddp hardware.num_procs=..."
        )
    hydra = HydraConfig.get()
    overrides = [str(text) for text in plain(hydra.overrides.task, resolve=False)]
    check_used(program.conf, cfg, overrides)
    final = resolved(program, cfg, Path(hydra.runtime.cwd))
    program.check(final)
    found: dict[str, Any] = {}
    record: dict[str, Any] = {"stages": stages, "overrides": found}
    for name in (name for name in NAMES if name in stages):
        measured = run_in_subprocess(f"tune {name}", program.measure, name, final)
        shown_by: dict[str, Callable[..., dict[str, Any]]] = {
            "micro_batch": micro_batch,
            "threads": threads,
            "loader": loader,
            "lr": partial(lr, rate),
        }
        found |= shown_by[name](measured, record, folder)
        for key, value in found.items():
            group, _, leaf = key.partition(".")
            final[group][leaf] = value
    write_json(folder / "tune.json", record)
    kept = [text for text in overrides if text.partition("=")[0] not in found]
    print(f"\n{shown(folder)}\n\n{shlex.join([*kept, *(f'{key}={value}' for key, value in found.items())])}")


def micro_batch(measured: Any, record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Print and record the micro-batches. Return the override."""
    size, tried = measured
    record["micro_batch"] = {str(key): fits for key, fits in tried.items()}
    for key, fits in sorted(tried.items()):
        print(f"micro-batch of {key:>6,}: {'fits' if fits else 'out of memory'}")
    return {"hardware.micro_batch_size": size}


def threads(measured: Any, record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Print and record the times of numbers of threads. Return the override."""
    record["threads"] = {str(count): seconds for count, seconds in measured.items()}
    for count, seconds in measured.items():
        print(f"hardware.num_threads={count:<4} {1e3 * seconds:10.2f} ms per step")
    return {"hardware.num_threads": best_threads(measured)}


def loader(measured: Any, record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Print and record the speeds of the loaders. Return the overrides."""
    taken, ways = measured
    kind, workers = best_loader(taken, ways)
    record["loader"] = {"steps": taken, "ways": [[*way, speed] for way, speed in ways.items()]}
    print(f"the training steps of a process: {taken:,.0f} samples/s; each loader without training:")
    for (name, count), speed in ways.items():
        print(f"  data.loader={name:<8} data.num_workers={count:<4} {speed:>12,.0f} samples/s")
    return {"data.loader": kind, "data.num_workers": "auto" if kind == "device" else workers}


def lr(key: str, measured: Any, record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Print, draw and record the losses by learning rate. Return the override. key: the key of the learning rate."""
    rate = suggested_lr(measured)
    means = list(smoothed([loss for _, loss in measured]))
    record["lr"] = {"rates": [at for at, _ in measured], "losses": [loss for _, loss in measured], "smoothed": means}
    print(f"learning rates up to {measured[-1][0]:.2g} were tested; the lowest loss is {min(means):.4g}")
    draw(measured, means, f"{key}={rate:g}", rate, folder / "lr.png")
    return {key: rate}


def draw(measured: Any, means: list[float], label: str, rate: float, file: Path) -> None:
    """Draw the losses by learning rate into a file, with matplotlib if it is installed."""
    try:
        import matplotlib
    except ImportError:
        print(f"{missing('lr.png', 'matplotlib', 'report')}; the figures are in tune.json")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    rates = [at for at, _ in measured]
    axes.plot(rates, [loss for _, loss in measured], color="0.8", label="loss")
    axes.plot(rates, means, label="smoothed")
    axes.axvline(rate, color="k", linestyle=":", label=label)
    low, high = min(loss for _, loss in measured), max(means[0], min(means))
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss")
    axes.set_ylim(low - 0.1 * (high - low), high + 0.5 * (high - low))
    axes.legend()
    figure.savefig(file, dpi=120)
    print(f"picture: {file}")


def find_micro_batch(program: Program, cfg: DictConfig) -> tuple[int, str]:
    """Return (the largest hardware.micro_batch_size that fits, a line to print). cfg: a checked config.

    This runs before the ranks start, so that all ranks, and a resume, read the same config.
    """
    key = "hardware.micro_batch_size=auto"
    size, tried = run_in_subprocess(key, program.measure, "micro_batch", cfg)
    failed = min((other for other, fits in tried.items() if not fits), default=None)
    return size, f"{key}: {size} samples fit{f', {failed} do not' if failed else ', the whole batch of a rank'}"
