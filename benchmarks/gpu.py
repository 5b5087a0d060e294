"""Every figure that wants a GPU, and all tests marked gpu, by one command.

    ./run python benchmarks/gpu.py --out figures            all stages, 3 rounds: about half an hour
    ./run python benchmarks/gpu.py --minutes 9 --out figures  what fits, in one round; what tells most comes first
    ./run python benchmarks/gpu.py cifar gpt2 --out figures some of them
    ./run python benchmarks/gpu.py --dry                    all of them in small, on a CPU: does it work?

figures/gpu.json and gpu.md are written with each figure, and what a failed stage has printed. Data are made up (h5py);
nothing is fetched. Ours and its peers (benchmarks/gpu_peers.py) take turns, each run in a process of its own; medians.
A stage that fails, or takes longer than --limit, is named and the next one goes on; the exit status is then 1.
Wanted beside torch: numpy, h5py, hydra-core, omegaconf, tqdm; for the tests pytest, pytest-timeout and hypothesis, and
pytest-xdist to be quick.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = ("torch", "numpy", "h5py", "hydra", "omegaconf", "tqdm")
NEEDED_BY_TESTS = ("pytest", "pytest_timeout", "hypothesis")


def missing_of(names: Sequence[str]) -> list[str]:
    return [name for name in names if find_spec(name) is None]


if missing := missing_of(NEEDED):  # before the files below, which import some of them
    sys.exit(f"error: {sys.executable} has no {', '.join(missing)} - ./run python benchmarks/gpu.py takes .venv's")
sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_common import ROOT, Setting, as_table  # noqa: E402
from gpu_faults import end_all, faults  # noqa: E402
from gpu_smoke import smoke  # noqa: E402
from gpu_stages import (  # noqa: E402
    checkpoints,
    cifar,
    cifar94,
    cifar_compiled,
    cifar_graph,
    gpt2,
    gpt2_compiled,
    gpt2_loss,
    images,
    loaders,
    mlp,
    modes,
    precision,
    tests,
    vocabulary,
    warm,
)

STAGES: dict[str, Callable[..., None]] = {
    "smoke": smoke,
    "tests": tests,
    "warm": warm,
    "cifar": cifar,
    "gpt2": gpt2,
    "gpt2_loss": gpt2_loss,
    "mlp": mlp,
    "modes": modes,
    "checkpoints": checkpoints,
    "precision": precision,
    "gpt2_compiled": gpt2_compiled,
    "cifar_compiled": cifar_compiled,
    "cifar_graph": cifar_graph,
    "faults": faults,
    "loaders": loaders,
    "vocabulary": vocabulary,
    "images": images,
    "cifar94": cifar94,
}
LEAST_S = 15.0  # a stage is not begun with less


def machine_of(setting: Setting) -> dict[str, Any]:
    """Asked in a child: this process starts no CUDA."""
    ask = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"
    torch, _, device = subprocess.check_output([sys.executable, "-c", ask], text=True).strip().partition(" ")
    commit = ""
    if shutil.which("git"):
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    found = {"device": device if setting.cuda else "cpu", "torch": torch, "python": platform.python_version()}
    return {**found, "commit": commit, "date": time.strftime("%Y-%m-%d"), "small": setting.small}


def too_long(*_: Any) -> None:
    raise TimeoutError("cut short by --limit or --minutes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="stage", help=f"all, or some of {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, help="folder for gpu.json, gpu.md; default: only printed")
    parser.add_argument("--rounds", type=int, help="how often ours and its peer take turns; default 3, small: 1")
    parser.add_argument("--limit", type=int, default=480, help="seconds of a stage; its figures up to then stay")
    parser.add_argument("--minutes", type=float, help="of the whole command, which then has one round")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="everything tiny: figures mean nothing")
    parser.add_argument("--dry", action="store_true", help="--device cpu --small")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="of smoke, tests and modes, those named so; 'a;b': a or b"
    )
    parser.add_argument("--cifar10", type=Path, help="the real CIFAR-10, packed by src/h5.py, for the stage cifar94")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    if unknown := [name for name in args.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    device, small = ("cpu", True) if args.dry else (args.device, args.small)
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory(prefix="lab-gpu-") as work:
        rounds = args.rounds or (1 if small or args.minutes else 3)
        words = [word.strip() for word in args.only.split(";") if word.strip()]
        setting = Setting(device, small, Path(work), rounds, out=args.out, only=words)
        setting.machine = machine_of(setting)
        print(setting.machine, flush=True)
        if setting.cuda and setting.machine["device"] == "cpu":
            parser.error("torch finds no GPU; --dry tries everything on a CPU")
        for name in args.stages or STAGES:
            setting.stage, began = name, time.monotonic()
            left = end - began
            stage = STAGES[name]
            if stage is cifar94:
                stage = partial(cifar94, file=args.cifar10 and args.cifar10.resolve())
            print(f"{name}: {(STAGES[name].__doc__ or '').splitlines()[0]}", flush=True)
            try:
                if left < LEAST_S:
                    raise TimeoutError("not begun: --minutes are over")
                if name == "tests" and (missing := missing_of(NEEDED_BY_TESTS)):
                    raise SystemExit(f"this Python has no {', '.join(missing)}")
                signal.setitimer(signal.ITIMER_REAL, min(args.limit, left))
                stage(setting)
            except (Exception, SystemExit) as error:
                signal.setitimer(signal.ITIMER_REAL, 0)  # it would end this block, and the command
                if isinstance(error, SystemExit) and error.code == 143:  # SIGTERM
                    raise
                failed.append(name)
                text = "".join(traceback.format_exception(error))
                print(text, flush=True)
                setting.keep(f"{name}_failed.txt", text)
                setting.add("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                end_all()
            print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
        print(f"\n{setting.machine}\n\n{as_table(setting.figures)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
