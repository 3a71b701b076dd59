"""Messages on standard output: complete, in order, committed only when printed, and a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq.cli.rmq_consume import command
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message, Producer

from .commands import piped
from rigs.processes import BrokerProcess, ConsumerProcess, Running

CONSUME = "rmq.cli.rmq_consume"
FIELDS = {
    "topic", "queue_id", "queue_offset", "message_id", "tag", "index_keys", "body", "properties", "key",
    "attempt", "epoch", "born_at", "stored_at", "copy_of",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--topic", "t"], exit_codes.USAGE, "choose how to consume: give one of --orderly, --concurrent"),
        (["--topic", "t", "--orderly", "--concurrent"], exit_codes.USAGE, "give one of --orderly, --concurrent"),
        (
            ["--topic", "t", "--orderly", "--listener", "a:b", "--json"],
            exit_codes.USAGE,
            "with --listener, which",
        ),
        (["--topic", "t", "--orderly", "--group", "a%b%c"], exit_codes.CONFIG, "group"),
        (["--topic", "t", "--orderly", "--from", "middle"], exit_codes.CONFIG, "start_from"),
        (["--topic", "t", "--orderly", "--on-gap", "ignore"], exit_codes.CONFIG, "on_gap"),
        (["--topic", "t", "--orderly", "-o", "slot=3"], exit_codes.CONFIG, "did you mean 'slots'?"),
        (["--topic", "t", "--orderly", "--tags", "a b"], exit_codes.CONFIG, "joined by '||'"),
        (["--topic", "a%b%c", "--orderly"], exit_codes.USAGE, "may hold only letters"),
        (["--topic", "50%", "--orderly", "--no-wait"], exit_codes.USAGE, "has nothing behind its namespace"),
        (["--topic", "t", "--orderly", "--instance", "x"], exit_codes.USAGE, "requires --broadcast"),
        (["--topic", "t", "--concurrent", "--offsets-dir", "x"], exit_codes.USAGE, "requires --broadcast"),
        (["--topic", "t", "--orderly", "--broadcast", "--instance", "../x"], exit_codes.CONFIG, "instance"),
        (["--topic", "t", "--orderly", "--instance", "left"], exit_codes.USAGE, "--instance requires --broadcast"),
        (["--topic", "t", "--pull", "--offsets-dir", "/x"], exit_codes.USAGE, "--offsets-dir requires --broadcast"),
        (["--topic", "t", "--orderly", "--broadcast", "-o", "strategy=circle"], exit_codes.CONFIG, "has every queue"),
        (["--topic", "t", "--concurrent", "--broadcast", "--offsets-dir", "/dev/null/x"], exit_codes.CONFIG, "kept in"),
        (["--topic", "t", "--orderly", "--listener", "nowhere:f"], exit_codes.NO_INPUT, "no module"),
    ],
)
def test_a_users_mistake_is_one_sentence(nowhere: str, arguments: list[str], code: int, text: str) -> None:
    result = CliRunner().invoke(command, ["--broker", nowhere, *arguments], prog_name="rmq-consume")

    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
async def test_without_a_topic_those_that_exist_are_named(broker: str, topic: str) -> None:
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"x"])

    with Running(CONSUME, "--broker", broker, "--orderly") as process:
        assert process.wait() == exit_codes.USAGE
        assert process.errors[-1].startswith("rmq-consume: --topic is required; existing topic")


@pytest.mark.slow
async def test_json_has_every_field_and_a_count_ends_it_exactly(broker: str, topic: str) -> None:
    async with Producer(broker) as producer:
        for i in range(5):
            message = Message(topic, b"m%d" % i, tag="paid", index_keys=("a", "b"), properties={"x": "1"})
            await producer.send(message, key="k")
        await producer.send(Message(topic, b"\xff"), key="k")

    with ConsumerProcess(broker, topic, "--group", topic, "--count", "4") as first:
        assert first.wait() == 0
    with ConsumerProcess(broker, topic, "--group", topic, "--count", "2") as second:
        assert second.wait() == 0

    assert [message["body"] for message in first.messages] == ["m0", "m1", "m2", "m3"]
    message = first.messages[0]
    assert set(message) == FIELDS
    assert (message["topic"], message["queue_offset"], message["attempt"]) == (topic, 0, 1)
    assert (message["tag"], message["index_keys"], message["properties"]) == ("paid", ["a", "b"], {"x": "1"})
    assert datetime.fromisoformat(message["born_at"]) <= datetime.fromisoformat(message["stored_at"])
    # What the first member was given beyond its count is a first delivery for the second.
    assert [message.get("body") for message in second.messages] == ["m4", None]
    assert [message["attempt"] for message in second.messages] == [1, 1]
    assert second.messages[1]["body_base64"] == "/w=="
    assert int(second.messages[0]["epoch"]) > int(first.messages[0]["epoch"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_cleanly_and_what_was_printed_is_not_repeated(
    broker: str, topic: str, number: signal.Signals
) -> None:
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"a", b"b"], key="k")
        with Running(CONSUME, "--broker", broker, "--orderly", "--topic", topic, "--group", topic) as first:
            first.wait_for(lambda lines: len(lines) == 2, "two messages")
            assert first.stop(number) == 0
        await producer.send_bodies(topic, [b"c"], key="k")

    with ConsumerProcess(broker, topic, "--group", topic, "--count", "1") as second:
        assert second.wait() == 0

    queue = f"{topic}/{second.messages[0]['queue_id']}"
    assert first.lines == [f"{queue} @0 key=k attempt=1  a", f"{queue} @1 key=k attempt=1  b"]
    assert first.errors == []
    assert second.messages[0]["body"] == "c"


@pytest.mark.slow
async def test_many_at_a_time_are_printed_whole_and_a_failed_one_comes_again(
    broker: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "fails_once.py").write_text(
        "from rmq.consumer import ConsumeStatus\n"
        "async def on_message(messages, context):\n"
        "    print(*[m.body.decode() for m in messages], messages[0].attempt, messages[0].topic, flush=True)\n"
        "    context.delay_level = 1\n"
        "    return ConsumeStatus.RETRY if messages[0].attempt == 1 else ConsumeStatus.SUCCESS\n"
    )
    arguments = ["--broker", broker, "--concurrent", "--topic", topic, "--group", topic]
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"m%d" % i for i in range(50)])
        with Running(CONSUME, *arguments, "--json", "--count", "50") as first:
            assert first.wait() == 0
        await producer.send_bodies(topic, [b"x"])
        with Running(CONSUME, *arguments, "--listener", "fails_once:on_message", cwd=tmp_path) as second:
            second.wait_for(lambda lines: len(lines) == 2, "a delivery and its retry")
            assert second.stop() == 0

    printed = [json.loads(line) for line in first.lines]
    assert sorted(message["body"] for message in printed) == sorted(f"m{i}" for i in range(50))
    assert {message["attempt"] for message in printed} == {1}
    assert second.lines == [f"x 1 {topic}", f"x 2 {topic}"]


@pytest.mark.slow
async def test_only_the_tags_that_were_asked_for(broker: str, topic: str) -> None:
    async with Producer(broker) as producer:
        for tag in ("created", "paid", "sent", "paid"):
            await producer.send(Message(topic, tag.encode(), tag=tag), key="k")

    with ConsumerProcess(broker, topic, "--tags", "created || paid", "--group", topic, "--count", "3") as consumer:
        assert consumer.wait() == 0

    assert [message["body"] for message in consumer.messages] == ["created", "paid", "paid"]


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly_even_when_nothing_comes(broker: str, topic: str) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", CONSUME, "--broker", broker, "--orderly", "--topic", topic, "--group", topic],
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    os.close(read)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()

    assert (process.returncode, errors) == (0, b"")


@pytest.mark.slow
async def test_a_broker_that_starts_later_is_waited_for(tmp_path: Path, nowhere: str, topic: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = broker.address
    with ConsumerProcess(address, topic) as consumer:
        consumer.wait_for(lambda _: bool(consumer.errors), "a word about the missing broker")
        assert len(consumer.errors) == 1
        assert f"no broker at {address}: start one with" in consumer.errors[0]
        with BrokerProcess(tmp_path, address):
            async with Producer(address) as producer:
                await producer.send_bodies(topic, [b"at last"])
            consumer.wait_for(bool, "the message")
            assert consumer.stop() == 0

    assert consumer.messages[0]["body"] == "at last"


@pytest.mark.slow
async def test_a_listener_of_the_users_own_in_the_current_folder_prints_at_once(
    broker: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "consumer.py").write_text(
        "from rmq.consumer import ConsumeStatus\n"
        "def on_message(messages, context):\n"
        "    print('got', *[m.body.decode() for m in messages], context.epoch > 0)\n"
        "    return ConsumeStatus.SUCCESS\n"
    )
    async with Producer(broker) as producer:
        await producer.send_bodies(topic, [b"x"])
    process = subprocess.Popen(
        [
            sys.executable, "-m", CONSUME, "--broker", broker, "--orderly", "--topic", topic, "--group", topic,
            "--listener", "consumer:on_message",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"got x True\n"
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
async def test_broadcasting_members_print_everything_and_a_second_of_the_same_instance_is_refused(
    broker: str, topic: str, tmp_path: Path
) -> None:
    def member(instance: str) -> ConsumerProcess:
        options = ("--broadcast", "--group", topic, "--instance", instance, "--offsets-dir", str(tmp_path / instance))
        return ConsumerProcess(broker, topic, *options)

    async with Producer(broker) as producer:
        await producer.send_many([Message(topic, b"%d" % i) for i in range(3)], key="k")
        with member("left") as left, member("right") as right:
            for process in (left, right):
                process.wait_for(lambda lines: len(lines) == 3, "three messages")

            with member("left") as again:
                assert again.wait() == exit_codes.CONFIG
            with ConsumerProcess(broker, topic, "--group", topic) as clustering:
                assert clustering.wait() == exit_codes.REFUSED

            assert right.stop() == 0
            left.kill()
        await producer.send(Message(topic, b"3"), key="k")

    assert again.errors == [
        f"rmq-consume: instance 'left' of group '{topic}' runs already with {tmp_path / 'left'} (process "
        f"{left.process.pid}): give each member on this machine another instance"
    ]
    assert "is ordered, broadcasting" in clustering.errors[-1]
    with member("right") as right, member("left") as left:
        for process in (left, right):
            process.wait_for(lambda lines: '"body":"3"' in lines[-1] if lines else False, "the fourth message")
    assert [message["body"] for message in right.messages] == ["3"]

    options = ["--topic", topic, "--group", f"{topic}-c", "--offsets-dir", str(tmp_path / "c"), "--count", "4"]
    with Running(CONSUME, "--broker", broker, "--concurrent", "--broadcast", *options) as concurrent:
        assert concurrent.wait() == 0
    assert len(concurrent.lines) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--orderly", "--pull"])
async def test_messages_that_do_not_fit_on_the_disk_of_the_output_end_it_and_are_not_consumed(
    broker: str, topic: str, mode: str
) -> None:
    async with Producer(broker) as producer:
        await producer.send(Message(topic, b"created"))
    with open("/dev/full", "wb") as full:
        process = piped(CONSUME, "--broker", broker, mode, "--topic", topic, "--group", topic, stdout=full)

    assert process.returncode == exit_codes.OS_ERROR
    assert process.stderr == b"rmq-consume: the output cannot be written: No space left on device\n"
    async with Admin(broker) as admin:
        assert (await admin.describe_group(topic)).lag == 1
