"""What a file declares is compared with memory, and with the file, before anything is allocated."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5rows
from h5rows import integration
from h5rows.reading import memory

GB = 1 << 30
PLENTY, LITTLE = 1 << 62, 80 << 20  # bytes that are free
SPLITS = {"train": {"group": "/"}}


def make(path: Path, *shape: int, **more: Any) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape, "f4", **more)
        file["y"] = np.arange(shape[0] if shape[0] < 1000 else 10) % 3
    assert path.stat().st_size < 100_000
    return str(path)


USES: dict[str, Callable[[str], Any]] = {
    "open": lambda path: h5rows.open(path, {"x": "x"}),
    "shape": lambda path: integration.sample_shape({"path": path, "fields": {"x": "x"}, "splits": SPLITS}, "x"),
    "outputs": lambda path: integration.num_outputs({"path": path, "fields": {"x": "x"}, "splits": SPLITS}, "x"),
}


@pytest.mark.parametrize("free", [PLENTY, LITTLE])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((100, 4, 1000, 1000), {"chunks": (100, 4, 1000, 1000)}),
        ((100, GB // 2), {"chunks": (1, 1 << 20)}),
        ((100, GB // 2), {}),
        ((100, 1 << 40), {"chunks": (1, 1 << 20)}),
    ],
    ids=["chunk", "row", "contiguous", "tera"],
)
def test_a_few_bytes_that_declare_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Any, more: Any, use: str, free: int
) -> None:
    """Refused before it is read: this process has taken next to nothing."""
    path, before = make(tmp_path / "a.h5", *shape, **more), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(memory, "available", lambda: free)
    with pytest.raises(h5rows.ConfigError, match=r"a\.h5: /x.* GB ") as caught:
        USES[use](path)
    assert "\n" not in str(caught.value)
    h5rows.inspect(path)
    h5rows.repack(path, str(tmp_path / "b.h5"), quiet=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_what_is_written_is_compared_with_memory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3, 32 << 20), "u1", chunks=(1, 32 << 20), compression="gzip")[1] = 7
    assert int(h5rows.open(str(tmp_path / "a.h5"))[1]["x"][-1]) == 7
    monkeypatch.setattr(memory, "available", lambda: LITTLE)
    says = r"/x: 3 copies of a (row|chunk), required to read it, take 0\.1 GB of memory, but only 0\.1 GB are free"
    with pytest.raises(h5rows.ConfigError, match=says):
        h5rows.open(str(tmp_path / "a.h5"))


def test_rows_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, many = make(tmp_path / "a.h5", 1 << 40, chunks=(1 << 20,)), {"chunks": (1 << 20,), "dtype": "i8"}
    assert len(h5rows.open(path, {"x": "x"})) == 1 << 40
    splits = {"train": {"group": "/", "rows": [0, 0.5], "by": "blocks"}}
    assert len(h5rows.Dataset(path, {"x": "x"}, "train", splits)) == 1 << 39
    splits["train"]["by"] = "random"
    with (
        pytest.raises(h5rows.ConfigError, match=r"1,099,511,627,776 row numbers that are shuffled take"),
        integration.split_version(1),
    ):
        h5rows.Dataset(path, {"x": "x"}, "train", splits)
    with h5py.File(path, "a") as file:
        file.create_dataset("label", (1 << 40,), **many)
        file.create_dataset("s/offsets", (1 << 40,), **many)
        file["s/values"] = np.arange(3)
    with pytest.raises(h5rows.ConfigError, match=r"/label declares .* GB for 1,099,511,627,776 rows"):
        integration.num_outputs({"path": path, "fields": {"y": "label"}, "splits": SPLITS}, "y")
    for name in ("label@classes", "s"):
        with pytest.raises(h5rows.ConfigError, match=r"take [12]\d,\d+.* GB of memory, but"):
            h5rows.Dataset(path, {"y": name}, decode=True)
    h5rows.inspect(path)
    assert "x: 1099511627776 float32" in capsys.readouterr().out


def test_what_is_free_is_known() -> None:
    assert 1 << 20 < memory.available() < 1 << 50
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, hard))
        assert memory.available() < 1 << 36
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


V1 = "32 31 0:29 / {} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "26 1 0:24 / {} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
OF_V1 = {"limit": "memory.limit_in_bytes", "use": "memory.usage_in_bytes", "pages": "total_inactive_file"}
OF_V2 = {"limit": "memory.max", "use": "memory.current", "pages": "inactive_file"}


@pytest.mark.parametrize(
    ("mounts", "group", "names", "limit", "free"),
    [
        ("", "", {}, None, 40_960_000_000),  # not the pages that are free: the page cache gives way
        (V2, "0::/a\n", OF_V2, "max", 40_960_000_000),
        (V2, "0::/a\n", OF_V2, "10000000000", 5_000_000_000),
        (V2, "0::/a/b\n", OF_V2, "10000000000", 5_000_000_000),  # the limit of the group above
        (V1, "4:memory:/a\n", OF_V1, "10000000000", 5_000_000_000),
        (V1, "4:cpu:/a\n", OF_V1, "10000000000", 40_960_000_000),
    ],
)
def test_what_is_free_is_within_the_limits_of_containers(
    tmp_path: Path, mounts: str, group: str, names: dict[str, str], limit: str, free: int
) -> None:
    """9 GB are in use, 4 of them pages of files."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 64000000 kB\nMemFree: 90000 kB\nMemAvailable: 40000000 kB\n")
    (tmp_path / "self/cgroup").write_text(group)
    (tmp_path / "self/mountinfo").write_text(mounts.format(str(tmp_path / "groups").replace(" ", r"\040")))
    if names:
        (tmp_path / "groups/a/b").mkdir(parents=True)
        for folder, most in ((tmp_path / "groups/a", limit), (tmp_path / "groups/a/b", "20000000000")):
            (folder / names["limit"]).write_text(f"{most}\n")
            (folder / names["use"]).write_text("9000000000\n")
            (folder / "memory.stat").write_text(f"anon 5000000000\n{names['pages']} 4000000000\n")
    assert memory.available(tmp_path) == free
