"""src/train.py as it is, with two additions for benchmarks/gpu.py: the peak of GPU memory, and a fault on request.

FIGURES=file.json     is written at the end of a run in this process: peak memory allocated and reserved, bytes
FAULT=hang:RANK:STEP  the rank sleeps for an hour before this step
FAULT=memory:RANK:STEP  the rank asks for memory until none is left
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import engine.interpreter  # noqa: F401 - first, as in train.py


def main() -> int:
    import torch

    import lab.loop
    import train

    kind, rank, step = (os.environ.get("FAULT") or "none:0:0").split(":")
    train_step = lab.loop.train_step

    def faulty(nets: Any, state: Any, *more: Any) -> Any:
        if state.step == int(step) and int(os.environ.get("RANK", 0)) == int(rank):
            if kind == "hang":
                time.sleep(3600)
            held = []
            while kind == "memory":
                here = ("cuda", 2**30) if torch.cuda.is_initialized() else ("cpu", 2**50)
                held.append(torch.empty(here[1], dtype=torch.uint8, device=here[0]))
        return train_step(nets, state, *more)

    if kind != "none":
        lab.loop.train_step = faulty
    status = train.main()
    if "FIGURES" in os.environ and torch.cuda.is_initialized():
        peak = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        Path(os.environ["FIGURES"]).write_text(json.dumps(peak))
    return status


if __name__ == "__main__":
    sys.exit(main())
