"""Generated lives of a broadcasting member: stops, kills, broker restarts and growing topics never lose a message."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus
from rmq.wire.model import MessageQueue

from .fake_broker import FakeBroker
from .recorder import Make, Messages, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

STEPS = 25
EVERY_S = 5.0  # offsets_every_s
TAKES_S = 0.2


class Life:
    """One member over many runs, each told apart from the last by how that ended."""

    def __init__(self, broker: FakeBroker, member: Make, directory: Path, chance: random.Random) -> None:
        self.broker = broker
        self.chance = chance
        self._member = member
        self._directory = directory
        self._consumer: Consumer | None = None
        self._killed_at: float | None = None
        self._first: dict[int, bool] = {}  # queues that were not delivered from in this run
        self.done: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.queues = 1

    async def listen(self, messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        (message,), queue_id = messages, context.queue.queue_id
        self._check(queue_id, message.queue_offset)
        await asyncio.sleep(TAKES_S)
        self.done[queue_id].append((now(), message.queue_offset))
        return ConsumeStatus.SUCCESS

    def _check(self, queue_id: int, offset: int) -> None:
        """Within a run and after a stop the next one; after a kill again what was done in the last 5 s."""
        done = self.done[queue_id]
        after_last = max((at for _, at in done), default=-1) + 1
        if self._killed_at is not None and self._first.pop(queue_id, True):
            sure = max((at for when, at in done if when <= self._killed_at - EVERY_S - TAKES_S), default=-1) + 1
            assert sure <= offset <= after_last
            self.done[queue_id] = [(when, at) for when, at in done if at < offset]
        else:
            assert offset == after_last

    # Steps

    async def start(self) -> None:
        if self._consumer is None:
            self._consumer = self._member(self.listen, topics={"t": "*"}, start_from="first")
            self._consumer.start()

    async def stop(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer, self._killed_at = None, None

    async def kill(self) -> None:
        """What the disk has at this moment is all that is left."""
        if self._consumer is None:
            return
        left = self._directory.with_name("left")
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(self._directory, left)
        self._killed_at, self._first = now(), {}
        counted = {queue_id: list(done) for queue_id, done in self.done.items()}
        await self._consumer.stop()
        self._consumer, self.done = None, defaultdict(list, counted)
        shutil.rmtree(self._directory)
        left.rename(self._directory)

    async def send(self) -> None:
        for _ in range(self.chance.randrange(1, 40)):
            self.broker.send("t", self.chance.randrange(self.queues), b"x")

    async def grow(self) -> None:
        self.queues += 1
        self.broker.create("t", self.queues)

    async def restart_broker(self) -> None:
        self.broker.go_down()
        self.broker.log_epoch += 1
        await asyncio.sleep(self.chance.uniform(0, 3))
        self.broker.come_up()

    async def wait(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, 12))


@pytest.mark.parametrize("seed", range(12))
async def test_each_message_comes_once_but_for_the_last_5_s_before_a_kill(
    broker: FakeBroker, member: Make, tmp_path: Path, seed: int
) -> None:
    life = Life(broker, member, tmp_path / "a", random.Random(seed))
    broker.create("t", 1)
    steps = [life.start, life.start, life.stop, life.kill, life.send, life.send, life.grow, life.restart_broker,
             life.wait, life.wait]  # fmt: skip
    for _ in range(STEPS):
        await life.chance.choice(steps)()

    await life.start()
    await asyncio.sleep(200)
    await life.stop()

    for queue_id in range(life.queues):
        offsets = [at for _, at in life.done[queue_id]]
        assert offsets == list(range(broker.max_offset(MessageQueue("t", queue_id))))
