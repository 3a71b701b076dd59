"""A broker whose disk is full, as those see it who send: they learn why at once, and go on by themselves."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rmq.client import Message, Producer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import DiskFull

from rigs.disk.faulty import FaultyFiles
from rigs.processes import BrokerProcess, Running

PRODUCE = "rmq.cli.rmq_produce"
FULL = 1 << 60  # bytes that must be free, which no disk has
SENTENCE = r"the disk has \d+ MiB free, \d+ MiB are needed: free some space"


@pytest.mark.virtual_time
async def test_a_send_to_a_full_disk_raises_disk_full_with_the_sentence_of_the_broker() -> None:
    reported: list[object] = []
    async with (
        InMemoryBroker(min_free_bytes=FULL) as broker,
        Producer(broker.address, on_refusal=reported.append) as producer,
    ):
        with pytest.raises(DiskFull, match=f"nothing was stored in 'orders' within 30 s: {SENTENCE}"):
            await producer.send(Message("orders", b"1"), key="o-17")

    assert [type(error) for error in reported] == [DiskFull]


@pytest.mark.virtual_time
async def test_a_producer_learns_of_a_disk_that_is_full_to_the_last_byte_whatever_it_asks_for() -> None:
    reported: list[object] = []
    files = FaultyFiles()
    async with (
        InMemoryBroker(files=files) as broker,
        Producer(broker.address, delivery_timeout_s=5, on_refusal=reported.append) as producer,
    ):
        files.fail("write", "commitlog", errno.ENOSPC)
        with pytest.raises(DiskFull, match="nothing was stored in 'orders' within 5 s: the log could not be written"):
            await producer.send(Message("orders", b"1"))
        with pytest.raises(DiskFull, match="the log could not be written"):
            await Producer(broker.address, delivery_timeout_s=5, producer_epoch=3, on_refusal=reported.append).open()

        files.heal()
        await producer.send(Message("orders", b"2"))
        await asyncio.sleep(0)

    assert [type(error) for error in reported] == [DiskFull, DiskFull, type(None)]


@pytest.mark.slow
def test_rmq_produce_reports_a_full_disk_at_once_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, "127.0.0.1:0", "-o", f"min_free_bytes={FULL}") as broker,
        Running(PRODUCE, "--broker", broker.address, "--topic", "orders", stdin=b"a\nb\n") as produce,
    ):
        produce.wait_for_error(bool, "the reason for waiting")
        why = produce.errors[0]
        assert why.startswith("rmq-produce: the broker refuses messages for now: the disk has ")
        assert why.endswith(" MiB are needed: free some space (retrying; Ctrl-C to quit)")
        broker.stop()
        with BrokerProcess(tmp_path, broker.address, "-o", "min_free_bytes=0"):
            assert produce.wait() == 0

    assert produce.errors[-1] == "rmq-produce: the broker accepts messages again"
    assert len(produce.lines) == 2
