"""Define PARTS, which a fork may leave out, and TEMPLATE_ONLY, which no fork gets.

A part's files are found by its names. The part `byol` has all files and folders named byol:

    src/lab/*/byol.py   conf/*/byol.yaml   docs/byol.md   byol/
    tests/byol.py   tests/lab/test_byol.py, test_task_byol.py, test_model_byol.py

It also has its extra in pyproject.toml, and in pages the rows that begin with its name or name one of these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# In other files, lines that end with "template only" are deleted from a fork; after a heading, its whole section is.
TEMPLATE_ONLY = (
    ".ci/alone",
    ".ci/matrix",
    ".ci/run",
    ".ci/wheels",
    ".github/ISSUE_TEMPLATE",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks",
    "checks",
    "copier.yml",
    "docs/performance.md",
    "tools/copier",
    "tools/make_digits.py",
    "tools/mutate.py",
    "tools/prose.py",
    "tools/release.py",
)


@dataclass(frozen=True)
class Part:
    """about: a row of docs/fork.md. names: stems of its files. kind: the question of copier.yml that offers it."""

    about: str
    names: tuple[str, ...]
    kind: str

    def files(self, tracked: Iterable[str]) -> list[str]:
        """Return those of the tracked files that belong to this part."""
        name = f"(?:{'|'.join(map(re.escape, self.names))})"
        own = re.compile(
            rf"(conf|src/\w+|docs)/(.*/)?{name}(\.\w+|/.*)|tests/(.*/)?(test_(task_|model_)?)?{name}\.py|{name}(/.*)?"
        )
        return [one for one in tracked if own.fullmatch(one)]


def _parts(kind: str, **rows: tuple[str, ...]) -> dict[str, Part]:
    """Return {name: Part}. rows: {name of the part: (about, its further names)}."""
    return {part: Part(about, (part, *names), kind) for part, (about, *names) in rows.items()}


PARTS = {
    **_parts(
        "method",
        byol=("BYOL: self-supervised learning with a student and a teacher",),
        contrastive=(
            "contrastive learning (InfoNCE): two views of a sample, or images and texts (CLIP)",
            "clip", "infonce", "text_encoder", "captions", "retrieval",
        ),
        ddpm=("DDPM: image generation by denoising diffusion",),
        dino=("DINO: self-distillation with a moving average as teacher",),
        distillation=("knowledge distillation: train a small model with a trained one",),
        dpo=("DPO: preference training of a language model, with LoRA", "gpt_lora", "pairs", "preferences"),
        finetune=("fine-tuning of weights of another run, with frozen layers", "pretrained_weights"),
        fixmatch=("FixMatch: semi-supervised learning from few labels",),
        gan=("a Wasserstein GAN, with two optimizers", "gan_optimizers"),
        lbfgs=("L-BFGS, an optimizer with a closure",),
        mae=("a masked autoencoder with a vision transformer", "vit"),
        pcgrad=("PCGrad: several losses without conflicting gradients",),
        pose=("pose lifting: 3-D joints from 2-D joints",),
        sam=("SAM: sharpness-aware minimization",),
        segmentation=("semantic segmentation with a U-Net", "unet", "pixel_cross_entropy", "label_map"),
        streaming=("a recurrent network for one long text (truncated backpropagation)", "token_gru"),
        swa=("SWA: stochastic weight averaging",),
        transformers=("Hugging Face models, with LoRA", "pretrained", "lora", "texts", "hugging_face"),
        vae=("a variational autoencoder", "autoencoder"),
        whitened=(
            "CIFAR-10 in a few epochs: network, whitening layer and flips",
            "cifar_fast", "alternating_flip", "cifar10_fast",
        ),
    ),
    **_parts(
        "experiment",
        cifar10=("a ResNet on CIFAR-10",),
        imagenet=("a ResNet-50 of timm or torchvision on ImageNet", "vision"),
        active_learning=("active learning: label rows of a pool during training",),
        gpt2=("GPT-2 124M",),
        shakespeare=("a character language model that prints samples", "sample_text"),
    ),
    **_parts(
        "extra",
        augmentation=(
            "random colors, TrivialAugment, mixup, and random views of a sample",
            "augment", "augment_order", "color", "mixup", "trivial_augment", "views",
        ),
        resizing=(
            "resize and crop images to another size",
            "sized", "sized_order", "transforms_sized", "resize", "center_crop", "resized_crop",
        ),
        figures=(
            "learning curves and confusion matrices as pictures",
            "curves", "callback/confusion", "callbacks/confusion",
        ),
        summary=(
            "a table of the model's modules, with shapes, parameters and FLOP, and pictures of its graph",
            "first_batch", "callback/graph", "callbacks/graph", "model_graph",
        ),
        energy=("the power of NVIDIA GPUs in the log, and the energy of a sweep in its report",),
        waits=("`debug=waits`, which names lines of code that wait for the GPU",),
        boxes=("the average precision of detected boxes", "box_precision"),
        renamed=("errors that give the new name of what your code of version 0.2 uses", "old_keys"),
        onnx=("export to ONNX", "onnx_arguments"),
        language=(
            "language models: GPT, windows and sequences of tokens, generation and its scores",
            "gpt", "tokens", "tokens_command", "sequences", "next_token", "token_buckets", "generation",
        ),
        parquet=(
            "Parquet files and Hugging Face data sets, read without packing",
            "columns", "column_remedy", "column_resolvers", "huggingface", "huggingface_stream", "row_groups",
        ),
        image_folder=("a folder of images, decoded when they are read",),
        mixed=("several data sets in one batch, with weights", "mixture", "parts"),
        optimizer_base=("the base class of optimizers that wrap others, and of those below", "optimizers/base"),
        muon=("Muon, an optimizer for matrices, with another one for the rest", "by_shape"),
        lion=("Lion, an optimizer",),
        soap=("SOAP, an optimizer: AdamW in Shampoo's eigenbasis",),
        lookahead=("Lookahead, a wrapper of another optimizer",),
        schedule_free=("Schedule-Free AdamW, an optimizer",),
        search=("Optuna: `hydra/sweeper=optuna`, pruning", "optuna", "sampler", "pruner", "digits_search"),
        notebooks=("a tour in a notebook", "tour"),
        container=("`Dockerfile`, `.devcontainer`", "Dockerfile", ".dockerignore", ".devcontainer"),
    ),
}  # fmt: skip

# {part: further words by which lines and sentences name it}
WORDS = {"onnx": ("ONNX", "For onnx:", "--to onnx")}

# {part: the parts that it uses; `with_needed` adds those that these use}
NEEDS = {
    **dict.fromkeys(("dpo", "gpt2", "mae", "shakespeare", "streaming"), ("language",)),
    **dict.fromkeys(("byol", "dino"), ("augmentation",)),
    **dict.fromkeys(("muon", "lion", "soap", "lookahead", "schedule_free"), ("optimizer_base",)),
    "contrastive": ("augmentation", "language"),
    "fixmatch": ("augmentation", "mixed"),
    "imagenet": ("resizing",),
    "whitened": ("muon",),
}


def with_needed(names: Iterable[str]) -> set[str]:
    """Return these parts and all that they need."""
    found = set(names)
    while more := {one for name in found for one in NEEDS.get(name, ())} - found:
        found |= more
    return found
