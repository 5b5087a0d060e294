"""The preflight of a sweep: which jobs count as one, what is timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import QUICK, compose
from omegaconf import DictConfig, OmegaConf

import lab.trial
from lab.trial import shape_of, try_out
from samebits.saved import flat
from samebits.schema import plain

# what may differ between jobs that are timed once
SAME = {
    "name", "seed", "data.order.seed", "task.seed", "resume", "optim.lr", "optim.weight_decay", "trainer.max_steps",
    "trainer.max_epochs", "trainer.log_every", "trainer.eval_every", "trainer.save_every",
    "trainer.keep_best", "trainer.early_stop_patience",
}  # fmt: skip
SAME_BELOW = ("sweep.", "monitor.", "process.", "logger.", "optim.lr_factors.", "optim.schedule.")
CONFIGS = (
    (),
    ("task=byol",),
    ("optim/schedule=plateau", "trainer=fsdp", "+optim.lr_factors={head: 2.0}"),
)


def same(key: str) -> bool:
    below = key.startswith(SAME_BELOW) and not key.endswith("_target_")
    return key in SAME or below or key.endswith(".seed")


@pytest.mark.slow
@pytest.mark.parametrize("overrides", CONFIGS)
def test_each_value_of_a_config_tells_jobs_apart_but_those_listed(overrides: tuple[str, ...]) -> None:
    cfg = compose("logger=none", *overrides)
    leaves = flat(plain(cfg))
    assert len(leaves) > 90
    for key in [*leaves, "trainer.new", "new", "model.inner.deep", "data.splits.val_more.rows"]:
        changed = OmegaConf.create(plain(cfg))
        OmegaConf.update(changed, key, f"other than {leaves.get(key)}", force_add=True, merge=False)
        assert (shape_of(changed) == shape_of(cfg)) == same(key), key


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "every", "evaluations"), [(7, 3, 3), (6, 3, 2), (2, 3, 1), (2, "null", 0)])
def test_the_evaluation_at_the_end_counts(
    monkeypatch: pytest.MonkeyPatch, steps: int, every: Any, evaluations: int
) -> None:
    """As the loop has it; and the final scores, of the test split too."""
    monkeypatch.setattr(lab.trial, "_eval_s", lambda state, loader, machine, world, count: 1.0)
    more = ("hardware.eval_batch_size=100", "trainer.max_eval_batches=1", "trainer.global_batch_size=50")
    cfg: DictConfig = compose(*QUICK, f"trainer.max_steps={steps}", f"trainer.eval_every={every}", *more)
    threads = torch.get_num_threads()
    trial = try_out(cfg, [])
    torch.set_num_threads(threads)
    assert trial["evaluations"] == evaluations
    assert (trial["eval_s"], trial["end_s"]) == (1.0, 2.0)
