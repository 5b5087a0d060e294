"""A file from elsewhere: what lies outside of its folder is not read, unless data.external=allow, and is named."""

from __future__ import annotations

import inspect as signatures
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from conftest import ROOT as PROJECT
from conftest import slow

from engine.data import probe
from engine.data.h5 import H5Dataset
from engine.errors import ConfigError
from engine.packing.inspect import inspect_file
from engine.packing.options import PackOptions
from engine.packing.repack import Encoding, repack_file
from lab.datasets.tokens import TokenWindows

ALL = {"all": {"group": "/"}}
SECRET = b"the secret of another file, 64 bytes long, in the home of someone"[:64]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder `set` for the stranger's file, and files of others beside it."""
    (tmp_path / "set" / "below").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(SECRET)
    for file in ("private.h5", "set/near.h5", "set/below/near.h5"):
        with h5py.File(tmp_path / file, "w") as h5:
            h5["x"] = np.arange(64, dtype="u1")
            h5["g/values"], h5["g/offsets"] = np.arange(64, dtype="u1"), np.array([0, 10, 64])
    return tmp_path


def virtual(file: h5py.File, name: str, source: str, dataset: str = "x", size: int = 64) -> None:
    layout = h5py.VirtualLayout((size,), "u1")
    layout[...] = h5py.VirtualSource(source, dataset, (size,))
    file.create_virtual_dataset(name, layout)


def raw(file: h5py.File, name: str, other: Path) -> None:
    file.create_dataset(name, (64,), "u1", external=[(str(other), 0, 64)])


def chained(folder: Path, make: Callable[[h5py.File], None]) -> str:
    """Another file of the stranger's, beside the first, that leads on."""
    with h5py.File(folder / "set" / "next.h5", "w") as file:
        make(file)
    return "next.h5"


# name of the case -> what it makes in the file, whose dataset or group "x" is then read
ATTACKS: dict[str, Callable[[h5py.File, Path], None]] = {
    "raw": lambda f, home: raw(f, "x", home / "secret"),
    "raw beside": lambda f, home: raw(f, "x", home / "set" / "near.h5"),
    "link": lambda f, home: f.__setitem__("x", h5py.ExternalLink(str(home / "private.h5"), "x")),
    "link up": lambda f, home: f.__setitem__("x", h5py.ExternalLink("../private.h5", "x")),
    "soft link": lambda f, home: (
        f.__setitem__("far", h5py.ExternalLink("../private.h5", "/")),
        f.__setitem__("x", h5py.SoftLink("/far/x")),
    ),
    "symbolic link": lambda f, home: (
        (home / "set" / "here.h5").symlink_to(home / "private.h5"),
        f.__setitem__("x", h5py.ExternalLink("here.h5", "x")),
    ),
    "virtual": lambda f, home: virtual(f, "x", str(home / "private.h5")),
    "virtual up": lambda f, home: virtual(f, "x", "../private.h5"),
    "virtual of raw": lambda f, home: (raw(f, "r", home / "secret"), virtual(f, "x", ".", "r")),
    "virtual of a link": lambda f, home: (
        f.__setitem__("far", h5py.ExternalLink("../private.h5", "x")),
        virtual(f, "x", ".", "far"),
    ),
    "virtual of a file that leads on": lambda f, home: virtual(
        f, "x", chained(home, lambda n: raw(n, "x", home / "secret"))
    ),
    "link to a file that leads on": lambda f, home: f.__setitem__(
        "x", h5py.ExternalLink(chained(home, lambda n: virtual(n, "x", "../private.h5")), "x")
    ),
    "link to a file that links on": lambda f, home: f.__setitem__(
        "x",
        h5py.ExternalLink(chained(home, lambda n: n.__setitem__("x", h5py.ExternalLink("../private.h5", "x"))), "x"),
    ),
    "a group's values": lambda f, home: (
        f.__setitem__("x/offsets", np.array([0, 10, 64])),
        raw(f, "x/values", home / "secret"),
    ),
    "a group's offsets": lambda f, home: (
        f.__setitem__("x/values", np.arange(64, dtype="u1")),
        f.__setitem__("x/offsets", h5py.ExternalLink("../private.h5", "g/offsets")),
    ),
    "a whole group": lambda f, home: f.__setitem__("x", h5py.ExternalLink("../private.h5", "g")),
}
LEADS_TO = ("secret", "private.h5", "near.h5", "here.h5", "next.h5", "another folder")


def strangers(home: Path, name: str) -> Path:
    path = home / "set" / "f.h5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(64)
        ATTACKS[name](file, home)
    return path


@pytest.mark.parametrize("name", ATTACKS)
def test_files_elsewhere_are_refused(name: str, home: Path) -> None:
    path = strangers(home, name)
    uses: list[Callable[[], object]] = [
        lambda: H5Dataset(str(path), {"x": "x"}, ALL, "all"),
        lambda: H5Dataset(str(path), {"y": "y"}, {"all": {"group": "/", "index": "x"}}, "all"),
        lambda: TokenWindows(str(path), {"x": "x"}, ALL, "all", window=4, stride=1),
        lambda: probe.num_outputs({"path": str(path), "fields": {"x": "x"}, "splits": ALL}, "x"),
    ]
    for use in uses[:1] if "group" in name else uses:
        with pytest.raises(ConfigError) as error:
            use()
        line = str(error.value)
        assert "data.external=allow reads it" in line
        assert "/x" in line
        assert any(other in line for other in LEADS_TO), line
        assert "\n" not in line
    assert len(H5Dataset(str(path), {"x": "x"}, ALL, "all", external="allow")) in (2, 64)


def test_a_member_of_a_table_elsewhere_is_refused(home: Path) -> None:
    with h5py.File(home / "set" / "f.h5", "w") as file:
        kind = np.dtype([("a", "u1"), ("b", "u1")])
        file.create_dataset("x", (32,), kind, external=[(str(home / "secret"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(ConfigError, match=r"/x is stored in .*secret.*data.external=allow reads it"):
        H5Dataset(str(home / "set" / "f.h5"), {"x": "x/a"}, ALL, "all")
    allowed = H5Dataset(str(home / "set" / "f.h5"), {"x": "x/a"}, ALL, "all", external="allow")
    assert bytes(allowed.gather(np.arange(32))["x"].numpy()) == SECRET[::2]


@pytest.mark.parametrize("name", [name for name in ATTACKS if "raw" in name or "virtual" in name or "values" in name])
def test_repack_copies_no_foreign_bytes(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, new = strangers(home, name), home / "new.h5"
    inspect_file(str(path), 0.01)  # it says where the values lie, and reads none
    shown = capsys.readouterr().out
    assert any(f"in other files: {other}" in shown for other in ("../", str(home), "next.h5")) or "virtual" in shown
    if "link to" not in name:
        with pytest.raises(ConfigError, match="--external allow"):
            repack_file(str(path), str(new), PackOptions(quiet=True), Encoding(), {})
        assert [p.name for p in home.glob("*new*")] == []
        repack_file(str(path), str(new), PackOptions(quiet=True), Encoding(), {}, external="allow")
        with h5py.File(new) as file:
            assert file["x/values" if "values" in name else "x"].shape == (64,)


def test_the_command_line_says_it_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = strangers(home, "raw")
    main = runpy.run_path(str(PROJECT / "src" / "h5.py"), run_name="h5_command")["main"]
    with pytest.raises(ConfigError, match=f"x is stored in {home}/secret"):
        main(["repack", str(path), str(home / "new.h5")])
    main(["repack", str(path), str(home / "new.h5"), "--external", "allow", "--quiet"])
    with h5py.File(home / "new.h5") as file:
        assert bytes(file["x"][:]) == SECRET
    main(["inspect", str(strangers(home, "link")), "--seconds", "0"])
    assert f"x: a link to x in {home}/private.h5" in capsys.readouterr().out


def test_files_of_the_same_folder_are_one_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "set" / "f.h5"
    with h5py.File(path, "w") as file:
        file["link"] = h5py.ExternalLink("near.h5", "x")
        file["below"] = h5py.ExternalLink("below/near.h5", "x")
        file["soft"] = h5py.SoftLink("/link")
        file["group"] = h5py.ExternalLink(str(home / "set/below/near.h5"), "g")
        virtual(file, "virtual", "near.h5")
        virtual(file, "circle", ".", "circle2")
        virtual(file, "circle2", ".", "circle")
    names = ("link", "below", "soft", "virtual")
    monkeypatch.chdir(home)
    decoy = home / "near.h5"
    decoy.write_bytes((home / "private.h5").read_bytes())  # the file's own folder comes before the current one
    (home / "linked.h5").symlink_to(path)  # of a file that is linked to, the folder where it lies counts too
    for opened in (path, Path("set/f.h5"), home / "linked.h5"):
        if opened.name == "linked.h5":
            decoy.unlink()
        data = H5Dataset(str(opened), {name: name for name in names}, ALL, "all")
        assert all(value.tolist() == [63] for value in data.gather(np.array([63])).values())
        assert len(H5Dataset(str(opened), {"group": "group"}, ALL, "all")) == 2
    with pytest.raises(ConfigError, match="circle is a virtual dataset that shows itself"):
        H5Dataset(str(path), {"x": "circle"}, ALL, "all")


def numbered(file: h5py.File, name: str, source: str, dataset: str = "x%b") -> None:
    """Blocks of 64, the k-th of which is x<k> of the file that is the k-th of this name."""
    blocks, one = h5py.h5s.create_simple((64,), (h5py.h5s.UNLIMITED,)), h5py.h5s.create_simple((64,))
    blocks.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (64,), (64,))
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_virtual(blocks, source.encode(), dataset.encode(), one)
    space = h5py.h5s.create_simple((64,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_U8LE, space, create)


def test_numbered_sources(home: Path) -> None:
    for folder in ("set", "."):
        with h5py.File(home / folder / "part-0.h5", "w") as file:
            file["x0"] = np.arange(64, dtype="u1")
    with h5py.File(home / "set" / "raw-0.h5", "w") as file:
        raw(file, "x0", home / "secret")
    with h5py.File(home / "set" / "f.h5", "w") as file:
        numbered(file, "near", "part-%b.h5")
        numbered(file, "far", "../part-%b.h5")
        numbered(file, "raw", "raw-%b.h5")
        numbered(file, "x0", ".")
    data = H5Dataset(str(home / "set" / "f.h5"), {"x": "near"}, ALL, "all")
    assert data.gather(np.arange(64))["x"].tolist() == list(range(64))
    with pytest.raises(ConfigError, match=r"raw is stored in .*secret, which may be any file"):
        H5Dataset(str(home / "set" / "f.h5"), {"x": "raw"}, ALL, "all")
    with pytest.raises(ConfigError, match=r"source \.\./part-%b\.h5 is outside of the file's folder"):
        H5Dataset(str(home / "set" / "f.h5"), {"x": "far"}, ALL, "all")
    for external in ("allow", "refuse"):
        with pytest.raises(ConfigError, match="x0 is a virtual dataset that shows itself"):
            H5Dataset(str(home / "set" / "f.h5"), {"x": "x0"}, ALL, "all", external=external)  # type: ignore[arg-type]


SOURCES = ("p-%b.h5", "below/p-%b.h5", "../p-%b.h5", "HOME/out/p-%b.h5", "HOME/set/p-%b.h5", "HOME/gone/p-%b.h5", ".")


@pytest.mark.parametrize("count", [40, slow(1000)])
def test_whatever_hdf5_finds_where(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one name in many folders, each with values of its own: those that HDF5 reads tell where it has been."""
    for trial in range(count):
        draw, home = random.Random(trial), tmp_path / str(trial)
        for place in ("set/below", "cwd", "out", "real"):
            (home / place).mkdir(parents=True)
        monkeypatch.chdir(home / "cwd")
        linked = draw.random() < 0.3
        path = home / ("real" if linked else "set") / "f.h5"
        made: dict[int, Path] = {}
        for place in ("set", "set/below", "cwd", "out", "real", ""):
            for k in range(3):
                if draw.random() < 0.35:
                    made[len(made) + 1] = home / place / f"p-{k}.h5"
                    with h5py.File(made[len(made)], "w") as file:
                        file["x"], file["x0"], file["x1"] = (np.full(64, len(made), "u1") for _ in range(3))
        source = draw.choice(SOURCES).replace("HOME", str(home))
        kind = draw.choice(["numbered", "plain", "link", "datasets", "linked datasets"])
        with h5py.File(path, "w") as file:
            if kind == "numbered":
                numbered(file, "v", source, "x%b" if source == "." else draw.choice(["x", "x%b"]))
            elif kind in ("datasets", "linked datasets"):
                for k in range(2) if kind == "linked datasets" else ():
                    file[f"x{k}"] = h5py.ExternalLink(source.replace("%b", "0"), "x")
                numbered(file, "v", "." if kind == "linked datasets" else source.replace("%b", "0"))
            elif kind == "plain":
                virtual(file, "v", source.replace("%b", "0"))
            else:
                file["v"] = h5py.ExternalLink(source.replace("%b", "0"), "x")
        if linked:
            (home / "set" / "f.h5").symlink_to(path)
        path = home / "set" / "f.h5"
        try:
            with h5py.File(path) as file:
                values = file["v"][...]
        except (KeyError, OSError):
            continue
        read = {made[value] for value in set(values.tolist()) - {0}}
        inside = {home / "set", home / "set" / "below", home / "real"} if linked else {home / "set", home / "set/below"}
        outside = [file for file in made.values() if file.parent not in inside]
        if not read:
            continue

        def batch(external: str, path: Path = path, size: int = len(values)) -> list[int]:
            data = H5Dataset(str(path), {"x": "v"}, ALL, "all", external=external)  # type: ignore[arg-type]
            return data.gather(np.arange(size))["x"].tolist()

        assert batch("allow") == values.tolist(), (trial, kind, source)
        if read & set(outside):
            with pytest.raises(ConfigError, match=r"data\.external=allow reads it"):
                batch("refuse")
        elif not outside or (kind in ("plain", "link") and "HOME" not in source):
            assert batch("refuse") == values.tolist(), (trial, kind, source)


@pytest.mark.parametrize("name", ["h5", "tokens", "sequences"])
def test_the_default_is_one(name: str) -> None:
    """A config that was saved before there was this key is read as conf/ says today."""
    assert yaml.safe_load((PROJECT / f"conf/data/{name}.yaml").read_text())["external"] == "refuse"
    for kind in (H5Dataset, TokenWindows):
        assert signatures.signature(kind).parameters["external"].default == "refuse"
    assert sys.modules[repack_file.__module__].REFUSE_EXTERNAL == "refuse"
