"""The pages of the docs and the README, and the commands that they show."""

from __future__ import annotations

import re
from pathlib import Path

from common import ROOT

README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
OURS = README.startswith("# Samebits\n") and (ROOT / "docs/index.md").exists()
DOCS = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
# typed from their beginning to their end, by test_docs.py
WALKED = (
    "existing_hdf5.md", "my_data.md", "my_model.md", "my_method.md", "callbacks.md", "port_script.md",
    "losses_metrics.md", "rates_optimizers.md", "use_model.md", "configure.md", "data_orders.md",
    "transforms.md",
)  # fmt: skip
# run there
OTHERS = {
    "tasks.md": "test_task_docs.py", "paper.md": "test_paper.py", "hugging_face.md": "test_task_transformers.py",
    "README.md": "test_readme.py", "pretrained_weights.md": "test_pretrained_weights.py",
    "clip.md": "test_clip.py", "reinforcement_learning.md": "test_reinforcement_docs.py",
    "video_audio.md": "test_video_audio_docs.py",
    "generation.md": "test_generation_pages.py", "variable_size.md": "test_generation_pages.py",
    "parquet.md": "test_parquet_docs.py",
}  # fmt: skip
# what cannot run on any machine, or takes long and runs in another test:
# (how its command begins, what it needs, the test that tries as much of it as can be)
NOT_RUN = (
    (r"docker ", "Docker", "checks/project/test_container.py::test_what_is_copied_and_run_is_there"),
    (r"wandb launch", "W&B Launch", "checks/project/test_container.py::test_what_is_copied_and_run_is_there"),
    (r"(\./run )?pipx? in", "a package index", "checks/project/test_environment.py::test_what_is_newer_is_installed"),
    (
        r"\./run report.* --serve", "a browser, until Ctrl-C",
        "checks/sweeps/test_live_report.py::test_the_page_follows_a_run_that_trains",
    ),
    (
        r".* hydra/launcher=slurm ", "a cluster",
        "checks/sweeps/test_slurm.py::test_a_sweep_of_batch_jobs_one_of_which_is_signalled",
    ),
    (
        r"#!/bin/bash\nuntil ", "a cluster",
        "checks/sweeps/test_slurm.py::test_a_sweep_that_is_submitted_and_left",
    ),
    (
        r".* hydra/launcher=ray ", "a cluster",
        "checks/sweeps/test_ray.py::test_a_job_goes_on_where_its_node_was_lost_and_one_that_fails_ends_no_other",
    ),
    (
        r"\./run tune ", "ten seconds of trials, all of which this test tries",
        "checks/project/test_tune.py::test_the_command_prints_overrides_that_train",
    ),
)  # fmt: skip
# a block, after the file that it is: (file or "", language, text)
FENCE = re.compile(r"(?:`([\w/.]+)`:\n\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def prose(page: str) -> str:
    return FENCE.sub(r"`\1`", page)


def write_files(page: str, folder: Path) -> dict[str, str]:
    """Put the files that a page shows where it says, below the folder; return {file: its text}."""
    files = {file: body for file, _, body in FENCE.findall(page) if file}
    for file, body in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(body)
    return files


def blocks(page: str) -> list[list[str]]:
    """The commands of each bash block, without comments. A script, whose first line is `#!`, is one command."""
    found = [body for _, kind, body in FENCE.findall(page) if kind == "bash"]
    return [[body] if body.startswith("#!") else lines_of(body) for body in found]


def lines_of(block: str) -> list[str]:
    lines = [re.sub(r"\s+#\s.*", "", line).strip() for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line]


def commands(page: str) -> list[str]:
    return [command for block in blocks(page) for command in block]


def is_run(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern, _, _ in NOT_RUN)
