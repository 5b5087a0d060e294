"""What an evaluation is given: the samples as they are, the same ones on any hardware, the ranks in step if need be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from common import QUICK, ROOT

from lab.config import Config
from lab.loaders import make_dataset, make_eval_loader, make_train_loader
from lab.tasks.supervised import Supervised
from samebits.data import Loader
from samebits.device import resolve_hardware
from samebits.testing import compose
from samebits.world import World


def loader_of(rank: int, ranks: int, eval_batch_size: int, *overrides: str) -> tuple[Loader, Config]:
    """The loader of `val` for one of so many ranks."""
    config = Config.of(compose(*QUICK, "trainer.max_steps=1", "trainer.global_batch_size=12",
                               f"hardware.eval_batch_size={eval_batch_size}", *overrides))  # fmt: skip
    hardware = resolve_hardware(config.hardware, config.trainer)
    world = World(rank, ranks, rank, torch.device("cpu"))
    return make_eval_loader(config, hardware, make_dataset(config, "val"), "val", world), config


def rows_of(loader: Loader) -> list[int]:
    """Those that count."""
    rows, k = [], 0
    while (part := loader.plan(k)) is not None:
        rows += part[1][: loader.size_and_real(k)[1]].tolist()
        k += 1
    loader.close()
    return rows


def test_samples_are_not_augmented() -> None:
    shift = "{_target_:lab.transforms.fields.RandomCrop,field:x,size:[8,8],padding:3,seed:0}"
    loader, config = loader_of(0, 1, 250, f"+data.transforms.crop={shift}")
    (batch,) = loader
    loader.close()
    with h5py.File(ROOT / config.values["data"]["path"]) as file:
        images = file["val/image"][()]
    np.testing.assert_allclose(batch["x"].numpy(), images / np.float32(255), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "eval_batch_size"), [(1, 7), (3, 64)])
def test_what_is_scored_does_not_depend_on_the_hardware(ranks: int, eval_batch_size: int) -> None:
    """trainer.max_eval_batches counts global batches."""
    rows = [rows_of(loader_of(r, ranks, eval_batch_size, "trainer.max_eval_batches=5")[0]) for r in range(ranks)]
    wanted = rows_of(loader_of(0, 1, 12, "trainer.max_eval_batches=5")[0])
    assert len(wanted) == 60
    assert sorted(itertools.chain(*rows)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a task", "the config", "shards"])
def test_ranks_are_in_step_where_they_talk(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """250 samples on 3 ranks: 84, 83 and 83, in batches of the same sizes, each counted once."""
    if way == "a task":
        monkeypatch.setattr(Supervised, "needs_global_batch", True)
    more = {
        "a task": (),
        "the config": ("trainer.pad_eval_batches=true",),
        "shards": ("trainer=fsdp", "hardware.num_procs=3"),
    }[way]
    sizes, rows = [], []
    for rank in range(3):
        loader, _ = loader_of(rank, 3, 10, *more)
        sizes.append([loader.size_and_real(k)[0] for k in range(9)])
        rows += rows_of(loader)
    assert sizes == [[10] * 8 + [4]] * 3
    assert sorted(rows) == list(range(250))


@pytest.mark.parametrize("micro", ["null", "5", "1"])
def test_samples_that_are_compared_are_not_those_of_a_micro_batch(monkeypatch: pytest.MonkeyPatch, micro: str) -> None:
    """Without hardware.eval_batch_size a loss across samples is evaluated on the samples of a step."""
    options = (*QUICK, "trainer.max_steps=1", "trainer.global_batch_size=12", f"hardware.micro_batch_size={micro}")
    config = Config.of(compose(*options))
    hardware, world = resolve_hardware(config.hardware, config.trainer), World(0, 1, 0, torch.device("cpu"))
    monkeypatch.setattr(Supervised, "needs_global_batch", True)
    with make_eval_loader(config, hardware, make_dataset(config, "val"), "val", world) as loader:
        assert loader.size_and_real(0) == (12, 12)


def test_what_a_rank_takes_does_not_depend_on_its_host() -> None:
    """Six ranks on two hosts: of training and evaluation each has its own samples."""
    config = Config.of(compose(*QUICK, "trainer.max_steps=1", "trainer.global_batch_size=12"))
    hardware = replace(resolve_hardware(config.hardware, config.trainer), micro_batch_sizes=[2], eval_batch_size=50)
    train, val = make_dataset(config, "train"), make_dataset(config, "val")
    trained, scored = [], []
    for rank in range(6):
        world = World(rank, 6, rank % 3, torch.device("cpu"))
        with make_train_loader(config, hardware, train, world, 0) as loader:
            trained += loader.plan(0)[0].tolist()  # type: ignore[index]
        scored += rows_of(make_eval_loader(config, hardware, val, "val", world))
    assert sorted(trained) == list(range(12))
    assert sorted(scored) == list(range(250))
