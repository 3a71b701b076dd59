"""Every rule for concurrent groups has a history that breaks it and is caught, and one next to it that is fine."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.wire.model import MessageQueue

from simulation.concurrent import Findings, judge_concurrent
from simulation.final_log import Log
from simulation.groups import CONCURRENT, Group, Levels
from simulation.history import (
    DONE,
    FAILED,
    GIVEN_UP,
    BrokerCrashed,
    Committed,
    Ended,
    Event,
    Granted,
    Hindered,
    Killed,
    Lost,
    Promised,
    Released,
    Row,
    Sent,
    Started,
    Troubled,
)

TOPIC = "orders"
Q, R, D = MessageQueue(TOPIC, 0), MessageQueue("%RETRY%g", 0), MessageQueue("%DLQ%g", 0)
LEVELS = Levels((1.0, 2.0, 10.0, 30.0), 2)


class Story:
    """A history of one group, with so many messages; what is not said otherwise happens a second after the last."""

    def __init__(self, messages: int = 2, **settings: Any) -> None:
        self.group = Group("g", CONCURRENT, tuple(settings.items()))
        self.events: list[Event] = []
        self.rows: list[Row] = []
        self._now = 0.0
        self._call = 0
        for offset in range(messages):
            self.rows.append(Row(Q, offset, b"%d" % offset, 0, 0.0))
            self.events.append(Sent(0.0, Q, offset, b"%d" % offset, "p", offset))

    def add(self, *events: Event, at: float | None = None) -> Story:
        for event in events:
            self._now = self._now + 1.0 if at is None else at
            self.events.append(event._replace(at=self._now))
        return self

    def owns(self, epoch: int = 1, committed: int = 0, queue: MessageQueue = Q, process: str = "a") -> Story:
        return self.add(Granted(0.0, process, queue, epoch, committed, "g"))

    def call(self, *offsets: int, fates: Any = DONE, at: float | None = None, **more: Any) -> Story:
        """A call and its end, half a second later; without ``fates`` it goes on."""
        queue, epoch, process = more.get("queue", Q), more.get("epoch", 1), more.get("process", "a")
        attempt, lost = more.get("attempt", 1), more.get("lost", False)
        bodies = tuple(row.body for row in self.rows for offset in offsets if row[:2] == (queue, offset))
        self._call += 1
        called = Started(0.0, self._call, process, queue, epoch, offsets, (attempt,) * len(offsets), bodies, lost, "g")
        self.add(called, at=at)
        if fates is not None:
            self.ends(fates, more.get("takes_s", 0.5), more.get("level", 0))
        return self

    def ends(self, fates: Any = DONE, takes_s: float = 0.5, level: int = 0, call: int | None = None) -> Story:
        last = next(e for e in reversed(self.events) if isinstance(e, Started) and call in (None, e.call))
        fates = (fates,) * len(last.offsets) if isinstance(fates, str) else tuple(fates)
        return self.add(Ended(0.0, last.call, fates, level), at=self._now + takes_s)

    def row(self, queue: MessageQueue, offset: int, body: bytes, attempts: int, at: float) -> Story:
        self.rows.append(Row(queue, offset, body, attempts, at))
        return self

    def commits(self, offset: int, queue: MessageQueue = Q) -> Story:
        return self.add(Committed(0.0, queue, offset, group="g"))

    def judged(self) -> Findings:
        events = [*self.events, Hindered(self._now, self._now)]
        return judge_concurrent(events, Log(self.rows), self.group, LEVELS, TOPIC, grace_s=5.0)

    def is_fine(self) -> Findings:
        found = self.judged()
        assert found.violations == []
        return found

    def is_caught(self, text: str) -> None:
        violations = self.judged().violations
        assert any(text in line for line in violations), violations


def test_two_messages_that_are_processed_and_committed_are_fine_and_had_to_be_so_exactly_once() -> None:
    assert Story().owns().call(0, 1).commits(2).is_fine().strict


def test_out_of_order_is_fine_as_long_as_progress_waits_for_the_lowest_one() -> None:
    story = Story().owns().call(0, fates=None).call(1)

    story.commits(0).ends(DONE, call=1).commits(2).is_fine()


def test_progress_that_takes_the_highest_finished_offset_is_caught() -> None:
    story = Story().owns().call(0, fates=None).call(1)

    story.commits(2).ends(DONE, call=1).is_caught("0 is not finished")


def test_progress_that_a_crash_took_with_what_was_written_next_to_it_is_no_fault_unless_it_was_promised() -> None:
    def story(*said: Event) -> Story:
        story = Story(1).owns().call(0, fates=FAILED).commits(1).add(*said, BrokerCrashed(0.0))
        return story.owns(2, 0, process="b").call(0, epoch=2, process="b").commits(1)

    story().is_fine()
    story(Promised(0.0, Q, 1, group="g")).is_caught("0 is not finished")


# Retries


def failed_once(**changed: Any) -> Story:
    """The second of two messages fails at 3.5 s, comes back 10 s later and is processed."""
    at = changed.get("at", 13.5)
    story = Story().owns().call(0).call(1, fates=changed.get("fate", FAILED), at=3.0, level=changed.get("level", 0))
    if changed.get("is_copied", True):
        story.row(R, 0, b"1", changed.get("attempts", 1), at)
    story.commits(2).owns(2, -1, R)
    if changed.get("is_copied", True):
        story.call(0, queue=R, epoch=2, attempt=changed.get("attempt", 2), at=at + 0.01).commits(1, R)
    return story


def test_a_message_that_fails_comes_back_after_the_delay_of_its_level() -> None:
    assert failed_once().is_fine().strict


def test_a_send_back_that_forgets_is_caught() -> None:
    failed_once(is_copied=False).is_caught("1 is not finished")
    failed_once(is_copied=False).is_caught("neither processed nor a dead letter")


def test_a_retry_that_is_early_is_caught_and_so_is_one_that_is_late() -> None:
    failed_once(at=13.4).is_caught("comes back early")
    failed_once(at=13.61).is_caught("comes back late")
    failed_once(at=13.6).is_fine()


def test_the_level_that_a_listener_asks_for_is_the_one_that_counts() -> None:
    failed_once(level=1, at=4.5).is_fine()
    failed_once(level=1).is_caught("comes back late")


def test_a_wrong_number_of_an_attempt_is_caught() -> None:
    failed_once(attempt=1).is_caught("attempt 1 of 0 comes after 1")
    failed_once(attempts=2, attempt=3).is_caught("given back after delivery 2, which did not fail")


def test_giving_back_what_was_processed_is_caught() -> None:
    failed_once(fate=DONE).is_caught("which did not fail")


def test_a_message_that_cannot_be_given_back_is_tried_here_after_a_pause_and_with_the_next_number() -> None:
    def story(at: float, attempt: int = 2, fate: str = FAILED) -> Story:
        return Story(1).owns().call(0, at=2.0, fates=fate).call(0, at=at, attempt=attempt).commits(1)

    assert story(7.5).is_fine().local == 1
    story(7.4).is_caught("after it failed")
    story(7.5, attempt=1).is_caught("attempt 1 of 0 follows 1")
    story(7.5, fate=DONE).is_caught("has 0 again, which was done")


# Dead letters


def given_up(**changed: Any) -> Story:
    """A message fails at its three deliveries; or its listener asks for its end at once."""
    first = changed.get("first", FAILED)
    story = Story(1).owns().call(0, at=1.0, fates=first, level=-1 if first == GIVEN_UP else 0).commits(1).owns(2, -1, R)
    if first != GIVEN_UP:
        story.row(R, 0, b"0", 1, 11.5).call(0, queue=R, epoch=2, attempt=2, fates=FAILED, at=12.0).commits(1, R)
        if changed.get("attempts", 3) == 3:
            story.row(R, 1, b"0", 2, 42.5)
            story.call(1, queue=R, epoch=2, attempt=3, fates=changed.get("last", FAILED), at=43.0).commits(2, R)
    for offset in range(changed.get("dead", 1)):
        story.row(D, offset, b"0", 3, 44.0)
    return story


def test_a_message_is_a_dead_letter_after_exactly_its_last_attempt_or_when_its_listener_says_so() -> None:
    assert given_up().is_fine().strict
    given_up(first=GIVEN_UP).is_fine()
    given_up(attempts=2).is_caught("is a dead letter after [1, 2]")


def test_a_dead_letter_that_was_processed_is_caught() -> None:
    given_up(last=DONE).is_caught("was processed 1 times and is 1 dead letters")


def test_a_message_that_is_given_up_and_no_dead_letter_is_caught() -> None:
    given_up(dead=0).is_caught("neither processed nor a dead letter")


# Owners


def handed_over(*, released: bool = True, committed: int = 1, fate: str = DONE, killed: bool = False) -> Story:
    """The owner of a queue has processed one message, and the next one begins at an offset."""
    story = Story().owns().call(0, fates=fate)
    if released:
        story.add(Promised(0.0, Q, 1, group="g"), Released(0.0, "a", Q, 1, 1, "g")) if committed == 1 else story.add(
            Released(0.0, "a", Q, 1, 0, "g")
        )
    if killed:
        story.add(Killed(0.0, "a"))
    story.owns(2, committed, process="b")
    return story.call(*range(committed, 2), epoch=2, process="b").commits(2)


def test_a_queue_that_was_given_back_goes_on_where_it_ended() -> None:
    assert handed_over().is_fine().strict


def test_giving_a_message_again_after_a_clean_hand_over_is_caught() -> None:
    handed_over(committed=0).is_caught("though it was given back as finished")


def test_after_a_kill_what_was_in_flight_is_given_again() -> None:
    found = handed_over(committed=0, released=False, killed=True).is_fine()
    assert not found.strict
    assert found.again == 1


def test_giving_again_what_was_promised_is_caught_whatever_has_happened() -> None:
    story = Story().owns().call(0).add(Promised(0.0, Q, 1, group="g"), BrokerCrashed(0.0)).owns(2, 0, process="b")

    story.is_caught("granted at 0, and 1 was promised")
    story.call(0, 1, epoch=2, process="b").commits(2).is_caught("gives again 0: 1 was promised")


def test_a_hand_over_that_does_not_wait_for_running_calls_is_caught_unless_they_know_that_they_lost_the_queue() -> None:
    def story(*said: Event) -> Story:
        story = Story().owns().call(0, fates=None).add(*said).owns(2, 0, process="b").call(0, 1, epoch=2, process="b")
        return story.commits(2).ends(DONE, call=1)

    story().is_caught("which did not know")
    assert story(Lost(0.0, 1)).is_fine().fenced_overlaps == 1


def test_a_call_under_an_epoch_that_is_fenced_off_is_caught() -> None:
    story = Story().owns().owns(2, 0, process="b").call(0, epoch=2, process="b").call(1, epoch=1).commits(2)

    story.is_caught("which fences it")


def test_a_call_that_begins_without_a_lease_is_caught() -> None:
    Story().owns().call(0, lost=True).call(1).commits(2).is_caught("could not be proven")


def test_what_is_done_under_a_lease_that_another_has_counts_for_nothing() -> None:
    story = Story(1).owns().call(0, fates=None).add(Lost(0.0, 1)).owns(2, 0, process="b").ends(DONE)

    story.commits(1).is_caught("0 is not finished")
    Story(1).owns().call(0, fates=None).add(Lost(0.0, 1)).ends(DONE).commits(1).is_fine()  # it was proven again


# Delays and the end


@pytest.mark.parametrize(("at", "fine"), [(4.999, False), (5.0, True)])
def test_nothing_is_given_before_it_is_due(at: float, fine: bool) -> None:
    story = Story(0).owns()
    story.rows.append(Row(Q, 0, b"x", 0, 5.0))
    story.events.insert(0, Sent(1.0, Q, -1, b"x", "p", 1, None, 0.5, 0.0, 5.0))
    story.call(0, at=at).commits(1)

    story.is_fine() if fine else story.is_caught("which is due at 5.000 s")


def test_what_is_given_must_be_in_the_log() -> None:
    story = Story().owns().call(0, 1).commits(2)
    story.rows[1] = story.rows[1]._replace(body=b"other")

    story.is_caught("is in the log")


def test_a_message_that_is_late_or_not_committed_in_the_end_is_caught() -> None:
    Story().owns().call(0, 1).commits(1).is_caught("committed up to 1 only")
    story = Story(1).owns().add(Hindered(0.0, 3.0), at=3.0).call(0, at=11.0).commits(1)
    events = story.events
    late = judge_concurrent(events, Log(story.rows), story.group, LEVELS, TOPIC, grace_s=5.0)
    assert any("is given late" in line for line in late.violations)


def test_a_call_beyond_its_time_out_may_be_taken_from_its_listener() -> None:
    story = Story(1, consume_timeout_s=4.0).owns().call(0, at=2.0, fates=None).row(R, 0, b"0", 1, 16.0)
    story.add(Committed(0.0, Q, 1, group="g"), at=6.0 + 0.1)
    story.owns(2, -1, R).call(0, queue=R, epoch=2, attempt=2, at=16.1).commits(1, R).ends(DONE, call=1)

    story.is_fine()
    Story(1, consume_timeout_s=4.0).owns().call(0, fates=None).row(R, 0, b"0", 1, 16.0).commits(1).is_caught(
        "0 is not finished"
    )


def test_a_retry_of_somebody_whose_network_failed_may_be_late() -> None:
    story = failed_once(at=20.0)
    story.events.insert(0, Troubled(0.0, "a"))
    story.is_caught("late")  # of a process that is not known yet

    story = failed_once(at=20.0)
    story.events.append(Troubled(30.0, "a"))
    story.is_fine()
