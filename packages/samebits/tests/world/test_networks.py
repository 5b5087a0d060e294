"""Networks without IPv4, a thousand ranks, CUDA that has started. With fakes: no such machine is needed."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from samebits.compiling import dynamo
from samebits.host import gpu as cuda
from samebits.testing.processes import free_port, limit
from samebits.world import cluster, group


def test_processes_are_spawned_where_cuda_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.start_method() == ("fork" if sys.platform == "linux" else "spawn")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert cuda.start_method() == "spawn"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(cuda, "num_threads", lambda: 2)
    assert cuda.start_method() == "spawn"
    monkeypatch.setattr(cuda, "num_threads", lambda: 1)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cuda.start_method() == "spawn"


def test_a_thousand_ranks_have_files_and_connect_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    monkeypatch.delenv("TORCH_GLOO_LAZY_INIT", raising=False)
    for pair, raised in (((1024, 4096), [(4096, 4096)]), ((1024, resource.RLIM_INFINITY), [(65536, -1)]),
                         ((99_999, 10**6), []), ((resource.RLIM_INFINITY,) * 2, [])):  # fmt: skip
        limits.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda which, pair=pair: pair)
        group.allow_connections(8)
        assert limits == raised
    assert "TORCH_GLOO_LAZY_INIT" not in os.environ
    group.allow_connections(1024)
    assert os.environ.pop("TORCH_GLOO_LAZY_INIT") == "1"


IF_INET6 = """00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
20010db8000000000000000000000007 05 40 00 82     ib0
"""


@pytest.mark.parametrize(
    ("own", "interface"), [("2001:db8::7", "ib0"), ("fe80::fc:ff:fe00:1", "eth0"), ("2001:db8::8", None), ("::1", None)]
)
def test_interfaces_of_hosts_that_have_ipv6_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, interface: str | None
) -> None:
    """own: the address from which the head is reached. The others cannot reach a loopback."""
    (tmp_path / "if_inet6").write_text(IF_INET6)
    monkeypatch.setattr(cluster, "IPV6_ADDRESSES", str(tmp_path / "if_inet6"))
    probe = mock.MagicMock()
    probe.return_value.__enter__.return_value.getsockname.return_value = (own, 9, 0, 0)
    answer = [(socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("2001:db8::1", 9, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    monkeypatch.setattr(socket, "socket", probe)
    assert cluster.interface_towards("head") == interface
    assert probe.call_args.args[0] == socket.AF_INET6


def test_gloo_and_nccl_use_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    monkeypatch.setattr(group, "interface_towards", lambda address: "eth1")
    for given, chosen in (
        ({}, ("eth1", "=eth1")),
        ({names[1]: "ib"}, ("eth1", "ib")),
        ({names[0]: "ib0"}, ("ib0", None)),
    ):
        for name in names:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        group.choose_interface("head")
        assert tuple(map(os.environ.get, names)) == chosen
        for name in names:
            os.environ.pop(name, None)


MEET = """
import torch
from samebits.world import process_group
with process_group("cpu", 60.0) as here:
    print(here.all_reduce_sum(torch.ones(1)).item())
"""


@pytest.mark.slow
def test_ranks_meet_over_ipv6() -> None:
    try:
        port = free_port()
        socket.create_server(("::1", port), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    env = {**os.environ, "MASTER_ADDR": "::1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", MEET], env={**env, "RANK": r, "LOCAL_RANK": r}, stdout=subprocess.PIPE)
        for r in "01"
    ]
    try:
        assert [rank.communicate(timeout=limit(60))[0] for rank in ranks] == [b"2.0\n"] * 2
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(("version", "cannot"), [("2.12.1+cpu", True), ("2.13.0+cpu", False)])
def test_checkpointed_modules_are_compiled_whole_where_torch_cannot_cut_them(
    version: str, cannot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(optimize_ddp=True, recompile_limit=8)
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(config=config))  # type: ignore[arg-type]
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    monkeypatch.setattr(torch, "compile", lambda net, mode: net)
    net = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(net)
    for checkpointing, whole in (([], False), (["auto"], cannot)):
        hardware: Any = SimpleNamespace(compile="default", device="cpu", micro_batch_sizes=[1])
        dynamo.compiled(net, SimpleNamespace(activation_checkpointing=checkpointing), hardware)  # type: ignore[arg-type]
        assert config.optimize_ddp is not whole
