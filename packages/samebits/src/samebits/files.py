"""Text and JSON files: written atomically; a damaged one is reported in one line. Imports no torch.

A run directory may be somebody else's. All that reads a file of one reads it here: a pipe, a device, a folder, a link
and a file larger than any that a run writes are refused before a byte is read.
"""

from __future__ import annotations

import json
import math
import os
import platform
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from samebits.errors import ConfigError, CorruptFileError
from samebits.schema import misfits

# bytes of the largest file of a run by its name, else by the end of its name, else by ""
LARGEST = {"sweep.json": 1 << 28, ".yaml": 1 << 20, ".json": 1 << 26, ".jsonl": 1 << 33, "": 1 << 28}
LONGEST_LINE = 1 << 24  # bytes of a line of a .jsonl
# the types in files of a run of all versions, by name; later versions add entries
KINDS: dict[str, dict[str, Any]] = {
    "status.json": {
        "status": str, "time": str, "wandb_id": str, "sweep": dict[str, str | int], "seconds": float, "began": float,
        "step": int, "rank": int, "error": str, "traceback": str, "signal": str,
    },
    "environment.json": {
        "command": list[str], "cwd": str, "host": str, "platform": str, "python": str, "cpus": int | None,
        "packages": dict[str, str | None], "git_commit": str | None, "git_dirty": bool | None, "source": str | None,
        "libraries": dict[str, dict[str, str | None]] | None, "slurm_job": str | None,
        "machine": dict[str, str | float | list[str] | list[dict[str, Any]] | dict[str, Any] | None], "precision": str,
        "threads": dict[str, int | str | bool], "files": dict[str, dict[str, str | int | list[str]]],
        "changes": list[dict[str, Any]],
    },
}  # fmt: skip


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write atomically: `path` has its old content or, after this block, all that the block has written. A link at its
    name is replaced, not followed. An OSError names `path`."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")  # hosts may share it
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=no_links) as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # write() sets no filename
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str | bytes) -> None:
    """See replacing."""
    with replacing(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def make_folder(path: Path) -> None:
    """A folder of a run or a report, made if it is not there. ConfigError for a link: what it leads to is not ours."""
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise ConfigError(f"{path}: is a symbolic link to {os.readlink(path)}; put the folder itself there")


def sync_folder(path: Path) -> None:
    """Write a folder's names to the disk: a file that was renamed there keeps its new name if the machine fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files of `replace_text` whose process was killed before it could rename them."""
    for path in directory.glob(f".*.{platform.node()}.*"):
        process = path.suffix[1:]
        if process.isdigit() and not _is_alive(int(process)):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def no_links(path: str, flags: int) -> int:
    """An opener for open(): a symbolic link or a pipe at the file's name is not written to (OSError)."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a run for reading; CorruptFileError if it is no regular file, or larger than a run writes. Never waits.

    OSError where it cannot be opened, FileNotFoundError where there is none.
    """
    most = LARGEST.get(path.name) or LARGEST.get(path.suffix) or LARGEST[""]
    check_regular(path, most)  # before it is opened: opening a device may do something
    file = open(path, "rb", opener=no_links)  # noqa: SIM115 - the caller's
    try:
        _check_regular(path, os.fstat(file.fileno()), most)  # it may have been exchanged since
    except BaseException:
        file.close()
        raise
    return file


def check_regular(path: Path, most: float = math.inf) -> int:
    """Return the size of a file that a library opens by its name; CorruptFileError if it is a link or no regular file."""
    found = os.lstat(path)
    _check_regular(path, found, most)
    return found.st_size


def _check_regular(path: Path, found: os.stat_result, most: float) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise CorruptFileError(f"{path}: is a symbolic link to {os.readlink(path)}; put the file itself there")
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise CorruptFileError(f"{path}: is {kind}, not a file; remove it")
    if found.st_size > most:
        raise CorruptFileError(
            f"{path}: has {found.st_size:,} bytes, and no run writes more than {most:,} there; remove it"
        )


def read_file(path: Path) -> bytes:
    """The bytes of a file of a run: see open_regular."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a file of a run: see open_regular. errors: as for bytes.decode; strict: CorruptFileError."""
    try:
        return read_file(path).decode(errors=errors)
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path}: damaged, it is not text: {error}") from None


def in_words(size: float) -> str:
    """A number of bytes, to three digits: 512 B, 1.5 KB, 12 MB, 3.4 GB."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """A line for each row, in columns: the first `left` of them begin at one place, the others end at one."""
    form = [f"{'<' if i < left else '>'}{max(map(len, column))}" for i, column in enumerate(zip(*rows))]
    return "\n".join("  ".join(map(format, row, form)).rstrip() for row in rows)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON has no NaN and no infinity: they are written as null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    replace_text(path, as_json(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """{} where there is no such file; CorruptFileError where it holds no JSON object."""
    try:
        value = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except CorruptFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: damaged, it is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path}: damaged, it holds no JSON object but a {type(value).__name__}")
    if wrong := misfits(value, KINDS.get(path.name, {})):
        raise CorruptFileError(f"{path}: damaged, of another type than a run writes: {', '.join(wrong)}")
    return value


def overwrite_json(path: Path, value: dict[str, Any]) -> None:
    """On a full disk: the short values of a JSON file, written into the block that the file has already."""
    short = {key: text[:300] if isinstance(text, str) else text for key, text in value.items() if key != "traceback"}
    with suppress(OSError), open(path, "r+b", buffering=0, opener=no_links) as file:
        file.truncate(file.write(as_json(short, indent=2).encode() + b"\n"))


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (line, record) of a metrics.jsonl; invalid lines (cut off by a kill) are left out."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise CorruptFileError(f"{path}: damaged, it has a line of more than {LONGEST_LINE:,} bytes")
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield line.decode(), record
