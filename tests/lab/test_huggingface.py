"""data=huggingface and huggingface_stream: the values of `datasets`, runs that resume, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, needs

from lab.config import Config
from lab.loaders import make_dataset
from samebits.data import Stream
from samebits.errors import ConfigError, RunFailed
from samebits.testing import assert_equal, assert_undisturbed, compose, killed_at, result, start_run

pytestmark = needs("conf/data/huggingface.yaml", "src/lab/datasets/huggingface.py", "conf/data/huggingface_stream.yaml")
datasets, pq = pytest.importorskip("datasets"), pytest.importorskip("pyarrow.parquet")
from lab.datasets.huggingface import HuggingFace, HuggingFaceStream  # noqa: E402

SPLITS = {"train": {"of": "train", "rows": [0, 0.8]}, "val": {"of": "train", "rows": [0.8, 1]}, "test": {"of": "test"}}
FIELDS = {"x": "emb", "y": "label", "z": "kind", "id": "id"}


def made(rows: int, begin: int = 0) -> Any:
    rng = np.random.default_rng(begin)
    label = rng.integers(0, 3, rows)
    emb = (rng.normal(size=(rows, 4)) / 4 + label[:, None]).astype("f4").tolist()
    columns = {"emb": emb, "label": label.tolist(),
               "kind": [("dog", "cat")[k % 2] for k in range(rows)],
               "id": list(range(begin, begin + rows))}  # fmt: skip
    kinds = datasets.Features({
        "emb": datasets.Sequence(datasets.Value("float32"), length=4),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
        "kind": datasets.Value("string"), "id": datasets.Value("int64"),
    })  # fmt: skip
    return datasets.Dataset.from_dict(columns, features=kinds)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to the user's cache, by a run of its own process either."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf") / "saved"
    datasets.DatasetDict(train=made(200), test=made(40, 1000)).save_to_disk(path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What load_dataset takes: Parquet files named after their splits."""
    path = tmp_path_factory.mktemp("hf_files")
    for k in range(3):
        made(50, 50 * k).to_parquet(path / f"train-0000{k}-of-00003.parquet")
    for split in ("validation", "test"):
        made(40, 1000).to_parquet(path / f"{split}-00000-of-00001.parquet")
    return path


def test_values_are_those_of_datasets(saved: Path) -> None:
    data = {split: HuggingFace(str(saved), FIELDS, SPLITS, split) for split in SPLITS}  # type: ignore[arg-type]
    ids = {split: one.gather(np.arange(len(one)))["id"].tolist() for split, one in data.items()}
    assert sorted(ids["train"] + ids["val"]) == [*range(200)]
    assert list(map(len, ids.values())) == [160, 40, 40]
    rows = np.random.default_rng(0).integers(0, 160, 50)
    batch, there = data["train"].gather(rows), datasets.load_from_disk(saved)["train"]
    for k, row in enumerate(batch["id"].tolist()):
        np.testing.assert_array_equal(batch["x"][k], np.array(there[row]["emb"], dtype="f4"))
        assert (int(batch["y"][k]), ["cat", "dog"][batch["z"][k]]) == (there[row]["label"], there[row]["kind"])
    assert data["train"].class_names == {"y": ["a", "b", "c"], "z": ["cat", "dog"]}


RUN = (*QUICK, "data.fields={x: emb, y: label}", "trainer.global_batch_size=16", "trainer.eval_every=10",
       "trainer.save_every=5", "trainer.log_every=5", "trainer.max_steps=30")  # fmt: skip


def test_a_run_learns(saved: Path, tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *RUN, "data=huggingface", f"data.path={saved}", "optim.lr=0.03")
    assert result(run)["test/accuracy"] > 0.8
    assert compose(*RUN, "data=huggingface", f"data.path={saved}").data.num_outputs == 3


def test_shares_and_folds_divide_the_split_train(saved: Path) -> None:
    def ids(*overrides: str) -> list[set[int]]:
        fields = ("data.fields={x: emb, y: label}", "+data.fields.id=id")
        config = Config.of(compose("data=huggingface", f"data.path={saved}", *fields, *overrides))
        sets = [make_dataset(config, split) for split in ("train", "val", "test")]
        return [set() if one is None else {*one.gather(np.arange(len(one)))["id"].tolist()} for one in sets]

    parts = ids("data.split_ratio=60/20/20")
    assert [len(one) for one in parts] == [120, 40, 40]
    assert set.union(*parts) == {*range(200)}
    vals = []
    for fold in range(3):
        own = ("data.splits.train.rows=null", "data.splits.val=null", "data.folds=3", f"data.fold={fold}")
        train, val, test = ids(*own, "data.stratify_by=label")
        assert train | val == {*range(200)}
        assert (len(train) + len(val), len(test)) == (200, 40)
        vals += [*val]
    assert sorted(vals) == [*range(200)]


def test_a_stream_returns_each_sample_once_and_continues(files: Path) -> None:
    def stream(block: int) -> Stream:
        splits, fields = {"train": {"of": "train"}}, {"x": "emb", "id": "id"}
        return Stream(HuggingFaceStream(str(files), fields, splits, "train", seed=1, shuffle_block=block))

    for block in (0, 16, 64):
        whole = stream(block)
        samples = [whole[k] for k in range(400)]
        passes = np.array([int(s["id"]) for s in samples[:300]]).reshape(2, 150)
        for one in passes:
            np.testing.assert_array_equal(np.sort(one), np.arange(150))
        assert np.array_equal(passes[0], passes[1]) == (block == 0)
        for stop in (1, 15, 16, 17, 150, 151, 190, 299):
            first = stream(block)
            for k in range(stop):
                first[k]
            again = stream(block)
            again.load_state_dict(first.state_dict())
            assert_equal([again[k] for k in range(stop, stop + 60)], samples[stop : stop + 60])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["huggingface", "huggingface_stream"])
def test_a_killed_run_resumes_with_the_same_bits(files: Path, tmp_path: Path, way: str) -> None:
    of = () if way == "huggingface" else ("trainer.max_eval_batches=2", "data.shuffle_block=20")
    options = (*RUN, f"data={way}", f"data.path={files}", *of)
    straight = start_run(tmp_path / "straight", *options)
    assert_undisturbed(killed_at(tmp_path / "killed", (6, 18), options), straight)


@pytest.mark.parametrize(("more", "said"), [
    ({"fields": {"x": "q"}}, r"data\.fields\.x: .* has no column 'q'"),
    ({"splits": {"train": {"of": "dev"}}}, r"data\.splits\.train\.of=dev: .* has no such split; it has train, test"),
    ({"splits": {"train": {"off": "dev"}}}, r"data\.splits\.train has 'off'; allowed: of, rows, by"),
    ({"splits": {"train": {"of": "train", "rows": 3}}}, r"data\.splits\.train\.rows=3: must be two shares"),
    ({"splits": {"train": {"of": "train", "rows": [0, 1], "by": "q"}}}, r"by=q: .* has no such column; it has \["),
    ({"splits": {"train": {"of": "train", "fold": "val"}}}, r"fold=val: has no effect without data\.folds"),
    ({"name": "x"}, r"data\.name=x, .*have no effect on a folder of save_to_disk"),
    ({"path": "/nowhere/at/all"}, r"data\.path=/nowhere/at/all: `datasets` cannot load it: "),
])  # fmt: skip
def test_what_cannot_be_read_is_one_line(saved: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        HuggingFace(**{"path": str(saved), "fields": FIELDS, "splits": SPLITS, "split": "train", **more})
    assert "\n" not in str(error.value)


def test_a_stream_refuses_what_it_cannot_know(files: Path, saved: Path) -> None:
    splits = {"train": {"of": "train"}}
    for path, fields, said in (
        (saved, {"x": "emb"}, "written by save_to_disk"),
        (files, {"x": "kind"}, "has strings;"),
    ):
        with pytest.raises(ConfigError, match=said):
            HuggingFaceStream(str(path), fields, splits, "train", seed=0)
    with pytest.raises(ConfigError, match=r"largest 'id' of a stream is unknown - set data\.num_outputs"):
        compose(*RUN, "data=huggingface_stream", f"data.path={files}", "data.fields.y=id")


def test_missing_values_are_refused_or_nan(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"a": [1.0, None], "b": [1, None]}).save_to_disk(tmp_path / "d")
    splits = {"train": {"of": "train"}}
    found = HuggingFace(str(tmp_path / "d"), {"x": "a"}, splits, "train", missing="nan").gather(np.arange(2))
    assert torch.equal(found["x"].isnan(), torch.tensor([False, True]))
    with pytest.raises(RunFailed, match=r"column 'b': 1 of its values is missing"):
        HuggingFace(str(tmp_path / "d"), {"x": "b"}, splits, "train", missing="nan").gather(np.arange(2))


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    values = np.ones(40)
    values[33] = np.inf
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": values})}).save_to_disk(str(tmp_path / "d"))
    found = [
        HuggingFace(
            str(tmp_path / "d"), {"x": "a"}, {"train": {"of": "train", "rows": rows}}, "train"
        ).find_non_finite()
        for rows in ([0, 0.5], [0.5, 1])
    ]
    assert sorted(map(str, found)) == ["None", f"x of row 33 of {tmp_path / 'd'}, train contains inf"]
