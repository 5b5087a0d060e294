"""The progress of a pack: one JSON line per finished block, with the checksums of its bytes; and the pack's lock."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from h5rows.errors import ConfigError
from h5rows.locks import Busy, Lock


def work_on(out: Path) -> tuple[Path, Path]:
    """(the file under work, its journal) of the pack that makes `out`."""
    return out.with_name(f"{out.name}.partial"), out.with_name(f"{out.name}.partial.progress")


def check_target(out: Path, overwrite: bool) -> None:
    """`out` may be written. Where it exists, the journal of a pack that was killed when it had this name goes."""
    if out.exists() and not overwrite:
        temp, path = work_on(out)
        if path.exists() and not temp.exists():
            with contextlib.suppress(Busy), Lock(path):  # Busy: another pack begins now
                path.unlink(missing_ok=True)
        raise ConfigError(f"{out} exists; --overwrite replaces it")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder; make it first")


class Journal:
    """The progress of one pack and its lock. Lines: a header that says what is packed, then one per finished block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for attempt in range(20):  # workers of a pack killed just now hold the lock for another moment
            try:
                self._lock = Lock(path)
                break
            except Busy:
                if attempt == 19:
                    raise ConfigError(
                        f"{path} is locked: another pack writes this file now; wait for it or end it"
                    ) from None
                time.sleep(0.1)
            except OSError as error:
                what = f"cannot be written or locked: {error.strerror}"
                raise ConfigError(f"{path}: {what}; pack into a folder of another file system") from error
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND)

    def load(self) -> tuple[dict[str, Any] | None, dict[int, dict[str, Any]]]:
        """(header, records by block); a line cut off by a kill is as if never written."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._fd), "rb") as file:
            lines = file.read().split(b"\n")
        records = []
        for line in lines[:-1]:
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        if not records or "header" not in records[0]:
            return None, {}
        return records[0]["header"], {r["block"]: r for r in records[1:] if "block" in r}

    def begin(self, header: dict[str, Any]) -> None:
        os.ftruncate(self._fd, 0)
        self.add({"header": header})

    def add(self, record: dict[str, Any]) -> None:
        # a line cut off by a kill must not swallow the next one
        end = os.lseek(self._fd, 0, os.SEEK_END)
        torn = end > 0 and os.pread(self._fd, 1, end - 1) != b"\n"
        os.write(self._fd, b"\n" * torn + json.dumps(record, ensure_ascii=True).encode() + b"\n")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)
        self._lock.close()
