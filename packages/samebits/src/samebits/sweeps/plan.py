"""Turn a command line into jobs: expand, compose, check, and only then write. This module does not import torch.

    overrides -> all combinations -> known jobs of the ledger, unchanged, and new jobs, composed and checked

A mistake in one job stops the sweep before anything is written.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from samebits import early_signals
from samebits.config import check_used, composed, explain, resolved
from samebits.credentials import redacted
from samebits.errors import ConfigError, DirectoryLockedError
from samebits.files import amount
from samebits.project import Program, Project
from samebits.runs import change_value, claimed, write_config
from samebits.saved import (
    JOBS_OWN,
    NEVER_COMPARED,
    JobConfig,
    dependents,
    flat,
    load_flat,
    portable,
    read_config,
    unswept,
)
from samebits.schema import MISSING, plain, show
from samebits.sweeps.identity import counts, differing_keys, digest, directory_name, keyed
from samebits.sweeps.ledger import Job, Ledger, NewJob, differing
from samebits.sweeps.progress import counted, say
from samebits.sweeps.zipped import Zip, axes

MAX_SHOWN = 4


@dataclass(frozen=True)
class Combination:
    """One job of the command. values: its identity, from identity.values_of."""

    overrides: tuple[str, ...]
    values: dict[str, Any]


class Composer:
    """Compose the configs of jobs.

    master: the config of the command, including `hydra`. swept: keys that error messages show. follows: {overridden
    key: keys that interpolate it}, collected from all jobs composed so far."""

    def __init__(
        self,
        project: Program,
        loader: ConfigLoader,
        master: DictConfig,
        cwd: Path,
        sweep_dir: Path,
        swept: Collection[str] = (),
    ) -> None:
        self.project = project
        self.loader, self.master, self.cwd, self.sweep_dir, self.swept = loader, master, cwd, sweep_dir, swept
        self.follows: dict[str, set[str]] = {}
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self._parsed: dict[str, tuple[Override, bool]] = {}  # and whether it only sets a plain value

    def job(self, number: int, key: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the job's config, resolved and checked, as plain values. Raise ConfigError with the job's number."""
        try:
            new = self.config(number, key, overrides)
            new["resume"], new["sweep"]["name"] = None, self.sweep_dir.name
            self.project.check(new)
            return new
        except Exception as error:
            if (line := explain(self.project, error, overrides, composed)) is None:
                raise
            shown = differing(overrides, self.swept) or " ".join(overrides)
            raise ConfigError(f"job {number} ({shown}): {line}") from error

    def config(self, number: int, key: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the config that Hydra composes for the job, resolved, as plain values."""
        cfg = self._composed(overrides)
        check_used(self.project.conf, cfg, overrides)
        OmegaConf.set_readonly(cfg.hydra, False)  # Hydra 1.4 makes it read-only
        with open_dict(cfg):  # for users' ${hydra:...} interpolations
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
            cfg.hydra.runtime.output_dir = str(self.sweep_dir / key)
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        return plain(resolved(self.project, cfg, self.cwd))

    def _kind(self, overrides: Sequence[str]) -> tuple[tuple[str, ...], list[Override]]:
        """Return (the overrides with plain values replaced by their keys, the overrides that set plain values). Jobs
        with the same first element share one composition."""
        for text in overrides:
            if text not in self._parsed:
                override = OverridesParser.create().parse_override(text)
                self._parsed[text] = override, self._is_value(override)
        parsed = {text: self._parsed[text] for text in overrides}
        keys = [override.key_or_group for override, _ in parsed.values()]
        values = {
            text: override
            for text, (override, is_value) in parsed.items()
            if is_value and sum(_touch(override.key_or_group, key) for key in keys) == 1
        }
        kind = tuple(values[text].key_or_group if text in values else text for text in parsed)
        return kind, list(values.values())

    def _composed(self, overrides: Sequence[str]) -> DictConfig:
        """Return the config as Hydra composes it, unresolved. Jobs that differ only in plain values share one
        composition; their values are set in a copy, with the same result as in Hydra."""
        kind, values = self._kind(overrides)
        base = self._bases.get(kind)
        if base is None:
            base = self._bases[kind] = self.loader.load_sweep_config(self.master, list(overrides))
            without_hydra = OmegaConf.masked_copy(base, [str(key) for key in base if key != "hydra"])
            raw = flat(OmegaConf.to_container(without_hydra, resolve=False))
            keys = [self._parsed[text][0].key_or_group for text in overrides]
            for key in (*keys, JOBS_OWN):  # also keys that are not swept, because another command may set another value
                self.follows.setdefault(key, set()).update(dependents(self.project, raw, key))
        cfg = copy.deepcopy(base)
        for override in values:
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
        return cfg

    def _is_value(self, override: Override) -> bool:
        """Return True if the override only sets a plain value: it does not select an option or add, delete or merge a
        key."""
        key = override.key_or_group
        if override.type is not OverrideType.CHANGE or key not in self.swept or override.package is not None:
            return False
        # a value that cannot be resolved yet, such as the number of classes of a file without a path, must be composed
        node = OmegaConf.select(self.master, key, default=MISSING, throw_on_resolution_failure=False)
        return node != MISSING and not isinstance(node, DictConfig) and not isinstance(override.value(), dict)


def _touch(one: str, other: str) -> bool:
    """Return True if the keys are equal or one is below the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def expand(
    project: Project,
    arguments: Sequence[str],
    loader: ConfigLoader,
    known: Sequence[str],
    cwd: Path,
    zipped: Zip = None,
) -> list[Combination]:
    """Return all combinations of the values without duplicates; the last key varies fastest. known: keys swept before.
    zipped: keys whose values form pairs, or groups of such keys (sweep.zip)."""
    parser = OverridesParser.create(config_loader=loader)
    choices: dict[str, list[str]] = {}
    for override in parser.parse_overrides(list(arguments)):
        key = override.get_key_element()
        if key.lstrip("+~").partition(".")[0] not in NEVER_COMPARED:
            choices[key] = alternatives(override)
        elif override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line}: cannot be swept, give one value (quote text that contains commas)"
            )
    swept = {key.lstrip("+") for key, texts in choices.items() if len(texts) > 1} | set(known)
    parsed = {text: parser.parse_override(text) for texts in choices.values() for text in texts}
    told = {text: keyed(project, override, cwd) for text, override in parsed.items()}
    found: list[Combination] = []
    seen: set[str] = set()
    total = 0
    for parts in itertools.product(*axes(choices, zipped)):
        total += 1
        by_key = {key: text for part in parts for key, text in part.items()}
        texts = tuple(by_key[key] for key in choices)
        values = {key: value for key, value in (told[text] for text in texts) if counts(project, key, swept)}
        if (identity := digest(values)) not in seen:
            seen.add(identity)
            found.append(Combination(texts, values))
    if total > len(found):
        say(f"{total} combinations, {len(found)} of them different: equal ones run once")
    return found


def swept_keys(arguments: Sequence[str]) -> list[str]:
    """Return the keys that have several values, as typed."""
    parsed = OverridesParser.create().parse_overrides(list(arguments))
    return [o.get_key_element().lstrip("+") for o in parsed if o.is_sweep_override()]


def alternatives(override: Override) -> list[str]:
    """Return one override per value of a sweep override: a=1,2 -> [a=1, a=2]."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"{override.input_line}: an interval has infinitely many values; list some (1e-3,3e-3), or search it with "
            "hydra/sweeper=optuna"
        )
    texts = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
    if not texts:
        raise ConfigError(f"{override.input_line}: has no value, so there is nothing to run")
    return texts


def compose(ledger: Ledger, combinations: Sequence[Combination], composer: Composer) -> dict[int, NewJob]:
    """Return {index in combinations: new job} for combinations that the ledger does not contain, or whose directories
    were deleted. Raise ConfigError for a mistake in any of them."""
    number, found = len(ledger.jobs), {}
    for index, combination in enumerate(counted(combinations, "composing")):
        early_signals.leave_if_asked()
        job = ledger.find(combination.values)
        if job is not None and job.exists():
            continue
        key = directory_name(combination.values, composer.swept) if job is None else job.key
        cfg = composer.job(number if job is None else job.number, key, combination.overrides)
        found[index] = NewJob(tuple(redacted(list(combination.overrides))), cfg, combination.values)
        number += job is None
    return found


def unlike(ledger: Ledger, before: Sequence[Job], new: Sequence[NewJob], composer: Composer) -> str:
    """Return a warning if new jobs differ from earlier ones in keys that were not overridden, for example after an edit
    of conf/; otherwise "". The report uses the same rule (samebits.saved.comparing)."""
    if not before or not new:
        return ""
    known = [JobConfig(load_flat(ledger.project, j.directory), j.overrides, j.key) for j in before]
    names = [j.key or directory_name(j.values, composer.swept) for j in new]
    added = [JobConfig(flat(portable(ledger.project.root, j.cfg)), j.overrides, name) for j, name in zip(new, names)]
    given = differing_keys(ledger.project, [before[0].overrides, *(one.overrides for one in new)])
    swept = {*ledger.swept, *composer.swept, *given}
    keys = unswept(ledger.project, [*known, *added], swept, {**ledger.follows, **composer.follows})
    if not keys:
        return ""
    changes = []
    for key in keys[:MAX_SHOWN]:
        was, now = ({show(j.values[key]): None for j in jobs if key in j.values} for jobs in (known, added))
        changes.append(f"{key} {'/'.join(list(was)[:3]) or 'none'} -> {'/'.join(list(now)[:3]) or 'none'}")
    more = f", and {amount(len(keys) - MAX_SHOWN, 'more key')}" if len(keys) > MAX_SHOWN else ""
    return (
        f"sweep {ledger.name}: new jobs differ from earlier jobs in keys that were not swept (conf/ was edited?): "
        f"{', '.join(changes)}{more}\n  the report separates them; otherwise give sweep=ANOTHER_NAME, or the key itself"
    )


def write(
    ledger: Ledger, combinations: Sequence[Combination], new: Mapping[int, NewJob], command: Sequence[str],
    follows: Mapping[str, Collection[str]],
) -> list[Job]:  # fmt: skip
    """Write the `new` jobs. Return all jobs of this command, in its order. follows: Composer.follows."""
    if new:
        monitor = next(iter(new.values())).cfg["monitor"]
        objectives = ledger.objectives or [{"key": str(monitor["key"]), "mode": str(monitor["mode"])}]
        ledger.add(new.values(), command, swept_keys(command), objectives, follows)
    return [job for combination in combinations if (job := ledger.find(combination.values)) is not None]


def adapt(ledger: Ledger, combinations: Sequence[Combination], jobs: Sequence[Job], composer: Composer) -> None:
    """Update the saved configs of known jobs. Only groups in Project.neutral_groups are updated, because they do not
    change results: values of this command that the job's own command did not set replace the saved ones."""
    for combination, job in zip(combinations, jobs):
        keys = {text: text.partition("=")[0] for text in combination.overrides if text not in job.overrides}
        given = {text: key for text, key in keys.items() if re.split(r"[./@]", key)[0] in ledger.project.neutral_groups}
        if not given:
            continue
        cfg = DictConfig(composer.job(job.number, job.key, combination.overrides))
        with contextlib.suppress(DirectoryLockedError), claimed(job.directory, wait_s=0.0):  # it runs
            saved = read_config(ledger.project, job.directory)
            for text, key in given.items():
                change_value(ledger.project, saved, cfg, key, text, job.directory)
            write_config(ledger.project, job.directory, saved)
