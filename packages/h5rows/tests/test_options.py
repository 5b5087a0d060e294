"""Options are checked where they are kept: the same for the command line, Hydra and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pack_typed import typed

import h5rows
from h5rows.command import as_options


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=np.zeros((5, 3)))
    Path("t.csv").write_text("a,b\n1,2\n")
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.zeros((2000, 20))
    return tmp_path


PACK: list[tuple[dict[str, Any], str]] = [
    ({"split": "val=0.1"}, "split='val=0.1'"),
    ({"split": {"val": "0.1"}}, "split="),
    ({"on_error": "ignore"}, "'stop' or 'skip'"),
    ({"empty": "zero"}, "empty="),
    ({"size": "224"}, "size='224'"),
    ({"size": (224, 224)}, "size=: .* does not use it"),
    ({"size": (0, 3)}, "size=0: must be > 0"),
    ({"crop": "centre"}, "'none' or 'center'"),
    ({"mode": "rgb"}, "mode='rgb'"),
    ({"exif": "aply"}, "exif="),
    ({"external": "alow"}, "'refuse' or 'allow'"),
    ({"fields": ["x"]}, "fields="),
    ({"kinds": {"x": "float"}}, "kinds=: .* does not use it"),
    ({"ignore": "x"}, "ignore='x'"),
    ({"workers": 0}, "workers=0"),
    ({"workers": "2"}, "workers='2': must be a whole number"),
    ({"seed": 0.5}, "seed=0.5"),
    ({"shuffle": "yes"}, "shuffle='yes': must be True or False"),
    ({"shard": (2, 2)}, "shard="),
    ({"shards": 0}, "shards=0"),
    ({"shards": "2"}, "shards='2'"),
    ({"format": "numppy"}, "not one of images, numpy"),
    ({"separator": ";"}, "separator=: .* does not use it"),
    ({"length": 8}, "length=: limits token ids, so it needs kinds="),
    ({"length": 8, "kinds": {"a": "text"}}, "length=: limits token ids"),
    ({"tokenizer": "bytez"}, "tokenizer=: .* does not use it"),
]
REPACK: list[tuple[dict[str, Any], str]] = [
    ({"codec": "lz5"}, "codec='lz5': must be 'none' or 'gzip' or 'zstd'"),
    ({"codec": "gzip", "level": 0}, "level=0: gzip accepts levels 1 to 9"),
    ({"level": "3"}, "level='3'"),
    ({"rows_per_chunk": 0}, "rows_per_chunk=0"),
    ({"external": "alow"}, "'refuse' or 'allow'"),
    ({"flatten": 1}, "flatten=1"),
]
OPEN: list[tuple[dict[str, Any], str]] = [
    ({"external": "alow"}, "'refuse' or 'allow'"),
    ({"decode": "yes"}, "decode='yes'"),
    ({"missing": "drop"}, "missing='drop': has no effect without decode=True"),
    ({"missing": {"x": 0}}, "missing=0: has no effect without decode=True"),
    ({"missing": 0, "decode": True, "swmr": True}, "missing=0.*swmr=False"),
    ({"missing": "drp", "decode": True}, "missing=drp"),
    ({"cache_mb": "512"}, "cache_mb='512'"),
    ({"swmr": "no"}, "swmr='no'"),
    ({"splits": {"/": {"group": "/", "row": [0, 0.5]}}}, "has 'row'; allowed: group, rows"),
    *(({"splits": {"/": {"group": group}}}, "group=.*: expected the name of a group") for group in (["/"], None)),
    ({"splits": {"/": {"group": "/", "rows": [0, 0.5], "seed": "a"}}}, "seed=a: must be a whole number, or None"),
    ({"splits": {"/": {"group": "/", "rows": [0, 0.5], "seed": 1.5}}}, "seed=1.5: must be a whole number, or None"),
    ({"fields": None, "split": 3}, "splits.3.group=3: expected the name of a group"),
]


@pytest.mark.parametrize(("options", "said"), PACK)
def test_pack(given: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(h5rows.ConfigError, match=said) as caught:
        h5rows.pack("a.npz", "out.h5", quiet=True, **options)
    assert str(caught.value).isprintable()
    assert not Path("out.h5").exists()


@pytest.mark.parametrize(("options", "said"), REPACK)
def test_repack(given: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(h5rows.ConfigError, match=said):
        h5rows.repack("a.h5", "out.h5", quiet=True, **options)
    assert not Path("out.h5").exists()


@pytest.mark.parametrize(("options", "said"), OPEN)
def test_open(given: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(h5rows.ConfigError, match=said):
        h5rows.open("a.h5", **{"fields": {"x": "x"}, **options})


def test_paths_of_every_kind(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5rows.pack(given / "a.npz", given / "b.h5", quiet=True)
    h5rows.repack(given / "b.h5", given / "c.h5", codec="gzip", quiet=True)
    h5rows.inspect(given / "c.h5")
    assert "read: " in capsys.readouterr().out
    assert len(h5rows.open(given / "c.h5")) == 5


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("a.h5 exists; overwrite=True replaces it", "a.h5 exists; --overwrite replaces it"),
        (
            "header=True reads it as names, header=False as a sample",
            "--header reads it as names, --no-header as a sample",
        ),
        ("kinds={'a b': 'text'} keeps texts, kinds={'x': 'int'}", "--as 'a b=text' keeps texts, --as x=int"),
        ("split={'val': 0.5, 'test': 0.5}: each", "--split val=0.5 test=0.5: each"),
        ("on_error='skip' leaves such out; file_column='f'", "--on-error skip leaves such out; --files f"),
        (
            r"escape='\\' reads, mode='I;16' keeps, empty='?' skips",
            r"--escape '\' reads, --mode 'I;16' keeps, --empty '?' skips",
        ),
        ("fewer workers=, size= makes one size, (fields=)", "fewer --workers, --size makes one size, (--fields)"),
        ("add shards=N", "add --shards N"),
        ("data.external=allow reads it (external='allow')", "data.external=allow reads it (--external allow)"),
    ],
)
def test_the_command_names_options_as_they_are_typed(said: str, typed: str) -> None:
    assert as_options(said) == typed


def test_options_of_older_versions_name_the_present_ones(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", np.arange(6.0))
    (tmp_path / "in/README").write_text("words")
    shown = "{} was renamed to {}, and will be removed in h5rows 0.4\n".format
    old, new = "--leave-out", "--ignore"  # renamed
    done = typed("pack", tmp_path / "in", tmp_path / "a.h5", "--quiet", old, "README")
    assert (done.status, done.err) == (0, shown(old, new))
    with h5py.File(tmp_path / "a.h5") as file:
        assert new in str(file.attrs["command"])
    done = typed("repack", tmp_path / "a.h5", tmp_path / "b.h5", "--quiet", "--inflate", "--fixed")  # renamed
    said = [shown("--inflate", "--allow-larger"), shown("--fixed", "--contiguous")]  # renamed
    assert (done.status, done.err) == (0, "".join(said))
    assert old not in typed("pack", "--help").out
