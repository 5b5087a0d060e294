"""What a user sees after a mistake: one line, word for word, exit status 2, and no folder left behind."""

# ruff: noqa: E501 - the lines that users see, word for word
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import train
from engine.errors import RunFailed
from engine.extras import missing
from engine.schema import TYPED, WHICH_GPUS
from lab.options import TrainerConfig
from lab.program import PROGRAM

Call = Callable[..., tuple[int, list[str]]]
ROOT_HAS = "(the config has: name, seed, rules, resume, sweep, monitor, process, data, model, task, optim, trainer, hardware, logger, profiler, callback)"
GROUPS = "(the config has: data, model, task, optim, trainer, hardware, logger, callback, profiler, name, seed, rules, resume, sweep, monitor"
MODEL_HAS, SCHEDULE_HAS = (
    f"({group} has: {', '.join(sorted(path.stem for path in (PROGRAM.conf / group).glob('*.yaml')))})"
    for group in ("model", "optim/schedule")
)
TRAINER_HAS = f"(trainer has: {', '.join(f.name for f in fields(TrainerConfig))})"
SYNTAX = "no valid override - write key=value, a list as key=[1,2], and text with special characters in quotes twice, 'key=\"a,b\"'"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The (config, run directory, overrides) of each run that would have started; seed 66 fails."""
    runs: list[Any] = []

    def start(config: Any, run_dir: Path, overrides: list[str], own_process: bool) -> None:
        assert run_dir.is_dir()
        cfg = config.given
        runs.append((cfg, run_dir, overrides))
        if cfg.seed == 66:
            raise RunFailed(f"RuntimeError: out of luck ({run_dir})")

    monkeypatch.setitem(sys.modules, "lab.start", SimpleNamespace(start=start))
    return runs


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[Any]
) -> Call:
    """train.py with these arguments -> (exit status, lines of stderr)."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def call(*arguments: str) -> tuple[int, list[str]]:
        folders = [f"hydra.run.dir={tmp_path}/runs/a"]
        if {"-m", "--multirun"} & set(arguments):
            folders.append(f"hydra.sweep.dir={tmp_path}/runs/sweep")
        monkeypatch.setattr(sys, "argv", ["train.py", *folders, *arguments])
        capsys.readouterr()
        status = train.main()
        return status, capsys.readouterr().err.splitlines()

    return call


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["optim.lrr=1"], "optim.lrr: no such key - did you mean optim.lr? (optim has: decay_norms_and_biases, lr_factors, schedule, lr, betas, weight_decay)"),
        (["model.hiden.x=3"], "model.hiden: no such key - did you mean model.hidden? (model has: input_shape, num_outputs, hidden, dropout)"),
        (["optim.lr.x=3"], "optim.lr.x: optim.lr is a value, not a group"),
        (["hydra.run.dri=x"], "hydra.run.dri: no such key - did you mean hydra.run.dir? (hydra.run has: dir)"),
        (["model=mpl"], f"model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
        (["-m", "model=mlp,mpl"], f"job 1 (model=mpl): model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
        (["model=mlp,resnet"], "model=mlp,resnet: several values are a sweep - add -m, or write a list as model=[mlp,resnet]"),
        (["a=[1"], f"a=[1: {SYNTAX}"),
        (["seed"], f"seed: {SYNTAX}"),
        (["+optim.lr=3"], "optim.lr: exists already, so + cannot add it - write optim.lr=..., without the +"),
        (["+model=mlp"], "model: chosen already, so + cannot add it - write model=..., without the +"),
        (["+callback=curves"], "callback: chosen already, so + cannot add it - write callback=..., without the +"),
        (["--lr=3"], "unrecognized arguments: --lr=3 - values are given as key=value, without dashes; see --help"),
        (["hydra.job.num=abc"], "hydra.job.num=abc: Value 'abc' of type 'str' could not be converted to Integer"),
        (["trainer.max_steps=abc"], "trainer.max_steps: expected an integer or null, got 'abc'"),
        (["+trainer.max_step=3"], f"trainer.max_step: no such key - did you mean trainer.max_steps? {TRAINER_HAS}"),
        (["trainer.max_time=30m"], f"trainer.max_time: no such key - it is process.max_time now {TRAINER_HAS}"),
        (["+model.hiden=3"], "model.hiden: lab.models.mlp.MLP takes no 'hiden' - did you mean 'hidden'? (accepts: input_shape, num_outputs, hidden, dropout)"),
        (["hydra.run.dir="], "hydra.run.dir: is empty - give a folder, hydra.run.dir=..., or leave it out for one below outputs/"),
        (["-m", "hydra.sweep.dir=null"], "hydra.sweep.dir: is empty - give a folder, hydra.sweep.dir=..., or leave it out for one below outputs/"),
        (["optim.lr=abc"], "optim.lr: expected a number, got 'abc'"),
        (["optim.lr=${optm.lr}"], "optim.lr: there is no key optm.lr for ${optm.lr} to point to"),
        (["optim.lr=${oc.env:NO_SUCH_VARIABLE}"], "optim.lr: Environment variable 'NO_SUCH_VARIABLE' not found"),
        (["hardware.precision=fp8"], "hardware.precision: no option 'fp8' (options: auto, fp32, tf32, bf16, bf16-weights, fp16)"),
        (["~trainer.max_steps"], "~trainer.max_steps: this key cannot be taken out; it is null already"),
        (["trainer.fsdp.wrap=auto"], "trainer.fsdp.wrap: trainer.fsdp is null here - choose trainer=fsdp"),
        (["data=h5", "data.transforms.flip.dim=1"], "data.transforms.flip: no such key (data.transforms has: to_float) - what is new is added with a plus, +data.transforms.flip.dim=1"),
        (["optim.eps=1e-6"], "optim.eps: no such key (optim has: decay_norms_and_biases, lr_factors, schedule, lr, betas, weight_decay) - what is new is added with a plus, +optim.eps=1e-6, if torch.optim.AdamW takes it"),
        *([] if find_spec("ray") else [(["-m", "hydra/launcher=ray", "seed=1,2"], missing("hydra/launcher=ray", "ray", "ray"))]),
        (["sweep.preflight=true"], "sweep.preflight=true: of a multirun, and would have no effect here - add -m, or leave it out"),
        *(
            ([text], f"{text}: of a multirun, and would have no effect here - add -m, or leave it out")
            for text in ("hydra/launcher=slurm", "hydra/launcher=pool", "hydra/sweeper=optuna", "hydra.sweeper.params={seed: 1}", "hydra.sweep.dir=x")
        ),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3"], "hydra/sweeper=optuna: of a multirun, and would have no effect here - add -m, or leave it out"),
        *(
            ([*shows, resume], f"{shows[0]}: would show a new run's config, not that of the run to go on with - read its config.yaml, or leave out {resume}")
            for shows in (["--cfg", "job"], ["--cfg=job"], ["-c", "job"], ["--help"], ["-h"], ["--info"])
            for resume in ("resume=outputs/run", "resume=auto")
        ),
        (["trainer.clip_norm=choice(null,1.0)"], "trainer.clip_norm=choice(null,1.0): Hydra's choice() takes no null - give the values by themselves, null,1.0"),
        (["optim/schedule=step", "optim.schedule.milestones=[10]"], "optim.schedule.milestones[0]: must be <= 1, got 10; a share of all steps: epoch 10 of 20 is 0.5"),
        (["optim/schedule=step", "optim.schedule.milestones=[10ep]"], "optim.schedule.milestones: expected a list, each item a number >= 0 and <= 1; a share of all steps: epoch 10 of 20 is 0.5, got ['10ep']"),
        (["data.split_by=y"], "data.split_by=y: has no effect without data.split - add data.split=80/10/10, or leave it out"),
        *(
            (["resume=auto", *where], "resume=auto: this run's directory is a new one each time, so there is none to go on with - add hydra.run.dir=outputs/NAME, or give resume=RUN")
            for where in (["hydra.run.dir=/tmp/engine-${now:%S}"], ["name=x", "hydra.run.dir=${root:}/outputs/${name}/${suffix:}"])
        ),
        (["-cn", "wandb_sweep"], f"--config-name wandb_sweep: {PROGRAM.root}/conf/wandb_sweep.yaml is no config of a run - begin it with `defaults: [train, _self_]`"),
        (["--experimental-rerun", f"{PROGRAM.root}/conf/train.yaml"], "--experimental-rerun: would unpickle a file - a run's directory goes on with resume=..."),
        (["-m", "hydra.sweeper.params=3"], 'hydra.sweeper.params: expected a mapping, such as {seed: "0,1,2"}, got 3'),
        (["-m", "hydra.sweeper._target_=hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper", "seed=1,2"], "hydra.sweeper._target_: hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper: no such plugin of Hydra is installed - hydra/sweeper=optuna, hydra/launcher=pool and others are this project's own"),
        (["trainer=ddp", "trainer.global_batch_size=65", "hardware.num_procs=2"], "trainer.global_batch_size: 65 cannot be shared equally by 2 processes (hardware.num_procs) - 64 can"),
    ],
)  # fmt: skip
def test_one_line(call: Call, started: list[Any], tmp_path: Path, arguments: list[str], line: str) -> None:
    status, shown = call("data=synthetic", *arguments)
    assert shown == [f"error: {line}"]
    assert status == 2
    assert not started
    assert not (tmp_path / "runs" / "a").exists()
    assert not (tmp_path / "runs" / "sweep").exists()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        *(
            (f"{key}={value}", f"{key}: no such key - {TYPED[key.rpartition('.')[2]]} (")
            for key, value in {
                "hardware.devices": "[0,1]", "hardware.gpus": "0,1", "trainer.devices": "2", "data.pin_memory": "true",
                "data.persistent_workers": "true", "data.batch_size": "64", "trainer.empty_cache": "true",
            }.items()
        ),
        ("+data.pin_memory=true", f"data.pin_memory: lab.datasets.synthetic.Synthetic takes no 'pin_memory' - {TYPED['pin_memory']} ("),
        ("hardware.device=cuda:1", f"hardware.device: no option 'cuda:1' - did you mean cuda? (options: auto, cpu, cuda, mps); {WHICH_GPUS}"),
        ("profiler=advanced", "profiler=advanced: no such option - Python's own profiler shows functions: ./run python -m cProfile"),
    ],
)  # fmt: skip
def test_a_word_of_other_frameworks_is_answered(call: Call, typed: str, line: str) -> None:
    status, shown = call("data=synthetic", typed)
    assert (status, len(shown)) == (2, 1)
    assert shown[0].startswith(f"error: {line}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["modle=mlp"], f"error: modle: no such key - did you mean model? {GROUPS}"),
        (["lr=3"], f"error: lr: no such key - did you mean optim.lr? {GROUPS}"),
        (["batch_size=3"], "error: batch_size: no such key - trainer.global_batch_size is the number of samples"),
        (["optim/shedule=cosine"], "error: optim/shedule: no such group - did you mean optim/schedule? (groups: "),
    ],
)
def test_one_line_that_lists_all_groups(call: Call, arguments: list[str], line: str) -> None:
    status, shown = call(*arguments)
    assert status == 2
    assert len(shown) == 1
    assert shown[0].startswith(line)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# @package _global_\nmonitr: 3", f"monitr: no such key - did you mean monitor? {ROOT_HAS}"),
        ("# @package _global_\nmax_steps: 3", f"max_steps: no such key - did you mean trainer.max_steps? {ROOT_HAS}"),
        ("# @package _global_\ntrainer: {max_step: 3}", f"trainer.max_step: no such key - did you mean trainer.max_steps? {TRAINER_HAS}"),
        ("# @package _global_\nmodel: {hiden: 3}", "model.hiden: lab.models.mlp.MLP takes no 'hiden' - did you mean 'hidden'? (accepts: input_shape, num_outputs, hidden, dropout)"),
        ("# @package _global_\ntrainer: 3", "{file}: trainer: 3 - a group is chosen in the list of defaults, `defaults: - override /trainer: one of ddp, dp, fsdp, single`"),
        ("# @package _global_\ndefaults: [{override /model: mpl}]", f"model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
        ("defaults: [{override /model: mlp}]", "experiment/new.yaml: must begin with '# @package _global_' to override the whole config"),
        ("- a", "{file}: holds a list; a config holds keys and values, trainer: {{max_steps: 3}}"),
        ("# @package _global_\n- a", "{file}: holds a list; a config holds keys and values, trainer: {{max_steps: 3}}"),
        ("3", "{file}: holds the single value 3; a config holds keys and values, trainer: {{max_steps: 3}}"),
        ("# @package _global_\ndefaults: 3", "Invalid defaults list in 'experiment/new', defaults must be a list (got int)"),
        ("# @package _global_\ndefaults: [digts]", "experiment=digts: no such option - did you mean experiment=digits? (experiment has: {options}) (named in experiment/new.yaml)"),
        ("# @package _global_\ndefaults: [/model: mlp]", "{file}: model: chosen already - write `override /model: mlp` in its list of defaults"),
        ("# @package _global_\ndefaults: [/callback: curves]", "{file}: callback: chosen already - write `override /callback: curves` in its list of defaults"),
        ("# @package _global_\nmodel: {hidden: ['${seed']}", "{file}: model.hidden.0: ${{seed - no valid interpolation; another key's value is ${{group.key}}"),
        ("seed: 3", "experiment: its yaml must begin with '# @package _global_' to override the whole config"),
    ],
)  # fmt: skip
def test_one_line_for_a_mistake_inside_a_yaml(call: Call, tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "new.yaml").write_text(text + "\n")
    options = ", ".join(sorted(["new", *(path.stem for path in (PROGRAM.root / "conf" / "experiment").glob("*.yaml"))]))
    line = line.format(file=tmp_path / "mine" / "experiment" / "new.yaml", options=options) if "{" in line else line
    assert call("--config-dir", f"{tmp_path}/mine", "data=synthetic", "experiment=new") == (2, [f"error: {line}"])


def test_an_option_that_is_a_list_or_no_text_is_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "new.yaml"
    for content, line in (
        (b"- a\n", "holds a list; a config holds keys and values, trainer: {max_steps: 3}"),
        (b"a: \xff\n", "not valid yaml: byte 3 is not UTF-8 - save it as UTF-8"),
    ):
        file.write_bytes(content)
        assert call("--config-dir", str(tmp_path), "data=synthetic", "model=new") == (2, [f"error: {file}: {line}"])


def test_a_run_folder_that_cannot_be_made_is_named_with_its_key(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = f"{tmp_path}/file/a: Not a directory - no run can be written there; choose another folder, hydra.run.dir=..."
    assert call("data=synthetic", f"hydra.run.dir={tmp_path}/file/a") == (2, [f"error: {said}"])


@pytest.mark.slow
def test_recipes_that_include_each_other_are_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    for name, other in (("a", "b"), ("b", "/experiment/a")):
        text = f"# @package _global_\ndefaults: [{other}, {{override /model: resnet}}]\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    status, (line,) = call("--config-dir", str(tmp_path), "experiment=a")
    assert status == 2
    assert line.endswith("experiment=a: the defaults of a yaml lead back to itself - take one of them out")


@pytest.mark.parametrize(
    ("text", "number", "reason"),
    [("seed: [3\ntrainer: 3\n", 2, "did not find|expected"), ("seed: 3\nseed: 4\n", 2, "found duplicate key seed")],
)
def test_broken_yaml_names_file_and_line(call: Call, tmp_path: Path, text: str, number: int, reason: str) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "new.yaml").write_text(text)
    status, shown = call("--config-dir", f"{tmp_path}/mine", "experiment=new")
    assert status == 2
    assert len(shown) == 1
    assert shown[0].startswith(f"error: {tmp_path}/mine/experiment/new.yaml, line {number}: not valid yaml: ")
    assert any(part in shown[0] for part in reason.split("|"))


@pytest.mark.parametrize(
    ("files", "arguments", "line"),
    [
        ({"experiment/a.yaml": b"# @package _global_\ntrainer.max_steps: 5\n"}, "experiment=a", "{0}/experiment/a.yaml: trainer.max_steps: yaml takes dots as a part of the name - write trainer: {{max_steps: 5}}"),
        ({"experiment/a.yaml": b"# @package _global_\ntrainer: {ddp.static_graph: true}\n"}, "experiment=a", "{0}/experiment/a.yaml: ddp.static_graph: yaml takes dots as a part of the name - write ddp: {{static_graph: true}}"),
        ({"optim/a.yaml": b"schedule.final: 0.1\n"}, "optim=a", "{0}/optim/a.yaml: schedule.final: yaml takes dots as a part of the name - write schedule: {{final: 0.1}}"),
        ({"experiment/a.yaml": "\ufeff# @package _global_\nseed: 5\n".encode()}, "experiment=a", "{0}/experiment/a.yaml: begins with a byte order mark, so Hydra does not see its '# @package' - save it as UTF-8 without one (BOM)"),
        ({"model/a.yaml": b"\xff", "model/b.yaml": b"\xfe"}, "model=b", "{0}/model/b.yaml: not valid yaml: byte 0 is not UTF-8 - save it as UTF-8"),
        ({"model/a.yml": b"_target_: x\n"}, "model=a", "model=a: no such option - rename {0}/model/a.yml to a.yaml, the only ending that Hydra reads"),
    ],
)  # fmt: skip
def test_a_yaml_that_hydra_misreads_is_named(
    call: Call, tmp_path: Path, files: dict[str, bytes], arguments: str, line: str
) -> None:
    for name, content in files.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_bytes(content)
    status, shown = call("--config-dir", f"{tmp_path}/mine", arguments)
    assert (status, len(shown)) == (2, 1)
    assert shown[0].startswith("error: " + line.format(tmp_path / "mine"))


def test_a_number_is_a_name_and_null_takes_a_part_out(call: Call, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndata: {transforms: {to_float: null}}\ntask: {metrics: {accuracy: null}}\n"
    (tmp_path / "mine" / "experiment" / "a.yaml").write_text(text)
    assert call("--config-dir", f"{tmp_path}/mine", "name=2024", "experiment=a") == (0, [])
    assert call("data.transforms=null", "task.metrics=null", "+callback.mine=null") == (0, [])
    for cfg, *_ in started:
        assert cfg.data.transforms == cfg.task.metrics == cfg.callback == {}


@pytest.mark.slow
def test_a_good_config_starts_once_and_resolved(call: Call, started: list[Any], tmp_path: Path) -> None:
    """A run that fails is status 1."""
    assert call("data=synthetic", "seed=66", "resume=auto") == (
        1, [f"failed: RuntimeError: out of luck ({tmp_path}/runs/a)"]
    )  # fmt: skip
    [(cfg, run_dir, overrides)] = started
    assert list(cfg.model.input_shape) == list(cfg.data.shape)
    assert run_dir == tmp_path / "runs" / "a"
    assert {"data=synthetic", "seed=66"} <= set(overrides)


@pytest.mark.slow
def test_an_error_of_the_programme_keeps_its_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(sys.modules, "lab.start", SimpleNamespace(start=broken))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        call("data=synthetic")


@pytest.mark.slow
def test_from_the_shell_one_line_and_status_2(tmp_path: Path) -> None:
    """The plain command, in another folder: no traceback, nothing on stdout, nothing written."""
    command = [
        sys.executable,
        str(PROGRAM.root / "src" / "train.py"),
        f"hydra.run.dir={tmp_path}/a",
        "trainer.keep_bset=1",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    line = f"error: trainer.keep_bset: no such key - did you mean trainer.keep_best? {TRAINER_HAS}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m", "hydra/sweeper=basic", "hydra/launcher=basic")])
def test_what_is_changed_for_hydra_does_not_reach_a_job(
    call: Call, monkeypatch: pytest.MonkeyPatch, sweep: tuple[str, ...]
) -> None:
    """User code parses command lines too, and starts processes."""
    seen: list[Any] = []
    before = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.error

    def start(*rest: Any, **more: Any) -> None:
        parser = argparse.ArgumentParser()
        parser.add_subparsers(dest="verb").add_parser("go").add_argument("--fast", action="store_true")
        seen.append((parser.parse_args(["go", "--fast"]).fast, os.environ.get("HYDRA_FULL_ERROR"), sys.argv[-1]))
        with pytest.raises(SystemExit):
            parser.parse_args(["--slow"])

    monkeypatch.setitem(sys.modules, "lab.start", SimpleNamespace(start=start))
    status, lines = call(*sweep, "seed=3", "debug=nan")  # Hydra itself is handed debug='nan'
    assert (status, lines[:1]) == (0, []) or "usage" in lines[0], lines
    assert seen == [(True, None, "debug=nan")]
    assert (argparse.ArgumentParser.parse_args, argparse.ArgumentParser.error) == before
    assert "HYDRA_FULL_ERROR" not in os.environ


@pytest.mark.slow
def test_what_is_changed_for_hydra_does_not_reach_a_sweep(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def sweep(*rest: Any) -> None:
        seen.append((os.environ.get("HYDRA_FULL_ERROR"), argparse.ArgumentParser.parse_args.__module__))

    monkeypatch.setattr("multirun.drive.sweep", sweep)
    assert call("-m", "seed=3,4") == (0, [])
    assert seen == [(None, "argparse")]
