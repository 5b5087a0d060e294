"""A source without a length: every sample once, in its order, for any number of ranks, and a resume goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from torch.utils.data import IterableDataset

import lab.loaders
from samebits.data import Stream, check_indexed, is_stream
from samebits.errors import ConfigError
from samebits.testing import assert_undisturbed, last_checkpoint, metrics, raise_at_step, start_run

MODEL = [override for override in QUICK if override.startswith(("model", "optim", "logger", "hardware"))]
COMMON = (
    *MODEL, "data=synthetic", "data.shape=[6]", "data.num_classes=3", "trainer.global_batch_size=12",
    "trainer.max_steps=9", "trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=2",
    "trainer.max_eval_batches=2",
    "data.order._target_=samebits.data.order.sequential",
)  # fmt: skip


class Numbers:
    """Sample k is drawn from k; it ends after `length` samples of a pass, if it has that."""

    def __init__(self, length: int | None = None) -> None:
        self.at, self.length, self.given = 0, length, []  # type: ignore[var-annotated]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.length is None or self.at < self.length:
            k, self.at = self.at, self.at + 1
            self.given.append(k)
            yield {"x": torch.randn(6, generator=torch.Generator().manual_seed(k)), "y": k % 3}
        self.at = 0


class Remembering(Numbers):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Fresh(Numbers):
    """Each pass begins at the first sample, and nothing else can be had."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.at = 0
        return super().__iter__()


def stream_runs(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    original = lab.loaders.construct

    def construct(project: Any, key: str, *args: Any, **named: Any) -> Any:
        return kind() if key == "data" else original(project, key, *args, **named)

    monkeypatch.setattr(lab.loaders, "construct", construct)


def test_samples_by_number() -> None:
    for kind in (Remembering, Fresh):
        stream = Stream(kind())
        for number in (0, 0, 3, 3, 4, 2, 9):  # what was given last is known; what lies before is read again
            expected = torch.randn(6, generator=torch.Generator().manual_seed(number))
            assert torch.equal(stream[number]["x"], expected)
            assert stream[number]["y"] == number % 3
        state = stream.state_dict()
        again = Stream(kind())
        again.load_state_dict(state)
        assert again[10]["y"] == 1
        assert again.source.given == ([10] if kind is Remembering else list(range(11)))


def test_one_that_ends_begins_again() -> None:
    stream = Stream(Numbers(4))
    assert [stream[number]["y"] for number in range(10)] == [0, 1, 2, 0, 0, 1, 2, 0, 0, 1]
    with pytest.raises(ConfigError, match="the stream Numbers yields no samples"):
        Stream(Numbers(0))[0]
    once = iter(Numbers(4))  # its __iter__ returns itself, as a generator's does
    stream = Stream(once)
    assert stream[3]["y"] == 0
    with pytest.raises(ConfigError, match=r"ended after 4 samples and yields none .* a new iterator from each call"):
        stream[4]


def test_what_is_a_stream() -> None:
    class Both(Numbers):
        def __getitem__(self, i: int) -> Any: ...

        def __len__(self) -> int:
            return 4

    class Torch(Numbers, IterableDataset[Any]):
        def __len__(self) -> int:
            return 4

    assert [is_stream(kind()) for kind in (Numbers, Torch, Both)] == [True, True, False]
    check_indexed(Both())


def test_a_state_that_no_checkpoint_could_hold_is_refused() -> None:
    class Odd(Numbers):
        def state_dict(self) -> Any:
            return {"at": Path("x")}

    with pytest.raises(ConfigError, match=r"^data: the state_dict\(\) of Odd may contain only tensors"):
        Stream(Odd())


@pytest.mark.slow
def test_ranks_share_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_runs(monkeypatch, Remembering)
    one = start_run(tmp_path / "one", *COMMON)
    more = start_run(tmp_path / "more", *COMMON, "trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=3")
    torch.testing.assert_close(last_checkpoint(more)["model"], last_checkpoint(one)["model"], rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(one), metrics(more), strict=True):
        assert a == pytest.approx(b, rel=1e-4)
        assert "train/epoch" not in a
    assert last_checkpoint(one)["source"] == {"next": 9 * 12, "source": {"at": 9 * 12}}


@pytest.mark.parametrize("kind", [Remembering, Fresh])
@pytest.mark.parametrize("more", [(), pytest.param(("trainer=ddp", "hardware.num_procs=2"), marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, more: tuple[str, ...]
) -> None:
    stream_runs(monkeypatch, kind)
    straight = start_run(tmp_path / "straight", *COMMON, *more)
    run = tmp_path / "run"
    for at in (3, 6):  # the last saves are of steps 2 and 4
        with monkeypatch.context() as patch:
            raise_at_step(patch, at, ZeroDivisionError)
            with pytest.raises(Exception, match=r"the run failed|ZeroDivisionError"):
                start_run(run, *COMMON, *more)
    start_run(run, *COMMON, *more)
    assert_undisturbed(run, straight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.max_steps=null", "trainer.max_steps=null: a stream has no length, so no epochs - give steps"),
        ("trainer.save_every=0.5ep", "trainer.save_every=0.5ep: a stream has no length"),
        ("data.order._target_=samebits.data.order.shuffled", "data.order: a stream has its own order"),
        ("trainer.max_eval_batches=null", "data: Numbers is a stream, for val too - set trainer.max_eval_batches"),
        ("data.num_workers=2", "data.num_workers=2: a stream is read in this process"),
        ("data.loader=threads", "data.loader=threads needs a dataset with `spec` and `gather`"),
    ],
)
def test_what_a_stream_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, line: str) -> None:
    stream_runs(monkeypatch, Numbers)
    with pytest.raises(ConfigError, match="^" + re.escape(line)):
        start_run(tmp_path / "run", *COMMON, override)
    assert not (tmp_path / "run").exists()
