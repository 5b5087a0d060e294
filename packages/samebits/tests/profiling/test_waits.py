"""Each operation by which the host waits for a GPU is noticed, on a CPU too, and those beside them are not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from samebits.profiling.waits import observe_waits
from samebits.testing import devices

x, y = torch.rand(6), torch.tensor([0, 1, 1, 2])
m = torch.rand(4, 4)
s, mask, lengths = m @ m.T + torch.eye(4), x > 0.5, torch.tensor([5, 5])
WAITS: dict[str, Callable[[], Any]] = {
    "item": lambda: x.sum().item(),
    "bool": lambda: bool(x[0]),
    "if": lambda: 1 if x.sum() > 2 else 0,
    "float": lambda: float(x[0]),
    "int": lambda: int(y[0]),
    "index": lambda: range(y[3]),
    "complex": lambda: complex(x[0]),
    "tolist": lambda: x.tolist(),
    "cpu": lambda: x.cpu(),
    'to("cpu")': lambda: x.to("cpu"),
    'to(device="cpu")': lambda: x.to(device="cpu", dtype=torch.float64),
    "numpy": lambda: x.numpy(),
    "asarray": lambda: __import__("numpy").asarray(x),
    "print": lambda: f"{x}",
    "print one": lambda: f"{x[0]:.3f}",
    "tensor of tensors": lambda: torch.tensor([x[0], x[1]]),
    "in": lambda: 0.5 in x,
    "max of a list": lambda: max(x),
    "slice": lambda: x[: y[1]],
    "x[mask]": lambda: x[mask],
    "x[mask] = tensor": lambda: x.clone().__setitem__(mask, x[mask.new_ones(6).nonzero().flatten()]),
    "nonzero": lambda: x.nonzero(),
    "argwhere": lambda: torch.argwhere(x),
    "where(mask)": lambda: torch.where(mask),
    "masked_select": lambda: x.masked_select(mask),
    "masked_scatter": lambda: x.masked_scatter(mask, x),
    "equal": lambda: torch.equal(x, x),
    "allclose": lambda: torch.allclose(x, x),
    "is_nonzero": lambda: x[:1].is_nonzero(),
    "unique": lambda: torch.unique(y),
    "unique of rows": lambda: torch.unique(m, dim=0),
    "unique_consecutive": lambda: torch.unique_consecutive(y),
    "bincount": lambda: torch.bincount(y),
    "histc": lambda: torch.histc(x, bins=4),
    "repeat_interleave": lambda: x[:4].repeat_interleave(y),
    "one_hot": lambda: F.one_hot(y),
    "tensor_split": lambda: x.tensor_split(y[1:3]),
    "torch.tensor_split": lambda: torch.tensor_split(x, y[1]),
    "pack_padded_sequence": lambda: pack_padded_sequence(torch.rand(5, 2, 1), lengths),
    "ctc_loss": lambda: F.ctc_loss(m[:, None].log_softmax(2), y[1:3][None], y[3:] + 1, y[3:] * 0 + 1),
    "inv": lambda: torch.linalg.inv(s),
    "solve": lambda: torch.linalg.solve(s, m),
    "cholesky": lambda: torch.linalg.cholesky(s),
    "eigh": lambda: torch.linalg.eigh(s),
    "eigvalsh": lambda: torch.linalg.eigvalsh(s),
    "eig": lambda: torch.linalg.eig(m),
    "svd": lambda: torch.linalg.svd(m),
    "svdvals": lambda: torch.linalg.svdvals(m),
    "pinv": lambda: torch.linalg.pinv(m),
    "lstsq": lambda: torch.linalg.lstsq(s, m),
    "lu_factor": lambda: torch.linalg.lu_factor(s),
    "matrix_rank": lambda: torch.linalg.matrix_rank(m),
    "matrix_exp": lambda: torch.linalg.matrix_exp(m),
    "nuclear norm": lambda: torch.linalg.matrix_norm(m, "nuc"),
    "normal(std)": lambda: torch.normal(0.0, x),
    "to_sparse": lambda: m.to_sparse(),
}  # fmt: skip
FREE: dict[str, Callable[[], Any]] = {
    "where": lambda: torch.where(mask, x, 0.0),
    "masked_fill": lambda: x.masked_fill(mask, 0.0),
    "repeat_interleave": lambda: x.repeat_interleave(2),
    "repeat_interleave of a size": lambda: x[:4].repeat_interleave(y, output_size=4),
    "nonzero_static": lambda: torch.nonzero_static(x, size=6),
    "one_hot": lambda: F.one_hot(y, 3),
    "histc": lambda: torch.histc(x, bins=4, min=0, max=1),
    "comparisons": lambda: (x >= x, x != x, x.not_equal(x), torch.isclose(x, x)),
    "norms": lambda: (torch.linalg.vector_norm(x), torch.linalg.matrix_norm(m)),
    "inv_ex": lambda: torch.linalg.inv_ex(s),
    "x[rows]": lambda: x[y],
    "to": lambda: (x.to(x.device), x.to(torch.float64), x.to(m)),
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "tensor_split": lambda: x.tensor_split(2),
    "clamp": lambda: x.clamp(max=x[0]),
    "losses": lambda: F.cross_entropy(m, y),
    "normal": lambda: torch.normal(x, 1.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_noticed(name: str) -> None:
    with pytest.raises(devices.Waited, match=r"waits for the device, in .*test_waits\.py:\d+: "), devices.refused():
        WAITS[name]()


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not(name: str) -> None:
    with devices.refused():
        FREE[name]()


def test_who_asks_counts() -> None:
    before = torch.Tensor.item, torch.Tensor.to, torch.tensor, F.one_hot
    with devices.refused():
        with devices.allow_waits():
            assert float(y[1]) == 1
        with ThreadPoolExecutor(1) as another:  # a loader's
            assert another.submit(lambda: int(y[3])).result() == 2
        with pytest.raises(devices.Waited):
            int(y[3])
    assert (torch.Tensor.item, torch.Tensor.to, torch.tensor, F.one_hot) == before


def test_a_wait_is_noticed_once_and_answered() -> None:
    found: list[str] = []
    with observe_waits(lambda what, file, line: found.append(what)):
        assert int(y[3]) == 2
        assert torch.unique(y).shape == (3,)
    assert found == ["Tensor.__int__", "aten._unique2.default"]
