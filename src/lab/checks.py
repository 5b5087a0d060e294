"""Explain mistakes in the user's code in one line: a wrong dtype, a missing field, an unregistered parameter."""

from __future__ import annotations

import re
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.transforms.spec import described, dtype_name
from samebits.checkpoints import unregistered
from samebits.errors import ConfigError, DataFailed, RunFailed, first_line, in_users_code
from samebits.shards import is_sharded
from samebits.status import shown
from samebits.targets import TRACEBACK

CAST = "'+data.transforms.cast={_target_: lab.transforms.fields.Cast, field: %s}'"

LISTED = 8  # at most so many fields and tensors in a message
OF_THE_MACHINE = re.compile(r"\[?(CUDA|cuDNN|cuBLAS|NCCL|HIP|MPS|enforce fail at alloc)|DefaultCPUAllocator", re.I)
TYPE_ERRORS = ("dtype", "datatype", "scalar type", "Input type", "the type torch.", "not implemented for")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS: dict[Any, tuple[str, ...]] = {  # as torch's messages name them
    torch.int64: ("Long", "long", "int64"),
    torch.int32: ("Int", "int", "int32"),
    torch.int16: ("Short", "short", "int16"),
    torch.int8: ("Char", "signed char", "int8"),
    torch.uint8: ("Byte", "unsigned char", "uint8"),
    torch.bool: ("Bool", "bool"),
}


def call_with_hints(function: Callable[..., Any], key: str, output: Any, batch: Any) -> Any:
    """Return function(output, batch) of a criterion or metric. Raise ConfigError if the output has a wrong type."""
    try:
        return function(output, batch)
    except Exception as error:
        add_shapes(error, key, output, batch)
        kind = type(output).__name__
        if not isinstance(error, (AttributeError, TypeError)) or isinstance(output, Tensor) or kind not in str(error):
            raise
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"{key}: {name} cannot use the model's output, a {kind} ({first_line(error)}): return "
            "one tensor from the model, or use a criterion and metrics that accept this type"
        ) from error


def checked_prediction(task: Any, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
    """Return {name: (B, ...)} from Task.predict; a tensor is named "output". Raise ConfigError for other types."""
    found = task.predict(model, batch)
    named = {"output": found} if isinstance(found, Tensor) else found
    if not (isinstance(named, Mapping) and all(isinstance(value, Tensor) for value in named.values())):
        raise ConfigError(
            f"{type(task).__name__}.predict returned {type(found).__name__}, not a tensor (B, ...) or {{name: tensor}}"
        )
    return named


def error_with_hints(model: nn.Module, task: Any, batch: Any, error: Exception) -> Exception:
    """Return an error that contains the remedy if the losses failed with a known cause (a wrong dtype, a missing field,
    wrong arguments, a collective that some ranks do not reach). Otherwise return `error` itself."""
    mistake: Exception | None = None
    if isinstance(error, ConfigError):
        line = _shape_mistake(model, task, batch, error)
        return ConfigError(line) if line else error
    if isinstance(error, KeyError):
        mistake = _field_mistake(batch, error)
    elif isinstance(error, TypeError):
        mistake = _argument_mistake(model, error)
    elif isinstance(error, (RuntimeError, ValueError)):
        mistake = _dtype_mistake(model, batch, error) or _collective_mistake(model, error)
        mistake = mistake or _gradient_mistake(task, error)
    if mistake is None:
        _note_inputs(model, task, batch, error)
    return mistake or error


@contextmanager
def key_in_errors(key: str) -> Iterator[None]:
    """In this block, add the config key to errors, for `explained_mistake`."""
    try:
        yield
    except Exception as error:
        vars(error).setdefault("key", key)
        raise


@contextmanager
def shapes_in_errors(key: str, output: Any, batch: Any) -> Iterator[None]:
    """In this block, add the config key and the shapes to errors; see `add_shapes`."""
    try:
        yield
    except Exception as error:
        add_shapes(error, key, output, batch)
        raise


def add_shapes(error: Exception, key: str, output: Any, batch: Any) -> None:
    """Add the config key and the shapes of output and batch to an error, for `explained_mistake`."""
    vars(error).setdefault("key", key)
    vars(error).setdefault("given", f"the output is {shapes({'': output}).strip()}; the batch has {shapes(batch)}")


def _note_inputs(model: nn.Module, task: Any, batch: dict[str, Any], error: Exception) -> None:
    """Add to the error, for `explained_mistake`: the innermost module of the model in its traceback, the shapes of its
    input and of the batch, and data.input_shape if the samples have another shape."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    names = {id(module): name for name, module in named}
    called = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "forward" and id(frame.f_locals.get("self")) in names
    ]
    given = []
    if called:
        values, code = called[-1].f_locals, called[-1].f_code
        arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        inputs = {k: v for k, v in values.items() if k in arguments or isinstance(v, (Tensor, np.ndarray))}
        module = values["self"]
        own = f"{names[id(module)] or 'the model'}, {type(module).__name__}({module.extra_repr()})"
        given.append(f"in {own}: {shapes(dict([*inputs.items()][:LISTED]))}")
        vars(error).setdefault("key", "model")
    vars(error).setdefault("key", "task")
    given.append(f"the batch has {shapes(batch)}")
    shape = _unlike_input_shape(task, batch)
    if shape and len(shape) == len(task.run.input_shape):
        given.append(f"data.input_shape={list(task.run.input_shape)} is not the shape of its samples x, {shape}")
    vars(error).setdefault("given", "; ".join(given))


def _unlike_input_shape(task: Any, batch: Any, is_fixed: bool = False) -> list[int]:
    """Return the shape of the samples x if data.input_shape differs from it; [] if it is equal or cannot be compared.

    It cannot be compared without training data, or if samples differ in length (-1 in the spec): it is a maximum then.
    is_fixed: True if the model accepts only one shape; then data sets without a spec are compared too."""
    run, x = getattr(task, "run", None), batch.get("x")
    train_set = getattr(getattr(run, "context", None), "train_set", None)
    spec = getattr(train_set, "spec", None) or ({} if is_fixed and train_set is not None else None)
    if spec is None or any(-1 in shape for shape, _ in spec.values()) or not isinstance(x, Tensor):
        return []
    return list(x.shape[1:]) if x.shape[1:] != tuple(task.run.input_shape) else []


def _shape_mistake(model: nn.Module, task: Any, batch: Any, error: ConfigError) -> str | None:
    """Return the text of an error from lab.input_shapes.wrong_input, with the config key to set. None: it is another
    error, or the model is trained already, so no key can change its shape."""
    module, shape = vars(error).get("module"), vars(error).get("shape")
    if module is None or getattr(getattr(task, "run", None), "context", None) is None:
        return None
    if right := _unlike_input_shape(task, batch, is_fixed=True):
        if task.run.context.peek_batch()["x"].shape[1:] == tuple(task.run.input_shape):
            return f"{error}: in this split, x has another shape than in train - give both one shape by data.transforms"
        return f"{error}: set data.input_shape={_as_override(right)}, the shape of x after data.transforms"
    if -1 in (getattr(task.run.context.train_set, "spec", None) or {}).get("x", ((),))[0]:
        return f"{error}: the samples x differ in length; data/transforms=[window,center_window] gives them one length"
    if module is model:
        return f"{error}: set model.input_shape={_as_override(shape)}"
    owners = {"model": model, "task": task}
    parts = {id(part): f"{owner}.{name}" for owner in owners for name, part in owners[owner].named_modules() if name}
    name = parts.get(id(module))
    return name and f"{error}: set input_shape of {name} to {_as_override(shape)}"


def _as_override(shape: Any) -> str:
    return f"[{','.join(map(str, shape))}]"


def shapes(values: Any) -> str:
    """Return a text like `x (64, 1, 8, 8) float32, y (64,) int64, z ndarray (64,) float64, w list`."""
    if not isinstance(values, Mapping):
        return f"a {type(values).__name__}"
    return ", ".join(f"{name} {_kind(value)}" for name, value in [*values.items()][:LISTED])


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return described(value.shape, value.dtype)
    return f"ndarray {value.shape} {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def explained_mistake(error: Exception) -> str | None:
    """Return an error of the user's own code as one line; None if the hardware or another rank may have caused it."""
    frames = traceback.extract_tb(error.__traceback__)
    elsewhere = any("torch/distributed" in frame.filename for frame in frames) or OF_THE_MACHINE.match(str(error))
    line = in_users_code(error, shown)
    if line is None or elsewhere or isinstance(error, (OSError, MemoryError, DataFailed, BdbQuit)):
        return None
    line = line.replace("torch.autograd.set_detect_anomaly(True, check_nan=False)", "debug=anomaly")
    return f"{line} ({TRACEBACK}=1 prints the traceback)"


def check_holds_no_weights(task: nn.Module, model: nn.Module) -> None:
    """Raise ConfigError if the task contains weights of the model. In an evaluation `losses` gets another model (with
    averaged or the best weights), and FSDP replaces the weights, so the task would compute with the wrong ones."""
    of_model = {id(value): name for name, value in (*model.named_parameters(), *model.named_buffers())}
    for name, value in (*task.named_parameters(), *task.named_buffers()):
        if id(value) in of_model:
            raise ConfigError(
                f"task: {type(task).__name__}.{name} is the model's {of_model[id(value)]}, but evaluations may use "
                "another model, with averaged weights - read it from the argument `model` of `losses` or `on_step_end` "
                "each time, or from optimizer_step.model"
            )


def _field_mistake(batch: dict[str, Any], error: KeyError) -> ConfigError | None:
    """Return the error for a KeyError on a line that contains `batch[`, for a field that the batch lacks."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    if not error.args or error.args[0] in batch or "batch[" not in line:
        return None
    more = {
        "number": '; it is called batch["sample_id"] since 0.3 - rename it, and',
        "sample_id": ", or set `needs_sample_ids = True` in the task",
        "row": ", or set `needs_sample_ids = True` in the task; a stream has no rows",
    }.get(error.args[0], "")
    return ConfigError(f"the batch has no field {error.args[0]!r}, only {sorted(batch)}: name it in data.fields{more}")


def _argument_mistake(model: nn.Module, error: TypeError) -> ConfigError | None:
    """Return the error for a model whose forward takes other arguments than the task passes."""
    text, forward = first_line(error), f"{type(model).__name__}.forward()"
    if not text.startswith((f"{forward} missing", f"{forward} takes", f"{forward} got")):
        return None
    return ConfigError(
        f"model: {text}: the task passes other arguments - choose a model that fits the task, or write a task that "
        "passes what the model takes (three lines: docs/my_model.md, Several inputs or outputs)"
    )


def _dtype_mistake(model: nn.Module, batch: dict[str, Any], error: Exception) -> ConfigError | None:
    text = str(error)
    if not any(words in text for words in TYPE_ERRORS):
        return None
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    dtypes = {field: value.dtype for field, value in batch.items() if isinstance(value, Tensor)}
    kinds = {value.device.type for value in batch.values() if isinstance(value, Tensor)}
    cast = FLOATS if any(map(torch.is_autocast_enabled, kinds)) else ()  # autocast converts these
    wrong = [field for field, dtype in dtypes.items() if dtype.is_floating_point and dtype not in (weights, *cast)]
    if not wrong and not any(isinstance(module, nn.Embedding) for module in model.modules()):
        names = INTEGERS.get(dtypes.get("x"), ())
        wrong = ["x"] if names and any(name in text for name in (*names, "mixed dtype")) else []
    if not wrong:
        return None
    fields = ", ".join(f"{field!r} is {dtype_name(dtypes[field])}" for field in wrong)
    remedy = "choose data/transforms=[to_float]" if dtypes[wrong[0]] == torch.uint8 else f"add {CAST % wrong[0]}"
    return ConfigError(
        f"data: field {fields}, and the model's weights are {dtype_name(weights)} ({first_line(error)}): {remedy}, or "
        f"return {dtype_name(weights)} from the dataset"
    )


def _collective_mistake(model: nn.Module, error: Exception) -> RunFailed | None:
    """Return the error for a collective that failed in an evaluation, where ranks may have batches of unequal size."""
    frames = traceback.walk_tb(error.__traceback__)
    in_collective = any("distributed_c10d" in frame.f_code.co_filename for frame, _ in frames)
    if not in_collective or torch.is_grad_enabled() or is_sharded(model) or not torch.distributed.is_initialized():
        return None
    return RunFailed(
        f"a collective of the criterion or model failed in an evaluation ({first_line(error)}): ranks have "
        "batches of unequal size and number there - set trainer.pad_eval_batches=true: "
        "see docs/troubleshooting.md#ranks-did-not-meet-in-a-collective"
    )


def _gradient_mistake(task: Any, error: Exception) -> ConfigError | None:
    """Return the error for losses that compute a gradient themselves, in an evaluation."""
    if torch.is_grad_enabled() or "does not require grad" not in str(error):
        return None
    return ConfigError(
        f"task: {type(task).__name__} computes a gradient, but evaluations run without gradients "
        f"({first_line(error)}): compute it, and the outputs that it needs, in `with torch.enable_grad():`"
    )


def check_registered(key: str, thing: Any, registered: Iterable[Tensor] = ()) -> None:
    """Raise ConfigError if `thing` has a trainable tensor that is not a registered parameter, such as a layer in a
    Python list: it would not be optimized, saved or synchronized. registered: tensors of another module."""
    known = {id(value) for value in (*registered, *(thing.parameters() if isinstance(thing, nn.Module) else ()))}
    for name, value in unregistered(thing):
        if value.requires_grad and value.is_leaf and id(value) not in known:
            raise ConfigError(
                f"{key}: {type(thing).__name__} has a trainable tensor {name} that is not a registered parameter, so "
                "it would be neither trained nor saved: use an nn.Module with nn.Parameter, and nn.ModuleList or "
                "nn.ModuleDict for several layers; for a constant, call requires_grad_(False)"
            )


def check_criterion(criterion: Any) -> None:
    """Raise ConfigError for a criterion that is not callable, or has a trainable tensor that is not registered."""
    check_registered("task.criterion", criterion)
    if not callable(criterion):
        kind = type(criterion).__name__
        raise ConfigError(f"task.criterion: {kind} is not callable: define __call__(output, batch) -> (B,) losses")
