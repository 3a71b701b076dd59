"""Fixtures for the consumer's tests: a scripted broker, and proof that nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rmq.consumer import Consumer, ConsumeStatus

from .fake_broker import FakeBroker
from .polling import pull

__all__ = ["pull"]


@pytest_asyncio.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """The test leaves no task behind."""
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"still running: {left}"


@pytest_asyncio.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


@pytest_asyncio.fixture
async def make(broker: FakeBroker) -> Callable[..., Consumer]:
    """Makes consumers of the scripted broker."""

    def consumer(listener: Any = None, *, group: str = "g", **settings: Any) -> Consumer:
        async def succeed(messages: Any, context: Any) -> ConsumeStatus:
            return ConsumeStatus.SUCCESS

        now = asyncio.get_running_loop().time
        return Consumer(
            "fake:1", group=group, listener=listener or succeed, connect=broker.connect, now=now, **settings
        )

    return consumer


@pytest.fixture
def member(make: Callable[..., Consumer], tmp_path: Path) -> Callable[..., Consumer]:
    """Makes broadcasting members; each ``instance`` has a directory below the test's."""

    def broadcasting(listener: Any = None, *, instance: str = "a", **settings: Any) -> Consumer:
        settings.setdefault("offsets_dir", str(tmp_path / instance))
        return make(listener, model="broadcasting", instance=instance, **settings)

    return broadcasting
