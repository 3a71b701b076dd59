from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.store.changes import Started
from rmq.broker.store.read import ColdRead, DamagedRange
from rmq.wire.batch import batch as batches
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, PAYMENTS, Opened, segment_files
from .small_log import pull
from rigs.disk.faulty import FaultyFiles, flip

WANTED = [b"a", b"b", b"c", b"d", b"e", b"f"]


def build(path: Path, *, segment_bytes: int = 400) -> Path:
    """Three batches of orders/0 between those of another queue, checkpointed; the file of its index."""
    opened = Opened(path, segment_bytes=segment_bytes)
    opened.store.stage_changes([Started(opened.store.stores.current, 1)])
    opened.write()
    for bodies in ((b"a", b"b", b"c"), (b"d",), (b"e", b"f")):
        opened.append(b"other", to=PAYMENTS)
        opened.append(*bodies)
    opened.checkpoint()
    opened.store.abandon()
    (file,) = (path / "consumequeue" / "orders@1" / "0").iterdir()
    return file


def each(opened: Opened) -> list[bytes]:
    """Every message of orders/0, each pulled by its own offset."""
    return [pull(opened, offset)[0][0] for offset in range(opened.store.queue(ORDERS).readable)]


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
@pytest.mark.parametrize("cold", [False, True])
def test_a_flipped_byte_anywhere_in_an_index_costs_no_message(memory_path: Path, mask: int, cold: bool) -> None:
    file = build(memory_path)
    whole = file.read_bytes()
    files = FaultyFiles()
    files.cold = cold
    for at in range(len(whole)):
        flip(file, at, mask)

        opened = Opened(memory_path, files=files)
        assert opened.recovered.batches == 0
        assert each(opened) == WANTED, at
        opened.store.abandon()

        if at % 20 < 12:  # place and size; a wrong tag hash misleads nobody
            assert file.read_bytes() == whole, at
        file.write_bytes(whole)


@pytest.mark.parametrize("size", range(0, 114, 7))
def test_an_index_that_lost_its_end_is_written_again(memory_path: Path, size: int, logs: list[dict[str, Any]]) -> None:
    file = build(memory_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:size])
    opened = Opened(memory_path)

    assert each(opened) == WANTED

    assert file.read_bytes() == whole
    assert {entry["event"] for entry in logs} == {"index.repaired"}
    opened.close()


def test_an_index_file_that_is_gone_is_written_again(memory_path: Path) -> None:
    file = build(memory_path)
    whole = file.read_bytes()
    file.unlink()
    opened = Opened(memory_path)

    assert each(opened) == WANTED

    assert file.read_bytes() == whole
    opened.close()


def test_an_index_that_the_disk_cannot_read_costs_no_message(memory_path: Path) -> None:
    build(memory_path)
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    files.fail("read", "consumequeue", errno.EIO)
    files.fail("read_cached", "consumequeue", errno.EIO)

    assert each(opened) == WANTED
    opened.close()


def test_a_log_that_the_network_does_not_give_is_not_taken_for_damaged(memory_path: Path) -> None:
    """Readers would go on after messages that are there again a moment later."""
    build(memory_path).unlink()
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    files.fail("read", "commitlog", errno.ESTALE)

    with pytest.raises(OSError, match="Stale file handle"):
        pull(opened, 0)
    files.heal()
    assert each(opened) == WANTED
    opened.close()


def test_a_full_disk_does_not_prevent_reading_around_a_damaged_index(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    file = build(memory_path)
    file.unlink()
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    files.fail("write", "consumequeue", errno.ENOSPC)

    assert each(opened) == WANTED
    assert {entry["event"] for entry in logs if "repaired" in str(entry["event"])} == {"index.not_repaired"}
    opened.close()


def test_two_swapped_entries_mislead_no_reader(memory_path: Path) -> None:
    file = build(memory_path, segment_bytes=1 << 20)
    whole = file.read_bytes()
    file.write_bytes(whole[80:100] + whole[20:])  # the first entry now leads to the third batch

    opened = Opened(memory_path)

    assert each(opened) == WANTED
    assert file.read_bytes() == whole
    opened.close()


def test_an_entry_that_leads_to_a_batch_in_memory_misleads_no_reader(memory_path: Path) -> None:
    file = build(memory_path, segment_bytes=1 << 20)
    opened = Opened(memory_path)
    position = opened.append(b"x", b"y", b"z").physical_offset  # as large as the first
    whole = file.read_bytes()
    file.write_bytes(position.to_bytes(8, "big") + whole[8:])

    assert each(opened) == [*WANTED, b"x", b"y", b"z"]
    assert file.read_bytes() == whole
    opened.close()


def test_only_what_the_log_does_not_hold_is_damaged(memory_path: Path) -> None:
    file = build(memory_path, segment_bytes=1 << 20)
    opened = Opened(memory_path)
    (segment,) = segment_files(memory_path)
    at = segment.read_bytes().index(b"abc")
    flip(segment, at)
    flip(file, 0)

    for offset in range(3):
        with pytest.raises(DamagedRange) as failure:
            pull(opened, offset)
        assert failure.value.next_offset == 3
    assert pull(opened, 3) == ([b"d", b"e", b"f"], 6)
    opened.close()


def test_a_damaged_header_costs_its_own_batch_only(memory_path: Path) -> None:
    build(memory_path, segment_bytes=1 << 20)
    opened = Opened(memory_path)
    (segment,) = segment_files(memory_path)
    flip(segment, segment.read_bytes().index(b"abc") - 150)

    with pytest.raises(DamagedRange) as failure:
        pull(opened, 1)
    assert failure.value.next_offset == 3
    assert pull(opened, 3) == ([b"d", b"e", b"f"], 6)
    opened.close()


def test_the_walk_begins_in_the_segment_that_the_snapshots_name(memory_path: Path) -> None:
    opened = Opened(memory_path, segment_bytes=600)
    wanted = [b"%d" % i for i in range(40)]
    for body in wanted:
        opened.append(body)
    opened.checkpoint()
    opened.store.abandon()
    (file,) = (memory_path / "consumequeue" / "orders@1" / "0").iterdir()
    whole = file.read_bytes()
    file.unlink()
    files = FaultyFiles()
    opened = Opened(memory_path, files=files)
    assert len(segment_files(memory_path)) > 8
    files.done.clear()

    assert pull(opened, 35)[0] == wanted[35:]

    assert len({done.path for done in files.done if done.op == "open_to_read" and "commitlog" in done.path}) < 8
    assert opened.bodies() == wanted
    assert file.read_bytes() == whole
    opened.close()


def test_a_repair_reads_no_more_than_was_asked_for(memory_path: Path) -> None:
    file = build(memory_path, segment_bytes=1 << 20)
    file.unlink()
    opened = Opened(memory_path)

    found = opened.store.read(ORDERS, 0, 1)
    assert isinstance(found, ColdRead)
    found = found.run(opened.store.files)

    assert found.next_offset == 3
    assert len(batches.read_all(b"".join(found.buffers), stores=StoreIds(1))) == 1
    opened.close()
