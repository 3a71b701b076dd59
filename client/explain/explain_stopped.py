"""
Rules for queues that nobody works on: stopped ones, and those without an owner, or with one that cannot. Pure.

Two members may be silent. An *owner* that did not answer a question (``facts.answers`` is false) still has its lock:
``silent``. A member that the broker took out of the group for its silence has none any more (``facts.silenced``, a
``SilentMember``; its ``answers`` says that it answered just now, so it is about to come back): ``silenced``.
"""

from __future__ import annotations

from . import wording as words
from .explain_reasons import CAREFUL_OWNERS, RETURN_S, Finding, Reason, Urgency
from .explain_working import late_loop
from .facts import BROADCASTING, QueueFacts, Told


def stopped(facts: QueueFacts) -> Finding | None:
    """The owner stopped the queue itself: nothing else matters before somebody has acted."""
    told = facts.told
    if told is None or not told.stopped_code:
        return None
    where = words.offsets(told)
    if told.stopped_code == "CRASH_LOOP":
        return _crash_loop(facts, told.abandoned, told.stopped_from)
    on = _go_on(facts, told)
    if told.stopped_code == "OTHER_HISTORY":
        return Finding(
            Reason.OTHER_HISTORY,
            Urgency.ACT,
            f"the store is a copy, and {where} of it are others than those that {facts.owner} has read. It stopped.",
            f"to continue at {told.stopped_from}: `rmq-admin broker accept-history`. What was done for the messages of "
            "the original stays done.",
        )
    if told.stopped_code not in ("DAMAGED", "MESSAGES_LOST"):
        return Finding(
            Reason.STANDING_STILL,
            Urgency.ACT,
            f"{facts.owner} has stopped the queue and calls that {told.stopped_code}, which is not known here.",
            "it is of another version: see queue.stopped in its log.",
        )
    if told.stopped_code == "DAMAGED":
        return Finding(
            Reason.DAMAGED,
            Urgency.ACT,
            f"{where} cannot be read: a part of the log is damaged. The queue stopped there.",
            "restore a backup if you have one (`rmq-admin broker verify-store DATA_DIR`, with the broker stopped, "
            f"tells what rotted); {on}.",
        )
    return Finding(
        Reason.MESSAGES_LOST,
        Urgency.ACT,
        f"retention removed {where} before the group got to them. The queue stopped there.",
        f"{on}. Keep messages longer (retention_hours, retention_bytes), or consume faster.",
    )


def _go_on(facts: QueueFacts, told: Told) -> str:
    """How to have a queue go on behind messages that are gone."""
    if facts.model == BROADCASTING:
        return 'to go on behind that, run this member with on_gap = "skip"'
    behind = None if told.stopped_to is None else told.stopped_to + 1
    first = "when those before are done, " if told.cached_messages else ""
    return f"{first}to go on behind that: `{words.reset(facts, behind)}`"


def _crash_loop(facts: QueueFacts, owners: int, offset: int | None) -> Finding:
    place = "a message" if offset is None else f"message {offset}"
    return Finding(
        Reason.CRASH_LOOP,
        Urgency.ACT,
        f"{owners} owners in a row were lost while they processed {place}. The queue stopped there.",
        f"{words.look(facts, offset)} and mend the listener; then try again: `{words.reset(facts, offset)}`, "
        f"or skip it: {words.behind(offset)}. With max_attempts it would become a dead letter.",
    )


def silenced(facts: QueueFacts) -> Finding | None:
    """Whoever should have it was taken out for its silence, and nobody takes over."""
    by = facts.silenced
    if by is None or (facts.connected and _is_shared_out(facts)):
        return None
    if by.answers:
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{by.member} was silent, lost its queues by that, and answers again: it takes them back within 20 s.",
            "ask again; loop.stalled or loop.blocked in its log tells what kept it.",
        )
    alone = "no other member gets this queue" if facts.connected else "nobody else is in the group"
    return Finding(
        Reason.MEMBER_SILENT,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"{by.member} is connected, but has been silent for {words.span(by.silent_s)} and lost its queues; {alone}. "
        f"Its event loop is blocked, or it is stopped, or its machine is gone.{words.gone(facts)}",
        words.wake(by.member),
    )


def careful(facts: QueueFacts) -> Finding | None:
    """Owners were lost at one message: that nobody is there, or a lock is waited for, is what comes of it."""
    if facts.abandoned < CAREFUL_OWNERS or facts.suspect_offset < 0 or facts.is_retries:
        return None
    if facts.head_offset is None or facts.head_offset > facts.suspect_offset:
        return None  # it got over it
    is_there = facts.owner is not None and not facts.in_grace
    return Finding(
        Reason.CRASH_LOOP,
        Urgency.WATCH if is_there else Urgency.ACT,
        f"{facts.abandoned} owners in a row were lost while they processed message {facts.suspect_offset}"
        f"{', and nobody has taken it since' if not is_there else '; its owner takes one at a time now'}.",
        f"see why they ended (out of memory, native code, a kill), and {words.look(facts, facts.suspect_offset)}"
        f"{'; then start a consumer' if not facts.connected else ''}.",
    )


def no_member(facts: QueueFacts) -> Finding | None:
    """Nobody who could do anything is in the group."""
    if facts.connected or facts.model == BROADCASTING:
        return None
    urgency = Urgency.ACT if facts.lag else Urgency.WATCH
    if facts.broker_up_s is not None and facts.broker_up_s < RETURN_S:
        return Finding(
            Reason.NO_MEMBER,
            Urgency.WATCH,
            f"the broker started {words.span(facts.broker_up_s)} ago, and no member of the group is back yet."
            f"{words.gone(facts)}",
            f"ask again in {RETURN_S:.0f} s; if it stays so, start a consumer of this group.",
        )
    if facts.owner is not None:
        left = words.span(facts.lease_left_s or 0.0)
        return Finding(
            Reason.NO_MEMBER,
            urgency,
            f"its owner {facts.owner} lost its connection, has {left} to come back, and nobody else is in the group."
            f"{words.gone(facts)}",
            "see why that process ended, and start a consumer of this group.",
        )
    advice = "start a consumer of this group; a pull consumer that does not poll has left it (poll.overdue in its log)."
    return Finding(Reason.NO_MEMBER, urgency, f"nobody is in the group {facts.group!r}.{words.gone(facts)}", advice)


def not_subscribed(facts: QueueFacts) -> Finding | None:
    """It has members, and they want other topics."""
    if facts.subscribed or facts.owner is not None:
        return None
    return Finding(
        Reason.NOT_SUBSCRIBED,
        Urgency.WATCH if facts.lag else Urgency.WELL,
        f"the group has progress here, but none of its members subscribes to {facts.topic!r} any more.",
        "if that was not meant, subscribe again; else there is nothing to do.",
    )


def _is_shared_out(facts: QueueFacts) -> bool:
    """Whether the members that are there share out all queues among them."""
    by_strategy = facts.strategy in (None, "average", "circle") or (facts.strategy or "").startswith("consistent_hash")
    return by_strategy and facts.model != "assigned"


def unowned(facts: QueueFacts) -> Finding | None:
    """Members are there, and none has it."""
    if facts.owner is not None:
        return None
    if facts.model == "assigned":
        return Finding(
            Reason.NOT_ALLOCATED,
            Urgency.ACT if facts.lag else Urgency.WATCH,
            "members of this group are assigned their queues by the program, and none was given this one.",
            "assign it to a consumer.",
        )
    if _is_shared_out(facts):
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            "nobody has its lock at this moment; a member takes it with its next rebalance, within 20 s.",
            "ask again; if it stays so, look at the log of the members for lock.refused.",
        )
    return Finding(
        Reason.NOT_ALLOCATED,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"the strategy {facts.strategy!r} gives it to none of the members that are there.",
        "start a member that gets it by this strategy, or change the strategy of all members.",
    )


def in_grace(facts: QueueFacts) -> Finding | None:
    """Its owner lost its connection, and others are there."""
    if facts.in_grace and facts.model == BROADCASTING:
        sentence = f"{facts.owner} lost its connection; it goes on when it is back."
        return Finding(Reason.MEMBER_SILENT, Urgency.WATCH, sentence, "see why that process ended.")
    if not facts.in_grace:
        return None
    left = words.span(facts.lease_left_s or 0.0)
    return Finding(
        Reason.WAITING_FOR_LOCK,
        Urgency.WATCH,
        f"its owner {facts.owner} lost its connection; if it is not back in {left}, "
        f"{words.next_owner(facts)} gets the lock.",
        "wait; see why that process ended or cannot reach the broker.",
    )


def silent(facts: QueueFacts) -> Finding | None:
    """Its owner has a connection, and says nothing."""
    if facts.answers:
        return None
    freed = f" Its lock is free in {words.span(facts.lease_left_s)} if it is not renewed." if facts.lease_left_s else ""
    return Finding(
        Reason.MEMBER_SILENT,
        Urgency.ACT if facts.lag else Urgency.WATCH,
        f"{facts.owner} is connected but does not answer: it is stopped, or its event loop is blocked.{freed}",
        words.wake(facts.owner),
    )


def handing_over(facts: QueueFacts) -> Finding | None:
    """Its lock is on its way from one member to another, or in doubt."""
    told = facts.told
    if facts.model == BROADCASTING or (told is None and not facts.told_of_all):
        return None
    if told is None:
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} was given the lock and does not work on the queue yet.",
            "ask again in a moment.",
        )
    if told.dropped or told.epoch != facts.epoch:
        return _leaving(facts, told)
    if told.lost:
        return late_loop(facts) or Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} waits for the broker to confirm its lock, and starts nothing before.",
            "ask again in a moment; if it stays so, the network between them loses answers.",
        )
    return None


def _leaving(facts: QueueFacts, told: Told) -> Finding:
    why = "gives it up" if told.epoch == facts.epoch else "lost it by a reset of the offset"
    if told.called_for_s is None:
        return Finding(
            Reason.WAITING_FOR_LOCK,
            Urgency.WATCH,
            f"{facts.owner} {why}; {words.next_owner(facts)} gets it in a moment.",
            "ask again in a moment.",
        )
    return Finding(
        Reason.WAITING_FOR_LOCK,
        Urgency.ACT if words.is_suspicious(told) else Urgency.WATCH,
        f"{facts.owner} {why} when its running call ends, which began {words.span(told.called_for_s)} ago; "
        f"{words.next_owner(facts)} waits for the lock.",
        "wait for the call; if it never ends, restart that process: what it holds is delivered again.",
    )
