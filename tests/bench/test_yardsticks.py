"""What loads are measured by is found, and a benchmark that a peer lacks has no rate."""

from __future__ import annotations

import pytest

from rmq.bench.options import Load
from rmq.bench.processes import BenchError
from rmq.bench.yardsticks import Tried, machine, native_rate

from rigs.bench_stand_ins import FixedPeer


def test_the_benchmark_of_a_peer_has_a_rate() -> None:
    assert native_rate(FixedPeer(native=16.0), Load()) == 16.0


def test_a_benchmark_that_a_peer_lacks_has_none() -> None:
    with pytest.raises(BenchError, match="redis brings no benchmark along"):
        native_rate(FixedPeer(native=None), Load())


def test_the_floor_of_this_machine_can_be_asked() -> None:
    assert all(callable(getattr(machine(), name)) for name in ("produce", "consume", "socket_to_file", "fdatasync_ms"))


def test_what_failed_once_is_not_tried_again_and_says_why() -> None:
    samples = iter([3.0])

    def take() -> float:
        for sample in samples:
            return sample
        raise BenchError("it fell over")

    tried = Tried(take)

    assert (tried(), tried.why_not) == (3.0, "")
    assert (tried(), tried(), tried.why_not) == (0.0, 0.0, "it fell over")
