"""Check that all ranks read the same data set, and read it again as before. The loader splits the samples over the
ranks; the data set must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from samebits.errors import ConfigError

if TYPE_CHECKING:
    from samebits.data.loading.loader import Loader
    from samebits.world import World


def check_same_data(world: World, loaders: Mapping[str, Loader]) -> list[str]:
    """Compare lengths and first samples of the data sets over the ranks; all ranks must call it. loaders: {split:
    loader}.

    Return one line for each data set whose row 0 differs between ranks, or when it is read again. Raise ConfigError if
    lengths or the samples of a stream differ."""
    if world.size == 1:
        loaders = {split: loader for split, loader in loaders.items() if not loader.is_stream}
    told = world.gather_object({split: loader.first_read() for split, loader in loaders.items()})
    wrong: list[str] = []
    unlike: list[str] = []
    for split, loader in loaders.items() if told else ():
        lengths, first = zip(*(rank[split] for rank in told))
        common = min(map(len, first))  # a rank may have read more of a stream than others
        place = f"data: {loader.dataset_name}, split {split}"
        if len({*lengths}) > 1:
            wrong.append(
                f"{place}: has {', '.join(map(str, lengths))} samples on the ranks - give each rank the complete "
                "data set, because the loader splits it"
            )
        elif len({tuple(one[:common]) for one in first}) > 1 and loader.is_stream:
            wrong.append(
                f"{place}: the ranks read different samples, but each trains only on its share of the samples it "
                "reads - give each rank all samples in the same order: do not split by rank, and seed the shuffling"
            )
        elif any(len({*one}) > 1 for one in first) and not loader.is_stream:
            unlike.append(
                f"{place}: row 0 differs when it is read again, so a repeated or resumed run trains on other samples - "
                "draw from torch, numpy or random, which are seeded for each sample, or seed your own generator in "
                "__getitem__, and change nothing that the data set holds"
            )
        elif len({tuple(one[:common]) for one in first}) > 1:
            unlike.append(
                f"{place}: row 0 differs between the ranks - do not split by rank, because the loader does, and seed "
                "the random numbers of __init__ and __getitem__"
            )
    wrong, unlike = world.broadcast_object([wrong, unlike])
    if wrong:
        raise ConfigError(wrong[0])
    return unlike
