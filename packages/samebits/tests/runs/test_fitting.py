"""Which weights of a file a model takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from samebits.checkpoints import find_weights, load_fitting
from samebits.errors import ConfigError, CorruptFileError


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def fitted(path: Path, model: nn.Module) -> str:
    file, state = find_weights(path)
    return load_fitting(model, state, file, "translate their names with task.rename")


def test_files_without_such_weights_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({f"x.{name}": value for name, value in small().state_dict().items()}, tmp_path / "other.pt")
    data = (tmp_path / "other.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    middle = data.index(small().state_dict()["1.running_var"].numpy().tobytes())
    (tmp_path / "flipped.pt").write_bytes(data[:middle] + b"\1" + data[middle + 1 :])
    (tmp_path / "folder").mkdir()
    for name, kind, line in (
        ("missing.pt", ConfigError, "missing.pt: no such run directory, checkpoint or file with weights$"),
        ("folder", ConfigError, "folder: is neither a checkpoint nor a run directory"),
        ("text.pt", CorruptFileError, r"text.pt does not load: "),
        ("cut.pt", CorruptFileError, r"cut.pt does not load: "),
        ("flipped.pt", CorruptFileError, r"flipped.pt does not load: Bad CRC-32"),
        ("list.pt", CorruptFileError, r"list.pt does not load: it contains no state dict"),
        (
            "other.pt",
            ConfigError,
            r"other.pt: no weight in it fits .*: not in the file: 0\.weight, .* x\.0\.weight, .* - .*task\.rename",
        ),
    ):
        with pytest.raises(kind, match=line) as caught:
            fitted(tmp_path / name, small())
        assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_not_taken_for_some_of_this_one(tmp_path: Path) -> None:
    """Weights of a narrower net of the class are an error, however many the last bias is of. A share below a half is a
    line. A head of another size is neither, nor is a file that has only a part of the model."""

    def net(width: int, outputs: int = 3) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, outputs))

    def heads(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 20), *(nn.Linear(20, outputs) for _ in range(4)))

    def loaded(theirs: nn.Module, mine: nn.Module) -> str:
        torch.save(theirs.state_dict(), tmp_path / "w.pt")
        return fitted(tmp_path / "w.pt", mine)

    few = "% of the model's"
    for narrow, wide in ((net(30), net(40)), (net(2), net(3)), (net(2, 40), net(3, 40))):
        shapes = rf"of another shape: 0\.weight \({narrow[0].out_features}, 8\), here .*use the model settings of its"
        few_fit = r"has only \d+ of the model's [\d,]+ parameters"
        with pytest.raises(ConfigError, match=rf"w\.pt: {few_fit}: {shapes}"):
            loaded(narrow, wide)
    said = loaded(nn.Sequential(nn.Linear(8, 20), nn.Linear(20, 40), nn.Linear(40, 3)), net(20))
    assert said.endswith("only 28 % of the model's 663 parameters were loaded, the others start with random values")
    for theirs, mine in (
        (net(20, 12), net(20)), (net(4, 1000), net(4, 3)), (net(4, 3), net(4, 1000)), (net(20)[:1], net(20)),
    ):  # fmt: skip
        assert few not in loaded(theirs, mine)
    assert loaded(heads(12), heads(7)).startswith("2 of the model's 10 weights")


@pytest.mark.parametrize(("theirs", "mine"), [(2000, 1500), (20000, 15000)])
def test_a_large_head_of_another_size_is_not_the_fault_of_names(tmp_path: Path, theirs: int, mine: int) -> None:
    """Below 1 % of the parameters, too, if all names are equal; but not if the other names hold most parameters."""

    def net(outputs: int, prefix: str = "") -> nn.Module:
        parts = {name: nn.Linear(8, size) for name, size in ((f"{prefix}a", 8), (f"{prefix}b", 8))}
        return nn.ModuleDict({**parts, "head": nn.Linear(8, outputs)})

    torch.save(net(theirs).state_dict(), tmp_path / "w.pt")
    model = net(mine)
    said = fitted(tmp_path / "w.pt", model)
    assert torch.equal(model.a.weight, torch.load(tmp_path / "w.pt")["a.weight"])  # type: ignore[union-attr, arg-type]
    assert f"of another shape: head.weight ({theirs}, 8), here ({mine}, 8)" in said
    assert said.endswith("were loaded, the others start with random values")
    lost = r"no weight in it fits the model: of another shape: head\.weight .*; not in the file: x_a\.weight, "
    with pytest.raises(ConfigError, match=lost + r".*; not in the model: a\.weight, .* - .*task\.rename"):
        fitted(tmp_path / "w.pt", net(mine, "x_"))
