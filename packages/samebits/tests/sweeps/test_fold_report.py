"""Cross-validation in a report: scores over folds, their corrected interval and comparisons, by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report_parts import made

from samebits.errors import ConfigError
from samebits.sweeps.report import Objective, groups
from samebits.sweeps.report.against import lines
from samebits.sweeps.report.analyse import best_group
from samebits.sweeps.report.axes import axes
from samebits.sweeps.report.best import override_list
from samebits.sweeps.report.compare import comparisons
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.inference import against_best
from samebits.sweeps.report.page import data
from samebits.sweeps.report.read import Study
from samebits.sweeps.report.review import lines as lines_of, report_json
from samebits.sweeps.report.table import Ask, table
from samebits.sweeps.report.table_text import paper_csv, paper_markdown
from samebits.sweeps.report.text import groups_csv, markdown

T_4 = 2.776445  # Student's t with 4 degrees of freedom, 95 %
ONE = [0.9, 0.8, 1.0, 0.7, 1.1]  # loss of each fold, lr=0.1
TWO = [1.1, 0.9, 1.3, 0.9, 1.4]


def validated(
    rates: dict[float, list[float | None]], seeds: int = 2, folds: int = 5, repeats: int = 1, **more: Any
) -> Study:
    """Jobs of rates x repetitions x folds x seeds; a seed changes a score by +-0.05 around its fold's."""
    columns: dict[str, list[Any]] = {
        "optim.lr": [],
        "data.folds": [],
        "data.fold": [],
        "data.fold_repeat": [],
        "seed": [],
    }
    scores: list[float | None] = []
    for lr, losses in rates.items():
        for place, loss in enumerate(losses):
            for seed in range(seeds):
                row = lr, folds, place % folds, place // folds, seed
                for column, value in zip(columns.values(), row):
                    column.append(value)
                scores.append(None if loss is None else loss + 0.05 * (2 * seed - seeds + 1))
    study = made("cv", columns, scores, **more)
    fixed = {"data.folds", *(["data.fold_repeat"] if repeats == 1 else []), *(["seed"] if seeds == 1 else [])}
    return replace(study, swept=tuple(key for key in study.swept if key not in fixed))


def test_the_mean_is_over_folds_and_its_interval_is_corrected() -> None:
    """n = 5 folds of 2 seeds: s^2 (1/5 + 1/4), not s^2 / 10."""
    study = validated({0.1: ONE, 0.2: TWO})
    best, other = groups(study)
    assert (best.label, len(best.jobs)) == ("lr=0.1", 10)
    assert best.scores(study.objective) == pytest.approx(ONE)
    assert best.runs(study.objective) == 10
    assert best.test_to_train == other.test_to_train == 0.25
    half = T_4 * math.sqrt(0.025 * (1 / 5 + 1 / 4))  # variance of ONE: 0.025
    [first, second] = csv.DictReader(io.StringIO(groups_csv(study)))
    assert (first["val/loss n"], first["val/loss runs"]) == ("5", "10")
    assert float(first["val/loss mean"]) == pytest.approx(0.9)
    assert float(first["val/loss std"]) == pytest.approx(math.sqrt(0.025))
    assert float(first["val/loss low"]) == pytest.approx(0.9 - half, rel=1e-6)
    assert float(first["val/loss high"]) == pytest.approx(0.9 + half, rel=1e-6)
    assert float(second["val/loss mean"]) == pytest.approx(1.12)
    text = markdown(Facts(study))
    assert f"| 0.1 | **0.90 ± 0.16** | {0.9 - half:.3g} to {0.9 + half:.3g} | 5 | 10 |" in text
    assert "± is the standard deviation over folds" in text
    assert "(5 folds x 2 seeds)" in text


def lacking(study: Study, rate: float, fold: int) -> Study:
    """The same study; a seed of this fold has failed."""
    of_fold = [job for job in study.jobs if (job.config["optim.lr"], job.config["data.fold"]) == (rate, fold)]
    failed = {of_fold[-1].key: replace(of_fold[-1], status="failed", result={})}
    return replace(study, jobs=tuple(failed.get(job.key, job) for job in study.jobs))


STUDIES = {
    "folds and seeds": validated({0.1: ONE, 0.2: TWO}),
    "folds": validated({0.1: ONE, 0.2: TWO}, seeds=1),
    "a failed seed of a fold": lacking(validated({0.1: ONE, 0.2: TWO}), 0.2, 3),
    "a failed fold": lacking(validated({0.1: ONE, 0.2: TWO}, seeds=1), 0.2, 3),
    "too few folds": validated({0.1: ONE[:2], 0.2: TWO[:2]}, folds=2),
    "seeds": made("s", {"optim.lr": [0.1] * 3 + [0.2] * 3, "seed": [0, 1, 2, 0, 1, 2]}, [*ONE, None]),
}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_json_csv_markdown_and_the_page_have_the_same_numbers(study: Study) -> None:
    known = Facts(study)
    page, text = data(known), markdown(known)
    told = json.loads(report_json(study, known.compared))
    assert told["repeats"] == study.repeats
    assert [one["label"] for one in told["configurations"]] == [group["label"] for group in page["groups"]]
    for one, row, group in zip(told["configurations"], csv.DictReader(io.StringIO(groups_csv(study))), page["groups"]):
        scores = one["scores"]["val/loss"]
        assert (scores["mean"], scores["interval"]) == (group["means"][0], group["interval"] and [*group["interval"]])
        low, high = scores["interval"] or (None, None)
        wanted = scores | ({"low": low, "high": high} if study.fold_keys else {})
        for name in {"mean", "std", "n", *(("low", "high", "runs") if study.fold_keys else ())}:
            assert row[f"val/loss {name}"] == ("" if wanted[name] is None else str(wanted[name])), name
        if study.fold_keys and low is not None:
            assert f"| {low:.3g} to {high:.3g} |" in text
            assert f"{low:.3g} to {high:.3g}" in json.dumps(page["groupTable"])
    for one in told["comparisons"].get("val/loss", ()):
        [row] = (
            line for line in text.splitlines() if line.startswith(f"| {one['group']} | {one['difference']:+.3g} |")
        )
        assert one["low"] is None or f"| {one['low']:+.3g} to {one['high']:+.3g} |" in row
    best = told["best"]["val/loss"]
    assert best["label"] == page["best"][0]["label"]
    assert f"**Best: {best['label']}**" in text


def review(name: str) -> str:
    (line,) = (line for line in lines_of(STUDIES[name]) if line.startswith(("Folds:", "Seeds:")))
    return line


def test_the_review_counts_folds_and_seeds_and_names_the_interval() -> None:
    corrected = "the 95 % interval is of the mean over folds, with the correction of Nadeau and Bengio (2003)"
    assert review("folds").startswith(f"Folds: 5 folds; {corrected}")
    assert review("folds and seeds").startswith(f"Folds: 5 folds x 2 seeds; {corrected}")
    unequal = "Not every configuration has as many: lr=0.2 has"
    assert review("a failed seed of a fold").endswith(f"folds share. {unequal} 5 folds, 9 runs.")
    assert review("a failed fold").endswith(f"folds share. {unequal} 4 folds.")
    assert review("too few folds") == "Folds: 2 folds x 2 seeds; too few folds for an interval."
    assert review("seeds") == "Seeds: not every configuration has 3 scores: lr=0.2 has 2."
    text = markdown(Facts(STUDIES["a failed seed of a fold"]))
    assert "| 5 | 9 of 10 |" in text
    assert "- runs of 10: fewer runs than other configurations have" in text


def test_folds_are_compared_by_pairs_with_the_corrected_variance() -> None:
    """Two configurations: the corrected resampled t test, by hand."""
    [found] = comparisons(validated({0.1: ONE, 0.2: TWO}))["val/loss"]
    pairs = [b - a for a, b in zip(ONE, TWO)]
    error = math.sqrt(statistics.variance(pairs) * (1 / 5 + 1 / 4))
    assert (found.paired, found.n, found.needed) == (True, 5, None)
    assert found.difference == pytest.approx(0.22)
    assert found.low == pytest.approx(0.22 - T_4 * error, rel=1e-6)
    assert found.high == pytest.approx(0.22 + T_4 * error, rel=1e-6)
    assert found.effect == pytest.approx(0.22 / statistics.stdev(pairs))
    x = 0.22 / error / math.sqrt(4 + (0.22 / error) ** 2)
    tail = 1 - x * (3 - x * x) / 2  # both tails of Student's t with 4 degrees of freedom
    assert found.p == pytest.approx(tail, rel=1e-6)
    [uncorrected] = (each for each in against_best([dict(enumerate(ONE)), dict(enumerate(TWO))], "min") if each)
    assert found.high - found.low == pytest.approx(1.5 * (uncorrected.high - uncorrected.low))


def test_repetitions_are_more_folds_of_the_same_size() -> None:
    study = validated({0.1: ONE + TWO}, repeats=2)
    assert study.fold_keys == ("data.fold", "data.fold_repeat")
    [group] = groups(study)
    assert group.scores(study.objective) == pytest.approx(ONE + TWO)
    assert group.test_to_train == 0.25, "1 / 10 + 1 / 4, whatever the number of repetitions"


def test_false_differences_of_correlated_folds() -> None:
    """Scores as the correction assumes: a random part is common to all folds of a row. About 5 % of tables have a
    false difference; without the correction, far more."""
    rng, tables, folds, rows = np.random.default_rng(0), 400, 5, 4
    common = math.sqrt(1 / (folds - 1))  # then the variance of a mean is 1 / n + 1 / (folds - 1)
    wrong = {0.0: 0, 1 / (folds - 1): 0}
    for _ in range(tables):
        scores = rng.normal(size=(rows, folds)) + common * rng.normal(size=(rows, 1))
        for ratio in wrong:
            found = against_best([dict(enumerate(row)) for row in scores.tolist()], "min", test_to_train=ratio)
            wrong[ratio] += any(each is not None and each.verdict == "differs" for each in found)
    plain, corrected = (count / tables for count in wrong.values())
    assert corrected < 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / tables)
    assert plain > 0.12


def test_a_configuration_without_some_runs_is_not_the_best() -> None:
    """A fold without its second seed is a fold with fewer runs; one without any seed is missing."""
    study = STUDIES["folds and seeds"]
    fewer = lacking(study, 0.1, 3)
    first = groups(fewer)[0]
    assert first.scores(study.objective)[3] == pytest.approx(ONE[3] - 0.05)
    assert (len(first.scores(study.objective)), first.runs(study.objective)) == (5, 9)
    assert best_group(fewer).label == "lr=0.2"
    text = markdown(Facts(fewer))
    assert "of 9 of 10 runs only" in text
    assert "compared with lr=0.2, which has the best mean of those with most runs, 5 folds x 2 seeds. Effect" in text
    assert "compared with lr=0.1, which has the best mean. Effect" in markdown(Facts(study))


def test_three_folds_at_least() -> None:
    text = markdown(Facts(validated({0.1: ONE[:2], 0.2: TWO[:2]}, folds=2)))
    assert "| 0.1 | **0.85 ± 0.07** | - | 2 | 4 |" in text
    assert "none below 3 folds" in text
    assert "too few folds" in text
    assert "seeds needed" not in text


def test_a_fold_is_no_axis_and_no_row_and_stays_in_the_command() -> None:
    study = validated({0.1: ONE, 0.2: TWO})
    assert [one.key for one in axes(study)] == ["optim.lr"]
    with pytest.raises(
        ConfigError, match=r"^--rows fold: no job was given|^--rows data\.fold: scores are means over folds"
    ):
        table(study, Ask(["data.fold"], ["val/loss"]))
    assert override_list(groups(study)[0]) == ["optim.lr=0.1", "data.folds=5", "data.fold=0", "data.fold_repeat=0"]
    page = data(Facts(study))
    assert (page["repeats"], page["best"][0]["averaged"], len(page["groups"])) == ("runs", "5 folds x 2 seeds", 2)


def test_a_key_called_fold_without_folds_is_a_key() -> None:
    study = made("s", {"model.fold": [1, 2], "seed": [0, 0]}, [1.0, 2.0])
    assert [group.label for group in groups(study)] == ["fold=1", "fold=2"]
    assert study.repeats == "seeds"


def test_one_fold_of_several_seeds_is_a_study_of_seeds() -> None:
    columns: dict[str, list[Any]] = {
        "optim.lr": [0.1] * 3,
        "data.folds": [5] * 3,
        "data.fold": [1] * 3,
        "seed": [0, 1, 2],
    }
    study = replace(made("s", columns, [1.0, 2.0, 3.0]), swept=("optim.lr", "seed"))
    [group] = groups(study)
    assert (study.repeats, group.scores(study.objective), group.test_to_train) == ("seeds", [1.0, 2.0, 3.0], 0.0)


def test_the_papers_table(tmp_path: Path) -> None:
    """Chosen on the validation folds; the test score of each fold's model is shown, with the corrected errors."""
    study = validated({0.1: ONE, 0.2: TWO}, folder=tmp_path)
    jobs = tuple(
        replace(
            job, overrides=(*job.overrides, f"model={'mlp' if job.number % 2 else 'conv'}"),
            result={**job.result, "test/loss": 2 * job.result["val/loss"]},
            curves={"val/loss": [(1, job.result["val/loss"])]},
        )
        for job in study.jobs
    )  # fmt: skip
    study = replace(study, jobs=tuple(job for job in jobs if job.config["seed"] == 0), swept=("model", *study.swept))
    study = replace(study, jobs=tuple(replace(j, overrides=(*j.overrides[:-1], "model=mlp")) for j in study.jobs))
    losses = [2 * (loss - 0.05) for loss in ONE]
    spread = statistics.stdev(losses)
    errors = {"sd": spread, "se": spread * math.sqrt(0.45), "interval": T_4 * spread * math.sqrt(0.45)}
    for name, error in errors.items():
        found = table(study, Ask(["model"], ["test/loss"], spread=name))
        [cell] = found.rows[0].cells
        assert cell.chosen == "lr=0.1"
        assert cell.scores[0].values == pytest.approx(losses)
        assert cell.scores[0].error == pytest.approx(error, rel=1e-6)
        [line] = lines(found, "step")
        assert line.high[0] - line.mean[0] == pytest.approx(error / 2, rel=1e-6)
        text = paper_markdown(found, [])
        assert ("Nadeau and Bengio" in text) == (name != "sd")
        assert "over folds" in text
        assert "mean over folds" in text
        [row] = csv.DictReader(io.StringIO(paper_csv(found)))
        assert (row["n"], row["error is"].partition(" over")[2][:6]) == ("5", " folds")


def test_scores_of_another_objective_keep_their_folds() -> None:
    study = validated({0.1: ONE})
    jobs = tuple(replace(job, result=job.result | {"test/accuracy": job.config["data.fold"]}) for job in study.jobs)
    [group] = groups(replace(study, jobs=jobs))
    assert group.scores(Objective("test/accuracy", "max")) == [0, 1, 2, 3, 4]


def test_configurations_with_other_numbers_of_folds_and_seeds_are_compared() -> None:
    """The best has the most runs, here of fewer folds; it and the others are compared all the same."""
    study = validated({0.1: ONE, 0.2: TWO[:3]}, seeds=3)
    kept = [job for job in study.jobs if job.config["optim.lr"] == 0.2 or job.config["seed"] == 0]
    study = replace(study, jobs=kept)
    assert best_group(study, study.objective).values["optim.lr"] == 0.2  # type: ignore[union-attr]
    assert comparisons(study)
    assert markdown(Facts(study))


def test_a_run_without_config_does_not_take_the_correction() -> None:
    """Its directory was deleted, so the report knows only its overrides."""
    (group,) = groups(validated({0.1: ONE}, seeds=1))
    lacking = replace(group, jobs=[replace(group.jobs[0], config={}), *group.jobs[1:]])
    assert lacking.test_to_train == group.test_to_train == 0.25
