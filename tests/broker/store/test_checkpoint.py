from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store import checkpoint as checkpoints
from rmq.broker.store.changes import Change, Committed, ProducerKnown, QueueBounds, SnapshotEnded, Started, TopicMade
from rmq.broker.store.checkpoint import BadCheckpoint, Checkpoint
from rmq.broker.store.commitlog import Moved
from rmq.broker.store.files import Files
from rmq.broker.store.read import DamagedRange
from rmq.broker.store.scan import Unreadable

from ..builders import ORDERS, PAYMENTS, Opened, segment_files
from .small_log import pull
from rigs.batches import quick
from rigs.disk.faulty import FaultyFiles, flip

CHANGES: list[Change] = [
    Started(7, 3, 5.0),
    TopicMade("orders", 1, 4, 4, 123),
    QueueBounds("orders", 1, 0, 2, 9, [1, 0, 3, 5]),
    Committed("g", "orders", 0, 5),
    ProducerKnown(0xA1, 2, 17, 1.5, b"\x00\xff" * 9),
    SnapshotEnded(800, 5, 1),
]
SAMPLE = Checkpoint(800, 1 << 63 | 5, 3, 1_700_000_000_000_000, (640, 0xDEADBEEF), CHANGES)

numbers = st.integers(0, (1 << 63) - 1)


@quick
@given(st.tuples(numbers, numbers, numbers, numbers, st.tuples(st.integers(-1, 1 << 62), numbers)), st.integers(0, 6))
def test_what_is_packed_is_unpacked(fields: tuple[int, int, int, int, tuple[int, int]], changes: int) -> None:
    checkpoint = Checkpoint(*fields, CHANGES[:changes])

    assert checkpoints.unpack(checkpoints.pack(checkpoint)) == checkpoint


@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_any_flipped_byte_is_refused(mask: int) -> None:
    packed = checkpoints.pack(SAMPLE)
    for at in range(len(packed)):
        with pytest.raises(BadCheckpoint):
            checkpoints.unpack(packed[:at] + bytes((packed[at] ^ mask,)) + packed[at + 1 :])


def test_any_shorter_or_longer_file_is_refused() -> None:
    packed = checkpoints.pack(SAMPLE)
    for size in range(len(packed)):
        with pytest.raises(BadCheckpoint):
            checkpoints.unpack(packed[:size])
    with pytest.raises(BadCheckpoint):
        checkpoints.unpack(packed + b"\0")


@pytest.mark.parametrize("op", ["open_to_read", "read"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EUCLEAN, errno.EMFILE])
def test_a_missing_file_is_none_and_one_that_cannot_be_read_is_unreadable(
    memory_path: Path, op: str, number: int
) -> None:
    assert checkpoints.load(Files(), memory_path) is None
    checkpoints.save(Files(), memory_path, SAMPLE)
    assert checkpoints.load(Files(), memory_path) == SAMPLE
    files = FaultyFiles()
    files.fail(op, "checkpoint", number)

    with pytest.raises(Unreadable, match=os.strerror(number)):
        checkpoints.load(files, memory_path)


def test_no_checkpoint_is_written_to_another_directory_of_the_same_name(memory_path: Path) -> None:
    data = memory_path / "data"
    opened = build(data)
    data.rename(memory_path / "moved")
    other = Opened(data)
    before = sorted(data.rglob("*"))

    with pytest.raises(Moved, match=f"{data} is not the data directory any more"):
        opened.checkpoint()

    assert sorted(data.rglob("*")) == before
    other.close()
    opened.store.abandon()


@pytest.mark.parametrize("op", ["open", "write", "sync", "rename"])
def test_where_saving_fails_the_old_one_stands(tmp_path: Path, op: str) -> None:
    checkpoints.save(Files(), tmp_path, SAMPLE)
    files = FaultyFiles()
    files.fail(op, "checkpoint", errno.ENOSPC, after=20)

    with pytest.raises(OSError):
        checkpoints.save(files, tmp_path, SAMPLE._replace(position=1600))

    assert checkpoints.load(Files(), tmp_path) == SAMPLE
    files.heal()
    checkpoints.save(files, tmp_path, SAMPLE._replace(position=1600))
    assert checkpoints.load(Files(), tmp_path) == SAMPLE._replace(position=1600)


def test_saving_is_durable_when_it_returns(tmp_path: Path) -> None:
    files = FaultyFiles()

    checkpoints.save(files, tmp_path, SAMPLE)

    assert [done.op for done in files.done] == ["open", "truncate", "write", "sync", "rename", "sync_directory"]


# ---- starts


def build(path: Path, *, files: Files | None = None) -> Opened:
    """A store whose first messages are in a checkpoint, and two more behind it."""
    opened = Opened(path, files=files)
    opened.store.stage_changes([Started(opened.store.stores.current, opened.store.log_epoch)])
    opened.write()
    opened.append(b"a", b"b")
    opened.append(b"p", to=PAYMENTS)
    opened.append(b"c")
    opened.checkpoint()
    opened.append(b"d")
    opened.append(b"q", to=PAYMENTS)
    return opened


def check(opened: Opened) -> None:
    assert opened.bodies(ORDERS) == [b"a", b"b", b"c", b"d"]
    assert opened.bodies(PAYMENTS) == [b"p", b"q"]


def test_a_start_after_a_clean_stop_reads_no_batch_and_opens_no_index(tmp_path: Path) -> None:
    opened = build(tmp_path)
    opened.checkpoint()
    opened.store.abandon()
    files = FaultyFiles()

    again = Opened(tmp_path, files=files)

    assert (again.recovered.batches, again.recovered.read_from) == (0, again.store.log.written)
    assert again.headers == []
    assert files.ops("consumequeue", "open", "open_to_read", "write", "unlink", "remove_tree") == []
    assert files.ops("commitlog", "write", "truncate") == []
    check(again)
    assert again.append(b"e").base_offset == 4
    again.close()


def test_a_start_after_a_crash_reads_only_what_lies_after_the_checkpoint(tmp_path: Path) -> None:
    opened = build(tmp_path)
    opened.store.abandon()

    again = Opened(tmp_path)

    assert (again.recovered.batches, again.recovered.messages) == (2, 2)
    assert [header.base_offset for header in again.headers] == [3, 1]
    check(again)
    again.close()


@pytest.mark.parametrize("gone", ["checkpoint", "index", "consumequeue", "config", "consumequeue/orders@1"])
def test_deleting_anything_but_the_log_loses_nothing(tmp_path: Path, gone: str) -> None:
    opened = build(tmp_path)
    store_id = opened.store.stores.current
    opened.checkpoint()
    opened.store.abandon()
    target = tmp_path / gone
    assert target.exists()
    shutil.rmtree(target) if target.is_dir() else target.unlink()

    again = Opened(tmp_path)

    check(again)
    assert again.store.stores.current == store_id
    assert again.append(b"e").base_offset == 4
    again.close()


def test_a_damaged_checkpoint_is_passed_over_and_said_so(tmp_path: Path, logs: list[dict[str, Any]]) -> None:
    build(tmp_path).store.abandon()
    flip(tmp_path / "checkpoint", 30)

    again = Opened(tmp_path)

    assert [entry["reason"] for entry in logs if entry["event"] == "checkpoint.unusable"] == [
        "its checksum does not match"
    ]
    assert again.recovered.batches == 5
    check(again)
    again.close()


def test_the_checkpoint_of_another_store_is_ignored(tmp_path: Path, logs: list[dict[str, Any]]) -> None:
    build(tmp_path / "one").store.abandon()
    other = build(tmp_path / "two")
    for i in range(100):
        other.append(b"%d" % i)
    other.checkpoint()
    other.store.abandon()
    shutil.copy(tmp_path / "two" / "checkpoint", tmp_path / "one" / "checkpoint")

    again = Opened(tmp_path / "one")

    assert [entry["reason"] for entry in logs if entry["event"] == "checkpoint.unusable"] == ["it is of another store"]
    check(again)
    again.close()


def test_a_checkpoint_of_another_history_of_the_log_is_ignored(tmp_path: Path, logs: list[dict[str, Any]]) -> None:
    opened = build(tmp_path)
    opened.store.abandon()
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    one, two = Opened(tmp_path), Opened(tmp_path / "copy")
    one.append(b"one")
    two.append(b"two")
    two.checkpoint()
    one.store.abandon()
    two.store.abandon()
    shutil.copy(tmp_path / "copy" / "checkpoint", tmp_path / "checkpoint")
    logs.clear()

    again = Opened(tmp_path)

    assert [entry["reason"] for entry in logs if entry["event"] == "checkpoint.unusable"] == ["it is of another log"]
    assert again.bodies() == [b"a", b"b", b"c", b"d", b"one"]
    again.close()


def test_a_log_that_ends_before_its_checkpoint_continues_after_it(tmp_path: Path) -> None:
    opened = build(tmp_path)
    end = opened.append(b"lost", b"too").physical_offset
    opened.checkpoint()
    position = opened.store.log.written
    opened.store.abandon()
    (segment,) = segment_files(tmp_path)
    segment.write_bytes(segment.read_bytes()[: end + 50])

    again = Opened(tmp_path)

    assert [(damage.position, damage.end) for damage in again.recovered.damages] == [(end + 50, position)]
    assert pull(again, 3) == ([b"d"], 4)
    for offset in (4, 5):
        with pytest.raises(DamagedRange) as failure:
            pull(again, offset)
        assert failure.value.next_offset == 6
    placed = again.append(b"new")
    assert placed.base_offset == 6
    assert placed.physical_offset >= position
    again.store.abandon()

    (tmp_path / "checkpoint").unlink()  # the log alone tells the same
    alone = Opened(tmp_path)
    assert pull(alone, 6) == ([b"new"], 7)
    with pytest.raises(DamagedRange):
        pull(alone, 4)
    assert alone.append(b"newer").base_offset == 7
    alone.close()


def test_messages_that_were_lost_with_the_only_ones_of_their_queue_stay_lost(tmp_path: Path) -> None:
    """The index of such a queue has no file before the damage is known."""
    opened = Opened(tmp_path)
    position = opened.append(b"only", b"two").physical_offset
    opened.append(b"p", to=PAYMENTS)
    opened.store.abandon()
    flip(segment_files(tmp_path)[0], position + 140)
    opened = Opened(tmp_path)
    opened.checkpoint()
    opened.store.abandon()

    again = Opened(tmp_path)

    assert again.recovered.batches == 0
    for offset in range(2):
        with pytest.raises(DamagedRange) as failure:
            pull(again, offset)
        assert failure.value.next_offset == 2
    assert again.append(b"next").base_offset == 2
    again.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        msgpack.packb(7),
        msgpack.packb([1, 2, 3]),
        msgpack.packb([0, 1, 1, 0, [-1, 0], b"changes, not pieces of them"]),
        msgpack.packb([0, 1, 1, 0, None, []]),
        msgpack.packb(["0", 1, 1, 0, [-1, 0], []]),
        msgpack.packb([0, 1, 1, 0, [-1, 0], [b"\xc1"]]),
    ],
)
def test_sound_bytes_of_another_shape_are_refused(content: bytes) -> None:
    """A version before or after this one may have written them; the log tells the same."""
    whole = checkpoints.pack(Checkpoint(0, 1, 1, 0, (-1, 0), []))
    magic = whole[:8]

    with pytest.raises(BadCheckpoint):
        checkpoints.unpack(magic + crc32(content).to_bytes(4, "big") + content)
