"""What a search looks for, which of it prunes, and what a report shows beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.sweeps.report import Objective
from samebits.sweeps.report.curves import keys_of
from samebits.sweeps.search.methods import Methods
from samebits.sweeps.search.objectives import choose

SCORES = ["val/loss", "val_hard/loss", "val_hard/accuracy", "test_more/loss", "val/f1", "val/confusion"]
PROJECT: Any = SimpleNamespace(scores=lambda cfg, *splits: SCORES)


def test_a_search_follows_the_scores_of_any_split_and_of_each_class() -> None:
    assert choose(PROJECT, {"val_hard/accuracy": "max", "test_more/loss": "min"}, {})[0] == Objective(
        "val_hard/accuracy", "max"
    )
    with pytest.raises(ConfigError, match=r"'val_har/loss' is not in result\.json - did you mean val_hard/loss\?"):
        choose(PROJECT, {"val_har/loss": "min"}, {})
    chosen = choose(PROJECT, {"val/f1": "max", "val/confusion/recall_3": "max"}, {})
    assert [one.key for one in chosen] == ["val/f1", "val/confusion/recall_3"]
    with pytest.raises(ConfigError, match=r"'val/confusio/recall_3' is not in result\.json"):
        choose(PROJECT, {"val/confusio/recall_3": "max"}, {})


def test_a_search_prunes_by_what_is_known_before_the_end() -> None:
    method: Any = SimpleNamespace(prunes=True)
    Methods.check_pruning(method, [Objective("val_hard/loss", "min")], {"trainer": {"eval_every": 5}})
    with pytest.raises(ConfigError, match="test_more/loss is only known after training"):
        Methods.check_pruning(method, [Objective("test_more/loss", "min")], {})


def test_a_report_shows_each_split_beside_val() -> None:
    keys = ["test/loss", "test_more/loss", "train/loss", "val/loss", "val_hard/loss", "perf/samples_per_s"]
    jobs: Any = [SimpleNamespace(curves=dict.fromkeys(keys))]
    assert keys_of(jobs, ["val_hard/loss"]) == [
        "val_hard/loss", "val/loss", "train/loss", "test/loss", "test_more/loss", "perf/samples_per_s",
    ]  # fmt: skip
