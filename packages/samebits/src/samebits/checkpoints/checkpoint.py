"""Save checkpoints to a temporary name and rename them; check them, and load them with weights_only=True.

A checkpoint is one file, or for a sharded model a directory (sharded.py).
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits.checkpoints import sharded
from samebits.checkpoints.background import Background, Copies
from samebits.checkpoints.integrity import WHOLE, RankShare, check_zip, disk_error, load_verified, reading
from samebits.checkpoints.shard_plan import SavePlan
from samebits.checkpoints.shared_weights import WEIGHTS, SharedWeights, with_shared
from samebits.errors import ConfigError, CorruptFileError, RunFailed, mistakes_of
from samebits.files import sync_folder
from samebits.saved import CONFIG, check_run_dir
from samebits.schema import misfits
from samebits.shards import is_dtensor
from samebits.status import CHECKPOINT, checkpoint_files, step_of
from samebits.world import World

log = logging.getLogger("samebits")
LEAST, FEW = 0.01, 0.5  # shares of loaded parameters below which load_fitting raises an error, and prints a line
MOST_KEYS = 4  # in a message
KEEP_LAST = 2  # the newest may turn out damaged
Weights = dict[str, torch.Tensor]
# KEYS: keys and types in checkpoints of all versions. LATER: keys that later versions added; they may be missing
KEYS = {
    "model": Weights, "ema": Weights | None, "optimizer": dict, "schedule": dict[str, Any], "step": int,
    "samples": int, "best": list[tuple[Real, float]], "evals_without_improvement": int, "logged_step": int,
    "scored_step": int, "ranks": list[dict[str, Any]] | torch.Tensor,
}  # fmt: skip
LATER = {
    "task": Weights, "scaler": dict[str, Any] | None, "parameter_names": list[str], "monitor": list[str],
    "source": dict[str, Any] | None, "best_score": Real | None, "counts": dict[str, int],
    "running_sum_types": dict[str, str], "logged_lines": int, "pending": list[str], "stop_reason": str,
    "total_steps": int, "epoch_samples": int, "steps_without_update": int, "rules": int,
    "shared": dict[str, dict[str, Real]], "passed": dict[str, int],
}  # fmt: skip
RENAMED = {  # keys of version 0.2 and before -> present keys
    "stale": "evals_without_improvement", "owes": "pending", "ended": "stop_reason", "trained": "parameter_names",
    "total_types": "running_sum_types", "frozen": "shared", "skipped_steps": "steps_without_update",
}  # fmt: skip
INNER: dict[str, dict[str, Any]] = {  # types within some of these values
    "optimizer": {"state": dict[Any, dict[Any, Any]], "param_groups": list[dict[str, Any]]},
    "schedule": {
        "last_lr": float,
        "total_steps": int,
        "updates": int,
        "factor": dict[str, Any],
        "objectives": dict[str, dict[str, Any]],
    },
    "source": {"next": int},
}


def save_checkpoint(payload: dict[str, Any], path: Path) -> None:
    """Save the payload atomically: if the process is killed, `path` is the old file or the complete new one.

    Raise RunFailed if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process
        with open(temporary, "xb") as file:
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        cause = disk_error(error)
        if cause is not None and not isinstance(cause, FileNotFoundError):  # that is: the directory was removed
            raise RunFailed(
                f"{path} cannot be written: {cause.strerror}; earlier checkpoints are complete "
                "(see docs/troubleshooting.md#disk-full)"
            ) from error
        raise


def load_checkpoint(path: Path, entries: Collection[str] = sharded.ENTRIES) -> dict[str, Any]:
    """Return the payload, on the CPU. Raise CorruptFileError. entries: keys of a sharded checkpoint to load."""
    if not path.is_dir():
        return load_lazily(path)
    with reading(path):
        payload = with_new_names(sharded.load(path, entries))
        check_content(payload)
    return payload


def load_lazily(path: Path, share: RankShare = WHOLE) -> dict[str, Any]:
    """Return the payload; tensors of a file are memory-mapped. The payload of a sharded checkpoint has no tensors:
    sharded.reshard_like loads them.

    Raise CorruptFileError if the file is damaged. share: (rank, ranks) if several ranks check the same checkpoint. Each
    rank then checks a part of the files or records.
    """
    with reading(path):
        if path.is_dir():
            payload = with_new_names(sharded.head(path, share))
            check_content({"model": {}, "ema": None, **payload})
            return payload
        payload = with_new_names(load_verified(path, share))
        check_content(payload)
    return with_shared(payload, path)


def copy_from_mmap(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Copy the tensors of an optimizer's state dict that load_state_dict would use without a copy. Return the state
    dict.

    These are all tensors if `device` is the CPU, otherwise the 0-d tensors. They are mapped from the checkpoint's file,
    so the disk space of a deleted file would stay in use until they are freed."""

    def own(value: Any) -> Any:
        taken = isinstance(value, torch.Tensor) and (device.type == "cpu" or not value.dim())
        return value.clone() if taken else value

    kept = {number: {key: own(value) for key, value in held.items()} for number, held in state["state"].items()}
    return state | {"state": kept}


def with_new_names(payload: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys of a checkpoint of an older version, in place; return the payload."""
    for old, new in RENAMED.items() if isinstance(payload, dict) else ():
        if old in payload:
            payload.setdefault(new, payload.pop(old))
    return payload


def check_content(payload: Any) -> None:
    """Raise ValueError if a key of a run's checkpoint is missing in the payload or has a wrong type."""
    if not isinstance(payload, dict):
        raise ValueError(f"it is not a checkpoint of a run: expected a dict, got a {type(payload).__name__}")
    wrong = [key for key in KEYS if key not in payload] + misfits(payload, KEYS | LATER)
    for key, kinds in INNER.items():
        if key not in wrong and (held := payload.get(key)) and misfits(held, kinds):
            wrong.append(key)
    if isinstance(ranks := payload.get("ranks"), torch.Tensor) and (ranks.dim(), ranks.dtype) != (2, torch.uint8):
        wrong.append("ranks")
    if not all(payload.get(part) for part in payload.get("shared", ())):
        wrong.append("shared")
    types: dict[str, str] = payload.get("running_sum_types", {})
    counts: dict[str, int] = payload.get("counts", types)
    known = all(isinstance(getattr(torch, str(kind), None), torch.dtype) for kind in types.values())
    if not known or not types.keys() <= counts.keys():
        wrong.append("running_sum_types")
    if wrong:
        raise ValueError(
            f"it is not a checkpoint of a run: keys that are missing or have a wrong type: {format_keys(wrong)}"
        )


def eval_state_dict(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict to evaluate: the weight average if the run has one, otherwise the model's."""
    return payload["ema"] or payload["model"]


def load_weights(model: nn.Module, state: dict[str, Any], source: str, what: str = "model") -> None:
    """Load `state`. Raise ConfigError, with the keys and shapes that differ, if it does not fit.

    source: name of the file in the error. what: name of the module in the error.
    """
    own = model.state_dict()
    shapes = [
        f"{k}: {tuple(state[k].shape)} in the checkpoint, {tuple(own[k].shape)} in the {what}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    parts = {
        "missing in the checkpoint": [k for k in own if k not in state],
        f"not in the {what}": [k for k in state if k not in own],
        "of another shape": shapes,
    }
    wrong = "; ".join(f"{what}: {format_keys(keys)}" for what, keys in parts.items() if keys)
    if wrong:
        late = f", and create buffers of the {what} before the first step" * (not shapes and own.keys() < state.keys())
        raise ConfigError(
            f"{source} does not fit the {what}: {wrong}; use the model and data settings of its training{late}"
        )
    model.load_state_dict(state)


def load_fitting(model: nn.Module, state: Mapping[str, torch.Tensor], source: object, remedy: str = "") -> str:
    """Load the entries of `state` that fit the model by name and shape. Return a report of a few lines.

    remedy: how to translate names: the end of the error, and of the line that says that few parameters were loaded, if
    names differ. Raise ConfigError if no parameter fits, if those that fit are below LEAST both of the model and of the
    file, or if only vectors, such as biases, fit and matrices do not: it is a model of another width. Otherwise entries
    of another shape are not counted, as a head may have another size.
    """
    own = model.state_dict()
    fits = {name: value for name, value in state.items() if name in own and value.shape == own[name].shape}
    others = [name for name in own if name in state and name not in fits]
    missing, unknown = [name for name in own if name not in state], [name for name in state if name not in own]
    of_model = {name: p.numel() for name, p in model.named_parameters()}
    of_file = {name: value.numel() for name, value in state.items()}
    fitting, parameters = sum(of_model.get(name, 0) for name in fits), sum(of_model.values())

    def share(left_out: Collection[str]) -> float:
        """Return the share of the model, or of the file, if it is larger: a file may have a part only."""
        return max(
            sum(sizes.get(name, 0) for name in fits)
            / max(1, sum(size for name, size in sizes.items() if name not in left_out))
            for sizes in (of_model, of_file)
        )

    parts = {
        "of another shape": [f"{k} {tuple(state[k].shape)}, here {tuple(own[k].shape)}" for k in others],
        "not in the file": missing,
        "not in the model": unknown,
    }
    differences = [f"{what}: {format_keys(names)}" for what, names in parts.items() if names]
    hint = f" - {remedy}" if remedy and missing and unknown else ""
    fits_a_matrix, misses_one = (any(own[name].ndim > 1 for name in names) for names in (fits, others))
    if (misses_one and not fits_a_matrix) or share(others) < LEAST:
        found = f"has only {fitting:,} of the model's {parameters:,} parameters"
        if not fitting:
            found = "no weight in it fits the model"
        hint = hint or " - use the model settings of its training"
        raise ConfigError(f"{source}: {found}: {'; '.join(differences)}{hint}")
    model.load_state_dict(fits, strict=False)
    lines = [f"{len(fits)} of the model's {len(own)} weights and buffers were loaded from {source}", *differences]
    if share(()) < FEW:
        lines.append(
            f"only {100 * fitting / max(1, parameters):.2g} % of the model's {parameters:,} parameters were loaded, "
            f"the others start with random values{hint if share(others) < FEW else ''}"
        )
    return "\n  ".join(lines)


def format_keys(keys: list[str]) -> str:
    """Return the first keys as text, and the number of the others."""
    return ", ".join(keys[:MOST_KEYS]) + (f" and {len(keys) - MOST_KEYS} more" if keys[MOST_KEYS:] else "") or "none"


class Checkpoints:
    """Save, load and delete the checkpoints of one run: the two newest, last_<step>, and the best ones, best_<step>.

    Each is a .pt file, or for a sharded model a .dcp directory.

    directory: an existing folder. A payload has the keys KEYS; its "best" is a list of [score, step].

    world: the ranks of the run that writes here; None for read-only use. save_async: write in the background: a save
    returns when the payload is copied, and a thread writes the copy; the next save and `wait` wait for it. saved: a
    function that is called with the duration of a save in seconds, when it is on the disk.
    """

    def __init__(
        self,
        directory: Path,
        world: World | None = None,
        save_async: bool = False,
        saved: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.directory, self.world = directory, world
        self._leads = world is None or world.is_main
        self._save_async, self._saved = save_async, saved
        self._copies, self._background, self._prepared = Copies(), Background(), False
        self._shared, self._plan = SharedWeights(directory, save_checkpoint), SavePlan()

    def save_last(self, payload: dict[str, Any]) -> None:
        """Save the payload as the newest checkpoint; all ranks call this.

        All ranks write a sharded payload; rank 0 writes any other. payload["shared"]: names in "model" of weights that
        are not trained, which are written once (shared_weights.py).
        """
        self._save("last", payload)

    def save_best(self, payload: dict[str, Any]) -> None:
        """Save the payload, and delete best_ checkpoints that are not in payload["best"], a list of [score, step]."""
        self._save("best", payload)

    def _save(self, kind: str, payload: dict[str, Any]) -> None:
        assert self.world is not None, "Checkpoints(directory) only reads: give the world of the ranks that save"
        began = time.monotonic()
        is_sharded = any(is_dtensor(value) for value in payload["model"].values())
        payload = dict(payload)
        names = payload.pop("shared", ())
        if names and not is_sharded and self.world.is_main:
            payload = self._shared.left_out(payload, names)
        if not self._save_async:
            self._write(kind, payload, is_sharded, began)
            self.world.barrier()  # the other ranks wait here while rank 0 writes
        elif is_sharded or self.world.is_main:
            self._background.wait()  # the thread may still read the copy that is overwritten now
            group = self.world.thread_group() if is_sharded else None
            copy, ready = self._copies.of(payload)

            def work() -> None:
                ready()
                self._write(kind, copy, is_sharded, began, group)

            self._background.start(work)

    def _write(self, kind: str, payload: dict[str, Any], is_sharded: bool, began: float, group: Any = None) -> None:
        """Write the checkpoint; when it is on the disk, delete outdated ones. group: the ranks' process group."""
        assert self.world is not None
        path = self._path(kind, payload["step"], sharded.SUFFIX if is_sharded else ".pt")
        if is_sharded:
            sharded.save(payload, path, self.world, save_checkpoint, group, self._plan)
        elif self.world.is_main:
            save_checkpoint(payload, path)
        self._delete_outdated(kind, payload["best"])
        self._saved(time.monotonic() - began)

    def _delete_outdated(self, kind: str, best: Sequence[list[float]]) -> None:
        files = [path for path in reversed(self.files()) if path.name.startswith(kind)]
        kept = {int(step) for _, step in best}
        outdated = files[KEEP_LAST:] if kind == "last" else [file for file in files if step_of(file) not in kept]
        for old in outdated if self._leads else ():
            shutil.rmtree(sharded.set_aside(old), ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)

    def prepare_and_check(self, payload: Callable[[], dict[str, Any]] | None = None) -> None:
        """Raise the error of a save that has failed in the background. Do not wait.

        payload: returns the present payload; the first call starts to allocate memory for copies of it.
        """
        self._background.check()
        if payload is not None and self._save_async and not self._prepared:
            self._prepared, held = True, payload()
            if self._leads or any(is_dtensor(value) for value in held["model"].values()):
                left_out = set(held.pop("shared", ()))
                held["model"] = {name: value for name, value in held["model"].items() if name not in left_out}
                self._copies.prepare(held)

    def wait(self, best: Sequence[list[float]] = ()) -> None:
        """Wait until the last save is on the disk, on all ranks; all ranks call this.

        best: list of [score, step] of the state. Outdated checkpoints are deleted, because an earlier process may have
        been killed between a save and the deletion.
        """
        assert self.world is not None
        self._background.wait()
        self._delete_outdated("last", best)
        if best:  # empty after a change of the monitor: keep the best checkpoints of the previous one
            self._delete_outdated("best", best)
        self.world.barrier()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Complete the write in progress, also if the run has failed."""
        try:
            self._background.wait()
        except Exception as own:
            if error is None:
                raise
            if isinstance(own, RunFailed):  # other errors are consequences of the failure, such as a lost connection
                log.warning("%s", own)

    def best_path(self, entry: list[float]) -> Path:
        """Return the path of the best checkpoint [score, step]."""
        paths = [self._path("best", int(entry[1]), suffix) for suffix in (".pt", sharded.SUFFIX)]
        return next((path for path in paths if path.exists()), paths[0])

    def load_best(self, best: list[list[float]]) -> tuple[list[float], dict[str, Any]] | None:
        """Return the first entry [score, step] whose checkpoint loads, and its payload, as from `load_lazily`. Return
        None if none loads.

        Warn about damaged or missing ones. All ranks call this with the same list.
        """
        for entry in best:
            try:
                return entry, self._load_on_ranks(self.best_path(entry))
            except CorruptFileError as error:
                if self._leads:
                    log.warning("skipping best checkpoint: %s", error)
        return None

    def _load_on_ranks(self, path: Path) -> dict[str, Any]:
        """Return the payload, as from `load_lazily`. Each rank checks its share of the file; if one finds damage, all
        raise."""
        if self.world is None:
            return load_lazily(path)
        payload, wrong = {}, None
        try:
            payload = load_lazily(path, (self.world.rank, self.world.size))
        except CorruptFileError as error:
            wrong = str(error)
        wrong = self.world.broadcast_object(next((found for found in self.world.gather_object(wrong) if found), None))
        if wrong is not None:
            raise CorruptFileError(wrong)
        return payload

    def newest_valid(self, put_aside: bool = False) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest checkpoint that loads, and its payload, as from `load_lazily`. Return None if there are no
        checkpoints.

        Warn about damaged ones. All ranks call this. put_aside: rename damaged ones to .damaged, so that they do not
        count as one of the two newest, and delete incomplete files of killed processes; only for the run itself.
        Raise ConfigError if there are checkpoints and none loads: the user decides whether to start from scratch.
        """
        if put_aside and self._leads:
            remove_leftovers(self.directory)
        files = self.files()[::-1] if self._leads else []
        if self.world is not None:
            files = [self.directory / name for name in self.world.broadcast_object([file.name for file in files])]
        damaged: list[Path] = []
        for path in files:
            try:
                payload = self._load_on_ranks(path)
            except CorruptFileError as error:
                damaged.append(path)
                if self._leads:
                    log.warning("skipping damaged checkpoint: %s", error)
                continue
            for one in damaged if put_aside and self._leads else ():
                shutil.rmtree(one.with_suffix(".damaged"), ignore_errors=True)  # of an earlier resume
                one.rename(one.with_suffix(".damaged"))
            return path, payload
        if files:
            raise ConfigError(
                f"{self.directory}: all {len(files)} checkpoints are damaged; move them away to start from scratch"
            )
        return None

    def files(self) -> list[Path]:
        """Return the paths of all checkpoints of this run, oldest first."""
        return checkpoint_files(self.directory)

    def _path(self, kind: str, step: int, suffix: str) -> Path:
        return self.directory / f"{kind}_{step:09d}{suffix}"


def remove_leftovers(directory: Path) -> None:
    """Delete files that a killed process was writing or deleting, and rename a sharded checkpoint that is complete."""
    for left in directory.glob(".*"):
        if left.suffix in (".tmp", ".old") and CHECKPOINT.fullmatch(name := left.stem.removeprefix(".")):
            if left.suffix == ".tmp" and (left / sharded.REST).exists() and not (directory / name).exists():
                left.replace(directory / name)
            else:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


@mistakes_of(OSError)
def find_checkpoint(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return (path of a checkpoint, its payload with the weights).

    path: a checkpoint, or a run directory. In a run directory, find the best checkpoint; if there is none, the newest.
    Raise ConfigError if there is no checkpoint, or you may not read it, CorruptFileError if it is damaged.
    """
    if path.is_file() or path.suffix == sharded.SUFFIX:
        above = path.absolute().parents[1]
        check_run_dir(above if (above / CONFIG).exists() else path)
        try:
            return path, load_checkpoint(path, WEIGHTS)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error} - give a run directory or another checkpoint") from error
    checkpoints = Checkpoints(path / "checkpoints")
    if not checkpoints.directory.is_dir():
        raise ConfigError(f"{path}: is neither a checkpoint nor a run directory with checkpoints")
    check_run_dir(path if (path / CONFIG).exists() else checkpoints.directory)
    newest = checkpoints.newest_valid()
    if newest is None:
        raise ConfigError(f"{checkpoints.directory}: contains no checkpoint")
    best = checkpoints.load_best(newest[1]["best"])
    file, payload = (checkpoints.best_path(best[0]), best[1]) if best else newest
    if "shards" in payload:
        with reading(file):
            payload = sharded.load(file, WEIGHTS, checked=payload)
    return file, payload


@mistakes_of(OSError)
def find_weights(path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Return (file, state dict). path: as in `find_checkpoint`, or a file with a state dict from any program.

    Raise ConfigError if there is no such file, or you may not read it, CorruptFileError if it contains no weights.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory, checkpoint or file with weights")
    if path.is_dir():
        file, payload = find_checkpoint(path)
        return file, eval_state_dict(payload)
    if not path.is_file():
        raise ConfigError(f"{path}: is neither a run directory nor a file")
    with reading(path):
        if zipfile.is_zipfile(path):  # torch < 1.6 wrote no zip files
            check_zip(path)
        payload = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(payload, dict) and "ranks" in payload:  # a run's checkpoint
        payload = with_shared(payload, path)
    within = [payload.get(key) for key in ("ema", "model", "state_dict")] if isinstance(payload, dict) else []
    for state in (payload, *within):
        if isinstance(state, dict) and state and all(isinstance(v, torch.Tensor) for v in state.values()):
            return path, state
    raise CorruptFileError(f"{path} does not load: it contains no state dict, and none under 'model' or 'state_dict'")
