"""Compose the command line to a plain, resolved config; every mistake is reported in one line. Does not import torch.

(Schemas and limits of values are in samebits.schema; objects are built by samebits.targets.)

Input: argv and the project (samebits.project) with its conf/, schema and resolvers. Output: a DictConfig without
interpolations.

Guarantees: Hydra composes once; checks do not change the config. Values in the syntax of W&B's agent mean the same as
in Hydra's syntax.

Errors: ConfigError, which names the key, the value and the remedy.

    compose        compose and resolve the config with Hydra
    wandb_agent    command lines of W&B's agent
    messages       one line for an error of Hydra or OmegaConf
    yamls          read the yaml files to explain an error
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.config.compose import (
        absolute as absolute,
        as_started as as_started,
        check_job_name as check_job_name,
        check_used as check_used,
        compose_here as compose_here,
        composed as composed,
        initialize as initialize,
        parsed as parsed,
        quoted as quoted,
        register_resolvers as register_resolvers,
        remove_if_empty as remove_if_empty,
        resolved as resolved,
        run_hydra as run_hydra,
    )
    from samebits.config.messages import (
        INVALID_OVERRIDE as INVALID_OVERRIDE,
        check_arguments as check_arguments,
        explain as explain,
        one_line as one_line,
        unknown_key as unknown_key,
    )
    from samebits.config.wandb_agent import (
        agents_run as agents_run,
        id_in as id_in,
        is_agent_retry as is_agent_retry,
        quote_value as quote_value,
        written as written,
    )
    from samebits.config.yamls import missing_defaults as missing_defaults, recipe_hint as recipe_hint
else:
    __getattr__ = lazy_getattr(__name__, __file__)
