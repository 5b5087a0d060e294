"""Steps that the device skips by itself, and the lean way through an optimizer's step."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from samebits.steps import restore_if, takes_found_inf
from samebits.torch_private import lean_step


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


def test_what_watches_an_optimizer_sees_each_step() -> None:
    """Hooks, global hooks, a profiler, a replaced step: whenever they come, and no longer than they stay."""
    model, called = nn.Linear(3, 2), []  # type: ignore[var-annotated]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    step = partial(lean_step, optimizer)

    def calls() -> list[str]:
        called.clear()
        model(torch.ones(1, 3)).sum().backward()
        step()
        return list(called)

    assert calls() == []
    registered = [
        optimizer.register_step_pre_hook(lambda *args: called.append("pre")),
        optimizer.register_step_post_hook(lambda *args: called.append("post")),
        register_optimizer_step_pre_hook(lambda *args: called.append("global pre")),
        register_optimizer_step_post_hook(lambda *args: called.append("global post")),
    ]
    assert sorted(calls()) == ["global post", "global pre", "post", "pre"]
    for handle, left in zip(registered, (3, 2, 1, 0)):
        handle.remove()
        assert len(calls()) == left
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        calls()
    assert any("Optimizer.step" in event.key for event in profile.key_averages())
    optimizer.step = lambda: called.append("replaced")  # type: ignore[method-assign]
    assert calls() == ["replaced"]
