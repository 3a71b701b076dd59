"""As many connections as wanted, and as the limit of open files allows."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.broker.process import FEWEST, RESERVED, cpu_s, possible_connections, raise_open_files, resident_bytes


def test_memory_in_use_is_the_second_number_in_pages(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("100 25 3 4 5 6 7\n")

    assert resident_bytes(statm) == 25 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("content", [None, "", "1", "1 x"])
def test_where_the_system_does_not_tell_it_is_unknown(tmp_path: Path, content: str | None) -> None:
    statm = tmp_path / "statm"
    if content is not None:
        statm.write_text(content)

    assert resident_bytes(statm) is None


def test_processor_time_never_falls() -> None:
    first = cpu_s()

    assert cpu_s() >= first >= 0.0


FRAMES = """
import resource, sys
from collections import deque
from rmq.broker.process import keep_freed_memory
assert sys.argv[1] == "off" or keep_freed_memory()
newest = deque(maxlen=32)
def receive(frames):
    for number in range(frames):
        newest.append(bytearray((1 << 20) + number * 997 % 60_000))
receive(100)  # the heap grows to what is needed at a time
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
receive(300)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(setting: str) -> int:
    """How many pages of memory the system had to provide while 300 frames of a megabyte came and went."""
    done = subprocess.run([sys.executable, "-c", FRAMES, setting], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_buffers_of_frames_are_not_made_of_new_memory_each_time() -> None:
    kept, given_back = faults("on"), faults("off")

    assert kept < 300 * 256 / 10
    assert kept < given_back


@pytest.mark.parametrize(
    ("limit", "wanted", "possible"),
    [
        (1000, 0, 1000 - RESERVED),
        (1000, 5, 5),
        (1000, 5000, 1000 - RESERVED),
        (110, 0, FEWEST),
        (110, 10, 10),
        (resource.RLIM_INFINITY, 0, sys.maxsize),
        (resource.RLIM_INFINITY, 7, 7),
    ],
)
def test_what_the_limit_leaves_is_the_bound(
    monkeypatch: pytest.MonkeyPatch, limit: int, wanted: int, possible: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda of: (limit, limit))

    assert possible_connections(wanted) == possible


def test_a_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda of: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda of, limits: given.append(limits))

    assert raise_open_files() == 20_000
    assert given == [(20_000, 20_000)]


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(of: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda of: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    assert raise_open_files() == 1024
