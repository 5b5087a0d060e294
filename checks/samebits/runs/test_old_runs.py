"""Runs that older versions wrote (checks/runs, see its README.md) load, are scored and go on in this one."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from common import ROOT
from omegaconf import OmegaConf
from torch.torch_version import TorchVersion

from lab import groups, load_run, options
from lab.config import check
from lab.program import PROGRAM, start
from lab.restore import score_checkpoint
from samebits.checkpoints.trained import change_value, export
from samebits.device import HardwareConfig
from samebits.errors import ConfigError
from samebits.loggers import LoggerConfig
from samebits.parallel.fsdp import FIRST_TORCH
from samebits.saved import config as saved, read_config, read_overrides, translate_override
from samebits.schema import plain, split_own
from samebits.testing import compose, last_checkpoint, result, status
from samebits.world import ProcessConfig

RUNS = ROOT / "checks" / "runs"
KINDS = ("whole", "sharded", "undecayed")
SAME_TORCH = (
    json.loads((RUNS / "whole-finished/environment.json").read_text())["packages"]["torch"] == torch.__version__
)


def old(name: str, tmp_path: Path) -> Path:
    """A copy of the run, its data where they are here."""
    run = Path(shutil.copytree(RUNS / name, tmp_path / name))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("/project/digits.h5", str(ROOT / "data/digits.h5")))
    return run


@pytest.mark.one_quick
@pytest.mark.parametrize("kind", KINDS)
def test_it_loads_and_is_scored_as_it_was(tmp_path: Path, kind: str) -> None:
    run = old(f"{kind}-finished", tmp_path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    model, cfg = load_run(run)
    assert not model.training
    assert cfg.trainer.max_steps == 8
    for split in ("val", "test"):
        scores = score_checkpoint(run, split, ["hardware.num_threads=1"])
        for name, value in scores.items():
            assert value == pytest.approx(result(run)[f"{split}/{name}"], rel=1e-5)
    export(run, tmp_path / "model.pt", overwrite=False)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_and_ends_as_the_one_that_was_not_stopped(tmp_path: Path, kind: str) -> None:
    if kind == "sharded" and torch.__version__ < TorchVersion(FIRST_TORCH):
        pytest.skip(f"needs torch {FIRST_TORCH}")
    run, straight = old(f"{kind}-stopped", tmp_path), RUNS / f"{kind}-finished"
    start(read_config(PROGRAM, run), run, [], own_process=False)
    assert status(run)["status"] == "finished"
    assert status(run)["wandb_id"] == json.loads((RUNS / run.name / "status.json").read_text())["wandb_id"]
    ended, expected = last_checkpoint(run), last_checkpoint(straight)
    for part in ("model", "ema"):
        if expected[part] is not None:
            near = {"rtol": 1e-6, "atol": 1e-7} if SAME_TORCH else {}
            torch.testing.assert_close(ended[part], expected[part], **near)
    for key in ("step", "samples"):
        assert ended[key] == expected[key]
    for key, value in result(straight).items():
        if key not in ("seconds", "best_checkpoint", "balance"):
            assert result(run)[key] == pytest.approx(value, rel=1e-4)


def without(node: Any, key: str) -> Any:
    head, _, rest = key.partition(".")
    return {k: without(v, rest) if k == head else v for k, v in node.items() if rest or k != head}


def all_keys(cls: Any, values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{key: value} of all that have a default."""
    found = {}
    for field in fields(cls):
        at = f"{prefix}{field.name}"
        value = values[field.name]
        if field.name in ("data", "optim"):
            schema = groups.DataConfig if field.name == "data" else groups.OptimConfig
            found |= all_keys(schema, plain(OmegaConf.create(value)), f"{at}.")
        elif is_dataclass(kind := SCHEMAS.get(field.name)) and value is not None:
            found |= all_keys(kind, value, f"{at}.")
        elif at not in ("name", "model", "data.input_shape", "data.num_outputs", "data.order", "optim.schedule",
                        "task.criterion"):  # fmt: skip
            found[at] = value
    return found


SCHEMAS: dict[str, Any] = {
    "trainer": options.TrainerConfig, "hardware": HardwareConfig, "logger": LoggerConfig,
    "process": ProcessConfig, "monitor": options.MonitorConfig, "sweep": groups.SweepConfig,
    "task": groups.TaskConfig, "pruning": groups.PruningConfig, "quantization": groups.QuantizationConfig,
    "ddp": options.DDPConfig, "fsdp": options.FsdpConfig,
}  # fmt: skip


@pytest.mark.slow
def test_a_missing_key_has_the_default_of_conf(tmp_path: Path) -> None:
    """Of all keys but `rules`: what the schema says of an older run is what conf/ gives to a new one."""
    values = plain(compose("trainer=fsdp"))
    values["task"]["metrics"], values["data"]["transforms"] = {}, {}  # a run without the key had none
    keys = all_keys(groups.RootConfig, values)
    assert len(keys) > 60
    keys |= {"trainer.strategy": "single", "trainer.fsdp": None, "rules": 1}
    for key, value in keys.items():
        fewer = without(values, key)
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(fewer))
        found = OmegaConf.select(read_config(PROGRAM, tmp_path), key)
        assert plain(found) == value, key
        assert type(plain(found)) is type(value) or isinstance(value, float), key


@pytest.mark.slow
def test_missing_and_gone_keys_are_named_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "_said", set())
    values = plain(compose("logger=none"))
    more = without(without(without(copy.deepcopy(values), "process.straggler_threshold"), "sweep"), "data.num_workers")
    more["trainer"]["amp"], more["trainer"]["ddp"]["old"], more["extra"] = True, 1, {"a": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(more))
    assert plain(read_config(PROGRAM, tmp_path)) == values
    read_config(PROGRAM, tmp_path)
    lines = [record.getMessage() for record in caplog.records if record.name == "samebits"]
    assert lines == [
        f"{tmp_path}/config.yaml: keys that are newer than this run and get their defaults: "
        "process.straggler_threshold=0.2, sweep, data.num_workers='auto'",
        f"{tmp_path}/config.yaml: keys that are no longer used and were removed: extra, trainer.amp, trainer.ddp.old",
    ]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(without(values, "name")))
    with pytest.raises(ConfigError, match="name: is missing"):
        check(read_config(PROGRAM, tmp_path))
    assert split_own(values["data"], groups.DataConfig, "data")  # a new one is whole


def test_an_argument_that_is_gone_is_removed_for_its_class_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "_said", set())
    values = plain(compose("logger=none"))
    for target in ("lab.tasks.fixmatch.FixMatch", values["task"]["_target_"]):
        values["task"] |= {"_target_": target, "ratio": 7}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
        assert ("ratio" in read_config(PROGRAM, tmp_path).task) is (not target.endswith("FixMatch"))
    lines = [record.getMessage() for record in caplog.records if record.name == "samebits"]
    assert lines == [f"{tmp_path}/config.yaml: keys that are no longer used and were removed: task.ratio"]


def test_values_of_evaluate_are_read_as_hydra_reads_them(tmp_path: Path) -> None:
    cfg = read_config(PROGRAM, old("whole-finished", tmp_path))
    for override, key, value in (
        ("hardware.eval_batch_size=16", "hardware.eval_batch_size", 16),
        ("hardware.eval_batch_size=null", "hardware.eval_batch_size", None),
        ("hardware.deterministic=true", "hardware.deterministic", True),
        ("data.input_shape=[1, 4,4]", "data.input_shape", [1, 4, 4]),
        ("logger.project='1=2'", "logger.project", "1=2"),
        ("logger.project=", "logger.project", ""),
        ("optim.lr=1e-3", "optim.lr", 1e-3),
    ):
        change_value(cfg, override)
        found = plain(OmegaConf.select(cfg, key))
        assert (found, type(found)) == (value, type(value))


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("+hardware.x=1", "cannot be added or deleted"), ("~hardware.compile", "cannot be added or deleted"),
        ("hardware.compile", "write key=value"), ("seed=1,2", "several values"), ("hardware.cmpile=true", "compile"),
        ("seed=${oc.env:HOME}", "interpolation"), ("data.path={a", "write key=value"), ("data.sise=3", "sise"),
        ("model.hiden=[3]", "hiden"), ("task.criterion.x=1", "criterion"),
        ("pruning.sparsity=0.5", "pruning.sparsity=0.5: has no effect"), ("optim.lr=3", "optim.lr=3: has no effect"),
        ("trainer.max_epochs=3", "trainer.max_epochs=3: has no effect"), ("a b", "two kinds of quotes, 'key=\"a,b\"'$"),
        ("checks/runs/whole-finished", "^checks/runs/whole-finished: is a second run, but [a-z ]* - repeat"),
        ("checks/runs", "^checks/runs: not a valid override"), (f"x=[{'a b ' * 99}", "not a valid override"),
    ],
)  # fmt: skip
def test_what_evaluate_does_not_take_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, says: str
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=says) as caught:
        score_checkpoint(old("whole-finished", tmp_path), "test", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_key_that_has_moved_keeps_its_value(tmp_path: Path) -> None:
    """From where the version of then had it; a value in both places is the present one's."""
    values = plain(compose("process.max_time=3h", "process.timeout=5m", "process.save_async=false"))
    older = copy.deepcopy(values)
    older["trainer"] |= older.pop("process")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    (tmp_path / "overrides.yaml").write_text("[trainer.max_time=3h, +trainer.timeout=5m, name=trainer.timeout]")
    assert plain(read_config(PROGRAM, tmp_path)) == values
    assert translate_override(PROGRAM, "trainer.timeout") == "process.timeout"  # as a sweep's ledger has what differs
    assert read_overrides(PROGRAM, tmp_path) == ["process.max_time=3h", "+process.timeout=5m", "name=trainer.timeout"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values | {"trainer": values["trainer"] | {"timeout": "7m"}}))
    assert read_config(PROGRAM, tmp_path).process.timeout == "5m"
