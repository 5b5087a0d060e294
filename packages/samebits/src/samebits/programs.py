"""Run other programs, and git and SLURM independently of their user's settings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 60.0
# settings of git that change the output or effect of the commands below
PLAIN = {
    "apply.ignoreWhitespace": "no",
    "apply.whitespace": "nowarn",
    "color.ui": "false",
    "core.checkStat": "default",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.ignoreCase": "false",
    "core.quotePath": "true",
    "core.trustctime": "true",
    "core.untrackedCache": "false",
    "diff.interHunkContext": "0",
    "diff.orderFile": os.devnull,
    "diff.relative": "false",
    "diff.submodule": "short",
    "diff.suppressBlankEmpty": "false",
    "diff.wsErrorHighlight": "none",
    "log.showSignature": "false",
}
GIT_DIFF = (
    "diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3",
    "--diff-algorithm=myers", "--ignore-submodules=dirty", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
KEPT = ("GIT_CONFIG", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")


class NoAnswer(Exception):
    """The program is not installed, failed or took too long: the reason in one line."""


def answer_of(
    command: list[str],
    stdin: bytes = b"",
    limit_s: float | None = None,
    env: Mapping[str, str] = os.environ,
    new_session: bool = False,
) -> bytes:
    """Return the output of a program, in English. limit_s: timeout in seconds; None: LIMIT_S. new_session: Ctrl-C in
    the terminal does not reach the program. Raise NoAnswer if it fails."""
    limit_s = limit_s or LIMIT_S
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=limit_s, env={**env, "LC_ALL": "C"}, check=False,
            start_new_session=new_session,
        )  # fmt: skip
    except FileNotFoundError:
        raise NoAnswer(f"{command[0]} is not installed") from None
    except OSError as error:
        raise NoAnswer(f"{command[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {limit_s:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[:400]
        raise NoAnswer(said or f"{command[0]} ended with status {done.returncode}")
    return done.stdout


def git(
    folder: Path, *arguments: str, stdin: bytes = b"", index: Path | None = None, limit_s: float | None = None
) -> bytes:
    """Return the output of git in a folder, the same for every user. Raise NoAnswer if it fails.

    Variables such as GIT_DIR, which git sets in a hook, are removed. index: a file to use instead of the repository's
    index.
    """
    settings = [word for key, value in PLAIN.items() for word in ("-c", f"{key}={value}")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(KEPT)}
    env |= {"GIT_INDEX_FILE": str(index)} if index else {}
    command = ["git", "--no-pager", "--no-optional-locks", *settings, "-C", str(folder), *arguments]
    return answer_of(command, stdin, limit_s, env)


def slurm(command: list[str]) -> str:
    """Return the output of a SLURM command, run without the user's settings (SQUEUE_STATES, SCANCEL_INTERACTIVE). Raise
    NoAnswer with its last error, which the ones before have caused."""
    try:
        return answer_of(command, env=environment_without("SQUEUE_", "SCANCEL_"), new_session=True).decode(
            errors="replace"
        )
    except NoAnswer as error:
        raise NoAnswer(re.split(r"\b(?:error|fatal): ", str(error))[-1]) from None


def environment_without(*prefixes: str) -> dict[str, str]:
    """Return the environment without the variables whose names begin with a prefix."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
