"""The project's library. In a notebook:

from lab import build, compose, fit, load_run

cfg = compose(["data=h5", "trainer.max_epochs=2"])  # the checked config of this command line
parts = build(cfg)  # only the model, the task and the data loaders
run_dir = fit(cfg)  # train
run = load_run(run_dir)
run.predict(image)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.notebook import TrainedRun as load_run, build, compose, fit, read_metrics

__all__ = ["build", "compose", "fit", "load_run", "read_metrics"]

# torch's check for a GPU then asks NVML and does not initialize CUDA, after which ranks could not be forked
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that commands start without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lab import notebook

    return notebook.TrainedRun if name == "load_run" else getattr(notebook, name)
