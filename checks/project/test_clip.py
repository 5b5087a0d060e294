"""docs/clip.md as typed, with a small tokenizer and images that are made here."""

from __future__ import annotations

import csv
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from common import ROOT
from pages import DOCS, commands
from PIL import Image

from samebits.testing import result
from samebits.testing.processes import called

tokenizers = pytest.importorskip("tokenizers")
WORDS = ["?", "a", "photo", "of", "red", "green", "blue", "things"]


@pytest.mark.slow
def test_the_page_works_as_typed(tmp_path: Path) -> None:
    """With micro-batches."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    with open(tmp_path / "captions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        for k in range(60):
            shown = np.zeros((16, 16, 3), np.uint8)
            shown[..., k % 3] = 200 + k % 50
            Image.fromarray(shown).save(tmp_path / f"{k}.png")
            rows.writerow([f"{k}.png", f"a photo of {WORDS[4 + k % 3]} things"[: 100 if k % 2 else -7]])
    pack, train = map(shlex.split, commands(DOCS["clip.md"]))
    assert (pack[:3], train[:2]) == (["./run", "h5", "pack"], ["./run", "train"])
    called([sys.executable, "-m", "h5rows", *pack[2:]], 0, 120, cwd=tmp_path)
    small = ("model.width=4", "task.text_encoder.layers=1", "trainer.global_batch_size=48",
             "hardware.micro_batch_size=20", "trainer.max_epochs=2",
             "logger=none", "hardware=cpu", f"hydra.run.dir={tmp_path}/run")  # fmt: skip
    called([sys.executable, str(ROOT / "src/train.py"), *train[2:], *small], 0, 120, cwd=tmp_path)
    scores = result(tmp_path / "run")
    assert scores["test/loss"] < 5
    assert {"val/recall/image_to_text", "test/recall/text_to_image"} <= scores.keys()
