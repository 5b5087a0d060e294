"""Orders are pure functions of (seed, sample number), every row once an epoch, shares equal and disjoint."""

from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from samebits.data import EvalPlan, TrainPlan, shuffled, windows
from samebits.data.order import epochs as whole_batches, first, overfit, sequential, stratified_subset
from samebits.data.permutation import hashed, hashed_number
from samebits.data.sampling import class_balanced, length_buckets, weighted
from samebits.data.windows import ChunkWindows, chunk_windows
from samebits.errors import ConfigError


class Table:
    """Fields of scalars, in memory."""

    def __init__(self, **fields: np.ndarray) -> None:
        self._fields = {name: torch.as_tensor(value) for name, value in fields.items()}
        self.spec = {name: (tuple(value.shape[1:]), value.dtype) for name, value in self._fields.items()}

    def __len__(self) -> int:
        return len(next(iter(self._fields.values())))

    def gather(self, rows: np.ndarray, out: dict) -> dict:
        for name, value in self._fields.items():
            torch.index_select(value, 0, torch.from_numpy(rows), out=out[name])
        return out


def epochs(order, size: int, count: int) -> np.ndarray:
    return order(np.arange(size * count)).reshape(count, size)


@pytest.mark.parametrize("size", [1, 2, 7, 97, 1025])
def test_each_epoch_is_a_new_permutation(size: int) -> None:
    parts = epochs(shuffled(range(size), seed=3), size, 4)
    for part in parts:
        assert np.array_equal(np.sort(part), np.arange(size))
    if size > 60:
        assert all(np.mean(a == b) < 0.1 for a, b in itertools.combinations([*parts, np.arange(size)], 2))


@pytest.mark.parametrize(("size", "batch"), [(10, 4), (97, 32), (64, 64), (1297, 64)])
def test_epochs_that_end_with_a_whole_batch(size: int, batch: int) -> None:
    """Rows of an epoch are different ones, those left out are others in the next; shares of ranks are cut as ever."""
    order = whole_batches(range(size), seed=3, batch_size=batch)
    assert order.epoch_samples == size // batch * batch
    parts = epochs(order, order.epoch_samples, 200)
    assert all(len(np.unique(part)) == order.epoch_samples for part in parts)
    assert set(np.concatenate(parts)) == set(range(size))
    whole = TrainPlan(order, batch, [batch], 0, 1, start=0)
    halves = [TrainPlan(order, batch, [batch // 2], rank, 2, start=0) for rank in (0, 1)]
    for step in range(2 * size // batch):
        assert np.array_equal(np.concatenate([half(step)[1] for half in halves]), whole(step)[1])


def test_epochs_fit_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"data.order.batch_size=4: the training split has 3 samples"):
        whole_batches(range(3), seed=0, batch_size=4)
    with pytest.raises(ConfigError, match=r"trainer.global_batch_size=3: epochs of 8 samples .*order.batch_size=3 too"):
        TrainPlan(whole_batches(range(10), seed=0, batch_size=4), 3, [3], 0, 1, start=0)


@pytest.mark.parametrize("sizes", [(8, [3], 0, 2), (9, [4], 0, 2), (8, [4], 2, 2), (8, [4], -1, 2)])
def test_shares_that_do_not_make_a_batch_are_refused(sizes: tuple) -> None:
    with pytest.raises(ConfigError, match="the batch must be num_ranks times the sum of micro_sizes"):
        TrainPlan(sequential(range(8), seed=0), *sizes, start=0)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_all_permutations_are_equally_likely(size: int) -> None:
    draws = 30_000
    seen = Counter(map(tuple, epochs(shuffled(range(size), seed=1), size, draws).tolist()))
    expected = draws / math.factorial(size)
    orders = itertools.permutations(range(size))
    chi2 = sum((seen[order] - expected) ** 2 / expected for order in orders)
    freedom = math.factorial(size) - 1
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_order_does_not_depend_on_how_it_is_asked() -> None:
    order = shuffled(range(1009), seed=5)
    numbers = np.arange(5000)
    whole = order(numbers)
    assert np.array_equal(whole, np.concatenate([order(part) for part in np.split(numbers, [1, 7, 1009, 1010, 3333])]))
    assert np.array_equal(whole[::-17], order(numbers[::-17].copy()))
    assert np.array_equal(whole, shuffled(range(1009), seed=5)(numbers))
    assert not np.array_equal(whole, shuffled(range(1009), seed=6)(numbers))


@pytest.mark.parametrize("begin", [0, 10**15])
def test_an_order_holds_no_array_of_all_rows(begin: int) -> None:
    order = shuffled(range(10**9), seed=0)  # an array of this size would be 8 GB
    tracemalloc.start()
    rows = order(np.arange(begin, begin + 16384))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(rows.tolist())) == 16384
    assert 0 <= rows.min() < rows.max() < 10**9
    assert peak < 16 * 16384 * 8  # some arrays of the rows that were asked for


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 3000))
def test_ranks_and_micro_batches_share_one_stream(num_ranks: int, num_micro: int, micro: int, start: int) -> None:
    order = shuffled(range(101), seed=0)
    batch = num_ranks * num_micro * micro
    plans = [TrainPlan(order, batch, [micro] * num_micro, rank, num_ranks, start) for rank in range(num_ranks)]
    straight = TrainPlan(order, batch, [batch], 0, 1, start)
    for step in (0, 1, 2, 3000):
        parts = [plan(step * num_micro + m) for plan in plans for m in range(num_micro)]
        numbers, rows = map(np.concatenate, zip(*parts, strict=True))
        assert np.array_equal(numbers, start + np.arange(step * batch, (step + 1) * batch))
        assert np.array_equal(rows, straight(step)[1])
        assert np.array_equal(rows, order(numbers))


class Asked:
    """A sequential order; ten samples are a window."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        return numbers % self.size

    def window_of(self, number: int) -> int:
        return number // 10

    def note(self, batch_size: int) -> str:
        return f"batches of {batch_size}"


def test_a_plan_knows_in_which_window_a_batch_begins() -> None:
    plan = TrainPlan(Asked(1000), 24, [5, 7], 1, 2, 3)
    assert [plan.window(k) for k in range(40)] == [int(plan(k)[0][0]) // 10 for k in range(40)]
    assert plan.note == "batches of 24"
    plain = TrainPlan(sequential(range(9), seed=0), 24, [12], 1, 2, 3)
    assert plain.window(3) is None
    assert plain.note == ""


def test_a_plan_goes_to_another_process() -> None:
    plan = TrainPlan(Asked(1000), 20, [7, 3], 1, 2, 0)
    assert [plan(k)[0].tolist() for k in range(4)] == [[*range(10, 17)], [17, 18, 19], [*range(30, 37)], [37, 38, 39]]
    expected = [plan(k)[0].tolist() for k in range(5)]
    there = pickle.loads(pickle.dumps(plan))
    assert there._blocks == {}, "and takes no rows with it"
    assert [there(k)[0].tolist() for k in range(5)] == expected


def test_orders_mean_the_same_in_every_version() -> None:
    """A run outlives the code that made it: it goes on with the samples that would have come, and is scored alike."""
    numbers = np.arange(20)
    assert shuffled(range(10), seed=0)(numbers).tolist() == [3, 9, 6, 4, 5, 7, 2, 1, 8, 0, 0, 9, 5, 2, 3, 1, 6, 8, 7, 4]
    assert sequential(range(7), seed=0)(numbers).tolist() == [n % 7 for n in range(20)]
    assert overfit(range(9), seed=0, count=2, chunk_rows=7)(numbers).tolist() == [0, 1] * 10
    assert stratified_subset(np.arange(6), 6, 100).tolist() == [11, 26, 38, 57, 72, 90]
    assert stratified_subset(np.arange(4), 4, 4).tolist() == [0, 1, 2, 3]


def test_a_rank_without_a_row_of_its_own_is_in_step_with_one_of_the_set() -> None:
    for rank, counted in ((0, 1), (1, 0), (2, 0)):
        plan = EvalPlan(1, 4, rank, 3, in_step=True)
        assert plan(0)[1].tolist() == [0]  # type: ignore[index]
        assert plan.size_and_real(0) == (1, counted)
        assert (plan.num_rows, plan.common) == (counted, 1)
        assert plan(1) is None


@settings(max_examples=100)
@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.booleans())
def test_evaluation_counts_each_row_once(
    size: int, batch_size: int, num_ranks: int, in_step: bool, whole: bool
) -> None:
    """in_step: batches of equal number and sizes for all ranks; the rows to count come first. whole: of a batch they
    are all, or none."""
    seen, shapes, common = [], [], set()
    for rank in range(num_ranks):
        plan = EvalPlan(size, batch_size, rank, num_ranks, in_step, whole=whole)
        batches = list(itertools.takewhile(lambda part: part is not None, map(plan, itertools.count())))
        assert plan(len(batches) + 5) is None
        numbers, rows = ([one for part in batches for one in part[i].tolist()] for i in (0, 1))
        assert set(rows) <= set(range(size))
        assert numbers == [*rows[: plan.num_rows], *[-1] * (len(rows) - plan.num_rows)]
        told = [plan.size_and_real(k) for k in range(len(batches))]
        assert [size_k for size_k, _ in told] == [len(part) for _, part in batches]
        assert all(0 < rows <= batch_size for rows, _ in told)
        assert not whole or all(counted in (0, rows) for rows, counted in told)
        assert sum(counted for _, counted in told) == plan.num_rows
        seen += rows[: plan.num_rows]
        shapes.append([rows for rows, _ in told])
        common.add(plan.common)
    assert sorted(seen) == list(range(size))
    assert common == {min(map(len, shapes))}, "batches that every rank has"
    assert not in_step or all(shape == shapes[0] for shape in shapes)


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_a_part_of_a_set_is_one_choice_for_any_ranks_and_batches(
    size: int, count: int, batch_size: int, num_ranks: int, in_step: bool
) -> None:
    seen: list[int] = []
    for rank in range(num_ranks):
        plan = EvalPlan(size, batch_size, rank, num_ranks, in_step, count)
        k = 0
        while (part := plan(k)) is not None:
            seen += part[1][: plan.size_and_real(k)[1]].tolist()
            k += 1
    count = min(count, size)
    chosen = stratified_subset(np.arange(count), count, size)
    assert sorted(seen) == chosen.tolist() == sorted(set(chosen.tolist()))
    assert chosen[0] >= 0
    assert chosen[-1] < size
    edges = np.arange(count + 1) * size // count
    assert np.histogram(chosen, [*edges[:-1].tolist(), size])[0].tolist() == [1] * count  # one of each part


@pytest.mark.parametrize("labels", [np.repeat(np.arange(10), 1000), np.tile(np.arange(10), 1000)])
def test_a_part_of_a_set_has_the_classes_of_the_whole(labels: np.ndarray) -> None:
    """Of a file sorted by class, and of one in which they take turns (a plain stride would see one class only)."""
    for count in (100, 640, 1000, 2000):
        plan = EvalPlan(len(labels), count, 0, 1, count=count)
        shares = np.bincount(labels[plan(0)[1]], minlength=10) / count  # type: ignore[index]
        assert abs(shares - 0.1).max() < 0.1
        assert shares.min() > 0.02
        if (labels[:2] == 0).all():
            assert (np.abs(shares * count - count / 10) <= 1).all()


def test_first_repeats_and_refuses() -> None:
    assert first(range(10), seed=0, count=3)(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert first(range(10), seed=0, count=1)(np.arange(3)).tolist() == [0, 0, 0]
    assert first(range(3), seed=0, count=3)(np.arange(4)).tolist() == [0, 1, 2, 0]
    for count in (0, 11):
        with pytest.raises(ConfigError, match=f"data.order.count={count}"):
            first(range(10), seed=0, count=count)
    with pytest.raises(ConfigError, match="no samples"):
        shuffled(range(0), seed=0)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 5), st.integers(1, 50))
def test_windows_hold_every_row_once_and_whole_chunks(
    size: int, chunk_rows: int, window: int, seed: int, batch_size: int
) -> None:
    order = chunk_windows(range(size), seed, window, batch_size, chunk_rows)
    rows = order(np.arange(3 * size))
    windows = np.array([order.window_of(n) for n in range(3 * size)])
    for epoch in range(3):
        part = slice(epoch * size, (epoch + 1) * size)
        assert np.array_equal(np.sort(rows[part]), np.arange(size))
        chunks_of = {}
        for w, row in zip(windows[part].tolist(), rows[part].tolist(), strict=True):
            chunks_of.setdefault(w, set()).add(row // chunk_rows)
        assert all(len(chunks) <= window for chunks in chunks_of.values())
        assert sum(map(len, chunks_of.values())) == -(-size // chunk_rows)  # no chunk in two windows
    assert (np.diff(windows) >= 0).all()
    assert np.array_equal(order(np.arange(size, 2 * size)[::3].copy()), rows[size : 2 * size : 3])


@pytest.mark.slow
@pytest.mark.parametrize("window", [16, 256])
def test_the_stated_quality_of_windows_is_the_measured_one(window: int) -> None:
    size, chunk_rows, batch_size = 640 * 64, 64, 256
    order = ChunkWindows(size, chunk_rows, window, batch_size, seed=0)
    labels = np.arange(size) * 10 // size  # sorted by label: the worst case
    means = labels[order(np.arange(size * 10))].reshape(-1, batch_size).mean(axis=1)
    measured = means.var() / (labels.var() / batch_size)
    stated = float(order.note(batch_size).split()[-1][:-1])
    assert stated / 1.6 < measured < stated * 1.6


def test_windows_need_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"set data\.order\.chunk_rows, or use data/order=shuffled$"):
        chunk_windows(range(10), 0, 4, 2, None)
    remote = Table(x=np.zeros(1000))
    remote.kept_bytes, remote.nbytes = 3200, 8000
    monkeypatch.setattr(windows, "REMOTE_WINDOW", 400)
    assert chunk_windows(remote, 0, None, 2, 10).window == 5
    assert chunk_windows(remote, 0, 20, 2, 10).window == 20
    with pytest.raises(ConfigError, match=r"data\.order\.window=21: .* data\.cache_gb - give at most 20"):
        chunk_windows(remote, 0, 21, 2, 10)


def test_class_balance() -> None:
    labels = np.repeat([3, 7, 9], [10, 1000, 100])
    rows = class_balanced(Table(x=np.zeros((1110, 2)), y=labels), seed=0, field="y")(np.arange(30_000))
    counts = Counter(labels[rows].tolist())
    assert all(abs(counts[c] - 10_000) < 500 for c in (3, 7, 9))
    within = np.bincount(rows)[:10]
    assert within.min() > 800  # and the rows of a class alike
    with pytest.raises(ConfigError, match=r"'z'.*\['x', 'y'\]"):
        class_balanced(Table(x=np.zeros(3), y=np.zeros(3)), seed=0, field="z")


def test_weights() -> None:
    weights = [0.0, 1.0, 3.0, 0.0, 4.0, 0.0]
    for given_as in (weights, "w"):
        counts = np.bincount(weighted(Table(w=np.array(weights)), 0, given_as)(np.arange(80_000)), minlength=6)
        assert np.allclose(counts, [0, 10_000, 30_000, 0, 40_000, 0], atol=600)
        assert (counts[[0, 3, 5]] == 0).all()
    for wrong in ([1.0, -1.0], [0.0, 0.0], [1.0, math.inf], [1.0, math.nan], [1e308, 1e308]):
        with pytest.raises(ConfigError, match="not negative"):
            weighted(range(2), 0, wrong)
    with pytest.raises(ConfigError, match="one weight for each of the 3"):
        weighted(range(3), 0, [1.0, 1.0])


@pytest.mark.parametrize("size", [6400, 6437])
@pytest.mark.parametrize("num_ranks", [2, 8])
def test_length_buckets_deal_equal_tokens(size: int, num_ranks: int) -> None:
    batch = 96
    lengths = np.random.default_rng(0).lognormal(5, 0.8, size).astype(np.int64) + 1
    order = length_buckets(Table(n=lengths), seed=0, field="n", batch_size=batch, jitter=0.1)
    rows = order(np.arange(5 * size))
    for epoch in rows.reshape(5, size):
        assert np.array_equal(np.sort(epoch), np.arange(size))
    batches = lengths[rows[: len(rows) // batch * batch]].reshape(-1, batch)
    padded = batches.max(axis=1).sum() * batch / batches.sum()
    random = lengths[shuffled(range(size), 0)(np.arange(len(rows) // batch * batch))].reshape(-1, batch)
    assert padded < 1.25 < 3 < random.max(axis=1).sum() * batch / random.sum()
    shares = batches.reshape(len(batches), num_ranks, -1).sum(axis=2)
    imbalance = shares.max(axis=1) / shares.mean(axis=1)
    assert np.mean(imbalance) < 1.02
    assert np.quantile(imbalance, 0.95) < 1.05
    assert not np.array_equal(np.sort(rows[:batch]), np.sort(rows[size : size + batch]))


@given(st.integers(-(2**70), 2**70), st.integers(0, 9), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_hash_of_a_number_is_that_of_an_array(seed: int, stream: int, numbers: list[int]) -> None:
    whole = hashed(seed, stream, np.array(numbers)).tolist()
    assert [hashed_number(seed, stream, number) for number in numbers] == whole


def test_hash_is_uniform_and_streams_differ() -> None:
    draws = hashed(0, 0, np.arange(100_000))
    assert len(np.unique(draws)) == 100_000
    bits = (draws[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.01
    assert not np.intersect1d(draws, hashed(0, 1, np.arange(100_000))).size
    assert not np.intersect1d(draws, hashed(1, 0, np.arange(100_000))).size
