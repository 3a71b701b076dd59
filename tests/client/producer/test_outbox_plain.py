"""The short way of single messages that have nothing but a body: the same bytes as the long way, whatever waits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.producer.outbox import WORTH_BYTES, Outbox
from rmq.client.producer.pending import Cut, Single
from rmq.client.producer.routing import Choice
from rmq.wire.batch.batch import OLDEST, ProducerMark
from rmq.wire.batch.layout import MAX_COUNT
from rmq.wire.model import Message

BY = ProducerMark(7, 1, 0)
BORN_AT = 1_700_000_000_000_000


class LongWay(Outbox):
    """An outbox that goes no other."""

    __slots__ = ()

    def _cut_plain(self, by: ProducerMark) -> None:
        return None


def single(body: bytes, born_at: int = BORN_AT, tag: str | None = None, key: str | None = None) -> Single:
    return Single("orders", Message("orders", body, tag=tag), Choice(), key, born_at)


def cuts(outbox: Outbox, singles: list[Single]) -> list[tuple[bytes, list[Cut]]]:
    for one in singles:
        outbox.put(one)
    found = []
    while (cut := outbox.cut(BY)) is not None:
        found.append((b"".join(cut[0]), cut[1]))
    assert not outbox.parcels
    return found


kinds = st.tuples(
    st.binary(max_size=20),
    st.sampled_from([BORN_AT, BORN_AT + 1, OLDEST - 1]),
    st.sampled_from([None, None, None, "t"]),
    st.sampled_from([None, None, None, "k"]),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(kinds, max_size=12))
def test_both_ways_give_the_same_bytes(rows: list[tuple[bytes, int, str | None, str | None, bool]]) -> None:
    def made() -> list[Single]:
        singles = [single(body, born_at, tag, key) for body, born_at, tag, key, _ in rows]
        for one, (*_, is_over) in zip(singles, rows, strict=True):
            if is_over:
                one.give_up()
        return singles

    short, long = cuts(Outbox("orders", 3), made()), cuts(LongWay("orders", 3), made())

    assert [data for data, _ in short] == [data for data, _ in long]
    assert [len(pieces) for _, pieces in short] == [len(pieces) for _, pieces in long]


def test_more_messages_or_bytes_than_a_batch_is_worth_go_the_long_way() -> None:
    many = [single(b"x") for _ in range(MAX_COUNT + 1)]
    long = [single(bytes(WORTH_BYTES // 2)) for _ in range(5)]

    assert [len(pieces) for _, pieces in cuts(Outbox("orders", 3), many)] == [MAX_COUNT, 1]
    assert [len(pieces) for _, pieces in cuts(Outbox("orders", 3), long)] == [2, 2, 1]


def test_a_long_body_alone_is_not_copied() -> None:
    outbox, body = Outbox("orders", 3), bytes(WORTH_BYTES + 1)
    outbox.put(single(body))

    cut = outbox.cut(BY)

    assert cut is not None and any(part is body for part in cut[0])


def test_what_is_put_back_is_cut_again_with_what_came_since() -> None:
    outbox = Outbox("orders", 3)
    first = [single(b"1"), single(b"2")]
    for one in first:
        outbox.put(one)
    cut = outbox.cut(BY)
    assert cut is not None and cut[1] == first

    outbox.put_back(cut[1])
    outbox.put(single(b"3"))
    again = outbox.cut(BY)

    assert again is not None and [len(again[1]), again[1][:2]] == [3, first]
    assert outbox.cut(BY) is None


def test_what_is_put_back_keeps_what_it_has_besides_its_body() -> None:
    def again(outbox: Outbox) -> bytes:
        outbox.put(single(b"1", tag="t"))
        cut = outbox.cut(BY)
        assert cut is not None
        outbox.put_back(cut[1])
        outbox.put(single(b"2"))
        cut = outbox.cut(BY)
        assert cut is not None
        return b"".join(cut[0])

    assert again(Outbox("orders", 3)) == again(LongWay("orders", 3))


def test_one_that_cannot_be_encoded_fails_alone() -> None:
    bad = Single("or\ud800ders", Message("orders", b"2"), Choice(), None, BORN_AT)
    outbox = Outbox("or\ud800ders", 3)
    outbox.put(bad)

    assert outbox.cut(BY) is None
    assert bad.settled
