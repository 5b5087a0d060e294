"""Whatever stands where something is to be built: one line that names the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from common import ROOT
from omegaconf import OmegaConf

from lab.config import check
from samebits.errors import ConfigError
from samebits.testing import compose
from samebits.testing.processes import sample_of

WRONG = (None, 3, [1], "x", {"a": 1})
GROUPS = ("data", "model", "task", "optim", "callback")
FILES_MISSING = {
    "none",  # has no target
    "sequences",
    "tokens",
    "image_folder",
    "parquet",
    "huggingface",
    "huggingface_stream",
    "lora",
    "pairs",
    "pretrained",
    "sample_text",
    "texts",
}
CASES = [
    f"{group}={path.stem}" for group in GROUPS for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
    if path.stem not in FILES_MISSING
]  # fmt: skip
NORMALIZE = "+data.transforms.normalize={_target_: lab.transforms.fields.Normalize, field: x, mean: [0.1], std: [0.3]}"
MORE = {  # what an option asks for
    "task=finetune": ["task.weights=x"],
    "task=dpo": ["task.weights=x"],
    "task=distillation": ["task.teacher=x"],
    "data=captions": ["data.path=x.h5", "data.input_shape=[1,8,8]", "data.num_outputs=10"],
    "task=mae": ["model=vit"],
    "task=whitened": ["data=h5", NORMALIZE],
    "data=mixed": ["+data@data.parts.some=h5", "+data.weights.some=1"],
}


def targets(node: Any, key: str = "") -> Iterator[str]:
    """The dotted keys of all nodes with a _target_; not within a module of torch, whose annotations are not read: it
    says itself what it was given, in one line, when it is built."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield key
            if node["_target_"].startswith("torch.nn."):
                return
        for name, inner in node.items():
            yield from targets(inner, f"{key}.{name}" if key else str(name))


def given(choice: str) -> list[str]:
    more = MORE.get(choice, [])
    data = [] if choice.startswith("data=") or "data=h5" in more else ["data=synthetic"]
    return [choice, *data, *more]


# of each group some, so that each kind of place is there: a list, a mapping, a part of a part
SOME = [*CASES[::7], "task=classification", "optim=muon"]


@pytest.mark.one_quick
@pytest.mark.parametrize("choice", sample_of([*dict.fromkeys(SOME)], CASES))
def test_each_target_needs_one(choice: str) -> None:
    values: Any = OmegaConf.to_container(compose(*given(choice), checked=False))
    group = choice.partition("=")[0]
    keys = [key for key in targets(values) if key.split(".")[0] == group]
    assert keys, choice
    for key in keys:
        for wrong in WRONG:
            cfg = OmegaConf.create(values)
            OmegaConf.update(cfg, key, wrong, merge=False)
            plain = OmegaConf.to_container(cfg)
            with pytest.raises(ConfigError) as error:
                check(plain)
            assert str(error.value).startswith(key), (key, wrong, error.value)
            assert "\n" not in str(error.value)
