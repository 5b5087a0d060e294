"""report.csv, groups.csv, report.md and table.tex, without matplotlib and plotly."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from engine.config import is_seed
from engine.sweeps.report.analyse import (
    Group,
    best_group,
    config_keys,
    counts,
    difference,
    groups,
    is_failure,
    other_code,
    pareto,
    short_names,
    show,
    value_text,
)
from engine.sweeps.report.best import best_command
from engine.sweeps.report.choice import caution
from engine.sweeps.report.compare import Compared, Comparison
from engine.sweeps.report.digits import plus_minus, tex_plus_minus
from engine.sweeps.report.escape import Markdown, block, cell, code, text
from engine.sweeps.report.importance import Importance
from engine.sweeps.report.read import Job, Objective, Study

NOT_SWEPT = "Jobs differ in what was not swept"
OTHER_CODE = "Jobs ran with different code below src/"
NOT_SWEPT_NOTE = (
    "These jobs do not repeat one configuration: conf/ was edited between two commands of the sweep, or a job's "
    "config.yaml. The keys are columns here, and jobs are averaged only where they agree in them."
)
MAX_ROWS = 200  # most rows of a table in report.md; the csv and the page have all


def jobs_csv(study: Study) -> str:
    """One row per job; each value of its result.json is a column."""
    results = list(dict.fromkeys(k for job in study.jobs for k, v in job.result.items() if not isinstance(v, dict)))
    head = ["job", "directory", "status", *study.swept, *(f"best so far {o.key}" for o in study.objectives)]
    rows = [
        [job.number, str(job.path), job.status, *(study.value(job, key) for key in study.swept)]
        + [job.so_far(o) for o in study.objectives]
        + [job.result.get(key) for key in results]
        + [None if job.status == "finished" and not is_failure(job, study.objective) else job.reason]
        for job in study.jobs
    ]
    return csv_text([*head, *results, "why no score"], rows)


def groups_csv(study: Study) -> str:
    """One row per configuration, best first: mean, standard deviation and number of seeds."""
    keys, said = config_keys(study), caution(study.objectives)
    columns = [f"{o.key} {what}" for o in study.objectives for what in ("mean", "std", "n")]
    rows = [
        [group.values.get(key) for key in keys]
        + [cell for o in study.objectives for cell in (group.mean(o), group.std(o), len(group.scores(o)))]
        + [len(group.failures(study.objective)), len(group.jobs), *([said] if said else [])]
        for group in groups(study)
    ]
    return csv_text([*keys, *columns, "failures", "jobs", *(["caution"] if said else [])], rows)


def markdown(
    study: Study, compared: Compared, importance: Importance | None, pictures: Sequence[str], note: str | None
) -> str:
    """The text of report.md. pictures: paths relative to the report; note: what is missing and why, None: nothing."""
    parts = [f"# {text(study.name)}", _facts(study)]
    if unlike := difference(study):
        parts += [f"## {NOT_SWEPT}", f"{text(unlike)}.\n\n{NOT_SWEPT_NOTE}"]
    if other := other_code(study):
        parts += [f"## {OTHER_CODE}", f"{text(other)}."]
    for objective in study.objectives:
        if best := best_group(study, objective):
            parts.append(_best(study, best, objective))
    parts += [f"![{name}]({name})" for name in pictures]
    parts += ["## Configurations", _group_table(study)]
    for key, comparisons in compared.items():
        parts += [f"## More than seeds? {text(key)}", _comparison_table(comparisons)]
    if len(study.objectives) > 1:
        names = [f"- {text(group.label)}" for group in pareto(study)]
        parts += ["## No other is better in every objective", "\n".join(names)]
    if importance:
        rows = [[key, f"{share:.0%}"] for key, share in importance.shares.items()]
        parts += ["## Importance", f"{importance.method}; {importance.jobs} jobs.", markdown_table(["", "share"], rows)]
    parts += _failures(study)
    parts += ["## Jobs", _job_table(study)]
    if not study.is_sweep:
        parts += ["## Differences of the configs", _differences(study)]
    return "\n\n".join([*parts, *([note] if note else [])]) + "\n"


def score_text(group: Group, objective: Objective) -> str:
    mean, std = group.mean(objective), group.std(objective)
    return "-" if mean is None else plus_minus(mean, std)


def better_but_fewer(study: Study, best: Group, objective: Objective) -> Group | None:
    """A group with a better mean than the best one, but with fewer scored seeds; None: there is none."""
    first = groups(study, objective)[0]
    return first if first.values != best.values and first.mean(objective) is not None else None


def _facts(study: Study) -> str:
    found = ", ".join(f"{number} {text(status)}" for status, number in counts(study).items())
    what = "; ".join(f"{text(o.key)} ({'less' if o.mode == 'min' else 'more'} is better)" for o in study.objectives)
    lines = [f"{len(study.jobs)} jobs: {found}. Score: {what}, of result.json; ± is the standard deviation over seeds."]
    if said := caution(study.objectives):
        lines.append(f"**{text(said)}.**")
    if study.typed:
        commands = "; ".join(map(code, study.typed))
        begun = f"; begun {text(study.created)}." if study.created else "."
        lines.append(f"Overrides of the sweep: {commands}{begun}")
    return "\n\n".join(lines)


def _best(study: Study, best: Group, objective: Objective) -> str:
    n = len(best.scores(objective))
    seeds = f"{n} seeds" if n > 1 else "n = 1"
    found = f"**Best: {text(best.label)}**, {text(objective.key)} {score_text(best, objective)} ({seeds})\n\n"
    found += block(best_command(best), "bash")
    if other := better_but_fewer(study, best, objective):
        had = len(other.scores(objective))
        better = score_text(other, objective)
        found += f"\n\n{text(other.label)} has a better mean, {better}, but of {had} of {n} seeds only."
    return found


def _group_table(study: Study) -> str:
    keys = config_keys(study) if study.is_sweep else ()  # runs to compare may differ in dozens
    names = short_names(keys)
    head = [*(names[key] for key in keys), *(() if study.is_sweep else ("",))]
    rows = []
    for group in groups(study):
        n, failed = len(group.scores(study.objective)), len(group.failures(study.objective))
        rows.append(
            [*(value_text(study, group.jobs[0], key) for key in keys), *(() if study.is_sweep else (group.label,))]
            + [score_text(group, o) for o in study.objectives]
            + [n, failed or "", len(group.jobs) - n - failed or ""]
        )
    return markdown_table([*head, *(o.key for o in study.objectives), "n", "failures", "pruned, unfinished"], rows)


COMPARED = ("configuration", "difference", "effect size", "95 % interval", "p", "n", "", "seeds needed")  # columns


def compared_cells(each: Comparison) -> list[str]:
    """Its texts in the columns COMPARED."""
    size = "-" if each.effect is None else f"{each.effect_name} {each.effect:+.2g}"
    interval = "none below 3 seeds" if each.low is None else f"{each.low:+.3g} to {each.high:+.3g}"
    p = "-" if each.p is None else f"{each.p:.2g}" if each.p >= 1e-4 else "below 0.0001"
    counted = f"{each.n} {'pairs' if each.paired else 'each'}"
    needed = "-" if each.needed is None else str(each.needed)
    return [each.group.label, f"{each.difference:+.3g}", size, interval, p, counted, each.verdict, needed]


def compared_note(best: str) -> str:
    return (
        f"Against {best}, which has the best mean. Effect size: the difference in standard deviations, of the pairs of "
        "one seed (d_z, Cohen 1988) or, where seeds differ, of the runs (g, Hedges 1981). Interval: Student's t of the "
        "pairs (else Welch's), wider because the best was chosen by these scores. p: corrected for all rows and that "
        'choice (max-T, step-down, normal scores): any false "differs" in this table has a chance of 5 %. '
        "Seeds needed: to find such a difference in 80 % of such tables."
    )


def _comparison_table(compared: Sequence[Comparison]) -> str:
    note = compared_note(text(compared[0].best.label))
    return f"{note}\n\n{markdown_table(COMPARED, [compared_cells(each) for each in compared])}"


MARKS: dict[str | None, str] = {"differs": "", "not told from seeds": r"^\dagger"}


def latex(study: Study, compared: Compared) -> str:
    """A table for a paper, with booktabs: means and standard deviations over seeds, the best in bold, daggers
    where a configuration is not told from the best by its seeds, double ones where that was not tested."""
    keys = config_keys(study) if study.is_sweep else ()
    names = short_names(keys)
    verdicts = {(each.group.label, key): each.verdict for key, found in compared.items() for each in found}
    best = {(found.label, o.key) for o in study.objectives if (found := best_group(study, o)) is not None}
    head = [
        *(names[key] for key in keys),
        *(() if study.is_sweep else ("run",)),
        *(o.key for o in study.objectives),
        "n",
    ]
    lines = [" & ".join(map(tex, head)) + r" \\"]
    for group in groups(study):
        cells = [tex(value_text(study, group.jobs[0], key)) for key in keys] if study.is_sweep else [tex(group.label)]
        for o in study.objectives:
            mean, std = group.mean(o), group.std(o)
            number = "--" if mean is None else tex_plus_minus(mean, std)
            number = rf"\mathbf{{{number}}}" if (group.label, o.key) in best else number
            mark = "" if (group.label, o.key) in best else MARKS.get(verdicts.get((group.label, o.key)), r"^\ddagger")
            cells.append("--" if mean is None else f"${number}{mark}$")
        lines.append(" & ".join([*cells, str(len(group.scores(study.objective)))]) + r" \\")
    layout = "l" * (len(head) - len(study.objectives) - 1) + "r" * (len(study.objectives) + 1)
    body = "\n".join([lines[0], r"\midrule", *lines[1:]])
    note = (
        "% mean and standard deviation over n seeds; dagger: not told from the best (p >= 0.05, corrected for all rows "
        "and for the choice of the best: max-T, step-down); double dagger: not tested, fewer than 3 seeds"
    )
    note += f"\n% {said}" if (said := caution(study.objectives)) else ""
    return f"{note}\n\\begin{{tabular}}{{{layout}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def tex(value: str) -> str:
    """Plain text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in value)


def _job_table(study: Study) -> str:
    keys = study.swept if study.is_sweep else [key for key in study.swept if is_seed(key)]
    names = short_names(keys)
    head = ["job", *(names[key] for key in keys), "status", *(o.key for o in study.objectives), "step", "directory"]
    rows = [
        [job.number, *(value_text(study, job, key) for key in keys), job.status]
        + [_job_score(job, o) for o in study.objectives]
        + [job.step, code(job.key)]
        for job in study.jobs
    ]
    return markdown_table(head, rows)


def _job_score(job: Job, objective: Objective) -> str:
    score, so_far = job.score(objective), job.so_far(objective)
    if score is not None:
        return show(score)
    return "-" if so_far is None else f"({show(so_far)} so far)"


def _failures(study: Study) -> list[str]:
    """The section on failures; jobs with the same reason share one item."""
    names = short_names(study.swept)
    by_reason: dict[str, list[Job]] = {}
    for job in study.jobs:
        if is_failure(job, study.objective):
            by_reason.setdefault(str(job.reason), []).append(job)

    def item(reason: str, jobs: list[Job]) -> str:
        shown = [
            " ".join(f"{names[key]}={value_text(study, job, key)}" for key in study.swept)
            if study.is_sweep
            else job.key
            for job in jobs[:12]
        ]
        more = f", and {len(jobs) - 12} more" if len(jobs) > 12 else ""
        log = code(jobs[0].path / "train.log")
        return f"- {text(reason)}\n  {len(jobs)} x: {text(', '.join(shown))}{more}. Log: {log}"

    return ["## Failures", "\n".join(item(*pair) for pair in by_reason.items())] if by_reason else []


def _differences(study: Study) -> str:
    columns = study.jobs[:8]
    rows = [[code(key), *(show(job.config.get(key)) for job in columns)] for key in study.swept]
    left = f"\n\n{len(study.jobs) - 8} more runs are in report.csv." if len(study.jobs) > 8 else ""
    return (markdown_table(["", *(job.key for job in columns)], rows) if rows else "None.") + left


def markdown_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Iterable[Any]) -> str:
        return "| " + " | ".join(map(shown, cells)) + " |"

    def shown(value: Any) -> str:
        return value.replace("|", "\\|") if isinstance(value, Markdown) else text(value)

    more = f"\n\n{len(rows) - MAX_ROWS} more rows are in the csv." if len(rows) > MAX_ROWS else ""
    return "\n".join([line(head), line("---" for _ in head), *(line(row) for row in rows[:MAX_ROWS])]) + more


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([cell(value) for value in row] for row in [head, *rows])
    return out.getvalue()
