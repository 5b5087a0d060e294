"""Runs of several folders in one report: one row for each configuration, whoever ran it, wherever the data lie."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest
from common import QUICK, ROOT
from fork import copy_of_the_project, run_undrawn

from lab.program import PROGRAM
from samebits.sweeps.report import Objective, groups, read_study
from samebits.testing import result

LOSS = Objective("val/loss", "min")
SWEEP = ("-m", *QUICK, "trainer.max_steps=4", "trainer.log_every=2", "optim=sgd", "hydra.sweep.dir=outputs/lr")


def of_an_older_version(run: Path, root: Path) -> None:
    """As versions wrote it that saved absolute paths and no fingerprints."""
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("${root:}", str(root)))
    known = json.loads((run / "environment.json").read_text())
    del known["files"]
    (run / "environment.json").write_text(json.dumps(known))


@pytest.mark.slow
def test_two_people_s_folders_are_one_sweep(tmp_path: Path) -> None:
    """A's data lie in the project, B's on another disk; A's are runs of an older version, too."""
    a, b = (copy_of_the_project(tmp_path / name) for name in "ab")
    other = Path(shutil.copy(ROOT / "data/digits.h5", tmp_path / "elsewhere.h5"))
    run_undrawn(a, "train", *SWEEP, "optim.lr=0.1,0.01", "seed=0,1")
    run_undrawn(b, "train", *SWEEP, "optim.lr=1e-2", "seed=2,3", f"data.path={other}")
    for as_it_was in (False, True):
        if as_it_was:
            for path in (a / "outputs/lr").glob("*/config.yaml"):
                assert "path: ${root:}/data/digits.h5" in path.read_text()
                of_an_older_version(path.parent, a)
            shutil.rmtree(b / "outputs")
            run_undrawn(b, "train", *SWEEP, "optim.lr=1e-2", "seed=2,3")
        shown = run_undrawn(b, "report", str(a / "outputs/lr"), "outputs/lr", "--out", str(tmp_path / "both"))
        found = {group.label: group for group in groups(read_study(PROGRAM, [a / "outputs/lr", b / "outputs/lr"]))}
        assert sorted(found) == ["lr=0.01", "lr=0.1"]
        assert read_study(PROGRAM, [a / "outputs/lr", b / "outputs/lr"]).unswept == ()
        lower = [*(a / "outputs/lr").glob("lr-0.01*"), *(b / "outputs/lr").glob("seed-*")]
        scores = [result(path)["val/loss"] for path in lower]
        assert len(set(scores)) == 4
        assert found["lr=0.01"].std(LOSS) == pytest.approx(statistics.stdev(scores), rel=1e-12)
        assert found["lr=0.01"].mean(LOSS) == pytest.approx(statistics.fmean(scores), rel=1e-12)
        assert "n=4  lr=0.01" in shown
        assert "n=2  lr=0.1" in shown
        assert shown.splitlines().index("val/loss (min is best), mean ± standard deviation of n jobs:") >= 0
    loose = [*(a / "outputs/lr").glob("lr-*"), *(b / "outputs/lr").glob("seed-*")]
    runs = read_study(PROGRAM, loose)  # one by one, not as sweeps
    assert {group.label: len(group.jobs) for group in groups(runs)} == {"optim.lr=0.01": 4, "optim.lr=0.1": 2}


def scores(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(("loss ", "accuracy "))]


@pytest.mark.slow
def test_a_moved_run_needs_no_override(tmp_path: Path) -> None:
    """evaluate, predict, verify, resume in another clone, from other working directories; the first clone is gone."""
    a, b = (copy_of_the_project(tmp_path / name) for name in "ab")
    run = ("outputs/run", "trainer.max_steps=4", "trainer.log_every=1", "trainer.save_every=2")
    run_undrawn(a, "train", f"hydra.run.dir={run[0]}", *QUICK, *run[1:])
    shutil.copytree(a / run[0], b / run[0])
    shutil.copytree(a / run[0], b / "outputs/old")
    of_an_older_version(b / "outputs/old", a)
    before = run_undrawn(a, "evaluate", "outputs/run")
    run_undrawn(a, "train", f"resume={run[0]}", "trainer.max_steps=6")
    a.rename(tmp_path / "gone")
    for name in ("run", "old"):
        moved = b / "outputs" / name
        assert scores(run_undrawn(b, "evaluate", str(moved), cwd=tmp_path)) == scores(before)
        assert "bit for bit" in run_undrawn(b, "verify", f"outputs/{name}", cwd=b)
        run_undrawn(b, "predict", str(moved), "--out", str(tmp_path / f"{name}.npz"), cwd=tmp_path)
        run_undrawn(b, "train", f"resume={moved}", "trainer.max_steps=6", cwd=tmp_path)
        assert len(scores(before)) == 2
        straight = result(tmp_path / "gone/outputs/run")
        assert {k: v for k, v in result(moved).items() if "/" in k} == {k: v for k, v in straight.items() if "/" in k}
    changes = json.loads((b / "outputs/run/environment.json").read_text())["changes"]
    assert [list(change["was"]) for change in changes] == [["trainer.max_steps"]]


@pytest.mark.slow
def test_a_resume_says_whether_the_data_elsewhere_are_the_same(tmp_path: Path) -> None:
    same, other = (Path(shutil.copy(ROOT / "data/digits.h5", tmp_path / f"{name}.h5")) for name in ("same", "other"))
    with open(other, "r+b") as file:
        file.seek(70_000)
        file.write(b"other")
    run = f"hydra.run.dir={tmp_path}/run"
    run_undrawn(ROOT, "train", run, *QUICK, "trainer.max_steps=2")
    shown = run_undrawn(
        ROOT, "train", f"resume={tmp_path}/run", "trainer.max_steps=3", "data.path=same.h5", cwd=tmp_path
    )
    assert f"data.path={same}: the same data as ${{root:}}/data/digits.h5" in shown
    changes = json.loads((tmp_path / "run/environment.json").read_text())["changes"]
    assert [list(change["was"]) for change in changes] == [["trainer.max_steps"]], "no change of the data"
    shown = run_undrawn(
        ROOT, "train", f"resume={tmp_path}/run", "trainer.max_steps=4", f"data.path={other}", cwd=tmp_path
    )
    assert f"data.path: {other} (139,728 bytes) differs from the data at the start of the run" in shown
