"""Answer questions of reviewers about a study: best values at an end of their range, unequal numbers of seeds, hours,
energy and code. report.md and the page show it as text, report.json as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from samebits.code import ranges
from samebits.files import amount, as_json
from samebits.sweeps.report.analyse import (
    Group,
    best_group,
    best_of_most_seeds,
    caution,
    config_keys,
    counts,
    groups,
    is_number,
    is_test,
    short_names,
    show,
)
from samebits.sweeps.report.best import best_command
from samebits.sweeps.report.compare import Compared, Comparison
from samebits.sweeps.report.read import Job, Objective, Study

POWER = "perf/power_w"  # logged watts of the GPUs of a run, over all ranks
INTERVAL = (
    "the 95 % interval is of the mean over folds, with the correction of Nadeau and Bengio (2003) for the training "
    "rows that folds share"
)
MAX_EDGES, MAX_VALUES, MAX_NAMED = 8, 6, 4  # limits of lines, and of values and configurations in a line


@dataclass(frozen=True)
class Edge:
    """The best value of a key is the smallest or the largest that was tried. others: {key: value} of the keys without
    numbers, such as model, whose best value this is; empty without such keys."""

    key: str
    value: float
    end: str  # smallest or largest
    tried: list[float]
    others: dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """jobs: number of jobs in the sums. hours: sum over these jobs. gpu_hours: hours times the number of GPUs of each
    job. energy_kwh: of the GPUs; None if a job with GPUs has not logged POWER. untimed: number of jobs that began,
    with unknown time or number of GPUs; they are in no sum."""

    jobs: int
    hours: float
    gpu_hours: float
    energy_kwh: float | None
    gpus: dict[str, int]  # {name of the GPU: number of jobs}
    untimed: int


def scores_of_tests(study: Study) -> list[Objective]:
    """Return the test scores of the results that do not rank the configurations, in the order of the results. They are
    objectives, to compute their means; their mode is not used."""
    found = dict.fromkeys(k for job in study.jobs for k, v in job.result.items() if is_test(k) and is_number(v))
    ranking = {objective.key for objective in study.objectives}
    return [Objective(key, "min") for key in found if "/" in key and key not in ranking]


def edges(study: Study, objective: Objective) -> list[Edge]:
    """Return the ends that the best configuration has chosen, and in a grid also the best of each model, optimizer or
    other value that is not a number. Values are compared with those tried for the same model, including failed jobs."""
    if not study.is_sweep:
        return []
    ranked, best = groups(study, objective), best_group(study, objective)
    values = {key: [g.values[key] for g in ranked if g.values.get(key) is not None] for key in config_keys(study)}
    numeric = [key for key, found in values.items() if found and all(map(is_number, found))]
    kinds: dict[str, list[Group]] = {}
    for group in ranked:
        kinds.setdefault(repr([group.values.get(key) for key in values if key not in numeric]), []).append(group)
    found = []
    for alike in kinds.values():
        chosen = best_of_most_seeds(alike, objective)
        if chosen is None or (study.is_search and chosen is not best):
            continue
        others = {key: value for key, value in chosen.values.items() if key not in numeric} if len(kinds) > 1 else {}
        known = [group for group in alike if group.scores(objective) or group.failures(objective)]
        for key in (key for key in numeric if chosen.values.get(key) is not None):
            tried = sorted({float(g.values[key]) for g in known if g.values.get(key) is not None})
            value = float(chosen.values[key])
            if len(tried) > 1 and value in (tried[0], tried[-1]):
                edge = Edge(key, value, "smallest" if value == tried[0] else "largest", tried, others)
                found.append((chosen is not best, edge))
    return [edge for _, edge in sorted(found, key=lambda one: one[0])]


def cost(study: Study) -> Cost:
    """Return hours, GPU hours and energy of the jobs that have begun."""
    begun = [job for job in study.jobs if job.spent_s is not None or job.curves]
    timed = [(job, job.spent_s, job.gpus) for job in begun if job.spent_s is not None and job.gpus is not None]
    on_gpus = [job for job, _, gpus in timed if gpus]
    joules = [energy_j(job) for job in on_gpus]
    measured = [one for one in joules if one is not None]
    return Cost(
        len(timed),
        sum(seconds for _, seconds, _ in timed) / 3600,
        sum(seconds * len(gpus) for _, seconds, gpus in timed) / 3600,
        sum(measured) / 3.6e6 if measured and len(measured) == len(joules) else None,
        dict(Counter(gpus[0] for _, _, gpus in timed if gpus)),
        len(begun) - len(timed),
    )


def energy_j(job: Job) -> float | None:
    """Return the energy of a job's GPUs in joules: the logged means of their power times the time since the log before,
    without pauses before a resume, for the whole time of the job. None if no power was logged."""
    power, at = job.curves.get(POWER), dict(job.seconds)
    if not power or job.spent_s is None:
        return None
    times = [at[step] for step, _ in power]
    spans = without_pauses([times[0], *(now - before for before, now in pairwise(times))], job.spent_s)
    joules = sum(watts * span for (_, watts), span in zip(power, spans))
    if not (covered := sum(spans)):
        return power[-1][1] * job.spent_s
    return joules * job.spent_s / covered  # the mean power also holds for the start and for evaluations


def without_pauses(spans: Sequence[float], spent_s: float) -> list[float]:
    """Return the spans, the longest of them shortened to one length so that their sum is at most spent_s: a span may
    include a pause before a resume, in which the job used no time."""
    left = spent_s
    for number, span in enumerate(sorted(spans)):
        limit = left / (len(spans) - number)
        if span > limit:
            return [min(each, limit) for each in spans]
        left -= span
    return [*spans]


def lines(study: Study) -> list[str]:
    """Return the review as sentences."""
    found = [edge for objective in study.objectives for edge in edges(study, objective)]
    names = short_names(study.swept)
    said = [f"Range: {_edge_text(edge, names)}." for edge in found[:MAX_EDGES]]
    if len(found) > MAX_EDGES:
        said.append(
            f"Range: {amount(len(found) - MAX_EDGES, 'more best value')} at an end of what was tried: report.json."
        )
    before = [f"{', '.join(job.before)} in job {job.number}" for job in study.jobs if job.before]
    more = f"; and {amount(len(before) - MAX_NAMED, 'more job')}" if len(before) > MAX_NAMED else ""
    said += [f"Changed by a resume: {'; '.join(before[:MAX_NAMED])}{more}."] if before else []
    return [*said, *_repeats(study), *_cost_lines(cost(study), len(study.jobs)), *_code_lines(study)]


def _edge_text(edge: Edge, names: dict[str, str]) -> str:
    shown = [*map(show, edge.tried)]
    tried = ", ".join(shown) if len(shown) <= MAX_VALUES else f"{len(shown)} values from {shown[0]} to {shown[-1]}"
    others = ", ".join(f"{names[key]}={show(value)}" for key, value in edge.others.items())
    whose = f" with {others}" if others else ""
    return f"best {names[edge.key]}={show(edge.value)}{whose} is the {edge.end} tried ({tried})"


def _repeats(study: Study) -> list[str]:
    if not study.is_sweep:
        return []
    ranked, objective = groups(study), study.objective
    fullest = max(ranked, key=lambda group: group.runs(objective))
    most = fullest.runs(objective)
    lacking = [group for group in ranked if group.runs(objective) < most]
    fewer = [f"{g.label} has {g.averaged(objective) if study.fold_keys else g.runs(objective)}" for g in lacking]
    more = f", and {len(fewer) - MAX_NAMED} more" if len(fewer) > MAX_NAMED else ""
    named = f"{', '.join(fewer[:MAX_NAMED])}{more}."
    if study.fold_keys and most:
        interval = INTERVAL if fullest.interval(objective) else "too few folds for an interval"
        unlike = f" Not every configuration has as many: {named}" if fewer else ""
        return [f"Folds: {fullest.averaged(objective)}; {interval}.{unlike}"]
    return [f"Seeds: not every configuration has {most} scores: {named}"] if fewer and most > 1 else []


def _cost_lines(found: Cost, num_jobs: int) -> list[str]:
    counted = f"{found.jobs} of {num_jobs} jobs" if found.jobs < num_jobs else amount(num_jobs, "job")
    said = f"Time: {_number(found.hours)} h of {counted}"
    if found.gpus:
        kinds = ", ".join(f"{name} in {amount(number, 'job')}" for name, number in found.gpus.items())
        said += f", {_number(found.gpu_hours)} GPU hours ({kinds})"
    elif found.hours:
        said += ", on CPUs"
    if found.untimed:
        said += f"; without {amount(found.untimed, 'job')} whose time or GPUs are not recorded"
    energy = (
        []
        if found.energy_kwh is None
        else [f"Energy: {_number(found.energy_kwh)} kWh of the GPUs, from their measured power."]
    )
    return [f"{said}.", *energy] if found.hours or found.untimed else []


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def _codes(study: Study) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in study.jobs:
        for text in dict.fromkeys(map(str, job.code)):
            found.setdefault(text, []).append(job)
    return found


def _code_lines(study: Study) -> list[str]:
    found = _codes(study)
    if len(found) == 1:
        return [f"Code: {next(iter(found))}."]
    each = [f"{text} in job{'s' * (len(j) > 1)} {ranges([job.number for job in j])}" for text, j in found.items()]
    return [f"Code: {len(found)} versions: {'; '.join(each)}."] if found else []


def report_json(study: Study, compared: Compared) -> str:
    """Return report.json: the best configurations, all configurations, their comparisons with the best, and the
    review."""
    shown = [*study.objectives, *scores_of_tests(study)]

    def scores(group: Group) -> dict[str, Any]:
        return {
            o.key: {
                "mean": group.mean(o),
                "std": group.std(o),
                "interval": group.interval(o),
                "n": len(group.scores(o)),
                "runs": group.runs(o),
            }
            for o in shown
        }

    def difference(each: Comparison) -> dict[str, Any]:
        known = {field.name: getattr(each, field.name) for field in fields(each)}
        return {**known, "group": each.group.label, "best": each.best.label, "verdict": each.verdict}

    best = {o.key: (group, edges(study, o)) for o in study.objectives if (group := best_group(study, o))}
    found = {
        "name": study.name,
        "jobs": counts(study),
        "objectives": [{"key": o.key, "mode": o.mode} for o in study.objectives],
        "caution": caution(study.objectives),
        "best": {
            key: {"label": group.label, "values": group.values, "command": best_command(group), "scores": scores(group)}
            for key, (group, _) in best.items()
        },
        "at_an_end": {key: [asdict(edge) for edge in found] for key, (_, found) in best.items()},
        "configurations": [
            {
                "label": group.label,
                "values": group.values,
                "scores": scores(group),
                "jobs": [job.key for job in group.jobs],
                "failures": len(group.failures(study.objective)),
            }
            for group in groups(study)
        ],
        "comparisons": {key: [difference(each) for each in rows] for key, rows in compared.items()},
        "repeats": study.repeats,
        "cost": asdict(cost(study)),
        "code": [
            {
                "code": text,
                "commit": next(code.commit for code in jobs[0].code if str(code) == text),
                "changes": next(code.changes for code in jobs[0].code if str(code) == text) or None,
                "jobs": [job.number for job in jobs],
            }
            for text, jobs in _codes(study).items()
        ],
    }
    return as_json(found, indent=1) + "\n"


def unequal_n(scored: Sequence[int]) -> int | None:
    """Return the largest number of scores if configurations have different numbers, otherwise None. Configurations
    without scores are ignored."""
    some = {n for n in scored if n}
    return max(some) if len(some) > 1 else None
