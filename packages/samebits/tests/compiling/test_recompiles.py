"""What torch.compile has compiled again, and models without blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import samebits.compiling.dynamo as dynamo
from samebits.compiling import Captured
from samebits.errors import ConfigError
from samebits.testing import without_code_generator


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """torch.compile by aot_eager; the modes that were asked for."""
    with without_code_generator(monkeypatch) as asked:
        dynamo.compile_report(lambda line: None)
        yield asked


def test_a_model_without_blocks_is_not_compiled_by_them() -> None:
    with pytest.raises(
        ConfigError, match=r"hardware\.compile=blocks: Linear has no list of blocks - use hardware\.compile=default"
    ):
        dynamo.compile_blocks(nn.Linear(3, 1), SimpleNamespace(compile="blocks"))


def machine(**changed: Any) -> Any:
    return SimpleNamespace(**{"compile": "reduce-overhead", "device": "cuda", "micro_batch_sizes": [3, 2], **changed})


@pytest.mark.slow
def test_recompiles_are_named_and_seconds_counted(modes: list[Any]) -> None:
    net = dynamo.for_evaluation(nn.Linear(3, 1), machine(device="cpu"))
    lines: list[str] = []
    net(torch.ones(2, 3))
    assert dynamo.compile_report(lines.append) > 0
    assert lines == []
    net(torch.ones(5, 3))
    assert dynamo.compile_report(lines.append) > 0
    assert len(lines) == 1
    assert "size mismatch at index 0. expected 2, actual 5" in lines[0]
    net(torch.ones(7, 3))  # any size by now
    assert dynamo.compile_report(lines.append) == 0.0


def test_a_batch_of_another_shape_has_a_step_as_it_is() -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    said: list[str] = []
    run = Captured({"net": net}, [optimizer], said.append)
    sizes: list[int] = []

    def step(batches: Sequence[Any]) -> dict[str, torch.Tensor]:
        sizes.append(len(batches[0]["x"]))
        return {"loss": torch.zeros(())}

    for size in (4, 3, 4, 3):
        run(step, [{"x": torch.ones(size, 2)}], None)
    assert sizes == [4, 3, 4, 3]
    assert said == ["hardware.cuda_graph=true: a batch has other shapes than the first one; steps with such "
                    "batches run without the graph"]  # fmt: skip
    with pytest.raises(ConfigError, match="the batch's 'name' is not a tensor"):
        run(step, [{"x": torch.ones(4, 2), "name": ["a"]}], None)  # type: ignore[dict-item]
