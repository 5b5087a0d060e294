"""The storage (a database) of a search's trials. Optuna is imported when a search begins, not with this module."""

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
BUSY_S = 60  # longest wait for another process that writes to the sqlite file


def quiet() -> None:
    """Silence Optuna's log and its experimental warnings on stderr. ConfigError if Optuna is not installed."""
    import warnings

    optuna = need("optuna", "hydra/sweeper=optuna", "optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def url_of(storage: str | None, sweep_dir: Path) -> str:
    return storage or f"sqlite:///{sweep_dir / 'study.db'}"


def open_study(storage: str | None, name: str, sweep_dir: Path, modes: Sequence[str] = ()) -> Study:
    """Load the study of this name; with modes (min or max, one per objective), create it if there is none.

    storage: the database's url; None: a sqlite file in the sweep's directory. ConfigError if it cannot be opened.
    """
    quiet()
    import optuna
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    url = url_of(storage, sweep_dir)
    # no pooled connections: jobs are forked from this process, and must not inherit one
    options: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_S}
    try:
        opened = optuna.storages.RDBStorage(url, engine_kwargs=options)
    # ImportError: no driver for this database. RuntimeError: its tables are of another version of Optuna
    except (ImportError, SQLAlchemyError, RuntimeError, ValueError) as error:
        reason = one_line(getattr(error, "orig", None) or error.__cause__ or error)
        remedy = " - install the database's driver, such as psycopg[binary]" if isinstance(error, ImportError) else ""
        raise ConfigError(f"hydra.sweeper.storage={redacted(url)}: {reason}{remedy}") from None
    given: Any = {"study_name": name, "storage": opened, "sampler": optuna.samplers.RandomSampler()}
    if not modes:
        return optuna.load_study(**given)
    return optuna.create_study(**given, directions=[DIRECTIONS[mode] for mode in modes], load_if_exists=True)


def attached(study: Study, number: int) -> Trial:
    """A trial that another process, or an earlier start, has begun: Optuna has no public way to go on with one."""
    from optuna.trial import Trial

    return Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
