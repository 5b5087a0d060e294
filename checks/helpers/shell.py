"""Commands as a newcomer types them: from a shell whose `python` has no packages and that has heard of no environment,
in a copy of the project."""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from fork import copy_of_the_project, python_path, undrawn, with_fewer_digits

from samebits.testing.processes import called, warm

# asks `served` for a process, and ends as that one ends
CLIENT = """#!{python} -SsE
import array, json, os, socket, sys
if sys.argv[1:4] == ["-m", "pip", "install"]:
    sys.exit("this would install into the environment of the tests: is stamp_of what ./run writes?")
channel = socket.socket(socket.AF_UNIX)
channel.connect({address!r})
fds = array.array("i", [0, 1, 2])
channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
channel.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
channel.shutdown(socket.SHUT_WR)
sys.exit(int(channel.recv(9)))
"""


def bare_python(folder: Path) -> Path:
    """Returns a folder with a `python` that has no packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    return folder / "python/bin"


@contextlib.contextmanager
def clone_with_environment(folder: Path) -> Iterator[Path]:
    """The project with half of the digits, and an environment."""
    with environment_in(with_fewer_digits(copy_of_the_project(folder / "clone")), folder) as copy:
        yield copy


@contextlib.contextmanager
def environment_in(copy: Path, folder: Path) -> Iterator[Path]:
    """A copy of the project after `./run` has made .venv, whose python is here a fork of one that has imported torch.
    folder: for a socket."""
    (copy / ".venv/bin").mkdir(parents=True)
    for extra in ("all", "dev"):
        (copy / f".venv/stamp.{extra}").write_text(stamp_of(copy))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address := str(folder / "door"))
        door.listen()
        (copy / ".venv/bin/python").write_text(CLIENT.format(python=sys.executable, address=address))
        (copy / ".venv/bin/python").chmod(0o755)
        warm.run([sys.executable, "-c", ""], env=environment_of(copy, {}))  # is started by this thread
        threading.Thread(target=served, args=(door, copy), daemon=True).start()
        yield copy
        door.shutdown(socket.SHUT_RDWR)


def served(door: socket.socket, copy: Path) -> None:
    with contextlib.suppress(OSError):  # it has been closed
        while True:
            threading.Thread(target=serve, args=(door.accept()[0], copy), daemon=True).start()


def serve(channel: socket.socket, copy: Path) -> None:
    """One command, which may start others and wait for them."""
    with channel:
        streams = array.array("i", channel.recvmsg(1, socket.CMSG_SPACE(12))[1][0][2])
        arguments, folder, given = json.loads(channel.makefile().read())
        if given.pop("UNDRAWN", ""):
            arguments = undrawn(*arguments)
        process = warm.Popen(
            [sys.executable, *arguments], cwd=folder, env=environment_of(copy, given),
            stdin=streams[0], stdout=streams[1], stderr=streams[2],
        )  # fmt: skip
        for fd in streams:
            os.close(fd)
        channel.sendall(str(process.wait()).encode())


def environment_of(copy: Path, given: dict[str, str]) -> dict[str, str]:
    free = {name: value for name, value in given.items() if not name.startswith(warm.ONCE)}
    return {**free, **warm.read_once(warm.BEGAN), "PYTHONPATH": python_path(copy)}


def stamp_of(folder: Path) -> str:
    """As ./run writes it."""
    files = [folder / "pyproject.toml", *sorted(folder.glob("packages/*/pyproject.toml")), folder / "constraints.txt"]
    files += sorted(folder.glob("vendor/*.whl"))
    text = b"".join(file.read_bytes() for file in files)
    return subprocess.run(["cksum"], input=text, capture_output=True, check=True).stdout.decode()


def no_pictures(command: str) -> dict[str, str]:
    """For `shell`, of a sweep or a report: without pictures, which take longer than a small sweep."""
    return {"UNDRAWN": "1"} if re.match(r"\./run (train -m|report) ", command) else {}


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def shell(
    command: str, folder: Path, bare: Path, code: int | None = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """As typed into a shell that was opened in `folder`."""
    environment = {
        "HOME": str(bare),
        "PATH": f"{bare}:/usr/bin:/bin",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        **more,
    }
    return called(["bash", "-c", command], code, 120, cwd=folder, env=environment, fresh=True)
