"""
Cutting batches from what waits for a queue.

The short way of single messages that have nothing but a body: the same bytes as the long way, whatever waits.
"""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.producer.outbox import DUE_TOGETHER_US, PACKED_BYTES, WORTH_BYTES, Outbox
from rmq.client.producer.pending import Cut, PendingMessage, PendingSend
from rmq.client.producer.routing import Choice
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import OLDEST, ProducerMark
from rmq.wire.batch.compression import CODECS
from rmq.wire.batch.layout import MAX_COUNT
from rmq.wire.batch.texts import pack_bodies
from rmq.wire.deferral import Delay
from rmq.wire.model import Message, StoredMessage, from_us, gather
from rmq.wire.stores import StoreIds

from rigs.batches import BORN_AT

BY = ProducerMark(7, 1)


def of_bodies(*bodies: bytes, key: str | None = None, born_at: int = 5) -> PendingSend:
    return PendingSend("orders", pack_bodies(bodies), None, choice=Choice(), key=key, born_at=born_at)


def waiting(delay: Delay, born_at: int = 5) -> PendingSend:
    return PendingSend(
        "orders",
        pack_bodies([b"x"]),
        None,
        choice=Choice(),
        key=None,
        born_at=born_at,
        delay=delay,
    )


def of_messages(*messages: Message, key: str | None = None, born_at: int = 5) -> PendingSend:
    bodies, extras = gather(messages)
    return PendingSend(
        "orders", pack_bodies(bodies), messages, choice=Choice(), key=key, born_at=born_at, extras=extras
    )


def outbox_of(*sends: PendingSend) -> Outbox:
    outbox = Outbox("orders", 3)
    for pending in sends:
        outbox.put(pending)
    return outbox


def read(data: bytearray) -> list[StoredMessage]:
    header = batches.check(data, stamped=False).header
    by = layout.Stamp(1, 0, 0, 0, 0, 0, 1, header.queue_id, header.kind)
    stamped = layout.stamp(data, header.header_size, by) + data[layout.BROKER_PART :]
    return batches.read(stamped, stores=StoreIds(1)).messages()


def bodies_of(outbox: Outbox) -> list[list[bytes]]:
    cuts = []
    while (cut := outbox.cut(BY)) is not None:
        cuts.append([message.body for message in read(bytearray().join(cut[0]))])
    return cuts


def test_sends_of_all_kinds_share_a_batch_and_keep_what_is_theirs() -> None:
    first = of_messages(
        Message("orders", b"1", tag="t", index_keys=("a", "b"), properties={"p": "q"}), key="k1", born_at=1
    )
    outbox = outbox_of(first, of_bodies(b"2", b"3", key="k2", born_at=2), of_messages(Message("orders", b"4")))

    cut = outbox.cut(BY)

    assert cut is not None
    messages = read(bytearray().join(cut[0]))
    assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]
    assert [message.key for message in messages] == ["k1", "k2", "k2", None]
    assert [message.tag for message in messages] == ["t", None, None, None]
    assert messages[0].index_keys == ("a", "b") and messages[0].properties == {"p": "q"}
    assert [message.born_at.microsecond for message in messages] == [1, 2, 2, 5]
    assert [(piece.start, piece.count) for piece in cut[1]] == [(0, 1), (0, 2), (0, 1)]
    assert not outbox.sends and outbox.cut(BY) is None


def test_what_nobody_waits_for_is_left_out() -> None:
    gone = of_bodies(b"2")
    outbox = outbox_of(of_bodies(b"1"), gone, of_bodies(b"3"))

    gone.give_up()

    assert bodies_of(outbox) == [[b"1", b"3"]]


class _Broken(UserDict[str, str]):
    """Properties that are in order when a message is made, and nothing but trouble later."""

    broken = False

    def __len__(self) -> int:
        if self.broken:
            raise RuntimeError("cannot be looked at")
        return super().__len__()


def test_whatever_a_callers_own_mapping_raises_fails_that_message_alone() -> None:
    properties = _Broken(a="b")
    bad = of_messages(Message("orders", b"bad", properties=properties))
    outbox = outbox_of(of_bodies(b"1"), of_messages(Message("orders", b"2", tag="t")), bad, of_bodies(b"3"))
    properties.broken = True

    assert [body for cut in bodies_of(outbox) for body in cut] == [b"1", b"2", b"3"]
    assert bad.settled


def single(message: Message, key: str | None = None) -> PendingMessage:
    return PendingMessage("orders", message, Choice(), key, BORN_AT)


@pytest.mark.parametrize(
    ("fields", "key", "is_short"),
    [
        ({}, None, True),
        ({"tag": "t"}, None, False),
        ({"index_keys": ("k",)}, None, False),
        ({"delay_level": 1}, None, False),
        ({}, "k", False),
        ({"key": "k"}, "k", False),
    ],
)
def test_a_message_alone_goes_the_short_way_if_it_has_nothing_but_a_body(
    fields: dict[str, Any], key: str | None, is_short: bool
) -> None:
    message = Message("orders", b"paid", **fields)

    cut = outbox_of(single(message, key)).cut(BY)

    assert cut is not None
    (read_back,) = read(bytearray().join(cut[0]))
    assert (read_back.body, read_back.tag, read_back.index_keys) == (b"paid", message.tag, message.index_keys)
    assert (read_back.key, read_back.born_at) == (key, from_us(BORN_AT))
    assert (len(cut[0]) == 1) == is_short, "in one part, or with its body apart"


def test_an_outbox_is_full_with_many_at_once_or_many_bytes() -> None:
    assert not outbox_of(of_bodies(b"1")).full
    assert outbox_of(of_bodies(b"1", b"2")).full, "the caller gathered them already"
    assert outbox_of(of_bodies(bytes(1 << 20))).full


def test_calls_share_a_batch_until_it_is_long_enough() -> None:
    half = bytes(WORTH_BYTES // 2)

    assert [len(cut) for cut in bodies_of(outbox_of(*(of_bodies(half, b"x") for _ in range(5))))] == [4, 4, 2]


def packing(*bodies: bytes) -> Outbox:
    outbox = Outbox("orders", 3, CODECS.by_name("zlib"))
    outbox.put(of_bodies(*bodies))
    return outbox


def test_an_outbox_with_a_codec_compresses_what_shrinks() -> None:
    text, noise = bytes(range(256)) * 40, random.Random(1).randbytes(1000)

    packed, plain = packing(text, b"", text).cut(BY), packing(noise).cut(BY)

    assert packed is not None and plain is not None
    assert sum(map(len, packed[0])) < len(text)
    assert [message.body for message in read(bytearray().join(packed[0]))] == [text, b"", text]
    assert b"".join(plain[0]) == b"".join(outbox_of(of_bodies(noise)).cut(BY)[0])  # type: ignore[index]


def test_compressed_batches_are_cut_smaller_and_a_larger_body_travels_alone() -> None:
    """Packing and unpacking take time in which nothing else runs: here, in the broker and in every reader."""
    third, large = PACKED_BYTES // 3, layout.MAX_BODY
    bodies = [bytes(size) for size in (third, third, third, third, large, large, 1, PACKED_BYTES, 1)]

    cuts = bodies_of(packing(*bodies))

    assert [list(map(len, cut)) for cut in cuts] == [[third] * 3, [third], [large], [large], [1], [PACKED_BYTES], [1]]


def cut_delays(outbox: Outbox) -> list[tuple[int, int, int]]:
    """Messages, level and exact time of each batch."""
    cuts = []
    while (cut := outbox.cut(BY)) is not None:
        header = batches.check(b"".join(cut[0]), stamped=False).header
        cuts.append((header.count, header.delay_level, header.deliver_at))
    return cuts


def test_equally_long_delays_share_a_batch_if_they_begin_within_10_ms_and_are_never_early() -> None:
    births = [0, 4_000, DUE_TOGETHER_US, DUE_TOGETHER_US + 1, 2 * DUE_TOGETHER_US + 1, 2 * DUE_TOGETHER_US + 2, 50]

    cuts = cut_delays(outbox_of(*(waiting(Delay(after_us=1_000_000), born) for born in births)))

    assert cuts == [(3, 0, 1_010_000), (2, 0, 1_020_001), (1, 0, 1_020_002), (1, 0, 1_000_050)]


def test_a_batch_has_one_delay_whenever_its_messages_were_born() -> None:
    delays = [Delay(1), Delay(1), Delay(2), Delay(at_us=77), Delay(at_us=77), Delay(after_us=77), Delay(after_us=78)]

    cuts = cut_delays(outbox_of(*(waiting(delay, 1_000_000 * i) for i, delay in enumerate(delays))))

    assert cuts == [(2, 1, 0), (1, 2, 0), (2, 0, 77), (1, 0, 5_000_077), (1, 0, 6_000_078)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6))
def test_whatever_the_delays_are_each_message_leaves_with_its_own_and_in_order(levels: list[list[int]]) -> None:
    sends = [of_messages(*(Message("orders", b"%d" % level, delay_level=level) for level in run)) for run in levels]
    outbox, sent, before = outbox_of(*sends), [], None
    while (cut := outbox.cut(BY)) is not None:
        level = batches.check(b"".join(cut[0]), stamped=False).header.delay_level
        assert level != before, "messages with one delay were cut apart"
        before = level
        bodies = [message.body for message in read(bytearray().join(cut[0]))]
        assert bodies == [b"%d" % level] * len(bodies)
        sent += bodies

    assert sent == [b"%d" % level for run in levels for level in run]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8), st.data())
def test_whatever_is_cut_and_put_back_leaves_once_and_in_order(sizes: list[list[int]], data: st.DataObject) -> None:
    numbers = iter(range(1000))
    sends = [of_bodies(*(b"%d" % next(numbers) for _ in run)) for run in sizes]
    outbox = outbox_of(*sends)
    cuts: list[tuple[bytearray, Sequence[object]]] = []
    for step in data.draw(st.lists(st.booleans(), max_size=12)):
        if step and (cut := outbox.cut(BY)) is not None:
            cuts.append(cut)
        elif not step and cuts:
            outbox.put_back(cuts.pop()[1])  # type: ignore[arg-type]

    left = [body for bodies in bodies_of(outbox) for body in bodies]
    sent = [message.body for cut in cuts for message in read(bytearray().join(cut[0]))]

    total = sum(map(len, sizes))
    assert sent + left == [b"%d" % i for i in range(total)]


BY_PLAIN = ProducerMark(7, 1, 0)
BORN_AT_PLAIN = 1_700_000_000_000_000


class LongWay(Outbox):
    """An outbox that goes no other."""

    __slots__ = ()

    def _cut_plain(self, by: ProducerMark) -> None:
        return None


def plain(body: bytes, born_at: int = BORN_AT_PLAIN, tag: str | None = None, key: str | None = None) -> PendingMessage:
    return PendingMessage("orders", Message("orders", body, tag=tag), Choice(), key, born_at)


def cuts(outbox: Outbox, singles: list[PendingMessage]) -> list[tuple[bytes, list[Cut]]]:
    for one in singles:
        outbox.put(one)
    found = []
    while (cut := outbox.cut(BY_PLAIN)) is not None:
        found.append((b"".join(cut[0]), cut[1]))
    assert not outbox.sends
    return found


kinds = st.tuples(
    st.binary(max_size=20),
    st.sampled_from([BORN_AT_PLAIN, BORN_AT_PLAIN + 1, OLDEST - 1]),
    st.sampled_from([None, None, None, "t"]),
    st.sampled_from([None, None, None, "k"]),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(kinds, max_size=12))
def test_both_ways_give_the_same_bytes(rows: list[tuple[bytes, int, str | None, str | None, bool]]) -> None:
    def made() -> list[PendingMessage]:
        singles = [plain(body, born_at, tag, key) for body, born_at, tag, key, _ in rows]
        for one, (*_, is_over) in zip(singles, rows, strict=True):
            if is_over:
                one.give_up()
        return singles

    short, long = cuts(Outbox("orders", 3), made()), cuts(LongWay("orders", 3), made())

    assert [data for data, _ in short] == [data for data, _ in long]
    assert [len(pieces) for _, pieces in short] == [len(pieces) for _, pieces in long]


def test_more_messages_or_bytes_than_a_batch_is_worth_go_the_long_way() -> None:
    many = [plain(b"x") for _ in range(MAX_COUNT + 1)]
    long = [plain(bytes(WORTH_BYTES // 2)) for _ in range(5)]

    assert [len(pieces) for _, pieces in cuts(Outbox("orders", 3), many)] == [MAX_COUNT, 1]
    assert [len(pieces) for _, pieces in cuts(Outbox("orders", 3), long)] == [2, 2, 1]


def test_a_long_body_alone_is_not_copied() -> None:
    outbox, body = Outbox("orders", 3), bytes(WORTH_BYTES + 1)
    outbox.put(plain(body))

    cut = outbox.cut(BY_PLAIN)

    assert cut is not None and any(part is body for part in cut[0])


def test_what_is_put_back_is_cut_again_with_what_came_since() -> None:
    outbox = Outbox("orders", 3)
    first = [plain(b"1"), plain(b"2")]
    for one in first:
        outbox.put(one)
    cut = outbox.cut(BY_PLAIN)
    assert cut is not None and cut[1] == first

    outbox.put_back(cut[1])
    outbox.put(plain(b"3"))
    again = outbox.cut(BY_PLAIN)

    assert again is not None and [len(again[1]), again[1][:2]] == [3, first]
    assert outbox.cut(BY_PLAIN) is None


def test_what_is_put_back_keeps_what_it_has_besides_its_body() -> None:
    def again(outbox: Outbox) -> bytes:
        outbox.put(plain(b"1", tag="t"))
        cut = outbox.cut(BY_PLAIN)
        assert cut is not None
        outbox.put_back(cut[1])
        outbox.put(plain(b"2"))
        cut = outbox.cut(BY_PLAIN)
        assert cut is not None
        return b"".join(cut[0])

    assert again(Outbox("orders", 3)) == again(LongWay("orders", 3))


def test_one_that_cannot_be_encoded_fails_alone() -> None:
    bad = PendingMessage("or\ud800ders", Message("orders", b"2"), Choice(), None, BORN_AT_PLAIN)
    outbox = Outbox("or\ud800ders", 3)
    outbox.put(bad)

    assert outbox.cut(BY_PLAIN) is None
    assert bad.settled
