"""./run export --to onnx: the file computes what the model does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, ROOT, called_here, needs

import lab
import lab.onnx
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError, RunFailed
from samebits.testing import start_run
from samebits.testing.processes import called

LACKS = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
WITH_ONNX = pytest.mark.skipif(bool(LACKS), reason=f"{', '.join(LACKS)}: not installed (extra onnx)")


def export(*given: Any, code: int = 0) -> Any:
    return called([sys.executable, str(ROOT / "src/export.py"), *map(str, given)], code)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("export") / "run", *QUICK, "trainer.max_steps=6", "trainer.ema_decay=0.9")


def session_of(file: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


@WITH_ONNX
@pytest.mark.slow
def test_onnx_computes_what_the_model_does_for_any_batch_size(run: Path) -> None:
    said = export(run, "--to", "onnx").stdout
    assert "inputs x: float32 (batch, 1, 8, 8); outputs output; largest difference" in said
    session = session_of(run / "model.onnx")
    model, _ = lab.load_run(run)
    for rows in (1, 5, 131):
        x = torch.rand(rows, 1, 8, 8)
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.as_tensor(found), model(x).detach(), rtol=1e-5, atol=1e-6)
    assert not list(run.glob(".model*"))  # no temporary folder is left
    again = export(run, "--to", "onnx", code=2).stderr
    assert again == f"error: {run}/model.onnx exists; add --overwrite to replace it\n"


@WITH_ONNX
@pytest.mark.slow
@needs("conf/model/resnet.yaml")
@pytest.mark.parametrize(
    "kind",
    [
        "resnet",
        pytest.param("gpt", marks=needs("conf/model/gpt.yaml")),
        pytest.param("dino", marks=needs("conf/task/dino.yaml")),
        pytest.param("byol", marks=needs("conf/task/byol.yaml")),
        pytest.param("mae", marks=needs("conf/task/mae.yaml")),
    ],
)
def test_models_of_the_template_are_exported(tmp_path: Path, kind: str) -> None:
    """BatchNorm in evaluation mode; attention, tied weights and no test split; tasks whose heads are not exported; a
    model that uses len(x), the size of the batch."""
    import h5py
    import numpy as np

    with h5py.File(tmp_path / "t.h5", "w") as file:
        for split in ("train", "val"):
            file[f"{split}/t"] = np.arange(3000, dtype=np.uint16) % 50
    short = ("logger=none", "hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.max_steps=2")
    given = {
        "resnet": ("model=resnet",),
        "gpt": (
            "data=tokens", f"data.path={tmp_path}/t.h5", "data.fields.tokens=t", "data.window=16", "model=gpt",
            "model.width=16", "model.heads=2", "model.layers=1", "task=next_token", "trainer.global_batch_size=8",
        ),
        "mae": ("task=mae", "model=vit"),
    }.get(kind, (f"task={kind}",))  # fmt: skip
    run = start_run(tmp_path / "run", *short, "trainer.max_eval_batches=1", *given)
    made = lab.onnx.export_onnx(run, tmp_path / "model.onnx", False, None)
    assert made.inputs == {"x": "int64 (batch, 16)" if kind == "gpt" else "float32 (batch, 1, 8, 8)"}
    assert made.difference < 1e-5
    assert len(made.batches) == 3
    assert [one.name for one in session_of(tmp_path / "model.onnx").get_inputs()] == ["x"]


@pytest.mark.slow
@WITH_ONNX
def test_labels_are_not_inputs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if predict passes them to the loss. The size of the batch may be read by len()."""

    def labelled(self: Any, model: Any, batch: Any) -> Any:
        assert len(batch["y"]) == len(batch["x"])
        return self.losses(model, batch)[1].view(len(batch["x"]), -1)

    monkeypatch.setattr(Supervised, "predict", labelled)
    monkeypatch.setattr(
        Supervised, "losses", lambda self, model, batch: (self.criterion(out := model(batch["x"]), batch), out)
    )
    made = lab.onnx.export_onnx(run, tmp_path / "m.onnx", False, "val")
    assert made.inputs == {"x": "float32 (batch, 1, 8, 8)"}
    (found,) = session_of(tmp_path / "m.onnx").run(None, {"x": (x := torch.rand(3, 1, 8, 8)).numpy()})
    torch.testing.assert_close(torch.as_tensor(found), lab.load_run(run)[0](x).detach(), rtol=1e-5, atol=1e-6)


@WITH_ONNX
@pytest.mark.slow
def test_large_weights_have_a_file_of_their_own(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.onnx, "MOST_INLINE", 1000)
    lab.onnx.export_onnx(run, tmp_path / "big.onnx", False, "val")
    assert {path.name for path in tmp_path.iterdir()} == {"big.onnx", "big.onnx.data"}
    (found,) = session_of(tmp_path / "big.onnx").run(None, {"x": torch.zeros(3, 1, 8, 8).numpy()})
    model, _ = lab.load_run(run)
    torch.testing.assert_close(torch.as_tensor(found), model(torch.zeros(3, 1, 8, 8)).detach(), rtol=1e-5, atol=1e-6)


def jumpy(self: Any, model: Any, batch: Any) -> Any:
    """Compute something else while it is exported."""
    output = model(batch["x"])
    return output + 0.01 if torch.compiler.is_compiling() else output


def asking(self: Any, model: Any, batch: Any) -> Any:
    """Branch on a value, which has no counterpart in a graph."""
    output = model(batch["x"])
    return output if output.sum().item() > 0 else -output


@WITH_ONNX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("predict", "error", "said"),
    [
        (jumpy, RunFailed, r"^--to onnx: the output output differs from the model's by 0\.01, more than 0\.0001"),
        (asking, ConfigError, r"^--to onnx: torch cannot export Supervised\.predict of MLP: "),
    ],
)
def test_a_model_that_differs_or_cannot_be_exported_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predict: Any, error: type[Exception], said: str
) -> None:
    monkeypatch.setattr(Supervised, "predict", predict)
    with pytest.raises(error, match=said) as caught:
        lab.onnx.export_onnx(run, tmp_path / "model.onnx", False, "val")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@WITH_ONNX
def test_a_full_disk_is_one_line_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "_", sys.executable, "-B", ROOT / "src/export.py"]
    said = called([*map(str, limited), str(run), str(tmp_path / "model.onnx")], 2, fresh=True).stderr
    assert said == f"error: {tmp_path}/model.onnx: cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("m.onnx", "--to", "pt"), "m.onnx: its suffix does not fit --to pt; remove one of them"),
        (("--to", "safetensors", "--split", "val"), "--split: has an effect only on --to onnx"),
        (("m.pt", "data.path=a.h5"), "data.path=a.h5: has an effect only on --to onnx"),
        (("--to", "pt", "data.path=a.h5"), "data.path=a.h5: has an effect only on --to onnx"),
    ],
)
def test_arguments_that_contradict_each_other(run: Path, given: tuple[str, ...], said: str) -> None:
    assert called_here("export", run, *given, code=2).stderr.startswith(f"error: {said}")


def test_a_missing_library_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.onnx, "LIBRARIES", ("no_such",))
    with pytest.raises(ConfigError, match=r"^--to onnx needs no_such, which is not installed - .*'\.\[onnx\]'$"):
        lab.onnx.export_onnx(run, tmp_path / "model.onnx", False, None)
