from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.offline.verify import Report, Verification
from rmq.broker.store.directory import DataDirectory, StoreError

from ..builders import ORDERS, PAYMENTS, Opened, segment_files


@pytest.fixture
def store(memory_path: Path) -> Path:
    """A directory of several segments, stopped behind a checkpoint."""
    opened = Opened(memory_path, segment_bytes=900, entries_per_file=5)
    for i in range(6):
        opened.append(b"%d" % i, b"more", to=ORDERS if i % 3 else PAYMENTS, index_keys=[(f"k{i}",), (f"k{i}", "all")])
    opened.checkpoint()
    opened.close()
    return memory_path


def verify(path: Path) -> Report:
    return Verification(path).run()


def test_a_whole_directory_is_sound_and_left_as_it_is(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}

    report = verify(store)

    assert report.findings == []
    assert (report.messages, report.queues, report.torn) == (12, 2, 0)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_every_flipped_byte_of_log_indexes_and_checkpoint_is_found(store: Path) -> None:
    parts = {"commitlog": True, "consumequeue": False, "index": False, "checkpoint": False}
    for path in (path for path in store.rglob("*") if path.is_file()):
        part = path.relative_to(store).parts[0]
        if part not in parts:
            continue
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :])
            report = verify(store)
            assert report.findings, f"byte {at} of {path.relative_to(store)}"
            assert report.log_is_sound != parts[part], f"byte {at} of {path.relative_to(store)}"
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["consumequeue/orders@1/0/00000000000000000000", "index/00000000000000000000"])
def test_a_missing_index_file_is_found_and_is_no_harm_to_the_log(store: Path, name: str) -> None:
    (store / name).unlink()

    report = verify(store)

    assert report.findings
    assert report.log_is_sound


def test_a_missing_segment_is_found_as_damage(store: Path) -> None:
    segment_files(store)[1].unlink()

    assert not verify(store).log_is_sound


def test_a_torn_tail_is_reported_and_does_not_count_as_damage(store: Path) -> None:
    with open(segment_files(store)[-1], "ab") as file:
        file.write(b"torn")

    report = verify(store)

    assert (report.findings, report.torn) == ([], 4)


def test_a_directory_in_use_is_refused(store: Path) -> None:
    directory = DataDirectory(store)

    with pytest.raises(StoreError, match="a broker uses"):
        verify(store)
    directory.close()


def test_a_folder_without_a_log_is_refused(memory_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no log"):
        verify(memory_path)
