"""src/train.py as it is, with two additions for benchmarks/gpu.py: the peak of GPU memory, and a fault on request.

FIGURES=file.json     is written at the end of a run in this process: peak memory allocated and reserved, bytes; of each
                      save the seconds that it holds the loop and the device, which is waited for before and after
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
import _python  # noqa: F401 - first, as in train.py


def main() -> int:
    import torch

    import lab.loop
    import train

    kind, rank, step = (os.environ.get("FAULT") or "none:0:0").split(":")
    train_step = lab.loop.train_step

    def faulty(loss_modules: Any, state: Any, *more: Any) -> Any:
        if state.step == int(step) and int(os.environ.get("RANK", 0)) == int(rank):
            if kind == "hang":
                time.sleep(3600)
            held = []
            while kind == "memory":
                here = ("cuda", 2**30) if torch.cuda.is_initialized() else ("cpu", 2**50)
                held.append(torch.empty(here[1], dtype=torch.uint8, device=here[0]))
        return train_step(loss_modules, state, *more)

    save, saves = lab.loop.save, []

    def timed(*given: Any, **more: Any) -> None:
        wait_for_device()
        began = time.perf_counter()
        save(*given, **more)
        wait_for_device()
        saves.append(time.perf_counter() - began)

    def wait_for_device() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    if kind != "none":
        lab.loop.train_step = faulty
    if "FIGURES" in os.environ:
        lab.loop.save = timed
    status = train.main()
    if "FIGURES" in os.environ:
        found: dict[str, Any] = {"saves_s": saves}
        if torch.cuda.is_initialized():
            found["allocated"] = torch.cuda.max_memory_allocated()
            found["reserved"] = torch.cuda.max_memory_reserved()
        Path(os.environ["FIGURES"]).write_text(json.dumps(found))
    return status


if __name__ == "__main__":
    sys.exit(main())
