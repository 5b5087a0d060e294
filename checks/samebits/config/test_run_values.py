"""What a class or function asks for, and its yaml does not give, it has of the run: `seed` and `batch_size`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lab.config import Config, check
from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.runs import choose_run
from samebits.saved import read_config
from samebits.targets import complete
from samebits.testing import SMALL, assert_equal, compose, last_checkpoint, metrics, start_run

FLIP = "+data.transforms.flip={_target_:lab.transforms.fields.RandomFlip,field:x,dim:-1"
WINDOWS = (
    "data.order._target_=samebits.data.windows.chunk_windows",
    "+data.order.window=4",
    "+data.order.chunk_rows=3",
)
SIZE = "+data.order.batch_size"
RUN = (*SMALL, "data=synthetic", "data.shape=[1,6,6]", "data.size=48", "data.num_classes=3", "model.hidden=[8]",
       "seed=3", "trainer.global_batch_size=6", "trainer.max_steps=4")  # fmt: skip


@pytest.fixture(scope="module")
def given_nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("run") / "nothing", *RUN, *WINDOWS, f"{FLIP}}}")


@pytest.mark.slow
def test_what_no_yaml_gives_is_the_run_s(given_nothing: Path, tmp_path: Path) -> None:
    """Bit for bit as if it were written there; the saved config has it once."""
    written = start_run(tmp_path / "written", *RUN, *WINDOWS, f'{FLIP},seed:"${{seed}}"}}',
                        f"{SIZE}=${{trainer.global_batch_size}}")  # fmt: skip
    assert metrics(written) == metrics(given_nothing)
    assert_equal(last_checkpoint(written)["model"], last_checkpoint(given_nothing)["model"])
    saved: Any = read_config(PROGRAM, given_nothing)
    assert "seed" not in saved.data.transforms.flip
    assert "batch_size" not in saved.data.order


@pytest.mark.slow
@pytest.mark.parametrize("own", [(f"{FLIP},seed:7}}",), (f"{FLIP}}}", f"{SIZE}=12")])
def test_a_value_of_its_own_counts(given_nothing: Path, tmp_path: Path, own: tuple[str, ...]) -> None:
    """In a run's saved config too, where older versions wrote what they had resolved."""
    other = start_run(tmp_path / "other", *RUN, *WINDOWS, *own)
    assert metrics(other) != metrics(given_nothing)
    config = Config.of(read_config(PROGRAM, other))
    assert (config.data.transforms["flip"]["seed"], config.data.order["batch_size"]) in ((7, 6), (3, 12))


def test_it_follows_the_run() -> None:
    """Whose seed and trainer.global_batch_size may change when it goes on. What a yaml gives stays."""
    cfg: Any = compose(*RUN, *WINDOWS, f"{FLIP}}}")
    before = cfg.copy()
    cfg.seed, cfg.trainer.global_batch_size = 4, 12
    config = Config.of(cfg)
    assert (config.data.transforms["flip"]["seed"], config.data.order["batch_size"]) == (4, 12)
    data = config.values["data"]
    assert (data["transforms"]["flip"]["seed"], data["order"]["batch_size"]) == (4, 12)
    assert config.dataset["seed"] == 0  # the yaml's own
    check(before)
    assert before == compose(*RUN, *WINDOWS, f"{FLIP}}}")  # neither changes the config


def test_nodes_at_any_depth() -> None:
    """In lists, in other nodes, partial ones; not what comes by position or from the caller, what has a default, nor
    of a class that is no longer there."""
    flip = {"_target_": "lab.transforms.fields.RandomFlip", "field": "x", "dim": -1}
    by_position, gone = flip | {"_args_": ["x", -1, 5]}, {"_target_": "lab.nothing.There"}
    inner = [flip, {"inner": flip | {"_partial_": True}}]
    node = {"a": inner, "b": by_position, "c": flip, "d": {"_target_": "torch.nn.Dropout"}, "e": {"seed": 1}, "f": gone}
    whole = complete(PROGRAM, node, {"seed": 9, "p": 0.9}, {"c": ("seed",)})
    seeded = flip | {"seed": 9}
    assert whole == node | {"a": [seeded, {"inner": seeded | {"_partial_": True}}]}


def test_no_yaml_says_what_the_run_gives() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (PROGRAM.root / "conf").rglob("*.yaml")}
    assert not [path.name for path, text in texts.items() if "${seed}" in text or "batch_size: ${trainer" in text]


@pytest.mark.slow
def test_a_run_whose_yamls_still_gave_the_seed_is_asked_for_it(tmp_path: Path) -> None:
    """As versions before saved it: a seed that is changed at a resume is to be changed in each node that has it."""
    folder = start_run(tmp_path / "run", *RUN, f"{FLIP}}}")
    cfg = OmegaConf.load(folder / "config.yaml")
    OmegaConf.update(cfg, "data.transforms.flip.seed", cfg.seed, force_add=True)
    OmegaConf.save(cfg, folder / "config.yaml")
    (folder / "overrides.yaml").write_text("[]")
    new = compose(f"resume={folder}", "seed=5", *RUN[:1], f"{FLIP},seed:5}}")
    with pytest.raises(ConfigError, match=r"^seed=5: data\.transforms\.flip\.seed depends on it; add data"):
        choose_run(PROGRAM, new, tmp_path / "new", ["seed=5"], tmp_path)
    both = ["seed=5", "data.transforms.flip.seed=5"]
    assert choose_run(PROGRAM, new, tmp_path / "new", both, tmp_path)[0].data.transforms.flip.seed == 5
