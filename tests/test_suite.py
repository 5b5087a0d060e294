"""The tests themselves: they start no CUDA in the process whose children they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, limit

# As a build of torch with CUDA on a machine without NVML, where even counting starts CUDA. Children may: they end.
CUDA_BUILD = """
import os, torch
tests = os.getpid()

def start_cuda(*_):
    assert os.getpid() != tests, "CUDA was started: no fork of this process can use a GPU now"
    return 2

torch._C._cuda_getDeviceCount = torch._C._cuda_init = start_cuda
torch.cuda.is_available = torch.cuda.device_count = start_cuda
torch.backends.cuda.is_built = lambda: True

def pytest_collection_finish(session):
    import conftest
    skipped = [item for item in session.items if item.get_closest_marker("gpu") and item.get_closest_marker("skip")]
    print("GPUs:", conftest.NUM_GPUS, "skipped:", len(skipped))
    print("tests of the CPU see:", repr(os.environ["CUDA_VISIBLE_DEVICES"]))
    print("tests of GPUs see:", conftest.gpu_environment()["CUDA_VISIBLE_DEVICES"])
"""


@pytest.mark.slow  # it imports all that any test needs
def test_collecting_the_tests_starts_no_cuda(tmp_path: Path) -> None:
    (tmp_path / "cuda_build.py").write_text(CUDA_BUILD)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "cuda_build", "tests"],
        cwd=ROOT, capture_output=True, text=True, timeout=limit(60),
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0,1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("GPUs: 2 skipped: 0", "tests of the CPU see: ''", "tests of GPUs see: 0,1"):
        assert line in done.stdout
