"""
The progress of a broadcasting member, which no other process knows.

``LocalProgress`` is its state, pure; ``LocalOffsets`` writes it to the member's file within ``offsets_every_s``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from rmq.runtime.logging import get_logger
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.stores import MAX_LOG_EPOCH, StoreIds

from ..config import ConsumerConfig
from ..group.assignment import Assignment
from ..group.progress import ProgressLoop
from .offsets_file import OffsetsContent, OffsetsFile, QueueProgress, directory_of

OF_ANOTHER_LOG: Final = MAX_LOG_EPOCH  # a broker refuses positions of epochs above its own, and none gets to this one


class LocalProgress:
    """
    The progress of one member in one store, as it is to be written next.

    Where a member begins is decided once for all queues that a topic has when the member first sees it. From then on
    the topic is known, also to those who read the file later: a queue of a known topic without progress came into being
    afterwards, and is read from 0. Queues of topics that are not subscribed to any more keep their progress.
    """

    def __init__(self, group: str, instance: str, found: OffsetsContent | None = None) -> None:
        """``found`` is what the file has."""
        self._content = found or OffsetsContent(group, instance, 0)
        self._topics = set(self._content.topics)
        self._queues = dict(self._content.queues)

    @property
    def store_id(self) -> int:
        """The store that all of it is about; 0 before the first is known."""
        return self._content.store_id

    def enter(self, store_id: int, kept: OffsetsContent | None = None) -> OffsetsContent | None:
        """
        The broker has this store; returns the progress in another one, if there was any: it means nothing here.

        ``kept`` is the progress that was made in this store before the other.
        """
        before = self.content()
        if store_id == self.store_id:
            return None
        self._content = kept or OffsetsContent(before.group, before.instance, store_id)
        self._topics, self._queues = set(self._content.topics), dict(self._content.queues)
        return before if before.topics or before.queues else None

    def disown(self, log_epoch: int) -> None:
        """Mark positions from ``log_epoch`` on, or of none, as of another log: a broker stops there."""
        for queue, at in self._queues.items():
            if at.offset and (not at.log_epoch or at.log_epoch >= log_epoch):
                self._queues[queue] = at._replace(log_epoch=OF_ANOTHER_LOG)

    def is_known(self, topic: str) -> bool:
        """Whether it was decided before where the queues of a topic begin."""
        return topic in self._topics

    def of(self, queue: MessageQueue, topic_generation: int | None) -> QueueProgress | None:
        """The progress in a queue of this topic generation; None: the topic does not exist."""
        at = self._queues.get(queue)
        return at if at is not None and at.generation == topic_generation else None

    def known(self, topics: Iterable[str]) -> None:
        """It is decided where the queues of these topics begin; a queue they get later begins at 0."""
        self._topics.update(topics)

    def note(self, queue: MessageQueue, at: QueueProgress) -> None:
        """A queue has come so far."""
        self._queues[queue] = at

    def forget_others(self, topic_generations: Mapping[str, int]) -> list[str]:
        """Drop the progress in other topics of these names; returns the names of those there were, sorted."""
        others = [q for q, at in self._queues.items() if at.generation != topic_generations.get(q.topic, at.generation)]
        for queue in others:
            del self._queues[queue]
        return sorted({queue.topic for queue in others})

    def content(self) -> OffsetsContent:
        """All of it, not changed by what comes later."""
        was = self._content
        return OffsetsContent(was.group, was.instance, was.store_id, frozenset(self._topics), dict(self._queues))


def in_copy(content: OffsetsContent, store_id: int, log_epoch: int) -> OffsetsContent:
    """Return progress as it counts in a copy of its store; ``log_epoch`` is the last that both can have."""
    queues = {
        queue: at._replace(log_epoch=min(at.log_epoch or log_epoch, log_epoch)) if at.offset else at
        for queue, at in content.queues.items()
    }
    return replace(content, store_id=store_id, queues=queues)


def in_another_copy(content: OffsetsContent, store_id: int) -> OffsetsContent:
    """Return progress for a store that has an original in common with its own: nothing shows how far the two agree."""
    queues = {queue: at._replace(log_epoch=OF_ANOTHER_LOG) if at.offset else at for queue, at in content.queues.items()}
    return replace(content, store_id=store_id, queues=queues)


log = get_logger("rmq.consumer")
LOG_EVERY_S = 60.0  # how often it is logged that nothing can be written


def open_offsets(
    config: ConsumerConfig,
    group: str,
    assignments: Mapping[MessageQueue, Assignment],
    *,
    now: Callable[[], float],
    busy: Callable[[], bool],
) -> LocalOffsets:
    """
    The progress of a member as its file has it, locked from here on. Waits for the disk.

    Raises:
        ConfigError: another process has it, or it cannot be read or written.
    """
    file = OffsetsFile(directory_of(config.offsets_dir, group, config.instance), group, config.instance)
    file.open()
    try:
        found = file.read()
    except BaseException:
        file.close()
        raise
    progress = LocalProgress(group, config.instance, found)
    return LocalOffsets(assignments, config, progress, file, now=now, busy=busy, found=found)


class LocalOffsets(ProgressLoop):
    """
    Writes the progress of all queues to a file, in a thread: one write at a time, whichever task asks for it.

    What a member that is killed did since the last write is delivered to it again.
    """

    def __init__(
        self,
        assignments: Mapping[MessageQueue, Assignment],
        config: ConsumerConfig,
        progress: LocalProgress,
        file: OffsetsFile,
        *,
        now: Callable[[], float],
        busy: Callable[[], bool],
        found: OffsetsContent | None = None,
    ) -> None:
        """``found`` is what the file has."""
        super().__init__(config.offsets_every_s, busy)
        self.progress = progress
        self._assignments = assignments
        self._file = file
        self._now = now
        self._aside: list[OffsetsContent] = []  # the progress in stores that the broker does not have any more
        self._written = found
        self._closed = False
        self._writing: asyncio.Future[None] | None = None
        self._logged_at = float("-inf")

    def enter(self, stores: StoreIds, before: StoreIds | None = None) -> None:
        """
        The broker has this store; if that is another than ``before``, what was done means nothing there.

        A store that comes back, since the other was a mistake, continues where it was left. A copy takes over the
        progress in its original: a pull finds out whether it has the messages that the progress is about. Of another
        copy of the same original nothing shows that: every queue in which something was read stops there.
        """
        store_id = stores.current
        if store_id == self.progress.store_id:
            return
        if self.progress.store_id:
            self._note_all()
        kept = self._kept(store_id)
        if kept is not None:
            log.info("offsets.store_is_back", store_id=f"{store_id:016x}")
        copied = self._copied(stores, before) if kept is None else None
        was = self.progress.enter(store_id, kept or copied)
        if was is None:
            return
        self._aside.append(was)
        if copied is not None:
            log.warning("offsets.copied_store", store_id=f"{store_id:016x}", progress_in=f"{was.store_id:016x}")
        else:
            log.warning(
                "offsets.other_store",
                store_id=f"{store_id:016x}",
                progress_in=f"{was.store_id:016x}",
                advice="the progress in the other store does not count here, and is put aside",
            )

    def _kept(self, store_id: int) -> OffsetsContent | None:
        """Return the progress in a store that was put aside, if there is any."""
        kept = next((content for content in reversed(self._aside) if content.store_id == store_id), None)
        return kept or self._file.kept(store_id)

    def _copied(self, stores: StoreIds, before: StoreIds | None) -> OffsetsContent | None:
        """Return the progress in the newest store that this one is a copy of, or in another copy, as it counts here."""
        now = self.progress.content()
        for former in reversed(stores.former):
            content = now if now.store_id == former.store_id else self._kept(former.store_id)
            if content is not None:
                return in_copy(content, stores.current, former.log_epoch - 1)
        is_related = before is not None and stores.is_related(before)
        return in_another_copy(now, stores.current) if is_related else None

    def disown(self, log_epoch: int) -> None:
        """Mark what was read from ``log_epoch`` on as of another log: the store was rolled back to before that."""
        self._note_all()
        self.progress.disown(log_epoch)

    def note(self, assignment: Assignment) -> None:
        """
        Take over how far an assignment has come; nothing, if its messages are of a topic or store that is gone.

        The log epoch goes along, so that this is safe also where the log has lost messages meanwhile: what goes on
        from there finds that out.
        """
        offset = assignment.cache.commit_offset
        if offset >= 0 and assignment.topic_generation is not None and not assignment.topic_gone:
            log_epoch = assignment.cache.log_epochs.before(offset)
            self.progress.note(assignment.queue, QueueProgress(assignment.topic_generation, offset, log_epoch))

    def _note_all(self) -> None:
        for assignment in self._assignments.values():
            self.note(assignment)

    def is_written(self, queue: MessageQueue, topic_generation: int | None) -> bool:
        """Whether the disk has progress in a queue of this topic generation."""
        content = self._written
        if content is None or content.store_id != self.progress.store_id:
            return False
        at = content.queues.get(queue)
        return at is not None and at.generation == topic_generation

    async def write(self) -> bool:
        """
        Write what is new; says whether that is on the disk. Cancelling leaves a write that has begun going on.

        After :meth:`close` nothing is written: the file may be another process's.
        """
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        if self._closed:
            return False
        self._note_all()
        content = self.progress.content()
        if content == self._written or not content.store_id:
            self._mark(content)
            return True
        try:
            await self._save_in_thread(content)
        except OSError as error:
            self._log_failure(error)
            return False
        self._written = content
        self._mark(content)
        return True

    report = write

    def _mark(self, content: OffsetsContent) -> None:
        """Note for each queue what the disk has of it."""
        for assignment in self._assignments.values():
            at = content.queues.get(assignment.queue)
            assignment.reported = NO_OFFSET if at is None else at.offset

    async def _save_in_thread(self, content: OffsetsContent) -> None:
        try:
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._save, content)
        except RuntimeError:  # the program ends while the loop runs on in a thread: no other thread begins
            self._save(content)
        else:
            await asyncio.shield(self._writing)

    def _save(self, content: OffsetsContent) -> None:
        """One at a time."""
        while self._aside:
            self._file.put_aside(self._aside[0])
            del self._aside[0]  # meanwhile the loop may have put another after it
        self._file.write(content)

    def _log_failure(self, error: OSError) -> None:
        if self._now() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = self._now()
            log.error(
                "offsets.not_written",
                reason=error.strerror or str(error),
                advice="what is done from here on is delivered again after a restart",
            )

    async def close(self) -> None:
        """Write for the last time, and let another process have the file."""
        try:
            self._logged_at = float("-inf")  # a failure is logged in any case
            await self.write()
        finally:
            self._closed = True
            if self._writing is None or self._writing.done():
                self._file.close()
            else:
                self._writing.add_done_callback(lambda _: self._file.close())
