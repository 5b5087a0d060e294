"""The base class of tasks. A task is a training method: losses, metrics, and parameters in addition to the model's.

A task with nothing but `losses` is in supervised.py; docs/my_method.md is a tutorial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from samebits.errors import ConfigError
from samebits.world import World, world_of_one

Batch = dict[str, Tensor]
Losses = Mapping[str, Tensor]  # name -> (B,), one value per sample
Metric = Any  # a function (output, batch) -> (B,), or an object with reset, update and compute: lab.metrics.base


@dataclass(frozen=True)
class TaskRun:
    """Information about the run, available to a task as self.run in `initialize`, `setup` and later calls.

    If a trained model is loaded (evaluate, predict, load_run), these are the values of the run that trained it."""

    world: World = field(default_factory=world_of_one)
    total_steps: int = 0  # optimizer steps of the whole run, also if its length is given in epochs
    epoch_samples: int = 0  # rows of the training set; 0 if it is a stream
    seed: int = 0
    input_shape: tuple[int, ...] = ()  # data.input_shape: shape of one sample of batch["x"]
    num_outputs: int | None = None  # data.num_outputs
    parts: tuple[str, ...] = ()  # names of `data.parts`; batch["set"] is an index into this tuple
    # the lab.state.RunContext (.order, .reorder(), .iterate_rows(rows), .logger, ...); None if the run is not training
    context: Any = None

    @property
    def rank(self) -> int:
        """Index of this process among the ranks, from 0."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.world.size

    def __deepcopy__(self, memo: Any) -> TaskRun:
        return self  # a copy of a task belongs to the same run

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over ranks, without gradients. All ranks must call it, with tensors of the same shape."""
        return self.world.all_reduce_sum(values.detach().clone()) / self.world.size


class Task(nn.Module):
    """The base class of tasks. Each task is a subclass in lab/tasks, selected by a yaml in conf/task.

    A subclass must define `losses`. If `objectives` returns names, it also defines <objective>_losses for each name,
    and only evaluations use `losses`. All other functions have defaults. The main ones, in the order of their calls:

        start of a new run        initialize, setup
        start of a resumed run    setup
        each step                 train_step, which computes `losses`; then on_step_end, project
        each evaluation           sync_buffers, then `losses` for each batch, with the weight average if there is one
        each checkpoint           sync_buffers
        predict.py                predict

    A task is an nn.Module. Its parameters and buffers (a teacher, a temperature, a critic, a queue) are moved to the
    device, saved and restored with the model. Its parameters that require a gradient are trained and stay equal on all
    ranks.

    Random numbers: in `losses` torch's generators give different numbers on each rank. In `on_step_end`, in `project`,
    and in `train_step` after the call of `optimizer_step(...)`, they give the same numbers on all ranks. A resumed run
    continues with the same numbers. If random numbers must not depend on the number of ranks and micro-batches, use
    samebits.data.SampleRNG(seed, name) with batch["sample_id"], and set `needs_sample_ids`."""

    # Keys that `losses` returns in addition to "loss". They are logged, and evaluations compute their means.
    loss_names: tuple[str, ...] = ()
    # True: add batch["sample_id"] and batch["row"], both (B,) int64. In training, sample_id counts the samples of the
    # run, and row is the index in the data set (no "row" if the data set is a stream). In evaluations both are the
    # index. Both are -1 in padding (in evaluations, or with data.order.drop_last=false), which does not change results.
    needs_sample_ids = False
    # True: the loss compares samples of all ranks (a contrastive loss). A step is then one micro-batch, and all ranks
    # evaluate the same number of batches.
    needs_global_batch = False
    # True: a step may have several micro-batches in spite of needs_global_batch, because train_step computes the loss
    # that compares samples from optimizer_step.outputs, the outputs of all micro-batches
    allows_micro_batches = False
    # True: the task keeps a state (e.g. a hidden state) from step to step. B sequences are read in parallel, and
    # batches have "lane", the sequence of each row, and "position" in it, (B,) int64. eval_lanes: docs/data_orders.md
    stateful = False
    reads_device = False  # True: train_step must read values from the device; samebits.testing.TaskTests allows it
    not_restored_on_skip: tuple[str, ...] = ()  # submodules whose buffers are not restored after a skipped step
    no_prediction = ""  # if the task has nothing to predict for a given sample: message of the ConfigError of `predict`
    not_compiled: tuple[str, ...] = ()  # names of methods that hardware.compile must not compile
    metrics: Mapping[str, Metric] = {}  # {name: metric}; logged as val/<name>
    run: TaskRun = TaskRun()
    # Networks that the task uses but does not train: {name: path of a run or checkpoint, a module, or None for a copy
    # of the model at the start of the run}. Set it in __init__. After `setup`, self.frozen_networks[name] is the
    # network, on the device, in eval mode and without gradients. It is saved once, in the run's folder `frozen`.
    frozen_networks: Mapping[str, Any] = {}
    # Number of training batches from which BatchNorm statistics of the weight average are computed; 0: use the model's
    bn_update_batches = 0

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Return ({"loss": (B,), name: (B,), ...}, output) for one micro-batch. "loss" is minimized.

        The other names are `loss_names`. A tensor (B,) in place of the dictionary means {"loss": tensor}. Do
        not reduce over samples: the loop computes the mean over the global batch. output: any value, passed to the
        metrics and callbacks. Evaluations call this method too, without gradients and with other batch sizes."""
        raise NotImplementedError

    @classmethod
    def loss_names_for(cls, arguments: Mapping[str, Any]) -> Sequence[str]:
        """Return the `loss_names` of a task whose yaml has these arguments. Override it if __init__ sets
        self.loss_names, because monitor.key is checked before the task is built."""
        return cls.loss_names

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the prediction that predict.py writes: a tensor (B, ...) or {name: tensor}. The default is the output
        of `losses`, which usually needs labels: override it to predict without labels."""
        if self.no_prediction:
            raise ConfigError(self.no_prediction)
        return self.losses(model, batch)[1]

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any] | None:
        """Return {name: image, figure, text, table, ...} for the first `count` samples. callback=pictures logs it at
        each evaluation, for the first batch of rank 0. None (default): images with predicted classes."""
        return None

    def sample_weights(self, batch: Batch) -> Tensor | None:
        """Return the weights (B,) of the samples in the means of losses and metrics, e.g. token counts. None (the
        default): all 1."""
        return None

    def setup(self, model: nn.Module) -> None:
        """Freeze parts of the model, or build modules that depend on it (a teacher).

        Called once on all ranks, after the model is built and before a checkpoint is loaded."""

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str | None:
        """Load weights or compute them from the data. Return a line to log, or None.

        Called before `setup` in a new run, not in a resumed one. batches: the training data in batches of
        trainer.global_batch_size samples, on the CPU, without random transforms and equal on all ranks. They are read
        lazily: nothing is read unless you iterate."""
        return None

    def objectives(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        """Return {objective: modules that it trains}. The default is one objective, "", for the model and the task.

        Each objective has its own optimizer with its own state, built from `optim` with the changes in
        optim.objectives.<objective> (docs/rates_optimizers.md). An objective with a name minimizes
        <objective>_losses(model, batch); `losses` is then used only in evaluations."""
        return {"": [model, self]}

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Run one step: call optimizer_step(objective, batches) for each objective to update. Return the values to log.

        step: number of the step, from 0. batches: iterator over the micro-batches of this step; to use them twice, keep
        list(batches). To change gradients before the update, call optimizer_step.gradients, .parameters, .update."""
        return optimizer_step("", batches)

    def on_step_end(self, model: nn.Module) -> None:
        """Update a teacher's EMA, a queue, ... Called once per step after its updates, under no_grad.

        Do not change the model's weights here, but in `project`. If a class draws no random numbers here, in `project`
        and in its own `train_step`, set `uses_rng = False` in the class itself (a subclass does not inherit it): this
        saves 0.2 ms per step and allows hardware.cuda_graph."""

    def project(self, model: nn.Module) -> None:
        """Change the model's weights in place (a pruning mask, a limit of their norm).

        Called once per step after `on_step_end`, under no_grad: with the model, then with the weight average if there
        is one, so that the change is in all weights that are evaluated and saved. uses_rng: see `on_step_end`."""

    def sync_buffers(self) -> None:
        """Make buffers equal on all ranks, e.g. with gather_rows. Only buffers named running_* may differ.

        Called on all ranks before each checkpoint and each evaluation in training, under no_grad."""

    def averaging_factor(self, step: int) -> float | None:
        """Return the factor of this step's weights in the weight average, mean += factor * (weights - mean), or None to
        leave the average unchanged after this step.

        step: from 0, skipped steps included. If a task overrides this method, evaluate, predict, export and load_run
        use the average, and trainer.ema_decay must not be set. 1 / (k + 1) at the k-th update gives the mean (SWA)."""
        return None

    def sample(self, model: nn.Module, count: int) -> Tensor | Mapping[str, Any]:
        """Return `count` new samples of a generative model: images (count, C, H, W) in [0, 1], or {name: any value that
        the loggers accept}.

        Called by callback=pictures at each evaluation, on all ranks with the same random numbers, with the weight
        average (if there is one) in eval mode and under autocast."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("run", "frozen_networks") or callable(vars(Task).get(name))
        if own and isinstance(value, (Tensor, nn.Module)):
            raise ConfigError(
                f"task: {type(self).__name__}.{name} is an attribute of Task itself - choose another name"
            )
        super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the frozen networks with the task. They are not submodules, because checkpoints do not contain them."""
        for network in self.frozen_networks.values():
            if isinstance(network, nn.Module):
                network._apply(fn, recurse)
        return super()._apply(fn, recurse)


def overrides(task: Task | type[Task], name: str) -> bool:
    """Return True if the class of the task overrides this method of Task."""
    return getattr(task if isinstance(task, type) else type(task), name) is not getattr(Task, name)


def losses_key(task: Task) -> str:
    """Return the config key for errors about the task's losses: task.criterion if there is one, otherwise task."""
    return "task.criterion" if hasattr(task, "criterion") else "task"


class OptimizerStep(Protocol):
    """The third argument of `Task.train_step`, implemented in lab.optimizer_step. Losses are 0-d tensors on the
    device; their mean over ranks is the (weighted) mean over the samples of the global batch."""

    @property
    def model(self) -> nn.Module:
        """The model, without DDP's wrapper."""

    @property
    def state(self) -> Any:
        """The lab.state.TrainState of the run, e.g. for lab.rows.by_row."""

    def __call__(self, objective: str, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Run forward, backward, clipping and update. Return the losses."""

    def gradients(self, objective: str, batches: Iterable[Batch], loss_name: str = "loss") -> dict[str, Tensor]:
        """Leave in p.grad the gradients of the loss named `loss_name`. Return the losses."""

    def outputs(self, function: Callable[[Batch], Any], batches: Iterable[Batch]) -> list[Any]:
        """Return [function(batch), ...] without gradients, with the random numbers of the next forward pass."""

    def parameters(self, objective: str) -> list[nn.Parameter]:
        """Return the parameters that the objective trains."""

    def update(self, objective: str, closure: Callable[[], Tensor] | None = None) -> None:
        """Clip the gradients in p.grad and update the weights. closure: for optimizers that require one (LBFGS)."""
