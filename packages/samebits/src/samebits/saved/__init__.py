"""Configs of run directories, read as data and compared. Imports neither Hydra nor torch.

Given: a run's directory, which may be somebody else's, and the project (samebits.project). Returned: its config and
overrides as this version would have saved them, with this project's paths.

Promised: a config that an older version saved is read as data, never executed: keys that it lacks take their defaults,
import paths that have moved are translated; links out of its folder, pipes and YAML aliases are refused. `enter` is the
door: whatever reads or writes in a run's directory calls it first.

Raised: ConfigError, which names the file and the mistake.

    config        config.yaml and overrides.yaml of a run
    comparing     dotted keys; differences between the configs of jobs
    paths         those below the project's root, saved relative to it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.saved.comparing import (
        JOBS_OWN,
        NEVER_COMPARED,
        JobConfig,
        dependents,
        flat,
        is_seed,
        load_flat,
        unswept,
    )
    from samebits.saved.config import (
        CONFIG,
        OVERRIDES,
        check_saved,
        current,
        enter,
        load_plain,
        override_of_now,
        read_config,
        read_overrides,
        saved_config,
    )
    from samebits.saved.paths import localized, portable
else:
    __getattr__ = lazy_getattr(__name__, __file__)
