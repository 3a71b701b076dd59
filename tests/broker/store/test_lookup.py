"""Finding messages in a log that is damaged, cut or partly gone; offsets by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store import lookup
from rmq.broker.store.files import Files
from rmq.broker.store.key_index import Hit, IndexGap
from rmq.broker.store.lookup import LogReader, Query
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import Damaged, MessageNotFound
from rmq.wire.stores import StoreIds

from rigs.batches import BORN_AT, STAMP, STORE_ID, quick, stamped


class Log(NamedTuple):
    """Two segments of small batches: keys "a" and, in every third one, "b"."""

    reader: LogReader
    positions: list[int]
    paths: list[Path]

    def flip(self, position: int, byte: int) -> None:
        path = self.paths[-1] if position >= int(self.paths[-1].name) else self.paths[0]
        data = bytearray(path.read_bytes())
        data[position - int(path.name) + byte] ^= 0xFF
        path.write_bytes(data)

    def find(
        self, query: Query, *places: Hit | IndexGap, slow: bool = False
    ) -> tuple[list[tuple[int, list[int]]], int]:
        found, before = lookup.find(query, places, self.reader, lambda topic, gen: gen == 5, lambda: slow)
        return [(layout.parse_header(batch).physical_offset, indexes) for batch, indexes in found], before

    def get(self, position: int, index: int = 0) -> bytes:
        name = batches.message_id(STORE_ID, batches.handle(position, index))
        found = lookup.get(name, StoreIds(STORE_ID), self.reader, lambda topic, gen: gen == 5)
        return batches.read(found.batch, stores=StoreIds(STORE_ID)).pick(found.indexes)[0].body


def batch_at(position: int, number: int, *, generation: int = 5, kind: int = 0) -> bytes:
    keys = [("a",), ("a", "b") if number % 3 == 0 else ("c",)]
    rows = Rows([b"body %d" % number, b"second"], BORN_AT, index_keys=keys)
    by = STAMP._replace(physical_offset=position, stored_at=1000 + number, topic_gen=generation, kind=kind)
    return stamped(batches.encode("orders", 2, rows), by)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    positions, paths, at = [], [], 4096
    for part in (range(5), range(5, 9)):
        paths.append(tmp_path / f"{at:020d}")
        data = b""
        for number in part:
            positions.append(at)
            made = batch_at(at, number, generation=4 if number == 7 else 5)
            data += made
            at += len(made)
        paths[-1].write_bytes(data + bytes(64))
    with LogReader(Files(), [(int(path.name), path) for path in paths], at) as reader:
        yield Log(reader, positions, paths)


def test_a_message_is_found_by_its_key_and_by_its_index_keys(tmp_path: Path) -> None:
    rows = Rows([b"1", b"2", b"3"], BORN_AT, index_keys=[("a",), ("b",), ()], keys=["o 17", None, "b"])
    data = stamped(batches.encode("orders", 2, rows), STAMP._replace(physical_offset=4096, stored_at=1000, topic_gen=5))
    path = tmp_path / f"{4096:020d}"
    path.write_bytes(data)
    with LogReader(Files(), [(4096, path)], 4096 + len(data)) as reader:
        log = Log(reader, [4096], [path])
        for key, indexes in (("a", [0]), ("b", [2, 1]), ("o 17", [0]), ("o", [])):
            assert [found for _, found in log.find(Query(key), Hit(4096))[0]] == ([indexes] if indexes else [])


def test_segments_and_positions_of_a_log(log: Log) -> None:
    assert log.reader.ranges() == [(4096, log.positions[5]), (log.positions[5], log.reader.end)]
    assert log.reader.first == 4096
    assert log.reader.positions(4096, log.reader.end) == log.positions[::-1]
    assert [log.reader.head(at).stored_at for at in log.positions] == list(range(1000, 1009))  # type: ignore[union-attr]


def test_the_index_is_believed_only_as_far_as_the_key_itself_says_so(log: Log) -> None:
    hits = [Hit(at) for at in reversed(log.positions)]

    assert log.find(Query("b"), *hits) == ([(log.positions[i], [1]) for i in (6, 3, 0)], 0)
    assert log.find(Query("a"), Hit(log.positions[1] + 8), Hit(0), Hit(1 << 50)) == ([], 0)


def test_a_gap_is_looked_through_in_the_log(log: Log) -> None:
    found = log.find(
        Query("b"), Hit(log.positions[6]), IndexGap(log.positions[1], log.positions[5]), Hit(log.positions[0])
    )

    assert found == ([(log.positions[i], [1]) for i in (6, 3, 0)], 0)


@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_requests_that_are_always_out_of_time_come_to_the_end_of_a_gap(
    log: Log, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_GAP_BYTES", piece)
    query, found = Query("b"), []
    for _ in log.positions:
        end = min(query.below, log.reader.end)
        part, before = log.find(query, IndexGap(4096, end), slow=True)
        found += part
        if not before:
            break
        query = query._replace(before=before)

    assert not before
    assert found == [(log.positions[i], [1]) for i in (6, 3, 0)]


def test_a_dead_generation_of_a_topic_is_not_found(log: Log) -> None:
    assert log.find(Query("a"), Hit(log.positions[7])) == ([], 0)
    with pytest.raises(MessageNotFound):
        log.get(log.positions[7])


def test_damage_hides_only_what_it_damaged(log: Log) -> None:
    log.flip(log.positions[2], 150)
    log.flip(log.positions[3], 20)

    found, _ = log.find(Query("a"), IndexGap(4096, log.positions[5]))

    assert [at for at, _ in found] == [log.positions[i] for i in (4, 1, 0)]
    with pytest.raises(Damaged, match="lies in a damaged batch: the checksum"):
        log.get(log.positions[2])
    with pytest.raises(MessageNotFound):
        log.get(log.positions[3])  # not even where it began can be known


def test_a_segment_that_is_gone_reads_as_nothing(log: Log) -> None:
    log.paths[0].unlink()

    assert log.find(Query("b"), *(Hit(at) for at in reversed(log.positions))) == ([(log.positions[6], [1])], 0)
    assert log.reader.positions(4096, log.positions[5]) == []
    with pytest.raises(MessageNotFound):
        log.get(log.positions[0])


def test_what_may_not_be_read_yet_is_not_found(log: Log) -> None:
    shorter = LogReader(Files(), [(int(path.name), path) for path in log.paths], log.positions[6] + 8)

    with shorter:
        assert log._replace(reader=shorter).find(Query("b"), Hit(log.positions[6])) == ([], 0)
        assert shorter.head(log.positions[6]) is None
        assert shorter.positions(4096, 1 << 60) == log.positions[5::-1]


def test_what_lies_before_the_log_is_said_to_be_gone(log: Log) -> None:
    with pytest.raises(MessageNotFound, match="is no longer stored"):
        log.get(8)
    assert log.get(log.positions[4]) == b"body 4"


def test_state_batches_hold_no_messages(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(data := batch_at(0, 1, kind=layout.KIND_STATE))
    with LogReader(Files(), [(0, tmp_path / "0")], len(data)) as reader, pytest.raises(MessageNotFound):
        Log(reader, [], []).get(0)


def test_a_parked_message_is_found_by_its_id_and_not_by_its_key(tmp_path: Path) -> None:
    """By its key it will be found once, when it is delivered."""
    rows = Rows([b"later"], BORN_AT, index_keys=[("a",)])
    by = STAMP._replace(physical_offset=0, base_offset=BORN_AT + 1, topic_gen=5, kind=layout.KIND_PARKED)
    (tmp_path / "0").write_bytes(data := stamped(batches.encode("orders", 2, rows, delay_level=1), by))
    with LogReader(Files(), [(0, tmp_path / "0")], len(data)) as reader:
        log = Log(reader, [], [])

        assert log.get(0) == b"later"
        assert log.find(Query("a"), Hit(0)) == ([], 0)


def test_out_of_time_it_says_where_to_go_on(log: Log) -> None:
    found, before = log.find(Query("b"), Hit(log.positions[6]), Hit(log.positions[3]), slow=True)

    assert found == [(log.positions[6], [1])]
    assert Query("b", before=before).below == log.positions[3] + 8
    assert log.find(Query("b", before=before), Hit(log.positions[3])) == ([(log.positions[3], [1])], 0)


@quick
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=12), st.integers(-1, 40), st.integers(0, 9))
def test_the_first_offset_of_a_time_is_the_one_a_walk_finds(
    shape: list[tuple[int, int]], time: int, first: int
) -> None:
    times: list[int] = []
    now = 0
    for count, later in shape:
        now += later
        times += [now] * count
    first = min(first, len(times))

    found = lookup.offset_at(time, first, len(times), lambda offset: (offset, 1), lambda at: times[at])

    assert found == next((i for i in range(first, len(times)) if times[i] >= time), len(times))


@quick
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 40), st.sets(st.integers(0, 39)))
def test_damage_makes_the_first_offset_of_a_time_earlier_never_later(
    steps: list[int], time: int, damaged: set[int]
) -> None:
    times = [sum(steps[: i + 1]) for i in range(len(steps))]
    right = next((i for i in range(len(times)) if times[i] >= time), len(times))

    found = lookup.offset_at(
        time, 0, len(times), lambda at: None if at in damaged and at % 2 else (at, 1),
        lambda at: None if at in damaged else times[at],
    )  # fmt: skip

    assert found <= right
    assert damaged or found == right
