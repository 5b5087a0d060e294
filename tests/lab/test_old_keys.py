"""Options, keys and values of 0.2 are still read, with a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from common import needs

from samebits.errors import translate_arguments
from samebits.schema import plain
from samebits.testing import compose


@pytest.mark.parametrize(
    ("given", "key", "value", "line"),
    [
        ("data.values=stored", "data.decode", False, "data.values=stored: was renamed to data.decode=false"),
        ("data.values=meant", "data.decode", True, "data.values=meant: was renamed to data.decode=true"),
        ("data.masked={y: drop}", "data.missing", {"y": "drop"}, "was renamed to data.missing={y: drop}"),
        ("trainer.eval_in_step=true", "trainer.pad_eval_batches", True, "was renamed to trainer.pad_eval_batches=true"),
        (
            "process.straggler_share=0.7",
            "process.straggler_threshold",
            0.7,
            "was renamed to process.straggler_threshold=0.7",
        ),
    ],
)
def test_an_old_override_is_read(
    given: str, key: str, value: Any, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    cfg = plain(compose(given))
    for part in key.split("."):
        cfg = cfg[part]
    assert cfg == value
    assert line in capfd.readouterr().err


@needs("conf/task/finetune.yaml")
def test_the_patterns_of_a_finetuned_model_had_another_name() -> None:
    assert compose("task=finetune", "task.weights=x", "task.frozen=[a]").task.freeze == ["a"]


def test_an_old_split_is_read(tmp_path: Path) -> None:
    splits = compose("data.split=80/20", "data.input_shape=[8,8]", "data.num_outputs=10").data.splits
    assert splits.train.rows == [0, 0.8]
    assert splits.test is None


def test_an_old_option_of_a_command_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    renamed = {"--with": "--fields", "--apply": "--activation"}
    assert translate_arguments(["a", "--with=y", "--apply", "x"], renamed) == ["a", "--fields=y", "--activation", "x"]
    assert capsys.readouterr().err.splitlines() == [
        "--with: was renamed to --fields - please use the new name",
        "--apply: was renamed to --activation - please use the new name",
    ]  # fmt: skip
