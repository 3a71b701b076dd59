"""Copies keep what was the message's own, say where it came from at first, and fit into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rmq.broker.handlers.redelivery import (
    MAX_COPY_ATTEMPTS,
    PORTION_BYTES,
    PORTION_COPIES,
    LastBatch,
    MessageCopy,
    SourceMessage,
    Sources,
    came_from,
    dead_copy,
    replay_copy,
    retry_copy,
    returned_copy,
)
from rmq.broker.store.lookup import Locator, LogReader
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import Damaged, Refused
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.stores import StoreIds

BORN_AT_COPIES = 1_700_000_000_000_000
ORDERS_COPIES = MessageQueue("orders", 2)
STORE = 0xABC


def stored(*bodies: bytes, to: MessageQueue = ORDERS_COPIES, base: int = 0, at: int = 4096, **columns: Any) -> bytes:
    """A batch as it lies in the log."""
    data = batches.encode(*to, Rows(bodies, BORN_AT_COPIES, **columns))
    header = layout.parse_header(data, 0)
    stamp = layout.Stamp(1, at, base, BORN_AT_COPIES, 0, 0, 1, to.queue_id, layout.KIND_DATA)
    return layout.stamp(data, header.header_size, stamp) + bytes(data[layout.BROKER_PART :])


class Log:
    """Batches by their position."""

    def __init__(self, *found: bytes) -> None:
        self.batches = {layout.parse_header(data, 0).physical_offset: data for data in found}
        self.reads: list[int] = []
        self.is_open = False

    def __enter__(self) -> Log:
        self.is_open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_open = False

    def batch(self, position: int) -> bytes | None:
        assert self.is_open
        self.reads.append(position)
        return self.batches.get(position)

    def place(self, offset: int) -> tuple[int, int] | None:
        for position, data in self.batches.items():
            header = layout.parse_header(data, 0)
            if header.base_offset <= offset < header.end_offset:
                return position, header.size
        return None


def sources(
    log: Log, last: LastBatch | None = None, *, generation: int = 1, queue: MessageQueue = ORDERS_COPIES
) -> Sources:
    return Sources(
        queue, generation, Locator(0, 99, log.place), cast(LogReader, log), StoreIds(STORE), last=last or LastBatch()
    )  # fmt: skip


def found(data: bytes, index: int = 0) -> SourceMessage:
    batch = batches.read(data, stores=StoreIds(STORE))
    return SourceMessage(batch.pick([index])[0], batch)


def read(copy: MessageCopy) -> StoredMessage:
    """A copy as it will be read."""
    header = copy.checked.header
    stamp = layout.Stamp(1, 8192, 5, BORN_AT_COPIES, 0, copy.origin, 1, copy.to.queue_id, layout.KIND_DATA)
    data = layout.stamp(copy.batch, header.header_size, stamp) + copy.batch[layout.BROKER_PART :]
    (message,) = batches.read(data, stores=StoreIds(STORE)).messages()
    return message


FULL = stored(
    b"a", b"b", base=7, tags=[None, "t"], index_keys=[(), ("k",)], keys=["x", "y"],
    properties=[{}, {"p": "1"}], attempts=[0, 4],
)  # fmt: skip
ORIGIN = {
    "RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "2", "RMQ_ORIGIN_OFFSET": "8",
    "RMQ_ORIGIN_ID": batches.message_id(STORE, batches.handle(4096, 1)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "to", "said", "attempt"),
    [
        (lambda one: dead_copy(one, "g", 9, "why"), "%DLQ%g",
         {**ORIGIN, "RMQ_GROUP": "g", "RMQ_ATTEMPTS": "9", "RMQ_DEAD_REASON": "why"}, 1),
        (lambda one: retry_copy(one, "g", 5, 7), "%RETRY%g", {**ORIGIN, "RMQ_GROUP": "g"}, 6),
    ],
)  # fmt: skip
def test_a_copy_keeps_what_was_the_message_s_own_and_says_where_it_is_from(
    make: Any, to: str, said: dict[str, str], attempt: int
) -> None:
    copy = make(found(FULL, 1))

    assert (copy.queue_offset, copy.origin, copy.to) == (8, batches.handle(4096, 1), MessageQueue(to, 0))
    again = read(copy)
    assert (again.body, again.tag, again.index_keys, again.key, again.attempt) == (
        b"b",
        "t",
        ("k",),
        "y",
        attempt,
    )
    assert again.properties == {"p": "1", **said}
    assert copy.checked.header.delay_level == copy.level == (7 if to == "%RETRY%g" else 0)


def test_more_attempts_than_a_batch_can_tell_are_told_as_the_most() -> None:
    assert read(retry_copy(found(FULL, 1), "g", 1 << 20, 3)).attempt == MAX_COPY_ATTEMPTS + 1


def test_a_retry_tells_on_where_its_message_came_from_at_first() -> None:
    once = read(retry_copy(found(FULL, 1), "g", 1, 3))
    lying = stored(b"b", to=MessageQueue("%RETRY%g", 0), base=3, at=9000 * 8, properties=[once.properties])

    assert came_from(found(lying)) == ORIGIN
    for copy in (retry_copy(found(lying), "g", 2, 4), dead_copy(found(lying), "g", 2, "")):
        assert copy.origin == batches.handle(9000 * 8, 0)  # of what it was made of
        assert {name: read(copy).properties[name] for name in ORIGIN} == ORIGIN


@pytest.mark.parametrize("topic", ["orders", "%DLQ%other"])
def test_only_the_broker_is_believed_about_where_a_message_came_from(topic: str) -> None:
    forged = stored(b"b", to=MessageQueue(topic, 0), base=3, properties=[ORIGIN])

    assert came_from(found(forged))["RMQ_ORIGIN_TOPIC"] == topic


def test_a_replay_keeps_the_origin_and_forgets_the_failures() -> None:
    letter = read(dead_copy(found(FULL, 1), "g", 9, "why"))
    lying = stored(b"b", to=MessageQueue("%DLQ%g", 0), properties=[letter.properties], tags=["t"])

    to_group, to_topic = read(replay_copy(found(lying), "g")), returned_copy(found(lying))

    assert to_group.properties == {"p": "1", "RMQ_GROUP": "g", **ORIGIN}
    assert (to_group.attempt, to_group.tag) == (1, "t")
    assert (to_topic.to, read(to_topic).properties) == (ORDERS_COPIES, {"p": "1"})


@pytest.mark.parametrize("said", [{}, {"RMQ_ORIGIN_TOPIC": "orders"}, {**ORIGIN, "RMQ_ORIGIN_QUEUE": "two"}])
def test_a_dead_letter_that_does_not_say_where_it_is_from_cannot_go_back(said: dict[str, str]) -> None:
    with pytest.raises(Damaged, match="offset 3 does not say where it is from"):
        returned_copy(found(stored(b"b", to=MessageQueue("%DLQ%g", 0), base=3, properties=[said])))


ROOM = layout.MAX_BATCH - layout.MAX_BODY


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        ({"properties": [{"a": "1", "b": "y" * (ROOM - 300)}]}, "2 properties"),
        ({"index_keys": [["k" * (ROOM - 250)]]}, "1 index keys"),
        ({"keys": ["o" * (ROOM - 250)]}, "the key"),
        ({"index_keys": [["k" * (ROOM // 2)]], "properties": [{"a": "y" * (ROOM // 2 - 300)}]}, "1 properties"),
        ({"index_keys": [["k" * (ROOM - 310)]], "properties": [{"a": "1"}]}, "1 properties, 1 index keys"),
    ],
)  # fmt: skip
def test_of_the_largest_message_the_least_needed_is_left_out(columns: dict[str, Any], left_out: str) -> None:
    largest = stored(b"x" * layout.MAX_BODY, tags=["t"], **columns)

    for copy in (dead_copy(found(largest), "g", 1, "r" * 255), retry_copy(found(largest), "g", 1, 3)):
        again = read(copy)
        assert (len(again.body), again.tag) == (layout.MAX_BODY, "t")
        assert again.properties["RMQ_LEFT_OUT"] == f"{left_out}: the copy would be too large"
        assert again.properties["RMQ_ORIGIN_TOPIC"] == "orders"


# ---- reading


def offsets_of(made: Sequence[MessageCopy | Refused]) -> list[int | type[Refused]]:
    return [type(copy) if isinstance(copy, Refused) else copy.queue_offset for copy in made]


def keep(one: SourceMessage) -> MessageCopy:
    return retry_copy(one, "g", 1, 3)


def test_a_batch_is_read_once_for_all_of_its_messages_that_are_wanted() -> None:
    log = Log(stored(b"a", b"b", b"c"), stored(b"d", base=3, at=8192))

    assert offsets_of(sources(log).copies([0, 2, 3], keep)) == [0, 2, 3]
    assert (log.reads, log.is_open) == ([4096, 8192], False)


def test_what_cannot_be_copied_stands_in_its_place_with_the_reason() -> None:
    broken = bytearray(stored(b"b", base=1, at=8192))
    broken[-12] ^= 1
    elsewhere = stored(b"c", to=MessageQueue("orders", 1), base=2, at=8192 * 2)
    log = Log(stored(b"a"), bytes(broken), elsewhere, stored(b"e", base=4, at=8192 * 3))

    made = sources(log).copies([0, 1, 2, 3, 4], keep)

    assert offsets_of(made) == [0, Damaged, Damaged, Damaged, 4]
    why = [copy.text for copy in made if isinstance(copy, Refused)]
    assert why[0].startswith("orders/2 is damaged at offset 1: the ")
    assert why[1:] == [
        "orders/2 is damaged at offset 2: another message lies in its place",
        "orders/2 is damaged at offset 3: the message cannot be copied",
    ]


def test_a_portion_ends_before_the_copy_that_is_too_much_and_has_one_at_least() -> None:
    size = PORTION_BYTES // 2 - 1000
    log = Log(*(stored(b"x" * size, base=i, at=(i + 1) << 24) for i in range(3)))

    assert offsets_of(sources(log).copies([0, 1, 2], keep)) == [0, 1]
    assert offsets_of(sources(log).copies([2], keep)) == [2]


def test_a_portion_has_so_many_copies_at_most() -> None:
    log = Log(stored(*[b"x"] * (PORTION_COPIES + 2)))

    assert len(sources(log).copies(range(PORTION_COPIES + 2), keep)) == PORTION_COPIES


def test_the_batch_that_was_read_last_serves_the_next_request_too() -> None:
    log, last = Log(stored(b"a", b"b", b"c"), stored(b"d", base=3, at=8192)), LastBatch()

    for offset in (0, 1, 2, 3, 2):
        sources(log, last).copies([offset], keep)

    assert log.reads == [4096, 8192, 4096]


def test_the_batch_that_was_read_last_is_not_taken_for_one_of_another_queue_or_topic() -> None:
    last = LastBatch()
    sources(Log(stored(b"a")), last).copies([0], keep)

    (anew,) = sources(Log(), last, generation=2).copies([0], keep)
    (other,) = sources(Log(stored(b"b", to=MessageQueue("orders", 1))), last, queue=MessageQueue("orders", 1)).copies(
        [0], keep
    )

    assert isinstance(anew, Damaged)
    assert isinstance(other, MessageCopy)
    assert read(other).body == b"b"
