"""A consumer of ``rmq-bench failover``; that it runs is shown with the benchmark."""

from __future__ import annotations

import asyncio

from rmq.bench.workers.failover_member import Reporter
from rmq.wire.model import ConsumeStatus, MessageQueue


class Context:
    """As much of a context as the listener reads."""

    def __init__(self, queue_id: int, epoch: int) -> None:
        self.queue = MessageQueue("failover", queue_id)
        self.epoch = epoch


def test_a_consumer_reports_a_queue_once_per_lease() -> None:
    said: list[dict[str, int]] = []
    reporter = Reporter(lambda **what: said.append(what))

    for queue_id, epoch in [(0, 1), (0, 1), (1, 2), (0, 1), (0, 5)]:
        status = asyncio.run(reporter([], Context(queue_id, epoch)))  # type: ignore[arg-type]
        assert status is ConsumeStatus.SUCCESS

    assert [(one["queue_id"], one["epoch"]) for one in said] == [(0, 1), (1, 2), (0, 5)]
