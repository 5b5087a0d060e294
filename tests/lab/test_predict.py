"""predict.py: each sample once, in the split's order, the same for any number of processes; ensembles; mistakes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from common import ROOT, called_here

from lab import load_run
from lab.config import Config
from lab.loaders import make_dataset
from lab.predict import ACTIVATIONS, Prediction, predict as write
from lab.program import PROGRAM
from lab.restore import score_checkpoint
from lab.transforms.fields import compose as transformed
from samebits.errors import ConfigError
from samebits.targets import construct
from samebits.testing import start_run
from samebits.testing.processes import called, limit, processes_with, wait_for

QUICK = ("logger=none", "hardware=cpu", "trainer.max_steps=8", "trainer.max_epochs=null", "trainer.eval_every=4")


def predict(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return called([sys.executable, str(ROOT / "src/predict.py"), *map(str, arguments)], code)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("predict")
    return [start_run(folder / f"run{seed}", *QUICK, f"seed={seed}") for seed in (0, 1)]


def truth(run: Path, split: str) -> np.ndarray:
    """The outputs of the model for all rows of the split at once."""
    model, cfg = load_run(run)
    data = make_dataset(Config.of(cfg), split)
    rows = np.arange(len(data))
    batch = {name: torch.empty((len(rows), *shape), dtype=dtype) for name, (shape, dtype) in data.spec.items()}
    data.gather(rows, batch)
    transforms = [construct(PROGRAM, name, node) for name, node in Config.of(cfg).data.transforms.items()]
    batch = transformed(transforms, training=False)(batch, torch.from_numpy(rows))
    with torch.no_grad():
        return model(batch["x"]).numpy()


@pytest.mark.one_quick
@pytest.mark.parametrize("ending", [".h5", ".npz", ".parquet"])
def test_every_row_once_and_in_order(runs: list[Path], tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out{ending}"
    called_here("predict", runs[0], "--split", "val", "--fields", "y", "--out", out)
    if ending == ".h5":
        with h5py.File(out) as file:
            found = {name: file[name][()] for name in file}
            assert file.attrs["split"] == "val"
            assert file["output"].chunks is None  # contiguous, so data=h5 reads it at the speed of memory
    elif ending == ".npz":
        found = dict(np.load(out))
    else:
        tables = pytest.importorskip("pyarrow.parquet")
        table = tables.read_table(out)
        found = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    expected = truth(runs[0], "val")
    np.testing.assert_array_equal(found["row"], np.arange(len(expected)))
    np.testing.assert_allclose(found["output"], expected, rtol=1e-4, atol=1e-5)
    assert len(found["y"]) == len(expected)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.slow
def test_three_processes_write_what_one_does(runs: list[Path], tmp_path: Path) -> None:
    files = []
    for count in (1, 3):
        files.append(tmp_path / f"{count}.h5")
        predict(runs[0], "--procs", count, "--out", files[-1], "hardware.eval_batch_size=7", "--fields", "y")
    with h5py.File(files[0]) as one, h5py.File(files[1]) as three:
        assert sorted(one) == sorted(three) == ["output", "row", "y"]
        np.testing.assert_array_equal(one["y"][()], three["y"][()])
        np.testing.assert_array_equal(one["row"][()], three["row"][()])
        # the last batches differ in size, so matrix products may differ in rounding
        np.testing.assert_allclose(one["output"][()], three["output"][()], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_its_members(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "mean.h5"
    predict(*runs, "--activation", "softmax", "--out", out)
    probabilities = [torch.from_numpy(truth(run, "test")).softmax(-1).numpy() for run in runs]
    with h5py.File(out) as file:
        np.testing.assert_allclose(file["output"][()], np.mean(probabilities, axis=0), rtol=1e-4, atol=1e-6)
        assert list(file.attrs["runs"]) == [str(run) for run in runs]


@pytest.mark.parametrize("shape", [(5, 3), (5, 7, 3), (5, 3, 4, 6), (5, 3, 2, 4, 6)])
def test_softmax_is_over_the_classes(shape: tuple[int, ...]) -> None:
    """The second dimension of images and volumes."""
    output = torch.randn(shape)
    whole = ACTIVATIONS["softmax"](output).sum(shape.index(3))
    torch.testing.assert_close(whole, torch.ones_like(whole))


@pytest.mark.slow
def test_data_without_labels(tmp_path: Path) -> None:
    labelled, bare = tmp_path / "labelled.h5", tmp_path / "bare.h5"
    rng = np.random.default_rng(0)
    with h5py.File(labelled, "w") as file:
        for split in ("train", "val", "test"):
            file[f"{split}/image"] = rng.random((30, 6), dtype=np.float32)
            file[f"{split}/label"] = rng.integers(0, 3, 30)
            file[f"{split}/label"].attrs["classes"] = 3
    with h5py.File(bare, "w") as file:
        file["test/image"] = rng.random((11, 6), dtype=np.float32)
    run = start_run(tmp_path / "run", *QUICK, "data=h5", f"data.path={labelled}", "trainer.global_batch_size=8")
    predict(run, "--out", tmp_path / "out.h5", f"data.path={bare}", "data.fields.y=null")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["output"].shape == (11, 3)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "x.csv"), "the suffix must be one of .h5"),
        (("--out", "none/x.h5"), "must be a file in an existing folder"),
        (("--out", "there.h5"), "already exists - add --overwrite"),
        (("--out", "x.h5", "--split", "tset"), "--split tset: no such split (data.splits has"),
        (("--out", "x.h5", "--fields", "z"), "--fields z: no such field (the batch has x, y)"),
        (("--out", "x.h5", "--procs", "0"), "--procs 0: must be at least 1"),
        (("--out", "x.h5", "model.hidden=[12]"), "does not fit the model"),
        (("--out", "x.h5", "no/such/run"), "no/such/run: no such run directory"),
        (("--out", "x.h5", "--procs", "2", "--fields", "z"), "--fields z: no such field (the batch has x, y)"),
    ],
)
def test_mistakes_are_one_line(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.h5").touch()
    done = called_here("predict", runs[0], *arguments, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.h5"]


def test_outputs_keep_their_digits_and_names(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time in seconds needs more digits than float32 has; two arrays of one name were one, or another order."""
    given = {
        "time": torch.tensor(1.7e9 + 0.25, dtype=torch.float64),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "count": torch.tensor(3, dtype=torch.int16),
    }

    def outputs(task: object, model: object, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value.expand(len(batch["x"])) for name, value in given.items()}

    monkeypatch.setattr("lab.predict.checked_prediction", outputs)
    out = tmp_path / "out.npz"
    write(Prediction(runs[:1], "test", out, [], ["y"]), 1, False)
    found = np.load(out)
    assert {name: str(found[name].dtype) for name in given} == {"time": "float64", "half": "float32", "count": "int16"}
    assert (found["time"] == 1.7e9 + 0.25).all()
    for name, fields in (("y", ["y"]), ("row", [])):
        given[name] = given["half"]
        with pytest.raises(ConfigError, match=f"out.npz: would have two entries '{name}': .* leave this name out"):
            write(Prediction(runs[:1], "test", out, [], fields), 1, True)
        del given[name]


@pytest.mark.parametrize("shape", [(600, 3), (40,), ()])
def test_values_that_are_not_one_per_sample_are_refused(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """Of the predictions of all nodes of a batch of graphs, the first rows were written as those of the samples."""
    monkeypatch.setattr("lab.predict.checked_prediction", lambda *given: {"nodes": torch.zeros(shape)})
    with pytest.raises(ConfigError, match=r"nodes: has the shape .* samples - .* pad it to one size per sample"):
        write(Prediction(runs[:1], "test", tmp_path / "out.h5", [], []), 1, False)
    assert not list(tmp_path.iterdir())


ENDLESS = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "src")!r})
import _python, lab.predict, predict
lab.predict.predicted = lambda *given: time.sleep(1000)
_python.exit_with(predict.main)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(runs[0]), "--out", str(out), "--procs", "2"], start_new_session=True
    )
    wait_for(lambda: list(tmp_path.glob(".out.h5-*")), process)  # processes are about to start
    process.send_signal(signal.SIGINT)
    assert process.wait(limit(30)) == 130
    wait_for(lambda: not processes_with(str(out)))
    assert not list(tmp_path.iterdir())
    assert not processes_with(str(out))


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_variables_of_torchrun_that_a_shell_has_are_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    what = Prediction([tmp_path], "test", tmp_path / "p.h5", [], [])
    start = {"predict": lambda: write(what, None, False), "evaluate": lambda: score_checkpoint(tmp_path, "test", [])}
    with pytest.raises(ConfigError, match=r"without torchrun or srun.* type: unset RANK WORLD_SIZE LOCAL_RANK$"):
        start[command]()
