"""Several validation sets by name: scored, kept, watched, searched and reported like the one called val."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from common import QUICK, needs
from omegaconf import OmegaConf

import h5rows
from h5rows.integration import rows_in_share, split_version
from lab.config import Config
from lab.loaders import make_dataset, make_datasets, shared_rows
from lab.program import PROGRAM
from lab.restore import score_checkpoint
from samebits.errors import ConfigError
from samebits.testing import (
    SMALL,
    assert_undisturbed,
    broken_off,
    compose,
    last_checkpoint,
    result,
    resume_run,
    scores,
    start_run,
    values,
)
from samebits.testing.processes import slow

HARD = ("+data.splits.val_hard={group: test, rows: [0,0.4]}", "+data.splits.test_more.group=val")
RUN = (*QUICK, *HARD, "trainer.max_steps=12", "trainer.eval_every=3", "trainer.save_every=4")
WATCHED = ("monitor.key=val_hard/accuracy", "monitor.mode=max", "trainer.keep_best=2")


@pytest.mark.slow
def test_each_is_scored_and_one_of_them_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """val_hard beside val on the way, test_more at the end alone; evaluate.py says the same of the best weights. A run
    that breaks off between evaluations goes on with the best by val_hard."""
    run = start_run(tmp_path / "run", *RUN, *WATCHED)
    assert_undisturbed(broken_off(tmp_path / "broken", monkeypatch, [10], *RUN, *WATCHED), run)
    hard = values(run, "val_hard/accuracy")
    assert len(hard) == len(values(run, "val/accuracy")) == 4
    assert [value for value, _ in last_checkpoint(run)["best"]] == sorted(hard, reverse=True)[:2]
    assert not values(run, "test_more/loss")
    final = result(run)
    assert final["val_hard/accuracy"] == max(hard)
    assert final["test_more/loss"] == pytest.approx(final["val/loss"])
    assert final["val_hard/loss"] != pytest.approx(final["test/loss"])
    scores = score_checkpoint(run, "val_hard", [])
    assert {f"val_hard/{name}": value for name, value in scores.items()} == pytest.approx(
        {name: value for name, value in final.items() if name.startswith("val_hard/")}
    )
    for override, line in (
        ("data=h5", r"data=h5: chooses an option of a group, but .* such as data\.path=\.\.\.$"),
        ("model=mlp", r"model=mlp: chooses an option of a group, but .* such as model\.input_shape=\.\.\.$"),
        ("data/transforms=to_float", r"data/transforms=to_float: chooses an option of a group"),
        ("hydra.run.dir=x", r"hydra: no such key \(the config has: [^)]*\bmodel\b"),
        ("dta.path=x", r"dta: no such key - did you mean data\? \(the config has: "),
        ("data.splts.test=null", r"data\.splts: no such key - did you mean data\.splits\? \(data has: "),
        ("seed.x=1", r"seed\.x: seed is a value, not a group$"),
    ):
        with pytest.raises(ConfigError, match=f"^{line}"):
            score_checkpoint(run, "test", [override])
    with pytest.raises(ConfigError, match=r"^task\.metrics={}: has no effect, .* stay - remove it$"):
        score_checkpoint(run, "test", ["task.metrics={}"])
    with pytest.raises(ConfigError, match=r"^data\.path: is empty - set data\.path=\.\.\., or remove it$"):
        score_checkpoint(run, "test", ["data.path="])
    with pytest.raises(ConfigError, match=r"^--split val_soft: no such split \(data\.splits has train, val, test, "):
        score_checkpoint(run, "val_soft", [])
    for override, said in (
        (
            "data.split_ratio=10/10/80",
            r"set data\.splits\.test\.rows, such as data\.splits\.test\.rows=\[0\.9, 1\]$",
        ),
        ("data.split_by=blocks", r"set data\.splits\.test\.rows"),
        ("hardware.num_procs=2", r"predict takes --procs 2$"),
        ("data.overfit=10", "only training reads it"),
        ("hardware.cuda_graph=true", "only training reads it"),
        ("data.order.drop_last=false", "only training reads it"),
        ("data/order=first", "only training reads it"),
        ("callback=pictures", "only training reads it"),
    ):
        with pytest.raises(ConfigError, match=rf"^{override}: has no effect on a trained model.*{said}"):
            score_checkpoint(run, "test", [override])


@pytest.mark.slow
def test_without_the_usual_one(tmp_path: Path) -> None:
    """data.splits.val=null and val_hard alone: early stopping by it; the usual monitor is named as missing."""
    alone = (*RUN, "data.splits.val=null")
    with pytest.raises(ConfigError, match=r"^monitor\.key: no score 'val/loss' - did you mean val_hard/loss\? "):
        compose(*alone)
    run = start_run(
        tmp_path / "run", *alone, "monitor.key=val_hard/loss", "trainer.early_stop_patience=1", "optim.lr=0"
    )
    assert result(run)["step"] == 6
    assert "val/loss" not in result(run)


@pytest.mark.slow
def test_other_names_are_one_line() -> None:
    line = (
        r"^data\.splits\.hard: names of splits must begin with train, val \(evaluated during training\) or test "
        r"\(evaluated at the end\), such as val_hard - rename it, or set it to null$"
    )
    with pytest.raises(ConfigError, match=line):
        compose(*QUICK, "+data.splits.hard.group=test", "trainer.max_steps=1")
    compose(*QUICK, "+data.splits.hard=null", "trainer.max_steps=1")


def with_hard(path: Path, **fields: np.ndarray) -> Path:
    """Groups train, val and val_hard of these fields; val_hard's values are greater by one."""
    with h5py.File(path, "w") as file:
        for split in ("train", "val", "val_hard"):
            for name, values in fields.items():
                file[f"{split}/{name}"] = values + (split == "val_hard")
    return path


@pytest.mark.slow
def test_the_labels_of_all_of_them_are_looked_at(tmp_path: Path) -> None:
    """A label that the training set does not have is named, whichever split has it."""
    path = with_hard(tmp_path / "labels.h5", image=np.zeros((8, 4), np.uint8), label=np.arange(8) % 3)
    common = (*QUICK, f"data.path={path}", "data.splits.test=null", "trainer.max_steps=1")
    assert compose(*common).data.num_outputs == 3
    with pytest.raises(Exception, match=r"val_hard.* has the label 3, but the classes are 0 to 2"):
        compose(*common, "+data.splits.val_hard.group=val_hard")


@needs("conf/model/gpt.yaml")
@pytest.mark.slow
def test_text_has_them_too(tmp_path: Path) -> None:
    """A window of a stream is consecutive in every split but train's."""
    path = with_hard(tmp_path / "t.h5", tokens=np.arange(203, dtype=np.int16) % 16)
    net = ("model=gpt", "model.width=16", "model.heads=2", "model.layers=1", "task=next_token")
    run = start_run(
        tmp_path / "run", *SMALL, *net, "data=tokens", f"data.path={path}", "data.window=12", "data.stride=1",
        "data.splits.test=null", "+data.splits.val_hard.group=val_hard", "data.num_outputs=20", "trainer.max_steps=3",
        "trainer.eval_every=1", "monitor.key=val_hard/loss",
    )  # fmt: skip
    assert len(values(run, "val_hard/loss")) == len(values(run, "val/loss")) == 3
    assert last_checkpoint(run)["best_score"] == min(values(run, "val_hard/loss"))


# ---- what a sweep makes of them


def test_a_search_follows_and_prunes_by_one() -> None:
    cfg: Mapping[str, Any] = OmegaConf.to_container(compose(*RUN))  # type: ignore[assignment]
    scores = {"val_hard/accuracy", "val_hard/loss", "test_more/loss"}
    assert scores <= {*PROGRAM.scores(cfg, "val", "test")}
    assert "test_more/loss" not in PROGRAM.scores(cfg, "val")


@pytest.mark.slow
def test_ranks_score_alike(tmp_path: Path) -> None:
    """The best weights of a finished run: 100 samples of val_hard and 250 of val, for three ranks."""
    one = start_run(tmp_path / "1", *RUN, "trainer.global_batch_size=66")
    three = Path(shutil.copytree(one, tmp_path / "3"))
    cfg = OmegaConf.load(one / "config.yaml")
    cfg.trainer.strategy, cfg.hardware.num_procs = "ddp", 3  # type: ignore[union-attr]
    OmegaConf.save(cfg, three / "config.yaml")
    (three / "result.json").unlink()
    resume_run(three)
    assert {"val/loss", "val_hard/loss", "test/loss"} <= scores(one).keys()
    assert scores(three) == pytest.approx(scores(one), rel=1e-6)


@needs("conf/data/mixed.yaml")
@pytest.mark.parametrize("rules", [1, slow(2), slow(3)])
def test_a_run_keeps_the_rule_of_its_splits(tmp_path: Path, rules: int) -> None:
    """rules=2 chooses the rows that 0.2 chose, rules=3 those of today: of data=h5, of a part of data=mixed, and for the
    columns that FillMissing adds, which are found while the config is composed."""
    size, x = 3000, np.zeros((3000, 2), dtype=np.float32)
    with split_version(1):
        old = rows_in_share(None, size, [0, 0.8], "rows")
    new = rows_in_share(None, size, [0, 0.8], "rows")
    x[np.setdiff1d(old, new)[0], 0] = x[np.setdiff1d(new, old)[0], 1] = np.nan
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["row"] = x, np.arange(size) % 3, np.arange(size)
    keys = (f"path={tmp_path / 'a.h5'}", "fields={x: x, y: y}", "split_ratio=80/10/10")
    alone = compose(
        *(f"data.{key}" for key in keys), "+data.fields.row=row", "data/transforms=[to_float,missing]", f"rules={rules}"
    )
    assert alone.data.transforms.missing.columns == [int(rules == 3)]
    parts = ("data=mixed", "+data@data.parts.a=h5", "+data.weights.a=1", f"rules={rules}")
    mixed = compose(*parts, *(f"data.parts.a.{key}" for key in keys), "+data.parts.a.fields.row=row")
    for data in (make_dataset(Config.of(alone), "train"), make_dataset(Config.of(mixed), "train").parts["a"]):
        assert np.array_equal(data.column("row"), new if rules == 3 else old)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began with rules=2 and breaks off goes on with the rows of its splits."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).standard_normal((3000, 4), dtype=np.float32)
        file["y"] = np.arange(3000) % 3
    run = (*QUICK, f"data.path={tmp_path / 'a.h5'}", "data.fields={x: x, y: y}", "data.split_ratio=80/10/10", "rules=2")
    run = (*run, "trainer.max_steps=8", "trainer.eval_every=2", "trainer.save_every=3")
    whole = start_run(tmp_path / "run", *run)
    assert_undisturbed(broken_off(tmp_path / "broken", monkeypatch, [5], *run), whole)
    other = start_run(tmp_path / "other", *run, "rules=3")
    assert values(other, "val/loss") != values(whole, "val/loss")


def test_a_column_is_read_once_for_all_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["patient"] = np.zeros((300, 2)), np.arange(300) % 3, np.arange(300) % 50
    keys = (f"data.path={tmp_path / 'a.h5'}", "data.fields={x: x, y: y}", "data.split_ratio=80/10/10")
    config = Config.of(compose(*keys, "data.split_by=patient"))
    reads: list[str] = []
    dataset: Any = inspect.getmodule(h5rows.Dataset)
    own = dataset.column_of
    monkeypatch.setattr(dataset, "column_of", lambda *given: (reads.append(given[2]), own(*given))[1])
    sets = make_datasets(config)
    assert (sum(map(len, sets.values())), reads) == (300, ["patient"])


@pytest.mark.one_quick(3)
@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        (["data.split_ratio=80/10/10"], set()),
        (["data.split_ratio=80/10/10", "data.split_by=patient"], set()),
        (["data.split_ratio=80/0/20", "data.folds=4", "data.fold=1", "data.stratify_by=y"], set()),
        (["data.splits.train.rows=[0,0.8]", "data.splits.val.rows=[0.8,1]", "data.splits.test.group=other"], set()),
        (["data.splits.train.rows=[0,0.8]", "data.splits.test.rows=[0.9,1]"], {"val"}),
        (["data.splits.train.rows=[0,0.8]", "data.splits.val.rows=[0.7,0.9]", "data.splits.test=null"], {"val"}),
        (["+data.splits.train.by=patient", "data.splits.train.rows=[0,0.8]", "data.splits.val.rows=[0.8,1]"],
         {"val", "test"}),
        (["data.splits.train.index=some", "data.splits.val.index=some", "data.splits.val.rows=[0,0.5]",
          "data.splits.test.index=rest"], {"val"}),
        (["data.splits.train.group=other", "data.splits.val.group=other"], {"val"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [300, 100_000])
def test_rows_of_train_in_another_split_are_counted(
    tmp_path: Path, size: int, changes: list[str], shared: set[str]
) -> None:
    order = np.random.default_rng(0).permutation(size)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group, first in (("/", 0), ("other", size)):
            file[f"{group}/x"], file[f"{group}/row"] = np.zeros((size, 2), np.float32), first + np.arange(size)
            file[f"{group}/y"], file[f"{group}/patient"] = np.arange(size) % 3, order % 40
            file[f"{group}/some"], file[f"{group}/rest"] = order[: size // 2], order[size // 2 :]
    root = [] if "split_ratio" in changes[0] else [f"data.splits.{s}.group=/" for s in ("train", "val", "test")]
    path = (f"data.path={tmp_path / 'a.h5'}", "data.fields={x: x, y: y}", "+data.fields.row=row")
    sets = make_datasets(Config.of(compose(*path, *root, *changes)))
    rows = {split: set(dataset.column("row").tolist()) for split, dataset in sets.items()}
    expected = {split: len(rows[split] & rows["train"]) for split in rows if split != "train"}
    assert {split for split, count in expected.items() if count} == shared
    found = [
        re.match(r"data.splits.(\w+): ([\d,]+) of its ([\d,]+) rows are rows of train", line)
        for line in shared_rows(sets)
    ]
    assert {one[1]: int(one[2].replace(",", "")) for one in found if one} == {k: n for k, n in expected.items() if n}
    assert len(found) == len(shared)


@pytest.mark.slow
@needs("conf/model/gpt.yaml")
def test_windows_of_the_stream_of_train_are_counted(tmp_path: Path) -> None:
    """However the group and the dataset are written. A share of a stream is refused: its windows would overlap."""
    for name, size in (("a", 200), ("b", 100)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["train/tokens"], file["val/tokens"] = np.arange(size), np.arange(size)
    keys = ("data=tokens", "model=gpt", "task=next_token", f"data.path={tmp_path}/*.h5", "data.window=10")

    def lines(*changes: str) -> list[str]:
        return shared_rows(make_datasets(Config.of(compose(*keys, *changes))))

    assert lines() == []
    assert lines("data.fields.tokens=/train/tokens") == lines("data.splits.val.group=/train/") != []
    (line,) = lines("data.splits.val.group=train")
    assert line.startswith(f"data.splits.val: {19 + 9} of its {19 + 9} rows are rows of train too")
    said = r"^data\.splits\.val\.rows=\[0\.9, 1\]: data=tokens reads all windows of a group"
    with pytest.raises(ConfigError, match=said):
        lines("data.splits.val.group=train", "+data.splits.val.rows=[0.9,1]")


@pytest.mark.slow
def test_a_run_warns_once_of_rows_of_train(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *QUICK, "data.splits.val.group=train", "trainer.max_steps=1")
    lines = [line for line in (run / "train.log").read_text().splitlines() if "are rows of train too" in line]
    assert len(lines) == 1
    assert re.search(r"data\.splits\.val: ([\d,]+) of its \1 rows", lines[0])
