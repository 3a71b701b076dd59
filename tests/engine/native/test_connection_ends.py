"""When a connection is not made again, and who is told."""

from __future__ import annotations

import asyncio

import pytest

from rmq.engine.native.connection import Connection
from rmq.wire import errors
from rmq.wire.protocol import hello
from rmq.wire.protocol.ops.core import Op

from ...client.fake_broker import FakeBroker
from ...client.producing import until

pytestmark = pytest.mark.virtual_time


async def test_a_client_that_is_fenced_does_not_dial_again_and_is_told_once(broker: FakeBroker) -> None:
    told: list[Exception] = []
    connection = Connection(
        broker.address, on_ended=told.append, producer_hello=lambda: hello.ProducerHello(7, 1, 1), chance=lambda: 0.0
    )
    await connection.open(timeout_s=5)
    broker.refuse_hello = errors.ProducerFenced("replaced by 2")
    broker.drop_all()

    await until(lambda: bool(told))
    await asyncio.sleep(60)

    assert (len(told), len(broker.hellos)) == (1, 2)
    with pytest.raises(errors.ProducerFenced):
        await connection.wait_connected()
    await connection.close()


async def test_one_that_was_never_taken_is_told_and_ends(broker: FakeBroker) -> None:
    told: list[Exception] = []
    broker.refuse_hello = errors.ProtocolUnsupported("this broker speaks 7")
    connection = Connection(broker.address, on_ended=told.append)

    with pytest.raises(errors.ProtocolUnsupported):
        await connection.open(timeout_s=5)

    assert [type(error) for error in told] == [errors.ProtocolUnsupported]


async def test_one_that_gives_up_ends_at_once_and_fails_what_is_asked(broker: FakeBroker) -> None:
    connection = Connection(broker.address)
    await connection.open(timeout_s=5)
    broker.holding = True
    asking = asyncio.create_task(connection.request(Op.PING, []))
    await asyncio.sleep(0.1)

    connection.give_up(errors.ProducerFenced("replaced"))

    with pytest.raises(errors.ConnectionLost, match="replaced"):
        await asking
    with pytest.raises(errors.ProducerFenced):
        await connection.wait_connected()
    await asyncio.sleep(60)
    assert len(broker.hellos) == 1
    await connection.close()


async def test_a_greeting_that_comes_while_it_is_being_closed_opens_nothing(broker: FakeBroker) -> None:
    closing: list[asyncio.Task[None]] = []
    connected: list[hello.HelloReply] = []
    connection = Connection(broker.address, on_connected=connected.append)
    # The close begins, and the greeting is read, before the dialling task learns that it was cancelled.
    broker.on_hello = lambda: closing.append(asyncio.create_task(connection.close()))

    connection.start()
    await until(lambda: bool(closing))
    await closing[0]

    assert not connected
    assert not connection.connected
    await until(lambda: not broker.connections)
