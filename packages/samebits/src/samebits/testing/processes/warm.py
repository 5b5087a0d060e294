"""Start commands like subprocess, but by forking a process that has already imported torch and the project: 0.3 s
instead of 2 s. In all other respects it is a separate process: pid, exit status, output, signals, /proc.

    done = warm.run([*TRAIN, "trainer.max_steps=3"], cwd=tmp_path, capture_output=True, text=True)

A copy of the project (its src/ is first in PYTHONPATH) uses a second warm process without modules of the project.

Use subprocess for tests of what happens before or during these imports: options of the interpreter, early signals,
another version of a package, CUDA, environment variables that are read only once.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# imports of a run before its first step, without packages that tests replace or hide (wandb, matplotlib, optuna, ...)
IMPORTS = (
    "hydra._internal.core_plugins.basic_launcher", "hydra.core.global_hydra", "hydra.core.plugins", "h5py", "numpy",
    "torch", "torch.distributed", "torch.optim",
    "samebits.config", "samebits.device", "samebits.world", "samebits.runs", "samebits.loggers", "samebits.sweeps",
    "samebits.process.parent", "samebits.sweeps.command", "samebits.sweeps.verify",
)  # fmt: skip
LATER = {  # imported at the first command with this text
    "trainer=fsdp": ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo"),
    "sweeper=optuna": ("optuna", "sqlalchemy.orm", "alembic.command"),
}
OTHERS = (  # for a copy of the project, and its tests
    "h5py", "hydra._internal.core_plugins.basic_launcher", "hydra.core.plugins", "hypothesis", "matplotlib", "numpy",
    "pytest", "torch.distributed", "torch.optim", "torchmetrics", "wandb",
)  # fmt: skip
ONCE = ("OMP_", "MKL_", "TORCH_", "PYTHON", "CUDA_", "LC_", "LANG")  # variables that imports or Python read only once
SPACE = 16_000  # bytes reserved for a command line in /proc
BEGAN: dict[str, str] = {}  # environment at the start of the tests, without changes by the test that first uses this


def is_project(folder: str) -> bool:
    """Return True if the folder is src/ of the project or of a copy of it."""
    return (Path(folder) / "train.py").exists()


def code_of(root: Path) -> list[Path]:
    """Return the source folders of a project and of the libraries in its repository."""
    return [root / "src", *sorted(root.glob("packages/*/src"))]


def _root() -> Path:
    """Return the folder of the tested project; in the library's own tests, the folder of this module."""
    from samebits.testing.processes import registered

    return registered.program().root if registered.is_registered() else Path(__file__).parent


def is_for_copy(environment: dict[str, str]) -> bool:
    """Return True if the first folder of PYTHONPATH is src/ of a copy of the tested project."""
    from samebits.testing.processes import registered

    first = environment.get("PYTHONPATH", "").partition(os.pathsep)[0]
    return registered.is_registered() and Path(first) != _root() / "src" and is_project(first)


def read_once(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that are read only once, by an import or at the start."""
    return {key: value for key, value in environment.items() if key.startswith(ONCE) and key != "PYTHONPATH"}


# -- in the process of the tests -------------------------------------------------------------------------------------


class _Warm:
    """The warm process. It starts at the first use and ends with the process that started it."""

    def __init__(self, for_copy: bool) -> None:
        self.pid = os.getpid()
        self.channel, theirs = socket.socketpair()
        self.asking = threading.Lock()
        self.environment = read_once(BEGAN)
        from samebits.testing.processes import registered

        paths = [*map(str, code_of(_root())), *filter(None, [BEGAN.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(theirs.fileno()), str(_root()),
             json.dumps(OTHERS if for_copy else [*IMPORTS, *registered.imports]), str(int(for_copy)), " " * SPACE],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**BEGAN, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        theirs.close()
        atexit.register(self.end)

    def start(self, request: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """Start a command. Return its process id, and a file descriptor from which its exit status can be read."""
        differs = read_once(request["environment"]).items() ^ self.environment.items()
        assert not differs, f"the warm process has already read these variables; use subprocess: {differs}"
        status, theirs = os.pipe()
        text = json.dumps(request).encode()
        fds = array.array("i", [*streams, theirs])
        with self.asking:
            self.channel.sendmsg([len(text).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            self.channel.sendall(text)
            os.close(theirs)
            pid = int.from_bytes(_exactly(self.channel, 4), "little")
        return pid, status

    def end(self) -> None:
        """Let the warm process end, and wait for it."""
        if os.getpid() == self.pid:
            self.channel.close()
            self.process.wait()


_warm: dict[bool, _Warm] = {}


def _started(for_copy: bool = False) -> _Warm:
    if for_copy not in _warm or _warm[for_copy].pid != os.getpid():
        _warm[for_copy] = _Warm(for_copy)
    return _warm[for_copy]


_Popen: Any = subprocess.Popen  # whose private methods are replaced


class Popen(_Popen):  # type: ignore[misc]
    """subprocess.Popen for [sys.executable, a script, or -c and code, arguments ...]."""

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, *process_group,
    ) -> None:  # fmt: skip
        python, *command = [os.fspath(arg) for arg in args]
        folder, environment = Path(cwd or ".").absolute(), dict(os.environ if env is None else env)
        assert python == sys.executable, f"{python} is not the python of the tests"
        assert not any((executable, preexec_fn, pass_fds, shell)), "these options need subprocess.Popen"
        for_copy = is_for_copy(environment)
        if command[0] not in ("-c", "-m"):
            command[0] = str(folder / command[0])
            assert Path(command[0]).is_relative_to(_root()) or for_copy, f"{command[0]}: is in another copy"
        request = {"command": command, "folder": str(folder), "environment": environment, "session": start_new_session}
        streams = [given if given != -1 else i for i, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid, self._status = _started(for_copy).start(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        said = os.read(self._status, 4)
        os.close(self._status)
        assert said, "the warm process has ended"
        return self.pid, int.from_bytes(said, "little")

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: list[Any], *, input: Any = None, capture_output: bool = False, timeout: float | None = None,
    check: bool = False, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """Run a command like subprocess.run, and by subprocess.run if the environment changes variables of `ONCE`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    given = options.get("env")
    environment = dict(os.environ if given is None else given)
    fits = read_once(environment) == _started(is_for_copy(environment)).environment
    with (Popen if fits else subprocess.Popen)(command, **options) as process:
        try:
            out, error = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, error)
    if check:
        done.check_returncode()
    return done


def _exactly(channel: socket.socket, count: int) -> bytes:
    said = b""
    while len(said) < count:
        more = channel.recv(count - len(said))
        assert more, "the warm process has ended"
        said += more
    return said


# -- in the warm process ---------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns only in the forks: the request, and its standard streams."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        waiting: list[Any] = [channel, woken]
        ready = select.select(waiting, [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_statuses(statuses)
        if channel not in ready:
            continue
        head, ancillary, *_ = channel.recvmsg(4, socket.CMSG_SPACE(16))
        if not head:
            os._exit(0)  # the tests have ended
        *streams, status = array.array("i", ancillary[0][2])
        request = json.loads(_exactly(channel, int.from_bytes(head, "little")))
        for text, names in LATER.items():
            if any(text in word for word in request["command"]) and names[0] not in sys.modules:
                with contextlib.suppress(ModuleNotFoundError):  # an extra; the command reports it
                    import_all(names)
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (woken, wakes, status, *statuses.values()):
                os.close(fd)
            channel.close()
            return request, streams
        statuses[pid] = status
        for fd in streams:
            os.close(fd)
        channel.sendall(pid.to_bytes(4, "little"))


def _tell_statuses(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        fd = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the test no longer reads it
            os.write(fd, status.to_bytes(4, "little"))
        os.close(fd)


def become(request: dict[str, Any], streams: list[int], set_by_imports: dict[str, str]) -> None:
    """Make this process look like one that was just started with this command."""
    if request["session"]:
        os.setsid()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - never closed
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update({**set_by_imports, **request["environment"]})
    folders = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    folders += [str(path) for folder in folders if is_project(folder) for path in code_of(Path(folder).parent)]
    command = request["command"]
    first = "" if command[0] in ("-c", "-m") else str(Path(command[0]).resolve().parent)
    sys.path[:1] = [first, *folders]
    sys.orig_argv = [sys.executable, *command]
    sys.argv = ["-c", *command[2:]] if command[0] == "-c" else list(command)
    show_as([sys.executable, *command])
    import numpy

    numpy.random.seed()


def show_as(command: list[str]) -> None:
    """Write the command to /proc/self/cmdline, where tests search for processes of a run."""
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, the 48th and the 49th
    text = b"\0".join(os.fsencode(word) for word in command)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def import_all(names: Sequence[str]) -> None:
    """Import these modules, and exclude their objects from garbage collection in the forks."""
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def fill_caches() -> None:
    """Let Hydra and OmegaConf parse some text: their parsers build tables at the first use, which the forks inherit."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf.grammar_parser import parse

    overrides = "a.b=1 a/b=[x,y] +a@b.c='d' ++a.b=0.5 ~a a.b=/x/y-1.h5 a={b:null,c:[1,2]} a=true,false"
    OverridesParser.create().parse_overrides(overrides.split())
    for text in ("${a.b}", "${root:}/a/${b}.h5", "${a:b,null}", "${a:${b.c},'d'}", "x_${a:}"):
        parse(text)


def main() -> None:
    """Serve as the warm process, and run the command in each fork."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests handle Ctrl-C
    before = dict(os.environ)
    from samebits.torch_private import set_death_signal

    set_death_signal(signal.SIGKILL)
    root, names = Path(sys.argv[2]), json.loads(sys.argv[3])
    if sys.argv[4] == "1":  # for a copy of the project
        for name in [name for name in sys.modules if name.partition(".")[0] == "samebits"]:
            del sys.modules[name]
        ours = {str(path) for path in code_of(root)}  # also those of an editable installation
        sys.path[1:] = [folder for folder in sys.path[1:] if folder not in ours]
    elif is_project(str(root / "src")):
        importlib.import_module("_python")  # the project's
    import_all(names)
    fill_caches()
    request, streams = serve(channel)
    set_death_signal(0)
    become(request, streams, {key: value for key, value in os.environ.items() if key not in before})
    end(run_command, request["command"])


def run_command(command: list[str]) -> None:
    """Run a script, -c CODE or -m MODULE."""
    import runpy

    if command[0] == "-c":
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(command[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


def end(work: Callable[[list[str]], None], command: list[str]) -> NoReturn:
    """Run the command and exit as Python does, but without deleting modules, which takes longer than most commands."""
    status: Any = 0
    try:
        work(command)
    except SystemExit as asked:
        status = asked.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    main()
