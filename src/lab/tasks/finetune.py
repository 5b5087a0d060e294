"""Fine-tuning: supervised training that starts from pretrained weights, with some of them frozen on request."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from samebits.checkpoints import find_weights, format_keys, load_fitting
from samebits.errors import ConfigError
from samebits.schema import regex

REMEDY = (
    "if these are weights of this model, translate their names with task.rename in a yaml "
    "(docs/pretrained_weights.md#other-names-of-weights); if not, change model or task.weights"
)


class Finetune(Supervised):
    """Supervised training from the weights in `weights`.

    weights: a run directory (its best checkpoint is used), a checkpoint, or a file with a state dict. It is read when a
    new run starts, not when a run is resumed. rename: {regular expression: replacement}, applied in order to each name
    in the state dict (re.sub); weights whose new name is empty are dropped. freeze: regular expressions (re.search);
    model parameters and buffers with a matching name do not change. Modules whose buffers are frozen (BatchNorm) are in
    eval mode during training too.
    """

    def __init__(
        self,
        criterion: Callable[[Any, Batch], Any],
        metrics: Mapping[str, Metric],
        weights: str,
        rename: Mapping[str, str],
        freeze: Sequence[str],
    ) -> None:
        super().__init__(criterion, metrics)
        self.source, self.rename = weights, {regex(k, "task.rename"): new for k, new in rename.items()}
        self.patterns = [regex(pattern, "task.freeze") for pattern in freeze]
        self.frozen_modules: Callable[[], Iterator[nn.Module]] = lambda: iter(())

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str | None:
        """Load the weights into the model; see `renamed`."""
        file, state = find_weights(Path(self.source))
        weights = self.renamed(state)
        lines = load_fitting(model, weights, file, REMEDY)
        random = [
            name
            for name, p in model.named_parameters()
            if (self.freezes(name) or not p.requires_grad) and getattr(weights.get(name), "shape", None) != p.shape
        ]
        return f"{lines}\n  frozen, but not loaded: {format_keys(random)} - {REMEDY}" if random else lines

    def freezes(self, name: str) -> bool:
        """Return True if this parameter or buffer matches `freeze`."""
        return any(pattern.search(name) for pattern in self.patterns)

    def renamed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict with the names of `rename`. Raise ConfigError if two weights get the same name or a
        pattern matches no name."""
        weights: dict[str, Tensor] = {}
        used = set()
        for name, value in state.items():
            new = name
            for pattern, replacement in self.rename.items():
                used |= {pattern} if pattern.search(new) else set()
                new = pattern.sub(replacement, new)
            if new in weights:
                raise ConfigError(
                    f"task.rename: two weights of {self.source} would get the name {new!r}, one of them is {name!r}"
                )
            if new:
                weights[new] = value
        for pattern in self.rename.keys() - used:
            raise ConfigError(
                f"task.rename: no name contains {pattern.pattern!r}; names are {format_keys(list(state))}"
            )
        return weights

    def setup(self, model: nn.Module) -> None:
        """Freeze the parameters that match `freeze`. Raise ConfigError if a pattern matches no name, or all
        parameters."""
        names = list(model.state_dict())
        for pattern in self.patterns:
            if not any(map(pattern.search, names)):
                raise ConfigError(f"task.freeze: no name contains {pattern.pattern!r}; names are {format_keys(names)}")
        matching = set(filter(self.freezes, names))
        for name, p in model.named_parameters():
            p.requires_grad_(p.requires_grad and name not in matching)
        if not any(p.requires_grad for module in (model, self) for p in module.parameters()):
            raise ConfigError(
                f"task.freeze: freezes all parameters of {type(model).__name__}, so there is nothing to train"
            )
        frozen = []
        for name, module in model.named_modules():
            own = [key for key, _ in (*module.named_parameters(name, False), *module.named_buffers(name, False))]
            if matching.issuperset(own) and next(module.buffers(False), None) is not None:
                frozen.append(name)
        reference = weakref.ref(model)  # by name, because SyncBatchNorm may replace a BatchNorm later
        self.frozen_modules = lambda: (m.get_submodule(name) for m in [reference()] if m is not None for name in frozen)

    def train(self, mode: bool = True) -> Finetune:
        """Set the mode; frozen modules with buffers stay in eval mode."""
        super().train(mode)
        for module in self.frozen_modules():  # the loop calls model.train() before task.train()
            module.eval()
        return self
