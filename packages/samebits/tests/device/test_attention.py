"""hardware.attention: the kernels of scaled_dot_product_attention, and their order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from samebits.device.hardware import prefer_attention


@pytest.mark.parametrize("order", [["cudnn"], ["math", "flash"], []])
def test_the_order_of_attention_kernels(order: list[str]) -> None:
    """All stay allowed, the first ones named go first, and it is torch's own again after that. A CPU has its own."""

    def now() -> list[Any]:
        return _cur_sdpa_kernel_backends(with_priority=True)

    names = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    query = torch.randn(2, 2, 9, 8)
    expected = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    before = now()
    try:
        prefer_attention(["efficient"])
        prefer_attention(order)
        assert now()[: len(order)] == [names[name] for name in order]
        assert {*now()} >= {SDPBackend.EFFICIENT_ATTENTION, *names.values()}
        assert torch.equal(nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True), expected)
    finally:
        prefer_attention([])
    assert now() == before
