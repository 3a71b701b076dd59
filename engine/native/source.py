"""
Sources of the batches of a scan: ranges of queues, and the pulls that read them, each sent before it is needed.

:class:`BrokerSource` pulls from a broker, which reads the next answer while the last one is being converted; that
answer waits in the buffers of the socket. :class:`LogSource` reads the log of a stopped broker.

The layout of a log on disk is known to the broker's package alone: :mod:`rmq.broker.offline.reader` answers the
requests of the wire from a directory. It is imported when a scan of a directory starts, and only then: a client needs
no broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rmq.wire.batch.tags import ALL
from rmq.wire.errors import ConnectionLost, Fatal, LogTruncated, TopicNotFound
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from .blocking import BlockingConnection


@dataclass(frozen=True, slots=True)
class QueueRange:
    """``[start, end)`` of a queue, and all that is needed to read it anywhere, again and again."""

    broker: str
    stores: StoreIds
    topic: str
    generation: int
    queue_id: int
    start: int
    end: int
    path: str = ""  # of a stopped log, in place of a broker
    hint: bytes = b""  # where a stopped log holds the range

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return self.end - self.start

    def place(self, offset: int) -> str:
        """An offset of it, for error messages."""
        where = f"broker {self.broker}" if self.broker else f"directory {self.path}"
        return f"topic {self.topic}, queue {self.queue_id}, offset {offset}, {where}"


@dataclass(frozen=True, slots=True)
class Manner:
    """How ranges are read, the same for all of a scan."""

    columns: tuple[str, ...]
    tags: str = "*"  # an expression: a || b
    verify: bool = True  # the checksum of every batch
    timeout_s: float = 30.0  # of silence of the broker
    skip_damage: bool = False  # leave out what is damaged and report it, instead of failing
    skip_lost: bool = False  # the same for what retention removed since the scan was planned


class Source(Protocol):
    """Reads one queue, one request at a time."""

    def ask(self, at: int, max_bytes: int) -> None:
        """Request batches from an offset on."""

    def answer(self) -> ops.PullResult:
        """Return the answer, whose status may be an error. Raises RmqError if there is none."""

    def made_again(self) -> bool:
        """Return whether the topic was deleted and created again since the scan was planned."""

    def close(self) -> None:
        """End what was opened; may be called again."""


def source_of(part: QueueRange, manner: Manner) -> Source:
    """Return the source of a range."""
    return LogSource(part, manner) if part.path else BrokerSource(part, manner)


class BrokerSource:
    """Pulls from a broker; connects when first asked, and once more if the broker ended an idle connection."""

    def __init__(self, part: QueueRange, manner: Manner) -> None:
        self._part = part
        self._manner = manner
        self._connection: BlockingConnection | None = None
        self._is_proven = False  # the connection has answered: if it ends now, it may have been idle
        self._pull: ops.Pull | None = None

    def ask(self, at: int, max_bytes: int) -> None:
        """Send the pull; a failure to send shows in ``answer``."""
        self._pull = _pull(self._part, self._manner, at, max_bytes)
        try:
            self._opened().send(Op.PULL, self._pull)
        except (ConnectionLost, Fatal):
            if not self._is_proven:
                raise
            self.close()

    def answer(self) -> ops.PullResult:
        """
        Receive the answer.

        Raises:
            RmqError: the broker refused or did not answer, or has another store than when the scan was planned.
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
            # The connection was idle while the caller was busy with the last rows, so the broker may have ended it.
            self.close()
            payload = self._opened().request(Op.PULL, pull)
        self._pull, self._is_proven = None, True
        return _result(pull, payload)

    def made_again(self) -> bool:
        """Request the topic; call it after the last answer."""
        self.close()
        try:
            info = decode(ops.TopicInfo, self._opened().request(Op.ROUTE, ops.Route(self._part.topic)))
        except TopicNotFound:
            return False  # the caller has a better error for that
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
        """Note the request; ``answer`` reads."""
        self._pull = _pull(self._part, self._manner, at, max_bytes)

    def answer(self) -> ops.PullResult:
        """Read it; raises RmqError if the directory is in use, gone or of another store."""
        assert self._pull is not None, "nothing was asked for"
        pull, self._pull = self._pull, None
        return _result(pull, self._opened().request(Op.PULL, pull))

    def made_again(self) -> bool:
        """Return False: a stopped log does not change, and its batches carry their topic generation."""
        return False

    def close(self) -> None:
        """Release the directory, so that a broker can start."""
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
    """A data directory, which no broker can open while this is open."""

    @property
    def stores(self) -> StoreIds:
        """The ids of the store in it."""

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """Return the payload that a broker with this log would reply."""

    def hint(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """Return what another process needs to read ``[start, end)`` of a queue without reading the whole log."""

    def close(self) -> None:
        """Release the directory, so that a broker can start."""

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
