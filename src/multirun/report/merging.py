"""Makes runs of several folders comparable: the same data have one name, other data another. No torch, no Hydra."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from multirun.report.read import Job

CONTENT = " (content "  # after a path that leads to data of several contents


def choices_between(jobs: Sequence[Job], swept: Sequence[str], unlike: Sequence[str]) -> list[str]:
    """The config groups that some of these sweeps have chosen otherwise (model=gpt), each for all its jobs: its options
    tell more than the keys that differ below it, `unlike`."""
    chosen = [{o.partition("=")[0].lstrip("+"): o.partition("=")[2] for o in job.overrides} for job in jobs]
    groups = [key for key in dict.fromkeys(key for one in chosen for key in one) if key not in swept]
    groups = [key for key in groups if any(k.startswith(f"{key.replace('/', '.')}.") for k in unlike)]
    return [key for key in groups if len({one.get(key) for one in chosen}) > 1]


def same_data(jobs: Sequence[Job], but: Collection[str] = ()) -> tuple[Job, ...]:
    """The jobs with one text for data of one content, wherever they lie, and with two texts for one path to data of two
    contents. Of a run without fingerprints the path alone is known. but: keys to leave as they are."""
    known: dict[tuple[str, str], Any] = {}  # (key, digest) -> the text for it
    digests: dict[tuple[str, str], dict[str, None]] = {}  # (key, path) -> those of the jobs that have it
    for job in jobs:
        for key, digest in job.files.items():
            known.setdefault((key, digest), job.config.get(key))
            digests.setdefault((key, str(job.config.get(key))), {})[digest] = None
    doubtful = {(key, digest) for (key, _), several in digests.items() if len(several) > 1 for digest in several}
    known |= {(key, digest): f"{known[key, digest]}{CONTENT}{digest[:6]})" for key, digest in doubtful}

    def config(job: Job) -> Mapping[str, Any]:
        found = {}
        for key in {key for key, _ in known} & job.config.keys() - {*but}:
            of_path = digests.get((key, str(job.config[key])), {})
            digest = job.files.get(key) or (next(iter(of_path)) if len(of_path) == 1 else None)
            if digest is not None:
                found[key] = known[key, digest]
        return {**job.config, **found}

    return tuple(replace(job, config=config(job)) for job in jobs) if known else tuple(jobs)
