"""A broker as a process of its own, and the shortest way to put batches into it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from rmq.engine.native.blocking import BlockingConnection
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.batch.compression import Codec
from rmq.wire.errors import OK
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.topics import DeleteTopic


class RealBroker:
    """``rmq-broker start`` in a data folder of its own; use it in a ``with`` block."""

    def __init__(self, data: Path, *options: str) -> None:
        self._data = data
        self._options = options
        self.address = ""

    def __enter__(self) -> RealBroker:
        command = [sys.executable, "-m", "rmq.cli.rmq_broker", "start", "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self._data), *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        deadline = threading.Timer(60, self._process.kill)  # ends the wait for a line that does not come
        deadline.start()
        line = self._process.stdout.readline()
        deadline.cancel()
        found = re.search(r"ready on (\S+?),", line)
        assert found, f"the broker did not get ready: {line!r}"
        self.address = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def create(self, topic: str, queues: int = 1) -> None:
        """Make a topic."""
        with BlockingConnection(self.address) as connection:
            connection.request(Op.CREATE_TOPIC, ops.CreateTopic(topic, queues))

    def delete(self, topic: str) -> None:
        """Remove a topic; one of the same name may be made at once."""
        with BlockingConnection(self.address) as connection:
            connection.request(Op.DELETE_TOPIC, DeleteTopic(topic))

    def held(self, topic: str, queue_id: int) -> range:
        """The offsets that can be read."""
        with BlockingConnection(self.address) as connection:
            asked = ops.Ranges(None, [ops.QueueRef(topic, queue_id)])
            (found,) = decode_list(ops.Range, connection.request(Op.RANGES, asked))
        return range(found.min_offset, found.max_offset)

    def append(self, topic: str, queue_id: int, rows: Rows, codec: Codec | None = None) -> None:
        """Store one batch, durably."""
        batch = ops.OutgoingBatch(queue_id, bytes(encode(topic, queue_id, rows, codec=codec)))
        with BlockingConnection(self.address) as connection:
            (result,) = decode_list(ops.SendResult, connection.request(Op.SEND, ops.Send([batch])))
        assert result.status == OK, result.text
