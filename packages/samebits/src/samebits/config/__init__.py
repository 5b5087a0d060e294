"""From the command line to a plain, resolved config; each mistake is reported in one line.

(Schemas and limits of values are samebits.schema; building what a config names, samebits.targets.)

Given: argv and the project (samebits.project): its conf/, schema, resolvers. Returned: a DictConfig without
interpolations. Imports no torch.

Promised: Hydra composes once, and a check changes nothing. What W&B's agent writes on a command line means the same as
in Hydra's syntax.

Raised: ConfigError, which names the key, the value and the remedy.

    compose, wandb_agent   Hydra, once; the command lines of W&B's agent
    messages, yamls        Hydra's and YAML's errors in one line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
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
    from samebits.config.wandb_agent import agents_run, is_agent_retry, quote_value, written
else:
    __getattr__ = lazy_getattr(__name__, __file__)
