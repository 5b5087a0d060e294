"""Reports: of a sweep, while it runs or after, and of any set of run directories.

read.py, study.py -> analyse.py, importance.py, best.py -> text.py (csv, md), pictures.py (png), page.py (html)
read.py, study.py -> table.py (a paper's table) -> table_text.py (md, csv, tex), figures.py (pdf), page.py
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from engine.extras import missing
from engine.files import read_json, replace_text, write_json
from engine.project import Project
from engine.runs import METRICS, STATUS, shown
from engine.sweeps.report.against import Line, lines
from engine.sweeps.report.analyse import best_group, groups, other_code
from engine.sweeps.report.best import save_best
from engine.sweeps.report.compare import comparisons
from engine.sweeps.report.importance import importance
from engine.sweeps.report.read import SWEEP, Objective, Study
from engine.sweeps.report.study import read_study
from engine.sweeps.report.table import Ask, Table, table
from engine.sweeps.report.table_text import paper_csv, paper_data, paper_latex, paper_markdown
from engine.sweeps.report.text import OTHER_CODE, groups_csv, jobs_csv, latex, markdown

__all__ = ["Objective", "best_group", "groups", "read", "save_best", "write", "write_study"]

MADE_FROM = "made_from.json"  # in report/: the sweep's state (state_of) when the report was written
PAPER = "paper"  # folder of the paper's table and figures
SYNC_S = 10.0  # that a sweep's end waits for W&B; what is left is sent without it


def write(project: Project, sweep_dir: Path) -> list[Path]:
    """Write a sweep's report and, if its jobs log to W&B, send what is lacking there, the summary too. Returns the
    files. Does nothing if the sweep is unchanged since the last report. Never raises: an error is one line."""
    try:
        made = sweep_dir / "report" / MADE_FROM
        now = state_of(sweep_dir)
        before = read_json(made)
        if before.get("state") == now and all((sweep_dir / name).exists() for name in before["files"]):
            return [sweep_dir / name for name in before["files"]]
        study = read_study(project, [sweep_dir])
        files = write_study(study, say)
        made.parent.mkdir(exist_ok=True)
        write_json(made, {"state": now, "files": [str(path.relative_to(sweep_dir)) for path in files]})
    except Exception as error:
        say(f"no report ({type(error).__name__}: {error}); later: ./run report {shown(sweep_dir)}")
        return []
    if is_online(project, study):
        from engine.sweeps.wandb_sync import sync_apart

        if trouble := sync_apart(project, sweep_dir, SYNC_S):
            say(trouble)
    return files


def is_online(project: Project, study: Study) -> bool:
    """Whether the sweep's jobs log to W&B's server."""
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return False
    from engine.runs import choose_wandb_mode, wandb_arguments

    return choose_wandb_mode(wandb_arguments(project, begun[0].path)[0]) == "online"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def state_of(sweep_dir: Path) -> str:
    """Hash that changes when a job is added or makes progress, or when this code changes."""
    digest = hashlib.sha256()
    names = [STATUS, METRICS]
    jobs = [sweep_dir / job["key"] / name for job in read_json(sweep_dir / SWEEP)["jobs"] for name in names]
    for path in [*sorted(Path(__file__).parent.glob("*.*")), *jobs]:
        digest.update(f"{path} {path.stat().st_mtime_ns if path.exists() else None}\n".encode())
    return digest.hexdigest()


def write_study(study: Study, say: Callable[[str], object] = say, ask: Ask | None = None) -> list[Path]:
    """Write report.csv, groups.csv, report.md, table.tex; with the extra `report` also pictures and report.html. With
    `ask` also paper/table.md, .csv, .tex, figures as paper/*.pdf, and the table on the page.

    Returns the files. say: called with one line if the extra is not installed, or if jobs ran with
    different code. ConfigError, before anything is written: `ask` has a mistake.
    """
    asked = table(study, ask) if ask else None
    curves = {axis: lines(asked, axis) for axis in ask.against} if asked and ask else {}
    folder = study.directory
    folder.mkdir(parents=True, exist_ok=True)
    found, compared = importance(study, study.objective), comparisons(study)
    absent = [name for name in ("matplotlib", "plotly") if find_spec(name) is None]
    pictures: list[Path] = []
    note = None
    if absent:
        note = missing("no pictures and no page: drawing", absent[0], "report")
        say(note)
    else:
        from engine.sweeps.report.page import page
        from engine.sweeps.report.pictures import draw

        pictures = draw(study, found, folder / "report")
    if other := other_code(study):
        say(f"{OTHER_CODE}: {other}")
    names = [os.path.relpath(path, folder) for path in pictures]
    texts = {
        "report.csv": jobs_csv(study),
        "groups.csv": groups_csv(study),
        "report.md": markdown(study, compared, found, names, note),
        "table.tex": latex(study, compared),
    }
    if not absent:
        texts["report.html"] = page(study, compared, found, paper_data(asked) if asked else None)
    for name, text in texts.items():
        replace_text(folder / name, text)
    paper = _write_paper(asked, curves, ask.inches, not absent, say) if asked and ask else []
    return [*(folder / name for name in texts), *pictures, *paper]


def _write_paper(
    asked: Table,
    curves: Mapping[str, Sequence[Line]],
    inches: tuple[float, float],
    draw: bool,
    say: Callable[[str], object],
) -> list[Path]:
    folder = asked.study.directory / PAPER
    folder.mkdir(exist_ok=True)
    figures: list[Path] = []
    if draw:
        from engine.sweeps.report.figures import draw_paper

        if not any(curves.values()):
            say(f"no curves in {PAPER}/: no run logged {asked.objective.key} while it trained")
        figures = draw_paper(asked, curves, inches, folder)
    drawn = [path.name for path in figures if path.suffix == ".png"]
    texts = {"table.md": paper_markdown(asked, drawn), "table.csv": paper_csv(asked), "table.tex": paper_latex(asked)}
    for name, text in texts.items():
        replace_text(folder / name, text)
    return [*(folder / name for name in texts), *figures]
