"""However a run ends, and whatever delivers its data: its exit status, its last line, and nothing left behind."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT

from samebits.testing import assert_equal, last_checkpoint, status
from samebits.testing.processes import called, importing, limit, sample_of, slow

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
EVERY = ("trainer.eval_every=2", "trainer.max_eval_batches=1", "trainer.log_every=100", "trainer.save_every=100")
COMMON = (*QUICK, *EVERY)
DATA = ("data=synthetic", "data.shape=[8]", "data.num_classes=3", "data.size=64", "trainer.global_batch_size=8")
RANKS = {1: ("trainer=single",), 2: ("trainer=ddp", "hardware.num_procs=2")}
KINDS = ("in process", "workers", "collate", "threads", "stream")
ENDS = {  # what happens at step 3 -> exit status, its status.json, the last line on the screen
    "end": (0, "finished", ""),
    "callback": (1, "failed", "ZeroDivisionError: in a callback ("),
    "data": (1, "failed", "OSError: cannot be read ("),
    "SIGINT": (130, "interrupted", "saved; resume with: resume="),
    "SIGTERM": (75, "preempted", "saved; resume with: resume="),
}


def outcomes(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each case of ends.py, one after the other."""
    for i, case in enumerate(cases):
        case |= {"folder": case.get("folder", str(folder / str(i))), "limit_s": limit(20)}
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(ROOT / "checks/helpers/ends.py"), str(folder / "cases.json")]
    done = called(command, seconds=30 + 10 * len(cases), env=importing(ROOT / "src", ROOT / "tests"))
    return [json.loads(line) for line in done.stdout.splitlines()]


def last_line(shown: str) -> str:
    return shown.strip().splitlines()[-1]


FEW = [("collate", "callback", 1), ("collate", "data", 2), ("threads", "SIGINT", 1), ("workers", "SIGTERM", 2)]


def of_ranks(ranks: int) -> list[tuple[str, str, int]]:
    """Every end of every loader; of each number of ranks each end and each loader once, where not all are asked for."""
    pairs = itertools.product(enumerate(KINDS), enumerate(ENDS))
    chosen = [(kind, end, ranks) for (i, kind), (j, end) in pairs if (i + j + ranks) % 5 == 0 or sample_of(False, True)]
    return [case for case in chosen if case not in FEW]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [FEW, slow(of_ranks(1)), slow(of_ranks(2))], ids=["some", "1 rank", "2 ranks"])
@pytest.mark.timeout(0)
def test_every_end_of_every_loader(tmp_path: Path, cases: list[tuple[str, str, int]]) -> None:
    asked = []
    for kind, end, ranks in cases:
        steps = f"trainer.max_steps={4 if end == 'end' else 10**6}"
        signals = [end] if end.startswith("SIG") else []
        overrides = [*COMMON, *RANKS[ranks], steps, "hydra.run.dir=run"]
        asked.append({"overrides": overrides, "kind": kind, "end": end, "signals": signals})
    for case, (_, end, ranks), found in zip(asked, cases, outcomes(tmp_path, asked), strict=True):
        code, state, line = ENDS[end]
        where = f"{case['kind']}, {end}, {ranks} ranks: {found}"
        assert found["code"] == code, where
        assert found["left"] == [], where
        assert status(Path(case["folder"]) / "run")["status"] == state, where
        assert line in last_line(found["shown"]), where
        if end == "data":
            classes = {"in process": "Items", "workers": "Items", "collate": "Collated", "threads": "Table"}
            assert f"({classes.get(case['kind'], 'Source')}, " in last_line(found["shown"]), where
            assert "33" in last_line(found["shown"]) or case["kind"] == "threads", where
            assert "of split train)" in last_line(found["shown"]), where


STORMS = [["SIGTERM"], ["SIGINT"], ["SIGHUP"], ["SIGUSR1"], ["SIGUSR2"], ["SIGTERM", "SIGUSR1", "SIGHUP"]]


ONE = [(1, kind, signals) for kind, signals in zip(("", *KINDS), STORMS, strict=True)]
TWO = [(2, kind, signals) for kind, signals in zip((*KINDS, ""), STORMS, strict=True)]
POOL = [(0, "", signals) for signals in STORMS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [[(1, "collate", ["SIGTERM"]), (2, "", ["SIGUSR1"])], slow(sample_of([ONE[5], TWO[1], POOL[3]], ONE + TWO + POOL))],
    ids=["some", "others"],
)
@pytest.mark.timeout(0)
def test_a_signal_that_does_not_end_changes_nothing(tmp_path: Path, cases: list[tuple[int, str, list[str]]]) -> None:
    """Every 10 ms from step 3 until the process is gone. What it was told first, a checkpoint and the exit status of
    that, is what there is; the resumed run is the undisturbed one, whatever delivers its data."""
    steps = ("trainer.max_steps=12", "model.dropout=0.2", "trainer.log_every=5")
    straight: dict[tuple[int, str], dict[str, Any]] = {}
    asked, again = [], []
    for i, (ranks, kind, signals) in enumerate(cases):
        folder, data = tmp_path / f"{i}", () if kind else DATA
        overrides = [*COMMON, *RANKS[ranks or 1], *steps, *data]
        case: dict[str, Any] = {"kind": kind, "end": "", "signals": []}
        whole = {"overrides": [*overrides, "hydra.run.dir=run"], "folder": f"{tmp_path}/straight{len(straight)}"}
        straight.setdefault((ranks, kind), {**case, **whole})
        sweep = [*overrides, "-m", "seed=0", "hydra/launcher=pool", "hydra.sweep.dir=sweep", "sweep=x"]
        case["folder"] = str(folder)
        first = whole["overrides"] if ranks else sweep
        asked.append({**case, "overrides": first, "signals": [*signals, *signals]})
        again.append({**case, "overrides": [f"resume={folder}/run"] if ranks else sweep})
    found = outcomes(tmp_path, [*straight.values(), *asked])[len(straight) :]
    for (ranks, kind, signals), case, one in zip(cases, asked, found, strict=True):
        where = f"{signals}, {ranks} ranks, {kind}: {one}"
        by_ctrl_c = "SIGINT" in signals
        assert one["code"] == (130 if by_ctrl_c else 75), where
        assert one["sent"] > 2, where
        assert one["left"] == [], where
        assert "Traceback" not in one["shown"], where
        run = next(Path(case["folder"]).rglob("status.json")).parent
        assert status(run)["status"] == ("interrupted" if by_ctrl_c else "preempted"), where
    for (ranks, kind, _), case, one in zip(cases, asked, outcomes(tmp_path, again), strict=True):
        assert one["code"] == 0, one
        run = next(Path(case["folder"]).rglob("status.json")).parent
        assert_equal(last_checkpoint(run), last_checkpoint(Path(straight[ranks, kind]["folder"]) / "run"))
