"""The base class of methods: losses, metrics, and parameters beside the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from samebits.errors import ConfigError
from samebits.world import World, world_of_one

Batch = dict[str, Tensor]
Losses = Mapping[str, Tensor]  # name -> (B,), one value for each sample
Metric = Any  # a function (output, batch) -> (B,), or an object with reset, update and compute: lab.metrics.base


@dataclass(frozen=True)
class TaskRun:
    """What a task may ask of its run: self.run, from `initialize` and `setup` on. A trained model that is loaded
    (evaluate, predict, load_run) has its run's."""

    world: World = field(default_factory=world_of_one)
    total_steps: int = 0  # of the whole run, where epochs are given too
    epoch_samples: int = 0  # rows of the training set; 0 for a stream
    seed: int = 0
    input_shape: tuple[int, ...] = ()  # of a sample of batch["x"]: data.input_shape
    num_outputs: int | None = None  # data.num_outputs
    parts: tuple[str, ...] = ()  # of data=mixed: their names; batch["set"] is a number in this list
    # while a run trains: its lab.state.RunContext, with .order and .reorder(), .iterate_rows(rows), .logger, ...
    training: Any = None

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def world_size(self) -> int:
        return self.world.size

    def __deepcopy__(self, memo: Any) -> TaskRun:
        return self  # a copy of the task is of the same run

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks of a tensor of one shape, without gradients; all ranks call this."""
        return self.world.all_reduce_sum(values.detach().clone()) / self.world.size


class Task(nn.Module):
    """What one batch means. A method is a subclass in lab/tasks and a yaml in conf/task; see supervised.py.

    A task is a module. Its parameters and buffers (a teacher, a temperature, a critic, a queue) are on the device, and
    saved and restored with the model. Parameters that require a gradient are trained, alike on all ranks.
    Random numbers: torch's generators differ by rank in `losses`, and draw the same on all ranks in `on_step_end`, and
    in `train_step` after `optimizer_step(...)`; they are restored at a resume. samebits.data.SampleRNG(seed, stream),
    indexed by batch["sample_id"] (set `needs_sample_ids`), gives the same for any number of ranks and micro-batches.
    """

    loss_names: tuple[str, ...] = ()  # what `losses` returns beside "loss": logged, and scored in evaluations
    # True: batches have "sample_id" and "row", (B,) int64: the sample's index in the run's order in training, and its
    # row of the data set, which a stream does not have. In an evaluation both are the row, or -1: not counted
    needs_sample_ids = False
    # True: the loss compares samples over all ranks: one micro-batch per step, as many evaluation batches on each rank
    needs_global_batch = False
    # True: states go on from row to row, in lanes: batches have "lane" and "position" in it, (B,) int64, and its yaml
    # has `eval_lanes`: docs/data_orders.md
    stateful = False
    waits = False  # True: a step asks the device for values by the method's nature, and its test allows that
    buffers_kept_on_skip: tuple[str, ...] = ()  # modules whose buffers keep their new values after a skipped step
    not_compiled: tuple[str, ...] = ()  # names of methods that hardware.compile does not compile
    metrics: Mapping[str, Metric] = {}
    run: TaskRun = TaskRun()
    # Networks that are used and not trained: {name: path of a run or checkpoint, a module, or None for a copy of the
    # model as the run begins with it}, to be set in __init__. Behind `setup`, self.frozen[name] is the network:
    # on the device, in eval mode, without gradients; saved once, in the run's folder `frozen`, not in each checkpoint.
    frozen: Mapping[str, Any] = {}
    bn_update_batches = 0  # training batches by which BatchNorm's statistics of the average are computed anew

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Returns ({"loss": (B,), term: (B,), ...}, output). "loss" is minimised; a tensor (B,) means {"loss": it}.

        Losses are per sample: the loop takes their mean over the global batch. output: passed to metrics and callbacks.
        Evaluations call this too, without gradients and with other batch sizes.
        """
        raise NotImplementedError

    @classmethod
    def loss_names_for(cls, arguments: Mapping[str, Any]) -> Sequence[str]:
        """The `loss_names` of a task with these arguments, as its yaml has them: monitor.key is checked by it before
        anything is built. To be written where __init__ sets self.loss_names."""
        return cls.loss_names

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Returns what predict.py writes: a tensor (B, ...) or {name: tensor}. As it stands the output of `losses`,
        which needs the labels; write it where the model does without."""
        return self.losses(model, batch)[1]

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any] | None:
        """Returns {name: picture, figure, text, table, ...} of the first `count` samples: callback=pictures logs it at
        each evaluation, from rank 0's first batch. None, as it stands: the callback shows images with their classes."""
        return None

    def weights(self, batch: Batch) -> Tensor | None:
        """Returns (B,) weights of the samples in means of losses and metrics, such as token counts; None: all 1."""
        return None

    def setup(self, model: nn.Module) -> None:
        """Called once, on all ranks, after the model is built and before a checkpoint is loaded: freeze parts of the
        model, build modules that depend on it (a teacher)."""

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str | None:
        """Called before `setup` in a new run, not at a resume: load other weights, compute some from the data. Returns
        a line to log, if any. batches: the run's training data, trainer.global_batch_size samples each, on the CPU, the
        same on all ranks, without random transforms; nothing is read before the first is asked for."""
        return None

    def objectives(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        """Returns {objective: modules that it trains}; each has its own optimizer. Most tasks have one, named "". With
        named ones, `losses` is for evaluations, and each minimises <objective>_losses(model, batch)."""
        return {"": [model, self]}

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """One step of the loop: optimizer_step(objective, batches) for each objective to update. Returns their values.

        step: from 0. batches: iterator of this step's micro-batches; to use them twice, list(batches). For work between
        a gradient and its update call optimizer_step.gradients, .parameters and .update: see lab/optimizer_step.py.
        """
        return optimizer_step("", batches)

    def on_step_end(self, model: nn.Module) -> None:
        """Called once a step, after its updates, under no_grad: update a teacher's EMA, a queue. To change the model's
        weights is for `project`. A class with `uses_rng = False` draws no random numbers here (not inherited): what
        keeps ranks alike is left out, 0.2 ms a step, and hardware.cuda_graph may record it."""

    def project(self, model: nn.Module) -> None:
        """Called once a step, behind `on_step_end` and under no_grad, with the model, and then with the average of its
        weights where there is one: change the weights in place (a pruning mask, a limit of their norm), so that all
        that is scored, saved and loaded is changed. `uses_rng = False` is as for `on_step_end`."""

    def sync_buffers(self) -> None:
        """Called on all ranks before each evaluation and save, under no_grad: give buffers that each rank has filled
        from its own samples one value, by gather_rows say. Other buffers are equal already."""

    def averaging_factor(self, step: int) -> float | None:
        """The share of the weights after step `step` (from 0) in the average of weights that is evaluated, predicted
        with, exported and given by load_run: mean += share * (weights - mean); None: it stays as it is. Overridden, it
        takes the place of trainer.ema_decay. 1 / (k + 1) for the k-th of some steps is their mean (SWA)."""
        return None

    def sample(self, model: nn.Module, count: int) -> Tensor | Mapping[str, Any]:
        """Returns `count` new samples of a model that generates: images (count, C, H, W) in [0, 1], or {name: whatever
        loggers take}. Called with the averaged weights in eval mode and with autocast, on all ranks with the same
        random numbers, as by callback=pictures at each evaluation."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("run", "frozen") or callable(vars(Task).get(name))
        if own and isinstance(value, (Tensor, nn.Module)):
            raise ConfigError(f"task: {type(self).__name__}.{name} is a name of Task's own - name it otherwise")
        super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves frozen networks with the task, though no checkpoint has them."""
        for network in self.frozen.values():
            if isinstance(network, nn.Module):
                network._apply(fn, recurse)
        return super()._apply(fn, recurse)


def overrides(task: Task | type[Task], name: str) -> bool:
    """Whether the task's class has a method of its own for this one of Task's."""
    return getattr(task if isinstance(task, type) else type(task), name) is not getattr(Task, name)


def key_of_losses(task: Task) -> str:
    """Return the key that a message about the task's losses begins with: its criterion's, if it has one."""
    return "task.criterion" if hasattr(task, "criterion") else "task"


class OptimizerStep(Protocol):
    """The loop's parts, for one step: see lab.optimizer_step. Values are 0-d tensors on the device, of this rank.

    state: what a checkpoint holds, a lab.state.TrainState, for lab.rows.by_row say."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def state(self) -> Any: ...

    def __call__(self, objective: str, batches: Iterable[Batch]) -> dict[str, Tensor]: ...
    def gradients(self, objective: str, batches: Iterable[Batch], term: str = "loss") -> dict[str, Tensor]: ...
    def parameters(self, objective: str) -> list[nn.Parameter]: ...
    def update(self, objective: str, closure: Callable[[], Tensor] | None = None) -> None: ...
