"""Metrics of generated tokens: exact match, token error rate (WER, CER) and BLEU; exact for any number of ranks.

output: the generated tokens, (B, T) integers, or a dict with the entry "tokens". batch["y"]: the target tokens, (B, U).
T and U may differ. Both have -100 after the last token of a sample; -100 at other places is ignored too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lab.metrics.base import SummedMetric
from samebits.errors import ConfigError
from samebits.schema import Count
from samebits.world import to_cpu


class ExactMatch:
    """(output, batch) -> (B,): 1 if all tokens equal the target's tokens, otherwise 0."""

    higher_is_better = True

    def __call__(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Return 1 or 0 for each sample, (B,)."""
        pairs = texts(self, output, batch)
        device = batch["y"].device
        return torch.tensor([float(generated == target) for generated, target in pairs], device=device)


class TokenErrors(SummedMetric):
    """Insertions, deletions and substitutions, divided by the number of target tokens of all samples.

    This is the word error rate if tokens are words, and the character error rate if they are characters. It may be
    above 1. NaN without target tokens."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(2)

    def count(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of errors and of target tokens, (2,)."""
        pairs = texts(self, output, batch)
        errors = sum(edits(generated, target) for generated, target in pairs)
        return torch.tensor([errors, sum(len(target) for _, target in pairs)], device=batch["y"].device)

    def score(self, total: Tensor) -> float:
        """Return errors per target token."""
        errors, tokens = total.tolist()
        return errors / tokens if tokens else math.nan


class Bleu(SummedMetric):
    """BLEU of the whole split, 0 to 100 (Papineni et al. 2002), with one reference per sample and without smoothing.

    end: token at the end of sequences, which is not counted; null: all tokens count. max_n: length of the longest
    n-grams. The score equals sacreBLEU's with `tokenize=none` and `smooth_method=none`."""

    higher_is_better = True

    def __init__(self, end: int | None, max_n: Count = 4) -> None:
        super().__init__(2 * max_n + 2)
        self.end, self.max_n = end, max_n

    def count(self, output: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Return matches of n = 1, ..., max_n, then n-grams, then the lengths of outputs and targets."""
        counts = [0] * (2 * self.max_n + 2)
        for generated, target in texts(self, output, batch):
            generated, target = ([token for token in text if token != self.end] for text in (generated, target))
            for n in range(1, self.max_n + 1):
                ngrams, references = grams(generated, n), grams(target, n)
                counts[n - 1] += (ngrams & references).total()
                counts[self.max_n + n - 1] += ngrams.total()
            counts[-2] += len(generated)
            counts[-1] += len(target)
        return torch.tensor(counts, device=batch["y"].device)

    def score(self, total: Tensor) -> float:
        """Return BLEU; NaN without target tokens."""
        matches, grams, (generated, target) = (part.tolist() for part in total.split([self.max_n, self.max_n, 2]))
        if not target:
            return math.nan
        if not all(matches):
            return 0.0
        precision = sum(math.log(match / count) for match, count in zip(matches, grams)) / self.max_n
        return 100 * math.exp(precision + min(0.0, 1 - target / generated))


def texts(metric: Any, output: Any, batch: Mapping[str, Tensor]) -> list[tuple[list[int], list[int]]]:
    """Return (generated tokens, target tokens) of each sample, without -100. Raise ConfigError if they are not
    integers (B, T)."""
    generated = output.get("tokens") if isinstance(output, Mapping) else output
    pair = []
    for name, tokens in (("output", generated), ("batch['y']", batch["y"])):
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            shape = f"{tokens.dtype} of shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens)
            raise ConfigError(
                f"{type(metric).__name__}: {name} is {shape}; expected integer tokens (B, T), or in the output a dict "
                "with 'tokens'. Generate them in Task.losses if the task is not training: docs/generation.md"
            )
        pair.append([[token for token in row if token != -100] for row in to_cpu(tokens).tolist()])
    return list(zip(*pair, strict=True))


def edits(generated: list[int], target: list[int]) -> int:
    """Return the edit distance of two sequences (Levenshtein 1966)."""
    row = list(range(len(target) + 1))
    for i, token in enumerate(generated, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(target, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (token != other))
    return row[-1]


def grams(text: list[int], n: int) -> Counter[tuple[int, ...]]:
    """Return how often each n-gram occurs in the text."""
    return Counter(zip(*(text[i:] for i in range(n))))
