"""A file that leads to other files: they are not opened, unless data.external=allow, and are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from h5rows import ConfigError, Dataset, repack
from h5rows.options import RepackOptions
from h5rows.packing.inspect import inspect_file

pytestmark = pytest.mark.usefixtures("in_a_program")
ALL = {"all": {"group": "/"}}
SECRET = b"the secret of another file, 64 bytes long, in the home of someone"[:64]
VALUES = np.arange(64, dtype="u1")


def test_virtual_data_of_an_hdf5_that_reads_it_wrongly_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 1.14.2 reads some otherwise by row than by block."""
    assert len(Dataset(str(home / "other.h5"), {"x": "v"})) == 64
    monkeypatch.setattr(h5py.h5, "get_libversion", lambda: (1, 14, 2))
    for use in (lambda: Dataset(str(home / "other.h5"), {"x": "v"}), lambda: repack(str(home / "other.h5"), "new.h5")):
        with pytest.raises(ConfigError, match=r"/v is virtual, and HDF5 .*install h5py>=3\.14"):
            use()
    assert len(Dataset(str(home / "other.h5"), {"x": "x"})) == 64


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    for file in ("other.h5", "other-0.h5"):
        with h5py.File(tmp_path / file, "w") as h5:
            h5["x"], h5["g/values"], h5["g/offsets"] = VALUES, VALUES, np.array([0, 10, 64])
            virtual(h5, "v", ".", "x")
    return tmp_path


def virtual(file: h5py.File, name: str, source: str, dataset: str) -> None:
    layout = h5py.VirtualLayout((64,), "u1")
    layout[...] = h5py.VirtualSource(source, dataset, (64,))
    file.create_virtual_dataset(name, layout)


def raw(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (64,), "u1", external=[(str(Path(file.filename).with_name("secret")), 0, 64)])


def numbered(file: h5py.File, name: str, source: str, dataset: str) -> None:
    """Blocks of 64, the k-th of which is dataset<k> of the file that is the k-th of this name."""
    blocks, one = h5py.h5s.create_simple((64,), (h5py.h5s.UNLIMITED,)), h5py.h5s.create_simple((64,))
    blocks.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (64,), (64,))
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_virtual(blocks, source.encode(), dataset.encode(), one)
    space = h5py.h5s.create_simple((64,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_U8LE, space, create)


def put(file: h5py.File, name: str, value: object) -> None:
    file[name] = value


def link(file: h5py.File, name: str, to: str, other: str = "other.h5") -> None:
    file[name] = h5py.ExternalLink(other, to)


# the way that leads out of a file by its dataset or group x -> what makes it, and what the refusal names
WAYS: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "raw": (lambda f: raw(f, "x"), "x is stored in another file, .*secret"),
    "link": (lambda f: link(f, "x", "x"), "x is a link to x of another file, other.h5"),
    "link by its own name": (lambda f: (link(f, "x", "y", "f.h5"), put(f, "y", VALUES)), "link .* f.h5"),
    "soft link": (lambda f: (link(f, "far", "/"), put(f, "x", h5py.SoftLink("/far/x"))), "far is a link to / of"),
    "virtual": (lambda f: virtual(f, "x", "other.h5", "x"), "x is virtual and shows x of another file, other.h5"),
    "virtual of a virtual": (lambda f: virtual(f, "x", "other.h5", "v"), "shows v of another file, other.h5"),
    "numbered": (lambda f: numbered(f, "x", "other-%b.h5", "x"), "shows x of another file, other-%b.h5"),
    "virtual of raw": (lambda f: (raw(f, "r"), virtual(f, "x", ".", "r")), "shows r, which is virtual or stored in"),
    "virtual of a link": (
        lambda f: (link(f, "far", "x"), virtual(f, "x", ".", "far")),
        "shows far: far is a link to x",
    ),
    "virtual twice": (
        lambda f: (put(f, "a", VALUES), virtual(f, "b", ".", "a"), virtual(f, "x", ".", "b")),
        "x is virtual and shows b, which is virtual",
    ),
    "link to a virtual": (lambda f: link(f, "x", "v"), "x is a link to v of another file, other.h5"),
    "a group's values": (lambda f: (put(f, "x/offsets", [0, 10, 64]), raw(f, "x/values")), "stored in .*secret"),
    "a group's offsets": (
        lambda f: (put(f, "x/values", VALUES), link(f, "x/offsets", "g/offsets")),
        "offsets is a link to g/offsets of another file, other.h5",
    ),
    "a whole group": (lambda f: link(f, "x", "g"), "x is a link to g of another file, other.h5"),
}


def made(home: Path, way: str) -> Path:
    path = home / "f.h5"
    with h5py.File(path, "w") as file:
        file["whole"] = np.arange(64)
        WAYS[way][0](file)
    return path


@pytest.mark.parametrize("way", [way for way in WAYS if "raw" in way or "virtual" in way or "values" in way])
def test_repack_copies_no_foreign_bytes(way: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    path, new = made(home, way), home / "new.h5"
    inspect_file(str(path))  # it says where the values lie, and reads none
    if way == "link to a virtual":  # which is copied as a link
        return
    with pytest.raises(ConfigError, match="external='allow'"):
        repack(str(path), str(new), quiet=True)
    assert [p.name for p in home.glob("*new*")] == []
    repack(str(path), str(new), quiet=True, external="allow")
    name = "x/values" if "values" in way else "x"
    with h5py.File(path) as file, h5py.File(new) as copy:
        assert np.array_equal(copy[name], file[name])
        assert not copy[name].is_virtual
        assert not copy[name].external


def test_what_is_refused_is_not_opened(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, for which HDF5 would wait; and soft links that lead on to more than HDF5 follows."""
    monkeypatch.chdir(home)
    for way in WAYS:
        if way not in ("link by its own name", "virtual twice"):
            path = made(home, way)
            for name in ("secret", "other.h5", "other-0.h5"):
                (home / name).rename(home / f"kept-{name}")
                os.mkfifo(home / name)
            with pytest.raises(ConfigError, match="refused"):
                Dataset(str(path), {"x": "x"}, "all", ALL)
            for name in ("secret", "other.h5", "other-0.h5"):
                (home / f"kept-{name}").replace(home / name)
    with h5py.File(home / "f.h5", "w") as file:
        group = file.create_group("g")
        group["s40"] = h5py.SoftLink(".")
        for k in range(40):
            group[f"s{k}"] = h5py.SoftLink("/".join([f"s{k + 1}"] * 99))
        virtual(file, "v", ".", "g/s0/x")
    for name in ("g/s0/x", "v"):
        with pytest.raises(ConfigError, match="too many links"):
            Dataset(str(home / "f.h5"), {"x": name}, "all", ALL)


def test_virtual_datasets_in_a_circle_are_refused(home: Path) -> None:
    """HDF5 would crash. Of a field, and by the commands."""
    with h5py.File(home / "f.h5", "w") as file:
        virtual(file, "x", ".", "y")
        virtual(file, "y", ".", "x")
    with pytest.raises(ConfigError, match="x is virtual and shows y, which is virtual"):
        Dataset(str(home / "f.h5"), {"x": "x"}, "all", ALL)
    inspect_file(str(home / "f.h5"))
    with pytest.raises(ConfigError, match="which is virtual"):
        repack(str(home / "f.h5"), str(home / "new.h5"), quiet=True)


def test_a_split_in_another_file_is_refused(home: Path) -> None:
    with h5py.File(home / "f.h5", "w") as file:
        link(file, "far", "g")
    said = r"f\.h5: far \(data\.fields\.x\): far is a link to g of another file, other.h5: refused"
    with pytest.raises(ConfigError, match=rf"^[^:]*{said}"):
        Dataset(str(home / "f.h5"), {"x": "values"}, "all", {"all": {"group": "far"}})


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    h5py.File(tmp_path / "b.h5", "w").close()
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = VALUES
        for name, link in {
            "soft": h5py.SoftLink("/nowhere"),
            "circle": h5py.SoftLink("/circle"),
            "no file": h5py.ExternalLink("no.h5", "/x"),
            "no name": h5py.ExternalLink("b.h5", "/none"),
        }.items():
            file[name] = link
    for name, said in {
        "soft": r"'soft' \(data.fields.x\): cannot be read .*the link leads to nothing",
        "circle": "'circle' .*cannot be read .*the link leads to itself",
        "no file": "'no file' .*cannot be read .*a file that contains its values is missing",
        "no name": "'no name' .*cannot be read .*object 'none' doesn't exist",
    }.items():
        with pytest.raises(ConfigError, match=said) as error:
            Dataset(str(tmp_path / "f.h5"), {"x": name}, "all", ALL, external="allow")
        assert "damaged" not in str(error.value)
        assert "did you mean" not in str(error.value)


def test_datasets_of_another_file_with_one_name_are_two(tmp_path: Path) -> None:
    """HDF5 names a dataset behind a soft link by the path of the link, also if it is in another file."""
    values = {name: np.random.default_rng(k).random((24, 3)) for k, name in enumerate(("name", "other/x"))}
    values["name"][[0, 6, 15, 23]] = values["other/x"][[0, 6, 15, 23]]  # rows that are compared with HDF5
    with h5py.File(tmp_path / "other.h5", "w") as file:
        for name, rows in values.items():
            file.create_dataset(name, data=rows, chunks=(1, 3), compression="gzip")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        link(file, "all", "/")
        link(file, "group", "/other")
        file["name"] = h5py.SoftLink("/group/x")
    data = Dataset(str(tmp_path / "f.h5"), {"x": "all/name", "y": "name"}, external="allow")
    batch = data[:]
    assert (batch["x"].numpy() == values["name"]).all()
    assert (batch["y"].numpy() == values["other/x"]).all()


def test_the_file_s_own_virtual_datasets_are_read(home: Path) -> None:
    with h5py.File(home / "other.h5", "a") as file:
        virtual(file, "dotted", ".", "./x")
    data = Dataset(str(home / "other.h5"), {"x": "v", "y": "dotted"}, "all", ALL)
    assert all(values.tolist() == VALUES.tolist() for values in data.gather(np.arange(64)).values())


def test_repack_refuses_other_files_unless_they_are_allowed() -> None:
    assert RepackOptions(quiet=True).external == "refuse"
