"""
The disk cannot read a part of the log while a broker starts, and reads it again later: nothing that was acknowledged is
lost meanwhile.

Every 4 KiB of a segment in turn, and the whole file: after a kill without a checkpoint, after a kill with one, and
after a clean stop. ``make test`` does that with one small segment, and with all segments of a short log; ``make chaos``
with longer logs and many seeds. Replay a seed that failed with ``--seed N``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from rmq.broker.config import BrokerConfig
from rmq.broker.store.scan import Unreadable
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message, Producer
from rmq.wire.model import MessageQueue

from rigs.disk.crash import KEPT, Image, crash, materialise
from rigs.disk.faulty import UnreadableFiles
from rigs.disk.recording import Recording, Renamed, memory_folder
from rigs.processes import BrokerProcess, Running, with_tests
from rigs.recovery.prover import record_in_memory
from rigs.recovery.served import LONG_S, NOON, Found, recover, serving, settings
from rigs.recovery.workload import Acknowledged, Plan

SECTOR = 4096
STOPS_ONLY = (("checkpoint_bytes", 1 << 30), ("checkpoint_s", LONG_S))  # a checkpoint at a clean stop and no other
ONE_SEGMENT = (("segment_bytes", 1 << 20), *STOPS_ONLY)
RETENTION = (("segment_bytes", 4096), ("retention_bytes", 12_000), ("checkpoint_bytes", 4096))
KILLED, KILLED_LATER, STOPPED = STATES = ("killed", "killed after a checkpoint", "stopped")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of starts have much to say."""
    with capture_logs():
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="rmq-unreadable-", dir=memory_folder()) as made:
        yield Path(made, "data")


def states(recording: Recording) -> dict[str, Image]:
    """Return the disk at the last acknowledgement of the first run, at that of the second, and at the end."""
    acknowledged = [i for i, what in recording.marks() if isinstance(what, Acknowledged)]
    operations = [step.operation for step in recording.steps]
    checkpoint = next(i for i, done in enumerate(operations) if isinstance(done, Renamed) and done.to == "checkpoint")
    first = max(i for i in acknowledged if i < checkpoint)
    places = (first + 1, acknowledged[-1] + 1, len(operations))
    return {state: crash(recording, place, KEPT).image for state, place in zip(STATES, places, strict=True)}


def sectors(size: int) -> list[range]:
    return [range(at, min(at + SECTOR, size)) for at in range(0, size, SECTOR)]


class Trial(NamedTuple):
    """A state of a data directory, and all that a broker on a sound disk gives back of it."""

    image: Image
    config: BrokerConfig
    found: Found

    @property
    def segments(self) -> dict[str, int]:
        """The segments and their sizes, oldest first."""
        logs = {name: content for name, content in self.image.items() if name.startswith("commitlog/")}
        return {name: len(content or b"") for name, content in sorted(logs.items())}

    async def run(self, file: str, unreadable: range, *, short: bool = True) -> bool:
        """Start while a part of a segment cannot be read, then on a sound disk; return whether the first start did."""
        data = self.config.data_path()
        shutil.rmtree(data)
        materialise(self.image, data)
        did_start = await self._start(file, unreadable, short=short)

        for name in self.segments:
            content = self.image[name]
            assert content is not None
            now = (data / name).read_bytes()
            assert now.startswith(content) if did_start else now == content
        assert not list((data / "quarantine").iterdir())
        again = await recover(self.config, drain=False)
        assert not again.found.differences(self.found)
        assert (again.odd, again.findings) == ([], [])
        return did_start

    async def _start(self, file: str, unreadable: range, *, short: bool) -> bool:
        files = UnreadableFiles(file, unreadable.start, unreadable.stop, short=short)
        try:
            async with serving(self.config, files=files, wall=lambda: NOON):
                return True
        except Unreadable as error:
            text = f"to {unreadable.stop} cannot be read (Input/output error), so nothing was changed: check the disk"
            assert f"{file}: bytes " in str(error)
            assert text in str(error)
            return False


async def trial(image: Image, folder: Path, plan: Plan) -> Trial:
    """Return a trial of a state, which a sound disk gives back as it is."""
    config = settings(folder, flush=plan.flush, **dict(plan.settings))
    materialise(image, folder)
    return Trial(image, config, (await recover(config, drain=False)).found)


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("short", [True, False], ids=["short reads", "failed reads"])
@pytest.mark.parametrize("state", STATES)
async def test_bytes_of_the_newest_segment_that_a_start_cannot_read_are_all_there_when_the_disk_is_sound(
    folder: Path, state: str, short: bool
) -> None:
    plan = Plan(7, rounds=30, settings=ONE_SEGMENT)
    trying = await trial(states(await record_in_memory(plan))[state], folder, plan)
    ((file, size),) = trying.segments.items()
    assert size > 8 * SECTOR
    assert all((trying.found.topics, trying.found.messages, trying.found.committed))

    started = [await trying.run(file, unreadable, short=short) for unreadable in [*sectors(size), range(size)]]

    if state == KILLED:
        assert not any(started)
    elif state == STOPPED:  # the checkpoint holds what the segment says, and nothing needs to be read again
        assert all(started)
    else:
        *parts, whole = started
        assert parts == sorted(parts, reverse=True), "it starts if the bytes lie before the checkpoint"
        assert parts[0] and not parts[-1] and not whole


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.seeds(1)
@pytest.mark.parametrize("how", [STOPS_ONLY, RETENTION], ids=["kept", "retention"])
async def test_bytes_of_any_segment_that_a_start_cannot_read_are_all_there_when_the_disk_is_sound(
    folder: Path, seed: int, how: tuple[tuple[str, int], ...], request: pytest.FixtureRequest
) -> None:
    rounds = 40 if request.config.getoption("--chaos-seeds") else 12
    plan = Plan(seed, rounds=rounds, settings=how)
    for state, image in states(await record_in_memory(plan)).items():
        trying = await trial(image, folder, plan)
        for file, size in trying.segments.items():
            for unreadable in [*sectors(size), range(size)]:
                try:
                    await trying.run(file, unreadable)
                except AssertionError as error:
                    error.add_note(f"seed {seed}, {state}: bytes {unreadable} of {file}")
                    raise
        shutil.rmtree(folder)


@pytest.mark.slow
def test_the_command_ends_with_75_when_its_data_directory_was_replaced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        data.rename(tmp_path / "moved")
        with BrokerProcess(data):
            assert broker.wait() == exit_codes.TEMPORARY
            assert broker.errors[-1].startswith(f"rmq-broker: {data} is not the data directory any more")


@pytest.mark.slow
async def test_the_command_ends_with_75_and_names_the_bytes_and_a_start_on_a_sound_disk_has_everything(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        async with Producer(broker.address) as producer, Admin(broker.address) as admin:
            await admin.create_topic("orders", queues=1)
            receipts = [await producer.send(Message("orders", b"%d" % i * 300)) for i in range(50)]
        broker.kill()
    (segment,) = (data / "commitlog").iterdir()
    stored = segment.read_bytes()

    arguments = (segment.name, "8192", "12288", "start", "--listen", "127.0.0.1:0", "--data-dir", str(data))
    with Running("rigs.disk.faulty", *arguments, env=with_tests()) as failing:
        assert failing.wait() == exit_codes.TEMPORARY
        (line,) = [line for line in failing.errors if "cannot be read" in line]
        assert f"{segment}: bytes 8192 to 12288 cannot be read (Input/output error), so nothing was changed" in line
        assert failing.lines == []
    assert segment.read_bytes() == stored
    assert not list((data / "quarantine").iterdir())

    with BrokerProcess(data) as broker:
        async with Admin(broker.address) as admin:
            (held,) = await admin.ranges([MessageQueue("orders", 0)])
    assert [receipt.queue_offset for receipt in receipts] == list(range(50))
    assert (held.min_offset, held.max_offset) == (0, 50)
