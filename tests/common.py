"""What the tests of this project share: where it is, its smallest run, and which of its options a fork has kept."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import subprocess
import sys
from typing import Any

import pytest

from lab.program import PROGRAM
from samebits.testing import register
from samebits.testing.processes import code_of

ROOT = PROGRAM.root
_, *LIBRARIES = code_of(ROOT)
TRAIN = [sys.executable, str(ROOT / "src" / "train.py")]
register(
    PROGRAM,
    also=("lab.config", "lab.groups", "lab.loop", "lab.notebook", "lab.run", "h5rows.dataset"),
)

# small and fast; each test adds what it is about
QUICK = ("logger=none", "hardware=cpu", "hardware.num_threads=1", "model.hidden=[16]", "trainer.max_epochs=null")


def needs(*files: str) -> pytest.MarkDecorator:
    """Of a test about an option of the template's: skipped in a fork that has deleted it."""
    deleted = [name for name in files if not (ROOT / name).exists()]
    return pytest.mark.skipif(bool(deleted), reason=f"this project has no {', '.join(deleted)}")


def called_here(name: str, *given: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`./run NAME ...` in this process, which needs no start. code: the exit status that is expected."""
    out, error = io.StringIO(), io.StringIO()
    command = [name, *map(str, given)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        status = importlib.import_module(name).main()
    done = subprocess.CompletedProcess(command, status, out.getvalue(), error.getvalue())
    assert status == code, done
    return done


def old_rng_state() -> dict[str, Any]:
    """The generators' states as checkpoints before 0.2 hold them."""
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state()
    drawn = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return {**drawn, "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest)}
