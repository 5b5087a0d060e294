"""profiler=simple, torch and python, speeds that are logged, and what is said where memory is full."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from common import QUICK
from gpt import NEEDS_GPT
from sweeps import call
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lab.loop
import lab.run
import lab.tasks.supervised
from lab.builders import make_task
from lab.callbacks.base import Callback
from lab.config import Config
from lab.model_io import make_model
from lab.options import TrainerConfig
from lab.profiling import losses_of
from lab.tasks.base import Task
from lab.tasks.supervised import Supervised
from samebits.clocks import HostClock
from samebits.device import Hardware, HardwareConfig, resolve_hardware
from samebits.errors import RunFailed
from samebits.loggers import Logger
from samebits.profiling import SampleCost, cost_of_sample, count_flop
from samebits.profiling.functions import flame_graph
from samebits.profiling.running import PROFILE
from samebits.testing import (
    assert_equal,
    assert_undisturbed,
    compose,
    metrics,
    resume_run,
    start_run,
    without_code_generator,
)

SHORT = (*QUICK, "trainer.max_steps=24", "trainer.eval_every=12", "trainer.log_every=4", "trainer.save_every=12")


def profile(run: Path) -> dict[str, Any]:
    return json.loads((run / PROFILE).read_text())


def flop_per_sample(model: nn.Module, task: Task, batch: Any) -> float:
    (loss,) = losses_of(model, task).values()
    return count_flop([model, task], batch, loss) / len(next(iter(batch.values())))


def work_of_task(config: Any, hardware: Any, model: nn.Module, task: Task, first: Any, logger: Logger) -> SampleCost:
    return cost_of_sample(config.profiler, hardware, [model, task], losses_of(model, task), object(), first, logger)


def logged(run: Path, key: str) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("plain") / "run", *SHORT)


class Clocked(Callback):
    """When the first measured step, the 6th, was about to begin, when it was done, and when the last one was."""

    def before_step(self, state: Any) -> None:
        if state.step == 5:
            self.before = time.perf_counter()

    def on_step(self, state: Any) -> None:
        if state.step == 6:
            self.began = time.perf_counter()
        self.last = time.perf_counter()


@pytest.mark.slow
def test_the_parts_of_the_loop_add_up_to_its_time(tmp_path: Path, use: Callable[..., None], plain: Path) -> None:
    """And the bits are those of a run without."""
    clock = Clocked()
    use(clock)
    run = start_run(tmp_path / "run", *SHORT, "profiler=simple")
    assert_undisturbed(run, plain)
    found = profile(run)
    assert found["steps"] == 24 - 5
    timed = {part for part, seconds in found["seconds"].items() if seconds > 0}
    assert {"data wait", "forward", "backward", "clip", "optimizer", "log", "evaluation", "save"} <= timed
    assert clock.last - clock.began <= sum(found["seconds"].values()) <= time.perf_counter() - clock.before
    log = (run / "train.log").read_text()
    assert found["sentence"] in log
    assert "profile of 19 steps, starting at step 6" in log


@pytest.mark.slow
def test_slow_data_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only looks at it and late data move, however busy this machine is."""
    from samebits.data.loading.resident import Resident

    stream, clock = Resident.stream, [0.0]

    def now(passed_s: float = 1e-4) -> float:
        clock[0] += passed_s
        return clock[0]

    def late(self: Any, plan: Any) -> Any:
        for pair in stream(self, plan):
            now(0.05)
            yield pair

    monkeypatch.setattr(Resident, "stream", late)
    monkeypatch.setattr(HostClock, "now", staticmethod(now))
    run = start_run(tmp_path / "run", *SHORT, "profiler=simple", "data.loader=device", "trainer.eval_every=null")
    assert profile(run)["bound_by"] == "data"
    assert "data.loader=threads" in profile(run)["sentence"]


@pytest.mark.slow
def test_torch_writes_a_trace_with_the_parts_and_a_table_of_kernels(tmp_path: Path, plain: Path) -> None:
    run = start_run(tmp_path / "run", *SHORT, "profiler=torch", "profiler.wait=2", "profiler.active=3")
    assert_undisturbed(run, plain)
    events = json.loads((run / "profile/trace_rank0.json").read_text())["traceEvents"]
    for part in ("data wait", "forward", "backward", "clip", "optimizer"):
        named = [event for event in events if event.get("name") == part and event.get("cat") == "user_annotation"]
        assert len(named) == 3, part
    assert "aten::addmm" in (run / "profile/kernels_rank0.txt").read_text()


@pytest.mark.slow
def test_a_run_too_short_for_a_trace_says_so(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *SHORT, "profiler=torch", "profiler.wait=100")
    assert "ended before profiler.wait + warmup + active steps" in (run / "train.log").read_text()
    assert not (run / "profile/trace_rank0.json").exists()


@pytest.mark.slow
def test_ranks_are_profiled_too(tmp_path: Path) -> None:
    two = ("hardware.num_procs=2", "trainer.max_eval_batches=1")
    run = start_run(tmp_path / "run", *SHORT, *two, "trainer=fsdp", "profiler=simple")
    assert "19 steps, starting at step 6, rank 0:" in (run / "train.log").read_text()
    assert profile(run)["seconds"]["forward"] > 0
    traced = start_run(tmp_path / "traced", *SHORT, *two, "trainer=ddp", "profiler=torch")
    assert "kernels_rank0.txt; each of the 2 ranks writes these files\n" in (traced / "train.log").read_text()
    assert {p.name for p in (tmp_path / "traced/profile").glob("trace*")} == {f"trace_rank{r}.json" for r in (0, 1)}


@pytest.mark.slow
def test_a_compiled_run_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with without_code_generator(monkeypatch, "eager"):
        run = start_run(tmp_path / "run", *SHORT, "profiler=simple", "hardware.compile=default")
    found = profile(run)
    assert found["seconds"]["forward"] > 0
    assert "hardware.compile=default" not in found["sentence"]


# ---- memory


class Hungry(Callback):
    """Asks for more memory than there is, once the model is at it."""

    def __init__(self, at: int, training: bool) -> None:
        self.at, self.training = at, training

    def on_start(self, state: Any) -> None:
        def ask(module: nn.Module, *_: Any) -> None:
            if state.step == self.at and module.training == self.training:
                torch.empty(2**50)

        state.model.register_forward_hook(ask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "said"),
    [(True, "out of memory (training, at step 3; "), (False, "out of memory (evaluating, at step 12; ")],
)
def test_full_memory_names_the_key(tmp_path: Path, use: Callable[..., None], training: bool, said: str) -> None:
    use(Hungry(3 if training else 12, training))
    key = "hardware.micro_batch_size=8" if training else "hardware.eval_batch_size=8"
    with pytest.raises(RunFailed, match=r"^out of memory") as caught:
        start_run(tmp_path / "run", *SHORT, "hardware.micro_batch_size=16", "trainer.global_batch_size=64")
    assert str(caught.value).startswith(said)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert status["error"].startswith("OutOfMemory: out of memory")
    assert "torch.empty(2**50)" in status["traceback"]


@pytest.mark.slow
def test_a_run_that_fails_while_torch_records_ends_with_its_own_error(tmp_path: Path) -> None:
    """A process that ends in the middle of a recording crashes: status 139 in place of the error's."""
    given = [*SHORT, "profiler=torch", "profiler.wait=0", "profiler.warmup=1", "profiler.active=20", "optim.lr=1e30"]
    done = call(*given, f"hydra.run.dir={tmp_path}/run", code=1)
    assert "not finite" in done.stderr
    assert (tmp_path / "run/profile/trace_rank0.json").exists()  # of the steps before


# ---- speeds


def hardware() -> Hardware:
    return resolve_hardware(
        HardwareConfig(device="cpu", precision="fp32", num_threads=1), TrainerConfig(global_batch_size=8)
    )


def parts(*overrides: str) -> tuple[Config, nn.Module, Any]:
    config = Config.of(compose(*SHORT, *overrides))
    return config, make_model(config), make_task(config)


def test_the_flop_of_an_mlp_are_those_of_its_matrices() -> None:
    _, model, task = parts("model.hidden=[48,24]")
    sizes = [(p.shape[0], p.shape[1]) for p in model.parameters() if p.dim() == 2]
    batch = {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.long)}
    forward = sum(2 * a * b for a, b in sizes)
    first = 2 * sizes[0][0] * sizes[0][1]  # no gradient for the input
    assert flop_per_sample(model, task, batch) == 3 * forward - first


@pytest.mark.slow
@NEEDS_GPT
def test_the_flop_of_a_gpt_are_6_a_parameter_and_token_and_those_of_attention() -> None:
    length, width, layers = 32, 64, 2
    given = ("data=tokens", "data.path=none.h5", "data.num_outputs=50", "model=gpt", "task=next_token")
    size = (f"data.window={length}", f"model.width={width}", "model.heads=2", f"model.layers={layers}")
    config = Config.of(compose(*given, *size, "hardware=cpu", "logger=none", checked=False))
    model, task = make_model(config), make_task(config)
    batch = {"x": torch.zeros(4, length, dtype=torch.long), "y": torch.zeros(4, length, dtype=torch.long)}
    matrices = layers * 12 * width**2 + next(p for n, p in model.named_parameters() if p.dim() == 2).numel()
    expected = length * (6 * matrices + 12 * layers * length * width)
    assert flop_per_sample(model, task, batch) == pytest.approx(expected, rel=0.05)
    before = flop_per_sample(model, task, batch)
    model.chunked_logits = True
    assert flop_per_sample(model, task, batch) == before


def test_counting_touches_neither_the_model_nor_random_numbers() -> None:
    config, model, task = parts("profiler.flop=true")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)

    def first() -> dict[str, Tensor]:
        torch.rand(1)  # as a transform would
        return {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.long)}

    work = work_of_task(config, hardware(), model, task, first, Logger())
    assert work.flop
    assert_equal(dict(model.state_dict()), before)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.rand(3), expected)


class Compiled(Supervised):
    """Compiles its losses when they are first asked for."""

    __module__ = "lab.tasks.supervised"
    graphs = 0

    def losses(self, model: nn.Module, batch: Any) -> Any:
        def graph(module: torch.fx.GraphModule, inputs: Any) -> Any:
            Compiled.graphs += 1
            return module.forward

        self.fused = getattr(self, "fused", None) or torch.compile(super().losses, backend=graph)
        return self.fused(model, batch)


@pytest.mark.parametrize("counts", ["profiler.flop=true", "callback=summary"])
def test_what_a_task_compiles_is_compiled_after_flop_were_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: str
) -> None:
    """dynamo leaves alone what it has met under torch's counter: a run on a GPU, which counts, compiled nothing."""
    monkeypatch.setattr(lab.tasks.supervised, "Compiled", Compiled, raising=False)
    monkeypatch.setattr(Compiled, "graphs", 0)
    task = "task._target_=lab.tasks.supervised.Compiled"
    start_run(tmp_path, *SHORT, task, counts, "trainer.max_steps=2")
    assert Compiled.graphs > 0


GAN = ("task=gan", "model.input_shape=[4]", "model.num_outputs=64", "model.hidden=[16]", "task.critic_steps=3")


@pytest.mark.slow
@pytest.mark.parametrize("method", [(), ("task=sam",), ("task=pcgrad",), GAN], ids=["one pass", "sam", "pcgrad", "gan"])
def test_the_flop_of_a_run_are_those_of_the_passes_that_its_method_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: tuple[str, ...]
) -> None:
    """SAM makes two in a step, PCGrad one for each loss, and the GAN's generator one in every third step."""
    step, executed = lab.loop.train_step, []

    def counted(*given: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            values = step(*given)
        executed.append(counter.get_total_flops())
        return values

    monkeypatch.setattr(lab.loop, "train_step", counted)
    run = start_run(tmp_path / "run", *SHORT, *method, "profiler.flop=true", "trainer.log_every=24")
    (samples,), (tflop,) = (logged(run, f"perf/{name}_per_s") for name in ("samples", "tflop"))
    trained = 24 * compose(*SHORT).trainer.global_batch_size
    assert tflop * 1e12 / samples == pytest.approx(sum(executed) / trained)


@pytest.mark.slow
def test_a_resumed_run_logs_the_speed_of_its_own_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first log interval began before the stop. A step lasts one second here."""
    step, done = lab.loop.train_step, [0.0]

    def timed(*given: Any) -> Any:
        done[0] += 1
        return step(*given)

    monkeypatch.setattr(lab.loop, "train_step", timed)
    monkeypatch.setattr(lab.loop.SpeedMeter, "_now", lambda self: (done[0], 0.0))
    with pytest.raises(SystemExit, match="75"):
        start_run(tmp_path, *SHORT, "process.stop_at_step=7")
    resume_run(tmp_path, process__stop_at_step=None)
    assert set(logged(tmp_path, "perf/samples_per_s")) == {compose(*SHORT).trainer.global_batch_size}
    assert len(logged(tmp_path, "perf/samples_per_s")) == 6


@pytest.mark.slow
def test_speeds_are_logged(tmp_path: Path, plain: Path) -> None:
    run = start_run(tmp_path / "run", *SHORT, "profiler.flop=true", "profiler.peak_tflops=2")
    for samples, tflop, mfu in zip(
        *(logged(run, f"perf/{name}") for name in ("samples_per_s", "tflop_per_s", "mfu")), strict=True
    ):
        assert tflop / samples == pytest.approx(
            logged(run, "perf/tflop_per_s")[0] / logged(run, "perf/samples_per_s")[0]
        )
        assert mfu == pytest.approx(tflop / 2)
    assert not logged(plain, "perf/tflop_per_s")  # a CPU's are counted where they are asked for
    assert metrics(plain) == metrics(run)


def losses_that_talk(self: Any, model: nn.Module, batch: Any) -> Any:
    """As a task's own, which first ask all ranks for something, on the host."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(torch.ones(1, device="cpu"))
    return own_losses(self, model, batch)


own_losses = Supervised.losses


@pytest.mark.slow
def test_two_ranks_count_the_flop_of_a_sample_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervised, "losses", losses_that_talk)
    more = (*SHORT, "profiler.flop=true", "profiler.peak_tflops=2", "trainer.eval_every=null", "trainer.log_every=12")
    two = (*more, "hardware.num_procs=2", "hardware.micro_batch_size=5")
    one = start_run(tmp_path / "one", *more)
    ways = [start_run(tmp_path / way, *two, f"trainer={way}") for way in ("ddp", "fsdp")]
    flop, peaks = [], []
    for run in (one, *ways):
        speeds = zip(*(logged(run, f"perf/{name}") for name in ("samples_per_s", "tflop_per_s", "mfu")), strict=True)
        for samples, tflop, mfu in speeds:
            flop.append(tflop / samples)
            peaks.append(tflop / mfu)
    assert flop == pytest.approx([flop[0]] * 6)
    assert peaks == pytest.approx([2.0] * 2 + [4.0] * 4)


def test_the_peak_of_dp_is_that_of_all_its_gpus() -> None:
    config, model, task = parts("profiler.flop=true", "profiler.peak_tflops=2")
    batch = {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.long)}
    three = replace(hardware(), devices=3)
    assert work_of_task(config, three, model, task, lambda: batch, Logger()).peak_flop_per_s == 6e12


def test_a_loss_with_autocast_of_its_own_is_counted() -> None:
    _, model, task = parts()
    batch = {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.long)}
    plain = flop_per_sample(model, task, batch)

    class Precise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, enabled=False):
                return self.inner(x)

    before = torch.autocast
    assert flop_per_sample(Precise(), task, batch) == plain
    assert torch.autocast is before


@pytest.mark.slow
@NEEDS_GPT
def test_tokens_per_second_are_samples_times_the_window(tmp_path: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(tmp_path / "t.h5", "w") as file:
        for split in ("train", "val"):
            file[f"{split}/t"] = np.arange(3000, dtype=np.uint16) % 50
    run = start_run(
        tmp_path / "run", "data=tokens", f"data.path={tmp_path}/t.h5", "data.fields.tokens=t", "data.window=16",
        "model=gpt", "model.width=16", "model.heads=2", "model.layers=1", "task=next_token", "logger=none",
        "hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.max_steps=4",
        "trainer.log_every=2", "trainer.global_batch_size=8", "trainer.max_eval_batches=1",
    )  # fmt: skip
    ratios = {a / b for a, b in zip(logged(run, "perf/tokens_per_s"), logged(run, "perf/samples_per_s"))}
    assert ratios == {16.0}


def test_flop_that_cannot_be_counted_are_left_out_with_a_line() -> None:
    config, _, task = parts("profiler.flop=true")
    said: list[str] = []

    class Told(Logger):
        def say(self, text: str) -> None:
            said.append(text)

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sum().item()

    batch = {"x": torch.zeros(8, 1, 8, 8), "y": torch.zeros(8, dtype=torch.long)}
    work = work_of_task(config, hardware(), Asks(), task, lambda: batch, Told())
    assert work.flop is None
    assert said[0].startswith("perf/tflop_per_s is not logged")


# ---- Python functions


def nap(self: Any, output: Any, batch: Any) -> None:
    time.sleep(0.02)


def test_python_functions_have_a_table_and_a_flame_graph(tmp_path: Path, use: Callable[..., None]) -> None:
    """Of the steps after the warm-up; the bits are those of a run without."""

    slept = []

    class Napping(Callback):
        def on_step(self, state: Any) -> None:
            began = time.perf_counter()
            nap(self, None, None)
            slept.append(time.perf_counter() - began)

    short = (*QUICK, "trainer.max_steps=20", "trainer.eval_every=null", "trainer.save_every=null")
    plain = start_run(tmp_path / "plain", *short)
    use(Napping())
    began = time.perf_counter()
    run = start_run(tmp_path / "run", *short, "profiler=python", "profiler.wait=2", "profiler.active=6")
    whole_s = time.perf_counter() - began
    assert_undisturbed(run, plain)
    folder = run / "profile"
    assert {path.name for path in folder.iterdir()} == {"functions.txt", "functions.prof", "flame.svg", "stacks.txt"}
    text = (folder / "functions.txt").read_text()
    assert text.startswith("6 steps, ")
    (row,) = [line.split() for line in text.partition("by total")[0].splitlines() if "time.sleep" in line]
    assert float(row[0]) == 1
    assert 16 < float(row[1]) < 1000 * max(slept) + 1
    sampled = [line.rpartition(" ") for line in (folder / "stacks.txt").read_text().splitlines()]
    asleep, whole = (sum(int(us) for stack, _, us in sampled if name in stack) / 1e6 for name in ("nap (", ""))
    assert 0.05 < asleep <= whole < whole_s
    assert "nap (" in (folder / "flame.svg").read_text()
    assert "functions: " in (run / "train.log").read_text()


@pytest.mark.slow
def test_a_run_too_short_for_the_table_says_so(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *SHORT, "profiler=python")
    log = (run / "train.log").read_text()
    assert "the run ended after 24 steps, before profiler.wait + 2 * profiler.active = 105" in log
    assert {path.name for path in (run / "profile").iterdir()} == {"flame.svg", "stacks.txt"}


@pytest.mark.slow
@pytest.mark.parametrize("at", [4, 9])
def test_a_run_that_fails_stops_recording(tmp_path: Path, use: Callable[..., None], at: int) -> None:
    class Failing(Callback):
        def on_step(self, state: Any) -> None:
            if state.step == at:
                raise RuntimeError("of the test")

    use(Failing())
    interval, threads = sys.getswitchinterval(), threading.active_count()
    with pytest.raises(RuntimeError, match="of the test"):
        start_run(tmp_path / "run", *SHORT, "profiler=python", "profiler.wait=2", "profiler.active=6")
    assert sys.getswitchinterval() == interval
    assert threading.active_count() <= threads
    assert sys.getprofile() is None


def test_a_flame_graph_shows_shares_of_the_time() -> None:
    stacks = {("fit", "step", "a<b>"): 3.0, ("fit", "step"): 1.0, ("fit", "save"): 4.0, ("fit", "tiny"): 1e-6}
    svg = ElementTree.fromstring(flame_graph(stacks, "1 step"))
    name = "{http://www.w3.org/2000/svg}"
    drawn = {
        one.find(f"{name}title").text.partition(":")[0]: one.find(f"{name}rect").attrib  # type: ignore[union-attr]
        for one in svg.findall(f"{name}g")
    }
    assert {key: float(value["width"]) for key, value in drawn.items()} == {
        "fit": 1200, "save": 600, "step": 600, "a<b>": 450,
    }  # fmt: skip
    assert float(drawn["a<b>"]["x"]) == float(drawn["step"]["x"])
    assert len({value["y"] for value in drawn.values()}) == 3
