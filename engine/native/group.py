"""The requests of one member of one group: named, typed, and with the time the client's beliefs rest on."""

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
    One member's side of the conversation. Every method raises what ``Connection.request`` does; cancelling is safe.

    ``now`` is the clock of leases: it goes on while the machine is suspended.
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
        """``ordered`` and ``model`` are what the members of a group have to agree on, beside the strategy."""
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
        """Our name in the list of members."""
        return self.link.member

    @property
    def retry_topic(self) -> str | None:
        """Where what the group failed at comes from again; None if its members do not share that out."""
        return names.retry_topic(self.group) if self.model == CLUSTERING else None

    @property
    def connected(self) -> bool:
        """Whether a request has a chance."""
        return self.link.connected

    @property
    def answered_sent_at(self) -> float:
        """When the newest answered request was sent."""
        return self.link.answered_sent_at

    @property
    def grace_s(self) -> float:
        """How long the broker keeps our leases after our last sign of life."""
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
        """Which start of the broker this is: what it stored before may have been lost."""
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
        Become or stay a member; in topics of ``from_end`` a group without progress begins at the end.

        A group that had progress under ``log_epoch``, and lost it, begins where that log and this one part.
        """
        payload = ops.Join(self.group, self._ordered, self.model, strategy, subscriptions, list(from_end), log_epoch)
        return decode(ops.JoinReply, await self._request(Op.JOIN, payload))

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[ops.Grant]:
        """Ask for the leases of at most ``MAX_ENTRIES`` queues, in one request: a part of the answer is of no use."""
        payload = ops.Acquire(self.group, [ops.QueueRef(*queue) for queue in queues])
        return await self._list(Op.ACQUIRE, payload, ops.Grant, len(queues))

    async def renew(self, leases: list[ops.LeaseRef], *, leaving: bool = False) -> list[ops.Outcome]:
        """Keep leases; ``leaving`` announces that they are given back when the running calls have ended."""
        return await self._outcomes(Op.RENEW, partial(ops.Renew, leaving=leaving), leases)

    async def release(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Commit and give back."""
        return await self._outcomes(Op.RELEASE, ops.Release, leases)

    async def leave(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Commit, give back and leave, in one request; what a request cannot hold is given back before."""
        first, rest = leases[:MAX_ENTRIES], leases[MAX_ENTRIES:]
        outcomes = await self.release(rest)
        return await self._list(Op.LEAVE, ops.Leave(self.group, first), ops.Outcome, len(first)) + outcomes

    async def commit(self, entries: list[ops.CommitEntry]) -> list[ops.Outcome]:
        """Store progress."""
        return await self._outcomes(Op.COMMIT, ops.Commit, entries)

    async def attempt(self, queue: MessageQueue, epoch: int, runs: Sequence[hello.AttemptRun]) -> None:
        """Have it recorded how often messages were delivered in vain; there is at least one run."""
        for at in range(0, len(runs), MAX_ENTRIES):
            part = list(runs[at : at + MAX_ENTRIES])
            first = part[0]
            # What only the first message says is said without runs.
            several = part if len(part) > 1 or first.end_offset > first.from_offset + 1 else []
            payload = ops.Attempt(self.group, *queue, epoch, first.from_offset, first.attempts, several)
            await self._request(Op.ATTEMPT, payload)

    async def dead_letter(
        self, queue: MessageQueue, epoch: int, queue_offsets: Sequence[int], attempts: Sequence[int], *,
        commit_offset: int, reason: str,
    ) -> None:  # fmt: skip
        """
        Have messages copied to the dead letters of the group, and progress stored with that; -1 is none.

        ``attempts`` tells of each how many deliveries failed.
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
        Have messages delivered to the group again later, and progress stored with that; -1 is none.

        ``attempts`` tells of each how often it was delivered. Returns for each the level it waits with, ``DEAD`` or
        ``DONE_BEFORE``. Offsets ascend; asking again does nothing again.
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
        """Have it recorded which message is given to the listener next, and the progress before it; -1 is none."""
        await self._request(Op.STARTING, ops.Starting(self.group, *queue, epoch, queue_offset, commit_offset))

    async def range(self, queue: MessageQueue) -> ops.Range:
        """Which offsets a queue holds."""
        payload = ops.Ranges(self.group, [ops.QueueRef(*queue)])
        (held,) = await self._list(Op.RANGES, payload, ops.Range, 1)
        return held

    async def offset_at(self, queue: MessageQueue, time_us: int) -> OffsetAt:
        """The first offset of a queue that was stored at a time or later."""
        payload = OffsetsAt(time_us, [ops.QueueRef(*queue)])
        (found,) = await self._list(Op.OFFSETS_AT, payload, OffsetAt, 1)
        return found

    async def pull(
        self, queue: ops.PullQueue, *, wait_s: float, max_bytes: int, timeout_s: float
    ) -> ops.PullResult | None:
        """Ask one queue for batches; None if the broker said nothing about it."""
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
        """Have the same done for each entry, in as many requests as it takes."""
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
        """Locks are asked for with little time; a broker that was too late gets more, or it would never be heard."""
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
