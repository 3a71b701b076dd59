"""Rules for queues whose owner works on them, or has a reason not to. Pure."""

from __future__ import annotations

from rmq.wire.batch.tags import ALL

from . import wording as words
from .explain_reasons import (
    LATE_S,
    LONG_CALL_S,
    MANY_LEFT_OUT,
    SUSPICIOUS_ATTEMPT,
    SUSPICIOUS_CALL_S,
    UNPOLLED_S,
    Finding,
    Reason,
    Urgency,
)
from .facts import BROADCASTING, QueueFacts


def paused(facts: QueueFacts) -> Finding | None:
    """Nothing starts, by the user's wish."""
    if facts.told is None or not facts.told.paused:
        return None
    return Finding(
        Reason.PAUSED,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"the program {facts.owner} has paused it.{words.gone(facts)}",
        "have the program call resume(), or restart it.",
    )


def nothing_new(facts: QueueFacts) -> Finding | None:
    """There is nothing to do now; perhaps there will be."""
    if facts.lag and (facts.head_offset is not None or facts.told is None):
        return None
    if (unmatched := _unmatched(facts)) is not None:
        return unmatched
    count, next_in_s, more = facts.delayed
    if facts.lag:
        sentence = f"all messages are done; the last {facts.lag} are not committed yet."
        return Finding(Reason.NO_NEW_MESSAGES, Urgency.WELL, sentence)
    if not count:
        wanted = "" if facts.expression == "*" else f" (of those with the tags {facts.expression})"
        return Finding(Reason.NO_NEW_MESSAGES, Urgency.WELL, f"all messages are done{wanted}.")
    is_one = count == 1 and not more
    waits = f"{count}{'+' if more else ''} message{' waits' if is_one else 's wait'}"
    if facts.is_retries:
        error = words.error(facts.told) if facts.told is not None else ""
        return Finding(
            Reason.RETRYING,
            Urgency.WATCH,
            f"{waits} for another try after a failure, the next in {words.span(next_in_s)}.{error}",
            f"look at them (`rmq-admin delay list --topic '{facts.topic}'`) and at the log of the members.",
        )
    return Finding(
        Reason.NO_NEW_MESSAGES,
        Urgency.WELL,
        f"all messages are done; {waits} for {'its' if is_one else 'their'} delivery time, "
        f"the next in {words.span(next_in_s)}.",
    )


def long_call(facts: QueueFacts) -> Finding | None:
    """Somebody has a message for long; before that it failed, if so, is of less interest."""
    told = facts.told
    if told is None or told.called_for_s is None or told.called_for_s <= LONG_CALL_S:
        return None
    who = "the listener" if told.polled_ago_s is None else "the program"
    limit = ""
    if told.called_for_s >= told.consume_timeout_s:
        limit = f", longer than consume_timeout_s ({words.span(told.consume_timeout_s)})"
    again = f"; it is delivery {facts.attempt}" if facts.attempt > 1 else ""
    return Finding(
        Reason.LISTENER_RUNNING,
        Urgency.ACT if words.is_suspicious(told) else Urgency.WATCH,
        f"{who} has had message {facts.head_offset} for {words.span(told.called_for_s)}{limit}{again}."
        f"{words.held(told)}{words.gone(facts)}",
        f"see what it waits for ({words.dump(facts.owner)}) and {words.look(facts, facts.head_offset)}; "
        f"suspicious from {words.span(words.suspicious_s(told))} on.",
    )


def retrying(facts: QueueFacts) -> Finding | None:
    """The head fails; in order, nothing passes it."""
    told = facts.told
    if facts.attempt <= 1 or facts.is_retries:
        return None
    error, when = "", "comes next"  # when, its owner does not tell
    if told is not None:
        error = words.error(told) if told.failed_offset == facts.head_offset or not facts.ordered else ""
        if told.retry_in_s is not None:
            when = f"comes in {words.span(told.retry_in_s)}"
        elif told.called_for_s is not None:
            when = "is being tried now"
    failed = f"message {facts.head_offset} failed {words.times(facts.attempt - 1)}"
    if facts.refuses_sends and _is_due_elsewhere(facts):
        return Finding(
            Reason.RETRYING,
            Urgency.ACT,
            f"{failed}, and the broker refuses the copy of it that would let others pass: "
            f"{facts.refuses_sends}.{error}",
            f"mend that, and it goes on by itself; {words.look(facts, facts.head_offset)} and mend the listener.",
        )
    if not facts.ordered:
        return Finding(
            Reason.RETRYING,
            Urgency.ACT if facts.attempt >= SUSPICIOUS_ATTEMPT else Urgency.WATCH,
            f"{failed} and could not be put aside; delivery {facts.attempt} {when}.{error}",
            f"see why in the log of {facts.owner} (send_back.refused); {words.look(facts, facts.head_offset)}.",
        )
    skip = "" if facts.model == BROADCASTING else f", or skip it: `{words.reset(facts, (facts.head_offset or 0) + 1)}`"
    return Finding(
        Reason.RETRYING,
        Urgency.ACT if facts.attempt >= SUSPICIOUS_ATTEMPT else Urgency.WATCH,
        f"{failed}; delivery {facts.attempt} {when}.{error}{words.gone(facts)}",
        f"{words.look(facts, facts.head_offset)} and mend the listener{skip}; {_given_up(facts)}.",
    )


def _is_due_elsewhere(facts: QueueFacts) -> bool:
    """Whether a failed message should be among the retries or the dead letters by now."""
    most = None if facts.told is None else facts.told.max_attempts
    return not facts.ordered or (most is not None and facts.attempt > most)


def _given_up(facts: QueueFacts) -> str:
    """What ends the tries by itself, or could."""
    becomes = "passed" if facts.model == BROADCASTING else "a dead letter"
    most = None if facts.told is None else facts.told.max_attempts
    if most is None:
        verb = "be" if facts.model == BROADCASTING else "become"
        return f"with max_attempts it would {verb} {becomes}"
    verb = "is" if facts.model == BROADCASTING else "becomes"
    return f"when delivery {max(most, facts.attempt)} fails it {verb} {becomes} (max_attempts)"


def overtaken(facts: QueueFacts) -> Finding | None:
    """It goes on with what is held, and will come to messages that are gone."""
    removed = words.overtaken(facts)
    if removed is None or facts.told is None:
        return None
    return Finding(
        Reason.MESSAGES_LOST,
        Urgency.ACT,
        f"retention removed {removed} before the group got to them; it goes on with what it has fetched before, "
        "and comes to the gap then.",
        "keep messages longer (retention_hours, retention_bytes), or consume faster, before more are lost; if the "
        f"queue stops at the gap: `{words.reset(facts, facts.min_offset)}`.",
    )


def moving(facts: QueueFacts) -> Finding | None:
    """It goes on, as was seen."""
    per_s = words.per_s(facts)
    if not per_s:
        return None
    return _unmatched(facts) or Finding(
        Reason.CONSUMING,
        Urgency.WELL,
        f"{words.rate(per_s)} messages/s; at this rate it is through in {words.span(facts.lag / per_s)}.",
    )


def in_call(facts: QueueFacts) -> Finding | None:
    """The listener has the head, and that for a short time."""
    told = facts.told
    if told is not None and told.called_for_s is not None:
        sentence = f"message {facts.head_offset} is with the listener for {words.span(told.called_for_s)}."
        return Finding(Reason.CONSUMING, Urgency.WELL, sentence)
    return None


def unpolled(facts: QueueFacts) -> Finding | None:
    """The program does not ask for messages."""
    told = facts.told
    if told is None or told.polled_ago_s is None or told.polled_ago_s <= UNPOLLED_S:
        return None
    suspicious = told.polled_ago_s >= min(SUSPICIOUS_CALL_S, told.consume_timeout_s)
    return Finding(
        Reason.NOT_POLLED,
        Urgency.ACT if suspicious else Urgency.WATCH,
        f"the program {facts.owner} has not polled for {words.span(told.polled_ago_s)}.{words.held(told)}",
        f"see what keeps it from calling poll(); after {words.span(told.consume_timeout_s)} its queues go to others.",
    )


def slots_busy(facts: QueueFacts) -> Finding | None:
    """Its messages are here, and other queues have the slots."""
    told = facts.told
    if told is None or not told.slots_busy or not told.cached_messages:
        return None
    return Finding(
        Reason.SLOTS_BUSY,
        Urgency.WATCH,
        f"it waits for its turn: all slots of {facts.owner} are taken by calls for other queues.",
        "see which calls take long; give the consumer more slots, a turn_share_s, or start another member.",
    )


def late_loop(facts: QueueFacts) -> Finding | None:
    """Something blocks the process from time to time."""
    told = facts.told
    if told is None or told.loop_lag_s <= LATE_S:
        return None
    return Finding(
        Reason.LOOP_LATE,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"the event loop of {facts.owner} is late by {words.span(told.loop_lag_s)}: something there blocks it.",
        "a listener that blocks must be a plain def, which runs in a thread.",
    )


def flow_control(facts: QueueFacts) -> Finding | None:
    """Enough messages are held: the listener is slower than the pulls."""
    told = facts.told
    if told is None or not told.flow_control:
        return None
    return Finding(
        Reason.FLOW_CONTROL,
        Urgency.WATCH,
        f"{facts.owner} fetches no more before it has worked some off, and finished none in "
        f"{words.span(facts.watched_s)}: {told.flow_control}.",
        "the listener is the bottleneck: make it faster, add slots or members; the limits are cache_messages, "
        "cache_bytes and max_span.",
    )


def standing_still(facts: QueueFacts) -> Finding:
    """All that is known gives no reason."""
    looked = f" within {words.span(facts.watched_s)}" if facts.watched_s else ""
    by_tags = " A member reads past messages that its tag filter leaves out every 15 s (pull_wait_s)."
    return _unmatched(facts) or Finding(
        Reason.STANDING_STILL,
        Urgency.WATCH,
        f"messages wait and nothing moved{looked}, for no reason that can be seen from here."
        f"{'' if facts.expression == ALL else by_tags}",
        f"ask again; if it stays so, `rmq-admin group members {facts.group} --verbose` and the log of {facts.owner}.",
    )


def _unmatched(facts: QueueFacts) -> Finding | None:
    """
    Return what a tag filter that left out everything says of a queue with which nothing else is wrong.

    Members count since they have their queues. Of a group that has read messages before, a few say nothing: it may
    wait for rare tags, and have been restarted.
    """
    told = facts.told
    if told is None or not told.left_out or facts.selected or facts.expression == ALL or not facts.told_of_all:
        return None
    if facts.has_past and facts.left_out < MANY_LEFT_OUT:
        return None
    count = "1 message" if told.left_out == 1 else f"{told.left_out:,} messages"
    return Finding(
        Reason.FILTER_MATCHES_NOTHING,
        Urgency.WATCH,
        f"the tag filter {facts.expression!r} has matched no message of the topic since the members have their queues; "
        f"{facts.owner} read past {count} here.{words.newest(facts)}",
        f"compare it with the tags that are sent: `rmq-admin message tail {facts.topic}`. Tags match exactly; if none "
        "was meant to match yet, there is nothing to do.",
    )
