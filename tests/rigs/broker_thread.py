"""The real broker on a loop in a thread of its own, for code that blocks; a disk that syncs when the test lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from rigs.held_broker import HeldBroker

T = TypeVar("T")
DEADLINE_S = 30.0


class BrokerThread:
    """A broker for the length of a ``with`` block; keyword arguments are fields of its configuration."""

    def __init__(self, **settings: Any) -> None:
        self.broker = HeldBroker(**settings)
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.broker.address

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.broker.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.broker.__aexit__)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def do(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(function(*args), self._loop).result(DEADLINE_S)

    def hold(self) -> None:
        """Let nothing become durable, and so nothing be answered."""
        self._loop.call_soon_threadsafe(self.broker.hold)

    def release(self) -> None:
        """Let everything become durable."""
        self._loop.call_soon_threadsafe(self.broker.release)


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so that nobody tells us of."""
    patience = threading.Event()
    for _ in range(int(DEADLINE_S * 200)):
        if condition():
            return
        patience.wait(0.005)
    raise AssertionError(f"{what} did not come within {DEADLINE_S:g} s")
