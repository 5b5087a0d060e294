"""What a failure ends with: one line that says what was raised where, and how to go on."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from common import QUICK, ROOT

from lab.callbacks.base import Callback
from samebits.errors import RunFailed
from samebits.status import read_failure
from samebits.testing import result, start_run
from samebits.world import RankLauncher

RUN = (*QUICK, "trainer.max_steps=8", "trainer.save_every=2")


class Breaks(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state):  # type: ignore[no-untyped-def]
        if state.step == self.step:
            raise KeyError("boom")


@pytest.mark.parametrize(
    ("step", "end"), [(5, "; resume from step 4 with: resume=runs/a"), (1, " (runs/a)")], ids=["saved", "not saved"]
)
def test_it_names_the_line_of_the_user_s_file_and_the_command_that_goes_on(
    tmp_path: Path, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    step: int, end: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    use(Breaks(step))
    with pytest.raises(RunFailed) as error:
        start_run(tmp_path / "runs" / "a", *RUN)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if 'KeyError("boom")' in text)
    assert str(error.value) == f"KeyError: 'boom' ({__file__}, line {line}){end}"
    shown = capfd.readouterr().err.partition("rank 0 failed:\n")[2]
    assert len(shown.splitlines()) <= 8
    assert "LAB_TRACEBACK=1 prints the whole traceback" in shown
    assert "Traceback (most recent call last)" in (tmp_path / "runs/a/failure.json").read_text()


def test_a_killed_rank_s_too(tmp_path: Path, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    class Dies(Callback):
        def on_step(self, state):  # type: ignore[no-untyped-def]
            if state.step == 5 and self.run.world.rank == 1:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.chdir(tmp_path)
    use(Dies())
    with pytest.raises(RunFailed, match=r"rank 1 was killed by SIGKILL .*; resume from step 4 with: resume=runs/a$"):
        start_run(tmp_path / "runs" / "a", *RUN, "trainer=ddp", "hardware.num_procs=2")


def test_the_best_checkpoint_of_a_result_is_found_where_the_run_is(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2").rename(tmp_path / "b")
    assert (run / result(run)["best_checkpoint"]).is_file()
    assert not Path(result(run)["best_checkpoint"]).is_absolute()


def test_a_rank_that_aborts_is_told_the_likely_cause(tmp_path: Path) -> None:
    def work(directory: Path) -> None:
        if os.environ["RANK"] == "1":
            faulthandler.disable()
            os.abort()

    with pytest.raises(RunFailed):
        RankLauncher().run(work, tmp_path, 2)
    message = (read_failure(tmp_path) or {})["message"]
    assert message.startswith("rank 1 was killed by SIGABRT (native code gave up")
    page = "docs/troubleshooting.md"
    section = (ROOT / page).read_text().partition("### Killed by SIGABRT\n")[2].partition("\n#")[0]
    assert page in message and "trainer.pad_eval_batches=true" in section  # noqa: PT018
