"""All ranks move the same weights in the same way, whatever draws random numbers; where they do not, the run ends."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shipped import Shipped
from torch import Tensor, nn

import lab.loop
import lab.objective
import lab.optimizers.base
import lab.schedules.constant
import lab.tasks.supervised
from lab.loop import may_draw_outside_losses
from lab.optim import Schedule
from lab.restore import score_checkpoint
from lab.schedules.constant import Constant
from lab.state import TrainState, replicated_values
from lab.tasks.base import Batch, OptimizerStep, Task
from lab.tasks.supervised import Supervised
from samebits.checkpoints import Optimizers
from samebits.errors import RunFailed
from samebits.shards import checksum, local_parts, replicas
from samebits.testing import (
    SMALL,
    WAYS,
    assert_equal,
    assert_undisturbed,
    broken_off,
    last_checkpoint,
    resume_run,
    start_run,
    status,
    values,
)


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

    def on_step_end(self, model: nn.Module) -> None:
        for p in model.parameters():
            p += 1e-3 * torch.randn_like(p)
        self.walk[0] += random.random()
        self.walk[1] += np.random.rand()

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        values = optimizer_step("", batches)
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
    for kind in (Noisy, Restless, Wavering, Weighing):
        monkeypatch.setattr(sys.modules[kind.__module__], kind.__name__, kind, raising=False)


class TestNoise(Shipped):
    """The same for any number of ranks and micro-batches; killed: the same bits."""

    test_no_step_waits_for_a_gpu = None  # type: ignore[assignment]  # a command does not know this file
    test_no_step_waits_for_the_device = None  # type: ignore[assignment]  # noise adds nothing that could wait

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return NOISE


def make(optimizer: Any, factor: Any = None, **methods: Any) -> TrainState:
    """methods: what a task of one's own has."""
    optimizers = optimizer if isinstance(optimizer, Optimizers) else Optimizers({"": optimizer})
    schedule = Schedule(optimizers, factor or Constant(0.0), 10)
    return TrainState(nn.Linear(1, 1), type("Own", (Task,), methods)(), None, optimizers, schedule, None)


def optimizer_of(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **said: Any) -> torch.optim.Optimizer:
    """said: attributes of one's own class."""
    return (type("Own", (kind,), said) if said else kind)([nn.Parameter(torch.zeros(1))], lr=0.1)  # type: ignore


def test_what_may_draw_is_known() -> None:
    """Steps of torch's own code cost nothing; each thing of one's own counts that does not say `uses_rng = False`."""

    def none(*args: Any) -> None:
        pass

    plain, hooked, replaced, noisy = optimizer_of(), optimizer_of(), optimizer_of(), optimizer_of(Noisy)
    hooked.register_step_post_hook(none)
    replaced.step = none  # type: ignore[assignment, method-assign]
    still = optimizer_of(uses_rng=False)
    own_schedule, quiet = type("Own", (Constant,), {})(0.0), type("Own", (Constant,), {"uses_rng": False})(0.0)
    wrapper = type("Own", (lab.optimizers.base.Wrapper,), {"uses_rng": False})
    for state, drawn in (
        (make(plain), False),
        (make(noisy), True),
        (make(optimizer_of(torch.optim.LBFGS)), False),  # of a task whose train_step passes a closure
        (make(hooked), True),
        (make(replaced), True),
        (make(plain, on_step_end=none), True),
        (make(plain, project=none), True),
        (make(plain, train_step=none), True),
        (make(plain, own_schedule), True),
        (make(plain, quiet), False),
        (make(plain, lambda step, total: 1.0), True),
        (make(still), False),
        (make(optimizer_of(type(still), more=True)), True),  # inherits what it does not say itself
        (make(wrapper([plain])), False),
        (make(wrapper([plain, noisy])), True),
        (make(Optimizers(a=plain, b=still)), False),
        (make(Optimizers(a=plain, b=hooked)), True),
    ):
        assert may_draw_outside_losses(state) is drawn


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
def test_rates_that_are_drawn_are_the_same_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for any number of them, others in each step and for another seed; killed: the same bits."""
    wavering = ("optim/schedule=constant", "optim.schedule._target_=lab.schedules.constant.Wavering")
    own = (*SMALL, "model.hidden=[16]", *wavering, "trainer.log_every=1")
    one = start_run(tmp_path / "1", *own)
    two = start_run(tmp_path / "2", *own, *WAYS["2 ranks"])
    other = start_run(tmp_path / "other", *own, "seed=1", "trainer.max_steps=3")
    assert status(two)["status"] == "finished"
    assert (rates := values(one, "train/lr")) == values(two, "train/lr")
    assert len({*rates, *values(other, "train/lr")}) == 12 + 3
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [7], *own), one)


# -- replicas that have parted


def a_weight(state: TrainState) -> Tensor:
    return dict(state.model.named_parameters())["2.weight"]  # small numbers


def weight(state: TrainState) -> None:
    p = a_weight(state)
    p.view(-1)[-1] += 1e-7


def moment(state: TrainState) -> None:
    entry = next(iter(state.optimizer.values())).state[a_weight(state)]["exp_avg"]
    entry.view(-1)[5] += 1e-7


def rate(state: TrainState) -> None:
    next(iter(state.optimizer.values())).param_groups[0]["weight_decay"] = 0.2


def average(state: TrainState) -> None:
    assert state.ema is not None
    next(state.ema.parameters()).view(-1)[0] += 1e-3


def buffer(state: TrainState) -> None:
    state.task.walk[1] += 1e-6  # type: ignore[union-attr]


BREAKS = {
    weight: "2.weight", moment: "2.weight's exp_avg",
    rate: "the optimizer's group 0 weight_decay", average: "ema.0.weight", buffer: "task.walk",
}  # fmt: skip


def sums(state: TrainState) -> dict[str, Any]:
    values = {name: local_parts([value])[0] for name, value in replicated_values(state)}
    return {name: checksum(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def broken(folder: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, step: int, *more: str) -> str:
    """The one line that a run ends with in which the last rank alone does `harm` at the end of a step."""
    original = lab.loop.train_step

    def train_step(loss_modules: Any, state: TrainState, *rest: Any) -> Any:
        values = original(loss_modules, state, *rest)
        if state.step + 1 == step and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            with torch.no_grad():
                harm(state)
        return values

    with monkeypatch.context() as patched:
        patched.setattr(lab.loop, "train_step", train_step)
        with pytest.raises(RunFailed) as failed:
            start_run(folder, *PAIR, *more)
    assert status(folder)["status"] == "failed"
    assert "\n" not in str(failed.value)
    return str(failed.value)


PAIR = (*SMALL, *WAYS["2 ranks"], "model.hidden=[16]", "trainer.ema_decay=0.9")
RESTLESS = "task._target_=lab.tasks.supervised.Restless"


@pytest.mark.one_quick
@pytest.mark.parametrize("harm", [weight, rate])
def test_replicas_that_part_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm) -> None:
    """One changed number on one rank, of a tensor or of Python. The checkpoint before stays the last."""
    line = broken(tmp_path, monkeypatch, harm, 8, RESTLESS)
    assert f"ranks 0 and 1 no longer have the same {BREAKS[harm]} at step 8 (everything was equal at step 5)" in line
    assert last_checkpoint(tmp_path)["step"] == 5
    if harm is weight:
        straight = start_run(tmp_path / "straight", *PAIR, RESTLESS)
        resume_run(tmp_path)
        assert_equal(last_checkpoint(tmp_path), last_checkpoint(straight))


@pytest.mark.slow
def test_each_number_that_ranks_hold_alike_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One changed number of each kind changes the sum of its name, and no other."""
    original, found = lab.loop.train_step, {}

    def train_step(loss_modules: Any, state: TrainState, *rest: Any) -> Any:
        values = original(loss_modules, state, *rest)
        for harm in BREAKS if state.step == 1 else ():
            before = sums(state)
            with torch.no_grad():
                harm(state)
            found[harm] = [name for name, value in sums(state).items() if value != before[name]]
        return values

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    start_run(tmp_path, *SMALL, "model.hidden=[16]", "trainer.ema_decay=0.9", RESTLESS, "trainer.max_steps=2")
    assert found == {harm: [name] for harm, name in BREAKS.items()}


@pytest.mark.slow
def test_a_save_compares_without_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = broken(tmp_path, monkeypatch, weight, 6, "trainer.eval_every=null")
    assert "no longer have the same 2.weight at step 10 (everything was equal at step 5)" in line


@pytest.mark.slow
def test_a_resumed_run_says_since_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that a checkpoint was loaded into are equal at its step."""
    with pytest.raises(SystemExit):
        broken(tmp_path, monkeypatch, weight, 13, "process.stop_at_step=6")
    assert "at step 8 (everything was equal at step 6)" in broken(tmp_path, monkeypatch, weight, 7)


@pytest.mark.slow
def test_each_ranks_own_statistics_may_differ(tmp_path: Path) -> None:
    """BatchNorm's, of the model and of a teacher that is its copy; rank 0's are saved, and are what is scored."""
    own = ("task=byol", "model=resnet", "model.num_outputs=8", "model.width=4", "model.blocks=[1]")
    start_run(tmp_path, *SMALL, *WAYS["2 ranks"], *own, "trainer.max_steps=6", "trainer.keep_best=0")
    held = last_checkpoint(tmp_path)
    student, teacher = held["model"]["stem.1.running_mean"], held["task"]["teacher.0.stem.1.running_mean"]
    assert teacher.abs().sum() > 0
    assert not torch.equal(student, teacher)
    found = score_checkpoint(tmp_path, "val", [])
    assert found["loss"] == pytest.approx(values(tmp_path, "val/loss")[-1], rel=1e-4)  # scored before the save


class Weighing(Supervised):
    """A statistic of each rank's own samples is in the loss."""

    __module__ = "lab.tasks.supervised"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("running_mean", torch.zeros(1))
        self.running_mean: Tensor

    def losses(self, model: nn.Module, batch: Batch) -> Any:
        losses, output = super().losses(model, batch)
        if torch.is_grad_enabled():
            self.running_mean.lerp_(batch["x"].mean().view(1), 0.3)
        return losses * (1 + self.running_mean), output


@pytest.mark.slow
def test_after_a_save_all_ranks_have_the_buffers_that_were_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is resumed, whose ranks all load rank 0's, goes another way than one that is not."""
    own = ("model.hidden=[16]", "task._target_=lab.tasks.supervised.Weighing", "trainer.eval_every=null")
    run = (*SMALL, *WAYS["2 ranks"], *own, "trainer.max_steps=8")
    straight = start_run(tmp_path / "straight", *run)
    assert_undisturbed(broken_off(tmp_path / "killed", monkeypatch, [7], *run), straight)


def test_a_stop_that_loses_a_ranks_buffer_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A signal between two saves saves rank 0's statistic for all ranks: either the resumed run is undisturbed, as
    after a step with an evaluation (4) or a save (5), or the run has a warning that names the buffer."""
    run = (*SMALL, *WAYS["2 ranks"], "model.hidden=[16]", "task._target_=lab.tasks.supervised.Weighing")
    straight = last_checkpoint(start_run(tmp_path / "straight", *run))["model"]
    for step in (4, 5, 7):
        stopped = tmp_path / f"stopped_{step}"
        with pytest.raises(SystemExit):
            start_run(stopped, *run, f"process.stop_at_step={step}")
        warned = "the buffer task.running_mean differs between ranks" in capfd.readouterr().err
        held = last_checkpoint(resume_run(stopped, process__stop_at_step=None))["model"]
        equal = all(map(torch.equal, held.values(), straight.values()))
        assert (warned, equal) == (step == 7, step != 7), step


@pytest.mark.slow
def test_shards_have_replicas_only_where_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trainer=fsdp: a shard is one rank's alone; with replicas=2 two ranks hold each."""

    def shard(state: TrainState) -> None:
        next(state.model.parameters())._local_tensor.view(-1)[0] += 1e-3  # type: ignore[attr-defined]

    fsdp = ("trainer=fsdp", "trainer.fsdp.replicas=2", "hardware.num_procs=4", "trainer.fsdp.wrap=[]")
    assert "ranks 1 and 3 no longer have the same 0.weight at step 8" in broken(tmp_path, monkeypatch, shard, 8, *fsdp)


# -- the checksum

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_counts(dtype: torch.dtype) -> None:
    """One flipped bit, two flipped bits, two values that changed places: another checksum."""
    generator = torch.Generator().manual_seed(0)
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (24 * size,), generator=generator, dtype=torch.uint8)
    whole = checksum(bits.view(dtype))
    seen = {int(whole)}
    for byte in range(len(bits)):
        for bit in range(8):
            changed = bits.clone()
            changed[byte] ^= 1 << bit
            seen.add(int(checksum(changed.view(dtype))))
    assert len(seen) == 1 + 8 * len(bits)
    top = [bits.clone() for _ in range(24)]  # the highest bit of two values
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
