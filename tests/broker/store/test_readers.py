from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmq.broker.store.files import Files
from rmq.broker.store.segment import Readers

from ..builders import descriptors_limited_to


def make(path: Path, count: int) -> list[str]:
    for i in range(count):
        (path / f"{8 * i:020d}").write_bytes(b"%08d" % i)
    return [str(file) for file in sorted(path.iterdir())]


def read(readers: Readers, path: str) -> bytes:
    return os.pread(readers.fd(path), 8, 0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_any_number_of_files_is_read_through_a_few_descriptors(tmp_path: Path) -> None:
    readers, before = Readers(Files(), 3), descriptors()
    made = make(tmp_path, 10)

    for _ in range(2):
        assert [read(readers, path) for path in made] == [b"%08d" % i for i in range(10)]

    assert descriptors() == before + 3
    readers.close()
    assert descriptors() == before


def test_what_was_read_last_stays_open(tmp_path: Path) -> None:
    readers = Readers(Files(), 2)
    first, second, third = make(tmp_path, 3)
    for path in (first, second, first, third):
        read(readers, path)
    for path in (first, second, third):
        Path(path).unlink()  # only an open file can still be read

    assert read(readers, first) == b"00000000"
    assert read(readers, third) == b"00000002"
    with pytest.raises(FileNotFoundError):
        read(readers, second)
    readers.close()


def test_without_free_descriptors_it_goes_on_with_those_it_has(tmp_path: Path) -> None:
    readers = Readers(Files())
    first, second, third = make(tmp_path, 3)
    with descriptors_limited_to(0), pytest.raises(OSError) as failure:
        read(readers, first)
    assert failure.value.errno == errno.EMFILE

    read(readers, first)
    with descriptors_limited_to(0):
        assert [read(readers, path) for path in (second, third)] == [b"00000001", b"00000002"]

    assert len(readers) == 1
    readers.close()


def test_a_file_that_is_about_to_go_keeps_no_descriptor(tmp_path: Path) -> None:
    readers, before = Readers(Files()), descriptors()
    paths = make(tmp_path, 3)
    for path in paths:
        read(readers, path)

    readers.forget(paths[0])
    readers.forget("never read")

    assert (len(readers), descriptors()) == (2, before + 2)
    readers.close()
