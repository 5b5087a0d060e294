"""Generate sequences in an evaluation: greedy search, beam search, and the best path of a CTC model.

All functions work on a batch and treat its samples separately, so a sample's result does not depend on the batch, the
ranks or the padding. They run a fixed number of steps and never read values from the device. Therefore all ranks call
the model equally often, as `trainer=fsdp` requires. docs/generation.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samebits.errors import ConfigError

PADDING = -100  # follows the last token of a sequence, in targets and in generated tokens

# (tokens (N, T), *context) -> (N, V): logits of the token after the T tokens
NextLogits = Callable[..., Tensor]


def greedy(
    next_logits: NextLogits, prompt: Tensor, length: int, end: int | None, context: Sequence[Tensor] = ()
) -> Tensor:
    """Return the most probable token at each step, (B, length) int64, without the prompt.

    next_logits(tokens, *context): logits (B, V) of the next token. prompt: (B, P) int64 tokens, P >= 1. end: token that
    ends a sequence; it is part of the result and is followed by -100. None: all sequences have `length` tokens.
    context: tensors with one entry per sample that the model needs at each step, such as the output of an encoder."""
    check_search(prompt, length)
    tokens = prompt
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    generated = []
    for _ in range(length):
        token = next_logits(tokens, *context).argmax(1)
        generated.append(token.masked_fill(ended, PADDING))
        tokens = torch.cat([tokens, token[:, None]], 1)
        if end is not None:
            ended = ended | (token == end)
    return torch.stack(generated, 1)


def beam(
    next_logits: NextLogits,
    prompt: Tensor,
    length: int,
    end: int | None,
    beams: int,
    length_power: float = 0.0,
    context: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Return the best sequences of a beam search, (B, beams, length) int64, and their scores, (B, beams), best first.

    At each step the `beams` most probable sequences are kept. A finished sequence keeps its probability. The
    score is the log-probability, divided by (number of tokens) ** length_power: 0 compares log-probabilities, which
    prefers short sequences; 1 compares means per token. A score of -inf marks a sequence that does not exist, because
    there are fewer than `beams`. Other arguments: see `greedy`. next_logits gets B * beams sequences."""
    check_search(prompt, length)
    if beams < 1:
        raise ConfigError(f"beams={beams}: a beam search keeps at least 1 sequence")
    size, start, device = len(prompt), prompt.shape[1], prompt.device
    tokens = prompt.repeat_interleave(beams, 0)  # (B * beams, P)
    context = [tensor.repeat_interleave(beams, 0) for tensor in context]
    scores = torch.full((size, beams), -torch.inf, device=device)
    scores[:, 0] = 0  # in the first step all beams are the same prompt, so only one of them may be continued
    ended = torch.zeros(size, beams, dtype=torch.bool, device=device)
    counts = torch.zeros(size, beams, dtype=torch.int64, device=device)  # generated tokens
    for _ in range(length):
        log_p = next_logits(tokens, *context).float().log_softmax(1).view(size, beams, -1)
        choices = log_p.shape[2]
        if end is not None:  # a sequence that has ended has one continuation, with probability 1
            stay = torch.full((choices,), -torch.inf, device=device)
            stay[end] = 0
            log_p = torch.where(ended[:, :, None], stay, log_p)
        scores, best = (scores[:, :, None] + log_p).flatten(1).topk(min(beams, beams * choices), 1)
        parent, token = best // choices, best % choices
        rows = (parent + beams * torch.arange(size, device=device)[:, None]).flatten()
        tokens = torch.cat([tokens[rows], token.view(-1, 1)], 1)
        ended, counts = ended.gather(1, parent), counts.gather(1, parent)
        counts = counts + ~ended
        if end is not None:
            ended = ended | (token == end)
    order = scores / counts**length_power  # the final ranking
    order, best = order.sort(dim=1, descending=True, stable=True)
    found = tokens[:, start:].view(size, beams, length)
    past = torch.arange(length, device=device) >= counts[:, :, None]
    found = found.masked_fill(past, PADDING)
    return found.gather(1, best[:, :, None].expand_as(found)), order


def best_path(logits: Tensor, lengths: Tensor, blank: int = 0) -> Tensor:
    """Return the tokens of a CTC model (Graves et al. 2006), (B, T) int64, followed by -100.

    The best path takes the most probable token of each frame, merges repetitions and removes blanks. logits: (B, T, V).
    lengths: (B,), number of frames of each sample; the frames after them are ignored."""
    token = logits.argmax(2)
    before = torch.nn.functional.pad(token[:, :-1], (1, 0), value=blank)
    frame = torch.arange(token.shape[1], device=token.device)
    kept = (token != blank) & (token != before) & (frame < lengths[:, None])
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)  # kept tokens first, in their order
    return token.masked_fill(~kept, PADDING).gather(1, order)


def check_search(prompt: Tensor, length: int) -> None:
    """Raise ConfigError unless the prompt is (B, P) integers with P >= 1, and length >= 1."""
    if prompt.dim() != 2 or not prompt.shape[1] or prompt.is_floating_point():
        raise ConfigError(
            f"generation: the prompt is {prompt.dtype} of shape {tuple(prompt.shape)}; expected integer tokens (B, P) "
            "with at least one token, such as a token that begins each sequence"
        )
    if length < 1:
        raise ConfigError(f"generation: length={length}; generate at least 1 token")
