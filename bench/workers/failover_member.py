"""A consumer of ``rmq-bench failover``: reports its first call of a queue under each new lease, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from rmq.consumer import ConsumeContext, Consumer
from rmq.wire.model import ConsumeStatus, StoredMessage

from ..processes import run, say


class Reporter:
    """The listener: reports its first call of a queue under each new lease, and does nothing else."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._epochs: dict[int, int] = {}

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Report the first call of a queue under this lease."""
        queue_id, epoch = context.queue.queue_id, context.epoch
        if self._epochs.get(queue_id) != epoch:
            self._epochs[queue_id] = epoch
            self._report(queue_id=queue_id, epoch=epoch, at=time.monotonic())
        return ConsumeStatus.SUCCESS


async def main(broker: str, topic: str) -> None:
    """Consume until SIGTERM."""
    consumer = Consumer(broker, group=topic, listener=Reporter(say), topics={topic: "*"})
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    say(started_at=time.monotonic())
    async with consumer:
        await stopped.wait()


if __name__ == "__main__":
    run(main)
