"""No link of a run directory leads out of it, and a config is read by sections as it is whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from samebits.errors import ConfigError
from samebits.loggers import Audio, Histogram, Table, media
from samebits.loggers.wandb_upload import log_artifact, shown
from samebits.saved import check_run_dir
from samebits.saved.config import checked_yaml, load_sections


def foreign(folder: Path) -> Path:
    (folder / "precious").write_text("precious\n")
    return folder / "precious"


def test_links_of_wandb_itself_are_no_reason_to_refuse_a_run(tmp_path: Path) -> None:
    """Each run that is sent has one to wandb's cache. A link in the place of such a folder is refused."""
    target = foreign(tmp_path)
    logs = tmp_path / "run" / "wandb" / "run-20261127_021622-9372e2c4" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(target)
    check_run_dir(tmp_path / "run")
    (tmp_path / "run" / "run-1").mkdir()
    (tmp_path / "run" / "run-1" / "x").symlink_to(target)
    with pytest.raises(ConfigError, match="run-1/x: is a symbolic link"):
        check_run_dir(tmp_path / "run")
    (tmp_path / "run" / "run-1" / "x").unlink()
    (tmp_path / "run" / "wandb" / "run-2").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ConfigError, match="wandb/run-2: is a symbolic link"):
        check_run_dir(tmp_path / "run")


def test_of_a_sweep_the_jobs_alone_are_left_out(tmp_path: Path) -> None:
    """As each has a door of its own; of thousands all would be looked into with each command."""
    target = foreign(tmp_path)
    for name in ("job", "other"):
        (tmp_path / "sweep" / name / "job").mkdir(parents=True)
    (tmp_path / "sweep" / "job" / "x").symlink_to(target)
    check_run_dir(tmp_path / "sweep", ["job"])
    (tmp_path / "sweep" / "other" / "job" / "x").symlink_to(target)
    with pytest.raises(ConfigError, match="other/job/x: is a symbolic link"):
        check_run_dir(tmp_path / "sweep", ["job"])


class Drawn:
    """As a matplotlib figure."""

    def savefig(self, file: Any, **options: Any) -> None:
        file.write(b"picture")


def test_what_a_run_shows_replaces_links(tmp_path: Path) -> None:
    """Also where they appear after the directory was claimed."""
    target = foreign(tmp_path)
    shown: dict[str, Any] = {
        "image": np.zeros((2, 2), np.uint8), "figure": Drawn(), "audio": Audio(np.zeros(4), 8), "text": "x",
        "table": Table(["a"], [[1]]), "histogram": Histogram(np.arange(3)),
    }  # fmt: skip
    for name, value in shown.items():
        kind = media.save(tmp_path, 1, name, value).kind
        path = media.media_file(tmp_path, 1, name, kind)
        content = path.read_bytes()
        path.unlink()
        path.symlink_to(target)
        media.save(tmp_path, 1, name, value)
        assert path.read_bytes() == content
        assert not path.is_symlink()
    assert target.read_text() == "precious\n"


def test_an_upload_follows_no_link(tmp_path: Path) -> None:
    target, sent = foreign(tmp_path), []
    run = SimpleNamespace(id="a", offline=True, log_artifact=lambda artifact, aliases: sent.append(artifact))
    for kind in media.SUFFIXES:
        path = media.media_file(tmp_path, 1, kind, kind)
        path.parent.mkdir(parents=True)
        path.symlink_to(target)
        with pytest.raises(ConfigError, match="is a symbolic link"):
            shown(tmp_path, {"step": 1, "media": {kind: kind}})
    folder = tmp_path / "checkpoints" / "best_000000004.dcp"
    folder.mkdir(parents=True)
    (folder / "rest.pt").write_bytes(b"x")
    log_artifact(run, {"best_step": 4}, folder)
    assert [list(artifact.manifest.entries) for artifact in sent] == [["best_000000004.dcp/rest.pt"]]
    for link in (folder / "id_rsa", folder.with_name("frozen.pt")):
        link.symlink_to(target)
        with pytest.raises(ConfigError, match="is a symbolic link"):
            log_artifact(run, {"best_step": 4}, folder)
        link.unlink()
    assert len(sent) == 1


def test_a_config_read_by_its_sections_is_that_read_whole() -> None:
    """And is checked as that is."""
    for text in (
        "a: 1\nb:\n  c: [1, 2]\n", "", "# nothing\n", "a:\n- 1\n- b: 2\nc: null\n", 'a: "one\nb: two"\nc: 3\n',
        "a: {x: 1,\ny: 2}\n", "a: x\n'b': 2\n", "a: 1\na: 2\n", "---\na: |\n  b: c\n\n  d\ne: 5\n", "a: |\nb: c\n",
    ):  # fmt: skip
        assert load_sections(text) == checked_yaml(text)
    for text in ("a: 1\nb: &x 2\nc: *x\n", "a: 1\nb: !!python/none 2\n", "a: 1\nb: " + "[" * 60 + "]" * 60):
        with pytest.raises(ValueError, match="line 2"):
            load_sections(text)
