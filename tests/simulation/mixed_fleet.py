"""
A broker, its producers and the members of groups of every mode, each a process of one simulation.

``play_mixed(script)`` does what a script says, takes everything away that hinders, waits until all is processed or
given up and nothing waits for its time, and gives back what happened and what the log holds.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rmq.broker.config import BrokerConfig
from rmq.client import Message, Producer
from rmq.consumer import Consumer
from rmq.engine.native.connection import Connection
from rmq.wire.errors import OK as DONE
from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from rigs.disk.recording import RecordingFiles, memory_folder
from rigs.logged_errors import errors_told
from rigs.recovery.served import LateFlusher
from simulation import scripts
from simulation.fleet import NEVER, SETTLED_S, SOUND, TOPIC, Build, Fleet, Member
from simulation.mixed_broker import BEGAN, BEGAN_US, MixedBroker, mixed, read_rows, waiting
from simulation.mixed_history import (
    CAST,
    CAST_ORDERLY,
    CUT,
    OK,
    PULL,
    Accepted,
    Born,
    BrokerDown,
    BrokerUp,
    Called,
    Group,
    Left,
    Levels,
    MixedEvent,
    Owned,
    Released,
    Returned,
    Row,
    Told,
    Troubled,
)
from simulation.mixed_listeners import MixedListeners, MixedPlan, body_of
from simulation.mixed_scripts import MixedScript, Post, Reject, group_of, instance_of
from simulation.processes import Process, SimulatedLoop
from simulation.pulling import PullMember

PATIENCE_S = 60.0  # beyond all delays, before what is not processed is given up


class MixedPlayed(NamedTuple):
    """What became of a script."""

    history: list[MixedEvent]
    rows: list[Row]
    levels: Levels
    grace_s: float
    troubles: list[str]  # what is wrong whatever the history says


def play_mixed(script: MixedScript, build: Build = SOUND) -> MixedPlayed:
    """Do what a script says, on a clock of its own. Nothing is logged; errors are troubles."""
    before = random.getstate()
    random.seed(script.seed)  # producers draw their pauses here
    try:
        with errors_told() as errors, asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(_play(script, build, errors))
    finally:
        random.setstate(before)


async def _play(script: MixedScript, build: Build, errors: Callable[[], list[str]]) -> MixedPlayed:
    with tempfile.TemporaryDirectory(prefix="rmq-mixed-", dir=memory_folder()) as folder:
        fleet = MixedFleet(script, build, Path(folder))
        try:
            await fleet.run()
            fleet.troubles += [error for error in errors() if not error.startswith(EXPECTED)]
        finally:
            await fleet.end()
        return MixedPlayed(list(fleet.history), fleet.rows, fleet.levels, fleet.grace_s, fleet.troubles)


EXPECTED = ("listener.raised", "message.passed")


class Outcomes:
    """Which messages each group, or each broadcasting instance, has processed by now."""

    def __init__(self, script: MixedScript) -> None:
        self._script = script
        self.accepted: dict[bytes, Accepted] = {}
        self.done: defaultdict[str, set[bytes]] = defaultdict(set)
        self._calls: dict[int, Called] = {}

    def see(self, event: MixedEvent) -> None:
        """What has happened next."""
        if isinstance(event, Accepted):
            self.accepted[event.body] = event
        elif isinstance(event, Called):
            self._calls[event.call] = event
        elif isinstance(event, Returned):
            call = self._calls.pop(event.call)
            group = self._script.group(call.process)
            done = self.done[_whose(group, call.process)]
            for body, attempt, fate in zip(call.bodies, call.attempts, event.fates, strict=True):
                if fate == OK or (fate != CUT and _passes(group, attempt)):
                    done.add(body)

    def open(self, group: Group, member: str, dead: set[bytes]) -> bool:
        """Whether a group, or a member if it broadcasts, has not processed or given up all that it should."""
        done = self.done[_whose(group, member)]
        return any(
            body not in done and body not in dead for body, sent in self.accepted.items() if group.wants(sent.tag)
        )


def _whose(group: Group, member: str) -> str:
    return group.name if group.shared else f"{group.name} {instance_of(member)}"


def _passes(group: Group, attempt: int) -> bool:
    """Whether a member goes on behind a message that failed at this attempt."""
    return group.kind == CAST or (group.kind == CAST_ORDERLY and attempt >= group.setting("max_attempts", 1 << 30))


class MixedFleet(Fleet):
    """The processes of a script, and the history of what they do."""

    _script: MixedScript  # type: ignore[assignment]
    _broker: MixedBroker | None  # type: ignore[assignment]
    _listeners: MixedListeners  # type: ignore[assignment]
    history: list[MixedEvent]  # type: ignore[assignment]

    def __init__(self, script: MixedScript, build: Build, folder: Path) -> None:
        super().__init__(script, build, folder)  # type: ignore[arg-type]
        self._listeners = MixedListeners(script.pace_s, self.note)  # type: ignore[arg-type]
        self.levels = _levels(self._config)
        self.rows: list[Row] = []
        self._outcomes = Outcomes(script)
        self._epochs: dict[tuple[str, MessageQueue], int] = {}

    def note(self, event: MixedEvent) -> None:  # type: ignore[override]
        """Add to the history."""
        self.history.append(event)
        self._outcomes.see(event)

    # The broker

    async def _start_broker(self) -> None:
        self._lives += 1
        self._broker_process = Process(f"broker{self._lives}", self._loop)
        Path(self._config.data_dir).mkdir(exist_ok=True)
        self._files = RecordingFiles(self._config.data_dir)
        broker = mixed(self._build.broker)(
            self._config, now=self._loop.time, flusher=LateFlusher, files=self._files,
            wall_us=lambda: BEGAN_US + int(self._loop.time() * 1e6),
        )  # fmt: skip
        broker.note = self.note
        await self._broker_process.task(broker.start())
        self._config = replace(self._config, listen=broker.address)
        self._broker = broker
        self.note(BrokerUp(self.now))

    async def _restart(self, step: scripts.Restart) -> None:
        self.note(BrokerDown(self.now))
        await super()._restart(step)

    async def _crash(self, step: scripts.Crash) -> None:
        self.note(BrokerDown(self.now))
        await super()._crash(step)

    # Producers

    async def _post(self, step: Post) -> None:
        process, producer = self._producers[step.producer]
        numbers = [next(self._numbers) for _ in range(step.count)]
        self._sending.append(process.task(self._post_many(step, producer, numbers)))

    async def _post_many(self, step: Post, producer: Producer, numbers: list[int]) -> None:
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
        receipts = await producer.send_many(messages, sharding_key=step.key)
        for receipt, body, number in zip(receipts, bodies, numbers, strict=True):
            queue = MessageQueue(TOPIC, receipt.queue_id)
            self.note(
                Accepted(
                    self.now, sent_at, body, queue, receipt.queue_offset, step.producer, number, step.tag, delay_s, due
                )
            )

    async def _send_one(self, producer: Producer, message: Message, queue_id: int, number: int) -> None:
        sent_at = self.now
        receipt = await producer.send(message, queue_id=queue_id)
        queue = MessageQueue(TOPIC, queue_id)
        self.note(Accepted(self.now, sent_at, message.body, queue, receipt.queue_offset, "p1", number, message.tag))

    # Members

    async def _join(self, step: scripts.Join) -> None:
        name, group = step.member, self._script.group(step.member)
        if not group.shared:
            await self._until_free(instance_of(name))
        process = Process(name, self._loop)
        plan = MixedPlan(process)
        make = self._pulling if group.kind == PULL else self._listening
        consumer = make(group, plan)
        self.members[name] = Member(process, plan, consumer)  # type: ignore[arg-type]
        self.note(Born(self.now, group.name, name, "" if group.shared else instance_of(name)))
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

    def _listening(self, group: Group, plan: MixedPlan) -> Any:
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

    def _pulling(self, group: Group, plan: MixedPlan) -> PullMember:
        return PullMember(
            self._config.listen, group, TOPIC, plan, self._listeners, connect=self._connect(plan.process.name),
            now=self._loop.time, settings=dict(group.settings), epoch=self._epoch_of,
        )  # fmt: skip

    def _epoch_of(self, name: str, queue: MessageQueue) -> int:
        return self._epochs.get((name, queue), 0)

    async def _until_free(self, instance: str) -> None:
        """Whoever was this instance has ended."""
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
        member = self.members[step.member]
        await super()._kill(step)
        free_files(member.consumer)

    async def _reject(self, step: Reject) -> None:
        self.members[step.member].plan.next.extend([step] * step.times)  # type: ignore[list-item]

    # The network: who has trouble with it

    async def _partition(self, step: scripts.Partition) -> None:
        self.note(Troubled(self.now, step.client))
        await super()._partition(step)

    async def _lag(self, step: scripts.Lag) -> None:
        self.note(Troubled(self.now, step.client))
        await super()._lag(step)

    async def _closeunseen(self, step: scripts.CloseUnseen) -> None:
        self.note(Troubled(self.now, step.client))
        await super()._closeunseen(step)

    async def _heal(self, step: scripts.Heal) -> None:
        if step.cut:
            self.note(Troubled(self.now, step.client))
        await super()._heal(step)

    # What the clients are told

    def _told(self, name: str, op: Op, payload: Any, reply: Any) -> None:
        group, now = group_of(name), self.now
        if op == Op.ACQUIRE:
            for ref, grant in zip(payload.queues, decode_list(ops.Grant, reply), strict=True):
                if grant.status == DONE:
                    queue = MessageQueue(*ref)
                    self._epochs[name, queue] = grant.epoch
                    self.note(Owned(now, group, name, queue, grant.epoch, grant.committed_offset))
        elif op in (Op.COMMIT, Op.RELEASE, Op.LEAVE):
            entries = payload.entries if op == Op.COMMIT else payload.leases
            for entry, outcome in zip(entries, decode_list(ops.Outcome, reply), strict=True):
                queue = MessageQueue(entry.topic, entry.queue_id)
                if outcome.status == DONE and entry.queue_offset >= 0:
                    self.note(Told(now, group, queue, entry.queue_offset))
                if outcome.status == DONE and op != Op.COMMIT:
                    self.note(Released(now, group, name, queue, entry.epoch, entry.queue_offset))
        elif op in (Op.SEND_BACK, Op.DEAD_LETTER) and payload.commit_offset >= 0:
            self.note(Told(now, group, MessageQueue(payload.topic, payload.queue_id), payload.commit_offset))

    # The end

    async def _heal_everything(self) -> None:
        for group in self._script.groups:
            if not any(group_of(name) == group.name for name in self.members):
                await self._join(scripts.Join(f"{group.name}-{'last' if group.shared else 'ilast-last'}"))
        await super()._heal_everything()

    async def _send_last(self) -> None:
        """One more message for every queue: all of them are alive."""
        process, producer = self._producers["p1"]
        for queue_id in range(self._script.queues):
            message = Message(TOPIC, b"last of %d" % queue_id, tag="a")
            number = next(self._numbers)
            self._sending.append(process.task(self._send_one(producer, message, queue_id, number)))

    async def _until_processed(self) -> None:
        most = max(self.levels.limit(group) for group in self._script.groups)
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
                if not await waiting(connection):
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

    def _open(self) -> bool:
        """Whether somebody has something left to do."""
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


def _levels(config: BrokerConfig) -> Levels:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    seconds = tuple(float(word[:-1]) * units[word[-1]] for word in config.message_delay_level.split())
    return Levels(seconds, config.max_retries)


def free_files(consumer: Any) -> None:
    """What the system does when a process dies: its locks on files are gone."""
    running = getattr(consumer, "_runtime", None)
    if running is not None and running._local is not None:
        running._local._file.close()
