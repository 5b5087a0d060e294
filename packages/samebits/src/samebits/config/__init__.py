"""From the command line to a plain, resolved, checked config; each mistake is reported in one line.

(Schemas and limits of values are samebits.schema.)

Given: argv and the project (samebits.project): its conf/, schema, allowed targets, resolvers. Returned: a
DictConfig without interpolations, dataclasses of its groups, objects built of its `_target_` nodes. Imports no torch.

Promised: a check changes nothing. A config that an older version saved is read as data, never executed: keys that it
lacks take their defaults, import paths that have moved are translated; links out of its folder, pipes and YAML aliases
are refused. Only what the project allows as `_target_` is imported.

Raised: ConfigError, which names the key, the value and the remedy; RunFailed where user code fails while it is built.

    compose, wandb_agent   Hydra, once; the command lines of W&B's agent
    messages, yamls        Hydra's and YAML's errors in one line
    targets, building      which classes may be built, and building them
    saved, alike           a run directory's config; differences between configs
    paths                  those below the project's root, saved relative to it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.pages import lazy

if TYPE_CHECKING:
    from samebits.config.alike import JOBS_OWN, NEVER_COMPARED, JobConfig, dependents, flat, is_seed, load_flat, unswept
    from samebits.config.building import TRACEBACK, construct, constructing, of_kind
    from samebits.config.compose import (
        absolute,
        as_started,
        compose_here,
        composed,
        initialize,
        quoted,
        register_resolvers,
        remove_if_empty,
        resolved,
        run_hydra,
    )
    from samebits.config.messages import explain, one_line
    from samebits.config.paths import HIDDEN, localized, portable, redacted, restored
    from samebits.config.saved import (
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
    from samebits.config.targets import build_target, check_targets, complete, locate
    from samebits.config.wandb_agent import agents_run, handed_out_again, quote_value, written
else:
    __getattr__ = lazy(__name__, __file__)
