"""Text that a language model writes at each evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from h5rows.integration import files_of, open_h5
from lab.callbacks.base import Callback
from lab.h5_errors import h5_methods
from lab.state import averaged_model
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.files import replace_text
from samebits.schema import Count, NotNegativeInt, Positive

SHARES = 2**30  # parts that a probability of 1 is divided into


@h5_methods
class SampleText(Callback):
    """After each evaluation: `length` tokens that continue `prompt`, to the log and to the run's samples/<step>.txt.

    path, dataset: a file of `h5.py pack TEXT --tokenizer chars` or bytes, whose attributes have the vocabulary. window:
    tokens that the model sees, as [T]. The text is a pure function of the weights, the seed and the step; torch's
    random numbers are not touched.
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
        with open_h5(files_of(self.path)[0]) as file:
            if self.dataset not in file:
                raise ConfigError(f"callback.sample_text.dataset: {file.filename} has no {self.dataset!r}")
            attrs = dict(file[self.dataset].attrs)
        kind = str(attrs.get("tokenizer"))
        if kind not in ("chars", "bytes"):
            raise ConfigError(
                f"callback.sample_text: {self.dataset} has the tokenizer {kind}, whose tokens cannot be read back as "
                "text: pack it with --tokenizer chars or bytes, or set callback=none"
            )
        self.vocabulary = [str(c) for c in attrs["vocab"]] if kind == "chars" else None
        self.prompt = self.encoded(self.text)

    def encoded(self, text: str) -> list[int]:
        if self.vocabulary is None:
            return list(text.encode())
        if not text or (strange := sorted(set(text) - set(self.vocabulary))):
            wrong = f"{strange[0]!r} is none of its {len(self.vocabulary)} characters" if text else "it is empty"
            raise ConfigError(f"callback.sample_text.prompt={text!r}: {wrong} - give text that the data could have")
        return [self.vocabulary.index(c) for c in text]

    def decoded(self, tokens: list[int]) -> str:
        if self.vocabulary is None:
            return bytes(token % 256 for token in tokens).decode(errors="replace")
        return "".join(self.vocabulary[token] for token in tokens)

    @torch.no_grad()
    def sampled(self, model: nn.Module, step: int, device: torch.device) -> list[int]:
        """Token ids, the prompt's first. All stay on the device until the end."""
        drawn = self.draws.uniform(torch.tensor([step], device=device), self.length)[0]
        tokens = torch.tensor([self.prompt], device=device)
        for number in drawn:
            logits: Tensor = model(tokens[:, -self.window :])[:, -1].float() / self.temperature
            # in integers: sums of floats have no fixed order on a GPU, and hardware.deterministic=true refuses them
            shares = (logits.softmax(-1) * SHARES).long().cumsum(-1)
            whole = shares[:, -1:]
            token = torch.searchsorted(shares, torch.minimum((number * whole).long(), whole - 1), right=True)
            tokens = torch.cat([tokens, token], 1)
        return tokens[0].tolist()

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        model = averaged_model(state)  # on all ranks: a sharded model's forward needs them
        was_training = model.training
        model.eval()
        with self.run.hardware.autocast():
            text = self.decoded(self.sampled(model, state.step, self.run.world.device))
        model.train(was_training)
        if self.run.world.is_main:
            folder = self.run.directory / "samples"
            folder.mkdir(exist_ok=True)
            replace_text(folder / f"{state.step:09d}.txt", text)
            self.run.logger.say(f"text at step {state.step}: {text!r}")
