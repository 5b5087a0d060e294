"""Print the progress of a sweep, one line per ended job, and the table at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from samebits.files import aligned, decimals
from samebits.sweeps.ledger import ENDED, Job, Ledger, differing, is_due
from samebits.sweeps.progress import say

ROWS_AT_MOST = 40


class Screen:
    """The progress of a sweep. total: number of jobs of this command, including those that ended earlier, of which
    failed ones are not run again unless `retry_failed`."""

    say = staticmethod(say)

    def __init__(self, ledger: Ledger, jobs: Sequence[Job], at_once: int, retry_failed: bool) -> None:
        self._ledger, self._at_once, self.total = ledger, at_once, len(jobs)
        self._ended: dict[str, str] = {}
        self._seconds: list[float] = []
        self._best: tuple[float, Job] | None = None
        for job in jobs:
            if not is_due(state := job.state(), retry_failed):
                self._ended[job.key] = state
                self._compare(job)

    def start(self, job: Job) -> None:
        """Print the start of a job, if jobs run one at a time."""
        if self._at_once == 1:
            self.say(f"\njob {job.number}, {len(self._ended) + 1} of {self.total}: {label(job, self._ledger)}")

    def end(self, job: Job, state: str, seconds: float | None) -> None:
        """Print the end of a job. seconds: its duration; None if another process ran it."""
        self._ended[job.key] = state
        if seconds is not None and state in ENDED:
            self._seconds.append(seconds)
        self._compare(job)
        value = score_of(job, self._ledger)
        score = "" if value is None else f"{self._ledger.objectives[0]['key']}={decimals(value)}"
        parts = [state, label(job, self._ledger), score, f"{seconds:.1f} s" if seconds is not None else "elsewhere"]
        if state == "failed":
            parts.append(why(job))
        outlook = ", ".join(self._outlook())
        line = f"{len(self._ended)}/{self.total} {'  '.join(p for p in parts if p)}"
        self.say(f"{line}  [{outlook}]" if outlook else line)

    def _outlook(self) -> list[str]:
        states, parts = list(self._ended.values()), []
        if failed := states.count("failed"):
            parts.append(f"{failed} failed")
        if (left := self.total - len(states)) and self._seconds:
            mean = sum(self._seconds) / len(self._seconds)
            parts.append(f"about {clock(mean * math.ceil(left / self._at_once))} left")
        if self._best is not None:
            value, job = self._best
            parts.append(f"best {self._ledger.objectives[0]['key']} {value:.4g} ({label(job, self._ledger)})")
        return parts

    def _compare(self, job: Job) -> None:
        value = score_of(job, self._ledger)
        if value is not None and (self._best is None or _sign(self._ledger) * (value - self._best[0]) < 0):
            self._best = value, job


def table(ledger: Ledger, jobs: Sequence[Job]) -> str:
    """Return a table of the jobs: state, score, reason of a failure. With more than ROWS_AT_MOST jobs it contains only
    the ten best, and those that failed or were stopped."""
    scored = [(score_of(job, ledger), job) for job in sorted(jobs, key=lambda job: job.number)]
    if len(jobs) > ROWS_AT_MOST:
        ranked = sorted((s, j.number) for s, j in ((_sign(ledger) * v, j) for v, j in scored if v is not None))
        kept = {number for _, number in ranked[:10]}
        scored = [(v, j) for v, j in scored if j.number in kept or j.state() not in (*ENDED, "queued", "running")]
    key = ledger.objectives[0]["key"] if ledger.objectives else ""
    rows = [["job", "status", *([key] if key else []), "s", "overrides", ""]]
    for value, job in scored:
        seconds = job.result().get("seconds")
        score = "" if value is None else decimals(value)
        reason = why(job) if job.state() == "failed" else ""
        texts = [str(job.number), job.state(), *([score] if key else []), f"{seconds:.1f}" if seconds else ""]
        rows.append([*texts, label(job, ledger), reason])
    if len(scored) < len(jobs):
        rows.append(["", f"and {len(jobs) - len(scored)} more", *[""] * (len(rows[0]) - 2)])
    return aligned(rows, len(rows[0]))


def label(job: Job, ledger: Ledger) -> str:
    """Return the overrides that identify the job within the sweep."""
    return differing(job.overrides, ledger.swept) or job.key


def why(job: Job) -> str:
    """Return the first line of the job's error, or ""."""
    return str(job.status().get("error", "")).splitlines()[0] if job.status().get("error") else ""


def score_of(job: Job, ledger: Ledger) -> float | None:
    """Return the job's first objective; None if it is missing or not finite."""
    if not ledger.objectives:
        return None
    value = job.result().get(ledger.objectives[0]["key"])
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def clock(seconds: float) -> str:
    """Return a duration as text: 3.2 s, 04:10, 01:04:10 or 30:04:10."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    hours = f"{minutes // 60:02}:" if minutes >= 60 else ""
    return f"{hours}{minutes % 60:02}:{int(seconds) % 60:02}"


def _sign(ledger: Ledger) -> int:
    return 1 if ledger.objectives[0]["mode"] == "min" else -1
