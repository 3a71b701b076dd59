"""
A broker, its producers and the members of a group, each a process of one simulation; and what happened to them.

``play(script)`` does what a script says with the real broker and the real clients, takes everything away that hinders
them, and gives back the history for :mod:`simulation.ordered`. A ``Build`` says what they are made of: the
sound one, or one that a test broke.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from structlog.testing import capture_logs

from rmq.broker.app import Broker
from rmq.broker.config import BrokerConfig
from rmq.client import Admin, Message, Producer
from rmq.consumer import Consumer
from rmq.consumer.member import ConsumerRuntime
from rmq.engine.native.connection import Connection
from rmq.wire.errors import OK
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from rigs.disk.crash import KEPT, crash, materialise
from rigs.disk.recording import RecordingFiles, memory_folder
from rigs.logged_errors import errors_told
from rigs.recovery.served import LateFlusher
from simulation import scripts
from simulation.history import (
    BrokerCrashed,
    Continued,
    Event,
    Granted,
    Hindered,
    Killed,
    Promised,
    Sent,
    Stopped,
)
from simulation.listeners import Plan, ScriptedListeners
from simulation.network import DOWN, UP
from simulation.ordered import judge
from simulation.processes import Process, SimulatedLoop
from simulation.scripts import Script, Step
from simulation.watched_broker import WatchedBroker, watched

GROUP, TOPIC = "g", "orders"
NEVER = 1 << 30  # whoever is killed or cut off often is no crash loop, unless a script says so
SETTLED_S = 1.0  # everything is watched for this long after the last message was processed
PATIENCE_S = 60.0  # after the last obstacle, before what is not processed is given up


class Build(NamedTuple):
    """What the processes are made of; ``change`` is told the parts of a consumer before it does anything."""

    broker: type[Broker] = Broker
    connection: type[Connection] = Connection
    change: Callable[[ConsumerRuntime], None] = lambda runtime: None


SOUND = Build()


class Played(NamedTuple):
    """What became of a script."""

    history: list[Event]
    grace_s: float
    troubles: list[str]  # what is wrong whatever the history says


def play(script: Script, build: Build = SOUND) -> Played:
    """Do what a script says, on a clock of its own. Nothing is logged; errors are troubles."""
    before = random.getstate()
    random.seed(script.seed)  # producers draw their pauses here
    try:
        with errors_told() as errors, asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(_play(script, build, errors))
    finally:
        random.setstate(before)


async def _play(script: Script, build: Build, errors: Callable[[], list[str]]) -> Played:
    with tempfile.TemporaryDirectory(prefix="rmq-fleet-", dir=memory_folder()) as folder:
        fleet = Fleet(script, build, Path(folder))
        try:
            await fleet.run()
            # Before the dead are let to their end, which has no disk any more.
            fleet.troubles += [error for error in errors() if not error.startswith("listener.raised")]
        finally:
            await fleet.end()
        return Played(fleet.history, fleet.grace_s, fleet.troubles)


class Member:
    """A consumer in its process, and what its listener will do."""

    def __init__(self, process: Process, plan: Plan, consumer: Consumer) -> None:
        self.process = process
        self.plan = plan
        self.consumer = consumer
        self.leaving: asyncio.Task[None] | None = None


class Fleet:
    """The processes of a script, and the history of what they do."""

    def __init__(self, script: Script, build: Build, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        self._script = script
        self._build = build
        self._folder = folder
        self._chance = Random(f"fleet {script.seed}")
        self.history: list[Event] = []
        self.troubles: list[str] = []
        settings: dict[str, Any] = {
            "min_free_bytes": 0, "checkpoint_s": 1e6, "listen": "127.0.0.1:0", "recognise_copies": False,
            **dict(script.broker),
        }  # fmt: skip
        self._config = BrokerConfig(default_queues=script.queues, data_dir=str(folder / "0"), **settings)
        self.grace_s = self._config.grace_s
        self._lives = 0
        self._broker: WatchedBroker | None = None
        self._broker_process: Process
        self._fallen: list[Process] = []
        self._files: RecordingFiles
        self.members: dict[str, Member] = {}
        self._gone: list[Member] = []
        self._producers: dict[str, tuple[Process, Producer]] = {}
        self._numbers = itertools.count()
        self._sending: list[asyncio.Task[None]] = []
        self._listeners = ScriptedListeners(script, self.note)
        loop.set_exception_handler(self._unhandled)

    # Life

    async def run(self) -> None:
        """Do every step, then take away what hinders, and wait until everything is processed."""
        await self._start_broker()
        for name in ("p1", "p2"):
            await self._add_producer(name)
        for step in self._script.steps:
            await self.do(step)
        await self._heal_everything()
        await self._until_processed()
        await self._stop_everybody()

    async def do(self, step: Step) -> None:
        """Do one step; one about somebody who is not there does nothing."""
        name = getattr(step, "member", None)
        if name is not None and not isinstance(step, scripts.Join) and name not in self.members:
            return
        await getattr(self, "_" + type(step).__name__.lower())(step)

    def note(self, event: Event) -> None:
        """Add to the history."""
        self.history.append(event)

    @property
    def now(self) -> float:
        """The time."""
        return self._loop.time()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.troubles.append(f"{self.now:.3f} s: {context['message']}: {context.get('exception')!r}")

    # The broker

    async def _start_broker(self) -> None:
        self._lives += 1
        self._broker_process = Process(f"broker{self._lives}", self._loop)
        Path(self._config.data_dir).mkdir(exist_ok=True)
        self._files = RecordingFiles(self._config.data_dir)
        broker = watched(self._build.broker)(self._config, now=self._loop.time, flusher=LateFlusher, files=self._files)
        broker.watch(GROUP, self.note)
        await self._broker_process.task(broker.start())
        self._config = replace(self._config, listen=broker.address)
        self._broker = broker

    async def _restart(self, step: scripts.Restart) -> None:
        assert self._broker is not None
        broker, self._broker = self._broker, None
        await self._broker_process.task(broker.stop())
        await asyncio.sleep(step.down_s)
        await self._start_broker()

    async def _crash(self, step: scripts.Crash) -> None:
        assert self._broker is not None
        self.note(BrokerCrashed(self.now))
        broker, self._broker = self._broker, None
        self._broker_process.kill()
        self._fallen.append(self._broker_process)
        broker.fall()
        recording = self._files.recording
        if step.policy != KEPT:
            found = crash(recording, len(recording.steps), step.policy, self._chance.randrange(1 << 30))
            directory = self._folder / str(self._lives)
            materialise(found.image, directory)
            self._config = replace(self._config, data_dir=str(directory))
        await asyncio.sleep(step.down_s)
        await self._start_broker()

    # Producers

    async def _add_producer(self, name: str) -> None:
        process = Process(name, self._loop)
        producer = Producer(self._config.listen, delivery_timeout_s=600.0)
        await process.task(producer.open())
        self._producers[name] = process, producer

    async def _send(self, step: scripts.Send) -> None:
        process, producer = self._producers[step.producer]
        numbers = [next(self._numbers) for _ in range(step.count)]
        self._sending.append(process.task(self._send_many(step, producer, numbers)))

    async def _send_many(self, step: scripts.Send, producer: Producer, numbers: list[int]) -> None:
        bodies = [f"{step.producer}/{step.key}/{number}".encode().ljust(step.size, b".") for number in numbers]
        messages = [Message(TOPIC, body, tag=step.tag) for body in bodies]
        receipts = await producer.send_many(messages, sharding_key=step.key)
        for receipt, body, number in zip(receipts, bodies, numbers, strict=True):
            queue = MessageQueue(TOPIC, receipt.queue_id)
            self.note(Sent(self.now, queue, receipt.queue_offset, body, step.producer, number, step.tag))

    # Members

    async def _join(self, step: scripts.Join) -> None:
        process = Process(step.member, self._loop)
        plan = Plan(process)
        consumer = Consumer(
            self._config.listen,
            group=GROUP,
            topics={TOPIC: self._script.expression},
            listener=self._listeners.listener(plan),
            connect=self._connect(step.member),
            now=self._loop.time,
            **{"crash_limit": NEVER, **dict(self._script.consumer)},
        )
        self.members[step.member] = Member(process, plan, consumer)

        def start() -> None:
            consumer.start()
            assert consumer._runtime is not None
            self._build.change(consumer._runtime)

        process.run(start)

    async def _leave(self, step: scripts.Leave) -> None:
        member = self.members.pop(step.member)
        member.leaving = member.process.task(member.consumer.stop())
        self._gone.append(member)

    async def _kill(self, step: scripts.Kill) -> None:
        member = self.members.pop(step.member)
        self.note(Killed(self.now, step.member))
        self._listeners.killed(step.member)
        member.process.kill()
        self._gone.append(member)

    async def _pause(self, step: scripts.Pause) -> None:
        self._stop(self.members[step.member].process)

    async def _resume(self, step: scripts.Resume) -> None:
        self._go_on(self.members[step.member].process, step.order)

    def _stop(self, process: Process) -> None:
        if not process.stopped:
            self.note(Stopped(self.now, process.name))
            process.stop()

    def _go_on(self, process: Process, order: str = "in time") -> None:
        if process.stopped and not process.dead:
            process.go_on(order)
            if not process.still:
                self.note(Continued(self.now, process.name))

    # The network

    async def _partition(self, step: scripts.Partition) -> None:
        self._loop.network.hold(step.client, *step.ways)

    async def _lag(self, step: scripts.Lag) -> None:
        self._loop.network.link(step.client).delay_s = step.seconds

    async def _heal(self, step: scripts.Heal) -> None:
        self._loop.network.link(step.client).delay_s = 0.0
        if step.cut:
            self._loop.network.cut(step.client)
        self._loop.network.heal(step.client)

    async def _closeunseen(self, step: scripts.CloseUnseen) -> None:
        self._loop.network.hold(step.client, UP, DOWN)
        self._loop.network.end_far(step.client)

    async def _tick(self, step: scripts.Tick) -> None:
        await asyncio.sleep(step.seconds)

    async def _reset(self, step: scripts.Reset) -> None:
        """People do not give up: a broker that is away is waited for."""
        admin = Process("admin", self._loop)
        await admin.task(self._reset_offset(step))

    async def _reset_offset(self, step: scripts.Reset) -> None:
        queue = MessageQueue(TOPIC, step.queue_id)
        async with Admin(self._config.listen) as admin:
            for held in await admin.ranges([queue]):
                if held.status == OK:
                    await admin.reset_offsets(GROUP, {queue: round(held.max_offset * step.part)})

    # Listeners

    async def _slow(self, step: scripts.Slow) -> None:
        self.members[step.member].plan.next.append(step)

    async def _block(self, step: scripts.Block) -> None:
        self.members[step.member].plan.next.append(step)

    async def _fail(self, step: scripts.Fail) -> None:
        self.members[step.member].plan.next.extend([step] * step.times)

    def _hindered(self, seconds: float) -> None:
        self.note(Hindered(self.now, self.now + seconds))

    # What the clients are told

    def _connect(self, name: str) -> Callable[..., Connection]:
        fleet = self

        class Told(self._build.connection):  # type: ignore[name-defined,misc]
            async def request(self, op: Op, payload: Any, **options: Any) -> Any:
                reply = await super().request(op, payload, **options)
                fleet._told(name, op, payload, reply)
                return reply

        chance = Random(f"{self._script.seed} {name}")

        def connect(address: str, **options: Any) -> Connection:
            connection = Told(address, client=name, chance=chance.random, **options)
            connection.session = chance.randbytes(16)  # whose order decides who is first, where it has to be decided
            return connection

        return connect

    def _told(self, name: str, op: Op, payload: Any, reply: Any) -> None:
        if op == Op.ACQUIRE:
            for queue, grant in zip(payload.queues, decode_list(ops.Grant, reply), strict=True):
                if grant.status == OK:
                    self.note(Granted(self.now, name, MessageQueue(*queue), grant.epoch, grant.committed_offset))
        elif op in (Op.COMMIT, Op.RELEASE, Op.LEAVE):
            entries = payload.entries if op == Op.COMMIT else payload.leases
            for entry, outcome in zip(entries, decode_list(ops.Outcome, reply), strict=True):
                if outcome.status == OK and entry.queue_offset >= 0:
                    queue = MessageQueue(entry.topic, entry.queue_id)
                    self.note(Promised(self.now, queue, entry.queue_offset, entry.epoch))

    # The end

    async def _heal_everything(self) -> None:
        self._listeners.heal()
        for member in [*self.members.values(), *self._gone]:
            member.plan.next.clear()
            if not member.process.dead:
                member.process.unblock()
                self._go_on(member.process)
        for name in [*self.members, *self._producers, *(member.process.name for member in self._gone)]:
            await self._heal(scripts.Heal(name, cut=False))
        if not self.members:
            await self._join(scripts.Join("last"))
        self._hindered(0.0)
        await self._send_last()

    async def _send_last(self) -> None:
        """One more message for every queue: all of them are alive, and what a listener keeps back is committed."""
        process, producer = self._producers["p1"]
        tag = None if self._script.expression == "*" else "a"
        for queue_id in range(self._script.queues):
            number = next(self._numbers)
            message = Message(TOPIC, b"last of %d" % queue_id, tag=tag)
            self._sending.append(process.task(self._send_one(producer, message, queue_id, number)))

    async def _send_one(self, producer: Producer, message: Message, queue_id: int, number: int) -> None:
        receipt = await producer.send(message, queue_id=queue_id)
        queue = MessageQueue(TOPIC, queue_id)
        self.note(Sent(self.now, queue, receipt.queue_offset, message.body, "p1", number, message.tag))

    async def _until_processed(self) -> None:
        """Wait for all that was sent to be processed, in vain if it takes too long."""
        until = self.now + PATIENCE_S
        await asyncio.wait(self._sending, timeout=PATIENCE_S) if self._sending else None
        self.troubles += [f"not sent: {task!r}" for task in self._sending if not task.done()]
        for task in self._sending:
            if task.done() and (error := task.exception()) is not None:
                self.troubles.append(f"not sent: {error!r}")
        while self.now < until and judge(self.history, wants=wants(self._script)).missing:
            await asyncio.sleep(0.5)
        await asyncio.sleep(SETTLED_S)

    async def _stop_everybody(self) -> None:
        """A clean stop leaves nothing behind."""
        stopping = [member.process.task(member.consumer.stop()) for member in self.members.values()]
        stopping += [member.leaving for member in self._gone if member.leaving is not None and not member.process.dead]
        if stopping:
            _, late = await asyncio.wait(stopping, timeout=PATIENCE_S)
            self.troubles += [f"not stopped: {task!r}" for task in late]
        for process, producer in self._producers.values():
            await process.task(producer.close())
        await asyncio.sleep(self.grace_s + SETTLED_S)  # what a killed process held is free then, too
        assert self._broker is not None
        self.troubles += self._broker.left_behind()

    async def end(self) -> None:
        """Let everything end, whatever state it is in."""
        self.history = list(self.history)
        self._loop.set_exception_handler(lambda loop, context: None)
        if self._broker is not None:
            await self._broker_process.task(self._broker.stop())
        with capture_logs():  # what a dead broker finds when it is let run, its files closed, is nobody's trouble
            for process in [*self._fallen, *(member.process for member in [*self.members.values(), *self._gone])]:
                process.bury()
            for _ in range(100):
                rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                if not rest:
                    break
                for task in rest:
                    task.cancel()
                await asyncio.wait(rest, timeout=10.0)
        shutil.rmtree(self._folder, ignore_errors=True)


def wants(script: Script) -> Callable[[str | None], bool]:
    """Which tags the group of a script gets."""
    if script.expression == "*":
        return lambda tag: True
    tags = {tag.strip() for tag in script.expression.split("||")}
    return lambda tag: tag in tags
