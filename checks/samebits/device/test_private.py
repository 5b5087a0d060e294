"""Without a private name of torch, or with none of them used, a run is the same, bit for bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from common import QUICK, ROOT

from samebits.testing import assert_undisturbed, result, start_run
from samebits.testing.processes import called

RUN = (
    *QUICK, "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=6", "trainer.log_every=2",
    "trainer.eval_every=3", "data.loader=threads",
)  # fmt: skip
GONE = """
import torch, torch.multiprocessing
from torch.optim import Optimizer
for method in (Optimizer.state_dict, Optimizer.zero_grad):
    del method.__wrapped__
del torch.autograd._profiler_enabled, torch._C._storage_Use_Count, torch.multiprocessing._prctl_pr_set_pdeathsig
del torch.autograd.graph._engine_run_backward
"""


@pytest.mark.slow
def test_a_run_is_the_same_without(tmp_path: Path) -> None:
    plain = start_run(tmp_path / "plain", *RUN)
    for name, gone, variables in (("gone", GONE, {}), ("plain torch", "", {"LAB_PLAIN_TORCH": "1"})):
        run = tmp_path / name
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{gone}\nimport train; sys.exit(train.main())"
        called([sys.executable, "-c", code, *RUN, f"hydra.run.dir={run}"], env={**os.environ, **variables}, fresh=True)
        assert_undisturbed(run, plain)
        assert "step_time" in result(run)["balance"]


@pytest.mark.slow
def test_a_plain_run_imports_nothing_heavy(tmp_path: Path) -> None:
    """Each of these takes 0.1 to 1 s. torch's optimizers import dynamo on their first call."""
    arguments = ["train.py", *QUICK, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}/run"]
    code = f"import sys; sys.argv = {arguments!r}; import train; assert train.main() == 0; print(*sys.modules)"
    done = called([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": "src"}, fresh=True)
    imported = set(done.stdout.split())
    sharding = {f"torch.distributed.{name}" for name in ("checkpoint", "fsdp", "tensor")}
    assert not (sharding | {"torch._dynamo", "sympy", "wandb", "matplotlib", "scipy", "pandas"}) & imported
