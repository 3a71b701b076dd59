"""Notes about a group as a whole, next to the diagnoses of its queues. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq.wire.model import MessageQueue
from rmq.wire.names import retry_topic
from rmq.wire.protocol.ops.groups import GroupDescription

from .facts import BROADCASTING, Members, QueueFacts, silent_members
from .wording import span, unblock

MOST_QUEUES: Final = 8  # named in a note


class Note(NamedTuple):
    """A remark about the group, not about a single queue; it never requires action."""

    code: str
    sentence: str
    advice: str = ""


class StoreCopy(NamedTuple):
    """When the store was copied, and the offset up to which each queue equals the original."""

    ago_s: float
    agreed: dict[MessageQueue, int]


def notes_of(
    described: GroupDescription,
    members: Members,
    facts: Sequence[QueueFacts],
    *,
    dead: int = 0,
    refuses_sends: str = "",
    topic: str | None = None,
    copied: StoreCopy | None = None,
) -> list[Note]:
    """
    Return all notes, those that may explain the most first.

    ``dead`` counts dead letters; ``refuses_sends`` is the broker's reason to refuse sends; ``topic`` is the only one
    that was asked for.
    """
    notes = []
    if refuses_sends:
        notes.append(Note("SENDS_REFUSED", f"the broker refuses new messages: {refuses_sends}."))
    if copied is not None:
        notes.append(_copy(described.model, copied))
    if described.model == BROADCASTING:
        text = f"the group is broadcasting: each of its {len(described.members)} members has every queue for itself."
        notes.append(Note("BROADCASTING", text))
    if topic is None:
        notes += _missing(described)
    notes += _silent(described, members)
    notes += _idle(described, members)
    notes += _delays(facts)
    if dead:
        group = described.group
        advice = f"`rmq-admin dlq show {group}` shows them, `rmq-admin dlq replay {group}` has them delivered again."
        verb = "waits" if dead == 1 else "wait"
        notes.append(Note("DEAD_LETTERS", f"{_count(dead, 'dead letter')} {verb} for a decision.", advice))
    if described.more_queues:
        notes.append(Note("MORE_QUEUES", f"{described.more_queues} more queues were not looked at: name a topic."))
    return notes


def _copy(model: str | None, copied: StoreCopy) -> Note:
    shown = [f"{queue} up to offset {offset}" for queue, offset in list(copied.agreed.items())[:MOST_QUEUES]]
    more = f" and {len(copied.agreed) - len(shown)} more" if len(copied.agreed) > len(shown) else ""
    where = ", ".join(shown) + more
    goes_on = (
        "members that were further stop there until `rmq-admin broker accept-history`"
        if model == BROADCASTING
        else "the group continued at its offsets in the copy"
    )
    text = f"the store is a copy, first started {span(copied.ago_s)} ago: of the original it has {where or 'no queue'}"
    return Note("STORE_COPIED", f"{text}; {goes_on}.")


def _missing(described: GroupDescription) -> list[Note]:
    """Note topics that members subscribe to and that do not exist."""
    there = {queue.topic for queue in described.queues} | {retry_topic(described.group)}
    missing = sorted(set(described.subscriptions) - there)
    if not missing or described.more_queues:
        return []
    advice = "`rmq-admin topic list` shows what there is, `rmq-admin topic create NAME` makes one."
    return [Note("TOPIC_MISSING", f"members subscribe to {', '.join(missing)}: there is no such topic.", advice)]


def _silent(described: GroupDescription, members: Members) -> list[Note]:
    """Note members that were removed for their silence; in a group without others their queues report it."""
    is_alone = not any(member.state == "connected" for member in described.members)
    if described.model == BROADCASTING or (described.queues and is_alone):
        return []
    return [
        Note(
            "MEMBER_SILENT",
            f"{each.member} is connected, but has been silent for {span(each.silent_s)} "
            "and was taken out of the group.",
            unblock(each.member, "See"),
        )
        for each in silent_members(described, members).values()
        if not each.answers
    ]


def _idle(described: GroupDescription, members: Members) -> list[Note]:
    """Note members without a queue."""
    if described.model == BROADCASTING:
        return []
    waiting = {member for queue in members.waiting.values() for member in queue}
    idle = [
        member.member
        for member in described.members
        if member.state == "connected" and not member.leases and member.member not in waiting
    ]
    silent = [member for member in idle if not members.answers(member)]
    notes = [Note("MEMBER_SILENT", f"{member} has no queue, and does not answer.") for member in silent]
    if idle and described.queues:  # else it is their topic that is missing
        who = (
            f"{len(idle)} of {_count(len(described.members), 'member')} {'has' if len(idle) == 1 else 'have'} no queue"
        )
        are_few = len(described.members) + described.more_members > len(described.queues) + described.more_queues
        why = "there are not enough for all" if are_few else "just joined, or the strategy leaves none for it"
        notes.append(Note("IDLE_MEMBERS", f"{who}: {why}."))
    return notes


def _delays(facts: Sequence[QueueFacts]) -> list[Note]:
    """Note deferred messages: users who miss a message often forget that they deferred it."""
    deferred = {(each.topic, each.queue_id): each.deferred for each in facts if each.deferred.messages}
    waiting = [each for (topic, _), each in deferred.items() if topic != retry_topic(facts[0].group)]
    if not waiting:
        return []
    count = f"{sum(each.messages for each in waiting)}{'+' if any(each.more for each in waiting) else ''}"
    next_in_s = min(each.next_in_s for each in waiting)
    sentence = f"{count} delayed message{'s wait for their' if count != '1' else ' waits for its'} time"
    return [Note("DELAYED", f"{sentence}, the next comes in {span(next_in_s)}.", "`rmq-admin delay list` shows them.")]


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
