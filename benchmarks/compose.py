"""What it costs to compose, check and write the jobs of a sweep, none of which is run: CPU ms a job.

    ./run python benchmarks/compose.py [--jobs 1000] [overrides, as of the sweep]

Imports (torch's, for the checks) are paid by a sweep of 10 jobs before; the thread count is given, not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
PARTS = ("expand", "compose", "unlike", "write")
_cpu_s: dict[str, float] = {}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **more)
        finally:
            _cpu_s[name] = _cpu_s.get(name, 0.0) + time.process_time() - began

    return call


def compose(jobs: int, overrides: list[str]) -> None:
    """As far as the start of the first job."""
    import train

    values = ",".join(f"{1e-4 * (i + 1):.6g}" for i in range(10))
    sweep = [f"optim.lr={values}", f"seed=range({-(-jobs // 10)})", "hardware.num_threads=1", "logger=none", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train.py", "-m", f"hydra.sweep.dir={folder}/s", *sweep]
        with contextlib.suppress(SystemExit):  # of not_run
            train.main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="a multiple of 10")
    args, overrides = parser.parse_known_args()

    from samebits.sweeps import drive, plan

    def not_run(*_: Any) -> None:
        raise SystemExit(0)

    drive.run_sweep = not_run  # type: ignore[assignment]
    compose(10, overrides)
    for name in PARTS:
        setattr(plan, name, timed(name, getattr(plan, name)))
    began = time.process_time()
    compose(args.jobs, overrides)
    whole = time.process_time() - began
    print("| part | CPU ms a job |\n|---|---|")
    for name in PARTS:
        print(f"| {name} | {1e3 * _cpu_s.get(name, 0.0) / args.jobs:.2f} |")
    print(f"| all, to the start of the first job | {1e3 * whole / args.jobs:.2f} |")


if __name__ == "__main__":
    main()
