"""trainer=fsdp on CPU ranks: sharded is not another computation, and its checkpoints fit any number of ranks."""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import QUICK, ROOT
from gpt import NEEDS_GPT
from omegaconf import OmegaConf
from torch import nn
from torch.torch_version import TorchVersion

import lab.objective
import lab.run
from lab import load_run
from lab.callbacks.base import Callback
from lab.models.mlp import MLP
from samebits.checkpoints import load_checkpoint, shard_plan, sharded
from samebits.checkpoints.integrity import file_sum
from samebits.errors import ConfigError, CorruptFileError, RunFailed
from samebits.loggers import Logger
from samebits.parallel.fsdp import FIRST_TORCH
from samebits.process.models import model_of_rank
from samebits.testing import (
    assert_equal,
    assert_undisturbed,
    compose,
    killed_at,
    last_checkpoint,
    metrics,
    result,
    resume_run,
    start_run,
    status,
    values,
    without_code_generator,
)
from samebits.testing.processes import called, on_ranks, sample_of, slow
from samebits.testing.runs import import_once
from samebits.world import World, world_of_one

pytestmark = pytest.mark.skipif(torch.__version__ < TorchVersion(FIRST_TORCH), reason=f"needs torch {FIRST_TORCH}")
FSDP = ("trainer=fsdp", "hardware.num_procs=2")
PLAIN = [o for o in QUICK if not o.startswith("model.")]


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.h5"
    with h5py.File(path, "w") as file:
        for split, length in (("train", 2000), ("val", 203)):
            data = np.random.default_rng(length).integers(0, 17, length).astype(np.uint8)
            file.create_dataset(f"{split}/tokens", data=data).attrs["classes"] = 17
    return path


def model_overrides(model: str, tokens: Path) -> tuple[str, ...]:
    return {
        "mlp": (*QUICK,),
        "resnet": (*PLAIN, "model=resnet", "model.width=4", "model.blocks=[1,1]"),
        "gpt": (
            *PLAIN, "data=tokens", f"data.path={tokens}", "data.window=12", "model=gpt", "model.width=16",
            "model.heads=2", "model.layers=2", "task=next_token",
        ),
    }[model]  # fmt: skip


def losses(run_dir: Path, key: str = "train/loss") -> torch.Tensor:
    return torch.tensor(values(run_dir, key))


def cut_at(run_dir: Path, step: int) -> None:
    """As if the run had been killed after `step` had been saved."""
    for path in (run_dir / "checkpoints").iterdir():
        if int(path.stem.split("_")[1]) > step:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def fsdp_config(**values: Any) -> Any:
    from samebits.parallel import FsdpConfig
    from samebits.schema import typed

    return typed(FsdpConfig, OmegaConf.to_container(compose("trainer=fsdp").trainer.fsdp) | values, "trainer.fsdp")


# ---- the same computation


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", pytest.param("gpt", marks=NEEDS_GPT), "resnet"])
def test_sharded_steps_equal_the_others(tmp_path: Path, tokens: Path, model: str) -> None:
    """Losses, norms and weights of ddp with two ranks; and of one rank, but for BatchNorm, which counts by rank."""
    common = (
        *model_overrides(model, tokens), "trainer.max_steps=8", "trainer.global_batch_size=36", "trainer.log_every=1",
        "trainer.ema_decay=0.9", "trainer.clip_norm=0.5", "seed=3", "trainer.eval_every=4",
        "hardware.eval_batch_size=64",
    )  # fmt: skip
    two = (*FSDP, "hardware.micro_batch_size=6")
    ways = {"ddp": ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=6"), "fsdp": two}
    if model == "resnet":
        ways["fsdp"] = (*two, "hardware.activation_checkpointing=auto")
    if model == "gpt":
        ways["three"] = ("trainer=fsdp", "hardware.num_procs=3", "hardware.activation_checkpointing=auto")
    if model == "mlp":
        ways |= {
            "single": ("trainer=single",),
            "kept": (*two, "trainer.fsdp.reduce_each_micro_batch=true", "trainer.fsdp.reshard_after_forward=false"),
            "two copies": (
                "trainer=fsdp",
                "hardware.num_procs=4",
                "trainer.fsdp.replicas=2",
                "trainer.fsdp.cpu_offload=true",
            ),
        }
    runs = {way: start_run(tmp_path / way, *common, *more) for way, more in ways.items()}
    expected = last_checkpoint(runs["ddp"])
    for way, run in runs.items():
        for key, rtol in (("train/loss", 1e-4), ("train/grad_norm", 1e-3), ("val/loss", 1e-4)):
            torch.testing.assert_close(losses(run, key), losses(runs["ddp"], key), rtol=rtol, atol=1e-5, msg=way + key)
        payload = last_checkpoint(run)
        for part in ("model", "ema"):
            assert list(payload[part]) == list(expected[part])
            torch.testing.assert_close(payload[part], expected[part], rtol=1e-3, atol=1e-4)
        for number, wanted in expected["optimizer"]["state"].items():
            assert wanted.keys() == payload["optimizer"]["state"][number].keys()
            torch.testing.assert_close(payload["optimizer"]["state"][number]["step"], wanted["step"])


class AtStart(Callback):
    """Writes the first weights and their average, whole."""

    def on_start(self, state: Any) -> None:
        parts = {"model": state.model.state_dict(), "ema": state.ema.state_dict()}
        for part, held in parts.items():
            values = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in held.items()}
            if self.run.world.is_main:
                torch.save(values, self.run.directory / f"{part}.pt")


@pytest.mark.slow
def test_first_weights_are_those_of_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[..., Path]
) -> None:
    """Of a model that numpy initializes, which needs values; test_meta_init.py is about all others."""
    plain = made(*FSDP)
    monkeypatch.setattr(lab.run, "make_callbacks", lambda config: [AtStart()])
    original = MLP.__init__

    @functools.wraps(original)
    def by_numpy(self: MLP, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        with torch.no_grad():
            self[0].weight.copy_(torch.from_numpy(np.tanh(self[0].weight.numpy())))

    monkeypatch.setattr(MLP, "__init__", by_numpy)
    runs = [
        start_run(tmp_path / way, *QUICK, f"trainer={way}", "hardware.num_procs=2", "trainer.max_steps=1",
                  "trainer.ema_decay=0.9", "seed=5")
        for way in ("ddp", "fsdp")
    ]  # fmt: skip
    for part in ("model.pt", "ema.pt"):
        assert_equal(*(torch.load(run / part, weights_only=True) for run in runs))
    said = [(run / "train.log").read_text() for run in (runs[1], plain)]
    assert ["each process first builds the whole MLP in host memory" in text for text in said] == [True, False]


@pytest.mark.slow
def test_each_rank_holds_its_share(tmp_path: Path) -> None:
    """Half the weights, the gradients, the average and the optimizer's state, and all of them again after a forward."""

    def work(world: Any, folder: Path) -> None:
        from lab.builders import make_state, make_task
        from lab.config import Config
        from lab.model_io import make_model
        from lab.optimizer_step import update
        from samebits.device import resolve_hardware
        from samebits.parallel.fsdp import local_share

        cfg = compose(*QUICK, *FSDP, "trainer.max_steps=1", "model.hidden=[32,32]", "trainer.ema_decay=0.9")
        config = Config.of(cfg)
        machine = resolve_hardware(config.hardware, config.trainer)
        model = make_model(config)
        whole = sum(p.numel() for p in model.parameters())
        state = make_state(config, machine, model, make_task(config), 10, world)
        model(torch.rand(4, 1, 8, 8)).sum().backward()
        update(state.optimizer[""], None)
        with torch.no_grad():
            model(torch.rand(4, 1, 8, 8))
        held = {"weights": local_share(model)[0], "ema": local_share(state.ema)[0]}  # type: ignore[arg-type]
        held["gradients"] = sum(p.grad.to_local().numel() for p in model.parameters())  # type: ignore[union-attr]
        for name in ("exp_avg", "exp_avg_sq"):
            held[name] = sum(values[name].to_local().numel() for values in state.optimizer[""].state.values())
        held["storage"] = sum(p.to_local().untyped_storage().nbytes() for p in model.parameters()) // 4  # type: ignore[attr-defined]
        (folder / f"{world.rank}.json").write_text(json.dumps({"whole": whole, **held}))

    on_ranks(work, tmp_path / "ranks")
    for rank in range(2):
        held = json.loads((tmp_path / f"ranks/{rank}.json").read_text())
        whole = held.pop("whole")
        for what, count in held.items():
            assert whole * 0.49 <= count <= whole * 0.51, (rank, what, count, whole)


@pytest.mark.slow
def test_shards_are_clipped_as_the_whole(tmp_path: Path) -> None:
    """In two copies. Some ranks hold unequal parts of a weight, or none. All ranks have the same bits of the norm."""

    def work(world: Any, folder: Path) -> None:
        from lab.optimizer_step import clip
        from samebits.parallel import shard

        torch.manual_seed(0)
        whole, parts = (nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 1)) for _ in range(2))
        parts.load_state_dict(whole.state_dict())
        shard(parts, fsdp_config(replicas=2), "fp32", world, compiled=False)
        x = torch.randn(6, 7)
        for model in (whole, parts):
            model(x).square().sum().backward()
        norms = [clip([p.grad for p in model.parameters()], 0.1) for model in (whole, parts)]  # type: ignore[misc]
        torch.testing.assert_close(norms[1], norms[0])
        assert type(norms[1]) is torch.Tensor
        for one, part in zip(whole.parameters(), parts.parameters()):
            torch.testing.assert_close(part.grad.full_tensor(), one.grad)  # type: ignore[union-attr]
        (folder / f"{world.rank}").write_text(float(norms[1]).hex())

    on_ranks(work, tmp_path / "ranks", 4)
    assert len({path.read_text() for path in (tmp_path / "ranks").glob("[0-9]")}) == 1


@pytest.mark.slow
def test_fused_kernels_are_given_the_shards(tmp_path: Path) -> None:
    """Bit for bit what they make of plain tensors; the state is sharded like the weights."""

    def work(world: Any, folder: Path) -> None:
        for kind in ("AdamW", "Adam", "SGD", "Adagrad"):
            stepped(world, kind)

    def stepped(world: Any, kind: str) -> None:
        from torch.distributed.tensor import DTensor
        from torch.utils._python_dispatch import TorchDispatchMode

        from samebits.parallel import shard
        from samebits.shards import on_shards
        from samebits.torch_private import lean_step

        class Spy(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if "fused" in str(function):
                    seen.append(type(args[0][0]))
                return function(*args, **kwargs or {})

        torch.manual_seed(0)
        model, seen = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 1)), list[type]()
        shard(model, fsdp_config(), "fp32", world, compiled=False)
        plain = [nn.Parameter(p.to_local().clone()) for p in model.parameters()]  # type: ignore[attr-defined]
        more = {"momentum": 0.9} if kind == "SGD" else {}
        optimizers = [getattr(torch.optim, kind)(p, lr=0.1, fused=True, **more) for p in (plain, model.parameters())]
        for _ in range(3):
            model(torch.randn(6, 7)).square().sum().backward()
            for one, part in zip(plain, model.parameters()):
                one.grad = part.grad.to_local().clone()  # type: ignore[union-attr]
            for optimizer in optimizers:
                with Spy(), on_shards(optimizer):
                    lean_step(optimizer)
                optimizer.zero_grad()
        assert len(seen) == 6
        assert DTensor not in seen
        assert_equal([p.to_local() for p in model.parameters()], plain)  # type: ignore[attr-defined]
        for a, b in zip(*(optimizer.state.values() for optimizer in optimizers)):
            assert all(isinstance(value, DTensor) == (name != "step") for name, value in b.items())
            assert_equal([getattr(b[name], "_local_tensor", b[name]) for name in a], [*a.values()])

    on_ranks(work, tmp_path / "ranks")


class Types(Callback):
    """Writes the dtype of what goes from block to block, and of the logits."""

    def on_start(self, state: Any) -> None:
        self.seen: dict[str, str] = {}
        for name, module in state.model.named_modules():
            if name.startswith("blocks.") and name.count(".") == 1:
                module.register_forward_hook(lambda m, i, o, n=name: self.seen.update({n: f"{i[0].dtype} {o.dtype}"}))

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        self.seen["logits"] = str(output.dtype)

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        (self.run.directory / f"types{self.run.world.rank}.json").write_text(json.dumps(self.seen))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.slow
def test_low_precision_has_ddp_s_types(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """The residual stream is 32 bits wide, as with ddp, and what is computed is near."""
    monkeypatch.setattr(lab.run, "make_callbacks", lambda config: [Types()])
    common = (
        *model_overrides("gpt", tokens), "trainer.max_steps=8", "trainer.global_batch_size=36", "trainer.log_every=1",
        "hardware.num_procs=2", f"hardware.precision={precision}", "trainer.eval_every=4", "optim.lr=0.01",
    )  # fmt: skip
    ddp, fsdp = (start_run(tmp_path / way, *common, f"trainer={way}") for way in ("ddp", "fsdp"))
    payload = last_checkpoint(fsdp)
    assert {v.dtype for v in payload["model"].values()} == {torch.float32}
    assert payload["optimizer"]["state"][0]["exp_avg"].dtype == torch.float32
    types = [json.loads((run / f"types{rank}.json").read_text()) for run in (ddp, fsdp) for rank in range(2)]
    assert types == [types[0]] * 4
    assert types[0]["blocks.0"] == types[0]["blocks.1"] == "torch.float32 torch.float32"
    torch.testing.assert_close(losses(fsdp), losses(ddp), rtol=2e-3, atol=0)
    torch.testing.assert_close(losses(fsdp, "val/loss"), losses(ddp, "val/loss"), rtol=2e-3, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.slow
def test_a_gradient_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """On one rank, in one step: all ranks leave it out, or stop."""
    original, calls = lab.objective.forward_loss, [0]

    def poisoned(*args: Any) -> Any:
        values, output = original(*args)
        calls[0] += torch.is_grad_enabled()
        if calls[0] == 3 and os.environ["RANK"] == "1" and torch.is_grad_enabled():
            values = {name: value * float("nan") for name, value in values.items()}
        return values, output

    monkeypatch.setattr(lab.objective, "forward_loss", poisoned)
    common = (*QUICK, *FSDP, "trainer.max_steps=10", "trainer.log_every=5", f"hardware.precision={precision}")
    run = start_run(tmp_path / "skip", *common, "trainer.non_finite=skip")
    payload = last_checkpoint(run)
    assert sum(line.get("train/skipped_steps", 0) for line in metrics(run)) == 1
    assert all(torch.isfinite(v).all() for v in payload["model"].values())
    if precision == "fp32":
        with pytest.raises(RunFailed, match="gradients were not finite within the steps 1 to 5"):
            start_run(tmp_path / "stop", *common)
    else:
        assert payload["scaler"]["scale"] == 2.0**15  # halved once


# ---- evaluation


@pytest.mark.slow
def test_every_sample_counts_once_and_no_rank_waits_for_ever(tmp_path: Path) -> None:
    """250 samples in batches of 7 over 3 ranks, whose numbers of batches differ, have one rank's scores."""
    one = start_run(tmp_path / "1", *QUICK, "trainer.max_steps=12", "trainer.global_batch_size=66")
    expected = result(one)
    resume_run(one, trainer__strategy="fsdp", trainer__fsdp=vars(fsdp_config()), hardware__num_procs=3,
          hardware__eval_batch_size=7)  # fmt: skip
    for key in ("val/accuracy", "test/accuracy"):
        assert result(one)[key] == expected[key]
    for key in ("val/loss", "test/loss"):
        assert result(one)[key] == pytest.approx(expected[key], rel=1e-6)


@pytest.mark.slow
def test_a_rank_without_samples_keeps_in_step(tmp_path: Path) -> None:
    """A validation set of one sample for three ranks."""
    data = ("data=synthetic", "data.size=15", "data.shape=[4]", "data.num_classes=3", "trainer.global_batch_size=6")
    common = (*QUICK, *data, "trainer.max_steps=2", "trainer.eval_every=1")
    one = start_run(tmp_path / "1", *common)
    three = start_run(tmp_path / "3", *common, "trainer=fsdp", "hardware.num_procs=3")
    for key in ("val/loss", "val/accuracy"):
        torch.testing.assert_close(losses(three, key), losses(one, key), rtol=1e-4, atol=1e-5)


# ---- checkpoints


@pytest.mark.slow
def test_killed_twice_equals_undisturbed(tmp_path: Path) -> None:
    """SIGKILL, perhaps while a checkpoint is written, twice: the same bits, and the same metrics."""
    overrides = (
        *QUICK, *FSDP, "trainer.max_steps=28", "trainer.log_every=5", "trainer.eval_every=14", "trainer.save_every=3",
        "trainer.ema_decay=0.99", "model.dropout=0.2", "optim.lr=3e-3", "hardware.micro_batch_size=20",
        "hardware.activation_checkpointing=auto",
    )  # fmt: skip
    straight = start_run(tmp_path / "straight", *overrides)
    killed = killed_at(tmp_path / "killed", (6, 15), overrides, ".dcp")
    assert_undisturbed(killed, straight)
    left = {path.name for path in (killed / "checkpoints").iterdir()}
    assert left == {path.name for path in (straight / "checkpoints").iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run of some ranks to its end, made once; not to be changed."""
    common = (
        *QUICK, "model.hidden=[2,16]", "trainer.max_steps=20", "trainer.global_batch_size=66", "trainer.log_every=1",
        "trainer.save_every=10", "trainer.ema_decay=0.9", "trainer.eval_every=5",
    )  # fmt: skip
    return functools.cache(lambda *more: start_run(tmp_path_factory.mktemp("made") / "run", *common, *more))


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        slow("more", FSDP, {"hardware__num_procs": 3}),
        slow("to ddp", FSDP, {"trainer__strategy": "ddp"}),
        slow("from ddp", ("trainer=ddp", "hardware.num_procs=2"), {"trainer__strategy": "fsdp"}),
    ],
)
def test_a_run_goes_on_with_other_ranks(
    tmp_path: Path, made: Callable[..., Path], name: str, first: tuple[str, ...], then: Any
) -> None:
    """To rounding; the average, the optimizer's state, the schedule and the position in the data come along."""
    straight, run = made(), Path(shutil.copytree(made(*first), tmp_path / "run"))
    cut_at(run, 10)
    if name == "from ddp":
        then = {**then, "trainer__fsdp": vars(fsdp_config())}
    resume_run(run, **then)
    torch.testing.assert_close(losses(run), losses(straight), rtol=1e-4, atol=1e-5)
    a, b = last_checkpoint(run), last_checkpoint(straight)
    assert (a["step"], a["samples"], a["schedule"]) == (b["step"], b["samples"], b["schedule"])
    for part in ("model", "ema"):
        torch.testing.assert_close(a[part], b[part], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_whatever_reads_a_run_reads_parts(tmp_path: Path, made: Callable[..., Path]) -> None:
    """load_run, evaluate.py and export.py, on a run that was moved; the file loads in a bare model."""
    moved = Path(shutil.copytree(first := made(*FSDP), tmp_path / "moved"))
    for file in (*moved.glob("*.json"), *moved.glob("*.yaml")):  # as if it were no longer there
        file.write_text(file.read_text().replace(str(first), str(tmp_path / "first")))
    parts = sorted((moved / "checkpoints").glob("best_*.dcp"))[0]
    done = called([sys.executable, str(ROOT / "src/evaluate.py"), str(moved), "--json"])
    assert done.stderr == ""
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(result(moved)["test/accuracy"])
    called([sys.executable, str(ROOT / "src/export.py"), str(moved), str(tmp_path / "model.pt")])
    bare = MLP((1, 8, 8), 10, [2, 16], 0.0)
    bare.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    for source in (moved, parts):
        model, _ = load_run(source)
        assert_equal(dict(model.state_dict()), dict(bare.state_dict()))
    (parts / "__1_0.distcp").unlink()
    with pytest.raises(ConfigError, match="does not load"):
        load_run(parts)


@pytest.mark.slow
def test_a_damaged_part_falls_back_to_the_one_before(
    tmp_path: Path, made: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(made(*FSDP), tmp_path / "run"))
    straight = last_checkpoint(run)
    for best in (run / "checkpoints").glob("best_*"):
        shutil.rmtree(best)
    part = run / "checkpoints/last_000000020.dcp/__1_0.distcp"
    os.truncate(part, part.stat().st_size // 2)
    capfd.readouterr()
    resume_run(run)
    shown = capfd.readouterr().err
    assert f"skipping damaged checkpoint: {part.parent} does not load: __1_0.distcp has" in shown
    assert "resumed from last_000000010.dcp" in shown
    assert_equal(last_checkpoint(run), straight)
    assert sorted(p.name for p in (run / "checkpoints").glob("last_*")) == [
        "last_000000010.dcp", "last_000000020.damaged", "last_000000020.dcp",
    ]  # fmt: skip


@pytest.mark.slow
def test_torch_reads_what_was_saved_and_each_shard_is_written_once(tmp_path: Path) -> None:
    """Two copies of two shards, a buffer, a weight of one row (which leaves nothing for a rank); a save with other
    values, one with other places in a rank's file, one with other tensors. The index is made anew where it must be."""

    def work(world: Any, folder: Path) -> None:
        import torch.distributed.checkpoint as dcp

        from samebits.checkpoints import save_checkpoint
        from samebits.checkpoints.shard_plan import SavePlan
        from samebits.parallel import shard

        torch.manual_seed(0)
        model, plan = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)), SavePlan()
        shard(model, fsdp_config(replicas=2), "fp32", world, compiled=False)
        make_index, made, seen = sharded.make_index, [0], list[int]()

        def counted(*args: Any) -> bytes:
            made[0] += 1
            return make_index(*args)

        sharded.make_index = counted
        for step in range(5):
            with torch.no_grad():
                for p in model.parameters():
                    p += 1
            state = model.state_dict()
            if step == 2 and world.rank == 3:
                plan._shards.reverse()
            if step == 4:
                state.pop("2.bias")
            path = folder / f"last_{step}.dcp"
            rest = {"ema": None, "optimizer": {"state": {}, "param_groups": []}}
            sharded.save({"model": state, **rest}, path, world, save_checkpoint, None, plan)
            seen.append(made[0])
            expected = {key: getattr(value, "full_tensor", lambda v=value: v)() for key, value in state.items()}
            world.barrier()
            files = [path / f"__{rank}_0.distcp" for rank in range(4)]
            assert all(file.stat().st_size > 0 for file in files)  # the copies divide the work
            if world.is_main:
                loaded = {f"model.{key}": torch.zeros_like(value) for key, value in expected.items()}
                dcp.load(loaded, checkpoint_id=path, no_dist=True)
                assert_equal({key.removeprefix("model."): value for key, value in loaded.items()}, expected)
                assert_equal(sharded.load(path)["model"], expected)
        assert seen == ([1, 1, 2, 2, 3] if world.is_main else [0] * 5)
        assert (plan.index is not None) == world.is_main

    on_ranks(work, tmp_path / "ranks", 4)


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = shard_plan.write_tensor

    def full(value: Any, file: Any) -> None:
        second = list((tmp_path / "run/checkpoints").glob("last_*3.dcp"))
        if os.environ.get("RANK") == "1" and second:
            raise OSError(28, "No space left on device")
        original(value, file)

    monkeypatch.setattr(shard_plan, "write_tensor", full)
    with pytest.raises(RunFailed, match=r"\.dcp cannot be written: No space left on device \(rank 1\); "):
        start_run(tmp_path / "run", *QUICK, *FSDP, "trainer.max_steps=10", "trainer.save_every=3",
                  "trainer.eval_every=null")  # fmt: skip
    monkeypatch.undo()
    assert last_checkpoint(tmp_path / "run")["step"] == 3
    assert "No space left" in status(tmp_path / "run")["error"]
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["last_000000003.dcp"]


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.slow
def test_an_index_runs_no_code(tmp_path: Path, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(shutil.copytree(made(*FSDP), tmp_path / "run"))
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    for path in (run / "checkpoints").iterdir():
        rest = torch.load(path / "rest.pt", weights_only=True)
        (path / ".metadata").write_bytes(pickle.dumps(Evil()))
        rest["files"][".metadata"] = (path / ".metadata").stat().st_size
        rest["sums"][".metadata"] = file_sum(path / ".metadata")
        torch.save(rest, path / "rest.pt")
        with pytest.raises(CorruptFileError, match="mkdir"):
            load_checkpoint(path)
    assert not (tmp_path / "evil").exists()


# ---- mistakes, and what it costs others


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.8.0+cu128", r"trainer=fsdp: requires torch 2\.10 or newer, .* but torch is 2\.8\.0\+cu128 - install"),
        ("2.9.1", "requires torch"),
        ("2.10.0+cpu", "weight is empty"),  # the next check
    ],
)
def test_versions_that_compute_wrong_gradients_are_refused(
    version: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.parallel import shard

    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    two = World(0, 2, 0, torch.device("cpu"))
    with pytest.raises(ConfigError, match=message):
        shard(nn.Embedding(0, 2), fsdp_config(), "fp32", two, compiled=False)
    shard(nn.Linear(2, 2), fsdp_config(), "fp32", world_of_one(), compiled=False)  # nothing is sharded


def test_an_old_torch_builds_no_model_and_skips_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    with pytest.raises(ConfigError, match="requires torch"):
        model_of_rank(lambda: pytest.fail("built"), None, 0, World(0, 2, 0, torch.device("cpu")), Logger())
    with pytest.raises(pytest.skip.Exception, match="requires torch"):
        import_once("trainer=fsdp")


@pytest.mark.slow
def test_an_optimizer_that_cannot_shard_is_named(tmp_path: Path) -> None:
    more = ("optim._target_=torch.optim.Adafactor", "~optim.betas", "trainer.max_steps=2")
    with pytest.raises(RunFailed, match=r"optim: Adafactor cannot update sharded weights"):
        start_run(tmp_path / "run", *QUICK, *FSDP, *more)


@pytest.mark.slow
@NEEDS_GPT
def test_tied_weights_cannot_be_wrapped(tmp_path: Path, tokens: Path) -> None:
    more = ("trainer.max_steps=2", "trainer.fsdp.wrap=[Embedding]")
    with pytest.raises(ConfigError, match=r"trainer\.fsdp\.wrap: weights of a wrapped module are used outside"):
        start_run(tmp_path / "run", *model_overrides("gpt", tokens), *FSDP, *more)


@NEEDS_GPT
@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("auto", ["blocks.0", "blocks.1"]),
        ("Block", ["blocks.0", "blocks.1"]),
        (["blocks.*"], ["blocks.0", "blocks.1"]),
        (["norm", "blocks.1"], ["blocks.1", "norm"]),
        (["blocks.*.mlp.0"], ["blocks.0.mlp.0", "blocks.1.mlp.0"]),
    ],
)
def test_modules_by_class_and_name(patterns: str | list[str], names: list[str]) -> None:
    from lab.models.gpt import GPT
    from samebits.parallel import find_blocks

    assert list(find_blocks(GPT([8], 11, width=16, heads=2, layers=2, dropout=0.0), patterns, "key")) == names


@pytest.mark.slow
def test_other_optimizers_and_ranks_go_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no rank unpickles what another sent."""
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_tensor_to_object", lambda *args: pytest.fail("unpickled"))
    more = ("trainer.max_steps=8", "trainer.save_every=4", "trainer.eval_every=null", "trainer.keep_best=0",
            "optim._target_=torch.optim.RMSprop", "~optim.betas", "trainer.global_batch_size=60")  # fmt: skip
    run = start_run(tmp_path / "run", *QUICK, "trainer=fsdp", "hardware.num_procs=3", *more)
    straight = last_checkpoint(run)
    cut_at(run, 4)
    resume_run(run)
    assert_equal(last_checkpoint(run), straight)


@pytest.mark.slow
def test_a_block_is_gathered_while_the_one_before_computes(tmp_path: Path) -> None:
    """And the last one once for forward and backward."""

    def work(world: Any, folder: Path) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        from samebits.parallel import shard

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                gathers[0] += "c10d._allgather_base_" in str(function) or "c10d::_allgather_base_" in str(function)
                return function(*args, **kwargs or {})

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                seen.append(gathers[0])
                y: torch.Tensor = self.linear(self.norm(x))
                inside.append(gathers[0])
                return y

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.blocks = nn.Linear(4, 4), nn.Sequential(*(Block() for _ in range(4)))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.blocks(self.first(x))  # type: ignore[no-any-return]

        gathers = [0]
        for precision, each in (("fp32", 1), ("bf16", 2)):  # of a block in bf16 the norms apart
            model = Net()
            shard(model, fsdp_config(), precision, world, compiled=False)
            for _ in range(2):
                gathers[0], seen, inside = 0, list[int](), list[int]()
                with Count(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = model(torch.rand(2, 4)).sum()
                # the first layer, then in each block all of this block's and the next one's
                assert seen == inside == [1 + 2 * each, 1 + 3 * each, 1 + 4 * each, 1 + 4 * each], (precision, seen)
                with Count():
                    loss.backward()
                assert gathers[0] == 1 + 4 * each + 3, (precision, gathers)

    on_ranks(work, tmp_path / "ranks")


@NEEDS_GPT
@pytest.mark.slow
def test_a_compiled_block_is_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all blocks the same; without breaks; what goes from block to block is fp32 in bf16 too (whose norms of both
    types no eager kernel has: there they are taken apart)."""

    def work(world: Any, folder: Path) -> None:
        from torch._dynamo.utils import counters

        from lab.models.gpt import GPT
        from samebits.parallel import shard

        counters.clear()  # of tests before
        model = GPT([8], 11, width=16, heads=2, layers=3, dropout=0.1)
        shard(model, fsdp_config(), "bf16", world, compiled=True)
        types: list[torch.dtype] = []
        for block in model.blocks:
            block.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.arange(16).reshape(2, 8) % 11).square().mean().backward()
        assert counters["stats"]["unique_graphs"] == 1
        assert not counters["graph_break"]
        assert types == [torch.float32] * 3

    with without_code_generator(monkeypatch, "aot_eager_decomp_partition"):
        on_ranks(work, tmp_path / "ranks")


@pytest.mark.slow
def test_a_block_that_is_no_graph_is_named(tmp_path: Path) -> None:
    def work(world: Any, folder: Path) -> None:
        from samebits.parallel import shard

        class Breaks(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                torch._dynamo.graph_break()
                return super().forward(x)

        model = nn.Sequential(Breaks(4, 4), Breaks(4, 4))
        shard(model, fsdp_config(), "fp32", world, compiled=True)
        with pytest.raises(ConfigError, match=r"hardware\.compile: .* the forward of Breaks must be one graph"):
            model(torch.rand(2, 4))

    on_ranks(work, tmp_path / "ranks")


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return functools.cache(lambda *overrides: start_run(tmp_path_factory.mktemp("eager") / "run", *overrides))


@NEEDS_GPT
@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [*sample_of([], [()]), ("hardware.activation_checkpointing=auto",), ("trainer.fsdp.wrap=[]",)]
)
def test_compiled_blocks_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Path, eager: Callable[..., Path], more: tuple[str, ...]
) -> None:
    common = (*model_overrides("gpt", tokens), *FSDP, "trainer.max_steps=6", "trainer.log_every=1")
    with without_code_generator(monkeypatch):
        compiled = start_run(tmp_path / "compiled", *common, *more, "hardware.compile=true")
    torch.testing.assert_close(losses(compiled), losses(eager(*common)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_weights_of_few_rows_are_said_to_be_padded(tmp_path: Path, made: Callable[..., Path]) -> None:
    """3 rows over 2 processes: the second sends one of nothing. Rows of an even number need no padding."""
    run = start_run(tmp_path / "run", *QUICK, *FSDP, "model.hidden=[3]", "trainer.max_steps=1")
    said = "fsdp: padding adds 28% to the weights that are sent, because they have few rows for 2 processes"
    assert said in (run / "train.log").read_text()
    assert "fsdp: padding" not in (made(*FSDP) / "train.log").read_text()


ODD = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(32, 32)

    def forward(self, x):
        return x + self.a(x)

class Odd(nn.Module):
    def __init__(self, input_shape, num_outputs, what):
        super().__init__()
        self.inp, self.layers = nn.Linear(64, 32), nn.ModuleList(Block() for _ in range(3))
        self.mid, self.out = nn.Linear(32, 32), nn.Linear(32, num_outputs)
        if what == "scalar":
            self.p = nn.Parameter(torch.tensor(1.0))
        elif what == "scalar of a block":
            self.layers[1].p = nn.Parameter(torch.tensor(1.0))
        elif what == "empty":
            self.p = nn.Parameter(torch.zeros(0, 4))
        elif what == "complex":
            self.p = nn.Parameter(torch.ones(4, dtype=torch.cfloat))
        elif what == "bf16":
            self.layers[0].p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        elif what == "tied_blocks":
            self.layers[2].a.weight = self.layers[0].a.weight
        elif what == "tied_root":
            self.mid.weight = self.layers[0].a.weight
        elif what == "twice":
            self.layers[2] = self.layers[0]

    def forward(self, x):
        h = self.inp(x.flatten(1))
        for layer in self.layers:
            h = layer(h)
        h = self.out(self.mid(h))
        return h + self.p.abs().sum().float() if hasattr(self, "p") else h
"""
REFUSED = {
    "scalar": "trainer=fsdp: p has no dimension and cannot be sharded: use a tensor of shape",
    "scalar of a block": "trainer=fsdp: layers.1.p has no dimension and cannot be sharded: use a tensor of shape",
    "empty": "trainer=fsdp: p is empty: make it a buffer",
    "complex": "trainer=fsdp: p is complex, but gradients are averaged as real numbers",
    "bf16": "trainer=fsdp: weights that are gathered together must have the same dtype, but layers.0.p is bfloat16",
}
TRAINED = {"tied_blocks": 1, "tied_root": 2, "twice": 2}  # blocks that are wrapped


@pytest.mark.parametrize("what", [*REFUSED, "tied_blocks", *(slow(what) for what in TRAINED if what != "tied_blocks")])
def test_odd_parameters_train_as_with_ddp_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    import lab.models

    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "lab.models.odd", raising=False)
    common = ("logger=none", "hardware=cpu", "hardware.num_threads=1", "trainer.max_epochs=null", "trainer.max_steps=4",
              "hardware.num_procs=2", "trainer.log_every=1", "~model.hidden", "~model.dropout",
              "model._target_=lab.models.odd.Odd", f"+model.what={what}")  # fmt: skip
    if what in REFUSED:
        with pytest.raises(ConfigError) as error:
            start_run(tmp_path / "run", *common, "trainer=fsdp")
        assert str(error.value).startswith(REFUSED[what])
        assert not (tmp_path / "run").exists()
        assert "Traceback" not in capfd.readouterr().err
        return
    fsdp, ddp = (start_run(tmp_path / way, *common, f"trainer={way}") for way in ("fsdp", "ddp"))
    assert f"fsdp: {TRAINED[what]} x Block + the rest" in capfd.readouterr().err
    assert losses(fsdp) == pytest.approx(losses(ddp), rel=1e-5)
    torch.testing.assert_close(last_checkpoint(fsdp)["model"], last_checkpoint(ddp)["model"], rtol=1e-4, atol=1e-6)
