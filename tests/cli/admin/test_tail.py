"""``rmq-admin message tail``: the end of a topic from the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import Result

from rmq.cli.admin.tail import LINES, LINES_SINCE, Shown, TailQuery, tail_line
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message, Producer
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Rows
from rmq.wire.stores import StoreIds

from ..commands import admin
from rigs.batches import STORE_ID, sample
from rigs.processes import Running


def tail(*arguments: str) -> Result:
    return admin("message", "tail", *arguments)


def send(address: str, *messages: Message, queues: int = 2) -> None:
    async def sending() -> None:
        async with Admin(address) as admin:
            await admin.create_topic(messages[0].topic, queues)
        async with Producer(address) as producer:
            for i, message in enumerate(messages):
                await producer.send(message, queue_id=i % queues)

    asyncio.run(sending())


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        (TailQuery("t"), LINES),
        (TailQuery("t", lines=0), 0),
        (TailQuery("t", since=datetime.now(UTC)), LINES_SINCE),
        (TailQuery("t", lines=7, since=datetime.now(UTC)), 7),
    ],
)
def test_since_a_time_there_are_many_unless_a_number_is_given(asked: TailQuery, most: int) -> None:
    assert asked.most == most


@pytest.mark.parametrize(
    ("asked", "is_wanted"),
    [
        (TailQuery("orders"), True),
        (TailQuery("orders", queues=(2,), expression="created || paid", key="o-17"), True),
        (TailQuery("orders", queues=(1,)), False),
        (TailQuery("orders", expression="paid"), False),
        (TailQuery("orders", key="o-1"), False),
    ],
)
def test_all_conditions_must_hold(asked: TailQuery, is_wanted: bool) -> None:
    (first, *_) = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()

    assert asked.has(first) == is_wanted


def test_a_message_is_one_line_with_its_time_in_utc() -> None:
    first, _, third = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()

    assert tail_line(first) == "11-14 22:13:20.123Z orders/2 @1000 tag=created key=o-17 index_keys=o-17  created"
    assert f" {first.message_id} orders/2 " in tail_line(first, ids=True)
    assert tail_line(first, body=4).endswith("  crea... (7 bytes)")
    assert tail_line(first, body=7).endswith("  created")
    assert tail_line(third).endswith(r"paid \x00\xff")


def test_the_key_and_the_index_keys_of_a_message_are_shown() -> None:
    rows = Rows([b"x", b"y"], 1, index_keys=[(), ("a", "b")], keys=["o-17", "o-17"])
    plain, with_keys = batches.read(sample(rows), stores=StoreIds(STORE_ID)).messages()

    assert tail_line(plain).endswith(" key=o-17  x")
    assert tail_line(with_keys).endswith(" key=o-17 index_keys=a,b  y")


def test_as_json_a_message_is_what_get_shows() -> None:
    (first, *_) = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()
    shown = json.loads(Shown(as_json=True).text([first]))

    assert (shown["message_id"], shown["body"]) == (first.message_id, "created")


@pytest.mark.slow
def test_the_newest_messages_are_shown_with_and_without_conditions(broker: str, topic: str) -> None:
    tags = ("new", "paid")
    rows_sent = [(b"%d" % i, tags[i % 2], f"{topic}-{i % 3}") for i in range(12)]
    key = f"{topic} key"
    send(broker, *[Message(topic, body, key=key, tag=tag, index_keys=(name,)) for body, tag, name in rows_sent])

    def rows(*more: str) -> list[str]:
        result = tail(topic, "--broker", broker, "--json", *more)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["body"] for line in result.stdout.splitlines()]

    assert rows() == [str(i) for i in range(2, 12)]
    assert rows("-n", "2") == ["10", "11"]
    assert rows("-n", "2", "--queue", "0") == ["8", "10"]
    assert rows("-n", "2", "--tag", "new || old") == ["8", "10"]
    assert rows("-n", "2", "--key", f"{topic}-1") == ["7", "10"]
    assert rows("--key", f"{topic}-1", "--tag", "paid", "--queue", "1") == ["1", "7"]
    assert rows("-n", "2", "--index-key", f"{topic}-1") == ["7", "10"]
    assert rows("-n", "2", "--key", key) == ["10", "11"]
    assert rows("--since", "10m") == [str(i) for i in range(12)]
    assert rows("-n", "0") == []
    none = tail(topic, "--broker", broker, "--key", "no-such-key")
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr.startswith("no stored message has the key 'no-such-key'")
    assert rows("-n", "0", "--key", f"{topic}-1") == []
    newest = tail(topic, "--broker", broker, "-n", "1").stdout
    assert newest.endswith(f"{topic}/1 @5 tag=paid key={key} index_keys={topic}-2  11\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere"], exit_codes.NO_INPUT, "there is no topic 'nowhere'"),
        (["few", "--queue", "2"], exit_codes.NO_INPUT, "the topic 'few' has the queues 0 to 1, not 2"),
        (["few", "--queue", "2", "--key", "k"], exit_codes.NO_INPUT, "the topic 'few' has the queues 0 to 1, not 2"),
        (["few", "--tag", "a b"], exit_codes.USAGE, "such as 'created || paid'"),
        (["few", "--since", "soon"], exit_codes.USAGE, "'soon' is not a time"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_code(broker: str, arguments: list[str], code: int, sentence: str) -> None:
    send(broker, Message("few", b"x"))
    result = tail(*arguments, "--broker", broker)

    assert result.exit_code == code
    assert sentence in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_following_ends_with_ctrl_c_and_with_the_topic(broker: str, topic: str) -> None:
    send(broker, Message(topic, b"first"))
    follow = ("message", "tail", topic, "--follow", "--broker", broker)
    with Running("rmq.cli.rmq_admin", *follow) as one, Running("rmq.cli.rmq_admin", *follow, "-n", "0") as other:
        one.wait_for(lambda lines: bool(lines), "what is there")
        number = 0
        while not other.lines:  # it may not have begun yet: what comes before that is not shown
            number += 1
            send(broker, Message(topic, b"%d" % number))
        first = other.lines[0]
        one.wait_for(lambda lines: first in lines, "what comes")
        assert one.stop(signal.SIGINT) == 0
        assert admin("topic", "delete", topic, "--yes", "--broker", broker).exit_code == 0
        assert other.wait() == exit_codes.NO_INPUT

    assert one.errors == []
    assert other.errors == [f"rmq-admin: the topic {topic!r} was deleted"]
    assert [line.split()[-1] for line in one.lines[:2]] == ["first", "1"]


@pytest.mark.slow
def test_following_ends_quietly_when_the_reader_leaves(broker: str, topic: str) -> None:
    send(broker, Message(topic, b"only"))
    arguments = ["message", "tail", topic, "--follow", "--broker", broker]
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq.cli.rmq_admin", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"only\n")
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
