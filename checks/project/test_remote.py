"""./run remote against a real sshd on this machine, whose users live in a folder of the test."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from common import QUICK, ROOT
from shell import clone_with_environment

from samebits.testing.processes import free_port, limit, processes_with, wait_for

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
LACKS = [name for name in ("ssh", "ssh-keygen", "rsync", "git", "setsid", "bash") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(LACKS) or not SSHD, reason=f"not installed: {', '.join(LACKS) or 'sshd'}")
SSHD_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
SetEnv HOME={home}
ForceCommand cd {home} && eval "$SSH_ORIGINAL_COMMAND"
"""
SSH_CONFIG = """
Host box
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking no
  LogLevel ERROR
"""
# in place of ./run there: prints its arguments, works until the file `go` is there, writes a run
WORK = """#!/usr/bin/env bash
usage="
  work      makes a run
  second    does the same
  train     its arguments are checked"
cd "$(dirname "$0")"
printf '<%s>\\n' "$@"
trap 'echo saved; exit 75' TERM
echo "run outputs/one name/r1"
mkdir -p "outputs/one name/r1/checkpoints"
for file in metrics.jsonl config.yaml checkpoints/last.pt; do echo "$1" >"outputs/one name/r1/$file"; done
until [ -e go ]; do sleep 0.1; done
echo '{}' >"outputs/one name/r1/result.json"
echo end
exit 7
"""


@dataclass
class There:
    """The other machine: `home` in it, and the project here that is copied to it."""

    folder: Path
    home: Path
    here: Path
    sshd: subprocess.Popen[bytes]

    @property
    def copy(self) -> Path:
        return self.home / "remote/lab"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.here / "tools/remote.py"), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def run(self, *arguments: str, code: int = 0) -> str:
        """All that the command prints. Into a file: ssh keeps the output open for some seconds."""
        done = self.started(*arguments)
        assert done.wait(limit(60)) == code, self.said(done)
        return self.said(done)

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output", "wb") as file:
            return subprocess.Popen(
                self.command(*arguments),
                stdout=file,
                stderr=file,
                env=self.environment,
                cwd=self.here,
                start_new_session=True,
            )

    def said(self, _: object = None) -> str:
        return (self.folder / "output").read_text()

    def connections(self) -> list[int]:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.sshd.pid)], capture_output=True, text=True)
        return [int(one) for one in listed.stdout.split()]

    def lose_the_connection(self) -> None:
        for one in self.connections():
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(one)], capture_output=True, text=True)
            for process in (one, *map(int, children.stdout.split())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@contextlib.contextmanager
def connected(folder: Path, here: Path) -> Iterator[There]:
    home = folder / "home"
    home.mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    names = {"port": free_port(), "folder": folder, "home": home}
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(**names))
    (folder / "ssh_config").write_text(SSH_CONFIG.format(**names))
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (folder / "ssh").chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root wants it
    with open(folder / "sshd.log", "wb") as log:
        sshd = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        wait_for(lambda: "listening" in (folder / "sshd.log").read_text() or sshd.poll() is not None, seconds=10)
        if sshd.poll() is not None:
            pytest.skip(f"sshd does not start here: {(folder / 'sshd.log').read_text()}")
        yield There(folder, home, here, sshd)
    finally:
        (home / "remote/lab/go").parent.mkdir(parents=True, exist_ok=True)
        (home / "remote/lab/go").touch()  # ends what a failed test has left
        sshd.terminate()
        sshd.wait()


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.email=a@b.c", "-c", "user.name=a", *arguments], cwd=folder, check=True)


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
    git(here, "init", "-q")
    git(here, "add", "-A")
    git(here, "commit", "-qm", "first")
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
    assert "is running, and 1 files have changed here (deleted)" in said
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


SQUEUE = """#!/bin/sh
if [ -e {folder}/down ]; then echo "slurm_load_jobs error" >&2; exit 1; fi
case "$*" in *%j*) sed 's/|/|s|/' {folder}/queue;; *) cat {folder}/queue;; esac
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
    (there.here / "run").write_text(
        "#!/bin/sh\n: '\n  work  x'\nmkdir -p outputs/a/sweeps/s/.slurm\nprintf 'sweep s: 2 jobs\\n  outputs/a/sweeps/s\\n'\n"
    )
    (there.folder / "down").touch()
    there.run("box", "work")  # no sweep was submitted: SLURM does not matter
    (there.folder / "down").unlink()
    sweep, token = real / "lab/outputs/a/sweeps/s/.slurm", "20260102-030405-0123abcd.sh"
    other = real / "lab/outputs/b/sweeps/s/.slurm"  # has the same name
    (there.folder / "queue").write_text(f"11|{sweep}/{token}\n12|{sweep}/{token}\n13|{other}/{token}\n14|/x/y.sh\n")
    (there.here / "it's a $file.txt").write_text("2")
    assert "a job in SLURM's queue is running, and 1 files have changed" in there.run("box", "work", code=2)
    assert "cancelled in SLURM's queue: 11 12\n" in there.run("box", "stop")
    assert (there.folder / "cancelled").read_text() == "11 12\n"
    (there.folder / "down").touch()
    for command in ("work", "stop"):
        said = there.run("box", command, code=2)
        assert "its jobs are not known, because squeue has failed: slurm_load_jobs error" in said
    (there.folder / "down").unlink()
    (there.folder / "queue").write_text("")
    there.run("box", "work")


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
        (("nobody.invalid", "work"), "ssh could not connect"),
    ],
)
def test_mistakes_are_one_line(there: There, arguments: tuple[str, ...], said: str) -> None:
    text = there.run(*arguments, code=255 if "nobody" in arguments[0] else 2)
    assert text.splitlines()[-1].startswith("error: ")
    assert said in text.splitlines()[-1]
    assert "Traceback" not in text


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
        git(here, "init", "-q")
        git(here, "add", "-A")
        git(here, "commit", "-qm", "first")
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
