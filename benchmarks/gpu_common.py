"""What the stages of benchmarks/gpu.py share: data that are made up, runs of ours and of peers, figures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent

OURS, PEERS = HERE / "gpu_ours.py", HERE / "gpu_peers.py"

RUN_S = 180  # longest that a run may take

Value = float | str | None


@dataclass
class Figure:
    """target: (">=" or "<=", value); None: there is none."""

    stage: str
    name: str
    value: float | str | None
    unit: str = ""
    target: tuple[str, float] | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None or not isinstance(self.value, (int, float)):
            return None
        sign, limit = self.target
        return self.value >= limit if sign == ">=" else self.value <= limit


@dataclass
class Setting:
    """device: cuda or cpu. small: everything tiny, to see that it works. work: runs and data lie there. out: gpu.json
    and gpu.md are written there with each figure, so that none is lost where the command is killed; None: nowhere."""

    device: str
    small: bool
    work: Path
    rounds: int = 3
    stage: str = ""
    figures: list[Figure] = field(default_factory=list)
    out: Path | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    only: Sequence[str] = ()  # words; of cases and tests those whose name has one of them; (): all

    def add(self, name: str, value: Value, unit: str = "", target: tuple[str, float] | None = None) -> None:
        """In place of a figure of that name, which had fewer rounds."""
        figure = Figure(self.stage, name, value, unit, target)
        known = [(one.stage, one.name) for one in self.figures]
        if (self.stage, name) in known:
            self.figures[known.index((self.stage, name))] = figure
        else:
            self.figures.append(figure)
        verdict = {None: "", True: "  ok", False: "  MISSED"}[figure.met]
        print(f"  {name}: {shown(value)} {unit}{verdict}", flush=True)
        self.keep("gpu.json", as_json(self, self.machine))
        self.keep("gpu.md", as_table(self.figures))

    def keep(self, name: str, text: str) -> None:
        """A file of `out`."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_text(text)

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def precision(self) -> str:
        """Of ours and its peers."""
        return "bf16" if self.cuda else "fp32"

    def pick(self, full: Any, small: Any) -> Any:
        return small if self.small else full


@dataclass
class Ran:
    """A run of ours that has ended. lines: of metrics.jsonl. profile: of profiler=simple. figures: of gpu_ours.py."""

    status: int
    stderr: str
    folder: Path
    seconds: float
    lines: list[dict[str, Any]]
    profile: dict[str, Any]
    figures: dict[str, Any]

    def speed(self, key: str = "perf/samples_per_s") -> float:
        """Median over the logs; the first is left out, as it holds the start, and a compilation."""
        values = [line[key] for line in self.lines if key in line]
        if len(values) < 2:
            raise SystemExit(f"{self.folder}: fewer than two logs of {key}\n{self.stderr[-4000:]}")
        return statistics.median(values[1:])


def shown(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def command(setting: Setting, folder: Path, *overrides: str) -> list[str]:
    own = ["logger=none", f"hardware={'gpu' if setting.cuda else 'cpu'}"]
    if not any(override.startswith("resume=") for override in overrides):  # else it goes on in its own directory
        own.append(f"hydra.run.dir={folder}")
    threads = [] if setting.cuda else ["hardware.num_threads=1"]
    return [sys.executable, str(OURS), *own, *threads, *overrides]


def finished(command: list[str], environment: Mapping[str, str], limit_s: float = RUN_S) -> tuple[int, str, str]:
    """Returns (status, stdout, stderr) of a command. It is a session of its own, which ends whole where the command
    takes too long or this process is interrupted: nothing that it has started stays on the GPU."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err, cwd=ROOT, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            err.seek(0)
            text = f"{' '.join(command[1:])}\n{err.read()[-4000:]}"
            raise SystemExit(f"not ended after {limit_s:.0f} s: {text}") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0), err.seek(0)
        return status, out.read(), err.read()


def ours(
    setting: Setting, name: str, *overrides: str, fault: str = "", wanted: int | None = 0, keep: bool = False,
    limit_s: float = RUN_S,
) -> Ran:  # fmt: skip
    """Our run from start to end. wanted: its exit status, else this command ends; None: any. keep: its checkpoints,
    gigabytes in some stages."""
    folder = setting.work / f"{setting.stage}-{name}-{time.time_ns() % 10**9}"
    figures = folder.with_suffix(".json")
    environment = {**environment_of(setting), "FIGURES": str(figures), "FAULT": fault}
    began = time.perf_counter()
    status, _, stderr = finished(command(setting, folder, *overrides), environment, limit_s)
    seconds = time.perf_counter() - began
    if wanted is not None and status != wanted:
        raise SystemExit(f"{name}: status {status}, not {wanted}\n{stderr[-6000:]}")
    if not keep:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    lines = folder / "metrics.jsonl"
    return Ran(
        status, stderr, folder, seconds,
        [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else [],
        read(folder / "profile.json"), read(figures),
    )  # fmt: skip


def environment_of(setting: Setting) -> dict[str, str]:
    """In small nothing is compiled: that takes minutes, and is torch's."""
    return {**os.environ, **({"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"} if setting.small else {})}


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def bare(setting: Setting, kind: str, **given: Any) -> dict[str, Any]:
    """A peer's loop, in a process of its own."""
    given = {"device": setting.device, **given}
    command = [sys.executable, str(PEERS), kind, json.dumps(given)]
    status, stdout, stderr = finished(command, environment_of(setting))
    if status:
        raise SystemExit(f"{kind} {given}: {stderr[-6000:]}")
    return json.loads(stdout.splitlines()[-1])


def compiled(mode: str) -> str:
    return f"hardware.compile={mode}"


def cifar_file(setting: Setting) -> Path:
    """Images as CIFAR-10's, of random pixels."""
    path, draw = setting.work / "cifar.h5", np.random.default_rng(0)
    if not path.exists():
        with h5py.File(path, "w") as file:
            for split, size in (("train", setting.pick(50_000, 256)), ("test", setting.pick(10_000, 64))):
                file[f"{split}/image"] = draw.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8)
                file[f"{split}/label"] = draw.integers(0, 10, size)
                file[f"{split}/label"].attrs["classes"] = 10
    return path


def token_file(setting: Setting, vocabulary: int) -> Path:
    """A stream of random tokens, with a vocabulary of this size."""
    path, draw = setting.work / f"tokens{vocabulary}.h5", np.random.default_rng(0)
    if not path.exists():
        with h5py.File(path, "w") as file:
            for split, size in (("train", setting.pick(20_000_000, 20_000)), ("val", setting.pick(200_000, 2_000))):
                file[f"{split}/tokens"] = draw.integers(0, vocabulary, size).astype(np.uint16)
                file[f"{split}/tokens"].attrs["classes"] = vocabulary
    return path


def as_table(figures: list[Figure]) -> str:
    rows = ["| stage | figure | value | unit | target | met |", "|---|---|---|---|---|---|"]
    for one in figures:
        target = f"{one.target[0]} {one.target[1]:,}" if one.target else ""
        met = {None: "", True: "yes", False: "**no**"}[one.met]
        rows.append(f"| {one.stage} | {one.name} | {shown(one.value)} | {one.unit} | {target} | {met} |")
    return "\n".join(rows) + "\n"


def as_json(setting: Setting, machine: dict[str, Any]) -> str:
    rows = [{**asdict(figure), "met": figure.met} for figure in setting.figures]
    return json.dumps({"machine": machine, "figures": rows}, indent=1) + "\n"


def memory_used(setting: Setting) -> float:
    """MB of the first GPU, of all processes, by the driver; 0 on a CPU."""
    if not setting.cuda:
        return 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names this folder: what a run has left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
