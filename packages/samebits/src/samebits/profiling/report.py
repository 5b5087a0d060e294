"""Report a profile: a table, and one sentence that says what limits the run and which key to change."""

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
    """Return the rows of the table: all parts of the loop, other parts, and the remaining time."""
    return [*PARTS, *sorted(set(figures.seconds) - {*PARTS, "other"}), "other"]


def table(figures: Figures) -> str:
    """Return the table of a profile as text: milliseconds per step, total seconds and share of each part."""
    rows = [("", "ms a step", "total s", "share")]
    parts = [(part, figures.seconds.get(part, 0.0), figures.share(part)) for part in ordered(figures)]
    for part, seconds, share in (*parts, ("whole", figures.total, 1.0)):
        rows.append((part, f"{1e3 * seconds / max(figures.steps, 1):.3f}", f"{seconds:.2f}", f"{share:.1%}"))
    return indent(aligned(rows, 1), "  ")


def bound(
    figures: Figures,
    hardware: Hardware,
    compiles: bool,
    loader: str,
    sharded: bool = False,
    aside: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """Return (the part that limits the run, a sentence on it and on the next part).

    loader: Loader.why. sharded: True if the model is sharded over the ranks. aside: {part outside of the steps: how to
    spend less time on it}.
    """
    share = figures.share
    found: list[tuple[float, str, str]] = []  # (share of the time, part, sentence) of parts above their limit

    def look(kind: str, parts: tuple[str, ...], limit: float, sentence: str) -> None:
        if share(*parts) > limit:
            found.append((share(*parts), kind, f"{share(*parts):.0%} of the time {sentence}"))

    look("data", ("data wait",), DATA_SHARE, f"was spent waiting for data ({loader}): {remedy(loader)}")
    look("copy", ("copy",), COPY_SHARE, (
        "the device waited for copies of batches: use data.loader=device if the data set fits, or smaller samples "
        "(uint8, transforms on the device)"
    ))  # fmt: skip
    for part, what in aside.items():
        look(part, (part,), SMALL_SHARE, f"was spent on {part}: {what}")
    if found:
        found.sort(key=lambda one: -one[0])
        return found[0][1], "; ".join(sentence for _, _, sentence in found[:2])
    if hardware.device == "cuda" and figures.steps and figures.idle / figures.steps > IDLE_SHARE:
        more = "raise hardware.micro_batch_size" if compiles else "hardware.compile=default, or larger micro-batches"
        more = f"hardware.cuda_graph=true, {more}" if hardware.num_procs == 1 else more
        return "host", (
            f"the GPU was idle at the start of {figures.idle / figures.steps:.0%} of the steps: Python launches "
            f"kernels too slowly - {more}"
        )
    if share("optimizer", "clip") > SMALL_SHARE:
        return "optimizer", (
            f"{share('optimizer', 'clip'):.0%} of the time was spent on updating the weights: a larger "
            "trainer.global_batch_size updates them less often"
        )
    parts = f"forward and backward {share('forward', 'backward'):.0%}"
    if hardware.num_procs > 1:
        waits = "gathers weights and averages gradients" if sharded else "averages gradients"
        parts += f", including the time in which a rank {waits} and waits for the others"
    return "model", f"the model limits the run, {parts}: {faster(hardware, compiles)}"


def faster(hardware: Hardware, compiles: bool) -> str:
    """Return the changes that make the model's computation faster."""
    ways = []
    if hardware.device == "cuda" and hardware.precision in ("fp32", "tf32"):
        ways.append("hardware.precision=bf16")
    if not compiles:
        ways.append("hardware.compile=default")
    if hardware.device == "cuda":
        ways.append("more ranks" + (" (trainer=ddp)" if hardware.num_procs == 1 else ""))
    else:
        ways.append("a GPU")
    if hardware.device == "cpu" and hardware.threads.count < cores_each(dist_env.local_size):
        ways.append("more hardware.num_threads (./run tune threads)")
    return ", ".join(ways)


def as_dict(figures: Figures, bound_by: str, sentence: str) -> dict[str, Any]:
    """Return the content of profile.json; seconds are sums over all measured steps."""
    return {
        "steps": figures.steps,
        "seconds": {part: figures.seconds.get(part, 0.0) for part in ordered(figures)},
        "host_seconds": figures.host_seconds,
        "steps_begun_with_an_idle_device": figures.idle,
        "bound_by": bound_by,
        "sentence": sentence,
    }
