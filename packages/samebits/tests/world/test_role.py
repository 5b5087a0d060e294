"""What the environment says: every way to start a process ends as a plain one, a rank or a host."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch

from samebits.errors import ConfigError
from samebits.world import ClusterRole, cluster_role, dist_env, environment
from samebits.world.cluster import first_host, gpu_index, tasks_per_node

JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NODEID": "1"}
TASK = {**JOB, **STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
TRAIN_JOB = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500"}
PORT = 15_000 + 31 * 7


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        *(({name: "4"}, None) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")),  # say nothing by themselves
        ({}, None),
        ({**JOB, "PMIX_RANK": "3", "PMI_SIZE": "4"}, None),  # srun --mpi ... env -u SLURM_PROCID: runs of their own
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        (JOB, None),  # within salloc
        ({**JOB, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, None),  # the script of sbatch
        ({**TASK, "SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0"}, None),  # salloc's interactive step
        ({**TASK, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}, None),
        (TASK, ClusterRole("rank", 3, 4, "n1", PORT, 1, 2)),
        (
            {**TASK, "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_LOCALID": "0"},
            ClusterRole("rank", 3, 4, "n1", PORT, 0, 1),
        ),
        ({**TASK, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}, ClusterRole("rank", 3, 4, "10.0.0.1", 5, 1, 2)),
        (
            {**TASK, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
            ClusterRole("host", 1, 2, "n1", PORT),
        ),
        # torchrun in a task of srun, and a rank that launch.py started there
        ({**TASK, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "n2",
          "MASTER_PORT": "1"}, ClusterRole("rank", 5, 8, "n2", 1, 1, 4)),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
         ClusterRole("rank", 0, 1, "", 0, 0, 1)),
        ({**PYTORCH_JOB, "WORLD_SIZE": "2"}, ClusterRole("host", 1, 2, "job-master-0", 23456)),
        ({**PYTORCH_JOB, "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1"},
         ClusterRole("host", 1, 2, "job-master-0", 23456, 0, 8)),
        ({**PYTORCH_JOB, "RANK": "0", "WORLD_SIZE": "1"}, None),
        ({**TRAIN_JOB, "PET_NPROC_PER_NODE": "8"}, ClusterRole("host", 1, 2, "job-node-0-0.job", 29500, 0, 8)),
        ({**TRAIN_JOB, "PET_NPROC_PER_NODE": "auto"}, ClusterRole("host", 1, 2, "job-node-0-0.job", 29500)),
        ({**TRAIN_JOB, "PET_NNODES": "1", "PET_NODE_RANK": "0"}, None),
    ],
)  # fmt: skip
def test_cluster_role(env: dict[str, str], expected: ClusterRole | None) -> None:
    assert cluster_role(env) == expected


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR: is not set"),
        ({**PYTORCH_JOB, "WORLD_SIZE": "three"}, "WORLD_SIZE=three: must be a number"),
        ({**PYTORCH_JOB, "WORLD_SIZE": "9", "PET_NPROC_PER_NODE": "8"}, "is not a multiple of PET_NPROC_PER_NODE=8"),
        ({**PYTORCH_JOB, "RANK": "16"}, "host 16 of 16"),
        ({**TRAIN_JOB, "PET_NNODES": "1:4"}, "needs torchrun in the pod"),
        # left over in a shell
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0: .* RANK is not set - unset LOCAL_RANK for a plain run"),
        ({"LOCAL_RANK": "0", "RANK": "0"}, "LOCAL_RANK=0: .* WORLD_SIZE is not set - unset LOCAL_RANK"),
        ({"LOCAL_RANK": "x", "RANK": "0", "WORLD_SIZE": "1"}, "LOCAL_RANK=x: must be a number"),
        ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR: .* unset RANK=0, WORLD_SIZE=2, LOCAL_RANK"),
        ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "x"}, "MASTER_PORT=x: must be a number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR: .* - for a plain run unset RANK=0, WORLD_SIZE=2"),
        ({**TASK, "SLURM_STEP_ID": "x"}, "SLURM_STEP_ID=x: must be a number"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, "OMPI_COMM_WORLD_SIZE=4: mpirun has .* use torchrun or srun"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "PMI_SIZE=2: mpirun"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0: mpirun"),
        *(
            ({**env, name: port}, f"{name}={port}: must be a port, from 1 to 65535")
            for port in ("0", "65536", "99999")
            for env, name in (
                (PYTORCH_JOB, "MASTER_PORT"),
                (TASK, "MASTER_PORT"),
                (TRAIN_JOB, "PET_MASTER_PORT"),
                ({"LOCAL_RANK": "0", **PYTORCH_JOB}, "MASTER_PORT"),
            )
        ),
    ],
)
def test_senseless_variables_are_named(env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cluster_role(env)


def test_slurm_notation() -> None:
    names = ["gpu[07-09,12],login1", "a,b", "rack1-n[3,5]", "n[1-2]x[3-4]", "solo", "g[08]-ib,g[09]-ib"]
    assert [first_host(n) for n in names] == ["gpu07", "a", "rack1-n3", "n1x3", "solo", "g08-ib"]
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("8") == [8]


def test_a_rank_takes_its_own_gpu_or_the_only_one_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu_index(i, 4) for i in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="has no GPU"):
        gpu_index(1, 1)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert gpu_index(3, 1) == 0
    with pytest.raises(ConfigError, match="2 are visible"):
        gpu_index(2, 2)


def test_each_rank_of_a_host_computes_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "count_gpus", lambda: 4)
    for local in range(4):
        for name, value in {"RANK": 4 + local, "WORLD_SIZE": 8, "LOCAL_RANK": local}.items():
            monkeypatch.setenv(name, str(value))
        assert dist_env.device("cuda") == torch.device("cuda", local)


def test_interface_towards() -> None:
    from samebits.world.cluster import interface_towards

    assert interface_towards("127.0.0.1") is None, "the others cannot reach a loopback"
    assert interface_towards("no.such.name.invalid") is None
    found: Any = interface_towards("192.0.2.1")  # through the default route, where there is one
    assert found is None or found in [name for _, name in socket.if_nameindex()]
