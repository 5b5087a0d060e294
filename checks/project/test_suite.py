"""The tests themselves: they start no CUDA in the process that forks runs, and they stay green in a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from common import ROOT
from fork import copy_of_the_project, run_python
from omegaconf import OmegaConf

from lab.program import PROGRAM
from samebits.config import initialize
from samebits.testing import metrics
from samebits.testing.processes import limit, sample_of, warm

# As a build of torch with CUDA on a machine without NVML, where even counting starts CUDA. Children may: they end.
CUDA_BUILD = """
import os, torch
tests = os.getpid()

def start_cuda(*_):
    assert os.getpid() != tests, "CUDA was started: no fork of this process can use a GPU now"
    return 2

torch._C._cuda_getDeviceCount = torch._C._cuda_init = start_cuda
torch.cuda.is_available = torch.cuda.device_count = start_cuda
torch.backends.cuda.is_built = lambda: True

def pytest_collection_finish(session):
    from samebits.testing.devices import gpu_environment, hide_gpus
    skipped = [item for item in session.items if item.get_closest_marker("gpu") and item.get_closest_marker("skip")]
    with open(os.environ["NOTES"] + "/" + session.config.workerinput["workerid"], "w") as notes:
        print("GPUs:", hide_gpus(), "skipped:", len(skipped), file=notes)
        print("tests of the CPU see:", repr(os.environ["CUDA_VISIBLE_DEVICES"]), file=notes)
        print("tests of GPUs see:", gpu_environment()["CUDA_VISIBLE_DEVICES"], file=notes)
    for item in session.items:
        item.add_marker("skip")
"""


def test_a_warm_process_ends_as_one_that_was_just_started(tmp_path: Path) -> None:
    """Its output, its status, the signal that ended it; /proc names its command."""
    command_line = "open('/proc/self/cmdline').read().split(chr(0))[3]"
    shows = f"import os, sys; print(os.getcwd(), sys.argv, os.environ['A'], {command_line})"
    for code in (shows, "raise SystemExit(3)", "raise SystemExit('no')", "1 / 0", "import os; os.kill(os.getpid(), 9)"):
        command = [sys.executable, "-c", code, "x"]
        options: Any = {"cwd": tmp_path, "env": {**os.environ, "A": "b"}, "capture_output": True, "text": True}
        real, ours = subprocess.run(command, **options), warm.run(command, **options)
        assert (ours.returncode, ours.stdout) == (real.returncode, real.stdout)
        assert ours.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_line_that_a_run_is_writing_is_not_read(tmp_path: Path) -> None:
    """The kernel shows a line in two parts where it crosses a page."""
    whole = '{"step": 1, "time": 5.0, "train/loss": 0.5}\n'
    for written, steps in (("", []), ('{"st', []), (whole, [1]), (whole + '{"step": 2, "ti', [1])):
        (tmp_path / "metrics.jsonl").write_text(written)
        assert [line["step"] for line in metrics(tmp_path)] == steps
    (tmp_path / "metrics.jsonl").write_text('{"st\n' + whole)
    with pytest.raises(json.JSONDecodeError):
        metrics(tmp_path)


@pytest.mark.slow  # it imports all that any test needs
def test_collecting_the_tests_starts_no_cuda(tmp_path: Path) -> None:
    """And workers of pytest-xdist, which collect, see the GPUs, though they begin with the environment of the tests of
    the CPU."""
    (tmp_path / "cuda_build.py").write_text(CUDA_BUILD)
    (notes := tmp_path / "notes").mkdir()
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = {key: value for key, value in os.environ.items() if key != "TESTS_GPUS"}  # counted by this pytest
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "cuda_build", "-n", "1", "-m", "gpu", "tests", "checks"],
        cwd=ROOT, capture_output=True, text=True, timeout=limit(60),
        env={**environment, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0,1", "NOTES": str(notes)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = ["GPUs: 2 skipped: 0", "tests of the CPU see: ''", "tests of GPUs see: 0,1"]
    assert {file.name: file.read_text().splitlines() for file in notes.iterdir()} == {"gw0": lines}


ADDED = {
    "src/lab/models/line.py": """from torch import nn

class Line(nn.Module):
    def __init__(self, input_shape: list[int], num_outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(num_outputs))

    def forward(self, x):
        return self.net(x.float())
""",
    "conf/model/line.yaml": "_target_: lab.models.line.Line\n"
    "input_shape: ${data.input_shape}\nnum_outputs: ${data.num_outputs}\n",
    "conf/optim/schedule/mine.yaml": "_target_: lab.schedules.constant.Constant\nwarmup: 0.1\n",
    "conf/data/far.yaml": "defaults: [h5]\npath: /on/another/machine/*.h5\n",
    "conf/experiment/far.yaml": "# @package _global_\n"
    "defaults: [{override /data: far}, {override /model: line}]\nseed: 3\n",
    "src/lab/callbacks/pictures.py": """from lab.callbacks.base import Callback

class Pictures(Callback):
    def __init__(self, folder: str) -> None:
        self.folder = folder
""",
    "conf/callback/pictures.yaml": "pictures:\n"
    "  _target_: lab.callbacks.pictures.Pictures\n  folder: ${hydra:runtime.output_dir}/pictures\n",
    "README.md": "# Our paper\n\n```bash\nsbatch train.sh\n```\n",
}
DELETED = [
    "conf/model/gpt.yaml", "src/lab/models/gpt.py", "conf/data/tokens.yaml", "conf/experiment/shakespeare.yaml",
    "conf/experiment/sequences.yaml", "conf/callback/sample_text.yaml", "conf/experiment/streaming.yaml",
    "conf/experiment/preferences.yaml", "conf/model/gpt_lora.yaml", "conf/model/token_gru.yaml",
    "src/lab/models/token_gru.py",
]  # fmt: skip
# those that ask what there is, or use what was deleted
FILES = ["test_checks", "test_networks", "test_callbacks", "test_model_gpt", *sample_of([], ["test_sequences"])]
ASKED = [f"tests/lab/{name}.py" for name in FILES]


@pytest.mark.slow
def test_what_a_fork_adds_and_deletes_leaves_the_tests_green(tmp_path: Path) -> None:
    fork = copy_of_the_project(tmp_path)
    for name, text in ADDED.items():
        (fork / name).write_text(text)
    for name in DELETED:
        (fork / name).unlink(missing_ok=True)
    done = run_python(fork, "-m", "pytest", "-rs", *ASKED, seconds=240)
    assert "this project has no conf/model/gpt.yaml" in done.stdout


@pytest.mark.parametrize(
    "overrides",
    [
        ("optim.lr=0.1", "optim.lr=0.2", "model.hidden=[8,8]", "trainer=ddp"),
        ("experiment=digits", "trainer.max_steps=3", "data.transforms.to_float=null", "+optim.eps=1e-5"),
        ("hardware=cpu", "hardware=auto", "hardware.num_threads=1", "~callback", "name=2024"),
    ],
)
def test_a_config_of_tests_is_as_hydra_composes_it(overrides: tuple[str, ...]) -> None:
    """Though values are set after a composition that is shared."""
    from samebits.testing import runs

    with initialize(PROGRAM.conf):
        wanted = hydra.compose("train", list(overrides))
    for _ in range(2):  # the second takes what the first has composed
        found = OmegaConf.to_container(runs._composed(overrides)[0])
        assert list(found.items()) == list(OmegaConf.to_container(wanted).items())
