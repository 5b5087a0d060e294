"""pack --shards: a set in shards with an index, written to a folder or an address, read back as one set."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from http_files import forget_files, serving, small_blocks

import h5rows
from h5rows import ConfigError, Dataset, inspect, pack
from h5rows.packing import shards
from h5rows.reading import sources


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    forget_files()
    return tmp_path / "cache"


def source(folder: Path, name: str, first: int, count: int, width: int = 3) -> str:
    """Rows that are unlike each other."""
    x = np.arange(first * width, (first + count) * width, dtype=np.float32).reshape(count, width)
    np.savez(folder / f"{name}.npz", x=x, y=np.arange(count) % 5)
    return str(folder / f"{name}.npz")


def rows_of(path: str, **more: Any) -> list[list[float]]:
    forget_files()
    data = Dataset(path, {"x": "x", "y": "y"}, **more)
    batch = data.gather(np.arange(len(data)), None)
    return sorted([*x, y] for x, y in zip(batch["x"].tolist(), batch["y"].tolist()))


def entries(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "index.json").read_text())["shards"]


@pytest.mark.parametrize("count", [1, 4])
def test_shards_hold_the_set_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """In a folder; on a web server, fetched whole and by blocks; where fsspec writes."""
    small_blocks(monkeypatch)
    fsspec.filesystem("memory").mkdir(tmp_path.name)
    given = source(tmp_path, "a", 0, 103)
    pack(given, str(tmp_path / "whole.h5"), quiet=True)
    pack(given, str(tmp_path / "set"), shards=count)
    pack(given, f"memory://{tmp_path.name}/set", shards=count)
    wanted = rows_of(str(tmp_path / "whole.h5"))
    assert len(wanted) == 103
    assert rows_of(str(tmp_path / "set/index.json")) == wanted
    assert rows_of(f"memory://{tmp_path.name}/set/index.json") == wanted
    assert len(entries(tmp_path / "set")) == count
    with serving() as server:
        server.files = {f"/set/{file.name}": file.read_bytes() for file in (tmp_path / "set").iterdir()}
        assert rows_of(server.url("/set/index.json")) == wanted
        assert rows_of(server.url("/set/index.json"), cache_gb=1.0) == wanted
    assert rows_of(server.url("/set/index.json")) == wanted  # the server is gone: what it said last


def test_what_is_added_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "set"
    pack(source(tmp_path, "a", 0, 30), str(out), shards=2)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    first = rows_of(str(out / "index.json"))
    pack(source(tmp_path, "b", 100, 20), str(out), shards=3, append=True)
    assert {name: (out / name).read_bytes() for name in before if name != "index.json"} == {
        name: data for name, data in before.items() if name != "index.json"
    }
    assert [one["file"][:5] for one in entries(out)] == ["00000", "00001", "00002", "00003", "00004"]
    both = rows_of(str(out / "index.json"))
    assert len(both) == 50
    assert [row for row in both if row in first] == first
    (out / "index.json").write_bytes(before["index.json"])  # who holds the index of before reads the set of before
    assert rows_of(str(out / "index.json")) == first


def test_a_pack_that_was_killed_leaves_the_set_and_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At each of its writes; the same command again sends what is missing, and makes the same set."""
    out, old, new = tmp_path / "set", source(tmp_path, "a", 0, 20), source(tmp_path, "b", 50, 30)
    pack(old, str(tmp_path / "straight"), shards=1)
    pack(new, str(tmp_path / "straight"), shards=3, append=True)
    time.sleep(1.1)  # HDF5 would note the second in which something was made
    pack(old, str(out), shards=1)
    before = rows_of(str(out / "index.json"))
    for at in range(4):  # three shards, and the index
        left = [at]

        def killed(method: Any, left: list[int] = left) -> Any:
            def call(*given: Any) -> Any:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                return method(*given)

            return call

        with monkeypatch.context() as patch:
            for name in ("send", "write_index"):
                patch.setattr(shards.Place, name, killed(getattr(shards.Place, name)))
            with pytest.raises(KeyboardInterrupt):
                pack(new, str(out), shards=3, append=True)
        assert rows_of(str(out / "index.json")) == before
    capsys.readouterr()
    pack(new, str(out), shards=3, append=True)
    assert capsys.readouterr().out.count("already there") == 3
    assert {f.name: f.read_bytes() for f in out.iterdir()} == {
        f.name: f.read_bytes() for f in (tmp_path / "straight").iterdir()
    }


def test_a_shard_that_is_not_what_was_packed_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "set"
    pack(source(tmp_path, "a", 0, 40), str(out), shards=2)
    name = entries(out)[1]["file"]
    whole = (out / name).read_bytes()
    with serving() as server:
        server.files = {f"/set/{file.name}": file.read_bytes() for file in out.iterdir()}
        server.files[f"/set/{name}"] = whole + b"\0"
        for more in ({}, {"cache_gb": 1.0}):
            with pytest.raises(ConfigError, match=rf"{name}: has {len(whole) + 1:,} bytes, expected .* by the set"):
                rows_of(server.url("/set/index.json"), **more)
        server.files[f"/set/{name}"] = whole[:-1] + bytes([whole[-1] ^ 1])
        with pytest.raises(ConfigError, match=rf"{name}: the download differs from the packed file"):
            rows_of(server.url("/set/index.json"))
        server.files[f"/set/{name}"] = whole
        assert len(rows_of(server.url("/set/index.json"))) == 40
    (out / name).write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match=rf"{name}: has {len(whole) - 1:,} bytes, expected"):
        rows_of(str(out / "index.json"))
    (out / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name}: is missing; it is listed in .*index\.json"):
        rows_of(str(out / "index.json"))


def test_a_set_that_has_changed_is_read_as_it_is_now(tmp_path: Path) -> None:
    """By the process that has read it before; also one that was copied over, with the times and size of the other."""
    fsspec.filesystem("memory").mkdir(tmp_path.name)
    a, b = source(tmp_path, "a", 0, 100), source(tmp_path, "b", 500, 100)
    for out in (str(tmp_path / "set"), f"memory://{tmp_path.name}/set"):
        index = f"{out}/index.json"
        pack(a, out, shards=1)
        assert len(h5rows.open(index)) == 100
        pack(b, out, shards=1, append=True)
        assert len(h5rows.open(index)) == 200
        pack(b, out, shards=1, overwrite=True)
        data = h5rows.open(index)
        assert (len(data), float(data[0]["x"][0])) == (100, 1500.0)
    times = os.stat(index := tmp_path / "set/index.json").st_mtime_ns
    pack(a, str(tmp_path / "other"), shards=1)
    for file in (tmp_path / "other").iterdir():
        (tmp_path / "set" / file.name).write_bytes(file.read_bytes())
    os.utime(index, ns=(times, times))
    assert float(h5rows.open(str(index))[0]["x"][0]) == 0.0


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_overwrite_leaves_the_shards_of_the_new_set_alone(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the new index stands, whenever it is killed; what is no shard stays."""
    files = fsspec.filesystem("memory" if place == "memory" else "file")
    out = f"memory://{tmp_path.name}/set" if place == "memory" else str(tmp_path / "set")
    root = out.removeprefix("memory:/")
    files.makedirs(root)
    files.pipe_file(f"{root}/notes-1f3a1f3a1f3a.h5", b"mine")
    pack(source(tmp_path, "a", 0, 40), out, shards=4)
    new = source(tmp_path, "b", 90, 20)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards.Place, "write_index", killed)
        with pytest.raises(KeyboardInterrupt):
            pack(new, out, shards=2, overwrite=True)
    assert len(rows_of(f"{out}/index.json")) == 40
    with monkeypatch.context() as patch:
        patch.setattr(shards.Place, "remove_all_but", killed)
        with pytest.raises(KeyboardInterrupt):
            pack(new, out, shards=2, overwrite=True)
    pack(new, out, shards=2, overwrite=True)
    assert "removed 4 shards of the old set" in capsys.readouterr().out
    assert len(rows_of(f"{out}/index.json")) == 20
    held = {path.rpartition("/")[2] for path in files.ls(root, detail=False)}
    named = {one["file"] for one in json.loads(files.cat_file(f"{root}/index.json"))["shards"]}
    assert held == {*named, "index.json", "notes-1f3a1f3a1f3a.h5"}


def test_mistakes_are_one_line_and_leave_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, given = tmp_path / "set", source(tmp_path, "a", 0, 20)
    pack(given, str(out), shards=1)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for more, says in (
        ({"shards": 2}, r"contains a set already; append=True adds to it, overwrite=True replaces it"),
        ({"append": True}, r"append=True: has an effect only for sets of shards; add shards=N"),
    ):
        with pytest.raises(ConfigError, match=says):
            pack(given, str(out), **more)
    with pytest.raises(ConfigError, match=r"has no index\.json to append to; remove append=True"):
        pack(given, str(tmp_path / "new"), shards=1, append=True)
    with pytest.raises(ConfigError, match=r"/x has rows of \['float32', \[3\], None\] in the set, but of .*\[2\]"):
        pack(source(tmp_path, "b", 0, 20, width=2), str(out), shards=1, append=True)
    with pytest.raises(ConfigError, match=r"nosuch://set: Protocol not known: nosuch; the set was not changed"):
        pack(given, "nosuch://set")
    for append in (False, True):  # as fsspec makes buckets of any store that has them
        with pytest.raises(ConfigError, match=r"memory://mistyped/set: mistyped does not exist; .* create it first"):
            pack(given, "memory://mistyped/set", shards=1, append=append)
    assert not fsspec.filesystem("memory").exists("mistyped")

    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"file is a file; give a folder for a set of shards"):
        pack(given, str(tmp_path / "file"), shards=1, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"

    def denied(*given: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "makedirs", denied)
        with pytest.raises(ConfigError, match=r"new: .*Permission denied.*; the set was not changed"):
            pack(given, str(tmp_path / "new"), shards=1)

    def full(fs: Any, file: str, part: str) -> None:
        Path(part).write_bytes(b"the beginning")  # as a full disk leaves it
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.get_filesystem_class("file"), "put_file", full)
        with pytest.raises(ConfigError, match=r"No space left on device; the set was not changed"):
            pack(source(tmp_path, "c", 90, 20), str(out), shards=1, append=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    for text in (b"{}", b"[1]", b"no json", b'{"shards": [{"file": "../x", "bytes": 1, "sha256": ""}]}'):
        (tmp_path / "wrong.json").write_bytes(text)
        with pytest.raises(ConfigError, match=r"wrong\.json: is not an index of shards"):
            rows_of(str(tmp_path / "wrong.json"))


def test_what_the_set_has_is_not_added_twice(tmp_path: Path) -> None:
    """By the same command as before, of the first pack and of an append; what is new is added still."""
    out, (a, b, c) = tmp_path / "set", (source(tmp_path, n, k, 10) for n, k in (("a", 0), ("b", 20), ("c", 40)))
    pack(a, str(out), shards=1)
    pack(b, str(out), shards=2, append=True)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    time.sleep(1.1)  # HDF5 would note the second in which something was made
    for given, count, name in ((a, 1, "00000"), (b, 2, "00001")):
        with pytest.raises(
            ConfigError,
            match=rf"set: {name}-\w+\.h5 of the set is identical to new shard 1 of {count},.* overwrite=True",
        ):
            pack(given, str(out), shards=count, append=True)
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    pack(c, str(out), shards=1, append=True)
    assert len(rows_of(str(out / "index.json"))) == 30


def test_two_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has added meanwhile is seen; the same command again adds the other."""
    out, (a, b, c) = tmp_path / "set", (source(tmp_path, n, k, 10) for n, k in (("a", 0), ("b", 20), ("c", 40)))
    pack(a, str(out), shards=1)
    send = shards.Place.send

    def other_first(self: Any, *given: Any) -> bool:
        monkeypatch.setattr(shards.Place, "send", send)
        pack(b, str(out), shards=1, append=True)
        return send(self, *given)

    monkeypatch.setattr(shards.Place, "send", other_first)
    with pytest.raises(ConfigError, match=r"another command has changed index\.json; repeat the command"):
        pack(c, str(out), shards=1, append=True)
    pack(c, str(out), shards=1, append=True)
    assert len(rows_of(str(out / "index.json"))) == 30


def test_inspect_prints_what_trains_on_the_whole_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not on its first shard, nor on that one's copy here."""
    pack(source(tmp_path, "a", 0, 60), str(tmp_path / "set"), shards=3)
    near = str(tmp_path / "set/index.json")
    with serving() as server:
        server.files = {f"/{file.name}": file.read_bytes() for file in (tmp_path / "set").iterdir()}
        for index in (near, server.url("/index.json")):
            capsys.readouterr()
            inspect(index)
            said = capsys.readouterr().out
            assert f"{index}: 3 shards, read as one set; the first:" in said
            (line,) = (line.strip() for line in said.splitlines() if "h5rows.open(" in line)
            assert len(eval(line, {"h5rows": h5rows})) == 60
        server.files["/one.h5"] = server.files[f"/{entries(tmp_path / 'set')[0]['file']}"]
        inspect(server.url("/one.h5"))
        assert f"h5rows.open('{server.url('/one.h5')}', " in capsys.readouterr().out
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(40)))
    pack(str(tmp_path / "t.csv"), str(tmp_path / "texts"), shards=2, kinds={"y": "text"})
    inspect(str(tmp_path / "texts/index.json"))
    said = capsys.readouterr().out
    assert "y@classes: shards may have different values" in said
    assert "h5rows.open(" not in said
