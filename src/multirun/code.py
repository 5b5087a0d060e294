"""The code of a sweep's jobs: src/ may be edited between two commands of a sweep, or while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.errors import Claimed
from engine.runs import Code, claimed, code_here, codes_of, surroundings, use_code

if TYPE_CHECKING:
    from multirun.ledger import Ledger


def settle_code(ledger: Ledger) -> str:
    """Before jobs run: those that are queued get the present code on record. Returns a line if others ran with
    another; else empty."""
    known = surroundings(ledger.project.root)
    here = code_here(ledger.project.root, known)
    found: list[tuple[int, Code]] = []
    for job in ledger.jobs:
        if (own := codes_of(ledger.project.root, job.directory)[-1]) == here:
            continue
        if job.state() != "queued":
            found.append((job.number, own))
            continue
        with suppress(Claimed), claimed(job.directory):  # else another process runs it now
            use_code(job.directory, known)
    if not found:
        return ""
    return (
        f"sweep {ledger.name}: src/ has changed: {by_code(found)} ran before, now it is {here}. What has finished is "
        "kept; sweep=ANOTHER_NAME runs all with one code"
    )


def by_code(found: Iterable[tuple[int, Code]]) -> str:
    """[(0, a), (1, a), (2, b)] -> "jobs 0, 1 with commit 1234567, job 2 with commit 89abcde"."""
    jobs: dict[Code, list[int]] = {}
    for number, code in found:
        jobs.setdefault(code, []).append(number)
    return ", ".join(f"job{'s' * (len(n) > 1)} {ranges(n)} with {code}" for code, n in jobs.items())


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0 to 2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
