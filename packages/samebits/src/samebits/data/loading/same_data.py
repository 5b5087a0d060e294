"""Whether all ranks read one data set: the loader gives each rank its share of the samples, so the set must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from samebits.errors import ConfigError

if TYPE_CHECKING:
    from samebits.data.loading.loader import Loader
    from samebits.world import World


def check_same_data(world: World, loaders: Mapping[str, Loader]) -> list[str]:
    """Compare lengths and first samples of the data sets over the ranks; all call this. loaders: {split: loader}.

    Return a line for each set whose first row differs. Raise ConfigError where lengths or a stream's samples differ.
    """
    if world.size == 1:
        return []
    told = world.gather_object({split: loader.first_read() for split, loader in loaders.items()})
    wrong: list[str] = []
    unlike: list[str] = []
    for split, loader in loaders.items() if told else ():
        lengths, first = zip(*(rank[split] for rank in told))
        common = min(map(len, first))  # a rank may have read more of a stream
        place = f"data: {loader.dataset_name}, split {split}"
        if len({*lengths}) > 1:
            wrong.append(
                f"{place}: has {', '.join(map(str, lengths))} samples on the ranks - give each rank the whole set: the "
                "loader splits it"
            )
        elif len({tuple(one[:common]) for one in first}) > 1 and loader.is_stream:
            wrong.append(
                f"{place}: the ranks read different samples, and each trains only on its share of what it reads - give "
                "each rank all samples in one order: do not split by rank, and seed what shuffles"
            )
        elif len({tuple(one[:common]) for one in first}) > 1:
            unlike.append(
                f"{place}: row 0 differs between the ranks - do not split by rank, as the loader does, and seed what "
                "__init__ and __getitem__ draw"
            )
    wrong, unlike = world.broadcast_object([wrong, unlike])
    if wrong:
        raise ConfigError(wrong[0])
    return unlike
