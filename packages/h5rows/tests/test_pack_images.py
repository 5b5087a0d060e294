"""Folders of images: every mode and size that is met in the wild, and every file that should not be there."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from test_pack_formats import run

from h5rows.errors import ConfigError

Image = pytest.importorskip("PIL.Image")


def pixels(height: int = 8, width: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def save(path: Path, array: np.ndarray | None = None, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels() if array is None else array).convert(mode).save(path)


def test_class_folders_splits_and_names(tmp_path: Path) -> None:
    root = tmp_path / "böses 猫"
    made = {}
    for split, count in (("train", 3), ("validation", 1), ("test", 2)):
        for label, kind in enumerate(["hund", "übung", "猫"]):
            for k in range(count):
                made[split, label, k] = pixels(seed=hash((split, label, k)) % 1000)
                save(root / split / kind / "deep" / f"{k:03} é.png", made[split, label, k])
    with run(root) as file:
        assert sorted(file) == ["test", "train", "val"]
        assert list(file["train/label"].attrs["classes"]) == ["hund", "übung", "猫"]
        for split, group in (("train", "train"), ("validation", "val"), ("test", "test")):
            labels = file[group]["label"][:]
            assert labels.dtype == np.int64
            expected = [(v, label) for (s, label, _), v in made.items() if s == split]
            np.testing.assert_array_equal(labels, [label for _, label in expected])
            np.testing.assert_array_equal(file[group]["image"][:], [v.transpose(2, 0, 1) for v, _ in expected])


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("mode", "target"),
    [("L", "RGB"), ("LA", "RGBA"), ("RGBA", "L"), ("P", "RGB"), ("P", "RGBA"), ("1", "L"), ("CMYK", "RGB")],
)
def test_modes_are_converted_as_pillow_does(tmp_path: Path, mode: str, target: str) -> None:
    path = tmp_path / "in" / ("a.tif" if mode == "CMYK" else "a.png")
    save(path, mode=mode)
    with Image.open(path) as image:
        assert image.mode == mode
        expected = np.asarray(image.convert(target))
    expected = expected[None] if expected.ndim == 2 else expected.transpose(2, 0, 1)
    with run(tmp_path / "in", mode=target) as file:
        np.testing.assert_array_equal(file["image"][0], expected)


def test_sixteen_bits_are_kept_or_refused_never_clipped(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 65536, (8, 10)).astype(np.uint16)
    (tmp_path / "in").mkdir()
    Image.fromarray(grey).save(tmp_path / "in" / "a.png")
    Image.fromarray(grey).save(tmp_path / "in" / "b.tif")
    with pytest.raises(ConfigError, match=r"mode='I;16' keeps it"):
        run(tmp_path / "in")
    with run(tmp_path / "in", mode="I;16") as file:
        assert file["image"].dtype == np.uint16
        np.testing.assert_array_equal(file["image"][:], [grey[None]] * 2)


def test_mixed_sizes_name_two_files_and_the_remedies(tmp_path: Path) -> None:
    save(tmp_path / "in/a/1.png")
    save(tmp_path / "in/a/2.png")
    save(tmp_path / "in/b/3.png", pixels(9, 10))
    with pytest.raises(ConfigError, match=r"b/3.png is \(3, 9, 10\), a/1.png is \(3, 8, 10\); size= .*variable=True"):
        run(tmp_path / "in", on_error="skip")  # another size is no bad image: never skipped
    with run(tmp_path / "in", size=(6, 4)) as file:
        assert file["image"].shape == (3, 3, 6, 4)


@pytest.mark.slow
def test_variable_sizes(tmp_path: Path) -> None:
    made = [pixels(3 + k, 9 - k, seed=k) for k in range(5)]
    for k, array in enumerate(made):
        save(tmp_path / f"in/{k}.png", array)
    (tmp_path / "in/2b.png").write_bytes((tmp_path / "in/2.png").read_bytes()[:60])
    with pytest.raises(ConfigError, match=r"2b.png"):
        run(tmp_path / "in", variable=True)
    with run(tmp_path / "in", variable=True, on_error="skip") as file:
        image = file["image"]
        assert len(file.attrs["skipped"]) == 1
        for k, array in enumerate(made):
            values = image["values"][image["offsets"][k] : image["offsets"][k + 1]]
            np.testing.assert_array_equal(values.reshape(image["shapes"][k]), array.transpose(2, 0, 1))


@pytest.mark.one_quick
@pytest.mark.parametrize(("height", "width"), [(20, 30), (40, 11)])
def test_center_crop_keeps_the_aspect(tmp_path: Path, height: int, width: int) -> None:
    y, x = np.mgrid[:height, :width]
    ramp = np.stack([y * 255 / height, x * 255 / width, 0 * x], -1).astype(np.uint8)
    save(tmp_path / "in/a.png", ramp)
    with run(tmp_path / "in", size=(10, 10), crop="center") as file:
        image = file["image"][0].astype(float)
    side = min(height, width)
    assert image.shape == (3, 10, 10)
    # one pixel is side/10 source pixels on both axes, and the middle stays the middle
    assert np.ptp(image[0]) == pytest.approx(255 * side * 0.9 / height, abs=14)
    assert np.ptp(image[1]) == pytest.approx(255 * side * 0.9 / width, abs=14)
    assert image[0].mean() == pytest.approx(127, abs=10 + 128 / height)


def test_corrupt_and_foreign_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k in range(6):
        save(tmp_path / f"in/a/{k}.jpg")
    whole = (tmp_path / "in/a/0.jpg").read_bytes()
    (tmp_path / "in/a/2.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "in/a/3.jpg").write_bytes(b"this is text")
    (tmp_path / "in/a/4.jpg").write_bytes(b"")
    (tmp_path / "in/a/notes.txt").write_text("hello")
    (tmp_path / "in/a/.DS_Store").write_text("hidden")
    with pytest.raises(ConfigError, match=r"a/2.jpg: .*[tT]runcated.*on_error='skip'"):
        run(tmp_path / "in", workers=1)
    with run(tmp_path / "in", on_error="skip", quiet=False) as file:
        assert file["image"].shape == (3, 3, 8, 10)
        assert len(file["label"]) == 3
        listed = list(file.attrs["skipped"])
    shown = capsys.readouterr().out
    for name in ("a/2.jpg", "a/3.jpg", "a/4.jpg"):
        assert sum(name in line for line in listed) == 1
        assert name in shown
    assert "left out: 1 files: a/notes.txt (not an image)" in shown


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/1.png", "b/"], r"in/b contains no images"),
        (["a/1.png", "2.png"], r"mixes class folders and files without a class, such as '2.png'"),
        (["train/\u00e9/1.png", "val/e\u0301/1.png"], "names of classes differ only in their Unicode form"),
        (["train/a/1.png", "rest/a/1.png"], r"also the folder 'rest'"),
        (["val/a/1.png", "valid/a/1.png"], r"two folders have the same split"),
        (["train/a/1.png", "test/"], r"in/test contains no images"),
    ],
)
def test_folders_that_make_no_sense(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        if name.endswith("/"):
            (tmp_path / "in" / name).mkdir(parents=True)
        else:
            save(tmp_path / "in" / name)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "in")


def test_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    save(tmp_path / "in/a.jpg", pixels(64, 48))
    data = (tmp_path / "in/a.jpg").read_bytes()
    with run(tmp_path / "in") as file:
        assert list(file) == ["image"]  # without class folders there are no labels
        np.testing.assert_array_equal(file["image"][0], np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1))
