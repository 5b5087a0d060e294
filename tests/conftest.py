"""Shared by the tests: compose as the command line does, run, read what a run wrote."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import warm
from omegaconf import DictConfig

from lab.program import PROGRAM

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "src" / "train.py")]
# one thread: runs are forked from this process, and a forked OpenMP pool would hang
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["WANDB_MODE"] = "offline"
# else each worker, and each Python that a test starts, compiles all that it imports anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
torch.set_num_threads(1)
# the same examples each time, and no verdict on a machine that pauses
checks = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=checks)
hypothesis.settings.load_profile("suite")
# nohup, and a shell that starts this in the background, have some signals ignored, and all runs would inherit that
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def count_gpus() -> int:
    """Counted in a child: counting may start CUDA, and no fork of a process that has done so can use a GPU."""
    if not torch.backends.cuda.is_built():
        return 0
    if (child := os.fork()) == 0:
        os._exit(min(torch.cuda.device_count(), 255))
    return max(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if "TESTS_GPUS" not in os.environ:  # pytest-xdist's workers have this process's environment, with the GPUs hidden
    os.environ["TESTS_GPUS"] = json.dumps([count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")])
NUM_GPUS, VISIBLE_GPUS = json.loads(os.environ["TESTS_GPUS"])
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests of the CPU, and all that they fork; those of GPUs use gpu_environment
warm.BEGAN.update(os.environ)


def import_tool(name: str) -> Any:
    """A module of tools/."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


_, *LIBRARIES = warm.code_of(ROOT)


def importing(*folders: Path) -> dict[str, str]:
    """The environment of a process that finds modules in these folders and the libraries, before those where this one
    does."""
    others = filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, (*folders, *LIBRARIES)), *others])}


def gpu_environment() -> dict[str, str]:
    """For a command of a test that is marked gpu."""
    hidden = {key: value for key, value in importing(ROOT / "src").items() if key != "CUDA_VISIBLE_DEVICES"}
    return hidden if VISIBLE_GPUS is None else {**hidden, "CUDA_VISIBLE_DEVICES": VISIBLE_GPUS}


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Iterator[None]:
    """Many of the slow tests wait, for a server, a scheduler, a timeout: with them three workers to two cores. Each
    starts runs of several processes: those of more than 4 cores would be in each other's way."""
    workers = min((yield), 4)
    return workers if "not slow" in config.option.markexpr else 3 * workers // 2


@pytest.hookimpl(tryfirst=True)  # before -m is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """gpu, gpu(2): skipped where there are fewer. one_quick: all cases but the first are slow; one_quick(3): but every
    third."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_quick"):
            name = item.nodeid.partition("[")[0]
            if cases[name] % (mark.args[0] if mark.args else sys.maxsize):
                item.add_marker(pytest.mark.slow)
            cases[name] += 1
        needed = max((mark.args[0] if mark.args else 1 for mark in item.iter_markers("gpu")), default=0)
        if needed > NUM_GPUS:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA devices, there are {NUM_GPUS}"))

    # the longest first: behind all others one of some minutes would have one core at work, and the rest idle
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))


ALL = os.environ.get("TESTS_ALL") == "1"  # before a release: every write that a kill may follow, every fork whole


def sample_of(few: Any, everything: Any) -> Any:
    """What a test tries: of much that is alike a few, where it is not asked for everything."""
    return everything if ALL else few


def slow(*values: Any) -> Any:
    """A case of pytest.mark.parametrize that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


# -- waiting on a machine that is slow or busy -----------------------------------------------------------------------

START = [sys.executable, "-c", "import hydra, asyncio, unittest.mock"]
START_S = 0.35  # two of these at once, on two cores that do nothing else
_slowdown, _measured_at, _collecting = 1.0, -1e9, False


def slowdown() -> float:
    """How many times longer than on a quiet machine a start takes here and now: at least 1, never less than before."""
    global _slowdown, _measured_at
    if time.monotonic() - _measured_at > 240:
        began = time.monotonic()
        for process in [subprocess.Popen(START) for _ in range(2)]:
            assert process.wait() == 0
        _measured_at = time.monotonic()
        _slowdown = max(_slowdown, (_measured_at - began) / START_S)
    return _slowdown


def limit(seconds: float) -> float:
    """seconds: what must be enough where nothing else runs -> what must be enough here. Write no limit without it.

    Not of what is collected: pytest's processes would each measure something else, and disagree on the order of tests.
    """
    assert not _collecting, "pytest.mark.timeout takes the seconds of a quiet machine, without limit(...)"
    return 2 * seconds * slowdown()


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    global _collecting
    _collecting = True


def pytest_collection_finish() -> None:
    global _collecting
    _collecting = False


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs is ended; neither its mark nor `timeout` in pyproject.toml knows how slow this machine is."""
    mark = item.get_closest_marker("timeout")
    item.add_marker(pytest.mark.timeout(limit(mark.args[0] if mark else 150)), append=False)
    yield


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> Any:
    """-> what `condition` returns as soon as that is true. process: one that must still run until then."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert process is None or process.poll() is None, process.communicate()
        assert waited < limit(seconds), f"not within {limit(seconds):.0f} s"
        time.sleep(min(0.005 + waited / 50, 0.05))  # a look at all processes takes as long as the shortest of these
    return found


def at_once(work: Callable[[Any], Any], cases: Iterable[Any]) -> list[Any]:
    """work(case) of each, in threads: for what waits more than it computes."""
    warm.run([sys.executable, "-c", ""])  # the warm process is started by this thread
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(work, cases))


def free_port() -> int:
    """A port of this machine that stays free until it is used: below those that the kernel gives out by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


# small and fast; each test adds what it is about
QUICK = ("logger=none", "hardware=cpu", "hardware.num_threads=1", "model.hidden=[16]", "trainer.max_epochs=null")


_composers: dict[str, Any] = {}  # of each experiment: it may choose a sweeper, which no job of a sweep may


def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """As Hydra composes it, `hydra` included. What differs in plain values alone is composed once, as a sweep does."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from samebits.config.compose import initialize, register_resolvers
    from samebits.sweeps.plan import Composer

    register_resolvers(PROGRAM)
    with initialize(PROGRAM.conf):
        experiment = next((override for override in overrides if override.startswith("experiment=")), "")
        if experiment not in _composers:
            loader = GlobalHydra.instance().config_loader()
            master = hydra.compose("train", [experiment] if experiment else [], return_hydra_config=True)
            _composers[experiment] = Composer(PROGRAM, loader, master, Path.cwd(), Path.cwd())
        keys = [override.partition("=")[0] for override in overrides]
        _composers[experiment].swept = keys
        return _composers[experiment]._composed(overrides)


def compose(*overrides: str, checked: bool = True) -> DictConfig:
    """The checked, resolved config that these overrides make; ${hydra:...} says what it does in a run."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf, open_dict

    from lab.config import check
    from samebits.config.compose import quoted, resolved

    cfg = _composed(tuple(quoted(PROGRAM, overrides)))
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.output_dir = str(Path.cwd() / "run")
    before, HydraConfig.instance().cfg = HydraConfig.instance().cfg, None
    try:
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        cfg = resolved(PROGRAM, cfg, Path.cwd())
    finally:
        HydraConfig.instance().cfg = before
    if checked:
        check(cfg)
    return cfg


def needs(*files: str) -> pytest.MarkDecorator:
    """Of a test about an option of the template's: skipped in a fork that has deleted it."""
    deleted = [name for name in files if not (ROOT / name).exists()]
    return pytest.mark.skipif(bool(deleted), reason=f"this project has no {', '.join(deleted)}")


NEEDS_GPT = needs("conf/model/gpt.yaml", "src/lab/models/gpt.py", "conf/data/tokens.yaml")


def import_once(*overrides: str) -> None:
    """What a run with these overrides imports, so that none of the processes forked from here imports it anew."""
    for name in (*warm.IMPORTS, *(warm.SHARDING if "trainer=fsdp" in overrides else ())):
        importlib.import_module(name)


def start_run(run_dir: Path, *overrides: str, own_process: bool = False) -> Path:
    """A run from start to end, in this process where it has one rank."""
    from lab.program import start

    import_once(*overrides)
    threads = torch.get_num_threads()
    try:
        start(compose(*overrides), run_dir, list(overrides), own_process)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)
    return run_dir


def go_on(run_dir: Path, **changed: Any) -> Path:
    """The run to its end, with these keys of its config changed (dots written __)."""
    from omegaconf import OmegaConf

    from lab.program import start

    cfg = OmegaConf.load(run_dir / "config.yaml")
    for key, value in changed.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    start(cfg, run_dir, [f"{key}={value}" for key, value in changed.items()], own_process=False)
    return run_dir


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs have these callbacks, whatever their config says."""
    return lambda *callbacks: monkeypatch.setattr("lab.run.make_callbacks", lambda config: list(callbacks))


@contextlib.contextmanager
def without_code_generator(monkeypatch: pytest.MonkeyPatch, backend: str = "aot_eager") -> Iterator[list[Any]]:
    """torch.compile traces and runs the same graphs, but with eager kernels. Yields the modes that are asked for."""
    real, asked = torch.compile, []

    def compile(target: Any, mode: str | None = None, **options: Any) -> Any:
        asked.append(mode)
        return real(target, backend=backend, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", compile)
        torch._dynamo.reset()
        yield asked
    torch._dynamo.reset()


def raise_at_step(patch: pytest.MonkeyPatch, step: int, error: BaseException | type[BaseException]) -> None:
    """Each rank of a run raises it where the training step after `step` steps would begin."""
    import lab.loop

    original = lab.loop.train_step

    def train_step(nets: Any, state: Any, *rest: Any) -> Any:
        if state.step == step:
            raise error
        return original(nets, state, *rest)

    patch.setattr(lab.loop, "train_step", train_step)


def last_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Whole, where it was written in parts."""
    from samebits.checkpoints import checkpoint

    found = [path for path in (run_dir / "checkpoints").glob("last_*") if path.suffix in (".pt", ".dcp")]
    return checkpoint.load_checkpoint(max(found, key=lambda path: path.stem))


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "time" and not k.startswith(("perf/", "balance/"))} for line in lines
    ]


def status(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())


def result(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def values(run_dir: Path, key: str) -> list[float]:
    """Those that it has logged."""
    return [line[key] for line in metrics(run_dir) if key in line]


def scores(run_dir: Path) -> dict[str, float]:
    """Those of its end."""
    return {key: value for key, value in result(run_dir).items() if "/" in key and not key.startswith("balance/")}


def assert_undisturbed(run_dir: Path, straight: Path) -> None:
    """Bit for bit."""
    assert status(run_dir)["status"] == "finished"
    assert_equal(last_checkpoint(run_dir), last_checkpoint(straight))
    assert metrics(run_dir) == metrics(straight)
    assert scores(run_dir) == scores(straight)


def old_rng_state() -> dict[str, Any]:
    """The generators' states as checkpoints before 0.2 hold them."""
    kind, keys, *rest = np.random.get_state()
    drawn = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return {**drawn, "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest)}


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    """Bitwise equality of nested containers of tensors."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_equal(x, y, f"{where}[{i}]")
    else:
        assert a == b, f"{where}: {a} != {b}"


def called(
    command: Sequence[Any], code: int | None = 0, seconds: float = 60, fresh: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The command to its end, and what it says. code: the exit status that it must have; None: any. fresh: not from the
    warm process."""
    run = subprocess.run if fresh else warm.run
    done = run([*command], capture_output=True, text=True, timeout=limit(seconds), **options)
    assert code in (None, done.returncode), f"it ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def train_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python src/train.py ...` as a user does, from a folder of its own."""

    def command(*overrides: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        return called([*TRAIN, *overrides], code, cwd=tmp_path, env={**os.environ, **env})

    return command


def processes_with(text: str) -> list[int]:
    """Process ids whose command line or working files name `text`: what a run left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            for _ in range(100):
                line = (entry / "cmdline").read_bytes()
                if line or not (entry / "exe").exists():  # else execv is making it another program
                    break
            if text in line.decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture(autouse=True)
def _only_the_threads_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist's own thread would have all ranks spawned, which is slow and loses what is patched."""
    monkeypatch.setattr("samebits.host.gpu.num_threads", lambda: 1)


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_is_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails half way must not burn a core for the rest of the suite."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for pid in processes_with(str(folder)) if folder is not None else ():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def holds_lock(run_dir: Path) -> bool:
    with open(run_dir / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


HELD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {src!r})
sys.argv[0] = "train.py"
import lab.loop, train
train_step = lab.loop.train_step
def held(nets, state, *rest):
    while state.step >= {step} and not Path({until!r}).exists():
        time.sleep(0.01)
    return train_step(nets, state, *rest)
lab.loop.train_step = held
sys.exit(train.main())
"""


def held_command(step: int, until: Path) -> list[str]:
    """As TRAIN, but no rank goes on after `step` steps before the file `until` is there: however late a test looks, the
    run has not ended."""
    return [sys.executable, "-c", HELD.format(src=str(ROOT / "src"), step=step, until=str(until))]


def ctrl_c_twice(process: subprocess.Popen[str], answer: str, send: Callable[[int], object]) -> str:
    """Returns what it says. The second comes when the first was heard; again where both were taken for one."""
    from samebits.signals import SAME_SIGNAL_S

    assert process.stderr is not None
    send(signal.SIGINT)
    heard = ""
    while answer not in heard:
        heard += (line := process.stderr.readline())
        assert line, heard
    time.sleep(2 * SAME_SIGNAL_S)
    assert process.poll() is None, heard
    for _ in range(3):
        send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return heard + process.communicate(timeout=limit(10))[1]
    raise AssertionError(f"it goes on: {heard}")


def in_a_terminal(*command: str) -> tuple[subprocess.Popen[bytes], int]:
    """The command in a terminal of its own -> (its process, the terminal's other end)."""
    ours, theirs = pty.openpty()
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    return process, ours


def kill_at(run_dir: Path, step: int, overrides: tuple[str, ...], suffix: str = ".pt") -> None:
    """Start the command, SIGKILL it as soon as a checkpoint of `step` or later is there, wait for its ranks to go."""
    command = [*held_command(step + 8, Path("/never")), *overrides]
    process = warm.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(int(p.stem[5:]) >= step for p in (run_dir / "checkpoints").glob(f"last_*{suffix}")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not holds_lock(run_dir))  # no rank outlives its parent


def killed_at(run_dir: Path, steps: Sequence[int], overrides: tuple[str, ...], suffix: str = ".pt") -> Path:
    """A run that was killed at each of these steps, resumed each time, and left alone at last."""
    for attempt, step in enumerate(steps):
        again = (f"resume={run_dir}",) if attempt else (*overrides, f"hydra.run.dir={run_dir}")
        kill_at(run_dir, step, again, suffix)
        assert status(run_dir)["status"] == "running"
    called([*TRAIN, f"resume={run_dir}"])
    return run_dir
