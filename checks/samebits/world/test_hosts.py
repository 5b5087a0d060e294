"""Two hosts for real: network namespaces with names, addresses and file systems of their own, and a cable between."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import QUICK, ROOT, TRAIN

from h5rows.reading.ranges import BLOCK
from samebits.testing import assert_equal, last_checkpoint, metrics, status
from samebits.testing.processes import called, limit, processes_with, slowdown, wait_for

pytestmark = pytest.mark.multihost
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d"]
DDP = (*QUICK, "trainer=ddp")


class Host:
    """A network namespace whose processes see `names` as /etc/hosts, if given, and the host's own name."""

    def __init__(self, name: str, address: str, names: Path | None) -> None:
        self.name, self.address, self.names = name, address, names
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, first: str = "true", **env: str) -> subprocess.Popen[str]:
        """first: a shell command to run before, in this host's own mount namespace."""
        known = f"mount --bind {self.names} /etc/hosts" if self.names else "true"
        script = f'hostname {self.name} && {known} && {first} && exec "$@"'
        inside = ["ip", "netns", "exec", self.name, "unshare", "--uts", "--mount", "sh", "-c", script, "sh", *command]
        process = subprocess.Popen(
            inside, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def processes(self) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def two_hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Host, Host]]:
    """Two hosts that know each other's names; with the parameter False neither any name nor their own."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip (iproute2) and unshare")
    tag, named = f"{os.getpid() % 100_000:05d}", getattr(request, "param", True)
    names = tmp_path / "hosts"
    lines = ["127.0.0.1 localhost", *([f"10.231.7.1 a{tag}", f"10.231.7.2 b{tag}"] if named else [])]
    names.write_text("\n".join(lines) + "\n")
    hosts = (Host(f"a{tag}", "10.231.7.1", names), Host(f"b{tag}", "10.231.7.2", names))
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        # the names of a link's ends exist on this machine only until they are moved
        ip(*f"link add va{tag} netns {hosts[0].name} type veth peer vb{tag} netns {hosts[1].name}".split())
        for host in hosts:
            link = f"v{host.name}"
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", link)
            for device in ("lo", link):
                ip("-n", host.name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        _remove(hosts)
        pytest.skip(f"network namespaces are not possible here: {error.stderr.strip()}")
    yield hosts
    _remove(hosts)


def _remove(hosts: tuple[Host, Host]) -> None:
    for host in hosts:
        host.kill()
        for process in host.started:
            process.communicate(timeout=limit(20))
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def torchrun(hosts: tuple[Host, Host], *overrides: str) -> list[subprocess.Popen[str]]:
    command = [*TORCHRUN, f"--rdzv-endpoint={hosts[0].name}:29400", TRAIN[1], *DDP, *overrides]
    return [host.start(*command) for host in hosts]


def pods(
    hosts: tuple[Host, Host],
    *overrides: str,
    first: tuple[str, str] = ("true", "true"),
    train: Sequence[str] = TRAIN,
    **env: str,
) -> list[subprocess.Popen[str]]:
    meeting = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    return [
        host.start(*train, *DDP, "hardware.num_procs=2", *overrides, first=before, **meeting, **env, RANK=str(index))
        for index, (host, before) in enumerate(zip(hosts, first))
    ]


SOON = f"""
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
import samebits.world.rendezvous, train
samebits.world.rendezvous.VISIBLE_S = 2.0  # a shared file system may show a new file late
samebits.world.rendezvous.SAY_S = 1e6  # else who waits for the other's imports says so, on a busy machine
sys.exit(train.main())
"""


@pytest.mark.slow
def test_a_host_that_does_not_share_the_directory(two_hosts: tuple[Host, Host], tmp_path: Path) -> None:
    shared = tmp_path / "runs"
    shared.mkdir()
    private = f"mount -t tmpfs none {shared}"
    more = ("trainer.max_steps=6", f"hydra.run.dir={shared}/run")
    started = pods(two_hosts, *more, first=("true", private), train=[sys.executable, "-c", SOON])
    (code, said), (other_code, other_said) = ends(started, 60)
    assert (code, other_code) == (2, 2), said + other_said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"host 1 on {two_hosts[1].name} does not see" in errors[0]
    assert "file system that all hosts share" in errors[0]
    assert other_said == ""
    assert not list(shared.iterdir())


def wait_until(condition: Callable[[], bool], seconds: float, processes: list[subprocess.Popen[str]]) -> None:
    def all_run_and() -> bool:
        ended = [p for p in processes if p.poll() is not None]
        assert not ended, f"ended with {ended[0].returncode}: {ended[0].communicate()[1]}"
        return condition()

    wait_for(all_run_and, seconds=seconds)


def trains(run: Path) -> Callable[[], bool]:
    return lambda: (run / "metrics.jsonl").exists() and bool(metrics(run))


def ends(processes: list[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str]]:
    end = time.monotonic() + limit(seconds)
    said = [process.communicate(timeout=max(0.1, end - time.monotonic()))[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


def test_torchrun_on_two_hosts_equals_four_local_ranks(two_hosts: tuple[Host, Host], tmp_path: Path) -> None:
    ended = ends(torchrun(two_hosts, "trainer.max_steps=6", f"hydra.run.dir={tmp_path}/runs/two"), 120)
    assert [code for code, _ in ended] == [0, 0], ended
    called([*TRAIN, *DDP, "trainer.max_steps=6", "hardware.num_procs=4", f"hydra.run.dir={tmp_path}/runs/one"])
    two, one = tmp_path / "runs/two", tmp_path / "runs/one"
    assert sorted((tmp_path / "runs").iterdir()) == [one, two]
    assert len(last_checkpoint(two)["ranks"]) == 4
    assert_equal(last_checkpoint(two)["model"], last_checkpoint(one)["model"])
    assert_equal(metrics(two), metrics(one))
    assert not processes_with(str(tmp_path))


SERVER = """
import sys
from pathlib import Path
import http_files
class Told(http_files.Handler):
    def do_GET(self):
        with self.server.lock:
            print(self.client_address[0], self.headers["Range"].removeprefix("bytes="), flush=True)
        super().do_GET()
sys.stdout = open(sys.argv[3], "w")
server = http_files.Server(sys.argv[1], 8000)
server.RequestHandlerClass, server.files = Told, {"/set.h5": Path(sys.argv[2]).read_bytes()}
server.serve_forever()
"""


def test_two_hosts_read_a_remote_set_by_blocks(two_hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """An epoch is one host's, bit for bit, and each host fetches a block once, for all its ranks."""
    rng, path, log = np.random.default_rng(0), tmp_path / "set.h5", tmp_path / "log"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = rng.integers(0, 256, (20_000, 300), dtype=np.uint8), rng.integers(0, 5, 20_000)
    serve = [sys.executable, "-c", SERVER, two_hosts[0].address, str(path), str(log)]
    two_hosts[0].start(*serve, PYTHONPATH=os.pathsep.join(sys.path))
    wait_for(lambda: log.exists(), seconds=30)
    more = (
        "data.fields={x: x, y: y}", "data.num_outputs=5", "data.splits.test=null", "trainer.global_batch_size=80",
        "data.splits.train={group: /, rows: [0, 0.9]}", "data.splits.val={group: /, rows: [0.9, 1]}",
        "data/order=chunk_windows", "data.order.chunk_rows=1000", "data.order.window=4",
        "trainer.max_steps=225", "trainer.eval_every=225", "trainer.save_every=225",
    )  # fmt: skip
    far = (f"data.path=http://{two_hosts[0].address}:8000/set.h5", "data.cache_gb=1")
    ended = ends(pods(two_hosts, *more, *far, f"hydra.run.dir={tmp_path}/two", LAB_CACHE_DIR=f"{tmp_path}/cache"), 120)
    assert [code for code, _ in ended] == [0, 0], ended
    called([*TRAIN, *DDP, *more, f"data.path={path}", "hardware.num_procs=4", f"hydra.run.dir={tmp_path}/one"])
    assert_equal(last_checkpoint(tmp_path / "two")["model"], last_checkpoint(tmp_path / "one")["model"])
    assert_equal(metrics(tmp_path / "two"), metrics(tmp_path / "one"))
    asked = [line.split() for line in log.read_text().splitlines()]
    for host in two_hosts:
        spans = [tuple(map(int, span.split("-"))) for who, span in asked if who == host.address]
        blocks = [k for begin, end in spans if end > begin for k in range(begin // BLOCK, end // BLOCK + 1)]
        assert blocks
        assert len(blocks) == len(set(blocks))
    assert len(list((tmp_path / "cache/ranges").iterdir())) == 2


@pytest.mark.parametrize("two_hosts", [False], indirect=True)
def test_pods_without_names_and_the_death_of_one(two_hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """The hosts' own names resolve to nothing, where gloo fails by itself. SIGTERM to one preempts all; the run goes
    on; then a host dies, and the run ends."""
    run = tmp_path / "run"
    endless = ("trainer.max_steps=1000000", "trainer.log_every=5", "resume=auto", f"hydra.run.dir={run}")
    started = pods(two_hosts, *endless)
    wait_until(trains(run), 60, started)
    started[1].send_signal(signal.SIGTERM)
    ended = ends(started, 30)
    assert [code for code, _ in ended] == [75, 75], ended
    assert status(run)["status"] == "preempted", ended
    step = last_checkpoint(run)["step"]
    assert f"at step {step:,}" in ended[0][1] or f"at step {step}" in ended[0][1]
    assert not processes_with(str(run))

    started = pods(two_hosts, *endless)
    wait_until(lambda: metrics(run)[-1]["step"] > step, 60, started)
    two_hosts[1].kill()
    (code, said), _ = ends(started, 30)
    assert code == 1, said
    assert status(run)["status"] == "failed", said
    assert not two_hosts[0].processes()


@pytest.mark.slow  # the timeout of the collectives
def test_a_cable_that_is_cut_ends_both_hosts(two_hosts: tuple[Host, Host], tmp_path: Path) -> None:
    run = tmp_path / "run"
    timeout = f"process.timeout={round(5 * slowdown())}s"  # hosts wait three times that for each other
    endless = ("trainer.max_steps=1000000", "trainer.log_every=5", timeout, f"hydra.run.dir={run}")
    started = pods(two_hosts, *endless)
    wait_until(trains(run), 60, started)
    ip("-n", two_hosts[0].name, "link", "set", f"v{two_hosts[0].name}", "down")
    ended = ends(started, 90)
    assert [code for code, _ in ended] == [1, 1], ended
    assert status(run)["status"] == "failed"
    assert not processes_with(str(run))
