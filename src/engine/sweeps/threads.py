"""How many threads each job computes with. It is decided when a job is written: sums that more threads make differ in
their last bits, so a job must not get more because it happens to run alone, goes on later, or after others failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig

from engine.app import app
from engine.config.schema import typed
from engine.errors import ConfigError, RunFailed
from engine.ranks.cores import cores_each
from engine.ranks.options import ONE_PROCESS
from engine.sweeps.ledger import Ledger, Share


def share_of(launcher: Any, num_jobs: int, ledger: Ledger, configs: Iterable[DictConfig]) -> Share | None:
    """What each new job may use of this machine. A sweep that grows keeps its share while there are cores for that.

    num_jobs: of the command, those that have ended included. configs: of new jobs; the first that has something to
    measure is measured, in a process of its own, for all. None: the launcher does not say how many jobs run at once.
    """
    if not hasattr(launcher, "at_once"):
        return None
    known, cores = ledger.share, cores_each(launcher.at_once(num_jobs))
    if known is not None:
        return Share(min(cores, known.cores), known.threads)
    for cfg in configs:
        if cfg.hardware.num_threads == "auto" and (found := _known(cfg, cores)) is not None and not found[0]:
            return Share(cores, _measured(cfg, found[1]))
    return Share(cores, None)


def decide(cfg: DictConfig, share: Share | None) -> None:
    """Write the number of threads of each rank in place of hardware.num_threads=auto."""
    if share is None or cfg.hardware.num_threads != "auto" or (found := _known(cfg, share.cores)) is None:
        return
    count, most = found
    cfg.hardware.num_threads = count or min(share.threads or most, most)


def _known(cfg: DictConfig, cores: int) -> tuple[int, int] | None:
    """(threads of a rank, or 0 where they are to be measured, and the most of them); None: the job cannot start here,
    and says so when its turn comes."""
    from engine.ranks.hardware import choose_device, count_processes
    from engine.ranks.threads import decide as decide_for_run

    root: Any = typed(app().schema, cfg)
    hardware, trainer = root.hardware, root.trainer
    try:
        ranks = 1 if trainer.strategy in ONE_PROCESS else count_processes(hardware, trainer)
        found = decide_for_run("auto", choose_device(hardware), hardware.deterministic, ranks, cores)
    except ConfigError:
        return None
    return found.count if found.why else 0, found.most


def _measured(cfg: DictConfig, most: int) -> int:
    from engine.sweeps.preflight import Candidate, in_a_process

    try:
        return in_a_process(Candidate(0, "", cfg), [], most).threads
    except (ConfigError, RunFailed):  # it will say so when its turn comes
        return 1
