"""Which sample when, how a file is read at the speed of memory, how batches reach the loop.

Given: a data set (`__len__` and `__getitem__`, or `gather`, or a `Stream`), the seed, the device. Returned: a
`Loader` of micro-batches, dict[str, Tensor], on the device; `Clock` measures how long the loop waited for them.

Promised: the global batch of a step depends on the seed and the step alone, for any number of ranks, workers and
micro-batches; an evaluation counts each sample once. Random numbers of a sample (`Draws`) depend on (seed, epoch,
sample). The bytes are h5py's: where a layout is not known for certain, h5py reads it. A file that changes while it is
open is an error, never other data; one that is cut short while its mapping is read kills the process (SIGBUS). No
process or thread stays once a loader is closed.

Raised: ConfigError for files and fields that are not there or do not fit, RunFailed for files that change. DataFailed
for what a data set's own code raises, and for workers that died; it names data set, rows and split.

    order, sampling, windows, lanes, permutation    row numbers of each step (an order is named by data.order._target_)
    h5, reading/       HDF5: files here and behind URLs, external and virtual data, layouts, filters
    stateful           orders with a state that training changes
    loader, loading/   threads, workers, a set on the device         stream    sources without a length
    counter            random numbers by sample       probe    what a file holds, asked while the config is composed
    clock              samples/s, waiting for data
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.pages import lazy

if TYPE_CHECKING:
    from engine.data.clock import Clock
    from engine.data.counter import Draws
    from engine.data.h5 import H5Dataset, share
    from engine.data.lanes import LanePlan
    from engine.data.loader import Loader, Transform, remedy
    from engine.data.loading.choose import loader_ways
    from engine.data.loading.samples import check_indexed
    from engine.data.loading.slots import hand_over
    from engine.data.order import EvalPlan, Plan, Repeated, TrainPlan, shuffled
    from engine.data.probe import num_outputs, sample_shape
    from engine.data.reading.copies import files_of, local_copy
    from engine.data.reading.external import (
        REFUSE_EXTERNAL,
        check_external,
        external_files,
        items_below,
        link_of,
    )
    from engine.data.reading.fields import Fixed, open_field
    from engine.data.reading.filters import HDF5PLUGIN, filter_name, missing_filter
    from engine.data.reading.layout import plan_reader
    from engine.data.reading.opening import open_h5, split_of
    from engine.data.reading.raw import ChunkCache
    from engine.data.reading.readers import Mapped
    from engine.data.reading.remote import fetch_all
    from engine.data.stateful import StatefulOrder, changeable_order, has_state
    from engine.data.stream import Stream, is_stream
else:
    __getattr__ = lazy(__name__, __file__)
