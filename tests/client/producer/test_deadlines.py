"""One timer for all parcels, and who waits for all of them."""

from __future__ import annotations

import asyncio

import pytest

from rmq.client.producer.pending import Deadlines, Parcel
from rmq.client.producer.routing import Choice
from rmq.wire import errors
from rmq.wire.batch.texts import pack_bodies

pytestmark = pytest.mark.virtual_time


def added(deadlines: Deadlines) -> Parcel:
    parcel = Parcel("orders", pack_bodies([b"x"]), None, choice=Choice(), ordering_key=None, born_at=0)
    parcel.future = asyncio.get_running_loop().create_future()
    deadlines.add(parcel)
    return parcel


async def test_each_parcel_ends_at_its_own_time() -> None:
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
    parcel = added(deadlines)
    waiting = asyncio.create_task(deadlines.all_settled())
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])

    parcel.give_up()
    deadlines.tidy()
    await deadlines.all_settled()

    assert waiting.cancelled()
