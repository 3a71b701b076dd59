"""Frames in, answers out: what comes in, in which pieces, and what is wrong with it."""

from __future__ import annotations

import os
import tracemalloc
from typing import Any

import pytest

from rmq.wire.errors import (
    BadFrame,
    FrameTooLarge,
    HelloRequired,
    Internal,
    SessionReplaced,
    TooManyConnections,
    TooManyInFlight,
    UnknownOp,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, Push

from ..fakes import BROKEN, COSTLY, ECHO, LATER, FakeService, Peer, Turns, ok, request


def closing(error: type[Any], text: str) -> list[Any]:
    return [frames.PUSH, 0, Push.CLOSING, [error.code, text]]


def refused(request_id: int, error: type[Any], text: str) -> list[Any]:
    return [frames.REPLY, request_id, error.code, [text]]


# ---- pieces


def test_requests_are_answered_wherever_the_bytes_are_cut() -> None:
    wanted = [[0, "a"], [1, b"x" * 40], [2, None]]
    data = b"".join(request(i, ECHO, payload) for i, payload in enumerate(wanted))

    for k in range(len(data) + 1):
        peer = Peer(FakeService())
        peer.send(data[:k])
        peer.send(data[k:])

        assert peer.answers() == [ok(i, payload) for i, payload in enumerate(wanted)], k


def test_requests_that_come_byte_by_byte_are_answered() -> None:
    peer = Peer(FakeService())

    for byte in request(1, ECHO, ["a"]) + request(2, ECHO, ["b"]):
        peer.send(bytes((byte,)))

    assert peer.answers() == [ok(1, ["a"]), ok(2, ["b"])]


def test_connections_that_share_the_buffer_do_not_mix_their_unfinished_frames() -> None:
    service = FakeService()
    one, two = Peer(service), Peer(service)
    first, second = request(1, ECHO, [b"1" * 50]), request(2, ECHO, [b"2" * 50])

    for k in range(1, len(first)):
        one.send(first[:k])
        two.send(second[:k])
        one.send(first[k:])
        two.send(second[k:])

        assert (one.answers(), two.answers()) == ([ok(1, [b"1" * 50])], [ok(2, [b"2" * 50])]), k


def test_a_frame_larger_than_the_buffer_is_served() -> None:
    peer = Peer(FakeService(buffer=1 << 10))

    peer.send(request(1, ECHO, [b"x" * 5000]) + request(2, ECHO, ["behind"]))

    assert peer.answers() == [ok(1, [b"x" * 5000]), ok(2, ["behind"])]


# ---- what is wrong


def test_a_frame_over_the_limit_is_answered_with_the_reason_and_closes() -> None:
    peer = Peer(FakeService())

    peer.send(frames.LENGTH.pack(frames.MAX_FRAME + 1))

    text = f"a frame of {frames.MAX_FRAME + 1} bytes is over the limit of {frames.MAX_FRAME}"
    assert peer.answers() == [closing(FrameTooLarge, text)]
    assert peer.transport.ended


def test_before_the_hello_only_small_frames_are_taken() -> None:
    peer = Peer(FakeService(), greet=False)

    peer.send(frames.LENGTH.pack(frames.MAX_HELLO_FRAME + 1))

    ((_, _, push, (code, _)),) = peer.answers()
    assert (push, code) == (Push.CLOSING, FrameTooLarge.code)
    assert peer.transport.ended


@pytest.mark.parametrize(
    "content", [b"\xc1", b"\x93\x00\x01\x02", b"\x80", b"\x94\xa1a\x01\x02\x90", b"", b"GET / HTTP/1.1"]
)
def test_bytes_that_are_no_frame_close_with_the_reason(content: bytes) -> None:
    peer = Peer(FakeService())

    peer.send(frames.LENGTH.pack(len(content)) + content)

    ((_, _, push, (code, _)),) = peer.answers()
    assert (push, code) == (Push.CLOSING, BadFrame.code)
    assert peer.transport.ended


def test_random_bytes_never_raise_and_never_keep_a_connection_busy() -> None:
    service = FakeService()
    for _ in range(200):
        peer = Peer(service)
        peer.send(os.urandom(300))
        peer.answers()
        peer.transport.abort()

    assert (service.open, service.budget.used) == ([], 0)


def test_a_frame_that_is_no_request_closes() -> None:
    peer = Peer(FakeService())

    peer.send(frames.pack(frames.REPLY, 1, 0, []))

    assert peer.answers() == [closing(BadFrame, "a client sends requests only, not frames of kind 1")]


def test_frames_behind_a_fatal_one_are_not_served() -> None:
    service = FakeService()
    peer = Peer(service)

    peer.send(frames.pack(frames.PUSH, 1, 0, []) + request(2, ECHO, ["late"]))

    assert len(peer.answers()) == 1
    assert service.served == []


def test_an_unknown_operation_is_refused_and_the_connection_goes_on() -> None:
    peer = Peer(FakeService())

    peer.send(request(1, 99, []) + request(2, -5, []) + request(3, ECHO, ["on"]))

    assert peer.answers() == [
        refused(1, UnknownOp, "operation 99 is unknown to this broker"),
        refused(2, UnknownOp, "operation -5 is unknown to this broker"),
        ok(3, ["on"]),
    ]
    assert peer.connection.in_flight == 0


def test_a_request_before_the_hello_is_answered_and_closes() -> None:
    peer = Peer(FakeService(), greet=False)

    peer.send(request(7, ECHO, []))

    assert peer.answers() == [refused(7, HelloRequired, "the first frame must be a hello")]
    assert peer.transport.ended


def test_a_defect_in_a_handler_stays_in_its_frame(logs: list[dict[str, Any]]) -> None:
    peer = Peer(FakeService())

    peer.send(request(1, ECHO, ["a"]) + request(2, BROKEN, []) + request(3, ECHO, ["b"]))

    before, broken, after = peer.answers()
    assert (before, after) == (ok(1, ["a"]), ok(3, ["b"]))
    assert broken[:3] == [frames.REPLY, 2, Internal.code]
    (logged,) = [entry for entry in logs if entry["event"] == "request.failed"]
    assert logged["log_id"] in broken[3][0]
    assert isinstance(logged["exc_info"], ZeroDivisionError)
    assert peer.connection.in_flight == 0


def test_an_answer_that_cannot_be_packed_is_a_defect_of_its_frame_only() -> None:
    service = FakeService()
    service.handlers[60] = lambda connection, request_id, payload: object()
    peer = Peer(service)

    peer.send(request(1, 60, []) + request(2, ECHO, ["on"]))

    broken, after = peer.answers()
    assert broken[:3] == [frames.REPLY, 1, Internal.code]
    assert after == ok(2, ["on"])
    assert peer.connection.in_flight == 0


def test_more_unanswered_requests_than_allowed_are_refused_until_one_is_answered() -> None:
    service = FakeService()
    service.max_in_flight = 3
    peer = Peer(service)

    peer.send(b"".join(request(i, LATER, []) for i in range(5)))

    text = "more than 3 requests of this connection are unanswered"
    assert peer.answers() == [refused(3, TooManyInFlight, text), refused(4, TooManyInFlight, text)]
    connection, request_id = service.later[0]
    connection.reply(request_id, "done")
    peer.send(request(5, LATER, []))
    assert peer.answers() == [ok(0, "done")]
    assert peer.connection.in_flight == 3


def test_a_connection_too_many_is_told_so() -> None:
    service = FakeService()
    service.refusal = TooManyConnections("enough")

    peer = Peer(service, greet=False)

    assert peer.answers() == [closing(TooManyConnections, "enough")]
    assert peer.transport.ended
    assert service.open == []


def test_only_the_first_reason_to_close_is_told() -> None:
    peer = Peer(FakeService())

    peer.connection.fail(SessionReplaced("first"))
    peer.connection.fail(SessionReplaced("second"))

    assert peer.answers() == [closing(SessionReplaced, "first")]


# ---- fairness


def test_work_beyond_2_ms_goes_on_in_the_next_turn_in_order() -> None:
    service = FakeService()
    peer = Peer(service)

    peer.send(b"".join(request(i, COSTLY, [i]) for i in range(8)))

    assert service.served == [[0], [1], [2]]  # the third began within the 2 ms
    assert not peer.transport.reading
    peer.transport.incoming += request(8, ECHO, [8])
    peer.turns.turn()
    assert service.served == [[i] for i in range(6)]
    assert not peer.transport.reading
    assert peer.answers() == [ok(i, [i]) for i in range(9)]
    assert service.served == [[i] for i in range(9)]
    assert peer.transport.reading
    assert service.budget.used == 0


def test_other_connections_are_served_between_the_pieces_of_a_long_run() -> None:
    service, turns = FakeService(), Turns()
    long, short = Peer(service, turns), Peer(service, turns)

    long.send(b"".join(request(i, COSTLY, ["long"]) for i in range(9)))
    short.send(request(1, ECHO, ["short"]))
    long.answers()

    assert service.served.index(["short"]) == 3


def test_a_run_that_waits_for_its_turn_survives_the_next_use_of_the_shared_buffer() -> None:
    service, turns = FakeService(), Turns()
    one, two = Peer(service, turns), Peer(service, turns)

    one.send(b"".join(request(i, COSTLY, [b"1" * 100]) for i in range(6)))
    two.send(request(1, ECHO, [b"2" * 1000]))

    assert [answer[3] for answer in one.answers()] == [[b"1" * 100]] * 6


def test_a_flooder_gets_one_full_read_a_turn() -> None:
    service = FakeService()
    peer = Peer(service)
    frame = request(1, ECHO, [b"x" * 1000])
    peer.transport.incoming = frame * (10 * len(service.shared_buffer) // len(frame))

    for _ in range(9):
        before, callbacks = len(peer.transport.incoming), peer.transport.callbacks
        peer.transport.deliver()
        assert not peer.transport.reading
        assert before - len(peer.transport.incoming) <= len(service.shared_buffer) + len(frame)
        assert peer.transport.callbacks - callbacks <= 2  # the end of a cut frame does not count as a full read
        peer.turns.turn()
        assert peer.transport.reading

    peer.answers()
    assert (peer.transport.reading, peer.transport.incoming) == (True, b"")


def test_a_long_unfinished_frame_also_pauses_after_each_full_read() -> None:
    service = FakeService(budget=16 << 20)
    peer = Peer(service)

    peer.transport.incoming = request(1, ECHO, [b"x" * (2 << 20)])
    peer.transport.deliver()

    assert peer.transport.callbacks == 2  # the hello was the first
    assert not peer.transport.reading
    assert peer.answers() == [ok(1, [b"x" * (2 << 20)])]


def test_a_run_that_waits_is_dropped_when_the_broker_stops() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.send(b"".join(request(i, COSTLY, [i]) for i in range(8)))

    peer.connection.quiesce()

    assert peer.answers() == [ok(i, [i]) for i in range(3)]
    peer.transport.incoming += request(9, ECHO, [])
    assert peer.answers() == []
    assert not peer.transport.reading


# ---- the receive budget


def test_a_frame_without_room_waits_until_another_is_finished() -> None:
    service, turns = FakeService(budget=1000), Turns()
    one, two = Peer(service, turns), Peer(service, turns)
    large, small = request(1, ECHO, [b"1" * 700]), request(2, ECHO, [b"2" * 500])
    one.send(large[:100])

    two.send(small[:100])
    two.transport.incoming += small[100:]
    two.transport.deliver()
    assert (two.transport.reading, two.answers()) == (False, [])
    one.send(large[100:])

    assert one.answers() == [ok(1, [b"1" * 700])]
    assert two.answers() == [ok(2, [b"2" * 500])]
    assert service.budget.used == 0


def test_a_frame_without_room_waits_until_the_holder_is_gone() -> None:
    service, turns = FakeService(budget=1000), Turns()
    one, two = Peer(service, turns), Peer(service, turns)
    small = request(2, ECHO, [b"2" * 500])
    one.send(request(1, ECHO, [b"1" * 700])[:100])
    two.send(small[:100])
    two.transport.incoming += small[100:]

    one.transport.abort()

    assert two.answers() == [ok(2, [b"2" * 500])]


def test_a_connection_that_waits_for_room_and_ends_leaves_the_line() -> None:
    service = FakeService(budget=1000)
    one, two, three = Peer(service), Peer(service), Peer(service)
    one.send(request(1, ECHO, [b"1" * 700])[:100])
    two.send(request(2, ECHO, [b"2" * 900])[:100])
    three.send(request(3, ECHO, [b"3" * 200])[:100])
    assert not three.transport.reading  # in line behind two

    two.transport.abort()

    assert three.transport.reading
    assert service.budget.used > 900


def test_a_run_that_found_no_room_needs_none_once_it_is_worked_off() -> None:
    service, turns = FakeService(budget=1000), Turns()
    one, two = Peer(service, turns), Peer(service, turns)
    one.send(request(1, ECHO, [b"1" * 800])[:100])

    two.send(b"".join(request(i, COSTLY, [b"2" * 100]) for i in range(8)))
    assert not two.transport.reading

    assert len(two.answers()) == 8
    assert two.transport.reading


def test_frames_that_are_only_announced_cost_no_memory() -> None:
    service = FakeService(budget=1 << 20)
    peers = [Peer(service) for _ in range(50)]
    head = request(1, ECHO, [bytes(frames.MAX_FRAME - 100)])[:100]
    tracemalloc.start()
    try:
        for peer in peers:
            peer.send(head)
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert current < 2 * frames.MAX_FRAME  # one was given room, as nobody else held any
    assert sum(peer.transport.reading for peer in peers) == 1


def test_a_second_hello_reaches_the_handler() -> None:
    """Whether it is refused is the handler's decision, which knows the session."""
    peer = Peer(FakeService())

    peer.send(request(1, Op.HELLO, {}))

    assert peer.answers() == [ok(1, {})]
