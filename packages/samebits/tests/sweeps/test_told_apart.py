"""Which runs of several folders are one configuration, and whose data are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samebits.sweeps.report import Objective, groups
from samebits.sweeps.report.analyse import value_text
from samebits.sweeps.report.axes import axis
from samebits.sweeps.report.read import Job, Study, differing
from samebits.sweeps.report.study import same_data

LOSS = Objective("val/loss", "min")


def job(number: int, config: dict[str, Any], overrides: tuple[str, ...] = (), digest: str = "") -> Job:
    files = {"data.path": digest} if digest else {}
    score = {"val/loss": 1.0 + number}
    key, folder = str(number), Path("/none", str(number))
    return Job(key, number, folder, overrides, "finished", None, None, config, score, {}, [], files=files)


def study(*jobs: Job) -> Study:
    known = same_data(jobs)
    return Study("both", Path("/none"), known, differing(known), (LOSS,), is_sweep=False)


def labels(*jobs: Job) -> dict[str, int]:
    return {group.label: len(group.scores(LOSS)) for group in groups(study(*jobs))}


def of(lr: Any, seed: int, path: str = "${root:}/data/d.h5") -> dict[str, Any]:
    return {"optim.lr": lr, "seed": seed, "data.path": path, "name": "default"}


def test_values_and_not_their_spelling_tell_runs_apart() -> None:
    a = job(0, of(0.01, 0), ("optim.lr=0.01", "seed=0"))
    b = job(1, of(0.01, 1), ("optim.lr=1e-2", "seed=1", "logger=none"))
    c = job(2, of(1.0, 2), ("optim.lr=1.0",))
    d = job(3, of(1, 3), ("optim.lr=1",))
    assert labels(a, b, c, d) == {"optim.lr=0.01": 2, "optim.lr=1": 2}
    swept = study(a, b, c, d, job(4, of(1e5, 0)), job(5, of(100000, 1)))
    assert axis(swept, "optim.lr").values == [0.01, 1, 100000]
    assert [value_text(swept, each, "optim.lr") for each in swept.jobs] == ["0.01"] * 2 + ["1"] * 2 + ["100000"] * 2


def test_data_are_the_same_if_their_content_is() -> None:
    here, there = of(0.01, 0), of(0.01, 1, "/scratch/d.h5")
    typed = ("optim.lr=0.01",)
    assert len(labels(job(0, here, typed, "aa"), job(1, there, typed, "aa"))) == 1
    assert len(labels(job(0, here, typed, "aa"), job(1, there, typed, "bb"))) == 2
    assert len(labels(job(0, here, typed, "aa"), job(1, of(0.01, 1), typed, "bb"))) == 2, "one path, two contents"
    assert len(labels(job(0, here, typed), job(1, of(0.01, 1), typed, "bb"))) == 1, "an older run has its path alone"
    assert len(labels(job(0, here, typed), job(1, there, typed, "bb"))) == 2
    assert same_data([job(0, here), job(1, there)])[1].config["data.path"] == "/scratch/d.h5"


def test_what_sets_equal_labels_apart_is_named() -> None:
    typed = ("optim.lr=0.01",)
    pair = job(0, of(0.01, 0), typed, "aa"), job(1, of(0.01, 1), typed, "bb")
    texts = [f"data.path=${{root:}}/data/d.h5 (content {digest})" for digest in ("aa", "bb")]
    assert labels(*pair) == dict.fromkeys(texts, 1)
    third = job(2, of(0.1, 0), ("optim.lr=0.1",), "aa")
    assert set(labels(*pair, third)) >= {f"optim.lr=0.01 ({text})" for text in texts}
    wide = [job(i, {**of(0.01, i), "model.width": 8 * i}, typed) for i in (1, 2)]
    assert labels(*wide) == {"model.width=8": 1, "model.width=16": 1}
