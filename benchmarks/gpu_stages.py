"""The stages of benchmarks/gpu.py that measure speed and memory. Ours and the peer take turns; medians."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_common import ROOT, Ran, Setting, bare, cifar_file, compiled, has, ours, token_file

QUIET = ("trainer.max_epochs=null", "trainer.eval_every=null", "trainer.save_every=null", "trainer.max_eval_batches=1")
EAGER, COMPILED = "eager", "compiled, channels_last"


def tests(setting: Setting) -> None:
    """Every test marked gpu."""
    report = setting.work / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--timeout=240", f"--junitxml={report}", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    count = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    if failed:
        print(done.stdout[-8000:], flush=True)
    setting.add("passed", count["tests"] - failed - count["skipped"])
    setting.add("skipped", count["skipped"])
    setting.add("failed", failed, target=("<=", 0))


# ---- CIFAR


def cifar_ours(setting: Setting, name: str, steps: int, *more: str) -> Ran:
    size = ("model.width=8", "trainer.global_batch_size=32") if setting.small else ()
    every = setting.pick(50, 2)
    given = [*QUIET, f"data.path={cifar_file(setting)}", f"trainer.max_steps={steps}", f"trainer.log_every={every}"]
    precision = "hardware.precision=bf16" if setting.cuda else "hardware.precision=fp32"
    return ours(setting, name, "experiment=cifar10", precision, *given, *size, *more)


def cifar_ways(setting: Setting) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """{name: (our overrides, the peer's settings)}."""
    plain = {"compile": None, "channels_last": False}
    ways: dict[str, tuple[list[str], dict[str, Any]]] = {EAGER: ([], plain)}
    last = has("channels_last")
    more = [compiled("default"), *(["hardware.channels_last=true"] if last else [])]
    name = COMPILED if last else "compiled"
    ways[name] = (more, {"compile": "default", "channels_last": last})
    return ways


def cifar(setting: Setting) -> None:
    """Images/s of a ResNet, eager and compiled, beside a bare loop; how busy the GPU is."""
    steps, every = setting.pick(500, 6), setting.pick(50, 2)
    batch, width = setting.pick(512, 32), setting.pick(64, 8)
    for name, (overrides, peer) in cifar_ways(setting).items():
        own, hand = [], []
        for _ in range(setting.rounds):
            own.append(cifar_ours(setting, "cifar", steps, *overrides, "data.loader=device").speed())
            given = {"path": str(cifar_file(setting)), "batch": batch, "width": width, "log_every": every}
            precision = "bf16" if setting.cuda else "fp32"
            found = bare(setting, "cifar", steps=steps, precision=precision, **given, **peer)
            hand.append(batch / statistics.median(found["step_s"]))
        target = 30_000 if name == EAGER else 80_000
        setting.add(f"CIFAR ResNet, {name}", statistics.median(own), "images/s", (">=", target))
        setting.add(f"bare loop, {name}", statistics.median(hand), "images/s")
        ratio = statistics.median(b / a for a, b in zip(own, hand))
        setting.add(f"time of ours / bare, {name}", ratio, "", ("<=", 1.02))
        if setting.small and name != EAGER:  # nothing is compiled then: all that follows was just tried
            continue
        simple = cifar_ours(setting, "profile", steps, *overrides, "data.loader=device", "profiler=simple")
        setting.add(f"bound by, {name}", simple.profile["bound_by"])
        setting.add(f"model FLOP/s, {name}", simple.speed("perf/tflop_per_s"), "TFLOP/s")
        traced = trace_of(setting, *overrides)
        setting.add(f"GPU busy in a trace, {name}", 100 * busy_share(traced) if setting.cuda else None, "%", (">=", 97))
        setting.add(f"launches a step, {name}", launches(traced, setting.cuda))


def trace_of(setting: Setting, *overrides: str) -> list[dict[str, Any]]:
    """Events of a trace of 10 (3) steps."""
    active, wait = setting.pick(10, 3), setting.pick(40, 1)
    more = ("profiler=torch", f"profiler.wait={wait}", f"profiler.active={active}", "data.loader=device")
    ran = cifar_ours(setting, "trace", wait + active + 8, *overrides, *more)
    events = json.loads((ran.folder / "profile/trace_rank0.json").read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def busy_share(events: Sequence[dict[str, Any]]) -> float:
    """Share of the time from the first kernel to the last in which a kernel or a copy ran. A trace slows the host."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds)
    busy, end = 0.0, spans[0][0]
    for begin, until in spans:
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return busy / (end - spans[0][0])


def launches(events: Sequence[dict[str, Any]], cuda: bool) -> float:
    """Kernels a step; on a CPU, operations."""
    steps = {e["name"] for e in events if str(e["name"]).startswith("ProfilerStep#")}
    return sum(e.get("cat") == ("kernel" if cuda else "cpu_op") for e in events) / max(len(steps), 1)


def loaders(setting: Setting) -> None:
    """Images/s from the file by threads and by workers, over those from the device's memory."""
    speeds: dict[str, list[float]] = {"threads": [], "workers": [], "device": []}
    for _ in range(setting.rounds):
        for kind in speeds:
            more = ["data.num_workers=1"] if setting.small and kind == "workers" else []
            ran = cifar_ours(setting, kind, setting.pick(300, 6), f"data.loader={kind}", *more)
            speeds[kind].append(ran.speed())
    for kind, found in speeds.items():
        setting.add(f"data.loader={kind}", statistics.median(found), "images/s")
    for kind in ("threads", "workers"):
        ratio = statistics.median(a / b for a, b in zip(speeds[kind], speeds["device"]))
        setting.add(f"{kind} / device", ratio, "", (">=", 0.97))


# ---- GPT-2


def gpt_size(setting: Setting) -> dict[str, int]:
    small = {"window": 32, "batch": 8, "micro_batch": 4, "width": 32, "heads": 2, "layers": 2}
    full = {"window": 1024, "batch": 64, "micro_batch": 16, "width": 768, "heads": 12, "layers": 12}
    return setting.pick(full, small)


def gpt_ours(setting: Setting, steps: int, vocabulary: int, precision: str, *more: str) -> Ran:
    size = gpt_size(setting)
    given = [
        "data=tokens", f"data.path={token_file(setting, vocabulary)}", f"data.window={size['window']}", "model=gpt",
        f"model.width={size['width']}", f"model.heads={size['heads']}", f"model.layers={size['layers']}",
        "task=next_token", f"trainer.global_batch_size={size['batch']}", f"trainer.max_steps={steps}",
        f"hardware.micro_batch_size={size['micro_batch']}", f"trainer.log_every={setting.pick(5, 2)}",
        f"hardware.precision={precision}",
    ]  # fmt: skip
    return ours(setting, "gpt", *QUIET, *given, *more)


def gpt2(setting: Setting) -> None:
    """Tokens/s of GPT-2 124M beside nanoGPT's loop with the same settings, eager and compiled; peak memory."""
    steps, vocabulary = setting.pick(40, 6), setting.pick(50_304, 64)
    precision = "bf16" if setting.cuda else "fp32"
    size, path = gpt_size(setting), str(token_file(setting, vocabulary))
    for name, mode in (("eager", None), ("compiled", "default")):
        own, hand = [], []
        for _ in range(max(1, setting.rounds - 1)):
            ran = gpt_ours(setting, steps, vocabulary, precision, *([compiled(mode)] if mode else []))
            own.append(ran.speed("perf/tokens_per_s"))
            given = {"path": path, "vocabulary": vocabulary, "compile": mode, "precision": precision, **size}
            peer = bare(setting, "gpt", steps=steps, log_every=setting.pick(5, 2), **given)
            hand.append(size["batch"] * size["window"] / statistics.median(peer["step_s"]))
        target = (">=", 300_000.0) if mode else (">=", 150_000.0)
        setting.add(f"GPT-2 124M, {name}", statistics.median(own), "tokens/s", target)
        setting.add(f"nanoGPT's loop, {name}", statistics.median(hand), "tokens/s")
        setting.add(f"ours / nanoGPT, {name}", statistics.median(a / b for a, b in zip(own, hand)), "", (">=", 1.0))
        if setting.cuda:
            setting.add(f"model FLOP/s, {name}", ran.speed("perf/tflop_per_s"), "TFLOP/s")
            setting.add(f"peak memory, {name}", ran.peak["allocated"] / 1e9, "GB")
            setting.add(f"peak memory of nanoGPT's loop, {name}", peer["allocated"] / 1e9, "GB")


def vocabulary(setting: Setting) -> None:
    """A vocabulary of 50,257 (odd rows) beside one of 50,304."""
    speeds = {}
    for tokens in setting.pick((50_257, 50_304), (61, 64)):
        ran = gpt_ours(setting, setting.pick(30, 6), tokens, "bf16" if setting.cuda else "fp32")
        speeds[tokens] = ran.speed("perf/tokens_per_s")
        setting.add(f"GPT-2, vocabulary of {tokens:,}", speeds[tokens], "tokens/s")
    odd, even = speeds.values()
    setting.add("padded / odd", even / odd)


def precision(setting: Setting) -> None:
    """bf16 beside fp32: memory and speed of GPT-2."""
    steps, tokens = setting.pick(20, 6), setting.pick(50_304, 64)
    found = {kind: gpt_ours(setting, steps, tokens, kind) for kind in ("fp32", "bf16")}
    for kind, ran in found.items():
        setting.add(f"GPT-2, {kind}", ran.speed("perf/tokens_per_s"), "tokens/s")
    ratio = found["bf16"].speed() / found["fp32"].speed()
    setting.add("speed of bf16 / fp32", ratio, "", (">=", 2.0))
    memory = found["bf16"].peak["allocated"] / found["fp32"].peak["allocated"] if setting.cuda else None
    setting.add("memory of bf16 / fp32", memory, "", ("<=", 0.6))


# ---- checkpoints


def checkpoints(setting: Setting) -> None:
    """How long a checkpoint of GPT-2 with AdamW's state (1.5 GB) blocks the loop, beside torch.save; a resume."""
    steps, tokens = setting.pick(40, 6), setting.pick(50_304, 64)
    more = ("profiler=simple", "profiler.wait=2", f"trainer.save_every={setting.pick(10, 2)}", "trainer.log_every=10")
    ran = gpt_ours(setting, steps, tokens, "bf16" if setting.cuda else "fp32", *more)
    held = next(line for line in ran.stderr.splitlines() if " parameters; " in line)
    count = re.search(r"([\d,]+) parameters", held)
    assert count is not None
    parameters = int(count[1].replace(",", ""))
    saves = sum(step % setting.pick(10, 2) == 0 for step in range(3, steps + 1))
    blocked = ran.profile["host_seconds"]["save"] / saves
    folder = {"folder": str(setting.work), "parameters": parameters, "times": setting.pick(3, 2)}
    plain = statistics.median(bare(setting, "save", **folder)["save_s"])
    setting.add("loop blocked by a save", blocked, "s")
    setting.add("torch.save of as much", plain, "s")
    setting.add("blocked / torch.save", blocked / plain, "", ("<=", 0.2))
    again = ours(setting, "resume", f"resume={ran.folder}", f"trainer.max_steps={steps + 2}", "profiler=none")
    setting.add("a resume, from the command to its end", again.seconds, "s")


def cifar94(setting: Setting, file: Path | None) -> None:
    """Seconds of training to 94 % by experiment=cifar10_fast. file: the real CIFAR-10, packed."""
    recipe = ROOT / "conf/experiment/cifar10_fast.yaml"
    if file is None or not recipe.exists():
        setting.add("CIFAR-10 to 94 %", "needs --cifar10 FILE.h5 and experiment=cifar10_fast")
        return
    ran = ours(setting, "fast", "experiment=cifar10_fast", f"data.path={file}")
    scores = [line for line in ran.lines if "val/accuracy" in line]
    reached = next((line for line in scores if line["val/accuracy"] >= 0.94), None)
    setting.add("test accuracy", read_result(ran).get("test/accuracy"), "", (">=", 0.94))
    setting.add("to 94 %", reached["time"] - ran.lines[0]["time"] if reached else None, "s", ("<=", 20.0))


def read_result(ran: Ran) -> dict[str, Any]:
    return json.loads((ran.folder / "result.json").read_text())
