"""The book of a sweep: what it says of its jobs, which of them are due, and that nothing that has run is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from writes import attempt

from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.runs import claimed, directory
from samebits.status import RESULT, write_status
from samebits.sweeps import Ledger
from samebits.sweeps.identity import digest, values_of
from samebits.sweeps.ledger import Job, NewJob, is_due


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "surroundings", lambda root: directory.Surroundings({"host": "here"}, ""))


def one(*overrides: str, key: str | None = None, **facts: Any) -> NewJob:
    values = dict(text.lstrip("+").split("=") for text in overrides)
    return NewJob(overrides, OmegaConf.create({"name": "digits", **values}), values, key, facts)


def added(
    folder: Path, *new: NewJob, command: Sequence[str] = ("seed=0,1",), swept: Sequence[str] = ("seed",),
    objectives: Sequence[Mapping[str, str]] = (), follows: Mapping[str, Sequence[str]] | None = None,
) -> list[Job]:  # fmt: skip
    return Ledger(PROGRAM, folder).add(new, command, swept, objectives, follows or {})


def book(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())


# ---- a job


def test_a_job_is_its_directory(tmp_path: Path) -> None:
    (job,) = added(tmp_path / "s", one("seed=0", trial=3))
    assert job == Job(0, ("seed=0",), tmp_path / "s" / job.key)
    assert job.key == f"seed-0_{digest({'seed': '0'})[:16]}"
    assert (job.state(), job.result(), job.claimed()) == ("queued", {}, False)
    assert job.status()["sweep"] == {"sweep": "s", "job": 0, "trial": 3}
    assert OmegaConf.load(job.directory / "config.yaml") == {"name": "digits", "seed": "0"}
    assert OmegaConf.load(job.directory / "overrides.yaml") == ["seed=0"]
    (job.directory / RESULT).write_text(json.dumps({"val/loss": 1.5}))
    write_status(job.directory, "finished")
    assert (job.state(), job.result()) == ("finished", {"val/loss": 1.5})
    with claimed(job.directory):
        assert job.claimed()
    assert Job(1, (), tmp_path / "nothing").state() == "queued"


@pytest.mark.parametrize(
    ("state", "due", "retried"),
    [
        ("queued", True, True), ("running", True, True), ("interrupted", True, True), ("preempted", True, True),
        ("failed", False, True), ("finished", False, False), ("pruned", False, False),
    ],
)  # fmt: skip
def test_which_jobs_are_due(tmp_path: Path, state: str, due: bool, retried: bool) -> None:
    assert (is_due(state, False), is_due(state, True)) == (due, retried)
    jobs = added(tmp_path / "s", one("seed=0"), one("seed=1"))
    write_status(jobs[0].directory, state)
    ledger = Ledger(PROGRAM, tmp_path / "s")
    assert ledger.due(jobs, False) == (jobs if due else jobs[1:])
    assert ledger.due(jobs, True) == (jobs if retried else jobs[1:])


# ---- the book


def test_an_empty_book(tmp_path: Path) -> None:
    """Looking makes nothing."""
    ledger = Ledger(PROGRAM, tmp_path / "s")
    assert (ledger.name, list(ledger.jobs), ledger.swept, ledger.follows) == ("s", [], [], {})
    assert (ledger.commands, ledger.objectives) == ([], [])
    assert ledger.find({"seed": 1}) is None
    assert ledger.named("seed-1") is None
    assert not (tmp_path / "s").exists()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "s"
    goals = [{"key": "val/loss", "mode": "min"}]
    jobs = added(folder, one("seed=0"), one("seed=1"), objectives=goals, follows={"seed": ["b", "a"], "lr": []})
    ledger = Ledger(PROGRAM, folder)
    assert list(ledger.jobs) == jobs
    assert [job.number for job in jobs] == [0, 1]
    assert (ledger.name, ledger.swept, ledger.follows) == ("s", ["seed"], {"seed": ["a", "b"]})
    assert (ledger.commands, ledger.objectives) == ([["seed=0,1"]], goals)
    assert book(folder)["name"] == "s"
    assert [entry["identity"] for entry in book(folder)["jobs"]] == [digest({"seed": str(i)}) for i in (0, 1)]
    assert ledger.find({"seed": "1"}) == ledger.named(jobs[1].key) == jobs[1]
    assert ledger.find({"seed": "2"}) is None
    again = Ledger(PROGRAM, folder)
    assert again.find({"seed": "0"}) == jobs[0]


def test_a_sweep_of_before_keys_were_moved_goes_on(tmp_path: Path) -> None:
    """Its jobs are those of the same values under today's keys."""
    folder = tmp_path / "s"
    jobs = added(
        folder, *(one(f"seed={n}", f"trainer.timeout={n}m") for n in (1, 2)), swept=("seed", "trainer.timeout")
    )
    ledger = Ledger(PROGRAM, folder)
    assert ledger.swept == ["seed", "process.timeout"]
    assert [job.overrides for job in ledger.jobs] == [
        ("seed=1", "process.timeout=1m"),
        ("seed=2", "process.timeout=2m"),
    ]
    assert ledger.find({"seed": "2", "process.timeout": "2m"}) == ledger.jobs[1]
    more = [one(f"seed={n}", f"process.timeout={n}m") for n in (1, 3)]
    assert added(folder, *more)[0].key == jobs[0].key
    assert len(Ledger(PROGRAM, folder).jobs) == 3


def test_a_job_whose_directory_was_deleted_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    first = added(folder, one("seed=0"), one("seed=1"), one("seed=2", key="trial_0002"))
    for job in first[1:]:
        write_status(job.directory, "finished")
        shutil.rmtree(job.directory)
    first[1].directory.mkdir()  # only its files were deleted
    before = book(folder)["jobs"]
    again = added(folder, one("seed=0"), one("seed=1"), one("seed=2", key="trial_0002"))
    assert again == first
    assert book(folder)["jobs"] == before
    assert all((job.directory / "config.yaml").exists() and job.state() == "queued" for job in again)


def test_a_second_command_adds(tmp_path: Path) -> None:
    """Its jobs, its command, what it swept; those that are there stay as they are, and keep their number."""
    folder = tmp_path / "s"
    first = added(folder, one("seed=0"), one("seed=1"), follows={"seed": ["fold"]})
    created = book(folder)["created"]
    share = {"share": {"cores": 2, "threads": 1}}  # an older version's
    (folder / "sweep.json").write_text(json.dumps({**book(folder), "created": "earlier", **share}))
    write_status(first[1].directory, "finished")
    goals = [{"key": "val/accuracy", "mode": "max"}]
    jobs = added(
        folder, one("seed=1"), one("seed=0", "lr=3"), one("seed=1"), command=["lr=3"], swept=["lr", "seed"],
        objectives=goals, follows={"lr": ["warmup"], "seed": ["part"]},
    )  # fmt: skip
    assert [job.number for job in jobs] == [1, 2, 1]
    assert jobs[0] == jobs[2] == first[1]
    assert jobs[1].key.startswith("lr-3_seed-0_")
    ledger = Ledger(PROGRAM, folder)
    assert [job.number for job in ledger.jobs] == [0, 1, 2]
    assert ledger.swept == ["seed", "lr"]
    assert ledger.commands == [["seed=0,1"], ["lr=3"]]
    assert ledger.follows == {"seed": ["fold", "part"], "lr": ["warmup"]}
    assert ledger.objectives == goals
    assert book(folder)["created"] == "earlier" != created
    assert jobs[0].state() == "finished"
    added(folder, command=["seed=0,1"], swept=[], follows={"seed": []})
    ledger = Ledger(PROGRAM, folder)
    assert ledger.commands == [["seed=0,1"], ["lr=3"]]
    assert (len(ledger.jobs), ledger.swept) == (3, ["seed", "lr"])
    assert ledger.follows["lr"] == ["warmup"]


def test_what_differs_is_swept_even_where_nobody_says_so(tmp_path: Path) -> None:
    """Among the new jobs, and between them and those that were there."""
    folder = tmp_path / "s"
    added(folder, one("seed=0"), swept=[], command=["seed=0"])
    assert Ledger(PROGRAM, folder).swept == []
    added(folder, one("seed=0", "lr=1"), swept=[], command=["lr=1"])
    assert Ledger(PROGRAM, folder).swept == ["lr"]
    added(folder, one("seed=5", "lr=1"), one("seed=5", "lr=1", "wd=2"), swept=[], command=["seed=5"])
    assert Ledger(PROGRAM, folder).swept == ["lr", "seed", "wd"]


def test_equal_trials_of_a_search_are_jobs_of_their_own(tmp_path: Path) -> None:
    """They are found by their key and not by their values."""
    folder = tmp_path / "s"
    jobs = added(folder, one("lr=1", key="trial-0"), one("lr=1", key="trial-1"))
    assert [job.key for job in jobs] == ["trial-0", "trial-1"]
    ledger = Ledger(PROGRAM, folder)
    assert ledger.find({"lr": "1"}) is None
    assert ledger.named("trial-1") == jobs[1]
    assert added(folder, one("lr=9", key="trial-1")) == [jobs[1]]
    assert [entry.get("identity") for entry in book(folder)["jobs"]] == [None, None]
    (other,) = added(folder, one("lr=1"))
    assert other.number == 2


def test_nothing_that_has_run_is_lost(tmp_path: Path) -> None:
    """Somebody has removed sweep.json: what ran stays, what only waited is written anew."""
    folder = tmp_path / "s"
    ran, waited = added(folder, one("seed=0"), one("seed=1"))
    write_status(ran.directory, "failed", error="the cause")
    for job in (ran, waited):
        (job.directory / "overrides.yaml").write_text("[old]\n")
    (folder / "sweep.json").unlink()
    assert added(folder, one("seed=0"), one("seed=1")) == [ran, waited]
    assert (ran.state(), ran.status()["error"], waited.state()) == ("failed", "the cause", "queued")
    assert OmegaConf.load(ran.directory / "overrides.yaml") == ["old"]
    assert OmegaConf.load(waited.directory / "overrides.yaml") == ["seed=1"]
    (waited.directory / "config.yaml").unlink()  # half a directory, of a process that was killed
    write_status(waited.directory, "running")
    (folder / "sweep.json").unlink()
    added(folder, one("seed=1"))
    assert waited.state() == "queued"


def test_two_processes_add(tmp_path: Path) -> None:
    """Each reads what the other has added; a job that both want is one."""
    one_ledger, other = Ledger(PROGRAM, tmp_path / "s"), Ledger(PROGRAM, tmp_path / "s")
    (mine,) = one_ledger.add([one("seed=1")], ["seed=1"], ["seed"], [], {})
    theirs = other.add([one("seed=0"), one("seed=1")], ["seed=0,1"], ["seed"], [], {})
    assert [job.number for job in theirs] == [1, 0]
    assert list(other.jobs) == [mine, theirs[0]]
    assert len(list(one_ledger.jobs)) == 1
    one_ledger.refresh()
    assert list(one_ledger.jobs) == [mine, theirs[0]]


def test_where_nothing_can_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^hydra\.sweep\.dir=.+/file/s: cannot be written: \S[^\n]*$"):
        added(tmp_path / "file" / "s", one("seed=0"))


def test_no_link_leads_out_of_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s/sweep.json").symlink_to(tmp_path / "elsewhere/x.json")
    with pytest.raises(ConfigError, match="symbolic link"):
        added(tmp_path / "s", one("seed=0"))
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- killed


@pytest.mark.slow
def test_killed_at_any_write_the_same_commands_leave_the_same_ledger(tmp_path: Path) -> None:
    """Two commands, of which the second knows one of its jobs already; the parent dies at each write of either."""
    commands = {"seed=0": ("0",), "seed=0,1": ("0", "1")}

    def run(folder: Path) -> Callable[[], None]:
        def both() -> None:
            for command, seeds in commands.items():
                added(folder, *(one(f"seed={seed}") for seed in seeds), command=(command,))

        return both

    def contents(folder: Path) -> dict[str, Any]:
        changing = ("created", "time", "wandb_id")
        found: dict[str, Any] = {}
        for path in sorted(folder.rglob("*")):
            # the project's changes: of a test that runs beside this one, too
            text = "" if path.is_dir() or path.name == "uncommitted.diff" else path.read_text()
            if path.suffix == ".json":
                found[str(path.relative_to(folder))] = {k: v for k, v in json.loads(text).items() if k not in changing}
            else:
                found[str(path.relative_to(folder))] = text
        return found

    straight = tmp_path / "straight" / "s"
    writes = attempt(run(straight), straight.parent).writes
    assert len(contents(straight)) > 10
    for number, what in enumerate(writes):
        folder = tmp_path / str(number) / "s"
        assert attempt(run(folder), folder.parent, number).status < 0, what
        again = attempt(run(folder), folder.parent)
        assert again.status == 0, (what, again.shown)
        assert contents(folder) == contents(straight), what


def test_a_job_is_the_same_in_a_moved_project() -> None:
    here = values_of(PROGRAM, ["data.path=data/x.h5"], cwd=PROGRAM.root)
    assert here == values_of(PROGRAM, [f"data.path={PROGRAM.root}/data/x.h5"]) == {"data.path": "${root:}/data/x.h5"}
