"""The storage (a database) of a search's trials. Optuna is imported when a search begins, not with this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config.explain import one_line
from engine.errors import ConfigError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.study import Study

STUDY_FILE = "study.db"
BUSY_S = 60  # longest wait for another process that writes to the sqlite file


def open_storage(url: str | None, sweep_dir: Path) -> RDBStorage:
    """Open the database. url: None: the sqlite file in the sweep's directory. ConfigError if it cannot be opened."""
    quiet()
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    full = url or f"sqlite:///{sweep_dir / STUDY_FILE}"
    # no pooled connections: jobs are forked from this process, and must not inherit one
    options: dict[str, Any] = {"poolclass": NullPool}
    if full.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_S}
    try:
        return RDBStorage(full, engine_kwargs=options)
    except ImportError as error:
        reason = f"{one_line(error.__cause__ or error)} - install the database's driver, such as psycopg[binary]"
    except (SQLAlchemyError, RuntimeError, ValueError) as error:  # RuntimeError: tables of another version of Optuna
        reason = one_line(getattr(error, "orig", None) or error)
    raise ConfigError(f"hydra.sweeper.storage={shown(full)}: {reason}")


def create_study(url: str | None, name: str, sweep_dir: Path, modes: Sequence[str]) -> Study:
    """Load the study of this name, or create it. modes: min or max, one per objective."""
    storage = open_storage(url, sweep_dir)
    import optuna
    from optuna.study import StudyDirection

    directions = [StudyDirection.MINIMIZE if mode == "min" else StudyDirection.MAXIMIZE for mode in modes]
    return optuna.create_study(study_name=name, storage=storage, directions=directions, load_if_exists=True)


def load_study(url: str | None, name: str, sweep_dir: Path) -> Study:
    """Load the study for a trial's reports, with a sampler that reads nothing from the storage."""
    storage = open_storage(url, sweep_dir)
    import optuna

    return optuna.load_study(study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler())


def storage_errors() -> tuple[type[Exception], ...]:
    """Exception classes for a database that is unreachable or full."""
    quiet()
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return StorageInternalError, SQLAlchemyError


def shown(url: str) -> str:
    """The url without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def quiet() -> None:
    """Silence Optuna's log and its experimental warnings on stderr. ConfigError if Optuna is not installed."""
    import warnings

    try:
        import optuna
    except ImportError as error:
        if error.name != "optuna":
            raise
        raise ConfigError(
            "hydra/sweeper=optuna: Optuna is not installed - pip install 'optuna>=5' (or this project's extra: "
            "pip install -e '.[optuna]')"
        ) from None
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
