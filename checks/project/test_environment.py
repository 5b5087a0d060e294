"""./run makes the environment: what it asks of pip and of uv, when, and what it says. constraints.txt beside
pyproject.toml. Nothing is installed: python3, pip and uv are stand-ins that note what they are asked."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checking import import_tool
from common import ROOT
from shell import executable, stamp_of

from samebits.testing.processes import called

PYTHON = f"""\
case "$1 $2" in
"-m venv") echo "venv $3" >>"$NOTES"
  mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
  [ -z "$NO_VENV" ] || {{ echo "no ensurepip"; exit 1; }} ;; # its python is there then, too
"-m pip") shift 2; echo "pip $*" >>"$NOTES"
  [ "$1" != install ] || [ -z "$PIP_FAILS" ] || {{ echo "ERROR: no network" >&2; exit 7; }}
  echo "Collecting torch"; echo "  Downloading small.whl (1.2 MB)"; echo "  Downloading torch.whl (873.2 MB)"
  echo "Installing collected packages: a, b, c" ;;
"-c import"*) exec "{sys.executable}" -S "$@" ;;
*)
  echo "python $*" >>"$NOTES"
  [ -z "$SAY_UTF8" ] || echo "utf8 $PYTHONUTF8 $LC_ALL"
  [ -z "$SAY_PID" ] || echo "pid $$" ;;
esac"""
UV = """echo "uv $*" >>"$NOTES"
[ "$1" = venv ] || [ -z "$UV_FAILS" ] || { echo "error: dns error" >&2; exit $UV_FAILS; }
for last; do :; done
[ "$1" != venv ] || { mkdir -p "$last/bin" && cp "$(command -v python3)" "$last/bin/python"; }"""
CPU = "no NVIDIA GPU here"


class Machine:
    """A folder with ./run, and a PATH with python3, perhaps uv and nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.notes = folder / "project", folder / "bin", folder / "notes"
        self.root.mkdir()
        for name in ("run", "pyproject.toml", "constraints.txt"):
            shutil.copy2(ROOT / name, self.root / name)
        self.has("python3", PYTHON)

    def has(self, name: str, script: str) -> None:
        self.bin.mkdir(exist_ok=True)
        executable(self.bin / name, script)

    def types(self, command: str, **environment: str) -> tuple[int, str, list[str]]:
        """Returns the exit status, what is shown, what was asked of the stand-ins."""
        self.notes.write_text("")
        given = {"PATH": f"{self.bin}:/usr/bin:/bin", "NOTES": str(self.notes), **environment}
        done = called(["bash", "-c", command], code=None, cwd=self.root, env=given, fresh=True)
        return done.returncode, done.stdout + done.stderr, self.notes.read_text().splitlines()

    def pip(self, extra: str) -> str:
        return f"pip install --disable-pip-version-check -c {self.root}/constraints.txt -e {self.root}[{extra}]"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("command", "extra", "then"),
    [
        ("./run train a=b", "all", "python {root}/src/train.py a=b"),
        ("./run test x", "dev", "python -m pytest -n auto --dist worksteal x"),
        ("./run docs", "docs", "python tools/reference.py; python -m mkdocs build"),
        ("./run python x.py", "all", "python x.py"),
    ],
)
def test_pip_installs_the_pinned_versions_once(machine: Machine, command: str, extra: str, then: str) -> None:
    commands = then.format(root=machine.root).split("; ")
    status, shown, asked = machine.types(command)
    assert (status, asked) == (0, [f"venv {machine.root}/.venv", machine.pip(extra), *commands])
    assert (machine.root / f".venv/stamp.{extra}").read_text() == stamp_of(machine.root)
    assert "  Downloading torch.whl (873.2 MB)\n  Installing 3 packages\n" in shown  # what takes long
    assert "Collecting" not in shown
    assert "small.whl" not in shown
    assert machine.types(command)[1:] == ("", commands)


def test_the_libraries_of_the_project_are_installed_with_it(machine: Machine) -> None:
    """Before it, as no index has them; and again where what one of them needs has changed."""
    for name in ("h5rows", "samebits"):
        (machine.root / f"packages/{name}").mkdir(parents=True)
        (machine.root / f"packages/{name}/pyproject.toml").write_text(f"# {name}")
    (machine.root / "packages/notes").mkdir()  # no distribution
    installed = machine.pip("all").replace(
        f"-e {machine.root}[",
        f"-e {machine.root}/packages/h5rows -e {machine.root}/packages/samebits -e {machine.root}[",
    )
    assert machine.types("./run python x.py")[2] == [f"venv {machine.root}/.venv", installed, "python x.py"]
    assert machine.types("./run python x.py")[2] == ["python x.py"]
    (machine.root / "packages/h5rows/pyproject.toml").write_text("# h5rows needs more")
    assert machine.types("./run python x.py")[2] == [installed, "python x.py"]


def test_wheels_in_vendor_are_installed_whatever_is_installed_already(machine: Machine) -> None:
    """Another wheel may have the same version, which neither pip nor uv would replace by itself."""
    (machine.root / "vendor").mkdir()
    names = [f"{machine.root}/vendor/{name}-0.3.0-py3-none-any.whl" for name in ("h5rows", "samebits")]
    for name in names:
        Path(name).write_text("first")
    alone = f"pip install --quiet --disable-pip-version-check --force-reinstall --no-deps {' '.join(names)}"
    whole = machine.pip("all").replace("-e ", f"{' '.join(names)} -e ")
    assert machine.types("./run python x.py")[2] == [f"venv {machine.root}/.venv", alone, whole, "python x.py"]
    assert (machine.root / ".venv/stamp.all").read_text() == stamp_of(machine.root)
    assert machine.types("./run python x.py")[2] == ["python x.py"]
    Path(names[0]).write_text("second")
    assert machine.types("./run python x.py")[2] == [alone, whole, "python x.py"]
    Path(names[0]).write_text("third")
    machine.has("uv", UV)
    (asked, _) = machine.types("./run python x.py")[2]
    again = "--reinstall-package h5rows --reinstall-package samebits"
    assert asked.endswith(f"constraints.txt {again} {' '.join(names)} -e {machine.root}[all]")


@pytest.mark.parametrize(("given", "locale"), [("", ""), ("C", "C.UTF-8"), ("de_DE.ISO-8859-1", "de_DE.ISO-8859-1")])
def test_files_and_names_are_utf8_whatever_the_locale(machine: Machine, given: str, locale: str) -> None:
    """site.py reads .pth files in the locale's encoding: with LC_ALL=C it fails in a folder whose name is not ASCII."""
    said = machine.types("./run train", SAY_UTF8="1", PYTHONUTF8="0", LC_ALL=given)[1].splitlines()
    assert f"utf8 1 {locale}".rstrip() in [line.rstrip() for line in said]


def test_signals_reach_the_program(machine: Machine) -> None:
    """It is the process that was started."""
    shown = machine.types("./run train & echo pid $!; wait", SAY_PID="1")[1]
    first, second = [line for line in shown.splitlines() if line.startswith("pid ")]
    assert first == second


def test_uv_chooses_torch_for_the_machine(machine: Machine) -> None:
    machine.has("uv", UV)
    status, shown, asked = machine.types("./run train")
    venv = f"{machine.root}/.venv"
    assert status == 0
    assert asked[:2] == [
        f"uv venv --quiet --seed --allow-existing --python >=3.10,<3.15 {venv}",
        f"uv pip install --python {venv}/bin/python --torch-backend=auto -c {machine.root}/constraints.txt "
        f"-e {machine.root}[all]",
    ]
    assert CPU not in shown
    assert len(machine.types("./run train")[2]) == 1


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_TORCH_BACKEND"])
def test_uv_takes_the_index_that_is_configured(machine: Machine, name: str) -> None:
    machine.has("uv", UV)
    _, _, asked = machine.types("./run train", **{name: "x"})
    assert asked[1] == (
        f"uv pip install --python {machine.root}/.venv/bin/python -c {machine.root}/constraints.txt "
        f"-e {machine.root}[all]"
    )


def test_pip_installs_where_uv_cannot(machine: Machine) -> None:
    """As where torch's index is out of reach, and pip has a mirror. An interrupted uv is the end."""
    machine.has("uv", UV)
    assert machine.types("./run train", UV_FAILS="130")[0] == 130
    status, shown, asked = machine.types("./run train", UV_FAILS="2")
    assert status == 0
    assert [line.split()[0] for line in asked] == ["uv", "pip", "python"]
    assert "uv could not install it (above). pip tries now" in shown
    assert "UV_DEFAULT_INDEX=INDEX ./run train" in shown
    assert machine.types("./run train", UV_FAILS="2")[2] == [f"python {machine.root}/src/train.py"]


def test_help_of_fork_installs_nothing(machine: Machine) -> None:
    for asks in ("--help", "mine -h"):
        status, _, asked = machine.types(f"./run fork {asks}")
        assert (status, asked) == (0, [f"python {machine.root}/tools/fork.py --help"])


@pytest.mark.slow
def test_what_is_newer_is_installed(machine: Machine) -> None:
    """dev has all of all; docs has not."""

    def installed(command: str) -> list[str]:
        return [line for line in machine.types(command)[2] if line.startswith("pip install")]

    assert installed("./run docs") == [machine.pip("docs")]
    assert installed("./run lint") == [machine.pip("dev")]
    assert installed("./run train") == []
    for name in ("constraints.txt", "pyproject.toml"):
        (machine.root / name).write_text((machine.root / name).read_text() + "\n")
        assert installed("./run train") == [machine.pip("all")]
        assert installed("./run test") == [machine.pip("dev")]
    (machine.root / "constraints.txt").unlink()
    free = machine.pip("all").replace(f"-c {machine.root}/constraints.txt ", "")
    assert installed("./run train") == [free]
    assert installed("./run train") == []


def test_pip_comes_before_what_cannot_be_installed(machine: Machine) -> None:
    """A wheel that no index has."""
    assert machine.types("./run train", PIP_FAILS="1")[0] == 7
    status, _, asked = machine.types("./run pip install --no-deps x.whl")
    assert (status, asked) == (0, ["pip install --no-deps x.whl"])
    assert machine.types("./run train")[2][0] == machine.pip("all")


def test_what_failed_is_tried_again(machine: Machine) -> None:
    status, shown, _ = machine.types("./run train", NO_VENV="1")
    assert status == 2
    assert "no ensurepip" in shown
    status, shown, asked = machine.types("./run train", PIP_FAILS="1")
    assert status == 7
    assert "ERROR: no network" in shown
    assert [line.split()[0] for line in asked] == ["venv", "pip"]
    assert [line.split()[0] for line in machine.types("./run train")[2]] == ["pip", "python"]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists() or sys.platform != "linux", reason="of Linux without a GPU")
@pytest.mark.parametrize(
    ("given", "gpu", "said"), [({}, False, True), ({}, True, False), ({"PIP_EXTRA_INDEX_URL": "x"}, False, False)]
)
def test_pip_without_a_gpu_says_how_to_get_the_cpu_build(
    machine: Machine, given: dict[str, str], gpu: bool, said: bool
) -> None:
    if gpu:
        machine.has("nvidia-smi", "true")
    elif shutil.which("nvidia-smi", path="/usr/bin:/bin"):
        pytest.skip("it is in /usr/bin")
    shown = machine.types("./run train", **given)[1]
    assert (CPU in shown) is said
    assert ("PIP_EXTRA_INDEX_URL=ADDRESS ./run" in shown) is said


# -- constraints.txt -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def constraints() -> Any:
    return import_tool("constraints")


PROJECT = {
    "name": "lab",
    "dependencies": ["torch>=2.8,<2.16"],
    "optional-dependencies": {
        "more": ["zarr>=3; python_version>='3.11'"],
        "dev": ["lab[more]", "Ruff>=0.8"],
        "no": ["x"],
    },
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch==2.13.0\nzarr==3.1\nruff==0.17 # why\nother==1\n", []),
        ('torch==2.13.0 ; python_version >= "3.11"\nzarr==3.1\nruff==0.17\n', []),
        ("torch==2.16.0\nzarr==3.1\nruff==0.17\n", ["has torch==2.16.0, pyproject.toml asks for torch<2.16,>=2.8"]),
        ("torch==2.13.0\nruff==0.17\n", ["has no zarr, which pyproject.toml asks for"]),
        ("torch==2.13.0\nzarr==3.1\nruff>=0.17\n", ["ruff>=0.17: is no version", "has no Ruff"]),
        ("torch==2.13.*\nzarr==2\nruff==0.7\n", ["torch==2.13.*: is no version", "no torch", "zarr==2,", "Ruff==0.7,"]),
    ],
)
def test_a_disagreement_with_pyproject_is_named(constraints: Any, text: str, said: list[str]) -> None:
    found = sorted(constraints.disagreements(PROJECT, text))
    assert len(found) == len(said)
    assert all(any(part in line for line in found) for part in said)


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    assert called([sys.executable, "tools/constraints.py", "--check"], cwd=ROOT, fresh=True).stderr == ""


INSTALLED = {  # {name: (version, the Pythons it takes, what it needs)}
    "torch": ("2.13.0+cpu", ">=3.10", ["sympy>=1.13", "nvidia; platform_system == 'no such'", "fsspec[http]"]),
    "zarr": ("3.1", ">=3.12", ["Numcodecs"]),
    "Ruff": ("0.17", None, []),
    "sympy": ("1.14", "<3.13", ["torch"]),
    "fsspec": ("2026.1", "", ["aiohttp; extra == 'http'", "dask; extra == 'dask'"]),
    "Numcodecs": ("1", "", []),
    "aiohttp": ("3", "", []),
    "x": ("1", "", []),
}


def test_what_is_written_has_all_that_dev_needs(constraints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> Any:
        version, pythons, needs = INSTALLED[name]
        return SimpleNamespace(version=version, metadata={"Requires-Python": pythons}, requires=needs)

    monkeypatch.setattr(constraints, "distribution", distribution)
    text = constraints.pinned({**PROJECT, "requires-python": ">=3.11"})
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        "aiohttp==3", "fsspec==2026.1", "Numcodecs==1", "Ruff==0.17",
        'sympy==1.14 ; python_version <= "3.12"', "torch==2.13.0", 'zarr==3.1 ; python_version >= "3.12"',
    ]  # fmt: skip
    assert constraints.disagreements(PROJECT, text) == []
