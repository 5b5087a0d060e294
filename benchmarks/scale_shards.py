"""What a sharded checkpoint (trainer=fsdp) costs rank 0 of 8, 32 and 128 ranks, and how much the steps beside it lose.

    ./run python benchmarks/scale_shards.py [--ranks 8 32 128] [--rounds 5] [--layers 32] [--width 1024]

One process takes itself for rank 0: the tensors are its shards of a Llama-like model (9 weights a layer) with AdamW's
state. What the other ranks send is made from its own messages in a save before, and decoded in each save that is
measured; the network is not in the times. The others' files are links to its own, so the directory is complete, and
each rank can load from it.

"dcp.save" is torch's own function, as it is; "first" and "later" are saves of samebits. CPU: of the thread that writes.
Steps: of 20 small layers with AdamW, in the main thread while the thread writes, against the steps before the save;
"lost": how much longer they took in all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pickle
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import utils
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from samebits.checkpoints import Checkpoints, sharded
from samebits.checkpoints.background import Background
from samebits.checkpoints.shard_plan import file_of
from samebits.host import no_garbage_collection
from samebits.world import World


@contextmanager
def rank_of(ranks: int, rank: int = 0) -> Iterator[Any]:
    """A mesh of so many ranks, of which only this one is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        # the name makes it unequal to the meshes of real ranks: torch caches results of DTensors by their mesh
        yield init_device_mesh("cpu", (ranks,), mesh_dim_names=("simulated",))
    finally:
        dist.destroy_process_group()


def payload_of(mesh: Any, layers: int, width: int) -> dict[str, Any]:
    """This rank's shards of a model and of AdamW's state. The number of ranks divides the width."""

    def shard(rows: int, *more: int) -> Tensor:
        whole, size = torch.Size([rows, *more]), torch.empty(rows, *more, device="meta")
        part = torch.randn(rows // mesh.size(), *more)
        return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=whole, stride=size.stride())

    sizes = [(width, width)] * 4 + [(3 * width, width)] * 2 + [(width, 3 * width)] + [(width,)] * 2
    shapes = {f"layers.{layer}.{k}": size for layer in range(layers) for k, size in enumerate(sizes)}
    shapes |= {"embedding": (8 * width, width), "norm": (width,), "head": (8 * width, width)}
    state = {
        number: {"exp_avg": shard(*size), "exp_avg_sq": shard(*size)} for number, size in enumerate(shapes.values())
    }
    parts = {"model": {key: shard(*size) for key, size in shapes.items()}, "ema": None, "schedule": {}, "step": 1}
    zero = ("samples", "evals_without_improvement", "logged_step", "scored_step")
    return parts | dict.fromkeys(zero, 0) | {"best": [], "ranks": [], "optimizer": {"state": state, "param_groups": []}}


def moved(value: Any, rank: int) -> Any:
    """Return what `rank` sends where rank 0 sends `value`: rows of our index, or DCP's plan or results."""
    if isinstance(value, dcp.SavePlan):
        return dataclasses.replace(value, items=[_moved_item(item, rank) for item in value.items])
    if isinstance(value, list) and isinstance(value[0], list):
        return [[number, [rank * sizes[0], *at[1:]], sizes, *place] for number, at, sizes, *place in value]
    if isinstance(value, list) and isinstance(value[0], WriteResult):
        return [dataclasses.replace(one, index=_moved_index(one.index, rank)) for one in value]
    return value


def _moved_index(index: Any, first: int) -> Any:
    return dataclasses.replace(index, offset=torch.Size([first, *index.offset[1:]]))


def _moved_item(item: Any, rank: int) -> Any:
    data, index = item.tensor_data, _moved_index(item.index, rank * item.tensor_data.chunk.sizes[0])
    chunk = dataclasses.replace(data.chunk, offsets=index.offset)
    return dataclasses.replace(item, index=index, tensor_data=dataclasses.replace(data, chunk=chunk))


class Others:
    """The messages of the other ranks. The first save makes them, and later ones decode them."""

    def __init__(self, ranks: int, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        self.ranks, self._encode, self.decode = ranks, encode, decode
        self._made: dict[str, list[Any]] = {}

    def gathered(self, what: str, own: Any) -> list[Any]:
        """[message of rank 0, of rank 1, ...]. what: which message of a save."""
        if what not in self._made:
            self._made[what] = [self._encode(moved(own, rank)) for rank in range(1, self.ranks)]
        return [own, *map(self.decode, self._made[what])]


@dataclasses.dataclass(frozen=True)
class FirstOfMany(World):
    """Rank 0, and what it would be told by ranks that have files and shards of the same sizes."""

    others: Any = None
    folder: Any = None

    def gather_object(self, value: Any, group: Any = None) -> list[Any]:
        is_rows = bool(value) and isinstance(value[0], list)
        if not is_rows:  # the ranks have written their files
            for temporary in self.folder.glob(".*.tmp"):
                for rank in range(1, self.size):
                    os.link(temporary / file_of(0), temporary / file_of(rank))
        return self.others.gathered("rows" if is_rows else f"written {value[-1]}", value)  # whether its rows changed

    def broadcast_object(self, value: Any, group: Any = None) -> Any:
        return value

    def thread_group(self) -> Any:
        return None

    def barrier(self) -> None:
        pass


def first_of(ranks: int, folder: Path) -> FirstOfMany:
    folder.mkdir(parents=True, exist_ok=True)
    return FirstOfMany(0, ranks, 0, torch.device("cpu"), others=Others(ranks, json.dumps, json.loads), folder=folder)


@contextmanager
def dcp_of(ranks: int) -> Iterator[None]:
    """torch's DCP on rank 0, with messages of the others."""
    others = Others(ranks, pickle.dumps, pickle.loads)

    def gathered(self: Any, value: Any) -> list[Any]:
        return others.gathered(type(value).__name__, value)

    def scattered(self: Any, values: list[Any]) -> Any:
        return [pickle.dumps(value) for value in values] and values[0]

    def broadcast(self: Any, value: Any) -> Any:
        return pickle.dumps(value) and value

    names = {"gather_object": gathered, "scatter_object": scattered, "broadcast_object": broadcast}
    with mock.patch.multiple(utils._DistWrapper, **names), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Loop:
    """Steps of 20 small layers, timed."""

    def __init__(self) -> None:
        self._net = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())))
        self._optimizer, self._x = torch.optim.AdamW(self._net.parameters(), fused=True), torch.randn(32, 64)

    def step(self) -> None:
        self._net(self._x).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def until(self, done: Callable[[], bool], least: int) -> tuple[int, float]:
        """(steps, seconds)."""
        count, began = 0, time.perf_counter()
        while count < least or not done():
            self.step()
            count += 1
        return count, time.perf_counter() - began


@dataclasses.dataclass
class Cost:
    cpu: float  # seconds of the thread that writes
    slower: float  # time of a step meanwhile / before
    lost: float  # seconds


class Saves:
    """Saves of one way, each in a thread beside a loop."""

    def __init__(self) -> None:
        self.cpu: float | None = None  # of the save that has ended

    def cost(self, loop: Loop, start: Callable[[], None], check: Callable[[], None]) -> Cost:
        """Start a save and step until it has ended. check: raises its error."""
        count, seconds = loop.until(lambda: True, 100)
        pace, self.cpu = seconds / count, None
        start()
        count, seconds = loop.until(lambda: check() or self.cpu is not None, 1)  # type: ignore[func-returns-value]
        assert self.cpu is not None
        return Cost(self.cpu, seconds / count / pace, max(0.0, seconds - count * pace))

    def end(self, *_: Any) -> None:
        """Note the CPU seconds of this thread, which does this one save."""
        self.cpu = time.thread_time()


def saves_of(ranks: int, layers: int, width: int, rounds: int, folder: Path) -> dict[str, list[Cost]]:
    """{way: costs}, in turns. The newest checkpoint stays in the folder."""
    loop, found = Loop(), {"dcp.save": list[Cost](), "first": list[Cost](), "later": list[Cost]()}
    with rank_of(ranks) as mesh, dcp_of(ranks), no_garbage_collection():  # as in a run
        payload, world, background = payload_of(mesh, layers, width), first_of(ranks, folder), Background()
        tensors, _ = sharded.split(payload)
        saves = Saves()

        def by_dcp() -> None:
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / "dcp"))
            saves.end()

        def by_us(checkpoints: Checkpoints) -> None:
            payload["step"] += 1
            checkpoints.save_last(payload)

        for number in range(rounds + 1):  # the first one makes the messages of the others
            ours = Checkpoints(folder, world, True, saves.end)
            costs = {"dcp.save": saves.cost(loop, lambda: background.start(by_dcp), background.check)}
            for way in ("first", "later"):
                costs[way] = saves.cost(loop, lambda ours=ours: by_us(ours), ours.prepare_and_check)  # type: ignore[misc]
            for way in costs if number else ():
                found[way].append(costs[way])
            ours.wait()
    return found


def load_of(ranks: int, path: Path, layers: int, width: int) -> tuple[float, float]:
    """CPU seconds of the last rank at a resume: its check of the files, the load of its shards."""
    with rank_of(ranks, ranks - 1) as mesh:
        model = payload_of(mesh, layers, width)
        tensors, _ = sharded.split(model)
        began = time.process_time()
        head = sharded.head(path, (ranks - 1, ranks))
        checked = time.process_time()
        sharded.load(path, template=tensors.get, checked=head)
        return checked - began, time.process_time() - checked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: the temporary directory)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| ranks | save | CPU, s | steps meanwhile | lost, ms |\n|---|---|---|---|---|")
    loads = []
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = Path(name)
            for way, costs in saves_of(ranks, args.layers, args.width, args.rounds, folder).items():
                cpu, slower, lost = (
                    statistics.median(getattr(c, key) for c in costs) for key in ("cpu", "slower", "lost")
                )
                print(f"| {ranks:,} | {way} | {cpu:.2f} | {slower:.2f} x | {1e3 * lost:,.0f} |", flush=True)
            path = max(folder.glob("last_*"))
            check, load = load_of(ranks, path, args.layers, args.width)
            loads.append(f"| {ranks:,} | {(path / '.metadata').stat().st_size / 1e6:.1f} | {check:.2f} | {load:.2f} |")
    print("\n| ranks | index, MB | check, CPU s | load, CPU s |\n|---|---|---|---|")
    print("\n".join(loads))


if __name__ == "__main__":
    main()
