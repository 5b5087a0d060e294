"""The paper's table: equal to a few lines by hand, chosen by validation alone, and one line for each mistake."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samebits.errors import ConfigError
from samebits.sweeps.report import Objective, write_study
from samebits.sweeps.report.against import lines
from samebits.sweeps.report.read import Job, Study
from samebits.sweeps.report.sheet import latex_table, page_table, rounded
from samebits.sweeps.report.table import Ask, Table, table
from samebits.sweeps.report.table_text import paper_csv, paper_markdown, paper_sheet

VAL = Objective("val/accuracy", "max")
ASK = Ask(["model"], ["test/accuracy", "test/loss"])


def job(number: int, folder: Path, values: dict[str, Any], result: dict[str, float] | None, **more: Any) -> Job:
    """model and data are groups, known by the overrides alone; all else is in the config, too."""
    overrides = tuple(f"{key}={value}" for key, value in values.items())
    config = {key: value for key, value in values.items() if key not in ("model", "data")}
    status = "finished" if result is not None else "failed"
    path = folder / str(number)
    return Job(str(number), number, path, overrides, status, None, None, config, result or {}, {}, [], **more)


def study(jobs: Sequence[Job], folder: Path = Path("/none")) -> Study:
    swept = tuple(dict.fromkeys(o.partition("=")[0] for one in jobs for o in one.overrides))
    return Study("s", folder, tuple(jobs), swept, (VAL,), is_sweep=True)


def drawn(random: np.random.Generator, folder: Path = Path("/none")) -> Study:
    """Models x data x rates x seeds, some of them without a job or a score, in random order."""
    jobs = []
    for model in ("mlp", "conv", "gru"):
        for data in ("digits", "signals"):
            for lr in (0.001, 0.01, 0.1):
                for seed in range(4):
                    if random.random() < 0.1:
                        continue
                    scores = dict(zip(("val/accuracy", "test/accuracy", "test/loss"), random.random(3).tolist()))
                    values = {"model": model, "data": data, "optim.lr": lr, "seed": seed}
                    jobs.append((values, scores if random.random() < 0.9 else None))
    return study([job(i, folder, *jobs[place]) for i, place in enumerate(random.permutation(len(jobs)))], folder)


def by_hand(jobs: Sequence[Job], key: str, **named: str) -> tuple[float | None, list[float]]:
    """(the rate that is chosen, the scores that are shown) of one cell."""
    found: dict[float, list[tuple[float, float]]] = {}
    for one in jobs:
        if one.result and all(f"{k}={v}" in one.overrides for k, v in named.items()):
            found.setdefault(one.config["optim.lr"], []).append((one.result["val/accuracy"], one.result[key]))
    if not found:
        return None, []
    most = max(map(len, found.values()))
    full = {lr: scores for lr, scores in found.items() if len(scores) == most}
    best = max(full, key=lambda lr: statistics.fmean(val for val, _ in full[lr]))
    return best, [test for _, test in full[best]]


def as_markdown(made: Table) -> str:
    return paper_markdown(made, [])


def as_latex(made: Table) -> str:
    return latex_table(paper_sheet(made))


def as_data(made: Table) -> dict[str, Any]:
    return page_table(paper_sheet(made))


def csv_rows(made: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(paper_csv(made))))


@pytest.mark.parametrize("seed", range(2))
def test_every_number_is_that_of_a_few_lines_by_hand(seed: int) -> None:
    given = drawn(np.random.default_rng(seed))
    made = table(given, Ask(["model"], ["test/accuracy", "test/loss"], ["data"]))
    rows = csv_rows(made)
    assert len(rows) == 3 * 2 * 2
    for row in rows:
        lr, values = by_hand(given.jobs, row["score"], model=row["model"], data=row["column"])
        assert row["chosen"] == ("" if lr is None else f"lr={lr:g}")
        assert int(row["n"]) == len(values)
        assert float(row["mean"]) == pytest.approx(statistics.fmean(values), rel=1e-12)
        assert float(row["error"]) == pytest.approx(statistics.stdev(values), rel=1e-12)
    for column in ("digits", "signals"):
        for key, best in (("test/accuracy", max), ("test/loss", min)):
            of_one = {r["model"]: float(r["mean"]) for r in rows if (r["column"], r["score"]) == (column, key)}
            bold = [r["model"] for r in rows if (r["column"], r["score"], r["best"]) == (column, key, "True")]
            assert len(bold) == 1
            fewest = min(int(r["n"]) for r in rows if r["column"] == column)
            assert fewest < 4 or of_one[bold[0]] == best(of_one.values())


@pytest.mark.parametrize("seed", range(2))
def test_test_scores_have_no_say_in_the_choice(seed: int) -> None:
    random = np.random.default_rng(seed)
    given = drawn(random)
    done = [one for one in given.jobs if one.result]
    tests = [{k: v for k, v in one.result.items() if k.startswith("test")} for one in done]
    other = dict(zip((one.key for one in done), (tests[i] for i in random.permutation(len(tests)))))
    jobs = tuple(replace(one, result={**one.result, **other.get(one.key, {})}) for one in given.jobs)
    before, after = (table(one, ASK) for one in (given, replace(given, jobs=jobs)))
    assert [cell.chosen for _, _, cell in before.cells()] == [cell.chosen for _, _, cell in after.cells()]
    assert csv_rows(before) != csv_rows(after)


def test_seeds_are_never_chosen_and_rows_stand_as_they_were_swept() -> None:
    made = table(drawn(np.random.default_rng(0)), ASK)
    assert all(re.fullmatch(r"data=\w+ lr=[\d.]+", cell.chosen) for _, _, cell in made.cells())
    order = dict.fromkeys(o for one in made.study.jobs for o in one.overrides if o.startswith("model="))
    assert [f"model={row.names[0]}" for row in made.rows] == list(order)


def small(values: dict[str, list[float]], folder: Path = Path("/none")) -> Study:
    """{model: test accuracies of its seeds}"""
    rows = [(model, seed, v) for model, scores in values.items() for seed, v in enumerate(scores)]
    return study([
        job(i, folder, {"model": model, "seed": seed}, {"val/accuracy": 0.5, "test/accuracy": v, "test/loss": 1 - v})
        for i, (model, seed, v) in enumerate(rows)
    ])  # fmt: skip


def test_what_stands_after_the_plus_minus_is_what_is_said() -> None:
    values = [0.80, 0.84, 0.85]
    given = small({"a": values, "b": [0.5, 0.6, 0.7]})
    sd = statistics.stdev(values)
    for spread, error, words in (
        ("sd", sd, "standard deviation over seeds"),
        ("se", sd / math.sqrt(3), "standard error of the mean"),
        ("interval", 4.302653 * sd / math.sqrt(3), "95 % interval"),
    ):
        made = table(given, Ask(["model"], ["test/accuracy"], spread=spread))
        assert made.rows[0].cells[0].scores[0].error == pytest.approx(error, rel=1e-6)
        assert all(words in said for said in (as_markdown(made), as_latex(made).replace(r"\%", "%"), paper_csv(made)))
        assert words in json.dumps(as_data(made))
    pair = table(small({"a": values[:2], "b": values}), Ask(["model"], ["test/accuracy"], spread="interval"))
    assert pair.rows[0].cells[0].scores[0].error is None
    assert "| a | 0.82‡ | 2 |" in as_markdown(pair)
    assert "- without ±: too few seeds for it" in as_markdown(pair)


@pytest.mark.parametrize(
    ("mean", "error", "says"),
    [
        (83.47, 3.279, ("83.5", "3.3", 0)), (83.47, 5.1, ("83", "5", 0)), (0.3287, 0.001155, ("0.3287", "0.0012", 0)),
        (1234.0, 123.0, ("1230", "120", 0)), (5.0, 0.097, ("5.00", "0.10", 0)),
        (3.2e-9, 4.1e-10, ("3.2", "0.4", -9)), (0.5, None, ("0.5", None, 0)), (0.5, 0.0, ("0.5", "0", 0)),
        (-0.001, 0.1, ("0.00", "0.10", 0)), (7.1e8, 2e7, ("7.10", "0.20", 8)), (1.2e-5, None, ("1.2", None, -5)),
    ],
)  # fmt: skip
def test_digits_follow_the_error(mean: float, error: float | None, says: tuple[str, str | None, int]) -> None:
    assert rounded(mean, error) == says


def test_each_file_has_the_best_in_bold_and_says_what_was_chosen() -> None:
    given = drawn(np.random.default_rng(3))
    made = table(given, Ask(["model"], ["test/accuracy", "test/loss"], ["data"], percent=["test/accuracy"]))
    text, tex, data = as_markdown(made), as_latex(made), as_data(made)
    assert text.count("**") == 2 * tex.count(r"\mathbf") == 2 * 4
    assert sum(cell.get("best", False) for row in data["rows"] for cell in row) == 4
    assert data["head"][1] == "digits test/accuracy [%]" or data["head"][1] == "signals test/accuracy [%]"
    for row, column, cell in made.cells():
        said = f"{row.at(column)}: {cell.chosen} (val/accuracy"
        assert said in text
        assert said in tex
        assert any(line.startswith(said) for line in data["notes"])
    heads = tex[tex.index(r"\toprule") : tex.index(r"\midrule")]
    assert heads.count(r"\multicolumn{2}{c}") == heads.count(r"\cmidrule") == 2
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")]
    assert {line.count("&") for line in body.splitlines()[1:]} == {5}  # 1 + 2 x 2 + n


def test_a_tie_is_marked_by_the_test_of_the_report() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.01, 12)
    values = {"best": 0.9 + noise, "same": 0.8999 + random.normal(0, 0.01, 12), "worse": 0.5 + noise}
    made = table(small({k: v.tolist() for k, v in values.items()}), Ask(["model"], ["test/accuracy"]))
    marks = {row.names[0]: row.cells[0].scores[0].mark for row in made.rows}
    bold = [row.names[0] for row in made.rows if row.cells[0].scores[0].best]
    assert bold == ["best"] or bold == ["same"]
    assert marks["worse"] == marks[bold[0]] == ""
    assert marks[{"best": "same", "same": "best"}[bold[0]]] == "†"
    assert "† not told from the best" in as_markdown(made)
    assert r"${}^\dagger$ not told" in as_latex(made)


@pytest.mark.parametrize(("other", "mark"), [([0.5, 0.6, 0.7], ""), ([0.99], "‡")])
def test_the_best_is_bold_though_its_first_seed_diverged_or_one_seed_was_luckier(other: list[float], mark: str) -> None:
    given = small({"a": [0.1, 0.8, 0.9, 0.85], "b": other})
    first = replace(given.jobs[0], result={**given.jobs[0].result, "val/accuracy": math.nan})
    made = table(replace(given, jobs=(first, *given.jobs[1:])), Ask(["model"], ["test/accuracy"]))
    scores = [row.cells[0].scores[0] for row in made.rows]
    assert [(score.best, score.mark) for score in scores] == [(True, ""), (False, mark)]


def test_latex_accepts_small_and_large_numbers_and_values_that_are_lists() -> None:
    """A [ after the end of a row would be its argument, and two superscripts are an error."""
    for scores in ([[1.2e-7], [1.3e-7]], [[2.0e7, 2.1e7, 2.3e7], [2.1e7, 2.0e7, 2.2e7]]):
        values = {f"[{16 * i},a<b]": of_one for i, of_one in enumerate(scores)}
        made = as_latex(table(small(values), Ask(["model"], ["test/accuracy"])))
        assert r"\times 10" in made
        assert r"{}^\d" in made
        assert not re.search(r"}\^|\d[eE][-+]|^\[|[<>]", made.replace("{}^", ""), re.MULTILINE)


def test_a_row_without_a_score_is_shown_and_said_in_one_line() -> None:
    given = small({"a": [0.8, 0.9, 0.7], "b": [0.5, 0.6, 0.7]})
    failed = [replace(one, status="failed", result={}) if "model=b" in one.overrides else one for one in given.jobs]
    made = table(replace(given, jobs=tuple(failed)), ASK)
    said = "b: 3 of 3 jobs without val/accuracy (3 failed); there is nothing to show"
    assert "| b | - | - | 0 |" in as_markdown(made)
    assert all(said in text for text in (as_markdown(made), as_latex(made).replace(r"\_", "_")))
    assert r"b & -- & -- & 0 \\" in as_latex(made)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            Ask(["modle"], ["test/accuracy"]),
            "--rows modle: no job was given this key; they differ in model, data, optim.lr",
        ),
        (Ask(["model"], ["test/accuracy"], ["dta"]), "--columns dta: no job"),
        (Ask(["seed"], ["test/accuracy"]), "--rows seed: scores are means over seeds"),
        (Ask(["model"], ["test/f1"]), "--metrics test/f1: no run has this score; they have test/accuracy, test/loss"),
        (Ask(["model"], ["test/kappa"]), "--metrics test/kappa: is less or more of it better? write test/kappa:min"),
        (Ask(["model"], ["test/accuracy:best"]), "is less or more of it better?"),
        (Ask(["model"], ["test/accuracy"], ["model"]), "--columns model: is a key of --rows already"),
        (Ask(["model"], ["test/accuracy"], percent=["test/loss"]), "--percent test/loss: is not shown"),
        (Ask(["model"], ["test/accuracy"], against=["samples"]), "has no trainer.global_batch_size"),
        (Ask(["model"], ["test/accuracy"], against=["flop"]), "logged no perf/tflop_per_s; profiler=simple"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path: Path, ask: Ask, says: str) -> None:
    given = drawn(np.random.default_rng(0), tmp_path / "out")
    if "kappa" in says:
        given = replace(given, jobs=tuple(replace(j, result={**j.result, "test/kappa": 0.5}) for j in given.jobs))
    curves = {"val/accuracy": [(1, 0.5)]}
    more = {"trainer.global_batch_size": 8} if "flop" in ask.against else {}
    given = replace(given, jobs=tuple(replace(j, curves=curves, config={**j.config, **more}) for j in given.jobs))
    with pytest.raises(ConfigError) as raised:
        write_study(given, ask)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_curves_stand_where_their_samples_hours_and_flop_are() -> None:
    """Two seeds that were not equally fast; 10 samples a step, 3 GFLOP a sample."""
    jobs = [
        replace(
            job(i, Path("/none"), {"model": "m", "seed": i}, {"val/accuracy": 0.5, "test/loss": 1.0}),
            curves={
                "val/accuracy": [(100, 0.4 + i / 10), (200, 0.6 + i / 10)],
                "perf/samples_per_s": [(100, 50.0 * (1 + i))], "perf/tflop_per_s": [(100, 0.15 * (1 + i))],
            },
            seconds=[(100, 360.0 * (1 + i)), (200, 720.0 * (1 + i))],
            config={"seed": i, "trainer.global_batch_size": 10},
        )
        for i in range(2)
    ]  # fmt: skip
    made = table(study(jobs), Ask(["model"], ["test/loss"]))
    places = {"step": [100, 200], "samples": [1000, 2000], "hours": [0.15, 0.3], "flop": [3e12, 6e12]}
    for axis, x in places.items():
        [line] = lines(made, axis)
        assert line.x == pytest.approx(x)
        assert line.mean == pytest.approx([0.45, 0.65])
        assert line.high[0] - line.mean[0] == pytest.approx(statistics.stdev([0.4, 0.5]))


def test_curves_and_their_errors_are_of_the_same_jobs() -> None:
    """A job that failed is in neither, nor in the hours."""
    results = ({"val/accuracy": 0.5, "test/loss": 1.0}, {"val/accuracy": 0.6, "test/loss": 1.0}, None)
    jobs = [
        replace(
            job(i, Path("/none"), {"model": "m", "seed": i}, result),
            curves={"val/accuracy": [(100, 0.5 + 0.1 * i ** 3)]}, seconds=[(100, 360.0 * (1 + 4 * i ** 2))],
        )
        for i, result in enumerate(results)
    ]  # fmt: skip
    [line] = lines(table(study(jobs), Ask(["model"], ["test/loss"])), "hours")
    assert (line.x, line.mean) == (pytest.approx([0.3]), pytest.approx([0.55]))
    assert line.high[0] - line.mean[0] == pytest.approx(statistics.stdev([0.5, 0.6]))


@pytest.mark.slow
def test_figures_have_the_asked_width_and_embedded_truetype(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from samebits.sweeps.report.figures import draw_paper

    given = small({"a": [0.8, 0.9, 0.7], "b": [0.5, 0.6, 0.7]})
    jobs = tuple(replace(j, curves={"val/accuracy": [(1, 0.5), (2, 0.6)]}) for j in given.jobs)
    made = table(replace(given, jobs=jobs), ASK)
    curves = {"step": lines(made, "step")}
    files = draw_paper(made, curves, (3.0, 6.0), tmp_path)
    figures = {path.name: path.read_bytes() for path in files if path.suffix == ".pdf"}
    assert set(figures) == {f"{name}_{size}.pdf" for name in ("scores", "curves_step") for size in ("column", "page")}
    for name, data in figures.items():
        width = float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", data)[1])
        assert width == pytest.approx(72 * (3 if "column" in name else 6))
        assert b"/FontFile2" in data
        assert b"/Type3" not in data
    draw_paper(made, curves, (3.0, 6.0), tmp_path)
    assert all((tmp_path / name).read_bytes() == data for name, data in figures.items())  # no date in them
    draw_paper(made, {"samples": curves["step"]}, (3.0, 6.0), tmp_path)
    assert {path.name for path in tmp_path.glob("curves_*.pdf")} == {
        "curves_samples_column.pdf",
        "curves_samples_page.pdf",
    }
