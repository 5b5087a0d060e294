"""Generate text with a language model at each evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from h5rows.integration import files_of, open_h5
from lab.average import evaluation_mode
from lab.callbacks.base import Callback
from lab.h5_errors import h5_methods
from lab.state import model_or_average
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.files import replace_text
from samebits.schema import Count, NotNegativeInt, Positive

SHARES = 2**30  # a probability of 1, as an integer


@h5_methods
class SampleText(Callback):
    """Continue `prompt` by `length` tokens after each evaluation; write the text to the log and to samples/<step>.txt.

    path, dataset: a file written by `h5.py pack TEXT --tokenizer chars` (or bytes); its attributes contain the
    vocabulary. window: number of tokens that the model reads, as [T]. The text is a pure function of the weights, the
    seed and the step; it does not use torch's random generators.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        dataset: str,
        window: Sequence[Count],
        prompt: str,
        length: Count,
        temperature: Positive,
        seed: NotNegativeInt,
    ) -> None:
        self.path, self.dataset, self.text = path, dataset, prompt
        self.window, self.length, self.temperature = window[0], length, temperature
        self.draws = SampleRNG(seed, "SampleText")

    def on_start(self, state: Any) -> None:
        """Read the vocabulary, encode the prompt. Raise ConfigError if the file or the prompt does not fit."""
        path = files_of(self.path)[0]
        with open_h5(path) as file:
            attrs = dict(file[self.dataset].attrs) if self.dataset in file else None
        if attrs is None:  # not in the block, which takes a ValueError for an error of h5py
            raise ConfigError(f"callback.sample_text.dataset={self.dataset}: {path} has no such dataset")
        kind = str(attrs.get("tokenizer"))
        if kind not in ("chars", "bytes"):
            raise ConfigError(
                f"callback.sample_text: {self.dataset} has the tokenizer {kind}, whose tokens cannot be decoded to "
                "text - pack it with --tokenizer chars or bytes, or set callback=none"
            )
        self.vocabulary = [str(c) for c in attrs["vocab"]] if kind == "chars" else None
        self.prompt = self.encoded(self.text)

    def encoded(self, text: str) -> list[int]:
        """Return the token ids of a text. Raise ConfigError if it is empty or has a character without a token."""
        key = f"callback.sample_text.prompt={text!r}"
        if not text:
            raise ConfigError(f"{key}: is empty - write at least one character of the data")
        if self.vocabulary is None:
            return list(text.encode())
        if strange := sorted(set(text) - set(self.vocabulary)):
            unknown = f"{strange[0]!r} is not in the vocabulary of {len(self.vocabulary)} characters"
            raise ConfigError(f"{key}: {unknown} - use only characters of the data")
        return [self.vocabulary.index(c) for c in text]

    def decoded(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        if self.vocabulary is None:
            return bytes(token % 256 for token in tokens).decode(errors="replace")
        return "".join(self.vocabulary[token] for token in tokens)

    @torch.no_grad()
    def sampled(self, model: nn.Module, step: int, device: torch.device) -> list[int]:
        """Return the token ids of the prompt and its continuation. They stay on the device until the end."""
        drawn = self.draws.uniform(torch.tensor([step], device=device), self.length)[0]
        tokens = torch.tensor([self.prompt], device=device)
        for number in drawn:
            logits: Tensor = model(tokens[:, -self.window :])[:, -1].float() / self.temperature
            # in integers: a cumsum of floats is not deterministic on a GPU; hardware.deterministic=true raises an error
            shares = (logits.softmax(-1) * SHARES).long().cumsum(-1)
            whole = shares[:, -1:]
            token = torch.searchsorted(shares, torch.minimum((number * whole).long(), whole - 1), right=True)
            tokens = torch.cat([tokens, token], 1)
        return tokens[0].tolist()

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        """Generate and write the text. All ranks must call it."""
        model = model_or_average(state)  # on all ranks, because a sharded model's forward needs all of them
        with evaluation_mode(model), self.run.hardware.autocast():
            text = self.decoded(self.sampled(model, state.step, self.run.world.device))
        if self.run.world.is_main:
            folder = self.run.directory / "samples"
            folder.mkdir(exist_ok=True)
            replace_text(folder / f"{state.step:09d}.txt", text)
            self.run.logger.say(f"text at step {state.step}: {text!r}")
