"""docs/generation.md and docs/variable_size.md: the commands that they show train the files that they show, to scores
that only a trained model reaches; two and three ranks give the scores of one."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from common import needs
from fork import copy_of_the_project, run_python
from pages import DOCS, commands, write_files

from samebits.testing import result
from samebits.testing.processes import sample_of

PAGES = ("generation.md", "variable_size.md")
pytestmark = needs(*(f"docs/{page}" for page in PAGES), "conf/model/gpt.yaml")
TYPED = [shlex.split(command) for page in PAGES for command in commands(DOCS.get(page, ""))]
# of each example: (its name, the second command's), {score of the test split: (least, most)}
EXAMPLES = {
    "sorting": ("beams", {"exact": (0.8, 1), "errors": (0, 0.1), "bleu": (85, 100)}),
    "ctc": ("ctc_ranks", {"errors": (0, 0.05), "exact": (0.8, 1)}),
    "shapes": ("shapes_ranks", {"ap50": (0.8, 1)}),
    "graphs": ("graphs_ranks", {"accuracy": (0.95, 1)}),
}
# after a few steps the scores of these would be 0 or 1, which a wrong metric may have, too
EARLY = {"ctc": ("optim.lr=1e-5",), "shapes": ("task.metrics.ap50.overlaps=[0.05]", "optim.lr=1e-5")}
FEW = ("trainer.max_steps=6", "trainer.eval_every=6", "monitor.key=val/loss", "monitor.mode=min", "data.size=100")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_the_project(tmp_path_factory.mktemp("clone"))
    for page in PAGES:
        write_files(DOCS[page], copy)
    return copy


def scores(clone: Path, name: str, *more: str) -> dict[str, float]:
    """Return the scores of the command that has this name, with these words added."""
    (words,) = (words for words in TYPED if f"name={name}" in words)
    assert words[:2] == ["./run", "train"]
    folder = clone / f"outputs/{name}{len(more)}"
    # one thread: for these models two take twice the CPU time
    own = ("logger=none", "hardware.num_threads=1", f"hydra.run.dir={folder}")
    run_python(clone, "src/train.py", *words[2:], *own, *more, seconds=300)
    return {key: value for key, value in result(folder).items() if re.match("(val|test)/", key)}


def test_each_command_is_of_an_example() -> None:
    names = [word.removeprefix("name=") for words in TYPED for word in words if word.startswith("name=")]
    assert names == [name for first, (second, _) in EXAMPLES.items() for name in (first, second)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns(clone: Path, name: str) -> None:
    """A part of the split is enough for the evaluations between the epochs and at the end."""
    second, limits = EXAMPLES[name]
    found = scores(clone, name, "trainer.max_eval_batches=8")
    for score, (least, most) in limits.items():
        assert least <= found[f"test/{score}"] <= most, score
    if second == "beams":  # the others differ only in their ranks, see below
        done = run_python(clone, "src/evaluate.py", f"outputs/{name}1", "task.beams=4", "--json", seconds=300)
        assert json.loads(done.stdout)["exact"] >= limits["exact"][0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXAMPLES)
def test_ranks_and_padding_change_no_score(clone: Path, name: str) -> None:
    """The second command has two ranks. Three ranks have batches of another size, the last of which is padded. After so
    few steps no score is that of a trained model."""
    second, limits = EXAMPLES[name]
    few = (*FEW, "trainer.global_batch_size=48", *EARLY.get(name, ()))
    one = scores(clone, second, *few, "trainer=single", "hardware.num_procs=1", "hardware.micro_batch_size=null")
    assert len(one) > 3
    assert {one[f"test/{score}"] for score in limits} - {0, 1}
    assert not [score for score, (least, most) in limits.items() if least <= one[f"test/{score}"] <= most]
    three = ("hardware.num_procs=3", "trainer.pad_eval_batches=true")
    for more in sample_of([three], [(), three]):
        assert scores(clone, second, *few, *more) == {key: pytest.approx(value, rel=1e-4) for key, value in one.items()}
