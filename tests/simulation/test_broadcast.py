"""Every rule for broadcasting groups has a history that breaks it and is caught, and one next to it that is fine."""

from __future__ import annotations

from typing import Any

from rmq.wire.model import MessageQueue

from simulation.broadcast import judge_broadcast
from simulation.concurrent import Findings
from simulation.final_log import Log
from simulation.groups import CAST, CAST_ORDERLY, Group
from simulation.history import DONE, FAILED, Born, Ended, Event, Hindered, Killed, Left, Row, Sent, Started

TOPIC = "orders"
Q = MessageQueue(TOPIC, 0)


class Story:
    """A history of one instance, with four messages; what is not said otherwise happens a second after the last."""

    def __init__(self, kind: str = CAST, **settings: Any) -> None:
        self.group = Group("g", kind, tuple(settings.items()))
        self.rows = [Row(Q, offset, b"%d" % offset, 0, 0.0) for offset in range(4)]
        self.events: list[Event] = [Sent(0.0, Q, row.offset, row.body, "p", row.offset) for row in self.rows]
        self._now = 0.0
        self._call = 0
        self._life = 0

    def add(self, event: Event, at: float | None = None) -> Story:
        self._now = self._now + 1.0 if at is None else at
        self.events.append(event._replace(at=self._now))
        return self

    def born(self) -> Story:
        self._life += 1
        return self.add(Born(0.0, f"i-{self._life}", "i", "g"))

    def left(self) -> Story:
        return self.add(Left(0.0, f"i-{self._life}"))

    def killed(self, at: float | None = None) -> Story:
        return self.add(Killed(0.0, f"i-{self._life}"), at)

    def call(self, *offsets: int, fate: str | None = DONE, attempt: int = 1) -> Story:
        self._call += 1
        bodies = tuple(self.rows[offset].body for offset in offsets)
        name, attempts = f"i-{self._life}", (attempt,) * len(offsets)
        self.add(Started(0.0, self._call, name, Q, 0, offsets, attempts, bodies, group="g"))
        if fate is not None:
            self.add(Ended(0.0, self._call, (fate,) * len(offsets)))
        return self

    def judged(self) -> Findings:
        return judge_broadcast([*self.events, Hindered(self._now, self._now)], Log(self.rows), self.group, TOPIC)

    def is_fine(self) -> None:
        assert self.judged().violations == []

    def is_caught(self, text: str) -> None:
        violations = self.judged().violations
        assert any(text in line for line in violations), violations


def test_everything_in_order_is_fine() -> None:
    Story(CAST_ORDERLY).born().call(0, 1).call(2).call(3).is_fine()


def test_concurrent_calls_may_overlap_and_ordered_ones_may_not() -> None:
    Story().born().call(0, 1, fate=None).call(2, 3).add(Ended(0.0, 1, (DONE, DONE))).is_fine()
    Story(CAST_ORDERLY).born().call(0, 1, fate=None).call(2, 3).is_caught("overlaps")


def test_a_message_that_is_left_out_is_caught_and_so_is_one_that_is_given_twice() -> None:
    Story().born().call(0, 1).call(3).is_caught("is not what is due: that is offset 2")
    Story().born().call(0, 1).call(1, 2, 3).is_caught("is not what is due")
    Story().born().call(0, 2, 3).is_caught("has a gap")
    Story().born().call(0, 1).is_caught("2 is never finished by i")


def test_a_concurrent_message_that_failed_is_passed_and_an_ordered_one_given_again() -> None:
    Story().born().call(0, fate=FAILED).call(1, 2, 3).is_fine()
    Story(CAST_ORDERLY).born().call(0, fate=FAILED).call(0, 1, attempt=2).call(2, 3).is_caught("attempt 2 of offset 1")
    Story(CAST_ORDERLY).born().call(0, fate=FAILED).call(0, attempt=2).call(1, 2, 3).is_fine()
    Story(CAST_ORDERLY).born().call(0, fate=FAILED).call(1, 2, 3).is_caught("is not what is due: that is offset 0")


def test_an_ordered_message_is_passed_after_its_last_attempt() -> None:
    story = Story(CAST_ORDERLY, max_attempts=2).born().call(0, fate=FAILED).call(0, attempt=2, fate=FAILED)
    story.call(1, 2, 3).is_fine()

    story = Story(CAST_ORDERLY, max_attempts=2).born().call(0, fate=FAILED).call(0, attempt=2, fate=FAILED)
    story.call(0, attempt=3).is_caught("is beyond the last")


def test_an_instance_that_stopped_cleanly_goes_on_exactly_where_it_ended() -> None:
    Story().born().call(0, 1).left().born().call(2, 3).is_fine()
    Story().born().call(0, 1).left().born().call(1, 2, 3).is_caught("goes back")
    Story().born().call(0, 1).left().born().call(3).is_caught("leaves a gap")


def test_an_instance_that_was_killed_gives_again_what_it_had_not_written() -> None:
    Story().born().call(0, 1).killed().born().call(0, 1, 2, 3).is_fine()
    Story().born().call(0, 1).killed().born().call(3).is_caught("leaves a gap")
    Story().born().call(0, 1).killed(at=20.0).born().call(0, 1, 2, 3).is_caught("goes back")


def test_a_life_in_between_that_did_nothing_changes_nothing() -> None:
    Story().born().call(0, 1).killed().born().left().born().call(0, 1, 2, 3).is_fine()
    Story().born().call(0, 1).left().born().killed().born().call(0, 1, 2, 3).is_caught("goes back")


def test_two_lives_of_an_instance_at_once_are_caught() -> None:
    Story().born().call(0, 1).born().call(0, 1, 2, 3).is_caught("lives, and i-1 too")


def test_what_is_given_must_be_in_the_log() -> None:
    story = Story().born().call(0, 1, 2, 3)
    story.rows[2] = story.rows[2]._replace(body=b"other")

    story.is_caught("is in the log")
