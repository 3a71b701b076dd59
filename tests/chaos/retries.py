"""
A concurrent group of real processes whose messages fail and wait, under ``kill -9`` of the broker and of its members.

    python tests/chaos/retries.py --seconds 120 --seed 7

Members are ``rmq-consume --concurrent`` with a listener that fails at some messages and notes its calls, each in a file
of its own. When all is processed, given up and committed, the files and the log are judged by the same rules as the
simulated runs (simulation/concurrent.py). Everything stays on this machine, every process is ended by its id, and all
of it ends within a bounded time. ``make chaos`` runs two minutes of it, the tests a few seconds.
"""

# ruff: noqa: E402  # as a script, this has to say first where its helpers are

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parent.parent
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from rmq.client import Admin, Message, Producer
from rmq.engine.native.connection import Connection
from rmq.wire.errors import RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Range

from chaos.call_log import WHERE
from chaos.retry_log import now, read_calls
from rigs.processes import BrokerProcess, Running, with_tests
from simulation.broker import read_rows, waiting
from simulation.groups import CONCURRENT, TOPIC, Group, Levels
from simulation.history import (
    Born,
    BrokerCrashed,
    BrokerDown,
    BrokerUp,
    Committed,
    Event,
    Hindered,
    Killed,
    Row,
    Sent,
)
from simulation.listeners import body_of
from simulation.verdict import Verdict, judge

QUEUES = 3
GROUP = Group("g", CONCURRENT, (("max_attempts", 3), ("send_back_retry_s", 1.0), ("batch", 4)))
LEVELS = Levels((1.0, 2.0, 1.0, 2.0), 16, late_s=3.0, settle_s=20.0)  # the machine has other things to do
OPTIONS = ("-o", "message_delay_level=1s 2s 1s 2s", "-o", "grace_s=3", "-o", f"default_queues={QUEUES}")
PAUSE_S = 0.01  # between two messages
HEALING_S = 40.0


class Member(Running):
    """A member that notes its calls."""

    def __init__(self, address: str, folder: Path, number: int) -> None:
        self.name = f"g-{number}"
        self.calls = folder / f"{self.name}.calls"
        options = [part for name, value in GROUP.settings for part in ("-o", f"{name}={value}")]
        super().__init__(
            "rmq.cli.rmq_consume", "--broker", address, "--concurrent", "--topic", TOPIC, "--group", GROUP.name,
            "--listener", "chaos.retry_log:on_messages", *options,
            env=with_tests(**{WHERE: str(self.calls)}),
        )  # fmt: skip


class Fleet:
    """The processes, and what was done to them."""

    def __init__(self, folder: Path, stack: ExitStack, chance: Random) -> None:
        self.folder, self._stack, self._chance = folder, stack, chance
        self.history: list[Event] = []
        self.broker = stack.enter_context(BrokerProcess(folder / "data", "127.0.0.1:0", *OPTIONS))
        self.address = self.broker.address
        self.members: list[Member] = []
        self.crashes = self.kills = 0
        self._started = 0
        for _ in range(2):
            self.join()

    def join(self) -> None:
        """A further member."""
        self._started += 1
        member = Member(self.address, self.folder, self._started)
        self.history.append(Born(now(), member.name, group=GROUP.name))
        self.members.append(self._stack.enter_context(member))

    def crash(self) -> None:
        """``kill -9`` of the broker, which comes back. Blocks."""
        self.crashes += 1
        self.history += [BrokerDown(now()), BrokerCrashed(now())]
        self.broker.kill()
        self.broker = self._stack.enter_context(BrokerProcess(self.folder / "data", self.address, *OPTIONS))
        self.history.append(BrokerUp(now()))

    def kill(self) -> None:
        """``kill -9`` of a member; another comes. Blocks."""
        self.kills += 1
        member = self.members.pop(self._chance.randrange(len(self.members)))
        self.history.append(Killed(now(), member.name))
        member.kill()
        self.join()

    def check_alive(self) -> None:
        """Check that no member ended by itself or had an error of ours."""
        for member in self.members:
            assert member.process.poll() is None, f"{member.name} ended by itself: {member.errors[-15:]}"
            assert not any("Traceback" in line for line in member.errors), member.errors[-30:]


async def produce(fleet: Fleet, seconds: float, least: int) -> None:
    """One message after the other, ``least`` or more; some fail, some wait, some are given up."""
    number, until = 0, now() + seconds
    async with Producer(fleet.address, delivery_timeout_s=60.0) as producer:
        while now() < until or number < least:
            number += 1
            bad = 1 if number % 5 == 1 else 99 if number % 11 == 5 else 0
            body = body_of(bad, f"{'dead' if number % 33 == 5 else 'p'}/{number}", 0)
            level, delay_s = (1, None) if number % 4 == 0 else (0, 0.7 if number % 8 == 2 else None)
            sent_at = now()
            receipt = await producer.send(Message(TOPIC, body, delay_level=level, delay_s=delay_s))
            waits_s = LEVELS.seconds[0] if level else delay_s or 0.0
            queue = MessageQueue(TOPIC, receipt.queue_id)
            fleet.history.append(
                Sent(now(), queue, receipt.queue_offset, body, f"p{number}", number, None, sent_at, waits_s)
            )
            await asyncio.sleep(PAUSE_S)


async def progress(admin: Admin) -> list[tuple[MessageQueue, Range]]:
    """How far the group is in its queues."""
    there = {one.topic: len(one.queues) for one in await admin.list_topics()}
    queues = [MessageQueue(topic, i) for topic in (TOPIC, GROUP.retries) for i in range(there.get(topic, 0))]
    return list(zip(queues, await admin.ranges(queues, GROUP.name), strict=True))


async def settled(fleet: Fleet) -> list[Row]:
    """Wait until everything is processed or given up, nothing waits, and all is committed; what the log holds then."""
    unfinished: list[str] = []
    left = -1
    try:
        async with asyncio.timeout(HEALING_S), Admin(fleet.address) as admin:
            connection = Connection(fleet.address, client="watcher")
            await connection.open(timeout_s=10)
            try:
                before: list[tuple[MessageQueue, int]] = []
                while True:
                    ranges = await progress(admin)
                    unfinished = [f"{queue}: {one.committed} of {one.max_offset}" for queue, one in ranges]
                    ends = [(queue, one.max_offset) for queue, one in ranges if one.committed == one.max_offset]
                    # What waits is asked for between two looks at the queues: what fails meanwhile is in one of them.
                    if len(ends) == len(ranges) and ends == before and not left:
                        fleet.history += [Committed(now(), queue, end, group=GROUP.name) for queue, end in ends]
                        return await read_rows(connection, [TOPIC, GROUP.retries, GROUP.dead])
                    before, left = ends, await waiting(connection)
                    await asyncio.sleep(0.1)
            finally:
                await connection.close()
    except TimeoutError:
        errors = [line for member in fleet.members for line in member.errors[-5:]]
        raise AssertionError(f"not settled within {HEALING_S:g} s of the healing: {unfinished}; {errors}") from None


async def run(seconds: float, seed: int, *, least: int = 0, every: tuple[float, float] = (1.0, 3.0)) -> Verdict:
    """So many seconds of it, then healing and judgement; raises if not everything is over in the end."""
    with tempfile.TemporaryDirectory(prefix="rmq-retries-") as name, ExitStack() as stack:
        chance = Random(seed)
        fleet = await asyncio.to_thread(Fleet, Path(name), stack, chance)
        producing = asyncio.create_task(produce(fleet, seconds, least))
        while not producing.done():
            await asyncio.wait([producing], timeout=chance.uniform(*every))
            if not producing.done():
                await asyncio.to_thread(fleet.kill if fleet.crashes and chance.random() < 0.3 else fleet.crash)
                fleet.check_alive()
        await producing
        fleet.history.append(Hindered(now(), now()))
        rows = await settled(fleet)
        fleet.check_alive()
        for member in fleet.members:
            assert await asyncio.to_thread(member.stop) == 0, member.errors[-5:]
        calls = read_calls(sorted(fleet.folder.glob("*.calls")), GROUP.name)
        history = sorted([*fleet.history, *calls], key=lambda event: event.at)
        verdict = judge(history, rows, (GROUP,), LEVELS, grace_s=3.0)
        sent = sum(isinstance(event, Sent) for event in history)
        what = f"{fleet.crashes} broker crashes, {fleet.kills} kills, {verdict.retried} retries"
        became = f"{verdict.dead} dead letters, {verdict.again} again"
        print(f"seed {seed}, {seconds:g} s: {sent} messages, {what}, {became}\n{verdict}", flush=True)
        return verdict


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="a concurrent group of real processes under kills of its broker")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    chosen = parser.parse_args()
    logging.getLogger("rmq").setLevel(logging.ERROR)  # that the broker is away is what this is about
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that every process is ended first
    seed = Random().randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}, {chosen.seconds:g} s", flush=True)
    try:
        verdict = asyncio.run(run(chosen.seconds, seed))
    except RmqError as error:
        sys.exit(f"the producer failed: {error}")
    if verdict.violations:
        sys.exit("the rules of concurrent consumption were broken: see above")


if __name__ == "__main__":
    main()
