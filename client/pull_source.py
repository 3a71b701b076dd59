"""
Where the batches of a scan come from: pulls of one queue, each asked for before its answer is needed.

:class:`Source` is what :mod:`rmq.client.fetch` reads from; :class:`BrokerSource` is a broker over TCP. While the last
answer is being converted the broker reads the next one, which waits in the buffers of the socket.
"""

from __future__ import annotations

from typing import Final, Protocol

from rmq.wire import ops
from rmq.wire.codec import decode, decode_list
from rmq.wire.errors import ConnectionLost, Fatal, LogTruncated, TopicNotFound
from rmq.wire.ops import Op
from rmq.wire.tags import ALL

from .blocking import BlockingConnection
from .scan_plan import Manner, QueueRange


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


class BrokerSource:
    """Pulls from a broker; connects when first asked, and once more if the broker ended an idle connection."""

    def __init__(self, part: QueueRange, manner: Manner) -> None:
        self._part = part
        self._manner = manner
        self._expression: Final = None if manner.tags.strip() in ("", ALL) else manner.tags
        self._connection: BlockingConnection | None = None
        self._is_proven = False  # the connection has answered: what ends it now may be that it was idle
        self._pull: ops.Pull | None = None

    def ask(self, at: int, max_bytes: int) -> None:
        """Send the pull. That it could not be sent shows when it is not answered."""
        queue = ops.PullQueue(self._part.topic, self._part.queue_id, at)
        self._pull = ops.Pull(None, 0, max_bytes, [queue], self._expression)
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
        pull, at = self._pull, self._pull.queues[0].queue_offset
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
        found = decode_list(ops.PullResult, payload)
        return found[0] if found else ops.PullResult(0, ops.EMPTY, at, 0, at, b"")

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
            if self._connection.hello.store_id != self._part.store_id:
                self.close()
                raise LogTruncated("the broker has another store than when the scan was planned: read the topic again")
        return self._connection
