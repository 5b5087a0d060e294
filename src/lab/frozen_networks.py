"""Networks that a task uses and never trains: a teacher, a reference, a perceptual loss (Task.frozen_networks).

They are saved in the run directory as frozen/NAME.pt, together with the config node that builds the network. Therefore
the run can be moved, and the teacher's run can be deleted.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from lab.model_io import restore_model
from lab.project import PROJECT
from lab.quantization import quantize_layers, quantized_layers
from lab.tasks.base import Task
from samebits.checkpoints import load_verified, load_weights, save_checkpoint
from samebits.errors import ConfigError
from samebits.schema import plain
from samebits.steps import seeded
from samebits.targets import construct

FOLDER = "frozen"


def provide_frozen(task: Task, model: nn.Module, node: Any, directory: Path | None, is_new: bool, writes: bool) -> None:
    """Replace the entries of task.frozen_networks by the networks, in eval mode and without gradients.

    model: the run's initial model, on the CPU; node: the config node that builds it. directory: the run directory;
    None: there is no run. is_new: True to load the networks from their sources and, if `writes`, to save them; False to
    load the saved ones."""
    networks: dict[str, nn.Module] = {}
    for name, source in task.frozen_networks.items():
        file = None if directory is None else directory / FOLDER / f"{name}.pt"
        if is_new or file is None:
            built, network = _named(source, model, {"node": plain(node), "seed": task.run.seed})
            if writes and file is not None:
                file.parent.mkdir(exist_ok=True)
                save_checkpoint(built | {"model": network.state_dict(), "quantized": quantized_layers(network)}, file)
        else:
            network = _saved(name, source, file, task.run.seed)
        networks[name] = network.requires_grad_(False).eval()
    task.frozen_networks = networks


def _named(source: Any, model: nn.Module, of_run: dict[str, Any]) -> tuple[dict[str, Any], nn.Module]:
    """Return ({"node", "seed"} from which the network is built, network). The node is None if the task built it.

    of_run: node and seed of the run's model."""
    if isinstance(source, nn.Module):
        return of_run | {"node": None}, source
    if source is None:
        return of_run, copy.deepcopy(model)
    network, cfg, _, _ = restore_model(Path(source))
    return {"node": plain(cfg.model), "seed": cfg.seed}, network


def _saved(name: str, source: Any, file: Path, seed: int) -> nn.Module:
    if not file.exists():
        raise ConfigError(
            f"{file}: is missing; it contains the run's frozen network {name} - copy it from the original run"
        )
    saved = load_verified(file)
    built = isinstance(source, nn.Module)
    with seeded(saved.get("seed", seed)):  # files of version 0.2 have neither this nor "quantized"
        network = source if built else construct(PROJECT, f"{file.name}: model", saved["node"], nn.Module)
    quantize_layers(network, saved.get("quantized", {}))
    load_weights(network, saved["model"], str(file))
    return network
