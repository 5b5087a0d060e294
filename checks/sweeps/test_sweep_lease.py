"""Which GPUs and cores the jobs of a pool get. The GPUs are names: no machine is needed that has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from sweeps import SWEEP, call_faulty, states

from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.host import cores
from samebits.sweeps import Leases, Ledger, PoolConfig, SweepConfig, Work, pool, run_in_pool
from samebits.sweeps.ledger import Job


def job(folder: Path, name: str, strategy: str = "single", num_procs: int | str = "auto", device: str = "auto") -> Path:
    (folder / name).mkdir()
    cfg = {group: {} for group in ("data", "model", "task", "optim")} | {
        "hardware": {"device": device, "num_procs": num_procs},
        "trainer": {"strategy": strategy},
    }
    OmegaConf.save(cfg, folder / name / "config.yaml")
    return folder / name


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")


@pytest.mark.usefixtures("four_gpus")
def test_each_job_leases_gpus_of_its_own(tmp_path: Path) -> None:
    leases = Leases("auto", "auto", 99)
    assert leases.at_once == 4
    one, two = job(tmp_path, "one"), job(tmp_path, "two", "ddp", 2)
    first, second = leases.take(PROGRAM, one), leases.take(PROGRAM, two)
    assert first is not None and second is not None  # noqa: PT018
    assert (len(first.gpus), len(second.gpus)) == (1, 2)
    assert not set(first.gpus) & set(second.gpus)
    assert leases.take(PROGRAM, two) is None, "one GPU is left"
    leases.give_back(first)
    third = leases.take(PROGRAM, two)
    assert third is not None
    assert set(third.gpus) | set(second.gpus) == {"4", "5", "6", "7"}
    assert third.environment()["CUDA_VISIBLE_DEVICES"] == ",".join(third.gpus)
    assert leases.take(PROGRAM, one) is None


@pytest.mark.usefixtures("four_gpus")
def test_shares_of_a_gpu(tmp_path: Path) -> None:
    leases, one = Leases("auto", 1 / 3, 99), job(tmp_path, "one")
    assert leases.at_once == 12
    taken = [leases.take(PROGRAM, one) for _ in range(12)]
    names = sorted(lease.gpus[0] for lease in taken if lease is not None)
    assert names == sorted(["4", "5", "6", "7"] * 3)
    assert len({lease.gpus for lease in taken[:4] if lease}) == 4, "spread before shared"
    assert leases.take(PROGRAM, one) is None


@pytest.mark.usefixtures("four_gpus")
def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs 5 GPUs, 4 are visible"):
        Leases("auto", "auto", 99).take(PROGRAM, job(tmp_path, "five", "ddp", 5))
    with pytest.raises(ConfigError, match="must be an integer, or a fraction below 1"):
        Leases("auto", 1.5, 99)
    lease = Leases(2, "auto", 99).take(PROGRAM, job(tmp_path, "cpu", device="cpu"))
    assert lease is not None
    assert lease.gpus == ()


def test_cores_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    here = cores()
    assert Leases("auto", "auto", 99).at_once == here
    assert Leases("auto", "auto", 1).at_once == 1
    lease = Leases(2, "auto", 99).take(PROGRAM, job(tmp_path, "one"))
    assert lease is not None
    assert lease.cores == max(1, here // 2)
    monkeypatch.setenv("LAB_CORES", "1")
    assert cores() == 1


def test_what_is_left_of_a_command_changes_no_jobs_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last job of a sweep that was stopped would round in another way than the others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("samebits.sweeps.lease.cores", lambda: 16)
    seen = []
    monkeypatch.setattr(pool.Pool, "run", lambda self: seen.append(self._leases.take(PROGRAM, tmp_path).cores))
    jobs = [Job(number, (), tmp_path) for number in range(3)]
    for due in (jobs, jobs[2:], iter(jobs)):
        work = Work(Ledger(PROGRAM, tmp_path / "s"), due, jobs, SweepConfig())
        run_in_pool(work, PoolConfig("auto", "auto"))
    assert seen == [5, 5, 5]


@pytest.mark.slow
def test_a_job_sees_what_it_has_leased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen = tmp_path / "seen"
    note = f"open({str(seen)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'] + ' ' + os.environ['LAB_CORES'])"
    options = [option for option in SWEEP if option != "hardware=cpu"]
    call_faulty(note, *options, "hydra/launcher=pool", "seed=1", f"hydra.sweep.dir={tmp_path}/s")
    assert states(tmp_path / "s") == ["finished"]
    assert seen.read_text() in (f"0 {cores()}", f"1 {cores()}")
