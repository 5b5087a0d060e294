"""How processes start and how they end. Importing this imports no torch.

A run of one rank stays in the parent's process, so a debugger works. Several ranks, and every job of a multirun, are
processes of their own, forked from a parent that has imported torch once, made no CUDA call and started no thread
(measured: as fast to the first step as one process; spawn takes a second and a half more). Where fork is not safe
(macOS) they are spawned. The parent hands over the run directory and nothing else.

A rank that ends badly has written failure.json; for one that a signal killed the parent does. The others find that
their connection broke, or their watch does (lab.watch), and end by themselves; the parent kills what is left.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from lab import early
from lab.directory import failure, record_failure
from lab.distributed import first_rank, rank_environment
from lab.errors import RankLost, RunFailed
from lab.parent import die_with
from lab.stop import SAME_S, handling, heeded, held_signals

SAID = (0, 1, 130)  # how _rank_main ends: well, or with a record, or by a second Ctrl-C
SETTLE_S = 0.1  # ranks end within this of each other when one fault ends them all
LAST_S = 20.0  # what the other ranks get to end by themselves after one has failed: a rank's watch needs 6

LIKELY: dict[int, str] = {  # what sends a rank these signals
    signal.SIGKILL: " (the kernel does that when memory runs out: see dmesg)",
    signal.SIGABRT: " (native code gave up, as gloo does where ranks join a collective with tensors of different "
    "sizes; if that is one of the criterion or a metric: trainer.eval_in_step=true)",
}


class Ranks:
    """The processes of one run, and the signals that reach their parent."""

    def __init__(self) -> None:
        self.signalled: signal.Signals | None = None
        self._signalled_at = 0.0
        self._processes: list[Any] = []

    @contextmanager
    def passing_on_signals(self) -> Iterator[None]:
        """A scheduler, or `kill`, signals the parent alone: the ranks save and end. At a second Ctrl-C they end now."""
        if asked := early.asked():
            self.signalled = signal.Signals[asked]
        with handling(self._handle):
            yield

    def _handle(self, number: int, frame: Any) -> None:
        if number == getattr(signal, "SIGHUP", None):
            early.leave_hung_up_terminal()
        now, again = time.monotonic(), self.signalled == number == signal.SIGINT
        if again and now - self._signalled_at > SAME_S:
            raise KeyboardInterrupt
        if not again:
            self.signalled, self._signalled_at = signal.Signals(number), now
        self._tell(number)

    def _tell(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def run(self, target: Callable[[Path], None], directory: Path, count: int) -> None:
        """target(directory) in `count` ranks until all have ended; RunFailed when one did not end well."""
        context: Any = mp.get_context("fork" if sys.platform == "linux" else "spawn")
        with meeting_file() as store:
            arguments = [(rank, target, directory, count, store, os.getpid()) for rank in range(count)]
            processes = [context.Process(target=_rank_main, args=given, name=f"rank-{given[0]}") for given in arguments]
            try:
                with held_signals():  # a rank takes those that come early when it is ready for them
                    for process in processes:
                        process.start()
                    self._processes = processes
                    if self.signalled is not None:  # it came before there was a rank to tell
                        self._tell(self.signalled)
                self._wait(directory)
            finally:
                for process in processes:
                    if process.pid is not None:
                        process.kill()
                        process.join()
                self._processes = []
        codes = [process.exitcode for process in processes]
        if codes != [0] * count:
            if 130 in codes:
                raise KeyboardInterrupt
            lost = RankLost(f"the ranks ended with exit status {codes}")
            record_failure(directory, first_rank(count), lost)  # unless there is a record
            raise RunFailed(str(lost))

    def _wait(self, directory: Path) -> None:
        """Until all have ended well, or one has not and the others have had their time."""
        running = {process.sentinel: process for process in self._processes}
        while running:
            for sentinel in connection.wait(list(running)):
                process = running.pop(sentinel)  # type: ignore[call-overload]
                process.join()
                if process.exitcode != 0:
                    time.sleep(SETTLE_S)
                    self._record_death(directory)
                    self._let_end(directory)
                    return

    def _record_death(self, directory: Path) -> None:
        """One that a signal killed cannot say so itself, and the others would: that their connection broke."""
        for rank, process in enumerate(self._processes, start=first_rank(len(self._processes))):
            code = process.exitcode
            if code in (None, *SAID) or (code == -signal.SIGABRT and failure(directory) is not None):
                continue  # gloo's threads may abort a rank that ends after a failure of another
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            record_failure(directory, rank, RankLost(f"rank {rank} {how}{LIKELY.get(-code, '')}"), first=True)
            return

    def _let_end(self, directory: Path) -> None:
        end = time.monotonic() + LAST_S
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        self._record_death(directory)  # the kernel may have taken longer to bury one than the others to miss it
        left = [process for process in self._processes if process.is_alive()]
        for process in left:  # native code holds its interpreter: faulthandler says where
            os.kill(process.pid, signal.SIGABRT)
        for process in left:
            process.join(1.0)


@contextmanager
def meeting_file() -> Iterator[str]:
    """The path of a file at which ranks forked in this block meet; in memory, so that nothing can stay behind."""
    if hasattr(os, "memfd_create"):
        store = os.memfd_create("lab-store")
        try:
            yield f"/proc/self/fd/{store}"
        finally:
            os.close(store)
    else:
        with tempfile.TemporaryDirectory(prefix="lab-") as folder:
            yield str(Path(folder) / "store")


def _rank_main(
    index: int, target: Callable[[Path], None], directory: Path, count: int, store: str, parent: int
) -> None:
    die_with(parent)
    for number in heeded():  # they wait (held_signals) until the run takes them
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(rank_environment(index, count, store), LAB_PARENT=str(parent))
    try:
        target(directory)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if failure(directory) is None:  # no room for a record on the disk
            print(f"rank {index}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
