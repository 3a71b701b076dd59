"""What loads are measured by is found, and a benchmark that a peer lacks has no rate."""

from __future__ import annotations

import pytest

from rmq.bench.loads import Load
from rmq.bench.processes import BenchError
from rmq.bench.yardsticks import machine, native_rate, rivals

from support.bench_stand_ins import FixedPeer


def test_the_benchmark_of_a_peer_has_a_rate() -> None:
    assert native_rate(FixedPeer(native=16.0), Load()) == 16.0


def test_a_benchmark_that_a_peer_lacks_has_none() -> None:
    with pytest.raises(BenchError, match="redis brings no benchmark along"):
        native_rate(FixedPeer(native=None), Load())


def test_the_floor_of_this_machine_can_be_asked() -> None:
    assert all(callable(getattr(machine(), name)) for name in ("produce", "consume", "socket_to_file", "fdatasync_ms"))


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_redis_is_among_the_peers_installed_or_not(flush: str) -> None:
    assert "redis" in [peer.name for peer in rivals(flush)]
