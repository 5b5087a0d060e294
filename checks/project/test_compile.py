"""hardware.compile, mostly without torch's code generator, which takes minutes: the backend eager runs the graphs that
dynamo traces; aot_eager also traces their gradients, and runs both with eager kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import QUICK
from gpt import NEEDS_GPT
from torch import nn

from lab.restore import score_checkpoint
from lab.transforms.fields import (
    ChannelsFirst,
    Cutout,
    Normalize,
    RandomCrop,
    RandomErase,
    RandomFlip,
    ToFloat,
    compose as chain,
)
from lab.transforms.mixup import Mixup
from samebits import compiling
from samebits.compiling import CompiledChain, compile_report, for_evaluation
from samebits.data import EvalPlan
from samebits.errors import ConfigError
from samebits.testing import compose, last_checkpoint, metrics, result, start_run, without_code_generator

real = torch.compile


@pytest.fixture
def modes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """torch.compile by aot_eager, or by the backend that a case gives; the modes that were asked for."""
    with without_code_generator(monkeypatch, getattr(request, "param", "aot_eager")) as asked:
        compile_report(lambda line: None)
        yield asked


SMALL = (*QUICK[:3], "trainer.max_epochs=null", "trainer.max_steps=6", "trainer.global_batch_size=24",
         "trainer.log_every=2", "trainer.eval_every=3")  # fmt: skip


def values(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in metrics(run)]


def said(run: Path) -> list[str]:
    return [line for line in (run / "train.log").read_text().splitlines() if "recompiled" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modes", "more"),
    [
        ("aot_eager", ("model.hidden=[16]", "trainer.ema_decay=0.9")),
        ("eager", ("model.hidden=[16]", "hardware.micro_batch_size=10", "trainer.ema_decay=0.9")),
    ],
    indirect=["modes"],
)
def test_a_compiled_run_is_an_eager_one(tmp_path: Path, modes: list[Any], more: tuple[str, ...]) -> None:
    """Losses, scores and weights: 250 samples of a split are scored in batches of 24, the last of which is filled up;
    nothing is compiled for a second evaluation or split."""
    eager = start_run(tmp_path / "eager", *SMALL, *more)
    assert modes == []
    compiled = start_run(tmp_path / "compiled", *SMALL, *more, "hardware.compile=true")
    assert len(modes) > 3, "the losses, the transforms of three loaders, the evaluations"
    for a, b in zip(values(compiled), values(eager), strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert result(compiled)["test/accuracy"] == result(eager)["test/accuracy"]
    torch.testing.assert_close(
        last_checkpoint(compiled)["model"], last_checkpoint(eager)["model"], rtol=1e-4, atol=1e-6
    )
    again = [line for line in said(compiled) if "grad_mode" not in line]
    sizes = [line for line in again if "size mismatch" in line]
    assert len(again) == len(sizes) <= 2 * ("hardware.micro_batch_size=10" in more), again
    assert any("perf/compile_s" in line for line in (compiled / "metrics.jsonl").read_text().splitlines())


GPT = (
    "data=tokens", "data.window=12", "model=gpt", "model.width=16", "model.heads=2", "model.layers=2",
    "model.separator=0", "task=next_token", "logger=none", "hardware=cpu", "hardware.num_threads=1",
    "trainer.max_steps=4", "trainer.global_batch_size=8", "trainer.log_every=1", "trainer.eval_every=2",
)  # fmt: skip


@pytest.mark.slow
@NEEDS_GPT
@pytest.mark.parametrize(
    ("modes", "more"),
    [
        ("eager", ("trainer.ema_decay=0.9", "hardware.micro_batch_size=3")),
        ("aot_eager", ("hardware.activation_checkpointing=auto", "model.dropout=0.1")),  # aot splits the graphs
        ("eager", ("hardware.precision=bf16-weights",)),
        ("eager", ("trainer=ddp", "hardware.num_procs=2")),
    ],
    indirect=["modes"],
)
def test_compiled_block_by_block_is_eager(tmp_path: Path, modes: list[Any], more: tuple[str, ...]) -> None:
    """Names of weights, too; and blocks of one kind are compiled once, not each."""
    with h5py.File(tmp_path / "tokens.h5", "w") as file:
        for split in ("train", "val"):
            file[f"{split}/tokens"] = np.arange(400, dtype=np.uint8) % 11
    run = (*GPT, f"data.path={tmp_path}/tokens.h5", *more)
    eager = start_run(tmp_path / "eager", *run)
    torch._dynamo.reset()
    compiled = start_run(tmp_path / "compiled", *run, "hardware.compile=blocks")
    tolerance = 1e-2 if "hardware.precision=bf16-weights" in more else 1e-4
    for a, b in zip(values(compiled), values(eager), strict=True):
        assert a == pytest.approx(b, rel=tolerance)
    weights, wanted = (last_checkpoint(one)["model"] for one in (compiled, eager))
    assert list(weights) == list(wanted)
    torch.testing.assert_close(weights, wanted, rtol=10 * tolerance, atol=1e-4)
    if "trainer=ddp" not in more:  # its processes compile by themselves
        assert len(modes) >= 5  # both blocks, and three functions that are compiled in any case
        # transforms (fields.py) are no blocks: each split has its own
        expected = ("size mismatch", "grad_mode", "fields.py")
        again = [line for line in said(compiled) if not any(text in line for text in expected)]
        assert not again, again
        made = len(modes)
        assert score_checkpoint(compiled, "val", [])["loss"] == result(compiled)["val/loss"]
        assert len(modes) >= made + 2, "scored as it was trained"


@pytest.mark.slow
def test_with_torch_s_code_generator(tmp_path: Path, train_command: Callable[..., Any]) -> None:
    """By a command: a fork of this process would wait for ever for the compiler's threads of another test."""
    run = (*SMALL, "model.hidden=[16]", "data.splits.test=null", "trainer.eval_every=null")
    eager = start_run(tmp_path / "eager", *run)
    compiled = tmp_path / "compiled"
    train_command(*run, f"hydra.run.dir={compiled}", "hardware.compile=default")
    for a, b in zip(values(compiled), values(eager), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


TRANSFORMS: list[Any] = [
    ChannelsFirst("x"), ToFloat("x"), Normalize("x", [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]), RandomFlip("x", -1, 0),
    RandomCrop("x", [6, 6], 1, 0), Cutout("x", 2, 0.0, 0), RandomErase("x", 0.7, [0.1, 0.3], [0.5, 2.0], 0.0, 0),
    Mixup("x", "y", 3, 0.4, 0),
]  # fmt: skip


@pytest.mark.slow
def test_a_chain_of_transforms_is_one_graph_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    apply: Any = chain(TRANSFORMS, training=True)
    monkeypatch.setattr(torch, "compile", lambda target: real(target, backend="aot_eager", fullgraph=True))
    torch._dynamo.reset()
    compiled = CompiledChain(apply)
    torch.manual_seed(0)
    for batch in range(3):
        given = {"x": torch.randint(256, (8, 7, 7, 3), dtype=torch.uint8), "y": torch.randint(3, (8,))}
        numbers = torch.arange(8) + 8 * batch
        own, wanted = compiled(dict(given), numbers), apply(dict(given), numbers)
        assert all(torch.equal(own[name], wanted[name]) for name in ("x", "y"))
    assert compiled.transform is not apply
    compiled = CompiledChain(chain(TRANSFORMS[2:], training=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="put ToFloat before it"):  # in its own words
        compiled({"x": torch.ones(2, 3, 7, 7, dtype=torch.uint8), "y": torch.zeros(2)}, torch.arange(2))


def machine(**changed: Any) -> Any:
    return SimpleNamespace(**{"compile": "reduce-overhead", "device": "cuda", "micro_batch_sizes": [3, 2], **changed})


@pytest.mark.slow
def test_with_cuda_graphs_each_replay_is_marked_and_gradients_are_kept(
    monkeypatch: pytest.MonkeyPatch, modes: list[Any]
) -> None:
    """A replay writes gradients where the last one did: they are copied before the next micro-batch."""
    marks, given = [], []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    net = nn.Linear(3, 1)
    for p in net.parameters():
        p.register_hook(lambda g: given.append(g.data_ptr()))
    hardware = compose(*QUICK, "trainer.max_steps=1").hardware
    compiled = compiling.compiled(net, hardware, machine())
    kept = []
    for size in (3, 2):
        compiled(torch.ones(size, 3)).sum().backward()
        kept += [p.grad.data_ptr() for p in net.parameters() if p.grad is not None]
    assert len(marks) == 2
    assert kept[:2] == kept[2:], "in the same place"
    assert not set(kept) & set(given)
    assert net.weight.grad is not None
    assert net.weight.grad.tolist() == [[5.0, 5.0, 5.0]]
    assert modes == ["reduce-overhead"]
    for_evaluation(net, machine())
    for_evaluation(net, machine(compile="max-autotune"))
    assert modes[1:] == ["default", "max-autotune-no-cudagraphs"], "results of an evaluation are kept by metrics"
    marks.clear()
    compiling.compiled(nn.Linear(3, 1), hardware, machine(device="cpu"))(torch.ones(2, 3))
    assert marks == []
    assert for_evaluation(net, machine(compile=None)) is net


def test_full_batches_hold_every_row_once() -> None:
    for (size, ranks), in_step in product([(10, 1), (11, 3), (1, 3), (12, 2)], (False, True)):
        counted = []
        for rank in range(ranks):
            plan, k = EvalPlan(size, 4, rank, ranks, in_step, full=True), 0
            while (got := plan(k)) is not None:
                numbers, rows = got
                length, count = plan.size_and_real(k)
                assert len(numbers) == len(rows) == length == 4
                assert (numbers[count:] == -1).all()
                assert (numbers[:count] == rows[:count]).all()
                assert ((rows >= 0) & (rows < size)).all()
                counted += rows[:count].tolist()
                k += 1
        assert sorted(counted) == list(range(size))


IMAGES = ("data=synthetic", "data.shape=[3,8,8]", "data.size=200")  # one channel is in both orders


@pytest.mark.slow
def test_channels_last(tmp_path: Path) -> None:
    """The convolutions' weights and the images are in that order, and results are those of a plain run to rounding."""
    seen = []

    def note(module: Any, inputs: Any) -> None:
        if isinstance(module, nn.Conv2d):
            order = torch.channels_last
            seen.append([t.is_contiguous(memory_format=order) for t in (module.weight, inputs[0])])

    run = (*SMALL, *IMAGES, "model=resnet", "model.width=4", "model.blocks=[1]", "trainer.ema_decay=0.9")
    plain = start_run(tmp_path / "plain", *run)
    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        last = start_run(tmp_path / "last", *run, "hardware.channels_last=true")
    finally:
        handle.remove()
    assert seen
    assert all(all(pair) for pair in seen), seen
    for part in ("model", "ema"):
        torch.testing.assert_close(last_checkpoint(last)[part], last_checkpoint(plain)[part], rtol=1e-3, atol=1e-5)
    with pytest.raises(Exception, match=r"hardware\.channels_last=true: MLP has no weights with 4 dimensions"):
        start_run(tmp_path / "mlp", *QUICK, "trainer.max_steps=1", "hardware.channels_last=true")


@pytest.mark.slow
def test_a_resume_may_change_the_memory_order(tmp_path: Path) -> None:
    """The optimizer's fused kernel goes through weights and moments as rows of numbers: both have to change."""
    run = (*SMALL, *IMAGES, "model=resnet", "model.width=4", "model.blocks=[1]", "optim/schedule=constant")
    wanted = last_checkpoint(start_run(tmp_path / "straight", *run, "trainer.max_steps=8"))["model"]
    for steps, last in ((3, False), (6, True), (8, False)):
        start_run(tmp_path / "run", *run, f"trainer.max_steps={steps}", f"hardware.channels_last={last}")
        found = last_checkpoint(tmp_path / "run")["model"]
        for name, value in found.items():
            if value.dim() == 4 and value.shape[1] > 1:
                assert value.is_contiguous(memory_format=torch.channels_last) == last, name
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
