"""What a user sees after a mistake: one line that names key, value and remedy, exit status 2, and nothing left behind.

Two tables of rows (a command, its line): mistakes that composing finds, in this process, and those that only a started
run can find. In both TMP is the test's folder and [...] any text.
"""

# ruff: noqa: E501 - the lines that users see, word for word
from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT, TRAIN, needs
from gpt import NEEDS_GPT

import lab.models
import train
from lab.config import check
from lab.options import TrainerConfig
from lab.program import PROGRAM
from samebits.errors import ConfigError, RunFailed
from samebits.extras import missing
from samebits.schema import TYPED, WHICH_GPUS
from samebits.targets import constructing
from samebits.testing import compose, start_run
from samebits.testing.processes import called, importing, processes_with

Call = Callable[..., tuple[int, list[str]]]


def options(group: str, *more: str) -> str:
    return ", ".join(sorted([*more, *(path.stem for path in (PROGRAM.conf / group).glob("*.yaml"))]))


ROOT_HAS = "(the config has: process, hardware, logger, profiler, name, seed, rules, resume, sweep, monitor, pruning, quantization, data, model, task, optim, trainer, callback)"
GROUPS = "(the config has: data, model, task, optim, trainer, hardware, logger, callback, profiler, name, seed, rules, resume, sweep, monitor[...])"
MODEL_HAS = f"(model has: {options('model')})"
TRAINER_HAS = f"(trainer has: {', '.join(f.name for f in fields(TrainerConfig))})"
SYNTAX = "not a valid override - write key=value, a list as key=[1,2], and text with special characters in two kinds of quotes, 'key=\"a,b\"'"
CHOSEN = "choose an option of a group in the defaults list, `defaults: - override"
SWEPT = "sweep: {fail_fast: true}\nhydra: {sweeper: {params: {seed: '1,2'}}}"
OF_A_MULTIRUN = "only for a multirun, has no effect here - add -m, or remove it"
GAN = needs("conf/task/gan.yaml")
NEEDS_OPTUNA = needs("conf/hydra/sweeper/optuna.yaml")
SEARCHES = [NEEDS_OPTUNA, pytest.mark.skipif(find_spec("optuna") is None, reason="needs the extra `optuna`")]
LR = "'optim.lr=tag(log,interval(1e-4,1e-1))'"


def row(command: str, line: str, marks: Any = (), files: Mapping[str, str | bytes] | None = None) -> Any:
    """A case of pytest.mark.parametrize. files: {path in the test's folder: its content}, which are there before."""
    texts = [text if isinstance(text, str) else text.decode("latin-1") for text in (files or {}).values()]
    shown = [text.removeprefix("# @package _global_\n") for text in texts]
    words = " ".join([command.removeprefix("--config-dir TMP "), *shown]).split()
    return pytest.param(command, line, files or {}, marks=marks, id=" ".join(words))


def in_yaml(name: str, content: str | bytes, line: str, more: str = "") -> Any:
    """A row about the option `name`, such as experiment/new, in a folder of the user's own; FILE in `line`: its path."""
    group, _, option = name.rpartition("/")
    text = content if isinstance(content, bytes) else f"{content}\n"
    line = line.replace("FILE", f"TMP/{name}.yaml")
    return row(f"--config-dir TMP {group}={option} {more}".strip(), line, files={f"{name}.yaml": text})


def experiment(content: str, line: str, more: str = "") -> Any:
    return in_yaml("experiment/new", f"# @package _global_\n{content}", line, more)


# -- what composing finds ----------------------------------------------------------------------------------------------

KEYS = [
    row("optim.lrr=1", "optim.lrr: no such key - did you mean optim.lr? (optim has: decay_norms_and_biases, lr_factors, objectives, schedule, lr, betas, weight_decay)"),
    row("model.hiden.x=3", "model.hiden: no such key - did you mean model.hidden? (model has: input_shape, num_outputs, hidden, dropout)"),
    row("optim.lr.x=3", "optim.lr.x: optim.lr is a value, not a group"),
    row("data=/tmp/mine/a.h5", "data=/tmp/mine/a.h5: is a path, not an option - give data.path=/tmp/mine/a.h5 (data has: [...])"),
    row("data=mine/a.h5", "data=mine/a.h5: is a path, not an option - give data.path=mine/a.h5 (data has: [...])"),
    row("model=./a.pt", "model=./a.pt: is a path, not an option (model has: [...])"),
    row("optim=AdamW", "optim=AdamW: no such option - did you mean optim=adamw? (optim has: [...])"),
    row("hydra.run.dri=x", "hydra.run.dri: no such key - did you mean hydra.run.dir? (hydra.run has: dir)"),
    row("modle=mlp", f"modle: no such key - did you mean model? {GROUPS}"),
    row("lr=3", f"lr: no such key - did you mean optim.lr? {GROUPS}"),
    row("batch_size=3", f"batch_size: no such key - trainer.global_batch_size is the number of samples of a step, over all processes {GROUPS}"),
    row("optim/shedule=cosine", "optim/shedule: no such group - did you mean optim/schedule? (groups: callback, data, data/order, [...])"),
    row("trainer.seed=3", f"trainer.seed: no such key - did you mean seed or data.seed? {TRAINER_HAS}"),
    row("+trainer.model=mlp", f"trainer.model: no such key - did you mean model? {TRAINER_HAS}"),
    row("data=h5 optim.seed=3", "optim.seed: no such key - did you mean seed? (optim has: [...]"),
    row("trainer.max_time=30m", f"trainer.max_time: no such key - it was renamed to process.max_time {TRAINER_HAS}"),
    row("trainer.gradient_clip_val=1", f"trainer.gradient_clip_val: no such key - did you mean trainer.clip_norm? {TRAINER_HAS}"),
    row("+trainer.limit_val_batches=3", f"trainer.limit_val_batches: no such key - did you mean trainer.max_eval_batches? {TRAINER_HAS}"),
    row("+trainer.precision=16", f"trainer.precision: no such key - did you mean hardware.precision? {TRAINER_HAS}"),
    row("+trainer.max_step=3", f"trainer.max_step: no such key - did you mean trainer.max_steps? {TRAINER_HAS}"),
    row("+model.hiden=3", "model.hiden: lab.models.mlp.MLP does not accept 'hiden' - did you mean 'hidden'? (accepts: input_shape, num_outputs, hidden, dropout)"),
    row("trainer.fsdp.wrap=auto", "trainer.fsdp.wrap: trainer.fsdp is null - choose trainer=fsdp"),
    row("data=h5 data.transforms.flip.dim=1", "data.transforms.flip: no such key - choose data/transforms=[to_float,flip] (data.transforms has: to_float)"),
    row("optim.eps=1e-6", "optim.eps: no such key (optim has: decay_norms_and_biases, lr_factors, objectives, schedule, lr, betas, weight_decay) - add a new key with a plus, +optim.eps=1e-6, if torch.optim.AdamW accepts it"),
    row("+optim.lr=3", "optim.lr: already exists, so + cannot add it - write optim.lr=..., without the +"),
    row("~trainer.max_steps", "~trainer.max_steps: this key cannot be deleted; its value is already null"),
    # words of other frameworks
    *(
        row(f"{key}={value}", f"{key.lstrip('+')}: no such key - {TYPED[key.rpartition('.')[2]]} ([...])")
        for key, value in {
            "hardware.devices": "[0,1]", "hardware.gpus": "0,1", "trainer.devices": "2", "data.pin_memory": "true",
            "data.persistent_workers": "true", "data.batch_size": "64", "trainer.empty_cache": "true",
            "+trainer.fast_dev_run": "true",
        }.items()
    ),
    row("+data.pin_memory=true", f"data.pin_memory: lab.datasets.synthetic.Synthetic does not accept 'pin_memory' - {TYPED['pin_memory']} ([...])"),
    row("hardware.device=cuda:1", f"hardware.device: no option 'cuda:1' - did you mean cuda? (options: auto, cpu, cuda, mps); {WHICH_GPUS}"),
    row("profiler=advanced", "profiler=advanced: no such option - to profile functions, use Python's profiler: ./run python -m cProfile -s cumtime src/train.py ... (profiler has: none, python, simple, torch)"),
]  # fmt: skip
OPTIONS = [
    row("model=mpl", f"model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
    row("-m model=mlp,mpl", f"job 1 (model=mpl): model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
    row("model=mlp,resnet", "model=mlp,resnet: several values are a sweep - add -m; a list is written model=[mlp,resnet]"),
    row("+model=mlp", "model: is already chosen, so + cannot add it - write model=..., without the +"),
    row("+callback=curves", "callback: is already chosen, so + cannot add it - write callback=..., without the +"),
    row("hardware.device=gpu", f"hardware.device: no option 'gpu' - did you mean cuda? (options: auto, cpu, cuda, mps); {WHICH_GPUS}"),
    row("hardware=cuda", "hardware=cuda: no such option - did you mean hardware=gpu? (hardware has: auto, cpu, gpu, mps)"),
    row("hardware.precision=fp8", "hardware.precision: no option 'fp8' (options: auto, fp32, tf32, bf16, bf16-weights, fp16)"),
    *([] if find_spec("ray") else [row("-m hydra/launcher=ray seed=1,2", missing("hydra/launcher=ray", "ray", "ray"))]),
    row("-m hydra.sweeper._target_=hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper seed=1,2", "hydra.sweeper._target_: hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper: no such Hydra plugin is installed - this project has hydra/sweeper=optuna, hydra/launcher=pool and others"),
    row("-m hydra/launcher=slurm +hydra.launcher.additional_parameters.array=0-3 seed=1,2", "hydra.launcher.additional_parameters: array=0-3 - remove it, because the launcher sets this option of sbatch"),
    row("-m hydra/launcher=slurm hydra.launcher.detach=yes seed=1,2", "hydra.launcher.detach: expected true or false, got 'yes'"),
    row("-m hydra/launcher=pool hydra.launcher.detach=true seed=1,2", "hydra.launcher.detach: no such key (hydra.launcher has: jobs_at_once, gpus_per_job)"),
    row("-cn wandb_sweep", f"--config-name wandb_sweep: {PROGRAM.root}/conf/wandb_sweep.yaml is not the config of a run - start it with `defaults: [train, _self_]`"),
]  # fmt: skip
SYNTAXES = [
    row("a=[1", f"a=[1: {SYNTAX}"),
    row("seed", f"seed: {SYNTAX}"),
    row("seed=1 optim.lr= 0.1", "optim.lr= 0.1: contains a space - write optim.lr=0.1"),
    row("optim.lr =0.1", "optim.lr =0.1: contains a space - write optim.lr=0.1"),
    row("optim.lr = 0.1", "optim.lr = 0.1: contains a space - write optim.lr=0.1"),
    row("data.path=/my data/a.h5 seed=1", "data.path=/my data/a.h5: contains a space - quote it, 'data.path=/my data/a.h5'"),
    row("data.path=/my/a.h5 trainer.max_steps", f"trainer.max_steps: {SYNTAX}"),  # not a part of the path
    row("-c", "argument --cfg/-c: expected one argument - see --help"),
    row("~data", "data: is missing - set data=..."),
    row("~hydra.run.dir", "~hydra.run.dir: this key cannot be deleted - set another value, or remove it"),
    row("name= seed=1 a=[1", f"a=[1: {SYNTAX}"),
    row(f"a=[{'b' * 300}", f"a=[{'b' * 300}: {SYNTAX}"),  # longer than the name of a file
    row("name=größe", "name=größe: contains a letter that is not ASCII - quote the text, 'name=\"größe\"'"),
    row("hydra.run.dir=öü/run", "hydra.run.dir=öü/run: contains a letter that is not ASCII - quote the text, 'hydra.run.dir=\"öü/run\"'"),
    row("-m name=ö,ü", "name=ö,ü: contains a letter that is not ASCII - quote the text, 'name=\"ö\",\"ü\"'"),
    row("TMP/run", "TMP/run: is a folder, not key=value - to resume a run, give resume=TMP/run", files={"run/config.yaml": ""}),
    row("optim.lr=1e\N{MINUS SIGN}3", "optim.lr=1e\N{MINUS SIGN}3: '\N{MINUS SIGN}' is MINUS SIGN - type the sign of the keyboard, or quote the text, 'key=\"...\"'"),
    row("--package optim", "--package optim: has no effect without --cfg job - add it, or remove --package"),
    row("--lr=3", "unrecognized arguments: --lr=3 - write values as key=value, without dashes; see --help"),
    row("optim.schedule=linear", "optim.schedule=linear: a group inside a group has a slash - write optim/schedule=linear"),
    row("-m data.order=first,shuffled", "data.order=first,shuffled: a group inside a group has a slash - write data/order=first,shuffled"),
    row("data.path=~/a.h5", "data.path=~/a.h5: the shell does not expand this ~ - write data.path=$HOME/a.h5"),
    row("--config-path TMP", "Cannot find primary config 'train'. Check that it's in your config search path - to add a folder to conf/, use --config-dir"),
    *(row(f"'{plus}model.hidden={{a: 1}}'", "model.hidden: expected a list, got {a: 1}") for plus in ("", "++")),
    *(
        row(f"{more}hydra.searchpath=[{scheme}TMP/none]", "hydra.searchpath: TMP/none: no such folder or package with yamls")
        for scheme, more in (("file://", ""), ("", "-m seed=1,2 "), ("", "--cfg job "))
    ),
    row("data.transforms=[flip]", "data.transforms: expected a mapping, got [flip] - to choose options, write data/transforms=[flip]"),
    row("hydra.job.num=abc", "hydra.job.num=abc: Value 'abc' of type 'str' could not be converted to Integer"),
    row("optim.lr='${optm.lr}'", "optim.lr: there is no key optm.lr, to which ${optm.lr} refers"),
    row("optim.lr='${oc.env:NO_SUCH_VARIABLE}'", "optim.lr: Environment variable 'NO_SUCH_VARIABLE' not found"),
    row("'trainer.clip_norm=choice(null,1.0)'", "trainer.clip_norm=choice(null,1.0): Hydra's choice() does not accept null - give the values without choice(), null,1.0"),
    row("-m hydra.sweeper.params=3", 'hydra.sweeper.params: expected a mapping, such as {seed: "0,1,2"}, got 3'),
    row(f"--experimental-rerun {PROGRAM.root}/conf/train.yaml", "--experimental-rerun: not supported, because it unpickles a file - to resume a run, give resume=PATH"),
]  # fmt: skip
NO_EFFECT = [
    *(
        row(f"'{text}'", f"{text}: {OF_A_MULTIRUN}")
        for text in ("sweep.retry_failed=true", "hydra/launcher=slurm", "hydra/launcher=pool", "hydra.sweeper.params={seed: 1}", "hydra.sweep.dir=x")
    ),
    row("hydra/sweeper=optuna", f"hydra/sweeper=optuna: {OF_A_MULTIRUN}", NEEDS_OPTUNA),
    row("hydra/sweeper=optuna hydra.sweeper.n_trials=3", f"hydra/sweeper=optuna: {OF_A_MULTIRUN}", NEEDS_OPTUNA),
    *(
        row(f"{shows} {resume}", f"{shows.partition(' ')[0]}: shows the config of a new run, not of the run to resume - read its config.yaml, or remove {resume}")
        for shows in ("--cfg job", "--cfg=job", "-c job", "--help", "-h", "--info")
        for resume in ("resume=outputs/run", "resume=auto")
    ),
    *(row(f"{more}hydra.job.chdir=true", "hydra.job.chdir=true: a run does not change the working directory - remove it") for more in ("", "-m seed=1,2 ")),
    row("hydra.job.name=x", "hydra.job.name=x: has no effect - set name=..., the folder of the run below outputs/, or remove it"),
    row("-m hydra.job.name=x seed=1,2", "hydra.job.name=x: has no effect - [...]"),
    experiment(SWEPT, "hydra.sweeper.params: in a yaml, only for a multirun - add -m, or hydra.mode=RUN for a run without them"),
    experiment("defaults: [{override /model: mlp}, {override /optim: sgd}, {override /model: resnet}]", "FILE: `override /model` is twice in its defaults list, so the second has no effect - remove one"),
    experiment("task: {metrics: {}}", "FILE: task.metrics: {}: has no effect, because Hydra keeps the entries of task.metrics - write {accuracy: null}"),
    experiment("task: {metrics: {}}", "job 0 (data=synthetic experiment=new): FILE: task.metrics: {}: has no effect, because [...]", "-m"),
    row("data.split_by=y", "data.split_by=y: has no effect without data.split_ratio - add data.split_ratio=80/10/10, or remove it"),
    row("-m data.split_by=y", "job 0 (data=synthetic data.split_by=y): data.split_by=y: has no effect without data.split_ratio - add data.split_ratio=80/10/10, or remove it"),
    row("-m sweep.job=x", "sweep.job=x: is for launchers, which start one job - remove it, or -m"),
    *(
        row(f"-m optim.lr={one} optim.lr={other}", f"optim.lr: is given twice, {one} and {other}, so the first has no effect - write optim.lr={one},{other}, or remove one")
        for one, other in (("1e-3", "1e-2"), ("1,2", "1"))
    ),
    row("+callback.a=_target_:A +callback.a=b:2", "callback.a: is given twice, _target_:A and b:2 - remove one; write a mapping in quotes, '+callback.a={...}', because a shell splits it"),
    *(
        row(f"data=h5 {text}", f"{text}: has no effect without data.folds; add data.folds=5, or remove it")
        for text in ("data.fold=0", "data.fold_repeat=1", "data.stratify_by=label")
    ),
    row("data=h5 data.folds=5", "data.folds=5: has no effect without data.fold, the fold to validate on; set data.fold=0, or any number below 5"),
    *(
        row(f"resume=auto {where}", "resume=auto: every run gets a new directory, so there is nothing to resume - add hydra.run.dir=outputs/NAME, or give resume=RUN")
        for where in ("hydra.run.dir='/tmp/engine-${now:%S}'", "name=x hydra.run.dir='${root:}/outputs/${name}/${suffix:}'")
    ),
]  # fmt: skip
OF_THE_COMMAND = [
    row("-m seed=0 data=h5 data.folds=3 data.fold=2,3 data.splits.val=null", "job 1 (data.fold=3): data.fold=3: must be from 0 to 2, because data.folds=3"),
    row("data=synthetic data.folds=5", "data.folds: no such key[...]"),
    row("task=mae", "task.decoder.num_inputs: there is no key model.width, to which ${model.width} refers - conf/task/mae.yaml begins with a command that trains it: ./run train task=mae model=vit hydra.run.dir=outputs/mae", needs("conf/task/mae.yaml")),
    row("task=gan optim.objectives.critic.lr=1e-4", "optim.objectives.critic: no such key (optim.objectives is empty) - add a new key with a plus, +optim.objectives.critic.lr=1e-4", GAN),
    row("task=gan +optim@optim.objectives.critic=sgd optim.objectives.critic.nesterof=true", "optim.objectives.critic.nesterof: no such key - did you mean optim.objectives.critic.nesterov? (optim.objectives.critic has: [...]", GAN),
    row("task=gan +optim@optim.objectives.critic=sgdd", "optim=sgdd: no such option - did you mean optim=sgd? (optim has: [...]", GAN),
    row("-m 'optim.lr=interval(0,1)'", "optim.lr=interval(0,1): an interval has infinitely many values; list some (1e-3,3e-3), or search it with hydra/sweeper=optuna"),
    row("-m seed=1,2 resume=x", "resume: only for single runs - remove it; to resume a sweep, give sweep=NAME again"),
    row("-m seed=1,2 sweep=../x", "sweep=../x: must be a folder name of letters, digits and . _ + -"),
    row("-m seed=1,2 hydra.sweep.subdir=x", "hydra.sweep.subdir=x: has no effect, as a job's directory is named by its values - remove it; hydra.sweep.dir sets the sweep's directory"),
    row("-m seed=1,2 sweep.fail_fast=true,false", "sweep.fail_fast=true,false: cannot be swept, give one value (quote text that contains commas)"),
    row("-m seed=1,2 optim.lr=1,2,3 sweep.zip=seed,optim.lr", "sweep.zip: seed has 2 values (1, 2), but optim.lr has 3 values (1, 2, 3) - give both the same number of values"),
    row("-m hydra/sweeper=optuna hydra/launcher=pool hydra.launcher.jobs_at_once=4 'seed=range(3)'", "hydra.launcher.jobs_at_once=4: has no effect on a search - set hydra.sweeper.n_jobs, which is 1", SEARCHES),
    row("-m seed=1,2 optim.lr=1,2 sweep.zip=seed,optim.lr hydra/sweeper=optuna", "sweep.zip: only for a sweep over all combinations, has no effect on a search - remove it, or write an experiment for each pair and search experiment=choice(a,b)", SEARCHES),
    row("seed=1 sweep=lr", "sweep=lr: only for a multirun - add -m"),
    row("-m sweep.retyr_failed=true", "sweep.retyr_failed: no such key - did you mean sweep.retry_failed? (sweep has: name, retry_failed, fail_fast, zip, job)"),
    row("-m seed=1,2 sweep.fail_fast=3", "sweep.fail_fast: expected true or false, got 3"),
    row("-m seed=0,1,-7", "job 2 (seed=-7): seed: must be >= 0, got -7"),
    row("-m seed=1 hydra/launcher=pool hydra.launcher.jobs_at_once=0", "hydra.launcher.jobs_at_once: must be >= 1, got 0"),
    # though a swept value was to come from the file
    row("-m data=tokens data.num_outputs=11,12", "job 0 (data.num_outputs=11): data.path: is missing (???) - set data.path=...", needs("conf/data/tokens.yaml")),
    *(
        row(f"-m hydra/sweeper=optuna {words}", line, SEARCHES)
        for words, line in {
            f"{LR} 'hydra.sweeper.objectives={{val/acuracy: max}}'": "hydra.sweeper.objectives: 'val/acuracy' is not in result.json - did you mean val/accuracy? (it contains: [...])",
            f"{LR} hydra.sweeper.n_trial=3": "hydra.sweeper.n_trial: no such key - did you mean hydra.sweeper.n_trials? (hydra.sweeper has: [...])",
            "'model.hiden=choice([1],[2])'": "job 0 (model.hiden=[1]): model.hiden: no such key - did you mean model.hidden? (model has: [...])",
            "trainer.max_steps=5": "hydra/sweeper=optuna: nothing to search - give a key an interval, a range or a choice, 'KEY=tag(log,interval(1e-4,1e-1))'",
            f"{LR} data=h5 data.folds=3 'data.fold=choice(0,1,2)' data.splits.val=null": "data.fold=choice(0,1,2): a search would take the fold for a hyperparameter - search with one fold, then sweep the folds of the best configurations",
        }.items()
    ),
    row("hydra.run.dir=", "hydra.run.dir: is empty - set a folder, hydra.run.dir=..., or remove it to use a folder below outputs/"),
    row("-m hydra.sweep.dir=null", "hydra.sweep.dir: is empty - set a folder, hydra.sweep.dir=..., or remove it to use a folder below outputs/"),
    row("-m seed=0 data=h5 data.path=", "job 0 (seed=0 data=h5 data.path=): data.path: is empty - set data.path=..., or remove it"),
    row("hydra.run.dir=TMP/file/a", "TMP/file/a: Not a directory - the run directory cannot be created; set another one, hydra.run.dir=... (to resume: hydra.run.dir=RUN resume=auto)", files={"file": ""}),
]  # fmt: skip
# what the check of a composed config says
VALUES = [
    row("data=h5 data.folds=5 data.fold=5 data.splits.val=null", "data.fold=5: must be from 0 to 4, because data.folds=5"),
    row("data=h5 data.folds=5 data.fold=0", "data.splits.val={group: val, rows: null, index: null}: with data.folds=5 each fold is the validation split of a run; set data.splits.val=null, which leaves its rows unused, or, for a file without groups, data.split_ratio=80/0/20"),
    row("optim.lr=abc", "optim.lr: expected a number, got 'abc'"),
    row("'optim.lr={a: 1}'", "optim.lr: expected a number, got a mapping"),
    row("trainer.max_steps=abc", "trainer.max_steps: expected an integer or null, got 'abc'"),
    row("optim.lr=-0.1", "optim.lr: must be >= 0, got -0.1"),
    row("optim=sgd optim.momentum=1", "optim.momentum: must be < 1, got 1"),
    row("optim=lookahead optim.alpha=0", "optim.alpha: must be > 0, got 0", needs("conf/optim/lookahead.yaml")),
    row("trainer.max_epochs=1e308", "trainer.max_epochs: must be <= 1,000,000,000, got 1e+308"),
    row("hardware.num_threads=100000", "hardware.num_threads: must be <= 1,024, got 100000"),
    row("data.num_workers=100000", "data.num_workers: must be <= 1,024, got 100000"),
    *(row(f"name={name}", f"name: must be a folder below outputs/, got {said}") for name, said in (("null", "null"), ("../x", "'../x'"))),
    row("optim.lr=nan", "optim.lr: must be >= 0, got nan"),
    row("optim.lr=inf", "optim.lr: must be finite, got inf"),
    row("optim.weight_decay=-1", "optim.weight_decay: must be >= 0, got -1"),
    row("optim=lion optim.betas=[]", "optim.betas: expected a list of 2, each item a number >= 0 and <= 1, got []"),
    row("optim.betas=[0.9,1.5]", "optim.betas[1]: must be < 1, got 1.5"),
    row("optim.schedule.warmup=2", "optim.schedule.warmup: must be <= 1, got 2; a number is a share of all steps; write epochs as 10ep, steps as 500st"),
    row("optim.schedule.warmup=-0.1", "optim.schedule.warmup: must be >= 0, got -0.1; a number is a share of all steps; write epochs as 10ep, steps as 500st"),
    row("optim.schedule.final=-1", "optim.schedule.final: must be >= 0, got -1"),
    row("optim/schedule=step optim.schedule.milestones=[0.5,3]", "optim.schedule.milestones[1]: must be <= 1, got 3; a number is a share of all steps; write epochs as 10ep, steps as 500st"),
    row("optim/schedule=step optim.schedule.milestones=[10epochs]", "optim.schedule.milestones[0]: expected a share of all steps (0.5), epochs (10ep) or steps (500st), got '10epochs'"),
    row("optim/schedule=step optim.schedule.milestones=[true]", "optim.schedule.milestones: expected a list, [...]"),
    row("optim/schedule=step_every optim.schedule.every=30", "optim.schedule.every: must be <= 1, got 30; a number is a share of all steps; write epochs as 10ep, steps as 500st"),
    row("optim/schedule=step_every optim.schedule.every=true", "optim.schedule.every: expected a share of all steps (0.5), epochs (10ep) or steps (500st) or null, got true"),
    row("optim/schedule=step optim.schedule.gamma=-1", "optim.schedule.gamma: must be > 0, got -1"),
    row("model.dropout=1.5", "model.dropout: must be <= 1, got 1.5"),
    row("model.hidden=[8,0]", "model.hidden[1]: must be >= 1, got 0"),
    row("model.num_outputs=0", "model.num_outputs: must be >= 1, got 0"),
    row("model.input_shape=[3,0]", "model.input_shape[1]: must be >= 1, got 0"),
    row("model=resnet model.width=0", "model.width: must be >= 1, got 0"),
    row("model=gpt model.heads=0", "model.heads: must be >= 1, got 0", NEEDS_GPT),
    row("model=gpt model.layers=0", "model.layers: must be >= 1, got 0", NEEDS_GPT),
    row("task.criterion.label_smoothing=1.5", "task.criterion.label_smoothing: must be <= 1, got 1.5"),
    row("data.shape=[3,-1]", "data.input_shape: every size must be >= 1, got [3, -1]"),
    row("data.shape=[3,-1] data.input_shape=[3] model.input_shape=[3]", "data.shape[1]: must be >= 1, got -1"),
    row("data.size=0", "data.size: must be >= 1, got 0"),
    row("data.num_workers=-1", "data.num_workers: must be >= 0, got -1"),
    row("data/order=first data.order.count=0", "data.order.count: must be >= 1, got 0"),
    row("data/order=chunk_windows data.order.window=0", "data.order.window: must be >= 1, got 0"),
    row("data/order=chunk_windows data.order.chunk_rows=0", "data.order.chunk_rows: must be >= 1, got 0"),
    row("data/order=length_buckets +data.order.batch_size=0", "data.order.batch_size: must be >= 1, got 0"),
    row("data/order=length_buckets data.order.jitter=-0.1", "data.order.jitter: must be >= 0, got -0.1"),
    row("data/transforms=[crop] data.transforms.crop.size=[0,3]", "data.transforms.crop.size[0]: must be >= 1, got 0"),
    row("data/transforms=[crop] data.transforms.crop.padding=-4", "data.transforms.crop.padding: must be >= 0, got -4"),
    row("data/transforms=[crop] +data.transforms.crop.padding_mode=zeros", "data.transforms.crop.padding_mode: expected one of constant, reflect, got 'zeros'"),
    row("data/transforms=[cutout] data.transforms.cutout.size=0", "data.transforms.cutout.size: must be >= 1, got 0"),
    row("data/transforms=[erase] data.transforms.erase.probability=2", "data.transforms.erase.probability: must be <= 1, got 2"),
    row("data/transforms=[normalize] data.transforms.normalize.mean=[0.5] data.transforms.normalize.std=[0.0]", "data.transforms.normalize.std[0]: must be > 0, got 0.0"),
    row("data/transforms=[normalize] data.transforms.normalize.mean=aut", "data.transforms.normalize.mean: expected a list, each item a number or auto, got 'aut'"),
    row("data=synthetic +data/transforms@data.transforms=missing", "data.transforms.missing.columns: are found for data=h5 or data=parquet or data=huggingface only - give them, such as [0,3]"),
    row("data=h5 data.path=/tmp/rows.parquet", "data.path=/tmp/rows.parquet: is not HDF5 - use data=parquet data.path=/tmp/rows.parquet 'data.fields={x: COLUMN, y: COLUMN}' (docs/my_data.md)"),
    row("data=mixed +data@data.parts.a=h5 +data.weights.a=1 data.parts.a.path=/tmp/x.csv", "data.parts.a.path=/tmp/x.csv: is not HDF5 - use ./run h5 pack /tmp/x.csv /tmp/x.h5, then data.parts.a.path=/tmp/x.h5 (docs/pack_data.md)"),
    row("data=mixed +data@data.parts.a=h5 +data.weights.a=1 data.parts.a.path=/tmp/x.parquet", "data.parts.a.path=/tmp/x.parquet: is not HDF5 - use +data@data.parts.a=parquet data.parts.a.path=/tmp/x.parquet 'data.parts.a.fields={x: COLUMN, y: COLUMN}' (docs/my_data.md)"),
    row("data/transforms=[mixup] data.transforms.mixup.alpha=0", "data.transforms.mixup.alpha: must be > 0, got 0"),
    row("trainer.clip_norm=-1", "trainer.clip_norm: must be > 0, got -1.0"),
    row("trainer.ema_decay=1.5", "trainer.ema_decay: must be < 1, got 1.5"),
    row("hardware.micro_batch_size=0", "hardware.micro_batch_size: must be >= 1, got 0"),
    row("trainer.max_epochs=null", "trainer.max_steps, trainer.max_epochs: both are null - give one of them"),
    row("hardware.precision=tf32 hardware.device=cpu", "hardware.precision: tf32 is a mode of CUDA devices, not of cpu - use fp32, bf16 or fp16"),
    row("trainer.keep_best=-1", "trainer.keep_best: must be >= 0, got -1"),
    row("trainer.early_stop_patience=2 trainer.eval_every=null", "trainer.early_stop_patience: needs evaluations, but trainer.eval_every is null - set it"),
    row("monitor.key=val/acuracy", "monitor.key: no score 'val/acuracy' - did you mean val/accuracy? (scores: val/loss, val/accuracy)"),
    row("monitor.key=val/accuracy", "monitor.mode=min: val/accuracy is better if higher - set monitor.mode=max"),
    row("experiment=digits monitor.key=val/loss", "monitor.mode=max: val/loss is better if lower - set monitor.mode=min"),
    row("task=regression monitor.key=val/mae monitor.mode=max", "monitor.mode=max: val/mae is better if lower - set monitor.mode=min"),
    row("trainer.ddp.comm_hook=fp16", "trainer.ddp.comm_hook='fp16': has no effect with trainer=single, only with ddp - remove it"),
    row("trainer.ddp.static_graph=true", "trainer.ddp.static_graph=true: has no effect with trainer=single, only with ddp - remove it"),
    row("trainer.sync_batchnorm=true", "trainer.sync_batchnorm=true: has no effect with trainer=single, only with ddp - remove it"),
    row("trainer=ddp trainer.ddp.comm_hook=powersgd", "trainer.ddp.comm_hook: no option 'powersgd' (options: fp16, bf16)"),
    row("trainer=ddp trainer.ddp.bucket_cap_mb=0", "trainer.ddp.bucket_cap_mb: must be > 0, got 0.0"),
    row("trainer=ddp trainer.ddp.static_graph=true trainer.ddp.find_unused_parameters=true", "trainer.ddp.find_unused_parameters=true: set it to false, because trainer.ddp.static_graph=true finds them"),
    row("trainer=ddp trainer.sync_batchnorm=true hardware=cpu", "trainer.sync_batchnorm=true: torch's SyncBatchNorm requires CUDA, not cpu - set it to false"),
    row("trainer=ddp trainer.ddp.comm_hook=bf16 hardware=cpu", "trainer.ddp.comm_hook=bf16: torch supports it only on CUDA, not on cpu - use fp16"),
    row("process.straggler_threshold=0", "process.straggler_threshold: must be > 0, got 0.0"),
    row("trainer=fsdp hardware=mps", "trainer.strategy=fsdp: requires CUDA devices or CPU processes, not mps - use trainer=single"),
    row("trainer.strategy=fsdp", "trainer.strategy=fsdp: trainer.fsdp, the options of sharding, is null - use trainer=fsdp"),
    row("trainer=fsdp trainer.fsdp.reduce_dtype=fp8", "trainer.fsdp.reduce_dtype: no option 'fp8' (options: fp32, bf16)"),
    row("trainer=dp hardware.precision=bf16-weights", "hardware.precision=bf16-weights: trainer=dp makes its own copies - use hardware.precision=bf16"),
    row("trainer=fsdp hardware.precision=bf16-weights", "hardware.precision=bf16-weights: trainer=fsdp already gathers its blocks in bf16 - use hardware.precision=bf16"),
    row("hardware.activation_checkpointing=auto hardware.activation_checkpointing_keeps=matmuls hardware.precision=bf16-weights", "hardware.activation_checkpointing_keeps=matmuls: the recomputation needs the weights of the forward pass, but the bf16 copies are freed by then - use hardware.precision=bf16, or inputs"),
    row("hardware.activation_checkpointing_keeps=matmuls", "hardware.activation_checkpointing_keeps=matmuls: has no effect, because hardware.activation_checkpointing is empty - set it to auto"),
    row("hardware.attention=[flush]", "hardware.attention: no kernel 'flush' - use cudnn, flash, efficient, math, or []"),
    row("hardware.compile=fast", "hardware.compile: no option 'fast' - did you mean false? (options: true, false, default, blocks, reduce-overhead, max-autotune)"),
    row("trainer=dp hardware.device=cuda hardware.compile=default", "hardware.compile=default: trainer=dp copies the model at each step - use trainer=ddp"),
    row("trainer=fsdp hardware.compile=reduce-overhead", "hardware.compile=reduce-overhead: a CUDA graph cannot contain the collectives of trainer=fsdp - use hardware.compile=default"),
    row("hardware.deterministic=true hardware.compile=max-autotune", "hardware.compile=max-autotune: chooses kernels by their measured speed, so another run may round differently - use default with hardware.deterministic=true"),
    row("trainer=fsdp hardware.channels_last=true", "hardware.channels_last=true: trainer=fsdp requires torch's default memory format - set it to false"),
    row("trainer=dp hardware.num_procs=2", "hardware.num_procs: trainer=dp is one process, not 2 - use trainer=ddp"),
    row("trainer=dp hardware=cpu", "trainer=dp: splits a batch over several GPUs, not available on cpu - use trainer=ddp"),
    row("trainer=dp hardware.compile=true", "hardware.compile=true: trainer=dp copies the model at each step - use trainer=ddp"),
    row("seed=4294967296", "seed: must be < 4,294,967,296, got 4294967296"),
    row("trainer=ddp trainer.global_batch_size=65 hardware.num_procs=2", "trainer.global_batch_size=65: must be divisible by 2 processes (hardware.num_procs) - use 64"),
    row("optim.schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "optim.schedule._target_: torch.optim.lr_scheduler.ReduceLROnPlateau changes an optimizer itself; a schedule here is a class that is called with (step, total_steps) [...]"),
    row("task.criterion._target_=torch.nn.CrossEntropyLoss", "task.criterion._target_: torch.nn.CrossEntropyLoss takes (output, target), but it is called with (output, batch) [...]/squared_error.py"),
    row("+task.metrics.f1._target_=torch.nn.L1Loss", "task.metrics.f1._target_: torch.nn.L1Loss takes (output, target), but it is called with (output, batch) [...]/absolute_error.py"),
    row("model._target_=vision.models.resnet18", "model._target_: vision.models.resnet18 is not allowed ([...]) - add its library to `allowed` in src/lab/project.py"),
    row("optim._partial_=false", "optim._partial_: must be true - the run adds params itself"),
    row("data.order._partial_=false", "data.order._partial_: must be true - the run adds dataset and seed itself"),
]  # fmt: skip
FILES = [
    # of an unset variable of the shell; not the folder of the command
    row("resume=", "resume: is empty - set resume=..., or remove it"),
    row("data=h5 data.path=", "data.path: is empty - set data.path=..., or remove it"),
    row("data=h5 data.path=\"[a.h5,'']\"", "data.path: is empty - set data.path=..., or remove it"),
    *(row(f"{more} {key}=", f"{key}: is empty - set {key}=..., or remove it[...]", needs(f"conf/{more.split()[0].replace('=', '/')}.yaml")) for key, more in (
        ("data.path", "data=parquet"), ("task.weights", "task=finetune"), ("model.folder", "model=pretrained"), ("model.model.folder", "model=lora"),
        ("data.parts.old.path", "data=mixed +data@data.parts.old=h5 +data.weights.old=1"),
    )),
    row("data=h5 data.path=nope.h5", "data.path=TMP/nope.h5: no such file (the current directory is TMP)"),
    row("data=h5 data.path=[]", "data.path is empty: give a file, a pattern or a list of files"),
    row("data=h5 data.path=3", "data.path=3: expected a file, a pattern or a list of files"),
    row("data=h5 data.path=README.md", "data.path: TMP/README.md: cannot be opened (Unable to [...]): it is not an HDF5 file, or its beginning is damaged", files={"README.md": "# Read me"}),
    row("data=h5 data.splits=train", "data.splits=train: expected a mapping, such as {train: {group: train}, val: null}"),
    row("data=h5 data.splits=null", "data.splits=None: expected a mapping, such as {train: {group: train}, val: null}"),
    row("data=h5 data.splits.train=3", "data.splits.train=3: expected a mapping, such as {group: train}, or null"),
    row("data=h5 data.splits.train.rows=[a,b]", "data.splits.train.rows=['a', 'b']: must be two shares, such as [0, 0.9], or null"),
    row("data=h5 data.splits.train.group=null", "data.splits.train.group=null: expected the name of a group; for the file's root, write '/'"),
    row("data=h5 data.splits.train.group=nope", "data.splits.train.group: [...]digits.h5 has no group 'nope' [...]"),
    row("data=h5 data.fields=null", "data.fields=None: expected a mapping, such as {x: image, y: label}"),
    row("data=h5 data.fields.x=3", "data.fields.x: expected the name of a dataset, got 3"),
    *(row(f"data=h5 data.fields.{name}=nope", f"data.fields.{name}: [...]digits.h5: /train has no 'nope' [...]") for name in "xy"),
    row("data=parquet data.path=/nope", "data.path=/nope: no Parquet file found [...]", needs("conf/data/parquet.yaml")),
    row("data=image_folder data.path=/nope", "data.path: /nope does not exist", needs("conf/data/image_folder.yaml")),
    *(row(f"data={name} data.path=nope.h5", "data.path=TMP/nope.h5: no such file (the current directory is TMP)", needs(f"conf/data/{name}.yaml")) for name in ("tokens", "sequences")),
]  # fmt: skip
HOLDS = "a config contains keys and values, e.g. trainer: {max_steps: 3}"
OWN_DATA = "_target_: lab.datasets.synthetic.Synthetic\nsize: 64\nshape: [1, 8, 8]\nnum_classes: 10\nseed: 0\ninput_shape: [1, 8, 8]\nnum_outputs: 10"
YAMLS = [
    experiment("monitr: 3", f"monitr: no such key - did you mean monitor? {ROOT_HAS}"),
    experiment("max_steps: 3", f"max_steps: no such key - did you mean trainer.max_steps? {ROOT_HAS}"),
    experiment("trainer: {max_step: 3}", f"trainer.max_step: no such key - did you mean trainer.max_steps? {TRAINER_HAS}"),
    experiment("model: {hiden: 3}", "model.hiden: lab.models.mlp.MLP does not accept 'hiden' - did you mean 'hidden'? (accepts: input_shape, num_outputs, hidden, dropout)"),
    experiment("defaults: [{override /model: mpl}]", f"model=mpl: no such option - did you mean model=mlp? {MODEL_HAS}"),
    experiment("defaults: 3", "Invalid defaults list in 'experiment/new', defaults must be a list (got int)"),
    experiment("defaults: [digts]", f"experiment=digts: no such option - did you mean experiment=digits? (experiment has: {options('experiment', 'new')}) (named in experiment/new.yaml)"),
    experiment("defaults: [override model: mlp]", "experiment/model@model: no such group - begin it with a slash, `override /model: ...` (named in experiment/new.yaml)"),
    experiment("hydra: {launcher: pool}", f"FILE: hydra.launcher: pool - {CHOSEN} /hydra/launcher: pool`"),
    experiment("data: {split_by: y}", "data.split_by=y: has no effect without data.split_ratio - add data.split_ratio=80/10/10, or remove it"),
    in_yaml("optim/new", "defaults: [/optim_default@_here_]", "In 'optim/new': Could not load 'optim_default' - did you mean optim_defaults?"),
    in_yaml("model/mlp", "width: 3", f"FILE: has no effect, because {PROGRAM.root}/conf/model/mlp.yaml has the same name - rename one of them"),
    experiment("defaults: [/model: mlp]", "FILE: model: is already chosen - write `override /model: mlp` in its defaults list"),
    experiment("defaults: [/callback: curves]", "FILE: callback: is already chosen - write `override /callback: curves` in its defaults list"),
    experiment("model: {hidden: ['${seed']}", "FILE: model.hidden.0: ${seed - not a valid interpolation; refer to another key as ${group.key}"),
    experiment("trainer.max_steps: 5", "FILE: trainer.max_steps: in yaml a dot is part of the name - write trainer: {max_steps: 5}"),
    experiment("trainer: {ddp.static_graph: true}", "FILE: ddp.static_graph: in yaml a dot is part of the name - write ddp: {static_graph: true}"),
    in_yaml("optim/new", "schedule.final: 0.1", "FILE: schedule.final: in yaml a dot is part of the name - write schedule: {final: 0.1}"),
    in_yaml("experiment/new", "defaults: [{override /model: mlp}]", "experiment/new.yaml: must begin with '# @package _global_' to override the whole config"),
    in_yaml("experiment/new", "seed: 3", "experiment: its yaml must begin with '# @package _global_'"),
    in_yaml("experiment/new", "\ufeff# @package _global_\nseed: 5\n".encode(), "FILE: starts with a byte order mark (BOM), so Hydra ignores its '# @package' - save it as UTF-8 without BOM"),
    in_yaml("experiment/new", "seed: [3\ntrainer: 3", "FILE, line 2: not valid yaml: [...]expected [...]"),
    in_yaml("experiment/new", "seed: 3\nseed: 4", "FILE, line 2: not valid yaml: [...]found duplicate key seed[...]"),
    in_yaml("model/new", b"a: \xff\n", "FILE: not valid yaml: byte 3 is not UTF-8 - save it as UTF-8"),
    row("--config-dir TMP model=b", "TMP/model/b.yaml: not valid yaml: byte 0 is not UTF-8 - save it as UTF-8", files={"model/a.yaml": b"\xff", "model/b.yaml": b"\xfe"}),
    row("--config-dir TMP model=a", "model=a: no such option - rename TMP/model/a.yml to a.yaml, the only suffix that Hydra reads [...]", files={"model/a.yml": "_target_: x"}),
    row("--config-dir TMP experiment=a", "[...]experiment=a: the defaults list of a yaml file includes itself - remove that entry", files={
        f"experiment/{name}.yaml": f"# @package _global_\ndefaults: [{other}, {{override /model: resnet}}]\n" for name, other in (("a", "b"), ("b", "/experiment/a"))
    }),
    # a yaml that holds no keys
    experiment("- a", f"FILE: contains a list; {HOLDS}"),
    in_yaml("experiment/new", "- a", f"FILE: contains a list; {HOLDS}"),
    in_yaml("experiment/new", "3", f"FILE: contains the single value 3; {HOLDS}"),
    *(
        in_yaml(f"{group}/new", content, f"FILE: contains {what}; {HOLDS}")
        for group, (content, what) in zip(("data", "model", "task", "optim", "callback"), cycle((("3", "the single value 3"), ("- a", "a list"), ("text", "the single value 'text'"))))
    ),
    *(
        in_yaml(f"{group}/new", content, line)
        for (group, line), content in zip({
            "data": "FILE: is empty, so model.input_shape: there is no key data.input_shape, to which ${data.input_shape} refers",
            "model": "model: needs a _target_, the import path of a class, got a mapping",
            "task": "task: needs a _target_, the import path of a class, got a mapping",
            "optim": "optim.schedule: is missing - begin FILE with `defaults: [/optim_defaults@_here_, schedule: cosine]`",
        }.items(), cycle(("", "null")))
    ),
    # keys of the group are suggested for a typo only
    row("+data.splits=3", "data.splits: lab.datasets.synthetic.Synthetic does not accept 'splits' - remove it, or add ~data.splits if a yaml sets it (accepts: [...])"),
    row("+data.split_buy=3", "data.split_buy: [...] - did you mean [...]split_by[...]"),
    # a yaml without the defaults of its group
    in_yaml("data/new", OWN_DATA, "data/order: is not in the defaults list of the chosen data - add it with a plus, +data/order=..., or to the defaults list of its yaml", "data/order=sequential"),
    in_yaml("data/new", OWN_DATA, "data.order: is missing - begin FILE with `defaults: [/data_defaults@_here_, order: shuffled]`"),
    in_yaml("data/new", f"defaults: [/data_defaults@_here_]\n{OWN_DATA}", "data.order: is missing - add to the defaults list of FILE: [order: shuffled]"),
    in_yaml("data/new", f"defaults: [order: sequential]\n{OWN_DATA}", "data.split_ratio: is missing - add to the defaults list of FILE: [/data_defaults@_here_]"),
]  # fmt: skip


def given_a_value(group: str, option: str) -> Iterator[Any]:
    """A group that is given a bare value: in an experiment, in what it includes, in a yaml of the group around it."""
    outer, _, inner = group.rpartition("/")
    all_of_it = f"one of {options(group)}"
    ways = cycle(("alone", "included", "within") if outer else ("alone", "included"))
    for text, shown, remedy in (
        (option, option, option), ("", "null", all_of_it), ("3", "3", all_of_it), (f"[{option}]", f"['{option}']", all_of_it),
    ):  # fmt: skip
        content = f"{outer}: {{{inner}: {text}}}" if outer else f"{inner}: {text}"
        said = f"{shown} - {CHOSEN} /{group}: {remedy}`"
        line, way = f"FILE: {group.replace('/', '.')}: {said}", next(ways)
        if way == "alone":
            yield experiment(content, line, "debug=fast")
        elif way == "included":
            whole = "# @package _global_\ndefaults: [new]\n"
            files = {"experiment/new.yaml": f"# @package _global_\n{content}\n", "experiment/whole.yaml": whole}
            included = line.replace("FILE", "TMP/experiment/new.yaml")
            yield row("--config-dir TMP experiment=whole debug=fast", included, files=files)
        else:
            within = f"defaults: [adamw]\n{inner}: {text}"
            yield in_yaml(f"{outer}/new", within, f"FILE: {inner}: {said}", "debug=fast")


BARE = [
    *(
        experiment("logger: none", f"FILE: logger: none - {CHOSEN} /logger: none`", more)
        for more in ("", "debug=fast", "--cfg job", "-m seed=1,2")  # also before it is printed, and in a sweep
    ),
    experiment("trainer: 3", f"FILE: trainer: 3 - {CHOSEN} /trainer: one of ddp, dp, fsdp, single`"),
    *given_a_value("model", "mlp"),
    *given_a_value("optim/schedule", "constant"),
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The (config, run directory, overrides) of each run that would have started; seed 66 fails."""
    runs: list[Any] = []

    def start(program: Any, config: Any, run_dir: Path, overrides: list[str], own_process: bool) -> None:
        assert run_dir.is_dir()
        cfg = config.given
        runs.append((cfg, run_dir, overrides))
        if cfg.seed == 66:
            raise RunFailed(f"RuntimeError: out of luck ({run_dir})")

    monkeypatch.setattr("samebits.process.parent.start", start)
    return runs


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[Any]
) -> Call:
    """train.py with these arguments, in this process -> (exit status, lines of stderr); stdout stays empty."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, list[str]]:
        defaults = ["data=synthetic", f"hydra.run.dir={tmp_path}/a"]
        if "-m" in arguments:
            defaults.append(f"hydra.sweep.dir={tmp_path}/sweep")
        keys = {argument.partition("=")[0] for argument in arguments}
        defaults = [text for text in defaults if text.partition("=")[0] not in keys]
        monkeypatch.setattr(sys, "argv", ["train.py", *defaults, *arguments])
        capsys.readouterr()
        status = train.main()
        said = capsys.readouterr()
        assert said.out == ""
        return status, said.err.splitlines()

    return call


def prepared(folder: Path, command: str, files: Mapping[str, str | bytes]) -> list[str]:
    """Returns the words of the command, once the files are there."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [word.replace("TMP", str(folder)) for word in shlex.split(command)]


def is_line(shown: str, line: str, folder: Path) -> bool:
    pattern = re.escape(f"error: {line}".replace("TMP", str(folder))).replace(re.escape("[...]"), ".*")
    return re.fullmatch(pattern, shown) is not None


@pytest.mark.one_quick(10)
@pytest.mark.parametrize(
    ("command", "line", "files"), [*KEYS, *OPTIONS, *SYNTAXES, *NO_EFFECT, *OF_THE_COMMAND, *YAMLS, *BARE]
)
def test_a_mistake_that_composing_finds(
    call: Call, started: list[Any], tmp_path: Path, command: str, line: str, files: dict[str, str | bytes]
) -> None:
    words = prepared(tmp_path, command, files)
    before = set(tmp_path.rglob("*"))
    status, (shown,) = call(*words)
    assert is_line(shown, line, tmp_path), shown
    assert status == 2
    assert not started
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.one_quick(10)
@pytest.mark.parametrize(("command", "line", "files"), [*VALUES, *FILES])
def test_a_value_that_the_check_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, line: str, files: dict[str, str | bytes]
) -> None:
    """The error that the command shows after "error: ", without Hydra's start for each of many values."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        compose("data=synthetic", *prepared(tmp_path, command, files))
    assert is_line(f"error: {error.value}", line, tmp_path), error.value


# -- what a started run finds ------------------------------------------------------------------------------------------

ZOO = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lab.callbacks.base import Callback

class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs, hidden, dropout, depth=1):
        if depth == 0:
            raise ValueError("depth must not be 0")
        if depth == 2:
            raise KeyError("a bug")
        if depth == 4:
            raise FileNotFoundError(2, "No such file or directory", "table.csv")
        super().__init__(nn.Flatten(), nn.Linear(64, num_outputs), nn.Dropout(depth * dropout))

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

class Order:
    def __init__(self, dataset, seed):
        raise RuntimeError(f"cannot order {len(dataset)} samples")

class Nothing:
    def __init__(self, *parts, **arguments): ...

class Items:  # without a spec
    def __init__(self, split, **arguments): ...

    def __len__(self):
        return 100

    def __getitem__(self, row):
        return {"x": torch.ones(1, 8, 8), "y": row % 10}

class Uneven(Items):
    def __init__(self, split, **arguments):
        self.width = 9 if split == "val" else 8

    def __getitem__(self, row):
        return {"x": torch.ones(1, 8, self.width), "y": row % 10}

class Misspelt(Callback):
    def on_stepp(self, state): ...

class Lightning(Callback):
    def on_train_epoch_end(self, trainer, module): ...

class Fewer(Callback):
    def on_eval(self, scores): ...

class Text(Callback):
    def on_log(self, state, values): values["mine"] = "text"

class Trained:
    def __init__(self):
        self.part = nn.Linear(1, 1)

    def __call__(self, output, batch): ...

def rate(**arguments):
    return lambda step, total: "fast"

def losses(are):
    changed = {
        "a list": lambda values: values.tolist(),
        "a number": lambda values: values.mean().item(),
        "a mean": lambda values: values.mean(),
        "of tokens": lambda values: values.repeat(3) if torch.is_grad_enabled() else values,
        "of scored tokens": lambda values: values if torch.is_grad_enabled() else values.repeat(3),
        "half": lambda values: values.bfloat16(),
        "detached": lambda values: values.detach(),
    }[are]
    return lambda output, batch: changed(cross_entropy(output, batch["y"], reduction="none"))
"""
WITH_ZOO = """
import sys, lab.models
lab.models.__path__.append(sys.argv.pop(1))
sys.argv[0] = "train.py"
import train
sys.exit(train.main())
"""  # in which lab.models.zoo is a module of a user's
NET = "model._target_=lab.models.zoo.Net"
CRITERION = "~task.criterion.label_smoothing task.criterion._target_=lab.models.zoo"
A_SAMPLE = "must return one value per sample, (B,) = (64,), but returned"


def nothing(key: str, expected: str) -> Any:
    return row(f"{key}._target_=lab.models.zoo.Nothing", f"{key.lstrip('+')}._target_: expected {expected}, but lab.models.zoo.Nothing gives a Nothing")  # fmt: skip


TYPED_RUNS = [  # of one process, of two, in the loop
    row(f"{NET} +model.depth=0", "model.depth=0: lab.models.zoo.Net cannot be built: depth must not be 0 (ValueError, TMP/mine/zoo.py, line 11; LAB_TRACEBACK=1 prints the traceback)"),
    row(f"{NET} +model.depth=0 trainer=ddp hardware.num_procs=2", "model.depth=0: lab.models.zoo.Net cannot be built: depth must not be 0 (ValueError, [...])", files={"a/notes/mine.txt": "mine"}),
    row("+callback.a._target_=lab.models.zoo.Text", "log('mine'): expected a number, got str - call .item() on a tensor or array; use run.logger.show for images, tables and texts"),
]  # fmt: skip
RUNS = [
    row(f"{NET} +model.depth=2", "model: lab.models.zoo.Net cannot be built with input_shape=[1, 8, 8], num_outputs=10, hidden=[16], dropout=0.0, depth=2: 'a bug' (KeyError, TMP/mine/zoo.py, line 13; LAB_TRACEBACK=1 prints the traceback)"),
    row(f"{NET} +model.depth=4", "model: lab.models.zoo.Net cannot be built with [...], depth=4: [Errno 2] No such file or directory: 'table.csv' (FileNotFoundError, TMP/mine/zoo.py, line 15; LAB_TRACEBACK=1 prints the traceback)"),
    row(f"{NET} +model.depth=7 model.dropout=1.0", "model.dropout=1.0: lab.models.zoo.Net cannot be built: dropout probability has to be between 0 and 1, but got 7.0 (ValueError, TMP/mine/zoo.py, line 16; LAB_TRACEBACK=1 prints the traceback)"),
    row("model._target_=lab.models.zoo.Late ~model.input_shape ~model.num_outputs ~model.hidden ~model.dropout", "model: net.1.weight belongs to a lazy module, which has no size before the first batch: give the size, from data.input_shape and data.num_outputs"),
    row("model.input_shape=[3]", "MLP was built for samples of shape (3,) but got (1, 8, 8): set model.input_shape=[1,8,8]"),
    row("model.input_shape=[1,9,9]", "MLP was built for samples of shape (1, 9, 9) but got (1, 8, 8): set model.input_shape=[1,8,8]"),
    row("task=ddpm", "MLP was built for samples of shape (1, 8, 8) but got (9, 8, 8): set model.input_shape=[9,8,8][...]", needs("conf/task/ddpm.yaml")),
    row("task=gan model.input_shape=[32] model.num_outputs=64 task.critic.input_shape=[3]", "MLP was built for samples of shape (3,) but got (1, 8, 8): set input_shape of task.critic to [1,8,8]", GAN),
    row("optim=sgd optim.momentum=0", "optim.momentum=0: torch.optim.SGD cannot be built: Nesterov momentum requires a momentum and zero dampening (ValueError, [...]sgd.py, line [...]; LAB_TRACEBACK=1 prints the traceback)"),
    row("optim.schedule._target_=lab.models.zoo.rate", "optim.schedule: <lambda> returned 'fast': a schedule must return a number, the learning rate divided by the peak rate"),
    row("trainer=fsdp hardware.num_procs=2 trainer.fsdp.wrap=Linea", "trainer.fsdp.wrap: MLP has no module of class or name 'Linea' - did you mean Linear? (classes: Linear, ReLU)"),
    row("trainer=fsdp hardware.num_procs=2 trainer.fsdp.wrap=[ReLU]", "trainer.fsdp.wrap: 1 (ReLU) has no parameters to shard"),
    row("trainer=fsdp hardware.num_procs=2 hardware.activation_checkpointing=[Bloc]", "hardware.activation_checkpointing: MLP has no module of class or name 'Bloc' (classes: Linear, ReLU)"),
    row("trainer=fsdp hardware.num_procs=2 trainer.fsdp.replicas=2", "trainer.fsdp.replicas=2: 2 processes cannot be divided into equal groups of at least 2 - for a copy in each process, use trainer=ddp"),
    row("trainer=fsdp hardware.num_procs=1 trainer.fsdp.cpu_offload=true", "trainer.fsdp.cpu_offload=true: requires at least 2 processes, got 1"),
    row("trainer=ddp hardware.num_procs=2 trainer.ddp.static_graph=true hardware.micro_batch_size=8", "trainer.ddp.static_graph=true: torch does not support it with gradient accumulation, and hardware.micro_batch_size=8 makes 4 micro-batches of a rank's 32 samples - remove one of them"),
    nothing("model", "a torch.nn.modules.module.Module"),
    nothing("optim", "a torch.optim.optimizer.Optimizer"),
    nothing("optim.schedule", "a callable"),
    nothing("+data.transforms.a", "a callable"),
    nothing("+callback.a", "a lab.callbacks.base.Callback"),
    row(f"{CRITERION}.Nothing", "task.criterion: Nothing is not callable: define __call__(output, batch) -> (B,) losses"),
    # what is called while it trains
    row("+callback.a._target_=lab.models.zoo.Misspelt", "callback.a: Misspelt.on_stepp is not a hook, so it is never called - did you mean on_step? (hooks: before_step, on_end[...])"),
    row("+callback.a._target_=lab.models.zoo.Lightning", "callback.a: Lightning.on_train_epoch_end is not a hook, so it is never called (hooks: [...])"),
    row("+callback.a._target_=lab.models.zoo.Fewer", "callback.a: Fewer.on_eval must take (state, scores), got (self, scores)"),
    row("+callback._target_=lab.models.zoo.Text", "callback: expected a mapping of names, e.g. callback.x: {_target_: ...}, got a node with a _target_"),
    *(
        row(f"{CRITERION}.losses '+task.criterion.are={are}' trainer.eval_every=2", f"task.criterion: {line}")
        for are, line in {
            "a list": f"{A_SAMPLE} a value of type list: return a torch.Tensor",
            "a number": f"{A_SAMPLE} a value of type float: return a torch.Tensor",
            "of tokens": f"{A_SAMPLE} shape (192,): [...]", "of scored tokens": f"{A_SAMPLE} shape (192,): [...]",
            "half": "the losses are torch.bfloat16, which has two or three digits, and so has their gradient: compute them from output.float()",
            "detached": "the losses have no gradient, so nothing can be trained: compute them from the model's output with differentiable operations (no argmax, no detach, no numpy)",
        }.items()
    ),
    row("+task.metrics.mine._target_=lab.models.zoo.losses '+task.metrics.mine.are=a mean'", f"task.metrics.mine: {A_SAMPLE} shape (): [...]"),
    row(f"{CRITERION}.Trained", "task.criterion: Trained has a trainable tensor part.weight[...] that is not a registered parameter[...]"),
    # what the data says
    row("data=synthetic data._target_=lab.models.zoo.Items data.input_shape=[3,8,8]", "MLP was built for samples of shape (3, 8, 8) but got (1, 8, 8): set data.input_shape=[1,8,8], the shape of x after data.transforms"),
    row("data=synthetic data._target_=lab.models.zoo.Items data.input_shape=[1,8,8] model.input_shape=[3,8,8]", "MLP was built for samples of shape (3, 8, 8) but got (1, 8, 8): set model.input_shape=[1,8,8]"),
    row("data=synthetic data._target_=lab.models.zoo.Uneven data.input_shape=[1,8,8]", "MLP was built for samples of shape (1, 8, 8) but got (1, 8, 9): in this split, x has another shape than in train - give both one shape by data.transforms"),
    row("data.order._target_=lab.models.zoo.Order", "data.order: lab.models.zoo.Order cannot be built: cannot order 1297 samples (RuntimeError, TMP/mine/zoo.py, line [...]; LAB_TRACEBACK=1 prints the traceback)"),
    row("data/order=first data.order.count=9999", "data.order.count=9999 must be between 1 and the 1,297 samples of the training split"),
    row("data.splits.val.group=valid", "data.splits.val.group: [...]digits.h5 has no group 'valid' [...]; did you mean 'val'? [...]"),
    row("data.splits.train=null", "data.splits.train=null: there is no training data - name the group that contains it"),
    row("data.splits.train.rows=[0,2]", "data.splits.train.rows=[0, 2]: must be two shares with 0 <= begin < end <= 1, such as [0, 0.9]"),
    row("data/transforms=[to_float,cutout] data.transforms.cutout.field=y", "data.transforms: Cutout requires images (B, C, H, W), but field='y' is (64,)"),
    row("data/transforms=[to_float,flip] data.transforms.flip.dim=9", "data.transforms: RandomFlip.dim=9: the batch has the shape (64, 1, 8, 8)"),
    row("data/transforms=[to_float,flip] data.transforms.flip.dim=0", "data.transforms.flip.dim=0: lab.transforms.fields.RandomFlip cannot be built: dim must not be 0, the batch dimension; -1 is left and right, -2 top and bottom (ValueError, [...])"),
    row("data/transforms=[to_float,crop] data.transforms.crop.size=[3]", "data.transforms.crop.size=[3]: lab.transforms.fields.RandomCrop cannot be built: size must be [height, width], got [3] (ValueError, [...])"),
    row("data/transforms=[to_float,normalize] data.transforms.normalize.mean=[] data.transforms.normalize.std=[]", "data.transforms: Normalize needs as many std > 0 as mean, got mean=[] std=[]"),
    row("data/transforms=[normalize] data.transforms.normalize.mean=auto", "data.transforms.normalize: Normalize got torch.uint8; put ToFloat before it"),
    row("data/transforms=[to_float,normalize] data.transforms.normalize.mean=auto data.transforms.normalize.dim=4", "data.transforms.normalize.dim=4: x has the shape (B, 1, 8, 8) - give another dimension, or null"),
    row("'+data.transforms.a={_target_: lab.datasets.tokens.NextToken, field: z}'", "data.transforms: NextToken.field='z'; the batch has ['x', 'y']", needs("src/lab/datasets/tokens.py")),
]  # fmt: skip


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """lab.models.zoo, as a module of a user's."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "zoo.py").write_text(ZOO)
    lab.models.__path__.append(str(folder))
    yield folder
    lab.models.__path__.remove(str(folder))
    sys.modules.pop("lab.models.zoo", None)
    vars(lab.models).pop("zoo", None)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "line", "files"), TYPED_RUNS)
def test_a_mistake_that_a_started_run_finds(
    tmp_path: Path, zoo: Path, command: str, line: str, files: dict[str, str | bytes]
) -> None:
    """By the command. What was in the run's directory before, stays there."""
    words = prepared(tmp_path, command, files)
    before = set(tmp_path.rglob("*"))
    run = (*QUICK, "trainer.max_steps=2", "trainer.log_every=1", f"hydra.run.dir={tmp_path}/a")
    code = [sys.executable, "-c", WITH_ZOO, str(zoo)]
    done = called([*code, *run, *words], 2, cwd=tmp_path, env=importing(ROOT / "src"))
    assert is_line(done.stderr.splitlines()[-1], line.replace("TMP/mine", str(zoo)), tmp_path), done.stderr
    assert done.stdout == ""
    assert len(re.findall("^(error|failed): |Traceback", done.stderr, re.MULTILINE)) == 1
    assert set(tmp_path.rglob("*")) == before
    assert processes_with(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("command", "line", "files"), RUNS)
def test_a_mistake_ends_a_run_in_this_process(
    tmp_path: Path, zoo: Path, command: str, line: str, files: dict[str, str | bytes]
) -> None:
    """A ConfigError is what the command shows after "error: ", with status 2. Nothing is left."""
    words = prepared(tmp_path, command, files)
    with pytest.raises(ConfigError) as error:
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2", "trainer.log_every=1", *words)
    assert is_line(f"error: {error.value}", line.replace("TMP/mine", str(zoo)), tmp_path), error.value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            (model, *more),
            rf"^\w+ was built for .*\(1, 8, 8\).*: set {key}\.input_shape=\[1,8,8\]{', the shape of x' * (key == 'data')}",
        )
        for model, *more in (("model=vit", "model.patch=4"), ("model=resnet",), ("model=unet",), ("model=mlp",))
        for key in ("data", "model")
    ]
    + [(("model=cifar_fast",), r"data\.input_shape=\[3, 8, 8\] is not the shape of its samples x, \[1, 8, 8\]")],
)
def test_a_wrong_shape_of_the_data_is_named_where_a_model_fails(
    tmp_path: Path, model: tuple[str, ...], line: str
) -> None:
    quick = [one for one in QUICK if not one.startswith("model.")]
    wrong = "model" if "model" in line.partition("set ")[2] else "data"
    with pytest.raises((ConfigError, RunFailed), match=line):
        start_run(tmp_path / "run", *quick, *model, f"{wrong}.input_shape=[3,8,8]", "trainer.max_steps=1")


@pytest.mark.slow
def test_from_the_shell(tmp_path: Path) -> None:
    """The plain command, in another folder."""
    done = called([*TRAIN, f"hydra.run.dir={tmp_path}/a", "trainer.keep_bset=1"], 2, cwd=tmp_path, fresh=True)
    line = f"error: trainer.keep_bset: no such key - did you mean trainer.keep_best? {TRAINER_HAS}\n"
    assert (done.stdout, done.stderr) == ("", line)
    assert not list(tmp_path.iterdir())


# -- what is no mistake, or not of the config --------------------------------------------------------------------------


def test_a_number_is_a_name_and_null_takes_a_part_out(call: Call, started: list[Any], tmp_path: Path) -> None:
    text = "# @package _global_\ndata: {transforms: {to_float: null}}\ntask: {metrics: {accuracy: null}}\n"
    words = prepared(tmp_path, "--config-dir TMP name=2024 experiment=a", {"experiment/a.yaml": text})
    assert call(*words) == (0, [])
    assert call("data.transforms=null", "task.metrics=null", "+callback.mine=null") == (0, [])
    for cfg, *_ in started:
        assert cfg.data.transforms == cfg.task.metrics == cfg.callback == {}


@pytest.mark.slow
def test_a_good_config_starts_once_and_resolved(call: Call, started: list[Any], tmp_path: Path) -> None:
    """A run that fails is status 1."""
    line = f"failed: RuntimeError: out of luck ({tmp_path}/a)"
    assert call("data=synthetic", "seed=66", "resume=auto") == (1, [line])
    [(cfg, run_dir, overrides)] = started
    assert list(cfg.model.input_shape) == list(cfg.data.shape)
    assert run_dir == tmp_path / "a"
    assert {"data=synthetic", "seed=66"} <= set(overrides)


@pytest.mark.slow
def test_an_error_of_the_programme_keeps_its_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("samebits.process.parent.start", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        call("data=synthetic")


@pytest.mark.parametrize("error", [MemoryError("none"), ConfigError("data.x: wrong"), RunFailed("not finite")])
def test_errors_that_are_no_mistake_in_the_values_or_name_their_key_stay(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), constructing(PROGRAM, "data", {}):
        raise error


def test_the_error_behind_a_line_is_its_cause() -> None:
    """LAB_TRACEBACK=1 shows it."""
    with pytest.raises(ConfigError) as error, constructing(PROGRAM, "data", {}):
        raise ValueError("a bug")
    assert isinstance(error.value.__cause__, ValueError)


def test_every_argument_that_must_be_a_size_says_so() -> None:
    """What the yamls give as a whole number of something may not be negative."""
    free = {"seed"}  # of the synthetic data: any number
    tried = 0
    for name in ("model", "data"):
        for argument, value in compose("data=synthetic")[name].items():
            if isinstance(value, int) and not isinstance(value, bool) and argument not in free:
                cfg = compose("data=synthetic", checked=False)
                cfg[name][argument], tried = -1, tried + 1
                with pytest.raises(ConfigError, match=rf"{name}\.{argument}: must be >= "):
                    check(cfg)
    assert tried > 3


@pytest.mark.slow
def test_a_mistake_found_after_a_checkpoint_leaves_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was trained is worth more than a clean folder."""

    def scores(*_: Any) -> Any:
        raise ConfigError("task.metrics.accuracy: wrong")

    monkeypatch.setattr("lab.run.final_scores", scores)
    with pytest.raises(ConfigError, match=r"task\.metrics\.accuracy: wrong"):
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2")
    assert list((tmp_path / "a" / "checkpoints").iterdir())


def test_a_single_run_of_an_experiment_with_a_sweep(call: Call, started: list[Any], tmp_path: Path) -> None:
    """For example to debug it. `sweep` in a yaml, such as conf/train.yaml, is a default for sweeps."""
    words = prepared(
        tmp_path, "--config-dir TMP experiment=new", {"experiment/new.yaml": f"# @package _global_\n{SWEPT}\n"}
    )
    assert call(*words, "hydra.mode=RUN") == (0, [])
    assert [cfg.seed for cfg, *_ in started] == [0]


def test_a_line_for_each_key_that_a_later_argument_sets_again(call: Call, started: list[Any]) -> None:
    """Also if they are not neighbors, as in a script's command with a user's arguments. Equal values are no change."""
    words = ("optim=sgd", "optim.lr=1", "seed=3", "optim=adamw", "name=x", "++optim.lr=2", "name=x")
    lines = [f"{one}: has no effect, because {other} comes after it" for one, other in (
        ("optim=sgd", "optim=adamw"), ("optim.lr=1", "optim.lr=2"),
    )]  # fmt: skip
    assert call(*words) == (0, lines)
    [(cfg, *_)] = started
    assert (cfg.optim.lr, cfg.optim._target_) == (2, "torch.optim.AdamW")


def test_hydra_s_traceback_comes_before_the_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call("trainer.max_step=3")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    status, lines = call("trainer.max_step=3")
    assert (status, lines[0]) == (2, "Traceback (most recent call last):")
    assert (status, lines[-1:]) == plain


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

    monkeypatch.setattr("samebits.process.parent.start", start)
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

    monkeypatch.setattr("samebits.sweeps.drive.sweep", sweep)
    assert call("-m", "seed=3,4") == (0, [])
    assert seen == [(None, "argparse")]
