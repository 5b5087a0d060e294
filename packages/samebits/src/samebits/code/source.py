"""Identify a run's code: src/, the packages in packages/*/src, and libraries in other places. Does not import torch.

root/src                  the project's own code, see `source_of`
root/packages/NAME/src    vendored: in the project's repository
elsewhere                 a wheel in site-packages, an editable installation, a folder of PYTHONPATH
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

# import names of the libraries that a project may have in packages/ or installed, each with Hydra plugins named
# hydra_plugins/NAME_*
LIBRARIES = ("samebits", "h5rows")
VENDORED = "packages"
MOST_OF_SOURCE = 64 << 20  # bytes of the largest file that is read to compare its content
NOT_SOURCE = re.compile(r"(^|/)(\.[^/]*|__pycache__|[^/]*\.egg-info)(/|$)")
VERSION = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)

Library = dict[str, str | None]  # version: None if unknown. source: digest of its files. place: their folder


def code_folders(root: Path) -> list[Path]:
    """Return the folders from which a project's modules are imported: src/, and packages/*/src if they exist."""
    return [root / "src", *sorted(path for path in root.glob(f"{VENDORED}/*/src") if path.is_dir())]


def python_path(root: Path) -> str:
    """Return PYTHONPATH for a process that imports a project's modules: its folders, then the current value."""
    return os.pathsep.join([*map(str, code_folders(root)), *filter(None, [os.environ.get("PYTHONPATH")])])


def source_of(root: Path) -> str:
    """Return a digest of the current files below src/, independent of git."""
    return _digest(root / "src", [root / "src"])


def libraries_of(root: Path, first: Sequence[Path] = ()) -> dict[str, Library]:
    """Return {name: Library} of the packages in packages/, and of LIBRARIES that are neither there nor in src/.

    A digest covers the current files. Therefore a wheel, an editable installation and a vendored copy with the same
    files are the same code, and an edit of an installed file changes it. A process of the project searches src/, then
    the folders `first`, then the path of this process.
    """
    folders = code_folders(root)
    found: dict[str, Library] = {}
    for folder in folders[1:]:
        name = folder.parent.name
        found[name] = {
            "version": _version(name, sorted(folder.glob("*/__init__.py"))),
            "source": _digest(folder, [folder]),
            "place": folder.relative_to(root).as_posix(),
        }
    own = {folder.resolve() for folder in folders}
    for name in LIBRARIES:
        elsewhere = _folder_of(name, [folders[0], *first])
        if elsewhere is None or elsewhere.resolve() in own:
            continue
        tops = [elsewhere / name, *elsewhere.glob(f"hydra_plugins/{name}_*")]
        found[name] = {
            "version": _version(name, [elsewhere / name / "__init__.py"]),
            "source": _digest(elsewhere, tops),
            "place": str(elsewhere),
        }
    return found


def is_vendored(library: Library) -> bool:
    """Return True if the library is in the project's packages/."""
    return str(library.get("place")).startswith(f"{VENDORED}/")


def has_own_engine(root: Path) -> bool:
    """Return True if the samebits that this process uses is in the project's folders, False if it is installed."""
    return Path(__file__).resolve().parents[2] in {folder.resolve() for folder in code_folders(root)}


def library_changes(was: Mapping[str, Library] | None, now: Mapping[str, Library] | None) -> list[str]:
    """Return the differences between two sets of libraries in words, one entry per library. None: not recorded, which
    equals only an empty set."""
    if was is None or now is None:
        texts = ["not recorded" if one is None else _listed(one) for one in (was, now)]
        return [f"libraries {' -> '.join(texts)}"] if was or now else []
    both = [(name, was.get(name), now.get(name)) for name in sorted({*was, *now})]
    return [_change(name, one, other) for name, one, other in both if _content_of(one) != _content_of(other)]


def _change(name: str, was: Library | None, now: Library | None) -> str:
    versions = [_version_text(library) for library in (was, now)]
    if versions[0] != versions[1]:
        return f"{name} {' -> '.join(versions)}"
    return f"{name} {versions[0]}: same version, different content"


def _content_of(library: Library | None) -> str | None:
    return None if library is None else library.get("source")


def _version_text(library: Library | None) -> str:
    return "none" if library is None else library.get("version") or "(no version)"


def _listed(libraries: Mapping[str, Library]) -> str:
    return ", ".join(f"{name} {_version_text(library)}" for name, library in libraries.items()) or "none"


def _folder_of(name: str, first: Sequence[Path]) -> Path | None:
    """Return the folder that contains a package that is, or would be, imported; None if there is none."""
    spec = PathFinder.find_spec(name, [str(folder) for folder in first])
    if spec is None or spec.origin is None:  # none, or a folder without __init__.py, which has the lowest priority
        spec = find_spec(name)
    page = None if spec is None or spec.origin is None else Path(spec.origin)
    return page.parents[1] if page is not None and page.stem == "__init__" else None


def _version(name: str, pages: Iterable[Path]) -> str | None:
    """Return the version in a package's __init__.py, because metadata of an editable installation may be old; otherwise
    that of its metadata."""
    for page in pages:
        if page.is_file() and (said := VERSION.search(page.read_text(errors="replace"))):
            return said[1]
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _digest(folder: Path, tops: Iterable[Path]) -> str:
    """Return a digest of the files below `tops`, and of their names below the folder. Links are not followed."""
    total, start = hashlib.sha256(), len(str(folder)) + 1
    for name, path in sorted((path[start:].replace(os.sep, "/"), path) for top in tops for path in _files(str(top))):
        total.update(os.fsencode(f"{name}\0"))
        total.update(hashlib.sha256(_content(path)).digest())
    return total.hexdigest()


def _files(folder: str) -> Iterator[str]:
    """Yield the paths of the files and links below the folder that may be source."""
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # not even this process can import from it
        return
    with entries:
        for entry in entries:
            if NOT_SOURCE.search(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.is_symlink() or entry.is_file():
                yield entry.path


def _content(file: str) -> bytes:
    if os.path.islink(file):
        return os.fsencode(os.readlink(file))
    found = os.stat(file)
    if found.st_size > MOST_OF_SOURCE:
        return repr((found.st_size, found.st_mtime_ns)).encode()
    with open(file, "rb", buffering=0) as opened:
        return opened.read()
