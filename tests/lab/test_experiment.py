"""lab.experiment: what several commands build of one config."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from common import QUICK

from lab.config import Config
from lab.experiment import Data, Experiment, on_one_device
from lab.tasks.base import Batch
from samebits.schema import plain
from samebits.testing import assert_equal, compose

ONE = ("trainer.max_steps=2", "trainer.global_batch_size=12", "trainer.ema_decay=0.9")
SHARED = {
    "ddp": ("trainer=ddp", "trainer.ddp.static_graph=true", "hardware.num_procs=3"),
    "fsdp": ("trainer=fsdp", "hardware.num_procs=3"),
}


def experiment_of(*overrides: str) -> Experiment:
    return Experiment.of_first_rank(Config.of(compose(*QUICK, *ONE, *overrides)), apply=False)


def batches(experiment: Experiment, split: str) -> list[Batch]:
    with experiment.open() as data:
        return list(islice(data.train if split == "train" else data.eval_loaders[split], 2))


@pytest.mark.parametrize("strategy", SHARED)
def test_in_one_process_the_model_is_that_of_a_run_of_one(strategy: str) -> None:
    """Weights, their average and the optimizer's groups; nothing is wrapped or sharded."""
    alone, shared = experiment_of(), experiment_of(*SHARED[strategy]).in_one_process()
    assert shared.world == shared.this_process == alone.world
    (state, loss_modules), (expected, _) = (
        each.start_training(*each.build_model_and_task(), total_steps=2) for each in (shared, alone)
    )
    assert_equal(state.payload()["model"], expected.payload()["model"])
    assert_equal(state.payload()["ema"], expected.payload()["ema"])
    assert [type(net).__name__ for net in loss_modules.values()] == ["LossModule"]
    assert not torch.distributed.is_initialized()


def test_the_first_rank_reads_its_share_of_the_run_s_batches() -> None:
    whole = batches(experiment_of(), "train")
    share = batches(experiment_of(*SHARED["ddp"]), "train")
    for of_all, of_rank in zip(whole, share):
        assert len(of_rank["y"]) == 4
        rows = [int((of_all["x"] == row).flatten(1).all(1).nonzero()[0]) for row in of_rank["x"]]
        assert len(set(rows)) == 4  # each is in the global batch, once


def test_a_config_on_one_device_leaves_the_given_one() -> None:
    config = Config.of(compose(*QUICK, *ONE, *SHARED["ddp"]))
    before = plain(config.given)
    one = on_one_device(config)
    assert (one.trainer.strategy, one.trainer.ddp.static_graph, one.hardware.num_procs) == ("single", False, "auto")
    assert one.trainer.global_batch_size == 12
    assert plain(config.given) == before
    assert config.trainer.strategy == "ddp"


def test_data_closes_all_loaders_where_its_block_fails() -> None:
    def fail(data: Data) -> None:
        with data:
            raise RuntimeError("of the block")

    data = experiment_of().open()
    data.opened.append(experiment_of().train_loader())
    with pytest.raises(RuntimeError, match="of the block"):
        fail(data)
    for loader in (data.train, *data.eval_loaders.values(), *data.opened):
        assert loader._closed
