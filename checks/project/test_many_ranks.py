"""What ranks say to each other in a step, a log, an evaluation and a save does not grow with their number, nor do the
files that a rank of a sharded run opens."""

from __future__ import annotations

import builtins
import io
import itertools
import json
import os
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from common import ROOT

from samebits.testing import assert_equal, start_run

sys.path.append(str(ROOT / "benchmarks"))
from scale_ranks import Message, listened

from samebits.checkpoints import Checkpoints, archives, shard_plan, sharded
from samebits.checkpoints.background import Copies
from samebits.checkpoints.checkpoint import load_lazily
from samebits.checkpoints.integrity import Summing, failure_line
from samebits.errors import CorruptFileError, RunFailed
from samebits.parallel.balance import COLUMNS

FEW, MANY = 8, 1024
TABLE = 4 * COLUMNS  # bytes of a rank in the table of who waits for whom, which is summed at each log


def of_each(messages: list[Message], ranks: int, table: int = 0) -> list[tuple[str, float]]:
    """With the bytes of one rank where rank 0 is told those of each; without the table."""
    return [(name, size / ranks if name == "gather" else size - ranks * table) for name, size in messages]


def test_1024_ranks_say_what_8_do(tmp_path: Path) -> None:
    """As many collectives of as many bytes. Each rank's own: what rank 0 gathers for a save (random states, sums) and a
    comparison, and a row of the table at each log."""
    few, many = (listened(tmp_path / str(ranks), ranks, start_run) for ranks in (FEW, MANY))
    assert few.keys() == many.keys()
    for name, table in (("step", 0), ("log", TABLE), ("evaluation", 0), ("save", 0)):
        for one, other in zip(few[name], many[name], strict=True):
            assert of_each(one.messages, FEW, table) == of_each(other.messages, MANY, table), name
    # nobody but rank 0 hears of each of the others: gloo's all-gather passes N - 1 messages on, one after another
    said = {name for kind, parts in many.items() if kind != "other" for part in parts for name, _ in part.messages}
    assert said == {"all-reduce", "broadcast", "gather"}
    assert [len(part.messages) for part in many["step"][1:]] == [1, 1, 1]  # the gradients, in one bucket
    assert [len(part.messages) for part in many["log"]] == [1, 1]


def test_an_index_is_made_once_for_all_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of ranks and both kinds of checkpoints; later saves tell rank 0 four values of each rank."""
    # at the top, each worker would import torch.distributed.checkpoint
    from scale_shards import first_of, payload_of, rank_of

    made, decided, later = (Mock(wraps=call) for call in (sharded.make_index, shard_plan.own_shards, json.loads))
    monkeypatch.setattr(sharded, "make_index", made)
    monkeypatch.setattr(shard_plan, "own_shards", decided)
    for ranks in (2, 32):
        with rank_of(ranks) as mesh:
            payload = payload_of(mesh, layers=2, width=32)
            world = first_of(ranks, tmp_path / str(ranks))
            kept = Checkpoints(world.folder, world)
            for step in range(1, 6):
                if step == 2:
                    world.others.decode = later
                (kept.save_best if step == 3 else kept.save_last)(payload | {"step": step, "best": [[0.5, 3]]})
        assert {path.name for path in world.folder.iterdir()} == {
            "best_000000003.dcp", "last_000000004.dcp", "last_000000005.dcp",
        }  # fmt: skip
        assert len({(path / ".metadata").read_bytes() for path in world.folder.iterdir()}) == 1
    assert made.call_count == decided.call_count == 2
    told = [json.loads(call.args[0]) for call in later.call_args_list]
    assert len(told) == (2 - 1 + 32 - 1) * 4
    assert all(len(message) == 4 and isinstance(message[1], int) for message in told)


def simulated(folder: Path, ranks: int) -> Path:
    """A checkpoint of so many ranks."""
    from scale_shards import first_of, payload_of, rank_of

    with rank_of(ranks) as mesh:
        world = first_of(ranks, folder)
        Checkpoints(folder, world).save_last(payload_of(mesh, layers=2, width=32))
    return folder / "last_000000001.dcp"


def test_a_resume_reads_the_index_once_and_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a rank opens and asks for are as many with 2 ranks as with 32, and the values are those that were
    saved."""
    from scale_shards import payload_of, rank_of

    counts = []
    for ranks in (2, 32):
        path = simulated(tmp_path / str(ranks), ranks)
        seen: Counter[str] = Counter()

        def noted(what: str, call: Any, seen: Counter[str] = seen, path: Path = path) -> Any:
            def noting(file: Any, *args: Any, **options: Any) -> Any:
                if isinstance(file, (str, Path)) and Path(file).parent == path:
                    seen[what + (" shards" if str(file).endswith(".distcp") else Path(file).name)] += 1
                return call(file, *args, **options)

            return noting

        with rank_of(ranks, 1) as mesh, monkeypatch.context() as patched:
            tensors, _ = sharded.split(payload_of(mesh, layers=2, width=32))
            for module, name in ((builtins, "open"), (io, "open"), (os, "stat"), (os, "lstat")):
                patched.setattr(module, name, noted(f"{name} ", getattr(module, name)))
            head = load_lazily(path, (1, ranks))
            loaded, _ = sharded.split(sharded.load(path, template=tensors.get, checked=head))
        assert loaded.keys() == tensors.keys()
        with rank_of(ranks) as mesh:  # the others' files are links to that of rank 0
            own, _ = sharded.split(sharded.load(path, template=sharded.split(payload_of(mesh, 2, 32))[0].get))
        assert_equal(*({key: value.to_local() for key, value in found.items()} for found in (own, loaded)))
        counts.append(seen)
    assert counts[0] == counts[1]
    assert counts[0]["open .metadata"] == 1
    assert counts[0]["lstat  shards"] == 1


def test_a_process_may_have_had_another_rank_before(tmp_path: Path) -> None:
    """As a process that ends one group of ranks and joins another. torch keeps the sharding of an operation's result,
    with the mesh that the first of these had, for all meshes that are equal."""
    from scale_shards import payload_of, rank_of

    paths = [simulated(tmp_path / str(rank), 2) for rank in range(2)]
    for rank in range(2):
        with rank_of(2, rank) as mesh:
            payload = payload_of(mesh, layers=2, width=32)
            tensors, _ = sharded.split(payload)
            copied, _ = sharded.split(Copies().of(payload)[0])
            loaded, _ = sharded.split(sharded.load(paths[rank], template=tensors.get))
            for key, value in tensors.items():
                for other in (copied[key], loaded[key]):
                    (chunk,) = other.__create_chunk_list__()
                    assert chunk.offsets[0] == rank * value.shape[0] // 2, key


def test_shards_are_a_whole_or_refused() -> None:
    parts = [((row, column), (rows, 2)) for row, rows in ((0, 3), (3, 3), (6, 1)) for column in (0, 2)]
    assert shard_plan.is_whole((7, 4), parts)
    assert shard_plan.is_whole((), [((), ())])
    assert shard_plan.is_whole((0, 3), [((0, 0), (0, 3))])
    twice = [((0,), (4,)), ((0,), (4,))]  # with as many elements as the whole
    assert not shard_plan.is_whole((8,), twice)
    for k in range(len(parts)):
        (row, column), (rows, columns) = parts[k]
        for other in (
            [],
            [parts[k - 1]],
            [((row + 1, column), (rows, columns))],
            [((row, column), (rows, columns + 1))],
        ):
            assert not shard_plan.is_whole((7, 4), [*parts[:k], *other, *parts[k + 1 :]])
    with pytest.raises(ValueError, match=r"^the shards of x do not make up its shape \(8,\)$"):
        shard_plan.make_index({"x": torch.zeros(8)}, [[[0, [0], [4], 0, 16]], [[0, [0], [4], 0, 16]]])


def written(path: Path, values: list[torch.Tensor]) -> tuple[list[bytes], int]:
    """(the bytes of each value in a file of shards, calls of torch.save)."""
    tensors = {str(number): value for number, value in enumerate(values)}
    shards = [shard_plan.Shard(k, str(k), [0] * v.dim(), list(v.shape)) for k, v in enumerate(values)]
    with patch.object(torch, "save", wraps=torch.save) as saved:
        size, total, rows = shard_plan.write_shards(path, tensors, shards)
    raw = path.read_bytes()
    assert (len(raw), zlib.crc32(raw), sum(row[-1] for row in rows)) == (size, total, size)
    return [raw[first : first + length] for *_, first, length in rows], saved.call_count


def saved_by(save: Any, value: torch.Tensor) -> bytes:
    save(value, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize("at_once", [None, 1000])
def test_small_shards_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int | None) -> None:
    """And few calls of torch.save, each of which holds up the loop. at_once: bytes that the system writes in a call."""
    calls: list[int] = []

    class Counted:
        def __init__(self, file: Any) -> None:
            self.file, self.tell = file, file.tell

        def write(self, data: Any) -> int:
            calls.append(len(data))
            return self.file.write(memoryview(data)[:at_once])

    monkeypatch.setattr(shard_plan, "Summing", lambda file: Summing(Counted(file)))  # type: ignore[arg-type]
    for count in (30, 300):
        archives._form.cache_clear()
        values = [torch.full((90_000 // count,), float(k)) for k in range(count)]
        for saves in (2, 0):  # a form is made of two archives, once
            calls.clear()
            shards, saved = written(tmp_path / "shards", values)
            assert saved == saves
            assert len(calls) == 1 or at_once
            assert shards == [saved_by(torch.save, value) for value in values]


def test_tensors_of_all_kinds_are_written_as_torch_saves_them() -> None:
    """To the byte."""
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
    dtypes += [torch.bool, torch.uint8, torch.uint16, torch.int64]
    shapes = [(), (1,), (3, 4), (2, 1, 5), (0,), (2, 0)]
    values = [torch.randint(2, shape).to(dtype) for dtype in dtypes for shape in shapes for _ in range(2)]
    base = torch.randn(6, 4, dtype=torch.complex64)
    values += [base, base.T, base[::2], base[1:3], base[:1].expand(6, 4), base.real, base.conj(), base.conj().imag]
    values += [
        torch.as_strided(base, (1, 24), (7, 1)),
        torch.as_strided(base, (2, 12), (11, 1), 1),
        base.clone().requires_grad_(),
    ]
    values += [torch.nn.Parameter(base), torch.nn.Parameter(base, requires_grad=False)]
    values += [torch.randn(archives.LARGEST // 4 + more) for more in (0, 1)]
    values[0].note = "kept"  # type: ignore[attr-defined]
    for value in values:
        assert saved_by(archives.write_tensor, value) == saved_by(torch.save, value), (value.dtype, value.shape)


@pytest.mark.parametrize("unlike", ["sums", "end"])
def test_torch_saves_the_shards_if_its_archives_are_not_as_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlike: str
) -> None:
    values, save, numbers = [torch.randn(5) for _ in range(10)], torch.save, itertools.count()

    def numbered(value: torch.Tensor, file: Any) -> None:
        save(value, file)
        file.write(bytes([next(numbers)]))

    archives._form.cache_clear()
    if unlike == "end":
        monkeypatch.setattr(torch, "save", numbered)
    torch.serialization.set_crc32_options(unlike != "sums")
    try:
        shards, saved = written(tmp_path / "shards", values)
        assert saved == 2 + 10  # two for the form
        assert [shard[:1000] for shard in shards] == [saved_by(save, value)[:1000] for value in values]
        assert unlike == "sums" or [shard[-1] for shard in shards] == list(range(2, 12))
    finally:
        torch.serialization.set_crc32_options(True)
        archives._form.cache_clear()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a full device")
@pytest.mark.parametrize("rows", [8, 1 << 20])
def test_a_full_disk_is_the_error(rows: int) -> None:
    """Also if it is found when the buffer is written."""
    with pytest.raises(OSError, match="No space left") as raised:
        shard_plan.write_shards(Path("/dev/full"), {"x": torch.ones(rows)}, [shard_plan.Shard(0, "x", [0], [rows])])
    assert failure_line(raised.value) == "No space left on device"


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_each_file_is_checked_by_one_rank(tmp_path: Path, damage: str) -> None:
    path = simulated(tmp_path, 8)
    for file in [path / ".metadata", path / "__0_0.distcp", path / "__7_0.distcp"]:
        raw = file.read_bytes()
        file.unlink()
        if damage != "missing":
            file.write_bytes(raw[:-1] if damage == "short" else raw[:-1] + bytes([raw[-1] ^ 1]))
        found = []
        for rank in range(8):
            try:
                load_lazily(path, (rank, 8))
            except CorruptFileError as error:
                found.append(str(error))
        assert len(found) == 1, file.name
        assert found[0].startswith(f"{path} does not load: ")
        said = {"missing": " is missing", "short": " has ", "flipped": " is damaged (its CRC-32 differs)"}[damage]
        assert f": {file.name}{said}" in found[0]
        assert "\n" not in found[0]
        file.unlink(missing_ok=True)
        file.write_bytes(raw)


def test_hosts_that_do_not_share_the_directory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: None)
    with pytest.raises(RunFailed, match=r"last_000000001\.dcp cannot be written: rank 0 does not see __1_0\.distcp, "):
        simulated(tmp_path, 2)
    assert [*tmp_path.iterdir()] == []


def test_the_benchmark_of_sharded_saves_runs(tmp_path: Path) -> None:
    from scale_shards import load_of, saves_of

    costs = saves_of(2, layers=1, width=8, rounds=1, folder=tmp_path)
    assert {way: len(found) for way, found in costs.items()} == {"dcp.save": 1, "first": 1, "later": 1}
    assert min(load_of(2, max(tmp_path.glob("last_*")), layers=1, width=8)) > 0
