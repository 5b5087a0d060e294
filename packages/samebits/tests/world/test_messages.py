"""What ranks say to each other is data; the store listens where it was told to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from samebits.testing.processes import free_port
from samebits.world import ClusterRole
from samebits.world.cluster import listener
from samebits.world.collectives import _bytes


@pytest.mark.parametrize("value", [print, object(), {1, 2}, b"x", Path("/a")])
def test_what_is_no_data_is_not_sent(value: object) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        _bytes(value)


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

    from samebits.world import store

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
