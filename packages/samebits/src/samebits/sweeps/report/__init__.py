"""Reports of sweeps and of any run directories, and upload of runs and sweep summaries to W&B.

Input: run directories, also of running jobs. Output: tables (csv, md, tex), data (json), pictures, a page (html), the
command that trains the best configuration. Reading does not change run directories, and imports neither torch nor
Hydra.

Guarantees: every number can be computed by hand from metrics.jsonl and result.json. Jobs in any state are read. Test
scores select nothing unless you request it. `write` never raises: at the end of a sweep an error is printed as one
line.

Errors: ConfigError for invalid arguments.

    read, study                       run directories -> a study
    analyse, compare, importance      groups over seeds, comparisons with the best, importance of keys
    inference, maxt                   statistics: intervals and tests
    best                              the best configuration as overrides and as an experiment
    review                            ends of ranges, unequal n, hours, energy, code
    facts                             the contents of a report
    text, page                        a report as csv and Markdown, as html
    table, table_text                 a paper's table, as a sheet and as text
    against, figures                  learning curves and figures of a paper's table
    sheet, escape                     a table and its writers (md, tex, html); escaping of untrusted text
    axes, curves, pictures, style     the data of pictures (png) and of the page; drawing; colors
    writing                           write everything to a folder
    command, syncing                  the commands `report` and `sync`
    live, serving                     runs that are running, on a local page that updates itself
    wandb_sync                        upload of runs and sweeps to W&B
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.sweeps.report.analyse import best_group as best_group, groups as groups
    from samebits.sweeps.report.best import save_best as save_best
    from samebits.sweeps.report.command import report as report
    from samebits.sweeps.report.read import Objective as Objective, runs_below as runs_below
    from samebits.sweeps.report.study import read_study as read_study
    from samebits.sweeps.report.syncing import sync as sync
    from samebits.sweeps.report.writing import write as write, write_study as write_study
else:
    __getattr__ = lazy_getattr(__name__, __file__)
