"""The floor runs with processes of its own, counts right, and leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq.bench.floor import floor
from rmq.bench.options import Load
from rmq.bench.processes import BenchError

SMALL = Load(messages=1_205, size=40, batch=100, queues=2)
LARGER_THAN_ANY_DISK = Load(messages=1 << 50)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def children() -> set[str]:
    return {name for path in Path("/proc/self/task").glob("*/children") for name in path.read_text().split()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "take",
    [
        lambda: floor.produce(SMALL),
        lambda: floor.consume(SMALL),
        lambda: floor.socket_to_file(SMALL),
        lambda: floor.echo_ms(20),
    ],
    ids=["produce", "consume", "socket_to_file", "echo_ms"],
)
def test_a_figure_is_found_and_nothing_is_left(take: Callable[[], float], room: Path) -> None:
    before = children()

    assert take() > 0

    assert children() == before
    assert os.listdir(room) == []


def test_the_time_of_fdatasync_is_found_and_nothing_is_left(room: Path) -> None:
    assert floor.fdatasync_ms(100, 3) > 0

    assert os.listdir(room) == []


def test_the_floor_refuses_a_disk_without_room_before_writing(room: Path) -> None:
    with pytest.raises(BenchError, match=r"needs .* GB of disk"):
        floor.produce(LARGER_THAN_ANY_DISK)

    assert os.listdir(room) == []
