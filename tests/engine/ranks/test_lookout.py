"""Who looks into a shared run directory when, simulated for many ranks of many hosts."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from ranks import on_ranks

from engine.ranks.distributed import World
from engine.ranks.lookout import POLL_S, SELDOM, Lookout


def ranks_of(hosts: int, each: int, run_dir: Path, together: bool) -> list[Lookout]:
    """together: the ranks of a host see its temporary files."""
    found = []
    for host in range(hosts):
        for local in range(each):
            folder = run_dir / f"host_{host}" / ("" if together else str(local))
            folder.mkdir(parents=True, exist_ok=True)
            found.append(Lookout(run_dir, hosts * each, local, each, folder))
    return found


def seen_at(ranks: list[Lookout], failed_at: float, until: float) -> tuple[list[float], int]:
    """(when each rank has seen the failure, looks before it), each rank at its own moment of every POLL_S."""
    pick, looks = random.Random(0), 0
    seen = [float("inf")] * len(ranks)
    ticks = sorted(
        (k * POLL_S + pick.random() * POLL_S, i) for i in range(len(ranks)) for k in range(int(until / POLL_S))
    )
    for now, i in ticks:
        if not ranks[i].due(now):
            continue
        if now < failed_at:
            looks += 1
            ranks[i].calm()
        elif seen[i] > now:
            seen[i] = now
            ranks[i].alarm()
    return seen, looks


@pytest.mark.parametrize(("hosts", "each"), [(1, 1), (1, 8), (2, 2), (32, 8), (128, 8)])
def test_all_see_it_soon_and_few_look(hosts: int, each: int, tmp_path: Path) -> None:
    ranks = ranks_of(hosts, each, tmp_path, together=True)
    seen, looks = seen_at(ranks, failed_at=30.0, until=60.0)
    assert max(seen) - 30 <= ranks[0].interval_s + 2 * POLL_S
    assert looks / 30 <= 150
    assert looks / 30 <= 2.1 * hosts * (1 + each / SELDOM)


def test_ranks_that_share_nothing_but_the_run_directory(tmp_path: Path) -> None:
    ranks = ranks_of(4, 8, tmp_path, together=False)
    seen, _ = seen_at(ranks, failed_at=20.0, until=40.0)
    assert max(seen) - 20 <= ranks[0].slowest_s + POLL_S


def test_what_an_earlier_process_left_is_forgotten(tmp_path: Path) -> None:
    first, other = ranks_of(1, 2, tmp_path, together=True)
    first.alarm()
    assert [other.due(now) for now in (0.0, 0.1, 0.2)] == [True, True, True]
    first, other = ranks_of(1, 2, tmp_path, together=True)
    assert [other.due(now) for now in (0.0, 0.1, 0.2)] == [True, False, False]
    first.alarm()
    first.calm()
    assert not other.due(0.3)
    assert not list((tmp_path / "host_0").iterdir())


def test_no_alarm_outlives_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is raised after the first rank's end is removed by the parent."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work(world: World, folder: Path) -> None:
        if world.rank == 1:
            Lookout(folder, 2, 1, 2).alarm()
            assert list(tmp_path.glob("*.alarm"))

    on_ranks(work, tmp_path / "run")
    assert not list(tmp_path.glob("*.alarm"))
