"""Repeat a run from its config and its code, and compare the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from samebits.checkpoints import Checkpoints
from samebits.code import (
    DIFF,
    ENVIRONMENT,
    Code,
    changes_of,
    code_folders,
    code_here,
    code_of,
    has_own_engine,
    is_vendored,
    libraries_of,
    library_changes,
    python_path,
    source_of,
    version_of,
)
from samebits.config import quote_value
from samebits.device import recorded_precision
from samebits.errors import PREEMPTED, ConfigError, RunFailed
from samebits.files import read_file, read_json, records, replace_text, write_json
from samebits.host import count_gpus, machine_changes
from samebits.loggers import LoggerConfig
from samebits.parallel import ONE_PROCESS
from samebits.programs import NoAnswer, git
from samebits.project import Program, Project
from samebits.runs import files_of, fill_directory, holds_run, is_claimed, is_same, other_data
from samebits.saved import CONFIG, check_saved, current, localized, read_config, saved_config
from samebits.schema import plain
from samebits.signals import temporary_folder
from samebits.status import CHECKPOINTS, METRICS, RESULT, read_status, step_of
from samebits.sweeps.verify.compare import Part, compare_checkpoints, compare_metrics, compare_scores
from samebits.world import AT_STEP, MAX_TIME, NO_RESUME, check_no_rank

HERE, OWN = "here", "own"  # code of the second run: the current files; the run's commit
ROUNDING = 1e-2  # relative difference that is allowed if the environment rounds differently
ROUNDS = ("torch", "numpy")  # packages that affect rounding
ENGINES = ("samebits", "engine")  # names of the package with world/stop.py, in all versions
RENAMED = {"engine": "samebits"}  # package names in older versions


@dataclass(frozen=True)
class Verdict:
    """The result of a verification. unlike: differences in the environment that may change bits. hints: other possible
    reasons of a difference."""

    steps: int
    code: str
    rounding: float
    unlike: list[str]
    parts: list[Part]
    hints: list[str]

    @property
    def weights(self) -> bool:
        """Return True if weights were compared."""
        return any(part.counted and part.name.startswith(f"{CHECKPOINTS}/") for part in self.parts)

    @property
    def equal(self) -> bool:
        """Return True if weights were compared and nothing differs."""
        return self.weights and not any(part.difference for part in self.parts)


def verify(
    project: Program,
    run: Path,
    steps: int | None = None,
    commit: str = HERE,
    out: Path | None = None,
    rounding: float | None = None,
    overrides: Sequence[str] = (),
    diff: bool = False,
) -> Verdict:
    """Repeat the first `steps` steps of a run and compare the results.

    steps: rounded up to the next step at which the run has saved its weights; None: all steps of the run. commit: code
    of the second run: HERE (the current files), OWN (the run's commit) or a revision. out: directory of the second run;
    None: a temporary one. rounding: largest relative difference that counts as equal; None: 0, or ROUNDING if the
    environment differs. overrides: key=value, as for a resume. diff: use OWN with the run's uncommitted.diff. OWN and
    diff execute code of the run, which may be from a stranger, so they are never the default."""
    check_no_rank("verify starts its own processes")
    if rounding is not None and not 0 <= rounding < 1:
        raise ConfigError(f"--rounding {rounding}: must be a relative difference, >= 0 and < 1")
    if not holds_run(run):
        raise ConfigError(f"{run}: not a run directory (config.yaml is missing); give the path that the run printed")
    if is_claimed(run):
        raise ConfigError(f"{run}: is still running; wait until it ends, or stop it")
    cfg, began = read_config(project, run), read_json(run / ENVIRONMENT)
    found = Checkpoints(run / CHECKPOINTS)
    with_weights = [step_of(file) for file in found.files()]
    saved = [*(record["step"] for _, record in records(run / METRICS)), *with_weights]
    if not with_weights:
        raise ConfigError(f"{run}: has no checkpoint, so no weights can be compared; resume it until it saves one")
    last = max(saved) if steps is None else steps
    if not min(saved) <= last <= max(saved):
        raise ConfigError(
            f"--steps {last}: {run} has logged and saved from step {min(saved):,} to {max(saved):,}; give a step "
            "between these, or remove --steps"
        )
    changes = [change for change in changes_of(run) if change["after"]]
    hints = undo_changes(project.root, cfg, changes)
    unchanged = changes[0]["after"] if changes else max(saved)
    if last > unchanged:
        last = unchanged
    else:
        hints = []
    if steps is not None and (later := [step for step in with_weights if last <= step <= unchanged]):
        last = min(later)
        if last > steps:
            line = f"--steps {steps}: continues to step {last:,}, where the run saved its weights, to compare them too"
            print(line, file=sys.stderr, flush=True)
    newest = found.newest_valid()
    ranks = len(newest[1]["ranks"]) if newest else None
    at_end = last == max(saved) and bool(read_json(run / RESULT))
    with ExitStack() as stack:
        if out is None:
            again = stack.enter_context(temporary_folder("verify-")) / "run"
        else:
            again = out.absolute()
            if again.exists():
                raise ConfigError(f"--out {out}: exists; give a new directory")
        config = as_begun(project, run, changes)
        root, code = stack.enter_context(code_for(project, run, commit, diff))
        prepare(project, again, config, began, root)
        place = out or "a temporary directory, which is then deleted"
        print(f"repeating {run} up to step {last:,} in {place}", file=sys.stderr, flush=True)
        own = settings(project, cfg, began, ranks, None if at_end else last, root)
        start(project, run, again, root, [*own, *overrides], removed=out is None)
        cfg = read_config(project, again)  # with the overrides
        now = read_json(again / ENVIRONMENT)
        unlike = surroundings_differ(began, now, cfg, ranks, again)
        if rounding is None:
            rounding = ROUNDING if unlike else 0.0
        # libraries are code: a difference allows no rounding
        unlike += library_changes(began.get("libraries"), now.get("libraries"))
        parts = [compare_metrics(run, again, last, at_end, rounding)]
        parts += compare_checkpoints(run, again, last, rounding)
        if at_end:
            parts.append(compare_scores(run, again, rounding))
        differs = any(part.difference for part in parts)
        if differs and overrides:
            hints.append(f"the second run had {' '.join(overrides)}, so the difference may come from it")
        other_code = commit != OWN and not diff and code_of(run).of_project != code_here(root).of_project
        if differs and other_code:
            hints.append("the code is not the run's, so the difference may come from it")
        hints += other_packages(began, now)
        hints += other_files(run, again)  # read now, because `again` is removed after this block
    return Verdict(last, code, rounding, unlike, parts, hints)


def start(
    project: Project, run: Path, again: Path, root: Path, overrides: Sequence[str], removed: bool = False
) -> None:
    """Run the second run with the project in `root`. Raise ConfigError or RunFailed if it does not finish.

    removed: True if its directory will be removed, so it must not print how to resume it."""
    command = [str(root / "src/train.py"), "resume=auto", f"hydra.run.dir={quote_value(str(again))}", *overrides]
    # the packages/ of other code take precedence over installed ones
    env = (
        os.environ
        | ({NO_RESUME: "1"} if removed else {})
        | ({} if root == project.root else {"PYTHONPATH": python_path(root)})
    )
    status = subprocess.run([sys.executable, *command], env=env, check=False).returncode
    if status == 130:
        raise KeyboardInterrupt
    if status == 2:
        raise ConfigError(f"{run}: cannot be repeated, see the error above")
    if status == PREEMPTED and (signal := read_status(again).get("signal")) not in called(project, AT_STEP):
        raise RunFailed(f"{run}: the second run was stopped by {signal}")
    if status not in (0, PREEMPTED) and read_status(run).get("status") != "failed":
        raise RunFailed(f"{run}: the second run failed, see the error above")


def as_begun(project: Program, run: Path, changes: list[dict[str, Any]]) -> DictConfig:
    """Return the run's config, unchanged for its own version of the code, with the values it had before any resume.

    Raise ConfigError if the current code would reject the config or one of its targets: older code may check less, and
    read keys that the current code ignores.
    """
    cfg = saved_config(project, run)
    assert isinstance(cfg, DictConfig)  # read_config has checked it
    undo_changes(project.root, cfg, changes)
    check_saved(project, cfg)
    whole = current(project, cfg, run / CONFIG)
    whole.logger = asdict(LoggerConfig(kind="none"))  # as in the second run; the logger's library need not be installed
    project.check(whole)
    return cfg


def prepare(project: Project, again: Path, cfg: DictConfig, began: dict[str, Any], root: Path) -> None:
    """Write the directory of the second run, with config, precision and threads as the first run resolved them.

    root: the project that runs it. The libraries of other code are recorded later, by its own process.
    """
    again.mkdir(parents=True)
    fill_directory(project, again, cfg, [])
    replace_text(again / CONFIG, OmegaConf.to_yaml(cfg))  # keep its paths: other code is in another folder
    decided = {"precision": recorded_precision(began)} | ({"threads": began["threads"]} if "threads" in began else {})
    unknown = {} if root == project.root else {"libraries": None}
    write_json(again / ENVIRONMENT, read_json(again / ENVIRONMENT) | decided | unknown)


def settings(
    project: Project, cfg: DictConfig, began: dict[str, Any], ranks: int | None, stop: int | None, root: Path
) -> list[str]:
    """Return the overrides of the second run.

    cfg: config of the first run. ranks: its number of ranks, None if unknown. stop: last step, None for all. root: the
    project that runs it; a version without AT_STEP runs until its end.
    """
    own = ["logger=none"]
    if stop is not None and (key := as_called(project, AT_STEP, root)):
        own.append(f"{key}={stop}")
    # the first may have had several such
    if cfg.process.max_time is not None and (key := as_called(project, MAX_TIME, root)):
        own.append(f"{key}=null")
    auto = cfg.trainer.strategy not in ONE_PROCESS and cfg.hardware.num_procs == "auto"
    if ranks and auto and ("gpus" not in began.get("machine", {}) or count_gpus() >= ranks):
        own.append(f"hardware.num_procs={ranks}")
    return own


def called(project: Project, key: str) -> list[str]:
    """Return the current and the former names of a config key."""
    return [key, *(old for old, new in project.moved_keys.items() if new == key)]


def as_called(project: Project, key: str, root: Path) -> str | None:
    """Return the name of a config key in the version of the project in `root`; None if that version does not have it.

    The names are read from its samebits.world.stop (engine.ranks in older versions). A project without these files uses
    the installed samebits, which is this one.
    """
    own = [engine for folder in code_folders(root) for name in ENGINES if (engine := folder / name).is_dir()]
    if not own and not has_own_engine(project.root):
        return key
    files = [engine / room / "stop.py" for engine in own for room in ("world", "ranks")]
    text = "".join(file.read_text() for file in files if file.exists())
    return next((name for name in called(project, key) if name in text), None)


def undo_changes(root: Path, cfg: DictConfig, changes: list[dict[str, Any]]) -> list[str]:
    """Restore, in place, the values that resumes have changed. Return the changes as text."""
    said = []
    for change in reversed(changes):
        was = change.get("was", {})
        values = [f"{key} {value} -> {plain(OmegaConf.select(cfg, key))}" for key, value in was.items()]
        values += [f"code -> {Code(*change['code'])}"] if "code" in change else []
        said.append(f"compared up to step {change['after']:,}, after which a resume changed {', '.join(values)}")
        for key, value in was.items():
            if value is None and (now := OmegaConf.select(cfg, key)) != now:
                continue  # older versions wrote null for NaN, also if the resume kept it
            try:
                OmegaConf.update(cfg, key, localized(root, value))
            except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{ENVIRONMENT}: {key}, which a resume changed, cannot be restored ({error})"
                ) from None
    return said[::-1]


@contextmanager
def code_for(project: Project, run: Path, commit: str, diff: bool) -> Iterator[tuple[Path, str]]:
    """Yield (project folder, description of its code): the current files, or a worktree that is removed after the
    block."""
    if diff and commit not in (HERE, OWN):
        raise ConfigError(
            f"--diff --commit {commit}: the diff only applies to the run's own commit; give one of the two"
        )
    own, present = code_of(run), code_here(project.root)
    if commit == HERE and not diff:
        if own == present:
            yield project.root, "the present files"
            return
        taken = f"which {'--diff' if own.changes else f'--commit {OWN}'} takes"
        if own.of_project == present.of_project:
            taken = f"as other libraries are installed: {', '.join(library_changes(own.libraries, present.libraries))}"
        line = f"the present files ({present}), not the run's ({own}), {taken}"
        print(f"code: {line}", file=sys.stderr, flush=True)
        yield project.root, line
        return
    if own.commit is None and (diff or commit == OWN):
        raise ConfigError(f"{run}: has no recorded commit; remove --commit {OWN} and --diff")
    wanted = str(own.commit) if diff or commit == OWN else commit
    patch = read_file(run / DIFF) if diff and (run / DIFF).exists() else b""
    whole = f"--commit {OWN} goes without it, --commit {HERE} takes the present files"
    is_clean = not patch and read_json(run / ENVIRONMENT).get("git_dirty") is False
    if diff and not is_clean and not re.search(b"^diff --git ", patch, re.MULTILINE):
        raise ConfigError(f"{run / DIFF}: does not contain a patch of uncommitted changes; {whole}")
    with temporary_folder("verify-code-") as folder:
        tree = folder / "code"
        try:
            prefix = os.fsdecode(git(project.root, "rev-parse", "--show-prefix")).removesuffix("\n")
            git(project.root, "worktree", "add", "--quiet", "--detach", "--", str(tree), wanted)
        except NoAnswer as error:
            remedy = f"git fetch it, or compare with the present files, --commit {HERE}"
            raise ConfigError(f"{run}: its commit {wanted} is not available ({error}); {remedy}") from None
        try:
            if patch:
                try:
                    git(tree, "apply", "-", stdin=patch)
                except NoAnswer as error:
                    raise ConfigError(f"{run / DIFF}: does not apply to the run's commit ({error}); {whole}") from None
            said = f"{own if diff else f'commit {wanted[:12]}'}, in a temporary worktree"
            recorded = read_json(run / ENVIRONMENT).get("source")
            if recorded is not None and source_of(tree / prefix) != recorded:
                said += "; its src/ is not what the run had: there were files that git did not record"
            yield tree / prefix, said + other_libraries(own, tree / prefix)
        finally:
            git(project.root, "worktree", "remove", "--force", str(tree))


def other_libraries(own: Code, root: Path) -> str:
    """Return the differences between the libraries that a run has recorded and those that the code in `root` would use,
    as text; "" if there are none. Libraries in its packages/ belong to the commit, all others are the installed
    ones."""
    recorded, there = own.libraries or {}, libraries_of(root, code_folders(root))
    said = ""
    for vendored, text in (
        (True, "its packages/ are not what the run had"),
        (False, "with the libraries that are installed, as no commit holds the run's"),
    ):
        was = {name: library for name, library in recorded.items() if is_vendored(library) == vendored}
        if unlike := library_changes(was, {name: there[name] for name in was if name in there}):
            said += f"; {text}: {', '.join(unlike)}"
    return said


def surroundings_differ(
    began: dict[str, Any], now: dict[str, Any], cfg: DictConfig, ranks: int | None, again: Path
) -> list[str]:
    """Return the differences between the environments of both runs that affect rounding."""
    machines = machine_changes(began.get("machine", {}), now.get("machine", {}))
    found = machines.split(", ") if machines else []
    packages = [entry.get("packages", {}) for entry in (began, now)]
    found += [
        f"{name} {packages[0][name]} -> {packages[1].get(name)}"
        for name in ROUNDS
        if name in packages[0] and packages[0][name] != packages[1].get(name)
    ]
    threads = [threads_of(entry) for entry in (began, now)]
    if None not in threads and threads[0] != threads[1]:
        found.append(f"threads {threads[0]} -> {threads[1]}")
    newest = Checkpoints(again / CHECKPOINTS).newest_valid()
    if ranks and newest and len(newest[1]["ranks"]) != ranks:
        found.append(f"ranks {ranks} -> {len(newest[1]['ranks'])}")
    if "gpu" in now.get("machine", {}) and not cfg.hardware.deterministic:
        found.append("hardware.deterministic=false on a GPU")
    return found


def threads_of(entry: dict[str, Any]) -> int | None:
    """Return the number of CPU threads that a run used; None if it is unknown, or if the run used a GPU."""
    machine = entry.get("machine", {})
    # `threads` is the choice of auto, which hardware.num_threads overrides; older runs have only that
    return None if "gpu" in machine else machine.get("threads", entry.get("threads", {}).get("count"))


def other_packages(began: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return packages with different versions that do not affect rounding. Libraries are compared as code instead."""
    known, was = now.get("packages", {}), began.get("packages", {})
    as_code = (began.get("libraries") or {}).keys() & (now.get("libraries") or {}).keys()
    as_now = {RENAMED.get(name, name): version for name, version in was.items() if name not in ROUNDS}
    here = {name: known.get(name) or version_of(name) for name in as_now if name not in as_code}
    return [f"package {name} {as_now[name]} -> {version}" for name, version in here.items() if version != as_now[name]]


def other_files(run: Path, again: Path) -> list[str]:
    """Return the config's files whose data differ from those of the run, as far as the run has recorded
    fingerprints."""
    known, now = files_of(run), files_of(again)
    return [f"{k}: {other_data(one, now[k])}" for k, one in known.items() if k in now and not is_same(one, now[k])]
