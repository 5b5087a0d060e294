"""The config: schemas, intervals, combinations, targets; and every yaml of every group composes, passes and builds."""

# ruff: noqa: E501 - the lines that users see, word for word
from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import pytest
import yaml
from common import needs
from omegaconf import DictConfig, OmegaConf

from lab.builders import make_task
from lab.config import check
from lab.groups import OptimConfig
from lab.options import TrainerConfig
from lab.program import PROGRAM
from lab.schedules.constant import Epochs
from samebits import testing
from samebits.config import composed, initialize, resolved
from samebits.data import is_stream
from samebits.errors import ConfigError
from samebits.schema import Rule, option, parse_interval, passed, split_own, typed
from samebits.targets import build_target, check_targets

OPTIONS = sorted(
    f"{path.parent.relative_to(PROGRAM.conf)}={path.stem}"
    for path in PROGRAM.conf.rglob("*/*.yaml")
    if "hydra" not in path.parts
)


def compose(*overrides: str) -> DictConfig:
    return testing.compose(*overrides, checked=False)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return OmegaConf.to_container(compose("data=synthetic"))  # type: ignore[return-value]


def tokens(folder: Path) -> Path:
    with h5py.File(folder / "tokens.h5", "w") as file:
        for split in ("train", "val"):
            file[f"{split}/tokens"] = np.arange(2000, dtype=np.uint16) % 50
    return folder / "tokens.h5"


def sequences(folder: Path) -> Path:
    with h5py.File(folder / "sequences.h5", "w") as file:
        for split in ("train", "val", "test"):
            file[f"{split}/tokens/values"], file[f"{split}/tokens/offsets"] = np.arange(30) % 7, np.array([0, 9, 30])
    return folder / "sequences.h5"


def photos(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for k in range(20):
        (folder / "photos" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (9, 9)).save(folder / "photos" / "ab"[k % 2] / f"{k}.png")
    return folder / "photos"


def pairs(folder: Path) -> Path:
    with h5py.File(folder / "pairs.h5", "w") as file:
        for name in ("chosen", "chosen_mask", "rejected", "rejected_mask"):
            for split in ("train", "val"):
                file[f"{split}/{name}"] = np.ones((3, 5), dtype=np.uint8)
    return folder / "pairs.h5"


def columns(folder: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": [[0.5, 1.0]] * 20, "label": [0, 1] * 10}), folder / "rows.parquet")
    return folder / "rows.parquet"


def arrow_files(folder: Path) -> Path:
    """As `columns`, with the splits that the yamls name."""
    datasets = pytest.importorskip("datasets")
    datasets.config.HF_DATASETS_CACHE = folder / "cache"  # not the user's
    label = datasets.ClassLabel(names=["a", "b"])
    kinds = datasets.Features({"x": datasets.Sequence(datasets.Value("float32"), length=2), "label": label})
    rows = datasets.Dataset.from_dict({"x": [[0.5, 1.0]] * 20, "label": [0, 1] * 10}, features=kinds)
    for split in ("train", "validation", "test"):
        (folder / "arrow").mkdir(exist_ok=True)
        rows.to_parquet(folder / f"arrow/{split}.parquet")
    return folder / "arrow"


FILES = {
    "data=parquet": columns,
    "data=huggingface": arrow_files,
    "data=huggingface_stream": arrow_files,
    "data=tokens": tokens,
    "data=sequences": sequences,
    "data=image_folder": photos,
    "data=pairs": pairs,
}  # that their yaml leaves to the user


def chosen_in(option: str) -> set[str]:
    """All options, `group=option`, that this one brings: itself, and those that an experiment's yaml chooses."""
    entries = yaml.safe_load((PROGRAM.conf / f"{option.replace('=', '/')}.yaml").read_text()).get("defaults", ())
    pairs = [pair for one in entries if isinstance(one, dict) for pair in one.items()]
    return {option} | {f"{key.removeprefix('override /').partition('@')[0]}={name}" for key, name in pairs}


EXPERIMENTS = {option: chosen_in(option) for option in OPTIONS if option.startswith("experiment=")}
# these are composed and built with an experiment, for whose data the tests write a file
WITH_EXPERIMENTS = {option for brought in EXPERIMENTS.values() if FILES.keys() & brought for option in brought}
# no option of one of these groups changes what one of another does: one of each is composed at once
APART = (
    ("callback", "data/order", "hardware", "logger", "optim", "profiler"),
    ("data/transforms", "optim/schedule", "trainer"),
)
ROWS = [
    [option for option in row if option]
    for groups in APART
    for row in zip_longest(*([one for one in OPTIONS if one.startswith(f"{group}=")] for group in groups))
]
ALONE = [option for option in OPTIONS if option not in WITH_EXPERIMENTS.union(*ROWS) - EXPERIMENTS.keys()]


def overrides_with(choice: str, folder: Path) -> list[str]:
    """The choice beside others that it fits: a model or a task for text is no good for the default data."""
    beside = choice
    if choice.startswith(("model=", "task=")):
        beside = next((option for option, brought in EXPERIMENTS.items() if choice in brought), choice)
    elif not choice.startswith(("experiment=", "data=")):
        return [choice]
    made = [f"data.path={FILES[data](folder)}" for data in FILES.keys() & chosen_in(beside)]
    more = {"data=mixed": ["+data@data.parts.some=h5", "+data.weights.some=1"], "task=mae": ["model=vit"]}
    return [*dict.fromkeys([beside, choice]), *made, *more.get(choice, [])]


def composed_with(overrides: list[str]) -> DictConfig:
    """Files that a task reads later are none. Skips data on another machine, and models and data whose files the tests
    of these options make."""
    try:
        cfg = compose(*overrides)
    except ConfigError as error:
        if not (lacks := re.match(r"((model|data|task)\.\S+): is missing \(\?\?\?\)", str(error))):
            raise
        if lacks[2] != "task":
            pytest.skip(f"{lacks[1]}: a file that the tests of this option make")
        return composed_with([*overrides, f"{lacks[1]}=none"])
    path = cfg.data.get("path", PROGRAM.root)
    if not (file := Path(path if isinstance(path, (str, Path)) else path[0])).exists():
        pytest.skip(f"{file} is not on this machine")
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize("choices", [*([option] for option in ALONE), *ROWS], ids=" ".join)
def test_every_yaml_composes_and_builds(choices: list[str], tmp_path: Path) -> None:
    cfg = composed_with(choices if len(choices) > 1 else overrides_with(choices[0], tmp_path))
    before = copy.deepcopy(cfg)
    config = check(cfg)
    assert cfg == before  # the check changes nothing

    rows = build_target(PROGRAM, config.dataset, split="val")
    assert next(iter(rows)) if is_stream(rows) else len(rows) > 0
    for node in (config.data.order, *config.data.transforms.values(), *config.values["callback"].values()):
        assert build_target(PROGRAM, node) is not None
    assert make_task(config) is not None
    try:
        model = build_target(PROGRAM, cfg.model)
    except ConfigError as error:
        if "which is not installed" in str(error):  # an optional package
            pytest.skip(str(error))
        raise
    optim, optimizer = split_own(cfg.optim, OptimConfig, "optim")
    assert build_target(PROGRAM, optimizer)(model.parameters()).param_groups
    schedule = build_target(PROGRAM, optim.schedule)
    object.__setattr__(schedule, "epochs", Epochs(10.0))  # as the run does
    assert all(math.isfinite(schedule(step, 100)) for step in range(101))


@pytest.mark.slow
@needs("conf/experiment/sequences.yaml")
@pytest.mark.parametrize("order", ["weighted", "epochs", "chunk_windows"])
def test_debug_overfit_repeats_the_first_samples_of_any_order(order: str) -> None:
    """Whatever the command says of the order, before debug=overfit or behind it."""
    from lab import build

    more = {"weighted": ["data.order.weights=y"], "chunk_windows": ["+data.order.chunk_rows=16"]}.get(order, [])
    parts = build(compose("data=h5", "hardware=cpu", "debug=overfit", f"data/order={order}", *more))
    try:
        plan = parts.loaders["train"].plan
        rows = [plan(k)[1].tolist() for k in range(3)]
    finally:
        parts.close()
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 32


def test_config_of_a_run_is_plain_and_one_suffix_holds_all_over() -> None:
    cfg = compose("data=h5")
    assert "${" not in OmegaConf.to_yaml(cfg)
    assert cfg.data.path == str(PROGRAM.root / "data" / "digits.h5")
    node = OmegaConf.create({"a": "${suffix:}", "b": "${suffix:}"})
    assert node.a == node.b
    assert re.fullmatch("[0-9a-f]{6}", node.a)
    assert OmegaConf.create({"a": "${suffix:}"}).a != node.a


def test_relative_paths_become_absolute_against_the_folder_of_the_command(tmp_path: Path) -> None:
    cfg = OmegaConf.create({"resume": "runs/a", "data": {"path": ["x.h5", "/y.h5", "s3://z/z.h5"]}})
    out = resolved(PROGRAM, cfg, tmp_path)
    assert out.resume == str(tmp_path / "runs/a")
    assert list(out.data.path) == [str(tmp_path / "x.h5"), "/y.h5", "s3://z/z.h5"]
    assert resolved(PROGRAM, OmegaConf.create({"resume": "auto", "data": {}}), tmp_path).resume == "auto"


@pytest.mark.parametrize(
    ("value", "steps"), [(None, None), (7, 7), ("1ep", 40), ("0.5ep", 20), ("0.001ep", 1), ("2.5ep", 100)]
)
def test_intervals(value: int | str | None, steps: int | None) -> None:
    assert parse_interval(value, steps_per_epoch=40) == steps


def test_an_interval_of_epochs_ends_with_each_epoch() -> None:
    """Of 20.27 steps, rounded: the last one of a run is its end, and not a step before it."""
    every = parse_interval("1ep", steps_per_epoch=1297 / 64)
    assert every is not None
    ends = [step for step in range(1, 406) if passed(step, every) > passed(step - 1, every)]
    assert ends == [round(k * 1297 / 64) for k in range(1, 21)]
    assert ends[-1] == 405
    for whole in (1, 3, 7):
        assert [passed(step, whole) for step in range(50)] == [step // whole for step in range(50)]


@pytest.mark.parametrize("value", ["1epp", "0ep", "-1ep", "nanep", "infep", "50"])
def test_malformed_intervals(value: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer.log_every: expected steps \(50\) or epochs \(1ep, 0.5ep\) or null"):
        parse_interval(value, 40, "trainer.log_every")


@dataclass(frozen=True)
class Inner:
    mode: Annotated[str, option("fast", "slow")]


@dataclass(frozen=True)
class Outer:
    count: Annotated[int, Rule(at_least=1)]
    rate: float | None
    flag: bool
    names: list[str]
    inner: Inner


GOOD = {"count": 2, "rate": 1, "flag": True, "names": ["a", 7], "inner": {"mode": "fast"}}


def test_typed_gives_values_of_the_declared_types() -> None:
    value = typed(Outer, OmegaConf.create(GOOD), "g")
    assert value == Outer(2, 1.0, True, ["a", "7"], Inner("fast"))
    assert isinstance(value.rate, float)
    assert typed(Outer, {**GOOD, "count": 1e3}, "g").count == 1000  # yaml reads 1e3 as a float
    assert split_own({"_target_": "a.B", "mode": "fast", "lr": 3}, Inner, "optim") == (
        Inner("fast"), {"_target_": "a.B", "lr": 3}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("cuont", 1, "g.cuont: no such key - did you mean g.count? (g has: count, rate, flag, names, inner)"),
        ("count", 0, "g.count: must be >= 1, got 0"),
        ("count", 1.5, "g.count: expected an integer, got 1.5"),
        ("count", True, "g.count: expected an integer, got true"),
        ("count", None, "g.count: expected an integer, got null"),
        ("count", "???", "g.count: is missing (???) - set g.count=..."),
        ("rate", "x", "g.rate: expected a number or null, got 'x'"),
        ("rate", float("nan"), "g.rate: expected a number or null, got nan"),
        ("flag", 1, "g.flag: expected true or false, got 1"),
        ("names", "a", "g.names: expected a list, each item text, got 'a'"),
        ("inner", 3, "g.inner: expected a mapping, got 3"),
        ("inner", {"mode": "slwo"}, "g.inner.mode: no option 'slwo' - did you mean slow? (options: fast, slow)"),
        ("inner", {"mode": 3}, "g.inner.mode: expected one of fast, slow, got 3"),
        ("inner", {}, "g.inner.mode: is missing - set g.inner.mode=..."),
    ],
)
def test_typed_names_key_value_and_remedy(key: str, value: Any, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        typed(Outer, {**GOOD, key: value}, "g")
    assert str(error.value) == line


def test_a_new_config_gives_every_key(base: dict[str, Any]) -> None:
    for key in base["trainer"]:
        fewer = {k: v for k, v in base["trainer"].items() if k != key}
        with pytest.raises(ConfigError, match=f"trainer.{key}: is missing"):
            typed(TrainerConfig, fewer, "trainer")


# -- targets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package lab.models.zoo of a user's, here with one good module."""
    import lab.models

    package = tmp_path / "zoo"
    package.mkdir()
    (package / "__init__.py").write_text("import os\n")
    (package / "good.py").write_text(
        "import os\nfrom typing import Literal\n\n"
        "class Net:\n"
        "    def __init__(self, width: int, act: Literal['relu', 'gelu'] = 'relu', shape: tuple[int, ...] = ()): ...\n\n"
        "def anything(**kwargs): ...\n"
    )
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path)])
    yield package
    for name in [n for n in sys.modules if n.startswith("lab.models.zoo")]:
        del sys.modules[name]
    vars(lab.models).pop("zoo", None)


def check_node(node: Any, given: tuple[str, ...] = ()) -> None:
    check_targets(PROGRAM, {"model": node}, ("model",), (), {}, {"model": given})


def line_of(node: Any, given: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as error:
        check_node(node, given)
    return str(error.value)


def test_good_targets_pass(zoo: Path) -> None:
    check_node({"_target_": "lab.models.zoo.good.Net", "width": 3, "shape": [1, 2], "act": "gelu"})
    check_node({"_target_": "lab.models.zoo.good.Net", "_partial_": True})
    check_node({"_target_": "lab.models.zoo.good.Net"}, given=("width",))
    check_node({"_target_": "lab.models.zoo.good.anything", "x": 3})
    check_node({"_target_": "lab.models.zoo.good.Net", "_args_": [3]})


NET = "lab.models.zoo.good.Net"


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"_target_": "lab.models.zoo.good.Nte"}, "model._target_: lab.models.zoo.good has no 'Nte' - did you mean Net?"),
        ({"_target_": "lab.models.zoo.god.Net"}, "model._target_: lab.models.zoo has no 'god' - did you mean good?"),
        ({"_target_": "lab.models.zoo.good"}, "model._target_: lab.models.zoo.good is not a class or function"),
        ({"_target_": "lab.models.zoo.os.system"}, "model._target_: lab.models.zoo has no 'os'"),
        ({"_target_": NET, "widht": 3}, f"model.widht: {NET} does not accept 'widht' - did you mean 'width'? (accepts: width, act, shape)"),
        ({"_target_": NET}, f"model.width: {NET} requires 'width' - set model.width=..."),
        ({"_target_": NET, "width": "3"}, "model.width: expected an integer, got '3'"),
        ({"_target_": NET, "width": 3, "act": "rel"}, "model.act: expected one of relu, gelu, got 'rel'"),
        ({"_target_": NET, "width": 3, "shape": 3}, "model.shape: expected a list, each item an integer, got 3"),
        ({"_target_": "os.system"},
         "model._target_: os.system is not allowed (lab.models.*, lab.datasets.*, lab.transforms.*, "
         "samebits.data.order.*, samebits.data.sampling.*, samebits.data.windows.*, lab.losses.*, lab.metrics.*, lab.tasks.*, lab.callbacks.*, "
         "lab.optimizers.*, lab.schedules.*, torch.nn.*, torch.optim.*, torchmetrics.*) - "
         "add its library to `allowed` in src/lab/project.py"),
        ({"_target_": "lab.losses_x.Vec"},
         "model._target_: lab.losses_x.Vec is not allowed (lab.models.*, lab.datasets.*, lab.transforms.*, "
         "samebits.data.order.*, samebits.data.sampling.*, samebits.data.windows.*, lab.losses.*, lab.metrics.*, lab.tasks.*, lab.callbacks.*, "
         "lab.optimizers.*, lab.schedules.*, torch.nn.*, torch.optim.*, torchmetrics.*) - "
         "move it into one of these packages, or add lab.losses_x.Vec to `allowed` in src/lab/project.py"),
        # as in a yaml that was written before the fork
        ({"_target_": "template.models.zoo.good.Net"},
         "model._target_: template.models.zoo.good.Net: there is no package 'template' - did you mean lab.models.zoo.good.Net?"),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_built(zoo: Path, node: dict[str, Any], line: str) -> None:
    assert line_of(node) == line


def test_arguments_of_the_run_cannot_be_given(zoo: Path) -> None:
    line = line_of({"_target_": "lab.models.zoo.good.Net", "width": 3}, given=("width",))
    assert line == "model.width: the run sets this argument itself - remove it"
    line = line_of({"_target_": "lab.models.zoo.good.Net", "width": 3}, given=("split",))
    assert line == "model._target_: lab.models.zoo.good.Net does not accept 'split', which the run passes"


@pytest.mark.parametrize(
    ("text", "error", "number"),
    [
        ("import os\nimport nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'", 2),
        ("\n\ndef f(:\n", "SyntaxError: invalid syntax", 3),
        ("x = 1 / 0\n", "ZeroDivisionError: division by zero", 1),
    ],
)
def test_the_real_error_of_a_module_that_does_not_import(zoo: Path, text: str, error: str, number: int) -> None:
    (zoo / "broken.py").write_text(text)
    line = line_of({"_target_": "lab.models.zoo.broken.Net"})
    assert line.startswith(f"model._target_: lab.models.zoo.broken cannot be imported: {error}")
    assert line.endswith(f"({zoo / 'broken.py'}, line {number})")
    assert "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"]])
def test_showing_help_and_config_imports_no_heavy_library(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['train.py', *{arguments}]\n"
        f"sys.path.insert(0, {str(PROGRAM.root / 'src')!r})\n"
        "try:\n"
        f"    runpy.run_path({str(PROGRAM.root / 'src' / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'h5py', 'wandb'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "optim" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("arguments", "sweeper", "launcher"),
    [
        (["experiment=digits"], "samebits_sweep.LedgerSweeper", 1),
        (["experiment=mine"], "samebits_optuna.OptunaSweeper", "auto"),
        (["hydra/sweeper=ledger", "experiment=mine"], "samebits_sweep.LedgerSweeper", "auto"),  # the command line wins
        (["experiment=mine", "hydra/launcher=one", "hydra/sweeper/sampler=random"], "samebits_optuna.OptunaSweeper", 1),
    ],
)
def test_an_experiment_chooses_sweeper_and_launcher(
    tmp_path: Path, arguments: list[str], sweeper: str, launcher: int | str
) -> None:
    import shutil

    import hydra

    conf = shutil.copytree(PROGRAM.conf, tmp_path / "conf")
    choices = "override /hydra/sweeper: optuna\n  - override /hydra/launcher: pool"
    (conf / "experiment/mine.yaml").write_text(f"# @package _global_\ndefaults:\n  - {choices}\n")
    with initialize(conf):
        cfg = hydra.compose("train", arguments, return_hydra_config=True)
    assert cfg.hydra.sweeper._target_ == f"hydra_plugins.{sweeper}"
    assert cfg.hydra.launcher.jobs_at_once == launcher
    assert cfg.hydra.help.app_name == "train"


def test_hydra_resolves_the_config_that_it_prints() -> None:
    """`--cfg job --resolve` resolves by OmegaConf, in which a list of a resolver must be a node."""
    cfg = compose("data=h5")
    expected = OmegaConf.to_container(cfg, resolve=True)
    OmegaConf.resolve(cfg)
    assert OmegaConf.to_container(cfg) == expected


def test_composing_warns_of_nothing() -> None:
    """Hydra 1.3 warns where version_base is missing, 1.4 where it is given, OmegaConf 2.4 of a name that 2.3 needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        composed(PROGRAM, ["optim=sgd"])
    command = [sys.executable, "-W", "error", str(PROGRAM.root / "src/train.py"), "--cfg", "job", "--resolve"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), "resolved, because resolvers may warn, too"


def test_the_mode_of_a_run_that_exists_is_not_checked() -> None:
    """No override of its evaluation changes monitor.mode, and `./run verify` repeats it as it was."""
    cfg = compose()
    cfg.monitor.key = "val/accuracy"
    with pytest.raises(ConfigError, match=r"monitor\.mode=min: val/accuracy is better if higher"):
        check(cfg)
    check(cfg, trains=False)
    cfg.rules = 3
    check(cfg)
