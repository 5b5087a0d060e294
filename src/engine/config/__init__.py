"""From the command line to a plain, resolved, checked config; each mistake is reported in one line.

Given: argv, conf/, and the project's schemas (engine.app). Returned: a DictConfig without interpolations, objects built
of its `_target_` nodes. Raised: ConfigError, which names the key, the value and the remedy. Imports no torch.

    schema     dataclasses as schemas        targets, construct, fit   what may be built, and building it
    compose    Hydra, once                   explain, yamls            its errors in one line
    resume     a new run or an old one       saved                     a run directory's config, read as data
    wandb_agent    the command lines of W&B's agent
"""
