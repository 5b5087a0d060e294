"""A mistake that h5rows finds ends in a run as all others do: the engine's ConfigError, with the line of h5rows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import QUICK

import h5rows
from h5rows import integration
from lab.datasets.h5 import Dataset
from lab.datasets.tokens import TokenWindows
from lab.loaders import fetch_remote
from lab.program import PROGRAM
from samebits.data import EvalPlan, Loader
from samebits.errors import ConfigError, mistakes_of, with_mistakes_of
from samebits.saved import current
from samebits.targets import construct
from samebits.testing import compose

ROWS = 64
GONE = "/no/where.h5"


def written(path: Path, first: int = 0) -> str:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(first, first + ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
        file["t"] = np.arange(first, first + ROWS)
    return str(path)


def tokens_of(path: str) -> TokenWindows:
    return TokenWindows(path, {"t": "t"}, {"all": {"group": "/"}}, "all", window=4, stride=1)


def test_the_two_classes_are_unrelated() -> None:
    assert not issubclass(h5rows.ConfigError, ConfigError)
    assert not issubclass(ConfigError, h5rows.ConfigError)


USES: dict[str, Callable[[], Any]] = {
    "a data set": lambda: Dataset(GONE, {"x": "x"}),
    "a data set of the config": lambda: construct(
        PROGRAM, "data", {"_target_": "lab.datasets.h5.Dataset", "path": GONE, "fields": {"x": "x"}}, object
    ),
    "tokens": lambda: tokens_of(GONE),
    "shape": lambda: compose("data=h5", f"data.path={GONE}").data.input_shape,
    "outputs": lambda: compose("data=h5", f"data.path={GONE}", "data.input_shape=[3]").data.num_outputs,
    "shares": lambda: compose("data=h5", "data.split_ratio=80/x", "data.input_shape=[3]", "data.num_outputs=2"),
    "remote": lambda: fetch_remote(
        {"_target_": "lab.datasets.h5.Dataset", "path": "no://where/f.h5"}, lambda: None
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_each_use_of_h5rows_in_lab_ends_in_the_engine_s_error(use: str) -> None:
    with pytest.raises(ConfigError, match=r"^(data\.|/no/where\.h5|no://where)"):
        USES[use]()


def test_a_text_too() -> None:
    from lab.callbacks.sample_text import SampleText

    with pytest.raises(ConfigError, match=r"^data\.path=/no/where\.h5"):
        SampleText(GONE, "t", [4], "a", 3, 1.0, 0).on_start(None)


def test_images_too(tmp_path: Path) -> None:
    from lab.datasets.image_folder import ImageFolder

    with pytest.raises(h5rows.ConfigError) as own:
        integration.open_source(str(tmp_path), integration.PackOptions(format="images", size=(4, 4), quiet=True))
    with pytest.raises(ConfigError) as error:
        ImageFolder(str(tmp_path), [4, 4], "none", 3, {}, "train")
    assert str(error.value) == str(own.value)


@pytest.mark.parametrize("kind", ["threads", "workers"])
@pytest.mark.parametrize("make", [lambda path: Dataset(path, {"x": "x"}), tokens_of], ids=["rows", "tokens"])
def test_what_is_found_while_rows_are_read(make: Callable[[str], Any], kind: str, tmp_path: Path) -> None:
    """In a thread or process of the loader."""
    path = tmp_path / "f.h5"
    data = make(written(path))
    written(path, 1000)  # the same file
    with (
        Loader(data, EvalPlan(len(data), 8, 0, 1), torch.device("cpu"), kind=kind, num_workers=1, seed=0) as loader,
        pytest.raises(ConfigError, match=r"f\.h5.* was changed"),
    ):
        list(loader)


def test_properties_and_items_too() -> None:
    class Refuses(h5rows.ConfigError):
        """Of the library."""

    @with_mistakes_of(Refuses)
    class Data:
        @property
        def nbytes(self) -> int:
            """Of all rows."""
            raise Refuses("one line")

        def __getitem__(self, i: int) -> int:
            raise Refuses("one line")

        def _inner(self) -> None:
            raise Refuses("one line")

    data = Data()
    for call in (lambda: data.nbytes, lambda: data[0]):
        with pytest.raises(ConfigError, match=r"^one line$") as error:
            call()
        assert isinstance(error.value.__cause__, Refuses)
    with pytest.raises(Refuses):
        data._inner()
    assert Data.nbytes.__doc__ == "Of all rows."
    with pytest.raises(OSError, match="disk"), mistakes_of(Refuses):  # no mistake of a user
        raise OSError("disk")


def test_all_public_methods_of_the_data_set_are_translated() -> None:
    own = {name for name, value in vars(h5rows.Dataset).items() if callable(value) or isinstance(value, property)}
    public = {name for name in own if not name.startswith("_") or name in ("__init__", "__getitem__", "__getitems__")}
    assert {"gather", "gather_at", "advise", "column", "find_non_finite", "nbytes", "__getitems__"} <= public
    assert public <= vars(Dataset).keys()


@pytest.mark.parametrize("was", ["h5rows.dataset.Dataset", "engine.data.h5.H5Dataset"])
def test_a_saved_run_finds_the_class(was: str) -> None:
    saved = compose(*QUICK, "trainer.max_steps=1")
    saved.data._target_ = was
    now = current(PROGRAM, saved, Path("config.yaml"))
    assert now.data._target_ == f"{Dataset.__module__}.{Dataset.__qualname__}"


def test_a_config_with_the_old_path_is_told_the_new_one() -> None:
    with pytest.raises(
        ConfigError, match=r"^data\._target_: h5rows\.dataset\.Dataset was renamed to lab\.datasets\.h5\.Dataset"
    ):
        construct(PROGRAM, "data", {"_target_": "h5rows.dataset.Dataset", "path": GONE}, object)


def test_a_command_ends_in_one_line(train_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = train_command("data=h5", f"data.path={GONE}", code=2)
    assert done.stderr.startswith(f"error: data.path={GONE}: no such file (")
    assert len(done.stderr.splitlines()) == 1
