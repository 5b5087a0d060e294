"""Reports of real sweeps, some of whose jobs failed, were killed or have not begun; comparisons; the best config."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from common import QUICK, ROOT, TRAIN
from fork import copy_of_the_project, run_python
from sweeps import call

from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.extras import missing
from samebits.project import Program
from samebits.runs import claimed
from samebits.sweeps.report import Objective, best_group, groups, read_study, save_best, write, write_study
from samebits.sweeps.report.best import override_list
from samebits.sweeps.report.facts import COMPARED, Facts
from samebits.sweeps.report.page import page
from samebits.testing import compose, result
from samebits.testing.processes import called

REPORT = [sys.executable, str(ROOT / "src" / "report.py")]
LOSS = Objective("val/loss", "min")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 jobs of a real sweep: 3 learning rates of which the last overflows, 3 seeds."""
    folder = tmp_path_factory.mktemp("sweeps") / "lr"
    options = ["optim=sgd", "optim.lr=1e-3,1e-1,1e30", "trainer.clip_norm=null", "seed=range(3)", "sweep=lr"]
    command = [*TRAIN, "-m", *QUICK, "trainer.max_steps=12", "trainer.log_every=2", "trainer.eval_every=4", *options]
    called([*command, f"hydra.sweep.dir={folder}"], code=1, seconds=100)
    assert (folder / "report.md").exists()  # the sweep itself writes it at its end
    return folder


@pytest.fixture
def copy(sweep: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sweep, tmp_path / "lr")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def job_dirs(folder: Path) -> list[Path]:
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    return [folder / job["key"] for job in jobs]


@pytest.mark.slow
def test_it_is_of_the_result_files_and_says_which_failed_and_why(sweep: Path) -> None:
    found = {row["optim.lr"]: row for row in rows(sweep / "groups.csv")}
    assert list(found) == ["0.1", "0.001", "1e+30"]  # the best first
    for start, lr in ((0, "0.001"), (3, "0.1")):
        scores = [result(path)["val/loss"] for path in job_dirs(sweep)[start : start + 3]]
        assert float(found[lr]["val/loss mean"]) == pytest.approx(statistics.fmean(scores), rel=1e-12)
        assert float(found[lr]["val/loss std"]) == pytest.approx(statistics.stdev(scores), rel=1e-12)
        assert (found[lr]["val/loss n"], found[lr]["failures"]) == ("3", "0")
    assert (found["1e+30"]["val/loss n"], found["1e+30"]["failures"]) == ("0", "3")
    text = (sweep / "report.md").read_text()
    assert "9 jobs: 6 finished, 3 failed" in text
    assert "3 x: lr=1e+30 seed=0, lr=1e+30 seed=1, lr=1e+30 seed=2" in text
    assert "gradients were not finite" in text
    assert re.search(r"^Time: \S+ h of 9 jobs, on CPUs\.\n\nCode: commit \w{7}", text, re.MULTILINE)
    failed = [row for row in rows(sweep / "report.csv") if row["status"] == "failed"]
    assert len(failed) == 3
    assert all("not finite" in row["why no score"] and not row["val/loss"] for row in failed)
    best = best_group(read_study(PROGRAM, [sweep]))
    assert best is not None
    overrides = override_list(best)
    assert not [o for o in overrides if o.startswith(("seed", "sweep", "hydra", "logger"))]
    was = yaml.safe_load((best.jobs[0].path / "config.yaml").read_text())
    assert {**compose(*overrides, "logger=none", "seed=0"), "sweep": None} == {**was, "sweep": None}


@pytest.mark.slow
def test_jobs_in_every_state_are_shown(copy: Path) -> None:
    """One whose process is gone, one that runs, one waits, one was stopped, one pruned, one has a NaN as its score."""
    states = ["running", "running", "queued", "preempted", "pruned", "finished"]
    for path, status in zip(job_dirs(copy), states):
        known = json.loads((path / "status.json").read_text())
        (path / "status.json").write_text(json.dumps({**known, "status": status}))
        if status != "finished":
            (path / "result.json").unlink()
        else:
            (path / "result.json").write_text(json.dumps({**result(path), "val/loss": None}))
    (job_dirs(copy)[0] / "metrics.jsonl").write_text('{"step": 4, "time": 1.0, "val/loss": 2.5}\n{"step": 8, "ti')
    environment = job_dirs(copy)[3] / "environment.json"
    changes = [{"after": 4, "was": {"optim.lr": 0.2, "process.timeout": 9}}]
    environment.write_text(json.dumps({**json.loads(environment.read_text()), "changes": changes}))
    shutil.rmtree(job_dirs(copy)[2])  # not even its directory
    with claimed(job_dirs(copy)[1]):
        study = read_study(PROGRAM, [copy])
        write_study(study)
    assert [job.status for job in study.jobs[:6]] == ["killed", *states[1:]]
    assert study.jobs[0].so_far(LOSS) == 2.5
    assert "killed, or out of memory" in str(study.jobs[0].reason)
    assert study.jobs[5].score(LOSS) is None
    text = (copy / "report.md").read_text()
    assert "(2.5 so far)" in text
    assert "its score is not finite" in text
    assert "Changed by a resume: optim.lr=0.2 until step 4 in job 3." in text
    assert best_group(study) is None  # nothing has a score


@pytest.mark.slow
def test_columns_in_which_nothing_stands_are_left_out(copy: Path) -> None:
    """Of groups: three jobs have failed; then one is pruned; then all have finished."""

    def head() -> list[str]:
        return list(Facts(read_study(PROGRAM, [copy])).groups.head)

    scores = ["val/loss", "test/loss", "test/accuracy"]
    assert head() == ["lr", *scores, "n", "failures"]
    one = job_dirs(copy)[0]
    finished = json.loads((one / "status.json").read_text())
    (one / "status.json").write_text(json.dumps({**finished, "status": "pruned"}))
    assert head() == ["lr", *scores, "n", "failures", "pruned, unfinished"]
    assert "pruned" not in (copy / "table.tex").read_text()
    (one / "status.json").write_text(json.dumps(finished))
    for path in job_dirs(copy)[-3:]:
        (path / "status.json").write_text(json.dumps(finished))
        (path / "result.json").write_text(json.dumps(result(one)))
    assert head() == ["lr", *scores, "n"]
    assert all(COMPARED)  # each column has a heading


@pytest.mark.slow
def test_a_lucky_seed_is_not_the_best(copy: Path) -> None:
    one = job_dirs(copy)[0]  # lr 0.001, worse than 0.1 by far
    (one / "result.json").write_text(json.dumps({**result(one), "val/loss": 1e-9}))
    for path in job_dirs(copy)[1:3]:
        (path / "status.json").write_text(json.dumps({"status": "queued"}))
    study = read_study(PROGRAM, [copy])
    best = best_group(study)
    assert best is not None
    assert best.values == {"optim.lr": 0.1}
    write_study(study)
    assert "lr=0.001 has a better mean, 1e-9, but of 1 of 3 seeds only" in (copy / "report.md").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Program:
    """A copy, because tests that run at the same time list the options of the project."""
    return replace(PROGRAM, root=copy_of_the_project(tmp_path / "project"))


@pytest.mark.slow
def test_save_best_gives_an_experiment_that_gives_the_same_scores(tmp_path: Path, project: Program) -> None:
    """Groups, nested groups, a null, a new key, another experiment: all in one yaml; its run repeats the result."""
    options = [
        *(o for o in QUICK if not o.startswith("model")), "experiment=digits", "model.width=4,8", "optim=sgd",
        "optim/schedule=step", "trainer.clip_norm=null", "trainer.max_steps=4", "trainer.max_epochs=null", "seed=1,2",
        "+data.transforms.flip={_target_:lab.transforms.fields.RandomFlip,field:x,dim:-1,seed:3}", "sweep=lr",
    ]  # fmt: skip
    call("-m", *options, f"hydra.sweep.dir={tmp_path}/lr")
    said = run_python(project.root, "src/report.py", str(tmp_path / "lr"), "--save-best")
    assert "./run train experiment=best_lr" in said.stdout
    experiment = project.conf / "experiment/best_lr.yaml"
    assert experiment.read_text().startswith("# @package _global_\n# ./run train experiment=best_lr\n")
    assert "seed" not in yaml.safe_load(experiment.read_text())
    best = best_group(read_study(PROGRAM, [tmp_path / "lr"]))
    assert best is not None
    text = experiment.read_text()
    study = read_study(PROGRAM, [tmp_path / "lr"])
    for other in (text, "seed: 1\n"):
        experiment.write_text(other)
        with pytest.raises(ConfigError, match=r"experiment/best_lr\.yaml: exists .* --overwrite$"):
            save_best(project, study, best)
        assert experiment.read_text() == other
    save_best(project, study, best, overwrite=True)
    assert experiment.read_text() == text
    again = ["experiment=best_lr", "logger=none", "hardware=cpu", "hardware.num_threads=1", "seed=1"]
    run_python(project.root, "src/train.py", *again, f"hydra.run.dir={tmp_path}/again")
    first = next(job for job in best.jobs if job.config["seed"] == 1)
    scores = {key: value for key, value in result(tmp_path / "again").items() if "/" in key}
    assert scores == {key: first.result[key] for key in scores}


@pytest.mark.slow
def test_save_best_refuses_what_a_yaml_cannot_say(copy: Path, project: Program) -> None:
    for best in job_dirs(copy)[3:6]:
        config = yaml.safe_load((best / "config.yaml").read_text())
        del config["data"]["transforms"]  # a deletion
        (best / "config.yaml").write_text(yaml.safe_dump(config))
    group = best_group(study := read_study(PROGRAM, [copy]))
    assert group is not None
    with pytest.raises(ConfigError, match=r"data\.transforms.*list of overrides"):
        save_best(project, study, group)
    assert not (project.conf / "experiment/best_lr.yaml").exists()


@pytest.mark.slow
def test_a_comparison_of_any_runs(sweep: Path, tmp_path: Path) -> None:
    runs = [str(job_dirs(sweep)[i]) for i in (0, 1, 3)]
    called([*REPORT, *runs, "--out", str(tmp_path / "cmp")])
    text = (tmp_path / "cmp/report.md").read_text()
    assert re.search(r"`optim.lr` \| 0.001 \| 0.001 \| 0.1", text)
    assert "| optim.lr=0.001 |" in text
    assert "2 seeds" not in text.split("## Configurations")[0]  # of runs, the best is the best
    study = read_study(PROGRAM, [Path(path) for path in runs])
    assert study.swept == ("seed", "optim.lr") or set(study.swept) == {"seed", "optim.lr"}
    assert len(groups(study)) == 2


@pytest.mark.slow
@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: no such directory"),
        (["."], "contains no run directory"),
        (["RUN", "--score", "val/accuracy"], "--score val/accuracy: give a key with :max or :min"),
        (["FAILED", "--save-best"], "no job of .* has a score yet"),
        (["RUN", "--out", "/dev/null/out"], "/dev/null/out: Not a directory - choose another --out"),
    ],
)
def test_a_mistake_is_one_line(sweep: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    names = {"RUN": str(job_dirs(sweep)[0]), "FAILED": str(job_dirs(sweep)[8])}
    command = [*REPORT, "--out", str(tmp_path / "out"), *(names.get(a, a) for a in arguments)]
    done = called(command, code=2, cwd=tmp_path)
    assert re.search(rf"^error: .*{says}", done.stderr)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_without_the_extra_csv_and_markdown_are_written(sweep: Path, tmp_path: Path) -> None:
    """And neither torch nor Hydra nor W&B is imported for them."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("matplotlib", "plotly", "optuna")))
import report
sys.argv = ["report.py", *%r]
status = report.main()
assert not {"torch", "hydra", "wandb"} & set(sys.modules), sorted(sys.modules)
sys.exit(status)
"""
    command = [sys.executable, "-c", code % [str(sweep), "--out", str(tmp_path / "out")]]
    done = called(command, cwd=ROOT / "src", fresh=True)
    assert done.stderr.count("\n") == 1
    note = missing("no pictures and no page: drawing", "matplotlib", "report")
    assert done.stderr == note + "\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "groups.csv", "report.csv", "report.json", "report.md", "table.tex"
    ]  # fmt: skip
    assert note in (tmp_path / "out/report.md").read_text()


@pytest.mark.slow
def test_write_never_raises(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "sweep.json").write_text("{")
    assert write(PROGRAM, copy) == []
    said = capsys.readouterr().err
    assert re.fullmatch(r"no report \(.*\); try again with: ./run report .*\n", said)


@pytest.mark.slow
def test_the_page_asks_no_network_and_holds_the_numbers(sweep: Path) -> None:
    """And no name of a value breaks it."""
    pytest.importorskip("plotly", reason="extra `report`")
    study = read_study(PROGRAM, [sweep])
    text = page(Facts(study))
    plotly = Path(sys.modules["plotly"].__file__ or "").parent / "package_data/plotly.min.js"
    own = text.replace(plotly.read_text().replace("</script", "<\\/script"), "")
    assert len(own) < 0.1 * len(text)
    head, _, rest = own.partition('id="data">')
    inlined, _, _ = rest.partition("</script>")
    held = json.loads(inlined)
    assert [job["scores"][0] for job in held["jobs"][:6]] == [result(p)["val/loss"] for p in job_dirs(sweep)[:6]]
    assert held["jobs"][8]["failed"]
    assert "not finite" in held["jobs"][8]["reason"]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", head)
    assert [(axis["key"], axis["kind"], axis["named"]) for axis in held["axes"]] == [("optim.lr", "log", False)]


@pytest.mark.slow
def test_a_sweep_draws_its_curves(sweep: Path) -> None:
    pytest.importorskip("matplotlib", reason="extra `report`")
    assert (sweep / "report/curves.png").stat().st_size > 10_000
