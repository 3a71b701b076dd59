"""What ``rmq-bench all --json`` might print: numbers that were never measured, for tests of the report only."""

from __future__ import annotations

from typing import Any

from rmq.bench.figures import Figure, Report, Verdict

FAST, SLOW, FLOOR = [90.0, 100.0, 110.0], [15.0, 20.0, 25.0], [150.0, 160.0, 170.0]


def everything() -> dict[str, Any]:
    """One target that is met, one that is missed, one that is met by the median only, one that is not shown."""
    produce = Report(
        "produce",
        {"messages": 1000, "size": 100, "rounds": 3},
        [
            Figure("produce.bodies", "bodies, by send_bodies", "msg/s", "async", FAST),
            Figure("produce.messages", "Message objects", "msg/s", "async", SLOW),
            Figure("produce.floor", "a bare loop", "msg/s", None, FLOOR),
            Figure("produce.redis", "XADD | MAXLEN", "msg/s", "appendonly, each second", [30.0, 30.0, 30.0]),
        ],
        [
            Verdict("P1.floor", "of the floor", "x", "async", [0.6, 0.7, 0.8], at_least=0.5),
            Verdict("P1.peer", "of a peer", "x", "async", [3.0, 4.2, 5.0], at_least=4.0),
            Verdict("P1.nats", "of another peer", "x", "async", at_least=4.0, why_not="nats-server is not installed"),
        ],
    )
    latency = Report(
        "latency",
        {"percentiles": {"wake": {"p50": 0.4, "p99": 6.0}, "behind": {"p50": 0.0, "p99": 0.2}}},
        [
            Figure("latency.wake.p50", "send to listener, p50", "ms", "async", [0.4]),
            Figure("latency.wake.flood", "the flood meanwhile", "msg/s", "async", [1000.0]),
        ],
        [Verdict("P7.wake.p99", "send to listener, p99", "ms", "async", [5.0, 6.0, 7.0], at_most=3.0)],
    )
    scale = Report(
        "scale",
        {},
        [
            Figure("scale.queues.1", "produce, 1 queue", "msg/s", "async", [100.0]),
            Figure("scale.queues.10000", "produce, 10000 queues", "msg/s", "async", [90.0]),
            Figure("scale.rss.queues", "most memory of the broker", "MB", "async", [120.0]),
        ],
        [
            Verdict("P8.queues", "produce, 1 -> 10000 queues", "x", "async", [0.9], at_least=0.8),
            Verdict("P8.log", "produce, 1 -> 10 GB", "x", "async", [0.6], at_least=0.8),
        ],
    )
    lines = ("rmq-bench produce --size 100", "rmq-bench latency", "rmq-bench scale")
    reports = [
        {"command": line, "targets": [], **one.as_object()}
        for line, one in zip(lines, (produce, latency, scale), strict=True)
    ]
    failed = {"command": "rmq-bench recovery", "targets": ["P9"], "why_not": "the disk is full"}
    unseen = Report("recovery", verdicts=[Verdict("P9", "by rmq-bench recovery", why_not="the disk is full")])
    reports.append({**failed, **unseen.as_object()})
    verdicts = [verdict for one in reports for verdict in one["verdicts"]]
    return {
        "benchmark": "all", "quick": False, "rounds": 3, "machine": {"cores": 2, "fdatasync_ms": 0.123},
        "reports": reports, "verdicts": verdicts,
    }  # fmt: skip
