"""Models of Hugging Face's transformers from a local folder, and LoRA with peft for any model; see
docs/hugging_face.md."""

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

# Classes that may be loaded from Python files of a model folder. Such code runs with your permissions, so a config
# cannot allow it.
REMOTE_CODE_ALLOWED: tuple[str, ...] = ()


class Pretrained(nn.Module):
    """A model from a folder written by `save_pretrained`, called with the model's arguments (input_ids,
    attention_mask).

    head: an Auto class of transformers, e.g. AutoModelForCausalLM. num_outputs: number of classes of a classification
    head; None: as in the folder. A new run loads the folder's weights; a resume and an evaluation read only its
    config.json.
    """

    def __init__(self, folder: str, head: str, num_outputs: Count | None) -> None:
        super().__init__()
        transformers = need("transformers", f"model.folder={folder}", "transformers", extra="transformers")
        self.folder: Path = Path(folder)
        self.auto: Any = getattr(transformers, head, None)
        if self.auto is None or not head.startswith("AutoModel"):
            raise ConfigError(f"model.head={head}: is not an Auto class of transformers, such as AutoModelForCausalLM")
        if not (self.folder / "config.json").is_file():
            raise ConfigError(
                f"model.folder={folder}: contains no config.json - give a folder written by save_pretrained; "
                "if the folder of a run was moved, give its new path (model.folder=...)"
            )
        raw, _ = transformers.PretrainedConfig.get_config_dict(folder, local_files_only=True)
        codes = sorted(str(name) for name in (raw.get("auto_map") or {}).values())
        if refused := [name for name in codes if name.rpartition(".")[2] not in REMOTE_CODE_ALLOWED]:
            raise ConfigError(
                f"model.folder={folder}: {refused[0]} is Python code in the folder, which is not run - read it, "
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
        """Load the folder's weights that fit the model. Return a line to log. Does not change the random state of the
        run."""
        if not any(self.folder.glob("*.safetensors")):
            raise ConfigError(
                f"model.folder={self.folder}: contains no .safetensors file; other weight files can contain code - if "
                "you trust them, load them and write them with save_pretrained"
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
            raise ConfigError(f"model.folder={self.folder}: its weights do not fit {type(self.net).__name__}")
        self.net.load_state_dict(taken, strict=False)
        line = f"{len(taken)} of the model's {len(bare)} weights and buffers were loaded from {self.folder}"
        others = sorted(set(bare.values()) - set(taken))
        return line + (f"; new: {', '.join(others[:4])}" if others else "")

    def forward(self, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        """Return the model's output. attention_mask: (B, L), 1 for tokens, 0 for padding."""
        padding = getattr(self.config, "pad_token_id", None)
        if attention_mask is not None and "input_ids" in inputs and padding is not None and padding >= 0:
            # a decoder that classifies finds a text's last token by its own padding token
            inputs["input_ids"] = inputs["input_ids"].masked_fill(attention_mask == 0, padding)
        if attention_mask is not None and self.bidirectional:
            # in the shape for attention: transformers would convert (B, L), but waits for the device to check if all
            # are 1
            attention_mask = attention_mask[:, None, None, :].bool()
        cache = {"use_cache": False} if hasattr(self.config, "use_cache") else {}
        return self.net(attention_mask=attention_mask, **inputs, **cache)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the progress bar and the table of new weights, because the run logs one line instead."""
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
    """LoRA (Hu et al. 2022) in the linear layers of `model` whose names end with one of `layers`. Other parameters are
    frozen unless their names match `trained`.

    trained: regular expressions (re.search), e.g. for a new head. rank, alpha: the update of a layer is alpha / rank *
    B A; A has `rank` rows. Raise ConfigError if an entry of `layers` or `trained` matches nothing.
    """

    def __init__(
        self, model: nn.Module, rank: Count, alpha: Positive, dropout: Share, layers: Sequence[str],
        trained: Sequence[str],
    ) -> None:  # fmt: skip
        super().__init__()
        peft = need("peft", "model: Lora", "peft", extra="transformers")
        kinds = ("Linear", "Conv1D")  # the classes of torch and of transformers' GPT-2
        ends = [name for name, part in model.named_modules() if type(part).__name__ in kinds]
        if missing := [layer for layer in layers if not any(f".{name}".endswith(f".{layer}") for name in ends)]:
            some = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in ends))
            raise ConfigError(f"model.layers: no linear layer is named {missing[0]}; names are {some}")
        options = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(layers))
        self.model: Any = peft.inject_adapter_in_model(options, model)
        patterns = [regex(pattern, "model.trained") for pattern in trained]
        names = [name for name, _ in self.model.named_parameters()]
        if idle := [p.pattern for p in patterns if not any(map(p.search, names))]:
            raise ConfigError(f"model.trained: no parameter's name contains {idle[0]!r}")
        for name, p in self.model.named_parameters():
            p.requires_grad_("lora_" in name or any(pattern.search(name) for pattern in patterns))
        self.model.train()  # peft does not set the mode of frozen modules

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the model's output."""
        return self.model(*inputs, **named)
