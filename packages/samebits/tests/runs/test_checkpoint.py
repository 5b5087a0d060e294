"""Checkpoints one by one: how they are written, which are kept, which one is found, and what is no checkpoint."""

from __future__ import annotations

import errno
import io
import itertools
import logging
import os
import pickle
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samebits.checkpoints import checkpoint, sharded
from samebits.checkpoints.checkpoint import (
    KEYS,
    LATER,
    RENAMED,
    Checkpoints,
    copy_from_mmap,
    eval_state_dict,
    find_checkpoint,
    find_weights,
    load_checkpoint,
    load_lazily,
    load_weights,
    save_checkpoint,
    with_new_names,
)
from samebits.errors import ConfigError, CorruptFileError, RunFailed
from samebits.testing import assert_equal
from samebits.world.collectives import World

CPU = torch.device("cpu")
MAIN, OTHER = World(0, 1, 0, CPU), World(1, 2, 1, CPU)


def payload(step: int = 5, **changed: Any) -> dict[str, Any]:
    model = {"w": torch.full((2,), float(step)), "b": torch.zeros(1)}
    optimizer = {"state": {0: {"momentum": torch.ones(2)}}, "param_groups": []}
    plain = {
        "step": step,
        "samples": 8 * step,
        "best": [],
        "evals_without_improvement": 0,
        "logged_step": step,
        "scored_step": 0,
    }
    parts = {"model": model, "ema": None, "optimizer": optimizer, "schedule": {"updates": step}, "ranks": []}
    return {**parts, **plain, **changed}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def in_parts(path: Path, content: dict[str, Any]) -> Path:
    sharded.save(content, path, MAIN, save_checkpoint)
    return path


# ---- writing


def test_a_file_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last_000000005.pt"
    path.write_bytes(b"the one before")
    (tmp_path / f".{path.name}.tmp").write_bytes(b"half, of a process that was killed")
    synced: list[tuple[str, bool, int]] = []

    def fsync(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        synced.append((name, path.read_bytes() == b"the one before", os.fstat(handle).st_size))
        if name == tmp_path.name:
            raise OSError(errno.EINVAL, "this file system cannot sync folders")

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    save_checkpoint(payload(), path)
    assert [entry[:2] for entry in synced] == [(f".{path.name}.tmp", True), (tmp_path.name, False)]
    assert synced[0][2] == path.stat().st_size, "what is still in a buffer is not synced"
    assert names(tmp_path) == [path.name]
    assert_equal(load_checkpoint(path), payload())


def full_disk() -> None:
    raise OSError(28, "No space left on device")


def full_disk_within_another() -> None:
    try:
        full_disk()
    except OSError:
        raise RuntimeError("unexpected pos 64") from None


def gone() -> None:
    raise FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize(
    ("fail", "error", "says"),
    [
        (full_disk, RunFailed, r"last_000000005\.pt cannot be written: No space left on device; earlier checkpoints"),
        (full_disk_within_another, RunFailed, r"cannot be written: No space left on device"),
        (gone, FileNotFoundError, r"No such file"),
    ],
)
@pytest.mark.parametrize("where", ["open", "write"])
def test_what_could_not_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None], error: Any, says: str, where: str
) -> None:
    path = tmp_path / "last_000000005.pt"
    path.write_bytes(b"the one before")
    if where == "open":
        monkeypatch.setattr(checkpoint, "open", lambda *given: fail(), raising=False)
    else:
        monkeypatch.setattr(checkpoint.torch, "save", lambda content, file: (file.write(b"half"), fail()))
    with pytest.raises(error, match=says) as caught:
        save_checkpoint(payload(), path)
    assert caught.type is error
    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == b"the one before"


def test_a_sharded_one_that_could_not_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk then has room for the record of the failure."""
    monkeypatch.setattr(checkpoint, "open", lambda *given: full_disk(), raising=False)
    with pytest.raises(RunFailed, match=r"/last\.dcp cannot be written: No space left on device \(rank 0\)"):
        in_parts(tmp_path / "last.dcp", payload())
    assert names(tmp_path) == []


# ---- what is a checkpoint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "got a list"),
        ({**payload(), "step": "5"}, "keys that are missing or have a wrong type: step$"),
        ({k: v for k, v in payload().items() if k != "ranks"}, "keys that are missing or have a wrong type: ranks$"),
        (payload(model=None, optimizer=[], schedule=3), "wrong type: model, optimizer, schedule$"),
        (payload(model={"w": torch.zeros(1), "b": None}), "wrong type: model$"),
        (payload(ema={"w": "text"}), "wrong type: ema$"),
        ({"step": 1, "best": []}, r"wrong type: model, ema, optimizer, schedule and 5 more$"),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path: Path, content: Any, says: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    for read in (load_checkpoint, load_lazily):
        with pytest.raises(
            CorruptFileError, match=rf"^{tmp_path}/a\.pt does not load: it is not a checkpoint of a run.*{says}"
        ):
            read(tmp_path / "a.pt")


class Foreign:
    """Code, in a checkpoint."""


def test_loading_runs_no_code(tmp_path: Path) -> None:
    torch.save(payload(schedule={"updates": Foreign()}), tmp_path / "a.pt")
    with pytest.raises(CorruptFileError, match="does not load"):
        load_checkpoint(tmp_path / "a.pt")


def test_the_average_counts_where_there_is_one() -> None:
    assert eval_state_dict(payload(ema={"w": 1}))["w"] == 1
    assert eval_state_dict(payload(7))["w"].tolist() == [7.0, 7.0]


def test_a_checkpoint_in_parts(tmp_path: Path) -> None:
    path = in_parts(tmp_path / "last_000000005.dcp", payload())
    assert_equal(load_checkpoint(path), payload())
    head = load_lazily(path)
    assert (head["step"], head["shards"], "model" in head) == (5, str(path), False)
    assert load_checkpoint(path, ("model",))["optimizer"] == {"state": {}, "param_groups": []}
    lacking = in_parts(tmp_path / "lacking.dcp", {k: v for k, v in payload().items() if k != "samples"})
    for read in (load_checkpoint, load_lazily):
        with pytest.raises(CorruptFileError, match=r"lacking\.dcp does not load: .*wrong type: samples$"):
            read(lacking)


HOSTILE: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "a device": lambda rest, path: rest["sums"].update({"/dev/zero": 1}),
    "a device with a size": lambda rest, path: [rest[key].update({"/dev/zero": 0}) for key in ("files", "sums")],
    "a path": lambda rest, path: rest["files"].update({"../secret": 3}),
    "the folder above": lambda rest, path: rest["files"].update({"..": 3}),
    "a link": lambda rest, path: ((path / "x").symlink_to(path.parent / "secret"), rest["files"].update({"x": 3})),
    "a pipe": lambda rest, path: (os.mkfifo(path / "x"), rest["files"].update({"x": 0})),
    "a folder": lambda rest, path: ((path / "x").mkdir(), rest["files"].update({"x": 4096})),
    "sizes that are texts": lambda rest, path: rest.update(files={"rest.pt": "x"}),
    "no files": lambda rest, path: rest.update(files=None),
    "sums in a list": lambda rest, path: rest.update(sums=[1]),
    "keys that are numbers": lambda rest, path: rest.update(keys=[1]),
    "a key that is not there": lambda rest, path: rest.update(keys=["model.none"]),
    "fewer files than the index names": lambda rest, path: (rest["files"].pop("__0_0.distcp"), rest["sums"].clear()),
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", HOSTILE)
def test_names_in_a_checkpoint_in_parts_are_of_its_files(kind: str, tmp_path: Path) -> None:
    """No other file is read, and none without end."""
    (tmp_path / "secret").write_text("abc")
    path = in_parts(tmp_path / "last_000000005.dcp", payload())
    rest = torch.load(path / "rest.pt", weights_only=True)
    HOSTILE[kind](rest, path)
    torch.save(rest, path / "rest.pt")
    with pytest.raises(CorruptFileError, match=rf"^{path}[^\n]*$"):
        load_checkpoint(path)


@pytest.mark.parametrize("size", [(1 << 44,), (1 << 20, 1 << 20), (7,)])
def test_an_index_says_no_more_than_there_is(size: tuple[int, ...], tmp_path: Path) -> None:
    """A few bytes can name any size, which would be allocated."""
    path = in_parts(tmp_path / "last_000000005.dcp", payload())
    index = pickle.loads((path / ".metadata").read_bytes())
    index.state_dict_metadata["model.w"].size = torch.Size(size)
    content = pickle.dumps(index)
    (path / ".metadata").write_bytes(content)
    rest = torch.load(path / "rest.pt", weights_only=True)
    rest["files"][".metadata"], rest["sums"][".metadata"] = len(content), zlib.crc32(content)
    torch.save(rest, path / "rest.pt")
    with pytest.raises(CorruptFileError, match=rf"^{path} does not load: [^\n]*$"):
        load_checkpoint(path)


# ---- reading: pages of the file, until they are used


def mapped(path: Path) -> bool:
    """Whether this process has mapped the file; an earlier test's may still be, until garbage is collected."""
    return any(line.endswith(f" {path}") for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_file_is_mapped_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last_000000005.pt"
    save_checkpoint(payload(), path)
    for read in (load_checkpoint, load_lazily):
        content = read(path)
        assert mapped(path)
        del content
        assert not mapped(path)
    before = path.read_bytes()
    load_lazily(path)["model"]["w"].zero_()
    assert path.read_bytes() == before, "what a loaded tensor becomes is not written into the file"
    original = torch.load

    def unable(file: Any, mmap: bool = False, **options: Any) -> Any:
        if mmap:
            raise RuntimeError(f"unable to mmap 1216 bytes from file <{file}>: No such device (19)")
        return original(file, **options)

    monkeypatch.setattr(checkpoint.torch, "load", unable)
    assert_equal(load_lazily(path), payload())
    assert not mapped(path)


# ---- loading weights


def test_weights_that_do_not_fit_are_named() -> None:
    model = nn.Linear(3, 2)
    right = {"weight": torch.full((2, 3), 4.0), "bias": torch.full((2,), 5.0)}
    load_weights(model, right, "it")
    assert_equal(dict(model.state_dict()), right)
    end, late = (
        "; use the model and data settings of its training",
        ", and create buffers of the model before the first",
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"weight": right["weight"]}, "missing in the checkpoint: bias"),
        ({**right, "more": torch.zeros(1)}, "not in the model: more"),
        ({**right, "weight": torch.zeros(3, 2)},
         r"of another shape: weight: \(3, 2\) in the checkpoint, \(2, 3\) in the model"),
        ({"bias": torch.zeros(3), **{f"k{i}": torch.zeros(1) for i in range(6)}},
         r"missing in the checkpoint: weight; not in the model: k0, k1, k2, k3 and 2 more; of another shape: bias: "
         r"\(3,\) in the checkpoint, \(2,\) in the model"),
        ({**right, **{f"k{i}": torch.zeros(1) for i in range(4)}}, "not in the model: k0, k1, k2, k3"),
    ]  # fmt: skip
    for state, says in cases:
        with pytest.raises(ConfigError, match=f"^it does not fit the model: {says}{end}") as caught:
            load_weights(model, state, "it")
        assert (late in str(caught.value)) == says.startswith("not in the model")
    assert_equal(dict(model.state_dict()), right)


# ---- which are kept


def test_two_last_ones_are_kept_and_nothing_of_somebody_else(tmp_path: Path) -> None:
    own = ("last_5.txt", "last_final.pt", "best_000000001.pt", ".hidden.pt", "notes")
    for name in own:
        (tmp_path / name).write_bytes(b"")
    in_parts(tmp_path / "last_000000001.dcp", payload(1))  # of the same run, when it was sharded
    kept = Checkpoints(tmp_path, MAIN)
    for step, there in ((3, {1, 3}), (7, {3, 7}), (10, {7, 10})):
        kept.save_last(payload(step))
        found = {int(path.stem[5:]) for path in tmp_path.glob("last_0*")}
        assert found == there
    assert names(tmp_path) == sorted([*own, "last_000000007.pt", "last_000000010.pt"])
    assert_equal(load_checkpoint(tmp_path / "last_000000010.pt"), payload(10))


def test_the_best_are_those_that_the_state_names(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, MAIN)
    (tmp_path / "last_000000003.pt").write_bytes(b"")
    kept.save_best(payload(3, best=[[0.5, 3]]))
    kept.save_best(payload(6, best=[[0.4, 6.0], [0.5, 3]]))
    assert names(tmp_path) == ["best_000000003.pt", "best_000000006.pt", "last_000000003.pt"]
    kept.save_best(payload(9, best=[[0.3, 9], [0.4, 6]]))
    assert names(tmp_path) == ["best_000000006.pt", "best_000000009.pt", "last_000000003.pt"]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("kind", ["last", "best"])
def test_what_is_outdated_goes_when_the_new_one_has_its_name_on_the_disk(
    kind: str, parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill, or the end of the machine, at any moment leaves one that is whole."""
    kept, seen = Checkpoints(tmp_path, MAIN), []
    if parts:
        monkeypatch.setattr(checkpoint, "is_dtensor", lambda value: True)
    ending = "dcp" if parts else "pt"
    fsync = os.fsync

    def look(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        seen.append((name, {int(p.stem[5:]) for p in tmp_path.glob(f"{kind}_*.{ending}")}))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", look)
    save = kept.save_last if kind == "last" else kept.save_best
    for step in (1, 2, 3):
        seen.clear()
        before = {int(p.stem[5:]) for p in tmp_path.glob(f"{kind}_*")}
        save(payload(step, best=[[0.1, step]]))
        whole = [name for name, there in seen if there == before]
        assert any(name.startswith(f".{kind}_") or name.endswith((".distcp", ".tmp")) for name in whole)
        assert seen[-1] == (tmp_path.name, before | {step}), "its name is on the disk before an older one is deleted"
        after = {int(p.stem[5:]) for p in tmp_path.glob(f"{kind}_*")}
        assert after == ({step - 1, step} - {0} if kind == "last" else {step})


def test_an_optimizer_that_was_loaded_holds_no_file(tmp_path: Path) -> None:
    """A checkpoint that is deleted gives its space back."""
    path = tmp_path / "last_000000005.pt"
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    save_checkpoint(payload(optimizer=optimizer.state_dict()), path)
    content = load_checkpoint(path)
    optimizer.load_state_dict(copy_from_mmap(content["optimizer"], CPU))
    del content
    assert not mapped(path)
    assert optimizer.state[model.weight]["exp_avg"].abs().sum() > 0


# ---- which one is found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "samebits"]
    caplog.clear()
    return lines


def test_the_newest_that_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "samebits")
    for world in (None, MAIN):
        assert Checkpoints(tmp_path, world).newest_valid() is None
    for name, step in (("last", 2), ("best", 4), ("last", 3)):
        save_checkpoint(payload(step), tmp_path / f"{name}_{step:09d}.pt")
    for name in ("last_000000010.pt", "best_000000011.pt"):
        (tmp_path / name).write_bytes(b"damaged")
    before = names(tmp_path)
    for world in (None, MAIN):
        newest = Checkpoints(tmp_path, world).newest_valid()
        assert newest is not None
        assert newest[0] == tmp_path / "best_000000004.pt"
        assert_equal(newest[1], payload(4))
        assert [line.split(" does")[0] for line in told(caplog)] == [
            f"skipping damaged checkpoint: {tmp_path}/{name}" for name in ("best_000000011.pt", "last_000000010.pt")
        ]
        assert names(tmp_path) == before
    Checkpoints(tmp_path, MAIN).newest_valid(put_aside=True)
    assert names(tmp_path) == [
        "best_000000004.pt", "best_000000011.damaged", "last_000000002.pt", "last_000000003.pt",
        "last_000000010.damaged",
    ]  # fmt: skip
    assert len(told(caplog)) == 2


def test_a_resume_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """Half a file, half a directory, one that was being deleted; by rank 0 of the run alone, and nothing else."""
    own = [".hidden.pt", ".notes.tmp", ".lock", "last_000000003.pt"]
    for name in (*own[:-1], ".last_000000009.pt.tmp", ".best_000000009.pt.tmp"):
        (tmp_path / name).write_bytes(b"half")
    save_checkpoint(payload(3), tmp_path / own[-1])
    for name in (".last_000000012.dcp.tmp", ".best_000000002.dcp.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"half")
    before = names(tmp_path)
    for world, put_aside in ((None, False), (MAIN, False)):
        Checkpoints(tmp_path, world).newest_valid(put_aside)
        assert names(tmp_path) == before
    found = Checkpoints(tmp_path, MAIN).newest_valid(put_aside=True)
    assert found is not None
    assert found[0].name == own[-1]
    assert names(tmp_path) == sorted(own)


@pytest.mark.parametrize("done", range(6))
def test_a_kill_while_a_sharded_one_is_replaced_leaves_one_that_loads(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """done: number of renames and removals before the kill."""
    path, count = in_parts(tmp_path / "last_000000005.dcp", payload()), itertools.count()

    def until_killed(call: Callable[..., Any]) -> Callable[..., Any]:
        def tried(*given: Any, **named: Any) -> Any:
            if next(count) >= done:
                raise KeyboardInterrupt
            return call(*given, **named)

        return tried

    monkeypatch.setattr(shutil, "rmtree", until_killed(shutil.rmtree))
    monkeypatch.setattr(Path, "replace", until_killed(Path.replace))
    with pytest.raises(KeyboardInterrupt):
        in_parts(path, payload())
    monkeypatch.undo()
    found = Checkpoints(tmp_path, MAIN).newest_valid(put_aside=True)
    assert found is not None
    assert found[0] == path
    assert names(tmp_path) == [path.name]


def test_a_sharded_one_of_the_same_step_may_be_damaged_again(tmp_path: Path) -> None:
    save_checkpoint(payload(3), tmp_path / "last_000000003.pt")
    for _ in range(2):
        os.truncate(in_parts(tmp_path / "last_000000005.dcp", payload()) / "__0_0.distcp", 9)
        Checkpoints(tmp_path, MAIN).newest_valid(put_aside=True)
        assert names(tmp_path) == ["last_000000003.pt", "last_000000005.damaged"]


def test_where_none_loads_the_user_decides(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"last_{step:09d}.pt").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}: all 3 checkpoints are damaged; move them away to start"):
        Checkpoints(tmp_path, MAIN).newest_valid()


@pytest.mark.skipif(sys.platform == "darwin", reason="all names are UTF-8")
def test_a_path_that_torch_cannot_open_is_no_damage(tmp_path: Path) -> None:
    """Its bytes are not UTF-8, or Python has read them in another encoding (LC_ALL=C, PYTHONUTF8=0). Weights of another
    program are not mapped."""
    folder = tmp_path / os.fsdecode(b"\xe9")
    folder.mkdir()
    save_checkpoint({"model": {}}, tmp_path / "last_000000001.pt")
    (tmp_path / "last_000000001.pt").rename(folder / "last_000000001.pt")
    with pytest.raises(ConfigError, match="torch maps no file whose path is not UTF-8 - rename it, or unset LC_ALL"):
        Checkpoints(folder, MAIN).newest_valid(put_aside=True)
    assert names(folder) == ["last_000000001.pt"]
    torch.save({"a": torch.ones(2)}, folder / "weights.pt")
    assert torch.equal(find_weights(folder / "weights.pt")[1]["a"], torch.ones(2))


# ---- what a user names


def run_with(directory: Path, **files: dict[str, Any]) -> Path:
    """files: last_3={...}, written as checkpoints/last_000000003.pt; a `best_4_dcp` in parts."""
    (directory / "checkpoints").mkdir(parents=True)
    for name, content in files.items():
        kind, step, *suffix = name.split("_")
        path = directory / "checkpoints" / f"{kind}_{int(step):09d}"
        in_parts(path.with_suffix(".dcp"), content) if suffix else save_checkpoint(content, path.with_suffix(".pt"))
    return directory


def test_a_run_stands_for_its_best_or_newest_weights(tmp_path: Path) -> None:
    best = [[0.1, 9], [0.2, 4]]  # the best of all is damaged
    run = run_with(tmp_path / "a", best_4=payload(4), last_8=payload(8, best=best), last_6=payload(6, best=best))
    (run / "checkpoints/best_000000009.pt").write_bytes(b"damaged")
    path, content = find_checkpoint(run)
    assert path == run / "checkpoints/best_000000004.pt"
    assert_equal(content, payload(4))
    (run / "checkpoints/best_000000004.pt").unlink()
    path, content = find_checkpoint(run)
    assert path == run / "checkpoints/last_000000008.pt"
    assert_equal(content, payload(8, best=best))
    path, content = find_checkpoint(run / "checkpoints/last_000000006.pt")
    assert path == run / "checkpoints/last_000000006.pt"
    assert content["step"] == 6


def test_a_checkpoint_of_another_user_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "a", last_8=payload(8))

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "last_000000008.pt")

    monkeypatch.setattr("samebits.checkpoints.integrity.zipfile.ZipFile", refused)
    for given in (run, run / "checkpoints/last_000000008.pt"):
        for find in (find_checkpoint, find_weights):
            with pytest.raises(ConfigError, match=r"Permission denied: 'last_000000008\.pt'$"):
                find(given)


def test_a_run_in_parts_is_read_as_far_as_weights(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a", last_8_dcp=payload(8, best=[[0.2, 4]]), best_4_dcp=payload(4))
    for given in (run, run / "checkpoints/best_000000004.dcp"):
        path, content = find_checkpoint(given)
        assert path == run / "checkpoints/best_000000004.dcp"
        assert content["model"]["w"].tolist() == [4.0, 4.0]
        assert content["optimizer"] == {"state": {}, "param_groups": []}


def test_what_stands_for_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere: is neither a checkpoint nor a run directory with checkpoints$"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"/empty/checkpoints: contains no checkpoint$"):
        find_checkpoint(run_with(tmp_path / "empty"))
    with pytest.raises(CorruptFileError, match=r"^.+/none\.dcp does not load"):
        find_checkpoint(tmp_path / "none.dcp")
    (tmp_path / "t.csv").write_text("a,b")
    with pytest.raises(CorruptFileError, match=r"/t\.csv does not load: .* - give a run directory or another check"):
        find_checkpoint(tmp_path / "t.csv")


class Looked:
    """Pickled as Python 3.11.2 pickles a member of an enum: by getattr."""

    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self.name = kind, name

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (self.kind, self.name)


def test_an_index_names_members_of_enums_and_nothing_else_by_getattr() -> None:
    from collections import OrderedDict

    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as Format

    def loaded(kind: Any, name: str) -> Any:
        return sharded._Index(io.BytesIO(pickle.dumps(Looked(kind, name)))).load()

    member = next(iter(Format))
    assert loaded(Format, member.name) is member
    for kind, name in ((Format, "mro"), (OrderedDict, "fromkeys"), (Format, "__members__")):
        with pytest.raises(pickle.UnpicklingError, match=f"requires {name} of"):
            loaded(kind, name)


def test_an_old_checkpoint_has_the_names_of_now() -> None:
    old = {name: [name] for name in RENAMED} | {"step": 3}
    assert with_new_names(old) == {new: [name] for name, new in RENAMED.items()} | {"step": 3}
    assert set(RENAMED.values()) <= {*KEYS, *LATER}
