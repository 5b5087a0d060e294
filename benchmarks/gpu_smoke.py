"""The first stage of benchmarks/gpu.py: each mode and method for a few steps, several side by side. Does it run?"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import h5py
import numpy as np
from gpu_common import OURS, Setting, cifar_file, environment_of, finished, ours, read, token_file

AT_ONCE = 8  # where there are cores for them; speeds beside each other tell little
CORES_EACH = 2
CASE_S = 170.0

DIGITS = ("trainer.max_epochs=null", "trainer.max_steps=40", "trainer.log_every=10", "trainer.eval_every=20",
          "trainer.max_eval_batches=2")  # fmt: skip
RESNET = ("model=resnet", "model.width=16")
GPT = ("data=tokens", "data.window=64", "model=gpt", "model.width=64", "model.layers=2", "model.heads=2",
       "task=next_token", "trainer.global_batch_size=8")  # fmt: skip
GPT_TRAINING = ("data.splits.val=null", "data.splits.test=null")
GAN = ("task=gan", "model.input_shape=[4]", "model.num_outputs=64", "model.hidden=[16]", "task.critic.hidden=[16]",
       "task.critic_steps=2", "optim.lr=3e-3", "optim.betas=[0.0,0.9]")  # fmt: skip
GRAPH = "hardware.cuda_graph=true"
CUDA_GRAPHS = "hardware.compile=reduce-overhead"

CASES: dict[str, tuple[str, ...]] = {
    "max-autotune": ("hardware.compile=max-autotune", *RESNET),  # what takes longest comes first
    "gpt, max-autotune": ("hardware.compile=max-autotune", *GPT, *GPT_TRAINING),
    "gpt, default": ("hardware.compile=default", *GPT),
    "gpt, reduce-overhead": (CUDA_GRAPHS, *GPT),
    "gpt, reduce-overhead, micro-batches, blocks": (
        CUDA_GRAPHS, *GPT, *GPT_TRAINING, "hardware.micro_batch_size=4", "hardware.activation_checkpointing=auto",
    ),
    "resnet, default, channels_last": ("hardware.compile=default", *RESNET, "hardware.channels_last=true"),
    "mlp, reduce-overhead": (CUDA_GRAPHS,),
    "mlp, reduce-overhead, fp16 + skip": (CUDA_GRAPHS, "hardware.precision=fp16", "trainer.non_finite=skip"),
    "gan, reduce-overhead": (CUDA_GRAPHS, *GAN),
    "gan, default": ("hardware.compile=default", *GAN),
    "gpt, by blocks": ("hardware.compile=blocks", *GPT),
    "gpt, loss compiled": ("task.criterion.compiled=true", *GPT),
    "gpt, documents": ("model.separator=0", *GPT),
    "gpt, documents, default": ("model.separator=0", "hardware.compile=default", *GPT, *GPT_TRAINING),
    "trivial augment": (
        "experiment=cifar10", "model.width=16", "data/transforms=[to_float,crop,flip,trivial_augment,normalize]",
    ),
    "graph": (GRAPH,),
    "graph, default": (GRAPH, "hardware.compile=default"),
    "graph, sgd, average, micro-batches, skip": (
        GRAPH, "optim=sgd", "trainer.ema_decay=0.9", "hardware.micro_batch_size=24", "trainer.non_finite=skip",
    ),
    "graph, resnet, fp32": (GRAPH, *RESNET, "hardware.precision=fp32", "data.loader=threads"),
    "graph, gpt, dropout": (GRAPH, *GPT, "model.dropout=0.1"),
    "graph, gpt, default": (GRAPH, *GPT, "hardware.compile=default"),
    "graph, cifar10_fast, default": (
        GRAPH, "experiment=cifar10_fast", "trainer.global_batch_size=500", "trainer.save_every=null",
        "hardware.compile=default",
    ),
    "graph, gpt, muon, skip": (GRAPH, *GPT, "optim=muon", "trainer.non_finite=skip"),
    "graph, vae": (GRAPH, "task=vae", "model=autoencoder"),
    "graph, byol": (GRAPH, "task=byol", "model.num_outputs=16"),
    "graph, lion, plateau, average": (GRAPH, "optim=lion", "optim/schedule=plateau", "trainer.ema_decay=0.9"),
    **{precision: ("hardware.precision=" + precision, *RESNET) for precision in ("fp32", "tf32", "bf16", "fp16")},
    "fp16 + skip": ("hardware.precision=fp16", "trainer.non_finite=skip", *RESNET),
    "bf16-weights": ("hardware.precision=bf16-weights", *RESNET),
    "channels_last": ("hardware.channels_last=true", *RESNET),
    "muon": ("optim=muon",),
    "gpt, muon": ("optim=muon", *GPT),
    "cifar10_fast": ("experiment=cifar10_fast", "trainer.global_batch_size=500", "trainer.save_every=null"),
    "lion, ema": ("optim=lion", "trainer.ema_decay=0.9"),
    "soap": ("optim=soap",),
    "schedule_free": ("optim=schedule_free",),
    "lookahead": ("optim=lookahead",),
    "gpt": GPT,
    "gpt, checkpointed blocks": (*GPT, "hardware.activation_checkpointing=auto"),
    "gpt, matmuls kept": (
        *GPT, "hardware.activation_checkpointing=auto", "hardware.activation_checkpointing_keeps=matmuls",
    ),
    **{f"gpt, attention {kind}": (*GPT, f"hardware.attention=[{kind}]") for kind in ("cudnn", "flash", "efficient")},
    "micro-batch auto": (*RESNET, "hardware.micro_batch_size=auto"),
    "ddp of one rank": ("trainer=ddp", "hardware.num_procs=1", *RESNET),
    "fsdp of one rank": ("trainer=fsdp", "hardware.num_procs=1", *GPT),
    "gan": GAN,
    "vae": ("task=vae", "model=autoencoder"),
    "ddpm": ("task=ddpm", "model.input_shape=[11,8,8]", "model.num_outputs=64", "task.steps=20", "task.channels=10"),
    "byol": ("task=byol", "model.num_outputs=16"),
    "contrastive": ("task=contrastive", "model.num_outputs=32"),
    "dino": ("task=dino", "model.num_outputs=16"),
    "sam": ("task=sam",),
    "pcgrad": ("task=pcgrad",),
    "lbfgs": ("task=lbfgs", "optim=lbfgs", "trainer.clip_norm=null"),
    "swa": ("task=swa", "model.hidden=[32]", "task.start=0.5", "task.every=2", "trainer.keep_best=0"),
    "fixmatch": ("experiment=fixmatch", "trainer.max_steps=40"),
    "segmentation": ("experiment=segmentation",),
    "streaming": ("experiment=streaming", "data.window=32", "model.width=16", "trainer.global_batch_size=8"),
    "sequences": ("experiment=sequences", "model.width=32", "model.layers=2", "model.heads=2"),
    "confusion": ("callback=confusion", "profiler=simple"),
    "detect_anomaly": ("hardware.detect_anomaly=true",),
    "deterministic": ("hardware.deterministic=true", *RESNET),
    "workers": ("data.loader=workers", "data.num_workers=2", *RESNET),
}  # fmt: skip
SWEEPS: dict[str, tuple[str, ...]] = {
    "pool, two jobs share a GPU": ("hydra.launcher.gpus_per_job=0.5", "seed=0,1"),
}


def smoke(setting: Setting) -> None:
    """Each mode and method for 40 steps, several at once: exit status, a finite loss, samples/s beside the others."""
    cases = setting.pick(CASES, {name: CASES[name] for name in ("bf16", "gpt", "gan", "sequences")})
    sweeps = setting.pick(SWEEPS, {})
    if setting.only:
        cases, sweeps = (
            {n: held[n] for n in held if any(map(n.__contains__, setting.only))} for held in (cases, sweeps)
        )
    tokens = token_file(setting, setting.pick(512, 64))
    files = {"data=tokens": tokens, "experiment=streaming": tokens, "experiment=sequences": sequence_file(setting),
             "experiment=cifar10_fast": cifar_file(setting), "experiment=cifar10": cifar_file(setting)}  # fmt: skip
    workers = min(AT_ONCE, max(1, (os.cpu_count() or 1) // CORES_EACH))
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        tried = {
            **{pool.submit(one, setting, f"case{i}", *given(cases[name], files)): name for i, name in enumerate(cases)},
            **{pool.submit(sweep, setting, f"sweep{i}", *sweeps[name]): name for i, name in enumerate(sweeps)},
        }
        for future in as_completed(tried):
            found, name = future.result(), tried[future]
            if isinstance(found, str):
                failed[name] = found
                setting.keep("smoke.txt", "\n\n".join(f"==== {name}\n{text}" for name, text in failed.items()))
            setting.add(name, "FAILED" if name in failed else found, "samples/s")
    setting.add("cases that failed", len(failed), f"of {len(tried)}", ("<=", 0))


def given(overrides: tuple[str, ...], files: dict[str, Path]) -> tuple[str, ...]:
    """A case's overrides, with the file of its data."""
    return (*overrides, *(f"data.path={path}" for choice, path in files.items() if choice in overrides))


def one(setting: Setting, name: str, *overrides: str) -> float | str | None:
    """Samples/s of a run; what it has printed where it has failed."""
    try:
        ran = ours(setting, name, *DIGITS, *overrides, limit_s=CASE_S)
        result = read(ran.folder / "result.json")
        if not all(np.isfinite(value) for key, value in result.items() if key.endswith("/loss")):
            return f"{result}\n{ran.stderr[-3000:]}"
        return ran.speed()
    except SystemExit as error:
        return str(error)


def sweep(setting: Setting, name: str, *overrides: str) -> float | str | None:
    """None; what a sweep of the pool has printed where a job has failed."""
    hardware = f"hardware={'gpu' if setting.cuda else 'cpu'}"
    command = [sys.executable, str(OURS), "-m", "logger=none", hardware, "hydra/launcher=pool", *DIGITS, *overrides]
    try:
        command.append(f"hydra.sweep.dir={setting.work / name}")
        ended, out, err = finished(command, environment_of(setting), CASE_S)
    except SystemExit as error:
        return str(error)
    return f"ended with {ended}\n{out[-3000:]}\n{err[-3000:]}" if ended else None


def sequence_file(setting: Setting) -> Path:
    """Sequences of 5 to 40 random tokens."""
    path, draw = setting.work / "sequences.h5", np.random.default_rng(0)
    if not path.exists():
        with h5py.File(path, "w") as file:
            for split, size in (("train", 800), ("val", 100), ("test", 100)):
                lengths = draw.integers(5, 40, size)
                file[f"{split}/tokens/values"] = draw.integers(0, 32, lengths.sum()).astype(np.uint8)
                file[f"{split}/tokens/offsets"] = np.cumsum([0, *lengths])
    return path
