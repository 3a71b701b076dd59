"""The client process of a peer plays its part: warm-up apart, the clock around the work alone, counts of what came."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from peers.client import STREAM, Confirms, Count, Listener, fetched, work
from rmq.bench.options import Load
from rmq.bench.processes import BenchError


class Memory:
    """A broker of lists."""

    def __init__(self) -> None:
        self.streams: dict[str, list[bytes]] = {}
        self.calls: list[tuple[str, str]] = []

    async def create(self, stream: str) -> None:
        self.streams.setdefault(stream, [])

    async def produce(self, stream: str, load: Load, batches: list[list[bytes]]) -> None:
        self.calls.append(("produce", stream))
        for bodies in batches:
            self.streams[stream] += bodies

    async def consume(self, stream: str, load: Load, listener: Listener) -> None:
        self.calls.append(("consume", stream))
        for body in self.streams[stream][: load.messages]:
            await listener(body)

    async def stored(self, stream: str) -> int:
        return len(self.streams[stream])


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    yield lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    gc.unfreeze()  # what a client does for good


async def test_a_producer_sends_everything_once_after_a_warm_up_elsewhere(reports: Any) -> None:
    broker = Memory()

    await work(broker, "produce", Load(messages=1200))

    ready, found = reports()
    assert ready == {"ready": True}
    assert found["stored"] == 1200
    assert found["began"] <= found["ended"]
    assert broker.calls == [("produce", "warm-up-produce"), ("produce", STREAM)]
    assert len(set(broker.streams[STREAM])) == 1200


async def test_a_consumer_counts_what_its_listener_was_given(reports: Any) -> None:
    broker = Memory()
    broker.streams[STREAM] = [b"body"] * 1199

    await work(broker, "consume", Load(messages=1200))

    assert reports()[1]["handled"] == 1199
    assert broker.calls == [("produce", "warm-up-consume"), ("consume", "warm-up-consume"), ("consume", STREAM)]


async def test_the_clock_of_a_consumer_ends_before_the_acknowledgement(reports: Any) -> None:
    acknowledged_at = []

    class Acknowledging(Memory):
        async def consume(self, stream: str, load: Load, listener: Listener) -> None:
            await super().consume(stream, load, listener)
            acknowledged_at.append(perf_counter())  # the same clock

    broker = Acknowledging()
    broker.streams[STREAM] = [b"body"] * 10

    await work(broker, "consume", Load(messages=10))

    assert acknowledged_at[0] < reports()[1]["ended"] < acknowledged_at[1]  # the first was of the warm-up


def test_consumers_fetch_many_even_if_messages_were_sent_one_by_one() -> None:
    assert [fetched(Load(batch=batch)) for batch in (1, 500, 2000)] == [500, 500, 2000]


async def test_a_waiter_continues_when_enough_have_come() -> None:
    count = Count()
    waiter = asyncio.ensure_future(count.reaches(3))
    await asyncio.sleep(0)

    count.add(2)
    await asyncio.sleep(0)
    early = waiter.done()
    count.add()
    await waiter

    assert not early
    await count.reaches(3)  # and at once, where they are there


async def test_a_failure_reaches_present_and_later_waiters() -> None:
    count = Count()
    waiter = asyncio.ensure_future(count.reaches(1))
    await asyncio.sleep(0)

    count.fail("the first reason")
    count.fail("another")

    with pytest.raises(BenchError, match="the first reason"):
        await waiter
    with pytest.raises(BenchError, match="the first reason"):
        await count.reaches(0)


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([(1, False), (2, False)], 2),
        ([(5, True)], 5),
        ([(2, False), (3, False)], 0),
        ([(2, False), (3, False), (1, False)], 3),
        ([(5, False), (4, True)], 5),
        ([(3, False), (5, True), (7, False), (6, False)], 7),
        ([(4, True), (2, True)], 4),
    ],
)
def test_confirms_count_up_to_the_first_gap(answers: list[tuple[int, bool]], confirmed: int) -> None:
    confirms = Confirms()

    for tag, is_multiple in answers:
        confirms.confirm(tag, is_multiple)

    assert confirms.value == confirmed
