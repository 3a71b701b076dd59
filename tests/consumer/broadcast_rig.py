"""What tests of broadcasting share: topics with messages, and what was written and delivered of them."""

from __future__ import annotations

import json
from pathlib import Path

from rmq.wire.protocol.ops.core import Op

from .fake_broker import FakeBroker
from .recorder import Recorder

LOCKING = {Op.ACQUIRE, Op.RENEW, Op.RELEASE, Op.COMMIT, Op.ATTEMPT, Op.DEAD_LETTER, Op.STARTING, Op.SEND_BACK}


def fill(broker: FakeBroker, topic: str = "t", queues: int = 2, count: int = 3) -> None:
    broker.create(topic, queues)
    for queue_id in range(queues):
        for number in range(count):
            broker.send(topic, queue_id, b"%d" % number)


def saved(directory: Path) -> dict[str, int]:
    """The offsets in a file, by queue."""
    queues = json.loads((directory / "offsets.json").read_text())["queues"]
    return {f"{queue['topic']}/{queue['queue_id']}": queue["offset"] for queue in queues}


def by_queue(recorder: Recorder) -> dict[int, list[int]]:
    """The offsets that were delivered, in their order, by queue."""
    found: dict[int, list[int]] = {}
    for _, queue_id, offsets in recorder.calls:
        found.setdefault(queue_id, []).extend(offsets)
    return found
