"""A directory or a pipe that has the name of a segment or an index file: one clear report, and nothing is changed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.offline.reader import OfflineLog
from rmq.broker.offline.verify import Verification
from rmq.broker.store.changes import Started
from rmq.broker.store.directory import StoreError

from ..builders import Opened, segment_files
from rigs.disk.faulty import FaultyFiles

USERS: dict[str, Callable[[Path], object]] = {
    "a start": Opened,
    "verify": lambda path: Verification(path).run(),
    "a scan": lambda path: OfflineLog(str(path)),
}


def build(path: Path) -> None:
    """Several segments, checkpointed, with keys."""
    opened = Opened(path, segment_bytes=400)
    opened.store.stage_changes([Started(opened.store.stores.current, 1)])
    opened.write()
    for i in range(8):
        opened.append(b"%d" % i, index_keys=[[f"k{i}"]])
    opened.checkpoint()
    opened.close()


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a directory", "a pipe"])
@pytest.mark.parametrize("user", USERS)
def test_what_is_no_file_in_place_of_a_segment_is_refused_in_one_sentence(
    memory_path: Path, user: str, make: Callable[[Path], None], which: int
) -> None:
    build(memory_path)
    path = segment_files(memory_path)[which]
    path.unlink()
    make(path)
    before = {file: file.read_bytes() for file in segment_files(memory_path) if file.is_file()}

    sentence = f"^{path} is a directory or a pipe, not a segment of the log: move it away; if a segment had this name"
    with pytest.raises(StoreError, match=sentence):
        USERS[user](memory_path)

    assert {file: file.read_bytes() for file in segment_files(memory_path) if file.is_file()} == before
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    Opened(memory_path).close()  # the refused one let go of the directory


def test_a_segment_that_cannot_be_begun_is_logged_once_and_the_old_one_grows_on(
    memory_path: Path, logs: list[dict[str, Any]]
) -> None:
    files = FaultyFiles()
    opened = Opened(memory_path, segment_bytes=400, files=files)
    files.fail("open", "commitlog", errno.EISDIR)
    bodies = [b"%d" % i * 100 for i in range(9)]

    for body in bodies:
        opened.append(body)

    assert opened.bodies() == bodies
    assert len(segment_files(memory_path)) == 1
    assert [entry["event"] for entry in logs] == ["log.roll_failed"]
    files.heal()
    opened.append(b"more")
    assert len(segment_files(memory_path)) == 2
    opened.close()


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_an_index_that_cannot_be_read_is_one_finding_and_the_log_is_sound(memory_path: Path, folder: str) -> None:
    build(memory_path)
    paths = [path for path in (memory_path / folder).rglob("*") if path.is_file()]
    for path in paths:
        path.unlink()
        path.mkdir()

    report = Verification(memory_path).run()

    assert report.log_is_sound
    assert sorted(finding.place for finding in report.findings) == sorted(map(str, paths))
    assert {finding.text for finding in report.findings} == {"it cannot be read: Is a directory"}
