"""
A group that fails at some of its messages, one request at a time, with nothing but the protocol.

What becomes of a message is a matter of its body and of how often it was delivered, so that a group that begins again
after a crash does the same. ``FATES`` is what the log has to hold when all is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from rmq.engine.native.connection import Connection
from rmq.wire.model import MessageQueue
from rmq.wire.names import dead_letter_topic, retry_topic
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import SendBack, SentBack

from simulation.broker import read_rows, waiting
from simulation.history import Row

GROUP, TOPIC = "g", "orders"
RETRIES, DEAD = retry_topic(GROUP), dead_letter_topic(GROUP)
LEVELS = "1s 2s 1s 2s"


class Fate(NamedTuple):
    """A message fails this often; ``max_attempts`` deliveries are its last, ``delay_level`` is what it asks for."""

    failures: int = 0
    max_attempts: int = 9
    delay_level: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether it ends as a dead letter."""
        return self.failures >= self.max_attempts or (self.failures > 0 and self.delay_level < 0)

    @property
    def copies(self) -> int:
        """How often it is given back."""
        return self.failures - self.is_dead


FATES = {
    b"fails once": Fate(1),
    b"fails twice": Fate(2),
    b"is given up": Fate(1, delay_level=-1),
    b"is good": Fate(),
    b"dies at its second": Fate(2, max_attempts=2),
    b"waits and dies": Fate(1, max_attempts=1),
    b"waits and fails": Fate(1),
}


class FailingGroup:
    """Works until nothing is left and nothing waits. ``promised`` gets what the broker has promised."""

    def __init__(
        self, address: str, *, now: Callable[[], float], promised: Callable[[str], None] = lambda what: None
    ) -> None:
        self._connection = Connection(address, client="failing", now=now)
        self._promised = promised
        self._leases: dict[MessageQueue, tuple[int, int]] = {}  # epoch and next offset

    async def run(self) -> list[Row]:
        """All rows of the log in the end."""
        connection = self._connection
        await connection.open(timeout_s=5.0)
        try:
            while True:
                await self._join()
                rows = await read_rows(connection, [TOPIC, RETRIES, DEAD])
                queues = sorted({row.queue for row in rows if row.queue.topic != DEAD})
                for queue in queues:
                    await self._consume(queue, [row for row in rows if row.queue == queue])
                if not await waiting(connection) and await self._done():
                    return await read_rows(connection, [TOPIC, RETRIES, DEAD])
                await asyncio.sleep(0.25)
        finally:
            await connection.close()

    async def _join(self) -> None:
        subscribed = {TOPIC: "*", RETRIES: "*"}
        await self._connection.request(Op.JOIN, ops.Join(GROUP, False, "clustering", "average", subscribed))

    async def _consume(self, queue: MessageQueue, rows: list[Row]) -> None:
        if queue not in self._leases:
            asked = ops.Acquire(GROUP, [ops.QueueRef(*queue)])
            (grant,) = decode_list(ops.Grant, await self._connection.request(Op.ACQUIRE, asked))
            if grant.status != 0:
                return  # of an owner that the broker still waits for
            self._leases[queue] = grant.epoch, max(grant.committed_offset, 0)
        epoch, begin = self._leases[queue]
        for row in rows[begin:]:
            await self._one(row, epoch)
            self._leases[queue] = epoch, row.offset + 1

    async def _one(self, row: Row, epoch: int) -> None:
        fate, attempt, queue = FATES[row.body], row.attempts + 1, row.queue
        if attempt > fate.failures:
            entry = ops.CommitEntry(*queue, epoch, row.offset + 1)
            (outcome,) = decode_list(ops.Outcome, await self._connection.request(Op.COMMIT, ops.Commit(GROUP, [entry])))
            assert outcome.status == 0, outcome
            self._promised(f"commit {queue} {row.offset + 1}")
            return
        asked = SendBack(
            GROUP, *queue, epoch, [row.offset], [attempt], fate.delay_level, fate.max_attempts, row.offset + 1, "fails"
        )
        reply = decode(SentBack, await self._connection.request(Op.SEND_BACK, asked))
        dead = attempt >= fate.max_attempts or fate.delay_level < 0
        assert reply.fates[0] in ((-1, 0) if dead else (2 + attempt, 4, 0)), (row, reply)
        self._promised(f"{'dead' if dead else 'back'} {row.body.decode()} {attempt}")
        self._promised(f"commit {queue} {row.offset + 1}")

    async def _done(self) -> bool:
        rows = await read_rows(self._connection, [TOPIC, RETRIES])
        ends = Counter(row.queue for row in rows)
        return all(self._leases.get(queue, (0, -1))[1] == end for queue, end in ends.items())


def wrong(rows: list[Row]) -> list[str]:
    """What the log holds too little or too much of, when everything is over."""
    bodies = {row.body for row in rows if row.queue.topic == TOPIC}
    found = Counter((row.queue.topic, row.body, row.attempts if row.queue.topic == RETRIES else 0) for row in rows)
    wanted = Counter((TOPIC, body, 0) for body in bodies)
    wanted += Counter((RETRIES, body, n) for body in bodies for n in range(1, FATES[body].copies + 1))
    wanted += Counter((DEAD, body, 0) for body in bodies if FATES[body].is_dead)
    return [
        f"{found[what]} x {what}, not {wanted[what]}"
        for what in sorted({*found, *wanted})
        if found[what] != wanted[what]
    ]
