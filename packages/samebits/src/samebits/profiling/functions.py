"""Profile Python functions of some steps: a table by cProfile, and a flame graph of sampled stacks.

The stacks are sampled in the first steps and cProfile runs in the next ones, because it slows down Python code and
would distort the flame graph.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from html import escape
from pathlib import Path
from types import CodeType
from typing import Any

from samebits.files import aligned, amount, replace_text
from samebits.profiling.options import ProfilerConfig
from samebits.status import shown

INTERVAL_S = 0.001
SWITCH_S = 1e-4  # so that the sampler gets the GIL between two operations, and not only in one that releases it
ROWS = 40  # in the table
WIDTH, HEIGHT, LETTER = 1200, 17, 6.6  # pixels of the flame graph, of a row, and of a letter
COLORS = ("#e8804c", "#e99a50", "#eab455", "#e06a48", "#edc45c")
Stacks = dict[tuple[str, ...], float]


class Sampler:
    """A thread that samples the stack of another thread. `seconds`: {functions, outermost first: seconds}."""

    def __init__(self, thread: int) -> None:
        self.seconds: Counter[tuple[CodeType, ...]] = Counter()
        self.samples = 0
        self._of, self._ended = thread, threading.Event()
        self._switch_s = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._work, daemon=True)
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def _work(self) -> None:
        before = time.perf_counter()
        while not self._ended.wait(INTERVAL_S):
            frame = sys._current_frames().get(self._of)
            now = time.perf_counter()
            codes = []
            while frame is not None:
                codes.append(frame.f_code)
                frame = frame.f_back
            self.seconds[tuple(reversed(codes))] += now - before  # type: ignore[assignment]
            self.samples += 1
            before = now

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_s)

    def stacks(self) -> Stacks:
        """Return {names of functions: seconds}, without the outer functions that all samples have."""
        named: Counter[tuple[str, ...]] = Counter()
        for codes, seconds in self.seconds.items():
            named[tuple(map(name_of, codes))] += seconds  # type: ignore[assignment]
        alike = 0
        for level in zip(*named):
            if len(set(level)) > 1:
                break
            alike += 1
        return {stack[max(0, alike - 1) :]: seconds for stack, seconds in named.items()}


class Functions:
    """A callback that profiles the Python functions of the main rank. Files in `folder`: functions.txt, functions.prof,
    flame.svg and stacks.txt."""

    def __init__(self, options: ProfilerConfig, folder: Path, run: Any) -> None:
        self.wait, self.active, self.folder = options.wait, options.active, folder
        self.logger, self.on, self.callbacks = run.logger, run.world.is_main, run.callbacks
        self.done = 0
        self.sampler: Sampler | None = None
        self.profile: cProfile.Profile | None = None
        self.counted = False  # True while cProfile is on
        self.sampled_steps = self.profiled_steps = 0

    def __enter__(self) -> Functions:
        self.callbacks.append(self)
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        self.end() if kind is None else self.abandon()

    def before_step(self, state: Any) -> None:
        """Start the next recording."""
        if not self.on:
            return
        if self.done == self.wait:
            self.sampler = Sampler(threading.get_ident())
        elif self.done == self.wait + self.active:
            assert self.sampler is not None
            self.sampler.stop()
            self.profile = cProfile.Profile()
            try:
                self.profile.enable()
                self.counted = True
            except ValueError:  # since Python 3.12: a debugger, coverage or another profiler is active
                self.profile = None
                self.logger.warn("profiler=python: no table, because another profiler or debugger is active")

    def on_step(self, state: Any) -> None:
        """Count the steps; write the files after the last one."""
        if not self.on:
            return
        self.done += 1
        beyond = self.done - self.wait
        self.sampled_steps = min(max(0, beyond), self.active)
        self.profiled_steps = min(max(0, beyond - self.active), self.active) if self.profile else 0
        if beyond >= 2 * self.active:
            self.end()

    def abandon(self) -> None:
        """Stop recording after a failure."""
        self.on = False
        if self.counted and self.profile is not None:
            self.counted = False
            self.profile.disable()
        if self.sampler is not None:
            self.sampler.stop()

    def end(self) -> None:
        """Write the files; warn if the run was too short for the table."""
        if not self.on:
            return
        self.abandon()
        files = []
        if self.sampler is not None and self.sampled_steps and (stacks := self.sampler.stacks()):
            self.folder.mkdir(exist_ok=True)
            taken = amount(self.sampler.samples, "sample")
            title = f"{amount(self.sampled_steps, 'step')}, {sum(stacks.values()):.3g} s, {taken}"
            replace_text(self.folder / "flame.svg", flame_graph(stacks, title))
            lines = (f"{';'.join(stack)} {round(1e6 * seconds)}\n" for stack, seconds in sorted(stacks.items()))
            replace_text(self.folder / "stacks.txt", "".join(lines))
            files.append(f"flame graph: {shown(self.folder / 'flame.svg')} ({title})")
        if self.profile is not None and self.profiled_steps:
            self.folder.mkdir(exist_ok=True)
            replace_text(self.folder / "functions.txt", table_of(self.profile, self.profiled_steps))
            (self.folder / "functions.prof").unlink(missing_ok=True)  # a link would be followed
            self.profile.dump_stats(self.folder / "functions.prof")
            files.insert(
                0, f"functions: {shown(self.folder / 'functions.txt')} ({amount(self.profiled_steps, 'step')})"
            )
        if files:
            self.logger.say("; ".join(files))
        if self.done < self.wait + 2 * self.active:
            self.logger.warn(
                f"profiler=python: the run ended after {amount(self.done, 'step')}, before profiler.wait + 2 * "
                f"profiler.active = {self.wait + 2 * self.active}; the files contain {self.sampled_steps} sampled and "
                f"{self.profiled_steps} profiled steps"
            )


def table_of(profile: cProfile.Profile, steps: int) -> str:
    """Return the functions with the most time of their own, and those with the most time including their callees."""
    entries: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    parts = []
    for title, key in (("by own time", 2), ("by total time, including the functions that it calls", 3)):
        rows = [("calls a step", "own ms a step", "total ms a step", "function")]
        for (file, line, name), entry in sorted(entries.items(), key=lambda one: -one[1][key])[:ROWS]:
            where = name if file == "~" else f"{name} ({short(file)}:{line})"
            own, total = (f"{1e3 * entry[i] / steps:.3f}" for i in (2, 3))
            rows.append((f"{entry[1] / steps:g}"[:10], own, total, where))
        numbers = aligned([row[:3] for row in rows], 0).splitlines()
        parts.append("\n".join([title, *(f"{left}  {row[3]}" for left, row in zip(numbers, rows))]))
    return f"{amount(steps, 'step')}, Python functions of rank 0 by cProfile\n\n" + "\n\n".join(parts) + "\n"


def name_of(code: CodeType) -> str:
    """Return the name of a function with its file, such as MLP.forward (lab/models/mlp.py:40)."""
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    return f"{name} ({short(code.co_filename)}:{code.co_firstlineno})".replace(";", ",")


def short(file: str) -> str:
    """Return the part of a path after the folder from which Python imports it."""
    for folder in sorted(sys.path, key=len, reverse=True):
        if folder:
            with suppress(ValueError):
                return str(Path(file).relative_to(folder))
    return file


def flame_graph(stacks: Stacks, title: str) -> str:
    """Return an SVG with the outermost function at the top. The width of a function is its share of the time; the
    tooltip shows name, time and share."""
    whole = sum(stacks.values())
    shapes: list[str] = []
    deepest = 0

    def draw(part: list[tuple[tuple[str, ...], float]], level: int, x: float) -> None:
        nonlocal deepest
        groups: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for stack, seconds in part:
            if len(stack) > level:
                groups.setdefault(stack[level], []).append((stack, seconds))
        for name in sorted(groups):
            seconds = sum(one for _, one in groups[name])
            width = WIDTH * seconds / whole
            if width >= 0.5:
                deepest = max(deepest, level)
                letters = int((width - 4) / LETTER)
                text = name if len(name) <= letters else f"{name[: letters - 2]}.." if letters > 4 else ""
                color = COLORS[sum(name.encode()) % len(COLORS)]
                tip = escape(f"{name}: {seconds:.3g} s, {seconds / whole:.1%}")
                y = (level + 2) * HEIGHT
                shapes.append(
                    f'<g><title>{tip}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT - 1}" '
                    f'fill="{color}"/><text x="{x + 2:.1f}" y="{y + 12}">{escape(text)}</text></g>'
                )
                draw(groups[name], level + 1, x)
            x += width

    draw(list(stacks.items()), 0, 0.0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {(deepest + 4) * HEIGHT}" '
        f'font-family="monospace" font-size="11">\n<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="4" y="14">{escape(title)}</text>\n' + "\n".join(shapes) + "\n</svg>\n"
    )
