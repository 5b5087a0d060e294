"""./run remote against a real sshd on this machine, whose users live in a folder of the test."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from common import QUICK, ROOT
from fork import commit, git
from shell import clone_with_environment
from sshd import LACKS, There, connected

from samebits.testing.processes import limit, processes_with, wait_for

pytestmark = pytest.mark.skipif(bool(LACKS), reason=f"not installed: {', '.join(LACKS)}")
# in place of ./run there: prints its arguments, works until the file `go` is there, writes a run
WORK = """#!/usr/bin/env bash
usage="
  work      makes a run
  second    does the same
  train     its arguments are checked"
cd "$(dirname "$0")"
printf '<%s>\\n' "$@"
echo "$RUN_REMOTE_HOST: $RUN_REMOTE stop"
trap 'echo saved; exit 75' TERM
echo "run outputs/one name/r1"
mkdir -p "outputs/one name/r1/checkpoints"
for file in metrics.jsonl config.yaml checkpoints/last.pt; do echo "$1" >"outputs/one name/r1/$file"; done
until [ -e go ]; do sleep 0.1; done
echo '{}' >"outputs/one name/r1/result.json"
echo end
exit 7
"""


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    here = tmp_path / "lab"
    (here / "tools").mkdir(parents=True)
    for name in ("remote.py", "remote.sh", "remote_arguments.py"):
        shutil.copy(ROOT / "tools" / name, here / "tools")
    (here / "run").write_text(WORK)
    (here / "run").chmod(0o755)
    (here / "it's a $file.txt").write_text("1")
    (here / ".gitignore").write_text("*.h5\noutputs/\n")
    commit(here)
    with connected(tmp_path, here) as machine:
        yield machine


ARGUMENTS = ("a b", "x=[1,2]", "y='$HOME'", "it's", 'q"q', "", "--", "*", "new\nline", "\\back", "ü", "`id`", "~", "!!")


def test_arguments_status_and_results_arrive_as_they_are(there: There) -> None:
    there.copy.mkdir(parents=True)
    (there.here / "new.py").touch()
    (there.here / "large.h5").touch()
    process = there.started("box", "work", *ARGUMENTS)
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    (there.copy / "go").touch()
    assert process.wait(limit(30)) == 7
    said = there.said()
    assert "".join(f"<{one}>\n" for one in ("work", *ARGUMENTS)) in said
    assert "\nbox: ./run remote box stop\n" in said  # the names that the user has typed
    assert "not copied to box: 1 untracked (new.py)" in said
    assert "not copied to box: 1 ignored (large.h5)" in said
    assert not (there.copy / "new.py").exists()
    found = there.here / "outputs/remote/box/one name/r1"
    assert {path.name for path in found.iterdir()} == {"metrics.jsonl", "config.yaml", "result.json"}
    there.run("--checkpoints", "box", "fetch")
    assert (found / "checkpoints/last.pt").read_text() == "work\n"
    assert there.run("box", "status").count("ended 7") == 1


def test_a_lost_connection_loses_nothing(there: There) -> None:
    """Neither the run nor its output; the same command does not start a second one until the first was shown."""
    process = there.started("box", "work", "x=1")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    there.lose_the_connection()
    assert process.wait(limit(30)) == 255
    assert "the connection was lost" in there.said()
    assert " running " in there.run("box", "status")
    again = there.started("box", "work", "x=1")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    assert "the same command" in there.said()
    os.killpg(again.pid, signal.SIGINT)
    assert again.wait(limit(30)) == 130
    assert "./run remote box stop" in there.said()
    (there.copy / "go").touch()
    wait_for(lambda: "ended 7" in there.run("box", "status"), seconds=30)
    assert there.run("box", "attach", code=7).count("<x=1>\n") == 1
    assert (there.here / "outputs/remote/box/one name/r1/result.json").exists()
    there.run("box", "work", "x=1", code=7)  # it was shown: a new one
    assert there.run("box", "status").count("ended 7") == 2
    wait_for(lambda: not processes_with(str(there.home)), seconds=30)  # none follows a log that nobody reads


NAMES = """#!/usr/bin/env bash
usage="
  train     prints the line of a run"
[ $# -lt 2 ] || [ "$2" = --help ] || mkdir -p "$2" && echo 1 >"$2/result.json"
echo "run $2$3"
echo "run of my own print"
exit ${4:-0}
"""


@pytest.mark.parametrize("folder", ["outputs/a", "runs of mine/a", "{elsewhere}/a"])
@pytest.mark.parametrize("end", ["", ", resumed from last_000000004.pt"], ids=["new", "resumed"])
def test_results_are_fetched_from_any_directory(there: There, folder: str, end: str) -> None:
    """Also of a resumed run, whose line ends with the checkpoint."""
    folder = folder.format(elsewhere=there.folder / "elsewhere")
    (there.here / "run").write_text(NAMES.replace("train", "work"))
    there.run("box", "work", folder, end)
    found = there.here / "outputs/remote/box" / folder.removeprefix("outputs/").lstrip("/")
    assert (found / "result.json").read_text() == "1\n"
    assert f"    {folder}\n" in there.run("box", "status")


def test_a_run_whose_results_cannot_be_fetched_is_an_error(there: There) -> None:
    (there.here / "run").write_text(NAMES.replace("mkdir -p", ": "))
    (there.here / "tools/remote_arguments.py").write_text("")
    git(there.here, "add", "-A")
    for status, code in ((0, 1), (75, 75), (2, 2)):
        said = there.run("box", "train", "outputs/a", "", str(status), code=code).splitlines()
        assert said[-1].startswith("error: box:remote/lab: nothing was brought back, because") is (status != 2), said
    assert "nothing was brought back" in there.run("box", "fetch", code=2)
    there.run("box", "train", "--help")  # makes no run


def test_mistakes_in_arguments_are_found_before_anything_is_copied(there: There) -> None:
    """And not after a run has the same command: it is shown."""
    for arguments, said in (
        (("optim.lrr=1",), "error: optim.lrr: no such key - did you mean optim.lr?"),
        (("-m", "trainer.max_steps=3,many", "seed=0,1"), "error: trainer.max_steps: expected an integer or null"),
        (("--epochs", "3"), "error: unrecognized arguments: --epochs"),
        (("data=h5", "data.path=only/there.h5", "hardware=gpu", "hydra/launcher=slurm", "-m"), None),
        (("resume=outputs/there", "optim.lrr=1"), None),
    ):
        done = there.started("box", "train", *arguments)
        if said:
            assert done.wait(limit(60)) == 2
            assert there.said().splitlines()[-1].startswith(said)
            assert not (there.copy / ".remote/files").exists()
        else:
            wait_for(lambda: {"started", "error:"} & {*there.said().split()}, seconds=60)
            assert "started" in there.said(), there.said()
            (there.copy / "go").touch()
            assert done.wait(limit(60)) == 7


def test_an_end_that_nobody_saw_is_shown_by_the_same_command(there: There) -> None:
    process = there.started("box", "work")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    os.killpg(process.pid, signal.SIGKILL)
    (there.copy / "go").touch()
    wait_for(lambda: "ended 7" in there.run("box", "status"), seconds=30)
    assert "end\n" in there.run("box", "work", code=7)
    assert there.run("box", "status").count("ended 7") == 1


def test_stop_is_a_signal_that_the_run_answers(there: There) -> None:
    process = there.started("box", "work")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    stopping = subprocess.run(there.command("box", "stop"), env=there.environment, stdout=subprocess.PIPE, text=True)
    assert "SIGTERM was sent" in stopping.stdout
    assert process.wait(limit(30)) == 75, there.said()
    assert "saved\n" in there.said()


def test_only_what_was_copied_is_deleted_and_no_code_changes_under_a_run(there: There) -> None:
    process = there.started("box", "work")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    (there.copy / "data.h5").touch()
    (there.here / "it's a $file.txt").unlink()
    said = there.run("box", "second", code=2)
    assert "is running, and 1 of the files here changed (deleted)" in said
    assert (there.copy / "it's a $file.txt").exists()
    (there.copy / "go").touch()
    assert process.wait(limit(30)) == 7
    (there.here / ".gitignore").write_text("*.h5\noutputs/\ngo\n")
    there.run("box", "second", code=7)
    assert not (there.copy / "it's a $file.txt").exists()
    assert (there.copy / "data.h5").exists()
    assert (there.copy / ".gitignore").read_text().endswith("go\n")
    known = subprocess.run(["git", "status", "--short"], cwd=there.copy, capture_output=True, text=True, check=True)
    assert known.stdout == ' M .gitignore\n D "it\'s a $file.txt"\n'
    head = [subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=one) for one in (there.here, there.copy)]
    assert head[0] == head[1]


def test_names_that_rsync_or_a_locale_could_take_for_something_else(there: There) -> None:
    comm = there.folder / "comm"
    comm.write_text(
        f'#!/bin/sh\n[ "$LC_ALL" = C ] || exit 1  # other orders of names\nexec {shutil.which("comm")} "$@"\n'
    )
    comm.chmod(0o755)
    (there.home / ".bash_profile").write_text(f"export PATH={there.folder}:$PATH LC_ALL=C.utf8\n")
    names = ("#a", ";b", "Z", "_c", "z")
    for name in names:
        (there.here / name).write_text(name)
    git(there.here, "add", "-A")
    process = there.started("box", "work")
    wait_for(lambda: "run outputs" in there.said(), seconds=30)
    assert [(there.copy / name).read_text() for name in names] == [*names]
    (there.copy / "go").touch()
    assert process.wait(limit(30)) == 7
    (there.here / "_c").unlink()
    (there.here / "#a").unlink()
    there.run("box", "second", code=7)
    assert [name for name in names if (there.copy / name).exists()] == [";b", "Z", "z"]


@pytest.mark.parametrize(("status", "code"), [(24, 0), (12, 255), (30, 255), (23, 2)])
def test_what_rsync_says_of_a_fetch(there: There, status: int, code: int) -> None:
    """Files of a run that is writing may vanish; a lost connection is told apart from other failures."""
    (there.here / "go").touch()
    git(there.here, "add", "go")
    there.run("box", "work", code=7)
    rsync = there.folder / "rsync"
    rsync.write_text(f'#!/bin/sh\n{shutil.which("rsync")} "$@"\nexit {status}\n')
    rsync.chmod(0o755)
    there.run("box", "fetch", code=code)


def test_a_run_counts_as_shown_after_its_status_is_known() -> None:
    remote = runpy.run_path(str(ROOT / "tools/remote.py"))
    asked = []

    class Box:
        name = "box"

        def follow(self, run: str) -> None: ...

        def ask(self, action: str, run: str) -> list[str]:
            asked.append(action)
            return {"state": ["ended 7"]}.get(action, [])

    assert remote["show"](Box(), "run", False) == 7
    assert asked[-2:] == ["state", "shown"]


def test_commands_are_copied_one_after_the_other(there: There) -> None:
    """What fails makes room for the next one; a lock that was left an hour ago is nobody's."""
    (there.here / "go").touch()
    git(there.here, "add", "go")
    there.run("box", "work", code=7)
    lock = there.copy / ".remote/copying"
    lock.mkdir()
    assert "box:remote/lab: another ./run remote is copying" in there.run("box", "second", code=2)
    assert lock.exists()
    os.utime(lock, (time.time() - 3700,) * 2)
    there.run("box", "second", code=7)
    assert not lock.exists()
    rsync = there.folder / "rsync"
    rsync.write_text("#!/bin/sh\nexit 23\n")
    rsync.chmod(0o755)
    there.run("box", "second", "third", code=2)
    assert not lock.exists()


def test_a_connection_that_is_lost_while_a_command_begins_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lab/.remote/runs").mkdir(parents=True)
    (tmp_path / "lab/.remote/project").write_text("lab\n")
    squeue, lock = tmp_path / "squeue", tmp_path / "lab/.remote/copying"
    squeue.write_text(f"#!/bin/sh\nuntil [ -e {shlex.quote(str(tmp_path))}/go ]; do sleep 0.1; done\n")
    squeue.chmod(0o755)
    script = "mark=mark\nset -- box lab begin lab digest\n" + (ROOT / "tools/remote.sh").read_text()
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as begins:
        assert begins.stdout is not None
        assert begins.stdout.readline() == "mark\n"
        wait_for(lock.exists, seconds=30)
        begins.stdout.close()
        (tmp_path / "go").touch()
    assert not lock.exists()


SQUEUE = """#!/bin/sh
if [ -e {folder}/down ]; then echo "slurm_load_jobs error" >&2; exit 1; fi
case "$*" in *%j*) sed 's/|/|s|/' {folder}/queue;; *) cat {folder}/queue;; esac
"""


SWEEPS = """#!/bin/sh
usage="
  work  has submitted a sweep"
mkdir -p outputs/a/sweeps/s/.slurm
touch outputs/a/sweeps/s/sweep.json
echo "sweep s: new jobs differ from earlier jobs in keys that were not swept"
echo "  the report separates them"
echo "sweep s: 2 jobs"
echo "  outputs/a/sweeps/s"
"""


def test_batch_jobs_are_those_of_this_folder_whatever_its_path_is(there: There) -> None:
    for name, text in (("squeue", SQUEUE), ("scancel", '#!/bin/sh\necho "$*" >>{folder}/cancelled\n')):
        (there.folder / name).write_text(text.format(folder=there.folder))
        (there.folder / name).chmod(0o755)
    (there.home / ".bash_profile").write_text(f"export PATH={there.folder}:$PATH\n")
    (there.folder / "queue").touch()
    real = there.folder / "disk"  # the home directory has a link to it
    real.mkdir()
    (there.home / "remote").symlink_to(real)
    (there.here / "run").write_text(SWEEPS)
    (there.folder / "down").touch()
    there.run("box", "work")  # no sweep was submitted: SLURM does not matter
    (there.folder / "down").unlink()
    sweep, token = real / "lab/outputs/a/sweeps/s/.slurm", "20260102-030405-0123abcd.sh"
    other = real / "lab/outputs/b/sweeps/s/.slurm"  # has the same name
    (sweep / token).touch()
    (there.folder / "queue").write_text(f"11|{sweep}/{token}\n12|{sweep}/{token}\n13|{other}/{token}\n14|/x/y.sh\n")
    (there.here / "it's a $file.txt").write_text("2")
    assert "a job in SLURM's queue is running, and 1 of the files here changed (" in there.run("box", "work", code=2)
    assert "cancelled in SLURM's queue: 11 12\n" in there.run("box", "stop")
    assert (there.folder / "cancelled").read_text() == "11 12\n"
    (there.folder / "down").touch()
    for command in ("work", "stop"):
        said = there.run("box", command, code=2)
        assert "its jobs are not known, because squeue has failed: slurm_load_jobs error" in said
    (there.folder / "down").unlink()
    (there.folder / "queue").write_text("")
    there.run("box", "work")
    link = there.home / "remote/lab/outputs"  # absolute, and by a link: SLURM has the path that was submitted
    (there.here / "run").write_text(SWEEPS.replace("outputs/", f"{link}/"))
    there.run("box", "work")
    (there.folder / "queue").write_text(f"15|{link}/a/sweeps/s/.slurm/{token}\n")
    assert "cancelled in SLURM's queue: 15\n" in there.run("box", "stop")


def test_a_foreign_folder_is_refused(there: There) -> None:
    (there.home / "hers").mkdir()
    (there.home / "hers/file").touch()
    said = there.run("--folder", "hers", "box", "work", code=2)
    assert "box:hers: was not made by ./run remote and is not empty" in said
    assert [path.name for path in (there.home / "hers").iterdir()] == ["file"]
    (there.home / "hers/.remote").mkdir()
    (there.home / "hers/.remote/project").write_text("another 123\n")
    assert "is a copy of another project" in there.run("--folder", "hers", "box", "work", code=2)
    assert [path.name for path in (there.home / "hers/.remote").iterdir()] == ["project"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("box",), "what is to run on box?"),
        (("--folder", "../x", "box", "work"), "--folder ../x: give a path"),
        (("box", "attach"), "./run remote has copied nothing there"),
        (("box", "status", "x"), "status takes no arguments: x"),
        (("box", "--folder", "x", "attach"), "a command does: ./run remote --folder x box train ..."),
        (("box", "work", "--folder", "x", "a b"), "comes before the command: ./run remote --folder x box work 'a b'"),
        (("box", "fetch", "--checkpoints"), "comes before the command: ./run remote --checkpoints box fetch"),
        (("box", "atach"), "no such command: atach - did you mean ./run remote box attach?"),
        (("status", "box"), "the machine comes first: ./run remote box status"),
        (("nobody.invalid", "work"), "ssh could not connect"),
    ],
)
def test_mistakes_are_one_line(there: There, arguments: tuple[str, ...], said: str) -> None:
    text = there.run(*arguments, code=255 if "nobody" in arguments[0] else 2)
    assert text.splitlines()[-1].startswith("error: ")
    assert said in text.splitlines()[-1]
    assert "Traceback" not in text


def test_each_command_of_run_is_known() -> None:
    check = runpy.run_path(str(ROOT / "tools/remote.py"))["check_words"]
    cases = re.findall(r"^((?:\w+ \| )*\w+)\) ;;", (ROOT / "run").read_text(), re.MULTILINE)
    commands = [command for case in cases for command in case.split(" | ")]
    assert {"train", "pip", "bench"} <= {*commands}
    for command in commands:
        check("remote/lab", "box", [], [command])


@pytest.mark.parametrize("side", ["here", "there"])
def test_rsync_is_named_where_it_is_missing(there: There, side: str) -> None:
    tools = there.folder / "tools"
    tools.mkdir()
    for name in ("bash", "ssh", "git", "cat", "ls", "mkdir", "hostname"):
        (tools / name).symlink_to(there.folder / name if name == "ssh" else str(shutil.which(name)))
    if side == "there":  # a profile may set any PATH
        (there.home / ".bash_profile").write_text(f"echo welcome\nexport PATH={shlex.quote(str(tools))}\n")
        assert "error: box has no rsync" in there.run("box", "work", code=2)
        return
    done = subprocess.run(there.command("box", "work"), env={**os.environ, "PATH": str(tools)}, capture_output=True)
    assert (done.returncode, done.stderr) == (2, b"error: rsync is not installed here, and ./run remote needs it\n")


@pytest.mark.slow
def test_a_run_of_the_project(tmp_path: Path) -> None:
    """A run and a sweep, to a copy whose environment exists: trained there, recorded with its commit, brought back."""
    (tmp_path / "there").mkdir()
    with clone_with_environment(tmp_path) as here:
        shutil.rmtree(here / ".git", ignore_errors=True)
        commit(here)
        with connected(tmp_path / "there", here) as machine:
            copy = machine.home / "remote/clone"
            assert "usage: ./run COMMAND" in machine.run("box", "help")  # needs no environment
            (copy / ".venv").symlink_to(here / ".venv")
            said = machine.run("box", "train", *QUICK, "trainer.max_steps=3")
            assert "finished 3 steps" in said
            found = here / said.splitlines()[-1].removeprefix("brought back to ")
            assert {"metrics.jsonl", "result.json", "config.yaml", "train.log"} <= {one.name for one in found.iterdir()}
            assert not (found / "checkpoints").exists()
            head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=here, text=True).strip()
            recorded = json.loads((found / "environment.json").read_text())
            assert (recorded["git_commit"], recorded["git_dirty"]) == (head, False)
            said = machine.run("box", "train", "-m", *QUICK, "trainer.max_steps=3", "seed=0,1", "sweep=two")
            assert len([*(here / "outputs/remote/box").glob("*/sweeps/two/*/result.json")]) == 2
            assert len([*(here / "outputs/remote/box").glob("*/sweeps/two/report.md")]) == 1
