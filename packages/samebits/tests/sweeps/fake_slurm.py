"""SLURM's commands as shell scripts: a queue in a file, in which no job runs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from samebits.sweeps import SlurmConfig
from samebits.sweeps.ledger import Job
from samebits.sweeps.slurm_arrays import Arrays

SBATCH = """[ -z "$SBATCH_CLUSTERS$SBATCH_WAIT" ] || exit 1
echo "$*" >> calls
for word; do case $word in --array=*) last=${word#--array=0-}; last=${last%%%*};; esac; done
script=$word
touch begun
while [ -e hold_before ]; do sleep 0.02; done
if [ -e refuse ]; then cat refuse >&2; exit 1; fi
if [ -e limit ] && [ $(($(wc -l < queue) + last + 1)) -gt "$(cat limit)" ]; then
  echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
  exit 1
fi
number=$((10 + $(wc -l < calls)))
seq -f "${number}_%.0f|PENDING|$script" 0 "$last" >> queue
touch accepted
while [ -e hold_after ]; do sleep 0.02; done
if [ -e timed_out ]; then echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1; fi
echo "$number;cluster"
"""
COMMANDS = {
    "sbatch": SBATCH,
    "squeue": '[ -z "$SQUEUE_STATES" ] || exit 0\nif [ -e down ]; then cat down >&2; exit 1; fi\n'
    "cat queue\necho >> looks\n",
    "scancel": 'echo "$*" >> cancelled\n',
    "scontrol": 'echo "MaxArraySize            = $(cat size)"\n',
}


class FakeSlurm:
    """The queue, and a sweep whose jobs are submitted to it."""

    def __init__(self, root: Path) -> None:
        self.root, self.sweep = root, root / "sweep"
        self.sweep.mkdir()
        (root / "bin").mkdir()
        for name, text in COMMANDS.items():
            path = root / "bin" / name
            path.write_text(f"#!/bin/sh\ncd {shlex.quote(str(root))}\n{text}")
            path.chmod(0o755)
        self.set("queue", "")
        self.set("calls", "")
        self.set("size", "1001")
        self.path = f"{root / 'bin'}:{os.environ['PATH']}"

    def set(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text)

    def lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []

    def queue(self) -> list[str]:
        """The keys of the jobs in the queue."""
        return list(self.arrays().listed()) if self.lines("queue") else []

    def ended(self, *numbers: str) -> None:
        self.set("queue", "".join(f"{line}\n" for line in self.lines("queue") if line.partition("|")[0] not in numbers))

    def jobs(self, count: int) -> list[Job]:
        return [Job(i, (f"seed={i}",), self.sweep / f"seed-{i}") for i in range(count)]

    def arrays(self, **config: Any) -> Arrays:
        return Arrays(self.ledger(), options(**config))

    def ledger(self) -> Any:
        return SimpleNamespace(
            directory=self.sweep, name="s", project=SimpleNamespace(root=self.root), swept=[], objectives=[], jobs=[]
        )


def options(**more: Any) -> SlurmConfig:
    plain: dict[str, Any] = {
        "detach": True, "jobs_at_once": 256, "timeout_min": 240, "signal_delay_s": 120, "max_num_timeout": 100,
        "nodes": 1, "tasks_per_node": 1, "gpus_per_node": None, "cpus_per_task": None, "mem": None, "partition": None,
        "account": None, "qos": None, "constraint": None, "setup": None, "additional_parameters": {},
    }  # fmt: skip
    return SlurmConfig(**{**plain, **more})
