"""A run started again is compared bit for bit, and what differs is named. The run's directory stays as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import pytest
import torch
import yaml
from common import QUICK, ROOT
from fork import commit, copy_of_the_project, git, run_python

import verify
from lab.program import PROGRAM, start
from samebits.code import code_of, codes_of, environment, libraries_of, source, surroundings
from samebits.errors import ConfigError
from samebits.runs import reopen_directory, undo_resume
from samebits.saved import read_config
from samebits.sweeps.verify import compare, recompute
from samebits.testing import compose, metrics, start_run, status
from samebits.testing.processes import called, warm

RUN = (*QUICK, "trainer.max_steps=24", "trainer.log_every=4", "trainer.eval_every=6", "trainer.save_every=10")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("whole") / "run", *RUN)


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def files(run: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(run.rglob("*")) if p.is_file()}


def command(run: Path, *more: str, code: int = 0, src: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(src / "verify.py"), str(run), *more]
    return called(words, code, env={**os.environ, "PYTHONPATH": str(src)})


def test_a_run_is_equal_to_itself_started_again_and_stays_as_it_is(whole: Path) -> None:
    """In a fresh process, to its end."""
    before = files(whole)
    found = recompute.verify(PROGRAM, whole, commit=recompute.HERE)
    assert found.equal, found
    assert found.rounding == 0
    names = [part.name for part in found.parts]
    assert names[0] == "metrics.jsonl"
    assert {"checkpoints/last_000000020.pt", "checkpoints/last_000000024.pt", "result.json"} < set(names)
    assert files(whole) == before


@pytest.fixture
def warm_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run is forked from the warm process."""

    def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        return (warm if words[0] == sys.executable else subprocess).run(words, **options)

    monkeypatch.setattr(recompute, "subprocess", SimpleNamespace(run=run))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_again")
def test_its_first_steps_are_compared_alone(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Under the schedule of the whole run, up to the first step whose weights were saved."""
    found = recompute.verify(PROGRAM, whole, 12, recompute.HERE, tmp_path / "again")
    assert (found.equal, found.weights, found.steps) == (True, True, 20), found
    assert status(tmp_path / "again")["status"] == "preempted"
    assert metrics(tmp_path / "again") == [record for record in metrics(whole) if record["step"] <= 20]
    assert "--steps 12: continues to step 20, where the run saved its weights" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("warm_again")
def test_the_second_run_may_stop_at_a_step_with_an_evaluation_only(tmp_path: Path) -> None:
    """There the first run has saved the best weights, and no checkpoint was due."""
    run = start_run(tmp_path / "run", *RUN, "trainer.keep_best=4")
    found = recompute.verify(PROGRAM, run, 12, recompute.HERE)
    assert (found.equal, found.weights, found.steps) == (True, True, 12), found


def test_a_run_without_checkpoints_has_nothing_to_compare(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(ConfigError, match=r"has no checkpoint, so no weights can be compared; resume it"):
        recompute.verify(PROGRAM, copied)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r[3].__setitem__("train/loss", 2.0), "step 12: train/loss is 2.0 in the run, "),
        (lambda r: r[3].pop("train/lr"), "step 12: train/lr is not in the run; equal before it: 3 records"),
        (lambda r: r[3].__setitem__("train/mine", 1.0), "step 12: train/mine is not there again"),
        (lambda r: r.pop(4), "step 12: the record is not"),
        (lambda r: r.append({"step": 24, "train/loss": 1.0}), "step 24: the record is not there again"),
    ],
)
def test_the_first_metric_that_differs_is_named(
    whole: Path, copied: Path, change: Callable[[list[dict[str, Any]]], Any], said: str
) -> None:
    records = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    change(records)
    (copied / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = compare.compare_metrics(copied, whole, 24, True, 0.0)
    assert said in found.difference or said.replace("12", "16") in found.difference, found
    assert not compare.compare_metrics(whole, whole, 24, True, 0.0).difference


def test_a_record_that_is_not_compared_is_not_counted(whole: Path, copied: Path) -> None:
    """A run that was not at its end may have stopped after an evaluation, and the second one before it."""
    with (copied / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 24, "val/mine": 1.0}) + "\n")
    found = [compare.compare_metrics(run, whole, 24, False, 0.0) for run in (copied, whole)]
    assert found[0] == found[1]


def test_the_last_bit_of_a_metric_or_score_counts_unless_rounding_is_allowed(whole: Path, copied: Path) -> None:
    text = (copied / "metrics.jsonl").read_text()
    value = json.loads(text.splitlines()[0])["train/loss"]
    (copied / "metrics.jsonl").write_text(text.replace(repr(value), repr(value * (1 + 1e-7)), 1))
    assert "step 4: train/loss" in compare.compare_metrics(copied, whole, 24, True, 0.0).difference
    found = compare.compare_metrics(copied, whole, 24, True, 1e-6)
    assert (found.difference, found.largest) == ("", pytest.approx(1e-7, rel=1e-3))
    result = json.loads((copied / "result.json").read_text())
    (copied / "result.json").write_text(json.dumps(result | {"test/accuracy": 2.0}))
    assert "test/accuracy is 2.0 in the run" in compare.compare_scores(copied, whole, 0.0).difference


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("model", "0.weight"), "model.0.weight (16, 64): 1 of 1,024 values differ, most at [3, 5]"),
        (("optimizer", "state", 1, "exp_avg"), "optimizer.state.1.exp_avg (10, 16): 1 of 160 values differ"),
        (("ranks",), "ranks"),
    ],
)
def test_the_first_tensor_that_differs_is_named(whole: Path, copied: Path, keys: tuple[Any, ...], said: str) -> None:
    name = "last_000000020.pt"
    payload = torch.load(copied / "checkpoints" / name, weights_only=True)
    node: Any = payload
    for key in keys:
        node = node[key]
    node.view(-1)[node.shape[-1] * 3 + 5 if len(node) > 3 and node.dim() > 1 else 0] += 1
    torch.save(payload, copied / "checkpoints" / name)
    found = {part.name: part.difference for part in compare.compare_checkpoints(copied, whole, 24, 0.0)}
    assert said in found.pop(f"checkpoints/{name}")
    assert found
    assert not any(found.values())


def test_not_a_number_equals_itself_and_a_damaged_checkpoint_is_a_difference(whole: Path, copied: Path) -> None:
    a, b = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])
    assert compare.tensors_differ(a, b, 0.0) == ("", 0)
    assert "1 of 2 values differ, most at [0]" in compare.tensors_differ(a, torch.tensor([float("nan")] * 2), 0.5).text
    assert "torch.float64 again" in compare.tensors_differ(a, b.double(), 1.0).text
    assert compare.tensors_differ(torch.tensor([100.0, 0.0]), torch.tensor([100.0, 0.1]), 1e-2) == (
        "",
        pytest.approx(1e-3),
    )
    assert "[1]: 0 in the run" in compare.tensors_differ(torch.zeros(2), torch.tensor([0.0, 1.0]), 0.5).text
    best, other = torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 3.0])
    assert "[1]: 1 in the run, 3 again" in compare.tensors_differ(best, other, 0.5).text
    path = copied / "checkpoints/last_000000020.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert any("last_000000020.pt" in part.difference for part in compare.compare_checkpoints(copied, whole, 24, 0.0))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_again")
def test_what_a_resume_has_changed_is_put_back(whole: Path, copied: Path) -> None:
    """The first steps are compared under the values that they had."""
    cfg = read_config(PROGRAM, copied)
    cfg.trainer.max_steps = 30
    start(cfg, copied, ["trainer.max_steps=30"], own_process=False)
    log = (copied / "train.log").read_text()
    assert "optim.schedule: Cosine now has 30 steps instead of 24" in log
    assert json.loads((copied / "environment.json").read_text())["changes"] == [
        {"after": 24, "was": {"trainer.max_steps": 24}}
    ]
    found = recompute.verify(PROGRAM, copied, commit=recompute.HERE)
    assert (found.equal, found.steps) == (True, 24)
    assert "trainer.max_steps 24 -> 30" in found.hints[0]
    assert metrics(copied)[:8] == metrics(whole)[:8]


def test_a_resume_with_other_code_is_recorded(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each change; what the run began with stays. Without a step that counts the run begins with the code."""
    began = str(code_of(copied))
    monkeypatch.setattr(environment, "_status", lambda root: (None, None))
    monkeypatch.setattr(environment, "source_of", lambda _: "other")
    monkeypatch.setattr(environment, "libraries_of", lambda _: {})
    for _ in range(2):
        reopen_directory(PROGRAM, copied, read_config(PROGRAM, copied), [])
    (change,) = json.loads((copied / "environment.json").read_text())["changes"]
    assert change["after"] == 24
    assert [str(code) for code in codes_of(copied)] == [began, "no commit, files other"]
    hints = recompute.undo_changes(PROGRAM.root, read_config(PROGRAM, copied), [change])
    assert hints == ["compared up to step 24, after which a resume changed code -> no commit, files other"]
    undo_resume(copied)
    assert len(codes_of(copied)) == 1
    shutil.rmtree(copied / "checkpoints")
    reopen_directory(PROGRAM, copied, read_config(PROGRAM, copied), [])
    assert [str(code) for code in codes_of(copied)] == ["no commit, files other"]


@pytest.mark.parametrize(
    ("steps", "commit", "said"),
    [
        (25, "here", "--steps 25: .* has logged and saved from step 4 to 24"),
        (3, "here", "--steps 3: .* has logged and saved from step 4 to 24"),
        (None, "nosuch", "its commit nosuch is not available"),
    ],
)
def test_mistakes_are_named(whole: Path, steps: int | None, commit: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        recompute.verify(PROGRAM, whole, steps, commit)


def test_the_second_run_has_the_firsts_ranks_but_no_time_limit_and_no_logger(tmp_path: Path) -> None:
    cfg = compose(*RUN, "trainer=ddp", "hardware.num_procs=auto", "process.max_time=1h")
    wanted = ["logger=none", "process.stop_at_step=7", "process.max_time=null", "hardware.num_procs=4"]
    assert recompute.settings(PROGRAM, cfg, {}, 4, 7, PROGRAM.root) == wanted
    few_gpus = recompute.settings(PROGRAM, cfg, {"machine": {"gpus": ["H100"] * 4}}, 4, 7, PROGRAM.root)
    assert few_gpus == wanted[:3], "there are fewer GPUs here"
    (tmp_path / "packages/samebits/src/samebits/ranks").mkdir(parents=True)  # of an older version
    (tmp_path / "packages/samebits/src/samebits/ranks/stop.py").write_text('AT_STEP = "trainer.stop_at_step"')
    assert recompute.as_called(PROGRAM, "process.stop_at_step", tmp_path) == "trainer.stop_at_step"


EVIL = {"_target_": "samebits.programs.git", "_args_": ["/", "-c", "alias.x=!touch pwned", "x"]}


CHANGES: list[Callable[[dict[str, Any], dict[str, Any]], None]] = [
    lambda cfg, facts: cfg.update(model=EVIL),
    lambda cfg, facts: cfg.update(gone={"deep": [{"a": EVIL}]}),  # the present code leaves it out, older code may not
    lambda cfg, facts: cfg["task"].update(_target_="lab.project._git"),
    lambda cfg, facts: cfg.update(gone="${oc.env:HOME}"),
    lambda cfg, facts: facts.update(changes=[{"after": 20, "was": {"model": EVIL}}]),
    lambda cfg, facts: facts.update(changes=[{"after": 20, "was": {"gone.x": EVIL}}]),
    lambda cfg, facts: facts.update(changes=[{"after": 20, "was": {"seed": "${oc.env:HOME}"}}]),
    lambda cfg, facts: facts.update(changes=[{"after": 20, "was": 3}]),
    lambda cfg, facts: facts.update(changes=[[]]),
]
ASKED: list[dict[str, Any]] = [{}, {"commit": "own"}, {"commit": "HEAD"}, {"diff": True}]


@pytest.mark.one_quick
@pytest.mark.parametrize(("change", "asked"), [(one, ASKED[i % len(ASKED)]) for i, one in enumerate(CHANGES)])
def test_the_present_check_comes_before_anything_starts(
    copied: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever the code that is asked for: an older one may have a weaker check, and know other keys."""
    monkeypatch.setattr(recompute, "start", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(recompute, "git", lambda *_, **__: pytest.fail("other code was fetched"))
    cfg, facts = (
        yaml.safe_load((copied / "config.yaml").read_text()),
        json.loads((copied / "environment.json").read_text()),
    )
    change(cfg, facts)
    (copied / "config.yaml").write_text(yaml.safe_dump(cfg))
    (copied / "environment.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError) as error:
        recompute.verify(PROGRAM, copied, **asked)
    assert "\n" not in str(error.value)
    assert "no commit" not in str(error.value)  # which code there is was not asked yet


def test_a_directory_that_is_no_run_or_is_in_the_way(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rounding 2: must be a relative difference"):
        recompute.verify(PROGRAM, whole, rounding=2)
    with pytest.raises(ConfigError, match=r"exists; give a new directory"):
        recompute.verify(PROGRAM, whole, out=tmp_path)
    done = command(tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path}: not a run directory")


# -- by the command, with ranks, other code, other data --------------------------------------------------------------


@pytest.mark.parametrize(
    ("began", "precision"),
    [
        ({"precision": "fp32", "threads": {"count": 3}, "machine": {"gpus": ["H100"]}}, "fp32"),
        ({"machine": {"gpus": ["H100"]}}, "bf16"),  # of a version that had no rule, and recorded nothing
        ({"machine": {"cpu": "6502"}}, "fp32"),
    ],
)
def test_the_second_run_computes_as_the_first_was_decided_to(
    tmp_path: Path, began: dict[str, Any], precision: str
) -> None:
    recompute.prepare(PROGRAM, tmp_path / "again", compose(), began, PROGRAM.root)
    known = json.loads((tmp_path / "again/environment.json").read_text())
    assert (known["precision"], known.get("threads")) == (precision, began.get("threads"))
    assert known["libraries"] == libraries_of(PROGRAM.root)
    recompute.prepare(PROGRAM, tmp_path / "other", compose(), began, tmp_path)
    known = json.loads((tmp_path / "other/environment.json").read_text())
    assert known["libraries"] is None, "other code has others, which its own process records"


@pytest.mark.slow
@pytest.mark.usefixtures("warm_again")
def test_two_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Stopped in the middle, where no checkpoint was due. Nobody is told to resume in a temporary folder."""
    ranks = ("trainer=fsdp", "hardware.num_procs=2", "process.stop_at_step=15")
    with pytest.raises(SystemExit):
        start_run(tmp_path / "run", *RUN, *ranks)
    assert f"step 15, saved; resume with: resume={tmp_path}/run\n" in "".join(capfd.readouterr())
    found = recompute.verify(PROGRAM, tmp_path / "run")
    assert "step 15, saved\n" in "".join(capfd.readouterr())
    assert (found.equal, found.steps) == (True, 15), found
    assert any(part.name.startswith("checkpoints/last_000000015") for part in found.parts)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_again")
def test_another_seed_and_changed_data_are_found(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verified(*words: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["verify.py", *words, "--steps", "4", "--commit", "here"])
            return verify.main(), capsys.readouterr().out

    config = (copied / "config.yaml").read_text()
    (copied / "config.yaml").write_text(config.replace("\nseed: 0\n", "\nseed: 1\n"))
    code, shown = verified(str(copied))
    assert code == 1
    assert "step 4: train/loss is " in shown
    assert "cause: not the machine" in shown
    shown = verified(str(copied), "hardware.num_threads=2")[1]
    assert "surroundings differ: threads 1 -> 2" in shown
    assert "note: the second run had hardware.num_threads=2, so the difference may come from it" in shown
    data = tmp_path / "digits.h5"
    shutil.copy(ROOT / "data/digits.h5", data)
    start_run(tmp_path / "run", *RUN, f"data.path={data}")
    with h5py.File(data, "r+") as file:
        file["train/image"][:] = file["train/image"][:][::-1]
    code, shown = verified(str(tmp_path / "run"))
    assert code == 1
    assert f"note: data.path: {data} (139,728 bytes) differs from the data at the start of the run" in shown
    assert verified(str(tmp_path / "run"), f"data.path={ROOT}/data/digits.h5")[0] == 0


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    copy = commit(copy_of_the_project(tmp_path / "project"))
    yield copy
    assert git(copy, "worktree", "list").count("\n") == 1, "no worktree is left"


@pytest.mark.slow
def test_a_run_of_another_commit_with_changes_that_were_not_committed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = project / "src/lab/loop.py"
    text, line = loop.read_text(), "        values = take_next_step("
    assert line in text
    (project / "src/lab/half.py").write_text("def halve(state):\n    next(state.model.parameters()).data *= 0.5\n")
    loop.write_text(text.replace(line, f"        from lab.half import halve; halve(state)\n{line}", 1))
    run = tmp_path / "run"
    run_python(project, "src/train.py", *RUN, f"hydra.run.dir={run}")
    assert "with changes" in str(code_of(run))

    def halves(commit: str, diff: bool) -> tuple[bool, str]:
        """(Whether the code of the second run has the changes, how it is called)."""
        with recompute.code_for(replace(PROGRAM, root=project), run, commit, diff) as (root, said):
            assert (root == project) == (commit == "here" and not diff)
            changes = ("from lab.half" in (root / "src/lab/loop.py").read_text(), (root / "src/lab/half.py").exists())
        assert len({*changes}) == 1
        return changes[0], said

    assert halves("here", False) == (True, "the present files")
    loop.write_text(text)
    (project / "src/lab/half.py").unlink()
    (project / "notes.md").write_text("later")
    commit(project)
    capsys.readouterr()
    with_changes, said = halves("here", False)
    assert not with_changes, "the changes are run only where they are asked for"
    assert re.search(r", not the run's \(commit \w+ with changes \w+\), which --diff takes$", said)
    assert capsys.readouterr().err == f"code: {said}\n"
    done = command(run, "--diff", src=project / "src")
    assert "equal bit for bit" in done.stdout
    assert "in a temporary worktree" in done.stdout
    own = command(run, "--steps", "4", "--commit", "own", code=1, src=project / "src")
    here = command(run, "--steps", "4", code=1, src=project / "src")
    assert "step 4: train/loss" in own.stdout
    assert f"repeating {run} up to step 6 in a temporary directory, which is then deleted\n" in own.stderr
    assert "note: the code is not the run's, so the difference may come from it" in here.stdout
    assert "cause: not the machine" not in here.stdout
    assert "in a temporary worktree" in done.stdout
    patch = (run / "uncommitted.diff").read_text()
    for text, remedy in (("# new, not in this patch: src/lab/large.bin\n", "does not contain a patch of"),
                         (patch.replace("diff --git", "\033[1mdiff --git"), "does not contain a patch"),
                         (patch.replace("+    ", "    "), "does not apply to the run's commit")):  # fmt: skip
        (run / "uncommitted.diff").write_text(text)
        with pytest.raises(ConfigError, match=remedy):
            halves("here", True)
    (run / "uncommitted.diff").unlink()
    with pytest.raises(ConfigError, match="does not contain a patch of uncommitted changes"):
        halves("here", True)


# -- libraries of the run --------------------------------------------------------------------------------------------

TRAINS = """import rows_of, sys, pathlib
pathlib.Path(sys.argv[2].split("=")[1].strip("'")).write_text(rows_of.__file__)
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose command writes where it found the library rows_of."""
    monkeypatch.setattr(source, "LIBRARIES", ("rows_of",))
    (tmp_path / "small/src").mkdir(parents=True)
    (tmp_path / "small/src/train.py").write_text(TRAINS)
    return tmp_path / "small"


def library(folder: Path, version: str) -> Path:
    (folder / "rows_of").mkdir(parents=True, exist_ok=True)
    (folder / "rows_of/__init__.py").write_text(f'__version__ = "{version}"\n')
    return folder


def run_of(project: Path, folder: Path) -> Path:
    folder.mkdir()
    known = surroundings(project)
    (folder / "environment.json").write_text(json.dumps(known.environment))
    (folder / "uncommitted.diff").write_text(known.diff)
    return folder


def verified(project: Path, run: Path, commit: str = "own", diff: bool = False) -> tuple[str, str, str]:
    """(What is said of the code, the text of the library that its process imports, and where that lies)."""
    small = replace(PROGRAM, root=project)
    with recompute.code_for(small, run, commit, diff) as (root, said):
        recompute.start(small, run, run / "found", root, [])
        page = Path((run / "found").read_text())
        return said, page.read_text(), str(page).replace(str(root), "ROOT")


def test_the_commit_s_own_libraries_run_where_they_are_vendored(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the present ones, which an editable installation has put on the path; with --diff, as they were edited."""
    present = library(small / "packages/rows_of/src", "0.2.0")
    monkeypatch.setenv("PYTHONPATH", str(present))
    commit(small)
    run = run_of(small, tmp_path / "run")
    library(present, "0.2.1")
    edited = run_of(small, tmp_path / "edited")
    assert verified(small, edited, "here")[0] == "the present files"
    library(present, "0.3.0")
    commit(small)
    said, text, page = verified(small, run)
    assert (text, page) == ('__version__ = "0.2.0"\n', "ROOT/packages/rows_of/src/rows_of/__init__.py")
    assert said.endswith(", in a temporary worktree")
    said, text, _ = verified(small, edited, "here", diff=True)
    assert (text, said.partition(", in")[2]) == ('__version__ = "0.2.1"\n', " a temporary worktree")
    said, text, _ = verified(small, edited)
    assert said.endswith("worktree; its packages/ are not what the run had: rows_of 0.2.1 -> 0.2.0")
    said, text, _ = verified(small, edited, "here")
    assert '"0.3.0"' in text
    assert said.endswith(", which --diff takes")


def test_what_no_commit_brings_back_is_said(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = library(tmp_path / "site", "0.2.0")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    commit(small)
    run = run_of(small, tmp_path / "run")
    assert verified(small, run, "here")[0] == "the present files"
    assert verified(small, run)[0].endswith(", in a temporary worktree")
    library(site, "0.2.1")
    said, text, page = verified(small, run)
    assert (text, page) == ('__version__ = "0.2.1"\n', str(site / "rows_of/__init__.py"))
    why = "; with the libraries that are installed, as no commit holds the run's: rows_of 0.2.0 -> 0.2.1"
    assert said.endswith(f", in a temporary worktree{why}")
    assert verified(small, run, "here")[0].endswith(", as other libraries are installed: rows_of 0.2.0 -> 0.2.1")


def test_another_library_is_a_difference_that_allows_no_rounding(
    whole: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is code, not a machine. A run of an older version has not recorded which it had."""

    def copy(project: Any, run: Path, again: Path, root: Path, overrides: list[str], removed: bool) -> None:
        shutil.copytree(whole, again, dirs_exist_ok=True)
        write(again, {"engine": {"version": "0.2.1", "source": "b", "place": "/site"}})

    def write(run: Path, libraries: Any) -> None:
        known = json.loads((run / "environment.json").read_text())
        (run / "environment.json").write_text(json.dumps(known | {"libraries": libraries}))

    monkeypatch.setattr(recompute, "start", copy)
    for was, said in (
        ({"engine": {"version": "0.2.0", "source": "a", "place": "/site"}}, "engine 0.2.0 -> 0.2.1"),
        (
            {"engine": {"version": "0.2.1", "source": "a", "place": "packages/engine/src"}},
            "engine 0.2.1: same version, different content",
        ),
        (None, "libraries not recorded -> engine 0.2.1"),
    ):
        write(copied, was)
        found = recompute.verify(PROGRAM, copied)
        assert (found.equal, found.rounding, found.unlike) == (True, 0.0, [said])
        assert not [hint for hint in found.hints if "engine" in hint]


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("packages/samebits/src/samebits", None),
        ("packages/samebits/src/samebits/world", "b.at"),
        ("packages/x/src/samebits/world", "b.at"),
    ],
)
def test_a_key_is_called_as_the_engine_that_runs_calls_it(tmp_path: Path, name: str, called: str | None) -> None:
    """A version's own, which may have none; else the one that is installed, which is this one."""
    asked = replace(PROGRAM, root=tmp_path, moved_keys={"b.at": "c.at"})
    assert recompute.as_called(asked, "c.at", tmp_path) == "c.at"
    with_own = replace(asked, root=PROGRAM.root)
    assert recompute.as_called(with_own, "c.at", tmp_path) is None, "an older version, before the engine"
    (tmp_path / name).mkdir(parents=True)
    if called:
        (tmp_path / name / "stop.py").write_text('AT_STEP = "b.at"')
    assert recompute.as_called(asked, "c.at", tmp_path) == called
