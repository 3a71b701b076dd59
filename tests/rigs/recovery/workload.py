"""
Things done to a broker by a seed, each noted in the line of the disk's operations: when it was asked for, and when
the broker said that it is done.

A *fact* is either a batch or a set of values, one a key: ``("committed", group, topic, queue)`` is 5. Facts about the
same key are asked for one after the other, so what a crash may leave of a key is easy to say.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.store.files import Files
from rmq.broker.store.flusher import FlusherFactory
from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.errors import MessagesLost
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import hello
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from rigs.disk.recording import RecordingFiles
from rigs.recovery.served import KEYS, serving, wall_us

BORN_AT = 1_700_000_000_000_000
TOPICS = {"orders": 2, "payments": 1, "made-later": 3}
GROUPS = ("billing", "audit")
TAGS = (None, "paid", "created")
REQUEST_S = 50.0


class Batch(NamedTuple):
    """Messages for a queue; what is asked for is that all of them are there, in this order and once."""

    topic: str
    generation: int
    queue_id: int
    bodies: tuple[bytes, ...]
    producer_id: int
    sequence: int
    is_delayed: bool = False


class Values(NamedTuple):
    """What some keys mean from now on; None: nothing."""

    pairs: tuple[tuple[Hashable, Any], ...]


class Asked(NamedTuple):
    """A client asks for a fact; whether it holds is open from here on."""

    number: int
    fact: Batch | Values


class Acknowledged(NamedTuple):
    """The broker said that a fact holds; of a batch, at which offset and place of the log."""

    number: int
    base_offset: int = 0
    position: int = 0


class Learned(NamedTuple):
    """A reader was given messages up to an offset."""

    topic: str
    generation: int
    queue_id: int
    offset: int


class Plan(NamedTuple):
    """What a run does, by its seed. ``features``: delete (topics), delay. ``settings`` of the broker, as pairs."""

    seed: int
    rounds: int = 12
    lives: int = 2
    flush: str = "sync"
    features: frozenset[str] = frozenset({"delete", "delay"})
    settings: tuple[tuple[str, Any], ...] = ()


class Workload:
    """One run of a plan against a broker on a disk that records."""

    def __init__(self, plan: Plan, files: RecordingFiles) -> None:
        self._plan = plan
        self._files = files
        self._chance = Random(f"steps {plan.seed}")
        self._number = 0
        self._topics: dict[str, int] = {}  # generation
        self._ends: dict[MessageQueue, int] = defaultdict(int)  # acknowledged
        self._leases: dict[tuple[str, MessageQueue], tuple[Connection, int]] = {}
        self._committed: dict[tuple[str, MessageQueue], int] = {}
        self._failing: dict[tuple[str, MessageQueue], dict[int, int]] = {}
        self._announced: dict[tuple[str, MessageQueue], int] = {}
        self._bodies: dict[MessageQueue, dict[int, bytes]] = defaultdict(dict)  # acknowledged
        self._sequences = {101: 0, 102: 0, 103: 0}
        self._busy: set[Hashable] = set()
        self._in_use: Counter[str] = Counter()  # topics that a task sends to or reads from now
        self._producers: list[Connection] = []
        self._consumers: list[Connection] = []

    # ---- life

    async def run(
        self, config: BrokerConfig, *, files: Files | None = None, flusher: FlusherFactory | None = None
    ) -> None:
        """All lives of the broker; it is stopped cleanly at the end of each."""
        disk = files or self._files
        for life in range(self._plan.lives):
            async with serving(config, files=disk, flusher=flusher) as broker:
                if not life:
                    config = replace(config, listen=broker.address)
                    await self._connect(broker)
                for connection in self._producers + self._consumers:
                    await connection.wait_connected()
                await self._join()
                for _ in range(self._plan.rounds):
                    await self._round()
        for connection in self._producers + self._consumers:
            await connection.close()

    async def _connect(self, broker: Broker) -> None:
        now = asyncio.get_running_loop().time
        for of, count in ((self._producers, 2), (self._consumers, 2)):
            for i in range(count):
                connection = Connection(broker.address, client=f"c{i}", now=now, chance=lambda: 0.0)
                await connection.open(timeout_s=5.0)
                of.append(connection)

    async def _join(self) -> None:
        for connection in self._consumers:
            for group in GROUPS:
                joining = ops.Join(group, True, "clustering", "average", dict.fromkeys(TOPICS, "*"))
                await self._ask(connection, Op.JOIN, joining)

    async def _round(self) -> None:
        """Some things at about the same time."""
        self._busy.clear()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._chance.randint(1, 6)):
                action = self._chance.choices(*zip(*self._actions(), strict=True))[0]
                tasks.create_task(self._later(self._chance.choice((0.0, 0.0, 0.001, 0.003)), action))
        await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.2, 0.4, 1.5, 11.0)))

    def _actions(self) -> list[tuple[Callable[[], Awaitable[None]], int]]:
        if not self._topics:
            return [(self._create, 1)]
        actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._send, 8), (self._create, 1), (self._acquire, 3), (self._commit, 3), (self._attempt, 2),
            (self._release, 1), (self._pull, 3), (self._dead_letter, 2), (self._starting, 1),
        ]  # fmt: skip
        if "delete" in self._plan.features:
            actions.append((self._delete, 1))
        return actions

    async def _later(self, delay_s: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(delay_s)
        if self._topics or action == self._create:  # the last topic may have been deleted meanwhile
            await action()

    async def _ask(self, connection: Connection, op: Op, payload: Any) -> Any:
        return await connection.request(op, payload, timeout_s=REQUEST_S)

    def _asked(self, fact: Batch | Values) -> int:
        self._number += 1
        self._files.mark(Asked(self._number, fact))
        return self._number

    def _take(self, *keys: Hashable) -> bool:
        """Return whether no other task uses these in this round."""
        if self._busy & set(keys):
            return False
        self._busy.update(keys)
        return True

    # ---- topics

    async def _create(self) -> None:
        topic = self._chance.choice(sorted(TOPICS))
        if topic in self._topics or not self._take(topic):
            return
        began = [(("committed", group, topic, at), 0) for group in GROUPS for at in range(TOPICS[topic])]
        number = self._asked(Values(((("topic", topic), TOPICS[topic]), *began)))
        answer = await self._ask(self._producers[0], Op.CREATE_TOPIC, ops.CreateTopic(topic, TOPICS[topic]))
        self._files.mark(Acknowledged(number))
        self._topics[topic] = decode(ops.TopicInfo, answer).generation

    async def _delete(self) -> None:
        topic = self._chance.choice(sorted(self._topics))
        if self._in_use[topic] or not self._take(topic, *self._keys_of(topic)):
            return
        del self._topics[topic]
        facts = [(("topic", topic), None)] + [(key, None) for key in self._keys_of(topic)]
        number = self._asked(Values(tuple(facts)))
        await self._ask(self._producers[0], Op.DELETE_TOPIC, (topic, 0))
        self._files.mark(Acknowledged(number))
        for of in (self._leases, self._committed, self._failing, self._announced):
            for key in [key for key in of if key[1].topic == topic]:
                del of[key]
        for queue in [queue for queue in self._ends if queue.topic == topic]:
            del self._ends[queue]
            self._bodies.pop(queue, None)

    def _keys_of(self, topic: str) -> list[Hashable]:
        return [
            (what, group, topic, queue_id)
            for what in ("lease", "committed", "attempts", "announced")
            for group in GROUPS
            for queue_id in range(TOPICS[topic])
        ]

    def _queue(self) -> MessageQueue:
        topic = self._chance.choice(sorted(self._topics))
        return MessageQueue(topic, self._chance.randrange(TOPICS[topic]))

    # ---- messages

    async def _send(self) -> None:
        connection = self._chance.choice(self._producers)
        number_of = {0: (101, 102), 1: (103,)}[self._producers.index(connection)]
        asked, outgoing = [], []
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            queue = self._queue()
            if queue.topic in self._busy:
                continue
            of = self._chance.choice(number_of)
            self._sequences[of] += 1
            batch = self._batch(queue, ProducerMark(of, self._sequences[of], 1))
            asked.append((self._asked(batch[0]), queue, batch[0].bodies))
            outgoing.append(ops.OutgoingBatch(queue.queue_id, batch[1]))
        if not outgoing:
            return
        self._in_use.update(queue.topic for _, queue, _ in asked)
        answer = await self._ask(connection, Op.SEND, ops.Send(outgoing))
        self._in_use.subtract(queue.topic for _, queue, _ in asked)
        for (number, queue, bodies), result in zip(asked, decode_list(ops.SendResult, answer), strict=True):
            assert result.status == 0, result
            self._files.mark(Acknowledged(number, result.base_offset, result.physical_offset))
            if result.base_offset == NO_OFFSET:  # delayed: it comes when it is due
                continue
            self._bodies[queue].update(enumerate(bodies, result.base_offset))
            self._ends[queue] = max(self._ends[queue], result.base_offset + len(bodies))

    def _batch(self, queue: MessageQueue, by: ProducerMark) -> tuple[Batch, bytes]:
        chance = self._chance
        count = chance.choice((1, 1, 2, 5))
        bodies = tuple(
            f"{by.producer_id}.{by.sequence}.{i} ".encode() + chance.randbytes(chance.choice((0, 5, 90, 700)))
            for i in range(count)
        )
        tags = [chance.choice(TAGS) for _ in bodies] if chance.random() < 0.5 else None
        keys = [(chance.choice(KEYS),) for _ in bodies] if chance.random() < 0.5 else None
        delay = self._delay()
        rows = Rows(bodies, BORN_AT, tags=tags, index_keys=keys)
        data = batches.encode(queue.topic, queue.queue_id, rows, by=by, **delay)
        place = queue.topic, self._topics[queue.topic], queue.queue_id
        return Batch(*place, bodies, by.producer_id, by.sequence, bool(delay)), bytes(data)

    def _delay(self) -> dict[str, int]:
        """A delay for some of the batches: short ones, and some that outlive the broker."""
        if "delay" not in self._plan.features or self._chance.random() > 0.3:
            return {}
        if self._chance.random() < 0.5:
            longest = 1 if "retention_bytes" in dict(self._plan.settings) else 5  # what waits keeps the log
            return {"delay_level": self._chance.choice((1, 1, 2, longest))}
        return {"deliver_at": wall_us() + self._chance.choice((50_000, 300_000, 1_000_000, 9_000_000))}

    async def _pull(self) -> None:
        """Read something, without a group, or as a group whose progress rides along."""
        queue = self._queue()
        generation = self._topics[queue.topic]
        held = [key for key, (connection, _) in self._leases.items() if key[1] == queue]
        group, epoch, connection, offset = None, None, self._consumers[0], NO_OFFSET
        if held and self._chance.random() < 0.7:
            key = self._chance.choice(held)
            if self._take(("committed", key[0], *queue)):
                group, (connection, epoch) = key[0], self._leases[key]
                if not (self._failing.get(key) or key in self._announced):  # it is written late, perhaps after those
                    offset = self._progress(key)
        start = max(self._ends[queue] - 3, 0)
        asked = ops.PullQueue(*queue, start, epoch, offset)
        self._in_use[queue.topic] += 1
        answer = await self._ask(connection, Op.PULL, ops.Pull(group, 0, 1 << 20, [asked]))
        self._in_use[queue.topic] -= 1
        for result in decode_list(ops.PullResult, answer):
            if result.status == 0:
                self._files.mark(Learned(queue.topic, generation, queue.queue_id, result.next_offset))

    # ---- groups

    def _progress(self, key: tuple[str, MessageQueue]) -> int:
        """Ask for some progress of a group, as a fact; -1 if there is none to make."""
        _, queue = key
        before = self._committed.get(key, 0)
        if self._ends[queue] <= before:
            return NO_OFFSET
        offset = self._chance.randint(before + 1, self._ends[queue])
        self._asked(Values(self._committing(key, offset)))
        return offset

    def _committing(self, key: tuple[str, MessageQueue], offset: int) -> tuple[tuple[Hashable, Any], ...]:
        group, queue = key
        self._committed[key] = offset
        pairs: list[tuple[Hashable, Any]] = [(("committed", group, *queue), offset)]
        failing = self._failing.get(key, {})
        left = {at: attempts for at, attempts in failing.items() if at >= offset}
        if left != failing:
            self._failing[key] = left
            pairs.append((("attempts", group, *queue), left or None))
        if self._announced.get(key, offset) < offset:
            del self._announced[key]
            pairs.append((("announced", group, *queue), None))
        return tuple(pairs)

    async def _acquire(self) -> None:
        group, queue = self._chance.choice(GROUPS), self._queue()
        connection = self._leases.get((group, queue), (self._chance.choice(self._consumers), 0))[0]
        if not self._take(("lease", group, *queue)):
            return
        self._leases.pop((group, queue), None)
        number = self._asked(Values(((("lease", group, *queue), "any"),)))
        (answer,) = await self._ask(connection, Op.ACQUIRE, ops.Acquire(group, [ops.QueueRef(*queue)]))
        grant = decode(ops.Grant, answer)
        assert grant.status == 0, grant
        self._files.mark(Acknowledged(number, grant.epoch))
        self._leases[group, queue] = connection, grant.epoch

    def _held(self, *wanted: str) -> tuple[str, MessageQueue] | None:
        """A lease that nothing else is done with."""
        for key in sorted(self._leases, key=lambda _: self._chance.random()):
            if self._take(*((what, key[0], *key[1]) for what in wanted)):
                return key
        return None

    async def _commit(self) -> None:
        key = self._held("lease", "committed", "attempts")
        if key is None or self._ends[key[1]] <= self._committed.get(key, 0):
            return
        connection, epoch = self._leases[key]
        offset = self._chance.randint(self._committed.get(key, 0) + 1, self._ends[key[1]])
        number = self._asked(Values(self._committing(key, offset)))
        entry = ops.CommitEntry(*key[1], epoch, offset)
        (answer,) = await self._ask(connection, Op.COMMIT, ops.Commit(key[0], [entry]))
        assert decode(ops.Outcome, answer).status == 0, answer
        self._files.mark(Acknowledged(number))

    async def _attempt(self) -> None:
        """Some messages from the committed offset on failed, the first ones perhaps more often."""
        key = self._held("lease", "committed", "attempts")
        first = self._committed.get(key, 0) if key is not None else 0
        if key is None or self._ends[key[1]] <= first:
            return
        connection, epoch = self._leases[key]
        failing = dict(self._failing.get(key, {}))
        runs = []
        for at in range(first, self._chance.randint(first + 1, min(self._ends[key[1]], first + 4))):
            failing[at] = failing.get(at, 0) + 1
            runs.append(hello.AttemptRun(at, at + 1, failing[at]))
        self._failing[key] = failing
        number = self._asked(Values(((("attempts", key[0], *key[1]), failing),)))
        await self._ask(connection, Op.ATTEMPT, ops.Attempt(key[0], *key[1], epoch, first, failing[first], runs))
        self._files.mark(Acknowledged(number))

    async def _starting(self) -> None:
        """The next message is about to be processed."""
        key = self._held("lease", "committed", "attempts")
        first = self._committed.get(key, 0) if key is not None else 0
        if key is None or self._ends[key[1]] <= first:
            return
        connection, epoch = self._leases[key]
        self._announced[key] = first
        number = self._asked(Values(((("announced", key[0], *key[1]), (first, epoch)),)))
        await self._ask(connection, Op.STARTING, ops.Starting(key[0], *key[1], epoch, first))
        self._files.mark(Acknowledged(number))

    async def _dead_letter(self) -> None:
        """Give some messages up, perhaps some that were before, and perhaps pass them."""
        key = self._held("lease", "committed", "attempts")
        first = self._committed.get(key, 0) if key is not None else 0
        if key is None or self._ends[key[1]] <= first:
            return
        connection, epoch = self._leases[key]
        group, queue = key
        end = self._chance.randint(first + 1, min(self._ends[queue], first + 3))
        if not self._bodies[queue].keys() >= set(range(first, end)):
            return  # some were delayed: no client knows which message lies where
        known = self._committed.get(key), self._failing.get(key), self._announced.get(key)
        letters = [(("letter", group, self._bodies[queue][at]), 1) for at in range(first, end)]
        commit = end if self._chance.random() < 0.6 else NO_OFFSET
        passed = self._committing(key, end) if commit == end else ()
        number = self._asked(Values((*letters, *passed)))
        asked = ops.DeadLetter(group, *queue, epoch, list(range(first, end)), commit, "poison")
        try:
            await self._ask(connection, Op.DEAD_LETTER, asked)
        except MessagesLost:  # retention was faster: nothing was done
            for of, value in zip((self._committed, self._failing, self._announced), known, strict=True):
                if value is None:
                    of.pop(key, None)
                else:
                    of[key] = value  # type: ignore[index]
            return
        self._files.mark(Acknowledged(number))

    async def _release(self) -> None:
        key = self._held("lease", "committed", "attempts")
        if key is None:
            return
        connection, epoch = self._leases.pop(key)
        pairs: tuple[tuple[Hashable, Any], ...] = ((("lease", key[0], *key[1]), None),)
        offset = NO_OFFSET
        if self._ends[key[1]] > self._committed.get(key, 0):
            offset = self._ends[key[1]]
            pairs += self._committing(key, offset)
        number = self._asked(Values(pairs))
        end = ops.LeaseEnd(*key[1], epoch, offset)
        await self._ask(connection, Op.RELEASE, ops.Release(key[0], [end]))
        self._files.mark(Acknowledged(number))


async def record(
    plan: Plan, directory: Path, config: BrokerConfig, *, flusher: FlusherFactory | None = None,
    around: Callable[[RecordingFiles], Files] = lambda files: files,
) -> RecordingFiles:  # fmt: skip
    """Run a plan in a directory that exists; what happened is in the recording."""
    files = RecordingFiles(directory, now=asyncio.get_running_loop().time)
    await Workload(plan, files).run(config, files=around(files), flusher=flusher)
    return files
