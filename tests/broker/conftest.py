"""Fixtures for the broker's tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmq.testing.broker import InMemoryBroker


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What the broker logged, instead of printing it."""
    with capture_logs() as entries:
        yield entries


@pytest.fixture(autouse=True)
def epochs_without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a clock is behind, as those of many tests, log epochs count by one."""
    monkeypatch.setattr("rmq.broker.store.history.EPOCH_SPREAD", 1)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder where syncing costs nothing, if the system has one."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    """The real broker, on the loop and the clock of the test."""
    async with InMemoryBroker() as broker:
        yield broker
