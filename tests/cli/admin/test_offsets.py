"""``rmq-admin group reset-offset``: where a group is put, what is said of it, and that a mistake changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from rmq.cli.admin.offsets import parse_place, reset_object
from rmq.cli.shell import exit_codes
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import ResetResult

from ..commands import admin
from rigs.processes import ConsumerProcess, Running

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def reset(broker: str, group: str, topic: str, *arguments: str, create: bool = True) -> Result:
    made = ["--create"] if create else []
    return admin("group", "reset-offset", group, "--topic", topic, *arguments, *made, "--broker", broker)


def committed(broker: str, group: str) -> list[int | None]:
    result = admin("group", "describe", group, "--json", "--broker", broker)
    return [queue["committed"] for queue in json.loads(result.stdout)["queues"]]


@pytest.fixture
def filled(broker: str, topic: str) -> str:
    """A topic of three queues; the first has five messages."""
    assert admin("topic", "create", topic, "--queues", "3", "--broker", broker).exit_code == 0
    produce(broker, topic, 5)
    return topic


def produce(broker: str, topic: str, count: int) -> None:
    lines = b"".join(b"%d\n" % i for i in range(count))
    with Running("rmq.cli.rmq_produce", "--topic", topic, "--key", "k", "--broker", broker, stdin=lines) as producer:
        assert producer.wait() == 0, producer.errors


def filled_queue(broker: str, topic: str) -> int:
    queues = json.loads(admin("topic", "describe", topic, "--json", "--broker", broker).stdout)["queues"]
    return next(queue["queue_id"] for queue in queues if queue["max_offset"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("first", "first"),
        (" last ", "last"),
        ("0", 0),
        ("1234", 1234),
        ("90s", NOW - timedelta(seconds=90)),
        ("2026-01-01T00:00+00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("@1769860800", NOW),
    ],
)
def test_a_place_is_an_end_an_offset_or_a_time(text: str, place: Any) -> None:
    assert parse_place(text, NOW) == place


@pytest.mark.parametrize("text", ["", "-1", "middle", "1.5", "10 minutes"])
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a place in a queue: write first, last, 1234 \(an offset\), 10m"):
        parse_place(text, NOW)


@pytest.mark.parametrize("digits", [19, 40, 5000])
def test_an_offset_that_no_queue_can_have_is_refused_by_its_length(digits: int) -> None:
    with pytest.raises(ValueError, match=f"an offset has at most 18 digits, not {digits}"):
        parse_place("9" * digits, NOW)


@pytest.mark.parametrize(("old", "moves_by"), [(-1, None), (4, 3), (7, 0), (9, -2)])
def test_what_became_of_a_queue(old: int, moves_by: int | None) -> None:
    told = reset_object(MessageQueue("orders", 2), ResetResult(0, old, 7))

    assert told == {
        "topic": "orders", "queue_id": 2, "old_offset": None if old < 0 else old, "new_offset": 7, "moves_by": moves_by,
    }  # fmt: skip


@pytest.mark.slow
def test_a_dry_run_shows_what_would_be_done_and_does_nothing(broker: str, filled: str) -> None:
    reset(broker, filled, filled, "--to", "first")

    dry = reset(broker, filled, filled, "--to", "last", "--dry-run")

    assert dry.exit_code == 0
    assert dry.stdout.splitlines()[0].split() == ["TOPIC", "QUEUE", "OLD_OFFSET", "NEW_OFFSET", "MOVES_BY"]
    rows = [line.split() for line in dry.stdout.splitlines()[1:]]
    queue = filled_queue(broker, filled)
    assert rows[queue] == [filled, str(queue), "0", "5", "5"]
    assert dry.stderr == "dry run: nothing was changed\n"
    assert committed(broker, filled) == [0, 0, 0]


@pytest.mark.slow
def test_all_queues_or_one_are_put_at_an_end_or_an_offset(broker: str, filled: str) -> None:
    queue = filled_queue(broker, filled)
    ends = [5 if i == queue else 0 for i in range(3)]

    last = reset(broker, filled, filled, "--to", "last", "--json")
    assert [row["new_offset"] for row in json.loads(last.stdout)] == ends
    assert [row["moves_by"] for row in json.loads(last.stdout)] == [None] * 3
    assert committed(broker, filled) == ends

    one = reset(broker, filled, filled, "--to", "2", "--queue", str(queue), "--json")
    assert json.loads(one.stdout) == [
        {"topic": filled, "queue_id": queue, "old_offset": 5, "new_offset": 2, "moves_by": -3}
    ]
    assert committed(broker, filled)[queue] == 2


@pytest.mark.slow
def test_a_time_is_looked_up_in_each_queue(broker: str, filled: str) -> None:
    queue = filled_queue(broker, filled)

    before = json.loads(reset(broker, filled, filled, "--to", "1h", "--json").stdout)
    after = json.loads(reset(broker, filled, filled, "--to", "0s", "--json").stdout)

    assert before[queue]["new_offset"] == 0
    assert after[queue]["new_offset"] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--to", "6"], exit_codes.REFUSED, "offset 6 is out of range"),
        (["--to", "3"], exit_codes.REFUSED, "offset 3 is out of range"),
        (["--to", "0", "--queue", "3"], exit_codes.NO_INPUT, "has the queues 0 to 2, not 3"),
        (["--to", "middle"], exit_codes.USAGE, "is not a place in a queue"),
        ([], exit_codes.USAGE, "--to"),
    ],
)
def test_a_mistake_changes_nothing(broker: str, filled: str, arguments: list[str], code: int, sentence: str) -> None:
    """Also where some of the queues have the offset."""
    reset(broker, filled, filled, "--to", "first")

    refused = reset(broker, filled, filled, *arguments)

    assert (refused.exit_code, refused.stdout) == (code, "")
    assert sentence in refused.stderr
    assert committed(broker, filled) == [0, 0, 0]


@pytest.mark.slow
def test_a_topic_that_does_not_exist_has_a_code_of_its_own(broker: str) -> None:
    result = reset(broker, "g", "nothing-of-this-name", "--to", "first")

    assert result.exit_code == exit_codes.NO_INPUT


@pytest.mark.slow
def test_an_unknown_group_is_refused_unless_create_is_given(broker: str, filled: str) -> None:
    refused = reset(broker, filled, filled, "--to", "last", create=False)

    assert (refused.exit_code, refused.stdout) == (exit_codes.NO_INPUT, "")
    assert refused.stderr.endswith("shows those that exist; add --create to create it\n")
    assert reset(broker, filled, filled, "--to", "last").exit_code == 0
    assert reset(broker, filled, filled, "--to", "first", create=False).exit_code == 0


@pytest.mark.slow
def test_a_running_member_continues_at_the_offset_that_was_set(broker: str, filled: str) -> None:
    with ConsumerProcess(broker, filled, "--group", filled) as consumer:
        consumer.wait_for(lambda lines: len(lines) == 5, "the fifth message")

        with Running(
            "rmq.cli.rmq_admin", "group", "reset-offset", filled, "--topic", filled, "--to", "first", "--broker", broker
        ) as command:
            assert command.wait() == 0, command.errors

        consumer.wait_for(lambda lines: len(lines) == 10, "the fifth message again")
        assert consumer.stop() == 0
        offsets = [message["queue_offset"] for message in consumer.messages]

    assert offsets == [0, 1, 2, 3, 4] * 2
    assert committed(broker, filled)[filled_queue(broker, filled)] == 5
