"""A notebook has what the commands have: the same config, the same run, the same predictions."""

from __future__ import annotations

import copy
import random
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import ROOT, needs
from omegaconf import OmegaConf

import lab
import lab.loop
import lab.models.mlp
from lab.model_io import restore_model
from samebits.errors import ConfigError
from samebits.testing import assert_equal, compose as typed, last_checkpoint, start_run
from samebits.testing.processes import called

SHORT = ["logger=none", "hardware=cpu", "trainer.max_steps=6", "trainer.max_epochs=null", "trainer.eval_every=3"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lab.fit(lab.compose(SHORT), tmp_path_factory.mktemp("notebook") / "run")


@pytest.mark.slow
def test_compose_is_what_the_command_composes() -> None:
    assert lab.compose([*SHORT, "optim.lr=0.01"]) == typed(*SHORT, "optim.lr=0.01")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optim=adamv"], "adamw"),
        (["trainer.max_steps=x"], "trainer.max_steps"),
        (
            ["task.metrics={}"],
            r"^task\.metrics={}: has no effect, .* - write '~task\.metrics\.accuracy'$",
        ),
        (["task.metrics={}", "~task.metrics.accuracy", "trainer.max_steps=x"], r"^trainer\.max_steps"),
        (["task.metrics={}", "+task.metrics.mine={_target_: a}"], r"- write '~task\.metrics\.accuracy'$"),
        (["+callback.mine={}", "+callback.mine._target_=a.b", "trainer.max_steps=x"], r"^trainer\.max_steps"),
    ],
)
def test_mistakes_are_config_errors_of_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        lab.compose(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("full", [False, True])
def test_a_notebook_prints_one_line_for_a_mistake(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """IPython prints what _render_traceback_ returns."""
    monkeypatch.setenv("LAB_TRACEBACK", "1" if full else "")
    with pytest.raises(ConfigError) as caught:
        raise ConfigError("no key") from KeyError("key")
    lines = caught.value._render_traceback_()
    assert (lines == ["ConfigError: no key"]) is not full
    assert any("KeyError" in line for line in lines) is full


@pytest.mark.slow
def test_fit_is_the_run_of_the_command(run_dir: Path, tmp_path: Path) -> None:
    other = start_run(tmp_path / "run", *SHORT)
    assert_equal(last_checkpoint(run_dir)["model"], last_checkpoint(other)["model"])
    assert lab.read_metrics(run_dir)[-1]["step"] == 6


@pytest.mark.slow
def test_fit_goes_on_in_a_directory_that_holds_the_run(run_dir: Path, tmp_path: Path) -> None:
    longer = [text.replace("=6", "=9") for text in SHORT]
    first = Path(shutil.copytree(run_dir, tmp_path / "run"))
    assert lab.fit(lab.compose(longer), first) == first
    assert last_checkpoint(first)["step"] == 9


BUILT = {
    "dropout": ("model.dropout=0.5",),
    "convolutions": ("model=resnet", "model.width=4", "model.dropout=0.3"),
    "own modules": ("task=byol", "model.num_outputs=8", "model.hidden=[16]", "~task.augment.crop"),
    "finetune": ("task=finetune", "task.weights=RUN", "model.dropout=0.2"),
}


@pytest.mark.one_quick
@pytest.mark.parametrize(
    "kind",
    [
        "dropout",
        pytest.param("convolutions", marks=needs("conf/model/resnet.yaml")),
        pytest.param("own modules", marks=needs("conf/task/byol.yaml")),
        pytest.param("finetune", marks=needs("conf/task/finetune.yaml")),
    ],
)
def test_build_is_what_a_run_trains(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Bit for bit: all first weights and buffers, and the first step's loss with its dropout."""
    common = [*SHORT, "hardware.num_threads=1", "trainer.log_every=1", "seed=5"]
    overrides = [*common, *(text.replace("RUN", str(run_dir)) for text in BUILT[kind])]
    first: dict[str, torch.Tensor] = {}
    original = lab.loop.train_step

    def train_step(loss_modules: Any, state: Any, *rest: Any) -> Any:
        if not first:
            first.update(copy.deepcopy(weights(state.model, state.task)))
        return original(loss_modules, state, *rest)

    def weights(model: torch.nn.Module, task: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {**model.state_dict(prefix="model."), **task.state_dict(prefix="task.")}

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    logged = lab.read_metrics(lab.fit(lab.compose(overrides), tmp_path / "run"))[0]
    parts = lab.build(lab.compose(overrides))
    try:
        assert_equal(weights(parts.model, parts.task), first)
        batch = next(iter(parts.loaders["train"]))
        losses = parts.task.losses(parts.model, batch)[0]
        losses = losses if isinstance(losses, torch.Tensor) else losses["loss"]
        assert (losses.sum() / len(losses)).item() == logged["train/loss"]
    finally:
        parts.close()


def test_a_loaded_model_has_the_run_s_random_constants(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as random features in an attribute, which no checkpoint has. The caller's random numbers continue."""
    built = lab.models.mlp.MLP.__init__

    def with_constants(self: Any, *args: Any, **kwargs: Any) -> None:
        built(self, *args, **kwargs)
        self.constants = [torch.rand(3), np.random.rand(3), random.random()]

    monkeypatch.setattr(lab.models.mlp.MLP, "__init__", with_constants)
    parts = lab.build(lab.compose(SHORT))
    parts.close()
    before = torch.get_rng_state()
    model: Any = lab.load_run(run_dir)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert str(model.constants) == str(parts.model.constants)
    assert str(restore_model(run_dir, ["seed=7"])[0].constants) == str(parts.model.constants)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("trainer.max_steps", -5, "trainer.max_steps"),
        ("hardware.num_procs", 2, "trainer=single is one process, not 2"),
        ("optim.lr", "x", "optim"),
    ],
)
def test_a_config_that_was_changed_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, said: str
) -> None:
    cfg = lab.compose(SHORT)
    OmegaConf.update(cfg, key, value)
    for use in (lambda: lab.fit(cfg, tmp_path / "run"), lambda: lab.build(cfg)):
        with pytest.raises(ConfigError, match=said):
            use()
    assert not (tmp_path / "run").exists()


def test_what_is_no_config_is_said(tmp_path: Path) -> None:
    for use in (lab.fit, lab.build):
        with pytest.raises(ConfigError, match=r"expected a config from compose\(\[...\]\), got a list"):
            use(SHORT)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"give a list of overrides, compose\(\['seed=1'\]\)"):
        lab.compose("seed=1")
    with pytest.raises(ConfigError, match="is missing or empty; give the directory of a run"):
        lab.read_metrics(tmp_path)


@pytest.mark.slow
def test_build_gives_the_first_batch_and_a_loss(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    parts = lab.build(lab.compose([*SHORT, "trainer=ddp", "hardware.num_procs=2"]))
    try:
        batch = next(iter(parts.loaders["train"]))
        losses, output = parts.task.losses(parts.model, batch)
        assert losses.shape == batch["y"].shape == (64,)  # the whole global batch: one process
        assert output.shape == (64, 10)
        assert sorted(parts.loaders) == ["test", "train", "val"]
    finally:
        parts.close()
    assert set(threading.enumerate()) <= before


def test_predict_does_the_preprocessing(run_dir: Path) -> None:
    run = lab.load_run(run_dir)
    model, cfg = run
    assert (model, cfg) == (run.model, run.cfg)
    with h5py.File(cfg.data.path) as file:
        images, labels = file["train/image"][:200], file["train/label"][:200]
    scores = run.predict(images)
    assert scores.shape == (200, 10)
    torch.testing.assert_close(scores, model(torch.from_numpy(images).float() / 255))
    torch.testing.assert_close(run.predict(images[7]), scores[7:8])
    names = run.predict_names(images)
    assert names == [str(k) for k in scores.argmax(1).tolist()]
    assert run.classes == [str(k) for k in range(10)]
    assert np.mean([name == str(label) for name, label in zip(names, labels)]) > 0.3
    with pytest.raises(ConfigError, match=r"x has the shape \(8,\)"):
        run.predict(images[0, 0, 0])


@pytest.mark.slow
def test_two_ranks_start_from_a_process_with_threads(tmp_path: Path) -> None:
    script = f"""
import threading, time
import lab
if __name__ == "__main__":  # ranks are spawned, as the process has a thread
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    cfg = lab.compose({[*SHORT, "trainer=ddp", "hardware.num_procs=2"]!r})
    print(lab.fit(cfg, {str(tmp_path / "run")!r}))
"""
    (tmp_path / "script.py").write_text(script)
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    called([sys.executable, tmp_path / "script.py"], cwd=tmp_path, env=env, fresh=True)
    assert last_checkpoint(tmp_path / "run")["step"] == 6
