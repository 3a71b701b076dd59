"""
The log of a broker that does not run, asked as a broker would be.

How a log lies on the disk is the broker's business, in :mod:`rmq.broker.offline.reader`, which answers the requests of
the wire. It is imported when a scan of a directory begins, and nowhere else: a client needs no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds


class StoppedLog(Protocol):
    """A data directory that nobody writes to while this is open."""

    @property
    def stores(self) -> StoreIds:
        """The ids of the store in it."""

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """The payload of what a broker on this log would answer."""

    def hint(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """What lets another process read ``[start, end)`` of a queue without reading the whole log first."""

    def close(self) -> None:
        """Let a broker have the directory again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_log(path: str, hint: bytes = b"") -> StoppedLog:
    """
    Open a data directory or a backup of one; with a hint, only the queue that it is for can be read.

    Raises:
        RmqError: there is no log, or a broker uses it.
    """
    from rmq.broker.offline.reader import OfflineLog

    return OfflineLog(path, hint)
