"""Decide how many workers a map-style data set gets, by measuring, and start them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits.data.loading import choose
from samebits.data.loading.samples import InProcess, Samples, own_random_numbers
from samebits.data.loading.workers import Workers
from samebits.data.order import Plan
from samebits.data.spec import empty_batch
from samebits.files import amount

_HAND_OVER_S = 0.0003  # faster batches are not worth sending to another process
_JOB_S = 0.01  # per batch of a trial, which is a small part of a real one to keep the trial short
_TRIAL_S = 0.15


def open_workers(
    samples: Samples, plan: Plan, device: torch.device, num_workers: int | str, start_method: str | None, cores: int
) -> tuple[Any, str]:
    """Return (the source of batches, the reason for the number of workers).

    num_workers: the number, 0 for this process, or auto: try 1, 2, 4, ..., as long as more are faster.
    """
    part = plan(0)
    if part is None or num_workers == 0:
        return InProcess(samples, device), "in this process" + (", set by data.num_workers" if part else "")
    collates = samples.has("collate")

    def make(count: int, where: torch.device) -> Any:
        return Workers(samples, where, count, spec, getattr(plan, "max_rows", len(part[0])), start_method)

    with own_random_numbers():
        spec = None if collates else samples.first(int(part[0][0]), int(part[1][0]))[0]
        way = "whole batches, for the dataset's own collate" if collates else "shared slots"
        if isinstance(num_workers, int):
            return make(num_workers, device), f"{amount(num_workers, 'worker')}, set by data.num_workers ({way})"
        sample_s = _sample_s(samples, part)
    batch_s = sample_s * len(part[0])
    if batch_s < _HAND_OVER_S:
        why = f"in this process: a batch takes only {batch_s * 1e3:.2g} ms (measured)"
        return InProcess(samples, device), why
    trial = _trial_plan(plan, max(1, min(len(part[0]), int(_JOB_S / sample_s))))
    count, rates = _best(lambda n: make(n, torch.device("cpu")), trial, cores)
    measured = ", ".join(f"{amount(n, 'worker')} {rate:,.0f}" for n, rate in rates.items())
    why = f"{amount(count, 'worker')} on {amount(cores, 'core')} ({way}){choose.enough(count, rates)}"
    return make(count, device), f"{why}; measured samples/s: {measured}"


def _sample_s(samples: Samples, part: tuple[np.ndarray, np.ndarray]) -> float:
    """Return how many seconds one sample takes in this process."""
    if samples.has("gather"):
        out = empty_batch(samples.spec, len(part[1]))
        began = time.perf_counter()
        samples.gather(part[1], out)
        return (time.perf_counter() - began) / len(part[1])
    began, done = time.perf_counter(), 0
    for number, row in zip(part[0].tolist(), part[1].tolist(), strict=True):
        samples.sample(number, row)
        done += 1
        if time.perf_counter() - began > _TRIAL_S:
            break
    return (time.perf_counter() - began) / done


def _trial_plan(plan: Plan, rows: int) -> Plan:
    """Return an endless plan of the plan's batches, cut to their first `rows` rows."""

    def trial(k: int) -> tuple[np.ndarray, np.ndarray] | None:
        sample_ids, of = plan(k) or plan(0)  # type: ignore[misc]
        return sample_ids[:rows], of[:rows]

    return trial


def _best(make: Callable[[int], Any], plan: Plan, cores: int) -> tuple[int, dict[int, float]]:
    """Return the smallest number of workers that is nearly as fast as the others, and {number: samples/s}."""

    def rate(count: int) -> float:
        source = make(count)
        try:
            return _rate(source, plan, skip=2 * count)
        finally:
            source.close()

    rates = choose.doubling(rate, choose.counts(cores))
    *before, last = rates
    gained = not before or rates[last] >= choose._GAIN * rates[before[-1]]
    return last if gained else before[-1], rates


def _rate(source: Any, plan: Plan, skip: int) -> float:
    """Return samples per second, not counting the start and the `skip` batches that were made during it."""
    stream, done, began = source.stream(plan), 0, 0.0
    for i, [(_, sample_ids)] in enumerate(stream):
        if i == skip:
            began = time.perf_counter()
        elif i > skip:
            done += len(sample_ids)
            if i >= 3 * skip and time.perf_counter() - began > _TRIAL_S:
                break
    stream.close()
    return done / (time.perf_counter() - began)
