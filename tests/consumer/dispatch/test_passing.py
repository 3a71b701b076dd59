"""Failed messages of a broadcasting member that does not consume in order: told, and passed."""

from __future__ import annotations

import pytest

from rmq.consumer.dispatch.failures import Fate, Passing
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Generation, Lease
from rmq.wire.model import MessageQueue

from ..fetch.test_process_queue import made


def held(count: int) -> Generation:
    cache = ProcessQueue(4)
    cache.put(made(4, count))
    return Generation(Lease(MessageQueue("t", 0), 0, 0.0), cache, on_lost=lambda *_: None)


async def test_failed_messages_are_told_in_one_line_and_passed(caplog: pytest.LogCaptureFixture) -> None:
    generation = held(2)
    messages = generation.cache.take(2)  # type: ignore[attr-defined]

    fate = await Passing().give_back(generation, messages, progress=lambda: 6, delay_level=-1, reason="odd price")

    assert fate is Fate.GIVEN_BACK
    (line,) = [record.getMessage() for record in caplog.records]
    assert "message.passed" in line
    assert "queue_offset=4 count=2 attempts=1 reason='odd price'" in line


async def test_messages_of_a_queue_whose_stay_ended_are_not_passed(caplog: pytest.LogCaptureFixture) -> None:
    generation = held(1)
    messages = generation.cache.take(1)  # type: ignore[attr-defined]
    generation.lose("the topic was deleted")

    assert await Passing().give_back(generation, messages, progress=lambda: 5) is Fate.LOST

    assert "message.passed" not in caplog.text
