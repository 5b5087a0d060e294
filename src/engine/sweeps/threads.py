"""Number of CPU threads of each job, fixed when the job is written: it changes the order of summation and so the last
bits of results, so it must not depend on how many jobs happen to run at once or on a later resume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig

from engine.app import app
from engine.config import typed
from engine.errors import ConfigError, RunFailed
from engine.host import cores_each
from engine.ranks import ONE_PROCESS
from engine.sweeps.ledger import Ledger, Share

Config = DictConfig | dict[str, Any]


def share_of(launcher: Any, num_jobs: int, ledger: Ledger, configs: Iterable[Config]) -> Share | None:
    """Each new job's share of this machine; an extended sweep keeps its share while there are enough cores.

    num_jobs: of the command, ended ones included. configs: of new jobs; the first whose thread count must be measured
    is measured, in a process of its own, for all. Returns None if the launcher does not tell how many run at once.
    """
    if not hasattr(launcher, "at_once"):
        return None
    known, cores = ledger.share, cores_each(launcher.at_once(num_jobs))
    if known is not None:
        return Share(min(cores, known.cores), known.threads)
    for cfg in configs:
        if cfg["hardware"]["num_threads"] == "auto" and (found := _known(cfg, cores)) is not None and not found[0]:
            return Share(cores, _measured(cfg, found[1]))
    return Share(cores, None)


def decide(cfg: Config, share: Share | None) -> None:
    """Replace hardware.num_threads=auto in `cfg` by the number of threads of each rank."""
    if share is None or cfg["hardware"]["num_threads"] != "auto" or (found := _known(cfg, share.cores)) is None:
        return
    count, most = found
    cfg["hardware"]["num_threads"] = count or min(share.threads or most, most)


def _known(cfg: Config, cores: int) -> tuple[int, int] | None:
    """(threads of a rank, 0: to be measured; most threads of a rank). None: this machine cannot run the job, which will
    fail with the reason when it starts."""
    from engine.ranks import choose_device, count_processes
    from engine.ranks import decide_threads as decide_for_run

    root: Any = typed(app().schema, cfg)
    hardware, trainer = root.hardware, root.trainer
    try:
        ranks = 1 if trainer.strategy in ONE_PROCESS else count_processes(hardware, trainer)
        found = decide_for_run("auto", choose_device(hardware), hardware.deterministic, ranks, cores)
    except ConfigError:
        return None
    return found.count if found.why else 0, found.most


def _measured(cfg: Config, most: int) -> int:
    from engine.sweeps.preflight import Candidate, in_a_process

    try:
        return in_a_process(Candidate(0, "", DictConfig(cfg)), [], most).threads
    except (ConfigError, RunFailed):  # the job itself fails with it when it starts
        return 1
