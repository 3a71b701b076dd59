"""
The trace of a message: where it is stored, how far each group is with it, and which copies were made of it.

Nothing is recorded for this: a trace is derived from what the broker stores at that moment, so it does not show copies
that retention has removed. Copies are searched in the retry and dead-letter topics of the groups that read the
message's topic: these are small, and are read from the time at which the message was stored, up to a limit. A reached
limit is reported as a remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq.wire.batch import tags
from rmq.wire.errors import Damaged, GroupNotFound, MessageNotFound, TopicNotFound
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.names import DEAD_LETTERS, ORIGIN_TOPIC, RETRIES, dead_letter_topic, retry_topic
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadRun

if TYPE_CHECKING:
    from .admin import Admin

MAX_GROUPS: Final = 256
MAX_READ: Final = 20_000  # messages of one queue that are searched
MAX_DEFERRED: Final = 100_000  # deferred batches of a broker that are searched for retries
MAX_RETRIES: Final = 1000  # deferred retries of one group


async def trace(admin: Admin, message_id: str, *, max_read: int = MAX_READ) -> Trace:
    """
    Trace a message as things are now. Cancelling is safe.

    Raises:
        MessageNotFound, BadRequest, Damaged: as :meth:`~rmq.client.Admin.message` does.
    """
    return await _Tracing(admin, max_read).trace(message_id)


class _Tracing:
    """Collects one trace; ``remarks`` gathers what could not be determined."""

    def __init__(self, admin: Admin, max_read: int) -> None:
        self._admin = admin
        self._max_read = max_read
        self._deferred: int | None = None  # deferred batches in the broker
        self.remarks: list[str] = []
        self.unsure: list[str] = []

    async def trace(self, message_id: str) -> Trace:
        message = await self._admin.message(message_id)
        is_deferred = message.due_at is not None and await self._admin.is_deferred(message)
        became = None
        if message.due_at is not None and not is_deferred:
            became = await self._delivered(message)
        subject = became or message
        origin = origin_of(subject)
        original = subject if origin.message_id == subject.message_id else await self._stored(origin)
        source = None if message.copy_of is None else await self._source(message.copy_of)
        known = Trace(message, origin, is_deferred, source, became, [], [], self.remarks)
        if origin.queue_offset == NO_OFFSET:  # it has no offset yet, so no group can have read it
            return known
        standings = await self._standings(original, origin)
        groups = dict.fromkeys([each.group for each in standings])
        if (own := group_of(message)) is not None:
            groups.setdefault(own)
        since = None if original is None else original.stored_at
        found = await self._copies(origin, list(groups), since)
        return known._replace(standings=standings, copies=found, unsure=self.unsure)

    # ---- the message and what it was made of

    async def _stored(self, origin: Origin) -> StoredMessage | None:
        try:
            return await self._admin.message(origin.message_id)
        except (MessageNotFound, Damaged) as error:
            self.remarks.append(f"the original cannot be read: {error}")
            return None

    async def _source(self, message_id: str) -> StoredMessage | None:
        try:
            return await self._admin.message(message_id)
        except (MessageNotFound, Damaged):
            return None  # its id is in the trace all the same

    async def _delivered(self, message: StoredMessage) -> StoredMessage | None:
        """Return the copy that a deferred message became when it was due."""
        assert message.due_at is not None
        queue = MessageQueue(message.stored_topic, message.queue_id)
        found = await self._read(queue, message.due_at, partial(_is_copy, message.message_id), first=True)
        if not found:
            self.remarks.append("its time has come, and the copy that was delivered is not found: it may be gone")
        return found[0] if found else None

    # ---- groups

    async def _standings(self, message: StoredMessage | None, origin: Origin) -> list[Standing]:
        try:
            topic = await self._admin.describe_topic(origin.topic)
        except TopicNotFound:
            self.remarks.append(f"the topic {origin.topic!r} was deleted")
            return []
        names = dict.fromkeys(group.group for group in topic.groups)
        rows = await self._admin.list_groups()  # a topic lists few groups, and none without progress
        names.update(dict.fromkeys(row.group for row in rows if row.members or topic.more_groups))
        left_out = max(len(names) - MAX_GROUPS, 0)
        if left_out:
            self.remarks.append(f"{left_out} more groups were not looked at")
        found = [await self._standing(message, origin, name) for name in list(names)[:MAX_GROUPS]]
        return sorted(each for each in found if each is not None)

    async def _standing(self, message: StoredMessage | None, origin: Origin, group: str) -> Standing | None:
        try:
            told = await self._admin.describe_group(group, origin.topic)
        except (GroupNotFound, TopicNotFound):
            return None  # it ended meanwhile
        queue = next((queue for queue in told.queues if queue.queue_id == origin.queue_id), None)
        return None if queue is None else standing(message, origin, told, queue)

    # ---- copies

    async def _copies(self, origin: Origin, groups: list[str], since: datetime | None) -> list[MessageCopy]:
        topics = {info.topic for info in await self._admin.list_topics()}
        found: list[StoredMessage] = []
        committed: dict[str, int] = {}
        dead: dict[str, list[DeadRun]] = {}

        def is_ours(message: StoredMessage) -> bool:
            return is_for_group(message) and origin_of(message).message_id == origin.message_id

        for group in groups:
            said = len(self.remarks)
            retries, letters = MessageQueue(retry_topic(group), 0), MessageQueue(dead_letter_topic(group), 0)
            if retries.topic in topics:
                found += await self._read(retries, since, is_ours)
                found += await self._waiting(retries.topic, since, is_ours)
                (held,) = await self._admin.ranges([retries], group)
                committed[group] = held.committed
            if letters.topic in topics:
                found += await self._read(letters, since, is_ours)
                dead[group] = await self._states(group)
            if len(self.remarks) > said or self._too_many_deferred:
                self.unsure.append(group)
        sources = await self._put_off(found)
        told = copies(found, committed, dead, sources)
        returned = await self._returned(origin, told)
        return copies([*found, *returned], committed, dead, sources) if returned else told

    async def _put_off(self, found: list[StoredMessage]) -> list[StoredMessage]:
        """Return the deferred messages that the retries among these copies were delivered from."""
        names = {message.copy_of for message in found if message.due_at is None}
        sources = [await self._source(name) for name in sorted(name for name in names if name is not None)]
        return [source for source in sources if source is not None and source.due_at is not None]

    async def _states(self, group: str) -> list[DeadRun]:
        try:
            return await self._admin.dead_letter_states(group)
        except TopicNotFound:
            return []

    async def _waiting(
        self, topic: str, since: datetime | None, is_ours: Callable[[StoredMessage], bool]
    ) -> list[StoredMessage]:
        """Return deferred retries: they are in no queue yet, so each is requested by its id."""
        if self._deferred is None:
            self._deferred = (await self._admin.list_deferred(None, 1)).total_batches
            if self._too_many_deferred:
                text = f"{self._deferred} delayed batches wait in the broker: retries among them were not looked for"
                self.remarks.append(text)
        if self._too_many_deferred:
            return []
        try:
            waiting = await self._admin.list_deferred(topic, MAX_RETRIES)
        except TopicNotFound:
            return []
        if waiting.more:
            self.remarks.append(f"only the next {MAX_RETRIES} that wait in {topic} were looked at")
        earliest = 0 if since is None else int(since.timestamp() * 1e6) - 1
        found = []
        for row in waiting.rows:
            if row.parked_at >= earliest:
                try:
                    message = await self._admin.message(row.message_id)
                except (MessageNotFound, Damaged):
                    continue
                found += [message] if is_ours(message) else []
        return found

    @property
    def _too_many_deferred(self) -> bool:
        return self._deferred is not None and self._deferred > MAX_DEFERRED

    async def _returned(self, origin: Origin, known: list[MessageCopy]) -> list[StoredMessage]:
        """Return dead letters that were put back into their topic: only the dead letter refers to them."""
        again = {copy.copy_of for copy in known if copy.kind == REPLAY}
        found: list[StoredMessage] = []
        for copy in known:
            if copy.kind != DEAD_LETTER or copy.state != STATES[REPLAYED] or copy.message_id in again:
                continue
            is_it = partial(_is_copy, copy.message_id)
            found += await self._read(origin.queue, copy.stored_at, is_it, first=True)
        return found

    async def _read(
        self, queue: MessageQueue, since: datetime | None, is_wanted: Callable[[StoredMessage], bool],
        *, first: bool = False,
    ) -> list[StoredMessage]:  # fmt: skip
        """Return the wanted messages of a queue, or the first of them, stored since a time; up to the limit."""
        (held,) = await self._admin.ranges([queue])
        if held.status:
            return []
        start, end = held.min_offset, held.max_offset
        if since is not None:
            (at,) = await self._admin.offsets_at([queue], since)
            start = max(start, at.offset)
        stop = min(end, start + self._max_read)
        found: list[StoredMessage] = []
        try:
            async with aclosing(self._admin.read(queue, start, stop)) as reading:  # type: ignore[type-var]
                async for some in reading:
                    found += [message for message in some if is_wanted(message)]
                    if found and first:
                        return found[:1]
        except Damaged as error:
            self.remarks.append(f"{error}; what follows was not searched")
        if stop < end:
            self.remarks.append(f"only {stop - start} of {end - start} messages of {queue} were looked at")
        return found


def _is_copy(of: str, message: StoredMessage) -> bool:
    return message.copy_of == of


PAST: Final = "past"  # committed after it
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
    """The message that copies were made of, as their properties name it."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str

    @property
    def queue(self) -> MessageQueue:
        """Its queue."""
        return MessageQueue(self.topic, self.queue_id)


class Standing(NamedTuple):
    """
    The progress of a group with respect to a message, and the present owner of its queue.

    ``messages_before`` it come first; ``attempts`` failed so far, and ``abandoned`` owners were lost at it. The broker
    knows these two for the next message of a queue only.
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


class MessageCopy(NamedTuple):
    """
    A copy of a message. ``queue_offset`` is None while it is deferred until ``due_at``.

    ``delivery`` is the number of its delivery; for a dead letter, how many failed. ``state`` of a retry or a replay is
    ``waiting`` (until it is due), ``failed`` (another copy was made of it) or the position of its group; of a dead
    letter ``waiting``, ``replayed`` or ``dropped``.
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
    Everything that is known about a message.

    ``origin`` is the message that its copies name: the message itself, unless it is such a copy. ``source`` is what it
    was made of (a deferred message, or a dead letter), ``became`` what a deferred one was delivered as. ``remarks`` are
    sentences about what could not be determined. For groups in ``unsure`` not all copies were searched: one that is
    past the message may have failed at it all the same.
    """

    message: StoredMessage
    origin: Origin
    is_deferred: bool
    source: StoredMessage | None
    became: StoredMessage | None
    standings: list[Standing]
    copies: list[MessageCopy]
    remarks: list[str]
    unsure: list[str] = []  # noqa: RUF012  # shared, so nobody may change it in place

    @property
    def is_copy(self) -> bool:
        """Whether the message is a copy that was made for a group."""
        return is_for_group(self.message)


def is_for_group(message: StoredMessage) -> bool:
    """Return whether a message is a copy that the broker made for one group."""
    return message.stored_topic.startswith((RETRIES, DEAD_LETTERS))


def group_of(message: StoredMessage) -> str | None:
    """Return the group that a copy was made for."""
    if not is_for_group(message):
        return None
    return message.stored_topic.removeprefix(RETRIES).removeprefix(DEAD_LETTERS)


def origin_of(message: StoredMessage) -> Origin:
    """Return the original of a copy, or the message itself if it is not a copy."""
    own = Origin(message.stored_topic, message.queue_id, message.queue_offset, message.message_id)
    if not is_for_group(message):
        return own
    said = message.properties
    queue_id, offset = _number(said.get("RMQ_ORIGIN_QUEUE")), _number(said.get("RMQ_ORIGIN_OFFSET"))
    name, message_id = said.get(ORIGIN_TOPIC), said.get("RMQ_ORIGIN_ID")
    if name is None or message_id is None or queue_id is None or offset is None:
        return own  # written there by an operator, without these properties
    return Origin(name, queue_id, offset, message_id)


def standing(message: StoredMessage | None, origin: Origin, told: GroupDescription, queue: GroupQueue) -> Standing:
    """Return the progress of a group with respect to a message; without the message, its tag is not known."""
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
    """Return how a committed offset (-1: none) compares with the offset of a message."""
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
) -> list[MessageCopy]:
    """
    Return copies in the order they were made.

    ``committed`` is the progress of groups in their retries, ``dead`` the states of their dead letters. ``sources`` are
    the deferred messages that copies were delivered from: they show which copy had failed before.
    """
    messages = sorted({message.message_id: message for message in found}.values(), key=lambda m: m.stored_at)
    letters = {message.message_id for message in messages if message.stored_topic.startswith(DEAD_LETTERS)}
    failed = {message.copy_of for message in (*messages, *sources)}
    told = [_copy(message, letters, committed, dead) for message in messages]
    again = (RETRY, REPLAY)
    return [copy._replace(state=FAILED) if copy.kind in again and copy.message_id in failed else copy for copy in told]


def _copy(
    message: StoredMessage, letters: set[str], committed: Mapping[str, int], dead: Mapping[str, Sequence[DeadRun]]
) -> MessageCopy:
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
    return MessageCopy(
        kind, group, message.stored_topic, message.queue_id, None if offset < 0 else offset, message.message_id,
        message.copy_of, message.stored_at, message.due_at, delivery, state, reason,
    )  # fmt: skip


def dead_state(offset: int, runs: Sequence[DeadRun]) -> str:
    """Return the state of a dead letter."""
    return next((STATES.get(run.state, "?") for run in runs if run.from_offset <= offset < run.end_offset), "waiting")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
