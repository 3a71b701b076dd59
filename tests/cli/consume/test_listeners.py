"""The printing listener, the loading of the user's own, and ``--pull``, which commits exactly what was printed."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli.consume.listeners import Printer, load_listener, poll_and_print
from rmq.cli.output.stdout import Output
from rmq.cli.rmq_consume import command
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure
from rmq.client import Admin, Producer
from rmq.consumer import ConsumerConfig, PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch
from rmq.wire.errors import GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage
from rmq.wire.stores import StoreIds

from rigs.processes import Running


def messages(count: int = 1) -> list[StoredMessage]:
    rows = batch.Rows([b"m%d" % i for i in range(count)], 1)
    header, columns = batch.check(batch.encode("t", 0, rows), stamped=False)
    return batch.Batch(header, columns, b"".join(rows.bodies), StoreIds(1)).messages()


class Given:
    """The context of a call."""

    epoch = 7

    def __init__(self) -> None:
        self.left = False

    def leave(self) -> None:
        self.left = True


def context() -> Any:
    return Given()


async def test_a_message_is_done_when_its_line_is_out() -> None:
    stream, given = io.BytesIO(), context()
    printer = Printer(Output(stream), as_json=False)

    status = await printer(messages(2), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, False)
    assert stream.getvalue() == b"t/0 @0 attempt=1  m0\nt/0 @1 attempt=1  m1\n"


async def test_json_has_the_epoch_of_the_lease() -> None:
    stream = io.BytesIO()

    await Printer(Output(stream), as_json=True)(messages(), context())

    assert b'"epoch":"7"' in stream.getvalue()


async def test_after_the_limit_messages_are_neither_printed_nor_committed_nor_failed() -> None:
    stream, given = io.BytesIO(), context()
    printer = Printer(Output(stream), as_json=False, limit=2)
    first, second, third = messages(3)

    await printer([first], context())
    assert not printer.done.is_set()
    await printer([second], context())
    assert printer.done.is_set()
    status = await printer([third], given)

    assert stream.getvalue().count(b"\n") == 2
    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)


async def test_a_message_whose_reader_has_gone_is_not_committed() -> None:
    read, write = os.pipe()
    os.close(read)
    given = context()
    with os.fdopen(write, "wb", buffering=0) as stream:
        printer = Printer(Output(stream), as_json=False)

        status = await printer(messages(), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)
    assert printer.closed
    assert printer.done.is_set()


async def test_a_message_that_does_not_fit_on_the_disk_is_neither_committed_nor_failed() -> None:
    given = context()
    with open("/dev/full", "wb", buffering=0) as stream:
        printer = Printer(Output(stream), as_json=False, limit=1)

        status = await printer(messages(), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)
    assert str(printer.failure) == "No space left on device"
    assert printer.done.is_set()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path, known = sys.path[:], set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_function_in_the_current_folder_is_found(here: Path) -> None:
    (here / "consumer.py").write_text("class Handlers:\n    @staticmethod\n    def on_order(m, c): return 42\n")

    assert load_listener("consumer:Handlers.on_order")(None, None) == 42  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("billing", "write it as module:function", exit_codes.USAGE),
        (":f", "write it as module:function", exit_codes.USAGE),
        ("nowhere_at_all:f", "there is no module 'nowhere_at_all'", exit_codes.NO_INPUT),
        ("json:nope", "json has no function 'nope'", exit_codes.NO_INPUT),
        ("json:__doc__", "json has no function '__doc__'", exit_codes.NO_INPUT),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_line(here: Path, name: str, text: str, code: int) -> None:
    with pytest.raises(Failure, match=text) as caught:
        load_listener(name)

    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nowhere_at_all", r"ModuleNotFoundError: No module named 'nowhere_at_all' \({file}, line 1\)"),
        ("def f(", r"'\(' was never closed \({file}, line 1\)"),
        ("\nraise RuntimeError('two\\nlines')", r"RuntimeError: two lines \({file}, line 2\)"),
    ],
)
def test_an_error_inside_the_users_module_is_reported_with_its_place(here: Path, code: str, told: str) -> None:
    file = here / "mine.py"
    file.write_text(code)

    with pytest.raises(Failure, match=rf"mine cannot be imported: {told.format(file=file)}") as caught:
        load_listener("mine:f")

    assert caught.value.exit_code == exit_codes.DATA_ERROR


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
        (["--listener", "a:b"], "--listener cannot be combined with --pull"),
        (["--broadcast"], "--broadcast cannot be combined with --pull"),
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
        await producer.send_bodies(topic, [b"a", b"b"], key="k")
        with Running("rmq.cli.rmq_consume", *options) as first:
            first.wait_for(lambda lines: len(lines) == 2, "two messages")
            assert first.stop(signal.SIGINT) == 0
        await producer.send_bodies(topic, [b"c"], key="k")
    with Running("rmq.cli.rmq_consume", *options, "--count", "1") as second:
        assert second.wait() == 0

    assert [line.split()[-1] for line in first.lines + second.lines] == ["a", "b", "c"]
    assert first.errors == []
