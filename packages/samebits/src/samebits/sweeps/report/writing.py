"""Write the files of a report."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from samebits.extras import missing
from samebits.files import make_folder, remove_leftovers, replace_text
from samebits.project import Project
from samebits.status import shown
from samebits.sweeps.report.against import lines
from samebits.sweeps.report.analyse import caution, other_code
from samebits.sweeps.report.facts import OTHER_CODE, WITHOUT_SCORE, Facts
from samebits.sweeps.report.read import Study
from samebits.sweeps.report.review import report_json
from samebits.sweeps.report.sheet import latex_table
from samebits.sweeps.report.study import read_study
from samebits.sweeps.report.table import Ask, table
from samebits.sweeps.report.table_text import paper_csv, paper_markdown, paper_sheet
from samebits.sweeps.report.text import groups_csv, jobs_csv, markdown

DRAWN, PAPER = "report", "paper"  # folders of the pictures, and of the paper's table and figures
SYNC_S = 10.0  # seconds that the end of a sweep waits for uploads to W&B; the rest is uploaded in the background


def write(project: Project, sweep_dir: Path) -> list[Path]:
    """Write a sweep's report and, if its jobs log to W&B, upload missing records and the summary. Return the files.
    Never raise: an error is printed as one line."""
    try:
        study = read_study(project, [sweep_dir])
        files = write_study(study)
    except Exception as error:
        say(f"no report ({type(error).__name__}: {error}); try again with: ./run report {shown(sweep_dir)}")
        return []
    if is_online(project, study):
        from samebits.sweeps.report.wandb_sync import sync_apart

        if trouble := sync_apart(project, sweep_dir, SYNC_S):
            say(trouble)
    return files


def is_online(project: Project, study: Study) -> bool:
    """Return True if the sweep's jobs log to a W&B server."""
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return False
    from samebits.loggers import mode_of_run

    return mode_of_run(project, begun[0].path) == "online"


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def write_study(study: Study, ask: Ask | None = None) -> list[Path]:
    """Write report.csv, groups.csv, report.md, report.json and table.tex; with the extra `report` also pictures and
    report.html.

    ask: also write paper/table.md, .csv, .tex, figures as paper/*.pdf, and the table on the page. Print a line if the
    extra is not installed or if jobs ran with different code. Return the files. Raise ConfigError for a mistake in
    `ask`, before anything is written."""
    asked = table(study, ask) if ask else None
    curves = {axis: lines(asked, axis) for axis in ask.against} if asked and ask else {}
    folder, found = study.directory, Facts(study)
    folder.mkdir(parents=True, exist_ok=True)
    for own in filter(Path.exists, (folder / DRAWN, folder / PAPER)):
        make_folder(own)  # raises for a link, before anything is written
        remove_leftovers(own)
    remove_leftovers(folder)
    absent = [name for name in ("matplotlib", "plotly") if find_spec(name) is None]
    drawn: list[Path] = []
    note = None
    if absent:
        note = missing("no pictures and no page: drawing", absent[0], "report")
        say(note)
    else:
        from samebits.sweeps.report.pictures import draw

        drawn = draw(study, folder / DRAWN)
    if other := other_code(study):
        say(f"{OTHER_CODE}: {other}")
    texts = {
        "report.csv": jobs_csv(study),
        "groups.csv": groups_csv(study),
        "report.md": markdown(found, [os.path.relpath(path, folder) for path in drawn], note),
        "report.json": report_json(study, found.compared),
        "table.tex": latex_table(found.groups.without(*WITHOUT_SCORE), caution(study.objectives)),
    }
    if not absent:
        from samebits.sweeps.report.page import page

        texts["report.html"] = page(found, paper_sheet(asked) if asked else None)
    if asked and ask:
        make_folder(folder / PAPER)
        figures: list[Path] = []
        if not absent:
            from samebits.sweeps.report.figures import draw_paper

            if not any(curves.values()):
                say(f"no curves in {PAPER}/: no run logged {asked.objective.key} during training")
            figures = draw_paper(asked, curves, ask.inches, folder / PAPER)
        pictures = [path.name for path in figures if path.suffix == ".png"]
        texts |= {
            f"{PAPER}/table.md": paper_markdown(asked, pictures),
            f"{PAPER}/table.csv": paper_csv(asked),
            f"{PAPER}/table.tex": latex_table(paper_sheet(asked), caution([asked.objective])),
        }
        drawn = [*drawn, *figures]
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [*(folder / name for name in texts), *drawn]
