"""
The connection: correlation, reconnection, silence, and what a lease holder may believe.

The back-off: fast at first, never a second, never half the grace.

When a connection is not made again, and who is told.

The first exchange.

Pings on a link that is not there; how they end a real one is tested with the connection.

Refusals as exceptions and sentences.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from rmq.engine.native import connection
from rmq.engine.native.connection import (
    Connection,
    KeepAlive,
    describe,
    farewell,
    greeted,
    greeting,
    lost,
    refusal,
    unreachable,
)
from rmq.engine.native.link import Link
from rmq.wire import errors
from rmq.wire.address import Address
from rmq.wire.protocol import hello
from rmq.wire.protocol.frames import PUSH, REPLY, REQUEST, array_header, unpack
from rmq.wire.protocol.hello import Hello, HelloReply, Limits, ProducerHello, hello_from_map, hello_to_map
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push

from ...client.fake_broker import FakeBroker
from ...client.producing import until


def time() -> float:
    return asyncio.get_running_loop().time()


async def opened(broker: FakeBroker, **options: Any) -> Connection:
    connection = Connection(broker.address, now=asyncio.get_running_loop().time, **options)
    await connection.open(timeout_s=5)
    return connection


@pytest.mark.virtual_time
async def test_the_greeting_names_the_member_and_its_limits(broker: FakeBroker) -> None:
    connection = await opened(broker, client="me")

    assert connection.connected
    assert connection.member == f"me#{connection.session.hex()[:8]}"
    assert connection.hello is not None
    assert connection.hello.limits == broker.limits
    await connection.close()


@pytest.mark.virtual_time
def test_a_member_in_a_room_tells_it_by_its_name() -> None:
    connection = Connection("127.0.0.1:1", client="host@7", zone="fra-1")

    assert connection.member == f"fra-1/host@7#{connection.session.hex()[:8]}"


@pytest.mark.virtual_time
async def test_a_request_gets_its_own_answer_among_many(broker: FakeBroker) -> None:
    connection = await opened(broker)

    replies = await asyncio.gather(*(connection.request(Op.ROUTE, ops.Route(f"t{i}", True)) for i in range(50)))

    assert [reply[0] for reply in replies] == [f"t{i}" for i in range(50)]
    await connection.close()


@pytest.mark.virtual_time
async def test_a_refusal_is_raised_by_its_class(broker: FakeBroker) -> None:
    connection = await opened(broker)

    with pytest.raises(errors.TopicNotFound, match="there is no topic 'x'"):
        await connection.request(Op.ROUTE, ops.Route("x"))
    assert connection.connected
    await connection.close()


@pytest.mark.virtual_time
async def test_no_answer_in_time_leaves_the_connection_and_a_late_one_is_ignored(broker: FakeBroker) -> None:
    connection = await opened(broker)
    broker.holding = True

    with pytest.raises(errors.RequestTimeout, match=r"no answer .* to PING within 3 s"):
        await connection.request(Op.PING, [])
    broker.release()

    assert await connection.request(Op.LIST_TOPICS, []) == []
    await connection.close()


@pytest.mark.virtual_time
async def test_a_cancelled_request_leaves_nothing_and_its_answer_is_ignored(broker: FakeBroker) -> None:
    connection = await opened(broker)
    broker.holding = True
    task = asyncio.create_task(connection.request(Op.PING, []))
    await asyncio.sleep(0.1)

    task.cancel()
    await asyncio.wait([task])
    broker.release()

    assert task.cancelled()
    assert not connection._waiting and not connection._futures
    assert await connection.request(Op.LIST_TOPICS, []) == []
    await connection.close()


@pytest.mark.virtual_time
async def test_while_disconnected_a_request_fails_at_once(broker: FakeBroker) -> None:
    connection = await opened(broker)
    await broker.stop()
    await until(lambda: not connection.connected)
    before = time()

    with pytest.raises(errors.ConnectionLost, match="not connected to"):
        await connection.request(Op.PING, [])
    with pytest.raises(errors.ConnectionLost):
        connection.submit(Op.PING, (array_header(0),), lambda status, payload: None)
    with pytest.raises(errors.ConnectionLost):
        await connection.drain()

    assert time() == before
    await connection.close()
    await broker.start()


@pytest.mark.virtual_time
async def test_a_loss_fails_the_waiting_requests_and_calls_no_submitted_callback(broker: FakeBroker) -> None:
    lost: list[Exception] = []
    answers: list[int] = []
    connection = await opened(broker, on_lost=lost.append)
    broker.holding = True
    task = asyncio.create_task(connection.request(Op.PING, []))
    connection.submit(Op.PING, (array_header(0),), lambda status, payload: answers.append(status))
    await asyncio.sleep(0.1)

    broker.drop_all()

    with pytest.raises(errors.ConnectionLost):
        await task
    assert len(lost) == 1 and isinstance(lost[0], errors.ConnectionLost)
    assert answers == []
    await connection.close()


@pytest.mark.virtual_time
async def test_the_session_is_the_same_over_reconnections(broker: FakeBroker) -> None:
    greetings: list[HelloReply] = []
    connection = await opened(broker, on_connected=greetings.append)
    await asyncio.sleep(2)

    broker.drop_all()
    await until(lambda: len(greetings) == 2)

    assert {hello.session for hello in broker.hellos} == {connection.session}
    await connection.close()


@pytest.mark.virtual_time
async def test_on_connected_runs_before_any_waiter_wakes(broker: FakeBroker) -> None:
    order: list[str] = []
    connection = Connection(broker.address, on_connected=lambda hello: order.append("on_connected"))
    connection.start()

    async def waiter() -> None:
        await connection.wait_connected()
        order.append("waiter")

    await asyncio.gather(waiter(), waiter())

    assert order == ["on_connected", "waiter", "waiter"]
    await connection.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("chance", [0.0, 0.999])
async def test_a_broker_started_after_its_client_is_joined_within_a_second(chance: float) -> None:
    broker = FakeBroker()
    await broker.start()
    await broker.stop()
    connection = Connection(broker.address, chance=lambda: chance)
    opening = asyncio.create_task(connection.open())
    await asyncio.sleep(123.4)
    started = time()

    await broker.start()
    await opening

    assert time() - started < 1.0
    await connection.close()
    await broker.stop()


@pytest.mark.virtual_time
async def test_the_pause_between_attempts_stays_below_half_the_grace(broker: FakeBroker) -> None:
    broker.limits = broker.limits._replace(grace_s=1.0)
    connection = await opened(broker, chance=lambda: 0.999)
    broker.refuse_hello = errors.TooManyConnections("full")
    broker.drop_all()

    await asyncio.sleep(20)

    gaps = [b - a for a, b in zip(broker.hello_times[1:], broker.hello_times[2:], strict=False)]
    assert max(gaps) < 0.5
    assert gaps[0] <= 0.11, "the first retries are fast"
    broker.refuse_hello = None
    await connection.wait_connected()
    await connection.close()


@pytest.mark.virtual_time
async def test_without_a_broker_opening_says_how_to_start_one() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    connection = Connection(address)

    with pytest.raises(errors.ConnectionLost, match=f"no broker at {address}: start one with `rmq-broker start`"):
        await connection.open(timeout_s=2)

    assert time() == pytest.approx(2)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.virtual_time
async def test_a_broker_that_cannot_speak_with_us_is_not_asked_for_ever(broker: FakeBroker) -> None:
    broker.refuse_hello = errors.ProtocolUnsupported("this broker speaks 7")
    connection = Connection(broker.address)

    with pytest.raises(errors.ProtocolUnsupported, match="speaks 7"):
        await connection.open()
    with pytest.raises(errors.ProtocolUnsupported):
        await connection.wait_connected()


@pytest.mark.virtual_time
async def test_one_that_took_us_before_is_asked_for_ever(broker: FakeBroker) -> None:
    connection = await opened(broker)
    broker.refuse_hello = errors.ProtocolUnsupported("upgrading")
    broker.drop_all()
    await asyncio.sleep(60)
    broker.refuse_hello = None

    await connection.wait_connected()

    assert connection.connected
    await connection.close()


@pytest.mark.virtual_time
async def test_three_unanswered_pings_in_silence_end_the_connection(broker: FakeBroker) -> None:
    lost: list[tuple[float, str]] = []
    connection = await opened(broker, keep_alive=True, on_lost=lambda error: lost.append((time(), str(error))))
    await asyncio.sleep(9.5)
    assert [round(at) for at, op, _ in broker.requests] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    broker.answering = False

    await until(lambda: bool(lost))

    at, text = lost[0]
    assert at == pytest.approx(13, abs=0.01), "pings at 10, 11 and 12 had no answer"
    assert "silent for 3 s" in text
    assert len(broker.requests) == 12
    broker.answering = True
    await connection.wait_connected()
    await connection.close()


@pytest.mark.virtual_time
async def test_a_slow_answer_is_no_silence_and_pings_do_not_pile_up(broker: FakeBroker) -> None:
    connection = await opened(broker, keep_alive=True)
    broker.answering = False
    for _ in range(20):
        await asyncio.sleep(1)
        broker.push(99, [])  # bytes come, answers do not

    assert len(broker.hellos) == 1
    assert len(broker.requests) == 3
    await connection.close()


@pytest.mark.virtual_time
async def test_without_keep_alive_nothing_is_sent(broker: FakeBroker) -> None:
    connection = await opened(broker)

    await asyncio.sleep(60)

    assert broker.requests == []
    await connection.close()


@pytest.mark.virtual_time
async def test_belief_counts_from_when_the_newest_answered_request_was_sent(broker: FakeBroker) -> None:
    connection = await opened(broker)
    assert connection.answered_sent_at == 0.0
    await asyncio.sleep(10)
    broker.holding = True
    connection.submit(Op.PING, (array_header(0),), lambda status, payload: None)
    await asyncio.sleep(1)
    connection.submit(Op.PING, (array_header(0),), lambda status, payload: None)
    await asyncio.sleep(1)
    assert connection.answered_sent_at == 0.0, "sent, not answered"

    first, second = broker.held
    broker.holding = False
    second()
    await asyncio.sleep(5)
    assert connection.answered_sent_at == 11.0, "the time of sending, not of the answer"
    first()
    await asyncio.sleep(1)
    assert connection.answered_sent_at == 11.0, "an older one changes nothing"
    await connection.close()


@pytest.mark.virtual_time
async def test_before_the_first_answer_nothing_is_believed() -> None:
    assert Connection("127.0.0.1:1").answered_sent_at == float("-inf")


@pytest.mark.virtual_time
async def test_pushes_are_handed_on_and_unknown_ones_too(broker: FakeBroker) -> None:
    pushes: list[tuple[int, list[Any]]] = []
    connection = await opened(broker, on_push=lambda push, payload: pushes.append((push, payload)))

    broker.push(Push.LEASE_FREE, ["g", "t", 0])
    broker.push(77, [])
    await connection.request(Op.PING, [])

    assert pushes == [(Push.LEASE_FREE, ["g", "t", 0]), (77, [])]
    await connection.close()


@pytest.mark.virtual_time
async def test_the_reason_of_a_farewell_is_told(broker: FakeBroker) -> None:
    lost: list[Exception] = []
    connection = await opened(broker, on_lost=lost.append)

    broker.push(Push.CLOSING, [errors.SlowReader.code, "you read nothing"])
    await connection.request(Op.PING, [])
    broker.drop_all()
    await until(lambda: bool(lost))

    assert "SLOW_READER: you read nothing" in str(lost[0])
    await connection.close()


@pytest.mark.virtual_time
async def test_a_callback_that_raises_does_not_end_the_connection(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(*_args: Any) -> None:
        raise ValueError("a defect of the caller's")

    connection = await opened(broker, on_push=bad, on_connected=bad)
    broker.push(Push.LEASE_FREE, ["g", "t", 0])

    assert await connection.request(Op.PING, []) == []
    assert "a defect of the caller's" in caplog.text
    await connection.close()


@pytest.mark.virtual_time
async def test_garbage_ends_the_connection_and_another_is_made(broker: FakeBroker) -> None:
    connection = await opened(broker)

    next(iter(broker.connections)).send(b"\xff\xff\xff\xff garbage")
    await until(lambda: len(broker.hellos) == 2)

    await connection.wait_connected()

    assert await connection.request(Op.PING, []) == []
    await connection.close()


@pytest.mark.virtual_time
async def test_what_was_written_before_closing_still_leaves(broker: FakeBroker) -> None:
    connection = await opened(broker)

    connection.submit(Op.PING, (array_header(0),), lambda status, payload: None)
    await connection.close()

    assert [op for _, op, _ in broker.requests] == [Op.PING]


@pytest.mark.virtual_time
async def test_a_defect_of_the_owner_ends_the_connection_with_a_reason(broker: FakeBroker) -> None:
    def bad() -> ProducerHello:
        raise ValueError("a defect")

    connection = Connection(broker.address, producer_hello=bad)

    with pytest.raises(errors.ConnectionLost, match="a defect"):
        await connection.open()


@pytest.mark.virtual_time
async def test_a_closed_connection_is_not_made_again(broker: FakeBroker) -> None:
    connection = await opened(broker)
    await connection.close()
    await connection.close()

    await asyncio.sleep(60)

    assert len(broker.hellos) == 1
    with pytest.raises(errors.ConnectionLost, match="was closed"):
        await connection.wait_connected()


@pytest.mark.virtual_time
async def test_cancelling_open_at_any_step_leaves_no_task(broker: FakeBroker) -> None:
    for steps in range(20):
        connection = Connection(broker.address)
        task = asyncio.create_task(connection.open())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await connection.close()

        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual_time
async def test_a_request_over_the_frame_limit_is_refused_here(broker: FakeBroker) -> None:
    connection = await opened(broker)

    with pytest.raises(errors.FrameTooLarge, match="ask for less"):
        await connection.request(Op.PING, [bytes(17 << 20)])

    assert len(broker.hellos) == 1
    await connection.close()


@pytest.mark.virtual_time
async def test_a_slow_reader_pauses_the_writer_and_wakes_it(broker: FakeBroker) -> None:
    woken: list[float] = []
    connection = await opened(broker, on_writable=lambda: woken.append(time()))
    server = next(iter(broker.connections))
    server.transport.pause_reading()
    for _ in range(16):
        connection.submit(Op.PING, (array_header(1), bytes([0xC6, 0, 16, 0, 0]), bytes(1 << 20)), lambda s, p: None)
    assert not connection.writable
    drained = asyncio.create_task(connection.drain())
    await asyncio.sleep(1)
    assert not drained.done()

    server.transport.resume_reading()
    await drained

    assert connection.writable and woken
    await connection.close()


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
@pytest.mark.parametrize("attempt", [0, 1, 2, 5, 100, 10**6])
def test_a_pause_lies_in_the_upper_half_of_its_step(attempt: int, chance: float) -> None:
    step = min(0.8, 0.05 * 2 ** min(attempt, 10))

    assert step / 2 <= connection.pause(attempt, longest_s=connection.cap(5.0), chance=chance) <= step


def test_the_first_retries_are_fast() -> None:
    assert sum(connection.pause(i, longest_s=connection.cap(None), chance=1.0) for i in range(4)) <= 0.75


@pytest.mark.parametrize("grace_s", [0.1, 1.0, 5.0, 60.0])
def test_no_pause_reaches_half_the_grace_or_a_second(grace_s: float) -> None:
    longest = connection.pause(50, longest_s=connection.cap(grace_s), chance=1.0)

    assert longest < grace_s / 2
    assert longest < 1.0


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
async def test_one_that_was_never_taken_is_told_and_ends(broker: FakeBroker) -> None:
    told: list[Exception] = []
    broker.refuse_hello = errors.ProtocolUnsupported("this broker speaks 7")
    connection = Connection(broker.address, on_ended=told.append)

    with pytest.raises(errors.ProtocolUnsupported):
        await connection.open(timeout_s=5)

    assert [type(error) for error in told] == [errors.ProtocolUnsupported]


@pytest.mark.virtual_time
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


@pytest.mark.virtual_time
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


REPLY_MAP = hello_to_map(HelloReply(1, "b", "c", 7, 1, "me#1", Limits(1, 2, 3, 5.0, 1.0)))


def test_the_greeting_is_a_map_with_who_we_are() -> None:
    producer = ProducerHello(5, 0, 9)
    kind, request_id, op, payload = unpack(greeting(3, "me", b"s" * 16, producer)[4:])
    hello = hello_from_map(Hello, payload)

    assert (kind, request_id, op) == (REQUEST, 3, Op.HELLO)
    assert (hello.client, hello.session, hello.producer, hello.proto) == ("me", b"s" * 16, producer, [1, 1])


def as_received(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "limits": list(payload["limits"])}


def test_the_answer_to_it_is_the_brokers_greeting() -> None:
    hello = greeted(3, [REPLY, 3, 0, as_received(REPLY_MAP)])

    assert hello is not None
    assert (hello.member, hello.limits.grace_s) == ("me#1", 5.0)


@pytest.mark.parametrize("parts", [[REPLY, 2, 0, []], [PUSH, 0, 99, []]])
def test_other_frames_are_not(parts: list[Any]) -> None:
    assert greeted(3, parts) is None


def test_a_refusal_or_a_farewell_is_raised() -> None:
    with pytest.raises(errors.ProtocolUnsupported):
        greeted(3, [REPLY, 3, errors.ProtocolUnsupported.code, ["no"]])
    with pytest.raises(errors.TooManyConnections):
        greeted(3, [PUSH, 0, Push.CLOSING, [errors.TooManyConnections.code, "full"]])
    with pytest.raises(errors.BadRequest):
        greeted(3, [REPLY, 3, 0, {"proto": "x"}])


def test_a_broker_of_another_protocol_is_refused_before_the_rest_is_read() -> None:
    text = "this client speaks protocol 1, the broker 2: run the same version of rmq on both sides"
    with pytest.raises(errors.ProtocolUnsupported, match=text):
        greeted(3, [REPLY, 3, 0, {"proto": 2, "limits": "of another shape"}])


@pytest.mark.virtual_time
async def test_a_stopped_keep_alive_pings_no_more() -> None:
    sent: list[Callable[[int, Any], None]] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)
    pings = KeepAlive(link, 1.0, sent.append)
    await asyncio.sleep(1.5)

    pings.stop()
    await asyncio.sleep(10)

    assert len(sent) == 1


@pytest.mark.virtual_time
async def test_an_answer_makes_room_for_the_next_ping() -> None:
    sent: list[Callable[[int, Any], None]] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)
    KeepAlive(link, 0.5, sent.append)
    for _ in range(10):
        await asyncio.sleep(0.5001)
        link.heard = True
        sent[-1](0, [])

    assert len(sent) == 10


@pytest.mark.virtual_time
@pytest.mark.parametrize("traffic", [False, True])
async def test_a_ping_leaves_every_second_whatever_else_travels(traffic: bool) -> None:
    loop, times = asyncio.get_running_loop(), []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)

    def ping(on_reply: Callable[[int, Any], None]) -> None:
        times.append(round(loop.time(), 6))
        link.heard = True
        on_reply(0, [])

    pings = KeepAlive(link, 1.0, ping)
    for _ in range(55):
        await asyncio.sleep(0.1)
        link.heard = link.heard or traffic
    pings.stop()

    assert times == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("until", "pings"), [(1 - 1e-6, 0), (1.0, 1), (1 + 1e-6, 1), (2 - 1e-6, 1), (2 + 1e-6, 2)])
async def test_the_nth_ping_leaves_at_exactly_n_seconds(until: float, pings: int) -> None:
    sent: list[float] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: None)

    def ping(on_reply: Callable[[int, Any], None]) -> None:
        sent.append(asyncio.get_running_loop().time())
        link.heard = True
        on_reply(0, [])

    keep_alive = KeepAlive(link, 1.0, ping)
    await asyncio.sleep(until)
    keep_alive.stop()

    assert sent == [1.0, 2.0][:pings]


HERE = Address("127.0.0.1", 10911)


def test_a_refusal_is_raised_by_its_class_with_the_brokers_sentence() -> None:
    error = refusal(errors.DiskFull.code, ["256 MiB are needed"])

    assert isinstance(error, errors.DiskFull)
    assert describe(error) == "DISK_FULL: 256 MiB are needed"


@pytest.mark.parametrize("payload", [None, [], [7], "text", {}])
def test_a_refusal_without_a_sentence_has_its_name(payload: Any) -> None:
    assert str(refusal(errors.DiskFull.code, payload)) == "the broker refused with DISK_FULL"


def test_a_code_that_is_not_known_is_a_plain_refusal() -> None:
    error = refusal(999, ["from the future"])

    assert type(error) is errors.Refused
    assert error.code == 999


@pytest.mark.parametrize("payload", [None, [], [7], ["x", "y"]])
def test_a_farewell_that_cannot_be_read_is_one_all_the_same(payload: Any) -> None:
    assert "cannot be read" in str(farewell(payload))


def test_a_lost_connection_keeps_its_cause() -> None:
    cause = ConnectionResetError("reset by peer")
    error = lost(HERE, cause)

    assert str(error) == "the connection to 127.0.0.1:10911 ended: reset by peer"
    assert error.__cause__ is cause
    assert lost(HERE, error) is error


@pytest.mark.parametrize(
    ("error", "reached", "text"),
    [
        (ConnectionRefusedError(), False, f"no broker at {HERE}: start one with `rmq-broker start`"),
        (socket.gaierror(-2, "?"), False, f"no broker at {HERE}: no host has this name; check the address"),
        (None, False, f"no broker at {HERE}: nothing answers there; check the address and the network"),
        (TimeoutError(), False, f"no broker at {HERE}: nothing answers there; check the address and the network"),
        (
            None,
            True,
            f"what listens at {HERE} accepts the connection and does not greet: it is not an rmq broker, or it",
        ),
        (ConnectionResetError(), True, f"what listens at {HERE} accepts the connection and does not greet: "),
        (
            errors.FrameTooLarge("HTTP"),
            True,
            f"what listens at {HERE} is not an rmq broker: check the address and its port",
        ),
        (errors.BadFrame("SSH-"), True, f"what listens at {HERE} is not an rmq broker: check the address and its port"),
        (
            errors.TooManyConnections("1000 are connected"),
            True,
            f"the broker at {HERE} cannot be used: TOO_MANY_CONNECTIONS: 1000 are connected",
        ),
    ],
)
def test_what_keeps_from_a_broker_is_told_apart(error: Exception | None, reached: bool, text: str) -> None:
    assert str(unreachable(HERE, error, reached=reached)).startswith(text)
