"""Data sets of Hugging Face's `datasets`: Arrow tables that are memory-mapped, and streams. Requires the extra
`datasets`.

Rows of a map-style data set can be read in any order, without a copy of the table in memory. A stream can only be read
in the order of its shards, so it is shuffled in blocks. Its state is saved, and a resumed run continues from it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lab.datasets.columns import (
    Columns,
    TableRows,
    extremes_of,
    flattened,
    joined_values,
    missing_rule,
    rows_of_split,
    sorted_classes,
)
from samebits.errors import ConfigError
from samebits.extras import need
from samebits.schema import NotNegativeInt

SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # files that save_to_disk writes


class HuggingFace(TableRows):
    """A `BatchDataset` of a data set of `datasets`.

    path: a folder of `save_to_disk`, or an argument of `load_dataset`: a name on the Hub, or a folder of files. name,
    revision: configuration and commit on the Hub. fields, missing: see lab.datasets.columns. splits: {split: {of: its
    name there, rows: [BEGIN, END] or null, by: random, blocks or a column, whose equal values stay together}}. folds,
    fold, fold_repeat, stratify_by: see h5rows.Dataset; stratify_by is a column.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str | Sequence[str] | None],
        splits: Mapping[str, Mapping[str, Any] | None],
        split: str,
        name: str | None = None,
        revision: str | None = None,
        missing: Literal["refuse", "nan"] = "refuse",
        folds: int | None = None,
        fold: int | None = None,
        fold_repeat: NotNegativeInt = 0,
        stratify_by: str | None = None,
    ) -> None:
        source = open_source(path, name, revision)
        entry, key = splits[split] or {}, f"data.splits.{split}"
        of = source.split_there(entry, key)
        self._origin = (path, name, revision, of)
        self.columns = columns = source.columns(fields, missing_rule(missing))
        self.spec, self.class_names = columns.spec, columns.class_names | source.labels(columns)
        self._table, self._where = source.splits[of].select_columns(columns.names).with_format("arrow"), f"{path}, {of}"
        column = functools.partial(source.whole_column, of)
        self._rows = rows_of_split(
            np.arange(len(self._table)), entry, key, column, folds, fold, fold_repeat, stratify_by
        )
        if not len(self):
            raise ConfigError(f"{key}: is empty in {self._where}; give a larger range, or null")

    def where(self, row: int) -> str:
        """Return a text for messages: the number of a row in its split of `datasets`, and the split's name."""
        return f"row {self._rows[row]} of {self._where}"

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Write sample rows[i] into out[field][i] and return out. rows: (B,) int64. Thread-safe."""
        rows = self._rows[rows]
        order = np.argsort(rows, kind="stable")  # read in file order: neighboring rows are in the same page
        found = self.columns.arrays(self._table[rows[order].tolist()], self._where)
        if out is None:
            out = {field: torch.empty((len(rows), *shape), dtype=dtype) for field, (shape, dtype) in self.spec.items()}
        for field, values in found.items():
            out[field].numpy()[order] = values
        return out


class HuggingFaceStream:
    """A stream of `load_dataset(streaming=True)`; arguments as of HuggingFace, but an entry of `splits` has only `of`.

    shuffle_block: training samples that are shuffled together, differently in each pass over the data; 0 or 1: no
    shuffling. `IterableDataset.shuffle` is not used, because its state lacks its buffer. seed: of the shuffling.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str | Sequence[str] | None],
        splits: Mapping[str, Mapping[str, Any] | None],
        split: str,
        seed: int,
        name: str | None = None,
        revision: str | None = None,
        missing: Literal["refuse", "nan"] = "refuse",
        shuffle_block: NotNegativeInt = 1000,
    ) -> None:
        source = open_source(path, name, revision, streaming=True)
        of = source.split_there(splits[split] or {}, f"data.splits.{split}")
        self.columns, self._where = source.columns(fields, missing_rule(missing)), f"{path}, {of}"
        self.class_names = source.labels(self.columns)
        self._stream = source.splits[of].select_columns(self.columns.names).with_format("arrow")
        self._block = shuffle_block if split == "train" else 0
        self._seed = seed
        self._first = self._begin = self._stream.state_dict()
        self._blocks = self._given = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        import pyarrow as pa

        self._stream.load_state_dict(copy.deepcopy(self._begin))
        rows, skipped = iter(self._stream), self._given
        while block := list(islice(rows, max(1, self._block))):
            arrays = self.columns.arrays(pa.concat_tables(block), self._where)
            drawn = np.random.Philox(key=[self._seed, self._blocks]).random_raw(len(block))
            order = np.argsort(drawn, kind="stable")
            for i in order[skipped:] if self._block > 1 else range(skipped, len(block)):
                self._given += 1
                yield {field: torch.from_numpy(np.array(values[i])) for field, values in arrays.items()}
            self._begin, self._blocks, self._given, skipped = self._stream.state_dict(), self._blocks + 1, 0, 0
        self._begin = self._first  # another pass, with blocks of other numbers

    def state_dict(self) -> dict[str, Any]:
        """Return, for a checkpoint, the start of the present block and how many of its samples were returned."""
        return {"begin": copy.deepcopy(self._begin), "blocks": self._blocks, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._begin, self._blocks, self._given = copy.deepcopy(state["begin"]), state["blocks"], state["given"]


class Source:
    """The splits of a data set of `datasets`, all with the same columns. streaming: they are streams."""

    def __init__(self, path: str, name: str | None, revision: str | None, streaming: bool) -> None:
        self._where = f"data.path={path}"
        library = need("datasets", self._where, "datasets", "datasets")
        is_saved = any((Path(path) / file).is_file() for file in SAVED)
        if is_saved and (name is not None or revision is not None):
            raise ConfigError(f"data.name={name}, data.revision={revision}: have no effect on a folder of save_to_disk")
        if is_saved and streaming:
            raise ConfigError(
                f"{self._where}: was written by save_to_disk, which is not a stream - use data=huggingface"
            )
        try:
            if is_saved:
                loaded = library.load_from_disk(path)
            else:
                loaded = library.load_dataset(path, name, revision=revision, streaming=streaming)
        except Exception as error:  # errors of `datasets`, of the network and of files
            said = " ".join(str(error).split())[:300]
            raise ConfigError(f"{self._where}: `datasets` cannot load it: {said or type(error).__name__}") from None
        self.splits: dict[str, Any] = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
        self._first = next(iter(self.splits.values()))
        self.streaming, self._features = streaming, self._first.features
        if self._features is None:
            raise ConfigError(f"{self._where}: the stream does not declare its columns - use data=huggingface")

    def split_there(self, entry: Mapping[str, Any], key: str) -> str:
        """Return the split that an entry of data.splits names."""
        allowed = ["of"] if self.streaming else ["of", "rows", "by"]
        if unknown := sorted(set(entry) - {*allowed, *([] if self.streaming else ["fold"])}):
            raise ConfigError(f"{key} has {unknown[0]!r}; allowed: {', '.join(allowed)}")
        if entry.get("of") not in self.splits:
            remedy = "" if self.streaming else ", or data.split_ratio=80/10/10, which divides train"
            raise ConfigError(
                f"{key}.of={entry.get('of')}: {self._where} has no such split; it has {', '.join(self.splits)} - name "
                f"one, or set {key}=null{remedy}"
            )
        return str(entry["of"])

    def columns(self, fields: Mapping[str, Any], missing: str) -> Columns:
        """Return the fields as columns."""

        def cell(name: str) -> Any:
            rows = self._first.select_columns([name]).with_format("arrow")
            table = next(iter(rows)) if self.streaming else rows[:1]
            return table.column(0).combine_chunks()

        def classes(name: str) -> list[str]:
            what = f"data.fields: {self._where}: column {name!r}"
            if self.streaming:
                raise ConfigError(f"{what} has strings; their classes in a stream are unknown - use data=huggingface")
            names = set().union(*(split.unique(name) for split in self.splits.values()))
            return sorted_classes(names, sum(map(len, self.splits.values())), what)

        schema = self._features.arrow_schema
        made = Columns(fields, schema, self._where, missing, cell, functools.cache(classes))
        for split, dataset in self.splits.items():
            for name in made.names:
                if (dataset.features or {}).get(name) != self._features[name]:
                    first = next(iter(self.splits))
                    raise ConfigError(f"{self._where}: the column {name!r} of {split} has another type than in {first}")
        return made

    def whole_column(self, split: str, name: str, key: str) -> np.ndarray:
        """Return a column of numbers or strings of a split, (rows,)."""
        if name not in self._features:
            raise ConfigError(f"{key}={name}: {self._where} has no such column; it has {list(self._features)}")
        column = self.splits[split].select_columns([name]).with_format("arrow")[:].column(0)
        return joined_values([column], f"{key}={name}: {self._where}")

    def labels(self, columns: Columns) -> dict[str, list[str]]:
        """Return {field: class names} of the fields that are a ClassLabel."""
        given = {field: self._features.get(name) for field, name in columns.fields.items() if isinstance(name, str)}
        return {field: list(kind.names) for field, kind in given.items() if type(kind).__name__ == "ClassLabel"}

    def extremes(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest value of a column of integers, or the first and the last class."""
        if type(kind := self._features[name]).__name__ == "ClassLabel":
            return 0, int(kind.num_classes) - 1
        if self.streaming:
            raise ConfigError(f"data.num_outputs: the largest {name!r} of a stream is unknown - set data.num_outputs")
        return extremes_of(
            flattened(split.with_format("arrow")[:].column(name)) for split in self.splits.values() if len(split)
        )


@functools.lru_cache(maxsize=4)  # called for each split, input_shape and num_outputs
def open_source(path: str, name: str | None = None, revision: str | None = None, streaming: bool = False) -> Source:
    """Return the data set at a path."""
    return Source(path, name, revision, streaming)
