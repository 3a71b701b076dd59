"""
The log of a broker that does not run, asked as a broker would be.

How a log lies on the disk is the broker's business, in :mod:`rmq.broker.store.offline`, which answers the requests of
the wire. It is imported when a scan of a directory begins, and nowhere else: a client needs no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rmq.wire import ops
from rmq.wire.errors import LogTruncated
from rmq.wire.model import MessageQueue
from rmq.wire.ops import Op
from rmq.wire.tags import ALL

from .scan_plan import Manner, QueueRange


class StoppedLog(Protocol):
    """A data directory that nobody writes to while this is open."""

    @property
    def store_id(self) -> int:
        """The id of the store in it."""

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """The payload of what a broker on this log would answer."""

    def hint(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """What lets another process read ``[start, end)`` of a queue without reading the whole log first."""

    def pull(self, of: MessageQueue, offset: int, max_bytes: int, expression: str | None = None) -> ops.PullResult:
        """Batches from an offset on, as a broker answers a pull that does not wait."""

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
    from rmq.broker.store.offline import OfflineLog

    return OfflineLog(path, hint)


class StoppedSource:
    """The batches of a range, from a stopped log: a :class:`~rmq.client.pull_source.Source`."""

    def __init__(self, part: QueueRange, manner: Manner) -> None:
        self._part = part
        self._queue = MessageQueue(part.topic, part.queue_id)
        self._expression = None if manner.tags.strip() in ("", ALL) else manner.tags
        self._log: StoppedLog | None = None
        self._asked = (part.start, 0)

    def ask(self, at: int, max_bytes: int) -> None:
        """Note what is wanted next: it is read when it is needed, so that memory holds one answer."""
        self._asked = at, max_bytes

    def answer(self) -> ops.PullResult:
        """
        Read what was asked for.

        Raises:
            RmqError: a broker uses the directory, or it holds another store than when the scan was planned.
        """
        if self._log is None:
            self._log = open_log(self._part.path, self._part.hint)
            if self._log.store_id != self._part.store_id:
                raise LogTruncated("the directory holds another store than when the scan was planned: read it again")
        return self._log.pull(self._queue, *self._asked, self._expression)

    def made_again(self) -> bool:
        """Never: what was planned is read, also if the topic was deleted since, as long as the log holds it."""
        return False

    def close(self) -> None:
        """Let a broker have the directory again."""
        if self._log is not None:
            self._log.close()
            self._log = None
