"""Write report.html: one self-contained file with data, scripts (including plotly) and styles. It works offline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError
from samebits.extras import pip_install
from samebits.saved import same_value
from samebits.sweeps.report import style
from samebits.sweeps.report.analyse import Group, caution, counts, groups, is_failure, short_names, show, value_text
from samebits.sweeps.report.axes import Axis, axes, score_axis
from samebits.sweeps.report.curves import curve_scale, keys_of, values_of
from samebits.sweeps.report.facts import Facts, Section
from samebits.sweeps.report.read import Job, Study
from samebits.sweeps.report.sheet import Cell, Sheet, page_table

WEB = Path(__file__).with_name("web")
SCRIPTS = ("core.js", "curves.js", "scores.js", "parallel.js", "search.js", "tables.js")
POINTS = 400_000  # maximum number of points of all curves; more are thinned
MAX_CURVE = 1500


def page(facts: Facts, paper: Sheet | None = None) -> str:
    """Return the page. paper: the paper's table, None if it was not requested."""
    return filled("page.html", {
        "title": facts.study.name.replace("&", "&amp;").replace("<", "&lt;"),
        "style": (WEB / "page.css").read_text("utf-8"),
        # within <script> only </script would end it; JSON allows < as an escape
        "data": json.dumps(data(facts, paper), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "plotly": _plotly(),
        "script": "\n".join((WEB / name).read_text("utf-8") for name in SCRIPTS),
    })  # fmt: skip


def filled(body: str, parts: Mapping[str, str]) -> str:
    """Return head.html and the body, with the parts in the places {{name}}, of which each is there once."""
    text = "".join((WEB / name).read_text("utf-8") for name in ("head.html", body))
    for name, part in parts.items():
        before, _, after = text.partition(f"{{{{{name}}}}}")
        text = before + part + after
    return text


def data(facts: Facts, paper: Sheet | None = None) -> dict[str, Any]:
    """Return all data of the page as JSON types."""
    study = facts.study
    ranked = groups(study)
    group_of = {job.key: i for i, group in enumerate(ranked) for job in group.jobs}
    keys = keys_of(study.jobs, [o.key for o in study.objectives])
    strides = _strides(study.jobs, keys)
    names = short_names(study.swept)
    found = axes(study)
    number = {job.key: i for i, job in enumerate(study.jobs)}
    return {
        "name": study.name,
        "isSweep": study.is_sweep,
        "isSearch": study.is_search,
        "facts": " · ".join([facts.summary, *study.typed, *([f"begun {study.created}"] if study.created else [])]),
        "objectives": [{"key": o.key, "mode": o.mode} for o in study.objectives],
        "counts": counts(study),
        "caution": caution(study.objectives),
        "best": [asdict(best) for best in facts.best],
        "metrics": [
            {"key": key, **asdict(curve_scale([values_of(group.jobs, key) for group in ranked]))} for key in keys
        ],
        "repeats": "runs" if study.fold_keys else "seeds",
        "logScore": score_axis(study).kind == "log",
        "axes": [_axis(one) for one in found],
        "columns": [{"key": key, "name": names[key]} for key in (study.swept if study.is_sweep else ())],
        "groups": [_group(facts, group, found, number) for group in ranked],
        "jobs": [_job(study, job, strides, found) | {"group": group_of[job.key]} for job in study.jobs],
        "importance": facts.importance and asdict(facts.importance),
        "groupTable": page_table(facts.groups),
        "jobTable": page_table(facts.jobs),
        "sections": {
            "first": _sections([
                *([facts.review] if facts.review.lines else []),
                *facts.unlike,
                *([Section("The paper's table", sheet=paper)] if paper else []),
            ]),
            "compared": _sections(facts.comparisons),
            "last": _sections([facts.differences] if facts.differences else []),
        },
        "common": page_table(_common(study)),
        "colors": style.PAGE,
    }  # fmt: skip


def _sections(sections: Sequence[Section]) -> list[dict[str, Any]]:
    return [{"title": s.title, "lines": list(s.lines), "table": s.sheet and page_table(s.sheet)} for s in sections]


def _axis(axis: Axis) -> dict[str, Any]:
    texts, values = [axis.text(value) for value in axis.values], [] if axis.kind == "category" else axis.values
    known = {"key": axis.key, "kind": axis.kind, "named": axis.named, "joined": axis.joined}
    return {**known, "values": values, "texts": texts}


def _group(facts: Facts, group: Group, found: Sequence[Axis], number: Mapping[str, int]) -> dict[str, Any]:
    """Return a group as JSON types. number: {key of a job: its number}."""
    return {
        "label": group.label,
        "values": _values(facts.study, group.jobs[0], found),
        "jobs": [number[job.key] for job in group.jobs],
        "means": [group.mean(o) for o in facts.study.objectives],
        "interval": group.interval(facts.study.objective),
        "front": group.label in facts.front,
    }


def _job(study: Study, job: Job, strides: Mapping[str, int], found: Sequence[Axis]) -> dict[str, Any]:
    """Return a job as JSON types, without its group."""
    curves = {}
    for key, points in job.curves.items():
        kept = [*points[:: strides[key]], *(points[-1:] if (len(points) - 1) % strides[key] else ())]
        finite = [(step, float(f"{value:.6g}")) for step, value in kept if math.isfinite(value)]
        curves[key] = [[step for step, _ in finite], [value for _, value in finite]]
    step, epochs = job.curves.get("train/epoch", [(0, 0.0)])[-1]
    failed = is_failure(job, study.objective)
    scored = job.status == "finished" and not failed
    timed = len(job.seconds) <= 2 * MAX_CURVE  # otherwise the page has no curves against time
    return {
        "number": job.number,
        "key": job.key,
        "failed": failed,
        "status": "not finite" if failed and job.status == "finished" else job.status,
        "values": _values(study, job, found),
        "scores": [job.score(o) for o in study.objectives],
        "provisional": job.provisional(study.objective),
        "reason": None if scored else job.reason,
        "traceback": job.traceback,
        "curves": curves,
        "epochsPerStep": epochs / step if step else None,
        "times": [[step for step, _ in job.seconds], [s for _, s in job.seconds]] if timed else None,
    }


def _values(study: Study, job: Job, found: Sequence[Axis]) -> dict[str, Any]:
    """Return {key: {text, position on its axis}}."""
    known = {
        key: {"text": value_text(study, job, key), "place": None} for key in (study.swept if study.is_sweep else ())
    }
    values = {axis.key: (axis, axis.value(study, job)) for axis in found}
    return known | {
        key: {"text": axis.text(value), "place": axis.place(value)} for key, (axis, value) in values.items()
    }


def _strides(jobs: Sequence[Job], keys: Sequence[str]) -> dict[str, int]:
    """Return {key: n} to keep every n-th point; n is the same for all jobs, so that seeds keep the same steps."""
    total = sum(len(points) for job in jobs for points in job.curves.values())
    share = max(1.0, total / POINTS)
    longest = {key: max((len(job.curves.get(key, ())) for job in jobs), default=0) for key in keys}
    return {k: max(1, math.ceil(n / MAX_CURVE), math.ceil(share) if n > 50 else 1) for k, n in longest.items()}


def _common(study: Study) -> Sheet:
    """Return the config values that all jobs share."""
    configs = [job.config for job in study.jobs if job.config]
    first = configs[0] if configs else {}
    absent = object()
    shared = [(k, v) for k, v in first.items() if all(same_value(config.get(k, absent), v) for config in configs)]
    return Sheet(["key", "value"], [[Cell(key), Cell(show(value))] for key, value in shared])


def _plotly() -> str:
    spec = find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    path = Path(next(iter(folders or [""]))) / "package_data" / "plotly.min.js"
    if not path.exists():
        raise ConfigError(f"{path}: plotly's script is missing - {pip_install('--force-reinstall plotly')}")
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")
