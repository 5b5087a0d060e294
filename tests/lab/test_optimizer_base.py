"""The base class of optimizers that wrap others."""

from __future__ import annotations

import pytest
import torch
from optimizer_base import small

from lab.optim import check_closure
from lab.optimizers.base import Wrapper
from samebits.errors import ConfigError


def test_a_part_that_needs_a_closure_is_noticed() -> None:
    with pytest.raises(ConfigError, match=r"^optim\._target_=a\.b: LBFGS needs a task whose train_step"):
        check_closure(Wrapper([torch.optim.LBFGS(small().parameters())]), "optim._target_=a.b")
    check_closure(Wrapper([torch.optim.SGD(small().parameters())]))
