"""Strings in every way that h5py writes them are the bytes that h5py reads, decoded as UTF-8 or as is asked for."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import special_dtype, string_dtype

import h5rows
from h5rows.importers.values import guess
from h5rows.reading.texts import image_of

WAYS: dict[str, Callable[[h5py.File, str, list[bytes]], Any]] = {
    "bytes": lambda f, n, raw: f.create_dataset(n, data=raw),
    "assigned": lambda f, n, raw: f.__setitem__(n, raw),
    "str": lambda f, n, raw: f.create_dataset(n, data=[x.decode() for x in raw]),
    "fixed": lambda f, n, raw: f.create_dataset(n, data=np.array(raw)),
    "utf8": lambda f, n, raw: f.create_dataset(n, data=raw, dtype=string_dtype("utf-8")),
    "ascii": lambda f, n, raw: f.create_dataset(n, data=raw, dtype=string_dtype("ascii")),
    "fixed_utf8": lambda f, n, raw: f.create_dataset(n, data=raw, dtype=string_dtype("utf-8", 30)),
    "objects": lambda f, n, raw: f.create_dataset(n, data=np.array([x.decode() for x in raw], object)),
    "vlen_bytes": lambda f, n, raw: f.create_dataset(n, data=raw, dtype=special_dtype(vlen=bytes)),
    "vlen_str": lambda f, n, raw: f.create_dataset(n, data=[x.decode() for x in raw], dtype=special_dtype(vlen=str)),
    "gzip": lambda f, n, raw: f.create_dataset(n, data=raw, chunks=(7,), compression="gzip"),
    "member": lambda f, n, raw: f.create_dataset(
        n, data=np.array([(x,) for x in raw], np.dtype([("t", string_dtype("ascii"))]))
    ),
}
PLAIN = [f"images/{i}.jpg" for i in range(20)]
CHINESE = [f"images/画{i}.jpg" for i in range(20)]
AS_BYTES = [way for way in WAYS if way not in ("str", "objects", "vlen_str")]


def read(path: Path, way: str, **options: Any) -> list[str]:
    data = h5rows.open(str(path), {"name": "name/t" if way == "member" else "name"}, **options)
    texts: Any = data.gather(np.arange(len(data)))["name"]
    assert [data[i]["name"] for i in range(len(data))] == texts
    return list(texts)


@pytest.mark.parametrize("texts", [PLAIN, CHINESE], ids=["plain", "chinese"])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write_strings(tmp_path: Path, way: str, texts: list[str], capsys: pytest.CaptureFixture) -> None:
    path, copy = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(path, "w") as file:
        WAYS[way](file, "name", [text.encode() for text in texts])
        file["y"] = np.arange(20) % 3
    assert read(path, way) == texts
    h5rows.inspect(str(path))
    for options in ({}, {"flatten": True}):
        h5rows.repack(str(path), str(copy), overwrite=True, quiet=True, **options)
        assert read(copy, way) == texts
    assert "not UTF-8" not in capsys.readouterr().out


@pytest.mark.parametrize("way", AS_BYTES)
def test_other_bytes_are_named_and_decoded_when_asked(tmp_path: Path, way: str, capsys: pytest.CaptureFixture) -> None:
    """Of the last row, too, which opening does not read."""
    path, copy = tmp_path / "a.h5", tmp_path / "b.h5"
    raw = [text.encode("gbk") for text in [*PLAIN[:-1], CHINESE[-1]]]
    with h5py.File(path, "w") as file:
        WAYS[way](file, "name", raw)
    with pytest.raises(h5rows.ConfigError, match=r"images/\\xbb\\xad19.jpg', which is not UTF-8.*encoding"):
        read(path, way)
    assert read(path, way, encoding="gbk") == [*PLAIN[:-1], CHINESE[-1]]
    h5rows.inspect(str(path))
    assert "contains b'images/\\xbb\\xad19.jpg', which is not UTF-8; as gb18030 it is" in capsys.readouterr().out
    for options in ({}, {"flatten": True}):
        h5rows.repack(str(path), str(copy), overwrite=True, quiet=True, **options)
        assert "which is not UTF-8" in capsys.readouterr().out
        assert read(copy, way, encoding="gbk") == read(path, way, encoding="gbk")


@pytest.mark.parametrize("way", ["bytes", "utf8", "vlen_bytes"])
def test_image_files_are_named_as_such(tmp_path: Path, way: str) -> None:
    """Their bytes are not text in another encoding."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        WAYS[way](file, "name", [b"\xff\xd8\xff\xe0\x01\x10JFIF"] * 3)
    said = "/name contains JPEG files; decode them with PIL and write the pixels with h5rows.write$"
    with pytest.raises(h5rows.ConfigError, match=said):
        read(tmp_path / "a.h5", way)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WebP", "BMP", "PPM"])
def test_each_format_of_images_is_known(kind: str) -> None:
    image, stream = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.new("RGB", (3, 2)).save(stream, kind)
    assert guess(stream.getvalue(), "") == "image"
    assert image_of(stream.getvalue()) == kind
    assert image_of(b"P5\n# by hand\n3\n# and here\n2 255\n\0\0\0\0\0\0") == "PPM"


@pytest.mark.parametrize("text", ["BMW i3, 2019", "BM", "P5 is a key", "P6\n12 monkeys", "P5"])
def test_a_text_with_the_first_letters_of_an_image_is_a_text(text: str) -> None:
    assert guess(text.encode(), "") == "text"


def test_no_such_encoding(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["name"] = PLAIN
    for wrong in ("utf-9", "hex"):
        with pytest.raises(h5rows.ConfigError, match=f"encoding={wrong}: no such encoding"):
            h5rows.open(str(tmp_path / "a.h5"), encoding=wrong)


def test_classes_are_named_whatever_marks_the_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    for names, encoding in (
        (["画", "dog"], "utf-8"),
        (np.array(["画".encode(), b"dog"]), "utf-8"),
        (np.array(["画".encode("gbk"), b"dog"]), "gbk"),
        (np.array(["画".encode("gbk"), b"dog"], object), "gbk"),
    ):
        with h5py.File(path, "w") as file:
            file["y"] = np.arange(20) % 2
            file["y"].attrs["classes"] = names
        assert h5rows.open(path, {"y": "y"}, encoding=encoding).class_names == {"y": ["画", "dog"]}
