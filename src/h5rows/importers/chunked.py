"""Arrays in chunks, of zarr or N5, with the rows first, in groups that may be splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h5rows.errors import ConfigError
from h5rows.importers.arrays import by_split
from h5rows.importers.attributes import attributes
from h5rows.importers.base import SPLIT_NAMES, ArraySource
from h5rows.importers.values import stamp
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions


class ChunkedSource(ArraySource):
    slow_random = True

    @classmethod
    def of(
        cls,
        path: Path,
        rows: Mapping[str, Any],
        attrs: Mapping[str, Mapping[str, Any]],
        groups: Mapping[str, Mapping[str, Any]],
        options: PackOptions,
        account: Account,
        metadata: list[Path],
    ) -> ArraySource:
        """rows: {place in the store: array}; train/x, train/y, test/x ... are splits, anything else is one set.
        attrs, groups: attributes of each array and group. metadata: files that tell a store from a changed one."""
        if not rows:
            raise ConfigError(f"{path} holds no arrays with rows")
        parts = {name: (word, field) for name in rows for word, _, field in [name.partition("/")]}
        splits = all(word.lower() in SPLIT_NAMES and field for word, field in parts.values())
        if splits:
            tables = by_split(rows, parts, path)
        else:
            tables = {"": {n: a for n, a in rows.items() if not options.fields or n in options.fields}}
        if not any(tables.values()):
            raise ConfigError(f"--fields: {path} has none of {sorted(options.fields)}; it has {sorted(rows)}")

        def place(name: str) -> tuple[str, str]:
            """(split, name in it)"""
            word, _, rest = name.partition("/")
            return (SPLIT_NAMES[word.lower()], rest) if splits and word.lower() in SPLIT_NAMES else ("", name)

        source = cls(tables, stamp(metadata), {})
        source.account = account
        chosen = [name for name in rows if not options.fields or place(name)[1] in options.fields]
        source.field_attrs = {place(name): attributes(attrs[name], name, account) for name in chosen}
        source.group_attrs = {
            "/".join(filter(None, place(name))): attributes(own, name or "/", account)
            for name, own in groups.items()
            if own
        }
        return source
