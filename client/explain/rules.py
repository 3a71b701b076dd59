"""
The rules that decide why a queue of a group moves or does not: a reason, a sentence, and what to do. Pure.

``explain`` tries the rules in order, and the first that applies decides. So where two causes coincide, the reported one
is the one to remove first: a queue that is paused and has a failing message stays blocked until it is resumed, whatever
happens to the message. The first rules are about queues that are stopped, or without an owner that can work on them;
the others about queues whose owner works on them, or has a reason not to.

Two kinds of members are silent. ``silent``: an *owner* did not answer a question (``facts.answers`` is False), and
still has its lock. ``silenced``: the broker removed a member from the group for its silence, so it has no lock any more
(``facts.silenced``; its ``answers`` is True if it answered just now, so that it is about to come back).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rmq.wire.batch.tags import ALL

from . import wording as words
from .facts import BROADCASTING, OwnerReport, QueueFacts
from .wording import (
    LATE_S,
    LONG_CALL_S,
    MANY_LEFT_OUT,
    RETURN_S,
    SUSPECT_OWNERS,
    SUSPICIOUS_ATTEMPT,
    SUSPICIOUS_CALL_S,
    UNPOLLED_S,
    Diagnosis,
    Reason,
    Urgency,
)


class QueueStory(NamedTuple):
    """
    Explains one queue: its owner, its first unfinished message, and why it moves or does not.

    In a broadcasting group ``owner`` is the member whose queue it is, without a lock. Unknown values are None.
    """

    topic: str
    queue_id: int
    reason: Reason
    urgency: Urgency
    sentence: str
    advice: str
    lag: int
    owner: str | None
    epoch: int | None
    lease_left_s: float | None
    head_offset: int | None
    head_id: str | None
    head_age_s: float | None
    attempt: int
    retry_in_s: float | None
    called_for_s: float | None
    per_s: float | None


Rule = Callable[[QueueFacts], Diagnosis | None]


def stopped(facts: QueueFacts) -> Diagnosis | None:
    """The owner stopped the queue itself: nothing else matters until an operator acts."""
    report = facts.report
    if report is None or not report.stopped_code:
        return None
    where = words.offsets(report)
    if report.stopped_code == "CRASH_LOOP":
        return _crash_loop(facts, report.abandoned, report.stopped_from)
    on = _go_on(facts, report)
    if report.stopped_code == "OTHER_HISTORY":
        return Diagnosis(
            Reason.OTHER_HISTORY,
            Urgency.ACTION_REQUIRED,
            f"the store is a copy, and {where} of it are others than those that {facts.owner} has read. It stopped.",
            f"to continue at {report.stopped_from}: `rmq-admin broker accept-history`. What was done for the messages "
            "of the original stays done.",
        )
    if report.stopped_code not in ("DAMAGED", "MESSAGES_LOST"):
        return Diagnosis(
            Reason.STANDING_STILL,
            Urgency.ACTION_REQUIRED,
            f"{facts.owner} has stopped the queue and calls that {report.stopped_code}, which is not known here.",
            "it is of another version: see queue.stopped in its log.",
        )
    if report.stopped_code == "DAMAGED":
        return Diagnosis(
            Reason.DAMAGED,
            Urgency.ACTION_REQUIRED,
            f"{where} cannot be read: a part of the log is damaged. The queue stopped there.",
            "restore a backup if you have one (`rmq-admin broker verify-store DATA_DIR`, with the broker stopped, "
            f"shows what is corrupted); {on}.",
        )
    return Diagnosis(
        Reason.MESSAGES_LOST,
        Urgency.ACTION_REQUIRED,
        f"retention removed {where} before the group got to them. The queue stopped there.",
        f"{on}. Keep messages longer (retention_hours, retention_bytes), or consume faster.",
    )


def silenced(facts: QueueFacts) -> Diagnosis | None:
    """The member that should have it was removed for its silence, and no other takes over."""
    by = facts.silenced
    if by is None or (facts.connected and _is_shared_out(facts)):
        return None
    if by.answers:
        return Diagnosis(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{by.member} was silent, lost its queues by that, and answers again: it takes them back within 20 s.",
            "ask again; loop.stalled or loop.blocked in its log tells what kept it.",
        )
    alone = "no other member gets this queue" if facts.connected else "the group has no other member"
    return Diagnosis(
        Reason.MEMBER_SILENT,
        Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
        f"{by.member} is connected, but has been silent for {words.span(by.silent_s)} and lost its queues; {alone}. "
        f"Its event loop is blocked, or it is stopped, or its machine is gone.{words.gone(facts)}",
        words.unblock(by.member),
    )


def crash_suspect(facts: QueueFacts) -> Diagnosis | None:
    """Owners were lost at one message; a missing member or a pending lock is only the consequence."""
    if facts.abandoned < SUSPECT_OWNERS or facts.suspect_offset < 0 or facts.is_retries:
        return None
    if facts.head_offset is None or facts.head_offset > facts.suspect_offset:
        return None  # it was processed in the end
    is_there = facts.owner is not None and not facts.in_grace
    return Diagnosis(
        Reason.CRASH_LOOP,
        Urgency.WATCH if is_there else Urgency.ACTION_REQUIRED,
        f"{facts.abandoned} owners in a row were lost while they processed message {facts.suspect_offset}"
        f"{', and no member has taken it since' if not is_there else '; its owner takes one at a time now'}.",
        f"see why they ended (out of memory, native code, a kill), and {words.look(facts, facts.suspect_offset)}"
        f"{'; then start a consumer' if not facts.connected else ''}.",
    )


def no_member(facts: QueueFacts) -> Diagnosis | None:
    """The group has no connected member."""
    if facts.connected or facts.model == BROADCASTING:
        return None
    urgency = Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH
    if facts.broker_up_s is not None and facts.broker_up_s < RETURN_S:
        return Diagnosis(
            Reason.NO_MEMBER,
            Urgency.WATCH,
            f"the broker started {words.span(facts.broker_up_s)} ago, and no member of the group is back yet."
            f"{words.gone(facts)}",
            f"ask again in {RETURN_S:.0f} s; if it stays so, start a consumer of this group.",
        )
    if facts.owner is not None:
        left = words.span(facts.lease_left_s or 0.0)
        return Diagnosis(
            Reason.NO_MEMBER,
            urgency,
            f"its owner {facts.owner} lost its connection, has {left} to come back, and the group has no other member."
            f"{words.gone(facts)}",
            "see why that process ended, and start a consumer of this group.",
        )
    advice = "start a consumer of this group; a pull consumer that does not poll has left it (poll.overdue in its log)."
    return Diagnosis(Reason.NO_MEMBER, urgency, f"the group {facts.group!r} has no members.{words.gone(facts)}", advice)


def not_subscribed(facts: QueueFacts) -> Diagnosis | None:
    """The members subscribe to other topics."""
    if facts.subscribed or facts.owner is not None:
        return None
    return Diagnosis(
        Reason.NOT_SUBSCRIBED,
        Urgency.WATCH if facts.lag else Urgency.OK,
        f"the group has progress here, but none of its members subscribes to {facts.topic!r} any more.",
        "if that was not meant, subscribe again; else there is nothing to do.",
    )


def unowned(facts: QueueFacts) -> Diagnosis | None:
    """The group has members, and none of them owns it."""
    if facts.owner is not None:
        return None
    if facts.model == "assigned":
        return Diagnosis(
            Reason.NOT_ALLOCATED,
            Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
            "members of this group are assigned their queues by the program, and none was given this one.",
            "assign it to a consumer.",
        )
    if _is_shared_out(facts):
        return Diagnosis(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            "no member has its lock at the moment; one takes it with its next rebalance, within 20 s.",
            "ask again; if it stays so, look at the log of the members for lock.refused.",
        )
    return Diagnosis(
        Reason.NOT_ALLOCATED,
        Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
        f"the strategy {facts.strategy!r} gives it to none of the members that are there.",
        "start a member that gets it by this strategy, or change the strategy of all members.",
    )


def in_grace(facts: QueueFacts) -> Diagnosis | None:
    """Its owner lost its connection, and other members are connected."""
    if facts.in_grace and facts.model == BROADCASTING:
        sentence = f"{facts.owner} lost its connection; it goes on when it is back."
        return Diagnosis(Reason.MEMBER_SILENT, Urgency.WATCH, sentence, "see why that process ended.")
    if not facts.in_grace:
        return None
    left = words.span(facts.lease_left_s or 0.0)
    return Diagnosis(
        Reason.WAITING_FOR_LOCK,
        Urgency.WATCH,
        f"its owner {facts.owner} lost its connection; if it is not back in {left}, "
        f"{words.next_owner(facts)} gets the lock.",
        "wait; see why that process ended or cannot reach the broker.",
    )


def silent(facts: QueueFacts) -> Diagnosis | None:
    """Its owner is connected and does not answer."""
    if facts.answers:
        return None
    freed = f" Its lock is free in {words.span(facts.lease_left_s)} if it is not renewed." if facts.lease_left_s else ""
    return Diagnosis(
        Reason.MEMBER_SILENT,
        Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
        f"{facts.owner} is connected but does not answer: it is stopped, or its event loop is blocked.{freed}",
        words.unblock(facts.owner),
    )


def handing_over(facts: QueueFacts) -> Diagnosis | None:
    """Its lock is on its way from one member to another, or in doubt."""
    report = facts.report
    if facts.model == BROADCASTING or (report is None and not facts.reported_all):
        return None
    if report is None:
        return Diagnosis(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} was given the lock and does not work on the queue yet.",
            "ask again in a moment.",
        )
    if report.dropped or report.epoch != facts.epoch:
        return _leaving(facts, report)
    if report.lost:
        return late_loop(facts) or Diagnosis(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} waits for the broker to confirm its lock, and starts nothing before.",
            "ask again in a moment; if it stays so, the network between them loses answers.",
        )
    return None


def paused(facts: QueueFacts) -> Diagnosis | None:
    """The program paused it."""
    if facts.report is None or not facts.report.paused:
        return None
    return Diagnosis(
        Reason.PAUSED,
        Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
        f"the program {facts.owner} has paused it.{words.gone(facts)}",
        "have the program call resume(), or restart it.",
    )


def nothing_new(facts: QueueFacts) -> Diagnosis | None:
    """Every message is done; more may be deferred."""
    if facts.lag and (facts.head_offset is not None or facts.report is None):
        return None
    if (unmatched := _unmatched(facts)) is not None:
        return unmatched
    count, next_in_s, more = facts.deferred
    if facts.lag:
        sentence = f"all messages are done; the last {facts.lag} are not committed yet."
        return Diagnosis(Reason.NO_NEW_MESSAGES, Urgency.OK, sentence)
    if not count:
        wanted = "" if facts.expression == "*" else f" (of those with the tags {facts.expression})"
        return Diagnosis(Reason.NO_NEW_MESSAGES, Urgency.OK, f"all messages are done{wanted}.")
    is_one = count == 1 and not more
    waits = f"{count}{'+' if more else ''} message{' waits' if is_one else 's wait'}"
    if facts.is_retries:
        error = words.error(facts.report) if facts.report is not None else ""
        return Diagnosis(
            Reason.RETRYING,
            Urgency.WATCH,
            f"{waits} for another try after a failure, the next in {words.span(next_in_s)}.{error}",
            f"look at them (`rmq-admin delay list --topic '{facts.topic}'`) and at the log of the members.",
        )
    return Diagnosis(
        Reason.NO_NEW_MESSAGES,
        Urgency.OK,
        f"all messages are done; {waits} for {'its' if is_one else 'their'} delivery time, "
        f"the next in {words.span(next_in_s)}.",
    )


def long_call(facts: QueueFacts) -> Diagnosis | None:
    """A call takes long; whether its message failed before matters less."""
    report = facts.report
    if report is None or report.called_for_s is None or report.called_for_s <= LONG_CALL_S:
        return None
    who = "the listener" if report.polled_ago_s is None else "the program"
    limit = ""
    if report.called_for_s >= report.consume_timeout_s:
        limit = f", longer than consume_timeout_s ({words.span(report.consume_timeout_s)})"
    again = f"; it is delivery {facts.attempt}" if facts.attempt > 1 else ""
    return Diagnosis(
        Reason.LISTENER_RUNNING,
        Urgency.ACTION_REQUIRED if words.is_suspicious(report) else Urgency.WATCH,
        f"{who} has had message {facts.head_offset} for {words.span(report.called_for_s)}{limit}{again}."
        f"{words.fetch_paused(report)}{words.gone(facts)}",
        f"see what it waits for ({words.dump(facts.owner)}) and {words.look(facts, facts.head_offset)}; "
        f"suspicious from {words.span(words.suspicious_s(report))} on.",
    )


def retrying(facts: QueueFacts) -> Diagnosis | None:
    """The first message keeps failing; in an ordered group no other overtakes it."""
    report = facts.report
    if facts.attempt <= 1 or facts.is_retries:
        return None
    error, when = "", "comes next"  # when, its owner does not tell
    if report is not None:
        error = words.error(report) if report.failed_offset == facts.head_offset or not facts.ordered else ""
        if report.retry_in_s is not None:
            when = f"comes in {words.span(report.retry_in_s)}"
        elif report.called_for_s is not None:
            when = "is being tried now"
    failed = f"message {facts.head_offset} failed {words.times(facts.attempt - 1)}"
    if facts.refuses_sends and _is_due_elsewhere(facts):
        return Diagnosis(
            Reason.RETRYING,
            Urgency.ACTION_REQUIRED,
            f"{failed}, and the broker refuses the copy of it that would let others pass: "
            f"{facts.refuses_sends}.{error}",
            "fix that, and the queue continues by itself; "
            f"{words.look(facts, facts.head_offset)} and fix the listener.",
        )
    if not facts.ordered:
        return Diagnosis(
            Reason.RETRYING,
            Urgency.ACTION_REQUIRED if facts.attempt >= SUSPICIOUS_ATTEMPT else Urgency.WATCH,
            f"{failed} and could not be put aside; delivery {facts.attempt} {when}.{error}",
            f"see why in the log of {facts.owner} (send_back.refused); {words.look(facts, facts.head_offset)}.",
        )
    skip = "" if facts.model == BROADCASTING else f", or skip it: `{words.reset(facts, (facts.head_offset or 0) + 1)}`"
    return Diagnosis(
        Reason.RETRYING,
        Urgency.ACTION_REQUIRED if facts.attempt >= SUSPICIOUS_ATTEMPT else Urgency.WATCH,
        f"{failed}; delivery {facts.attempt} {when}.{error}{words.gone(facts)}",
        f"{words.look(facts, facts.head_offset)} and fix the listener{skip}; {_given_up(facts)}.",
    )


def overtaken(facts: QueueFacts) -> Diagnosis | None:
    """The owner still has fetched messages, and will then reach messages that retention removed."""
    removed = words.overtaken(facts)
    if removed is None or facts.report is None:
        return None
    return Diagnosis(
        Reason.MESSAGES_LOST,
        Urgency.ACTION_REQUIRED,
        f"retention removed {removed} before the group got to them; it goes on with what it has fetched before, "
        "and comes to the gap then.",
        "keep messages longer (retention_hours, retention_bytes), or consume faster, before more are lost; if the "
        f"queue stops at the gap: `{words.reset(facts, facts.min_offset)}`.",
    )


def moving(facts: QueueFacts) -> Diagnosis | None:
    """The second look found progress."""
    per_s = words.per_s(facts)
    if not per_s:
        return None
    return _unmatched(facts) or Diagnosis(
        Reason.CONSUMING,
        Urgency.OK,
        f"{words.rate(per_s)} messages/s; at this rate it is through in {words.span(facts.lag / per_s)}.",
    )


def in_call(facts: QueueFacts) -> Diagnosis | None:
    """The listener has had the first message for a short time."""
    report = facts.report
    if report is not None and report.called_for_s is not None:
        sentence = f"message {facts.head_offset} is with the listener for {words.span(report.called_for_s)}."
        return Diagnosis(Reason.CONSUMING, Urgency.OK, sentence)
    return None


def unpolled(facts: QueueFacts) -> Diagnosis | None:
    """The program does not ask for messages."""
    report = facts.report
    if report is None or report.polled_ago_s is None or report.polled_ago_s <= UNPOLLED_S:
        return None
    suspicious = report.polled_ago_s >= min(SUSPICIOUS_CALL_S, report.consume_timeout_s)
    return Diagnosis(
        Reason.NOT_POLLED,
        Urgency.ACTION_REQUIRED if suspicious else Urgency.WATCH,
        f"the program {facts.owner} has not polled for {words.span(report.polled_ago_s)}.{words.fetch_paused(report)}",
        f"see what keeps it from calling poll(); after {words.span(report.consume_timeout_s)} its queues go to others.",
    )


def slots_busy(facts: QueueFacts) -> Diagnosis | None:
    """Its messages are fetched, and calls for other queues occupy all slots."""
    report = facts.report
    if report is None or not report.slots_busy or not report.cached_messages:
        return None
    return Diagnosis(
        Reason.SLOTS_BUSY,
        Urgency.WATCH,
        f"it waits for its turn: all slots of {facts.owner} are taken by calls for other queues.",
        "see which calls take long; give the consumer more slots, a turn_share_s, or start another member.",
    )


def late_loop(facts: QueueFacts) -> Diagnosis | None:
    """The owner's event loop runs late: something blocks it from time to time."""
    report = facts.report
    if report is None or report.loop_lag_s <= LATE_S:
        return None
    return Diagnosis(
        Reason.LOOP_LATE,
        Urgency.ACTION_REQUIRED if facts.lag else Urgency.WATCH,
        f"the event loop of {facts.owner} is late by {words.span(report.loop_lag_s)}: something there blocks it.",
        "a listener that blocks must be a plain def, which runs in a thread.",
    )


def flow_control(facts: QueueFacts) -> Diagnosis | None:
    """The cache is full: the listener is slower than the pulls."""
    report = facts.report
    if report is None or not report.flow_control:
        return None
    return Diagnosis(
        Reason.FLOW_CONTROL,
        Urgency.WATCH,
        f"{facts.owner} fetches no more before it has worked some off, and finished none in "
        f"{words.span(facts.watched_s)}: {report.flow_control}.",
        "the listener is the bottleneck: make it faster, add slots or members; the limits are cache_messages, "
        "cache_bytes and max_span.",
    )


def standing_still(facts: QueueFacts) -> Diagnosis:
    """Nothing that is known explains it."""
    looked = f" within {words.span(facts.watched_s)}" if facts.watched_s else ""
    by_tags = " A member reads past messages that its tag filter leaves out every 15 s (pull_wait_s)."
    return _unmatched(facts) or Diagnosis(
        Reason.STANDING_STILL,
        Urgency.WATCH,
        f"messages wait and nothing moved{looked}, for no reason that can be seen from here."
        f"{'' if facts.expression == ALL else by_tags}",
        f"ask again; if it stays so, `rmq-admin group members {facts.group} --verbose` and the log of {facts.owner}.",
    )


RULES: Final[tuple[Rule, ...]] = (
    stopped,
    silenced,
    crash_suspect,
    no_member,
    not_subscribed,
    unowned,
    in_grace,
    silent,
    handing_over,
    paused,
    nothing_new,
    long_call,
    retrying,
    overtaken,
    moving,
    unpolled,
    late_loop,
    flow_control,
    in_call,
    slots_busy,
    standing_still,
)


def explain(facts: QueueFacts) -> QueueStory:
    """Apply the rules to the facts of a queue."""
    finding = next(found for rule in RULES if (found := rule(facts)) is not None)
    report = facts.report
    head = facts.head_offset
    return QueueStory(
        topic=facts.topic,
        queue_id=facts.queue_id,
        reason=finding.reason,
        urgency=finding.urgency,
        sentence=finding.sentence,
        advice=finding.advice,
        lag=facts.lag,
        owner=facts.owner,
        epoch=facts.epoch if facts.owner is not None and facts.epoch else None,
        lease_left_s=facts.lease_left_s,
        head_offset=head,
        head_id=None if facts.head is None or head is None else facts.head.message_id,
        head_age_s=None if head is None else facts.head_age_s,
        attempt=facts.attempt if head is not None else 1,
        retry_in_s=None if report is None else report.retry_in_s,
        called_for_s=None if report is None else report.called_for_s,
        per_s=None if (per_s := words.per_s(facts)) is None else round(per_s, 1),
    )


def worst_first(stories: Iterable[QueueStory]) -> list[QueueStory]:
    """Sort by urgency, then by the order of the reasons, then by queue."""
    order = {reason: place for place, reason in enumerate(Reason)}
    return sorted(stories, key=lambda story: (-story.urgency, order[story.reason], story[:2], story.owner or ""))


def _go_on(facts: QueueFacts, report: OwnerReport) -> str:
    """Return how to make a queue continue after messages that are gone."""
    if facts.model == BROADCASTING:
        return 'to continue after that, run this member with on_gap = "skip"'
    behind = None if report.stopped_to is None else report.stopped_to + 1
    first = "when those before are done, " if report.cached_messages else ""
    return f"{first}to continue after that: `{words.reset(facts, behind)}`"


def _crash_loop(facts: QueueFacts, owners: int, offset: int | None) -> Diagnosis:
    place = "a message" if offset is None else f"message {offset}"
    return Diagnosis(
        Reason.CRASH_LOOP,
        Urgency.ACTION_REQUIRED,
        f"{owners} owners in a row were lost while they processed {place}. The queue stopped there.",
        f"{words.look(facts, offset)} and fix the listener; then try again: `{words.reset(facts, offset)}`, "
        f"or skip it: {words.past(offset)}. With max_attempts it would become a dead letter.",
    )


def _is_shared_out(facts: QueueFacts) -> bool:
    """Return whether the connected members share all queues among them."""
    by_strategy = facts.strategy in (None, "average", "circle") or (facts.strategy or "").startswith("consistent_hash")
    return by_strategy and facts.model != "assigned"


def _leaving(facts: QueueFacts, report: OwnerReport) -> Diagnosis:
    why = "gives it up" if report.epoch == facts.epoch else "lost it by a reset of the offset"
    if report.called_for_s is None:
        return Diagnosis(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} {why}; {words.next_owner(facts)} gets it in a moment.",
            "ask again in a moment.",
        )
    return Diagnosis(
        Reason.WAITING_FOR_LOCK,
        Urgency.ACTION_REQUIRED if words.is_suspicious(report) else Urgency.WATCH,
        f"{facts.owner} {why} when its running call ends, which began {words.span(report.called_for_s)} ago; "
        f"{words.next_owner(facts)} waits for the lock.",
        "wait for the call; if it never ends, restart that process: its unfinished messages are delivered again.",
    )


def _is_due_elsewhere(facts: QueueFacts) -> bool:
    """Return whether a failed message should be a retry or a dead letter by now."""
    most = None if facts.report is None else facts.report.max_attempts
    return not facts.ordered or (most is not None and facts.attempt > most)


def _given_up(facts: QueueFacts) -> str:
    """Return what ends the attempts, or would with a limit."""
    becomes = "passed" if facts.model == BROADCASTING else "a dead letter"
    most = None if facts.report is None else facts.report.max_attempts
    if most is None:
        verb = "be" if facts.model == BROADCASTING else "become"
        return f"with max_attempts it would {verb} {becomes}"
    verb = "is" if facts.model == BROADCASTING else "becomes"
    return f"when delivery {max(most, facts.attempt)} fails it {verb} {becomes} (max_attempts)"


def _unmatched(facts: QueueFacts) -> Diagnosis | None:
    """
    Return the diagnosis of a tag filter that left out everything, for a queue without any other problem.

    Members count from when they got their queues. For a group that has read messages before, a few that do not match
    prove nothing: it may wait for rare tags, and have been restarted.
    """
    report = facts.report
    if report is None or not report.left_out or facts.selected or facts.expression == ALL or not facts.reported_all:
        return None
    if facts.has_past and facts.left_out < MANY_LEFT_OUT:
        return None
    count = "1 message" if report.left_out == 1 else f"{report.left_out:,} messages"
    return Diagnosis(
        Reason.FILTER_MATCHES_NOTHING,
        Urgency.WATCH,
        f"the tag filter {facts.expression!r} has matched no message of the topic since the members have their queues; "
        f"{facts.owner} read past {count} here.{words.newest(facts)}",
        f"compare it with the tags that are sent: `rmq-admin message tail {facts.topic}`. Tags match exactly; if none "
        "was meant to match yet, there is nothing to do.",
    )
