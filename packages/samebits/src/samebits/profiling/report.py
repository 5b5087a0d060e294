"""The table of a profile, and one sentence: what bounds the run, and which key to change."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from types import MappingProxyType
from typing import Any

from samebits.data import remedy
from samebits.device import Hardware
from samebits.files import aligned
from samebits.host import cores_each
from samebits.profiling.timeline import Figures
from samebits.world import dist_env

PARTS = ("data wait", "copy", "transform", "forward", "backward", "clip", "optimizer", "log", "evaluation", "save")
DATA_SHARE, COPY_SHARE, SMALL_SHARE, IDLE_SHARE = 0.1, 0.1, 0.25, 0.5


def ordered(figures: Figures) -> list[str]:
    """The table's rows: every part of the loop, then what is none of them."""
    return [*PARTS, *sorted(set(figures.seconds) - {*PARTS, "other"}), "other"]


def table(figures: Figures) -> str:
    rows = [("", "ms a step", "total s", "share")]
    parts = [(part, figures.seconds.get(part, 0.0), figures.share(part)) for part in ordered(figures)]
    for part, seconds, share in (*parts, ("whole", figures.total, 1.0)):
        rows.append((part, f"{1e3 * seconds / max(figures.steps, 1):.3f}", f"{seconds:.2f}", f"{share:.1%}"))
    return indent(aligned(rows, 1), "  ")


def bound(
    figures: Figures,
    machine: Hardware,
    compiles: bool,
    loader: str,
    sharded: bool = False,
    aside: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """Returns (what bounds the run, a sentence on it and on what comes next). loader: Loader.why. sharded: the model
    is, over the ranks. aside: {part that is no part of a step: how to spend less on it}."""
    share = figures.share
    found: list[tuple[float, str, str]] = []  # share of the time, part, sentence; of parts above their limit

    def look(kind: str, parts: tuple[str, ...], limit: float, sentence: str) -> None:
        if share(*parts) > limit:
            found.append((share(*parts), kind, f"{share(*parts):.0%} of the time {sentence}"))

    look("data", ("data wait",), DATA_SHARE, f"was spent waiting for data ({loader}): {remedy(loader)}")
    look("copy", ("copy",), COPY_SHARE, (
        "the device waited for batches to be copied to it: data.loader=device where the set fits, or smaller samples "
        "(uint8, transforms on the device)"
    ))  # fmt: skip
    for part, what in aside.items():
        look(part, (part,), SMALL_SHARE, f"went into {part}: {what}")
    if found:
        found.sort(key=lambda one: -one[0])
        return found[0][1], "; ".join(sentence for _, _, sentence in found[:2])
    if machine.device == "cuda" and figures.steps and figures.idle / figures.steps > IDLE_SHARE:
        more = "raise hardware.micro_batch_size" if compiles else "hardware.compile=default, or larger micro-batches"
        more = f"hardware.cuda_graph=true, {more}" if machine.num_procs == 1 else more
        return "host", (
            f"the GPU had run out of work at {figures.idle / figures.steps:.0%} of the steps: Python launches kernels "
            f"too slowly for it - {more}"
        )
    if share("optimizer", "clip") > SMALL_SHARE:
        return "optimizer", (
            f"{share('optimizer', 'clip'):.0%} of the time went into the update of the weights: a larger "
            "trainer.global_batch_size does it less often"
        )
    parts = f"forward and backward {share('forward', 'backward'):.0%}"
    if machine.num_procs > 1:
        waits = "gathers weights and averages gradients" if sharded else "averages gradients"
        parts += f", in which a rank {waits} and waits for the others"
    return "model", f"the model bounds the run, {parts}: {faster(machine, compiles)}"


def faster(machine: Hardware, compiles: bool) -> str:
    ways = []
    if machine.device == "cuda" and machine.precision in ("fp32", "tf32"):
        ways.append("hardware.precision=bf16")
    if not compiles:
        ways.append("hardware.compile=default")
    if machine.device == "cuda":
        ways.append("more ranks" + (" (trainer=ddp)" if machine.num_procs == 1 else ""))
    else:
        ways.append("a GPU")
    if machine.device == "cpu" and machine.threads.count < cores_each(dist_env.local_size):
        ways.append("more hardware.num_threads (./run tune threads)")
    return ", ".join(ways)


def as_dict(figures: Figures, bound_by: str, sentence: str) -> dict[str, Any]:
    """For profile.json: seconds of all measured steps together."""
    return {
        "steps": figures.steps,
        "seconds": {part: figures.seconds.get(part, 0.0) for part in ordered(figures)},
        "host_seconds": figures.host_seconds,
        "steps_begun_with_an_idle_device": figures.idle,
        "bound_by": bound_by,
        "sentence": sentence,
    }
