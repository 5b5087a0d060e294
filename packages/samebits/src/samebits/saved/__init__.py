"""Saved configs: read the configs of run directories as data, and compare them. Imports neither Hydra nor torch.

Input: a run directory, which may be untrusted, and the project (samebits.project). Output: its config and overrides in
the form of this version, with the paths of this project.

Guarantees: a saved config is data and never executed. Missing keys get their defaults, and import paths of older
versions are translated. Links out of the directory, pipes and YAML aliases raise an error. All code that reads or
writes in a run directory calls `check_run_dir` first.

Errors: ConfigError with the file and the problem.

    config        read config.yaml and overrides.yaml of a run
    comparing     dotted keys, and differences between the configs of jobs
    paths         save paths relative to the project's root, and resolve them in another project
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.saved.comparing import (
        JOBS_OWN as JOBS_OWN,
        NEVER_COMPARED as NEVER_COMPARED,
        JobConfig as JobConfig,
        dependents as dependents,
        flat as flat,
        folds_of as folds_of,
        is_seed as is_seed,
        load_flat as load_flat,
        one_spelling as one_spelling,
        same_value as same_value,
        unswept as unswept,
    )
    from samebits.saved.config import (
        CONFIG as CONFIG,
        OVERRIDES as OVERRIDES,
        check_run_dir as check_run_dir,
        check_saved as check_saved,
        current as current,
        load_plain as load_plain,
        read_config as read_config,
        read_overrides as read_overrides,
        saved_config as saved_config,
        say_renamed as say_renamed,
        taken_out as taken_out,
        translate_override as translate_override,
        translate_typed_override as translate_typed_override,
    )
    from samebits.saved.paths import localized as localized, portable as portable
else:
    __getattr__ = lazy_getattr(__name__, __file__)
