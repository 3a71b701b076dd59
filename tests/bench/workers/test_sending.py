"""What a sending process sends, how many calls it has waiting at once, and when a key counts as found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rmq.bench.options import Load
from rmq.bench.processes import BenchError
from rmq.bench.workers.sending import caught_up, key, messages_of, prepared, send_all, warm_up
from rmq.client import FoundMessages
from rmq.wire.model import Message


class Recording:
    """A producer that remembers its calls, and answers when the loop has gone on."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.waiting = self.most = 0

    async def send(self, message: Message) -> None:
        await self._call("send", [message.body])

    async def send_many(self, messages: list[Message]) -> None:
        await self._call("send_many", [message.body for message in messages])

    async def send_bodies(self, topic: str, bodies: list[bytes]) -> None:
        await self._call("send_bodies", bodies)

    async def _call(self, what: str, bodies: list[bytes]) -> None:
        self.calls.append((what, len(bodies)))
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1


@pytest.mark.parametrize(
    ("style", "batch", "calls"),
    [
        ("bodies", 4, [("send_bodies", 4), ("send_bodies", 4), ("send_bodies", 2)]),
        ("messages", 4, [("send_many", 4), ("send_many", 4), ("send_many", 2)]),
        ("messages_inside", 4, [("send_many", 4), ("send_many", 4), ("send_many", 2)]),
        ("bodies", 1, [("send_bodies", 1)] * 10),
        ("messages", 1, [("send", 1)] * 10),
        ("messages_inside", 1, [("send", 1)] * 10),
    ],
)
async def test_each_style_has_its_call(style: str, batch: int, calls: list[tuple[str, int]]) -> None:
    producer: Any = Recording()
    items, send = prepared(style, "t", Load(10, 5, batch))

    await send_all([producer], items, send, in_flight=2)

    assert producer.calls == calls


async def test_calls_in_flight_are_bounded_and_shared_by_the_producers() -> None:
    producers: Any = [Recording(), Recording()]
    items, send = prepared("messages", "t", Load(40, 5, 1))

    await send_all(producers, items, send, in_flight=6)

    assert sum(len(producer.calls) for producer in producers) == 40
    assert [producer.most for producer in producers] == [3, 3]


def test_tags_take_turns_and_keys_are_of_one_message_each() -> None:
    lists = messages_of("t", Load(5, 3, 2, tags=2, keys=True), part=7)

    assert [len(some) for some in lists] == [2, 2, 1]
    messages = [message for some in lists for message in some]
    assert [message.tag for message in messages] == ["tag-0", "tag-1", "tag-0", "tag-1", "tag-0"]
    assert [message.index_keys for message in messages] == [(key(7, number),) for number in range(5)]
    assert {len(message.body) for message in messages} == {3}


def test_messages_without_tags_and_keys_have_neither() -> None:
    assert {(message.tag, message.index_keys) for (message,) in messages_of("t", Load(3, 3, 1))} == {(None, ())}


@pytest.mark.parametrize(("messages", "small"), [(1, 1), (100, 20), (1_000_000, 20_000)])
def test_the_warm_up_is_the_same_load_in_small(messages: int, small: int) -> None:
    assert warm_up(Load(messages, 7, 3, tags=2)) == Load(small, 7, 3, tags=2)


class Index:
    """Gives prepared answers, one after the other."""

    def __init__(self, *answers: tuple[list[Any], int]) -> None:
        self._answers: Iterator[tuple[list[Any], int]] = iter(answers)
        self._last = answers[-1]

    async def query_messages(self, key: str, topic: str) -> FoundMessages:
        messages, lag_bytes = next(self._answers, self._last)
        return FoundMessages(messages, False, lag_bytes)


async def test_a_key_counts_as_found_when_the_whole_log_is_indexed() -> None:
    clock = count()
    index = Index(([], 10), (["message"], 10), (["message"], 0))

    # Read once before, and twice by answers that were not enough.
    assert await caught_up(index, "t", "k", lambda: next(clock)) == 3


async def test_a_key_that_is_never_found_ends_the_benchmark() -> None:
    clock = count(step=40)

    with pytest.raises(BenchError, match="key k was not found within 60 s"):
        await caught_up(Index(([], 0)), "t", "k", lambda: next(clock))
