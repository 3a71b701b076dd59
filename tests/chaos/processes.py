"""
An ordered group of real processes under ``kill -9``, SIGSTOP beyond the lease, joins, stops and broker crashes.

    python tests/chaos/processes.py --seconds 600 --seed 7

Consumers are ``rmq-consume --orderly`` with a listener that notes its calls, each in a file of its own. When all is
healed and consumed, the files are judged by the same rules as the simulated runs (simulation/ordered.py).
Everything stays on this machine, every process is ended by its id, and all of it ends within a bounded time. `make
chaos` runs ten minutes of it, the tests twenty seconds.
"""

# ruff: noqa: E402  # as a script, this has to say first where its helpers are

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from rmq.client import Admin, RmqError
from rmq.runtime.clock import boottime
from rmq.wire.model import MessageQueue

from chaos.call_log import WHERE, read_all
from chaos.history import Done, history_of
from chaos.producing import ProducerProcess
from rigs.processes import BrokerProcess, Running, with_tests
from simulation.history import BrokerCrashed, Committed, Continued, Hindered, Killed, Sent, Stopped
from simulation.ordered import Verdict, judge

TOPIC, GROUP = "orders", "chaos"
QUEUES, KEYS, PAUSE_S = 4, 16, 0.2
LEASE_S, GRACE_S = 5.0, 3.0
BELIEVED_S = GRACE_S - 1.0
OPTIONS = ("-o", f"lock_lease_s={LEASE_S}", "-o", f"grace_s={GRACE_S}", "-o", "min_free_bytes=0", "-o", "flush=sync")
LEAST, MOST = 2, 4  # consumers at work
HEALING_S = 90.0
SETTLE_S = 60.0  # slow messages of a backlog come one after the other


# ---- the consumers' processes


class ConsumerProcess(Running):
    """A member that notes its calls; every second one has its listener in threads, and takes small batches."""

    def __init__(self, address: str, folder: Path, number: int) -> None:
        self.name = f"c{number}"
        self.go_on_at: float | None = None  # it is stopped until then
        self.calls = folder / f"{self.name}.calls"
        listener = "in_thread" if number % 2 else "on_loop"
        super().__init__(
            "rmq.cli.rmq_consume", "--broker", address, "--orderly", "--topic", TOPIC, "--group", GROUP,
            "--listener", f"chaos.call_log:{listener}", "-o", f"batch={1 + number % 3}",
            # A kill every second may hit the same slow message often: it is not the message that kills.
            "-o", "crash_limit=1000000",
            env=with_tests(**{WHERE: str(self.calls)}),
        )  # fmt: skip


class Fleet:
    """All processes, what was done to them, and what is done next."""

    def __init__(self, folder: Path, stack: ExitStack, chance: Random) -> None:
        self._folder, self._stack, self._chance = folder, stack, chance
        self.done: list[Done] = []
        self.broker = stack.enter_context(BrokerProcess(folder / "data", "127.0.0.1:0", *OPTIONS))
        self.address = self.broker.address
        self.consumers: list[ConsumerProcess] = []
        self.counts: dict[str, int] = {}
        self._started = 0
        self._bag: list[str] = []

    # What may happen

    def join(self) -> None:
        """A further consumer."""
        self._started += 1
        consumer = ConsumerProcess(self.address, self._folder, self._started)
        self.consumers.append(self._stack.enter_context(consumer))

    def _leave(self) -> None:
        consumer = self._chance.choice(self._at_work())
        self.consumers.remove(consumer)
        # One that is still loading Python ends as any program does then.
        allowed = (0,) if consumer.calls.exists() else (0, -signal.SIGTERM)
        assert consumer.stop() in allowed, (consumer.process.returncode, consumer.errors[-5:])

    def _kill(self) -> None:
        consumer = self._chance.choice(self.consumers)  # a stopped one may be hit as well
        self.consumers.remove(consumer)
        consumer.kill()
        self.done.append(Killed(boottime(), consumer.name))

    def _pause(self) -> None:
        """Shorter than any timeout."""
        self._stop(self._chance.uniform(0.2, BELIEVED_S / 2))

    def _outlast(self) -> None:
        """Beyond the lease."""
        self._stop(LEASE_S + self._chance.uniform(0.5, 2.0))

    def _stop(self, seconds: float) -> None:
        consumer = self._chance.choice(self._at_work())
        consumer.process.send_signal(signal.SIGSTOP)
        now = boottime()
        self.done.append(Stopped(now, consumer.name))
        consumer.go_on_at = now + seconds

    def _crash_broker(self) -> None:
        self.broker.kill()
        self.done.append(BrokerCrashed(boottime()))
        self.broker = self._stack.enter_context(BrokerProcess(self._folder / "data", self.address, *OPTIONS))

    # Which of it does

    def _at_work(self) -> list[ConsumerProcess]:
        return [consumer for consumer in self.consumers if consumer.go_on_at is None]

    def act(self) -> None:
        """Do one thing; each kind comes up before any comes up again. Blocks."""
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill, "clean stop": self._leave, "short stop": self._pause, "long stop": self._outlast,
            "broker crash": self._crash_broker,
        }  # fmt: skip
        while len(self._at_work()) <= LEAST or (len(self.consumers) < MOST and self._chance.random() < 0.3):
            self.join()
        if not self._bag:
            self._bag = self._chance.sample(sorted(kinds), len(kinds))
        kind = self._bag.pop()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        kinds[kind]()

    def go_on(self, *, all_of_them: bool = False) -> None:
        """Let those go on that were stopped long enough."""
        for consumer in self.consumers:
            if consumer.go_on_at is not None and (all_of_them or consumer.go_on_at <= boottime()):
                self.done.append(Continued(boottime(), consumer.name))
                consumer.process.send_signal(signal.SIGCONT)
                consumer.go_on_at = None

    def heal(self) -> None:
        """Nothing hinders from here on."""
        self.go_on(all_of_them=True)
        while len(self.consumers) < LEAST:
            self.join()
        self.done.append(Hindered(boottime(), boottime()))

    def check_alive(self) -> None:
        """Check that no member ended by itself or had an error of ours."""
        for consumer in self.consumers:
            assert consumer.process.poll() is None, f"{consumer.name} ended by itself: {consumer.errors[-15:]}"
            assert not any("Traceback" in line for line in consumer.errors), consumer.errors[-30:]


# ---- the run


async def run(seconds: float, seed: int) -> Verdict:
    """So many seconds of it, then healing and judgement; raises if not everything is consumed in the end."""
    with tempfile.TemporaryDirectory(prefix="rmq-chaos-") as name, ExitStack() as stack:
        folder = Path(name)
        chance = Random(seed)
        fleet = await asyncio.to_thread(Fleet, folder, stack, chance)
        producer = stack.enter_context(ProducerProcess(fleet.address, TOPIC, KEYS, PAUSE_S))
        watching = asyncio.create_task(_watch_progress(fleet))
        try:
            async with asyncio.timeout(seconds + HEALING_S + 30):
                await _act(fleet, chance, seconds)
                fleet.heal()
                await asyncio.to_thread(producer.wait_for, bool, "a message")
                assert await asyncio.to_thread(producer.stop) == 0, producer.errors[-5:]
                await _consumed(fleet)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        fleet.check_alive()
        for consumer in fleet.consumers:
            assert await asyncio.to_thread(consumer.stop) == 0, consumer.errors[-5:]
        sent = [
            Sent(one.at, f"{TOPIC}/{one.queue_id}", one.offset, f"{one.key} {one.number}".encode(), one.key, one.number)
            for one in producer.acknowledged()
        ]
        records = read_all(folder)
        verdict = judge(
            history_of(records, [*fleet.done, *sent], believed_s=BELIEVED_S), grace_s=GRACE_S, settle_s=SETTLE_S
        )
        what = ", ".join(f"{count} x {kind}" for kind, count in sorted(fleet.counts.items()))
        print(f"seed {seed}, {seconds:g} s: {len(sent)} messages, {what}\n{verdict}", flush=True)
        return verdict


async def _act(fleet: Fleet, chance: Random, seconds: float) -> None:
    until = boottime() + seconds
    for _ in range(LEAST + 1):
        fleet.join()
    next_at = boottime() + 2.0  # they start
    while (now := boottime()) < until:
        if now >= next_at:
            await asyncio.to_thread(fleet.act)
            next_at = boottime() + chance.uniform(0.3, 2.0)
        fleet.go_on()
        fleet.check_alive()
        await asyncio.sleep(0.05)


async def _watch_progress(fleet: Fleet) -> None:
    """Note what is committed, again and again, while the broker answers."""
    queues = [MessageQueue(TOPIC, queue_id) for queue_id in range(QUEUES)]
    while True:
        try:
            async with Admin(fleet.address) as admin:
                while True:
                    for queue, held in zip(queues, await admin.ranges(queues, GROUP), strict=True):
                        if held.committed >= 0:
                            fleet.done.append(Committed(boottime(), str(queue), held.committed))
                    await asyncio.sleep(0.2)
        except (RmqError, OSError):
            await asyncio.sleep(0.1)


async def _consumed(fleet: Fleet) -> None:
    """Wait until the group has committed all there is."""
    queues = [MessageQueue(TOPIC, queue_id) for queue_id in range(QUEUES)]
    unfinished: list[str] = []
    try:
        async with asyncio.timeout(HEALING_S), Admin(fleet.address) as admin:
            while True:
                ranges = zip(queues, await admin.ranges(queues, GROUP), strict=True)
                unfinished = [
                    f"{queue}: {held.committed} of {held.max_offset}"
                    for queue, held in ranges
                    if held.max_offset and held.committed != held.max_offset
                ]
                if not unfinished:
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        errors = [line for consumer in fleet.consumers for line in consumer.errors[-5:]]
        raise AssertionError(f"not consumed within {HEALING_S:g} s of the healing: {unfinished}; {errors}") from None


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="an ordered group of real processes under kills, stops and crashes")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    chosen = parser.parse_args()
    logging.getLogger("rmq").setLevel(logging.ERROR)  # that the broker is away is what this is about
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that every process is ended first
    seed = Random().randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}, {chosen.seconds:g} s", flush=True)
    if asyncio.run(run(chosen.seconds, seed)).violations:
        sys.exit("the rules of ordered consumption were broken: see above")


if __name__ == "__main__":
    main()
