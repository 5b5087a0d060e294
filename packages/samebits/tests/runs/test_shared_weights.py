"""Weights that no step changes lie in frozen.pt, once, and whoever reads a checkpoint is given all of its weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoint import MAIN, names, payload

from samebits.checkpoints import Checkpoints, find_weights, load_checkpoint
from samebits.errors import ConfigError
from samebits.status import SHARED_WEIGHTS
from samebits.testing import assert_equal

BASE = torch.arange(1000.0)


def with_base(step: int, base: torch.Tensor = BASE, average: torch.Tensor | None = None) -> dict[str, Any]:
    """A payload whose model has a base that is not trained. average: the base of the moving average; None: none."""
    held = payload(step)
    held["model"] |= {"base": base}
    held["ema"] = None if average is None else {"w": torch.ones(2), "base": average}
    return held | {"shared": ["base"]}


def saved(folder: Path, *payloads: dict[str, Any], beside: bool = False) -> list[Path]:
    """The checkpoints of one process that saves these."""
    with Checkpoints(folder, MAIN, beside) as kept:
        for one in payloads:
            kept.save_last(one)
        kept.wait()
    return sorted(folder.glob("last_*"))


def without_names(held: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in held.items() if key != "shared"}


@pytest.mark.parametrize("beside", [False, True])
def test_it_is_written_once_and_each_checkpoint_reads_whole(tmp_path: Path, beside: bool) -> None:
    given = [with_base(3, average=BASE.clone()), with_base(7, average=BASE.clone())]
    files = saved(tmp_path, *given, beside=beside)
    assert names(tmp_path) == [SHARED_WEIGHTS, *(file.name for file in files)]
    for file, wanted in zip(files, given):
        assert_equal(load_checkpoint(file), without_names(wanted))
        held = torch.load(file, weights_only=True)
        assert not any("base" in held[part] for part in ("model", "ema"))
        assert find_weights(file)[1]["base"].equal(BASE)
    assert_equal(given, [with_base(3, average=BASE.clone()), with_base(7, average=BASE.clone())])  # left as they were


def test_a_process_that_goes_on_uses_the_file_that_is_there(tmp_path: Path) -> None:
    saved(tmp_path, with_base(3))
    before = (tmp_path / SHARED_WEIGHTS).stat()
    files = saved(tmp_path, with_base(7))
    assert (tmp_path / SHARED_WEIGHTS).stat().st_mtime_ns == before.st_mtime_ns
    assert_equal([load_checkpoint(file) for file in files], [without_names(with_base(step)) for step in (3, 7)])


@pytest.mark.parametrize("again", [False, True], ids=["the same process", "a resumed one"])
def test_what_has_changed_after_all_is_in_each_checkpoint(tmp_path: Path, again: bool) -> None:
    """One bit, in the model or in the average."""
    changed = BASE.clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(0.0))
    given = [with_base(3, average=BASE), with_base(5, BASE, changed), with_base(7, changed, changed)]
    for one in given[1:]:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        files = saved(tmp_path, given[0], *([] if again else [one]))
        files = saved(tmp_path, one) if again else files
        assert_equal([load_checkpoint(file) for file in files], [without_names(given[0]), without_names(one)])


def test_other_names_are_frozen_after_a_resume(tmp_path: Path) -> None:
    """As where a resume changes what task.freeze names: what the file lacks is in the checkpoints."""
    saved(tmp_path, with_base(3))
    more = with_base(7) | {"shared": ["base", "b"]}
    assert_equal(load_checkpoint(saved(tmp_path, more)[-1]), without_names(more))
    none = without_names(with_base(9))
    assert_equal(load_checkpoint(saved(tmp_path, none)[-1]), none)


def test_without_its_file_a_checkpoint_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    saved(tmp_path / "other", with_base(3, BASE + 1))
    (file,) = saved(tmp_path, with_base(3))
    beside = file.with_name(SHARED_WEIGHTS)
    whole = beside.read_bytes()
    beside.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(ConfigError, match=r"frozen.pt does not load: .*; restore it from a copy: all checkpoints"):
        Checkpoints(tmp_path).newest_valid(put_aside=True)
    assert file.exists(), "a whole checkpoint is not put aside"
    beside.write_bytes((tmp_path / "other" / SHARED_WEIGHTS).read_bytes())
    with pytest.raises(
        ConfigError, match=rf"frozen.pt: is not the file that {file.name} was saved with: base.* differs$"
    ):
        load_checkpoint(file)
    beside.unlink()
    with pytest.raises(ConfigError, match=rf"frozen.pt: is missing, and {file.name} needs its weights .* \./run exp"):
        find_weights(file)
