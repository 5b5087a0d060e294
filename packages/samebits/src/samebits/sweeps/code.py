"""Record the code version of a sweep's jobs, because code may be edited between two commands or during a sweep."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from samebits.code import Code, by_code, code_changes, code_here, codes_of, surroundings, use_code
from samebits.errors import DirectoryLockedError
from samebits.runs import claimed

if TYPE_CHECKING:
    from samebits.sweeps.ledger import Ledger


def record_code(ledger: Ledger) -> str:
    """Record the current code for all queued jobs, before they run. Return a warning if other jobs ran with different
    code, otherwise ""."""
    known = surroundings(ledger.project.root)
    here = code_here(ledger.project.root, known)
    found: list[tuple[int, Code]] = []
    for job in ledger.jobs:
        if not job.exists() or (own := codes_of(job.directory)[-1]) == here:
            continue
        if job.state() != "queued":
            found.append((job.number, own))
            continue
        with (
            suppress(DirectoryLockedError),
            claimed(job.directory, wait_s=0.0),
        ):  # otherwise another process is running it
            use_code(job.directory, known)
    if not found:
        return ""
    changed = dict.fromkeys(line for _, own in found for line in code_changes(own, here))
    return (
        f"sweep {ledger.name} goes on with other code ({', '.join(changed)}): {by_code(found)} ran before, now it is "
        f"{here}. What has finished is kept; sweep=ANOTHER_NAME runs all with one code"
    )
