"""
The broker's machine dies at every moment of a group's life that fails, gives back, gives up and waits.

Between a send-back and its reply, between a dead letter and its commit, while delays are due: whatever of the log was
not synced is kept, lost or torn. The group begins again at what is left, and in the end nothing that was acknowledged
is lost, and nothing is given back, given up or delivered twice.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmq.broker.app import Broker
from rmq.client import Message, Producer
from rmq.wire.model import MessageQueue

from rigs.disk.crash import INTERRUPTED, KEPT, LOST, TORN, Crash, crashes, materialise
from rigs.disk.recording import Marked, Recording, RecordingFiles, memory_folder
from rigs.recovery.failing_group import FATES, GROUP, LEVELS, TOPIC, FailingGroup, wrong
from rigs.recovery.served import LateFlusher, settings
from simulation.broker import BEGAN, BEGAN_US
from simulation.history import Row

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

POLICIES = (KEPT, LOST, INTERRUPTED, TORN)
EXACT_S, LEVEL_S = 1.3, 1.0
GRACE_S = 2.0
EVERY = 4  # where there is no time for more: what is kept or torn at every fourth step, what is lost at each


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of starts have much to say."""
    with capture_logs():
        yield


def now() -> float:
    return asyncio.get_running_loop().time()


async def started(folder: Path, files: RecordingFiles | None = None, *, began: float = 0.0) -> Broker:
    """A broker on a folder, at whose start it is ``began`` on its clock."""
    config = settings(
        folder, message_delay_level=LEVELS, default_queues=1, grace_s=GRACE_S, ping_s=0.5, checkpoint_s=1.0
    )
    offset = began - now()
    broker = Broker(
        config, now=asyncio.get_running_loop().time, wall_us=lambda: BEGAN_US + int((now() + offset) * 1e6),
        flusher=LateFlusher, **({} if files is None else {"files": files}),
    )  # fmt: skip
    await broker.start()
    return broker


async def send_all(address: str, mark: Callable[[str], None]) -> None:
    async with Producer(address) as producer:
        for body in FATES:
            message = Message(TOPIC, body)
            if body == b"waits and dies":
                message = Message(TOPIC, body, delay_level=1)
            elif body == b"waits and fails":
                message = Message(TOPIC, body, deliver_at=BEGAN + timedelta(seconds=EXACT_S))
            await producer.send(message)
            mark(f"sent {body.decode()}")


async def record(folder: Path) -> Recording:
    """A whole life: everything is sent, fails as it should, and ends."""
    files = RecordingFiles(folder, now=asyncio.get_running_loop().time)
    broker = await started(folder, files)
    await send_all(broker.address, files.mark)
    rows = await FailingGroup(broker.address, now=now, promised=files.mark).run()
    assert wrong(rows) == []
    assert {row.body for row in rows} == set(FATES)
    recording = Recording(files.recording.start, list(files.recording.steps))
    await broker.stop()
    return recording


async def judge(crash: Crash, recording: Recording) -> list[str]:
    """Recover, let the group go on, and say what is wrong."""
    promised = [what for _, what in recording.marks(crash.prefix)]
    moment = recording.steps[crash.prefix - 1].moment if crash.prefix else 0.0
    with tempfile.TemporaryDirectory(prefix="rmq-retry-", dir=memory_folder()) as name:
        materialise(crash.image, Path(name))
        broker = await started(Path(name), began=moment)
        bad = [f"{what} was promised" for what in promised if not _kept(what, broker)]
        rows = await FailingGroup(broker.address, now=now).run()
        await broker.stop()
    bad += wrong(rows)
    bad += [f"{what} was promised" for what in promised if not _in_the_end(what, rows)]
    bad += [f"{row} is early" for row in rows if row.queue.topic == TOPIC and row.at < _due(row.body) - 1e-5]
    return [f"{crash}: {text}" for text in bad]


def _kept(what: str, broker: Broker) -> bool:
    """Progress that was acknowledged is there at once."""
    kind, _, rest = what.partition(" ")
    if kind != "commit":
        return True
    place, offset = rest.split()
    topic, _, queue_id = place.rpartition("/")
    return broker._ledger.offsets.get(GROUP, MessageQueue(topic, int(queue_id))) >= int(offset)


def _in_the_end(what: str, rows: list[Row]) -> bool:
    kind, _, body = what.partition(" ")
    return kind != "sent" or any(row.body == body.encode() and row.queue.topic == TOPIC for row in rows)


def _due(body: bytes) -> float:
    return {b"waits and dies": LEVEL_S, b"waits and fails": EXACT_S}.get(body, 0.0)


@pytest.mark.seeds(1)
async def test_a_crash_at_any_moment_loses_nothing_and_gives_nothing_back_or_up_twice(
    seed: int, request: pytest.FixtureRequest
) -> None:
    every = 1 if request.config.getoption("--chaos-seeds") else EVERY
    with tempfile.TemporaryDirectory(prefix="rmq-retry-", dir=memory_folder()) as name:
        recording = await record(Path(name))
    seen: set[tuple[bytes, int]] = set()
    violations: list[str] = []
    count = 0
    for crash in crashes(recording, torn_seeds=[seed], policies=POLICIES):
        if crash.prefix % every and crash.policy != LOST:
            continue
        if crash.prefix and isinstance(recording.steps[crash.prefix - 1].operation, Marked) and crash.policy != LOST:
            continue  # as after the step before, but for what is promised
        promised = len(recording.marks(crash.prefix))
        if (crash.digest, promised) in seen:
            continue
        seen.add((crash.digest, promised))
        count += 1
        violations += await judge(crash, recording)
        if len(violations) > 5:
            break

    print(f"{count} crashes in {len(recording.steps)} steps")
    assert violations == []
