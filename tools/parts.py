"""What a fork may leave out, and what it never gets.

A part's files are found by its names. `byol` has the files of this stem, wherever they are:

    src/lab/*/byol.py   conf/*/byol.yaml   tests/lab/test_byol.py or test_task_byol.py   docs/byol.md   byol/

and in pages the rows that begin with it or name one of these files; in pyproject.toml its extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# In other files a line that ends with "template only" is deleted from a fork; if it is a heading, with its section.
TEMPLATE_ONLY = (
    ".ci/alone",
    ".ci/matrix",
    ".ci/run",
    ".ci/wheels",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "benchmarks",
    "checks",
    "copier.yml",
    "docs/performance.md",
    "tools/copier",
    "tools/mutate.py",
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
            rf"(conf|src/\w+|docs)/(.*/)?{name}(\.\w+|/.*)|tests/(.*/)?test_(task_|model_)?{name}\.py|{name}(/.*)?"
        )
        return [one for one in tracked if own.fullmatch(one)]


def _parts(kind: str, **rows: tuple[str, ...]) -> dict[str, Part]:
    """rows: {the part: (about, other names than this one)}"""
    return {part: Part(about, (part, *names), kind) for part, (about, *names) in rows.items()}


PARTS = {
    **_parts(
        "method",
        byol=("representations by a student and a teacher",),
        contrastive=("representations by pairs",),
        ddpm=("denoising diffusion: images from noise",),
        dino=("representations by a student that sorts as its average does",),
        distillation=("a small model that learns from a trained one",),
        dpo=("preferences of a language model; LoRA", "gpt_lora", "pairs", "preferences"),
        finetune=("weights of another run, frozen parts",),
        fixmatch=("few labels, many samples without",),
        gan=("a Wasserstein GAN: two optimizers",),
        lbfgs=("an optimizer with a closure",),
        pcgrad=("several losses whose gradients do not undo one another",),
        pose=("2-D to 3-D joints",),
        sam=("steps that look uphill first",),
        segmentation=("a label for each pixel", "unet", "pixel_cross_entropy", "label_map"),
        streaming=("a recurrent network that reads one long text in lanes", "token_gru"),
        swa=("the mean of weights of the last part of training",),
        transformers=("models of Hugging Face, LoRA", "pretrained", "lora", "texts", "hugging_face"),
        vae=("a variational autoencoder", "autoencoder"),
        whitened=(
            "CIFAR-10 in a few epochs: its network, first layer and flips",
            "cifar_fast", "alternating_flip", "cifar10_fast",
        ),
    ),
    **_parts(
        "experiment",
        cifar10=("a ResNet on CIFAR-10",),
        imagenet=("a ResNet-50 of timm or torchvision on ImageNet", "vision"),
        active_learning=("labels rows of a pool while it trains",),
        gpt2=("GPT-2 124M",),
        shakespeare=("a language model of characters, which writes at each evaluation", "sample_text"),
    ),
    **_parts(
        "extra",
        lion=("Lion, an optimizer that moves by signs",),
        soap=("SOAP, an optimizer: AdamW in Shampoo's eigenbasis",),
        lookahead=("Lookahead around another optimizer",),
        schedule_free=("Schedule-free AdamW: a mean of the weights is scored",),
        search=("Optuna: `hydra/sweeper=optuna`, pruning", "optuna", "sampler", "pruner", "digits_search"),
        notebooks=("a tour in a notebook", "tour"),
        container=("`Dockerfile`, `.devcontainer`", "Dockerfile", ".dockerignore", ".devcontainer"),
    ),
}  # fmt: skip
