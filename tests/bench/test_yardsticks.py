"""The floor of this machine can be asked, and what failed once is not tried again."""

from __future__ import annotations

from rmq.bench.processes import BenchError
from rmq.bench.yardsticks import Tried, machine


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
