"""The requests of one member of a group, typed; they record when the last answered request was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rmq.wire import names
from rmq.wire.errors import BadRequest, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import hello
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Op
from rmq.wire.protocol.ops.messages import OffsetAt, OffsetsAt
from rmq.wire.protocol.ops.redelivery import SendBack, SentBack
from rmq.wire.stores import StoreIds

from .connection import Connection

T = TypeVar("T")
CLUSTERING = "clustering"  # each message goes to one member of the group
BROADCASTING = "broadcasting"  # each message goes to every member of the group
_NO_STORE = StoreIds(0)
SEARCH_TIMEOUT_S = 30.0  # the broker may have to read much of its log


class GroupClient:
    """
    Sends the requests of one member. Every method raises what ``Connection.request`` does; cancelling is safe.

    ``now`` is the clock of leases, which also runs while the machine is suspended.
    """

    def __init__(
        self,
        link: Connection,
        group: str,
        *,
        now: Callable[[], float],
        timeout_s: float,
        lock_timeout_s: float | None = None,
        ordered: bool = True,
        model: str = CLUSTERING,
    ) -> None:
        """``ordered`` and ``model`` have to be the same for all members of a group, as the strategy."""
        self.link = link
        self.model = model
        self._ordered = ordered
        self.group = group  # as the broker knows it: with the namespace, if any
        self.now = now
        self._timeout_s = timeout_s
        self._lock_timeout_s = timeout_s if lock_timeout_s is None else lock_timeout_s
        self._patience_s = self._lock_timeout_s

    @property
    def member(self) -> str:
        """The name of this member in the list of members."""
        return self.link.member

    @property
    def retry_topic(self) -> str | None:
        """The retry topic of the group; None if its members do not share queues."""
        return names.retry_topic(self.group) if self.model == CLUSTERING else None

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self.link.connected

    @property
    def answered_sent_at(self) -> float:
        """When the newest answered request was sent."""
        return self.link.answered_sent_at

    @property
    def grace_s(self) -> float:
        """How long the broker keeps this member's leases after its connection is lost."""
        return 0.0 if self.link.hello is None else self.link.hello.limits.grace_s

    @property
    def limits(self) -> hello.Limits | None:
        """The broker's limits and timers; None before the first connection."""
        return None if self.link.hello is None else self.link.hello.limits

    @property
    def stores(self) -> StoreIds:
        """The ids of the broker's store, which message ids are made of."""
        return _NO_STORE if self.link.hello is None else self.link.hello.stores

    @property
    def log_epoch(self) -> int:
        """The number of the broker's present start; messages from before it may have been lost."""
        return 0 if self.link.hello is None else self.link.hello.log_epoch

    async def join(
        self,
        subscriptions: dict[str, str],
        *,
        strategy: str = "average",
        from_end: Sequence[str] = (),
        log_epoch: int = 0,
    ) -> ops.JoinReply:
        """
        Become or stay a member; in topics of ``from_end`` a group without progress starts at the end.

        A group that had progress under ``log_epoch``, and lost it, starts where that log and this one diverge.
        """
        payload = ops.Join(self.group, self._ordered, self.model, strategy, subscriptions, list(from_end), log_epoch)
        return decode(ops.JoinReply, await self._request(Op.JOIN, payload))

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[ops.Grant]:
        """Acquire the leases of at most ``MAX_ENTRIES`` queues, in one request: a partial answer would be useless."""
        payload = ops.Acquire(self.group, [ops.QueueRef(*queue) for queue in queues])
        return await self._list(Op.ACQUIRE, payload, ops.Grant, len(queues))

    async def renew(self, leases: list[ops.LeaseRef], *, leaving: bool = False) -> list[ops.Outcome]:
        """Renew leases; ``leaving`` announces that they are released when the running calls have ended."""
        return await self._outcomes(Op.RENEW, partial(ops.Renew, leaving=leaving), leases)

    async def release(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Commit and release."""
        return await self._outcomes(Op.RELEASE, ops.Release, leases)

    async def leave(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Commit, release and leave, in one request; leases beyond its limit are released before."""
        first, rest = leases[:MAX_ENTRIES], leases[MAX_ENTRIES:]
        outcomes = await self.release(rest)
        return await self._list(Op.LEAVE, ops.Leave(self.group, first), ops.Outcome, len(first)) + outcomes

    async def commit(self, entries: list[ops.CommitEntry]) -> list[ops.Outcome]:
        """Store progress."""
        return await self._outcomes(Op.COMMIT, ops.Commit, entries)

    async def attempt(self, queue: MessageQueue, epoch: int, runs: Sequence[hello.AttemptRun]) -> None:
        """Record how many deliveries of messages failed; there is at least one run."""
        for at in range(0, len(runs), MAX_ENTRIES):
            part = list(runs[at : at + MAX_ENTRIES])
            first = part[0]
            # A run of one message needs no list of runs.
            several = part if len(part) > 1 or first.end_offset > first.from_offset + 1 else []
            payload = ops.Attempt(self.group, *queue, epoch, first.from_offset, first.attempts, several)
            await self._request(Op.ATTEMPT, payload)

    async def dead_letter(
        self, queue: MessageQueue, epoch: int, queue_offsets: Sequence[int], attempts: Sequence[int], *,
        commit_offset: int, reason: str,
    ) -> None:  # fmt: skip
        """
        Copy messages to the dead letters of the group, and store progress with that; -1 is none.

        ``attempts`` has the number of failed deliveries of each.
        """
        for at in range(0, len(queue_offsets), MAX_ENTRIES):
            part = list(queue_offsets[at : at + MAX_ENTRIES])
            is_last = at + MAX_ENTRIES >= len(queue_offsets)
            progress = commit_offset if is_last else ops.NO_OFFSET
            failed = list(attempts[at : at + MAX_ENTRIES])
            asked = ops.DeadLetter(self.group, *queue, epoch, part, progress, reason, failed)
            await self._request(Op.DEAD_LETTER, asked)

    async def send_back(
        self, queue: MessageQueue, epoch: int, queue_offsets: Sequence[int], attempts: Sequence[int], *,
        delay_level: int = 0, max_attempts: int = -1, commit_offset: int = ops.NO_OFFSET, reason: str = "",
    ) -> list[int]:  # fmt: skip
        """
        Have messages delivered to the group again later, and store progress with that; -1 is none.

        ``attempts`` has the number of deliveries of each. Returns for each its delay level, ``DEAD`` or
        ``DONE_BEFORE``. Offsets ascend; a repeated request changes nothing.
        """
        fates: list[int] = []
        for at in range(0, len(queue_offsets), MAX_ENTRIES):
            part = slice(at, at + MAX_ENTRIES)
            is_last = at + MAX_ENTRIES >= len(queue_offsets)
            payload = SendBack(
                self.group, *queue, epoch, list(queue_offsets[part]), list(attempts[part]), delay_level, max_attempts,
                commit_offset if is_last else ops.NO_OFFSET, reason,
            )  # fmt: skip
            fates += decode(SentBack, await self._request(Op.SEND_BACK, payload)).fates
        if len(fates) != len(queue_offsets):
            raise BadRequest(f"SEND_BACK: the broker answered {len(fates)} items for {len(queue_offsets)}")
        return fates

    async def starting(self, queue: MessageQueue, epoch: int, queue_offset: int, commit_offset: int) -> None:
        """Record which message the listener gets next, and the progress before it; -1 is none."""
        await self._request(Op.STARTING, ops.Starting(self.group, *queue, epoch, queue_offset, commit_offset))

    async def range(self, queue: MessageQueue) -> ops.Range:
        """Return the offsets that a queue holds."""
        payload = ops.Ranges(self.group, [ops.QueueRef(*queue)])
        (held,) = await self._list(Op.RANGES, payload, ops.Range, 1)
        return held

    async def offset_at(self, queue: MessageQueue, time_us: int) -> OffsetAt:
        """Return the first offset of a queue that was stored at a time or later."""
        payload = OffsetsAt(time_us, [ops.QueueRef(*queue)])
        (found,) = await self._list(Op.OFFSETS_AT, payload, OffsetAt, 1)
        return found

    async def pull(
        self, queue: ops.PullQueue, *, wait_s: float, max_bytes: int, timeout_s: float
    ) -> ops.PullResult | None:
        """Pull batches of one queue; None if the reply has no result for it."""
        return await self._pull(ops.Pull(self.group, round(wait_s * 1000), max_bytes, [queue]), timeout_s)

    async def _pull(self, pull: ops.Pull, timeout_s: float) -> ops.PullResult | None:
        reply = await self.link.request(Op.PULL, pull, timeout_s=timeout_s)
        results = decode_list(ops.PullResult, reply)
        return results[0] if results else None

    async def _outcomes(
        self,
        op: Op,
        shape: Callable[[str, list[Any]], Sequence[Any]],
        entries: list[Any],
    ) -> list[ops.Outcome]:
        """Send entries in as many requests as they need, and return one outcome for each."""
        outcomes: list[ops.Outcome] = []
        for at in range(0, len(entries), MAX_ENTRIES):
            part = entries[at : at + MAX_ENTRIES]
            outcomes += await self._list(op, shape(self.group, part), ops.Outcome, len(part))
        return outcomes

    async def _request(self, op: Op, payload: Sequence[Any]) -> Any:
        if op in (Op.ACQUIRE, Op.RENEW):
            return await self._lock_request(op, payload)
        timeout_s = max(self._timeout_s, SEARCH_TIMEOUT_S) if op is Op.OFFSETS_AT else self._timeout_s
        return await self.link.request(op, payload, timeout_s=timeout_s)

    async def _lock_request(self, op: Op, payload: Sequence[Any]) -> Any:
        """Request leases with a short time-out, which doubles after each one, so that a slow broker is heard, too."""
        most = max(self._lock_timeout_s, self._timeout_s)
        try:
            reply = await self.link.request(op, payload, timeout_s=min(self._patience_s, most))
        except RequestTimeout:
            self._patience_s = min(2 * self._patience_s, most)
            raise
        self._patience_s = self._lock_timeout_s
        return reply

    async def _list(self, op: Op, payload: Sequence[Any], shape: type[T], count: int) -> list[T]:
        items = decode_list(shape, await self._request(op, payload))
        if len(items) != count:
            raise BadRequest(f"{op.name}: the broker answered {len(items)} items for {count}")
        return items
