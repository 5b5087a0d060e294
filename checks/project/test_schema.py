"""conf/schema.json: every yaml that is shipped fits it, typical mistakes do not, and Hydra does not see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from checking import import_tool
from common import ROOT
from fork import copy_of_the_project, run_python
from omegaconf import OmegaConf


@pytest.fixture(scope="module")
def tool() -> Any:
    return import_tool("schema")


@pytest.fixture(scope="module")
def schema(tool: Any) -> Any:
    """As ./run schema would write it now: a fork that has added a class stays green."""
    return tool.build()


def errors(schema: Any, name: str, text: str) -> list[str]:
    """Of a yaml, as OmegaConf reads it. name: of its definition."""
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    checker = jsonschema.Draft7Validator({**schema, "$ref": f"#/definitions/{name}"})
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message[:200]}" for one in checker.iter_errors(values)]


@pytest.mark.slow
def test_every_yaml_fits(tool: Any, schema: Any) -> None:
    jsonschema.Draft7Validator.check_schema(schema)
    for path in tool.yamls():
        text = path.read_text()
        name = tool.MODELINE.search(text)[0].rpartition("/")[2].strip()
        assert errors(schema, name, text) == [], path


def test_the_schema_is_current(tool: Any, schema: Any) -> None:
    committed = json.loads((ROOT / "conf/schema.json").read_text())
    assert tool.comparable(committed) == tool.comparable(schema), "./run schema"
    names = schema["definitions"]
    assert [path for path in tool.yamls() if tool.with_modeline(path, names) != path.read_text()] == [], "./run schema"


# the definition, and yamls of it, one a line
MISTAKES = {
    "trainer": """
        max_epoch: 3
        eval_every: 1epoch
        fsdp: { replicas: 0 }
        defaults: [sinle]""",
    "hardware": """
        device: gpu
        num_procs: 0""",
    "logger": """
        mlflow: { uri: x }""",
    "model": """
        _target_: lab.models.mlp.MPL
        { _target_: lab.models.mlp.MLP, hiden: [8] }
        { _target_: lab.models.mlp.MLP, hidden: 8 }
        { _target_: lab.models.mlp.MLP, dropout: 1.5 }""",
    "data": """
        { _target_: lab.datasets.h5.Dataset, pth: x.h5 }
        order: { _target_: samebits.data.order.first, _partial_: true, cout: 64 }
        transforms: { flip: { _target_: lab.transforms.fields.RandomFlip, dim: x } }
        transforms: { flip: { _target_: lab.transforms.fields.RandomFilp } }""",
    "optim": """
        { _target_: torch.optim.AdamW, learning_rate: 1.0 }
        defaults: [shedule: cosine]
        schedule: { warmup: 2 }""",
    "task": """
        { _target_: lab.tasks.supervised.Supervised, criterions: {} }
        metrics: { accuracy: { _target_: lab.metrics.accuracy.Accuracy, top: 3 } }
        metrics: [accuracy]""",
    "callback": """
        summary: { _target_: lab.callbacks.summary.Summary, deep: 3 }
        summary: { _target_: lab.callbacks.summary.Summary, depth: deep }""",
    "optim.schedule": """
        _target_: lab.schedules.cosine.Cosin
        { _target_: lab.schedules.cosine.Cosine, warmup: 5 }""",
    "hydra.launcher": """
        { _target_: hydra_plugins.samebits_sweep.PoolLauncher, jobs: 2 }""",
    "experiment": """
        modle: {}
        defaults: [override /modle: resnet]
        defaults: [model: resnet]
        { defaults: [override /model: resnet], model: { hidden: [8] } }
        { defaults: [override /optim: sgd], optim: { betas: [0.9, 0.99] } }
        defaults: [digtis]
        seed: -1
        trainer: { clip: 1 }
        process: { max_time: 3 h }
        optim: { lrr: 1.0 }
        sweep: lr
        hydra: { launcher: { jobs: 2 } }""",
}
FINE = {
    "trainer": """
        max_epochs: ${x}
        max_epochs: 1e1
        eval_every: 0.5ep
        fsdp: null
        ddp: ${x}""",
    "model": """
        { _target_: timm.models.VisionTransformer, anything: 3 }
        { _target_: "${x}", anything: 3 }
        { _target_: lab.models.mlp.MLP, hidden: ["${x}", 3] }
        { defaults: [mlp], hidden: "${x}" }""",
    "data": """
        path: ???
        order: ${x}
        { defaults: [h5], path: x.h5 }
        path: [a.h5, b.h5]
        transforms: { mine: "${x}" }""",
    "optim": """
        lr: 3e-3
        defaults: [{ schedule: cosine }, _self_]
        { _target_: torch.optim.Adagrad, lr_decay: 0.1 }""",
    "task": """
        metrics: { kappa: { _target_: torchmetrics.CohenKappa, task: multiclass } }
        { _target_: lab.tasks.supervised.Supervised, criterion: { _target_: torch.nn.Module, x: [1] } }""",
    "experiment": """
        { defaults: [override /model: mlp, override /callback: [curves, summary]], model: { hidden: [8] } }
        defaults: [/paper: x, override hydra/job_logging: default, /model@teacher: x]
        defaults: [/experiment/other, digits, optional override /model: mlp, override /hydra/launcher: ray]
        model: { _target_: my.Net, width: 8 }
        hydra: { run: { dir: x } }""",
}


def each(cases: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, line.strip()) for name, lines in cases.items() for line in lines.splitlines() if line.strip()]


@pytest.mark.one_quick
@pytest.mark.parametrize(("name", "text"), each(MISTAKES))
def test_mistakes_are_seen(schema: Any, name: str, text: str) -> None:
    assert errors(schema, name, text)


@pytest.mark.parametrize(("name", "text"), each(FINE))
def test_what_may_be_written_is_accepted(schema: Any, name: str, text: str) -> None:
    assert errors(schema, name, text) == []


def test_keys_in_nested_classes_and_in_lists_are_checked(schema: Any) -> None:
    """Where no place says what is to be built, the class itself does."""
    inner = "{ _target_: lab.models.mlp.MLP, hiden: [8] }"
    for text in (f"modules: {{ encoder: {inner} }}", f"modules: {{ parts: [{inner}] }}"):
        assert errors(schema, "model", f"{{ _target_: torch.nn.ModuleDict, {text} }}")
        assert not errors(schema, "model", f"{{ _target_: torch.nn.ModuleDict, {text.replace('hiden', 'hidden')} }}")


@pytest.mark.slow  # imports torch
def test_one_command_takes_in_a_class_and_its_yaml(tmp_path: Path) -> None:
    fork = copy_of_the_project(tmp_path)
    (fork / "src/lab/models/line.py").write_text(
        "from enum import Enum\nfrom typing import Literal\n\nfrom torch import nn\n\n\n"
        "class Kind(Enum):\n    A = 1\n\n\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self, a: Kind = Kind.A, b: Literal[Kind.A] = Kind.A, c: float = float('inf'), *d: int):\n"
        "        super().__init__()\n\n\n"
        "class Line(nn.Module):\n"
        '    """A line."""\n\n    def __init__(self, num_outputs: int) -> None:\n        super().__init__()\n'
    )
    (fork / "conf/model/line.yaml").write_text("_target_: lab.models.line.Line\nnum_outputs: 3 # how many\n")
    (fork / "conf/paper").mkdir()  # a group of its own
    (fork / "conf/paper/figure.yaml").write_text("# @package _global_.paper\nwidth: 3\n")
    (fork / "conf/schema.json").write_text("<<<<<<< of a merge\n")
    tool = "tools/schema.py"
    done = [run_python(fork, tool, "--check", code=1), run_python(fork, tool), run_python(fork, tool, "--check")]
    assert [one.stderr for one in done] == [""] * 3
    assert done[1].stdout.splitlines() == [
        f"conf/{name}: written" for name in ("model/line.yaml", "paper/figure.yaml", "schema.json")
    ]
    assert "#/definitions/value\n" in (fork / "conf/paper/figure.yaml").read_text()
    assert (fork / "conf/model/line.yaml").read_text().startswith("# yaml-language-server: $schema=../schema.json#/")
    made = json.loads((fork / "conf/schema.json").read_text())
    assert made["definitions"]["lab.models.line.Line"]["properties"]["num_outputs"]["description"] == "how many"
    assert errors(made, "experiment", "{ defaults: [override /model: line], model: { num_outputs: 3 } }") == []
    assert errors(made, "experiment", "{ defaults: [override /model: line], model: { num_output: 3 } }")


def test_the_package_stays_where_hydra_reads_it(tool: Any) -> None:
    """Hydra's header ends at the first line that does not begin with # @."""
    from hydra.core.plugins import Plugins  # noqa: F401 - first
    from hydra.plugins.config_source import ConfigSource

    for path in tool.yamls():
        header = ConfigSource._get_header_dict(path.read_text())
        group = path.parent.relative_to(tool.CONF).parts[:1]
        assert (header["package"] == "_global_") == (group in (("experiment",), ("debug",)) or path.stem == "confusion")


def test_messages_and_hover_texts_are_there_for_each_key() -> None:
    """Of typed lists, of the keys of train.yaml itself, and where a comment above a key has words before a colon."""
    text = (ROOT / "conf/schema.json").read_text()
    assert "Annotated" not in text
    definitions = json.loads(text)["definitions"]
    for place, keys in (("train", ("name", "rules", "resume", "process")), ("hardware", ("precision", "compile"))):
        for key in keys:
            assert definitions[place]["properties"][key]["description"], key
