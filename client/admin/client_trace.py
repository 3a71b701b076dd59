"""
What became of a message, derived from what the broker stores: facts in, story out. Pure.

Nothing of it is recorded: where a message lies, how far each group is in its queue, and which copies name it as their
origin are facts that anybody can look up; :mod:`rmq.client.admin.trace` does. So a trace is as true as the moment it
was made, and tells nothing of copies that retention has removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from rmq.wire.batch import tags
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.names import DEAD_LETTERS, ORIGIN_TOPIC, RETRIES
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

PAST: Final = "past"  # committed behind it
AT: Final = "at"  # it is the next one
BEFORE: Final = "before"  # others come first
NO_PROGRESS: Final = "none"  # the group has committed nothing in the queue
UNWANTED: Final = "unwanted"  # its tag is not among those that the group subscribes to
BROADCASTING: Final = "broadcasting"  # each member has a progress of its own, which the broker does not know

RETRY: Final = "retry"  # to be tried again
DEAD_LETTER: Final = "dead_letter"
REPLAY: Final = "replay"  # a dead letter, once more for its group
RETURNED: Final = "returned"  # a dead letter, once more in its topic

PUT_OFF: Final = "waiting"  # for its time
FAILED: Final = "failed"  # another copy was made of it
STATES: Final = {WAITING: "waiting", REPLAYED: "replayed", DROPPED: "dropped"}


class Origin(NamedTuple):
    """The message that copies were made of, as they name it."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str

    @property
    def queue(self) -> MessageQueue:
        """Where it lies."""
        return MessageQueue(self.topic, self.queue_id)


class Standing(NamedTuple):
    """
    Where a group stands with a message, and who has its queue now.

    ``messages_before`` it come first; ``attempts`` failed so far, and so many owners were lost at it (``abandoned``),
    if that is known: the broker tells it of the message that a queue is at.
    """

    group: str
    position: str
    committed: int | None
    messages_before: int
    ordered: bool | None
    expression: str | None
    owner: str | None
    epoch: int | None
    lease_left_s: float | None
    state: str | None
    attempts: int
    abandoned: int


class Copy(NamedTuple):
    """
    A copy of a message. ``queue_offset`` is None while it waits for ``due_at``.

    ``delivery`` is the how-manyth it is for, of a dead letter how many failed. ``state`` of a retry or a replay is
    ``waiting`` (for its time), ``failed`` (another copy was made of it) or the position of its group; of a dead letter
    ``waiting``, ``replayed`` or ``dropped``.
    """

    kind: str
    group: str | None
    topic: str
    queue_id: int
    queue_offset: int | None
    message_id: str
    copy_of: str | None
    stored_at: datetime
    due_at: datetime | None
    delivery: int | None
    state: str | None
    reason: str | None


class Trace(NamedTuple):
    """
    All that is known of a message.

    ``origin`` is what its copies name, which is the message itself unless it is such a copy. ``source`` is what it was
    made of: the delayed message, or the dead letter; ``became`` is what a delayed one was delivered as. ``remarks``
    say in sentences what could not be found out, and ``unsure`` of which groups not all copies were looked at: one
    that is past the message may have failed at it all the same.
    """

    message: StoredMessage
    origin: Origin
    is_waiting: bool
    source: StoredMessage | None
    became: StoredMessage | None
    standings: list[Standing]
    copies: list[Copy]
    remarks: list[str]
    unsure: list[str] = []  # noqa: RUF012  # shared, so nobody may change it in place

    @property
    def is_copy(self) -> bool:
        """Whether the message was made of another one for a group."""
        return is_for_group(self.message)


def is_for_group(message: StoredMessage) -> bool:
    """Whether a message is a copy that the broker made for one group."""
    return message.stored_topic.startswith((RETRIES, DEAD_LETTERS))


def group_of(message: StoredMessage) -> str | None:
    """The group that a copy was made for."""
    if not is_for_group(message):
        return None
    return message.stored_topic.removeprefix(RETRIES).removeprefix(DEAD_LETTERS)


def origin_of(message: StoredMessage) -> Origin:
    """The message that a copy was made of at first; of any other message, itself."""
    own = Origin(message.stored_topic, message.queue_id, message.queue_offset, message.message_id)
    if not is_for_group(message):
        return own
    said = message.properties
    queue_id, offset = _number(said.get("RMQ_ORIGIN_QUEUE")), _number(said.get("RMQ_ORIGIN_OFFSET"))
    name, message_id = said.get(ORIGIN_TOPIC), said.get("RMQ_ORIGIN_ID")
    if name is None or message_id is None or queue_id is None or offset is None:
        return own  # somebody who may write there did not say
    return Origin(name, queue_id, offset, message_id)


def standing(message: StoredMessage | None, origin: Origin, told: GroupDescription, queue: GroupQueue) -> Standing:
    """Where a group stands with a message of one of its queues; without the message, its tag is not known."""
    expression = told.subscriptions.get(origin.topic)
    is_owned, is_head = queue.owner is not None, queue.retry_offset == origin.queue_offset
    committed = None if queue.committed == NO_OFFSET else queue.committed
    at = max(queue.committed, queue.min_offset)
    return Standing(
        told.group, _position(message, origin.queue_offset, told.model, expression, queue), committed,
        max(origin.queue_offset - at, 0) if committed is not None else 0, told.ordered, expression, queue.owner,
        queue.epoch if is_owned else None, queue.lease_left_s if is_owned else None, queue.state,
        queue.attempts if is_head else 0, queue.abandoned if queue.suspect_offset == origin.queue_offset else 0,
    )  # fmt: skip


def _position(
    message: StoredMessage | None, offset: int, model: str | None, expression: str | None, queue: GroupQueue
) -> str:
    if message is not None and expression is not None and not _wants(expression, message.tag):
        return UNWANTED
    if model == BROADCASTING:
        return BROADCASTING
    return progress(offset, queue.committed)


def progress(offset: int, committed: int) -> str:
    """How a committed offset (-1: none) compares with that of a message."""
    if committed == NO_OFFSET:
        return NO_PROGRESS
    if committed == offset:
        return AT
    return PAST if committed > offset else BEFORE


def _wants(expression: str, tag: str | None) -> bool:
    try:
        wanted = tags.parse(expression)
    except ValueError:  # of a member of a later version, perhaps
        return True
    return wanted is None or tag in wanted


def copies(
    found: Iterable[StoredMessage],
    committed: Mapping[str, int],
    dead: Mapping[str, Sequence[DeadRun]],
    sources: Iterable[StoredMessage] = (),
) -> list[Copy]:
    """
    Copies in the order they were made.

    ``committed`` says how far groups are with their retries, ``dead`` what became of their dead letters. ``sources``
    are what copies were made of when their time had come: they tell which copy had failed before.
    """
    messages = sorted({message.message_id: message for message in found}.values(), key=lambda m: m.stored_at)
    letters = {message.message_id for message in messages if message.stored_topic.startswith(DEAD_LETTERS)}
    failed = {message.copy_of for message in (*messages, *sources)}
    told = [_copy(message, letters, committed, dead) for message in messages]
    again = (RETRY, REPLAY)
    return [copy._replace(state=FAILED) if copy.kind in again and copy.message_id in failed else copy for copy in told]


def _copy(
    message: StoredMessage, letters: set[str], committed: Mapping[str, int], dead: Mapping[str, Sequence[DeadRun]]
) -> Copy:
    group, said, offset = group_of(message), message.properties, message.queue_offset
    delivery: int | None = message.attempt
    if group is None:
        kind, state, delivery = RETURNED, None, None
    elif message.stored_topic.startswith(DEAD_LETTERS):
        kind, state, delivery = DEAD_LETTER, dead_state(offset, dead.get(group, ())), _number(said.get("RMQ_ATTEMPTS"))
    else:
        kind = REPLAY if message.copy_of in letters else RETRY
        state = PUT_OFF if message.due_at is not None else progress(offset, committed.get(group, NO_OFFSET))
    reason = said.get("RMQ_DEAD_REASON") if kind == DEAD_LETTER else None
    return Copy(
        kind, group, message.stored_topic, message.queue_id, None if offset < 0 else offset, message.message_id,
        message.copy_of, message.stored_at, message.due_at, delivery, state, reason,
    )  # fmt: skip


def dead_state(offset: int, runs: Sequence[DeadRun]) -> str:
    """What became of a dead letter."""
    return next((STATES.get(run.state, "?") for run in runs if run.from_offset <= offset < run.end_offset), "waiting")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
