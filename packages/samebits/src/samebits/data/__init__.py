"""Which sample when, and how batches reach the loop.

Given: a data set (`__len__` and `__getitem__`, or `gather`, or a `Stream`), the seed, the device. Returned: a
`Loader` of micro-batches, dict[str, Tensor], on the device; `Clock` measures how long the loop waited for them.

Promised: the global batch of a step depends on the seed and the step alone, for any number of ranks, workers and
micro-batches; an evaluation counts each sample once. Random numbers of a sample (`SampleRNG`) depend on (seed, epoch,
sample). No process or thread stays once a loader is closed.

Raised: DataFailed for what a data set's own code raises, and for workers that died; it names data set, rows and split.

    order, sampling, windows, lanes, permutation    row numbers of each step (an order is named by data.order._target_)
    plans              which rows each rank reads
    stateful           orders with a state that training changes
    loading/           the Loader: threads, workers, a set on the device; samples/s, waiting for data
    stream, spec       sources without a length; what a batch is made of
    counter            random numbers by sample
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.data.counter import SampleRNG
    from samebits.data.loading.choose import loader_speeds
    from samebits.data.loading.clock import Clock
    from samebits.data.loading.loader import Loader, Transform, remedy
    from samebits.data.loading.same_data import check_same_data
    from samebits.data.loading.samples import check_indexed, drawing, seed_of_split
    from samebits.data.loading.slots import drain
    from samebits.data.order import EvalPlan, Plan, TrainPlan, shuffled
    from samebits.data.plans import evaluation_plan, training_plan
    from samebits.data.stateful import StatefulOrder
    from samebits.data.stream import Stream, is_stream
else:
    __getattr__ = lazy_getattr(__name__, __file__)
