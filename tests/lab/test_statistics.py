"""mean=auto and std=auto: those of the training rows, for any number of ranks, kept in the run. FillMissing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import QUICK, needs

import lab
from lab.config import check
from lab.loaders import make_datasets
from lab.project import OF_ROWS
from lab.restore import restore, score_checkpoint
from lab.statistics import FILE, with_statistics
from lab.transforms.fields import Normalize
from lab.transforms.missing import FillMissing
from samebits.errors import ConfigError, CorruptFileError
from samebits.testing import assert_undisturbed, compose, metrics, result, resume_run, start_run
from samebits.world import World, world_of_one

AUTO = ("data.transforms.normalize.mean=auto", "data.transforms.normalize.std=auto")
CHAIN = ("data/transforms=[to_float,normalize]", *AUTO)
FIELDS = "data.fields={x: x, y: y}"
KEY = "data.transforms.normalize"
EIGHT = (*QUICK, "trainer.max_steps=8", "trainer.eval_every=4", "trainer.global_batch_size=16")


def written(path: Path, train: np.ndarray, other: np.ndarray | None = None) -> str:
    """A file whose val and test rows have other statistics than its training rows."""
    other = train[:8] // 2 if other is None else other
    with h5py.File(path, "w") as file:
        for split, x in (("train", train), ("val", other), ("test", other)):
            file[f"{split}/x"], file[f"{split}/y"] = x, np.arange(len(x)) % 2
    return f"data.path={path}"


def table(rows: int = 501, seed: int = 0) -> np.ndarray:
    """Columns 1 and 3 have NaN, column 2 is constant, column 4 has a large mean."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 5)) * [1, 20, 0, 3, 1] + [0, 5, 7.3, -1, 3000]
    x[random.random(rows) < 0.3, 1] = np.nan
    x[::9, 3] = np.nan
    return x.astype(np.float32)


def computed(*overrides: str, world: World | None = None) -> tuple[Any, list[str]]:
    """(The transform's node with numbers, lines)."""
    config, lines = check(compose(*CHAIN, FIELDS, "logger=none", "hardware=cpu", *overrides)), []
    config = with_statistics(config, make_datasets(config)["train"], world or world_of_one(), say=lines.append)
    return config.data.transforms["normalize"], lines


IMAGES = np.random.default_rng(1).integers(0, 256, (301, 3, 6, 5), dtype=np.uint8)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("x", "axes", "dim"),
    [
        pytest.param(table(), 0, 1, id="table"),
        pytest.param(IMAGES, (0, 2, 3), 1, id="channels first"),
        pytest.param(IMAGES.transpose(0, 2, 3, 1), (0, 1, 2), -1, id="channels last"),
        pytest.param(IMAGES[:, 0], None, 1, id="pixels without channels"),
        pytest.param(IMAGES[:, 0] / np.float32(7), (0, 2), 1, id="signals"),
        pytest.param(np.arange(99, dtype=np.float64) ** 2, 0, 1, id="one number"),
    ],
)
def test_are_those_that_numpy_computes(tmp_path: Path, x: np.ndarray, axes: Any, dim: int) -> None:
    node, lines = computed(written(tmp_path / "a.h5", x), "data.input_shape=[1]")
    values = (x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)).astype(np.float64)
    mean, std = np.nanmean(values, axes), np.nanstd(values, axes)
    std = np.where(std < 1e-6, 1, std)  # numpy's mean of a constant is rounded, and with it its std
    np.testing.assert_allclose(node["mean"], np.atleast_1d(mean), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(node["std"], np.atleast_1d(std), rtol=1e-12)
    assert node["dim"] == dim
    assert f"from {len(x):,} training rows" in lines[0]
    x = torch.from_numpy(values.astype(np.float32))
    out = Normalize("x", node["mean"], node["std"], node["dim"])({"x": x}, torch.arange(len(x)))["x"].numpy()
    assert abs(np.nanmean(out)) < 1e-3
    assert out.shape == tuple(x.shape)


def test_use_the_rows_of_this_split_only(tmp_path: Path) -> None:
    """Shares of one group, as in folds: other rows give other numbers."""
    x = table()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, np.zeros(len(x), dtype=np.int64)
        file["rows"] = np.arange(0, 501, 5)
    path = f"data.path={tmp_path / 'a.h5'}"
    shares = "data.splits={train: {group: /, index: rows}, val: {group: /}, test: null}"
    node, _ = computed(path, shares, "data.num_outputs=2")
    np.testing.assert_allclose(node["mean"], np.nanmean(x[::5].astype(np.float64), 0), rtol=1e-12)
    config = check(compose(FIELDS, path, "data.split_ratio=60/20/20", "data.num_outputs=2"))
    rows = make_datasets(config)["train"].column("x").astype(np.float64)
    assert len(rows) == 301
    node, _ = computed(path, "data.split_ratio=60/20/20", "data.num_outputs=2")
    np.testing.assert_allclose(node["mean"], np.nanmean(rows, 0), rtol=1e-12)


def test_constant_columns_and_columns_without_values(tmp_path: Path) -> None:
    x = table()
    x[:, 4] = np.nan
    node, lines = computed(written(tmp_path / "a.h5", x))
    assert node["mean"][2:] == [float(np.float32(7.3)), node["mean"][3], 0]
    assert (node["std"][2], node["std"][4]) == (1, 1)
    assert lines[0].endswith("2 constant or without values, so their std is 1: 2, 4")


@pytest.mark.slow
def test_numbers_beside_auto_are_kept(tmp_path: Path) -> None:
    node, _ = computed(written(tmp_path / "a.h5", table()), "data.transforms.normalize.std=[2.0]")
    assert list(node["std"]) == [2.0] * 5
    node, _ = computed(written(tmp_path / "b.h5", table()), "data.transforms.normalize.dim=null")
    np.testing.assert_allclose(node["mean"], [np.nanmean(table().astype(np.float64))], rtol=1e-12)


class Shared(World):
    """A rank of several in one process, whose sums are added by the test."""

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks whose tables are in `tables`."""
        TABLES.append(values.clone())
        return torch.stack(TABLES).sum(0)


TABLES: list[torch.Tensor] = []


@pytest.mark.one_quick
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("rows", [5, 501])
def test_any_number_of_ranks_computes_the_same_bits(tmp_path: Path, size: int, rows: int) -> None:
    path = written(tmp_path / "a.h5", table(rows))
    alone, _ = computed(path)
    TABLES.clear()
    for rank in range(size):
        node, _ = computed(path, world=Shared(rank, size, 0, torch.device("cpu")))
    assert (list(node["mean"]), list(node["std"])) == (list(alone["mean"]), list(alone["std"]))


class Plain:
    """A data set without `gather`, whose samples are too large for one piece of memory."""

    def __init__(self) -> None:
        self.x = np.random.default_rng(0).normal(size=(41, 2, 300, 300)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i], "y": i % 2}


@pytest.mark.slow
def test_a_data_set_that_returns_single_samples(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", table())  # the config's own data, which are not read
    rows, config = Plain(), check(compose(*CHAIN, path, FIELDS, "logger=none", "hardware=cpu", "data.num_workers=0"))
    node = with_statistics(config, rows, world_of_one()).data.transforms["normalize"]
    values = rows.x.astype(np.float64)
    np.testing.assert_allclose(node["mean"], values.mean((0, 2, 3)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(node["std"], values.std((0, 2, 3)), rtol=1e-12)


@needs("conf/data/mixed.yaml")
@pytest.mark.slow
def test_all_parts_of_a_mixture_count(tmp_path: Path) -> None:
    one, two = written(tmp_path / "a.h5", table(100)), written(tmp_path / "b.h5", table(50, seed=3) * 2)
    parts = [f"+data@data.parts.{name}=h5" for name in "ab"] + ["+data.weights.a=1", "+data.weights.b=9"]
    more = [f"data.parts.a.{one[5:]}", f"data.parts.b.{two[5:]}", *(f"data.parts.{n}.{FIELDS[5:]}" for n in "ab")]
    chain = ["+data/transforms@data.transforms=normalize", *AUTO]
    config = check(compose("data=mixed", *parts, *more, *chain, "logger=none", "hardware=cpu"))
    config = with_statistics(config, make_datasets(config)["train"], world_of_one())
    values = np.concatenate([table(100), table(50, seed=3) * 2]).astype(np.float64)
    np.testing.assert_allclose(config.data.transforms["normalize"]["mean"], np.nanmean(values, 0), rtol=1e-12)


@needs("conf/data/transforms/center_crop.yaml")
def test_random_transforms_are_left_out_and_others_are_not(tmp_path: Path) -> None:
    chain = "data/transforms=[to_float,crop,center_crop,normalize,flip]"
    sizes = ("data.transforms.crop.size=[6,6]", "data.transforms.center_crop.size=[2,2]")
    x = IMAGES[..., :4, :4]
    node, _ = computed(written(tmp_path / "a.h5", x), chain, *sizes)
    part = (x[..., 1:3, 1:3].astype(np.float32) / 255).astype(np.float64)
    np.testing.assert_allclose(node["mean"], part.mean((0, 2, 3)), rtol=1e-12)


# -- a run keeps them ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("statistics")
    path = written(folder / "a.h5", np.nan_to_num(table()), np.nan_to_num(table(64, seed=1)))
    return start_run(folder / "run", *EIGHT, *CHAIN, FIELDS, path)


def stopped(run: Path, path: str) -> Path:
    """A run that stopped at step 4."""
    with pytest.raises(SystemExit):
        start_run(run, *EIGHT, *CHAIN, FIELDS, path, "process.stop_at_step=4")
    return run


def stored(run: Path) -> dict[str, Any]:
    return json.loads((run / FILE).read_text())[KEY]


def test_a_run_keeps_them_beside_its_config(straight: Path) -> None:
    values = np.nan_to_num(table()).astype(np.float64)
    np.testing.assert_allclose(stored(straight)["mean"], values.mean(0), rtol=1e-12)
    assert "mean: auto" in (straight / "config.yaml").read_text()
    assert f"{KEY}: mean [" in (straight / "train.log").read_text()
    assert list(lab.load_run(straight).cfg.data.transforms.normalize.mean) == stored(straight)["mean"]


def test_a_resumed_run_has_the_same_bits(straight: Path, tmp_path: Path) -> None:
    path = f"data.path={straight.parent / 'a.h5'}"
    run = stopped(tmp_path / "run", path)
    before = (run / FILE).read_bytes()
    resume_run(run, process__stop_at_step=None)
    assert_undisturbed(run, straight)
    assert (run / FILE).read_bytes() == before == (straight / FILE).read_bytes()
    assert (run / "train.log").read_text().count(f"{KEY}: ") == 1


def copied(run: Path, to: Path) -> Path:
    (to / "checkpoints").mkdir(parents=True)
    for path in [run / "config.yaml", run / FILE, *(run / "checkpoints").glob("*")]:
        (to / path.relative_to(run)).write_bytes(path.read_bytes())
    return to


@pytest.mark.slow
def test_evaluations_and_predictions_use_what_is_kept(straight: Path, tmp_path: Path) -> None:
    """Also where the training rows are different ones, or missing."""
    known = result(straight)
    other = written(tmp_path / "b.h5", table() * 3 + 1, np.nan_to_num(table(64, seed=1)))
    scores = score_checkpoint(straight, "test", [other])
    assert scores["loss"] == pytest.approx(known["test/loss"], rel=1e-6)
    run = copied(straight, tmp_path / "run")
    values = stored(run)
    values["mean"] = [mean + 1 for mean in values["mean"]]
    (run / FILE).write_text(json.dumps({KEY: values}))
    assert score_checkpoint(run, "test", [])["loss"] != scores["loss"]
    x = np.nan_to_num(table(64, seed=1))
    assert not torch.equal(lab.load_run(run).predict(x), lab.load_run(straight).predict(x))
    restored = restore(run, "test", [f"{KEY}.mean=[0.5]"])
    assert list(restored.experiment.config.data.transforms["normalize"]["mean"]) == [0.5] * 5


@pytest.mark.slow
def test_a_resume_with_other_training_rows_keeps_them(straight: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "b.h5", np.nan_to_num(table()) * 2)
    run = stopped(tmp_path / "run", path)
    before = (run / FILE).read_bytes()
    resume_run(run, process__stop_at_step=None, data__path=str(straight.parent / "a.h5"))
    assert (run / FILE).read_bytes() == before


def test_missing_or_damaged_values_are_an_error(straight: Path, tmp_path: Path) -> None:
    run = copied(straight, tmp_path / "run")
    (run / FILE).write_text(json.dumps({KEY: {"mean": [0.0], "std": "1"}}))
    with pytest.raises(CorruptFileError, match="needs lists of numbers"):
        lab.load_run(run)
    (run / FILE).unlink()
    with pytest.raises(ConfigError, match=r"mean, data.transforms.normalize.std: auto, but .* - copy the file"):
        lab.load_run(run)


@pytest.mark.slow
def test_three_ranks_train_with_the_numbers_of_one(straight: Path, tmp_path: Path) -> None:
    path = f"data.path={straight.parent / 'a.h5'}"
    more = ("trainer=ddp", "hardware.num_procs=3", "trainer.global_batch_size=18", path)
    run = start_run(tmp_path / "run", *EIGHT[:-1], *CHAIN, FIELDS, *more)
    assert (run / FILE).read_bytes() == (straight / FILE).read_bytes()


def test_a_notebook_has_numbers(straight: Path) -> None:
    cfg = compose(*EIGHT, *CHAIN, FIELDS, f"data.path={straight.parent / 'a.h5'}")
    parts = lab.build(cfg)
    batch = next(iter(parts.loaders["train"]))["x"]
    parts.close()
    assert batch.abs().max() < 20


# -- mistakes --------------------------------------------------------------------------------------------------------


def with_inf() -> np.ndarray:
    x = table()
    x[77, 3] = np.inf
    return x


@pytest.mark.one_quick(3)
@pytest.mark.parametrize(
    ("x", "overrides", "line"),
    [
        (table, ["data/transforms=[to_float,normalize]", "data.transforms.normalize.field=[x,y]"], "one field"),
        (table, ["data.transforms.normalize.field=z"], r"field='z': the batch has \['x', 'y'\]"),
        (table, ["data.transforms.normalize.dim=2"], r"dim=2: x has the shape \(B, 5\)"),
        (table, ["data.transforms.normalize.dim=0"], r"dim=0: x has the shape \(B, 5\)"),
        (lambda: IMAGES, ["data/transforms=[normalize]"], "put ToFloat before it"),
        (with_inf, [], r"x contains inf in column 3"),
        (table, ["data.transforms.normalize.std=[1.0,2.0]"], "as many std > 0 as mean"),
        (table, ["data.transforms.normalize.mean=aut"], r"data.transforms.normalize.mean: .*auto"),
    ],
)
def test_mistakes(tmp_path: Path, x: Callable[[], np.ndarray], overrides: list[str], line: str) -> None:
    path = written(tmp_path / "a.h5", x())

    def made() -> Normalize:
        node, _ = computed(path, *overrides)
        return Normalize(**{key: value for key, value in node.items() if key != "_target_"})

    with pytest.raises(ConfigError, match=line):
        made()


class Endless:
    """A stream."""

    def __init__(self, split: str) -> None:
        pass

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": torch.ones(5)}


@needs("conf/data/mixed.yaml")
@pytest.mark.slow
def test_a_stream_ragged_samples_and_parts_are_refused(tmp_path: Path) -> None:
    from samebits.data import Stream

    config = check(compose(*CHAIN, "data.path=" + written(tmp_path / "a.h5", table())[10:], FIELDS))
    with pytest.raises(ConfigError, match="a stream has none - give numbers"):
        with_statistics(config, Stream(Endless("train")), world_of_one())
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for split in ("train", "val", "test"):
            file[f"{split}/x/values"], file[f"{split}/x/offsets"] = np.ones(9, np.float32), np.array([0, 2, 9])
            file[f"{split}/y"] = np.arange(2)
    with pytest.raises(ConfigError, match="differ in length"):
        computed(f"data.path={tmp_path / 'b.h5'}", "data.input_shape=[1]")
    part = (
        "data=mixed",
        "+data@data.parts.a=h5",
        "+data.weights.a=1",
        "+data/transforms@data.parts.a.transforms=normalize",
    )
    own = (f"data.parts.a.path={tmp_path / 'a.h5'}", f"data.parts.a.{FIELDS[5:]}")
    config = check(compose(*part, *own, *(f"data.parts.a.transforms.normalize.{k}=auto" for k in ("mean", "std"))))
    with pytest.raises(ConfigError, match=r"data.parts.a.transforms.normalize: auto works only in data.transforms"):
        with_statistics(config, None, world_of_one())


# -- missing values --------------------------------------------------------------------------------------------------


def test_missing_values_are_filled_and_marked() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0], [float("nan"), 5.0, float("nan")]])
    out = FillMissing("x", -1.0, [0, 1])({"x": x}, torch.arange(2))["x"]
    assert out.tolist() == [[1, -1, 3, 0, 1], [-1, 5, -1, 1, 0]]
    assert torch.isnan(x).sum() == 3  # the batch itself is not changed
    said = "x: NaN -> 0, and 1 new column with 1 where there was NaN in the column 2 (FillMissing)"
    assert FillMissing("x", 0, [2]).describe({}) == [said]


@pytest.mark.slow
def test_a_run_marks_the_columns_that_lack_values_in_its_training_rows(tmp_path: Path) -> None:
    other = table(64, seed=1)
    other[::3, 0] = np.nan  # filled too, without a column of its own
    path = written(tmp_path / "a.h5", table(), other)
    chain = ("data/transforms=[to_float,normalize,missing]", *AUTO)
    cfg = compose(*EIGHT, *chain, FIELDS, path)
    assert (cfg.data.transforms.missing.columns, cfg.data.input_shape, cfg.model.input_shape) == ([1, 3], [7], [7])
    run = start_run(tmp_path / "run", *EIGHT, *chain, FIELDS, path)
    assert all(np.isfinite(line["train/loss"]) for line in metrics(run) if "train/loss" in line)
    # another file, without missing values, keeps the columns
    full = written(tmp_path / "b.h5", np.nan_to_num(table()))
    assert np.isfinite(score_checkpoint(run, "test", [full])["loss"])
    assert (
        "x: NaN -> 0, and 2 new columns with 1 where there was NaN in the columns 1, 3 (FillMissing)"
        in (run / "train.log").read_text()
    )


@pytest.mark.slow
def test_the_columns_follow_the_split(tmp_path: Path) -> None:
    x = table()
    x[:100] = np.nan_to_num(x[:100])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["rows"] = x, np.zeros(len(x), dtype=np.int64), np.arange(100)
    shares = "data.splits={train: {group: /, index: rows}, val: {group: /}, test: null}"
    common = ("data/transforms=[to_float,missing]", FIELDS, f"data.path={tmp_path / 'a.h5'}", "data.num_outputs=2")
    assert compose(*common, shares).data.transforms.missing.columns == []
    cfg = compose(*common, "data.split_ratio=80/10/10")
    assert (cfg.data.transforms.missing.columns, cfg.data.input_shape) == ([1, 3], [7])
    replaced = compose(*common, "data.split_ratio=80/10/10", "data.missing=0")  # the rows have no NaN then
    assert (replaced.data.transforms.missing.columns, replaced.data.input_shape) == ([], [5])


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["data.transforms.missing.columns=[5]"], "columns=\\[5\\]: x has the columns 0 to 4"),
        (["data.transforms.missing.columns=[1,1]"], "give each column once"),
        (["data.transforms.missing.columns=[-1]"], r"columns\[0\]: must be >= 0"),
        (["data.transforms.missing.field=z"], "no 'z'"),
        (
            ["data=synthetic", "+data/transforms@data.transforms=missing"],
            f"are found for {OF_ROWS} only - give them",
        ),
    ],
)
def test_mistakes_about_missing_values(tmp_path: Path, overrides: list[str], line: str) -> None:
    chain = [] if overrides[0] == "data=synthetic" else ["data/transforms=[to_float,missing]", FIELDS]
    path = [] if overrides[0] == "data=synthetic" else [written(tmp_path / "a.h5", table())]

    def first() -> Any:
        parts = lab.build(lab.compose(["logger=none", "hardware=cpu", *chain, *path, *overrides]))
        return next(iter(parts.loaders["train"]))

    with pytest.raises(ConfigError, match=line):
        first()


STATISTICS = AUTO


@pytest.mark.one_quick(4)
@pytest.mark.parametrize(
    ("chain", "more", "line"),
    [
        ("to_float,missing,normalize", STATISTICS, "missing: is before data.transforms.normalize: the filled values"),
        ("to_float,missing,normalize", STATISTICS[:1], "put missing after normalize in data/transforms"),
        ("to_float,missing,normalize", (*STATISTICS, "data.transforms.missing.columns=[]"), None),  # it only fills
        ("to_float,missing,normalize", (), None),  # numbers of the user
        ("missing,to_float,normalize", STATISTICS, "missing: is before"),
        ("normalize,to_float,missing", STATISTICS, None),  # floats may be normalized before their conversion
        ("to_float,normalize,missing", STATISTICS, None),
        ("crop,channels_first", (), "crop: is before data.transforms.channels_first: the channels"),
        ("flip,channels_first", (), "flip: is before data.transforms.channels_first: dim=-1 would mirror"),
        ("flip,channels_first", ("data.transforms.flip.dim=-2",), None),
        ("flip,channels_first", ("data.transforms.flip.field=mask",), None),  # another field
        ("to_float,channels_first,flip,crop", (), None),
        ("normalize,flip", ("data.transforms.normalize.mean=[null]",), "normalize.mean: expected a list"),
        ("channels_first,flip", ("data.transforms.channels_first.field=3",), "channels_first.field: expected text"),
        ("channels_first,flip", ("data.transforms.channels_first.field=[[x]]",), "channels_first.field: expected text"),
        ("missing,normalize", (*STATISTICS, "data.transforms.missing.columns=3"), "missing.columns: expected"),
        ("cast,to_float", (), None),  # tables, of which both are right
    ],
)
def test_an_order_with_wrong_values_is_refused(tmp_path: Path, chain: str, more: Any, line: str | None) -> None:
    words = (f"data/transforms=[{chain}]", FIELDS, written(tmp_path / "a.h5", table()), *more)
    if line is None:
        compose(*words)
        return
    with pytest.raises(ConfigError, match=line):
        compose(*words)


@needs("conf/data/mixed.yaml")
def test_parts_come_before_the_transforms_of_all(tmp_path: Path) -> None:
    part = ("data=mixed", "+data@data.parts.a=h5", "+data.weights.a=1", "data/transforms=[normalize]", *STATISTICS)
    own = ("+data/transforms@data.parts.a.transforms=missing", f"data.parts.a.{FIELDS[5:]}")
    path = written(tmp_path / "a.h5", table())[10:]
    with pytest.raises(ConfigError, match=r"data\.parts\.a\.transforms\.missing: is before data\.transforms\.norm"):
        compose(*part, *own, f"data.parts.a.path={path}")


def test_the_kept_numbers_are_those_that_are_used(tmp_path: Path) -> None:
    """Also beside a number of the user, for each type of column, and for float64 values far from 0."""
    random = np.random.default_rng(0)
    x = np.stack([random.normal(size=90) + 1.7e9, np.full(90, 0.1), np.full(90, np.nan)], 1)
    for given, which in (("std=[2.0]", "mean=auto"), ("mean=[3.0]", "std=auto"), ("dim=1", "auto")):
        folder = tmp_path / which.replace("=", "_")
        folder.mkdir()
        path = written(folder / "a.h5", x)
        config = check(compose("data/transforms=[normalize]", *AUTO, FIELDS, path, "hardware=cpu", f"{KEY}.{given}"))
        lines: list[str] = []
        sets = make_datasets(config)
        made = with_statistics(config, sets["train"], world_of_one(), folder, say=lines.append)
        node = made.data.transforms["normalize"]
        kept = json.loads((folder / FILE).read_text())[KEY]
        assert (kept["mean"], kept["std"]) == (list(node["mean"]), list(node["std"]))
        assert f"; {which}: from 90 training rows" in lines[0]
        assert ("their std is 1: 1, 2" in lines[0]) == (which != "mean=auto")
        found = Normalize("x", list(node["mean"]), list(node["std"]))({"x": torch.from_numpy(x)}, torch.arange(90))["x"]
        expected = (x - np.array(node["mean"])) / np.array(node["std"])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert abs(found[:, 0].mean()) < 1e-6
    assert (found[:, 1] == 0).all()


@pytest.mark.one_quick
@pytest.mark.parametrize("dtype", ["f2", "i1", "i2", "i8", "u1", "?"])
def test_columns_of_each_type_are_normalized(tmp_path: Path, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 90, (200, 3)).astype(dtype)
    x[:, 1] = 1
    node, lines = computed(written(tmp_path / "a.h5", x, x[:9]))
    np.testing.assert_allclose(node["mean"], x.astype("f8").mean(0), rtol=1e-12)
    assert node["std"][1] == 1
    assert lines[0].endswith("1 constant or without values, so their std is 1: 1")
