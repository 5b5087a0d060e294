"""Compare two run directories: the first difference in metrics, checkpoints and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.checkpoints import Checkpoints, load_checkpoint
from samebits.errors import CorruptFileError
from samebits.files import amount, read_json, records
from samebits.schema import walk
from samebits.status import CHECKPOINTS, METRICS, RESULT, step_of

BY_THE_CLOCK = ("perf/", "balance/")
SMALLEST = 1e-8  # smaller metrics count as equal if rounding is allowed
WEIGHTS = ("model", "task", "ema", "optimizer")


@dataclass(frozen=True)
class Part:
    """The result for one file. name: the file. counted: the compared items as text, "" if there are none. difference:
    the first difference, "" if there is none. largest: largest relative difference that counted as rounding."""

    name: str
    counted: str
    difference: str = ""
    largest: float = 0.0


class Gap(NamedTuple):
    """The difference of two values. text: "" if they are equal up to rounding."""

    text: str = ""
    relative: float = 0.0


def compare_metrics(run: Path, again: Path, last: int, at_end: bool, rounding: float) -> Part:
    """Compare the records up to the step `last`.

    At that step a stopped run may have fewer records, because it stopped before or after an evaluation. at_end: the run
    had finished, so all records must be there. rounding: largest relative difference that counts as equal.
    """
    theirs, ours = (
        [_values(r) for _, r in records(d / METRICS) if r["step"] <= last and "media" not in r] for d in (run, again)
    )
    values, largest = 0, 0.0
    for number, record in enumerate(theirs):
        step, own = record["step"], ours[number] if number < len(ours) else {"step": None}
        if own["step"] is None and step == last and not at_end:
            theirs = theirs[:number]
            break
        gap = first_gap(record, own, rounding) if own["step"] == step else Gap("the record is not there again")
        if gap.text:
            after = f"; equal before it: {amount(number, 'record')}" if number else ""
            return Part(METRICS, "", f"step {step:,}: {gap.text}{after}")
        values, largest = values + len(record) - 1, max(largest, gap.relative)
    if extra := [record["step"] for record in ours[len(theirs) :] if record["step"] < last or at_end]:
        return Part(METRICS, "", f"step {extra[0]:,}: the record is not in the run")
    return Part(METRICS, f"{amount(values, 'value')} of {amount(len(theirs), 'record')}" if values else "", "", largest)


def _values(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "time" and not key.startswith(BY_THE_CLOCK)}


def compare_checkpoints(run: Path, again: Path, last: int, rounding: float) -> Iterator[Part]:
    """Compare the checkpoints up to the step `last` that both runs have, oldest first. If rounding is allowed, only the
    tensors in WEIGHTS are compared."""
    ours = {path.name: path for path in Checkpoints(again / CHECKPOINTS).files()}
    if not any(path.name in ours and step_of(path) <= last for path in Checkpoints(run / CHECKPOINTS).files()):
        yield Part(CHECKPOINTS, "")
    for path in Checkpoints(run / CHECKPOINTS).files():
        if path.name in ours and step_of(path) <= last:
            name = f"{CHECKPOINTS}/{path.name}"
            try:
                a, b = load_checkpoint(path), load_checkpoint(ours[path.name])
            except CorruptFileError as error:
                yield Part(name, "", str(error))
                continue
            # otherwise one run stopped before and one after an evaluation
            scored = a["scored_step"] == b["scored_step"]
            yield _checkpoint(name, a, b, rounding, whole=scored and not rounding)


def _checkpoint(name: str, a: dict[str, Any], b: dict[str, Any], rounding: float, whole: bool) -> Part:
    def is_compared(key: str, value: Any) -> bool:
        inner = isinstance(value, (dict, list, tuple)) and value
        top = key.split(".")[0]
        # the stop of the second run adds a save to the pending actions of its last step
        return not inner and top != "pending" and (whole or (top in WEIGHTS and isinstance(value, Tensor)))

    theirs, ours = ({key: value for key, value in walk(payload) if is_compared(key, value)} for payload in (a, b))
    # a later version may save more than the weights
    ours = {key: value for key, value in ours.items() if key in theirs or key.split(".")[0] in WEIGHTS}
    tensors = [value for value in theirs.values() if isinstance(value, Tensor)]
    gap = first_gap(theirs, ours, rounding)
    counted = f"{amount(len(tensors), 'tensor')}, {amount(sum(t.numel() for t in tensors), 'value')}"
    return Part(name, counted, gap.text, gap.relative)


def compare_scores(run: Path, again: Path, rounding: float) -> Part:
    """Compare the scores in result.json of both runs."""
    both = (_values(read_json(directory / RESULT)) for directory in (run, again))
    theirs, ours = ({key: value for key, value in values.items() if "/" in key} for values in both)
    gap = first_gap(theirs, ours, rounding)
    return Part(RESULT, f"{len(theirs)} scores" if theirs else "", gap.text, gap.relative)


def first_gap(run: Mapping[str, Any], again: Mapping[str, Any], rounding: float) -> Gap:
    """Return the gap of the first key whose values differ. If none differs, return the largest difference by
    rounding."""
    largest = 0.0
    for key in dict.fromkeys((*run, *again)):
        if key not in run or key not in again:
            return Gap(f"{key} is not {'there again' if key in run else 'in the run'}", math.inf)
        gap = (tensors_differ if isinstance(run[key], Tensor) else numbers_differ)(run[key], again[key], rounding)
        if gap.text:
            return Gap(f"{key} {gap.text}", gap.relative)
        largest = max(largest, gap.relative)
    return Gap("", largest)


def numbers_differ(run: Any, again: Any, rounding: float) -> Gap:
    """Compare two numbers; NaN equals NaN."""
    if run == again or (run != run and again != again):
        return Gap()
    if not all(isinstance(value, (int, float)) for value in (run, again)):
        return Gap(f"is {run} in the run, {again} again", math.inf)
    difference = abs(run - again)
    relative = difference / max(abs(run), abs(again), SMALLEST)
    if math.isfinite(relative) and relative <= rounding:
        return Gap("", relative)
    text = f"is {run!r} in the run, {again!r} again (difference {difference:.3g}, relative {relative:.2g})"
    return Gap(text, relative)


def tensors_differ(run: Tensor, again: Any, rounding: float) -> Gap:
    """Compare two tensors: the number of different values and the largest difference, relative to the largest value."""
    shape = tuple(run.shape)
    if not isinstance(again, Tensor) or again.shape != run.shape or again.dtype != run.dtype:
        other = f"{tuple(again.shape)} {again.dtype}" if isinstance(again, Tensor) else type(again).__name__
        return Gap(f"is {shape} {run.dtype} in the run, {other} again", math.inf)
    unlike = (run != again) & ~((run != run) & (again != again))
    if not unlike.any():
        return Gap()
    gaps = torch.where(unlike, (run.double() - again.double()).abs(), 0.0).nan_to_num(math.inf).flatten()
    most = int(gaps.argmax())
    gap, largest = float(gaps[most]), float(run.double().abs().nan_to_num(0, 0).max())
    relative = gap / largest if largest else math.inf
    if relative <= rounding:
        return Gap("", relative)
    place = [int(i) for i in torch.unravel_index(torch.tensor(most), shape)]
    text = (
        f"{shape}: {int(unlike.sum()):,} of {run.numel():,} values differ, most at {place}: "
        f"{run.flatten()[most].item():.9g} in the run, {again.flatten()[most].item():.9g} again "
        f"(difference {gap:.3g}, relative {relative:.2g})"
    )
    return Gap(text, relative)
