"""Another layout, chunking or codec for the same values."""

from __future__ import annotations

from typing import Any

from lab.data.encode import Encoding
from lab.data.importers.base import Source
from lab.data.pack import pack
from lab.data.pack_options import PackOptions


def pack_encoded(
    source: Source, out: str, options: PackOptions, encoding: Encoding, provenance: dict[str, Any]
) -> None:
    pack(source, out, options, provenance)
