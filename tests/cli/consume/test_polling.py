"""``rmq-consume --pull``: what was printed is committed, and nothing else."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
from dataclasses import replace

import pytest
from click.testing import CliRunner

from rmq.cli.consume.listeners import Printer, poll_and_print
from rmq.cli.output.output import Output
from rmq.cli.rmq_consume import command
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Producer
from rmq.consumer import ConsumerConfig, PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import GroupMismatch
from rmq.wire.model import MessageQueue

from support.processes import Running

QUEUE = MessageQueue("t", 0)


class Gone(io.BytesIO):
    """A pipe whose reader goes after some writes."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def write(self, data: object) -> int:
        if not self.left:
            raise BrokenPipeError
        self.left -= 1
        return super().write(data)  # type: ignore[arg-type]


async def sent(broker: InMemoryBroker, count: int) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t", 1)
    async with Producer(broker.address) as producer:
        await producer.send_bodies("t", [b"%d" % i for i in range(count)], queue_id=0)


async def committed(broker: InMemoryBroker) -> int:
    async with Admin(broker.address) as admin:
        (held,) = await admin.ranges([QUEUE], "g")
    return held.committed


def config(broker: InMemoryBroker, batch: int = 1) -> ConsumerConfig:
    return ConsumerConfig(broker=broker.address, group="g", batch=batch)


async def test_a_count_ends_it_exactly_and_what_was_printed_is_committed() -> None:
    stream = io.BytesIO()
    async with InMemoryBroker(min_free_bytes=0) as broker:
        await sent(broker, 6)
        await poll_and_print(config(broker), {"t": "*"}, Printer(Output(stream), as_json=False, limit=4))
        assert await committed(broker) == 4

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == [b"@0", b"@1", b"@2", b"@3"]


async def test_what_could_not_be_printed_is_not_committed_and_not_waited_for() -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        await sent(broker, 6)
        printer = Printer(Output(Gone(after=2)), as_json=False)
        async with asyncio.timeout(10):  # a batch that nobody finishes would be waited for 30 s
            await poll_and_print(config(broker, batch=2), {"t": "*"}, printer)
        assert (printer.closed, await committed(broker)) == (True, 4)


async def test_a_signal_does_not_wait_for_ever_for_a_reader_that_reads_nothing() -> None:
    reader, writer = os.pipe()
    with open(writer, "wb", buffering=0) as pipe:
        async with InMemoryBroker(min_free_bytes=0) as broker:
            await sent(broker, 3000)  # more than a pipe holds
            printer = Printer(Output(pipe), as_json=True)
            settings = replace(config(broker, batch=100), drain_s=0.1)
            printing = asyncio.create_task(poll_and_print(settings, {"t": "*"}, printer))
            async with asyncio.timeout(10):
                while select.select([], [pipe], [], 0)[1]:
                    await asyncio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
                await printing
            written = await committed(broker)
        os.set_blocking(reader, False)
        lines = os.read(reader, 1 << 20).count(b"\n")
    os.close(reader)

    assert 0 < written <= lines


async def test_a_group_that_consumes_something_else_ends_it_with_that() -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        await sent(broker, 1)
        async with PullConsumer(config=config(broker), topics={"t": "*"}) as first:
            await first.poll()
            with pytest.raises(GroupMismatch):
                await poll_and_print(config(broker), {"t": "a"}, Printer(Output(io.BytesIO()), as_json=False))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--listener", "a:b"], "--pull prints what it gets"),
        (["--broadcast"], "--pull shares the queues of its group"),
        (["-o", "auto_commit_every_s=0"], "auto_commit_every_s must be more than 0"),
        (["--orderly"], "give one of --orderly, --concurrent, --pull"),
    ],
)
def test_what_does_not_go_with_it_is_refused(nowhere: str, options: list[str], text: str) -> None:
    arguments = ["--broker", nowhere, "--topic", "t", "--pull", *options]
    result = CliRunner().invoke(command, arguments, prog_name="rmq-consume")

    assert result.exit_code == exit_codes.USAGE
    assert text in result.stderr


@pytest.mark.slow
async def test_a_signal_commits_what_was_printed(broker: str, topic: str) -> None:
    options = ("--broker", broker, "--pull", "--topic", topic, "--group", topic)
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"a", b"b"], sharding_key="k")
        with Running("rmq.cli.rmq_consume", *options) as first:
            first.wait_for(lambda lines: len(lines) == 2, "two messages")
            assert first.stop(signal.SIGINT) == 0
        await producer.send_bodies(topic, [b"c"], sharding_key="k")
    with Running("rmq.cli.rmq_consume", *options, "--count", "1") as second:
        assert second.wait() == 0

    assert [line.split()[-1] for line in first.lines + second.lines] == ["a", "b", "c"]
    assert first.errors == []
