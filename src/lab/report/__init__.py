"""Reports: of a sweep, while it runs or after, and of any set of run directories.

read.py -> analyse.py, importance.py, best.py -> text.py (csv, md), pictures.py (png), page.py (html)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lab.directory import replace_text
from lab.report.analyse import best_group, groups
from lab.report.best import save_best
from lab.report.importance import importance
from lab.report.read import Objective, Study, read
from lab.report.text import groups_csv, jobs_csv, markdown

__all__ = ["Objective", "best_group", "groups", "read", "save_best", "write", "write_study"]

log = logging.getLogger("lab")
SUMMARY_S = 30.0  # what W&B gets for the summary of a sweep
INSTALL = "no pictures and no page: pip install -e '.[report]' brings matplotlib and plotly, which draw them"


def write(sweep_dir: Path) -> list[Path]:
    """The report of a sweep, at its end -> the files; and its summary in W&B, where its jobs are. It never raises: what
    fails is one line."""
    try:
        study = read([sweep_dir])
        files = write_study(study, say=log.info)
    except Exception as error:
        log.warning("no report (%s: %s); later: python src/report.py %s", type(error).__name__, error, sweep_dir)
        return []
    if study.jobs[0].config.get("logger.kind") == "wandb":
        from lab.wandb_sync import summarise_apart

        if trouble := summarise_apart(sweep_dir, SUMMARY_S):
            log.warning("no summary in W&B (%s); later: python src/sync.py --summary %s", trouble, sweep_dir)
    return files


def write_study(study: Study, say: Callable[[str], object]) -> list[Path]:
    """report.csv, groups.csv, report.md, and with the extra `report` pictures and report.html -> the files.

    say: gets one line, where the extra is not installed.
    """
    folder = study.directory
    folder.mkdir(parents=True, exist_ok=True)
    found = importance(study, study.objective)
    missing = [name for name in ("matplotlib", "plotly") if find_spec(name) is None]
    pictures: list[Path] = []
    note = None
    if missing:
        note = INSTALL
        say(note)
    else:
        from lab.report.page import page
        from lab.report.pictures import draw

        pictures = draw(study, found, folder / "report")
    names = [os.path.relpath(path, folder) for path in pictures]
    texts = {
        "report.csv": jobs_csv(study),
        "groups.csv": groups_csv(study),
        "report.md": markdown(study, found, names, note),
    }
    if not missing:
        texts["report.html"] = page(study, found)
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [*(folder / name for name in texts), *pictures]
