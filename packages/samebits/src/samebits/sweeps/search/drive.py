"""Run a search: draw trials, run them as jobs of a sweep, and report their scores to the study.

unfinished trials of an earlier command -> reported if their run has ended since, otherwise resumed
while trials are left: ask -> compose, check, write the run directory -> launch -> tell
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from samebits.config import one_line, remove_if_empty
from samebits.errors import ConfigError, RunFailed
from samebits.files import amount, read_json, write_json
from samebits.locks import Busy, Lock
from samebits.project import Program
from samebits.saved import NEVER_COMPARED, folds_of
from samebits.schema import at, plain, typed
from samebits.status import shown
from samebits.sweeps.drive import Work, ahead, counted, opened, report, run_sweep, stop_here
from samebits.sweeps.ledger import SWEEP, Job, Ledger, NewJob, record_code
from samebits.sweeps.options import SearchConfig
from samebits.sweeps.plan import Combination, Composer, adapt, unlike
from samebits.sweeps.progress import say
from samebits.sweeps.screen import table
from samebits.sweeps.search import objectives as objective_values
from samebits.sweeps.search.methods import Methods
from samebits.sweeps.search.pruning import TRIAL
from samebits.sweeps.search.space import parse
from samebits.sweeps.search.storage import quiet
from samebits.sweeps.search.study import WHY, Search

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

LOCK, TRIAL_KEY = ".search.lock", "trial_"
OUTCOME = {"finished": "complete", "pruned": "pruned", "failed": "fail"}  # a run's status -> its trial's state
BEST_AT_MOST = 10  # trials of a Pareto front that are printed


def run_search(
    project: Program,
    master: DictConfig,
    loader: ConfigLoader,
    launcher: Launcher,
    arguments: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    """Run trials until hydra.sweeper.n_trials have ended, including trials of earlier commands.

    master: the config of the command. options: hydra.sweeper. Raise ConfigError before anything is written. When the
    jobs have ended, raise RunFailed if some failed, SystemExit(75) if the sweep was stopped early.
    """
    if getattr(launcher, "detached", False):
        raise ConfigError(
            "hydra.launcher.detach=true: a search chooses trials by the results of earlier ones, so its command must "
            "keep running - remove it"
        )
    quiet()
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    sweep_options, ledger = opened(project, master)
    if sweep_options.zip:
        raise ConfigError(
            "sweep.zip: only for a sweep over all combinations, has no effect on a search - remove it, or write an "
            "experiment for each pair and search experiment=choice(a,b)"
        )
    config = typed(SearchConfig, {k: plain(v) for k, v in options.items()}, "hydra.sweeper")
    given, at_once = plain(master.hydra.overrides.hydra, resolve=False), "hydra.launcher.jobs_at_once"
    asked = next((text for text in given if text.lstrip("+").startswith(f"{at_once}=")), f"{at_once}={config.n_jobs}")
    if config.n_jobs is not None and asked != f"{at_once}={config.n_jobs}":
        raise ConfigError(f"{asked}: has no effect on a search - set hydra.sweeper.n_jobs, which is {config.n_jobs}")
    own = [text for text in arguments if text.lstrip("+~").partition("=")[0].partition(".")[0] not in NEVER_COMPARED]
    space = parse([*(f"{k}={v}" for k, v in (config.params or {}).items()), *own], loader)
    composer = Composer(project, loader, master, Path(master.hydra.runtime.cwd), ledger.directory, space.keys)
    methods = Methods(project, config, space)
    if any(not job.key.startswith(TRIAL_KEY) for job in ledger.jobs):
        raise ConfigError(f"sweep={ledger.name}: is a sweep, not a search - give the search another name")
    # check every choice and both ends of every range; if trials exist, only the first config
    corners = islice(space.corners(), 1 if ledger.jobs else None)
    base, *_ = [composer.job(n, trial_key(n), space.overrides(values)) for n, values in enumerate(corners)]
    if folds := [key for key in space.keys if (count := folds_of(key)) and at(base, count.split("."))]:
        what = f"{space.typed.get(folds[0], folds[0])}: a search would take the fold for a hyperparameter"
        raise ConfigError(f"{what} - search with one fold, then sweep the folds of the best configurations")
    objectives = objective_values.choose(project, config.objectives, base)
    methods.check_pruning(objectives, base)
    with driving(project.root, ledger.directory):
        try:
            study = Search(config, space, methods, objectives, f"{base['name']}/{ledger.name}", ledger.directory)
            if sweep_options.retry_failed:
                study.retry_failed()
            drive = Drive(study, ledger, composer, list(space.typed.values()))
            waiting = drive.left_over()
            say(f"{outlook(study, len(waiting))}\n  {shown(ledger.directory)}")
            to_run = bool(waiting) or study.has_room()
            if to_run and (difference := record_code(ledger)):
                say(difference)
            stopped = drive.run(launcher, sweep_options, waiting) if to_run else None
        except (StorageInternalError, SQLAlchemyError) as error:  # the database is unreachable or full
            cause = error.__cause__ or error  # the database's own error
            reason = one_line(getattr(cause, "orig", None) or cause)
            raise RunFailed(f"hydra.sweeper.storage: {reason}; fix this, then repeat the command to resume") from error
        conclude(study, ledger, stopped, changed=to_run)


class Drive:
    """Give trials to a launcher one by one. command: the overrides as typed."""

    def __init__(self, study: Search, ledger: Ledger, composer: Composer, command: Sequence[str]) -> None:
        self.study, self.ledger, self.composer, self.command = study, ledger, composer, command
        self._said: set[str] = set()

    def left_over(self) -> list[Trial]:
        """Return the trials of earlier commands that must be resumed. Report those that have ended to the study."""
        running = self.study.running()
        for trial in running:
            self._check_params(trial)
        return [trial for trial in running if not self._ended(self._job(trial.number))]

    def run(self, launcher: Launcher, options: Any, waiting: list[Trial]) -> signal.Signals | None:
        """Run trials until the search ends. Return the signal that stopped it early, or None."""
        total = [self._job(number) for number in range(self.study.expected())]
        jobs = self._jobs(waiting)
        if hasattr(launcher, "run_jobs"):
            return run_sweep(launcher, Work(self.ledger, jobs, total, options, self._ended))
        # other launchers take a batch and return when its last job has ended
        while batch := list(islice(jobs, self.study.config.n_jobs or 1)):
            if stopped := run_sweep(launcher, Work(self.ledger, batch, total, options, self._ended)):
                return stopped
        return None

    def _jobs(self, waiting: list[Trial]) -> Iterator[Job]:
        """Yield jobs. Each trial is drawn only when it can start, so that the sampler has all results until then."""
        while waiting or self.study.has_room():
            job = self._written(waiting.pop(0) if waiting else self.study.ask())
            if job is not None:
                yield job

    def _written(self, trial: Trial) -> Job | None:
        """Return the trial's job and write its run directory if it is missing; None if its config has a mistake."""
        self._check_params(trial)
        overrides, key = self.study.space.overrides(trial.params), trial_key(trial.number)
        try:
            job = self.ledger.named(key)
            if job is not None and job.exists():
                adapt(self.ledger, [Combination(tuple(overrides), {})], [job], self.composer)
            else:
                cfg = self.composer.job(trial.number, key, overrides)
                job = self._add(NewJob(overrides, cfg, {}, key, {"trial": trial.number}))
        except ConfigError as error:  # two values that conflict
            say(f"error: {error}")
            self.study.tell(trial.number, "fail", why=str(error))
            return None
        write_json(job.directory / TRIAL, self.study.facts(trial))
        trial.set_user_attr("directory", str(job.directory))  # for dashboards
        return job

    def _check_params(self, trial: Trial) -> None:
        """Raise RunFailed if the trial's job was started with other parameters: its scores are not of this trial."""
        directory = self._job(trial.number).directory
        started = read_json(directory / TRIAL).get("params", trial.params)
        if started != trial.params:
            raise RunFailed(
                f"{shown(directory)}: was started with {' '.join(self.study.space.drawn(started))}, but the study has "
                f"{' '.join(self.study.space.drawn(trial.params))} (was the study deleted?) - give this search another "
                "name, sweep=..."
            )

    def _add(self, new: NewJob) -> Job:
        difference = unlike(self.ledger, self.ledger.jobs[:1], [new], self.composer)
        if difference and difference not in self._said:
            self._said.add(difference)
            say(difference)
        objectives = [{"key": o.key, "mode": o.mode} for o in self.study.objectives]
        return self.ledger.add([new], self.command, self.study.space.keys, objectives, self.composer.follows)[0]

    def _ended(self, job: Job) -> bool:
        """Report a trial's state and scores to the study. Return True if it has ended."""
        number, state, study = int(job.key.removeprefix(TRIAL_KEY)), job.state(), self.study
        if state not in OUTCOME:
            return False
        if len(study.objectives) == 1:
            study.report(number, objective_values.evaluations(job.directory, study.objectives[0]))
        values: Sequence[float] = ()
        why = ""
        if state == "finished":
            values, why = objective_values.read(job.result(), study.objectives)
        elif state == "failed":
            why = str(job.status().get("error", ""))
        study.tell(number, "fail" if why else OUTCOME[state], values, why)
        return True

    def _job(self, number: int) -> Job:
        key = trial_key(number)
        return self.ledger.named(key) or Job(number, (), self.ledger.directory / key)


def trial_key(number: int) -> str:
    """Return the name of a trial's directory. It is a number, because equal parameters may be tried twice."""
    return f"{TRIAL_KEY}{number:04d}"


@contextmanager
def driving(root: Path, sweep_dir: Path) -> Iterator[None]:
    """Hold the lock that allows one process per search; the kernel releases it even if the process is killed."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(sweep_dir / LOCK)
    except Busy as busy:
        raise ConfigError(
            f"sweep={sweep_dir.name}: another process runs this search; wait until it ends, or stop it "
            f"(hydra.sweeper.n_jobs=2 runs two trials at once){busy}"
        ) from None
    with lock:
        try:
            yield
        except ConfigError:
            if not (sweep_dir / SWEEP).exists():  # nothing has started
                with suppress(OSError):
                    (sweep_dir / LOCK).unlink()
                    remove_if_empty(root, sweep_dir)
            raise


# ---- messages
def outlook(study: Search, num_left_over: int) -> str:
    """Return the line that is printed before the start: numbers of trials, trials to run, and ended trials."""
    states = _states(study.ended())
    to_run = max(0, study.methods.limit - len(states))
    parts = ahead(amount(study.methods.limit, "trial"), to_run, num_left_over, states)
    return f"search {study.sweep_dir.name}: {', '.join(parts)}"


def _states(trials: Sequence[FrozenTrial]) -> list[str]:
    return [{"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower()) for trial in trials]


def conclude(study: Search, ledger: Ledger, stopped: signal.Signals | None, changed: bool) -> None:
    """Print the table and the best trials, and write the report.

    Raise KeyboardInterrupt after Ctrl-C, SystemExit(75) if the search was stopped early, RunFailed if no trial has a
    score; single trials may fail. changed: True if a trial has run.
    """
    trials, best = study.trials(), study.best_trials()
    states = _states(trials)
    if ledger.jobs:
        say(f"\n{table(ledger, ledger.jobs)}")
    say(f"\nsearch {ledger.name}: {counted(states)}")
    explained = {job.status().get("sweep", {}).get("trial") for job in ledger.jobs if job.state() == "failed"}
    for trial in trials:
        if (why := trial.user_attrs.get(WHY)) and trial.number not in explained:  # the table shows it
            say(f"  trial {trial.number} failed: {why.splitlines()[0]}")
    if "failed" in _states(study.ended()):  # without those that were run again
        say(f"to run the failed trials again, repeat the command with sweep={ledger.name} sweep.retry_failed=true")
    if len(study.objectives) > 1 and best:
        first = f", the first {BEST_AT_MOST} of {len(best)}" if len(best) > BEST_AT_MOST else ""
        say(f"best: no other trial is better in every objective{first}:")
    for trial in best[:BEST_AT_MOST]:
        scores = ", ".join(f"{o.key} {value:.4g}" for o, value in zip(study.objectives, trial.values))
        line = f"trial {trial.number}, {scores}:  {' '.join(study.space.drawn(trial.params))}"
        say(f"best: {line}" if len(study.objectives) == 1 else f"  {line}")
    if ledger.jobs:
        report(ledger, changed)
    stop_here(ledger, stopped, len(study.ended()) < study.methods.limit)
    if "complete" not in states:
        raise RunFailed(f"no trial gave a score: {amount(len(states), 'trial')} failed")
