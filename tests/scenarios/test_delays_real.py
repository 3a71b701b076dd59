"""A delay level with real processes, from the line that is typed to the line that is printed."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rigs.processes import BrokerProcess, ConsumerProcess, Running

PRODUCE = "rmq.cli.rmq_produce"
LEVEL_1 = timedelta(seconds=1)
LATE = timedelta(seconds=5)  # a machine that is busy with other tests


@pytest.mark.slow
def test_lines_of_level_1_are_printed_a_second_after_they_were_typed_also_over_a_kill_of_the_broker(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as first:
        address = first.address
        asked = ("--broker", address, "--topic", "orders", "--key", "k", "--delay-level", "1")
        with Running(PRODUCE, *asked, stdin=b"one\ntwo\n") as produce:
            assert produce.wait() == 0
        first.kill()
    with BrokerProcess(tmp_path, address), ConsumerProcess(address, "orders") as consume:
        with Running(PRODUCE, *asked, stdin=b"three\n") as again:
            assert again.wait() == 0
        consume.wait_for(lambda lines: len(lines) >= 3, "the third message")

    found = consume.messages
    assert [message["body"] for message in found] == ["one", "two", "three"]
    assert [message["queue_offset"] for message in found] == [0, 1, 2]
    typed = [*produce.lines, *again.lines]
    assert [message["copy_of"] for message in found] == [line.split()[2] for line in typed]
    assert [line.split()[1] for line in typed] == ["delayed"] * 3
    for message in found:
        waited = datetime.fromisoformat(message["stored_at"]) - datetime.fromisoformat(message["born_at"])
        assert LEVEL_1 <= waited <= LEVEL_1 + LATE
