"""Record the environment of a run: versions, machine, git commit, uncommitted changes. Does not import torch."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from samebits import __version__
from samebits.code.source import VENDORED, Library, is_vendored, libraries_of, library_changes, source_of
from samebits.credentials import redacted
from samebits.errors import CorruptFileError
from samebits.files import read_file, read_json, replace_text, text_as_floats, write_json
from samebits.host import machine_changes
from samebits.programs import GIT_DIFF, NoAnswer, git
from samebits.schema import holds
from samebits.signals import temporary_folder

log = logging.getLogger("samebits")
ENVIRONMENT, DIFF = "environment.json", "uncommitted.diff"
MOST_OF_ONE, MOST_OF_ALL = 1 << 20, 8 << 20  # bytes of one new or binary file, and of all, in uncommitted.diff
# src/ and packages/*/src of a project, which may be in a subfolder of its repository
BELOW_SRC = re.compile(r'^(diff --git "?a/|# (new|changed), not in this patch: )([^\n]*?/)?src/', re.MULTILINE)
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "h5py", "wandb")
OF_RECORD = re.compile(r"^(\w+)(?=/|\.py,)", re.MULTILINE)  # modules among the files that a distribution has installed
# the fields of a Code in environment.json, in older versions and in this version
RECORDED = tuple[str | None, str | None, str] | tuple[str | None, str | None, str, dict[str, Library] | None]


class Surroundings(NamedTuple):
    """environment: content of environment.json. diff: content of uncommitted.diff, decoded by os.fsdecode; includes new
    files."""

    environment: dict[str, Any]
    diff: str


def surroundings(root: Path) -> Surroundings:
    """Return the environment and the uncommitted changes. Log a warning if git does not answer."""
    commit, entries = _status(root)
    diff = ""
    if commit is not None:
        try:
            if entries is None:
                raise NoAnswer("they are not known")
            diff = uncommitted(root, entries)
        except NoAnswer as error:
            _say(f"{DIFF}: not written, so uncommitted changes cannot be restored later: {error}")
    # git lists no file that its user ignores, but the patch has those in folders of code
    return Surroundings(environment(root, commit, None if entries is None else bool(entries or diff)), diff)


class Code(NamedTuple):
    """The code that computed a run. Codes with the same `key` are equal.

    commit: None if git did not answer. source: digest of the files below src/; None: unknown, and equal to no other
    code. changes: short name of the project's files if they differ from the commit, otherwise empty. libraries: see
    samebits.code.source; None: not recorded by older versions.
    """

    commit: str | None
    source: str | None
    changes: str
    libraries: Mapping[str, Library] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self.source is not None and self.key == other.key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.source)

    @property
    def key(self) -> tuple[str, ...]:
        """Parts to compare, unless `source` is unknown. Libraries that were not recorded equal libraries in packages/
        only, because those belong to the same src/."""
        digests = [f"{name} {library.get('source')}" for name, library in sorted((self.libraries or {}).items())]
        return (str(self.source), *digests)

    @property
    def short(self) -> str:
        """Seven digits that identify the code; empty if `source` is unknown."""
        if self.source is None:
            return ""
        first, *libraries = self.key
        return (hashlib.sha256(repr(self.key).encode()).hexdigest() if libraries else first)[:7]

    @property
    def of_project(self) -> Code:
        """The code without libraries outside of the project, which a commit and its changes determine."""
        own = {name: library for name, library in (self.libraries or {}).items() if is_vendored(library)}
        return self._replace(libraries=own)

    def __str__(self) -> str:
        if self.commit is None:
            text = "no commit" + (f", files {self.changes}" if self.changes else "")
        else:
            text = f"commit {self.commit[:7]}" + (f" with changes {self.changes}" if self.changes else "")
        if self.libraries is None:
            return f"{text} [libraries not recorded]"
        elsewhere = {name: one for name, one in self.libraries.items() if not is_vendored(one)}
        named = [[name, one.get("version"), str(one.get("source"))[:7]] for name, one in elsewhere.items()]
        listed = ", ".join(" ".join(filter(None, words)) for words in named)
        return f"{text} [{listed}]" if listed else text


def code_changes(was: Code, now: Code) -> list[str]:
    """Return the differences between two codes in words: src/, and each library. An unknown src/ counts as
    different."""
    same = was.source is not None and was.source == now.source
    return [*([] if same else ["src/"]), *library_changes(was.libraries, now.libraries)]


def code_of(run_dir: Path) -> Code:
    """Return the code with which a run started."""
    diff = run_dir / DIFF
    return _code(read_json(run_dir / ENVIRONMENT), os.fsdecode(read_file(diff)) if diff.exists() else "")


def codes_of(run_dir: Path) -> list[Code]:
    """Return the code with which a run started, and the codes with which it was resumed."""
    return [code_of(run_dir), *(Code(*change["code"]) for change in changes_of(run_dir) if "code" in change)]


def changes_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the changes made by resumes, as directory.keep_changes records them. Raise CorruptFileError for an invalid
    form."""
    changes, whole = read_json(run_dir / ENVIRONMENT).get("changes", []), {"was": {}, "code": [None, None, ""]}

    def is_one(change: Any) -> bool:
        one = whole | change if isinstance(change, dict) else {}
        kinds = all(isinstance(one.get(key), kind) for key, kind in (("after", int), ("was", dict), ("code", list)))
        return kinds and holds(one["code"], RECORDED)

    if not isinstance(changes, list) or not all(map(is_one, changes)):
        raise CorruptFileError(f"{run_dir / ENVIRONMENT}: damaged, its `changes` have an invalid form")
    return [change | {"was": text_as_floats(change["was"])} if "was" in change else change for change in changes]


def use_code(run_dir: Path, known: Surroundings) -> None:
    """Record the current code in a run that has not yet completed a step."""
    own = {key: known.environment[key] for key in ("git_commit", "git_dirty", "source", "libraries")}
    write_json(run_dir / ENVIRONMENT, read_json(run_dir / ENVIRONMENT) | own)
    replace_text(run_dir / DIFF, os.fsencode(known.diff)) if known.diff else (run_dir / DIFF).unlink(missing_ok=True)


def code_here(root: Path, known: Surroundings | None = None) -> Code:
    """Return the code of the current files."""
    return _code(*(known or surroundings(root)))


def _code(facts: dict[str, Any], diff: str) -> Code:
    known = (facts.get(key) for key in ("git_commit", "source"))
    commit, source = (value if isinstance(value, str) else None for value in known)
    changed = BELOW_SRC.search(diff)
    if source is None and commit is not None:  # of a run that an older version started
        source = hashlib.sha256(commit.encode() + os.fsencode(diff if changed else "")).hexdigest()
    code = Code(commit, source, "", facts.get("libraries"))
    return code._replace(changes=code.of_project.short) if changed or commit is None else code


def uncommitted(root: Path, entries: tuple[bytes, ...]) -> str:
    """Return a patch from the commit to the current files, including new files, and the names of files that are left
    out: large binary files, and new files that are large, binary or hidden (.env may contain secrets). Raise NoAnswer
    if git fails. entries: of `_status`."""
    names, added = _names(root, entries)
    if entries == () and not names and not added:
        return ""
    # the commit separates the folders, whose names may contain line breaks
    asked = git(root, "rev-parse", "HEAD", "--show-prefix", "HEAD", "--show-toplevel", "HEAD", "--git-path", "index")
    head, _, places = os.fsdecode(asked).removesuffix("\n").partition("\n")
    prefix, top, own = map(Path, places.split(f"\n{head}\n"))
    left_out, room = [], MOST_OF_ALL
    for name in names:
        size = _text_size(root, root / name)
        if size is None or size > room:
            left_out.append(("new", str(prefix / name)))
            continue
        room -= size
        added.append(name)
    with temporary_folder("git-") as folder:
        index = folder / "index"  # a copy to which these files are added
        if (root / own).exists():
            # keeps its time, which git needs to find edits made in the same second as the commit
            shutil.copy2(root / own, index)
        # any id will do: git reads these files again, because their entries have no times and no flags
        if listed := b"".join(os.fsencode(f"100644 {head}\t{prefix / name}\0") for name in added):
            git(root, "update-index", "-z", "--index-info", stdin=listed, index=index)
        for line in git(root, *GIT_DIFF, "--numstat", "-z", "HEAD", index=index).split(b"\0"):
            name = os.fsdecode(line.removeprefix(b"-\t-\t"))
            if line.startswith(b"-\t-\t") and _largest(top, name) > MOST_OF_ONE:
                left_out.append(("changed", name))
        but = [f":(top,exclude,literal){name}" for kind, name in left_out if kind == "changed"]
        if patch := git(root, *GIT_DIFF, "HEAD", "--", ":/", *but, index=index):
            git(root, "read-tree", "HEAD", index=index)
            try:
                git(top, "apply", "--check", "--cached", "-", stdin=patch, index=index)
            except NoAnswer as error:
                _say(f"{DIFF}: cannot be applied, so uncommitted changes cannot be restored later: {error}")
    lines = (f"# {kind}, not in this patch: {name if name.isprintable() else repr(name)}\n" for kind, name in left_out)
    return os.fsdecode(patch) + "".join(lines)


STATUS = (
    "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "-z", "--untracked-files=normal",
    "--ignore-submodules=none",
)  # fmt: skip
COMMIT = re.compile(rb"([0-9a-f]{40,64})\n")
BRANCH = re.compile(rb"# branch\.oid (?:([0-9a-f]{40,64})|\(initial\))")
QUICK_S = 5.0
CODE = ("src", f":(glob){VENDORED}/*/src/**")  # for git; see code_folders


def _status(root: Path) -> tuple[str | None, tuple[bytes, ...] | None]:
    """Return the commit, and git's entries of changed files and, beginning with "? ", of new files or their folders;
    None, with a warning, for a value that is missing in the output of git."""
    entries, reason = None, "the repository has no commit"
    try:
        first, *lines = git(root, *STATUS).split(b"\0")
        commit = BRANCH.fullmatch(first)
        if commit is None:  # a script in place of git that prints more
            raise NoAnswer(f"git status printed {os.fsdecode(first[:80])!r}")
        entries = tuple(line for line in lines if line and not line.startswith(b"# "))
    except NoAnswer as error:
        reason = str(error)
        commit = None
        with suppress(NoAnswer):  # the commit is known if only the index is damaged, or the files are read too slowly
            commit = COMMIT.fullmatch(git(root, "log", "-1", "--format=%H", limit_s=QUICK_S))
    oid = commit[1].decode() if commit and commit[1] else None
    if unknown := [key for key, value in (("git_commit", oid), ("git_dirty", entries)) if value is None]:
        _say(f"{ENVIRONMENT} contains null for {' and '.join(unknown)}: {reason}")
    return oid, entries


def _names(root: Path, entries: tuple[bytes, ...]) -> tuple[list[str], list[str]]:
    """Return (new files, files in git whose edits git was told to ignore: assume-unchanged, skip-worktree; only of code
    and conf/).

    New files are not in git and not ignored. In folders of code only the project's own ignore rules count, not the
    user's. entries: of `_status`."""
    found = b""
    if any(entry.startswith(b"? ") for entry in entries):
        found = git(root, "ls-files", "--others", "-z", "--exclude-standard")
    tracked_and_new = ("-v", "--cached", "--others", "--exclude-per-directory=.gitignore")
    tags = git(root, "ls-files", "-z", *tracked_and_new, "--", *CODE, "conf").split(b"\0")
    # a new file of conf/ that its user hides from git may contain secrets; config.yaml has the values of the run
    found += b"".join(tag[2:] + b"\0" for tag in tags if tag.startswith(b"? ") and not tag.startswith(b"? conf/"))
    new = [os.fsdecode(name) for name in dict.fromkeys(found.split(b"\0")) if name]
    unseen = {os.fsdecode(tag[2:]): tag[:1] for tag in tags if tag[:1].islower() or tag[:1] == b"S"}
    # a sparse checkout lacks files with skip-worktree
    return new, [name for name, flag in unseen.items() if flag == b"h" or os.path.lexists(root / name)]


def _largest(top: Path, name: str) -> int:
    """Return the size of a file in bytes, now or in the commit, whichever is larger."""
    was = 0
    with suppress(NoAnswer):  # a new file
        was = int(git(top, "cat-file", "-s", f"HEAD:{name}"))
    return max(was, (top / name).lstat().st_size if os.path.lexists(top / name) else 0)


@cache
def _say(line: str) -> None:
    """Log a warning, once per process."""
    log.warning(line)


def _text_size(root: Path, file: Path) -> int | None:
    """Return the size of a text file in bytes; None for a hidden, binary or large file or a symbolic link."""
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    try:
        if hidden or file.is_symlink() or not file.is_file() or file.stat().st_size > MOST_OF_ONE:
            return None
        content = file.read_bytes()
        content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if b"\0" in content else len(content)


def environment(root: Path, commit: str | None, dirty: bool | None) -> dict[str, Any]:
    """Return the content of environment.json for a new run, without its machine. dirty: None if git did not answer."""
    # samebits may be installed from a wheel
    versions = {"samebits": __version__, **{name: version_of(name) for name in PACKAGES}}
    return {
        "command": redacted(sys.argv),
        "cwd": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "packages": versions,
        "git_commit": commit,
        "git_dirty": dirty,
        "source": source_of(root),
        "libraries": libraries_of(root),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def version_of(package: str) -> str:
    """Return the version of a package; unknown if it has no metadata, e.g. a vendored package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def record_machine(run_dir: Path, found: dict[str, Any]) -> str:
    """Record in environment.json the machine on which a run starts, and the packages that it has imported.

    found: samebits.host.machine_facts. Return the differences to the recorded machine that can change rounding; empty
    if there are none.
    """
    known = read_json(run_dir / ENVIRONMENT)
    if "machine" in known:
        return machine_changes(known["machine"], found)
    packages = known.get("packages", {}) | imported_packages()
    write_json(run_dir / ENVIRONMENT, known | {"packages": packages, "machine": found})
    return ""


def imported_packages() -> dict[str, str]:
    """Return {name: version} of the installed packages that this process has imported. If a name is on the path twice
    (setuptools appends its own copies), the first one is used, as for `import`."""
    roots = {name.partition(".")[0] for name in sys.modules}
    found: dict[str, str] = {}
    for one, modules in _installed(tuple(sys.path)):
        if not roots.isdisjoint(modules):
            found.setdefault(*_name_and_version(one))
    return dict(sorted(found.items()))


@cache
def _installed(path: tuple[str, ...]) -> list[tuple[metadata.Distribution, list[str]]]:
    """Return the packages on the path with their modules, read once per process."""
    found = []
    for one in metadata.distributions(path=[*path]):  # metadata.packages_distributions takes 0.1 s more
        listed = one.read_text("top_level.txt")
        modules = listed.split() if listed else OF_RECORD.findall(one.read_text("RECORD") or "")
        found.append((one, [*dict.fromkeys(modules)]))
    return found


@cache
def _name_and_version(one: metadata.Distribution) -> tuple[str, str]:
    found = one.metadata  # parsed again at each access
    return found["Name"], found["Version"]


def by_code(found: Iterable[tuple[int, Code]]) -> str:
    """Group jobs by their code: [(0, a), (1, a), (2, b)] -> "jobs 0, 1 with commit 1234567, job 2 with commit
    89abcde"."""
    jobs: dict[tuple[str, ...], tuple[Code, list[int]]] = {}
    for number, code in found:
        jobs.setdefault(code.key if code.source else (str(code),), (code, []))[1].append(number)
    return ", ".join(f"job{'s' * (len(n) > 1)} {ranges(n)} with {code}" for code, n in jobs.values())


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: [0, 1, 2, 5] -> "0 to 2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
