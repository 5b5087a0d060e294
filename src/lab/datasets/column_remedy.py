"""Name the option that reads a path of data=h5 that is a Parquet file or a Hugging Face data set."""

from __future__ import annotations

import shlex
from pathlib import Path


def column_remedy(key: str, path: str) -> str:
    """Return the overrides that read the path; "" if it has another format. key: of the data set, such as `data`."""
    place, suffix = Path(path), Path(path).suffix.lower()
    option = key if key == "data" else f"+data@{key}"
    if suffix == ".parquet" or (place.is_dir() and any(place.rglob("*.parquet"))):
        chosen = [f"{option}=parquet", f"{key}.path={path}"]
    elif suffix == ".arrow" or any((place / name).is_file() for name in ("state.json", "dataset_dict.json")):
        chosen = [f"{option}=huggingface", f"{key}.path={place if place.is_dir() else place.parent}"]
    else:
        return ""
    return f"{shlex.join([*chosen, f'{key}.fields={{x: COLUMN, y: COLUMN}}'])} (docs/my_data.md)"
