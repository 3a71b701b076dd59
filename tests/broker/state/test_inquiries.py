"""Questions to members: who may answer what, until when, and how much may wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.inquiries import MAX_INQUIRIES, Answer, AskedMember, Inquiry, InquiryTable
from rmq.wire.errors import MemberNotFound, MemberSilent, TooManyInFlight

from rigs.batches import quick

A = AskedMember("a", b"A", "connection of a")
B = AskedMember("b", b"B", "connection of b")
AWAY = AskedMember("away", b"W", None)
EPSILON = 0.001


def told(inquiry: Inquiry) -> list[tuple[str, object]]:
    """Each member with its words, or the kind of error."""
    return [(answer.member, answer.info or type(answer.error)) for answer in inquiry.result()]


def test_an_inquiry_is_over_when_all_have_answered_in_whatever_order() -> None:
    table = InquiryTable(1.0)
    inquiry = table.begin("admin", 7, [A, B], now=0.0)
    first, second = inquiry.tokens

    assert table.answer(second, b"B", b"by b", now=0.2) is inquiry
    assert not inquiry.is_over
    assert table.answer(first, b"A", b"by a", now=0.3) is inquiry

    assert inquiry.is_over
    assert inquiry.result() == [Answer("a", b"by a"), Answer("b", b"by b")]
    assert (inquiry.asker, inquiry.request_id, len(table)) == ("admin", 7, 0)


def test_only_the_session_that_was_asked_can_answer_and_only_once() -> None:
    table = InquiryTable(1.0)
    (token,) = table.begin("admin", 1, [A], now=0.0).tokens

    assert table.answer(token, b"B", b"by another", now=0.0) is None
    assert table.answer(token + 1, b"A", b"never asked", now=0.0) is None
    assert table.answer(token, b"A", b"by a", now=0.0) is not None
    assert table.answer(token, b"A", b"once more", now=0.0) is None


@pytest.mark.parametrize(("at", "in_time"), [(1.0 - EPSILON, True), (1.0, True), (1.0 + EPSILON, False)])
def test_an_answer_after_the_time_is_none_whether_or_not_a_tick_came_between(at: float, in_time: bool) -> None:
    ticked, unticked = InquiryTable(1.0), InquiryTable(1.0)
    (token,) = ticked.begin("admin", 1, [A], now=0.0).tokens
    unticked.begin("admin", 1, [A], now=0.0)

    expired = ticked.expire(now=at)

    assert [told(inquiry) for inquiry in expired] == ([] if in_time else [[("a", MemberSilent)]])
    assert (ticked.answer(token, b"A", b"x", now=at) is not None) == in_time
    assert (unticked.answer(token, b"A", b"x", now=at) is not None) == in_time


def test_the_silence_of_one_does_not_take_the_answer_of_another() -> None:
    table = InquiryTable(1.0)
    inquiry = table.begin("admin", 1, [A, AWAY, B], now=5.0)
    table.answer(inquiry.tokens[1], b"B", b"by b", now=5.5)

    assert table.expire(now=6.0) == []
    assert table.expire(now=6.1) == [inquiry]
    assert told(inquiry) == [("a", MemberSilent), ("away", MemberNotFound), ("b", b"by b")]
    assert inquiry.answers[0] is not None and "a did not answer within 1 s" in str(inquiry.answers[0].error)


@pytest.mark.parametrize("members", [[], [AWAY]])
def test_an_inquiry_without_members_is_over_at_once(members: list[AskedMember]) -> None:
    table = InquiryTable(1.0)

    assert table.begin("admin", 1, members, now=0.0).is_over
    assert [table.begin("admin", 1, members, now=0.0).is_over for _ in range(MAX_INQUIRIES)]
    assert table.expire(now=9.0) == []


def test_a_member_that_loses_its_connection_will_not_answer() -> None:
    table = InquiryTable(1.0)
    inquiry = table.begin("admin", 1, [A, B], now=0.0)
    table.answer(inquiry.tokens[1], b"B", b"by b", now=0.1)

    assert table.closed("connection of another") == []
    assert table.closed("connection of a") == [inquiry]
    assert told(inquiry) == [("a", MemberNotFound), ("b", b"by b")]
    assert table.answer(inquiry.tokens[0], b"A", b"over a new connection", now=0.2) is None


def test_who_asked_and_is_gone_leaves_nothing() -> None:
    table = InquiryTable(1.0, most=2)
    inquiry = table.begin("admin", 1, [A, B], now=0.0)
    table.answer(inquiry.tokens[0], b"A", b"by a", now=0.1)

    assert table.closed("admin") == []
    assert len(table) == 0
    assert table.answer(inquiry.tokens[1], b"B", b"by b", now=0.2) is None
    assert len(table.begin("other", 1, [A, B], now=0.3).tokens) == 2


def test_a_connection_that_asks_itself_and_ends_is_answered_nothing() -> None:
    table = InquiryTable(1.0)
    table.begin("connection of a", 1, [A], now=0.0)

    assert table.closed("connection of a") == []
    assert len(table) == 0


def test_one_who_asks_has_a_few_questions_and_another_still_may() -> None:
    table = InquiryTable(1.0)
    asked = [table.begin("admin", i, [A], now=0.0) for i in range(MAX_INQUIRIES)]

    with pytest.raises(TooManyInFlight, match="let one end first"):
        table.begin("admin", 99, [A], now=0.0)
    table.begin("other", 1, [A], now=0.0)
    table.answer(asked[3].tokens[0], b"A", b"x", now=0.5)

    assert not table.begin("admin", 100, [A], now=0.6).is_over


def test_what_was_answered_counts_until_its_request_is_over() -> None:
    """Else answers would pile up in requests that each wait for one last member."""
    table = InquiryTable(1.0, most=4)
    first = table.begin("admin", 1, [A, B], now=0.0)
    table.answer(first.tokens[0], b"A", b"x", now=0.1)
    table.begin("other", 2, [A, B], now=0.2)

    with pytest.raises(TooManyInFlight, match="4 members are being asked, 4 at most"):
        table.begin("third", 3, [A], now=0.3)
    table.answer(first.tokens[1], b"B", b"x", now=0.4)

    assert len(table.begin("third", 3, [A, B], now=0.5).tokens) == 2


steps = st.lists(
    st.tuples(st.sampled_from(["begin", "answer", "tick", "close"]), st.integers(0, 3), st.floats(0.0, 0.7)),
    max_size=40,
)


@quick
@given(steps)
def test_whatever_happens_every_inquiry_ends_once_or_its_asker_is_gone(script: list[tuple[str, int, float]]) -> None:
    table = InquiryTable(1.0, most=8)
    members = [AskedMember(f"m{i}", bytes([i]), f"c{i}") for i in range(4)]
    begun: list[Inquiry] = []
    over: list[Inquiry] = []
    gone: list[Inquiry] = []
    now = 0.0
    for what, who, pause_s in script:
        now += pause_s
        if what == "begin":
            try:
                begun.append(table.begin(f"asker{who}", len(begun), members[: who + 1], now=now))
            except TooManyInFlight:
                assert len(table) > 0
        elif what == "answer" and begun:
            inquiry = begun[who % len(begun)]
            place = who % len(inquiry.tokens)
            if table.answer(inquiry.tokens[place], bytes([place]), b"x", now=now) is not None and inquiry.is_over:
                over.append(inquiry)
        elif what == "tick":
            over += table.expire(now=now)
        elif what == "close":
            gone += [i for i in begun if i.asker == f"asker{who}" and not i.is_over and i not in gone]
            over += table.closed(f"asker{who}")
    over += table.expire(now=now + 1.1)

    assert len(table) == 0
    assert len(over) == len(set(map(id, over)))
    assert {id(inquiry) for inquiry in begun} == {id(inquiry) for inquiry in over + gone}
