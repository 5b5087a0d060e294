"""experiment=shakespeare: a language model of characters, which writes at each evaluation."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from common import ROOT, needs
from gpt import NEEDS_GPT, write_tokens

from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, metrics, result, start_run
from samebits.testing.processes import warm

pytestmark = NEEDS_GPT


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As a user makes it: a file of 20 letters that take turns, packed with a vocabulary of characters."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("to be or not to be, that is the question:\n" * 100)
    command = [sys.executable, "src/h5.py", "pack", f"{folder}/text.txt", f"{folder}/text.h5", "--tokenizer", "chars"]
    warm.run([*command, "--split", "val=0.1"], check=True, cwd=ROOT, capture_output=True)
    return str(folder / "text.h5")


SHAKESPEARE = (
    "experiment=shakespeare", "model.width=32", "model.layers=1", "data.window=16", "trainer.max_steps=60",
    "trainer.eval_every=20", "logger=none", "hardware=cpu", "hardware.num_threads=1", "optim.lr=1e-2",
)  # fmt: skip


def texts(run: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (run / "samples").iterdir()}


@pytest.mark.slow
@needs("src/h5.py")
def test_the_experiment_learns_and_writes(tmp_path: Path, text: str) -> None:
    """Text of the data's characters, other at each evaluation; the same in the same run; it changes no weight."""
    common = (*SHAKESPEARE, f"data.path={text}", "model.dropout=0.1", "callback.sample_text.length=40")
    run, again = (start_run(tmp_path / name, *common) for name in ("run", "again"))
    without = start_run(tmp_path / "without", *(one for one in common if "callback" not in one), "callback=none")
    assert result(run)["val/loss"] < 1.0  # a guess: 2.8
    written = texts(run)
    assert sorted(written) == ["000000020.txt", "000000040.txt", "000000060.txt"]
    assert len({*written.values()}) == 3
    letters = set("to be or not to be, that is the question:\n")
    assert all(len(each) == 41 and set(each) <= letters for each in written.values())
    assert texts(again) == written
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(without)["model"])
    assert metrics(run) == metrics(without)


def test_samples_have_the_models_probabilities() -> None:
    """A model that puts 1/4, 0, 3/4 on three tokens: of many samples each is as frequent; none has the second."""
    from lab.callbacks.sample_text import SampleText

    callback = object.__new__(SampleText)
    callback.window, callback.length, callback.temperature, callback.prompt = 4, 4000, 1.0, [0]
    callback.draws = SampleRNG(0, "SampleText")
    logits = torch.tensor([0.25, 0.0, 0.75]).log()

    class Fixed(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            assert tokens.shape[1] <= 4
            return logits.expand(*tokens.shape, 3)

    found = np.bincount(callback.sampled(Fixed(), 5, torch.device("cpu"))[1:], minlength=3) / 4000
    assert found[1] == 0
    assert found[0] == pytest.approx(0.25, abs=0.03)


def test_what_the_model_keeps_in_evaluation_mode_stays_so(tmp_path: Path) -> None:
    """Frozen parts of a model keep their saved statistics, and draw no dropout, after a text was written too."""
    from lab.callbacks.sample_text import SampleText

    callback = object.__new__(SampleText)
    callback.window, callback.length, callback.temperature, callback.prompt = 4, 3, 1.0, [0]
    callback.draws, callback.vocabulary = SampleRNG(0, "SampleText"), ["a", "b", "c"]
    world = SimpleNamespace(device=torch.device("cpu"), is_main=True)
    callback.run = SimpleNamespace(
        hardware=SimpleNamespace(autocast=nullcontext), world=world, directory=tmp_path,
        logger=SimpleNamespace(say=lambda line: None),
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Embedding(3, 3), torch.nn.Dropout(), torch.nn.Dropout()).train()
    model[1].eval()
    callback.on_eval(SimpleNamespace(model=model, ema=None, step=5), {})
    assert [part.training for part in model.modules()] == [True, True, False, True]
    assert len(texts(tmp_path)) == 1


@pytest.mark.parametrize("vocabulary", [None, ["a"]])
def test_an_empty_prompt_is_refused(vocabulary: list[str] | None) -> None:
    from lab.callbacks.sample_text import SampleText

    callback = object.__new__(SampleText)
    callback.vocabulary = vocabulary
    assert callback.encoded("a") == ([97] if vocabulary is None else [0])
    with pytest.raises(ConfigError, match=r"sample_text\.prompt='': is empty - write"):
        callback.encoded("")


@pytest.mark.slow
@needs("src/h5.py")
def test_what_cannot_be_written_is_refused(tmp_path: Path, text: str) -> None:
    common = (*SHAKESPEARE, "trainer.max_steps=1")
    with pytest.raises(ConfigError, match=r"sample_text.prompt='X': 'X' is not in the vocabulary of \d+ characters"):
        start_run(tmp_path / "a", *common, f"data.path={text}", "callback.sample_text.prompt=X")
    with pytest.raises(ConfigError, match=r"has the tokenizer None, whose tokens cannot be decoded"):
        start_run(tmp_path / "b", *common, f"data.path={write_tokens(tmp_path)}")


def test_a_readable_file_with_other_data_is_not_called_unreadable(tmp_path: Path) -> None:
    from lab.callbacks.sample_text import SampleText
    from lab.datasets.tokens import TokenWindows

    path = str(tmp_path / "floats.h5")
    with h5py.File(path, "w") as file:
        file["train/tokens"] = np.zeros(9, np.float32)
    callback = SampleText(path, "val/tokens", [4], "a", 1, 1.0, 0)
    with pytest.raises(ConfigError, match=r"^callback\.sample_text\.dataset=val/tokens: .*floats\.h5 has no such"):
        callback.on_start(None)
    splits = {"train": {"group": "train"}}
    with pytest.raises(ConfigError, match=r"^data\.fields\.x=tokens: is not a 1-D dataset of integers in"):
        TokenWindows(path, {"x": "tokens"}, splits, window=4, stride=4, split="train", cache_mb=1)
