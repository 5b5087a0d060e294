"""Without a private name of torch, or with none of them used, a run is the same, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, assert_equal, last_checkpoint, limit, metrics, result, slow

RUN = (
    *QUICK, "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=6", "trainer.log_every=2",
    "trainer.eval_every=3", "data.loader=threads",
)  # fmt: skip
NO_WRAPPED = """
from torch.optim import Optimizer
for method in (Optimizer.state_dict, Optimizer.zero_grad):
    del method.__wrapped__
"""
GONE = {
    "LAB_PLAIN_TORCH": "",
    "lean_step": "del torch.autograd._profiler_enabled",
    "storage_use_count": "del torch._C._storage_Use_Count",
    "set_death_signal": "import torch.multiprocessing; del torch.multiprocessing._prctl_pr_set_pdeathsig",
    "skip_dynamo_import": NO_WRAPPED,
}


def run_without(folder: Path, name: str) -> Path:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\nimport torch\n{GONE.get(name, '')}\nimport train\n"
    code += "print('dynamo', 'torch._dynamo' in sys.modules)\nsys.exit(train.main())"
    environment = {k: v for k, v in os.environ.items() if k != "LAB_PLAIN_TORCH"}
    if name == "LAB_PLAIN_TORCH":
        environment[name] = "1"
    arguments = [*RUN, f"hydra.run.dir={folder / (name or 'plain')}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder / (name or "plain")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_without(tmp_path_factory.mktemp("private"), "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LAB_PLAIN_TORCH", *(slow(name) for name in GONE if name != "LAB_PLAIN_TORCH")])
def test_a_run_is_the_same_without(tmp_path: Path, plain: Path, name: str) -> None:
    run = run_without(tmp_path, name)
    assert_equal(last_checkpoint(run), last_checkpoint(plain))
    assert metrics(run) == metrics(plain)
    assert "step_time" in result(run)["balance"]


def test_a_plain_run_imports_nothing_heavy(tmp_path: Path) -> None:
    """Each of these takes 0.1 to 1 s."""
    arguments = ["train.py", *QUICK, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}/run"]
    code = f"import sys; sys.argv = {arguments!r}; import train; assert train.main() == 0; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(60), cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    sharding = {f"torch.distributed.{name}" for name in ("checkpoint", "fsdp", "tensor")}
    assert not (sharding | {"torch._dynamo", "sympy", "wandb", "matplotlib", "scipy", "pandas"}) & imported
