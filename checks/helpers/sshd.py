"""Another machine for ./run remote: a real sshd on this machine, whose users live in a folder of the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samebits.testing.processes import free_port, limit, wait_for

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
LACKS = [name for name in ("ssh", "ssh-keygen", "rsync", "git", "setsid", "bash") if shutil.which(name) is None]
LACKS += [] if SSHD else ["sshd"]
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
