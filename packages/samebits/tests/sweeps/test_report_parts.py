"""The parts of a report: axes, importance, curves, the page, files that it writes."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.sweeps import report
from samebits.sweeps.report import Objective, groups, write_study
from samebits.sweeps.report.axes import axis
from samebits.sweeps.report.curves import band
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.importance import importance
from samebits.sweeps.report.page import data, page
from samebits.sweeps.report.read import Job, Study
from samebits.sweeps.report.table import Ask
from samebits.sweeps.report.text import markdown
from samebits.testing.processes import called

LOSS = Objective("val/loss", "min")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


FORMULAS = ["$HOME/x_$USER", "a$b^^c$", r"$\foo{$", r"$\beta$", "$x^2$", r"\$a$", "a_b^{", "$$", "#%&~{}"]


@pytest.mark.slow
def test_dollars_in_values_are_no_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each picture of a report and of a paper's: labels, ticks, titles and legends; nor are 10**-3 of an axis."""
    pytest.importorskip("matplotlib", reason="extra `report`")
    from matplotlib import mathtext

    def parse(*given: Any, **more: Any) -> None:
        raise AssertionError(f"a formula: {given}")

    monkeypatch.setattr(mathtext.MathTextParser, "parse", parse)
    columns: dict[str, list[Any]] = {"data.path": FORMULAS * 2, r"$\key$": FORMULAS[::-1] * 2}
    columns["optim.lr"] = [1e-3, 1e-5] * 9
    one = made("$a$", columns, [10.0**-i for i in range(18)], folder=tmp_path)
    key = r"val/$\foo{$"
    jobs = tuple(
        replace(job, result={key: 10.0**-i, "b": float(i)}, curves={key: [(1, 1.0), (90, 10.0**-i)]})
        for i, job in enumerate(one.jobs)
    )
    study = replace(one, jobs=jobs, objectives=(Objective(key, "min"), Objective("b", "max")))
    write_study(study, Ask(["data.path"], [key], ["optim.lr"], [], "sd", ("step",), (3.25, 6.75)))
    drawn = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"curves.png", "scores.pdf", "objectives.png"} <= drawn
    assert len(list((tmp_path / "paper").glob("*.pdf"))) >= 4


def test_what_a_killed_report_has_left_is_removed(tmp_path: Path) -> None:
    """Of this machine and of a process that is gone; what is another's stays."""
    study = made("grid", {"width": [16, 32]}, [1.0, 2.0], folder=tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = [f".report.csv.{platform.node()}.{gone.pid}", f"report/.scores.png.{platform.node()}.{gone.pid}",
            f"paper/.table.md.{platform.node()}.{gone.pid}"]  # fmt: skip
    others = [f".report.csv.elsewhere.{gone.pid}", f".report.csv.{platform.node()}.{os.getppid()}", "mine.txt"]
    for name in left + others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    write_study(study)
    assert [name for name in left + others if (tmp_path / name).exists()] == others


@pytest.mark.parametrize("name", ["report", "paper"])
def test_a_report_writes_through_no_link(name: str, tmp_path: Path) -> None:
    study = made("grid", {"width": [16, 32]}, [1.0, 2.0], folder=tmp_path / "to")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "scores.png").write_bytes(b"mine")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / name).symlink_to(tmp_path / "pictures")
    with pytest.raises(ConfigError, match=rf"to/{name}: is a symbolic link to .*; replace it with a folder"):
        write_study(study, Ask(["width"], ["val/loss"], [], [], "sd", ("step",), (3.25, 6.75)))
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "pictures").iterdir()] == [("scores.png", b"mine")]


def made(name: str, columns: dict[str, list[Any]], scores: list[float | None], folder: Path = Path("/none")) -> Study:
    """A study as `read` would make it, from values and scores. A value of ...: the job has no such key."""
    configs = [{k: column[i] for k, column in columns.items() if column[i] is not ...} for i in range(len(scores))]
    jobs = tuple(
        Job(
            str(i), i, folder / str(i), tuple(f"{key}={value}" for key, value in configs[i].items()),
            "finished" if score is not None else "failed", None if score is not None else "ValueError: no", None,
            configs[i], {} if score is None else {"val/loss": score}, {}, [],
        )
        for i, score in enumerate(scores)
    )  # fmt: skip
    return Study(name, folder, jobs, tuple(columns), (LOSS,), is_sweep=True)


@pytest.mark.parametrize(
    ("values", "kind", "named"),
    [
        ((1e-4, 1e-3, 1e-2), "log", True),
        ((1e-3, 3e-3, 1e-2, 3e-2), "log", True),
        ((0.0, 0.1, 0.2), "linear", True),
        (range(1, 11), "linear", False),
        ((1e-3, 1e-2, 1e25), "log", False),
        ((0.001904, 0.0021, 0.0119, 0.0125, 0.0501, 0.08311), "log", False),  # numbers stay numbers
        (([16], [32]), "category", True),
        ((None, 1.0), "category", True),
        ((True, False), "category", True),
    ],
)
def test_the_scale_of_an_axis_follows_the_values(values: Any, kind: str, named: bool) -> None:
    found = axis(made("x", {"a": list(values)}, [1.0] * len(values)), "a")
    assert (found.kind, found.named) == (kind, named)


def test_importance_of_a_search_is_optuna_s() -> None:
    """And of a grid: it tells what matters from what does not, also where one job diverged."""
    pytest.importorskip("optuna", reason="importance needs it")
    columns = {"optim.lr": [10 ** (-i / 10) for i in range(40)], "b": [((13 * i) % 40) / 40 for i in range(40)]}
    scores: list[float | None] = [abs(i - 20) + 0.0 for i in range(40)]
    found = importance(made("x", columns, scores))
    assert found is not None
    assert "PED-ANOVA" in found.note
    assert next(iter(found.shares)) == "optim.lr"
    grid = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3) for _ in range(3)]
    columns = {"matters": [a for a, _ in grid], "does not": [b for _, b in grid]}
    scores = [a + 0.01 * ((7 * i) % 5) for i, (a, _) in enumerate(grid)]
    for diverged in (1.0, 1e9):
        scores[0] = diverged
        found = importance(made("x", columns, scores))
        assert found is not None
        assert found.shares["matters"] > 0.85
        assert found.shares["does not"] < 0.05
    assert importance(made("x", columns, [1.0, 2.0] + [None] * 25)) is None  # two scores say nothing


def test_keys_whose_values_form_pairs_are_one_key_of_the_importance() -> None:
    """sweep.zip=optim,optim.lr: which of the two matters cannot be known."""
    pytest.importorskip("optuna", reason="importance needs it")
    grid = [(pair, b) for pair in (("adamw", 0.001), ("sgd", 0.1), ("lion", 0.01)) for b in (1, 2, 3) for _ in range(3)]
    columns = {"optim": [o for (o, _), _ in grid], "optim.lr": [lr for (_, lr), _ in grid], "b": [b for _, b in grid]}
    scores = [100 * columns["optim.lr"][i] + 0.01 * ((7 * i) % 5) for i in range(len(grid))]
    zipped = replace(made("x", columns, scores), commands=(("sweep.zip=[optim,optim.lr]",),))
    found = importance(zipped)
    assert found is not None
    assert found.shares.keys() == {"optim, optim.lr", "b"}
    assert found.shares["optim, optim.lr"] > 2 * found.shares["b"]


@pytest.mark.slow
def test_a_key_that_only_some_jobs_have_is_shown_for_these(tmp_path: Path) -> None:
    """optim.momentum, searched with sgd alone: its axis stays one of numbers, and the other jobs' lines pass it by."""
    pytest.importorskip("optuna", reason="importance needs it")
    pytest.importorskip("plotly", reason="needs the extra report")
    sgd = [i % 2 == 0 for i in range(40)]
    columns = {
        "optim": ["sgd" if one else "adamw" for one in sgd],
        "optim.momentum": [0.5 + i / 100 if one else ... for i, one in enumerate(sgd)],
        "optim.lr": [10 ** (-1 - i % 5) * (1 + i / 1000) for i in range(40)],
    }
    study = made("x", columns, [abs(i - 20) + 5.0 * one for i, one in enumerate(sgd)], tmp_path)
    assert axis(study, "optim.momentum").kind == "linear"
    known = Facts(study)
    found = known.importance
    assert found is not None
    assert set(found.shares) == {"optim", "optim.momentum", "optim.lr"}
    assert all(0 <= share <= 1 for share in found.shares.values())
    assert found.note.endswith("optim.momentum: of the jobs that have it")
    shown = data(known)
    assert shown["axes"][1]["values"] == [value for value in columns["optim.momentum"] if value is not ...]
    assert shown["jobs"][1]["values"]["optim.momentum"] == {"text": "-", "place": None}
    assert {group.label for group in groups(study)} >= {"optim=adamw lr=0.01001", "optim=sgd momentum=0.5 lr=0.1"}
    assert "| adamw | - | " in markdown(known)
    files = {path.name for path in write_study(study)}
    assert {"scores.png", "report.html", "groups.csv"} <= files
    momenta = [row["optim.momentum"] for row in rows(tmp_path / "report.csv")]
    assert [bool(text) for text in momenta] == sgd


def test_pareto_holds_those_that_nothing_beats() -> None:
    study = made("x", {"a": [1, 2, 3, 4]}, [1.0, 2.0, 3.0, 4.0])
    accuracy = Objective("val/accuracy", "max")
    for job, value in zip(study.jobs, (0.5, 0.9, 0.8, 0.95)):
        job.result["val/accuracy"] = value  # type: ignore[index]
    both = Study("x", study.directory, study.jobs, study.swept, (LOSS, accuracy), is_sweep=True)
    shown = data(Facts(both))
    assert [group["label"] for group in shown["groups"] if group["front"]] == ["a=1", "a=2", "a=4"]
    # each objective has a best of its own
    assert [(best["key"], best["label"]) for best in shown["best"]] == [("val/loss", "a=1"), ("val/accuracy", "a=4")]
    text = markdown(Facts(both))
    assert "**Best: a=1**, val/loss 1" in text
    assert "**Best: a=4**, val/accuracy 0.95" in text


def test_long_curves_are_thinned_to_the_same_steps() -> None:
    study = made("x", {"a": [1, 1]}, [1.0, 1.0])
    long = [(i, float(i)) for i in range(1, 20_001)]
    jobs = tuple(
        Job(**{**job.__dict__, "curves": {"val/loss": points}})
        for job, points in zip(study.jobs, (long, long[:15_001]))
    )
    held = data(Facts(replace(study, jobs=jobs)))["jobs"]
    a, b = (job["curves"]["val/loss"][0] for job in held)
    assert len(a) <= 1501
    assert a[-1] == 20_000
    assert set(b[:-1]) <= set(a)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def in_a_browser(text: str, script: str, tmp_path: Path, *options: str) -> str:
    """The page's DOM, or what another option asks for, after `script`."""
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2400"]
    done = called([*command, *(options or ("--dump-dom",)), f"file://{path}"], fresh=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_selection_holds_for_all_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="extra `report`")
    columns = {"lr": [10 ** (-i / 10) for i in range(20)], "width": [16, 32] * 10}
    study = made("grid", columns, [float(i) for i in range(20)], folder=tmp_path)
    jobs = tuple(Job(**{**job.__dict__, "curves": {"val/loss": [(1, 2.0), (2, 1.0)]}}) for job in study.jobs)
    text = page(Facts(replace(study, jobs=jobs)))
    script = """
        Plotly.restyle("parallel", {"dimensions[2].constraintrange": [[17.5, 19]]}).then(() => {
          const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => row.textContent);
          const buttons = [...document.querySelectorAll("#curves .modebar-btn")].map((b) => b.dataset.title);
          document.title = JSON.stringify({
            groups: rows("groups"), jobs: rows("jobs"), legend: $("legend").textContent,
            traces: $("curves").data.map((t) => t.line.color), ticks: $("score-0").layout.xaxis.type, buttons });
        });
    """
    dom = in_a_browser(text, script, tmp_path)
    seen = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]))  # type: ignore[index]
    assert len(seen["groups"]) == len(seen["jobs"]) == 2
    assert "lr=0.01585 width=16" in seen["legend"]
    assert "others" not in seen["legend"]
    assert len(set(seen["traces"])) == 2  # colours of their own
    assert seen["ticks"] == "log"
    assert seen["buttons"]
    assert not [name for name in seen["buttons"] if "hare" in name]


def test_a_name_ends_no_script_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    text = page(Facts(made(evil, {"a": [evil, "b"]}, [1.0, 2.0])))
    assert evil not in text
    assert json.loads(text.partition('id="data">')[2].partition("</script>")[0])["name"] == evil


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="extra `report`")
    columns = {"optim.lr": [10**-i for i in (1, 2, 3, 4)] * 6, "width": [16] * 8 + [32] * 8 + [64] * 8}
    study = made("grid", columns, [float(i) for i in range(24)], folder=tmp_path)
    write_study(study)
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    assert set(pictures) == {"scores.png", "scores.pdf"}  # nothing was logged: no curves
    begin = {".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(data.startswith(begin[name[-4:]]) and len(data) > 5000 for name, data in pictures.items())


def test_a_band_is_of_the_seeds_that_have_come_so_far() -> None:
    study = made("x", {"a": [1, 1, 1, 1]}, [1.0, 1.0, 1.0, None])
    curves = [[(1, 1.0), (2, 2.0), (3, 9.0)], [(1, 3.0), (2, 4.0)], [], [(1, 100.0)]]
    jobs = [Job(**{**job.__dict__, "curves": {"val/loss": c}}) for job, c in zip(study.jobs, curves)]
    found = band(jobs, "val/loss")
    assert found is not None
    assert (found.steps, found.mean, found.seeds) == ([1, 2, 3], [2.0, 3.0, 9.0], 2)  # the failed one is not in it
    assert found.low[0] == pytest.approx(2.0 - math.sqrt(2))


NODE = shutil.which("node")
PRELUDE = """
const nodes = {}, drawn = {}, redraws = [], PLOT_TOOLS = {};
const $ = (id) => (nodes[id] ??= { hidden: true, value: "", append() {}, addEventListener() {} });
const Plotly = { react: (id, traces, layout) => { drawn[id] = { traces, layout }; } };
const shownJob = () => true, css = () => "", faintColor = css, plain = String, round = String, layout = (l) => l;
const element = () => ({}), viridis = (badness) => badness;
"""
LOOK = """
const firstTwo = [contourAxis("x").key, contourAxis("y").key];
nodes["contour-x"].value = "optim.lr"; nodes["contour-y"].value = "optim.momentum";
redraws.forEach((draw) => draw());
const [area, dots] = drawn.contour.traces, kind = drawn.contour.layout.xaxis.type;
console.log(JSON.stringify({ history: drawn.history.traces.map((t) => t.y), firstTwo, kind, dots: dots.x.length,
  shown: ["history", "contour"].map((name) => !nodes[`${name}-section`].hidden), z: area.z,
  ends: [area.colorscale[0][1], area.colorscale[4][1]] }));
"""


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_the_page_of_a_search_has_its_history_and_a_contour_of_two_keys(tmp_path: Path) -> None:
    """20 trials, the last without a score; every other one has a momentum. The functions draw the page's data."""
    columns = {
        "optim": ["sgd", "adamw"] * 10,
        "optim.momentum": [0.5 + i / 100 if i % 2 == 0 else ... for i in range(20)],
        "optim.lr": [10 ** (-1 - i % 5) * (1 + i / 1000) for i in range(20)],
    }
    scores = [float((7 * i) % 19) for i in range(19)]
    study = replace(made("s", columns, [*scores, None], folder=tmp_path), is_search=True)
    web = Path(report.__file__).parent / "web"
    helpers = (web / "scores.js").read_text().partition("function scoreTraces")[0]
    parts = [f"const D = {json.dumps(data(Facts(study)))};", PRELUDE, helpers, (web / "search.js").read_text(), LOOK]
    (tmp_path / "page.js").write_text("\n".join(parts).replace('"use strict";', ""))
    done = called([str(NODE), str(tmp_path / "page.js")], fresh=True)
    found = json.loads(done.stdout)
    assert found["history"] == [[], scores, [min(scores[: i + 1]) for i in range(19)]]
    assert (found["firstTwo"], found["kind"], found["dots"]) == (["optim", "optim.momentum"], "log", 10)
    assert found["shown"] == [True, True]
    assert found["ends"] == [0, 1]  # the least loss has the colour of the best, as in the parallel coordinates
    measured = sorted(z for row in found["z"] for z in row if z is not None)
    assert measured == sorted(scores[::2])
    assert len(found["z"]) == len(found["z"][0]) == 10
