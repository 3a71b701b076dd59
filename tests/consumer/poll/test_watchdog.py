"""A user who never polls again keeps no queue from the others, and takes part again with the next poll."""

from __future__ import annotations

import asyncio

import pytest

from rmq.consumer.poll.watchdog import PollWatchdog
from rmq.wire.errors import Fenced
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..polling import QUEUE, MakePull, now, offsets

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest.mark.parametrize(("away_s", "rests"), [(9.999, False), (10.001, True)])
@pytest.mark.parametrize("waited_s", [0.0, 25.0])
async def test_only_the_time_between_two_polls_counts(away_s: float, rests: bool, waited_s: float) -> None:
    told: list[bool] = []
    watchdog = PollWatchdog(10.0, now=asyncio.get_running_loop().time, rest=told.append)
    watch = asyncio.create_task(watchdog.watch())
    for _ in range(3):
        watchdog.poll_began()
        await asyncio.sleep(waited_s)
        watchdog.poll_ended()
        await asyncio.sleep(away_s)
    watchdog.poll_began()
    watch.cancel()

    assert told == [True, False] * 3 * rests


async def test_how_long_the_user_is_away_is_told() -> None:
    watchdog = PollWatchdog(10.0, now=asyncio.get_running_loop().time, rest=lambda _: None)
    await asyncio.sleep(3)
    before = watchdog.away_s
    watchdog.poll_began()
    await asyncio.sleep(3)
    meanwhile = watchdog.away_s
    watchdog.poll_ended()
    await asyncio.sleep(2)

    assert (before, meanwhile, watchdog.away_s) == (3.0, 0.0, 2.0)


async def test_whatever_is_finished_shows_that_the_user_is_there() -> None:
    told: list[bool] = []
    watchdog = PollWatchdog(10.0, now=asyncio.get_running_loop().time, rest=told.append)
    watch = asyncio.create_task(watchdog.watch())
    for _ in range(3):
        await asyncio.sleep(8)
        watchdog.active()
    await asyncio.sleep(9.9)
    assert told == []
    await asyncio.sleep(0.2)
    watch.cancel()

    assert told == [True]


async def test_the_queues_of_a_user_who_does_not_poll_go_to_others_until_the_next_poll(
    broker: FakeBroker, pull: MakePull, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    async with pull(batch=1) as consumer:
        assert offsets(await consumer.poll(1)) == [0]
        assert offsets(batch := await consumer.poll(1)) == [1]
        await asyncio.sleep(899)
        assert (consumer.assignment, batch.lost) == ([QUEUE], False)
        await asyncio.sleep(2)
        assert (consumer.assignment, batch.lost) == ([], False)  # drain_s is left for what is in hand
        assert not broker.sent(Op.LEAVE)
        await asyncio.sleep(30)
        assert (batch.lost, len(broker.sent(Op.LEAVE)), broker.offsets["g", QUEUE]) == (True, 1, 1)

        asked_at = now()
        assert offsets(await consumer.poll(5)) == [1]
        assert now() - asked_at < 1
        with pytest.raises(Fenced, match="t/0 went to another owner"):  # of what was in hand before
            await consumer.commit()
        await consumer.commit()

    assert broker.offsets["g", QUEUE] == 2
    assert caplog.text.count("poll.overdue") == 1


@pytest.mark.parametrize("after_s", [0.0, 10.0])
async def test_a_poll_that_comes_while_the_queues_are_given_back_takes_them_anew(
    broker: FakeBroker, pull: MakePull, after_s: float
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    async with pull(batch=1) as consumer:
        await consumer.poll(1)
        await asyncio.sleep(900 + after_s)

        assert offsets(await consumer.poll(5)) == [1]
        await consumer.commit()  # what was in hand was done in time

    assert broker.offsets["g", QUEUE] == 2


async def test_assigned_queues_are_given_back_and_taken_again_as_well(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t", 2)
    async with pull(topics=None, consume_timeout_s=5.0) as consumer:
        consumer.assign([QUEUE])
        assert await consumer.poll(1) == []
        await asyncio.sleep(6)
        assert consumer.assignment == []
        broker.send("t", 0, b"a")

        assert offsets(await consumer.poll(1)) == [0]


async def test_a_stop_ends_a_consumer_that_rests(broker: FakeBroker, pull: MakePull) -> None:
    broker.create("t")
    async with pull(consume_timeout_s=5.0) as consumer:
        await consumer.poll(1)
        await asyncio.sleep(60)
        assert consumer.assignment == []
    assert now() == 61
