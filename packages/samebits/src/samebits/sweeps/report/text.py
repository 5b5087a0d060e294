"""Write report.csv, groups.csv and report.md; needs neither matplotlib nor plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits.sweeps.report.analyse import Group, caution, config_keys, groups, is_failure, short_names, value_text
from samebits.sweeps.report.escape import block, code, text
from samebits.sweeps.report.facts import Best, Facts, Section
from samebits.sweeps.report.read import Job, Objective, Study
from samebits.sweeps.report.review import scores_of_tests
from samebits.sweeps.report.sheet import Cell, Sheet, csv_text, markdown_table

MOST_NAMED = 12  # maximum number of named jobs per reason of failure


def job_rows(study: Study) -> tuple[list[str], list[list[Any]]]:
    """Return (head, rows) with one row per job, not rounded; each value of result.json is a column."""
    results = list(dict.fromkeys(k for job in study.jobs for k, v in job.result.items() if not isinstance(v, dict)))
    head = ["job", "directory", "status", *study.swept, *(f"best so far {o.key}" for o in study.objectives)]
    rows = [
        [job.number, str(job.path), job.status, *(study.value(job, key) for key in study.swept)]
        + [job.so_far(o) for o in study.objectives]
        + [job.result.get(key) for key in results]
        + [None if job.status == "finished" and not is_failure(job, study.objective) else job.reason]
        for job in study.jobs
    ]
    return [*head, *results, "why no score"], rows


def group_rows(study: Study) -> tuple[list[str], list[list[Any]]]:
    """Return (head, rows) with one row per configuration, best first: mean, standard deviation and number of seeds; of
    folds, the interval of the mean, too."""
    keys, said = config_keys(study), caution(study.objectives)
    shown = [*study.objectives, *scores_of_tests(study)]
    of_each = ("mean", "std", "n", *(("low", "high", "runs") if study.fold_keys else ()))
    columns = [f"{o.key} {what}" for o in shown for what in of_each]
    rows = [
        [group.values.get(key) for key in keys]
        + [cell for o in shown for cell in _numbers(group, o)]
        + [len(group.failures(study.objective)), len(group.jobs), *([said] if said else [])]
        for group in groups(study)
    ]
    return [*keys, *columns, "failures", "jobs", *(["caution"] if said else [])], rows


def _numbers(group: Group, objective: Objective) -> list[Any]:
    found = [group.mean(objective), group.std(objective), len(group.scores(objective))]
    if not group.folds:
        return found
    return [*found, *(group.interval(objective) or (None, None)), group.runs(objective)]


def jobs_csv(study: Study) -> str:
    """Return report.csv."""
    return csv_text(*job_rows(study))


def groups_csv(study: Study) -> str:
    """Return groups.csv."""
    return csv_text(*group_rows(study))


def markdown(facts: Facts, pictures: Sequence[str] = (), note: str | None = None) -> str:
    """Return the text of report.md. pictures: paths relative to the report. note: a line about missing parts, or
    None."""
    study = facts.study
    parts = [f"# {text(study.name)}", text(facts.summary)]
    parts += [f"**{text(said)}.**"] if (said := caution(study.objectives)) else []
    if study.typed:
        begun = f"; begun {text(study.created)}." if study.created else "."
        parts.append(f"Overrides of the sweep: {'; '.join(map(code, study.typed))}{begun}")
    parts += [_section(each) for each in facts.unlike]
    parts += [_best(best) for best in facts.best]
    parts += [_section(facts.review)] if facts.review.lines else []
    parts += [f"![{name}]({name})" for name in pictures]
    sections = [Section("Configurations", sheet=facts.groups), *facts.comparisons]
    if facts.front:
        front = Sheet(["configuration"], [[Cell(label)] for label in facts.front])
        sections.append(Section("No other is better in every objective", sheet=front))
    if found := facts.importance:
        shares = [[Cell(key), Cell(f"{share:.0%}")] for key, share in found.shares.items()]
        sections.append(Section("Importance", (found.note,), Sheet(["", "share"], shares)))
    parts += map(_section, sections)
    parts += _failures(study)
    parts += map(_section, [Section("Jobs", sheet=facts.jobs), *([facts.differences] if facts.differences else [])])
    return "\n\n".join([*parts, *([note] if note else [])]) + "\n"


def _section(section: Section) -> str:
    sheet = section.sheet
    parts = [f"## {text(section.title)}", *map(text, section.lines)]
    if sheet:
        parts += [markdown_table(sheet) if sheet.rows else "None."]
        parts += ["\n".join(f"- {text(line)}" for line in sheet.notes)] if sheet.notes else []
    return "\n\n".join(parts)


def _best(best: Best) -> str:
    parts = [
        f"**Best: {text(best.label)}**, {text(best.key)} {best.score} ({best.averaged})",
        block(best.command, "bash"),
    ]
    return "\n\n".join([*parts, *([text(best.note)] if best.note else [])])


def _failures(study: Study) -> list[str]:
    """Return the section on failures; jobs with the same reason share one item."""
    names = short_names(study.swept)
    by_reason: dict[str, list[Job]] = {}
    for job in study.jobs:
        if is_failure(job, study.objective):
            by_reason.setdefault(str(job.reason), []).append(job)

    def name(job: Job) -> str:
        values = " ".join(f"{names[key]}={value_text(study, job, key)}" for key in study.swept)
        return values if study.is_sweep else job.key

    def item(reason: str, jobs: list[Job]) -> str:
        more = f", and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
        shown = text(", ".join(map(name, jobs[:MOST_NAMED])))
        return f"- {text(reason)}\n  {len(jobs)} x: {shown}{more}. Log: {code(jobs[0].path / 'train.log')}"

    return ["## Failures", "\n".join(item(*pair) for pair in by_reason.items())] if by_reason else []
