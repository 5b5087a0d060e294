"""Export Task.predict of a trained model to ONNX, for batches of any size, and compare its outputs with the model's."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.average import evaluation_mode
from lab.checks import predicted
from lab.project import PROJECT
from lab.restore import restore
from lab.tasks.base import Task
from lab.transforms.spec import dtype_name
from samebits.checkpoints import check_target, run_directory
from samebits.errors import ConfigError, RunFailed, first_line
from samebits.extras import need
from samebits.saved import read_config
from samebits.signals import temporary_folder

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # of the largest output; float32 kernels of other libraries differ by about 1e-6
# the exporter traces on the CPU, and onnxruntime of the extra computes there
PLAIN = ("hardware.device=cpu", "hardware.precision=fp32")
MOST_INLINE = 1 << 30  # bytes of weights; an ONNX file is limited to 2 GB, so larger weights are in a second file


@dataclass(frozen=True)
class Exported:
    """An ONNX file. source: the checkpoint. inputs: fields of the batch, with shapes. outputs: names. difference: the
    largest absolute difference between its outputs and the model's. batches: the batch sizes that were compared."""

    source: Path
    inputs: dict[str, str]
    outputs: list[str]
    difference: float
    batches: list[int]


class Predictor(nn.Module):
    """Task.predict as a module: fields of the batch in the order of `fields` -> tensors in the order of `names`."""

    def __init__(self, task: Task, model: nn.Module, fields: list[str]) -> None:
        super().__init__()
        self.task, self.model, self.fields, self.names = task, model, fields, list[str]()

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, each (B, ...)."""
        found = predicted(self.task, self.model, dict(zip(self.fields, values)))
        self.names = list(found)
        return tuple(found.values())


class Noted(dict[str, Tensor]):
    """A batch that records in `read` the names of the fields that are read."""

    def __init__(self, batch: dict[str, Tensor]) -> None:
        super().__init__(batch)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        value = super().__getitem__(name)
        self.read += [] if name in self.read else [name]
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field, or `default`."""
        return default if name not in self else self[name]  # noqa: SIM401 - notes the field

    def __iter__(self) -> Iterator[str]:  # also makes dict(batch) and {**batch} read each field
        return iter(super().keys())

    def items(self) -> Any:
        """Return all fields."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """Return the values of all fields."""
        return [self[name] for name in self]


def export_onnx(
    path: Path, target: Path, overwrite: bool, split: str | None, overrides: Sequence[str] = ()
) -> Exported:
    """Write the ONNX file `target`. Raise ConfigError if the model cannot be exported, and RunFailed, without writing
    the file, if its outputs differ from the model's by more than TOLERANCE.

    path: a run directory or checkpoint. split: the batch to export and to compare with comes from this split of the
    data; None: test, or val or train if there is none. overrides: key=value for the run's config.
    """
    check_target(path, target, overwrite)
    for library in LIBRARIES:
        need(library, "--to onnx", library, "export")
    if split is None:
        splits = read_config(PROJECT, run_directory(path)).data.get("splits")
        there = [name for name in ("test", "val", "train") if splits is None or splits.get(name) is not None]
        split = next(iter(there), "train")
    run = restore(path, split, [*overrides, *PLAIN])
    with run.experiment.eval_loader(split) as loader:
        batch = next(iter(loader))
    rows = len(next(iter(batch.values())))
    if rows < 2:
        raise ConfigError(
            f"--split {split}: its first batch has one row; the exporter needs two, to tell the size of the batch from "
            "other sizes - set hardware.eval_batch_size"
        )
    with torch.no_grad(), evaluation_mode(run.model, run.task), plain_attention():
        noted = Noted(batch)
        predicted(run.task, run.model, noted)
        if other := next((name for name in noted.read if not isinstance(batch[name], Tensor)), None):
            raise ConfigError(f"--to onnx: the task's predict reads the field {other}, which is not a tensor")
        whole = Predictor(run.task, run.model, noted.read)
        values = [batch[name] for name in noted.read]
        sizes = sorted({1, max(1, rows // 2), rows})
        try:
            expected = {size: whole(*(value[:size] for value in values)) for size in sizes}
        except (IndexError, RuntimeError, ValueError) as error:
            raise ConfigError(
                "--to onnx: a batch of this data set cannot be cut into smaller ones, because its fields do not all "
                f"have a row for each sample ({first_line(error)})"
            ) from error
        with temporary_folder(f".{target.name}.", target.parent) as folder:
            file = folder / target.name
            used = convert(whole, values, file)
            try:
                difference = max(
                    compared(file, whole, [value[:size] for value in values], expected[size]) for size in sizes
                )
            except (ConfigError, RunFailed):
                raise
            except Exception as error:  # onnxruntime's own errors
                kind = type(run.task).__name__
                raise ConfigError(
                    f"--to onnx: the file computes only batches of {rows} rows, because {kind}.predict uses the size "
                    f"of the batch as a constant; write predict so that it does not ({first_line(error)})"
                ) from error
            for part in sorted(folder.iterdir(), reverse=True):  # the file with the weights first
                part.replace(target.parent / part.name)
    shapes = {name: f"{dtype_name(value.dtype)} (batch{''.join(f', {n}' for n in value.shape[1:])})"
              for name, value in zip(noted.read, values) if name in used}  # fmt: skip
    return Exported(run.file, shapes, whole.names, difference, sizes)


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """In this block, nn.TransformerEncoder uses ordinary operations: its kernel for evaluations is not in ONNX."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def convert(whole: Predictor, values: list[Tensor], file: Path) -> list[str]:
    """Write the file by torch's exporter, with the first dimension of each input as `batch`. Return its inputs: the
    fields that affect the outputs, without labels that `predict` passes to a loss."""
    batch = torch.export.Dim("batch")
    weights = sum(p.numel() * p.element_size() for p in (*whole.parameters(), *whole.buffers()))
    logger = logging.getLogger("torch.onnx")  # warns of each library that it does not find
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            shapes = (tuple({0: batch} for _ in values),)
            try:
                traced = torch.export.export(whole, tuple(values), dynamic_shapes=shapes, strict=False)
            except Exception:  # strict: bytecode is read, in which the batch's size is a variable also as len(x)
                traced = torch.export.export(whole, tuple(values), dynamic_shapes=shapes, strict=True)
            program: Any = torch.onnx.export(
                traced, dynamo=True, verbose=False, dynamic_shapes=shapes, input_names=whole.fields,
                output_names=whole.names,
            )  # fmt: skip
            graph = program.model.graph
            for unused in [one for one in graph.inputs if not one.uses() and not one.is_graph_output()]:
                graph.inputs.remove(unused)
            try:
                program.save(str(file), external_data=weights > MOST_INLINE)
            except OSError as error:
                target = file.parents[1] / file.name  # it is moved from a temporary folder
                raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    except ConfigError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ConfigError(
            f"--to onnx: torch cannot export {type(whole.task).__name__}.predict of {type(whole.model).__name__}: "
            f"{first_line(cause)}"
        ) from error
    finally:
        logger.setLevel(level)
    return [one.name for one in graph.inputs]


def compared(file: Path, whole: Predictor, values: list[Tensor], expected: tuple[Tensor, ...]) -> float:
    """Return the largest absolute difference of the outputs. Raise RunFailed if it exceeds TOLERANCE."""
    runtime: Any = need("onnxruntime", "--to onnx", "onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = dict(zip(whole.fields, values))
    fed = {one.name: given[one.name].numpy() for one in session.get_inputs()}
    largest = 0.0
    for name, there, here in zip(whole.names, session.run(None, fed), expected, strict=True):
        found, wanted = torch.as_tensor(there), here.detach()
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise RunFailed(
                f"--to onnx: the output {name} is {dtype_name(found.dtype)} {tuple(found.shape)}, but the model's is "
                f"{dtype_name(wanted.dtype)} {tuple(wanted.shape)}; nothing was written"
            )
        apart = (found.double() - wanted.double()).abs()
        apart = apart[~(found.isnan() & wanted.isnan()) & (found != wanted)]  # inf - inf is NaN
        most = float(apart.max()) if apart.numel() else 0.0
        finite = wanted.double()[wanted.isfinite()]
        limit = TOLERANCE * max(1.0, float(finite.abs().max()) if finite.numel() else 0.0)
        if not most <= limit:
            raise RunFailed(
                f"--to onnx: the output {name} differs from the model's by {most:.2g}, more than {limit:.2g}, with "
                f"{len(values[0])} rows; nothing was written"
            )
        largest = max(largest, most)
    return largest
