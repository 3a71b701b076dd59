"""
Where the batches of a scan come from: pulls of one queue, each asked for before its answer is needed.

:class:`Source` is what :mod:`rmq.client.scan.reader` reads from: :class:`BrokerSource` is a broker over TCP, which
reads the
next answer while the last one is being converted; that one waits in the buffers of the socket. :class:`LogSource` is
the log of a broker that does not run.

The log of a broker that does not run, asked as a broker would be.

How a log lies on the disk is the broker's business, in :mod:`rmq.broker.offline.reader`, which answers the requests of
the wire. It is imported when a scan of a directory begins, and nowhere else: a client needs no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from rmq.client.scan.ranges import Manner, QueueRange
from rmq.wire.batch.tags import ALL
from rmq.wire.errors import ConnectionLost, Fatal, LogTruncated, TopicNotFound
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from .blocking import BlockingConnection


class Source(Protocol):
    """Answers of one queue, asked for one at a time."""

    def ask(self, at: int, max_bytes: int) -> None:
        """Ask for batches from an offset on."""

    def answer(self) -> ops.PullResult:
        """What was asked for; its status says whether it could be had. Raises RmqError where nothing is said."""

    def made_again(self) -> bool:
        """Whether the topic is no longer the one that the scan was planned for."""

    def close(self) -> None:
        """End what was opened; may be called again."""


def source_of(part: QueueRange, manner: Manner) -> Source:
    """What a range is read from."""
    return LogSource(part, manner) if part.path else BrokerSource(part, manner)


class BrokerSource:
    """Pulls from a broker; connects when first asked, and once more if the broker ended an idle connection."""

    def __init__(self, part: QueueRange, manner: Manner) -> None:
        self._part = part
        self._manner = manner
        self._connection: BlockingConnection | None = None
        self._is_proven = False  # the connection has answered: what ends it now may be that it was idle
        self._pull: ops.Pull | None = None

    def ask(self, at: int, max_bytes: int) -> None:
        """Send the pull. That it could not be sent shows when it is not answered."""
        self._pull = _pull(self._part, self._manner, at, max_bytes)
        try:
            self._opened().send(Op.PULL, self._pull)
        except (ConnectionLost, Fatal):
            if not self._is_proven:
                raise
            self.close()

    def answer(self) -> ops.PullResult:
        """
        Receive what was asked for.

        Raises:
            RmqError: the broker refused, or does not answer, or has another store than when the scan was planned.
        """
        assert self._pull is not None, "nothing was asked for"
        pull = self._pull
        try:
            if self._connection is None:
                raise ConnectionLost("the connection was lost when the pull was sent")
            payload = self._connection.receive()
        except (ConnectionLost, Fatal):
            if self._connection is not None and not self._is_proven:
                raise
            # While the caller was busy with the last rows the connection was idle, and the broker may have ended it.
            self.close()
            payload = self._opened().request(Op.PULL, pull)
        self._pull, self._is_proven = None, True
        return _result(pull, payload)

    def made_again(self) -> bool:
        """Ask for the topic; asks no more for batches."""
        self.close()
        try:
            info = decode(ops.TopicInfo, self._opened().request(Op.ROUTE, ops.Route(self._part.topic)))
        except TopicNotFound:
            return False  # which is said better by whoever saw it first
        return info.generation != self._part.generation

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._is_proven = False

    def _opened(self) -> BlockingConnection:
        if self._connection is None:
            self._connection = BlockingConnection(self._part.broker, timeout_s=self._manner.timeout_s)
            if self._connection.hello.store_id != self._part.stores.current:
                self.close()
                raise LogTruncated("the broker has another store than when the scan was planned: read the topic again")
        return self._connection


class LogSource:
    """Pulls from a data directory, which is opened when first asked and checked to be still the same."""

    def __init__(self, part: QueueRange, manner: Manner) -> None:
        self._part = part
        self._manner = manner
        self._log: StoppedLog | None = None
        self._pull: ops.Pull | None = None

    def ask(self, at: int, max_bytes: int) -> None:
        """Note what is to be read."""
        self._pull = _pull(self._part, self._manner, at, max_bytes)

    def answer(self) -> ops.PullResult:
        """Read it; raises RmqError if the directory is in use, gone or of another store."""
        assert self._pull is not None, "nothing was asked for"
        pull, self._pull = self._pull, None
        return _result(pull, self._opened().request(Op.PULL, pull))

    def made_again(self) -> bool:
        """A log that nobody writes to does not change; what it holds is told by its batches."""
        return False

    def close(self) -> None:
        """Let a broker have the directory again."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _opened(self) -> StoppedLog:
        if self._log is None:
            self._log = open_log(self._part.path, self._part.hint)
            if not self._part.stores.has(self._log.stores.current):  # with a hint, it may know the first id alone
                self.close()
                raise LogTruncated("the directory has another store than when the scan was planned: read it again")
        return self._log


def _pull(part: QueueRange, manner: Manner, at: int, max_bytes: int) -> ops.Pull:
    expression = None if manner.tags.strip() in ("", ALL) else manner.tags
    return ops.Pull(None, 0, max_bytes, [ops.PullQueue(part.topic, part.queue_id, at)], expression)


def _result(pull: ops.Pull, payload: Any) -> ops.PullResult:
    found = decode_list(ops.PullResult, payload)
    at = pull.queues[0].queue_offset
    return found[0] if found else ops.PullResult(0, ops.EMPTY, at, 0, at, b"")


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
