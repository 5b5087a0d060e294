"""What only a GPU can show; skipped without one. Each run is a command of its own: this process starts no CUDA."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import ROOT, TRAIN

from samebits.checkpoints import load_checkpoint
from samebits.testing import assert_equal, last_checkpoint, metrics, result
from samebits.testing.devices import gpu_environment
from samebits.testing.processes import limit

pytestmark = pytest.mark.gpu
COMMON = ("logger=none", "hardware=gpu", "model=resnet", "model.width=8", "trainer.max_epochs=null")
NO_RESNET = [o for o in COMMON if not o.startswith("model")]
# any synchronisation inside train_step raises, from the third step on (the first ones allocate)
NO_WAITING = """
import sys, torch, lab.loop, train

train_step, calls = lab.loop.train_step, 0

def guarded(*args):
    global calls
    calls += 1
    torch.cuda.set_sync_debug_mode("error" if calls > 2 else "default")
    try:
        return train_step(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")

lab.loop.train_step = guarded
sys.exit(train.main())
"""

FILL = "held = [torch.empty(2**30, dtype=torch.uint8, device='cuda') for _ in range(10**4 if calls == 5 else 0)]"


def gpu_run(run_dir: Path, *overrides: str, code: str | None = None) -> Path:
    """A run on GPUs from start to end; code: a script instead of src/train.py."""
    command = TRAIN if code is None else [sys.executable, "-c", code]
    done = subprocess.run(
        [*command, *overrides, f"hydra.run.dir={run_dir}"],
        env=gpu_environment(), capture_output=True, text=True, timeout=limit(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("loader", ["threads", "device"])
def test_it_learns_in_every_precision(tmp_path: Path, precision: str, loader: str) -> None:
    run = gpu_run(
        tmp_path / "run", *COMMON, f"hardware.precision={precision}", f"data.loader={loader}", "trainer.max_steps=200",
        "optim.lr=3e-3",
    )  # fmt: skip
    assert result(run)["test/accuracy"] > 0.9
    assert all(v.dtype in (torch.float32, torch.int64) for v in last_checkpoint(run)["model"].values())


@pytest.mark.parametrize("loader", ["threads", "device", "workers,data.num_workers=0", "workers,data.num_workers=2"])
def test_a_step_does_not_wait_for_the_device(tmp_path: Path, loader: str) -> None:
    more = (*f"data.loader={loader}".split(","), "trainer.max_steps=30", "hardware.precision=bf16")
    gpu_run(tmp_path / "run", *COMMON, *more, code=NO_WAITING)


SLOW_GPU = """
import sys, torch
sys.path[:0] = sys.argv[1:]
import test_side_stream as cases
from samebits.data import Loader
from samebits.data import TrainPlan, shuffled

device = torch.device("cuda", 0)
for name, (dataset, kind, num_workers) in cases.CASES.items():
    plan, seen = TrainPlan(shuffled(range(50), seed=0), 8, [5, 3], 0, 1, 0), []
    with Loader(dataset, plan, device, None, kind, num_workers, seed=0) as loader:
        for k, batch in zip(range(200), loader):
            torch.cuda.set_sync_debug_mode("error")
            torch.cuda._sleep(10**6)
            seen.append((batch["x"].clone(), plan(k)[1]))
            del batch
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    for values, rows in seen:
        assert values.tolist() == [[row] * 6 for row in rows.tolist()], name
"""


def test_batches_arrive_whole_on_a_gpu_that_is_behind() -> None:
    command = [sys.executable, "-c", SLOW_GPU, str(ROOT / "tests"), str(ROOT / "packages/samebits/tests/data")]
    done = subprocess.run(command, env=gpu_environment(), capture_output=True, text=True, timeout=limit(120))
    assert done.returncode == 0, done.stderr


def test_deterministic_runs_are_bitwise_equal(tmp_path: Path) -> None:
    more = ("trainer.max_steps=30", "hardware.deterministic=true")
    a, b = (last_checkpoint(gpu_run(tmp_path / n, *COMMON, *more)) for n in "ab")
    assert_equal(a["model"], b["model"])
    assert_equal(a["optimizer"], b["optimizer"])


def test_interrupted_equals_uninterrupted(tmp_path: Path) -> None:
    more = ("hardware.deterministic=true", "trainer.save_every=10", "trainer.max_steps=30", "hardware.precision=fp16")
    straight = gpu_run(tmp_path / "straight", *COMMON, *more)
    cut = gpu_run(tmp_path / "cut", *COMMON, *more)
    (cut / "checkpoints/last_000000030.pt").unlink()
    for best in (cut / "checkpoints").glob("best_*.pt"):
        best.unlink()
    gpu_run(cut, *COMMON, *more, "resume=auto")
    assert_equal(last_checkpoint(cut), last_checkpoint(straight))
    assert metrics(cut) == metrics(straight)


GRAPH = "hardware.cuda_graph=true"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_of_the_step_trains_as_the_step_does(tmp_path: Path, precision: str) -> None:
    """To rounding: the rate is a float32 on the device. Dropout draws the same numbers."""
    more = ("trainer.max_steps=30", "hardware.deterministic=true", f"hardware.precision={precision}",
            "model=mlp", "model.dropout=0.1", "trainer.ema_decay=0.9")  # fmt: skip
    plain, graph = (gpu_run(tmp_path / name, *NO_RESNET, *more, *own) for name, own in {"a": (), "b": (GRAPH,)}.items())
    for name, value in last_checkpoint(plain)["model"].items():
        torch.testing.assert_close(last_checkpoint(graph)["model"][name], value, rtol=1e-3, atol=1e-4)
    assert result(graph)["val/loss"] == pytest.approx(result(plain)["val/loss"], rel=1e-3)


def test_a_graph_waits_for_nothing_and_goes_on_exactly(tmp_path: Path) -> None:
    more = (GRAPH, "hardware.deterministic=true", "trainer.save_every=10", "trainer.max_steps=30")
    straight, cut = (gpu_run(tmp_path / name, *COMMON, *more) for name in ("straight", "cut"))
    for late in [*(cut / "checkpoints").glob("last_000000030.pt"), *(cut / "checkpoints").glob("best_*.pt")]:
        late.unlink()
    gpu_run(cut, *COMMON, *more, "resume=auto")
    assert_equal(last_checkpoint(cut), last_checkpoint(straight))
    assert metrics(cut) == metrics(straight)


def test_a_step_that_no_graph_can_hold_is_refused(tmp_path: Path) -> None:
    code = """
import sys, train, lab.tasks.supervised as supervised

losses = supervised.Supervised.losses
supervised.Supervised.losses = lambda self, *given: [losses(self, *given), given[1]["x"].sum().item()][0]
sys.exit(train.main())
"""
    given = [*COMMON, GRAPH, "trainer.max_steps=20", f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], env=gpu_environment(), capture_output=True, text=True,
        timeout=limit(120),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "hardware.cuda_graph=true: a graph cannot contain this step" in done.stderr


def test_compiled_steps_agree(tmp_path: Path) -> None:
    more = ("trainer.max_steps=20", "hardware.precision=fp32")
    eager = gpu_run(tmp_path / "eager", *COMMON, *more)
    compiled = gpu_run(tmp_path / "compiled", *COMMON, *more, "hardware.compile=true")
    assert result(compiled)["val/loss"] == pytest.approx(result(eager)["val/loss"], rel=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("more", [(), ("hardware.micro_batch_size=24",)])  # 24 of 64: sizes of 22, 21, 21
def test_compiled_steps_agree_in_half_precision(tmp_path: Path, precision: str, more: tuple[str, ...]) -> None:
    given = (*COMMON, "trainer.max_steps=20", f"hardware.precision={precision}", *more)
    eager = gpu_run(tmp_path / "eager", *given)
    compiled = gpu_run(tmp_path / "compiled", *given, "hardware.compile=default")
    assert result(compiled)["val/loss"] == pytest.approx(result(eager)["val/loss"], rel=0.1)


TRANSFORMS_ON_GPU = """
import torch
from samebits.compiling import CompiledChain
from lab.transforms.fields import ChannelsFirst, Cutout, Normalize, RandomCrop, RandomErase, RandomFlip, ToFloat
from lab.transforms.fields import compose
from lab.transforms.augment import TrivialAugment
from lab.transforms.color import ColorJitter
from lab.transforms.mixup import Mixup
from lab.transforms.sized import RandomResizedCrop

first = [ChannelsFirst("x"), ToFloat("x")]
images = [Normalize("x", [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]), RandomFlip("x", -1, 0), RandomCrop("x", [6, 6], 1, 0)]
holes = [Cutout("x", 2, 0.0, 0), RandomErase("x", 0.7, [0.1, 0.3], [0.5, 2.0], 0.0, 0), Mixup("x", "y", 3, 0.4, 0)]
crops = [RandomCrop("x", [7, 7], 2, 0, "reflect"), RandomResizedCrop("x", [5, 6], [0.2, 1.0], [0.7, 1.4], 0)]
crops.append(ColorJitter("x", 0.4, 0.4, 0.4, 0.1, 0))
torch.manual_seed(0)
for chosen in ([*first, *images, *holes], [*first, *crops], [first[0], TrivialAugment("x", 0)]):
    apply, batches = compose(chosen, training=True), []
    compiled = CompiledChain(apply)
    for k in range(4):
        given = {"x": torch.randint(256, (64, 7, 7, 3), dtype=torch.uint8), "y": torch.randint(3, (64,))}
        numbers = torch.arange(64) + 64 * k
        there = {name: value.cuda() for name, value in given.items()}
        ways = apply(given, numbers), apply(dict(there), numbers.cuda()), compiled(dict(there), numbers.cuda())
        for name in "xy":
            first, *others = (way[name].cpu() for way in ways)
            for other in others:
                if first.dtype == torch.uint8:  # a turned pixel may lie on the border of two
                    assert (other != first).float().mean() < 0.02
                else:
                    torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-6)
    assert compiled.transform is not apply
"""


def test_transforms_are_those_of_the_cpu_compiled_or_not() -> None:
    """The same draws; arithmetic to rounding."""
    command = [sys.executable, "-c", TRANSFORMS_ON_GPU]
    done = subprocess.run(command, env=gpu_environment(), capture_output=True, text=True, timeout=limit(120))
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_goes_on_elsewhere_and_comes_back(tmp_path: Path) -> None:
    given = (*COMMON, "hardware.precision=fp32", "trainer.ema_decay=0.9", "trainer.save_every=10")
    run = gpu_run(tmp_path / "run", *given, "trainer.max_steps=10")
    command = [sys.executable, str(ROOT / "src/evaluate.py"), str(run), "--json"]
    scores = [
        json.loads(subprocess.run([*command, f"hardware.device={device}"], env=gpu_environment(), check=True,
                                  capture_output=True, text=True, timeout=limit(60)).stdout)
        for device in ("cuda", "cpu")
    ]  # fmt: skip
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)
    for device, steps in (("cpu", 20), ("cuda", 30)):
        again = ("resume=auto", f"hardware.device={device}", f"trainer.max_steps={steps}")
        gpu_run(run, *given[:-1], "trainer.save_every=10", *again)
    assert last_checkpoint(run)["step"] == 30
    assert all(value.isfinite().all() for value in last_checkpoint(run)["model"].values())


def test_a_profiled_step_does_not_wait_either_and_adds_up(tmp_path: Path) -> None:
    more = ("trainer.max_steps=60", "trainer.log_every=20", "hardware.precision=bf16", "profiler=simple")
    run = gpu_run(tmp_path / "run", *COMMON, *more, code=NO_WAITING)
    found = json.loads((run / "profile.json").read_text())
    assert found["steps"] == 55
    for part in ("forward", "backward", "clip", "optimizer"):
        assert found["seconds"][part] > 0, part
    assert sum(found["seconds"].values()) == pytest.approx(sum(found["host_seconds"].values()), rel=0.2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["perf/tflop_per_s"] > 0 for line in lines if "perf/samples_per_s" in line)


def test_a_trace_holds_kernels(tmp_path: Path) -> None:
    run = gpu_run(tmp_path / "run", *COMMON, "trainer.max_steps=20", "profiler=torch")
    events = json.loads((run / "profile/trace_rank0.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)


def test_full_memory_names_the_key_and_leaves_its_history(tmp_path: Path) -> None:
    code = NO_WAITING.replace('torch.cuda.set_sync_debug_mode("error" if calls > 2 else "default")', FILL)
    assert code != NO_WAITING
    given = [*COMMON, "trainer.max_steps=20", "profiler=torch", f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], env=gpu_environment(), capture_output=True, text=True,
        timeout=limit(120),
    )  # fmt: skip
    assert done.returncode == 1
    assert "out of memory (training, at step 4;" in done.stderr
    assert "hardware.micro_batch_size=32" in done.stderr
    assert (tmp_path / "run/profile/memory_rank0.pickle").stat().st_size > 0


def test_the_largest_micro_batch_fits(tmp_path: Path) -> None:
    given = [*COMMON[:2], "model=mlp", "model.hidden=[4000000,8]", "trainer.global_batch_size=1024", *COMMON[4:]]
    run = gpu_run(tmp_path / "run", *given, "trainer.max_steps=3", "hardware.micro_batch_size=auto")
    config = (run / "config.yaml").read_text()
    assert "micro_batch_size: auto" not in config
    assert result(run)["step"] == 3


# two ranks that share the first GPU, by gloo: NCCL refuses that
ONE_GPU = """
import sys
import samebits.device.hardware as hardware, samebits.world.environment as environment, samebits.world.group as group
environment.count_gpus = hardware.count_gpus = lambda: 2
environment.gpu_index = lambda rank, count: 0
group.backend = lambda kind: "gloo"
import train
sys.exit(train.main())
"""


@pytest.mark.parametrize(
    "more", [(), ("hardware.micro_batch_size=12", "trainer.non_finite=skip"), ("hardware.compile=default",)]
)
def test_two_ranks_on_one_gpu_are_one(tmp_path: Path, more: tuple[str, ...]) -> None:
    """DDP's hooks on a GPU, the order of its buckets, what ranks agree on: the weights of one rank, to rounding."""
    given = (*NO_RESNET, "hardware.precision=fp32", "trainer.max_steps=12", *more)
    one = gpu_run(tmp_path / "one", *given)
    two = gpu_run(tmp_path / "two", *given, "trainer=ddp", "hardware.num_procs=2", code=ONE_GPU)
    assert len(last_checkpoint(two)["ranks"]) == 2
    for name, value in last_checkpoint(one)["model"].items():
        torch.testing.assert_close(last_checkpoint(two)["model"][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu(2)
def test_ranks_have_a_gpu_each(tmp_path: Path) -> None:
    run = gpu_run(tmp_path / "run", *COMMON, "trainer=ddp", "trainer.max_steps=20", "hardware.num_procs=2")
    assert len(last_checkpoint(run)["ranks"]) == 2
    assert all(rank["step_time_ms"] > 0 for rank in result(run)["balance"]["ranks"])


@pytest.mark.gpu(2)
def test_ranks_with_sync_batchnorm_and_compressed_gradients_learn(tmp_path: Path) -> None:
    more = ("trainer=ddp", "hardware.num_procs=2", "trainer.sync_batchnorm=true", "trainer.ddp.comm_hook=bf16")
    run = gpu_run(tmp_path / "run", *COMMON, *more, "trainer.max_steps=200", "optim.lr=3e-3")
    assert result(run)["test/accuracy"] > 0.9
    assert "step_time" not in result(run)["balance"]  # nothing tells it where ranks wait for each other all along


@pytest.mark.gpu(2)
def test_one_process_with_two_gpus_agrees_with_one(tmp_path: Path) -> None:
    common = ("logger=none", "hardware=gpu", "hardware.precision=fp32", "trainer.max_steps=12")
    one = gpu_run(tmp_path / "one", *common)
    run = gpu_run(tmp_path / "dp", *common, "trainer=dp")
    for name, value in last_checkpoint(one)["model"].items():
        torch.testing.assert_close(last_checkpoint(run)["model"][name], value, rtol=1e-3, atol=1e-4)


FSDP = ("trainer=fsdp", "hardware.num_procs=2", "model=mlp", "model.hidden=[64,64]")


@pytest.mark.gpu(2)
@pytest.mark.parametrize(
    "more", ["hardware.precision=bf16", "hardware.precision=fp16", "trainer.fsdp.cpu_offload=true"]
)
def test_sharded_training_learns_and_goes_on_exactly(tmp_path: Path, more: str) -> None:
    common = (*NO_RESNET, *FSDP, "hardware.deterministic=true", "trainer.save_every=50", "trainer.ema_decay=0.9", more)
    straight = gpu_run(tmp_path / "straight", *common, "trainer.max_steps=100")
    cut = gpu_run(tmp_path / "cut", *common, "trainer.max_steps=100")
    for path in (cut / "checkpoints").glob("*100.dcp"):
        shutil.rmtree(path)
    gpu_run(cut, *common, "trainer.max_steps=100", "resume=auto")
    assert result(straight)["test/accuracy"] > 0.85
    first, second = (load_checkpoint(run / "checkpoints/last_000000100.dcp") for run in (straight, cut))
    assert_equal(first, second)
    assert metrics(cut) == metrics(straight)


@pytest.mark.gpu(2)
def test_a_sharded_step_does_not_wait_for_the_device(tmp_path: Path) -> None:
    more = (*FSDP, "trainer.max_steps=30", "hardware.precision=bf16")
    gpu_run(tmp_path / "run", *NO_RESNET, *more, code=NO_WAITING)


@pytest.mark.gpu(2)
def test_sharding_halves_the_memory(tmp_path: Path) -> None:
    """Peak of a model whose weights, gradients and optimizer state outweigh its activations."""
    big = ("model=mlp", "model.hidden=[4096,4096,4096,4096]", "trainer.max_steps=5", "hardware.num_procs=2")
    peaks = []
    for trainer in ("ddp", "fsdp"):
        run = gpu_run(tmp_path / trainer, *NO_RESNET, *big, f"trainer={trainer}", "trainer.log_every=5")
        peaks.append(max(rank["memory_mb"] for rank in result(run)["balance"]["ranks"]))
    assert peaks[1] < 0.7 * peaks[0]
