"""A SLURM cluster of two nodes on this machine, in namespaces of its own: all ends with one process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from samebits.testing.processes import free_port, limit

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "sinfo")

# linuxproc, none: no cgroups are needed
CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
KillWait=20
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
"""
START = """
mount --bind {root}/hosts /etc/hosts
munged --key-file={root}/munge/key --socket={root}/munge/socket --pid-file={root}/munge/pid \\
  --log-file={root}/munge/log --seed-file={root}/munge/seed --force
slurmctld -c && slurmd -N n1 && slurmd -N n2
exec cat  # until the test closes it
"""


def missing() -> str | None:
    """Why there can be no cluster here; installs SLURM where this is root's Debian and a package source answers."""
    if os.geteuid() != 0:
        return "needs root"
    if all(map(shutil.which, (*PROGRAMS, "unshare"))):
        return None
    if not shutil.which("apt-get"):
        return "SLURM is not installed, and there is no apt-get to install it"
    quiet = {"capture_output": True, "text": True, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]):
        done = subprocess.run(["apt-get", "-o", "Acquire::Retries=1", *command], timeout=240, **quiet)  # type: ignore
        if done.returncode != 0:
            return f"apt-get {command[0]} failed: {done.stderr.strip().splitlines()[-1:]}"
    return None


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def command(self, *arguments: str) -> str:
        done = subprocess.run(arguments, env=self.env, capture_output=True, text=True, timeout=limit(30))
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def submit(self, script: str, *options: str) -> int:
        """A batch script, run from `root` -> the job's number. What it prints is in job-<number>.log."""
        path = self.root / "job.sh"
        path.write_text("#!/bin/bash\n" + script)
        output = f"--output={self.root}/job-%j.log"
        return int(self.command("sbatch", "--parsable", output, "--open-mode=append", *options, str(path)))

    def facts(self, job: int | str) -> dict[str, str]:
        shown = self.command("scontrol", "show", "--oneliner", "job", str(job))
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def log(self, job: int | str) -> str:
        path = self.root / f"job-{job}.log"
        return path.read_text() if path.exists() else ""

    def wait(self, job: int | str, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + limit(seconds)
        while not condition():
            assert time.monotonic() < end, f"{self.facts(job)}\n{self.log(job)}"
            time.sleep(0.2)

    def wait_for_end(self, job: int, seconds: float) -> str:
        """-> COMPLETED, FAILED, ..."""
        self.wait(job, lambda: self.facts(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), seconds)
        return self.facts(job)["JobState"]


@contextmanager
def cluster(root: Path) -> Iterator[Cluster]:
    """Two idle nodes, n1 and n2. RuntimeError where they do not come up."""
    ports = [free_port() for _ in range(3)]
    for folder in ("state", "n1", "n2", "munge"):
        (root / folder).mkdir()
    (root / "munge/key").write_bytes(os.urandom(1024))
    (root / "munge/key").chmod(0o600)
    known = Path("/etc/hosts").read_text()
    (root / "hosts").write_text(f"{known}\n127.0.0.1 n1 n2\n")
    (root / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], root=root, ports=ports))
    here = Cluster(root)
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-e", "-c"]
    with open(root / "start.log", "w") as log:
        process = subprocess.Popen(
            [*inside, START.format(root=root)], env=here.env, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + limit(30)
        while "2" not in subprocess.run(
            ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=here.env, capture_output=True, text=True, timeout=limit(30)
        ).stdout.split():  # fmt: skip
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the cluster did not come up: {(root / 'start.log').read_text()}")
            time.sleep(0.3)
        yield here
    finally:
        process.kill()
        process.wait()
