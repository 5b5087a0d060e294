"""Scores that are no means over samples: right by their formulas, and the same for any number of ranks."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK
from torch import Tensor

from lab.metrics.auroc import AUROC
from lab.metrics.base import SummedMetric, as_metric, scores_of
from lab.metrics.confusion import ConfusionMatrix, MacroF1, MeanIoU
from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.per_sample import check_per_sample
from samebits.testing import WAYS, compose, last_checkpoint, result, scores, start_run, values
from samebits.testing.processes import on_ranks
from samebits.world import World

ONE = World(0, 1, 0, torch.device("cpu"))


def drawn(classes: int = 5, size: int = 97, pixels: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """(logits, labels), with ties, labels better than chance, and a class that never occurs."""
    torch.manual_seed(classes + size)
    labels = torch.randint(0, classes - (classes > 2), (size, *pixels))
    logits = torch.randn(size, classes, *pixels) + torch.nn.functional.one_hot(labels, classes).movedim(-1, 1)
    return (logits * 2).round() / 2, labels


def batches(output: Tensor, label: Tensor, size: int = 10) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    for begin in range(0, len(label), size):
        yield output[begin : begin + size], {"y": label[begin : begin + size]}


def score(metric: Any, output: Tensor, label: Tensor, world: World = ONE) -> Any:
    metric.reset()
    for outputs, batch in batches(output, label):
        metric.update(outputs, batch)
    found = dict(scores_of(metric.compute(world), ""))
    return found.get("", {name.removeprefix("/"): value for name, value in found.items()})


# ---- by their formulas, in plain NumPy


def f1_and_iou(predicted: np.ndarray, label: np.ndarray, classes: list[int]) -> tuple[float, float]:
    f1, iou = [], []
    for c in classes:
        hit = int(((predicted == c) & (label == c)).sum())
        either = int(((predicted == c) | (label == c)).sum())
        if either:
            f1.append(2 * hit / (either + hit))
            iou.append(hit / either)
    return float(np.mean(f1)), float(np.mean(iou))


def auroc_by_pairs(scores: np.ndarray, positive: np.ndarray) -> float:
    difference = scores[positive][:, None] - scores[~positive][None]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


@pytest.mark.parametrize("ignored", [255, 0])  # 0: predictions of it are wrong, but it is no class of the mean
@pytest.mark.parametrize("pixels", [(), (3, 4)])
def test_f1_and_iou(pixels: tuple[int, ...], ignored: int) -> None:
    output, label = drawn(pixels=pixels)
    label[::4] = ignored
    kept = (label != ignored).numpy()
    classes = [c for c in range(5) if c != ignored]
    expected = f1_and_iou(output.argmax(1).numpy()[kept], label.numpy()[kept], classes)
    assert score(MacroF1(5, ignored), output, label) == pytest.approx(expected[0], abs=1e-12)
    assert score(MeanIoU(5, ignored), output, label.to(torch.uint8)) == pytest.approx(expected[1], abs=1e-12)


def test_a_confusion_matrix(tmp_path: Path) -> None:
    output, label = drawn()
    names = ["cat", "dog, small", "dog", "bird", "none"]
    metric = ConfusionMatrix(5, names=names)
    scores = score(metric, output, label[:, None])
    predicted = output.argmax(1)
    for c, name in enumerate(names[:4]):
        assert scores[f"recall_{name}"] == pytest.approx((predicted == c)[label == c].float().mean().item())
    assert math.isnan(scores["recall_none"])
    metric.write(tmp_path / "val_confusion")
    rows = list(csv.reader((tmp_path / "val_confusion.csv").open()))
    assert rows[0] == ["label", *names]
    assert [row[0] for row in rows[1:]] == names
    table = [[int(((label == a) & (predicted == b)).sum()) for b in range(5)] for a in range(5)]
    assert [[int(cell) for cell in row[1:]] for row in rows[1:]] == table


def test_auroc() -> None:
    """Two classes, as logits or as one score; several, one against the others; ties count half."""
    output, label = drawn(2)
    scores = (output[:, 1] - output[:, 0]).double()
    expected = auroc_by_pairs(scores.numpy(), (label == 1).numpy())
    assert 0.6 < expected < 0.95
    for given in (output, scores, scores[:, None]):
        assert score(AUROC(2), given, label) == pytest.approx(expected, abs=1e-12)
    output, label = drawn(5)
    shares = output.double().softmax(1).numpy()
    areas = [auroc_by_pairs(shares[:, c], (label == c).numpy()) for c in range(4)]  # the fifth has no sample
    assert score(AUROC(5), output, label) == pytest.approx(np.mean(areas), abs=1e-12)
    assert score(AUROC(2), torch.zeros(6), torch.tensor([0, 1] * 3)) == 0.5
    assert math.isnan(score(AUROC(2), torch.zeros(6), torch.zeros(6).long()))
    assert math.isnan(score(AUROC(2), torch.full((6,), math.nan), torch.tensor([0, 1] * 3)))


def test_what_does_not_fit_is_one_line() -> None:
    output, label = drawn()
    for metric, given, line in (
        (MacroF1(4), label, r"^MacroF1 of 4 classes cannot compare an output of shape \(10, 5\) with batch\['y'\] of "),
        (MeanIoU(5), label[:, None, None], r"^MeanIoU of 5 classes cannot compare"),
        (MeanIoU(5), label.float(), r"of torch\.float32 and shape \(10,\)"),
        (MeanIoU(5), label * 2, r"^MeanIoU: \d+ labels are not in 0 to 4: set num_classes, or set ignore_index"),
        (MeanIoU(5), label - 1, r"^MeanIoU: \d+ labels are not in 0 to 4"),
        (AUROC(3), label, r"^AUROC of 3 classes cannot compare an output of shape \(10, 5\)"),
        (AUROC(5), label + 2, r"^AUROC of 5 classes: labels from 2 to 5; set num_classes"),
    ):
        with pytest.raises(ConfigError, match=line):
            score(metric, output, given)
    with pytest.raises(ConfigError, match=r"names=.* expected 3 different names"):
        ConfusionMatrix(3, names=["a", "b"])


def test_a_score_with_one_element_is_a_number() -> None:
    one = (0.5, np.float32(0.5), np.array([0.5]), torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]]))
    assert all(dict(scores_of(value, "f")) == {"f": 0.5} for value in one)
    assert dict(scores_of(torch.tensor([0.5, 1.0]), "f")) == {"f/0": 0.5, "f/1": 1.0}
    assert dict(scores_of({"a": torch.tensor([0.5])}, "f")) == {"f/a": 0.5}


@pytest.mark.parametrize("one", [1j, np.complex128(1j), np.array([1j]), torch.tensor(1j), torch.ones(1).cfloat()])
def test_a_complex_score_is_one_line(one: Any) -> None:
    with pytest.raises(ConfigError, match=r"^task\.metrics\.f: compute returned a .*complex.*: return a number"):
        dict(scores_of(one, "f"))
    with pytest.raises(ConfigError, match=r"^task\.metrics\.f: .*\(3,\), but returned complex numbers: return real"):
        check_per_sample(torch.ones(3).cfloat(), 3, "task.metrics.f")


class Sums(SummedMetric):
    """The sum of the outputs, and their number, as float32 counts."""

    def count(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([output.sum(), torch.tensor(float(len(output)))])

    def score(self, total: Tensor) -> dict[str, float]:
        return dict(zip(("sum", "count"), total.tolist()))


def test_sums_have_the_precision_of_their_dtype() -> None:
    metric = Sums(2, dtype=torch.float64)
    for value in (2.0**24, *[1.0] * 9):  # float32 has no number between 2**24 and 2**24 + 2
        metric.update(torch.tensor([value]), {})
    assert metric.compute(ONE) == {"sum": 2**24 + 9, "count": 10}
    for wrong in (Sums(2), Sums(3, 2, dtype=torch.float64), Sums(dtype=torch.float64)):
        with pytest.raises(ConfigError, match=r"^Sums\.count returned \(2,\) float32, but the sum is .*64: give "):
            wrong.update(torch.ones(4), {})


class OnMps(Tensor):
    """A stand-in for a tensor on mps, which has no float64."""

    device = torch.device("mps")  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_sums_of_floats_on_mps_are_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Sums.count
    monkeypatch.setattr(Sums, "count", lambda *args: count(*args).as_subclass(OnMps))
    metric = Sums(2, dtype=torch.float64)
    for value in (2.0**24, 1.0):
        metric.update(torch.tensor([value]), {})
    assert metric.compute(World(0, 1, 0, torch.device("mps"))) == {"sum": 2**24 + 1, "count": 2}


# ---- torchmetrics


def theirs(classes: int) -> dict[str, Any]:
    torchmetrics = pytest.importorskip("torchmetrics")
    kinds = torchmetrics.classification
    return {
        "f1": as_metric(torchmetrics.F1Score(task="multiclass", num_classes=classes, average="macro")),
        "auroc": as_metric(kinds.MulticlassAUROC(classes - 1)),  # keeps all scores
        "recall": as_metric(kinds.MulticlassRecall(classes, average=None)),
        "mean": as_metric(kinds.MulticlassCalibrationError(classes)),
        "two": as_metric(torchmetrics.MetricCollection([kinds.MulticlassF1Score(classes), kinds.MulticlassRecall(5)])),
    }


@pytest.mark.slow
def test_torchmetrics_objects_agree() -> None:
    output, label = drawn()
    found = theirs(5)
    assert score(found["f1"], output, label) == pytest.approx(score(MacroF1(5), output, label), abs=1e-6)
    share = output[:, :4] + 0.01 * torch.randn(len(label), 4)  # equal shares of other logits differ by rounding
    assert score(found["auroc"], share, label) == pytest.approx(score(AUROC(4), share, label), abs=1e-6)
    recall = score(ConfusionMatrix(5), output, label)
    assert [score(found["recall"], output, label)[str(c)] for c in range(4)] == pytest.approx(
        [recall[f"recall_{c}"] for c in range(4)], abs=1e-6
    )
    assert list(score(found["two"], output, label)) == ["MulticlassF1Score", "MulticlassRecall"]


# ---- over ranks


def every_metric() -> dict[str, Any]:
    return {
        "F1": MacroF1(5), "IoU": MeanIoU(5), "matrix": ConfusionMatrix(5), "AUROC": AUROC(5),
    } | theirs(5)  # fmt: skip


def share_of(name: str, output: Tensor) -> Tensor:
    return output[:, :4] if name == "auroc" else output


@pytest.mark.slow
@pytest.mark.parametrize("ends", [[60, 60, 97], [0, 97, 97]])
def test_ranks_change_nothing(tmp_path: Path, ends: list[int]) -> None:
    """Shares of unequal size in unequal batches, one of them empty; the second evaluation begins anew."""

    def work(world: World, folder: Path) -> None:
        output, label = drawn()
        own = slice(ends[world.rank - 1] if world.rank else 0, ends[world.rank])
        for name, metric in every_metric().items():
            whole = score(metric, share_of(name, output), label)
            for _ in "ab":
                found = score(metric, share_of(name, output)[own], label[own], world)
                assert found == pytest.approx(whole, abs=1e-6, nan_ok=True), name
                if name in ("F1", "IoU", "AUROC"):
                    assert found == whole, name
        import torchmetrics

        # its state is a number until the first batch, which an empty rank does not have
        errors = as_metric(torchmetrics.R2Score(multioutput="raw_values"))
        whole = score(errors, output, output.flip(0))
        assert score(errors, output[own], output.flip(0)[own], world) == pytest.approx(whole, abs=1e-5)

    every_metric()  # imports torchmetrics once, not in each rank
    on_ranks(work, tmp_path / "ranks", ranks=len(ends))


# ---- in a run

METRICS = (
    "+task.metrics.f1={_target_: lab.metrics.confusion.MacroF1, num_classes: '${data.num_outputs}'}",
    "+task.metrics.confusion={_target_: lab.metrics.confusion.ConfusionMatrix, num_classes: 10}",
    "+task.metrics.auroc={_target_: lab.metrics.auroc.AUROC, num_classes: 10}",
    "+task.metrics.kappa={_target_: torchmetrics.CohenKappa, task: multiclass, num_classes: 10}",
)
RUN = (*QUICK, *METRICS, "trainer.max_steps=12", "trainer.eval_every=3", "monitor.mode=max", "optim.lr=0.01")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_score_of_one_rank_only_is_refused(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each rank has another best checkpoint, and they wait for each other at the next one for hours."""
    monkeypatch.setattr(MacroF1, "compute", lambda self, world: torch.tensor(self.score(self.total)))
    run = (*QUICK, METRICS[0], "monitor.key=val/f1", "monitor.mode=max", "trainer.max_steps=2")
    if ranks == 1:
        assert isinstance(result(start_run(tmp_path / "run", *run))["val/f1"], float)  # a tensor is a score, too
        return
    with pytest.raises(ConfigError, match=r"^task\.metrics\.f1: compute returned 0\S+ on rank 0 and 0\S+ on rank 1: "):
        start_run(tmp_path / "run", *run, *WAYS["2 ranks"])
    assert not (tmp_path / "run").exists()


def test_a_score_that_is_drawn_is_the_same_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a mean of a bootstrap sample."""
    monkeypatch.setattr(MacroF1, "compute", lambda self, world: torch.rand(()))
    run = start_run(
        tmp_path / "run", *QUICK, METRICS[0], "trainer.max_steps=4", "trainer.eval_every=2", *WAYS["2 ranks"]
    )
    assert len(set(values(run, "val/f1"))) == 1


@pytest.mark.slow
def test_the_best_by_such_a_score_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    key = "val/confusion/recall_3"
    run = start_run(tmp_path / "run", *RUN, f"monitor.key={key}", "trainer.keep_best=2")
    found = values(run, key)
    assert len(found) == 4
    assert [value for value, _ in last_checkpoint(run)["best"]] == sorted(found, reverse=True)[:2]
    final = result(run)
    assert final[key] == max(found)
    table = np.array([row[1:] for row in csv.reader((run / "val_confusion.csv").open())][1:], dtype=int)
    assert table.sum() == 250
    assert table.diagonal().sum() / 250 == pytest.approx(final["val/accuracy"])
    for number, row in enumerate(table):
        assert final[f"val/confusion/recall_{number}"] == pytest.approx(row[number] / row.sum())
    assert (run / "test_confusion.csv").exists()
    assert 0 < final["val/kappa"] < final["val/auroc"] <= 1


@pytest.mark.slow
def test_a_wrong_key_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    with pytest.raises(ConfigError, match=r"^monitor\.key: no score 'val/f2' - did you mean val/f1\?"):
        compose(*RUN, "monitor.key=val/f2")
    with pytest.raises(ConfigError, match=r"^monitor\.key=val/confusion: no such score.* val/confusion/recall_0"):
        start_run(tmp_path / "run", *RUN, "monitor.key=val/confusion")
    assert not (tmp_path / "run").exists()  # before the first step


@pytest.mark.slow
def test_a_search_follows_such_a_score() -> None:
    pytest.importorskip("torchmetrics")
    from omegaconf import OmegaConf

    cfg: Mapping[str, Any] = OmegaConf.to_container(compose(*RUN, "monitor.key=val/f1"))  # type: ignore[assignment]
    assert {"val/f1", "val/confusion", "test/f1", "test/confusion"} <= {*PROGRAM.scores(cfg, "val", "test")}


@pytest.mark.slow
def test_runs_with_other_ranks_have_these_scores(tmp_path: Path) -> None:
    """Two validation samples for three ranks."""
    pytest.importorskip("torchmetrics")
    few = (
        *RUN,
        "monitor.key=val/f1",
        "data.splits.val.rows=[0,0.01]",
        "trainer.max_steps=6",
        "trainer.global_batch_size=66",
    )
    one = scores(start_run(tmp_path / "1", *few))
    three = scores(start_run(tmp_path / "3", *few, *WAYS["3 ranks"]))
    assert {"val/loss", "test/loss", "val/f1"} <= one.keys() == three.keys()
    for name, value in one.items():
        assert three[name] == (value if value is None else pytest.approx(value, rel=1e-3)), name
