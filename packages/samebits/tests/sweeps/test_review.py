"""What reviewers ask: ends of ranges, unequal n, hours and energy, code, test scores; lines only along numbers."""

from __future__ import annotations

import errno
import io
import json
import math
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from samebits.code import Code
from samebits.files import write_json
from samebits.sweeps.report import Objective, groups, write_study
from samebits.sweeps.report.axes import axes
from samebits.sweeps.report.compare import comparisons
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.page import data
from samebits.sweeps.report.pictures import _scores, save
from samebits.sweeps.report.read import Job, Study, _gpus, _spent
from samebits.sweeps.report.review import POWER, cost, edges, lines, report_json
from samebits.sweeps.report.table import Ask, table
from samebits.sweeps.report.text import groups_csv, markdown

LOSS = Objective("val/loss", "min")


def job(number: int, values: dict[str, Any], loss: float | None, **more: Any) -> Job:
    result = {} if loss is None else {"val/loss": loss, "test/accuracy": 1 - loss}
    config = {key: value for key, value in values.items() if key != "model"}
    overrides = tuple(f"{key}={value}" for key, value in values.items())
    status = "finished" if loss is not None else "failed"
    path = Path("/none") / str(number)
    return Job(str(number), number, path, overrides, status, None, None, config, result, {}, [], **more)


def study(jobs: Sequence[Job], folder: Path = Path("/none"), **more: Any) -> Study:
    swept = tuple(dict.fromkeys(o.partition("=")[0] for one in jobs for o in one.overrides))
    return Study("s", folder, tuple(jobs), swept, (LOSS,), is_sweep=True, **more)


def grid(losses: dict[tuple[str, float], float | None]) -> Study:
    pairs = enumerate(losses.items())
    return study([job(n, {"model": model, "optim.lr": lr, "seed": 0}, loss) for n, ((model, lr), loss) in pairs])


def found(of: Study) -> list[tuple[Any, float, str]]:
    return [(edge.others.get("model"), edge.value, edge.end) for edge in edges(of, LOSS)]


def test_the_best_of_each_model_is_compared_with_what_was_tried_for_it() -> None:
    losses = {("mlp", 0.01): 0.3, ("mlp", 0.1): 0.2, ("mlp", 1.0): 0.4, ("gru", 0.01): 0.1, ("gru", 0.1): 0.5,
              ("cnn", 0.1): 0.6, ("cnn", 0.3): 0.5, ("one", 7.0): 0.9}  # fmt: skip
    assert found(grid(losses)) == [("gru", 0.01, "smallest"), ("cnn", 0.3, "largest")]
    said = lines(grid(losses))
    assert said[:2] == [
        "Range: best lr=0.01 with model=gru is the smallest tried (0.01, 0.1).",
        "Range: best lr=0.3 with model=cnn is the largest tried (0.1, 0.3).",
    ]


def test_a_value_that_failed_was_tried_and_one_that_waits_was_not() -> None:
    losses = {("mlp", 0.01): 0.3, ("mlp", 0.1): 0.2, ("mlp", 1e30): None}
    assert found(grid(losses)) == []
    waiting = grid(losses)
    last = replace(waiting.jobs[2], status="queued")
    of = replace(waiting, jobs=(*waiting.jobs[:2], last))
    assert [(edge.value, edge.end, edge.tried) for edge in edges(of, LOSS)] == [(0.1, "largest", [0.01, 0.1])]


def test_keys_without_two_numbers_have_no_end() -> None:
    same = [job(n, {"width": 16, "depth": depth, "seed": n}, 0.1 + n) for n, depth in enumerate([[1], [2, 2]])]
    assert edges(study(same), LOSS) == []
    seeds = [job(n, {"seed": n}, 0.1 + n) for n in range(3)]
    assert edges(study(seeds), LOSS) == []
    assert edges(replace(study(seeds), is_sweep=False), LOSS) == []


def test_rows_with_fewer_scores_are_marked() -> None:
    rows = [(0.01, 0, 0.3), (0.01, 1, 0.2), (0.1, 0, 0.1), (0.1, 1, None), (1.0, 0, None)]
    of = study([job(n, {"optim.lr": lr, "seed": seed}, loss) for n, (lr, seed, loss) in enumerate(rows)])
    sheet = Facts(of).groups
    column = sheet.head.index("n")
    assert {row[0].text: row[column].text for row in sheet.rows} == {"0.01": "2", "0.1": "1 of 2", "1": "0"}  # type: ignore[union-attr]
    assert any(note.startswith("n of 2: fewer scores") for note in sheet.notes)
    assert "Seeds: not every configuration has 2 scores: lr=0.1 has 1, lr=1 has 0." in lines(of)
    equal = study([job(n, {"optim.lr": lr, "seed": 0}, 0.1) for n, lr in enumerate((0.1, 1.0))])
    assert not any("fewer scores" in note for note in Facts(equal).groups.notes)


@pytest.mark.parametrize("pause", [0.0, 36_000.0])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_pause_before_a_resume_uses_no_energy(pause: float, after: int) -> None:
    """Whichever log is the first one of the resumed command; the command itself takes as long as the others."""
    watts = [100.0, 200.0, 400.0, 300.0]
    seconds = [(10 * n, 100.0 * n + pause * (n > after)) for n in range(1, 5)]
    power = {POWER: [(10 * n, each) for n, each in enumerate(watts, 1)]}
    one = replace(job(0, {"seed": 0}, 0.1, spent_s=400.0, gpus=("H100",)), curves=power, seconds=seconds)
    assert cost(study([one])).energy_kwh == pytest.approx(sum(watts) * 100 / 3.6e6)


def test_hours_and_energy_are_sums_of_what_was_measured() -> None:
    watts = {"curves": {POWER: [(10, 300.0), (20, 500.0)]}, "seconds": [(10, 100.0), (20, 200.0)]}
    two = job(0, {"seed": 0}, 0.1, spent_s=360.0, gpus=("H100", "H100"))
    of = study([replace(two, **watts), replace(two, number=1, **watts)])
    found = cost(of)
    assert (found.hours, found.gpu_hours, found.gpus, found.untimed) == (0.2, 0.4, {"H100": 2}, 0)
    assert found.energy_kwh == pytest.approx(2 * 400 * 360 / 3.6e6)
    assert lines(of)[:2] == [
        "Time: 0.2 h of 2 jobs, 0.4 GPU hours (H100 in 2 jobs).",
        "Energy: 0.08 kWh of the GPUs, from their measured power.",
    ]
    unmeasured = cost(study([replace(two, **watts), replace(two, number=1)]))
    assert (unmeasured.hours, unmeasured.energy_kwh) == (0.2, None)
    on_cpu = study([job(0, {"seed": 0}, 0.1, spent_s=3600.0, gpus=())])
    assert (cost(on_cpu).gpu_hours, cost(on_cpu).energy_kwh) == (0, None)
    assert lines(on_cpu) == ["Time: 1 h of 1 job, on CPUs."]
    unknown = study([job(0, {"seed": 0}, 0.1, spent_s=3600.0), two])
    assert (cost(unknown).untimed, cost(unknown).hours) == (1, 0.1)
    assert lines(unknown)[0].startswith("Time: 0.1 h of 1 of 2 jobs, 0.2 GPU hours")
    assert "without 1 job whose time or GPUs are not recorded" in lines(unknown)[0]
    waiting = replace(job(2, {"seed": 2}, None), status="queued")
    assert lines(study([two, waiting]))[0] == "Time: 0.1 h of 1 of 2 jobs, 0.2 GPU hours (H100 in 1 job)."


def test_seconds_of_unfinished_jobs_and_gpus_are_those_recorded(tmp_path: Path) -> None:
    assert _spent(tmp_path, {"seconds": 5.0}, {"seconds": 7.5}) == 7.5
    assert _spent(tmp_path, {"status": "queued"}, {}) is None
    write_json(tmp_path / "status.json", {"status": "running", "seconds": 5.0, "began": 1000.0})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 1060.0}\n')
    assert _spent(tmp_path, {"seconds": 5.0}, {}) == 65.0
    assert _gpus(None) is None
    assert _gpus({"cpu": "x"}) == ()
    assert _gpus({"gpu": {"name": "A100"}}) == ("A100",)
    assert _gpus({"gpu": {"name": "A"}, "gpus_of_ranks": [{"name": "A"}, {"name": "B"}]}) == ("A", "B")


def test_each_commit_is_named() -> None:
    codes = [Code("a" * 40, "1", ""), Code("b" * 40, "1", ""), Code("b" * 40, "2", "1234567")]
    jobs = [job(n, {"seed": n}, 0.1, code=(code,)) for n, code in enumerate([codes[0], *codes])]
    (line,) = lines(study(jobs))
    assert line.startswith("Code: 3 versions: commit aaaaaaa")
    assert "in jobs 0, 1; commit bbbbbbb [libraries not recorded] in job 2; commit bbbbbbb with changes" in line
    told = json.loads(report_json(study(jobs), {}))["code"]
    assert [(one["commit"][0], one["changes"], one["jobs"]) for one in told] == [
        ("a", None, [0, 1]), ("b", None, [2]), ("b", "1234567", [3]),
    ]  # fmt: skip
    assert lines(study([jobs[0]])) == ["Code: commit aaaaaaa [libraries not recorded]."]


def test_test_scores_are_means_over_the_seeds_of_the_score() -> None:
    """The last seed of a diverged: it has no finite loss, but the accuracy of a guess."""
    losses = [0.1, 0.11, 0.1, 0.1, 0.5, 0.51, 0.5, 0.5]
    jobs = [job(n, {"model": "ab"[n // 4], "seed": n % 4}, loss) for n, loss in enumerate(losses)]
    jobs[3] = replace(jobs[3], result={"val/loss": math.nan, "test/accuracy": 0.0})
    of = study(jobs)
    found = json.loads(report_json(of, comparisons(of)))
    assert [one["scores"]["test/accuracy"]["n"] for one in found["configurations"]] == [3, 4]
    cells = [row.cells[0] for row in table(of, Ask(["model"], ["test/accuracy"])).rows]
    assert [cell.scores[0].values for cell in cells] == [[0.9, 0.89, 0.9], [0.5, 0.49, 0.5, 0.5]]
    assert [cell.scores[0].verdict for cell in cells] == ["differs", ""]  # b has the most seeds
    jobs = [replace(one, result={"test/accuracy": 0.5}) for one in jobs]  # without validation rows
    found = json.loads(report_json(study(jobs), {}))
    assert [one["scores"]["test/accuracy"]["n"] for one in found["configurations"]] == [4, 4]


def test_md_html_and_json_say_the_same_and_show_test_scores(tmp_path: Path) -> None:
    of = replace(grid({("mlp", 0.01): 0.3, ("mlp", 0.1): 0.2}), directory=tmp_path)
    write_study(of)
    line = "Range: best lr=0.1 is the largest tried (0.01, 0.1)."
    told = Facts(of)
    assert line in markdown(told)
    assert line in data(told)["sections"]["first"][0]["lines"]
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["at_an_end"]["val/loss"] == [
        {"key": "optim.lr", "value": 0.1, "end": "largest", "tried": [0.01, 0.1], "others": {}}
    ]
    best = found["best"]["val/loss"]
    assert best["scores"]["test/accuracy"] == {"mean": 0.8, "std": None, "interval": None, "n": 1, "runs": 1}
    assert found["cost"]["energy_kwh"] is None
    assert "test/accuracy" in told.groups.head
    assert groups_csv(of).splitlines()[1].split(",")[5] == "0.8"


class FullDisk(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_full_disk_names_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a PDF's font is the first thing for which there is no space."""
    monkeypatch.setattr("samebits.files.open", lambda *given, **named: FullDisk(), raising=False)
    figure = Figure()
    figure.supxlabel(string.ascii_letters)
    with pytest.raises(OSError, match="No space left") as caught:
        save(figure, tmp_path / "scores.pdf")
    assert str(caught.value) == f"[Errno 28] No space left on device: '{tmp_path / 'scores.pdf'}'"


def test_no_line_joins_categories() -> None:
    rows = [(model, lr, seed) for model in ("a", "b", "c") for lr in (0.01, 0.1) for seed in range(2)]
    jobs = [job(n, {"model": m, "optim.lr": lr, "seed": s}, 0.1 * n) for n, (m, lr, s) in enumerate(rows)]
    figure = _scores(study(jobs))
    assert figure is not None
    joined = {panel.get_title(): {line.get_linestyle() for line in panel.lines} for panel in figure.axes}
    assert joined == {"model": {"None"}, "optim.lr": {"None", "-"}}
    bars = [line for line in figure.axes[0].lines if line.get_marker() == "_"]
    assert sorted(len(bar.get_xdata()) for bar in bars) == [3, 3]  # type: ignore[arg-type]


PAIRS = [("adamw", 1e-3), ("sgd", 0.1), ("adamw", 1e-2)]
ZIPPED = (("optim=adamw,sgd,adamw", "optim.lr=1e-3,0.1,1e-2", "seed=range(3)", "sweep.zip=['optim','optim.lr']"),)


def paired(pairs: Sequence[tuple[str, float]], **more: Any) -> Study:
    rows = [(optim, lr, seed) for optim, lr in pairs for seed in range(3)]
    values = ({"optim": optim, "optim.lr": lr, "seed": seed} for optim, lr, seed in rows)
    return study([job(n, one, 0.1 + 0.01 * (n * n % 7)) for n, one in enumerate(values)], commands=ZIPPED, **more)


def test_zipped_keys_are_one_category_for_each_pair_with_the_mean_and_interval_of_the_table() -> None:
    of = paired(PAIRS)
    (one,) = axes(of)
    assert (one.kind, one.joined, one.values) == ("category", False, PAIRS)
    figure = _scores(of)
    assert figure is not None
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["adamw\n0.001", "sgd\n0.1", "adamw\n0.01"]
    assert {line.get_linestyle() for line in panel.lines} == {"None"}
    (legend,) = panel.get_legend().get_texts()  # type: ignore[union-attr]
    assert legend.get_text() == "mean and its 95 % interval"
    (bars,) = (line for line in panel.lines if line.get_marker() == "_")
    (ranges,) = panel.collections
    drawn = {
        x: (mean, low, high)
        for (x, mean), ((_, low), (_, high)) in zip(bars.get_xydata().tolist(), ranges.get_segments())  # type: ignore[union-attr, attr-defined]
    }
    shown = data(Facts(of))
    for group, held in zip(groups(of), shown["groups"]):
        place = PAIRS.index((group.values["optim"], group.values["optim.lr"]))
        assert drawn[place] == pytest.approx((group.mean(LOSS), *group.interval(LOSS)))  # type: ignore[misc]
        assert (held["means"][0], *held["interval"]) == pytest.approx(drawn[place])
        assert held["values"]["optim, optim.lr"] == {"text": show_pair(PAIRS[place]), "place": place}


def show_pair(pair: tuple[str, float]) -> str:
    return f"{pair[0]}\n{pair[1]:g}"


def test_keys_that_are_zipped_and_then_combined_have_an_axis_each() -> None:
    every = [(optim, lr) for optim in ("adamw", "sgd") for lr in (1e-3, 1e-2, 0.1)]
    assert [(one.key, one.kind) for one in axes(paired(every))] == [("optim", "category"), ("optim.lr", "log")]
    ten = study([job(n, {"a": n % 2, "b": [n % 3], "c": 10.0**n}, 0.1) for n in range(6)])
    zipped = replace(ten, commands=(("sweep.zip=[['a','c'],['b','seed']]",),))
    assert [(one.key, one.pair) for one in axes(zipped)] == [("a, c", ("a", "c")), ("b", ())]


def test_a_mean_gives_each_configuration_the_same_weight_and_needs_no_interval_of_several() -> None:
    """lr=0.1 has one seed of one model and three of another; on seeds, lines connect nothing."""
    rows = [("a", 0.1, 0, 1.0), ("b", 0.1, 0, 2.0), ("b", 0.1, 1, 3.0), ("b", 0.1, 2, 4.0), ("a", 0.2, 0, 1.0)]
    jobs = [job(n, {"model": m, "optim.lr": lr, "width": 1, "seed": s}, x) for n, (m, lr, s, x) in enumerate(rows)]
    of = study([*jobs, job(9, {"model": "c", "optim.lr": 0.3, "width": 2, "seed": 0}, 2.0)])
    panel = _scores(of).axes[1]  # type: ignore[union-attr]
    means = {x: y for line in panel.lines if line.get_linestyle() == "-" for x, y in line.get_xydata().tolist()}  # type: ignore[union-attr]
    assert means == {0.1: 2.0, 0.2: 1.0, 0.3: 2.0}
    assert not panel.collections
    values = ({"seed": n % 2, "data.seed": n // 2 % 2, "model.seed": n // 4} for n in range(8))
    seeds = study([job(n, one, 0.1 * n) for n, one in enumerate(values)])
    figure = _scores(seeds)
    assert {line.get_linestyle() for panel in figure.axes for line in panel.lines} == {"None"}  # type: ignore[union-attr]
