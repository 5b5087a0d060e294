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
from lab.checks import checked_prediction
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
        outputs = checked_prediction(self.task, self.model, dict(zip(self.fields, values)))
        self.names = list(outputs)
        return tuple(outputs.values())


class RecordsReads(dict[str, Tensor]):
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
        return default if name not in self else self[name]  # noqa: SIM401 - records the field

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
        need(library, "--to onnx", library, "onnx")
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
        recorded = RecordsReads(batch)
        checked_prediction(run.task, run.model, recorded)
        if other := next((name for name in recorded.read if not isinstance(batch[name], Tensor)), None):
            raise ConfigError(f"--to onnx: the task's predict reads the field {other}, which is not a tensor")
        predictor = Predictor(run.task, run.model, recorded.read)
        values = [batch[name] for name in recorded.read]
        sizes = sorted({1, max(1, rows // 2), rows})
        try:
            cut = {size: [value[:size] for value in values] for size in sizes}
            expected = {size: predictor(*cut[size]) for size in sizes}
        except (IndexError, RuntimeError, ValueError) as error:
            raise ConfigError(
                "--to onnx: a batch of this data set cannot be cut into smaller ones, because its fields do not all "
                f"have a row for each sample ({first_line(error)})"
            ) from error
        with temporary_folder(f".{target.name}.", target.parent) as folder:
            file = folder / target.name
            used = convert(predictor, values, file)
            try:
                difference = max(largest_difference(file, predictor, cut[size], expected[size]) for size in sizes)
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
              for name, value in zip(recorded.read, values) if name in used}  # fmt: skip
    return Exported(run.file, shapes, predictor.names, difference, sizes)


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """In this block, nn.TransformerEncoder uses ordinary operations: its kernel for evaluations is not in ONNX."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def convert(predictor: Predictor, values: list[Tensor], file: Path) -> list[str]:
    """Write the file by torch's exporter, with the first dimension of each input as `batch`. Return its inputs: the
    fields that affect the outputs, without labels that `predict` passes to a loss."""
    batch = torch.export.Dim("batch")
    weights = sum(p.numel() * p.element_size() for p in (*predictor.parameters(), *predictor.buffers()))
    logger = logging.getLogger("torch.onnx")  # warns of each library that it does not find
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            shapes = (tuple({0: batch} for _ in values),)
            try:
                traced = torch.export.export(predictor, tuple(values), dynamic_shapes=shapes, strict=False)
            except Exception:  # strict: bytecode is read, in which the batch's size is a variable also as len(x)
                traced = torch.export.export(predictor, tuple(values), dynamic_shapes=shapes, strict=True)
            program: Any = torch.onnx.export(
                traced, dynamo=True, verbose=False, dynamic_shapes=shapes, input_names=predictor.fields,
                output_names=predictor.names,
            )  # fmt: skip
            graph = program.model.graph
            for unused in [entry for entry in graph.inputs if not entry.uses() and not entry.is_graph_output()]:
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
        task, model = type(predictor.task).__name__, type(predictor.model).__name__
        raise ConfigError(f"--to onnx: torch cannot export {task}.predict of {model}: {first_line(cause)}") from error
    finally:
        logger.setLevel(level)
    return [entry.name for entry in graph.inputs]


def largest_difference(file: Path, predictor: Predictor, values: list[Tensor], expected: tuple[Tensor, ...]) -> float:
    """Return the largest absolute difference of the outputs. Raise RunFailed if it exceeds TOLERANCE."""
    runtime: Any = need("onnxruntime", "--to onnx", "onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    fields = dict(zip(predictor.fields, values))
    inputs = {entry.name: fields[entry.name].numpy() for entry in session.get_inputs()}
    largest = 0.0
    for name, array, output in zip(predictor.names, session.run(None, inputs), expected, strict=True):
        exported, original = torch.as_tensor(array), output.detach()
        if exported.shape != original.shape or exported.dtype != original.dtype:
            raise RunFailed(
                f"--to onnx: the output {name} is {dtype_name(exported.dtype)} {tuple(exported.shape)}, but the "
                f"model's is {dtype_name(original.dtype)} {tuple(original.shape)}; nothing was written"
            )
        errors = (exported.double() - original.double()).abs()
        errors = errors[~(exported.isnan() & original.isnan()) & (exported != original)]  # inf - inf is NaN
        error = float(errors.max()) if errors.numel() else 0.0
        finite = original.double()[original.isfinite()]
        limit = TOLERANCE * max(1.0, float(finite.abs().max()) if finite.numel() else 0.0)
        if not error <= limit:
            raise RunFailed(
                f"--to onnx: the output {name} differs from the model's by {error:.2g}, more than {limit:.2g}, with "
                f"{len(values[0])} rows; nothing was written"
            )
        largest = max(largest, error)
    return largest
