"""
A broker reduced to what a consumer sees, and connections to it that a test can cut, stall and delay.

Locks, epochs, progress, attempts, members and one log per queue, all in memory, on the time of the running loop.
Payloads go through msgpack both ways, as on the wire. Every request is kept with the time it was sent.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq.wire import errors
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import hello
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages, redelivery
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, Push

from .fake_connection import FakeConnection, Hold, Request
from .fake_log import STORE_ID, FakeLog

Key = tuple[str, MessageQueue]


@dataclass
class Held:
    """A lease as the broker has it."""

    session: bytes
    member: str
    epoch: int
    renewed_at: float


class FakeBroker(FakeLog):
    """The broker's side. ``connect`` is what a consumer takes in place of ``Connection``."""

    def __init__(self, *, grace_s: float = 5.0, lease_s: float = 60.0, expiry_s: float = 120.0) -> None:
        super().__init__()
        self.grace_s = grace_s
        self.lease_s = lease_s
        self.expiry_s = expiry_s
        self.up = True
        self.store_id = STORE_ID
        self.topics: dict[str, int] = {}
        self.offsets: dict[Key, int] = {}
        self.offsets_at: dict[tuple[MessageQueue, int], int] = {}  # by queue and time in microseconds
        self.attempts: dict[Key, tuple[int, int]] = {}  # of the first message that failed
        self.runs: dict[Key, dict[int, int]] = defaultdict(dict)  # attempts by offset
        self.suspicions: dict[Key, tuple[int, int, int]] = {}  # abandoned, suspect_offset, careful_until
        self.announced: list[tuple[int, int]] = []  # queue_offset and commit_offset of each STARTING
        self.dead: list[tuple[MessageQueue, int, str]] = []
        self.given_back: list[tuple[MessageQueue, int, int, int]] = []  # queue, offset, attempt, level or DEAD
        self.leases: dict[Key, Held] = {}
        self.members: dict[str, dict[bytes, str]] = defaultdict(dict)
        self.members_version = 0
        self.subscribed: dict[bytes, dict[str, set[str]]] = defaultdict(dict)  # by session and group
        self.brokers: dict[MessageQueue, str] = {}  # where queues are, if not at "fake"
        self.requests: list[Request] = []
        self.connections: list[FakeConnection] = []
        self.refuse: dict[Op, list[Exception]] = defaultdict(list)  # errors for the next requests of a kind
        self.before: dict[Op, list[Hold]] = defaultdict(list)
        self.after: dict[Op, list[Hold]] = defaultdict(list)
        self._made: dict[str, int] = {}
        self._epoch = 0

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # What tests do

    def connect(self, address: str, **callbacks: Any) -> FakeConnection:
        connection = FakeConnection(self, **callbacks)
        self.connections.append(connection)
        return connection

    def create(self, topic: str, queues: int = 1, *, bodies: Sequence[bytes] = ()) -> None:
        """
        Make a topic, or have it grow; a group that waits for it reads new queues from their beginning.

        ``bodies`` are sent to queue 0 as one batch.
        """
        for queue_id in range(self._made.get(topic, 0), queues):
            for group in [
                g for g, members in self.members.items() if any(self._subscribes(s, g, topic) for s in members)
            ]:
                self.offsets.setdefault((group, MessageQueue(topic, queue_id)), 0)
        self.topics[topic] = self._made[topic] = queues
        info = self._info(topic)
        for connection in self.connections:
            connection.push(Push.TOPIC_CHANGED, info)
        if bodies:
            self.send(topic, 0, *bodies)

    def delete(self, topic: str, *, tell: bool = True) -> None:
        """A topic goes, with all that belongs to it; parked pulls are answered, and everybody is told."""
        del self.topics[topic]
        self._made.pop(topic, None)
        generation = self.generations.pop(topic)
        tables: list[dict[Any, Any]] = [self.logs, self.min_offsets, self.damaged]
        for table in tables:
            for queue in [queue for queue in table if queue.topic == topic]:
                del table[queue]
        grouped: list[dict[Any, Any]] = [self.offsets, self.attempts, self.leases]
        for table in grouped:
            for group, queue in [key for key in table if key[1].topic == topic]:
                del table[group, queue]
        for queue in [queue for queue in self._changed if queue.topic == topic]:
            self._wake(queue)
        for connection in self.connections if tell else ():
            connection.push(Push.TOPIC_DELETED, [topic, generation])

    def crash(self, queue: MessageQueue, batches: int) -> None:
        """The broker stops and starts; of one queue only the first batches are left, and no progress behind them."""
        self.go_down()
        del self.logs[queue][batches:]
        for group, of in list(self.offsets):
            if of == queue:
                self.offsets[group, of] = min(self.offsets[group, of], self.max_offset(queue))
        self.log_epoch += 1

    def sent(self, op: Op) -> list[Request]:
        """The requests of one kind."""
        return [request for request in self.requests if request.op is op]

    def times(self, op: Op) -> list[float]:
        """When the requests of one kind were sent."""
        return [round(request.at, 6) for request in self.sent(op)]

    def hold_request(self, op: Op) -> Hold:
        """Keep the next request of a kind on its way: the broker sees it when it is let go."""
        self.before[op].append(Hold())
        return self.before[op][-1]

    def hold_reply(self, op: Op) -> Hold:
        """Keep the next answer of a kind on its way: the broker has done what was asked."""
        self.after[op].append(Hold())
        return self.after[op][-1]

    def give(self, group: str, queue: MessageQueue, member: str = "other") -> None:
        """Somebody else takes a lease."""
        self._grant(group, queue, member.encode(), member)

    def free(self, group: str, queue: MessageQueue) -> None:
        """A lease ends, and the group is told."""
        if self.leases.pop((group, queue), None) is not None:
            self._wake(queue)
            self._tell(group, Push.LEASE_FREE, [group, *queue])

    def set_members(self, group: str, *others: str) -> None:
        """The group has these members beside those that really joined; everybody is told."""
        real = {session: name for session, name in self.members[group].items() if len(session) == 16}
        self.members[group] = {**real, **{name.encode(): name for name in others}}
        self._tell_members(group)

    def go_down(self) -> None:
        self.up = False
        for connection in self.connections:
            connection.cut()

    def come_up(self) -> None:
        self.up = True
        for connection in self.connections:
            connection.dial()

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        held = self.leases.get((group, queue))
        return None if held is None else held.member

    # What requests do

    async def serve(self, connection: FakeConnection, op: Op, payload: Any) -> Any:
        if self.refuse[op]:
            raise self.refuse[op].pop(0)
        if op is Op.PULL:
            return await self._pull(connection, decode(ops.Pull, payload))
        handler: Callable[[FakeConnection, Any], Any] = getattr(self, f"_{op.name.lower()}")
        return handler(connection, payload)

    def _join(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Join, payload)
        members = self.members[request.group]
        for topic in request.from_end:
            if topic in self.topics and not any(self._subscribes(s, request.group, topic) for s in members):
                self._begin_at_end(request.group, topic)
        self.subscribed[connection.session][request.group] = set(request.subscriptions)
        is_new = connection.session not in members
        members[connection.session] = connection.member
        if is_new:
            self._tell_members(request.group, but=connection)
        topics = [self._info(topic) for topic in request.subscriptions if topic in self.topics]
        return ops.JoinReply(sorted(members.values()), topics, self.members_version)

    def _leave(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Leave, payload)
        outcomes = [self._end(connection, request.group, lease) for lease in request.leases]
        self.members[request.group].pop(connection.session, None)
        self._tell_members(request.group)
        return outcomes

    def _acquire(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Acquire, payload)
        if connection.session not in self.members[request.group]:
            raise errors.NotAMember("join first")
        grants = []
        for queue in (MessageQueue(*ref) for ref in request.queues):
            held = self.leases.get((request.group, queue))
            if (missing := self._missing(queue)) is not None:
                grants.append(ops.Grant(missing.code, text=missing.text))
            elif held is not None and held.session != connection.session:
                grants.append(ops.Grant(errors.LockHeld.code, text=f"held by {held.member}"))
            else:
                grants.append(self._grant(request.group, queue, connection.session, connection.member))
        return grants

    def _grant(self, group: str, queue: MessageQueue, session: bytes, member: str) -> ops.Grant:
        self._epoch += 1
        self.leases[group, queue] = Held(session, member, self._epoch, self.now)
        self._wake(queue)
        committed = self.offsets.get((group, queue), NO_OFFSET)
        offset, attempts = self.attempts.get((group, queue), (NO_OFFSET, 0))
        runs = [hello.AttemptRun(at, at + 1, times) for at, times in sorted(self.runs[group, queue].items())]
        suspicion = self.suspicions.get((group, queue), (0, NO_OFFSET, NO_OFFSET))
        return ops.Grant(0, self._epoch, committed, offset, attempts, None, runs, *suspicion)

    def _renew(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Renew, payload)
        outcomes = []
        for topic, queue_id, epoch in request.leases:
            try:
                self._check(connection, request.group, MessageQueue(topic, queue_id), epoch)
            except errors.Fenced as error:
                outcomes.append(ops.Outcome(error.code, error.text))
                continue
            self.leases[request.group, MessageQueue(topic, queue_id)].renewed_at = self.now
            outcomes.append(ops.Outcome())
        return outcomes

    def _release(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Release, payload)
        return [self._end(connection, request.group, lease) for lease in request.leases]

    def _end(self, connection: FakeConnection, group: str, lease: ops.LeaseEnd) -> ops.Outcome:
        queue = MessageQueue(lease.topic, lease.queue_id)
        try:
            self._check(connection, group, queue, lease.epoch)
        except errors.Fenced as error:
            return ops.Outcome(error.code, error.text)
        if lease.queue_offset != NO_OFFSET:
            self._store(group, queue, lease.queue_offset)
        self.free(group, queue)
        return ops.Outcome()

    def _commit(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Commit, payload)
        outcomes = []
        for topic, queue_id, epoch, offset in request.entries:
            try:
                self._check(connection, request.group, MessageQueue(topic, queue_id), epoch)
                self._store(request.group, MessageQueue(topic, queue_id), offset)
                outcomes.append(ops.Outcome())
            except errors.Fenced as error:
                outcomes.append(ops.Outcome(error.code, error.text))
        return outcomes

    def _attempt(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Attempt, payload)
        queue = MessageQueue(request.topic, request.queue_id)
        self._check(connection, request.group, queue, request.epoch)
        self.attempts[request.group, queue] = (request.queue_offset, request.attempts)
        first = hello.AttemptRun(request.queue_offset, request.queue_offset + 1, request.attempts)
        for from_offset, end_offset, attempts in request.runs or [first]:
            for offset in range(from_offset, end_offset):
                self.runs[request.group, queue][offset] = attempts
        return ops.Outcome()

    def _dead_letter(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.DeadLetter, payload)
        queue = MessageQueue(request.topic, request.queue_id)
        self._check(connection, request.group, queue, request.epoch)
        known = [offset for of, offset, _ in self.dead if of == queue]
        committed = self.offsets.get((request.group, queue), 0)
        for offset in request.queue_offsets:
            if offset not in known and offset >= committed:
                self.dead.append((queue, offset, request.reason))
        if request.commit_offset != NO_OFFSET:
            self._store(request.group, queue, request.commit_offset)
        return ops.Outcome()

    def _send_back(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(redelivery.SendBack, payload)
        queue = MessageQueue(request.topic, request.queue_id)
        self._check(connection, request.group, queue, request.epoch)
        known = [offset for of, offset, _, _ in self.given_back if of == queue]
        committed = self.offsets.get((request.group, queue), 0)
        fates = []
        for offset, attempt in zip(request.queue_offsets, request.attempts, strict=True):
            most = 17 if request.max_attempts < 0 else request.max_attempts
            level = request.delay_level or min(2 + attempt, 18)
            level = redelivery.DEAD if level < 0 or attempt >= most else level
            if offset in known or offset < committed:
                fates.append(redelivery.DONE_BEFORE)
            else:
                fates.append(level)
                self.given_back.append((queue, offset, attempt, level))
        if request.commit_offset != NO_OFFSET:
            self._store(request.group, queue, request.commit_offset)
        return redelivery.SentBack(fates)

    def _starting(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Starting, payload)
        queue = MessageQueue(request.topic, request.queue_id)
        self._check(connection, request.group, queue, request.epoch)
        self.announced.append((request.queue_offset, request.commit_offset))
        if request.commit_offset != NO_OFFSET:
            self._store(request.group, queue, request.commit_offset)
        return ops.Outcome()

    def _ranges(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(ops.Ranges, payload)
        queues = [MessageQueue(*ref) for ref in request.queues]
        return [
            ops.Range(missing.code, text=missing.text)
            if (missing := self._missing(queue)) is not None
            else ops.Range(
                0, self.min_offsets.get(queue, 0), self.max_offset(queue), self._committed(request.group, queue)
            )
            for queue in queues
        ]

    def _committed(self, group: str | None, queue: MessageQueue) -> int:
        return NO_OFFSET if group is None else self.offsets.get((group, queue), NO_OFFSET)

    def _offsets_at(self, connection: FakeConnection, payload: Any) -> Any:
        request = decode(messages.OffsetsAt, payload)
        return [
            messages.OffsetAt(0, self.offsets_at.get((MessageQueue(*ref), request.time_us), 0))
            for ref in request.queues
        ]

    def _begin_at_end(self, group: str, topic: str) -> None:
        queues = [MessageQueue(topic, queue_id) for queue_id in range(self.topics[topic])]
        if not any((group, queue) in self.offsets for queue in queues):
            for queue in queues:
                self.offsets[group, queue] = self.max_offset(queue)

    def _subscribes(self, session: bytes, group: str, topic: str) -> bool:
        return topic in self.subscribed[session].get(group, ())

    async def _pull(self, connection: FakeConnection, pull: ops.Pull) -> Any:
        (wanted,) = pull.queues
        queue = MessageQueue(wanted.topic, wanted.queue_id)
        expires_at = self.now + pull.wait_ms / 1000
        if wanted.commit_offset != NO_OFFSET and self._missing(queue) is None:
            assert pull.group is not None
            self._check(connection, pull.group, queue, wanted.epoch)
            self._store(pull.group, queue, wanted.commit_offset)
        while True:
            if (missing := self._missing(queue)) is not None:
                raise missing
            low, high = self.min_offsets.get(queue, 0), self.max_offset(queue)
            answer = (0, wanted.queue_offset, low, high, b"")
            try:
                if pull.group is not None:  # else whoever asks is nobody's member
                    self._check(connection, pull.group, queue, wanted.epoch)
            except errors.Fenced as error:
                return [ops.PullResult(0, error.code, *answer[1:], error.text)]
            if (unreadable := self._unreadable(queue, wanted, low, high)) is not None:
                return [unreadable]
            if wanted.queue_offset < high:
                return [self._found(queue, wanted.queue_offset, pull.max_bytes, low, high)]
            if self.now >= expires_at:
                return [ops.PullResult(0, ops.EMPTY, *answer[1:])]
            self._changed[queue].clear()
            try:
                async with asyncio.timeout_at(expires_at):
                    await self._changed[queue].wait()
            except TimeoutError:
                pass

    # Inside

    def _check(self, connection: FakeConnection, group: str, queue: MessageQueue, epoch: int | None) -> None:
        held = self.leases.get((group, queue))
        if held is None or held.session != connection.session or held.epoch != epoch:
            raise errors.Fenced(f"epoch {epoch} of {queue} is stale")

    def _store(self, group: str, queue: MessageQueue, offset: int) -> None:
        if offset > self.max_offset(queue):
            return  # progress behind the end of the queue is none
        self.offsets[group, queue] = max(offset, self.offsets.get((group, queue), NO_OFFSET))
        if self.attempts.get((group, queue), (offset, 0))[0] < offset:
            del self.attempts[group, queue]
        for at in [at for at in self.runs[group, queue] if at < offset]:
            del self.runs[group, queue][at]

    def _missing(self, queue: MessageQueue) -> errors.Refused | None:
        if queue.topic not in self.topics:
            return errors.TopicNotFound(f"there is no topic {queue.topic!r}")
        if queue.queue_id >= self.topics[queue.topic]:
            return errors.QueueNotFound(f"there is no queue {queue}")
        return None

    def _info(self, topic: str) -> ops.TopicInfo:
        queues = self.topics[topic]
        return ops.TopicInfo(
            topic,
            self._generation_of(topic),
            queues,
            [ops.QueueInfo(i, self.brokers.get(MessageQueue(topic, i), "fake")) for i in range(queues)],
        )

    def _tell(self, group: str, push: Push, payload: Any, but: FakeConnection | None = None) -> None:
        for connection in self.connections:
            if connection is not but and connection.session in self.members[group]:
                connection.push(push, payload)

    def _tell_members(self, group: str, but: FakeConnection | None = None) -> None:
        self.members_version += 1
        members = sorted(self.members[group].values())
        self._tell(group, Push.MEMBERS_CHANGED, [group, members, self.members_version], but)

    def hello(self, connection: FakeConnection) -> hello.HelloReply:
        leases = [
            hello.ResumedLease(
                group, *queue, held.epoch, self.offsets.get((group, queue), NO_OFFSET),
                *self.attempts.get((group, queue), (NO_OFFSET, 0)),
            )
            for (group, queue), held in self.leases.items()
            if held.session == connection.session
        ]  # fmt: skip
        limits = hello.Limits(1 << 24, 1 << 22, 256, self.grace_s, 1.0, self.lease_s, self.expiry_s)
        return hello.HelloReply(1, "fake", "tests", self.store_id, self.log_epoch, connection.member, limits, leases)

    def end_session(self, session: bytes) -> None:
        """The grace of a session is over."""
        for (group, queue), held in list(self.leases.items()):
            if held.session == session:
                self.free(group, queue)
        for group, members in self.members.items():
            if members.pop(session, None) is not None:
                self._tell_members(group)
