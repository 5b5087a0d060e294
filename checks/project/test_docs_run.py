"""Each command of docs/ that is in no tutorial runs, in small: as typed into a shell, in a copy of the project.

What cannot run here is in NOT_RUN of pages.py. Tutorials, and the commands in comments of conf/: test_docs.py.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import ROOT
from fork import copy_of_the_project
from http_files import serving
from pages import DOCS, NOT_RUN, OTHERS, OURS, README, WALKED, blocks, commands, is_run, prose
from PIL import Image
from shell import bare_python, clone_with_environment, executable, no_pictures, shell
from wandb_server import KEY
from wandb_sweeps import serving_sweep

pytestmark = pytest.mark.skipif(not OURS, reason="of the template's docs; this project has some of its own")

SEEN = set(commands(README))
RUN = []  # pages with commands that no page before has
for name, page in DOCS.items():
    if name not in (*WALKED, *OTHERS, "fork.md") and not SEEN.issuperset(commands(page)):
        RUN.append(name)
        SEEN.update(commands(page))
# what a reader has in its place, or has more of -> what there is here
HERE = {
    "hardware=gpu": "hardware=cpu hardware.num_procs=2",
    "outputs/default/<run>": "outputs/stopped",
    "s3://bucket/photos --": "served/photos --",  # written, then read from the server
    "--shards 100": "--shards 3",
    "n_trials=20": "n_trials=2",
    "1e-3,3e-3,1e-2": "1e-3,3e-3",
    "data.fold=range(5)": "data.fold=range(2)",
    "range(3)": "range(1)",
    "range(5)": "range(2)",  # more than before, by which a sweep is extended
    "range(6)": "range(3)",
    "seed=0,1": "seed=0",
    "sparsity=0,0.5,0.9,0.98": "sparsity=0,0.9",
    "ENTITY/lab/SWEEP": "me/lab/s1",
}
# what pages take for granted
BEFORE = {
    "fsdp.md": [
        "./run train trainer=fsdp hardware.num_procs=2 process.stop_at_step=4 hydra.run.dir=outputs/saved "
        "|| [ $? = 75 ]",
    ],
    "report.md": [
        "./run train -m optim.lr=1e-3,3e-3,1e-2 'seed=range(3)' sweep=lr",
        "./run train hydra.run.dir=outputs/default/2026-11-20_09-00-00 logger=wandb logger.mode=offline",
        "./run train hydra.run.dir=outputs/other/2026-11-21_10-00-00-4f0c1e",
        "mkdir ../hers && cp -r outputs ../hers",
    ],
    "verify.md": [
        "git init -q && git add -A && git commit -qm first && echo '# mine' >>src/lab/models/mlp.py",
        "./run train hydra.run.dir=outputs/demo",
    ],
}


# -- none is left out ------------------------------------------------------------------------------------------------


def test_what_is_not_run_needs_what_is_not_here() -> None:
    """Each row is of a command, and the test in its place is there; extras that are installed are the project's."""
    typed = [command for name in (*RUN, "fork.md") for command in commands(DOCS[name])]
    for pattern, needed, test in NOT_RUN:
        assert any(re.match(pattern, command) for command in typed), needed
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    asked = re.findall(r"install -e '?\.\[([\w,]+)\]", "\n".join([README, *DOCS.values()]))
    assert len(asked) > 5
    assert {extra for names in asked for extra in names.split(",")} <= extras


def test_what_is_typed_is_in_bash_blocks() -> None:
    """Where a test looks for it."""
    shown = re.compile(r"^ {2,}(?:\w+=\S+ )*(?:\./run|git|pipx?|copier|cd|docker|srun|torchrun|wandb) .*", re.MULTILINE)
    for name, page in {"README.md": README, **DOCS}.items():
        if name == "commands.md":  # generated: the help texts of the commands
            continue
        assert shown.findall(prose(page)) == [], name
        assert not re.search(r"^ +```|^```(sh|shell|console)?\n(?!\n)\./run", page, re.MULTILINE), name


def test_pages_of_other_tests_are_read_there() -> None:
    for name, test in OTHERS.items():
        (file,) = (file for top in ("tests", "checks") for file in (ROOT / top).rglob(test))
        assert name in file.read_text(), name


# -- they run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a shell finds: a Python without packages, copier, and SLURM's commands on a cluster of this machine."""
    folder = bare_python(tmp_path_factory.mktemp("bare"))
    executable(folder / "copier", f'exec "{sys.executable}" -m copier "$@" --defaults')
    executable(folder / "srun", 'exec "$@"')
    executable(folder / "scontrol", "exit 1")  # is called if the job has to be queued again
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with clone_with_environment(tmp_path_factory.mktemp("clone")) as folder:
        make_small(folder)
        make_files(folder)
        yield folder


def make_small(clone: Path) -> None:
    """Two epochs, a small GPT and ResNet, no logger, where a command does not say otherwise."""
    for path in (clone / "conf").rglob("*.yaml"):
        text = path.read_text()
        path.write_text(re.sub(r"^( *max_epochs: )\d+", r"\g<1>2", text, flags=re.MULTILINE))
    for name, old, new in (
        ("train", "logger: wandb", "logger: none"),
        ("model/gpt", "width: 128", "width: 16"),
        ("model/gpt", "layers: 4", "layers: 1"),
        ("model/resnet", "width: 32", "width: 4"),
        ("data/tokens", "window: 256", "window: 16"),
    ):
        path = clone / f"conf/{name}.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


def make_files(clone: Path) -> None:
    """What a reader brings."""
    for folder, count in (("photos", 30), ("more_photos", 20)):
        for kind in ("cat", "dog"):
            (clone / folder / kind).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (i, i, i)).save(clone / folder / kind / f"{i}.png")
    rows = [f"photos/cat/{i}.png,{i},{i / 2},{i / 4}" for i in range(30)]
    (clone / "leaves.csv").write_text("\n".join(["file,age,water,height", *rows]))
    rows = [f"{20 + i},{50 + i if i % 3 else ''},{1 + i / 99},{'ill' if i % 2 else 'well'}" for i in range(99)]
    (clone / "patients.csv").write_text("\n".join(["age,weight,height,outcome", *rows]))
    (clone / "corpus.txt").write_text("To be, or not to be, that is the question.\n" * 100)
    with h5py.File(clone / "scans.h5", "w") as file:
        file["image"], file["label"] = np.random.default_rng(0).random((120, 8, 8), "float32"), np.arange(120) % 3
        file["patient"] = [f"p{i // 4}" for i in range(120)]
    with h5py.File(clone / "tokens.h5", "w") as file:
        for split in ("train", "val"):
            file[f"{split}/tokens"] = np.arange(1024, dtype=np.uint8) % 64


def on_a_server(clone: Path) -> dict[str, bytes]:
    """Path -> file of https://example.org and s3://bucket."""
    digits = (clone / "data/digits.h5").read_bytes()
    named = re.findall(r"(?:https://example\.org|s3://bucket)(/\S+?\.h5)", DOCS["remote_data.md"])
    packed = [path.relative_to(clone / "served") for path in (clone / "served").rglob("*.*")]
    return dict.fromkeys(named, digits) | {f"/{path}": (clone / "served" / path).read_bytes() for path in packed}


def environment(folder: Path) -> dict[str, str]:
    me = {f"GIT_{who}_{what}": "me@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**me, "LAB_CACHE_DIR": str(folder / "cache"), "SLURM_JOB_ID": "7"}


def typed(command: str, folder: Path, bare: Path, **more: str) -> None:
    done = shell(command, folder, bare, **more)
    said = done.stdout + done.stderr
    assert not re.search(r"Traceback|\w+Error\b", said), said  # a sweep whose report fails ends well


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_run(clone: Path, bare: Path, tmp_path: Path, name: str) -> None:
    for folder in ("outputs", "served", "../hers"):
        shutil.rmtree(clone / folder, ignore_errors=True)
    with serving() as server, serving_sweep([]) as wandb:
        for command in [*BEFORE.get(name, []), *filter(is_run, commands(DOCS[name]))]:
            for old, new in HERE.items():
                command = command.replace(old, new)
            command = re.sub(r"https://example\.org|s3://bucket", server.url(""), command)
            server.files = on_a_server(clone)
            if "outputs/stopped" in command:  # each from where it stopped
                shutil.rmtree(clone / "outputs/stopped", ignore_errors=True)
                shutil.copytree(clone / "outputs/saved", clone / "outputs/stopped")
            if " agent " in command:
                wandb.choices.append({"optim.lr": 0.01})
            more = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": wandb.url}
            more |= {} if name == "report.md" else no_pictures(command)
            typed(command, clone, bare, **environment(tmp_path), **more)


@pytest.mark.slow
def test_the_commands_of_the_page_on_forks_run(clone: Path, bare: Path, tmp_path: Path) -> None:
    """On a template with few tests, which is forked in a second, and by copier, who takes the default answers."""
    template, button = copy_of_the_project(tmp_path / "template"), tmp_path / "button"
    for path in (template / "tests").glob("*/**/test_*.py"):
        path.unlink()
    typed("git init -q -b main && git add -A && git commit -qm first", template, bare, **environment(tmp_path))
    shutil.copytree(template, button)
    shutil.copytree(clone / ".venv", button / ".venv")
    shown = blocks(DOCS["fork.md"])
    # no folder: an update, by ./run (installs its wheels) or by copier (three copies): test_forking.py has both
    for block, folder in zip(shown, [button, tmp_path, None, None, button], strict=True):
        for command in filter(is_run, block if folder else []):
            for old, new in {"ADDRESS-OF-THE-TEMPLATE": str(template), "--vcs-ref COMMIT": "--vcs-ref main"}.items():
                command = command.replace(old, new)
            typed(command, folder, bare, **environment(tmp_path))
