"""benchmarks/gpu.py on a CPU, in small: all of its stages work. The figures mean nothing."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import NEEDS_GPT, ROOT, called, needs, sample_of, wait_for

sys.path.append(str(ROOT / "benchmarks"))
import bench
import scale
from gpu_common import Figure, Setting, as_table, finished, processes_of
from gpu_stages import busy_s, launches

EXPECTED = {
    "cifar": {"CIFAR ResNet, eager", "time of ours / bare, eager", "launches a step, eager"},
    "cifar_compiled": {"CIFAR ResNet, compiled, channels_last"},
    "cifar_graph": {"CIFAR ResNet, compiled, channels_last"},
    "gpt2": {"GPT-2 124M, eager", "ours / nanoGPT, eager"},
    "gpt2_loss": {"ours / nanoGPT, eager, loss compiled"},
    "gpt2_compiled": {"GPT-2 124M, compiled", "ours / nanoGPT, compiled"},
    "vocabulary": {"padded / odd"},
    "loaders": {"threads / device", "workers / device"},
    "precision": {"speed of bf16 / fp32", "memory of bf16, logits in pieces / fp32"},
    "images": {"read: 196,608 bytes a row", "all, as in experiment=imagenet"},
    "checkpoints": {"later save / torch.save", "a resume, from the command to its end"},
    "faults": {f"{name}: as it should be, of 1" for name in ("kill -9", "hang", "out of memory", "restart")},
    "cifar94": {"CIFAR-10 to 94 %"},
}


def test_the_rates_of_a_checkpoint_are_measured() -> None:
    assert min(scale.checkpoint_rates(rounds=1, megabytes=1)) > 0


@pytest.mark.slow
@NEEDS_GPT
@needs("conf/experiment/cifar10.yaml")
@pytest.mark.parametrize("stage", sample_of(["cifar", "checkpoints"], [*EXPECTED]))
def test_a_stage_works(tmp_path: Path, stage: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), stage, "--dry", "--out", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # what it leaves running is found by it
    called(command, seconds=280, env=environment, fresh=True)
    found = json.loads((tmp_path / "gpu.json").read_text())
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert EXPECTED[stage] <= set(figures)
    assert found["machine"]["small"] is True
    if stage == "faults":
        assert all(figure["met"] for figure in figures.values())
    assert all(f"| {stage} | {name} |" in (tmp_path / "gpu.md").read_text() for name in figures)


@pytest.mark.slow
@needs("conf/experiment/cifar10_fast.yaml")
def test_a_step_has_few_operations() -> None:
    """Of which each is a launch on a GPU: the default one 37, 52 in bf16."""
    said = called([sys.executable, str(ROOT / "benchmarks/operations.py")], seconds=120, fresh=True).stdout
    rows = {
        name: [int(cell) for cell in cells.split("|")[:3]]
        for name, cells in re.findall(r"^\| (.*?) \| (\d.*)", said, re.M)
    }
    assert len(rows) == 4
    assert 25 < rows["default MLP, fp32"][-1] <= 40
    assert rows["default MLP, fp32"][-1] < rows["default MLP, bf16"][-1] <= 55
    assert rows["cifar10_fast"][1] <= 100  # four shapes of matrices, of six


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "options", "says"),
    [
        ("raise RuntimeError('no such kernel')", [], "no such kernel"),
        ("pass", ["--minutes", "0.01"], "not begun: --minutes are over"),
        ("gpu.subprocess.run(['sleep', '1000'])", ["--limit", "1"], "cut short by --limit or --minutes"),
    ],
)
def test_a_stage_that_fails_or_does_not_end_is_named(tmp_path: Path, body: str, options: list[str], says: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import gpu\n"
        "def broken(setting):\n"
        "    'Breaks.'\n"
        "    setting.add('before', 1.0)\n"
        f"    {body}\n"
        "gpu.STAGES['faults'] = broken; sys.exit(gpu.main())"
    )
    given = [str(ROOT / "benchmarks"), "faults", "--dry", "--out", str(tmp_path), *options]
    called([sys.executable, "-c", code, *given], code=1)
    figures = json.loads((tmp_path / "gpu.json").read_text())["figures"]
    begun = not says.startswith("not begun")
    assert [(f["name"], f["value"]) for f in figures] == [("before", 1.0)] * begun + [("failed", says)]


@pytest.mark.slow
def test_figures_are_written_as_they_come_and_a_command_is_ended_with_all_it_started(tmp_path: Path) -> None:
    setting = Setting("cpu", True, tmp_path, out=tmp_path / "out")
    setting.add("first", 1.0)
    assert "first" in (tmp_path / "out/gpu.md").read_text()
    mark = f"sleep 1234.{os.getpid()}"
    with pytest.raises(SystemExit, match="not ended after 0 s"):
        finished(["sh", "-c", f"{mark} & {mark}"], os.environ, 0.3)
    wait_for(lambda: not processes_of(Path(mark.split()[1])))
    assert finished(["sh", "-c", "echo a; echo b >&2; exit 3"], os.environ) == (3, "a\n", "b\n")


def event(ts: float, dur: float, cat: str = "kernel", name: str = "k") -> dict[str, Any]:
    return {"ts": ts, "dur": dur, "cat": cat, "name": name}


def test_a_gpu_is_busy_while_any_kernel_or_copy_runs() -> None:
    events = [event(0, 10), event(5, 10), event(20, 5, "gpu_memcpy"), event(0, 100, "cpu_op"), event(30, 10)]
    assert busy_s([event(0, 10, "cpu_op")]) is None
    steps = [event(0, 50, "user_annotation", f"ProfilerStep#{i}") for i in (3, 4)]
    assert busy_s([*events, *steps]) == pytest.approx(1e-6 * (15 + 5 + 10) / 2)
    assert launches([*events, *steps], cuda=True) == 1.5
    assert launches([*events, *steps], cuda=False) == 0.5


def test_a_figure_says_whether_its_target_is_met() -> None:
    found = [
        Figure("a", "x", 2.0, "s", ("<=", 1.0)),
        Figure("a", "y", 2.0, "s", (">=", 1.0)),
        Figure("a", "z", None, "s", (">=", 1.0)),
    ]
    assert [one.met for one in found] == [False, True, None]
    lines = as_table(found).splitlines()[2:]
    assert [line.split("|")[-2].strip() for line in lines] == ["**no**", "yes", ""]


@pytest.mark.slow
@NEEDS_GPT
@needs("conf/model/resnet.yaml")
@pytest.mark.parametrize("name", sample_of(["ranks"], [*bench.CASES]))
def test_a_case_is_measured(name: str) -> None:
    row = bench.row_of(name, blocks=1)
    assert row.ratio == pytest.approx(row.ours / row.bare)
    assert min(row.ours, row.bare) > 1e-5  # seconds of a step


@pytest.mark.slow
def test_what_is_measured_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and picture in place of the former ones; a miss is bold."""
    monkeypatch.setattr(bench, "HERE", tmp_path)
    results = tmp_path / "RESULTS.md"
    results.write_text(f"before\n{bench.BEGIN}\nformer\n{bench.END}\nafter\n")
    rows = [bench.Row("a loop", 0.010, 0.0101, 1.01, 1.02), bench.Row("another", 0.010, 0.012, 1.2, 1.02)]
    for _again in range(2):
        bench.record(bench.table(rows))
    text = results.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "former" not in text
    assert "| a loop | 10 | 10.1 | 1.010 | <= 1.02 |\n| another | 10 | 12 | **1.200** | <= 1.02 |\n" in text
    bench.draw(rows, tmp_path / "bench.svg")
    first = (tmp_path / "bench.svg").read_bytes()
    bench.draw(rows, tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_bytes() == first
    assert b"a loop" in first
    results.write_text("no place")
    with pytest.raises(SystemExit, match=r"RESULTS\.md: has no"):
        bench.record("x")
