"""Models of Hugging Face's transformers from a local folder, and LoRA by peft around any model. docs/hugging_face.md"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import ConfigError
from samebits.extras import need
from samebits.schema import Count, Positive, Share, regex

# Classes that a folder's own Python files may define: such code runs as this user, so no config can allow it.
REMOTE_CODE_ALLOWED: tuple[str, ...] = ()


class Pretrained(nn.Module):
    """A model of a folder that `save_pretrained` wrote, called with its own arguments (input_ids, attention_mask).

    head: the Auto class of transformers. num_outputs: classes of a head that has classes; null: as the folder says.
    A new run takes the folder's weights; a resume and an evaluation read its config.json alone.
    """

    def __init__(self, folder: str, head: str, num_outputs: Count | None) -> None:
        super().__init__()
        transformers = need("transformers", f"model.folder={folder}", "transformers", extra="transformers")
        self.folder: Path = Path(folder)
        self.auto: Any = getattr(transformers, head, None)
        if self.auto is None or not head.startswith("AutoModel"):
            raise ConfigError(f"model.head={head}: no AutoModel... of transformers, such as AutoModelForCausalLM")
        if not (self.folder / "config.json").is_file():
            raise ConfigError(
                f"model.folder={folder}: it has no config.json, which says the architecture; give the folder that "
                "save_pretrained wrote, and of a run whose folder has moved, its new place (model.folder=...)"
            )
        raw, _ = transformers.PretrainedConfig.get_config_dict(folder, local_files_only=True)
        codes = sorted(str(name) for name in (raw.get("auto_map") or {}).values())
        if refused := [name for name in codes if name.rpartition(".")[2] not in REMOTE_CODE_ALLOWED]:
            raise ConfigError(
                f"model.folder={folder}: {refused[0]} is Python code of the folder itself, which is not run; read it, "
                f"then add {refused[0].rpartition('.')[2]!r} to REMOTE_CODE_ALLOWED in {__name__.replace('.', '/')}.py"
            )
        self.options: dict[str, Any] = {"trust_remote_code": bool(codes)}
        classes = {} if num_outputs is None else {"num_labels": num_outputs}
        self.config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **classes, **self.options)
        self.net: nn.Module = self.auto.from_config(self.config, dtype=torch.float32, **self.options)
        causal = [part.is_causal for part in self.net.modules() if hasattr(part, "is_causal")]
        fused = getattr(self.config, "_attn_implementation", None) == "sdpa"
        self.bidirectional = fused and bool(causal) and not any(causal)

    def load_pretrained(self) -> str:
        """Take the folder's weights, where they fit. Returns a line to log. Draws no random numbers of the run's."""
        if not any(self.folder.glob("*.safetensors")):
            raise ConfigError(
                f"model.folder={self.folder}: it has no .safetensors; other files of weights may hold code: load them "
                "where you trust them, and write them with save_pretrained"
            )
        with torch.random.fork_rng(devices=[]), quiet():
            loaded, report = self.auto.from_pretrained(
                self.folder, config=self.config, local_files_only=True, use_safetensors=True, dtype=torch.float32,
                output_loading_info=True, ignore_mismatched_sizes=True, **self.options,
            )  # fmt: skip
        new = {str(name) for name in report["missing_keys"]} | {str(key[0]) for key in report["mismatched_keys"]}
        bare = {name.replace(".base_layer.", "."): name for name in self.net.state_dict() if "lora_" not in name}
        taken = {bare[name]: value for name, value in loaded.state_dict().items() if name in bare and name not in new}
        if not taken:
            raise ConfigError(f"model.folder={self.folder}: none of its weights fits {type(self.net).__name__}")
        self.net.load_state_dict(taken, strict=False)
        line = f"{len(taken)} of the model's {len(bare)} weights and buffers are those of {self.folder}"
        others = sorted(set(bare.values()) - set(taken))
        return line + (f"; new: {', '.join(others[:4])}" if others else "")

    def forward(self, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        """attention_mask: (B, L), 1 for tokens, 0 for padding."""
        if attention_mask is not None and self.bidirectional:
            # as attention takes it: from (B, L) transformers makes it, but first asks the device if it is all 1
            attention_mask = attention_mask[:, None, None, :].bool()
        cache = {"use_cache": False} if hasattr(self.config, "use_cache") else {}
        return self.net(attention_mask=attention_mask, **inputs, **cache)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar and no table of new weights: the run says that in a line."""
    logging = importlib.import_module("transformers.utils.logging")
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


class Lora(nn.Module):
    """LoRA (Hu et al. 2021) in the linear layers of `model` whose names end with one of `layers`; the rest is frozen,
    but for parameters in whose names one of `trained` (regular expressions) is found, such as a new head.

    rank, alpha: the update of a layer is alpha / rank * B A, A with `rank` rows.
    """

    def __init__(
        self, model: nn.Module, rank: Count, alpha: Positive, dropout: Share, layers: Sequence[str],
        trained: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__()
        peft = need("peft", "model: Lora", "peft", extra="transformers")
        kinds = ("Linear", "Conv1D")  # of torch, of transformers' GPT-2
        ends = [name for name, part in model.named_modules() if type(part).__name__ in kinds]
        if missing := [one for one in layers if not any(f".{name}".endswith(f".{one}") for name in ends)]:
            some = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in ends))
            raise ConfigError(f"model.layers: no linear layer is named {missing[0]}; there are {some}")
        options = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(layers))
        self.model: Any = peft.inject_adapter_in_model(options, model)
        patterns = [regex(pattern, "model.trained") for pattern in trained]
        names = [name for name, _ in self.model.named_parameters()]
        if idle := [p.pattern for p in patterns if not any(map(p.search, names))]:
            raise ConfigError(f"model.trained: no parameter's name holds {idle[0]!r}")
        for name, p in self.model.named_parameters():
            p.requires_grad_("lora_" in name or any(pattern.search(name) for pattern in patterns))
        self.model.train()  # peft leaves what it has frozen as it was

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)
