"""Sample orders, and the loaders that deliver batches to the training loop.

Input: a data set (`__len__` and `__getitem__`, or `gather`, or a `Stream`), the seed and the device. Output: a `Loader`
of micro-batches, dict[str, Tensor], on the device. `SpeedMeter` measures how long the loop waited for them.

Guarantees: the global batch of a step depends only on the seed and the step, for any number of ranks, workers and
micro-batches. An evaluation counts each sample once. Random numbers of a sample (`SampleRNG`) depend only on the seed,
a name and the sample id. After a loader is closed, none of its processes and threads is left.

Errors: DataFailed for exceptions in the data set's own code and for workers that died; it names data set, rows and
split.

    order       sample orders (chosen by data.order._target_) and the plans of training and evaluation
    sampling    orders by class, weight or length
    windows     shuffles chunks of compressed or large files
    lanes       orders in which row k of a batch continues row k of the batch before
    permutation  keyed permutations and the hash of all orders
    plans       builds the plan of a loader: which rows each rank reads
    stateful    orders with a state that training changes
    stream      data sets without a length
    spec        shapes and dtypes of a batch
    counter     random numbers per sample
    loading/    the Loader: threads, worker processes, data sets on the device; samples/s, waiting for data
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.data.counter import SampleRNG as SampleRNG
    from samebits.data.loading.choose import loader_speeds as loader_speeds
    from samebits.data.loading.clock import SpeedMeter as SpeedMeter
    from samebits.data.loading.loader import Loader as Loader, Transform as Transform, remedy as remedy
    from samebits.data.loading.same_data import check_same_data as check_same_data
    from samebits.data.loading.samples import (
        check_indexed as check_indexed,
        drawing as drawing,
        seed_of_split as seed_of_split,
    )
    from samebits.data.order import EvalPlan as EvalPlan, Plan as Plan, TrainPlan as TrainPlan, shuffled as shuffled
    from samebits.data.plans import evaluation_plan as evaluation_plan, training_plan as training_plan
    from samebits.data.stateful import StatefulOrder as StatefulOrder
    from samebits.data.stream import Stream as Stream, is_stream as is_stream
    from samebits.data.windows import ChunkWindows as ChunkWindows
else:
    __getattr__ = lazy_getattr(__name__, __file__)
