"""
Looks up what :mod:`rmq.client.admin.client_trace` makes a story of.

Copies are found in the retry and dead-letter topics of the groups that read the message's topic: these are small, and
are read from the time on at which the message was stored, up to a limit that is told when it is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq.wire.errors import Damaged, GroupNotFound, MessageNotFound, TopicNotFound
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.names import dead_letter_topic, retry_topic
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.redelivery import REPLAYED, DeadRun

from .client_trace import (
    DEAD_LETTER,
    REPLAY,
    STATES,
    Copy,
    Origin,
    Standing,
    Trace,
    copies,
    group_of,
    is_for_group,
    origin_of,
    standing,
)

if TYPE_CHECKING:
    from .admin import Admin

MAX_GROUPS: Final = 256
MAX_READ: Final = 20_000  # messages of one queue that are looked at
MAX_WAITING: Final = 100_000  # delayed batches of a broker in which retries that wait are looked for
MAX_RETRIES: Final = 1000  # of one group that wait


async def trace(admin: Admin, message_id: str, *, max_read: int = MAX_READ) -> Trace:
    """
    What became of a message, as things are now. Cancelling is safe.

    Raises:
        MessageNotFound, BadRequest, Damaged: as :meth:`~rmq.client.Admin.message` does.
    """
    return await _Tracing(admin, max_read).trace(message_id)


class _Tracing:
    """One trace; ``remarks`` gathers what could not be found out."""

    def __init__(self, admin: Admin, max_read: int) -> None:
        self._admin = admin
        self._max_read = max_read
        self._delayed: int | None = None  # how many batches wait in the broker
        self.remarks: list[str] = []
        self.unsure: list[str] = []

    async def trace(self, message_id: str) -> Trace:
        message = await self._admin.message(message_id)
        is_waiting = message.due_at is not None and await self._admin.is_waiting(message)
        became = None
        if message.due_at is not None and not is_waiting:
            became = await self._delivered(message)
        subject = became or message
        origin = origin_of(subject)
        original = subject if origin.message_id == subject.message_id else await self._stored(origin)
        source = None if message.copy_of is None else await self._source(message.copy_of)
        known = Trace(message, origin, is_waiting, source, became, [], [], self.remarks)
        if origin.queue_offset == NO_OFFSET:  # it has no place yet, and nobody can have read it
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
            return None  # its id is told all the same

    async def _delivered(self, message: StoredMessage) -> StoredMessage | None:
        """What a delayed message became when its time came."""
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
        rows = await self._admin.list_groups()  # a topic tells of few groups, and of none without progress
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

    async def _copies(self, origin: Origin, groups: list[str], since: datetime | None) -> list[Copy]:
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
            if len(self.remarks) > said or self._too_many_wait:
                self.unsure.append(group)
        sources = await self._put_off(found)
        told = copies(found, committed, dead, sources)
        returned = await self._returned(origin, told)
        return copies([*found, *returned], committed, dead, sources) if returned else told

    async def _put_off(self, found: list[StoredMessage]) -> list[StoredMessage]:
        """What the retries among these copies were while they waited for their time."""
        names = {message.copy_of for message in found if message.due_at is None}
        sources = [await self._source(name) for name in sorted(name for name in names if name is not None)]
        return [source for source in sources if source is not None and source.due_at is not None]

    async def _states(self, group: str) -> list[DeadRun]:
        try:
            return await self._admin.dead_states(group)
        except TopicNotFound:
            return []

    async def _waiting(
        self, topic: str, since: datetime | None, is_ours: Callable[[StoredMessage], bool]
    ) -> list[StoredMessage]:
        """Retries that wait for their time: they lie in no queue, so that each is asked for by its id."""
        if self._delayed is None:
            self._delayed = (await self._admin.delays(None, 1)).total_batches
            if self._too_many_wait:
                text = f"{self._delayed} delayed batches wait in the broker: retries among them were not looked for"
                self.remarks.append(text)
        if self._too_many_wait:
            return []
        try:
            waiting = await self._admin.delays(topic, MAX_RETRIES)
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
    def _too_many_wait(self) -> bool:
        return self._delayed is not None and self._delayed > MAX_WAITING

    async def _returned(self, origin: Origin, known: list[Copy]) -> list[StoredMessage]:
        """Dead letters that were put back into their topic: nothing but the dead letter names them."""
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
        """The messages of a queue that are wanted, or the first of them, stored since a time; up to the limit."""
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
            self.remarks.append(f"{error}; what lies behind was not looked at")
        if stop < end:
            self.remarks.append(f"only {stop - start} of {end - start} messages of {queue} were looked at")
        return found


def _is_copy(of: str, message: StoredMessage) -> bool:
    return message.copy_of == of
