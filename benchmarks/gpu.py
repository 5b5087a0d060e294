"""Every figure that wants a GPU, and all tests marked gpu, by one command.

    python benchmarks/gpu.py                          all stages; after 8 minutes the next one begins (--limit)
    python benchmarks/gpu.py cifar gpt2 --out figures some of them; figures/gpu.json and gpu.md are written as they come
    python benchmarks/gpu.py --dry                    all of them in small, on a CPU: does it work?

Data are made up (h5py); nothing is fetched. Ours and its peers (benchmarks/gpu_peers.py) take turns, each run in a
process of its own; medians. A stage that fails is named and the next one goes on; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_common import Setting, as_json, as_table
from gpu_faults import end_all, faults
from gpu_stages import checkpoints, cifar, cifar94, gpt2, loaders, precision, tests, vocabulary

STAGES: dict[str, Callable[..., None]] = {
    "tests": tests,
    "cifar": cifar,
    "gpt2": gpt2,
    "vocabulary": vocabulary,
    "loaders": loaders,
    "precision": precision,
    "checkpoints": checkpoints,
    "faults": faults,
    "cifar94": cifar94,
}


def machine_of(setting: Setting) -> dict[str, Any]:
    """Asked in a child: this process starts no CUDA."""
    ask = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"
    torch, _, device = subprocess.check_output([sys.executable, "-c", ask], text=True).strip().partition(" ")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    found = {"device": device if setting.cuda else "cpu", "torch": torch, "python": platform.python_version()}
    return {**found, "commit": commit, "date": time.strftime("%Y-%m-%d"), "small": setting.small}


def too_long(*_: Any) -> None:
    raise TimeoutError("cut short by --limit")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"all, or some of {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, help="folder for gpu.json, gpu.md; default: only printed")
    parser.add_argument("--rounds", type=int, help="how often ours and its peer take turns; default 3, small: 1")
    parser.add_argument("--limit", type=int, default=480, help="seconds of a stage; its figures up to then stay")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="everything tiny: figures mean nothing")
    parser.add_argument("--dry", action="store_true", help="--device cpu --small")
    parser.add_argument("--cifar10", type=Path, help="the real CIFAR-10, packed by src/h5.py, for the stage cifar94")
    args = parser.parse_args()
    if unknown := [name for name in args.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    device, small = ("cpu", True) if args.dry else (args.device, args.small)
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory(prefix="lab-gpu-") as work:
        setting = Setting(device, small, Path(work), args.rounds or (1 if small else 3))
        machine = machine_of(setting)
        for name in args.stages or STAGES:
            setting.stage, began = name, time.monotonic()
            stage = partial(cifar94, file=args.cifar10) if name == "cifar94" else STAGES[name]
            print(f"{name}: {(STAGES[name].__doc__ or '').splitlines()[0]}", flush=True)
            try:
                signal.alarm(args.limit)
                stage(setting)
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) and error.code == 143:  # SIGTERM
                    raise
                failed.append(name)
                traceback.print_exception(error)
                setting.add("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)
            finally:
                signal.alarm(0)
                end_all()
            print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / "gpu.json").write_text(as_json(setting, machine))
                (args.out / "gpu.md").write_text(as_table(setting.figures))
        print(f"\n{machine}\n\n{as_table(setting.figures)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
