"""All ranks move the same weights in the same way, whatever draws random numbers; where they do not, the run ends."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
import numpy as np
import pytest
import torch
from conftest import assert_equal, last_checkpoint, metrics, raise_at_step, start_run, status
from method import SMALL, WAYS, Killed, go_on, values
from torch import Tensor, nn

import lab.loop
import lab.objective
import lab.optimizers.base
import lab.schedules.constant
import lab.tasks.supervised
from engine.checkpoints import Optimizers
from engine.errors import RunFailed
from engine.parallel import local_parts, replicas
from engine.parallel.replicas import checksum
from lab.loop import may_draw
from lab.optim import Schedule
from lab.schedules.constant import Constant
from lab.state import TrainState, on_all_ranks
from lab.tasks.base import Batch, Descend, Task
from lab.tasks.supervised import Supervised


class Noisy(torch.optim.AdamW):
    """Gradient noise as anyone writes it."""

    __module__ = "lab.optimizers.base"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        super().step()


class Restless(Supervised):
    """Noise in all else that runs behind a gradient, from each of the generators."""

    __module__ = "lab.tasks.supervised"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("walk", torch.zeros(3))
        self.walk: Tensor

    def updated(self, model: nn.Module) -> None:
        for p in model.parameters():
            p += 1e-3 * torch.randn_like(p)
        self.walk[0] += random.random()
        self.walk[1] += np.random.rand()

    def train_step(self, step: int, batches: Iterator[Batch], descend: Descend) -> dict[str, Tensor]:
        values = descend("", batches)
        self.walk[2] += torch.rand(())
        return values


class Wavering(Constant):
    __module__ = "lab.schedules.constant"

    def __call__(self, step: int, total_steps: int) -> float:
        return float(super().__call__(step, total_steps)) * random.uniform(0.9, 1.1)


NOISE = (
    "model.hidden=[16]", "optim._target_=lab.optimizers.base.Noisy", "task._target_=lab.tasks.supervised.Restless",
    "optim.lr=3e-3",
)  # fmt: skip


Harm = Callable[[TrainState], None]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs may name them."""
    for kind, module in (
        (Noisy, lab.optimizers.base),
        (Restless, lab.tasks.supervised),
        (Wavering, lab.schedules.constant),
    ):
        monkeypatch.setattr(module, kind.__name__, kind, raising=False)


@pytest.mark.slow
class TestNoise(method.Promises):
    """The same for any number of ranks and micro-batches; killed twice: the same bits."""

    test_it_learns_in_half_precision = test_debug_overfit = test_the_average_is_scored = None  # type: ignore[assignment]
    test_compiling_changes_nothing = None  # type: ignore[assignment] - what draws is in no graph

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return NOISE


class Weighing(Constant):  # a schedule of one's own
    pass


class Quiet(Constant):  # one that says so
    draws = False


class Stepping(torch.optim.SGD):  # inherits torch's step
    pass


class Still(torch.optim.SGD):
    draws = False


class Restive(Still):  # may do anything
    pass


class Wrapped(lab.optimizers.base.Wrapper):
    draws = False


def make(optimizer: torch.optim.Optimizer | Optimizers, task: type[Task] = Task, factor: Any = None) -> TrainState:
    optimizers = optimizer if isinstance(optimizer, Optimizers) else Optimizers({"": optimizer})
    schedule = Schedule(optimizers, factor or Constant(0.0), 10)
    return TrainState(nn.Linear(1, 1), task(), None, optimizers, schedule, None)


def plain() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def hooked(kind: str) -> torch.optim.Optimizer:
    optimizer = plain()
    getattr(optimizer, f"register_step_{kind}_hook")(lambda *args: None)
    return optimizer


def replaced() -> torch.optim.Optimizer:
    optimizer = plain()
    optimizer.step = lambda: None  # type: ignore[assignment, method-assign]
    return optimizer


def overriding(name: str) -> type[Task]:
    return type("Own", (Task,), {name: lambda *args: None})


@pytest.mark.parametrize(
    ("state", "drawn"),
    [
        (lambda: make(plain()), False),
        (lambda: make(torch.optim.AdamW([nn.Parameter(torch.zeros(1))])), False),
        (lambda: make(Noisy([nn.Parameter(torch.zeros(1))])), True),
        (lambda: make(Stepping([nn.Parameter(torch.zeros(1))], lr=0.1)), True),
        (lambda: make(hooked("pre")), True),
        (lambda: make(hooked("post")), True),
        (lambda: make(replaced()), True),
        (lambda: make(plain(), overriding("updated")), True),
        (lambda: make(plain(), overriding("train_step")), True),
        (lambda: make(plain(), factor=Weighing(0.0)), True),
        (lambda: make(plain(), factor=Quiet(0.0)), False),
        (lambda: make(Still([nn.Parameter(torch.zeros(1))], lr=0.1)), False),
        (lambda: make(Restive([nn.Parameter(torch.zeros(1))], lr=0.1)), True),
        (lambda: make(Wrapped([plain()])), False),
        (lambda: make(Wrapped([plain(), Stepping([nn.Parameter(torch.zeros(1))], lr=0.1)])), True),
        (lambda: make(plain(), factor=lambda step, total: 1.0), True),
        (lambda: make(Optimizers(a=plain(), b=plain())), False),
        (lambda: make(Optimizers(a=plain(), b=hooked("pre"))), True),
    ],
)
def test_what_may_draw_is_known(state: Callable[[], TrainState], drawn: bool) -> None:
    """Steps of torch's own code cost nothing; each thing of one's own counts that does not say `draws = False`."""
    assert may_draw(state()) is drawn


def test_no_optimizer_of_torchs_draws() -> None:
    folder = Path(torch.optim.__file__).parent
    files = [*folder.rglob("*.py")]
    assert len(files) > 15
    words = ("rand", "normal_(", "uniform_(", "bernoulli", "dropout", "exponential_(", "import random")
    assert not [(file.name, word) for file in files for word in words if word in file.read_text()]


def test_dropout_draws_what_it_drew_without_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn behind a gradient takes nothing from the numbers of the forward passes, micro-batches' either."""
    seen: dict[str, list[Tensor]] = {}
    original = lab.objective.forward_loss

    def forward_loss(*args: Any) -> Any:
        seen[key].append(torch.get_rng_state())
        return original(*args)

    monkeypatch.setattr(lab.objective, "forward_loss", forward_loss)
    for key, more in (("plain", ()), ("noisy", NOISE)):
        seen[key] = []
        start_run(
            tmp_path / key, *SMALL, "model.hidden=[16]", *more, "hardware.micro_batch_size=5", "model.dropout=0.5"
        )
    assert len(seen["plain"]) == len(seen["noisy"]) > 36
    assert len({state.numpy().tobytes() for state in seen["plain"]}) > 36  # dropout draws
    assert all(map(torch.equal, seen["plain"], seen["noisy"]))


@pytest.mark.slow
def test_noise_follows_the_seed_and_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step draws other numbers, each seed too; a run whose scheduled rates are drawn does not part either."""
    drawn: dict[int, list[float]] = {0: [], 1: []}
    monkeypatch.setattr(Restless, "updated", lambda *_: drawn[seed].append(random.random()))
    for seed in drawn:
        start_run(tmp_path / str(seed), *SMALL, *NOISE, f"seed={seed}")
    assert len({*drawn[0], *drawn[1]}) == 24


@pytest.mark.slow
def test_rates_that_are_drawn_are_the_same_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for any number of them; killed: the same bits."""
    own = (
        "model.hidden=[16]",
        "optim/schedule=constant",
        "optim.schedule._target_=lab.schedules.constant.Wavering",
        "trainer.log_every=1",
    )
    two, one = start_run(tmp_path / "2", *SMALL, *WAYS["2 ranks"], *own), start_run(tmp_path / "1", *SMALL, *own)
    assert status(two)["status"] == "finished"
    assert len(rates := values(one, "train/lr")) == len({*rates}) == 12
    assert rates == values(two, "train/lr")
    with monkeypatch.context() as patch:
        raise_at_step(patch, 7, Killed)
        with pytest.raises((Killed, RunFailed)):
            start_run(tmp_path / "killed", *SMALL, *own)
    go_on(tmp_path / "killed")
    assert_equal(last_checkpoint(tmp_path / "killed"), last_checkpoint(one))
    assert metrics(tmp_path / "killed") == metrics(one)


# -- replicas that have parted


def a_weight(state: TrainState) -> Tensor:
    return dict(state.model.named_parameters())["2.weight"]  # small numbers


def weight(state: TrainState) -> None:
    p = a_weight(state)
    p.view(-1)[-1] += 1e-7


def sign(state: TrainState) -> None:
    """Of the smallest numbers: one bit each, in two places."""
    p = a_weight(state)
    p.view(-1)[[3, 11]] *= -1


def moment(state: TrainState) -> None:
    entry = next(iter(state.optimizer.values())).state[a_weight(state)]["exp_avg"]
    entry.view(-1)[5] += 1e-7


def count(state: TrainState) -> None:
    next(iter(state.optimizer.values())).state[a_weight(state)]["step"] += 1


def rate(state: TrainState) -> None:
    next(iter(state.optimizer.values())).param_groups[0]["weight_decay"] = 0.2


def average(state: TrainState) -> None:
    assert state.ema is not None
    next(state.ema.parameters()).view(-1)[0] += 1e-3


def buffer(state: TrainState) -> None:
    state.task.walk[1] += 1e-6  # type: ignore[union-attr]


BREAKS = {
    weight: "2.weight", sign: "2.weight", moment: "2.weight's exp_avg", count: "2.weight's step",
    rate: "the optimizer's group 0 weight_decay", average: "ema.0.weight", buffer: "task.walk",
}  # fmt: skip


def sums(state: TrainState) -> dict[str, Any]:
    values = {name: local_parts([value])[0] for name, value in on_all_ranks(state)}
    return {name: checksum(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def broken(folder: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, step: int, *more: str) -> str:
    """The one line that a run ends with in which the last rank alone does `harm` at the end of a step."""
    original = lab.loop.train_step

    def train_step(nets: Any, state: TrainState, *rest: Any) -> Any:
        values = original(nets, state, *rest)
        if state.step + 1 == step and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            before = sums(state)
            with torch.no_grad():
                harm(state)
            changed = [name for name, value in sums(state).items() if value != before[name]]
            (folder / "changed.json").write_text(json.dumps(changed))
        return values

    with monkeypatch.context() as patched:
        patched.setattr(lab.loop, "train_step", train_step)
        with pytest.raises(RunFailed) as failed:
            start_run(folder, *SMALL, *WAYS["2 ranks"], "model.hidden=[16]", "trainer.ema_decay=0.9", *more)
    assert status(folder)["status"] == "failed"
    assert "\n" not in str(failed.value)
    return str(failed.value)


RESTLESS = (
    *SMALL, *WAYS["2 ranks"], "model.hidden=[16]", "trainer.ema_decay=0.9",
    "task._target_=lab.tasks.supervised.Restless",
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Made in the first test that asks, where configs may name Restless."""
    return functools.cache(lambda: start_run(tmp_path_factory.mktemp("straight") / "run", *RESTLESS))


@pytest.mark.one_quick
@pytest.mark.parametrize("harm", BREAKS)
def test_replicas_that_part_end_the_run(
    tmp_path: Path, undisturbed: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, harm: Harm
) -> None:
    """One changed number on one rank, of all that the ranks hold alike. The checkpoint before stays the last."""
    line = broken(tmp_path, monkeypatch, harm, 8, RESTLESS[-1])
    assert f"ranks 0 and 1 no longer hold the same {BREAKS[harm]} at step 8 (all was equal at step 5)" in line
    assert last_checkpoint(tmp_path)["step"] == 5
    assert json.loads((tmp_path / "changed.json").read_text()) == [BREAKS[harm]]
    method.go_on(tmp_path)
    assert_equal(last_checkpoint(tmp_path), last_checkpoint(undisturbed()))


@pytest.mark.slow
def test_a_save_compares_without_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = broken(tmp_path, monkeypatch, weight, 6, "trainer.eval_every=null")
    assert "no longer hold the same 2.weight at step 10 (all was equal at step 5)" in line


@pytest.mark.slow
def test_a_resumed_run_says_since_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that a checkpoint was loaded into are equal at its step."""
    with pytest.raises(SystemExit):
        broken(tmp_path, monkeypatch, weight, 13, "process.stop_at_step=6")
    assert "at step 8 (all was equal at step 6)" in broken(tmp_path, monkeypatch, weight, 7)


@pytest.mark.slow
def test_each_ranks_own_statistics_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BatchNorm's, of the model and of a teacher that is its copy."""
    own = ("task=byol", "model=resnet", "model.num_outputs=8", "model.width=4", "model.blocks=[1]")
    start_run(tmp_path, *SMALL, *WAYS["2 ranks"], *own, "trainer.max_steps=6")
    assert status(tmp_path)["status"] == "finished"


@pytest.mark.slow
def test_shards_have_replicas_only_where_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trainer=fsdp: a shard is one rank's alone; with replicas=2 two ranks hold each."""

    def shard(state: TrainState) -> None:
        next(state.model.parameters())._local_tensor.view(-1)[0] += 1e-3  # type: ignore[attr-defined]

    fsdp = ("trainer=fsdp", "trainer.fsdp.replicas=2", "hardware.num_procs=4", "trainer.fsdp.wrap=[]")
    assert "ranks 1 and 3 no longer hold the same 0.weight at step 8" in broken(tmp_path, monkeypatch, shard, 8, *fsdp)


# -- the checksum

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.complex64,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_counts(dtype: torch.dtype) -> None:
    """One flipped bit, two flipped bits, two values that changed places: another checksum."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 256, (24 * torch.empty(0, dtype=dtype).element_size(),), generator=generator).to(
        torch.uint8
    )
    whole = checksum(bits.view(dtype))
    seen = {int(whole)}
    for byte in range(len(bits)):
        for bit in range(8):
            changed = bits.clone()
            changed[byte] ^= 1 << bit
            seen.add(int(checksum(changed.view(dtype))))
    assert len(seen) == 1 + 8 * len(bits)
    top = [bits.clone() for _ in range(24)]  # the highest bit of two values
    size = len(bits) // 24
    for place, changed in enumerate(top):
        changed[[size - 1, (place + 1) * size - 1] if place else [size - 1]] ^= 128
    seen |= {int(checksum(changed.view(dtype))) for changed in top[1:]}
    assert len(seen) == 1 + 8 * len(bits) + 23
    swapped = bits.view(dtype).clone()
    swapped[[2, 17]] = swapped[[17, 2]]
    assert int(checksum(swapped)) not in seen


def test_places_count_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BLOCK", 8)
    zeros = torch.zeros(50)
    sums = {int(checksum(zeros.index_fill(0, torch.tensor(place), 1.0))) for place in range(50)}
    assert len(sums) == 50
    assert int(checksum(zeros)) not in sums


def test_how_it_lies_in_memory_does_not_count() -> None:
    value = torch.randn(4, 3, 5, 5)
    wide = torch.randn(301)
    assert checksum(value) == checksum(value.to(memory_format=torch.channels_last))
    assert checksum(wide[1:]) == checksum(wide[1:].clone())
    assert checksum(value[:0]) == 0
