"""Redis is started with settings of our own, and its benchmark is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers import redis_streams
from rmq.bench.processes import BenchError

SAID = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"XADD messages * body x","359066.44","13.489","6.000","15.399","17.823","18.431","18.847"
"""


def test_the_rate_of_redis_benchmark_is_its_requests_per_second() -> None:
    assert redis_streams.requests_per_second(SAID) == 359066.44


@pytest.mark.parametrize("text", ["", "Could not connect to Redis", '"test","rps"\n'])
def test_other_output_of_redis_benchmark_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="something else than its rate"):
        redis_streams.requests_per_second(text)


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_its_settings_keep_what_is_added_on_disk_and_stay_on_loopback(fsync: str) -> None:
    lines = redis_streams.configuration(7000, Path("/scratch"), fsync).splitlines()

    assert {"bind 127.0.0.1", "port 7000", "dir /scratch", "appendonly yes", f"appendfsync {fsync}"} <= set(lines)


def test_redis_names_its_durability() -> None:
    assert redis_streams.peer("everysec").durability == "fsync every second"
    assert redis_streams.peer("always").durability == "fsync before answers"
