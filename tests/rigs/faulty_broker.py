"""
A fake broker in a thread, with faults that a test puts in: for what a real one cannot be made to do.

It speaks the real wire format over loopback, so that Spark's worker processes can read from it too.
"""

from __future__ import annotations

import socketserver
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rmq.wire.batch import layout, tags
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.batch.compression import Codec
from rmq.wire.errors import OK, MessagesLost, OffsetOutOfRange, Refused, TopicNotFound, WireError
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.hello import Hello, HelloReply, Limits, hello_from_map, hello_to_map
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages
from rmq.wire.protocol.ops.core import Op

STORE_ID = 0x0123456789ABCDEF
STORED_AT = 1_700_000_000_000_000

Fault = Callable[[Any], Any]
"""Gets the right answer and returns another one; or raises: a WireError to refuse, an OSError to hang up."""


@dataclass
class FakeQueue:
    """Stamped batches, oldest first."""

    batches: list[bytes] = field(default_factory=list)
    min_offset: int = 0
    max_offset: int = 0


class FakeBroker:
    """Topics in memory behind a loopback port; use it in a ``with`` block."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FakeQueue]] = {}
        self.store_id = STORE_ID
        self.generation = 1
        self.requests: list[tuple[Op, Any]] = []
        self.max_pull_batches = 512
        self.topics_a_page = 1000
        self._faults: defaultdict[Op, list[Fault]] = defaultdict(list)
        self._physical = 4096
        self._lock = threading.Lock()
        self._connections = 0
        self._changed = threading.Condition()
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        """The address where it listens."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def create(self, topic: str, queues: int = 1) -> None:
        """Make a topic."""
        self.topics[topic] = [FakeQueue() for _ in range(queues)]

    def append(self, topic: str, queue_id: int, rows: Rows, codec: Codec | None = None) -> None:
        """Store one batch."""
        with self._lock:
            queue = self.topics[topic][queue_id]
            data = encode(topic, queue_id, rows, codec=codec)
            by = layout.Stamp(
                1, self._physical, queue.max_offset, STORED_AT, 0, 0, self.generation, queue_id, layout.KIND_DATA
            )
            data[: layout.BROKER_PART] = layout.stamp(data, layout.parse_header(data).header_size, by)
            self._physical += len(data)
            queue.batches.append(bytes(data))
            queue.max_offset += len(rows.bodies)

    def fail_next(self, op: Op, *faults: Fault) -> None:
        """Put faults in line; each is used up by one request of that kind."""
        self._faults[op].extend(faults)

    def count(self, change: int) -> None:
        """Note that a connection was opened or ended."""
        with self._changed:
            self._connections += change
            self._changed.notify_all()

    def wait_for_connections(self, count: int) -> bool:
        """Return whether there are, within some seconds, exactly so many connections."""
        with self._changed:
            return self._changed.wait_for(lambda: self._connections == count, 10)

    def wait_for_requests(self, op: Op, count: int) -> bool:
        """Return whether there were, within some seconds, so many requests of a kind."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(asked is op for asked, _ in self.requests) >= count, 10)

    def serve(self, op: Op, payload: Any) -> Any:
        """Return the answer to a request."""
        with self._lock:
            self.requests.append((op, payload))
            answer = _ANSWERS[op](self, payload)
            fault = self._faults[op].pop(0) if self._faults[op] else None
        with self._changed:
            self._changed.notify_all()
        return answer if fault is None else fault(answer)

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                reader = frames.FrameReader(memoryview(bytearray(1 << 16)))
                broker.count(+1)
                try:
                    while count := self.request.recv_into(reader.buffer()):
                        for _, request_id, op, payload in map(frames.unpack, reader.received(count)):
                            self.request.sendall(broker.frame(request_id, Op(op), payload))
                except OSError:
                    self.request.close()
                finally:
                    broker.count(-1)

        return Handler

    def frame(self, request_id: int, op: Op, payload: Any) -> bytes:
        """Return the frame that answers a request."""
        try:
            return frames.pack(frames.REPLY, request_id, OK, self.serve(op, payload))
        except WireError as error:
            return frames.pack(frames.REPLY, request_id, error.code, [error.text])

    def _hello(self, payload: Any) -> Any:
        hello = hello_from_map(Hello, payload)
        limits = Limits(frames.MAX_FRAME, layout.MAX_BATCH, 256, 5.0, 1.0)
        member = f"{hello.client}#{hello.session.hex()[:8]}"
        return hello_to_map(HelloReply(ops.PROTOCOL, self.address, "fake", self.store_id, 1, member, limits))

    def _info(self, topic: str) -> ops.TopicInfo:
        queues = [ops.QueueInfo(queue_id, self.address) for queue_id in range(len(self.topics[topic]))]
        return ops.TopicInfo(topic, self.generation, len(queues), queues)

    def _route(self, payload: Any) -> Any:
        asked = decode(ops.Route, payload)
        if asked.topic not in self.topics:
            raise TopicNotFound(f"the topic {asked.topic!r} does not exist")
        return self._info(asked.topic)

    def _list(self, payload: Any) -> Any:
        names = sorted(topic for topic in self.topics if topic > decode(ops.ListTopics, payload).after)
        return [self._info(topic) for topic in names[: self.topics_a_page]]

    def _ranges(self, payload: Any) -> Any:
        asked = decode(ops.Ranges, payload)
        queues = [self.topics[ref.topic][ref.queue_id] for ref in asked.queues]
        return [ops.Range(OK, queue.min_offset, queue.max_offset) for queue in queues]

    def _offsets_at(self, payload: Any) -> Any:
        asked = decode(messages.OffsetsAt, payload)
        queues = [self.topics[ref.topic][ref.queue_id] for ref in asked.queues]
        return [
            messages.OffsetAt(
                OK,
                queue.max_offset if asked.time_us > STORED_AT else queue.min_offset,
                queue.min_offset,
                queue.max_offset,
            )
            for queue in queues
        ]

    def _pull(self, payload: Any) -> Any:
        asked = decode(ops.Pull, payload)
        if asked.group is not None or asked.wait_ms:
            raise Refused("this broker serves free reads that do not wait", code=100)
        wanted = tags.wanted(asked.expression or "*")
        return [self._found(index, queue, asked.max_bytes, wanted) for index, queue in enumerate(asked.queues)]

    def _found(self, index: int, asked: ops.PullQueue, max_bytes: int, wanted: tags.Wanted | None) -> ops.PullResult:
        queue, at = self.topics[asked.topic][asked.queue_id], asked.queue_offset
        if at < queue.min_offset:
            text = f"retention removed {asked.topic}/{asked.queue_id} from offset {at} to {queue.min_offset}"
            return ops.PullResult(
                index, MessagesLost.code, queue.min_offset, queue.min_offset, queue.max_offset, b"", text
            )
        if at > queue.max_offset:
            text = f"offset {at} is out of range"
            return ops.PullResult(index, OffsetOutOfRange.code, at, queue.min_offset, queue.max_offset, b"", text)
        parts: list[bytes] = []
        for data in queue.batches:
            header = layout.parse_header(data)
            if header.end_offset > at and wanted is not None and not wanted.possible(header.tag_bloom):
                at = header.end_offset
            elif header.end_offset > at:
                if parts and (sum(map(len, parts)) + len(data) > max_bytes or len(parts) >= self.max_pull_batches):
                    break
                parts.append(data)
                at = header.end_offset
        return ops.PullResult(
            index, OK if parts else ops.EMPTY, at, queue.min_offset, queue.max_offset, b"".join(parts)
        )


_ANSWERS: dict[Op, Callable[[FakeBroker, Any], Any]] = {
    Op.HELLO: FakeBroker._hello,
    Op.ROUTE: FakeBroker._route,
    Op.LIST_TOPICS: FakeBroker._list,
    Op.RANGES: FakeBroker._ranges,
    Op.OFFSETS_AT: FakeBroker._offsets_at,
    Op.PULL: FakeBroker._pull,
}
