"""Spans on a device's clock: a device that runs behind the host is imitated by a clock of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from samebits.device.hardware import Hardware
from samebits.device.threads import Threads
from samebits.profiling import report, timeline as module
from samebits.profiling.report import PARTS, bound, table
from samebits.profiling.sample_cost import peak_tflops
from samebits.profiling.timeline import Figures, Timeline


class Device:
    """A host and a device with a queue: `host(s)` is time of the host alone, `launch(s)` work for the device."""

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0

    def host(self, seconds: float) -> None:
        self.now_s += seconds

    def launch(self, seconds: float) -> None:
        self.now_s += 0.01
        self.free_s = max(self.free_s, self.now_s) + seconds

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.free_s)

    # -- the clock: a mark lies where the device's queue ended when it was set
    def now(self) -> float:
        return max(self.now_s, self.free_s)

    def passed(self, mark: float) -> bool:
        return mark <= self.now_s

    def seconds(self, start: float, end: float) -> float:
        return end - start


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(module, "DeviceClock", lambda device: made)
    monkeypatch.setattr(module.time, "perf_counter", lambda: made.now_s)
    return made


def span(timeline: Timeline, part: str, work: Any) -> None:
    timeline.begin(part)
    work()
    timeline.end()


def run(device: Device, data_s: float, copy_s: float, forward_s: float, steps: int = 10) -> Figures:
    timeline = Timeline(torch.device("cuda"))
    for _ in range(steps):
        timeline.step()

        def data() -> None:
            device.host(data_s)
            device.free_s = max(device.free_s, device.now_s) + copy_s  # the stream waits for the copy

        span(timeline, "data wait", data)
        span(timeline, "forward", lambda: device.launch(forward_s))
    timeline.step()
    device.wait()
    return timeline.collect()


def test_a_busy_device_has_not_waited_for_data_that_the_host_has_waited_for(device: Device) -> None:
    figures = run(device, data_s=0.4, copy_s=0.0, forward_s=1.0)
    assert figures.seconds["forward"] == pytest.approx(10.0, abs=0.2)
    assert figures.seconds["data wait"] == pytest.approx(0.4)  # before the first step
    assert figures.host_seconds["data wait"] == pytest.approx(4.0)
    assert figures.idle <= 1


ONE = Threads(1, 1, "hardware.num_threads")


def machine(device: str = "cuda", threads: Threads = ONE, ranks: int = 1) -> Hardware:
    return Hardware(device, ranks, "bf16", threads, [8], 8)


def test_an_idle_device_has_waited_for_data(device: Device) -> None:
    figures = run(device, data_s=1.0, copy_s=0.0, forward_s=0.25)
    assert figures.share("data wait") == pytest.approx(0.75, abs=0.05)
    assert bound(figures, machine(), True, "threads: 2")[0] == "data"


def test_a_copy_that_the_device_waits_for_is_told_from_data_that_are_late(device: Device) -> None:
    figures = run(device, data_s=0.0, copy_s=0.5, forward_s=1.0)
    assert figures.seconds["copy"] == pytest.approx(5.0, abs=0.1)
    assert figures.seconds.get("data wait", 0.0) == pytest.approx(0.0, abs=0.1)
    assert bound(figures, machine(), True, "threads: 2")[0] == "copy"


def test_a_busy_device_waits_for_the_copy_alone_however_late_the_data_were(device: Device) -> None:
    figures = run(device, data_s=0.4, copy_s=0.5, forward_s=1.0)
    assert figures.seconds["copy"] == pytest.approx(5.0, abs=0.1)
    assert figures.seconds["data wait"] == pytest.approx(0.4, abs=0.1)  # before the first step


def test_a_host_that_launches_too_slowly_is_found(device: Device) -> None:
    figures = run(device, data_s=0.0, copy_s=0.0, forward_s=0.001)
    assert figures.idle == figures.steps - 1
    assert bound(figures, machine(), False, "")[0] == "host"
    assert "hardware.compile=default" in bound(figures, machine(), False, "")[1]


def test_parts_add_up_and_inner_spans_are_not_counted_twice(device: Device) -> None:
    timeline = Timeline(torch.device("cuda"))
    timeline.step()
    timeline.begin("evaluation")
    device.host(1.0)
    span(timeline, "save", lambda: device.host(2.0))
    device.host(3.0)
    timeline.end()
    device.host(4.0)
    timeline.step()
    seconds = timeline.collect().seconds
    assert seconds == {"evaluation": 4.0, "save": 2.0, "other": 4.0}


def test_marks_that_the_device_has_not_passed_are_kept_for_later(device: Device) -> None:
    timeline = Timeline(torch.device("cuda"))
    span(timeline, "forward", lambda: device.launch(5.0))
    assert timeline.collect().total == 0.0
    device.wait()
    assert timeline.collect().seconds == {"forward": pytest.approx(5.01)}


@pytest.mark.parametrize("part", ["evaluation", "save", "log", "transform", "optimizer"])
def test_what_takes_too_long_is_named_with_its_key(part: str) -> None:
    figures = Figures(10, 0, {"forward": 1.0, "backward": 1.0, part: 1.5})
    aside = {"evaluation": "trainer.x", **dict.fromkeys(("save", "log", "transform"), "data.y")}
    kind, sentence = bound(figures, machine("cpu"), False, "", aside=aside)
    assert kind == part
    assert "trainer." in sentence or "data." in sentence


def test_the_largest_part_is_named_first_and_the_next_one_too() -> None:
    figures = Figures(10, 0, {"forward": 1.0, "data wait": 31.0, "evaluation": 66.0, "save": 2.0})
    kind, sentence = bound(figures, machine("cpu"), False, "threads: 2", aside={"evaluation": "less", "save": "rarer"})
    assert kind == "evaluation"
    assert sentence.startswith(
        "66% of the time was spent on evaluation: less; 31% of the time was spent waiting for data"
    )
    assert "save" not in sentence


def test_the_remedies_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "cores_each", lambda ranks: 4)
    figures = Figures(10, 0, {"forward": 1.0, "backward": 1.0})

    def sentence(one: Hardware, sharded: bool = False) -> str:
        return bound(figures, one, True, "", sharded)[1].removeprefix("the model limits the run, ")

    assert sentence(machine()) == "forward and backward 100%: more ranks (trainer=ddp)"
    waits = "averages gradients and waits for the others: more ranks"
    assert sentence(machine(ranks=8)) == f"forward and backward 100%, including the time in which a rank {waits}"
    assert "gathers weights and averages gradients" in sentence(machine(ranks=8), sharded=True)
    assert (
        sentence(machine("cpu")) == "forward and backward 100%: a GPU, more hardware.num_threads (./run tune threads)"
    )
    all_cores = Threads(4, 4, "hardware.num_threads")
    assert sentence(machine("cpu", all_cores)) == "forward and backward 100%: a GPU"


def test_the_table_has_every_part() -> None:
    lines = table(Figures(4, 0, {"forward": 1.0, "mine": 3.0})).splitlines()
    assert [line.split("  ")[1].strip() for line in lines[1:]] == [*PARTS, "mine", "other", "whole"]
    assert "250.000" in lines[4]  # forward, ms a step


def test_gpus_are_known_by_their_whole_names() -> None:
    assert peak_tflops("NVIDIA H100 80GB HBM3", "bf16") == 989
    assert peak_tflops("NVIDIA H100 PCIe", "bf16-weights") == 756
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "tf32") == 156
    assert peak_tflops("NVIDIA L40S", "bf16") == 362
    assert peak_tflops("NVIDIA L40", "bf16") is None  # not an L4, not an L40S
    assert peak_tflops("Tesla V100-SXM2-16GB", "bf16") is None  # it has none
