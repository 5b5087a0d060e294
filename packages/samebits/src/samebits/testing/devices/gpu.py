"""Hide GPUs from CPU tests and the processes that they fork. GPU tests use gpu_environment."""

from __future__ import annotations

import json
import os

from samebits.host import count_gpus
from samebits.testing.processes import importing, program


def hide_gpus() -> int:
    """Hide the CUDA devices from this process, and return their number. It can be called again: the environment, which
    child processes inherit, keeps the number."""
    if "TESTS_GPUS" not in os.environ:
        os.environ["TESTS_GPUS"] = json.dumps([count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return json.loads(os.environ["TESTS_GPUS"])[0]


def gpu_environment() -> dict[str, str]:
    """Return an environment in which GPUs are visible, for commands of tests with the marker gpu."""
    visible = json.loads(os.environ["TESTS_GPUS"])[1]
    hidden = {key: value for key, value in importing(program().root / "src").items() if key != "CUDA_VISIBLE_DEVICES"}
    return hidden if visible is None else {**hidden, "CUDA_VISIBLE_DEVICES": visible}
