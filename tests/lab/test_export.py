"""./run export: weights as one file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from common import QUICK, ROOT, called_here

import lab
from samebits.checkpoints import export as write_weights
from samebits.testing import assert_equal, start_run
from samebits.testing.processes import called

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None
WITH_SAFETENSORS = pytest.mark.skipif(not HAS_SAFETENSORS, reason="safetensors is not installed (extra export)")
SHORT = (*QUICK, "trainer.max_steps=6", "trainer.ema_decay=0.9")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("export") / "run", *SHORT)


@WITH_SAFETENSORS
def test_safetensors_has_the_weights_that_are_scored(run: Path) -> None:
    """The average, not the weights of the last step."""
    import safetensors.torch

    said = called_here("export", run, "--to", "safetensors").stdout
    assert f"{run}/model.safetensors: 1,210 values" in said
    weights = safetensors.torch.load_file(run / "model.safetensors")
    model, _ = lab.load_run(run)
    assert_equal(weights, dict(model.state_dict()))
    last = torch.load(max((run / "checkpoints").glob("last_*")), weights_only=True)
    assert not torch.equal(next(iter(weights.values())), next(iter(last["model"].values())))
    called_here("export", run, run / "weights.pt")
    assert_equal(torch.load(run / "weights.pt", weights_only=True), weights)


@pytest.mark.one_quick
@pytest.mark.parametrize("to", ["pt", pytest.param("safetensors", marks=WITH_SAFETENSORS)])
def test_a_full_disk_is_one_line_and_leaves_nothing(run: Path, tmp_path: Path, to: str) -> None:
    # -B: a .pyc that is written under this limit would be cut off, and no later command could import the module
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "_", sys.executable, "-B", ROOT / "src/export.py"]
    said = called([*map(str, limited), str(run), str(tmp_path / f"model.{to}")], 2, fresh=True).stderr
    assert said == f"error: {tmp_path}/model.{to}: cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


@WITH_SAFETENSORS
def test_safetensors_of_tied_weights_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format itself refuses tensors that share memory."""
    import safetensors.torch

    weight = torch.randn(4, 3)
    state = {"a": weight, "b": weight, "c": weight.t()}
    monkeypatch.setattr(
        "samebits.checkpoints.trained.find_checkpoint", lambda path: (path, {"model": state, "ema": None})
    )
    write_weights(tmp_path, tmp_path / "w.safetensors", False, "safetensors")
    assert_equal(safetensors.torch.load_file(tmp_path / "w.safetensors"), state)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "give a file, such as model.pt, or a format: --to pt, --to safetensors"),
        (("m.safetensors", "--to", "pt"), "m.safetensors: its suffix does not fit --to pt; remove one of them"),
        (("m.PT",), "m.PT: the formats are pt, safetensors"),
    ],
)
def test_arguments_that_contradict_each_other(run: Path, given: tuple[str, ...], said: str) -> None:
    assert called_here("export", run, *given, code=2).stderr.startswith(f"error: {said}")
