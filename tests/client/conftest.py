"""Fixtures for client tests: a fake broker, a producer on it, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .fake_broker import FakeBroker
from rigs.faulty_broker import FakeBroker as ThreadedBroker


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """A fake broker; afterwards no task of the test may be left."""
    async with FakeBroker() as fake:
        yield fake
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks were left behind: {left}"


@pytest.fixture
def fake_broker() -> Iterator[ThreadedBroker]:
    """A fake broker in a thread, for code that blocks."""
    with ThreadedBroker() as running:
        yield running


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder where syncing costs nothing, if the system has one."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)
