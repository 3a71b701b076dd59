"""Every rule of what the log may hold has a log that breaks it and is caught, and one next to it that is fine."""

from __future__ import annotations

from rmq.wire.model import MessageQueue

from simulation.final_log import Log, judge_log
from simulation.groups import CAST, CONCURRENT, Group, Levels
from simulation.history import BrokerDown, BrokerUp, Event, Row, Sent

TOPIC = "orders"
Q, R, D = MessageQueue(TOPIC, 0), MessageQueue("%RETRY%g", 0), MessageQueue("%DLQ%g", 0)
GROUP = Group("g", CONCURRENT)
SENT = Sent(1.0, Q, 0, b"x", "p", 1, None, 0.5)
STORED = Row(Q, 0, b"x", 0, 0.9)
BACK = Row(R, 0, b"x", 1, 12.0, first="orders/0/0")
DEAD = Row(D, 0, b"x", 3, 12.0, first="orders/0/0")


def judged(events: list[Event], *rows: Row, group: Group = GROUP) -> list[str]:
    return judge_log(events, Log(rows), [group], Levels((1.0,), 2), TOPIC)


def test_what_was_acknowledged_lies_in_its_topic_once_and_where_its_producer_learned() -> None:
    assert judged([SENT], STORED) == []
    assert "in the log 0 times" in judged([SENT])[0]
    assert "in the log 2 times" in judged([SENT], STORED, STORED._replace(offset=1))[0]
    assert "is at 1" in judged([SENT], STORED._replace(offset=1))[0]


def test_what_a_producer_sent_later_lies_behind() -> None:
    later = SENT._replace(body=b"y", offset=1, number=2)
    rows = STORED, STORED._replace(body=b"y", offset=1)

    assert judged([SENT, later], *rows) == []
    assert "it is at 1" in judged([SENT, later._replace(number=0)], *rows)[0]


def waits(at: float, sent: Sent, *more: Event) -> list[str]:
    return judged([sent, *more], STORED._replace(at=at, origin="parked"))


def test_a_level_counts_from_when_the_message_was_stored_and_100_ms_are_not_late() -> None:
    sent = SENT._replace(offset=-1, delay_s=5.0)

    assert "it is early" in waits(5.499, sent)[0]
    assert waits(5.5, sent) == waits(6.1, sent) == []
    assert "it is late" in waits(6.101, sent)[0]


def test_an_exact_time_counts_by_itself() -> None:
    sent = SENT._replace(offset=-1, due=5.0)

    assert "it is early" in waits(4.999, sent)[0]
    assert waits(5.0, sent) == waits(5.1, sent) == []
    assert "it is late" in waits(5.101, sent)[0]


def test_a_broker_that_was_away_may_be_later_by_as_much() -> None:
    sent, away = SENT._replace(offset=-1, due=5.0), (BrokerDown(3.0), BrokerUp(9.0))

    assert waits(9.1, sent, *away) == []
    assert "it is late" in waits(9.101, sent, *away)[0]


def test_a_delay_that_is_delivered_twice_is_caught() -> None:
    sent = SENT._replace(offset=-1, due=5.0)
    row = STORED._replace(at=5.0, origin="parked")

    assert any("has 2 copies" in line for line in judged([sent], row, row._replace(offset=1)))


def test_what_a_group_gave_back_lies_there_once_for_each_delivery_below_the_limit() -> None:
    assert judged([SENT], STORED, BACK, BACK._replace(offset=1, attempts=2), DEAD) == []
    assert "given back 2 times after delivery 1" in judged([SENT], STORED, BACK, BACK._replace(offset=1))[0]
    assert "delivery 3, the last" in judged([SENT], STORED, BACK._replace(attempts=3))[0]


def test_a_dead_letter_exists_once() -> None:
    assert "is 2 dead letters of g" in judged([SENT], STORED, DEAD, DEAD._replace(offset=1))[0]


def test_copies_name_the_place_of_their_first_original() -> None:
    assert "comes from orders/0/7" in judged([SENT], STORED, BACK._replace(first="orders/0/7"))[0]
    assert "comes from None" in judged([SENT], STORED, DEAD._replace(first=None))[0]


def test_a_broadcasting_group_gives_nothing_back() -> None:
    assert judged([SENT], STORED, group=Group("g", CAST)) == []
    assert "%RETRY%g exists" in judged([SENT], STORED, BACK, group=Group("g", CAST))[0]
