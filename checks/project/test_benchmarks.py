"""Each script of benchmarks/ runs in small. The figures mean nothing."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from common import ROOT, needs
from fork import undrawn
from gpt import NEEDS_GPT
from torch.utils._python_dispatch import TorchDispatchMode

import lab.evaluation
from samebits.testing.processes import called, importing, sample_of, wait_for, warm

sys.path.append(str(ROOT / "benchmarks"))
import bench
import gpu
import gpu_common
import operations
import scale
from gpu_common import Figure, Setting, as_table, finished, processes_of
from gpu_stages import busy_s, files_of_tests, launches, outcomes
from PIL import Image

EXPECTED = {
    "cifar": {"CIFAR ResNet, eager", "time of ours / bare, eager", "launches a step, eager"},
    "cifar_compiled": {"CIFAR ResNet, compiled, channels_last"},
    "cifar_graph": {"CIFAR ResNet, compiled, channels_last"},
    "gpt2": {"GPT-2 124M, eager", "ours / nanoGPT, eager"},
    "gpt2_loss": {"ours / nanoGPT, eager, loss compiled"},
    "gpt2_compiled": {"GPT-2 124M, compiled", "ours / nanoGPT, compiled"},
    "vocabulary": {"padded / odd"},
    "mlp": {f"{what}, {kind}" for what in ("ours / bare", "launches a step, bare loop") for kind in ("fp32", "bf16")},
    "loaders": {"threads / device", "workers / device"},
    "precision": {"speed of bf16 / fp32", "memory of bf16, logits in pieces / fp32"},
    "images": {"read: 196,608 bytes a row", "all, as in experiment=imagenet"},
    "checkpoints": {"later save / torch.save", "a resume, from the command to its end"},
    "faults": {f"{name}: as it should be, of 1" for name in ("kill -9", "hang", "out of memory", "restart")},
    "cifar94": {"CIFAR-10 to 94 %"},
}
EAGER = ["cifar", "checkpoints"]  # stages that compile nothing, so that forks of the warm process can run them


# what makes each script small; {} is a folder with images/, a JPEG
ONE = "--rounds 1"
SMALL = {
    "benchmarks/bench.py": "--cases save --blocks 1",
    "benchmarks/compose.py": "--jobs 10 optim.lr=1e-3,1e-2",
    "benchmarks/evaluation.py": f"{ONE} --rows 1000",
    "benchmarks/fsdp_host.py": f"{ONE} --layers 1",
    "benchmarks/head.py": f"{ONE} --tokens 64 --width 16 --vocabulary 100 --steps 1",
    "benchmarks/image_stages.py": f"{ONE} --batch 4 --rows 16 --folder {{}}",
    "benchmarks/loader_figures.py": f"{ONE} --large 256 --small 256 --least-s 0.02 --folder {{}}",
    "benchmarks/pack.py": f"{ONE} --samples 8 --images {{}}/images --folder {{}}",
    "benchmarks/read_chunks.py": "{} --quick",
    "benchmarks/read_cold.py": "{} --quick",
    "benchmarks/read_dataloader.py": f"{ONE} --rows 512",
    "benchmarks/read_files.py": "{} --quick",
    "benchmarks/read_gather.py": "{} --quick",
    "benchmarks/read_jpegs.py": "{} --quick",
    "benchmarks/read_meaning.py": f"{{}} {ONE}",
    "benchmarks/read_splits.py": "--rows 1e5 --field 1e4",
    "benchmarks/read_tokens.py": "{} --quick",
    "benchmarks/read_parquet.py": f"{ONE} --rows 2048 --most 0.2",
    "benchmarks/remote_blocks.py": "{} --gigabytes 0.05 --epochs 1",
    "benchmarks/remote_hosts.py": "",
    "benchmarks/report_scale.py": "--jobs 20",
    "benchmarks/save.py": f"{ONE} --mb 1 --folder {{}}",
    "benchmarks/scale.py": "--quick",
    "benchmarks/scale_ranks.py": "--quick",
    "benchmarks/seeds.py": "--tables 4 --rows 2 5 --seeds 3",
    "benchmarks/startup.py": ONE,
    "benchmarks/startup_ranks.py": f"{ONE} --ranks 2",
    "benchmarks/startup_rows.py": f"{ONE} --written 2e3 --holes 1e4 --folder {{}}",
    "benchmarks/step.py": f"{ONE} --steps 50",
    "benchmarks/sweep.py": "--quick",
    "benchmarks/threads.py": "--quick",
    "benchmarks/wandb_steps.py": f"{ONE} --steps 100",
}
# these measure commands, which are forked here from the warm process
OF_COMMANDS = [
    f"benchmarks/{name}.py"
    for name in (
        "bench", "head", "read_splits", "report_scale", "startup", "startup_ranks", "sweep", "wandb_steps",
    )
]  # fmt: skip
BESIDE = {  # which test runs it
    "tools/prose.py": "checks/samebits/test_prose.py",
    "tools/reference.py": "checks/project/test_references.py",
    "benchmarks/gpu.py": "checks/project/test_benchmarks.py",
    "benchmarks/gpu_ours.py": "benchmarks/gpu_common.py",  # started by gpu.py
    "benchmarks/gpu_peers.py": "benchmarks/gpu_common.py",
    "benchmarks/operations.py": "checks/project/test_benchmarks.py",
    "benchmarks/scale_shards.py": "checks/project/test_many_ranks.py",
    "benchmarks/sweep_rival.py": "benchmarks/sweep.py",  # needs Lightning, which this project does not install
    "tools/complete.bash": "checks/project/test_completion.py",
    "tools/constraints.py": "checks/project/test_environment.py",
    "tools/fork.py": "checks/project/test_forking.py",
    "tools/make_digits.py": "checks/project/test_digits.py",
    "tools/mutate.py": "checks/project/test_mutations.py",
    "tools/remote.py": "checks/project/test_remote.py",
    "tools/remote_arguments.py": "tools/remote.py",  # checks arguments before anything is copied
    "tools/release.py": "checks/project/test_wheels.py",
    "tools/schema.py": "checks/project/test_schema.py",
    "tools/wheels.py": "checks/project/test_wheels.py",
}


def test_each_script_runs_in_a_test() -> None:
    """What has no `__main__` is imported by one that has."""
    files = [path for folder in ("benchmarks", "tools") for path in (ROOT / folder).iterdir()]
    texts = {path: path.read_text() for path in files if path.suffix in (".py", ".bash")}
    scripts = {
        path for path, text in texts.items() if re.search("^if __name__", text, re.MULTILINE) or path.suffix == ".bash"
    }
    assert {path.relative_to(ROOT).as_posix() for path in scripts} == SMALL.keys() | BESIDE.keys()
    for path in texts.keys() - scripts:
        if path.name == "griffe_docstrings.py":  # a plugin of mkdocs.yml
            continue
        assert any(re.search(rf"^(from|import) {path.stem}\b", text, re.MULTILINE) for text in texts.values()), path
    for script, test in BESIDE.items():
        assert re.search(rf"\b{Path(script).stem}\b", (ROOT / test).read_text()), script


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Fork the commands of subprocess.run from the warm process if they are of this project; return them."""
    run, forked = subprocess.run, []

    def either(command: Sequence[str], **options: Any) -> Any:
        python, first = [*command, ""][:2]
        if python != sys.executable or not (first.startswith("-") or Path(first).is_relative_to(ROOT)):
            return run(command, **options)
        if first.endswith("train.py") and "-m" in command:  # pictures of its report take longer than its jobs
            command = [python, *undrawn(*command[1:])]
        forked.append(command)
        return warm.run([*command], **options)

    monkeypatch.setattr(subprocess, "run", either)
    return forked


@pytest.mark.slow
@NEEDS_GPT
@needs("src/h5.py", "src/report.py", "conf/model/resnet.yaml", "conf/experiment/imagenet.yaml")
@pytest.mark.parametrize("script", OF_COMMANDS)
def test_a_script_of_commands_runs_in_small(
    tmp_path: Path, script: str, forking: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [script, *SMALL[script].split()])
    status: Any = None
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    assert not status
    said = capsys.readouterr()
    assert re.search(r"\d", said.out)  # a figure
    assert "Traceback" not in said.err
    assert forking


@pytest.mark.slow
@NEEDS_GPT
@needs("src/h5.py", "src/report.py", "conf/model/resnet.yaml", "conf/experiment/imagenet.yaml")
@pytest.mark.parametrize("script", [name for name in SMALL if name not in OF_COMMANDS])
def test_a_script_runs_in_small(tmp_path: Path, script: str) -> None:
    if script.endswith("parquet.py"):
        pytest.importorskip("datasets")
    (tmp_path / "images").mkdir()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "images/1.jpg")
    command = [sys.executable, str(ROOT / script), *SMALL[script].format(tmp_path, tmp_path).split()]
    environment = {**importing(ROOT / "src"), "TMPDIR": str(tmp_path)}
    said = called(command, seconds=150, cwd=tmp_path, env=environment)
    assert re.search(r"\d", said.stdout)  # a figure
    assert "Traceback" not in said.stderr


def test_a_case_that_fails_costs_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row is printed when it is measured."""
    shown = {}

    def row_of(name: str, blocks: int, cpu: bool) -> bench.Row:
        shown[name] = capsys.readouterr().out
        if name == "cnn":
            raise bench.Failed("cnn: status 1")
        return bench.Row(name, 0.01, 0.01, 1.0, 1.05)

    monkeypatch.setattr(bench, "row_of", row_of)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--cases", "mlp", "cnn", "gpt", "--record"])
    assert bench.main() == 1
    assert "| mlp | 10 | 10 | 1.000 |" in shown["cnn"]
    last = capsys.readouterr()
    assert "| gpt | 10 | 10 | 1.000 |" in last.out
    assert last.err == "\nerror: cnn: status 1\n"


def test_the_rates_of_a_checkpoint_are_measured() -> None:
    assert min(scale.checkpoint_rates(rounds=1, megabytes=1)) > 0


@pytest.mark.slow
@NEEDS_GPT
@needs("conf/experiment/cifar10.yaml")
@pytest.mark.parametrize("stage", sample_of(EAGER, [*EXPECTED]))
def test_a_stage_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    if stage in EAGER:
        monkeypatch.setattr(gpu_common, "environment_of", lambda setting: dict(os.environ))
        monkeypatch.setattr(gpu_common, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": warm.Popen}))
    setting = Setting("cpu", True, tmp_path / "work", rounds=1, stage=stage, out=tmp_path)
    setting.work.mkdir()
    gpu.STAGES[stage](setting)
    figures = {figure["name"]: figure for figure in json.loads((tmp_path / "gpu.json").read_text())["figures"]}
    assert EXPECTED[stage] <= set(figures)
    if stage == "faults":
        assert all(figure["met"] for figure in figures.values())
    assert all(f"| {stage} | {name} |" in (tmp_path / "gpu.md").read_text() for name in figures)


@pytest.mark.slow
@needs("conf/experiment/cifar10_fast.yaml")
def test_a_step_has_few_operations() -> None:
    """Of which each is a launch on a GPU: the default one 36, 51 in bf16."""
    said = called([sys.executable, str(ROOT / "benchmarks/operations.py")], seconds=120).stdout
    rows = {
        name: [int(cell) for cell in cells.split("|")[:3]]
        for name, cells in re.findall(r"^\| (.*?) \| (\d.*)", said.partition("| Python calls")[0], re.M)
    }
    assert len(rows) == 4
    assert 25 < rows["default MLP, fp32"][-1] <= 36
    assert rows["default MLP, fp32"][-1] < rows["default MLP, bf16"][-1] <= 51
    assert rows["cifar10_fast"][1] <= 100  # four shapes of matrices, of six


def test_a_step_has_few_python_calls(tmp_path: Path) -> None:
    """Python 3.11 and torch 2.13: 107 own calls and 36 that these make, of 205; a bare loop has 228. From Python 3.12
    on comprehensions are no calls. One more context of torch or contextlib adds 3 to 9: see lab.state.add_to_sums."""
    found = operations.calls_of_a_step(operations.CALLS["MLP 64-64-10"], tmp_path)
    assert 80 < found["own"] <= 107
    assert 20 < found["entered"] <= 36
    assert found["all"] <= operations.calls_of_a_bare_step() - 19  # Tensor.backward makes 10 calls more than the engine


@pytest.mark.parametrize(("group_bytes", "most_calls", "most_operations"), [(1, 116, 29), (1 << 20, 81, 20)])
def test_an_evaluation_batch_has_few_python_calls_and_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int, most_calls: int, most_operations: int
) -> None:
    """Python 3.11 and torch 2.13, views included; selected alone, and 20 batches together. Of a whole set, without the
    choice of the evaluated rows, a batch of 512 x 64 has 66 calls and 14 operations."""
    score_split, calls, per_pass = lab.evaluation.score_split, operations.Calls(), {}

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.counts["operations"] += 1
            return function(*args, **(kwargs or {}))

    def counting(*given: Any) -> dict[str, float]:
        calls.counts.clear()
        with calls:
            score_split(*given)
        with Operations():
            return score_split(*given)

    monkeypatch.setattr(lab.evaluation, "score_split", counting)
    monkeypatch.setattr("samebits.data.loading.resident._GROUP_BYTES", group_bytes)
    for batches in (1, 21):
        operations.run(
            *operations.SMALL, "data.loader=device", "trainer.max_steps=1", "hardware.eval_batch_size=16",
            f"trainer.max_eval_batches={batches}", f"hydra.run.dir={tmp_path}/{batches}",
        )  # fmt: skip
        per_pass[batches] = {**calls.counts}
    calls_of_20, operations_of_20 = (per_pass[21][one] - per_pass[1][one] for one in ("all", "operations"))
    assert 60 < calls_of_20 / 20 <= most_calls
    assert 13 < operations_of_20 / 20 <= most_operations


@pytest.mark.slow
def test_a_stage_that_fails_or_does_not_end_is_named(tmp_path: Path) -> None:
    """And the next one begins, until --minutes are over."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import gpu\n"
        "def fails(setting):\n"
        "    'Fails.'\n"
        "    setting.add('before', 1.0)\n"
        "    raise RuntimeError('no such kernel')\n"
        "def hangs(setting):\n"
        "    'Hangs.'\n"
        "    gpu.LEAST_S = 600\n"
        "    gpu.subprocess.run(['sleep', '1000'])\n"
        "gpu.STAGES |= {'faults': fails, 'images': hangs}\n"
        "sys.exit(gpu.main())"
    )
    stages = ["faults", "images", "warm"]
    given = [str(ROOT / "benchmarks"), *stages, "--dry", "--out", str(tmp_path), "--limit", "1", "--minutes", "9"]
    called([sys.executable, "-c", code, *given], code=1)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["small"] is True
    assert [(one["stage"], one["name"], one["value"]) for one in found["figures"]] == [
        ("faults", "before", 1.0), ("faults", "failed", "no such kernel"),
        ("images", "failed", "cut short by --limit or --minutes"), ("warm", "failed", "not begun: --minutes are over"),
    ]  # fmt: skip


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


@pytest.mark.slow
@pytest.mark.parametrize("script", ["gpu_ours", "gpu_peers", "image_stages"])
def test_scripts_of_gpu_find_libraries_that_are_not_installed(script: str) -> None:
    """A lent GPU has torch and numpy, but nobody has installed this project there. -S: no .pth file is read."""
    code = f"import {script}, lab, samebits, h5rows; print(lab.__file__, samebits.__file__, h5rows.__file__)"
    elsewhere = [path for path in sys.path if path.endswith("site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), *elsewhere])}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(ROOT) for file in done.stdout.split())


def test_the_stage_of_tests_has_every_file_with_a_test_for_a_gpu() -> None:
    """And reads the outcomes of tests in any folder, by the lines of pytest -vv with xdist or without."""
    folders = ("tests", "checks", *(f"packages/{name}/tests" for name in ("samebits", "h5rows")))
    known = [file for folder in folders for file in (ROOT / folder).rglob("test_*.py")]
    marked = {file for file in known if re.search(r"(?m)^ *(@|pytestmark = )pytest\.mark\.gpu\b", file.read_text())}
    inherited = {file for file in known if re.search(r"(?m)^class \w+\(TaskTests\b", file.read_text())}
    assert marked
    assert inherited
    assert marked | inherited <= {*files_of_tests()}
    log = (
        "[gw0] [ 10%] PASSED checks/project/test_gpu.py::test_a \n[gw1] [ 20%] SKIPPED tests/lab/test_a.py::test_b\n"
        "checks/project/test_gpu.py::test_c PASSED   [ 50%]\nFAILED checks/project/test_gpu.py::test_d - no\n"
    )
    assert outcomes(log) == {"PASSED": 2, "SKIPPED": 1}


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
@pytest.mark.usefixtures("forking")
def test_a_case_is_measured(name: str) -> None:
    row = bench.row_of(name, blocks=1, cpu=name == "mlp")
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
