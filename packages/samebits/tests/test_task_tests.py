"""TaskTests says what to do about a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from samebits.testing import TaskTests, assert_equal


def test_a_task_with_several_optimizers_must_name_its_losses(tmp_path: Path) -> None:
    class Gan(TaskTests):
        loss_names = ("real",)

    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "train/critic/loss": 0.5}) + "\n")
    with pytest.raises(AssertionError, match=r"^train/loss is not logged: .*\(Gan\.monitor = 'critic/loss'\)$"):
        Gan().monitored(tmp_path)
    with pytest.raises(AssertionError, match=r"^train/loss is not logged 4 times: .*Gan\.logged = "):
        Gan().check_terms(tmp_path)
    Gan.monitor = "critic/loss"
    assert Gan().monitored(tmp_path) == [0.5]


def test_a_difference_is_named_with_both_values() -> None:
    with pytest.raises(AssertionError, match=r"^task\.0\.queue: tensor\(\[1\.\]\) != tensor\(\[nan\]\)$"):
        assert_equal([{"queue": torch.ones(1)}], [{"queue": torch.ones(1) * torch.nan}], "task")
