"""The processes of a load: what they said is put together and checked, and a disk without room is seen before."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.bench.crew import Ground, Received, durability, gathered, no_room, receivers, senders
from rmq.bench.options import Load, Options
from rmq.bench.processes import BenchError
from rmq.testing.broker import BrokerThread

NOWHERE = Ground("127.0.0.1:1", 2, "t")


def reply(count: int, size: int, began: float, last_at: float) -> dict[str, Any]:
    return {"count": count, "bytes": size, "began": began, "last_at": last_at}


def test_the_clock_runs_from_the_first_start_signal_to_the_last_message() -> None:
    found = gathered([reply(6, 60, 5.0, 9.0), reply(4, 40, 4.0, 7.0), reply(0, 0, 3.0, 0.0)], Load(10, 10))

    assert found == Received(3.0, 9.0)


@pytest.mark.parametrize("parts", [[reply(9, 100, 1.0, 2.0)], [reply(10, 99, 1.0, 2.0)], [reply(11, 110, 1.0, 2.0)]])
def test_anything_but_exactly_the_load_is_refused(parts: list[dict[str, Any]]) -> None:
    with pytest.raises(BenchError, match="came instead of 10 of 100"):
        gathered(parts, Load(10, 10))


def test_more_consumers_than_queues_are_refused() -> None:
    with pytest.raises(BenchError, match="3 consumers of 2 queues"):
        receivers(NOWHERE, Load(queues=2, consumers=3), "messages", warm=1, paused=False).__enter__()


def test_more_producers_than_messages_are_refused() -> None:
    with pytest.raises(BenchError, match="3 producers of 2 messages"):
        senders(NOWHERE, Load(2, producers=3), "bodies").__enter__()


def test_a_disk_without_room_is_reported_with_both_sizes() -> None:
    assert no_room(Load(1)) == ""
    assert no_room(Load(1 << 40, 1000)).startswith("the disk has ")


def test_a_load_that_does_not_fit_into_memory_is_not_made() -> None:
    assert no_room(Load(1 << 40, 1000), copies=0).startswith("the machine has ")


def test_the_durability_of_a_broker_that_runs_is_its_own() -> None:
    with BrokerThread() as broker:
        assert durability(Options(flush="async", broker=broker.address)) == "sync"
    assert durability(Options(flush="async")) == "async"
