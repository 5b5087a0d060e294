"""Generated sequences and their scores: searches against all sequences, metrics against other implementations, and the
same for any number of ranks."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.generation import beam, best_path, greedy
from lab.metrics.tokens import Bleu, ExactMatch, TokenErrors, edits
from samebits.errors import ConfigError
from samebits.testing.processes import on_ranks, slow
from samebits.world import World

ONE = World(0, 1, 0, torch.device("cpu"))
TOKENS, LENGTH, END = 4, 4, 0
PROMPT = torch.tensor([[1, 3], [2, 2], [3, 1], [1, 1]])
ROWS = torch.arange(len(PROMPT))
SACREBLEU = 55.84328895345152
TABLE = 2 * torch.randn(len(PROMPT), 97, TOKENS, generator=torch.Generator().manual_seed(0))


def logits(tokens: Tensor, rows: Tensor) -> Tensor:
    """Of a model that remembers all tokens, and differs by sample."""
    state = torch.zeros(len(tokens), dtype=torch.int64)
    for place in range(tokens.shape[1]):
        state = (state * 7 + tokens[:, place] * 3 + place + 1) % 97
    return TABLE[rows, state]


def real(tokens: Tensor) -> list[int]:
    """Without the padding, which comes last."""
    kept = [token for token in tokens.tolist() if token != -100]
    assert tokens.tolist() == kept + [-100] * (len(tokens) - len(kept))
    return kept


def every_sequence(sample: int, power: float) -> list[tuple[float, list[int]]]:
    """(score, tokens) of all sequences that end with END or are as long as possible, best first."""
    found = []

    def visit(tokens: list[int], total: float) -> None:
        if len(tokens) == LENGTH or tokens[-1:] == [END]:
            found.append((total / len(tokens) ** power, tokens))
            return
        seen = torch.cat([PROMPT[sample], torch.tensor(tokens, dtype=torch.int64)])[None]
        log_p = logits(seen, ROWS[sample : sample + 1])[0].log_softmax(0).tolist()
        for token in range(TOKENS):
            visit([*tokens, token], total + log_p[token])

    visit([], 0.0)
    return sorted(found, reverse=True)


# ---- searches


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_beams_for_all_sequences_find_them_all_in_their_order(power: float) -> None:
    tokens, scores = beam(logits, PROMPT, LENGTH, END, TOKENS**LENGTH, power, [ROWS])
    for sample in range(len(PROMPT)):
        count = int(scores[sample].isfinite().sum())
        expected = every_sequence(sample, power)
        assert [real(tokens[sample, k]) for k in range(count)] == [sequence for _, sequence in expected]
        assert scores[sample, :count].tolist() == pytest.approx([score for score, _ in expected], abs=1e-5)


def test_few_beams_return_the_scores_of_their_sequences() -> None:
    for beams in (1, 2, 5):
        tokens, scores = beam(logits, PROMPT, LENGTH, END, beams, context=[ROWS])
        assert tokens.shape == (len(PROMPT), beams, LENGTH)
        for sample in range(len(PROMPT)):
            known = {tuple(sequence): score for score, sequence in every_sequence(sample, 0.0)}
            for k in range(beams):
                assert scores[sample, k].item() == pytest.approx(known[tuple(real(tokens[sample, k]))], abs=1e-5)


def test_greedy_search_is_a_search_with_one_beam() -> None:
    found = greedy(logits, PROMPT, LENGTH, END, [ROWS])
    assert torch.equal(found, beam(logits, PROMPT, LENGTH, END, 1, context=[ROWS])[0][:, 0])
    assert (found == -100).any()
    assert (found[:, -1] > END).any()  # one that ends, one that does not
    whole = greedy(logits, PROMPT, LENGTH, None, [ROWS])
    assert (whole >= 0).all()
    assert torch.equal(whole, beam(logits, PROMPT, LENGTH, None, 1, context=[ROWS])[0][:, 0])


def test_a_sample_does_not_depend_on_its_batch() -> None:
    for search in (partial(greedy, end=END), lambda *given, **more: beam(*given, end=END, beams=3, **more)[0]):
        whole = search(logits, PROMPT, LENGTH, context=[ROWS])
        for sample in range(len(PROMPT)):
            one = slice(sample, sample + 1)
            assert torch.equal(search(logits, PROMPT[one], LENGTH, context=[ROWS[one]]), whole[one])


def test_a_best_path() -> None:
    scores = torch.randn(50, 9, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(50) % 10
    for found, path, length in zip(best_path(scores, lengths), scores.argmax(2).tolist(), lengths.tolist()):
        assert real(found) == [token for token, _ in itertools.groupby(path[:length]) if token]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ((PROMPT[:, :0], 3), r"the prompt is torch.int64 of shape \(4, 0\); expected integer tokens \(B, P\)"),
        ((PROMPT.float(), 3), r"the prompt is torch.float32"),
        ((PROMPT, 0), "length=0; generate at least 1 token"),
    ],
)
def test_what_cannot_be_continued_is_one_line(given: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        greedy(logits, *given, END, [ROWS])
    with pytest.raises(ConfigError, match=line):
        beam(logits, *given, END, 2, context=[ROWS])
    with pytest.raises(ConfigError, match="beams=0"):
        beam(logits, PROMPT, 1, END, 0, context=[ROWS])


# ---- metrics of tokens


def padded(texts: list[list[int]]) -> Tensor:
    rows = [torch.tensor(text, dtype=torch.int64) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)


def drawn_texts(count: int = 40) -> tuple[list[list[int]], list[list[int]]]:
    """(generated, targets), of unequal lengths, some without tokens."""
    random = torch.Generator().manual_seed(1)
    found = [torch.randint(1, 5, (n,), generator=random).tolist() for n in (torch.arange(count) % 13).tolist()]
    kept = torch.rand(count, 13, generator=random) < 0.8
    target = [
        [t if keep else 2 for t, keep in zip(text, row.tolist())] + [1] * (i % 4)
        for i, (text, row) in enumerate(zip(found, kept))
    ]
    return found, target


def score(metric: Any, found: list[list[int]], target: list[list[int]], world: World = ONE, size: int = 7) -> float:
    metric.reset()
    for begin in range(0, len(found), size):
        part = slice(begin, begin + size)
        metric.update(padded(found[part]), {"y": padded(target[part])})
    return float(metric.compute(world))


def test_edits() -> None:
    words = {("kitten", "sitting"): 3, ("", "abc"): 3, ("abc", ""): 3, ("flaw", "lawn"): 2, ("same", "same"): 0}
    for (first, second), expected in words.items():
        assert edits([*map(ord, first)], [*map(ord, second)]) == expected


def test_errors_per_token_of_all_samples() -> None:
    """Not the mean of the samples' rates."""
    assert score(TokenErrors(), [[1, 2], [3]], [[1, 2, 3, 4], [5]]) == 3 / 5
    assert math.isnan(score(TokenErrors(), [[1]], [[]]))


def test_bleu() -> None:
    """As sacreBLEU 2.6.0 computes it: corpus_bleu(..., tokenize="none", smooth_method="none", force=True)."""
    found, target = drawn_texts()
    assert score(Bleu(None), found, target) == pytest.approx(SACREBLEU, abs=1e-10)
    ended = [[*text, 9] for text in found], [[*text, 9] for text in target]
    assert score(Bleu(9), *ended) == pytest.approx(SACREBLEU, abs=1e-10)
    assert score(Bleu(None), [[1, 2, 3]], [[1, 2, 3]]) == 0  # no 4-gram
    assert score(Bleu(None, max_n=2), [[1, 2, 3]], [[1, 2, 3]]) == 100
    assert math.isnan(score(Bleu(None), [[1]], [[]]))


def test_exact_matches() -> None:
    found, target = padded([[1, 2], [1, 2], [3], []]), padded([[1, 2], [1, 2, 3], [4], []])
    for output in (found, {"tokens": found, "logits": None}):
        assert ExactMatch()(output, {"y": target}).tolist() == [1, 0, 0, 1]


def test_logits_are_no_tokens() -> None:
    for output in (torch.zeros(2, 3, 4), torch.zeros(2, 3), {"logits": torch.zeros(2, 3).long()}, None):
        with pytest.raises(
            ConfigError, match=r"^TokenErrors: output is .*; expected integer tokens \(B, T\), or in the"
        ):
            TokenErrors().update(output, {"y": padded([[1], [2]])})


# ---- over ranks


@pytest.mark.parametrize("ends", [[11, 40], slow([0, 17, 40])])
def test_ranks_change_no_score(tmp_path: Path, ends: list[int]) -> None:
    def work(world: World, folder: Path) -> None:
        own = slice(ends[world.rank - 1] if world.rank else 0, ends[world.rank])
        found, target = drawn_texts()
        for metric in (Bleu(None), TokenErrors()):
            assert score(metric, found[own], target[own], world, 5) == score(metric, found, target)

    on_ranks(work, tmp_path / "ranks", ranks=len(ends))
