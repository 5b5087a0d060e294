"""What a run records beside its config: versions, machine, git commit, uncommitted changes. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from engine import __version__
from engine.errors import Damaged
from engine.files import read_json, read_text, replace_text, write_json
from engine.host import machine_changes

FILE, DIFF = "environment.json", "uncommitted.diff"
MOST_OF_ONE, MOST_OF_ALL = 1 << 20, 8 << 20  # bytes of a new file, and of all, in uncommitted.diff
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "h5py", "wandb")


class Surroundings(NamedTuple):
    """environment: for environment.json. diff: for uncommitted.diff, new files included."""

    environment: dict[str, Any]
    diff: str


def surroundings(root: Path) -> Surroundings:
    return Surroundings(environment(root), _git(root, "diff", "HEAD") + new_files(root))


class Code(NamedTuple):
    """The files below src/ that a run ran with. tree: git's hash of them at the commit, or the commit where this
    repository lacks it; None: no git. changes: digest of what was not committed; empty: nothing."""

    commit: str | None
    tree: str | None
    changes: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self[1:] == other[1:]

    def __hash__(self) -> int:
        return hash(self[1:])

    def __str__(self) -> str:
        if self.commit is None:
            return "no commit"
        return f"commit {self.commit[:7]}" + (f" with changes {self.changes}" if self.changes else "")


def code_of(root: Path, run_dir: Path) -> Code:
    diff = run_dir / DIFF
    text = read_text(diff, errors="replace") if diff.exists() else ""
    return _code(root, read_json(run_dir / FILE).get("git_commit"), text)


def codes_of(root: Path, run_dir: Path) -> list[Code]:
    """With which it began, and those with which it was resumed."""
    return [code_of(root, run_dir), *(Code(*change["code"]) for change in changes_of(run_dir) if "code" in change)]


def changes_of(run_dir: Path) -> list[dict[str, Any]]:
    """What resumes have changed, as directory.keep_changes records it. Damaged where it is of another form."""
    changes, whole = read_json(run_dir / FILE).get("changes", []), {"was": {}, "code": [None] * len(Code._fields)}

    def is_one(change: Any) -> bool:
        one = whole | change if isinstance(change, dict) else {}
        kinds = all(isinstance(one.get(key), kind) for key, kind in (("after", int), ("was", dict), ("code", list)))
        return kinds and len(one["code"]) == len(Code._fields)

    if not isinstance(changes, list) or not all(map(is_one, changes)):
        raise Damaged(f"{run_dir / FILE}: damaged, its changes are not as a run records them")
    return changes


def use_code(run_dir: Path, known: Surroundings) -> None:
    """The run, which has no step that counts, begins with the present code."""
    own = {key: known.environment[key] for key in ("git_commit", "git_dirty")}
    write_json(run_dir / FILE, read_json(run_dir / FILE) | own)
    replace_text(run_dir / DIFF, known.diff) if known.diff else (run_dir / DIFF).unlink(missing_ok=True)


def code_here(root: Path, known: Surroundings | None = None) -> Code:
    """Of the files as they are now."""
    known = known or surroundings(root)
    return _code(root, known.environment["git_commit"], known.diff)


def _code(root: Path, commit: str | None, diff: str) -> Code:
    parts = re.split(r"^(?=diff --git |# new, not in this patch: )", diff, flags=re.MULTILINE)
    below = re.compile(r"(diff --git a/|# new, not in this patch: )(\S+/)?src/")
    ours = sorted(part.strip() for part in parts if below.match(part))
    changes = hashlib.sha256("\n".join(ours).encode()).hexdigest()[:7] if ours else ""
    return Code(commit, commit and _tree(root, commit), changes)


@cache
def _tree(root: Path, commit: str) -> str:
    return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}:./src").strip() or commit


def new_files(root: Path) -> str:
    """Returns a patch that creates the untracked files, which `git diff` leaves out.

    Large, binary and hidden ones (.env may hold secrets) are only named.
    """
    prefix, patch, left_out, room = _git(root, "rev-parse", "--show-prefix").strip(), [], [], MOST_OF_ALL
    for name in filter(None, _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")):
        text = _text(root, root / name)
        if text is None or len(text) > room:
            left_out.append(f"# new, not in this patch: {prefix}{name}\n")
            continue
        room -= len(text)
        lines = text.removesuffix("\n").split("\n")
        header = f"diff --git a/{prefix}{name} b/{prefix}{name}\nnew file mode 100644\n"
        if text:
            header += f"--- /dev/null\n+++ b/{prefix}{name}\n@@ -0,0 +1,{len(lines)} @@\n"
            header += "".join(f"+{line}\n" for line in lines)
            header += "" if text.endswith("\n") else "\\ No newline at end of file\n"
        patch.append(header)
    return "".join(patch + left_out)


def _text(root: Path, file: Path) -> str | None:
    """Returns the file's text; None for a hidden, binary or large file or a symbolic link."""
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    try:
        if hidden or file.is_symlink() or not file.is_file() or file.stat().st_size > MOST_OF_ONE:
            return None
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def environment(root: Path) -> dict[str, Any]:
    versions = {"engine": __version__}  # a project may have it from a wheel
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a vendored or path-installed package has no metadata
            versions[name] = "unknown"
    return {
        "command": sys.argv,
        "cwd": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "git_commit": _git(root, "rev-parse", "HEAD").strip() or None,
        "git_dirty": bool(_git(root, "status", "--porcelain").strip()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def record_machine(run_dir: Path, found: dict[str, Any]) -> str:
    """Keep what a run began on in environment.json. found: engine.host.machine_facts. Returns in what this machine
    differs from it, where that may change rounding; else empty."""
    known = read_json(run_dir / FILE)
    if "machine" in known:
        return machine_changes(known["machine"], found)
    write_json(run_dir / FILE, known | {"machine": found})
    return ""


def _git(root: Path, *arguments: str) -> str:
    """The output of git in the project, empty where there is no git or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def by_code(found: Iterable[tuple[int, Code]]) -> str:
    """[(0, a), (1, a), (2, b)] -> "jobs 0, 1 with commit 1234567, job 2 with commit 89abcde"."""
    jobs: dict[Code, list[int]] = {}
    for number, code in found:
        jobs.setdefault(code, []).append(number)
    return ", ".join(f"job{'s' * (len(n) > 1)} {ranges(n)} with {code}" for code, n in jobs.items())


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0 to 2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
