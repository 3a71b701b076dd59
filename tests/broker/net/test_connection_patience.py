"""Slow and silent peers: what waits for them, and for how long."""

from __future__ import annotations

from typing import Any

from rmq.broker.net.limits import Limits
from rmq.wire.errors import BadFrame, FrameStalled, HelloTimeout
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op, Push

from ..fakes import BIG, ECHO, LATER, FakeService, Peer, ok, request

HELLO_S = 10.0
STALL_S = 30.0


def wait(service: FakeService, peer: Peer, seconds: float) -> None:
    """Let time pass, with the broker's look at its connections once a second."""
    end = service.time + seconds
    while service.time < end:
        service.time = min(service.time + 1.0, end)
        peer.connection.check_patience(service.time, Limits(HELLO_S, STALL_S))


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


def test_pushes_that_nobody_reads_end_the_connection_before_they_fill_the_memory() -> None:
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
