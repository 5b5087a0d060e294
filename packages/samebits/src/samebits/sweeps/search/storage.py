"""The database of a search's trials. Optuna is imported when a search starts, not with this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.config import one_line
from samebits.credentials import redacted
from samebits.errors import ConfigError
from samebits.extras import need

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

DIRECTIONS: dict[str, Any] = {"min": "minimize", "max": "maximize"}
BUSY_S = 60  # seconds to wait for another process that writes to the SQLite file


def quiet() -> None:
    """Silence Optuna's log and its experimental warnings. Raise ConfigError if Optuna is not installed."""
    import warnings

    optuna = need("optuna", "hydra/sweeper=optuna", "optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def url_of(storage: str | None, sweep_dir: Path) -> str:
    """Return the URL of the storage; None: an SQLite file in the sweep's directory."""
    return storage or f"sqlite:///{sweep_dir / 'study.db'}"


def open_study(
    storage: str | None, name: str, sweep_dir: Path, modes: Sequence[str] = (), renamed: bool = False
) -> Study:
    """Load the study of this name; with modes (min or max, one per objective), create it if there is none.

    storage: URL of the database; None: an SQLite file in the sweep's directory. renamed: load the only study of such a
    file, whatever its name is, because the sweep may have been renamed. Raise ConfigError if the storage cannot be
    opened."""
    quiet()
    import optuna
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    url = url_of(storage, sweep_dir)
    # no connection pool: jobs are forked from this process and must not inherit a connection
    options: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_S}
    try:
        opened = optuna.storages.RDBStorage(url, engine_kwargs=options)
    # ImportError: no driver for this database. RuntimeError: tables of another version of Optuna
    except (ImportError, SQLAlchemyError, RuntimeError, ValueError) as error:
        reason = one_line(getattr(error, "orig", None) or error.__cause__ or error)
        remedy = " - install the database's driver, such as psycopg[binary]" if isinstance(error, ImportError) else ""
        raise ConfigError(f"hydra.sweeper.storage={redacted(url)}: {reason}{remedy}") from None
    if storage is None and renamed and len(names := optuna.get_all_study_names(opened)) == 1:
        name = names[0]
    given: Any = {"study_name": name, "storage": opened, "sampler": optuna.samplers.RandomSampler()}
    if not modes:
        return optuna.load_study(**given)
    return optuna.create_study(**given, directions=[DIRECTIONS[mode] for mode in modes], load_if_exists=True)


def attached(study: Study, number: int) -> Trial:
    """Return a trial that another process or an earlier command has started. Optuna has no public function for this."""
    from optuna.trial import Trial

    return Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
