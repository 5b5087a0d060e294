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
        JOBS_OWN,
        NEVER_COMPARED,
        JobConfig,
        dependents,
        flat,
        folds_of,
        is_seed,
        load_flat,
        one_spelling,
        same_value,
        unswept,
    )
    from samebits.saved.config import (
        CONFIG,
        OVERRIDES,
        check_run_dir,
        check_saved,
        current,
        load_plain,
        read_config,
        read_overrides,
        saved_config,
        say_renamed,
        taken_out,
        translate_override,
        translate_typed_override,
    )
    from samebits.saved.paths import localized, portable
else:
    __getattr__ = lazy_getattr(__name__, __file__)
