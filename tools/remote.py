#!/usr/bin/env python3
"""Run a command of `./run` elsewhere: copy the project there, start it, show its output, bring back its results.

    ./run remote HOST train experiment=digits trainer=ddp
    ./run remote HOST attach
    ./run remote HOST status
    ./run remote HOST fetch
    ./run remote HOST stop
    ./run remote --folder scratch/lab HOST train -m seed=0,1,2 sweep=seeds

The command there does not end with the connection. The same command shows it again, and `attach` the newest one. Needs
ssh and rsync here, and bash, rsync and what ./run needs there. Exit status: that of the command there, if it has ended;
1 its results could not be fetched, 2 a mistake in the arguments, 130 Ctrl-C, 255 the connection is lost: the command
continues there.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_suffix(".sh")
MARK = "--- ./run remote ---"
LOST = 255  # of ssh, if there is no connection
RSYNC_LOST = (10, 12, 30, 35, LOST)  # statuses of rsync for a connection that is lost or too slow
VANISHED = 24  # of rsync: files were deleted meanwhile, as by a run that is still writing
MISTAKE = 2  # of ./run: in the arguments, before the run has a directory
REFUSED = 3  # of remote.sh, which has printed why
ACTIONS = ("attach", "status", "fetch", "stop")
CLOSE = ["-o", "ControlPersist=60", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]


class Failed(Exception):
    """Ends the command: the text is printed, if there is one."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


class Host:
    """The other machine. All connections share one, so that a password is asked for once."""

    def __init__(self, name: str, folder: str, sockets: str) -> None:
        self.name, self.folder = name, folder
        self.ssh = ["ssh", "-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C", *CLOSE]

    def command(self, action: str, *arguments: str) -> tuple[list[str], bytes]:
        """Return the ssh command for an action of remote.sh, and its input."""
        words = [f"mark={shlex.quote(MARK)}", f"remote={shlex.quote(self.said())}"]
        words += [shlex.join(["set", "--", self.name, self.folder, action, *arguments])]
        script = "\n".join([*words, SCRIPT.read_text(encoding="utf-8")])
        # a login shell: PATH has SLURM and modules. The script is input, so that no shell in between reads its quotes
        return [*self.ssh, self.name, 'exec bash -lc "exec bash -s"'], os.fsencode(script)

    def ask(self, action: str, *arguments: str) -> list[str]:
        """Do an action there. Return the lines that it prints."""
        command, script = self.command(action, *arguments)
        done = subprocess.run(command, input=script, stdout=subprocess.PIPE, check=False)
        said = os.fsdecode(done.stdout).partition(f"{MARK}\n")
        if done.returncode != 0 or not said[1]:
            lost = f"{self.name}: ssh could not connect, or the connection was lost (above)"
            other = f"{self.name}: its shell has ended with status {done.returncode}; bash is needed there"
            raise Failed({LOST: lost, REFUSED: ""}.get(done.returncode, other), {LOST: LOST}.get(done.returncode, 2))
        return said[2].splitlines()

    def follow(self, run: str) -> None:
        """Print the log of a run until the run ends."""
        command, script = self.command("follow", run)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(script)
                process.stdin.flush()  # it stays open: its end would end the action
                for line in process.stdout:
                    if line == f"{MARK}\n".encode():
                        break
                while block := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                    sys.stdout.buffer.write(block)
                    sys.stdout.buffer.flush()
                status = process.wait()
            except BrokenPipeError:
                status = LOST
            finally:
                process.terminate()
        if status != 0:
            raise Failed(
                f"{self.name}: the connection was lost; {run} goes on there. The same command shows it again, "
                f"as does {self.said('attach')}",
                LOST,
            )

    def said(self, *command: str) -> str:
        """Return the command that a user types for an action, or its beginning; for messages."""
        folder = [] if self.folder == default_folder() else ["--folder", self.folder]
        return shlex.join(["./run", "remote", *folder, self.name, *command])

    def rsync(self, *arguments: str, files: bytes, fine: tuple[int, ...] = (0,)) -> str:
        """Copy the named files. Return the changes that it lists. fine: statuses of rsync that are no failure."""
        command = ["rsync", "-e", shlex.join(self.ssh), "--from0", "--files-from=-", *arguments]
        done = subprocess.run(command, input=files, stdout=subprocess.PIPE, check=False)
        if done.returncode not in fine:
            raise Failed(
                f"{self.name}: rsync has ended with status {done.returncode} (above); nothing was lost, repeat it",
                LOST if done.returncode in RSYNC_LOST else 2,
            )
        return os.fsdecode(done.stdout)

    def at(self, folder: str) -> str:
        return f"{self.name}:{folder}/"

    def close(self) -> None:
        subprocess.run([*self.ssh, "-O", "exit", self.name], capture_output=True, check=False)


def main() -> int:
    """Run the command. Return its exit status."""
    before, host, command = split(sys.argv[1:])
    args = parser().parse_args([*before, *host, *command])
    try:
        folder = args.folder or default_folder()
        check_words(folder, args.host, before, command)
        for program in ("ssh", "rsync", "git"):
            if shutil.which(program) is None:
                raise Failed(f"{program} is not installed here, and ./run remote needs it")
        with tempfile.TemporaryDirectory(prefix="ssh-", dir="/tmp") as sockets:  # the path of a socket is short
            host = Host(args.host, folder.removeprefix("~/").rstrip("/") or ".", sockets)
            try:
                return act(host, command, args.checkpoints)
            finally:
                host.close()
    except Failed as error:
        if str(error):
            print(f"error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


def split(given: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the options of ./run remote, which are before or after the host, the host, and the command."""
    options, host, rest = list[str](), list[str](), list(given)
    while rest and (rest[0].startswith("-") or not host):
        word = rest.pop(0)
        (options if word.startswith("-") else host).append(word)
        if word == "--folder" and rest:
            options.append(rest.pop(0))
    return options, host, rest


def check_words(folder: str, host: str, options: list[str], command: list[str]) -> None:
    """Raise Failed for words that are in a wrong order, or that ./run remote does not accept."""
    if not re.fullmatch(r"(~/)?[\w./+@-]*[\w+@][\w./+@-]*", folder) or ".." in folder.split("/"):
        raise Failed(f"--folder {folder}: give a path of letters, digits and ./_+@-, without ..")
    commands = re.findall(r"(?:^|\\n)  ([a-z0-9]+)  +\w", (ROOT / "run").read_text(encoding="utf-8"), re.MULTILINE)
    known = (*commands, *ACTIONS, "help")
    if host in known and (not command or command[0] not in known):
        raise Failed(
            f"the machine comes first: {shlex.join(['./run', 'remote', *(command[:1] or ['HOST']), host])} ..."
        )
    if not command:
        raise Failed(f"what is to run on {host}? ./run remote {host} train ..., or {', '.join(ACTIONS)}")
    if command[0] not in known:
        near = difflib.get_close_matches(command[0], known, 1)
        all_of_them = f" (./run --help lists all, and there are {', '.join(ACTIONS)})"
        hint = f" - did you mean ./run remote {host} {near[0]}?" if near else all_of_them
        raise Failed(f"no such command: {command[0]}{hint}")
    own = [word for word in command if re.fullmatch(r"--folder(=.*)?|--checkpoints", word)]
    if own:
        at = command.index(own[0])
        count = 2 if own[0] == "--folder" else 1
        moved = [*options, *command[at : at + count]], [*command[:at], *command[at + count :]]
        right = shlex.join(["./run", "remote", *moved[0], host, *moved[1]])
        raise Failed(f"{own[0]} is an option of ./run remote and comes before the command: {right}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "./run remote", description="Run a command of ./run on another machine.", allow_abbrev=False
    )
    made.add_argument(
        "--folder",
        help="the project's folder there, in the home directory or absolute; default: remote/ and this folder's name",
    )
    made.add_argument("--checkpoints", action="store_true", help="bring back checkpoints, too")
    made.add_argument("host", help="name of the machine, as for ssh: an alias, or user@host")
    made.add_argument(
        "command", nargs="...", help="what to run there, with its arguments; or attach, status, fetch or stop"
    )
    return made


def default_folder() -> str:
    return "remote/" + re.sub(r"[^\w.+-]", "_", ROOT.name, flags=re.ASCII)


def act(host: Host, command: list[str], checkpoints: bool) -> int:
    """Run the command or the action. Return its exit status."""
    action, run = command[0], command[1:]
    if action not in ACTIONS:
        return show(host, submitted(host, command), checkpoints)
    if len(run) > (action != "status"):
        raise Failed(f"{action} takes {'no arguments' if action == 'status' else 'one run'}: {shlex.join(run)}")
    if action == "attach":
        return show(host, host.ask("pick", *run)[0], checkpoints)
    if action == "fetch":
        run_there = host.ask("pick", *run)[0]
        if "found" not in fetch(host, run_there, checkpoints):
            raise Failed(nothing(host, run_there))
    else:
        print("\n".join(host.ask(action, *run)))
    return 0


def submitted(host: Host, command: list[str]) -> str:
    """Start the command there, after the tree was copied. Return its run: an earlier one, if that was not shown."""
    first = git("rev-list", "--max-parents=0", "HEAD").split()
    project = f"{ROOT.name} {first[-1] if first else 'without commits'}"
    digest = hashlib.sha256(os.fsencode("\0".join(command))).hexdigest()[:8]
    host.ask("make", project)
    found = [line.partition(" ") for line in host.ask("begin", project, digest)]
    for word, _, run in found:
        if word == "attach":
            print(f"{host.name}: {run} has the same command; it is shown, and nothing is copied or started", flush=True)
            return run
    run = f"{datetime.now(timezone.utc):%Y-%m-%d_%H-%M-%S-%f}-{digest}"  # two in one second are two runs
    try:
        check_arguments(host, command)
        copy(host, {word: text for word, _, text in found})
        host.ask("start", run, *command)
    except BaseException:
        with contextlib.suppress(Failed):  # without a connection
            host.ask("release")
        raise
    print(f"{host.name}:{host.folder}: started {run}", flush=True)
    return run


def check_arguments(host: Host, command: list[str]) -> None:
    """Raise Failed if the command has arguments that no machine accepts; the check has printed why."""
    if sys.version_info < (3, 10) or any(importlib.util.find_spec(name) is None for name in ("hydra", "numpy", "h5py")):
        print(f"the arguments are checked by {host.name}, not here: {sys.executable} has no Hydra", flush=True)
        return
    check = Path(__file__).with_name("remote_arguments.py")
    done = subprocess.run([sys.executable, str(check), *command], stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 2:
        raise Failed("")
    if done.returncode != 0:
        print(f"the arguments are checked by {host.name}, not here: the check has failed (above)", flush=True)


def copy(host: Host, there: dict[str, str]) -> None:
    """Make the folder there as the tracked files are here. Files that were not copied from here are left alone."""
    tracked = sorted({os.fsencode(name) for name in listed("--cached")})
    nested = [name for name in tracked if (ROOT / os.fsdecode(name)).is_dir() and not is_link(name)]
    files = [name for name in tracked if name not in nested and os.path.lexists(ROOT / os.fsdecode(name))]
    say_what_is_left(host, [os.fsdecode(name) for name in nested])
    names = b"".join(name + b"\0" for name in files)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "files.new").write_bytes(names)
        host.rsync("-t", f"{folder}/", host.at(f"{host.folder}/.remote"), files=b"files.new\0")
        # by content: a checkout changes times, and a file that is equal must not be replaced under a run
        tree = ["-rlpc", "--out-format=%n", f"{ROOT}/", host.at(host.folder)]
        named = b"".join(b"./" + name + b"\0" for name in files)  # rsync ignores names that begin with # or ;
        if "running" in there:
            changed = [*host.rsync("--dry-run", *tree, files=named).splitlines(), *host.ask("clear_old", "--dry-run")]
            changed = [name for name in changed if not name.endswith("/")]
            if changed:
                raise Failed(
                    f"{host.name}:{host.folder}: {there['running']} is running, and {len(changed)} of the files "
                    f"here changed ({few(changed)}): wait, stop it ({host.said('stop')}), or use another --folder"
                )
        host.ask("clear_old")
        count = len([name for name in host.rsync(*tree, files=named).splitlines() if not name.endswith("/")])
        commit = copy_commit(host, folder, there.get("commit", ""))
    host.ask("copied", commit)
    print(f"{host.name}:{host.folder}: {len(files)} files, {count} of them new or changed", flush=True)


def is_link(name: bytes) -> bool:
    return (ROOT / os.fsdecode(name)).is_symlink()


def copy_commit(host: Host, folder: str, there: str) -> str:
    """Copy the commit without its history, so that a run records it and what was changed since. Return it."""
    commit = git("rev-parse", "--verify", "--quiet", "HEAD").strip()
    if commit == there or not commit or git("rev-parse", "--show-prefix").strip():
        return commit
    here = Path(folder, "clone")
    git("clone", "--quiet", "--depth=1", "--no-checkout", ROOT.as_uri(), str(here))
    git("-C", str(here), "remote", "remove", "origin")
    git("-C", str(here), "read-tree", "HEAD")
    (here / ".git/info").mkdir(exist_ok=True)
    (here / ".git/info/exclude").write_text(".remote/\n")
    host.rsync("-rlpt", "--delete", f"{here}/", host.at(host.folder), files=b".git/\0")
    return commit


def say_what_is_left(host: Host, repositories: list[str]) -> None:
    # the program's own files first: a run there needs them
    others = sorted(listed("--others", "--exclude-standard"), key=lambda name: not name.startswith(("conf/", "src/")))
    ignored = [
        name
        for name in listed("--others", "--ignored", "--exclude-standard", "--directory")
        if not re.search(r"^(outputs|\.venv)(/|$)|(__pycache__|\.egg-info|_cache)/$", name)  # made again there
    ]
    for what, names, remedy in (
        ("untracked", others, "git add those that a run needs"),
        ("ignored", ignored, "data among them must be copied by you"),
        ("nested repositories", repositories, "their files are copied by you"),
    ):
        if names:
            print(f"not copied to {host.name}: {len(names)} {what} ({few(names)}); {remedy}", flush=True)


def few(names: list[str]) -> str:
    return ", ".join([*names[:5], "..."] if len(names) > 5 else names)


def listed(*options: str) -> list[str]:
    return [name for name in git("ls-files", "-z", *options).split("\0") if name]


def git(*arguments: str) -> str:
    # without variables such as GIT_DIR, with which git reads another repository
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "CONFIG" in name}
    done = subprocess.run(["git", *arguments], cwd=ROOT, env=env, capture_output=True, check=False)
    if done.returncode != 0 and arguments[0] not in ("rev-parse", "rev-list"):
        why = os.fsdecode(done.stderr).strip()
        raise Failed(f"{ROOT}: ./run remote copies the files that git tracks, and git {arguments[0]} has failed: {why}")
    return os.fsdecode(done.stdout)


def show(host: Host, run: str, checkpoints: bool) -> int:
    """Print the log of a run until its end, and bring back its results. Return its exit status."""
    try:
        host.follow(run)
    except KeyboardInterrupt:
        print(
            f"\n{run} goes on at {host.name}. To see it again: {host.said('attach')}; to stop it: {host.said('stop')}",
            file=sys.stderr,
        )
        return 130
    lacks = "none" in fetch(host, run, checkpoints)
    state = host.ask("state", run)[0].split()
    host.ask("shown", run)  # last: until then the same command shows it again
    if state[0] != "ended":
        print(f"error: {host.name}: {run} was killed; its log ends above", file=sys.stderr)
        return 1
    status = int(state[1])
    if not lacks or status == MISTAKE:
        return status
    print(f"error: {nothing(host, run)}", file=sys.stderr)
    return status or 1


def nothing(host: Host, run: str) -> str:
    return (
        f"{host.name}:{host.folder}: nothing was brought back, because .remote/runs/{run}/log names no directory of a "
        "run or a sweep that is there"
    )


def fetch(host: Host, run: str, checkpoints: bool) -> set[str]:
    """Bring back what the run has written, without checkpoints, below outputs/remote/HOST. Return {"found"}, {"none"}
    if it should have written a directory and there is none, or an empty set if its command writes none."""
    to = ROOT / "outputs/remote" / host.name
    left = ["wandb/", ".lock", ".launching.*", ".before/", ".slurm/", *(() if checkpoints else ("checkpoints/",))]
    found = [line.partition(" ") for line in host.ask("directories", run)]
    for directory in [path for word, _, path in found if word == "found"]:
        outside = directory.startswith("/")
        base, path = ("", directory[1:]) if outside else (host.folder, directory)
        if not outside and path.startswith("outputs/"):
            base, path = f"{base}/outputs", path.removeprefix("outputs/")
        to.mkdir(parents=True, exist_ok=True)
        excluded = [f"--exclude={name}" for name in left]
        host.rsync("-rlt", *excluded, host.at(base), f"{to}/", files=os.fsencode(f"./{path}\0"), fine=(0, VANISHED))
        print(f"brought back to {os.path.relpath(to / path)}", flush=True)
    return {word for word, _, _ in found}


if __name__ == "__main__":
    sys.exit(main())
