"""
Sends: cut, put back, settled once.

One timer for all sends, and who waits for all of them.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from rmq.client.producer.pending import Deadlines, PendingMessage, PendingSend
from rmq.client.producer.receipts import Part, Receipts
from rmq.client.producer.routing import Choice
from rmq.wire import errors
from rmq.wire.batch.texts import pack_bodies
from rmq.wire.deferral import Delay
from rmq.wire.model import DELAY, INDEX_KEYS, KEY, PROPERTIES, TAG, Message, gather

pytestmark = pytest.mark.virtual_time


def pending(*sizes: int) -> PendingSend:
    bodies = pack_bodies([bytes(size) for size in sizes])
    made = PendingSend("orders", bodies, None, choice=Choice(), key=None, born_at=0)
    made.future = asyncio.get_running_loop().create_future()
    return made


def of_messages(*messages: Message) -> PendingSend:
    bodies, extras = gather(messages)
    return PendingSend("orders", pack_bodies(bodies), messages, choice=Choice(), key=None, born_at=0, extras=extras)


def part(count: int, offset: int = 0) -> Part:
    return Part(count, offset, 0, 0, 0, True)


async def test_as_many_fit_as_places_and_bytes_allow() -> None:
    three = pending(10, 20, 30)

    assert [three.fit(count, 1000) for count in (0, 1, 2, 9)] == [(0, 0), (1, 10), (2, 30), (3, 60)]
    assert [three.fit(9, size)[0] for size in (9, 10, 29, 30, 59, 60)] == [0, 1, 1, 2, 2, 3]


async def test_only_messages_with_one_delay_fit_together() -> None:
    made = of_messages(*(Message("orders", b"x", delay_level=level) for level in (0, 0, 2, 2, 2, 1)))

    assert (made.delay, made.fit(9, 1000), made.fit(1, 1000)) == (None, (2, 2), (1, 1))
    first, second = made.cut(2, 2), made.cut(1, 1)
    assert (made.delay, made.fit(9, 1000)) == (Delay(level=2), (2, 2))
    made.put_back(second)
    assert (made.delay, made.fit(9, 1000), made.fit(9, 2)) == (Delay(level=2), (3, 3), (2, 2))
    made.put_back(first)
    assert (made.delay, made.fit(9, 1000)) == (None, (2, 2))


async def test_it_is_stored_when_its_last_piece_is_in_whatever_order() -> None:
    three = pending(1, 1, 1)
    first, second = three.cut(2, 2), three.cut(1, 1)
    assert three.future is not None

    three.piece_stored(second.which, part(1, 7), store_id=1)
    assert not three.future.done()
    three.piece_stored(first.which, part(2, 5), store_id=1)

    assert isinstance(three.future.result(), Receipts)
    assert [receipt.queue_offset for receipt in three.future.result()] == [5, 6, 7]


async def test_what_is_put_back_is_cut_again() -> None:
    three = pending(1, 2, 3)
    first, second = three.cut(1, 1), three.cut(1, 2)

    three.put_back(second)
    three.put_back(first)

    assert three.left == 3
    assert three.ahead(3, 6).lengths == struct.pack("<3I", 1, 2, 3)


async def test_what_is_ahead_are_the_bodies_that_were_not_cut() -> None:
    made = PendingSend("orders", pack_bodies([b"a", b"bb", b"ccc"]), None, choice=Choice(), key=None, born_at=0)
    made.cut(1, 1)

    ahead = made.ahead(2, 5)

    assert (ahead.count, ahead.size, ahead.lengths) == (2, 5, struct.pack("<2I", 2, 3))
    assert b"".join(ahead.pieces) == b"bbccc"


@pytest.mark.parametrize(
    ("more", "extras"),
    [({}, 0), ({"tag": "t"}, TAG), ({"key": "k"}, KEY), ({"index_keys": ("k",)}, INDEX_KEYS),
     ({"properties": {"n": "v"}}, PROPERTIES),
     ({"delay_level": 2}, DELAY), ({"delay_s": 0.0}, 0),
     ({"tag": "t", "delay_s": 5}, TAG | DELAY)],
)  # fmt: skip
async def test_a_send_knows_what_its_messages_have_besides_bodies(more: dict[str, Any], extras: int) -> None:
    messages = Message("orders", b"x"), Message("orders", b"x", **more)

    made = of_messages(*messages)
    alone = PendingMessage("orders", messages[1], Choice(), None, 0)

    assert (made.extras, alone.extras, pending(1).extras) == (extras, extras, 0)
    assert alone.is_plain is (extras == 0)


async def test_a_settled_send_keeps_no_bytes_and_changes_no_more() -> None:
    one = pending(1)
    piece = one.cut(1, 1)
    one.fail(errors.BadBatch("no"))

    one.fail(errors.DiskFull("no"))
    one.piece_stored(piece.which, part(1), store_id=1)
    one.put_back(piece)
    one.give_up()

    assert (one._bodies, one.messages) == (None, None)
    assert one.future is not None
    with pytest.raises(errors.BadBatch):
        one.future.result()


async def test_only_what_was_never_sent_is_certainly_not_stored() -> None:
    two = pending(1, 1)
    assert isinstance(two.overdue("late"), errors.RequestTimeout)
    first = two.cut(1, 1)
    assert isinstance(two.overdue("late"), errors.OutcomeUnknown)
    two.put_back(first)
    assert isinstance(two.overdue("late"), errors.RequestTimeout)
    first = two.cut(1, 1)
    two.piece_stored(first.which, part(1), store_id=1)
    assert str(two.overdue("late")) == "late: 1 of 2 messages for 'orders' are known to be stored"


async def test_an_error_that_ends_all_takes_the_place_of_being_late() -> None:
    two = pending(1, 1)
    fenced = errors.ProducerFenced("replaced")
    assert two.overdue("replaced", fenced) is fenced

    two.cut(1, 1)

    assert isinstance(two.overdue("replaced", fenced), errors.OutcomeUnknown)


def added(deadlines: Deadlines, now: float | None = None) -> PendingSend:
    pending = PendingSend("orders", pack_bodies([b"x"]), None, choice=Choice(), key=None, born_at=0)
    pending.future = asyncio.get_running_loop().create_future()
    deadlines.add(pending, now)
    return pending


async def test_each_send_ends_at_its_own_time() -> None:
    deadlines = Deadlines(30.0, lambda: ", at sea")
    first = added(deadlines)
    await asyncio.sleep(10)
    second = added(deadlines)

    await asyncio.sleep(19.999)
    assert not first.settled
    await asyncio.sleep(0.002)
    assert first.settled and not second.settled
    await asyncio.sleep(10)

    assert second.future is not None and first.future is not None
    with pytest.raises(errors.RequestTimeout, match="no answer within 30 s, at sea"):
        await second.future
    with pytest.raises(errors.RequestTimeout):
        await first.future


async def test_sends_of_one_call_run_out_of_time_together() -> None:
    deadlines = Deadlines(30.0, str)
    now = asyncio.get_running_loop().time()
    first = added(deadlines, now)
    await asyncio.sleep(1)  # a long list takes its time
    second = added(deadlines, now)

    await asyncio.sleep(29.001)

    assert first.settled and second.settled
    for pending in (first, second):
        assert pending.future is not None
        with pytest.raises(errors.RequestTimeout):
            await pending.future


async def test_waiting_for_all_does_not_wait_for_later_ones() -> None:
    deadlines = Deadlines(30.0, str)
    first, second = added(deadlines), added(deadlines)
    waiting = asyncio.create_task(deadlines.all_settled())
    await asyncio.sleep(1)
    third = added(deadlines)

    second.give_up()
    deadlines.tidy()
    await asyncio.sleep(1)
    assert not waiting.done()
    first.give_up()
    deadlines.tidy()
    await waiting

    assert not third.settled
    deadlines.fail_all("closed")
    assert third.future is not None
    with pytest.raises(errors.RequestTimeout, match="closed"):
        await third.future


async def test_a_waiter_that_was_cancelled_is_in_nobodys_way() -> None:
    deadlines = Deadlines(30.0, str)
    pending = added(deadlines)
    waiting = asyncio.create_task(deadlines.all_settled())
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])

    pending.give_up()
    deadlines.tidy()
    await deadlines.all_settled()

    assert waiting.cancelled()
