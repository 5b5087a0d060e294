"""Choose the rows of a split: shares of a fixed shuffling, and folds of a cross-validation.

The result depends only on the number of rows, the seed, and the values of columns, so it is equal in all processes. No
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, argument
from h5rows.reading.memory import check_memory
from h5rows.reading.opening import shares_of, split_of
from h5rows.reading.shared import coded
from h5rows.row_sets import Block, RandomShare, RowSet, hashed, version_of_splits

_AN_ARRAY = 1 << 16  # a share of so few rows is an array, which takes no more memory than the tables and is faster


def share_of_rows(
    size: int, bounds: Sequence[float], key: str, by: str = "random", seed: int = 0
) -> RowSet | np.ndarray:
    """Return the share [begin, end] of `size` rows after a fixed shuffling, in ascending order: an object with len()
    whose [positions] are row numbers. Its memory is small, 9 bytes per 1,024 rows, except with split_version(1).

    by="blocks": do not shuffle. key: the name of the argument in messages.
    """
    _check_bounds(bounds, key)
    begin, end = (round(bound * size) for bound in bounds)
    if by == "blocks" or begin == end:
        return Block(begin, end)
    if version_of_splits() >= 2:
        check_memory(size // 32, f"{key}: {size:,} row numbers that are shuffled")
        share = RandomShare(size, begin, end, seed)
        return share if len(share) > _AN_ARRAY else np.asarray(share)
    check_memory(32 * size, f"{key}: {size:,} row numbers that are shuffled")
    order = np.argsort(hashed(np.arange(size), seed), kind="stable")
    return np.sort(order[begin:end])


def rows_in_share(
    rows: np.ndarray | None,
    size: int,
    bounds: Sequence[float],
    key: str,
    by: str = "random",
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Return the share [begin, end] of row numbers like `share_of_rows`, but in an array.

    rows: row numbers; None: all `size` rows. groups: (rows,) values: shuffle the groups of rows with equal values
    instead; a group is in the share that contains its middle.
    """
    size = size if rows is None else len(rows)
    if groups is None:
        check_memory(8 * size, f"{key}: {size:,} row numbers")
        chosen = np.asarray(share_of_rows(size, bounds, key, by, seed))
    else:
        chosen = groups_in_share(coded(groups)[1], bounds, key, seed)
    return chosen if rows is None else rows[chosen]


def groups_in_share(groups: np.ndarray, bounds: Sequence[float], key: str, seed: int = 0) -> np.ndarray:
    """Return the positions of the rows whose group is in a share, see `rows_in_share`. groups: (rows,) numbers >= 0."""
    _check_bounds(bounds, key)
    check_memory(32 * len(groups), f"{key}: {len(groups):,} row numbers that are shuffled")
    counts = np.bincount(groups)
    present = np.flatnonzero(counts)
    order = present[np.argsort(hashed(np.arange(len(present)), seed), kind="stable")]
    middles = np.full(len(counts), -1.0)
    middles[order] = (np.cumsum(counts[order]) - counts[order] / 2) / max(1, len(groups))
    inside = (middles >= bounds[0]) & ((middles < bounds[1]) | (bounds[1] == 1))
    return np.flatnonzero(inside[groups])


def _check_bounds(bounds: Sequence[float], key: str) -> None:
    if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= 1:
        raise ConfigError(f"{key}={list(bounds)}: must be two shares with 0 <= begin < end <= 1, such as [0, 0.9]")


def check_folds(folds: Any, fold: Any, repeat: Any, stratify_by: Any) -> None:
    """Raise ConfigError for options of a cross-validation that have a wrong type or do not fit each other."""
    for name, value in {"folds": folds, "fold": fold, "fold_repeat": repeat}.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(f"{argument(name, value)}: must be a whole number")
    if stratify_by is not None and not isinstance(stratify_by, str):
        raise ConfigError(f"{argument('stratify_by', stratify_by)}: must be the name of a dataset in the file")
    if folds is None:
        for name, value in {"fold": fold, "fold_repeat": repeat or None, "stratify_by": stratify_by}.items():
            if value is not None:
                what = f"{argument(name, value)}: has no effect without {argument('folds')}"
                raise ConfigError(f"{what}; add {argument('folds', 5)}, or remove it")
        return
    if folds < 2:
        raise ConfigError(f"{argument('folds', folds)}: must be at least 2")
    if fold is None:
        what = f"{argument('folds', folds)}: has no effect without {argument('fold')}, the fold to validate on"
        raise ConfigError(f"{what}; set {argument('fold', 0)}, or any number below {folds}")
    if not 0 <= fold < folds:
        raise ConfigError(
            f"{argument('fold', fold)}: must be from 0 to {folds - 1}, because {argument('folds', folds)}"
        )
    if repeat is None or repeat < 0:
        raise ConfigError(f"{argument('fold_repeat', repeat)}: must be at least 0")


def fold_splits(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the splits of a cross-validation: train and val are parts of the rows that `train` has in the config.

    data: the arguments of a data set, and perhaps split_ratio and split_by. Raise ConfigError if there is another
    validation split, or if the options do not fit each other.
    """
    folds, ratio, by = data.get("folds"), data.get("split_ratio"), data.get("split_by") or "random"
    check_folds(folds, data.get("fold"), data.get("fold_repeat", 0), data.get("stratify_by"))
    if not isinstance(data["splits"] or {}, Mapping):
        split_of(data["splits"], "train")  # raises the error
    splits = dict(data["splits"] or {})
    if ratio is not None:
        splits = shares_of(str(ratio), by, argument("split_ratio"), folds)
    val = splits.get("val")
    if val is not None and not (isinstance(val, Mapping) and val.get("fold") == "val"):
        raise ConfigError(
            f"{argument('splits.val', val)}: with {argument('folds', folds)} each fold is the validation split of a "
            f"run; set {argument('splits.val', None)}, which leaves its rows unused, or, for a file without groups, "
            f"{argument('split_ratio', '80/0/20')}"
        )
    pool = dict(split_of(splits, "train", in_table=True))  # a file's group is checked when it is read
    if ratio is None and pool.get("rows") is not None and by not in ("random", pool.get("by")):
        raise ConfigError(
            f"{argument('split_by', by)}: the rows of test would be shuffled in another way, so they could be in a "
            f"fold; set `by` in each entry of {argument('splits')}, or use {argument('split_ratio')}"
        )
    pool = pool if by == "random" else {**pool, "by": by}
    return {**splits, "train": {**pool, "fold": "train"}, "val": {**pool, "fold": "val"}}


def fold_rows(
    size: int,
    folds: int,
    repeat: int = 0,
    by: str = "random",
    groups: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    classes_name: str = "stratify_by",
) -> np.ndarray:
    """Return the fold of each row, (size,) int64.

    repeat: another shuffle for each number. by: random; blocks, in the order of the file; or the name of the column
    `groups` (size,), whose equal values are in one fold. classes: (size,) values that all folds have in equal shares.

    Without groups, the folds' numbers of rows, and of rows of a class, differ by at most one. Groups are assigned in
    random order, each to the fold that has least of its classes, so the folds' numbers of rows differ by at most the
    size of the largest group if there are no classes. Raise ConfigError if a fold would lack rows, groups or a class.
    """
    check_memory(48 * size, f"{argument('folds', folds)}: {size:,} row numbers that are shuffled")
    if size < folds:
        raise ConfigError(f"{argument('folds', folds)}: there are only {size} rows")
    names, of_class = np.unique(_comparable(classes, size), return_inverse=True)
    if by == "blocks":
        for name, value in {
            "fold_repeat": repeat or None,
            "stratify_by": None if classes is None else classes_name,
        }.items():
            if value is not None:
                raise ConfigError(
                    f"{argument(name, value)}: has no effect on folds in the order of the file (blocks); remove it"
                )
        return np.arange(size) * folds // size
    shuffle = 1 + repeat  # 0 is the shuffle of split_ratio
    if groups is None:
        counts, unit = np.bincount(of_class), "rows"
        fold = np.empty(size, dtype=np.int64)
        fold[np.lexsort((hashed(np.arange(size), shuffle), of_class))] = np.arange(size) % folds
    else:
        values, of_group = np.unique(_comparable(groups, size), return_inverse=True)
        if len(values) < folds:
            raise ConfigError(
                f"{argument('folds', folds)}: {by} has only {len(values)} different values; set {argument('folds')} to "
                "at most that"
            )
        table = np.zeros((len(values), len(names)), dtype=np.int64)  # rows of each class in each group
        np.add.at(table, (of_group, of_class), 1)
        counts, unit = (table > 0).sum(0), f"values of {by}"
        fold = _balanced(table, folds, np.argsort(hashed(np.arange(len(values)), shuffle), kind="stable"))[of_group]
    if classes is not None and counts.min() < folds:
        rare = counts.argmin()
        raise ConfigError(
            f"{argument('stratify_by', classes_name)}: the class {names[rare]} has only {counts[rare]} {unit}, fewer "
            f"than {argument('folds', folds)}; set fewer folds, or remove {argument('stratify_by')}"
        )
    return fold


def _balanced(table: np.ndarray, folds: int, order: np.ndarray) -> np.ndarray:
    """Return the fold of each group, (groups,). table: (groups, classes) rows. order: of the assignment.

    Each group goes to the fold where it adds least to the sum of squared shares of the classes; if these are equal, to
    the fold with the fewest rows.
    """
    total, have = table.sum(0), np.zeros((folds, table.shape[1]), dtype=np.int64)
    fold = np.empty(len(table), dtype=np.int64)
    for group in order:
        added = (have / total) @ (table[group] / total)
        fold[group] = chosen = np.lexsort((np.arange(folds), have.sum(1), added))[0]
        have[chosen] += table[group]
    return fold


def _comparable(values: np.ndarray | None, size: int) -> np.ndarray:
    if values is None:
        return np.zeros(size, dtype=np.int64)
    return values.astype(str) if values.dtype == object else values
