"""Read and write text and JSON files. Writes are atomic; a corrupt file is reported in one line. Does not import torch.

A run directory may come from a stranger. Therefore all files of a run are read through this module, which rejects
pipes, devices, folders, links, and files larger than a run writes, before it reads a byte."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from samebits.errors import ConfigError, CorruptFileError
from samebits.schema import misfits

# maximum bytes of a file of a run, by its name, otherwise by the end of its name, otherwise by ""
LARGEST = {"sweep.json": 1 << 28, ".yaml": 1 << 20, ".json": 1 << 26, ".jsonl": 1 << 33, "": 1 << 28}
LONGEST_LINE = 1 << 24  # maximum bytes of a line of a .jsonl file
# types in files of a run, by file name, for all versions; later versions add entries
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
    """Yield a file to write; after the block it replaces `path` atomically. A link at `path` is replaced, not followed.
    An OSError names `path`."""
    # unique, because hosts may share the folder
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=no_links) as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # write() sets no filename
        del error.filename2  # set by replace(); None would be printed: "'report.md' -> None"
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str | bytes) -> None:
    """Write a file atomically; see replacing."""
    with replacing(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def make_folder(path: Path) -> None:
    """Create a folder of a run or a report if it is missing. Raise ConfigError for a link, whose target may be
    foreign."""
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise ConfigError(f"{path}: is a symbolic link to {os.readlink(path)}; replace it with a folder")


def sync_folder(path: Path) -> None:
    """Sync a folder, so that a renamed file keeps its new name if the machine fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system has no such call, for example VirtualBox's shared folders
            raise
    finally:
        os.close(handle)


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files of `replace_text` whose process was killed before it could rename them."""
    for path in directory.glob(f".*.{platform.node()}.*"):
        process = path.suffix[1:]
        try:
            if process.isdigit():
                os.kill(int(process), 0)
        except (ProcessLookupError, OverflowError):
            path.unlink(missing_ok=True)
        except PermissionError:  # a living process of another user
            pass


def no_links(path: str, flags: int) -> int:
    """Open a file as an `opener` of open(). Raise OSError for a symbolic link or a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a run for reading, without blocking.

    Raise CorruptFileError if it is not a regular file or larger than a run writes, FileNotFoundError if it is missing,
    and OSError if it cannot be opened."""
    most = LARGEST.get(path.name) or LARGEST.get(path.suffix) or LARGEST[""]
    check_regular(path, most)  # before opening it, because opening a device may have an effect
    file = open(path, "rb", opener=no_links)  # noqa: SIM115 - the caller closes it
    try:
        _check_regular(path, os.fstat(file.fileno()), most)  # it may have been replaced since
    except BaseException:
        file.close()
        raise
    return file


def check_regular(path: Path, most: float = math.inf) -> int:
    """Return the size of a file that a library opens by name. Raise CorruptFileError if it is not a regular file."""
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
    """Return the bytes of a file of a run; see open_regular."""
    with open_regular(path) as file:
        return file.read()


def read_end(path: Path, size: int) -> bytes:
    """Return at most the last `size` bytes of a file of a run; see open_regular."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file of a run; see open_regular. errors: as in bytes.decode; strict raises
    CorruptFileError."""
    try:
        return read_file(path).decode(errors=errors)
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path}: damaged, it is not text: {error}") from None


def in_words(size: float) -> str:
    """Return a number of bytes as text: 512 B, 1.5 KB, 12 MB, 3.4 GB."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"


def amount(number: int, what: str) -> str:
    """Return a number of things as text: 1 run, 2 runs."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def decimals(value: float) -> str:
    """Return a score with four decimals, or a small one with three digits: 0.9312, 3.25e-05."""
    return f"{value:.4f}" if abs(value) >= 1e-3 or not value else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Return the rows as text in columns. The first `left` columns are left-aligned, the others right-aligned."""
    form = [f"{'<' if i < left else '>'}{max(map(len, column))}" for i, column in enumerate(zip(*rows))]
    return "\n".join("  ".join(map(format, row, form)).rstrip() for row in rows)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return the value as JSON. NaN and infinity are null, because JSON does not have them."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_with_non_finite(value, lambda number: None), indent=indent, allow_nan=False)


def floats_as_text(value: Any) -> Any:
    """Return the value with NaN and infinity as yaml writes them (.nan, .inf, -.inf), which JSON can hold."""
    return _with_non_finite(value, lambda number: ".nan" if math.isnan(number) else ".inf" if number > 0 else "-.inf")


def _with_non_finite(value: Any, written: Callable[[float], str | None]) -> Any:
    """Return the value with written(number) in place of each NaN and infinity."""
    if isinstance(value, dict):
        return {key: _with_non_finite(inner, written) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_non_finite(inner, written) for inner in value]
    return written(value) if isinstance(value, float) and not math.isfinite(value) else value


def text_as_floats(value: Any) -> Any:
    """Return the value that `floats_as_text` was given."""
    if isinstance(value, dict):
        return {key: text_as_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [text_as_floats(inner) for inner in value]
    return float(value.replace(".", "")) if value in (".nan", ".inf", "-.inf") else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    replace_text(path, as_json(value, indent=2) + "\n")


RESTORE = " - restore it from a copy, or remove it"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, {} if the file is missing. Raise CorruptFileError for other content."""
    try:
        value = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except CorruptFileError:
        raise
    except (ValueError, RecursionError) as error:
        what = f"it is not valid JSON: {error}" if os.path.getsize(path) else "it is empty"
        raise CorruptFileError(f"{path}: damaged, {what}{RESTORE}") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path}: damaged, it holds no JSON object but a {type(value).__name__}{RESTORE}")
    if wrong := misfits(value, KINDS.get(path.name, {})):
        raise CorruptFileError(f"{path}: damaged, of another type than a run writes: {', '.join(wrong)}{RESTORE}")
    return value


def overwrite_json(path: Path, value: dict[str, Any]) -> None:
    """Overwrite a JSON file in place, for a full disk: the short values fit into the block that the file already
    has."""
    short = {key: text[:300] if isinstance(text, str) else text for key, text in value.items() if key != "traceback"}
    with suppress(OSError), open(path, "r+b", buffering=0, opener=no_links) as file:
        file.truncate(file.write(as_json(short, indent=2).encode() + b"\n"))


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (line, record) of metrics.jsonl; skip invalid lines, which a kill may leave."""
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
