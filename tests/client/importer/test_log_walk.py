"""A walk over the log: all records, every kind of damage with its place, and where a log ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.client.importer.log_walk import End, LogDamage
from rmq.client.importer.survey import RocketMQStore
from rmq.wire.rocketmq.record import BadRecord, Record

from rigs.rocketmq_store import StoreBuilder

Change = Callable[[bytearray], None]
SIZE = 1024


def build(root: Path, count: int = 30, *, clean: bool = True, indexed: bool = True, spare: int = 0) -> list[int]:
    """A store of ``count`` messages in three queues; their physical offsets."""
    with StoreBuilder(root, file_size=SIZE, clean=clean) as store:
        store.spare_files = spare
        return [store.put("t", n % 3, b"body %03d" % n, tags="a", indexed=indexed) for n in range(count)]


def walk(root: Path) -> tuple[list[Record], list[LogDamage], End]:
    *found, end = RocketMQStore(root).walk()
    assert isinstance(end, End)
    return (
        [one for one in found if isinstance(one, Record)],
        [one for one in found if isinstance(one, LogDamage)],
        end,
    )


def change(root: Path, position: int, new: bytes) -> None:
    path = root / "commitlog" / f"{position // SIZE * SIZE:020}"
    data = bytearray(path.read_bytes())
    data[position % SIZE : position % SIZE + len(new)] = new
    path.write_bytes(data)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("indexed", [True, False])
def test_every_record_is_found_in_its_order(tmp_path: Path, clean: bool, spare: int, indexed: bool) -> None:
    places = build(tmp_path, clean=clean, spare=spare, indexed=indexed)

    records, damage, end = walk(tmp_path)

    assert [record.physical_offset for record in records] == places
    assert damage == []
    assert end == End(places[-1] + records[-1].size, 0)


def test_an_empty_log_ends_at_its_beginning(tmp_path: Path) -> None:
    build(tmp_path, 0)

    assert walk(tmp_path) == ([], [], End(0, 0))


@pytest.mark.parametrize(
    ("at", "new", "text"),
    [
        (88, b"B", "the record has a body that does not match its checksum"),
        (0, struct.pack(">i", 5000), "the record says that it has 5000 bytes, and the file has"),
        (0, struct.pack(">i", -1), "the record says that it has -1 bytes"),
        (0, struct.pack(">i", 99), "the record has a"),
        (4, b"\0", "the record has the magic 00A320A7 instead of DAA320A7"),
        (28, struct.pack(">q", 77), "the record says that it lies at 77 instead of"),
        (0, bytes(8), "the record was never written"),
        (96, b"\xff", "the record has a field of"),
    ],
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_bad_record_is_told_with_its_place_and_the_walk_goes_on_behind_it(
    tmp_path: Path, at: int, new: bytes, text: str, clean: bool
) -> None:
    places = build(tmp_path, clean=clean)
    change(tmp_path, places[13] + at, new)

    records, (damage,), _ = walk(tmp_path)

    assert [record.physical_offset for record in records] == places[:13] + places[14:]
    assert damage.text.startswith(text)
    assert damage.physical_offset == places[13]
    assert str(damage).startswith(f"{places[13] // SIZE * SIZE:020} at {places[13] % SIZE}: the record ")
    assert damage.lost == (("t", 1, 4),)


def test_without_consume_queues_the_walk_goes_on_at_the_next_file(tmp_path: Path) -> None:
    places = build(tmp_path, indexed=False)
    change(tmp_path, places[1] + 88, b"B")

    records, (damage,), _ = walk(tmp_path)

    assert [record.physical_offset for record in records] == places[:1] + [at for at in places if at >= SIZE]
    assert damage.lost == ()


def test_a_blank_record_that_does_not_close_its_file_is_damage(tmp_path: Path) -> None:
    places = build(tmp_path)
    blank = max(at for at in places if at < SIZE) + (places[1] - places[0])
    change(tmp_path, blank, struct.pack(">i", 8))

    records, (damage,), _ = walk(tmp_path)

    assert len(records) == len(places)
    assert damage.text.startswith("the record closes the file for 8 bytes, and")


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_record_torn_is_the_end_of_a_crash_and_damage_otherwise(tmp_path: Path, clean: bool) -> None:
    places = build(tmp_path, clean=clean)
    change(tmp_path, places[-1] + 88, b"B")

    records, damage, end = walk(tmp_path)

    assert len(records) == len(places) - 1
    if clean:
        assert [one.physical_offset for one in damage] == [places[-1]]
    else:
        assert damage == []
        assert end.physical_offset == places[-1]
        assert end.torn_bytes > 90


@pytest.mark.parametrize("older", [True, False])
def test_a_whole_record_behind_a_torn_one_is_damage_unless_it_is_older(tmp_path: Path, older: bool) -> None:
    with StoreBuilder(tmp_path, file_size=SIZE, clean=False) as store:
        store.put("t", 0, b"sound", stored_at=5)
        torn = store.put("t", 0, b"torn", stored_at=5, indexed=False)
        behind = store.put("t", 0, b"behind", stored_at=4 if older else 5, indexed=False)
    change(tmp_path, torn + 88, b"T")

    records, damage, end = walk(tmp_path)

    assert [record.body for record in records] == [b"sound"]
    assert [one.physical_offset for one in damage] == ([] if older else [torn])
    assert (end.physical_offset == torn) is older
    assert not older or torn + end.torn_bytes > behind


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 7, 50, 105])
def test_a_log_of_one_file_that_was_cut_is_damage_after_a_crash_too(tmp_path: Path, clean: bool, left: int) -> None:
    places = build(tmp_path, 5, clean=clean)
    (file,) = (tmp_path / "commitlog").iterdir()
    file.write_bytes(file.read_bytes()[: places[3] + left])

    records, damage, _ = walk(tmp_path)

    assert len(records) == 3
    assert len(damage) == 1


@pytest.mark.parametrize("indexed", [True, False])
def test_bytes_that_no_queue_knows_behind_the_end_of_a_clean_store(tmp_path: Path, indexed: bool) -> None:
    places = build(tmp_path, indexed=indexed)
    behind = places[-1] + 110
    change(tmp_path, behind, b"left over")

    records, damage, _ = walk(tmp_path)

    assert len(records) == len(places)
    assert len(damage) == (0 if indexed else 1), "without a consume queue nothing shows that it is a left-over"


def test_a_file_that_is_missing_a_file_that_is_short_and_one_that_is_empty(tmp_path: Path) -> None:
    places = build(tmp_path)
    files = sorted((tmp_path / "commitlog").iterdir())
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:300])

    records, damage, _ = walk(tmp_path)

    texts = [one.text for one in damage]
    assert texts[0] == f"lies behind a gap: the file before it ends at {SIZE}"
    assert texts[1] == f"has 300 bytes, and the others have {SIZE}"
    kept = [at for at in places if at < SIZE or at >= 3 * SIZE or 2 * SIZE <= at < 2 * SIZE + 200]
    assert [record.physical_offset for record in records] == kept


def test_a_record_is_read_at_its_place(tmp_path: Path) -> None:
    places = build(tmp_path)
    store = RocketMQStore(tmp_path).walk()

    assert store.record_at(places[7]).body == b"body 007"
    for position, size in ((places[7] + 1, 0), (1 << 30, 0), (places[7], 5)):
        with pytest.raises(BadRecord):
            store.record_at(position, size)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 29), st.integers(0, 105), st.integers(1, 255), st.booleans())
def test_a_flipped_byte_never_costs_more_than_its_record(
    tmp_path_factory: pytest.TempPathFactory, which: int, at: int, flip: int, clean: bool
) -> None:
    root = tmp_path_factory.mktemp("flip")
    places = build(root, clean=clean)
    path = root / "commitlog" / f"{places[which] // SIZE * SIZE:020}"
    change(root, places[which] + at, bytes([path.read_bytes()[(places[which] + at) % SIZE] ^ flip]))

    records, damage, end = walk(root)

    found = [record.physical_offset for record in records]
    assert set(places) - set(found) <= {places[which]}
    if places[which] not in found:
        torn = which == len(places) - 1 and not clean
        assert [one.physical_offset for one in damage] == ([] if torn else [places[which]])
        assert not torn or end.torn_bytes
