"""Reports: of a sweep, while it runs or after, and of any set of run directories; W&B is sent a sweep's summary.

Given: directories that runs have written. Returned: tables (csv, md, tex), pictures, one page (html), the command that
trains the best. Reading changes nothing in a run directory, and imports neither torch nor Hydra.

Promised: every number can be computed again by hand from metrics.jsonl and result.json; jobs in any state are read; a
test score chooses nothing unless that is asked for. `write` never raises: what goes wrong at a sweep's end is one line.

Raised: ConfigError for what is asked in vain.

    read, study -> facts (analyse, compare, best, importance) -> text (csv, md), page (html)
    read, study -> table (a paper's table) -> table_text
    sheet           a table and its writers (md, tex, html)
    axes, curves    the data of pictures (png) and of the page
    writing         all of it into a folder
    command         the command that reports; `syncing`: the one that uploads
    wandb_sync      uploading runs and sweeps to W&B
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.report.analyse import best_group, groups
    from samebits.sweeps.report.best import save_best
    from samebits.sweeps.report.command import report
    from samebits.sweeps.report.read import Objective, runs_below
    from samebits.sweeps.report.study import read_study
    from samebits.sweeps.report.syncing import sync
    from samebits.sweeps.report.writing import write, write_study
else:
    __getattr__ = lazy_getattr(__name__, __file__)
