"""Steps that the device skips by itself."""

from __future__ import annotations

from typing import Any

import torch

from samebits.steps import restore_if, takes_found_inf


def test_unless() -> None:
    net = torch.nn.BatchNorm1d(2)
    for skipped, wanted in ((None, 5.0), (torch.zeros(()), 5.0), (torch.ones(()), 1.0)):
        with torch.no_grad():
            net.weight.fill_(1.0), net.running_var.fill_(1.0)  # type: ignore[union-attr]
            with restore_if(skipped, [*net.parameters(), *net.buffers()]):
                net.weight.fill_(5.0), net.running_var.fill_(5.0)  # type: ignore[union-attr]
        assert net.weight.tolist() == net.running_var.tolist() == [wanted, wanted]  # type: ignore[union-attr, operator]


def test_which_optimizers_need_not_be_asked() -> None:
    def of(make: Any, **options: Any) -> Any:
        return make([torch.nn.Parameter(torch.ones(2))], lr=0.1, **options)

    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        assert takes_found_inf(of(make, fused=True))
        assert not takes_found_inf(of(make))
    assert not takes_found_inf(of(torch.optim.SGD, momentum=0.9, dampening=0.1, fused=True))
    assert not takes_found_inf(of(torch.optim.RMSprop))
