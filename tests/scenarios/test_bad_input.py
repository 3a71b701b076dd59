"""
Every kind of bad input has its code and its sentence, and harms no other peer (design, section 10).

Each case goes to the real broker over a real socket. Afterwards the same connection is served, if the framing was
not broken, and another one always; what was stored before is read back byte by byte.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgpack
import pytest
from structlog.testing import capture_logs

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    BadFrame,
    BadName,
    BadRequest,
    Fatal,
    Fenced,
    FrameTooLarge,
    GroupMismatch,
    HelloRequired,
    Internal,
    NotAMember,
    OffsetOutOfRange,
    ProtocolUnsupported,
    QueueNotFound,
    Refused,
    TooManyInFlight,
    TopicExists,
    TopicNotFound,
    UnknownOp,
    code_name,
)
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import EMPTY, Op

from rigs.bad_input.batches import BAD_BATCHES, GOOD
from rigs.raw_peer import RawPeer, hello, request

STORED = 5


@pytest.fixture(autouse=True)
def no_defects() -> Iterator[None]:
    """Whatever comes in, nothing is a surprise to the broker."""
    with capture_logs() as entries:
        yield
    assert [entry for entry in entries if entry["log_level"] in ("error", "critical")] == []


class Stored(NamedTuple):
    """A broker that holds something, and the bytes of it."""

    broker: InMemoryBroker
    content: list[Any]


@pytest.fixture
async def stored() -> AsyncIterator[Stored]:
    async with holding() as found:
        yield found


@asynccontextmanager
async def holding(**settings: Any) -> AsyncIterator[Stored]:
    async with InMemoryBroker(**settings) as broker, RawPeer(broker.address) as peer:
        await peer.ask(Op.CREATE_TOPIC, ["orders", 4])
        for _ in range(STORED):
            assert (await peer.ask(Op.SEND, [[[0, GOOD]]]))[3][0][0] == 0
        yield Stored(broker, await content(peer))


async def content(peer: RawPeer) -> list[Any]:
    """Everything that can be read, and what exists."""
    held: list[Any] = [(await peer.ask(op, []))[2:] for op in (Op.LIST_TOPICS, Op.LOCK_STATUS)]
    ranges = (await peer.ask(Op.RANGES, ["g", [["orders", queue] for queue in range(4)]]))[3]
    at = 0
    while at < ranges[0][2]:
        ((_, status, at, _, _, batches, _),) = (await peer.ask(Op.PULL, [None, 0, 1, [["orders", 0, at]]]))[3]
        held.append((status, batches))
    return [*held, ranges]


async def check_unharmed(stored: Stored, peer: RawPeer | None) -> None:
    """What was there is there, and both this peer (if it may go on) and a new one can send and read."""
    if peer is not None:
        assert await content(peer) == stored.content
    async with RawPeer(stored.broker.address) as other:
        assert await content(other) == stored.content
        assert (await other.ask(Op.SEND, [[[1, GOOD]]]))[3][0][:2] == [0, 0]
    if peer is not None:
        ((_, status, end, *_),) = (await peer.ask(Op.PULL, [None, 1000, 1 << 20, [["orders", 1, 0]]]))[3]
        assert (status, end) == (0, 2)


# ---- what breaks the framing closes the connection


def frame_of(content: bytes) -> bytes:
    return frames.LENGTH.pack(len(content)) + content


BROKEN: list[tuple[str, bytes, type[Fatal], str]] = [
    ("a frame over the limit", frames.LENGTH.pack(frames.MAX_FRAME + 1), FrameTooLarge, "over the limit of 16777216"),
    ("the longest length", b"\xff\xff\xff\xff", FrameTooLarge, "a frame of 4294967295 bytes"),
    ("another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", FrameTooLarge, "over the limit"),
    ("garbage in a frame", frame_of(b"\xc1" * 40), BadFrame, "begins no value"),
    ("a frame without content", frame_of(b""), BadFrame, "not msgpack"),
    ("text in a frame", frame_of(b"hello broker"), BadFrame, "not msgpack"),
    ("a frame that ends too early", frame_of(b"\x94\x00\x01\x02"), BadFrame, "not msgpack"),
    ("a frame with something after it", frame_of(b"\x94\x00\x01\x02\x90\x90"), BadFrame, "not msgpack"),
    ("a map instead of an array", frame_of(b"\x80"), BadFrame, "not an array of four"),
    ("three elements", frame_of(b"\x93\x00\x01\x02"), BadFrame, "not an array of four"),
    ("an operation that is no number", frame_of(msgpack.packb([0, 1, "PING", []])), BadFrame, "not numbers"),
    ("a request id that is no number", frame_of(msgpack.packb([0, None, 2, []])), BadFrame, "not numbers"),
    ("an extension type", frame_of(msgpack.packb([0, 1, 2, [msgpack.ExtType(5, b"")]])), BadFrame, "extension"),
    ("a timestamp", frame_of(msgpack.packb([0, 1, 2, [msgpack.Timestamp(1)]])), BadFrame, "not msgpack"),
    ("text that is not UTF-8", frame_of(b"\x94\x00\x01\x02\x91\xa2\xff\xfe"), BadFrame, "not msgpack"),
    ("very deep nesting", frame_of(b"\x94\x00\x01\x02" + b"\x91" * 2000 + b"\x90"), BadFrame, "nested too deep"),
    ("millions of values", frame_of(b"\x94\x00\x01\x02\xdc\xff\xff" + b"\x90" * 65535), BadFrame, "65536 values"),
    ("an answer from a client", frames.pack(frames.REPLY, 1, 0, []), BadFrame, "requests only, not frames of kind 1"),
    ("an unknown kind of frame", frames.pack(77, 1, 0, []), BadFrame, "requests only, not frames of kind 77"),
]


@pytest.mark.parametrize(("data", "error", "text"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
async def test_what_breaks_the_framing_closes_with_its_code(
    stored: Stored, data: bytes, error: type[Fatal], text: str
) -> None:
    async with RawPeer(stored.broker.address) as peer:
        peer.write(data + request(99, Op.CREATE_TOPIC, ["late", 4]))

        reason = await peer.reason()

    assert reason is not None
    assert (code_name(reason[0]), reason[0]) == (code_name(error.code), error.code)
    assert text in reason[1]
    await check_unharmed(stored, None)


GREETINGS: list[tuple[str, bytes, type[Fatal], str]] = [
    ("no hello", request(1, Op.LIST_TOPICS, []), HelloRequired, "the first frame must be a hello"),
    ("an unknown operation first", request(1, 250, []), HelloRequired, "the first frame must be a hello"),
    ("a large first frame", frames.LENGTH.pack(70_000), FrameTooLarge, "over the limit of 65536"),
    ("a version of tomorrow", request(1, Op.HELLO, hello(proto=[2, 9])), ProtocolUnsupported, "speaks protocol 1"),
    ("a version of yesterday", request(1, Op.HELLO, hello(proto=[0, 0])), ProtocolUnsupported, "speaks protocol 1"),
    ("no range of versions", request(1, Op.HELLO, hello(proto=[])), ProtocolUnsupported, "speaks protocol 1"),
]


@pytest.mark.parametrize(
    ("data", "error", "text"), [case[1:] for case in GREETINGS], ids=[case[0] for case in GREETINGS]
)
async def test_whoever_cannot_be_greeted_is_told_and_closed(
    stored: Stored, data: bytes, error: type[Fatal], text: str
) -> None:
    async with RawPeer(stored.broker.address, greet=False) as peer:
        peer.write(data)

        reason = await peer.reason()

    assert reason is not None
    assert reason[0] == error.code
    assert text in reason[1]
    await check_unharmed(stored, None)


# ---- what is wrong in a frame stays in it

TOO_MANY = [["orders", 0]] * 1025
MISTAKES: list[tuple[str, int, Any, type[Refused], str]] = [
    ("an unknown operation", 250, [], UnknownOp, "operation 250"),
    ("a negative operation", -1, [], UnknownOp, "operation -1"),
    ("an operation of 64 bits", (1 << 64) - 1, [], UnknownOp, "operation 18446744073709551615"),
    ("a payload that is no array", Op.PULL, {}, BadRequest, "Pull: payload must be array, not dict"),
    ("no payload", Op.ROUTE, None, BadRequest, "Route: payload must be array"),
    ("a field that is missing", Op.ROUTE, [], BadRequest, "Route: topic is missing"),
    ("a text where a number is due", Op.CREATE_TOPIC, ["t", "4"], BadRequest, "CreateTopic: queues must be int"),
    ("a truth where a number is due", Op.CREATE_TOPIC, ["t", True], BadRequest, "CreateTopic: queues must be int"),
    ("a number where a text is due", Op.ROUTE, [7], BadRequest, "Route: topic must be str, not int"),
    ("a list where a text is due", Op.COMMIT, [["g"], []], BadRequest, "Commit: group must be str"),
    ("bytes where a text is due", Op.ROUTE, [b"orders"], BadRequest, "Route: topic must be str, not bytes"),
    ("an entry of a wrong type", Op.RANGES, [None, [["orders", 0], 7]], BadRequest, "Ranges: queues.[]"),
    ("a batch that is text", Op.SEND, [[[0, "text"]]], BadRequest, "Send: batches.[].batch must be bytes"),
    ("a send that is a map", Op.SEND, {"batches": []}, BadRequest, "Send: payload must be array"),
    ("an offset that is text", Op.PULL, [None, 0, 1, [["orders", 0, "0"]]], BadRequest, "queue_offset must be int"),
    ("a topic with a slash", Op.CREATE_TOPIC, ["a/b", 4], BadName, "only letters from A to Z"),
    (
        "a topic that leads elsewhere",
        Op.CREATE_TOPIC,
        ["../../etc/passwd", 4],
        BadName,
        "only letters from A to Z",
    ),
    ("a topic with a null", Op.ROUTE, ["a\0b", True], BadName, "only letters from A to Z"),
    ("an empty topic", Op.CREATE_TOPIC, ["", 4], BadName, "the topic name is empty"),
    ("a topic of 128 characters", Op.CREATE_TOPIC, ["x" * 128, 4], BadName, "at most 127"),
    ("a reserved topic", Op.CREATE_TOPIC, ["SCHEDULE_TOPIC_XXXX", 4], BadName, "reserved"),
    ("a group with a space", Op.COMMIT, ["a b", []], BadName, "only letters from A to Z"),
    ("a group of any letters", Op.JOIN, ["größe", True, "clustering", "average", {}], BadName, "only letters"),
    ("a topic without queues", Op.CREATE_TOPIC, ["t", 0], BadRequest, "1 to 1024 queues, not 0"),
    ("a topic of 1025 queues", Op.CREATE_TOPIC, ["t", 1025], BadRequest, "1 to 1024 queues, not 1025"),
    ("a topic of another shape", Op.CREATE_TOPIC, ["orders", 5], TopicExists, "exists with 4 queues, not 5"),
    ("a topic that does not exist", Op.ROUTE, ["nothing"], TopicNotFound, "no topic 'nothing'"),
    ("a pull of no topic", Op.PULL, [None, 0, 1, [["nothing", 0, 0]]], TopicNotFound, "no topic 'nothing'"),
    ("a pull of no queue", Op.PULL, [None, 0, 1, []], BadRequest, "names no queue"),
    ("a queue that does not exist", Op.PULL, [None, 0, 1, [["orders", 4, 0]]], QueueNotFound, "queues 0 to 3, not 4"),
    ("a negative queue", Op.PULL, [None, 0, 1, [["orders", -1, 0]]], QueueNotFound, "queues 0 to 3, not -1"),
    ("a pull of 1025 queues", Op.PULL, [None, 0, 1, [["orders", 0, 0]] * 1025], BadRequest, "at most 1024 entries"),
    ("1025 ranges", Op.RANGES, [None, TOO_MANY], BadRequest, "at most 1024 entries, not 1025"),
    ("1025 leases", Op.ACQUIRE, ["g", TOO_MANY], BadRequest, "at most 1024 entries, not 1025"),
    ("1025 commits", Op.COMMIT, ["g", [["orders", 0, None, 0]] * 1025], BadRequest, "at most 1024 entries"),
    ("257 batches", Op.SEND, [[[0, b""]] * 257], BadRequest, "at most 256 entries, not 257"),
    ("a second hello", Op.HELLO, hello(), BadRequest, "greeted already"),
    ("leases without membership", Op.ACQUIRE, ["g", [["orders", 0]]], NotAMember, "join the group 'g'"),
    ("an attempt without lease", Op.ATTEMPT, ["g", "orders", 0, 1, 0, 1], Fenced, ""),
    ("no attempts", Op.ATTEMPT, ["g", "orders", 0, 1, 0, 0], BadRequest, "attempts must be 1 to 2147483647"),
    ("a way to share that is unknown", Op.JOIN, ["g", True, "piling", "average", {}], BadRequest, "piling"),
]


@pytest.mark.parametrize(
    ("op", "payload", "error", "text"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
async def test_a_mistake_in_a_request_is_refused_with_its_code_and_the_connection_goes_on(
    stored: Stored, op: int, payload: Any, error: type[Refused], text: str
) -> None:
    async with RawPeer(stored.broker.address) as peer:
        answer = await peer.ask(op, payload)

        assert (code_name(answer[2]), answer[2]) == (code_name(error.code), error.code)
        assert text in answer[3][0]
        assert len(answer[3][0]) < 300
        await check_unharmed(stored, peer)


# status and sentence stand at these places of an entry: outcomes, pull results, ranges
ENTRIES: list[tuple[str, int, Any, int, type[Refused], str]] = [
    ("an offset past the end", Op.PULL, [None, 0, 1, [["orders", 0, 11]]], 1, OffsetOutOfRange, "holds 0 to 10"),
    ("a negative offset", Op.PULL, [None, 0, 1, [["orders", 0, -5]]], 1, OffsetOutOfRange, "offset -5"),
    ("an offset of 64 bits", Op.PULL, [None, 0, 1, [["orders", 0, (1 << 64) - 1]]], 1, OffsetOutOfRange, "holds"),
    ("a pull without the lease", Op.PULL, ["g", 0, 1, [["orders", 0, 0]]], 1, Fenced, ""),
    ("a range of no queue", Op.RANGES, [None, [["orders", 4]]], 0, QueueNotFound, "queues 0 to 3, not 4"),
    ("a range of no topic", Op.RANGES, [None, [["nothing", 0]]], 0, TopicNotFound, "no topic 'nothing'"),
    ("a commit without the lease", Op.COMMIT, ["g", [["orders", 0, None, 1]]], 0, Fenced, ""),
    ("a commit of a stale epoch", Op.COMMIT, ["g", [["orders", 0, 7, 1]]], 0, Fenced, ""),
    ("a commit in no queue", Op.COMMIT, ["g", [["orders", 9, 7, 1]]], 0, QueueNotFound, "queues 0 to 3, not 9"),
    ("a lease that is not held", Op.RENEW, ["g", [["orders", 0, 1]]], 0, Fenced, "orders/0 with epoch 1 is gone"),
]


@pytest.mark.parametrize(
    ("op", "payload", "at", "error", "text"), [case[1:] for case in ENTRIES], ids=[case[0] for case in ENTRIES]
)
async def test_a_mistake_in_an_entry_is_refused_in_that_entry(
    stored: Stored, op: int, payload: Any, *, at: int, error: type[Refused], text: str
) -> None:
    async with RawPeer(stored.broker.address) as peer:
        _, _, status, (entry,) = await peer.ask(op, payload)

        assert status == 0
        assert (code_name(entry[at]), entry[at]) == (code_name(error.code), error.code)
        (reason,) = [value for value in entry if isinstance(value, str)]
        assert reason and text in reason
        await check_unharmed(stored, peer)


@pytest.mark.parametrize(
    ("batch", "queue_id", "error", "text"), [case[1:] for case in BAD_BATCHES], ids=[case[0] for case in BAD_BATCHES]
)
async def test_a_batch_with_a_mistake_is_refused_and_its_neighbours_are_stored(
    stored: Stored, batch: bytes, queue_id: int, error: type[Refused], text: str
) -> None:
    async with RawPeer(stored.broker.address) as peer:
        refused = (await peer.ask(Op.SEND, [[[queue_id, batch]]]))[3][0]
        assert (code_name(refused[0]), refused[0]) == (code_name(error.code), error.code)
        assert text in refused[-1]
        await check_unharmed(stored, peer)

        answers = (await peer.ask(Op.SEND, [[[2, GOOD], [queue_id, batch], [2, GOOD]]]))[3]
        assert [answer[0] for answer in answers] == [0, error.code, 0]
        assert [answer[1] for answer in answers if answer[0] == 0] == [0, 2]


@pytest.mark.parametrize(
    "changed",
    [
        {"proto": "1"}, {"client": 7}, {"client": ""}, {"client": "x" * 200}, {"client": "a\nb"}, {"session": "text"},
        {"session": b"short"}, {"producer": [1]}, {"producer": [-1, 0, 0]}, {"producer": [1, 1 << 16, 0]},
        {"namespace": "n"}, {"features": 7},
    ],
    ids=str,
)  # fmt: skip
async def test_a_hello_with_a_mistake_is_refused_and_may_be_repeated(stored: Stored, changed: dict[str, Any]) -> None:
    async with RawPeer(stored.broker.address, greet=False) as peer:
        assert (await peer.ask(Op.HELLO, hello(**changed)))[2] == BadRequest.code
        assert (await peer.ask(Op.HELLO, []))[2] == BadRequest.code

        assert (await peer.ask(Op.HELLO, hello()))[2] == 0
        await check_unharmed(stored, peer)


async def test_requests_beyond_those_in_flight_are_refused_and_the_others_answered() -> None:
    async with holding(max_in_flight=4) as stored, RawPeer(stored.broker.address) as peer:
        peer.write(b"".join(request(1000 + i, Op.SEND, [[[1, GOOD]]]) for i in range(10)))
        answers = [await peer.frame() for _ in range(10)]

        status = {answer[1] - 1000: answer[2] for answer in answers if answer is not None}
        assert status == {i: 0 if i < 4 else TooManyInFlight.code for i in range(10)}
        assert (await peer.ask(Op.SEND, [[[1, GOOD]]]))[3][0][:2] == [0, 8]


async def test_parked_pulls_of_too_many_queues_are_refused_and_the_others_wait_on(stored: Stored) -> None:
    async with RawPeer(stored.broker.address) as peer:
        thousand = [["orders", 3, 0]] * 1024
        peer.write(b"".join(request(1000 + i, Op.PULL, [None, 30_000, 1, thousand]) for i in range(17)))

        refused = await peer.frame()

        assert refused is not None
        assert refused[1:3] == [1016, TooManyInFlight.code]
        assert (await peer.ask(Op.PING, []))[2] == 0
        await check_unharmed(stored, None)


async def test_a_member_of_another_mode_is_refused(stored: Stored) -> None:
    async with RawPeer(stored.broker.address) as one, RawPeer(stored.broker.address) as two:
        assert (await one.ask(Op.JOIN, ["g", True, "clustering", "average", {"orders": "*"}]))[2] == 0

        answer = await two.ask(Op.JOIN, ["g", False, "clustering", "average", {"orders": "*"}])

        assert answer[2] == GroupMismatch.code
        await check_unharmed(stored, two)


async def test_everything_at_once_from_many_peers_harms_nobody(stored: Stored) -> None:
    """All cases of this file in one connection, as far as it goes, while another one sends and reads."""
    async with RawPeer(stored.broker.address) as peer:
        cases = [(op, payload) for _, op, payload, *_ in MISTAKES]
        cases += [(op, payload) for _, op, payload, *_ in ENTRIES]
        cases += [(Op.SEND, [[[queue, batch]]]) for _, batch, queue, *_ in BAD_BATCHES]
        for op, payload in cases:
            assert (await peer.ask(op, payload))[2] != Internal.code
        for _, data, _, _ in BROKEN + GREETINGS:
            async with RawPeer(stored.broker.address, greet=False) as stranger:
                stranger.write(data)
                assert await stranger.reason() is not None

        await check_unharmed(stored, peer)
        assert (await peer.ask(Op.PULL, [None, 0, 1, [["orders", 3, 0]]]))[3][0][1] == EMPTY
