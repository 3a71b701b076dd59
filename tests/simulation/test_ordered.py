"""Every rule of the checker has a history that breaks it and is caught, and one next to it that is fine."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.history import (
    CUT,
    DONE,
    FAILED,
    KEPT,
    ROLLED_BACK,
    BrokerCrashed,
    Committed,
    Continued,
    DeadLettered,
    Ended,
    Event,
    Granted,
    Hindered,
    Killed,
    Lost,
    OffsetReset,
    Promised,
    Sent,
    Sink,
    Started,
    Stopped,
    Wrote,
)
from simulation.ordered import Verdict, judge

Q = ("g", "orders", 0)


class Story:
    """Writes a history; every event is a second later than the one before."""

    def __init__(self, messages: int = 6, *, tags: tuple[str | None, ...] = ()) -> None:
        self.events: list[Event] = []
        self._call = 0
        for offset in range(messages):
            tag = tags[offset] if tags else None
            self.add(Sent(0.0, Q, offset, b"%d" % offset, "p", offset, tag))

    def add(self, *events: Event) -> Story:
        for event in events:
            self.events.append(event._replace(at=float(len(self.events))))
        return self

    def granted(self, epoch: int, committed: int, process: str = "a") -> Story:
        return self.add(Granted(0.0, process, Q, epoch, committed))

    def start(self, *offsets: int, epoch: int = 1, process: str = "a", attempt: int = 1, **more: Any) -> Story:
        self._call += 1
        attempts = more.pop("attempts", (attempt,) * len(offsets))
        return self.add(Started(0.0, self._call, process, Q, epoch, offsets, attempts, **more))

    def end(self, result: str = DONE, call: int | None = None) -> Story:
        return self.add(Ended(0.0, call or self._call, (result,)))

    def call(self, *offsets: int, result: str = DONE, **more: Any) -> Story:
        return self.start(*offsets, **more).end(result)

    def committed(self, offset: int, epoch: int | None = None) -> Story:
        return self.add(Committed(0.0, Q, offset, epoch))

    def promised(self, offset: int) -> Story:
        return self.committed(offset).add(Promised(0.0, Q, offset))

    def judged(self, **options: Any) -> Verdict:
        return judge(self.events, **options)


def two_owners() -> Story:
    """The first call of ``b`` begins while a call of ``a`` is running, which knows that it lost the queue."""
    return Story().start(0).add(Lost(0.0, 1)).start(0, epoch=2, process="b")


FINE = {
    "offsets ascend": Story().call(0).call(1, 2).call(3),
    "what failed is given again": Story().call(0).call(1, 2, result=FAILED).call(1, attempt=2).call(2, attempt=2),
    "what was kept is rolled back": Story().call(0, result=KEPT).call(1, result=ROLLED_BACK).call(0, 1, attempt=2),
    "what was kept is done with the next commit": Story().call(0, result=KEPT).call(1).committed(2),
    "a call that was cut is given again": Story().call(0, result=CUT).call(0),
    "a new owner begins at the committed offset": (
        Story()
        .call(0)
        .call(1)
        .committed(1)
        .granted(2, 1, "b")
        .call(1, epoch=2, process="b")
        .call(2, epoch=2, process="b")
    ),
    "a new owner begins at the start of a queue without progress": Story().granted(1, -1).call(0),
    "what is processed is committed": Story().call(0).committed(1, epoch=1).call(1).committed(2, epoch=1),
    "a broker that crashed forgets what it had not acknowledged": (
        Story().call(0).promised(1).call(1).committed(2).add(BrokerCrashed(0.0)).granted(2, 1).call(1, epoch=2)
    ),
    "a fenced overlap": two_owners().end(call=1).end(call=2),
    "an overlap with a process that is stopped": (
        Story().start(0).add(Stopped(0.0, "a")).start(0, epoch=2, process="b").add(Continued(0.0, "a")).end(call=1)
    ),
    "a process that was killed has no calls": Story().start(0).add(Killed(0.0, "a")).start(0, epoch=2, process="b"),
    "attempts go up": Story().call(0, result=FAILED).call(0, result=FAILED, attempt=2).call(0, attempt=3),
    "an attempt that was not recorded has the same number at the next owner": (
        Story().call(0, result=FAILED).call(0, epoch=2, process="b")
    ),
    "a dead letter counts as processed": Story().call(0, result=FAILED).add(DeadLettered(0.0, Q, 0)).committed(1),
    "a dead letter is left out": (
        Story().call(0, 1, 2, result=FAILED).add(DeadLettered(0.0, Q, 1)).call(0, 2, attempt=2).call(3).committed(4)
    ),
    "after a dead letter comes what an owner before had, with the same number": (
        Story()
        .call(0)
        .call(1, result=KEPT)
        .granted(2, 0, "b")
        .call(0, epoch=2, process="b", result=FAILED)
        .add(DeadLettered(0.0, Q, 0))
        .call(1, epoch=2, process="b")
    ),
    "a new owner begins after dead letters": (
        Story().granted(1, 0).start(0).add(DeadLettered(0.0, Q, 0), Killed(0.0, "a")).granted(2, 0).call(1, epoch=2)
    ),
    "the sink does without dead letters": Story().add(DeadLettered(0.0, Q, 0), Wrote(0.0, Q, 1, 1)),
    "an owner of before a reset goes on until it hears of it, for nothing": (
        Story()
        .call(0)
        .call(1)
        .add(OffsetReset(0.0, Q, 0, 1), Promised(0.0, Q, 2, 1))
        .call(2)
        .add(Wrote(0.0, Q, 1, 2))
        .granted(2, 0)
        .call(0, epoch=2)
        .committed(1)
    ),
    "a reset lets the offset go back": (
        Story().call(0).call(1).promised(2).add(OffsetReset(0.0, Q, 0)).granted(2, 0).call(0, epoch=2).committed(1)
    ),
    "a reset lets messages be passed": Story().add(OffsetReset(0.0, Q, 3)).granted(2, 3).call(3, epoch=2).committed(4),
    "the sink is written again from the committed offset": (
        Story().add(*(Wrote(0.0, Q, epoch, offset) for epoch, offset in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2))))
    ),
}

BROKEN = {
    "has a gap": Story().call(0, 2),
    "leaves a gap: 1 was due": Story().call(0).call(2),
    "leaves a gap: processed is only": Story().call(0).call(2, epoch=2, process="b"),
    "leaves a gap: 0 was due": Story().call(0, 1, result=FAILED).add(DeadLettered(0.0, Q, 1)).call(2),
    "is committed up to 3, and processed up to 2": (
        Story().call(0).call(1).add(OffsetReset(0.0, Q, 2, 1)).call(2).committed(3)
    ),
    "goes back": Story().call(0).call(1).call(0),
    "is the first of its owner": Story().call(0).call(1).committed(1).granted(2, 1).call(0, epoch=2),
    "gives again what was committed": Story().call(0).call(1).promised(2).call(1, epoch=2),
    "and 1 was promised": Story().call(0).promised(1).granted(2, 0),
    "is committed up to 2, and processed up to 1": Story().call(0).start(1).committed(2),
    "is committed up to 1, and processed up to 0": Story().call(0, result=KEPT).committed(1),
    "goes back from 2 to 1": Story().call(0).call(1).committed(2).committed(1),
    "commits 1 after": two_owners().end(call=1).end(call=2).committed(1, epoch=1),
    "was started after": two_owners().end(call=1).start(1),
    "overlaps call 1 (a, epoch 1, ('g', 'orders', 0) at 0, since 6.000 s) in the same process": (
        Story().start(0).add(Lost(0.0, 1)).start(0, epoch=2)
    ),
    "whose epoch is not lower": Story().start(0).add(Lost(0.0, 1)).start(0, process="b"),
    "which did not know": Story().start(0).start(0, epoch=2, process="b"),
    "which did not know that": (
        Story().start(0).add(Stopped(0.0, "a"), Continued(0.0, "a")).start(0, epoch=2, process="b")
    ),
    "was started although its lease could not be proven": Story().call(0, lost=True),
    "attempt 1 of 0 comes after attempt 2": (
        Story().call(0, result=FAILED).call(0, result=FAILED, attempt=2).call(0, epoch=2, process="b")
    ),
    "attempt 1 of 1 comes after attempt 2": (
        Story().call(0, 1, result=FAILED).call(0, 1, result=FAILED, attempt=2).call(0, 1, epoch=2, attempts=(3, 1))
    ),
    "attempt 0 of 0 comes after attempt 0": Story().call(0, attempt=0),
    "has the same number now": Story().call(0, result=FAILED).call(0),
    "b'9' is not what was sent to 0": Story().call(0, bodies=(b"9",)),
    "sent 0 after 5": Story().add(Sent(0.0, Q, 9, b"", "p", 0)),
    "sent 7 after 5": Story().add(Sent(0.0, Q, 2, b"", "p", 7)),
    "gets 2, and 1 is due": Story().add(Wrote(0.0, Q, 1, 0), Wrote(0.0, Q, 1, 2)),
}


@pytest.mark.parametrize("what", FINE)
def test_is_allowed(what: str) -> None:
    assert FINE[what].judged().violations == []


@pytest.mark.parametrize("sign", BROKEN)
def test_is_caught(sign: str) -> None:
    violations = BROKEN[sign].judged().violations

    assert [line for line in violations if sign in line], violations


def test_a_call_that_is_fenced_off_counts_once_however_many_calls_it_overlaps() -> None:
    story = two_owners().end(call=2).start(1, epoch=2, process="b").end(call=3).end(call=1)

    assert story.judged() == Verdict([], calls=3, fenced_overlaps=1, missing=4)


def test_what_a_fenced_owner_has_done_does_not_count_as_processed() -> None:
    story = two_owners().end(call=1).committed(1)

    assert "is committed up to 1, and processed up to 0" in story.judged().violations[0]


def test_messages_with_other_tags_are_neither_a_gap_nor_missing() -> None:
    story = Story(tags=("x", "y", "x", "y", "x", "y")).call(0, 2).call(4).committed(6)

    assert story.judged(wants=lambda tag: tag == "x", grace_s=100.0) == Verdict([], 2, 0, missing=0)
    assert "has a gap" in story.judged().violations[0]


def in_time(hindered_until: float, sent_at: float, done_at: float) -> list[str]:
    events = [
        Sent(sent_at, Q, 0, b"", "p", 0),
        Hindered(0.0, hindered_until),
        Started(done_at, 1, "a", Q, 1, (0,), (1,)),
        Ended(done_at, 1, (DONE,)),
    ]
    return judge(events, grace_s=5.0, settle_s=2.0).violations


@pytest.mark.parametrize(
    ("hindered_until", "sent_at", "limit"), [(10.0, 1.0, 17.0), (10.0, 14.0, 17.0), (10.0, 16.0, 18.0)]
)
def test_everything_is_processed_within_grace_and_2_s_of_the_last_obstacle_or_within_2_s_of_being_sent(
    hindered_until: float, sent_at: float, limit: float
) -> None:
    assert in_time(hindered_until, sent_at, limit) == []
    assert f"it was due at {limit:.3f} s" in in_time(hindered_until, sent_at, limit + 0.001)[0]


def test_what_was_acknowledged_and_never_processed_is_lost() -> None:
    story = Story(2).call(0)

    assert story.judged().violations == []
    assert (
        "1 of ('g', 'orders', 0), acknowledged at 1.000 s, is never processed"
        in story.judged(grace_s=5.0).violations[0]
    )


def test_queues_are_judged_one_by_one() -> None:
    other = [
        event._replace(queue=("g", "orders", 1)) if isinstance(event, Sent) else event for event in Story(1).events
    ]
    story = Story(1).call(0)

    assert judge([*story.events, *other]).missing == 1


def test_a_sink_takes_no_write_with_an_epoch_lower_than_one_it_has_seen() -> None:
    sink = Sink()

    assert [sink.write(Q, epoch) for epoch in (2, 2, 1, 3, 2)] == [True, True, False, True, False]
    assert sink.write(("g", "orders", 1), 1), "each queue has a line of owners of its own"
