"""The blocking connection: one request, one answer, and clear sentences when there is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.engine.native.blocking import BlockingConnection
from rmq.wire.errors import BadFrame, ConnectionLost, Internal, RequestTimeout, ShuttingDown, TopicNotFound
from rmq.wire.protocol import frames
from rmq.wire.protocol.hello import Hello, hello_to_map
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from rigs.faulty_broker import STORE_ID, FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.create("orders", queues=2)
        yield running


def hang_up(answer: Any) -> Any:
    raise OSError


def test_the_hello_is_answered_and_requests_follow_it(broker: FakeBroker) -> None:
    with BlockingConnection(broker.address) as connection:
        answer = connection.request(Op.ROUTE, ops.Route("orders"))

    assert connection.hello.store_id == STORE_ID
    assert connection.hello.member.startswith("spark#")
    assert answer[0] == "orders"


def test_each_connection_has_a_session_of_its_own(broker: FakeBroker) -> None:
    with BlockingConnection(broker.address) as one, BlockingConnection(broker.address) as two:
        assert one.hello.member != two.hello.member


def test_an_answer_larger_than_the_receive_buffer_arrives_whole(broker: FakeBroker) -> None:
    broker.fail_next(Op.ROUTE, lambda answer: bytes(3 << 20))

    with BlockingConnection(broker.address) as connection:
        assert connection.request(Op.ROUTE, ops.Route("orders")) == bytes(3 << 20)


def test_a_request_may_be_sent_before_its_answer_is_needed(broker: FakeBroker) -> None:
    with BlockingConnection(broker.address) as connection:
        connection.send(Op.ROUTE, ops.Route("orders"))
        assert broker.wait_for_requests(Op.ROUTE, 1), "the broker works on it meanwhile"

        assert connection.receive()[0] == "orders"
        assert connection.request(Op.ROUTE, ops.Route("orders"))[0] == "orders"


def test_one_answer_is_awaited_at_a_time(broker: FakeBroker) -> None:
    with BlockingConnection(broker.address) as connection:
        with pytest.raises(AssertionError, match="nothing was sent"):
            connection.receive()
        connection.send(Op.ROUTE, ops.Route("orders"))

        with pytest.raises(AssertionError, match="was not received"):
            connection.send(Op.ROUTE, ops.Route("orders"))


def test_a_refusal_leaves_the_connection_usable(broker: FakeBroker) -> None:
    with BlockingConnection(broker.address) as connection:
        with pytest.raises(TopicNotFound, match="nothing"):
            connection.request(Op.ROUTE, ops.Route("nothing"))

        assert connection.request(Op.ROUTE, ops.Route("orders"))


def test_a_refused_hello_is_raised(broker: FakeBroker) -> None:
    def refuse(answer: Any) -> Any:
        raise Internal("no")

    broker.fail_next(Op.HELLO, refuse)

    with pytest.raises(Internal):
        BlockingConnection(broker.address)


def test_a_hello_that_makes_no_sense_is_told_with_the_address(broker: FakeBroker) -> None:
    broker.fail_next(Op.HELLO, lambda answer: {"proto": "one"})

    with pytest.raises(BadFrame, match=f"what listens at {broker.address} is not a broker"):
        BlockingConnection(broker.address)


def test_no_broker_is_told_with_the_address_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

    with pytest.raises(ConnectionLost, match=rf"no broker at {address} .*start one with `rmq-broker start`"):
        BlockingConnection(address)


def test_a_connection_that_ends_before_the_answer_is_lost(broker: FakeBroker) -> None:
    broker.fail_next(Op.ROUTE, hang_up)

    with BlockingConnection(broker.address) as connection:
        with pytest.raises(ConnectionLost, match=broker.address):
            connection.request(Op.ROUTE, ops.Route("orders"))
        with pytest.raises(ConnectionLost):
            connection.request(Op.ROUTE, ops.Route("orders"))


def test_silence_ends_with_a_timeout_that_names_the_request(broker: FakeBroker) -> None:
    release = threading.Event()
    broker.fail_next(Op.ROUTE, lambda answer: release.wait(30))

    try:
        with (
            BlockingConnection(broker.address, timeout_s=0.2) as connection,
            pytest.raises(RequestTimeout, match=rf"{broker.address} did not answer ROUTE within 0.2 s"),
        ):
            connection.request(Op.ROUTE, ops.Route("orders"))
    finally:
        release.set()


def scripted(*answers: bytes) -> tuple[str, threading.Thread]:
    """A peer that says these bytes, whatever it hears, and hangs up; the hello is answered as usual."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            for answer in answers:
                peer.recv(1 << 16)
                peer.sendall(answer)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"127.0.0.1:{listener.getsockname()[1]}", thread


def hello_frame(broker: FakeBroker) -> bytes:
    hello = Hello([1, 1], "spark", "1", bytes(16))
    return broker.frame(1, Op.HELLO, hello_to_map(hello))


def test_pushes_and_answers_to_others_are_passed_over(broker: FakeBroker) -> None:
    noise = frames.pack(frames.PUSH, 0, 99, []) + frames.pack(frames.REPLY, 77, 0, ["not yours"])
    address, thread = scripted(hello_frame(broker), noise + frames.pack(frames.REPLY, 2, 0, ["yours"]))

    with BlockingConnection(address) as connection:
        assert connection.request(Op.LIST_TOPICS, []) == ["yours"]
    thread.join(10)


def test_the_reason_why_the_broker_closes_is_raised(broker: FakeBroker) -> None:
    closing = frames.pack(frames.PUSH, 0, ops.Push.CLOSING, [ShuttingDown.code, "the broker is stopping"])
    address, thread = scripted(hello_frame(broker), closing)

    with BlockingConnection(address) as connection, pytest.raises(ShuttingDown, match="the broker is stopping"):
        connection.request(Op.LIST_TOPICS, [])
    thread.join(10)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x01\xc1"])
def test_another_kind_of_server_is_told_apart_at_once(answer: bytes) -> None:
    address, thread = scripted(answer)

    with pytest.raises(Exception, match="frame"):
        BlockingConnection(address)
    thread.join(10)
