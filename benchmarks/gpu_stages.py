"""The stages of benchmarks/gpu.py that measure speed and memory. Ours and the peer take turns; medians."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_common import HERE, ROOT, Ran, Setting, bare, cifar_file, compiled, environment_of, finished, ours, token_file

QUIET = ("trainer.max_epochs=null", "trainer.eval_every=null", "trainer.save_every=null", "trainer.max_eval_batches=1")
TESTS_S = 480.0
MOST_BUSY = 101.0  # percent; the trace is of other steps than the speed
TRAIN_ALONE = ("data.splits.val=null", "data.splits.test=null")  # evaluations would be compiled too, for a minute
EAGER, COMPILED, GRAPH = "eager", "compiled, channels_last", "compiled, channels_last, cuda_graph"


FILL = "test_full_memory or test_the_largest_micro_batch"  # tests that want the whole memory of the GPU
SIDE_BY_SIDE = "12"  # others at once, where pytest-xdist is there
WORDS = "(PASSED|FAILED|SKIPPED|ERROR)"
MAY_NEED_A_GPU = r"(?m)\bpytest\.mark\.gpu\b|^class Test\w*\("
OUTCOME = rf"(?m)^(?:\[gw\d+\] \[ *\d+%\] {WORDS} \S+\.py::|\S+\.py::.*? {WORDS}\b)"


def tests(setting: Setting) -> None:
    """Every test marked gpu."""
    files = [str(file) for file in files_of_tests()]
    several = ["-n", SIDE_BY_SIDE] if find_spec("xdist") else []
    log, status = setting.work / "tests.log", 0
    try:
        only = f"({' or '.join(setting.only)})" if setting.only else "test"
        for more in ([*several, "-k", f"{only} and not ({FILL})"], ["-k", f"{only} and ({FILL})"]):
            pytest = [sys.executable, "-m", "pytest", "-vv", "--tb=short", "-m", "gpu", "--timeout=240", *more, *files]
            ended, _, _ = finished(["sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log), *pytest], os.environ, TESTS_S)
            status = max(status, ended)
    finally:  # of a stage that is cut short, too
        text = log.read_text() if log.exists() else ""
        count = outcomes(text)
        failed = count["FAILED"] + count["ERROR"]
        if failed or not count:
            print(text[-8000:], flush=True)
        setting.keep("tests.log", text)
        setting.add("passed", count["PASSED"], target=(">=", 1))
        setting.add("skipped", count["SKIPPED"])
        setting.add("failed", failed, target=("<=", 0))
    if status not in (0, 1, 5):  # 1: some have failed; 5: none was chosen
        raise SystemExit(f"pytest: status {status}")


def files_of_tests() -> list[Path]:
    """Files with a test marked gpu, own or inherited from a class of samebits.testing. Only these, because each of many
    pytest workers imports all files, which takes 10 s for the whole folder tests."""
    files = (file for folder in ("tests", "checks") for file in sorted((ROOT / folder).rglob("test_*.py")))
    return [file for file in files if re.search(MAY_NEED_A_GPU, file.read_text())]


def outcomes(log: str) -> Counter[str]:
    """{outcome: number of tests}, by the lines of pytest -vv, with xdist or without."""
    return Counter(one or other for one, other in re.findall(OUTCOME, log))


def warm(setting: Setting) -> None:
    """What later stages compile, side by side: they find it in torch's cache, and begin in seconds."""
    cifar_own, cifar_peer = cifar_ways()[COMPILED]
    tokens = setting.pick(50_304, 64)
    jobs: list[Callable[[], Any]] = [
        partial(gpt_ours, setting, 6, tokens, setting.precision, compiled("default"), *TRAIN_ALONE),
        partial(bare, setting, "gpt", steps=4, log_every=2, **gpt_given(setting, tokens, "default")),
        partial(cifar_ours, setting, "warm", setting.pick(60, 6), *cifar_own, "data.loader=device"),
        partial(bare, setting, "cifar", steps=4, log_every=2, **cifar_size(setting), **cifar_peer),
        partial(cifar94_ours, setting, cifar_file(setting), *FAST[setting.cuda], "data.splits.test=null"),
    ]
    with ThreadPoolExecutor(len(jobs) if setting.cuda else 1) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()
    setting.add("compiled", len(jobs))


def modes(setting: Setting) -> None:
    """Samples/s of steps that launches bound: the default MLP and a small ResNet on the digits, in each mode."""
    ways = {"plain": (), "graph": ("hardware.cuda_graph=true",), "default": (compiled("default"),),
            "reduce-overhead": (compiled("reduce-overhead"),),
            "default, graph": (compiled("default"), "hardware.cuda_graph=true")}  # fmt: skip
    if not setting.cuda:
        ways = {name: more for name, more in ways.items() if "graph" not in name}
    given = digits_given(setting, setting.precision)
    for model, more in {"mlp": (), "resnet": ("model=resnet", "model.width=16")}.items():
        if model == "mlp":
            ways = {**ways, "plain, fp32": ("hardware.precision=fp32",)}
        else:
            ways = {way: own for way, own in ways.items() if way in ("plain", "graph", "default, graph")}
        if setting.only:
            ways = {way: own for way, own in ways.items() if any(word in f"{model}, {way}" for word in setting.only)}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(setting.rounds):
            for way, own in ways.items():
                found[way].append(ours(setting, "mode", *given, *more, *own).speed())
                setting.add(f"{model}, {way}", statistics.median(found[way]), "samples/s")
        for way in list(ways)[1:] if "plain" in ways else ():
            ratio = statistics.median(a / b for a, b in zip(found[way], found["plain"]))
            setting.add(f"{model}, {way} / plain", ratio, "")


STEPS_OF_DIGITS = (3000, 20), (500, 5)  # of a run, and of a log; the second ones are small


def digits_given(setting: Setting, precision: str) -> list[str]:
    steps, every = (setting.pick(*sizes) for sizes in STEPS_OF_DIGITS)
    given = [*QUIET, *TRAIN_ALONE, f"trainer.max_steps={steps}", f"trainer.log_every={every}", "data.loader=device"]
    return [*given, f"hardware.precision={precision}"]


def mlp(setting: Setting) -> None:
    """The default MLP beside a bare loop, in fp32, which precision=auto takes, and in bf16: samples/s, launches."""
    steps, every = (setting.pick(*sizes) for sizes in STEPS_OF_DIGITS)
    for kind in ("fp32", "bf16"):
        own, hand, given = [], [], digits_given(setting, kind)
        for _ in range(setting.rounds):
            own.append(ours(setting, "mlp", *given).speed())
            setting.add(f"mlp, {kind}", statistics.median(own), "samples/s")
            peer = bare(setting, "mlp", steps=steps, log_every=every, precision=kind, launches=True)
            hand.append(peer["samples"] / statistics.median(peer["step_s"]))
            setting.add(f"bare loop, {kind}", statistics.median(hand), "samples/s")
            setting.add(f"ours / bare, {kind}", statistics.median(a / b for a, b in zip(own, hand)), "", (">=", 0.99))
        traced = trace_of(setting, partial(ours, setting, "trace", *given))
        setting.add(f"launches a step, {kind}", launches(traced, setting.cuda))
        setting.add(f"launches a step, bare loop, {kind}", peer["launches"])


# ---- CIFAR


def cifar_ours(setting: Setting, name: str, steps: int, *more: str) -> Ran:
    size = ("model.width=8", "trainer.global_batch_size=32") if setting.small else ()
    every = setting.pick(50, 2)
    given = [*QUIET, f"data.path={cifar_file(setting)}", f"trainer.max_steps={steps}", f"trainer.log_every={every}"]
    precision = f"hardware.precision={setting.precision}"
    return ours(setting, name, "experiment=cifar10", precision, *given, *size, *more)


def cifar_ways() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """{name: (our overrides, the peer's settings)}."""
    more = [compiled("default"), "hardware.channels_last=true", *TRAIN_ALONE]
    return {
        EAGER: ([], {"compile": None, "channels_last": False}),
        COMPILED: (more, {"compile": "default", "channels_last": True}),
        GRAPH: ([*more, "hardware.cuda_graph=true"], {"compile": "reduce-overhead", "channels_last": True}),
    }


def cifar_size(setting: Setting) -> dict[str, Any]:
    size = {"batch": setting.pick(512, 32), "width": setting.pick(64, 8)}
    return {"path": str(cifar_file(setting)), "precision": setting.precision, **size}


def cifar(setting: Setting) -> None:
    """Images/s of a ResNet beside a bare loop; how busy the GPU is."""
    cifar_way(setting, EAGER, target=30_000)


def cifar_compiled(setting: Setting) -> None:
    """The same, compiled, and with images in channels_last. Ours compiles the augmentation too, its peer does not."""
    cifar_way(setting, COMPILED, target=80_000)


def cifar_graph(setting: Setting) -> None:
    """The same, the whole step as one CUDA graph; of its peer the network alone (reduce-overhead)."""
    cifar_way(setting, GRAPH if setting.cuda else COMPILED, target=80_000)


def cifar_way(setting: Setting, name: str, target: float) -> None:
    steps, every = setting.pick(300, 6), setting.pick(50, 2)
    size = cifar_size(setting)
    overrides, peer = cifar_ways()[name]
    own, hand = [], []
    for _ in range(setting.rounds):
        ran = cifar_ours(setting, "cifar", steps, *overrides, "data.loader=device")
        own.append(ran.speed())
        setting.add(f"CIFAR ResNet, {name}", statistics.median(own), "images/s", (">=", target))
        found = bare(setting, "cifar", steps=steps, log_every=every, **size, **peer)
        hand.append(size["batch"] / statistics.median(found["step_s"]))
        setting.add(f"bare loop, {name}", statistics.median(hand), "images/s")
        ratio = statistics.median(b / a for a, b in zip(own, hand))
        setting.add(f"time of ours / bare, {name}", ratio, "", ("<=", 1.01))
    if setting.small and name != EAGER:  # nothing is compiled then: all that follows was just tried
        return
    clean = ran
    if name != GRAPH:  # a step that is one graph has no parts
        simple = cifar_ours(setting, "profile", steps, *overrides, "data.loader=device", "profiler=simple")
        setting.add(f"bound by, {name}", simple.profile["bound_by"])
        clean = ran if setting.cuda else simple  # on a CPU FLOP are counted with a profiler only
    setting.add(f"model FLOP/s, {name}", clean.speed("perf/tflop_per_s"), "TFLOP/s")
    traced = trace_of(setting, partial(cifar_ours, setting, "trace", steps, *overrides, "data.loader=device"))
    setting.add(f"launches a step, {name}", launches(traced, setting.cuda))
    busy = busy_s(traced) if setting.cuda else None
    share = busy and 100 * busy * statistics.median(own) / size["batch"]
    setting.add(f"GPU busy, {name}", share, "% of a step without the trace", (">=", 97))
    if share is not None and share > MOST_BUSY:
        raise SystemExit(f"GPU busy {share:.1f} %: kernels of other steps are counted")


def trace_of(setting: Setting, run: Callable[..., Ran]) -> list[dict[str, Any]]:
    """Events of a trace of 10 (3) steps of a run, which takes more overrides."""
    active, wait = setting.pick(10, 3), setting.pick(40, 1)
    more = ("profiler=torch", f"profiler.wait={wait}", f"profiler.active={active}")
    ran = run(*more, f"trainer.max_steps={wait + active + 8}")
    events = json.loads((ran.folder / "profile/trace_rank0.json").read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def busy_s(events: Sequence[dict[str, Any]]) -> float | None:
    """Seconds of a step in which a kernel or a copy ran; None: the trace has none, as where CUPTI may not be used. A
    trace slows the host, so what lies between the kernels tells nothing."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds)
    if not spans:
        return None
    busy, end = 0.0, spans[0][0]
    for begin, until in spans:
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return busy / 1e6 / num_steps(events)


def launches(events: Sequence[dict[str, Any]], cuda: bool) -> float:
    """Kernels a step; on a CPU, operations."""
    return sum(e.get("cat") == ("kernel" if cuda else "cpu_op") for e in events) / num_steps(events)


def num_steps(events: Sequence[dict[str, Any]]) -> int:
    return max(1, len({e["name"] for e in events if str(e["name"]).startswith("ProfilerStep#")}))


def loaders(setting: Setting) -> None:
    """Images/s from the file by threads and by workers, over those from the device's memory."""
    speeds: dict[str, list[float]] = {"threads": [], "workers": [], "device": []}
    for _ in range(setting.rounds):
        for kind in speeds:
            more = ["data.num_workers=1"] if setting.small and kind == "workers" else []
            ran = cifar_ours(setting, kind, setting.pick(300, 6), f"data.loader={kind}", *more)
            speeds[kind].append(ran.speed())
            setting.add(f"data.loader={kind}", statistics.median(speeds[kind]), "images/s")
    for kind in ("threads", "workers"):
        ratio = statistics.median(a / b for a, b in zip(speeds[kind], speeds["device"]))
        setting.add(f"{kind} / device", ratio, "", (">=", 0.97))


# ---- GPT-2


def gpt_size(setting: Setting) -> dict[str, int]:
    small = {"window": 32, "batch": 8, "micro_batch": 4, "width": 32, "heads": 2, "layers": 2}
    full = {"window": 1024, "batch": 64, "micro_batch": 16, "width": 768, "heads": 12, "layers": 12}
    return setting.pick(full, small)


def gpt_ours(setting: Setting, steps: int, vocabulary: int, precision: str, *more: str, keep: bool = False) -> Ran:
    size = gpt_size(setting)
    given = [
        "data=tokens", f"data.path={token_file(setting, vocabulary)}", f"data.window={size['window']}", "model=gpt",
        f"model.width={size['width']}", f"model.heads={size['heads']}", f"model.layers={size['layers']}",
        "task=next_token", f"trainer.global_batch_size={size['batch']}", f"trainer.max_steps={steps}",
        f"hardware.micro_batch_size={size['micro_batch']}", f"trainer.log_every={setting.pick(5, 2)}",
        f"hardware.precision={precision}",
    ]  # fmt: skip
    return ours(setting, "gpt", *QUIET, *given, *more, keep=keep)


def gpt2(setting: Setting) -> None:
    """Tokens/s of GPT-2 124M beside nanoGPT's loop with the same settings; peak memory."""
    gpt_way(setting, "eager", None, target=150_000)


def gpt2_loss(setting: Setting) -> None:
    """The same with its loss alone compiled, beside nanoGPT's loop with its loss in float32, as ours is."""
    gpt_way(setting, "eager, loss compiled", None, 150_000, "task.criterion.compiled=true", wide_loss=True)


def gpt2_compiled(setting: Setting) -> None:
    """The same, compiled."""
    gpt_way(setting, "compiled", "default", target=350_000)


def gpt_given(setting: Setting, vocabulary: int, mode: str | None, wide_loss: bool = False) -> dict[str, Any]:
    """The peer's settings."""
    path = str(token_file(setting, vocabulary))
    return {
        "path": path,
        "vocabulary": vocabulary,
        "compile": mode,
        "wide_loss": wide_loss,
        "precision": setting.precision,
        **gpt_size(setting),
    }


def gpt_way(
    setting: Setting, name: str, mode: str | None, target: float, *overrides: str, wide_loss: bool = False
) -> None:
    steps, vocabulary = setting.pick(25, 6), setting.pick(50_304, 64)
    size = gpt_size(setting)
    more = [*overrides, *([compiled(mode), *TRAIN_ALONE] if mode else [])]
    own, hand = [], []
    for _ in range(max(1, setting.rounds - 1)):
        ran = gpt_ours(setting, steps, vocabulary, setting.precision, *more)
        own.append(ran.speed("perf/tokens_per_s"))
        setting.add(f"GPT-2 124M, {name}", statistics.median(own), "tokens/s", (">=", target))
        if setting.cuda:
            setting.add(f"model FLOP/s, {name}", ran.speed("perf/tflop_per_s"), "TFLOP/s")
            setting.add(f"peak memory, {name}", ran.figures["allocated"] / 1e9, "GB")
        given = gpt_given(setting, vocabulary, mode, wide_loss)
        peer = bare(setting, "gpt", steps=steps, log_every=setting.pick(5, 2), **given)
        hand.append(size["batch"] * size["window"] / statistics.median(peer["step_s"]))
        setting.add(f"nanoGPT's loop, {name}", statistics.median(hand), "tokens/s")
        setting.add(f"ours / nanoGPT, {name}", statistics.median(a / b for a, b in zip(own, hand)), "", (">=", 1.0))
    if setting.cuda:
        setting.add(f"peak memory of nanoGPT's loop, {name}", peer["allocated"] / 1e9, "GB")


def vocabulary(setting: Setting) -> None:
    """A vocabulary of 50,257 (odd rows) beside one of 50,304."""
    speeds = {}
    for tokens in setting.pick((50_257, 50_304), (61, 64)):
        ran = gpt_ours(setting, setting.pick(20, 6), tokens, setting.precision)
        speeds[tokens] = ran.speed("perf/tokens_per_s")
        setting.add(f"GPT-2, vocabulary of {tokens:,}", speeds[tokens], "tokens/s")
    odd, even = speeds.values()
    setting.add("padded / odd", even / odd)


def precision(setting: Setting) -> None:
    """bf16 beside fp32: memory and speed of GPT-2; with its logits in pieces, too."""
    steps, tokens = setting.pick(15, 6), setting.pick(50_304, 64)
    pieces = "bf16, logits in pieces"
    ways = {"fp32": (), "bf16": (), pieces: ("model.chunked_logits=true",)}
    found = {}
    for kind, more in ways.items():
        found[kind] = gpt_ours(setting, steps, tokens, kind.partition(",")[0], *more)
        setting.add(f"GPT-2, {kind}", found[kind].speed("perf/tokens_per_s"), "tokens/s")
    base = found.pop("fp32")
    for kind, ran in found.items():
        setting.add(f"speed of {kind} / fp32", ran.speed() / base.speed(), "", (">=", 2.0))
        memory = ran.figures["allocated"] / base.figures["allocated"] if setting.cuda else None
        setting.add(f"memory of {kind} / fp32", memory, "", ("<=", 0.6))


def images(setting: Setting) -> None:
    """Images/s of what experiment=imagenet does with its data: ResNet-50 on an H100 wants some 3,000."""
    size = setting.pick(("--rows", "2000", "--batch", "256"), ("--rows", "100", "--batch", "4", "--rounds", "1"))
    command = [sys.executable, str(HERE / "image_stages.py"), "--device", setting.device, *size]
    status, said, errors = finished([*command, "--folder", str(setting.work)], environment_of(setting))
    if status:
        raise SystemExit(f"image_stages.py: status {status}\n{errors[-6000:]}")
    for name, rate in re.findall(r"(?m)^  (\S.*?) +([\d,]+) images/s", said):
        needed = (">=", 3000.0) if name.startswith("all") else None
        setting.add(name.strip(), float(rate.replace(",", "")), "images/s", needed)


# ---- checkpoints


def checkpoints(setting: Setting) -> None:
    """How long a checkpoint of GPT-2 with AdamW's state (1.5 GB) holds the loop, beside torch.save; a resume. The first
    save, which gets its memory, apart from later ones."""
    steps, tokens = setting.pick(40, 6), setting.pick(50_304, 64)
    more = (f"trainer.save_every={setting.pick(10, 2)}", "trainer.log_every=10")
    ran = gpt_ours(setting, steps, tokens, setting.precision, *more, keep=True)
    held = next(line for line in ran.stderr.splitlines() if " parameters; " in line)
    count = re.search(r"([\d,]+) parameters", held)
    assert count is not None
    parameters = int(count[1].replace(",", ""))
    first, *later = ran.figures["saves_s"]
    setting.add("loop held by the first save", first, "s")
    setting.add("loop held by a later save", statistics.median(later), "s")
    folder = {"folder": str(setting.work), "parameters": parameters, "times": setting.pick(3, 2)}
    plain = statistics.median(bare(setting, "save", **folder)["save_s"])
    setting.add("torch.save of as much", plain, "s")
    setting.add("first save / torch.save", first / plain, "", ("<=", 0.2))
    setting.add("later save / torch.save", statistics.median(later) / plain, "", ("<=", 0.1))
    again = ours(setting, "resume", f"resume={ran.folder}", f"trainer.max_steps={steps + 2}", "profiler=none")
    setting.add("a resume, from the command to its end", again.seconds, "s")


FAST: tuple[tuple[str, ...], ...] = ((), ("hardware.cuda_graph=true", compiled("default")))


def cifar94(setting: Setting, file: Path | None) -> None:
    """experiment=cifar10_fast with all training images: seconds of training, and the accuracy. file: the real CIFAR-10,
    packed; from its original images, as JPEG costs some three points. Without it pixels are random, and there is no
    accuracy."""
    for more in FAST[: 1 + setting.cuda]:
        alone = () if file else ("data.splits.test=null",)  # of random pixels; its evaluation would be compiled too
        ran = cifar94_ours(setting, file or cifar_file(setting), *more, *alone)
        name = ", ".join(one.removeprefix("hardware.") for one in more) or "eager"
        images = setting.pick(500_000, 2560)
        setting.add(f"seconds of training, {name}", images / ran.speed(), "s", ("<=", 4.0))
    alone = ("data.splits.test=null", "trainer.max_epochs=null", "data.loader=device")
    traced = trace_of(setting, partial(cifar94_ours, setting, file or cifar_file(setting), *alone))
    setting.add("launches a step, eager", launches(traced, setting.cuda))
    accuracy = read_result(ran).get("test/accuracy") if file else "needs --cifar10 FILE.h5"
    setting.add("test accuracy", accuracy, "", (">=", 0.94))


def cifar94_ours(setting: Setting, file: Path, *more: str) -> Ran:
    rows = setting.pick(50_000, 256)
    everything = ("data.splits.train.rows=null", "data.splits.val=null", f"data.transforms.flip.epoch_samples={rows}")
    small = ("trainer.global_batch_size=64", "task.count=64", "model.widths=[8,8,8]") if setting.small else ()
    loop = ("trainer.eval_every=null", "trainer.save_every=null", f"trainer.log_every={setting.pick(25, 4)}")
    given = ["experiment=cifar10_fast", f"data.path={file}", *everything, *loop, *small, *more]
    return ours(setting, "fast", *given)


def read_result(ran: Ran) -> dict[str, Any]:
    return json.loads((ran.folder / "result.json").read_text())
