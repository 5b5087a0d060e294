"""Give a fork the libraries: as wheels in vendor/, by a git address with a tag, or as a copy of packages/."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import wheels
from wheels import Mistake

WHEELS, COPY = "wheels", "copy"
FOLDER = "vendor"  # ./run installs the wheels in this folder
ADDRESS = re.compile(r"git\+(\w+://.+)@([^@/:]+)")
# a line of dependencies of pyproject.toml
REQUIREMENT = re.compile(r'^ +"(h5rows|samebits)(?: @ git\+(.+)@(.+)#.*)?",.*$', re.MULTILINE)
VERSION = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)


def check(choice: str) -> None:
    """Raise Mistake if this is not WHEELS, COPY, or git+ADDRESS@TAG of a repository that has this tag."""
    if choice not in (WHEELS, COPY):
        if not (found := ADDRESS.fullmatch(choice)):
            raise Mistake(f"--libraries {choice}: expected {WHEELS}, {COPY} or git+ADDRESS@TAG")
        check_tag(*found.groups())


def check_tag(address: str, tag: str) -> None:
    try:
        listed = wheels.git(Path.cwd(), "ls-remote", "--tags", "--refs", address).decode()
    except Mistake as error:
        raise Mistake(f"{address}: {str(error).partition(': ')[2]}") from None
    if tag not in (tags := re.findall(r"refs/tags/(.+)", listed)):
        raise Mistake(f"{address}: has no tag {tag}; it has {', '.join(tags) or 'none'}")


def depend(tree: Path, root: Path, choice: str) -> None:
    """Make a new fork depend on the libraries as chosen. tree: the fork's files, with the template's packages/. root:
    the template's checkout, of whose commit the wheels are built."""
    if choice == COPY:
        return
    dockerfile = tree / "Dockerfile"
    copies = f"COPY --chown=me {FOLDER} {FOLDER}\n"
    if choice == WHEELS:
        wheels.build(root, tree / FOLDER)
    else:
        copies = ""
        address, tag = ADDRESS.fullmatch(choice).groups()  # type: ignore[union-attr]
        require(tree / "pyproject.toml", address, tag)
    shutil.rmtree(tree / "packages")
    if dockerfile.exists():
        dockerfile.write_text(dockerfile.read_text().replace("COPY --chown=me packages packages\n", copies))


def require(pyproject: Path, address: str, tag: str) -> None:
    """Write the address and the tag into the dependencies."""
    text = pyproject.read_text(encoding="utf-8")
    new = REQUIREMENT.sub(lambda m: f'  "{m[1]} @ git+{address}@{tag}#subdirectory=packages/{m[1]}",', text)
    pyproject.write_text(new, encoding="utf-8")


def update(root: Path, source: str) -> list[str]:
    """Replace the libraries of the fork in root by those of the template in `source`: a folder or an address, @TAG or
    its newest commit. Return what has changed, a line for each library. Raise Mistake, with nothing changed, if there
    is no such template or tag, or if it cannot be built."""
    address, tag = split(source)
    required = {m[1]: m for m in REQUIREMENT.finditer((root / "pyproject.toml").read_text(encoding="utf-8")) if m[2]}
    if required:
        if not tag:
            raise Mistake(f"--update {source}: pyproject.toml has a tag of the libraries - give one, {source}@TAG")
        check_tag(address, tag)
        require(root / "pyproject.toml", address, tag)
        return [f"{name} {was[3]} -> {tag}" for name, was in required.items()]
    before = contents(root)
    if not before:
        raise Mistake(f"{root}: has no libraries, neither in packages/ nor as wheels in {FOLDER}/")
    with checkout(address, tag) as template, tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "new"
        if not wheels.git(template, "ls-tree", "HEAD", "packages/"):
            raise Mistake(f"{source}: has no packages/ - give the template, not a fork")
        if (root / "packages").is_dir():
            with tarfile.open(fileobj=io.BytesIO(wheels.git(template, "archive", "HEAD", "packages"))) as archive:
                archive.extractall(new, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            replace(root / "packages", new / "packages")
        else:
            wheels.build(template, new)
            replace(root / FOLDER, new)
    return changes(before, contents(root))


def split(source: str) -> tuple[str, str | None]:
    """Return (address, tag or None) of ADDRESS[@TAG] or the path of a folder."""
    if Path(source).exists():
        return str(Path(source).resolve()), None
    address, at, tag = source.removeprefix("git+").rpartition("@")
    if not at or re.search("[/:]", tag):  # the @ is that of user@host
        return source.removeprefix("git+"), None
    return str(Path(address).resolve()) if Path(address).exists() else address, tag


@contextmanager
def checkout(address: str, tag: str | None) -> Iterator[Path]:
    """Yield a folder with the template at this tag or, if it is None, its newest commit; delete it afterwards."""
    if tag:
        check_tag(address, tag)
    elif Path(address).is_dir() and (changed := wheels.changes(Path(address), "packages")):
        raise Mistake(f"{address}: {changed[0]} is not committed - git commit, or give a tag, {address}@TAG")
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheels.git(Path(folder), "clone", "--quiet", *(["--branch", tag] if tag else []), address, "template")
        except Mistake as error:
            raise Mistake(f"{address}: {str(error).partition(': ')[2]}") from None
        yield Path(folder) / "template"


def replace(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    shutil.copytree(new, old)


def contents(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return {library: (version, content)} of the fork in root."""
    found = {}
    for wheel in sorted((root / FOLDER).glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        found[name] = (version, wheel.read_bytes())
    for page in sorted(root.glob("packages/*/src/*/__init__.py")):
        if said := VERSION.search(page.read_text(encoding="utf-8")):
            files = sorted(f for f in page.parents[2].rglob("*") if not re.search(r"\.(pyc|egg-info)/", f"{f}/"))
            found[page.parent.name] = (said[1], b"".join(file.read_bytes() for file in files if file.is_file()))
    return found


def changes(before: dict[str, tuple[str, bytes]], now: dict[str, tuple[str, bytes]]) -> list[str]:
    lines = []
    for name in sorted({*before, *now}):
        (was, old), (version, new) = before.get(name, ("none", b"")), now.get(name, ("none", b""))
        same = "unchanged" if old == new else "same version, different content"
        lines.append(f"{name} {was} -> {version}" if was != version else f"{name} {version}: {same}")
    return lines
