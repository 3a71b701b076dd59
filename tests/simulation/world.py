"""
A world: a broker, its producers and the members of groups of every mode, each a process of one simulation.

``play(script)`` does what a script says with the real broker and the real clients, takes away all that hinders them,
waits until everything is processed or given up and nothing is deferred, and returns what happened and what the log
holds. A ``Build`` says what the processes are made of: the sound one, or one that a test broke.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
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
from rmq.wire.errors import OK, RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from rigs.disk.crash import KEPT, crash, materialise
from rigs.disk.recording import RecordingFiles, memory_folder
from rigs.logged_errors import logged_errors
from rigs.recovery.served import LateFlusher
from simulation import history, scripts
from simulation.broker import BEGAN, BEGAN_US, NotingBroker, noting, read_rows, waiting
from simulation.groups import CAST, CAST_ORDERLY, CONCURRENT, ORDERLY, PULL, TOPIC, Group, Levels
from simulation.history import (
    BrokerCrashed,
    BrokerDown,
    BrokerUp,
    Continued,
    Ended,
    Event,
    Granted,
    Hindered,
    Killed,
    Left,
    Promised,
    Released,
    Row,
    Sent,
    Started,
    Stopped,
    Troubled,
)
from simulation.listeners import Listeners, Plan, PullMember, body_of
from simulation.network import DOWN, UP
from simulation.processes import Process, SimulatedLoop
from simulation.scripts import Script, Step, instance_of
from simulation.verdict import Verdict, judge

NEVER = 1 << 30  # a member that is killed or cut off often makes no crash loop, unless a script says so
SETTLED_S = 1.0  # everything is watched for this long after the last message was processed
PATIENCE_S = 60.0  # beyond all delays, before what is not processed is given up


class Build(NamedTuple):
    """What the processes are made of; ``change`` gets the parts of a consumer before it does anything."""

    broker: type[Broker] = Broker
    connection: type[Connection] = Connection
    change: Callable[[ConsumerRuntime], None] = lambda runtime: None


SOUND = Build()


class Played(NamedTuple):
    """What became of a script."""

    history: list[Event]
    rows: list[Row]
    groups: tuple[Group, ...]
    levels: Levels
    grace_s: float
    troubles: list[str]  # what is wrong whatever the history says

    def judged(self) -> Verdict:
        """Return the verdict on all of it, troubles included."""
        verdict = judge(self.history, self.rows, self.groups, self.levels, grace_s=self.grace_s)
        verdict.violations.extend(self.troubles)
        return verdict


def play(script: Script, build: Build = SOUND) -> Played:
    """Do what a script says, on a clock of its own. Nothing is logged; errors are troubles."""
    before = random.getstate()
    random.seed(script.seed)  # producers draw their pauses here
    try:
        with logged_errors() as errors, asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(_play(script, build, errors))
    finally:
        random.setstate(before)


async def _play(script: Script, build: Build, errors: Callable[[], list[str]]) -> Played:
    with tempfile.TemporaryDirectory(prefix="rmq-world-", dir=memory_folder()) as folder:
        world = World(script, build, Path(folder))
        try:
            await world.run()
            ordered = all(group.kind == ORDERLY for group in script.groups)
            expected = ("listener.raised",) if ordered else ("listener.raised", "message.skipped")
            # Before the dead are let to their end, which has no disk any more.
            world.troubles += [error for error in errors() if not error.startswith(expected)]
        finally:
            await world.end()
        return Played(world.history, world.rows, script.groups, world.levels, world.grace_s, world.troubles)


class Outcomes:
    """Tracks which messages each group, or each broadcasting instance, has processed by now."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.accepted: dict[bytes, Sent] = {}
        self.done: defaultdict[str, set[bytes]] = defaultdict(set)
        self._calls: dict[int, Started] = {}

    def see(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Sent):
            self.accepted[event.body] = event
        elif isinstance(event, Started):
            self._calls[event.call] = event
        elif isinstance(event, Ended):
            call = self._calls.pop(event.call)
            group = self._script.group(call.process)
            done = self.done[_whose(group, call.process)]
            for body, attempt, fate in zip(call.bodies, call.attempts, event.fates, strict=True):
                if fate in (history.DONE, history.KEPT) or (fate != history.CUT and _passes(group, attempt)):
                    done.add(body)

    def open(self, group: Group, member: str, dead: set[bytes]) -> bool:
        """Return whether a group, or a member if it broadcasts, has yet to process or give up a message."""
        done = self.done[_whose(group, member)]
        return any(
            body not in done and body not in dead for body, sent in self.accepted.items() if group.wants(sent.tag)
        )


def _whose(group: Group, member: str) -> str:
    return group.name if group.shared else f"{group.name} {instance_of(member)}"


def _passes(group: Group, attempt: int) -> bool:
    """Return whether a member goes on after a message that failed at this attempt."""
    return group.kind == CAST or (group.kind == CAST_ORDERLY and attempt >= group.setting("max_attempts", 1 << 30))


class Member:
    """A consumer in its process, and what its listener will do."""

    def __init__(self, process: Process, plan: Plan, consumer: Consumer | PullMember) -> None:
        self.process = process
        self.plan = plan
        self.consumer = consumer
        self.leaving: asyncio.Task[None] | None = None


class World:
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
        self.levels = _levels(self._config)
        self.rows: list[Row] = []
        self._outcomes = Outcomes(script)
        self._epochs: dict[tuple[str, MessageQueue], int] = {}
        self._lives = 0
        self._broker: NotingBroker | None = None
        self._broker_process: Process
        self._fallen: list[Process] = []
        self._files: RecordingFiles
        self.members: dict[str, Member] = {}
        self._gone: list[Member] = []
        self._producers: dict[str, tuple[Process, Producer]] = {}
        self._numbers = itertools.count()
        self._sending: list[asyncio.Task[None]] = []
        self._listeners = Listeners(script, self.note)
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
        await self._stop_all()

    async def do(self, step: Step) -> None:
        """Do one step; one about a member that is not there does nothing."""
        name = getattr(step, "member", None)
        if name is not None and not isinstance(step, scripts.Join) and name not in self.members:
            return
        await getattr(self, "_" + type(step).__name__.lower())(step)

    def note(self, event: Event) -> None:
        """Add to the history."""
        self.history.append(event)
        self._outcomes.see(event)

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
        broker = noting(self._build.broker)(
            self._config, now=self._loop.time, flusher=LateFlusher, files=self._files,
            wall_us=lambda: BEGAN_US + int(self._loop.time() * 1e6),
        )  # fmt: skip
        broker.note = self.note
        await self._broker_process.task(broker.start())
        self._config = replace(self._config, listen=broker.address)
        self._broker = broker
        self.note(BrokerUp(self.now))

    async def _restart(self, step: scripts.Restart) -> None:
        assert self._broker is not None
        self.note(BrokerDown(self.now))
        broker, self._broker = self._broker, None
        await self._broker_process.task(broker.stop())
        await asyncio.sleep(step.down_s)
        await self._start_broker()

    async def _crash(self, step: scripts.Crash) -> None:
        assert self._broker is not None
        self.note(BrokerDown(self.now))
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
        sent_at, due, delay_s = self.now, None, 0.0
        more: dict[str, Any] = {}
        if step.level:
            more["delay_level"] = step.level
            delay_s = self.levels.seconds[step.level - 1]
        elif step.delay_s is not None:
            due = round(sent_at + step.delay_s, 6)
            more["deliver_at"] = BEGAN + timedelta(seconds=due)
        bodies = [body_of(step.bad, f"{step.producer}/{step.key}/{number}", step.size) for number in numbers]
        messages = [Message(TOPIC, body, tag=step.tag, **more) for body in bodies]
        receipts = await producer.send_many(messages, key=step.key)
        for receipt, body, number in zip(receipts, bodies, numbers, strict=True):
            queue = MessageQueue(TOPIC, receipt.queue_id)
            self.note(
                Sent(
                    self.now, queue, receipt.queue_offset, body, step.producer, number, step.tag, sent_at, delay_s, due
                )
            )

    async def _send_one(self, producer: Producer, message: Message, queue_id: int, number: int) -> None:
        sent_at = self.now
        receipt = await producer.send(message, queue_id=queue_id)
        queue = MessageQueue(TOPIC, queue_id)
        self.note(Sent(self.now, queue, receipt.queue_offset, message.body, "p1", number, message.tag, sent_at))

    # Members

    async def _join(self, step: scripts.Join) -> None:
        name, group = step.member, self._script.group(step.member)
        if not group.shared:
            await self._until_free(instance_of(name))
        process = Process(name, self._loop)
        plan = Plan(process)
        make = self._pulling if group.kind == PULL else self._listening
        consumer = make(group, plan)
        self.members[name] = Member(process, plan, consumer)
        self.note(history.Born(self.now, name, "" if group.shared else instance_of(name), group.name))
        process.run(consumer.start)

    def _settings(self, group: Group, name: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"crash_limit": NEVER, **dict(group.settings)}
        if not group.shared:
            instance = instance_of(name)
            settings |= {
                "model": "broadcasting",
                "instance": instance,
                "offsets_dir": str(self._folder / f"{group.name}-{instance}"),
            }
        return settings

    def _listening(self, group: Group, plan: Plan) -> Any:
        name = plan.process.name
        consumer = Consumer(
            self._config.listen, group=group.name, topics={TOPIC: group.expression}, orderly="orderly" in group.kind,
            listener=self._listeners.listener(plan, group), connect=self._connect(name), now=self._loop.time,
            **self._settings(group, name),
        )  # fmt: skip
        consumer.start = self._changed(consumer, consumer.start)  # type: ignore[method-assign]
        return consumer

    def _changed(self, consumer: Consumer, start: Callable[[], None]) -> Callable[[], None]:
        def begin() -> None:
            start()
            assert consumer._runtime is not None
            self._build.change(consumer._runtime)

        return begin

    def _pulling(self, group: Group, plan: Plan) -> PullMember:
        return PullMember(
            self._config.listen, group, plan, self._listeners, connect=self._connect(plan.process.name),
            now=self._loop.time, epoch=self._epoch_of,
        )  # fmt: skip

    def _epoch_of(self, name: str, queue: MessageQueue) -> int:
        return self._epochs.get((name, queue), 0)

    async def _until_free(self, instance: str) -> None:
        """Wait for the last life of an instance to end."""
        leaving = [
            member.leaving
            for member in self._gone
            if member.leaving is not None
            and "-i" in member.process.name
            and instance_of(member.process.name) == instance
        ]
        if leaving:
            await asyncio.wait(leaving)

    async def _leave(self, step: scripts.Leave) -> None:
        member = self.members.pop(step.member)
        member.leaving = member.process.task(self._stop_one(member))
        self._gone.append(member)

    async def _stop_one(self, member: Member) -> None:
        await member.consumer.stop()
        self.note(Left(self.now, member.process.name))

    async def _kill(self, step: scripts.Kill) -> None:
        member = self.members.pop(step.member)
        self.note(Killed(self.now, step.member))
        self._listeners.killed(step.member)
        member.process.kill()
        _free_files(member.consumer)
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
        self.note(Troubled(self.now, step.client))
        self._loop.network.hold(step.client, *step.ways)

    async def _lag(self, step: scripts.Lag) -> None:
        self.note(Troubled(self.now, step.client))
        self._loop.network.link(step.client).delay_s = step.seconds

    async def _heal(self, step: scripts.Heal) -> None:
        self._loop.network.link(step.client).delay_s = 0.0
        if step.cut:
            self.note(Troubled(self.now, step.client))
            self._loop.network.cut(step.client)
        self._loop.network.heal(step.client)

    async def _closeunseen(self, step: scripts.CloseUnseen) -> None:
        self.note(Troubled(self.now, step.client))
        self._loop.network.hold(step.client, UP, DOWN)
        self._loop.network.end_far(step.client)

    async def _tick(self, step: scripts.Tick) -> None:
        await asyncio.sleep(step.seconds)

    async def _reset(self, step: scripts.Reset) -> None:
        """Reset as a person does, who waits for a broker that is away."""
        admin = Process("admin", self._loop)
        await admin.task(self._reset_offset(step))

    async def _reset_offset(self, step: scripts.Reset) -> None:
        queue = MessageQueue(TOPIC, step.queue_id)
        async with Admin(self._config.listen) as admin:
            for held in await admin.ranges([queue]):
                if held.status == OK:
                    await admin.reset_offsets(self._script.groups[0].name, {queue: round(held.max_offset * step.part)})

    # Listeners

    async def _slow(self, step: scripts.Slow) -> None:
        self.members[step.member].plan.next.append(step)

    async def _block(self, step: scripts.Block) -> None:
        self.members[step.member].plan.next.append(step)

    async def _fail(self, step: scripts.Fail) -> None:
        self.members[step.member].plan.next.extend([step] * step.times)

    def _hindered(self, seconds: float) -> None:
        self.note(Hindered(self.now, self.now + seconds))

    # What the clients learn

    def _connect(self, name: str) -> Callable[..., Connection]:
        world = self

        class Listening(self._build.connection):  # type: ignore[name-defined,misc]
            async def request(self, op: Op, payload: Any, **options: Any) -> Any:
                reply = await super().request(op, payload, **options)
                world._learned(name, op, payload, reply)
                return reply

        chance = Random(f"{self._script.seed} {name}")

        def connect(address: str, **options: Any) -> Connection:
            connection = Listening(address, client=name, chance=chance.random, **options)
            connection.session = chance.randbytes(16)  # whose order decides who is first, where it has to be decided
            return connection

        return connect

    def _learned(self, name: str, op: Op, payload: Any, reply: Any) -> None:
        group, now = self._script.group(name).name, self.now
        if op == Op.ACQUIRE:
            for ref, grant in zip(payload.queues, decode_list(ops.Grant, reply), strict=True):
                if grant.status == OK:
                    queue = MessageQueue(*ref)
                    self._epochs[name, queue] = grant.epoch
                    self.note(Granted(now, name, queue, grant.epoch, grant.committed_offset, group))
        elif op in (Op.COMMIT, Op.RELEASE, Op.LEAVE):
            entries = payload.entries if op == Op.COMMIT else payload.leases
            for entry, outcome in zip(entries, decode_list(ops.Outcome, reply), strict=True):
                queue = MessageQueue(entry.topic, entry.queue_id)
                if outcome.status == OK and entry.queue_offset >= 0:
                    self.note(Promised(now, queue, entry.queue_offset, entry.epoch, group))
                if outcome.status == OK and op != Op.COMMIT:
                    self.note(Released(now, name, queue, entry.epoch, entry.queue_offset, group))
        elif op in (Op.SEND_BACK, Op.DEAD_LETTER) and payload.commit_offset >= 0:
            queue = MessageQueue(payload.topic, payload.queue_id)
            self.note(Promised(now, queue, payload.commit_offset, payload.epoch, group))

    # The end

    async def _heal_everything(self) -> None:
        for group in self._script.groups:
            if not any(self._script.group(name) is group for name in self.members):
                await self._join(scripts.Join(f"{group.name}-{'last' if group.shared else 'ilast-last'}"))
        self._listeners.heal()
        for member in [*self.members.values(), *self._gone]:
            member.plan.next.clear()
            if not member.process.dead:
                member.process.unblock()
                self._go_on(member.process)
        for name in [*self.members, *self._producers, *(member.process.name for member in self._gone)]:
            await self._heal(scripts.Heal(name, cut=False))
        self._hindered(0.0)
        await self._send_last()

    async def _send_last(self) -> None:
        """One more message for every queue: all of them are alive, and what a listener keeps back is committed."""
        process, producer = self._producers["p1"]
        for queue_id in range(self._script.queues):
            message = Message(TOPIC, b"last of %d" % queue_id, tag="a")
            number = next(self._numbers)
            self._sending.append(process.task(self._send_one(producer, message, queue_id, number)))

    async def _until_processed(self) -> None:
        most = max((self.levels.limit(one) for one in self._script.groups if one.kind == CONCURRENT), default=1)
        until = self.now + PATIENCE_S + sum(self.levels.delay_s(0, n) for n in range(1, most))
        await asyncio.wait(self._sending, timeout=PATIENCE_S) if self._sending else None
        self.troubles += [f"not sent: {task!r}" for task in self._sending if not task.done()]
        for task in self._sending:
            if task.done() and (error := task.exception()) is not None:
                self.troubles.append(f"not sent: {error!r}")
        watcher = Process("watcher", self._loop)
        await watcher.task(self._watch(until))

    async def _watch(self, until: float) -> None:
        connection = Connection(self._config.listen, client="watcher", now=self._loop.time)
        await connection.open(timeout_s=5.0)
        names = [TOPIC, *(name for group in self._script.groups for name in (group.retries, group.dead))]
        try:
            while self.now < until:
                if not self._uncommitted() and not await waiting(connection):
                    self.rows = await read_rows(connection, names)
                    if not self._open():
                        break
                await asyncio.sleep(1.0)
            await asyncio.sleep(SETTLED_S)
            self.rows = await read_rows(connection, names)
        except RmqError as error:
            self.troubles.append(f"not watched: {error!r}")
        finally:
            await connection.close()

    def _uncommitted(self) -> bool:
        """Return whether an acknowledged message awaits its commit: cheaper to see than what the log holds."""
        assert self._broker is not None
        return any(
            sent.offset >= 0 and group.wants(sent.tag) and self._broker.committed(group.name, sent.queue) <= sent.offset
            for group in self._script.groups
            if group.shared
            for sent in self._outcomes.accepted.values()
        )

    def _open(self) -> bool:
        """Return whether a member has something left to do."""
        assert self._broker is not None
        for name in self.members:
            group = self._script.group(name)
            if self._outcomes.open(group, name, {row.body for row in self.rows if row.queue.topic == group.dead}):
                return True
        for group in self._script.groups:
            for row in self.rows if group.shared else ():
                here = row.queue.topic == group.retries or (row.queue.topic == TOPIC and group.wants(row.tag))
                if here and self._broker.committed(group.name, row.queue) <= row.offset:
                    return True
        return False

    async def _stop_all(self) -> None:
        """Stop all members: a clean stop leaves nothing that is held."""
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
        with capture_logs():  # what a dead broker finds when it is let run, its files closed, counts as no trouble
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


def _levels(config: BrokerConfig) -> Levels:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    seconds = tuple(float(word[:-1]) * units[word[-1]] for word in config.message_delay_level.split())
    return Levels(seconds, config.max_retries)


def _free_files(consumer: Any) -> None:
    """What the system does when a process dies: its locks on files are gone."""
    runtime = getattr(consumer, "_runtime", None)
    if runtime is not None and runtime._local is not None:
        runtime._local._file.close()
