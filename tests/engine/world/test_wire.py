"""What ranks say to each other is data; the store listens where it was told to."""

from __future__ import annotations

import ast
import math
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, assert_equal, free_port, old_rng_state

from engine.world import wire
from engine.world.cluster import ClusterRole, listener


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2**70, -0.1, math.inf, "ä\n\0", [], (), {}, [1, (2, [3.5])], {"a": {1: None, (2, 3): ("x",)}},
        Path("/a/b"), [Path("c")], torch.zeros(0, 3), torch.tensor(2.5), torch.arange(6).reshape(2, 3).T,
        torch.rand(3).bfloat16(), torch.tensor([True, False]), {"dict": [1], "tensor": 2, "tuple": 3},
    ],
)  # fmt: skip
def test_values_arrive_as_they_were(value: Any) -> None:
    there = wire.decode(wire.encode(value))
    assert type(there) is type(value)
    assert_equal(there, value)
    if isinstance(value, torch.Tensor):
        assert there.dtype == value.dtype
        assert there.shape == value.shape


def test_random_states_arrive_bit_for_bit() -> None:
    state = old_rng_state()
    there = wire.decode(wire.encode(state))
    assert there["python"] == state["python"]  # tuples stay tuples
    assert isinstance(there["numpy"], tuple)
    assert_equal(there, state)


def test_what_is_no_data_is_not_sent_nor_made() -> None:
    for value in (print, object(), {1, 2}, b"x", Path):
        with pytest.raises(TypeError, match="ranks do not exchange"):
            wire.encode(value)
    for text in (
        b'{"tensor": ["load", [1], ""]}',
        b'{"call": ["os.system", "x"]}',
        b"\x80\x04K\x01.",
        b'{"a": 1, "b": 2}',
    ):
        with pytest.raises((ValueError, AttributeError)):
            wire.decode(text)


def test_no_rank_unpickles_what_another_sent() -> None:
    """torch.distributed's *_object functions are called nowhere."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if "_object" in name and name.startswith(("gather", "all_gather", "broadcast", "scatter", "send", "recv")):
                found.append(f"{path.name}: {name}")
    assert not found


def test_the_store_listens_at_the_address_that_was_asked_for() -> None:
    places = [("rank", "127.0.0.1", 2), ("host", "127.0.0.1", None), ("rank", "localhost", 2)]
    for place in (ClusterRole(kind, 0, 2, address, free_port(), 0, local) for kind, address, local in places):
        with listener(place) as found:  # type: ignore[union-attr]
            assert found.getsockname()[0] in ("127.0.0.1", "::1")
            assert found.getsockname()[1] == place.port
            with pytest.raises(OSError, match="in use"):
                listener(place)
    # the machine's name may mean loopback here only, a service's address is none of this machine's: all interfaces
    for address, kind, local in (("localhost", "host", None), ("localhost", "rank", 1), ("192.0.2.1", "host", None)):
        assert listener(ClusterRole(kind, 0, 2, address, free_port(), 0, local)) is None
    assert listener(ClusterRole("host", 0, 2, "no-such-host.invalid", free_port())) is None


def test_rank_0_hands_its_socket_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    from engine.world import store

    port, made = free_port(), []
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setattr(store, "_stores", {})
    monkeypatch.setattr(dist, "TCPStore", lambda *args, **options: made.append(options["master_listen_fd"]))
    store.store()
    with socket.socket(fileno=made[0]) as found:
        assert found.getsockname() == ("127.0.0.1", port)
