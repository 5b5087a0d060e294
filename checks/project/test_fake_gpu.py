"""Steps, logs and evaluations on a GPU that is not there: which make the host wait for it, and is all on one device?

Nothing is computed, and kernels are not those of a GPU: tests marked gpu show what only a GPU can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from fake_gpu import GPU, Watched, fake_gpu
from torch import Tensor
from torch.torch_version import TorchVersion

import lab.loop as loop
from lab import loaders
from lab.config import Config
from lab.evaluation import evaluate
from lab.experiment import Experiment
from lab.logging import log_train
from lab.state import TrainState, model_or_average
from samebits.device import Hardware, HardwareConfig, resolve_hardware
from samebits.testing import compose
from samebits.testing.processes import sample_of
from samebits.world import World

# fake_gpu uses names of torch that are private; with these versions it was seen to work
pytestmark = pytest.mark.skipif(torch.__version__ < TorchVersion("2.11"), reason="needs torch 2.11")
ONE = World(0, 1, 0, GPU)
COMMON = ("logger=none", "hardware=cpu", "trainer.max_epochs=null", "trainer.max_steps=100",
          "trainer.global_batch_size=8")  # fmt: skip


@dataclass
class Training:
    """What a run builds, with fake tensors on the GPU. `gpu` notes its waits."""

    gpu: Watched
    config: Config
    hardware: Hardware
    state: TrainState
    loss_modules: dict[str, Any]
    transforms: dict[bool, Any]
    samples: dict[str, Any]
    rows: np.ndarray  # of the samples
    logged: list[dict[str, float]] = field(default_factory=list)

    def batches(self, sizes: Sequence[int], training: bool) -> Iterator[dict[str, Any]]:
        for size in sizes:
            batch = {k: v[:size].to(GPU, non_blocking=True) if isinstance(v, Tensor) else v[:size]
                     for k, v in self.samples.items()}  # fmt: skip
            transform = self.transforms[training]
            told = (self.rows[:size],) if getattr(transform, "takes_rows", False) else ()
            yield batch if transform is None else transform(batch, torch.arange(size, device=GPU), *told)

    def step(self) -> dict[str, Tensor]:
        batches = self.batches(self.hardware.micro_batch_sizes, training=True)
        values = loop.train_step(self.loss_modules, self.state, batches, self.config.trainer, self.hardware, ONE)
        self.state.step += 1
        for name, value in values.items():
            assert (value.device, value.dim()) == (GPU, 0), name
            self.state.running_sums[name] = (
                self.state.running_sums[name] + value if name in self.state.running_sums else value
            )
            self.state.counts[name] = self.state.counts.get(name, 0) + 1
        return values

    def waits(self, work: Callable[[], Any]) -> dict[str, int]:
        self.gpu.waits = Counter()
        work()
        return dict(self.gpu.waits)

    def check_steps(self, allowed: dict[str, int]) -> None:
        """The first step may copy constants to the device. Each of the next waits as `allowed` says, and no other."""
        self.gpu.computed.clear()
        assert self.waits(self.step).keys() <= {*allowed, "a copy from cpu to cuda"}
        if allowed:
            assert [self.waits(self.step) for _ in range(2)] == [allowed, allowed]
        else:
            with self.gpu.refused():
                self.step(), self.step()
        assert DTYPES.get(self.hardware.precision, torch.float32) in self.gpu.computed
        assert [name for name, value in self.everything() if value.device != GPU] == []

    def log(self) -> None:
        around = SimpleNamespace(say=print, log=lambda step, values: self.logged.append(values))
        run = SimpleNamespace(
            rank_timing=None, world=ONE, logger=around, trainer=self.config.trainer,
            samples_per_epoch=8,
            notify=lambda *args: None,
        )  # fmt: skip
        log_train(self.state, run, SimpleNamespace(read=lambda samples: {}))  # type: ignore[arg-type]

    def evaluate(self) -> None:
        """Two batches, of the second one sample is padding."""
        sizes = (4, 4)
        batches, lengths = self.batches(sizes, training=False), lambda k: (4, 4 - k)
        model = model_or_average(self.state)
        self.scores = evaluate(model, self.state.task, batches, ONE, self.hardware, lengths)

    def everything(self) -> Iterator[tuple[str, Tensor]]:
        """What training holds."""
        for name, module in (("model", self.state.model), ("task", self.state.task), ("ema", self.state.ema)):
            yield from () if module is None else module.named_parameters(name)
            yield from () if module is None else module.named_buffers(name)
        every = [*self.state.optimizer.values()]
        for held in (state for optimizer in every for state in optimizer.state.values()):
            yield from ((key, value) for key, value in held.items() if isinstance(value, Tensor) and value.dim())


@contextmanager
def training(*overrides: str, micro: Sequence[int] = (5, 3)) -> Iterator[Training]:
    config = Config.of(compose(*COMMON, *overrides))
    precision = config.hardware.precision
    here = resolve_hardware(HardwareConfig(device="cpu", num_threads=1), config.trainer)
    precision = "fp32" if precision == "auto" else precision
    hardware = replace(here, device="cuda", precision=precision, micro_batch_sizes=list(micro), eval_batch_size=4)
    torch.manual_seed(0)
    dataset, one = loaders.make_datasets(config)["train"], World(0, 1, 0, torch.device("cpu"))
    rows = np.arange(8) * len(dataset) // 8
    samples = dataset.gather(rows, None)
    experiment = Experiment(config, hardware, one, {"train": dataset})
    model, task = experiment.build_model_and_task()
    transforms = {training: loaders.make_transform(config, training, dataset) for training in (True, False)}
    with fake_gpu((model, task, samples, transforms)) as (gpu, (model, task, samples, transforms)):
        state, loss_modules = replace(experiment, world=ONE).start_training(model, task, 100)
        for net in loss_modules.values():
            net.train()
        yield Training(gpu, config, hardware, state, loss_modules, transforms, samples, rows)
        assert not gpu.unordered


RESNET = ("model=resnet", "model.width=4", "model.blocks=[1]")
DTYPES = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}
MODES = {
    "fp32": (),
    "bf16": ("hardware.precision=bf16",),
    "bf16-weights": ("hardware.precision=bf16-weights",),
    "fp16": ("hardware.precision=fp16",),
    "skip": ("trainer.non_finite=skip",),
    "fp16, skip": ("hardware.precision=fp16", "trainer.non_finite=skip"),
}
OPTIMIZERS = {
    "adamw": RESNET,
    "adamw, not fused": (*RESNET, "+optim.fused=false"),
    "sgd": (*RESNET, "optim=sgd"),
    "sgd, not fused": (*RESNET, "optim=sgd", "+optim.fused=false"),
    "muon": ("optim=muon", "model.hidden=[16]"),
}


# each mode, and each optimizer where a step may and where none may be left out
PAIRS = [
    ("bf16-weights", "adamw"), ("fp16", "adamw"), ("skip", "adamw"), ("fp16", "adamw, not fused"), ("fp32", "sgd"),
    ("fp16, skip", "sgd"), ("bf16", "sgd, not fused"), ("bf16", "muon"), ("skip", "muon"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "optimizer"), sample_of(PAIRS, [(mode, optimizer) for mode in MODES for optimizer in OPTIMIZERS])
)
def test_a_step_waits_only_where_it_must(mode: str, optimizer: str) -> None:
    """With a moving average, clipping and unequal micro-batches. Where a step may be left out, an optimizer without a
    fused kernel waits once to learn of it: lab.optimizer_step.update. A log waits for the gradients that were not
    finite and for the means; for the scale."""
    asks = ("fp16" in mode or "skip" in mode) and optimizer not in ("adamw", "sgd", "muon")
    with training(*OPTIMIZERS[optimizer], *MODES[mode], "trainer.ema_decay=0.9", "trainer.clip_norm=1.0") as run:
        run.check_steps({"values": 1} if asks else {})
        assert (run.state.scaler is not None) == ("fp16" in mode)
        run.gpu.value = float("fp16" in mode)  # of the scale
        assert run.waits(run.log) == {"values": 2} | ({"a value": 1} if "fp16" in mode else {})


FAST = ("experiment=cifar10_fast", "data.path=cifar.h5", "task.count=8", "model.widths=[4,4,4]",
        "data.transforms.crop.size=[8,8]")  # fmt: skip
GPT = ("data=tokens", "data.path=tokens.h5", "data.window=8", "model=gpt", "model.width=16", "model.layers=1",
       "model.heads=2", "task=next_token")  # fmt: skip
TASKS = {
    "transforms": (
        "+data.transforms.erase={_target_: lab.transforms.fields.RandomErase, field: x, probability: 0.5, "
        "area: [0.02, 0.33], ratio: [0.3, 3.3], value: 0.0, seed: 0}",
        "+data.transforms.part={_target_: lab.transforms.sized.RandomResizedCrop, field: x, size: [8, 8], "
        "area: [0.08, 1.0], ratio: [0.75, 1.3333], seed: 0}",
        "+data.transforms.cutout={_target_: lab.transforms.fields.Cutout, field: x, size: 2, value: 0.0, seed: 0}",
        "+data.transforms.mixup={_target_: lab.transforms.mixup.Mixup, field: x, target: y, num_classes: 10, "
        "alpha: 0.2, seed: 0}",
    ),
    "recomputed, channels last": (
        *RESNET, "model.blocks=[1,1]", "hardware.activation_checkpointing=auto", "hardware.channels_last=true",
        "trainer.clip_norm=null",
    ),
    "cifar10": ("experiment=cifar10", "data.path=cifar.h5", "model.width=4", "model.blocks=[1]",
                "data.transforms.crop.size=[8,8]"),
    "cifar10_fast": FAST,
    "segmentation": ("experiment=segmentation", "model.levels=2", "model.width=8"),
    "gan": ("task=gan", "model.input_shape=[32]", "model.num_outputs=64", "task.critic_steps=2"),
    "byol": ("task=byol", *RESNET),
    "contrastive": ("task=contrastive", *RESNET),
    "clip": ("task=clip", "data=captions", "data.path=captions.h5", *RESNET, "model.num_outputs=8",
             "task.text_encoder.width=8", "task.text_encoder.heads=2", "task.text_encoder.layers=1"),
    "mae": ("task=mae", "model=vit", "model.width=8", "model.heads=2", "model.layers=1"),
    "dino": ("task=dino", *RESNET, "task.views=3"),
    "ddpm": ("task=ddpm", "model.input_shape=[9,8,8]", "model.num_outputs=64"),
    "vae": ("model=autoencoder", "task=vae"),
    "fixmatch": ("experiment=fixmatch", *RESNET),
    "next_token, in pieces": (*GPT, "model.vocab_multiple=8", "model.chunked_logits=true"),
    "language": ("experiment=sequences", "data.path=s.h5", "data.input_shape=[9]", "model.width=16",
                 "model.layers=1", "model.heads=2"),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that TASKS names, small."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    with (
        h5py.File("cifar.h5", "w") as images,
        h5py.File("tokens.h5", "w") as tokens,
        h5py.File("s.h5", "w") as sequences,
        h5py.File("captions.h5", "w") as captions,
    ):
        for split in ("train", "val", "test"):
            images[f"{split}/image"] = draw.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
            images[f"{split}/label"] = draw.integers(0, 10, 40)
            tokens[f"{split}/tokens"] = draw.integers(0, 11, 200)
            sequences[f"{split}/tokens/values"] = draw.integers(0, 11, 200).astype(np.uint8)
            sequences[f"{split}/tokens/offsets"] = np.arange(0, 201, 5)
            captions[f"{split}/image"] = draw.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
            captions[f"{split}/caption/values"] = draw.integers(0, 11, 200).astype(np.uint8)
            captions[f"{split}/caption/offsets"] = np.arange(0, 201, 5)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("task", TASKS)
def test_a_task_waits_for_nothing(task: str) -> None:
    """Nor does an evaluation, but for its scores."""
    # the scaler's part: of several optimizers, of one beside a teacher, of one in two parts
    precision = "fp16" if task in ("gan", "byol", "cifar10_fast") else "bf16"
    with training(*TASKS[task], f"hardware.precision={precision}", micro=[6, 2]) as run:
        run.check_steps({})
        whole = sum(hasattr(metric, "compute") for metric in run.state.task.metrics.values())
        run.evaluate()
        assert run.waits(run.evaluate) == {"values": 1} | ({"a copy from cuda to cpu": whole} if whole else {})


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_text_is_sampled_on_the_device() -> None:
    """With one wait at its end, and operations that hardware.deterministic=true allows."""
    from lab.callbacks.sample_text import SampleText
    from samebits.data import SampleRNG

    with training(*GPT) as run:
        callback = object.__new__(SampleText)
        callback.window, callback.length, callback.temperature, callback.prompt = 8, 3, 1.0, [0]
        callback.draws = SampleRNG(0, "SampleText")
        run.state.model.eval()
        assert run.waits(lambda: callback.sampled(run.state.model, 1, GPU)).get("values") == 1
