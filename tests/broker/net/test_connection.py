"""
Frames in, answers out: what comes in, in which pieces, and what is wrong with it.

A request that must be answered before anything behind it is served.

How a connection ends: the reason arrives, whatever the peer was about to send.

Slow and silent peers: what waits for them, and for how long.

Answers leave together, and nobody's defect keeps those of others.
"""

from __future__ import annotations

import os
import tracemalloc
from typing import Any

import pytest

from rmq.broker.net.connection import DEFERRED, PARTING_BYTES, Connection, ReplyBatch
from rmq.broker.net.limits import PeerLimits
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    BadFrame,
    BadRequest,
    FrameStalled,
    FrameTooLarge,
    HelloRequired,
    HelloTimeout,
    Internal,
    SessionReplaced,
    TooManyConnections,
    TooManyInFlight,
    UnknownOp,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, Push

from ..fakes import BIG, BROKEN, COSTLY, ECHO, LATER, FakeService, Peer, Turns, ok, request
from ..harness import Client


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


def test_frames_after_a_fatal_one_are_not_served() -> None:
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


def test_a_connection_too_many_gets_the_reason() -> None:
    service = FakeService()
    service.refusal = TooManyConnections("enough")

    peer = Peer(service, greet=False)

    assert peer.answers() == [closing(TooManyConnections, "enough")]
    assert peer.transport.ended
    assert service.open == []


def test_only_the_first_reason_to_close_is_sent() -> None:
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


FIRST = 60


@pytest.fixture
def service_hold() -> FakeService:
    made = FakeService()

    def first(connection: Connection, request_id: int, _payload: Any) -> object:
        connection.suspend()
        made.later.append((connection, request_id))
        return DEFERRED

    made.handlers[FIRST] = first
    return made


def answer(service_hold: FakeService) -> None:
    connection, request_id = service_hold.later.pop()
    connection.reply(request_id, "first")
    connection.resume()


def test_what_came_in_the_same_read_is_served_after_the_answer(service_hold: FakeService) -> None:
    peer = Peer(service_hold)

    peer.send(request(1, FIRST, []) + request(2, ECHO, "a") + request(3, ECHO, "b"))
    assert (peer.answers(), service_hold.served) == ([], [])
    answer(service_hold)

    assert peer.answers() == [ok(1, "first"), ok(2, "a"), ok(3, "b")]


def test_what_comes_later_stays_unread(service_hold: FakeService) -> None:
    peer = Peer(service_hold)
    peer.send(request(1, FIRST, []))

    peer.send(request(2, ECHO, "a"))
    assert not peer.transport.reading
    assert (peer.answers(), len(peer.transport.incoming)) == ([], len(request(2, ECHO, "a")))
    answer(service_hold)

    assert peer.answers() == [ok(1, "first"), ok(2, "a")]


def test_a_request_from_the_backlog_can_hold_up_the_rest_of_it(service_hold: FakeService) -> None:
    peer = Peer(service_hold)

    peer.send(b"".join(request(n, COSTLY, n) for n in range(1, 6)) + request(6, FIRST, []) + request(7, ECHO, "a"))
    assert peer.answers() == [ok(n, n) for n in range(1, 6)]
    answer(service_hold)

    assert peer.answers() == [ok(6, "first"), ok(7, "a")]
    peer.send(request(8, ECHO, "b"))
    assert peer.answers() == [ok(8, "b")]


def test_a_full_read_after_it_is_not_read_on(service_hold: FakeService) -> None:
    peer = Peer(service_hold)
    much = request(2, ECHO, bytes(300 << 10))

    peer.send(request(1, FIRST, []) + much)
    assert peer.answers() == []
    answer(service_hold)

    assert peer.answers() == [ok(1, "first"), ok(2, bytes(300 << 10))]


def test_the_end_of_the_connection_lets_go_of_what_waits(service_hold: FakeService) -> None:
    peer = Peer(service_hold)
    peer.send(request(1, FIRST, []) + request(2, ECHO, "a"))
    assert service_hold.budget.used > 0

    peer.transport.abort()
    answer(service_hold)

    assert (peer.answers(), service_hold.served, service_hold.budget.used) == ([], [], 0)


def test_a_broker_that_stops_answers_it_and_serves_nothing_after_it(service_hold: FakeService) -> None:
    peer = Peer(service_hold)
    peer.send(request(1, FIRST, []) + request(2, ECHO, "a"))

    peer.connection.quiesce()
    answer(service_hold)

    assert peer.answers() == [ok(1, "first")]
    assert not peer.transport.reading


GARBAGE = frames.LENGTH.pack(1) + b"\xc1"


def staying(service: FakeService, *, greet: bool = True) -> Peer:
    """A peer that does not close when it is told to go."""
    peer = Peer(service, greet=greet)
    peer.transport.leaves = False
    return peer


def test_what_comes_after_the_end_is_dropped_until_the_peer_has_closed() -> None:
    service = FakeService()
    peer = staying(service)

    peer.send(GARBAGE)
    for _ in range(10):
        peer.send(request(1, ECHO, [b"late"]))

    ((_, _, push, (code, _)),) = peer.answers()
    assert (push, code) == (Push.CLOSING, BadFrame.code)
    assert (service.served, peer.transport.half_closed, peer.transport.ended) == ([], True, False)
    assert not peer.connection.eof_received()
    peer.transport.close()
    assert service.open == []
    assert all(timer.cancelled for timer in peer.turns.later)


def test_a_peer_that_does_not_go_is_closed_after_a_moment() -> None:
    service = FakeService()
    peer = staying(service)
    peer.send(GARBAGE)

    (timer,) = peer.turns.later
    timer.run()

    assert peer.transport.ended
    assert len(peer.answers()) == 1


def test_a_peer_that_does_not_go_and_floods_is_closed_at_once() -> None:
    service = FakeService()
    peer = staying(service)
    peer.send(GARBAGE)

    for _ in range(1 + PARTING_BYTES // (1 << 20)):
        peer.send(bytes(1 << 20))

    assert peer.transport.ended


def test_a_connection_too_many_gets_the_reason_also_while_its_hello_comes() -> None:
    service = FakeService()
    service.refusal = TooManyConnections("enough")

    peer = staying(service, greet=False)
    peer.send(request(0, Op.HELLO, {}))

    assert peer.answers() == [[frames.PUSH, 0, Push.CLOSING, [TooManyConnections.code, "enough"]]]
    (timer,) = peer.turns.later
    timer.run()
    assert peer.transport.ended


def test_the_end_gives_back_the_memory_of_what_was_unfinished() -> None:
    service, turns = FakeService(), Turns()
    peer, other = staying(service), Peer(service, turns)
    peer.send(b"".join(request(i, COSTLY, [b"x" * 100]) for i in range(8)) + request(9, ECHO, [b"x" * 1000])[:50])
    assert service.budget.used > 0

    peer.connection.fail(BadFrame("enough"))

    assert service.budget.used == 0
    assert peer.transport.reading  # so that what it sends is taken
    peer.answers()
    assert len(service.served) == 3
    other.send(request(1, ECHO, ["on"]))
    assert other.answers() == [ok(1, ["on"])]


def test_answers_that_are_due_when_the_end_comes_go_first() -> None:
    service = FakeService()
    peer = Peer(service)

    peer.send(request(1, ECHO, ["a"]) + request(2, LATER, []) + GARBAGE)
    peer.connection.reply(2, "late")

    first, last = peer.answers()
    assert first == ok(1, ["a"])
    assert last[2] == Push.CLOSING


def test_an_answer_that_no_client_would_take_is_refused_instead() -> None:
    peer = Peer(FakeService())

    peer.send(request(1, BIG, [frames.MAX_FRAME]) + request(2, ECHO, ["on"]))

    refused, after = peer.answers()
    assert refused[:3] == [frames.REPLY, 1, BadRequest.code]
    assert "over the limit: ask for less" in refused[3][0]
    assert after == ok(2, ["on"])
    assert peer.connection.in_flight == 0


@pytest.mark.virtual_time
async def test_of_many_connections_too_many_only_a_few_are_kept_for_their_reason() -> None:
    async with InMemoryBroker(max_connections=1) as broker, Client(broker) as client:
        peers = []
        for _ in range(100):
            peer = Peer(broker.broker, Turns(), greet=False, leaves=False)
            peers.append(peer)

        assert all(peer.answers()[0][3][0] == TooManyConnections.code for peer in peers)
        assert sum(not peer.transport.ended for peer in peers) == 16
        assert await client.request(Op.PING, []) == []
        for peer in peers:
            peer.transport.abort()


HELLO_S = 10.0
STALL_S = 30.0


def wait(service: FakeService, peer: Peer, seconds: float) -> None:
    """Let time pass, with the broker's look at its connections once a second."""
    end = service.time + seconds
    while service.time < end:
        service.time = min(service.time + 1.0, end)
        peer.connection.check_timeouts(service.time, PeerLimits(HELLO_S, STALL_S))


def told(peer: Peer) -> list[tuple[int, int]]:
    return [(push, payload[0]) for kind, _, push, payload in peer.answers() if kind == frames.PUSH]


# ---- writing


def test_answers_of_one_turn_leave_together() -> None:
    peer = Peer(FakeService())
    writes: list[int] = []
    writelines = peer.transport.writelines

    def counted(buffers: Any) -> None:
        writes.append(len(buffers))
        writelines(buffers)

    peer.transport.writelines = counted  # type: ignore[method-assign]
    peer.send(b"".join(request(i, ECHO, [i]) for i in range(20)))
    assert writes == []

    assert len(peer.answers()) == 20
    assert writes == [20]


def test_an_answer_given_as_parts_arrives_as_one_payload() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.send(request(1, LATER, []))

    peer.connection.reply_parts(1, [frames.array_header(2), b"\x01", frames.bin_header(3), b"abc"])

    assert peer.answers() == [ok(1, [1, b"abc"])]
    assert peer.connection.in_flight == 0


def test_every_write_counts_as_an_answer_to_the_session() -> None:
    service = FakeService()
    peer = Peer(service)
    assert peer.connection.session is not None
    service.time = 7.0

    peer.connection.push_frame(frames.pack(frames.PUSH, 0, Push.LEASE_FREE, ("g", "orders", 0)))
    assert peer.answers() == [[frames.PUSH, 0, Push.LEASE_FREE, ["g", "orders", 0]]]

    assert peer.connection.session.answered_at == 7.0


def test_above_the_high_water_mark_a_connection_is_blocked_and_small_answers_still_go_out() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False

    peer.send(request(1, BIG, [1200]))
    peer.answers()
    assert peer.connection.blocked
    assert peer.transport.reading
    peer.send(request(2, ECHO, ["ack"]))
    peer.answers()
    peer.transport.take(100_000)

    assert [answer[1] for answer in peer.taken()] == [1, 2]
    assert not peer.connection.blocked
    assert service.unblocked_calls == [peer.connection]


def test_a_peer_that_asks_and_never_reads_is_not_read_beyond_four_times_the_mark() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False

    for i in range(100):
        peer.send(request(i, BIG, [900]))
        peer.answers()

    assert len(peer.transport.unsent) < 5 * service.high_water + 1000
    assert not peer.transport.reading
    peer.transport.takes = True
    peer.transport.take(1 << 20)
    assert [answer[1] for answer in peer.answers()] == list(range(100))


def test_nothing_is_written_to_a_connection_that_closes() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.send(request(1, LATER, []))
    peer.connection.fail(BadFrame("enough"))
    peer.answers()

    peer.connection.reply(1, "late")
    peer.connection.push_frame(frames.pack(frames.PUSH, 0, Push.LEASE_FREE, ("g", "orders", 0)))

    assert peer.answers() == []
    assert peer.turns.soon == []


# ---- patience


def test_a_connection_without_hello_is_closed_after_its_time() -> None:
    service = FakeService()
    peer = Peer(service, greet=False)

    wait(service, peer, HELLO_S)
    assert told(peer) == []
    wait(service, peer, 0.5)

    assert told(peer) == [(Push.CLOSING, HelloTimeout.code)]
    assert peer.transport.ended


def test_bytes_that_trickle_do_not_extend_the_time_for_the_hello() -> None:
    service = FakeService()
    peer = Peer(service, greet=False)

    for byte in request(0, Op.HELLO, {"client": "x" * 100})[:20]:
        peer.send(bytes((byte,)))
        wait(service, peer, 1.0)

    assert peer.transport.ended


def test_an_idle_connection_is_left_alone() -> None:
    service = FakeService()
    peer = Peer(service)

    wait(service, peer, 86_400)

    assert not peer.transport.closing


def test_a_frame_must_be_finished_in_its_time_also_if_it_trickles() -> None:
    service = FakeService()
    peer = Peer(service)
    data = request(1, ECHO, ["abc"])

    for byte in data[:-2]:
        peer.send(bytes((byte,)))
        wait(service, peer, STALL_S / len(data))
    assert not peer.transport.closing
    wait(service, peer, STALL_S)

    assert told(peer) == [(Push.CLOSING, FrameStalled.code)]
    assert peer.transport.ended


def test_each_frame_has_a_time_of_its_own() -> None:
    service = FakeService()
    peer = Peer(service)
    data = request(1, ECHO, ["abc"])

    for _ in range(5):
        peer.send(data[:5])
        wait(service, peer, STALL_S - 1)
        peer.send(data[5:])

    assert [answer[1] for answer in peer.answers()] == [1] * 5
    assert not peer.transport.closing


def test_while_others_wait_for_memory_an_unfinished_frame_has_5_s_and_a_second_a_mebibyte() -> None:
    service = FakeService(budget=1000)
    holder, other = Peer(service), Peer(service)
    holder.send(request(1, ECHO, [b"1" * 700])[:100])
    other.send(request(2, ECHO, [b"2" * 700])[:100])

    wait(service, holder, 5.0)
    assert not holder.transport.closing
    wait(service, holder, 1.0)

    assert holder.transport.ended
    other.send(request(2, ECHO, [b"2" * 700])[100:])
    assert [answer[1] for answer in other.answers()] == [2]


def test_the_wait_for_room_does_not_count_as_a_stall_of_the_peer() -> None:
    service = FakeService(budget=1000)
    holder, peer = Peer(service), Peer(service)
    holder.send(request(1, ECHO, [b"1" * 700])[:100])
    peer.send(request(2, ECHO, [b"2" * 700])[:100])

    wait(service, peer, 10 * STALL_S)
    holder.transport.abort()
    wait(service, peer, 1.0)

    assert peer.transport.reading
    assert not peer.transport.closing
    wait(service, peer, STALL_S)
    assert peer.transport.ended


def test_a_reader_that_takes_nothing_for_30_s_is_closed() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [5000]))
    peer.answers()

    wait(service, peer, STALL_S)
    assert not peer.transport.closing
    wait(service, peer, 2.0)

    assert peer.transport.ended
    assert peer.taken() == []  # it could not even be told


def test_a_reader_that_takes_nothing_is_closed_also_below_the_high_water_mark() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [500]))
    peer.answers()
    assert not peer.connection.blocked

    wait(service, peer, STALL_S + 2)

    assert peer.transport.ended


def test_a_blocked_peer_is_kept_the_newest_push_of_each_key_and_gets_it_when_it_reads() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [1200]))
    peer.answers()

    for number in range(1000):
        for key in ("a", "b"):
            peer.connection.push_frame(frames.pack(frames.PUSH, 0, 9, [key, number]), key)
    assert len(peer.transport.unsent) < 2000
    peer.transport.takes = True
    peer.transport.take(1 << 20)

    assert [answer[3] for answer in peer.answers() if answer[0] == frames.PUSH] == [["a", 999], ["b", 999]]


def test_unread_pushes_end_the_connection_before_they_fill_the_memory() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [1200]))
    peer.answers()

    for _ in range(40):
        peer.connection.push_frame(frames.pack(frames.PUSH, 0, 9, [bytes(1 << 20)]))
        peer.answers()

    assert peer.transport.ended


def test_a_reader_that_takes_a_little_now_and_then_is_kept() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [50_000]))
    peer.answers()

    for _ in range(20):
        wait(service, peer, STALL_S - 1)
        peer.transport.take(10)

    assert peer.connection.blocked
    assert not peer.transport.closing


def test_a_peer_that_does_not_take_the_reason_does_not_keep_the_connection() -> None:
    service = FakeService()
    peer = Peer(service)
    peer.transport.takes = False
    peer.send(request(1, BIG, [500]))
    peer.answers()
    peer.send(frames.pack(frames.PUSH, 0, 0, []))  # fatal, while less than the high-water mark waits
    assert peer.connection.closing
    assert not peer.transport.ended

    wait(service, peer, STALL_S)
    assert not peer.transport.ended
    wait(service, peer, 2.0)

    assert peer.transport.ended
    assert service.open == []


def test_a_blocked_peer_is_closed_without_waiting_for_it() -> None:
    peer = Peer(FakeService())
    peer.transport.takes = False
    peer.send(request(1, BIG, [5000]))
    peer.answers()

    peer.connection.fail(BadFrame("enough"))

    assert peer.transport.ended


class Speaker:
    def __init__(self, said: list[str], name: str, *, broken: bool = False) -> None:
        self.said, self.name, self.broken = said, name, broken
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def flush(self) -> None:
        if self.broken:
            raise ZeroDivisionError("a defect")
        self.said.append(self.name)


def test_all_speak_at_the_end_of_the_turn_and_each_once() -> None:
    loop, said = Turns(), list[str]()
    outgoing = ReplyBatch(loop.call_soon)
    speakers: list[Any] = [Speaker(said, name) for name in "abc"]

    for speaker in speakers:
        outgoing.add(speaker)
    assert (said, len(loop.soon)) == ([], 1)
    loop.turn()
    loop.turn()

    assert said == ["a", "b", "c"]


def test_a_connection_flushed_at_once_is_not_flushed_again_at_the_end_of_the_turn() -> None:
    loop, said = Turns(), list[str]()
    outgoing = ReplyBatch(loop.call_soon)
    speaker: Any = Speaker(said, "a")

    outgoing.add(speaker)
    outgoing.flush()
    loop.turn()
    assert said == ["a"]
    outgoing.add(speaker)
    loop.turn()

    assert said == ["a", "a"]


def test_the_defect_of_one_ends_it_and_does_not_keep_the_others_back() -> None:
    loop, said = Turns(), list[str]()
    outgoing = ReplyBatch(loop.call_soon)
    speakers: list[Any] = [Speaker(said, "a", broken=True), Speaker(said, "b")]

    for speaker in speakers:
        outgoing.add(speaker)
    loop.turn()

    assert said == ["b"]
    assert [speaker.aborted for speaker in speakers] == [True, False]
