"""GPUs are hidden from the tests of the CPU, and from all that these fork; those of GPUs use gpu_environment."""

from __future__ import annotations

import json
import os

import torch

from samebits.testing.processes import importing, program


def count_gpus() -> int:
    """Return how many CUDA devices there are, counted in a child: counting may start CUDA, and no fork of a process
    that has done so can use a GPU."""
    if not torch.backends.cuda.is_built():
        return 0
    if (child := os.fork()) == 0:
        os._exit(min(torch.cuda.device_count(), 255))
    return max(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def hide_gpus() -> int:
    """Return how many CUDA devices there are, and hide them from this process. pytest-xdist's workers have the
    environment of the process that has hidden them."""
    if "TESTS_GPUS" not in os.environ:
        os.environ["TESTS_GPUS"] = json.dumps([count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return json.loads(os.environ["TESTS_GPUS"])[0]


def gpu_environment() -> dict[str, str]:
    """Return the environment of a command in a test that is marked gpu: it sees the GPUs."""
    visible = json.loads(os.environ["TESTS_GPUS"])[1]
    hidden = {key: value for key, value in importing(program().root / "src").items() if key != "CUDA_VISIBLE_DEVICES"}
    return hidden if visible is None else {**hidden, "CUDA_VISIBLE_DEVICES": visible}
