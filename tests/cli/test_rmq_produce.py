"""One message a line: what is sent, what is printed, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from rmq.cli.rmq_produce import InputLine, Sends, Shape, command
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure
from rmq.client import Admin, Producer
from rmq.engine.native.connection import Connection
from rmq.wire.batch import batch
from rmq.wire.batch.hashing import shard
from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.errors import DiskFull, RequestTimeout
from rmq.wire.model import StoredMessage, from_us
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.stores import StoreIds

from .commands import piped
from rigs.processes import Running

PRODUCE = "rmq.cli.rmq_produce"


def produce(broker: str, topic: str, *arguments: str, lines: bytes | str = b"") -> Result:
    options = ["--broker", broker, "--topic", topic, *arguments]
    return CliRunner().invoke(command, options, input=lines, prog_name="rmq-produce")


async def stored(broker: str, topic: str) -> list[StoredMessage]:
    """Everything in a topic, queue by queue."""
    messages: list[StoredMessage] = []
    connection = Connection(broker)
    await connection.open(timeout_s=10)
    async with Admin(broker) as admin:
        info = await admin.topic(topic)
    assert connection.hello is not None
    for queue in info.queues:
        wanted = ops.PullQueue(topic, queue.queue_id, 0)
        reply = await connection.request(ops.Op.PULL, ops.Pull(None, 1, 8 << 20, [wanted]))
        for result in decode_list(ops.PullResult, reply):
            for found in batch.read_all(result.batches, stores=StoreIds(connection.hello.store_id)):
                messages += found.messages()
    await connection.close()
    return messages


def keyed(lines: list[bytes], **shape: Any) -> list[str | None]:
    found, failure = Shape(topic="t", properties={}, **shape).lines(lines, 1)
    assert failure is None
    return [line.key for line in found]


def test_one_key_for_all_or_the_field_of_each() -> None:
    assert keyed([b"x", b""]) == [None, None]
    assert keyed([b"x", b""], key="k") == ["k", "k"]
    assert keyed([b'{"id": "a"}', b'{"id": 7, "x": []}'], key_field="id") == ["a", "7"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "line 12: not a JSON object"),
        (b"", "line 12: not a JSON object"),
        (b"[1]", "line 12: not a JSON object"),
        (b"\xff", "line 12: not a JSON object"),
        (b'{"other": 1}', "line 12: no field 'id'"),
        (b'{"id": true}', "line 12: the field 'id' must be a text or a whole number"),
        (b'{"id": null}', "line 12: the field 'id' must be a text or a whole number"),
        (b'{"id": ""}', "line 12: the field 'id' is empty"),
        (b"x" * (MAX_BODY + 1), f"line 12: more than the {MAX_BODY} bytes"),
    ],
)
def test_a_bad_line_is_named_and_what_was_before_it_is_good(line: bytes, text: str) -> None:
    shape = Shape(topic="t", key_field="id", properties={})

    good, failure = shape.lines([b'{"id": 1}', b'{"id": 2}', line, b'{"id": 3}'], 10)

    assert [found.number for found in good] == [10, 11]
    assert failure is not None
    assert failure.exit_code == exit_codes.DATA_ERROR
    assert failure.message.startswith(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", "a", "--key-field", "b"], "exclude each other"),
        (["--key", ""], "it is empty, and no key of a message is"),
        (["--property", "x"], "write it as name=value"),
        (["--tag", "a b"], "the tag 'a b'"),
        (["--index-key", "a b"], "the index key 'a b'"),
        (["--compression", "gzip"], "--compression must be zlib, lz4 or zstd, not gzip"),
        (["--delay", "soon"], "'soon' is not a duration: write 10s"),
        (["--delay", "10s", "--delay-level", "3"], "--delay and --delay-level cannot be combined"),
        (["--delay-level", "-1"], "--delay-level must be a whole number from 0 to 65535"),
        (["--delay", "9999999d"], "delay_s must be"),
        (["--topic", "a b"], "rmq-produce: the topic name 'a b' may hold only"),  # not: line 1
        (["--topic", "\udcff"], "rmq-produce: the topic name '\\udcff' may hold only"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(nowhere: str, arguments: list[str], text: str) -> None:
    result = produce(nowhere, "t", *arguments)

    assert result.exit_code == exit_codes.USAGE
    assert text in result.stderr


def test_a_file_that_does_not_exist_has_a_code_of_its_own(nowhere: str) -> None:
    result = produce(nowhere, "t", "no-such-file")

    assert result.exit_code == exit_codes.NO_INPUT
    assert "no-such-file" in result.stderr


@pytest.mark.slow
def test_without_a_broker_one_line_says_how_to_start_one(nowhere: str) -> None:
    result = produce(nowhere, "t", lines=b"x\n")

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert result.stderr == f"rmq-produce: no broker at {nowhere}: start one with `rmq-broker start`\n"


@pytest.mark.slow
async def test_without_a_topic_those_that_exist_are_named(broker: str, topic: str) -> None:
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"x"])

    with Running(PRODUCE, "--broker", broker) as process:
        assert process.wait() == exit_codes.USAGE
        assert process.errors[-1].startswith("rmq-produce: --topic is required; existing topic")


@pytest.mark.slow
async def test_every_line_is_a_message_with_its_metadata(broker: str, topic: str) -> None:
    with Running(
        PRODUCE, "--broker", broker, "--topic", topic, "--key", "k1", "--tag", "paid", "--index-key", "a",
        "--index-key", "b", "--property", "x=1=2", stdin=b"one\n\n\xff\x00\nlast",
    ) as process:  # fmt: skip
        assert process.wait() == 0
    messages = await stored(broker, topic)

    assert [message.body for message in messages] == [b"one", b"", b"\xff\x00", b"last"]
    for message, line in zip(messages, process.lines, strict=True):
        assert (message.tag, message.index_keys, message.properties) == ("paid", ("a", "b"), {"x": "1=2"})
        assert message.key == "k1"
        assert line == f"{topic}/{message.queue_id} @{message.queue_offset} {message.message_id}"


@pytest.mark.slow
async def test_compressed_lines_are_the_same_messages(broker: str, topic: str) -> None:
    lines = [b'{"order": %d, "state": "paid"}' % i for i in range(500)]
    arguments = ["--broker", broker, "--topic", topic, "--key", "k", "--compression", "zlib", "--quiet"]
    subprocess.run([sys.executable, "-m", PRODUCE, *arguments], input=b"\n".join(lines), check=True, timeout=30)

    assert [message.body for message in await stored(broker, topic)] == lines


@pytest.mark.slow
async def test_lines_go_to_the_topic_of_the_namespace_and_receipts_show_the_plain_one(broker: str, topic: str) -> None:
    arguments = ("--broker", broker, "--topic", topic, "--namespace", "team", "--key", "k")
    with Running(PRODUCE, *arguments, stdin=b"one\n") as process:
        assert process.wait() == 0

    (message,) = await stored(broker, f"team%{topic}")
    assert message.body == b"one"
    assert process.lines[0].startswith(f"{topic}/")


@pytest.mark.slow
async def test_delayed_lines_have_receipts_without_an_offset_and_wait(broker: str, topic: str) -> None:
    asked = ("--broker", broker, "--topic", topic, "--key", "k")
    with Running(PRODUCE, *asked, "--delay", "1h", stdin=b"one\ntwo\n") as process:
        assert process.wait() == 0
    with Running(PRODUCE, *asked, "--delay-level", "18", "--json", stdin=b"three\n") as levelled:
        assert levelled.wait() == 0
    async with Admin(broker) as admin:
        (first, second) = (await admin.list_deferred(topic)).rows
        waiting = await admin.message(first.message_id)

    assert [line.split()[:2] for line in process.lines] == [[f"{topic}/{first.queue_id}", "delayed"]] * 2
    assert process.lines[0].split()[2] == first.message_id
    receipt = json.loads(levelled.lines[0])
    assert (receipt["queue_offset"], receipt["is_delayed"]) == (None, True)
    assert receipt["message_id"] == second.message_id
    assert (first.delay_level, second.delay_level) == (0, 18)
    assert timedelta(hours=1) <= from_us(first.due_at) - waiting.born_at <= timedelta(hours=1, milliseconds=10)
    assert (waiting.body, waiting.queue_offset) == (b"one", -1)
    assert await stored(broker, topic) == []


@pytest.mark.slow
def test_a_level_that_the_broker_lacks_is_refused_in_one_line(broker: str, topic: str) -> None:
    with Running(PRODUCE, "--broker", broker, "--topic", topic, "--delay-level", "19", stdin=b"x\n") as process:
        assert process.wait() == exit_codes.REFUSED

    assert len(process.errors) == 1
    assert "19" in process.errors[0]


@pytest.mark.slow
async def test_lines_with_a_key_field_keep_the_order_of_their_key(broker: str, topic: str, tmp_path: Path) -> None:
    lines = [{"id": f"o-{i % 7}", "n": i} for i in range(5000)]
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    arguments = ("--broker", broker, "--topic", topic, "--key-field", "id", "--json", str(file))
    with Running(PRODUCE, *arguments) as process:
        assert process.wait() == 0
    receipts = [json.loads(line) for line in process.lines]
    by_id = {message.message_id: message for message in await stored(broker, topic)}

    # The receipts come in the order of the lines, and lead to them.
    assert [json.loads(by_id[receipt["message_id"]].body) for receipt in receipts] == lines
    assert all(receipt["durable"] and receipt["topic"] == topic for receipt in receipts)
    last: dict[str, int] = {}
    for line, receipt in zip(lines, receipts, strict=True):
        key = str(line["id"])
        assert receipt["queue_id"] == shard(key, 4)
        assert receipt["queue_offset"] > last.get(key, -1)
        last[key] = receipt["queue_offset"]


@pytest.mark.slow
async def test_what_comes_before_a_bad_line_is_sent_and_receipted(broker: str, topic: str) -> None:
    arguments = ("--broker", broker, "--topic", topic, "--key-field", "id")
    with Running(PRODUCE, *arguments, stdin=b'{"id":1}\n{"id":1}\nnonsense\n{"id":1}\n') as process:
        assert process.wait() == exit_codes.DATA_ERROR

    assert len(process.lines) == 2
    assert process.errors == ["rmq-produce: line 3: not a JSON object; it and what follows was not sent"]
    assert len(await stored(broker, topic)) == 2


@pytest.mark.slow
def test_a_line_is_sent_and_receipted_before_the_next_is_typed_until_ctrl_c(broker: str, topic: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", PRODUCE, "--broker", broker, "--topic", topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(b"typed\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(topic.encode())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == exit_codes.INTERRUPTED


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(broker: str, topic: str) -> None:
    read, write = os.pipe()
    os.close(read)
    process = piped(PRODUCE, "--broker", broker, "--topic", topic, input=b"x\n" * 50_000, stdout=write)
    os.close(write)

    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.slow
def test_in_a_terminal_it_says_what_it_waits_for(broker: str, topic: str) -> None:
    terminal, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", PRODUCE, "--broker", broker, "--topic", topic],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        os.write(terminal, b"paid\n\x04")
        printed, errors = process.communicate(timeout=60)
    os.close(terminal)

    assert printed.startswith(f"{topic}/")
    assert (process.returncode, errors) == (0, "each line you type is sent as a message; Ctrl-D to finish\n")


@pytest.mark.slow
def test_receipts_that_do_not_fit_on_their_disk_are_one_line_and_a_code(broker: str, topic: str) -> None:
    with open("/dev/full", "wb") as full:
        process = piped(PRODUCE, "--broker", broker, "--topic", topic, input=b"x\n", stdout=full)

    assert process.returncode == exit_codes.OS_ERROR
    assert process.stderr == b"rmq-produce: the output cannot be written: No space left on device\n"


@pytest.mark.slow
def test_quiet_prints_nothing_and_empty_input_sends_nothing(broker: str, topic: str) -> None:
    with Running(PRODUCE, "--broker", broker, "--topic", topic, "-q", stdin=b"a\nb\n") as process:
        assert (process.wait(), process.lines, process.errors) == (0, [], [])
    with Running(PRODUCE, "--broker", broker, "--topic", topic, stdin=b"") as process:
        assert (process.wait(), process.lines, process.errors) == (0, [], [])


async def test_when_many_sends_fail_only_the_first_failure_is_reported() -> None:
    class Failing:
        async def send_many(self, messages: object, **_: object) -> None:
            raise RequestTimeout("no answer within 30 s")

    async def fail() -> bool:
        sends = Sends(cast(Producer, Failing()), Shape(topic="t", properties={}))
        for number in (1, 2, 3):
            await sends.begin([InputLine(number, b"x", None)])
        try:
            await sends.next()
        except RequestTimeout:
            return True
        return False

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    assert await fail()
    await asyncio.sleep(0)
    gc.collect()

    assert reported == []


async def test_a_full_disk_ends_the_command_with_the_lines_the_reason_and_code_75() -> None:
    class Full:
        async def send_many(self, messages: object, **_: object) -> None:
            raise DiskFull("nothing was stored in 't' within 30 s: the disk has 0 MiB free")

    sends = Sends(cast(Producer, Full()), Shape(topic="t", properties={}))
    await sends.begin([InputLine(1, b"x", None), InputLine(2, b"y", None)])
    with pytest.raises(Failure) as raised:
        await sends.next()

    assert raised.value.exit_code == exit_codes.TEMPORARY == 75
    assert str(raised.value) == "lines 1 to 2: nothing was stored in 't' within 30 s: the disk has 0 MiB free"
