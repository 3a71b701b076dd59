"""A consumer of ``rmq-bench failover``: says when it is called for a queue under a new lock, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from rmq.consumer import ConsumeContext, Consumer
from rmq.wire.model import ConsumeStatus, StoredMessage

from ..processes import run, say


class Reporter:
    """The listener: says when it is called for a queue under a new lock, and does nothing else."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._epochs: dict[int, int] = {}

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Report the first call of a queue."""
        queue_id, epoch = context.queue.queue_id, context.epoch
        if self._epochs.get(queue_id) != epoch:
            self._epochs[queue_id] = epoch
            self._tell(queue_id=queue_id, epoch=epoch, at=time.monotonic())
        return ConsumeStatus.SUCCESS


async def main(broker: str, topic: str) -> None:
    """Consume until told to stop."""
    consumer = Consumer(broker, group=topic, listener=Reporter(say), topics={topic: "*"})
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    say(started_at=time.monotonic())
    async with consumer:
        await stopped.wait()


if __name__ == "__main__":
    run(main)
