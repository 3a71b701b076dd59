"""What benchmarks send and report."""

from __future__ import annotations

import pytest

from rmq.cli.bench_load import Load, Result


def test_the_messages_are_as_many_as_asked_all_of_their_size_and_all_different() -> None:
    load = Load("t", messages=1003, size=16, batch=100)

    batches = list(load.batches())

    assert [len(batch) for batch in batches] == [100] * 10 + [3]
    bodies = [body for batch in batches for body in batch]
    assert {len(body) for body in bodies} == {16}
    assert len(set(bodies)) == 1003


def test_a_result_is_rates_for_people_and_programs() -> None:
    result = Result("produce", Load("t", messages=1000, size=500, batch=10), 0.5, {"queues": 8, "flush": None})

    assert result.messages_per_s == 2000
    assert result.megabytes_per_s == pytest.approx(1.0)
    assert result.as_object() == {
        "benchmark": "produce",
        "messages": 1000,
        "size": 500,
        "batch": 10,
        "took_s": 0.5,
        "messages_per_s": 2000.0,
        "megabytes_per_s": 1.0,
        "queues": 8,
        "flush": None,
    }
    assert str(result) == (
        "produce: 2,000 msg/s, 1.0 MB/s\n  1,000 messages of 500 bytes in 0.50 s; batch 10, queues 8"
    )
