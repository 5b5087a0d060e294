"""Values that ranks tell each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samebits.errors import RunFailed
from samebits.testing.processes import on_ranks, slow
from samebits.world import gather_in_order, gather_rows
from samebits.world.collectives import World

ONE = World(0, 1, 0, torch.device("cpu"))


class Buffers(nn.Module):
    """Of many dtypes and shapes, not all aligned or contiguous; another value on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(rank)
        self.weight = nn.Parameter(torch.full((2,), float(rank)))
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean = torch.randn(3, generator=own)
        drawn = {
            "a_mask": torch.rand(5, generator=own) < 0.5, "a_number": torch.tensor(rank),
            "a_half": torch.randn(3, generator=own).half(), "a_brain": torch.randn(1, generator=own).bfloat16(),
            "nothing": torch.zeros(0, 4), "a_complex": torch.randn(2, generator=own, dtype=torch.complex64),
            "a_double": torch.randn(3, generator=own).double(), "turned": torch.randn(4, 3, generator=own).t(),
        }  # fmt: skip
        for name, value in drawn.items():
            self.register_buffer(name, value, persistent=name != "a_mask")


def all_get_those_of_rank_0(world: World, folder: Path) -> None:
    import torch.distributed as dist

    sent: list[int] = []
    broadcast = dist.broadcast
    dist.broadcast = lambda tensor, src: (sent.append(tensor.nbytes), broadcast(tensor, src))  # type: ignore[assignment]
    module, expected = Buffers(world.rank), dict(Buffers(0).named_buffers())
    kept = {name: buffer.data_ptr() for name, buffer in module.named_buffers()}
    world.broadcast_buffers(module)
    world.broadcast_buffers(nn.Linear(2, 2))  # has none
    assert sent == [sum(buffer.nbytes for buffer in expected.values())], "one message"
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, expected[name]), name
        assert buffer.data_ptr() == kept[name], "in place"
    assert module.weight.tolist() == [world.rank] * 2


@pytest.mark.parametrize("ranks", [2, slow(3)])
def test_buffers_are_sent_in_one_message(tmp_path: Path, ranks: int) -> None:
    on_ranks(all_get_those_of_rank_0, tmp_path / "run", ranks)


def test_one_rank_sends_nothing() -> None:
    ONE.broadcast_buffers(Buffers(0))
    assert ONE.thread_group() is None


def in_two_orders(world: World, folder: Path) -> None:
    """Each rank's thread is at another place of its loop: on one group the messages would be mixed up."""
    import threading

    group = world.thread_group()
    assert group is world.thread_group()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(world.gather_object(f"thread {world.rank}", group)))
    if world.rank == 0:
        thread.start()
    looped = [world.gather_object(f"loop {world.rank}") for _ in range(3)]
    if world.rank == 1:
        thread.start()
    thread.join()
    assert world.rank or looped == [["loop 0", "loop 1"]] * 3
    assert world.rank or found == ["thread 0", "thread 1"]


def test_a_thread_has_a_group_of_its_own(tmp_path: Path) -> None:
    on_ranks(in_two_orders, tmp_path / "run")


def told_through_a_file(world: World, folder: Path) -> None:
    """Rank 2 is in another container with the same host name, whose processes it cannot see."""
    import os

    if world.rank == 2:
        os.readlink = lambda path: "pid:[2]"  # type: ignore[assignment]
    pid = os.getpid()
    os.getpid = lambda: pid if world.rank == 2 else 1 << 30
    assert world.dead_peers()() == [0, 1] * (world.rank < 2)
    os.getpid = lambda: pid
    with world.file_of_host() as file:
        assert file is not None
        if world.rank == 2:
            world.barrier()
            assert not file.read()
            return
        position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        if world.rank == 1:
            file.write(b"told")
        world.barrier()
        assert (position, os.pread(file.fileno(), 9, 0)) == (0, b"told")
        assert file.tell() == 4 * world.rank, "a position of its own"


def test_ranks_of_a_machine_share_a_file(tmp_path: Path) -> None:
    on_ranks(told_through_a_file, tmp_path / "run", 3)
    with ONE.file_of_host() as file:
        assert file is None


@pytest.mark.slow
def test_tensors_of_any_kind_are_gathered(tmp_path: Path) -> None:
    kinds = [torch.tensor([[1.5, -2.0]]), torch.zeros(0, 7, dtype=torch.int16), torch.tensor(True)]

    def work(world: World, folder: Path) -> None:
        for shift in range(3):
            given = kinds[shift:] + kinds[:shift]
            for mine, part in zip(given, world.all_gather(given[world.rank]), strict=True):
                assert (part.dtype, part.shape) == (mine.dtype, mine.shape)
                assert torch.equal(part, mine)

    on_ranks(work, tmp_path / "ranks", ranks=3)


def test_gathered_rows_have_gradients(tmp_path: Path) -> None:
    """Each rank's loss depends on all rows; the rows' gradients are those of the sum of these losses. Uneven rows are
    refused on all ranks."""
    alone = torch.randn(3, 2)
    assert gather_rows(alone) == (alone, 0)

    def loss_of(rank: int, rows: torch.Tensor) -> torch.Tensor:
        return ((rank + 1) * rows.square() * torch.arange(1.0, 5)[:, None]).sum()

    def work(world: World, folder: Path) -> None:
        own = torch.full((2, 3), world.rank + 1.0, requires_grad=True)
        rows, first = gather_rows(own)
        assert first == 2 * world.rank
        assert torch.equal(rows, torch.tensor([1.0, 1, 2, 2])[:, None].expand(4, 3))
        loss_of(world.rank, rows).backward()
        leaf = rows.detach().requires_grad_()
        sum(loss_of(rank, leaf) for rank in range(world.size)).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(own.grad, leaf.grad[first : first + 2])  # type: ignore[index]
        with torch.no_grad():
            assert not gather_rows(own)[0].requires_grad

        with pytest.raises(RunFailed, match=rf"rank {world.rank} gathers {3 - world.rank} rows, other ranks 2 to 3"):
            gather_rows(torch.zeros(3 - world.rank, 2))

    on_ranks(work, tmp_path / "work")


def test_rows_in_the_order_of_the_samples(tmp_path: Path) -> None:
    ids = torch.tensor([4, 1, 3, 0, 5, 2])
    rows = 10.0 * ids[:, None]
    assert torch.equal(gather_in_order(rows, ids)[:, 0], 10.0 * torch.arange(6))

    def work(world: World, folder: Path) -> None:
        own = slice(world.rank, None, world.size)
        gathered = gather_in_order(rows[own].requires_grad_(), ids[own])
        assert torch.equal(gathered[:, 0], 10.0 * torch.arange(6))
        assert not gathered.requires_grad

    on_ranks(work, tmp_path / "work")
    on_ranks(work, tmp_path / "three", 3)
