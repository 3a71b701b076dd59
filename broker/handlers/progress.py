"""
Progress of groups: commits, failed deliveries, announcements, resets; fenced by epochs.

A change that has a request of its own is replied to when it is in the log. Progress that rides on pulls is gathered and
reaches the log within ``offset_flush_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rmq.runtime.logging import PER_LINE, get_broker_logger, lines_of
from rmq.wire import names
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import BadRequest, Fenced, GroupMismatch, OffsetOutOfRange, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.hello import AttemptRun  # fmt: skip
from rmq.wire.protocol.ops.core import (
    NO_OFFSET,
    Attempt,
    Commit,
    Outcome,
    ResetEntry,
    ResetOffsets,
    ResetResult,
    Starting,
)
from rmq.wire.protocol.ops.topics import GroupState

from ..net.connection import DEFERRED, Connection
from ..state.attempts import highest
from ..state.groups import BROADCASTING, Membership
from ..state.leases import Lease, LeaseTable
from ..state.offsets import Ledger
from ..state.sessions import Session
from ..state.topics import TopicTable
from ..store.committer import Committer
from .requests import check_entries

log = get_broker_logger(__name__)

MAX_ATTEMPTS: Final = (1 << 31) - 1
RESETS_A_TURN: Final = PER_LINE  # some 20 us each, and one line of the log for all of them

ReadableRange = Callable[[MessageQueue], tuple[int, int]]  # the offsets of a queue that can be read: [first, end)


class ProgressHandler:
    """
    Records what members report of the messages they process, and what operators reset.

    ``revoke(group, queues, why)`` ends the leases of queues; it is set by the composition root.
    """

    def __init__(
        self, *, topics: TopicTable, members: Membership, locks: LeaseTable, ledger: Ledger, committer: Committer,
        now: Callable[[], float], readable_range: ReadableRange, call_soon: Callable[..., object],
    ) -> None:  # fmt: skip
        self._topics = topics
        self._members = members
        self._locks = locks
        self._ledger = ledger
        self._committer = committer
        self._now = now
        self._readable_range = readable_range
        self._call_soon = call_soon
        self._riding: dict[tuple[str, MessageQueue], int] = {}
        self.revoke: Callable[[str, Sequence[MessageQueue], str], None] = lambda group, queues, why: None

    # ---- commits

    def commit(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Store progress; the answer follows when it is durable."""
        check_entries(payload, 1)
        request = decode(Commit, payload)
        names.check_group(request.group)
        session_id = session_of(connection).id
        outcomes = [
            self.commit_one(session_id, request.group, MessageQueue(topic, queue_id), epoch, offset)
            for topic, queue_id, epoch, offset in request.entries
        ]
        return self._later(connection, request_id, outcomes)

    def commit_one(self, session_id: bytes, group: str, queue: MessageQueue, epoch: int | None, offset: int) -> Outcome:
        """Store progress in one queue, or say why not."""
        try:
            self._topics.require_queue(*queue)
            self.check_pull(session_id, group, queue, epoch)
            self.check_offset(queue, offset)
        except Refused as error:
            return Outcome(error.code, error.text)
        self._advance(group, queue, offset)  # what rides with a higher offset stays: it is progress all the same
        return Outcome()

    def check_offset(self, queue: MessageQueue, offset: int) -> None:
        """Refuse progress to where a queue has not come."""
        end = self._readable_range(queue)[1]
        if not 0 <= offset <= end:
            raise BadRequest(f"offset {offset} cannot be committed: {queue} ends at {end}")

    def begin_at(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record where a group without progress begins."""
        self._advance(group, queue, offset)

    def pass_to(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record progress that was judged before; -1 is none."""
        self._advance(group, queue, offset)

    def _advance(self, group: str, queue: MessageQueue, offset: int) -> None:
        change = self._ledger.commit(group, queue, offset)
        if change is not None:
            self._committer.record(change)

    # ---- progress that rides on pulls

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        """
        Refuse a session without the lease, whatever the mode of the group is, or whether that is known.

        Raises:
            GroupMismatch: the group has no leases: its members keep their own progress.
            Fenced: another session may have it.
        """
        try:
            self._locks.check(group, queue, session, epoch, now=self._now())
        except Fenced:
            mode = self._members.mode(group)
            if mode is None or mode.model != BROADCASTING or self._locks.holder(group, queue, now=self._now()):
                raise
            raise GroupMismatch(
                f"group {group!r} is broadcasting: its members keep their progress themselves, and pull without a group"
            ) from None

    def wanted(self, session: bytes, group: str, topic: str) -> Wanted | None:
        """The tags that a member wants of a topic; None if all of them, or if it has not said."""
        return self._members.wanted(group, session, topic)

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Note progress that came with a pull; it reaches the log within a moment, or with the next grant."""
        if 0 <= queue_offset <= self._readable_range(queue)[1] and queue_offset > self.committed(group, queue):
            self._riding[group, queue] = queue_offset

    def fetched(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        """Messages up to an offset were handed to the holder of a queue, whose request was let pass just now."""
        lease = self._locks.holder(group, queue, now=self._now())
        if lease is not None and next_offset > lease.fetched:
            lease.fetched = next_offset

    def flush_riding(self) -> None:
        """Bring gathered progress into the log."""
        riding, self._riding = self._riding, {}
        for (group, queue), offset in riding.items():
            self._advance(group, queue, offset)

    def settle(self, group: str, queue: MessageQueue) -> None:
        """Bring what was gathered of one queue into the log."""
        if (riding := self._riding.pop((group, queue), None)) is not None:
            self._advance(group, queue, riding)

    # ---- failures

    def attempt(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Note failed deliveries; the answer follows when they are durable."""
        check_entries(payload, 6)
        request = decode(Attempt, payload)
        names.check_group(request.group)
        queue = MessageQueue(request.topic, request.queue_id)
        first = AttemptRun(request.queue_offset, request.queue_offset + 1, request.attempts)
        _check_attempts(first.attempts)
        self._topics.require_queue(*queue)
        self._check_ordered(connection, request.group, queue, request.epoch)
        end = self._readable_range(queue)[1]
        _check_runs(queue, [first], end)
        _check_runs(queue, request.runs, end)
        self._note(request.group, queue, highest([first], request.runs))
        return self._later(connection, request_id, Outcome())

    def _note(self, group: str, queue: MessageQueue, runs: Sequence[AttemptRun]) -> None:
        """Count failures, but for those of messages that are done: the report is late."""
        done = self._ledger.offsets.get(group, queue)
        open_runs = [run._replace(from_offset=max(run.from_offset, done)) for run in runs if run.end_offset > done]
        change = self._ledger.attempts.record(group, queue, open_runs)
        if change is not None:
            self._committer.record(change)

    def starting(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Note which message is about to be processed, and progress with it; answered when that is durable."""
        request = decode(Starting, payload)
        names.check_group(request.group)
        queue, offset = MessageQueue(request.topic, request.queue_id), request.queue_offset
        self._topics.require_queue(*queue)
        self._check_ordered(connection, request.group, queue, request.epoch)
        if request.commit_offset != NO_OFFSET:
            self.check_offset(queue, request.commit_offset)
        done = max(self.committed(request.group, queue), request.commit_offset, 0)
        end = self._readable_range(queue)[1]
        if not done <= offset < end:
            raise BadRequest(f"offset {offset} cannot be started: {queue} has {done} to {end} left for this group")
        self.settle(request.group, queue)
        if request.commit_offset != NO_OFFSET:
            self._advance(request.group, queue, request.commit_offset)
        change = self._ledger.suspects.announce(request.group, queue, offset, request.epoch)
        if change is not None:
            self._committer.record(change)
        return self._later(connection, request_id, Outcome())

    def abandoned(self, lease: Lease) -> None:
        """
        A lease ended without being given back: if its owner had messages in hand, one of them is suspect.

        Not so if it did not go through them in order: then it is unknown which ones it had begun. Nor if it had
        announced that it was leaving: it was going anyway.
        """
        group, queue = lease.group, lease.queue
        self.settle(group, queue)
        if not lease.ordered or lease.leaving:
            return
        found = self._ledger.suspects.abandon(
            group, queue, epoch=lease.epoch, committed=self._ledger.offsets.get(group, queue), fetched=lease.fetched
        )
        if found is None:
            return
        change, announced = found
        self._committer.record(change)
        if announced != NO_OFFSET:  # it was started for sure: that was a delivery in vain
            failed = self._ledger.attempts.of_message(group, queue, announced) + 1
            self._note(group, queue, [AttemptRun(announced, announced + 1, min(failed, MAX_ATTEMPTS))])
        log.warning(
            "lock.abandoned", group=group, queue=str(queue), owner=lease.member, epoch=lease.epoch,
            suspect=change.suspect_offset, times=change.abandoned, announced=announced != NO_OFFSET,
        )  # fmt: skip

    # ---- operators

    def reset(self, connection: Connection, request_id: int, payload: Any) -> object:
        """
        Put a group anywhere in queues; an owner of one of them must acquire it again.

        Each queue is reset in one step; many of them take several turns, in which other connections are served.
        """
        check_entries(payload, 1)
        request = decode(ResetOffsets, payload)
        names.check_group(request.group)
        mode = self._members.mode(request.group)
        if mode is not None and mode.model == BROADCASTING:
            raise GroupMismatch(
                f"group {request.group!r} is broadcasting: each member keeps its progress in a file of its own, "
                "which can be edited while it does not run"
            )
        if not self._reset_some(connection, request_id, request, []):
            connection.suspend()
        return DEFERRED

    def _reset_some(
        self, connection: Connection, request_id: int, request: ResetOffsets, results: list[ResetResult]
    ) -> bool:
        """Reset the next queues of a request; return whether they were the last."""
        entries = request.entries[len(results) : len(results) + RESETS_A_TURN]
        judged = [self._judge_reset(request.group, entry) for entry in entries]
        if not request.dry_run:
            self._reset(request.group, dict(_moved(entries, judged)))
        results += judged
        if len(results) < len(request.entries):
            self._call_soon(self._reset_more, connection, request_id, request, results)
            return False
        self._later(connection, request_id, results)
        return True

    def _reset_more(self, connection: Connection, request_id: int, *rest: Any) -> None:
        is_done = True
        try:
            is_done = self._reset_some(connection, request_id, *rest)
        except Exception as error:
            connection.refuse(request_id, connection.defect(error, request_id))
        if is_done:
            connection.resume()

    def _judge_reset(self, group: str, entry: ResetEntry) -> ResetResult:
        queue, offset = MessageQueue(entry.topic, entry.queue_id), entry.queue_offset
        try:
            self._topics.require_queue(*queue)
            first, end = self._readable_range(queue)
            if not first <= offset <= end:
                raise OffsetOutOfRange(
                    f"offset {offset} is out of range: {queue} holds {first} to {end}, choose one of these"
                )
        except Refused as error:
            return ResetResult(error.code, text=error.text)
        return ResetResult(0, self.committed(group, queue), offset)

    def _reset(self, group: str, moved: dict[MessageQueue, ResetResult]) -> None:
        self.revoke(group, list(moved), "offset reset")
        for queue, result in moved.items():
            self._riding.pop((group, queue), None)
            for change in self._ledger.reset(group, queue, result.new_offset):
                self._committer.record(change)
        steps = [f"{queue}:{result.old_offset}>{result.new_offset}" for queue, result in moved.items()]
        for offsets in lines_of(steps):
            log.info("offset.reset", group=group, offsets=offsets)

    # ---- questions

    def committed(self, group: str, queue: MessageQueue) -> int:
        """The offset a new owner begins at, -1 if none was committed."""
        return max(self._riding.get((group, queue), NO_OFFSET), self._ledger.offsets.get(group, queue))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have progress in a topic, sorted; what rides on pulls is brought into the log before."""
        self.flush_riding()
        return self._ledger.offsets.groups(topic)

    def state_of(self, group: str, queues: Sequence[MessageQueue]) -> GroupState:
        """How far a group is in these queues, by what it has committed."""
        return GroupState(group, len(self._members.sessions(group)), self._ledger.offsets.of_queues(group, queues))

    def forget_topic(self, topic: str) -> None:
        """A topic is gone, and with it all progress: the one change that says so takes it all."""
        self._riding = {key: offset for key, offset in self._riding.items() if key[1].topic != topic}
        self._ledger.forget_topic(topic)

    def _check_ordered(self, connection: Connection, group: str, queue: MessageQueue, epoch: int) -> None:
        """Refuse a session that does not have the lease, or does not process the queue in order."""
        lease = self._locks.check(group, queue, session_of(connection).id, epoch, now=self._now())
        if not lease.ordered:
            raise GroupMismatch(f"group {group!r} is concurrent: a message that fails is sent back, not counted here")

    def _later(self, connection: Connection, request_id: int, payload: object) -> object:
        self._committer.when_durable(lambda: connection.reply(request_id, payload))
        return DEFERRED


def session_of(connection: Connection) -> Session:
    """Who asks; a connection serves nothing before the hello."""
    assert connection.session is not None
    return connection.session


def _moved(entries: Sequence[ResetEntry], results: Sequence[ResetResult]) -> Iterator[tuple[MessageQueue, ResetResult]]:
    for entry, result in zip(entries, results, strict=True):
        if result.status == 0:
            yield MessageQueue(entry.topic, entry.queue_id), result


def _check_attempts(attempts: int) -> None:
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise BadRequest(f"attempts must be 1 to {MAX_ATTEMPTS}, not {attempts}")


def _check_runs(queue: MessageQueue, runs: Sequence[AttemptRun], end: int) -> None:
    """Refuse runs that overlap, are out of order, count nothing, or lie where nothing was delivered."""
    previous = 0
    for run in runs:
        _check_attempts(run.attempts)
        if not previous <= run.from_offset < run.end_offset:
            raise BadRequest(f"the run {run.from_offset} to {run.end_offset} is empty, or not after the one before it")
        if run.end_offset > end:
            raise BadRequest(f"offset {run.end_offset - 1} was never delivered: {queue} ends before it")
        previous = run.end_offset
