"""report.html: one self-contained file with data, scripts (plotly's too) and styles; it works offline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.config import is_seed
from engine.errors import ConfigError
from engine.extras import pip_install
from engine.sweeps.report import style
from engine.sweeps.report.analyse import (
    Group,
    axis_kind,
    best_group,
    counts,
    difference,
    distinct_values,
    groups,
    is_failure,
    names_fit,
    other_code,
    short_names,
    show,
    value_text,
    varied,
    wants_log,
)
from engine.sweeps.report.best import best_command
from engine.sweeps.report.choice import caution
from engine.sweeps.report.compare import Compared, Comparison
from engine.sweeps.report.curves import keys_of
from engine.sweeps.report.importance import Importance
from engine.sweeps.report.read import Job, Study
from engine.sweeps.report.text import (
    COMPARED,
    NOT_SWEPT,
    NOT_SWEPT_NOTE,
    OTHER_CODE,
    better_but_fewer,
    compared_cells,
    compared_note,
    score_text,
)

WEB = Path(__file__).with_name("web")
SCRIPTS = ("core.js", "curves.js", "scores.js", "parallel.js", "search.js", "tables.js")
POINTS = 400_000  # most points of all curves together: above it they are thinned
MAX_CURVE = 1500


def page(
    study: Study, compared: Compared, importance: Importance | None, paper: Mapping[str, Any] | None = None
) -> str:
    """paper: the paper's table (table_text.paper_data), None: none was asked for."""
    text = (WEB / "page.html").read_text()
    parts = {
        "title": _escaped(study.name),
        "style": (WEB / "page.css").read_text(),
        # inside <script>, only </script would end it; in JSON every < can be written as an escape
        "data": json.dumps(
            data(study, compared, importance) | {"paper": paper}, separators=(",", ":"), allow_nan=False
        ).replace("<", "\\u003c"),
        "plotly": _plotly(),
        "script": "\n".join((WEB / name).read_text() for name in SCRIPTS),
    }
    for name, part in parts.items():
        before, _, after = text.partition(f"{{{{{name}}}}}")
        text = before + part + after
    return text


def _unlike(study: Study) -> dict[str, str] | None:
    """What sets jobs apart that was not swept: config keys, code; None: nothing."""
    keys, code = difference(study), other_code(study)
    if keys is None:
        return None if code is None else {"title": OTHER_CODE, "what": code, "note": ""}
    return {"title": NOT_SWEPT, "what": f"{keys}. {OTHER_CODE}: {code}" if code else keys, "note": NOT_SWEPT_NOTE}


def data(study: Study, compared: Compared, importance: Importance | None) -> dict[str, Any]:
    """All data of the page, as JSON types."""
    ranked = groups(study)
    group_of = {job.key: i for i, group in enumerate(ranked) for job in group.jobs}
    keys = keys_of(study.jobs, [o.key for o in study.objectives])
    strides = _strides(study.jobs, keys)
    names = short_names(study.swept)
    scores = [score for job in study.jobs if (score := job.provisional(study.objective)) is not None]
    shown = study.swept if study.is_sweep else ()  # runs to compare may differ in dozens of keys
    return {
        "name": study.name,
        "isSweep": study.is_sweep,
        "isSearch": study.is_search,
        "created": study.created,
        "typed": study.typed,
        "unlike": _unlike(study),
        "objectives": [{"key": o.key, "mode": o.mode} for o in study.objectives],
        "counts": counts(study),
        "caution": caution(study.objectives),
        "best": _best(study),
        "metrics": keys,
        "logScore": wants_log(scores),
        "axes": [_axis(study, key) for key in varied(study) or filter(is_seed, study.swept)],
        "columns": [{"key": key, "name": names[key]} for key in shown],
        "groupColumns": [{"key": key, "name": names[key]} for key in shown if not is_seed(key)],
        "groups": _groups(study, ranked),
        "comparisons": [_comparison(key, rows) for key, rows in compared.items()],
        "comparisonColumns": COMPARED,
        "jobs": [_job(study, job, group_of[job.key], strides) for job in study.jobs],
        "importance": importance and asdict(importance),
        "differences": [
            {"key": key, "values": [show(job.config.get(key)) for job in study.jobs]}
            for key in (() if study.is_sweep else study.swept)
        ],
        "common": _common(study),
        "colors": style.PAGE,
    }


def _axis(study: Study, key: str) -> dict[str, Any]:
    values = distinct_values(study, key)
    return {
        "key": key,
        "kind": axis_kind(study, key),
        "values": [_plain(value) for value in values],
        "named": names_fit(values, axis_kind(study, key)),
        "texts": [show(value) for value in values],
    }


def _groups(study: Study, ranked: Sequence[Group]) -> list[dict[str, Any]]:
    number = {job.key: i for i, job in enumerate(study.jobs)}
    return [
        {
            "label": group.label,
            "values": _values(study, group.jobs[0], [key for key in study.swept if not is_seed(key)]),
            "jobs": [number[job.key] for job in group.jobs],
            "means": [group.mean(o) for o in study.objectives],
            "texts": [score_text(group, o) for o in study.objectives],
            "n": len(group.scores(study.objective)),
            "failures": len(group.failures(study.objective)),
            "command": best_command(group),
        }
        for group in ranked
    ]


def _job(study: Study, job: Job, group: int, strides: Mapping[str, int]) -> dict[str, Any]:
    curves = {}
    for key, points in job.curves.items():
        kept = [*points[:: strides[key]], *(points[-1:] if (len(points) - 1) % strides[key] else ())]
        finite = [(step, float(f"{value:.6g}")) for step, value in kept if math.isfinite(value)]
        curves[key] = [[step for step, _ in finite], [value for _, value in finite]]
    failed = is_failure(job, study.objective)
    scored = job.status == "finished" and not failed
    timed = len(job.seconds) <= 2 * MAX_CURVE  # else no curves against time
    return {
        "number": job.number,
        "key": job.key,
        "path": str(job.path),
        "group": group,
        "failed": failed,
        "status": "not finite" if failed and job.status == "finished" else job.status,
        "values": _values(study, job, study.swept),
        "scores": [job.score(o) for o in study.objectives],
        "provisional": job.provisional(study.objective),
        "soFar": [job.so_far(o) for o in study.objectives],
        "step": job.step,
        "seconds": job.result.get("seconds"),
        "reason": None if scored else job.reason,
        "traceback": job.traceback,
        "curves": curves,
        "epochsPerStep": job.epochs_per_step,
        "times": [[step for step, _ in job.seconds], [s for _, s in job.seconds]] if timed else None,
    }


def _strides(jobs: Sequence[Job], keys: Sequence[str]) -> dict[str, int]:
    """{key: keep every n-th point}: the same n for all jobs, so that seeds keep the same steps."""
    total = sum(len(points) for job in jobs for points in job.curves.values())
    share = max(1.0, total / POINTS)
    longest = {key: max((len(job.curves.get(key, ())) for job in jobs), default=0) for key in keys}
    return {
        key: max(1, math.ceil(longest[key] / MAX_CURVE), math.ceil(share) if longest[key] > 50 else 1) for key in keys
    }


def _best(study: Study) -> list[dict[str, Any]]:
    """The best group for each objective."""
    found = []
    for objective in study.objectives:
        best = best_group(study, objective)
        if best is None:
            continue
        other = better_but_fewer(study, best, objective)
        note = other and f"{other.label} has a better mean, {score_text(other, objective)}, but of fewer seeds"
        found.append({
            "key": objective.key,
            "label": best.label,
            "score": score_text(best, objective),
            "n": len(best.scores(objective)),
            "command": best_command(best),
            "note": note,
        })  # fmt: skip
    return found


def _comparison(key: str, compared: Sequence[Comparison]) -> dict[str, Any]:
    """An objective's table. rows: {texts of the columns, numbers to sort by}."""
    rows = [
        {
            "texts": compared_cells(c),
            "values": [c.group.label, c.difference, c.effect, c.low, c.p, c.n, c.verdict, c.needed],
        }
        for c in compared
    ]
    return {"key": key, "note": compared_note(compared[0].best.label), "rows": rows}


def _common(study: Study) -> list[list[str]]:
    """[[key, value], ...] of the config that all jobs share."""
    configs = [job.config for job in study.jobs if job.config]
    first = configs[0] if configs else {}
    absent = object()
    return [[k, show(v)] for k, v in first.items() if all(config.get(k, absent) == v for config in configs)]


def _values(study: Study, job: Job, keys: Sequence[str]) -> dict[str, Any]:
    return {key: {"value": _plain(study.value(job, key)), "text": value_text(study, job, key)} for key in keys}


def _plain(value: Any) -> Any:
    """Numbers as they are, all else as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return show(value)
    return (
        value
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else None
        if value is None
        else show(value)
    )


def _plotly() -> str:
    spec = find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    path = Path(next(iter(folders or [""]))) / "package_data" / "plotly.min.js"
    if not path.exists():
        raise ConfigError(
            f"{path}: plotly's script is not where it should be - {pip_install('--force-reinstall plotly')}"
        )
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
