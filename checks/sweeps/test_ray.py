"""Sweeps over a Ray cluster of two nodes on this machine: one node dies, a job fails, Ctrl-C. Needs the extra `ray`."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import TRAIN
from sweeps import SWEEP, book, ended_at, job_dirs, states

from samebits.testing import last_checkpoint, metrics, status
from samebits.testing.processes import called, limit, processes_with, sample_of, wait_for

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LONG = (*SWEEP, "trainer.max_steps=4000", "trainer.log_every=500", "trainer.save_every=500", "trainer.eval_every=2000")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that takes one job at a time; nodes are added by the tests."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def sweep(cluster: Any, folder: Path, *overrides: str) -> subprocess.Popen[str]:
    where = ("hydra/launcher=ray", f"hydra.launcher.address={cluster.address}", f"hydra.sweep.dir={folder}")
    return subprocess.Popen([*TRAIN, *overrides, *where], stderr=subprocess.PIPE, text=True, start_new_session=True)


def trained(folder: Path) -> list[Path]:
    """Jobs that have logged steps."""
    return [job for job in job_dirs(folder) if (job / "metrics.jsonl").exists() and metrics(job)]


def test_a_job_goes_on_where_its_node_was_lost_and_one_that_fails_ends_no_other(cluster: Any, tmp_path: Path) -> None:
    node, folder = cluster.add_node(num_cpus=1), tmp_path / "s"
    options = (*LONG, "optim.lr=1e30,1e-3,3e-3", "trainer.clip_norm=null", "trainer.max_steps=30000")
    process = sweep(cluster, folder, *options)
    # the first fails at its first log; each node has then one of the others
    wait_for(lambda: len(list(folder.glob("*/checkpoints/last_*0.pt"))) >= 2, process, seconds=120)
    wait_for(lambda: len({path.parent for path in folder.glob("*/checkpoints/last_*0.pt")}) == 2, process)
    cluster.remove_node(node, allow_graceful=False)
    _, shown = process.communicate(timeout=limit(150))
    assert process.returncode == 1, shown
    assert states(folder) == ["failed", "finished", "finished"], shown
    assert "1 of 3 jobs failed; add sweep=s sweep.retry_failed=true" in shown
    (failure,) = [line for line in shown.splitlines() if "/3 failed  optim.lr=1e+30" in line]
    assert "not finite" in failure
    logs = [(job / "output.log").read_text() for job in job_dirs(folder)]
    assert [log.count("resumed from last_") for log in logs].count(1) == 1
    ended = ended_at(folder)
    again = sweep(cluster, folder, *options)
    _, shown = again.communicate(timeout=limit(100))
    assert (again.returncode, "0 to run" in shown) == (1, True), shown
    assert ended_at(folder) == ended
    assert not processes_with(str(tmp_path))


def test_ctrl_c_saves_what_runs_and_the_same_command_goes_on(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    options = (*LONG, "trainer.max_steps=20000", "trainer.save_every=null", "seed=0,1")
    process = sweep(cluster, folder, *options)
    wait_for(lambda: trained(folder) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=limit(100))
    assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert "1/2 preempted" in shown, shown  # no line for the job that has not started
    assert sorted(states(folder)) == ["preempted", "queued"]
    (begun,) = trained(folder)
    assert 0 < last_checkpoint(begun)["step"] < 20000
    assert not processes_with(str(tmp_path))
    again = sweep(cluster, folder, *options)
    _, shown = again.communicate(timeout=limit(150))
    assert (again.returncode, states(folder)) == (0, ["finished"] * 2), shown
    assert (begun / "output.log").read_text().count("resumed from last_") == 1


def test_a_job_that_no_node_can_run_is_reported(cluster: Any, tmp_path: Path) -> None:
    process = sweep(cluster, tmp_path / "s", *SWEEP, "seed=0,1", "hydra.launcher.cpus_per_job=64")
    assert process.stderr
    assert any("no node of the cluster has 64 CPU: the jobs wait" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=limit(100))
    assert (process.returncode, states(tmp_path / "s")) == (130, ["queued", "queued"])


@pytest.mark.parametrize("listens", sample_of([False], [False, True]))  # Ray tries for 90 s
def test_no_cluster_is_one_line(tmp_path: Path, listens: bool) -> None:
    """Nor is another program that listens there, which Ray would try for a quarter of an hour."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1] if listens else 1}"
        where = ("hydra/launcher=ray", f"hydra.launcher.address={address}", f"hydra.sweep.dir={tmp_path}/s")
        done = called([*TRAIN, *SWEEP, "seed=0,1", *where], code=2, seconds=200, fresh=True)
    assert f"error: hydra.launcher.address={address}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [status(tmp_path / "s" / job["key"])["status"] for job in book(tmp_path / "s")["jobs"]] == ["queued"] * 2
