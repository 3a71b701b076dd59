"""The requests of one member of one group: named, typed, and with the time the client's beliefs rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rmq.wire import ops
from rmq.wire.codec import decode, decode_list
from rmq.wire.errors import BadRequest
from rmq.wire.model import MessageQueue
from rmq.wire.ops import Op

T = TypeVar("T")


class Link(Protocol):
    """What a consumer needs of :class:`rmq.client.connection.Connection`."""

    @property
    def member(self) -> str: ...
    @property
    def hello(self) -> ops.HelloReply | None: ...
    @property
    def connected(self) -> bool: ...
    @property
    def answered_sent_at(self) -> float: ...

    def start(self) -> None: ...
    async def wait_connected(self) -> None: ...
    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float = 3.0) -> Any: ...
    async def close(self) -> None: ...


class GroupClient:
    """
    One member's side of the conversation. Every method raises what ``Connection.request`` does; cancelling is safe.

    ``now`` is the clock of leases: it goes on while the machine is suspended.
    """

    def __init__(self, link: Link, group: str, *, now: Callable[[], float], timeout_s: float) -> None:
        self.link = link
        self.group = group
        self.now = now
        self._timeout_s = timeout_s

    @property
    def member(self) -> str:
        """Our name in the list of members."""
        return self.link.member

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
    def store_id(self) -> int:
        """The store that message ids name."""
        return 0 if self.link.hello is None else self.link.hello.store_id

    async def join(self, subscriptions: dict[str, str]) -> ops.JoinReply:
        """Become or stay a member."""
        payload = ops.Join(self.group, True, "clustering", "evenly", subscriptions)
        return decode(ops.JoinReply, await self._request(Op.JOIN, payload))

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[ops.Grant]:
        """Ask for the leases of queues, in one request."""
        payload = ops.Acquire(self.group, [ops.QueueRef(*queue) for queue in queues])
        return await self._list(Op.ACQUIRE, payload, ops.Grant, len(queues))

    async def renew(self, leases: list[ops.LeaseRef]) -> list[ops.Outcome]:
        """Keep leases, in one request."""
        return await self._list(Op.RENEW, ops.Renew(self.group, leases), ops.Outcome, len(leases))

    async def release(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Commit and give back, in one request."""
        return await self._list(Op.RELEASE, ops.Release(self.group, leases), ops.Outcome, len(leases))

    async def leave(self, leases: list[ops.LeaseEnd]) -> None:
        """Commit, give back and leave, in one request."""
        await self._request(Op.LEAVE, ops.Leave(self.group, leases))

    async def commit(self, entries: list[ops.CommitEntry]) -> list[ops.Outcome]:
        """Store progress, in one request."""
        return await self._list(Op.COMMIT, ops.Commit(self.group, entries), ops.Outcome, len(entries))

    async def attempt(self, queue: MessageQueue, epoch: int, queue_offset: int, attempts: int) -> None:
        """Have it recorded that delivery number ``attempts`` of a message failed."""
        await self._request(Op.ATTEMPT, ops.Attempt(self.group, *queue, epoch, queue_offset, attempts))

    async def range(self, queue: MessageQueue) -> ops.Range:
        """Which offsets a queue holds."""
        payload = ops.Ranges(self.group, [ops.QueueRef(*queue)])
        (held,) = await self._list(Op.RANGES, payload, ops.Range, 1)
        return held

    async def pull(
        self, queue: ops.PullQueue, *, wait_s: float, max_bytes: int, timeout_s: float
    ) -> ops.PullResult | None:
        """Ask one queue for batches; None if the broker said nothing about it."""
        payload = ops.Pull(self.group, round(wait_s * 1000), max_bytes, [queue])
        reply = await self.link.request(Op.PULL, payload, timeout_s=timeout_s)
        results = decode_list(ops.PullResult, reply)
        return results[0] if results else None

    async def _request(self, op: Op, payload: Sequence[Any]) -> Any:
        return await self.link.request(op, payload, timeout_s=self._timeout_s)

    async def _list(self, op: Op, payload: Sequence[Any], shape: type[T], count: int) -> list[T]:
        items = decode_list(shape, await self._request(op, payload))
        if len(items) != count:
            raise BadRequest(f"{op.name}: the broker answered {len(items)} items for {count}")
        return items
