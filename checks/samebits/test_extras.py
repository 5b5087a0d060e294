"""What is said of a library that is not there: one sentence, with the pip of this environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from common import ROOT

from samebits.errors import ConfigError
from samebits.extras import check_installed, need


def test_a_library_is_installed_by_the_pip_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    for prefix, pip in ((ROOT / ".venv", "./run pip"), (tmp_path / "link/.venv", "./run pip"), (Path("/usr"), "pip")):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        said = []
        for extra in ("tables", ""):
            for arguments in (("a=b", "no_such", extra), ("a=b", extra)):
                with pytest.raises(ConfigError) as error:
                    (need if len(arguments) == 3 else check_installed)("no_such", *arguments)
                said.append(str(error.value))
        begin = f"a=b needs no_such, which is not installed - {pip} install"
        assert said == [f"{begin} -e '.[tables]'"] * 2 + [f"{begin} no_such"] * 2


def test_what_a_library_itself_lacks_is_not_taken_for_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_there.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        need("half_there", "a=b", "half_there")


def test_the_way_to_install_is_worked_out_in_one_place() -> None:
    folders = [ROOT / "packages/samebits/src/samebits", ROOT / "packages/samebits/src/hydra_plugins"]
    found = {path.name for folder in folders for path in folder.rglob("*.py") if "pip install" in path.read_text()}
    assert found == {"extras.py"}
