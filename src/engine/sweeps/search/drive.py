"""A search from start to end: trials are drawn, run as jobs of a sweep, and reported to the study as they end.

unfinished trials of an earlier start -> reported, if their run has ended since; else resumed
while there is room: ask -> compose, check, write the run directory -> launch -> tell
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from engine.config.compose import remove_if_empty
from engine.config.explain import one_line
from engine.config.schema import plain, typed
from engine.errors import ConfigError, RunFailed
from engine.locks import Busy, Lock
from engine.runs.directory import shown, write_json
from engine.sweeps.alike import NEVER
from engine.sweeps.drive import Work, opened, run, say
from engine.sweeps.ledger import ENDED, SWEEP, Job, Ledger, NewJob, Share
from engine.sweeps.options import SearchConfig
from engine.sweeps.plan import Combination, Composer, adapt, unlike
from engine.sweeps.preflight import Candidate
from engine.sweeps.search import objectives as objective_values
from engine.sweeps.search.methods import Methods
from engine.sweeps.search.pruning import TRIAL
from engine.sweeps.search.space import Space, parse
from engine.sweeps.search.storage import quiet, storage_errors
from engine.sweeps.search.study import Asked, Search
from engine.sweeps.search.summary import conclude, outlook
from engine.sweeps.threads import decide, share_of

LOCK, TRIAL_KEY = ".search.lock", "trial_"


def search(
    master: DictConfig, loader: ConfigLoader, launcher: Launcher, arguments: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Run trials until hydra.sweeper.n_trials have ended, including those of earlier starts.

    master: the command's whole config. options: hydra.sweeper. Raises ConfigError before anything is written, later
    what `conclude` raises.
    """
    quiet()
    sweep_options, ledger = opened(master)
    config = typed(SearchConfig, {k: plain(v) for k, v in options.items()}, "hydra.sweeper")
    space = parse([*(f"{k}={v}" for k, v in (config.params or {}).items()), *_of_the_experiment(arguments)], loader)
    composer = Composer(loader, master, Path(master.hydra.runtime.cwd), ledger.directory, space.keys)
    methods = Methods(config, space)
    if any(not job.key.startswith(TRIAL_KEY) for job in ledger.jobs):
        raise ConfigError(f"sweep={ledger.name}: holds a sweep, not a search - give the search another name")
    corners = corners_of(space, composer, all_of_them=sweep_options.preflight or not ledger.jobs)
    base = plain(corners[0].cfg)
    objectives = objective_values.choose(config.objectives, base)
    methods.check_pruning(objectives, base)
    if sweep_options.preflight:
        from engine.sweeps.preflight import preflight

        at_once = launcher.at_once(methods.limit) if hasattr(launcher, "at_once") else 1
        say(f"every choice and both ends of every range, one after the other:\n{preflight(corners, at_once)}")
    with driving(ledger.directory):
        try:
            study = Search(config, space, methods, objectives, f"{base['name']}/{ledger.name}", ledger.directory)
            if sweep_options.retry_failed:
                study.retry_failed()
            share = share_of(launcher, study.limit, ledger, [corners[0].cfg])
            drive = Drive(study, ledger, composer, list(space.typed.values()), share)
            waiting = drive.left_over()
            say(f"{outlook(study, len(waiting))}\n  {shown(ledger.directory)}")
            to_run = bool(waiting) or study.has_room()
            stopped = drive.run(launcher, sweep_options, waiting) if to_run else None
        except storage_errors() as error:
            reason = one_line(getattr(error, "orig", None) or error)
            raise RunFailed(f"hydra.sweeper.storage: {reason}; the same command goes on") from error
        conclude(study, ledger, stopped, changed=to_run)


def corners_of(space: Space, composer: Composer, all_of_them: bool) -> list[Candidate]:
    """Checked configs that cover every choice and both ends of every range; only the first one without all_of_them."""
    params = islice(space.corners(), None if all_of_them else 1)
    found = [(space.overrides(values), " ".join(space.drawn(values))) for values in params]
    return [Candidate(n, label, composer.job(n, trial_key(n), texts)) for n, (texts, label) in enumerate(found)]


def _of_the_experiment(arguments: Sequence[str]) -> list[str]:
    """The overrides of the experiment: those of the groups NEVER (hydra, sweep, resume) left out."""
    return [text for text in arguments if text.lstrip("+~").partition("=")[0].partition(".")[0] not in NEVER]


class Drive:
    """Hands trials to a launcher one by one. command: the overrides as typed. share: of the machine, for each trial."""

    def __init__(
        self, study: Search, ledger: Ledger, composer: Composer, command: Sequence[str], share: Share | None
    ) -> None:
        self.study, self.ledger, self.composer, self.command = study, ledger, composer, command
        self.share = share
        self._said: set[str] = set()

    def left_over(self) -> list[Asked]:
        """Trials of an earlier start that must be resumed; those that have ended since are reported to the study."""
        running = self.study.running()
        return [asked for asked in running if not self._tell(asked.number, self._job_of(asked.number).state())]

    def run(self, launcher: Launcher, options: Any, waiting: list[Asked]) -> signal.Signals | None:
        """Run the trials to the end of the search. Returns the signal that stopped it early; None: none did."""
        expected = [self._job_of(number) for number in range(self.study.expected())]
        total = [self.ledger.named(job.key) or job for job in expected]
        jobs = self._jobs(waiting)
        if hasattr(launcher, "run_jobs"):
            return run(launcher, Work(self.ledger, jobs, total, options, self._ended))
        # other launchers take a batch, and return only when its last job has ended
        while batch := list(islice(jobs, self.study.config.n_jobs or 1)):
            if stopped := run(launcher, Work(self.ledger, batch, total, options, self._ended)):
                return stopped
        return None

    def _jobs(self, waiting: list[Asked]) -> Iterator[Job]:
        """Draws each trial only when it can start, so that the sampler knows all results until then."""
        while waiting or self.study.has_room():
            job = self._written(waiting.pop(0) if waiting else self.study.ask())
            if job is not None:
                yield job

    def _written(self, asked: Asked) -> Job | None:
        """The trial's job, its run directory written unless an earlier start did; None: its config has a mistake."""
        overrides, key = self.study.space.overrides(asked.params), trial_key(asked.number)
        try:
            job = self.ledger.named(key)
            if job is not None:
                adapt(self.ledger, [Combination(tuple(overrides), {})], [job], self.composer)
            else:
                cfg = self.composer.job(asked.number, key, overrides)
                decide(cfg, self.share)
                job = self._add(NewJob(overrides, cfg, {}, key, {"trial": asked.number}), self.study.space)
        except ConfigError as error:  # two values that do not fit together
            say(f"error: {error}")
            self.study.tell(asked.number, "fail", why=str(error))
            return None
        write_json(job.directory / TRIAL, self.study.facts(asked))
        self.study.note_directory(asked.number, job.directory)
        return job

    def _add(self, new: NewJob, space: Space) -> Job:
        difference = unlike(self.ledger, self.ledger.jobs[:1], [new], self.composer)
        if difference and difference not in self._said:
            self._said.add(difference)
            say(difference)
        objectives = [{"key": o.key, "mode": o.mode} for o in self.study.objectives]
        more = self.composer.follows, self.share
        return self.ledger.add([new], self.command, space.keys, objectives, *more)[0]

    def _ended(self, job: Job, state: str) -> None:
        self._tell(int(job.key.removeprefix(TRIAL_KEY)), state)

    def _tell(self, number: int, state: str) -> bool:
        """Report a trial's state and scores to the study. Returns whether it has ended."""
        job = self._job_of(number)
        if state in (*ENDED, "failed") and len(self.study.objectives) == 1:
            self.study.report(number, objective_values.evaluations(job.directory, self.study.objectives[0]))
        if state == "finished":
            values, why = objective_values.read(job.result(), self.study.objectives)
            self.study.tell(number, "fail" if why else "complete", values, why)
        elif state == "pruned":
            self.study.tell(number, "pruned")
        elif state == "failed":
            self.study.tell(number, "fail", why=str(job.status().get("error", "")))
        else:
            return False
        return True

    def _job_of(self, number: int) -> Job:
        return Job(number, (), self.ledger.directory / trial_key(number))


def trial_key(number: int) -> str:
    """The name of a trial's directory: by number, as equal parameters may be tried twice."""
    return f"{TRIAL_KEY}{number:04d}"


@contextmanager
def driving(sweep_dir: Path) -> Iterator[None]:
    """Lock: one process drives a search at a time; the kernel releases it even if the process is killed."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(sweep_dir / LOCK)
    except Busy as busy:
        raise ConfigError(
            f"sweep={sweep_dir.name}: another process drives this search; wait or stop it "
            f"(hydra.sweeper.n_jobs=2 runs two trials at once){busy}"
        ) from None
    with lock:
        try:
            yield
        except ConfigError:
            if not (sweep_dir / SWEEP).exists():  # nothing has begun
                with suppress(OSError):
                    (sweep_dir / LOCK).unlink()
                    remove_if_empty(sweep_dir)
            raise
