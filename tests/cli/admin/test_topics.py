"""The life of a topic, from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq.cli.admin.topics import GROUP_COLUMNS, QUEUE_COLUMNS, topic_object, topic_text
from rmq.cli.shell import exit_codes
from rmq.wire.protocol.ops.topics import GroupState, QueueState, TopicDescription

from ..commands import admin
from rigs.processes import ConsumerProcess, Running

TOLD = TopicDescription(
    "orders", 3, 2, 1_700_000_000_500_000, 4,
    [QueueState(0, "rmq", 5, 9), QueueState(1, "rmq", 0, 0), QueueState(2, "rmq", 0, 7)],
    [GroupState("billing", 1, [6, -1, 0]), GroupState("audit", 0, [9, 0, 7])],
)  # fmt: skip


def described(broker: str, topic: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(admin("topic", "describe", topic, "--json", "--broker", broker).stdout)
    return told


# ---- what is printed


def test_a_topic_for_people() -> None:
    lines = [line.split() for line in topic_text(TOLD).splitlines()]

    assert " ".join(lines[0]) == (
        "orders: 3 queues, 2 shards, 11 messages, generation 3, created 2023-11-14 22:13:20 UTC"
    )
    assert lines[2:6] == [
        [name.upper() for name in QUEUE_COLUMNS],
        ["0", "rmq", "5", "9", "4"],
        ["1", "rmq", "0", "0", "0"],
        ["2", "rmq", "0", "7", "7"],
    ]
    assert lines[7:] == [
        [name.upper() for name in GROUP_COLUMNS],
        ["billing", "1", "10", "2/3", "7", "in", "queue", "2"],
        ["audit", "0", "0", "3/3", "-"],
        ["and", "4", "more", "groups"],
    ]


def test_a_topic_for_programs() -> None:
    told = topic_object(TOLD)

    assert (told["messages"], told["generation"], told["more_groups"]) == (11, 3, 4)
    assert told["queues"][0] == {"queue_id": 0, "broker": "rmq", "min_offset": 5, "max_offset": 9, "messages": 4}
    assert told["groups"][0] == {
        "group": "billing",
        "members": 1,
        "lag": 10,
        "queues": [
            {"queue_id": 0, "committed": 6, "lag": 3},
            {"queue_id": 1, "committed": None, "lag": 0},
            {"queue_id": 2, "committed": 0, "lag": 7},
        ],
    }


def test_a_topic_without_groups_has_no_table_of_groups() -> None:
    assert "GROUP" not in topic_text(TOLD._replace(groups=[], more_groups=0))


# ---- with a broker


@pytest.mark.slow
def test_a_topic_is_made_listed_and_made_again(broker: str, topic: str) -> None:
    assert admin("topic", "create", topic, "--queues", "3", "--broker", broker).stdout == f"{topic}: 3 queues\n"
    again = admin("topic", "create", topic, "--queues", "3", "--broker", broker, "--json")
    assert json.loads(again.stdout) == {"topic": topic, "queues": 3}

    rows = json.loads(admin("topic", "list", "--broker", broker, "--json").stdout)
    assert {"topic": topic, "queues": 3, "shards": 3, "messages": 0} in rows
    table = admin("topic", "list", "--broker", broker).stdout.splitlines()
    assert table[0].split() == ["TOPIC", "QUEUES", "SHARDS", "MESSAGES"]
    assert [topic, "3", "3", "0"] in [line.split() for line in table]


@pytest.mark.slow
def test_a_topic_with_another_shape_or_a_bad_name_is_refused(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--queues", "3", "--broker", broker)

    other = admin("topic", "create", topic, "--queues", "5", "--broker", broker)
    bad = admin("topic", "create", "a%b%c", "--broker", broker)

    assert (other.exit_code, bad.exit_code) == (exit_codes.REFUSED, exit_codes.USAGE)
    assert f"`rmq-admin topic grow {topic} --queues 5` gives it more" in other.stderr
    assert "may hold only letters" in bad.stderr


@pytest.mark.parametrize("verb", ["create", "grow"])
def test_more_queues_than_a_topic_can_have_are_a_wrong_command_line(nowhere: str, verb: str) -> None:
    result = admin("topic", verb, "orders", "--queues", "99999999999999999999", "--broker", nowhere)

    assert result.exit_code == exit_codes.USAGE
    assert "--queues must be a whole number from 1 to 1024, not 99999999999999999999" in result.stderr


@pytest.mark.slow
def test_a_topic_grows_and_its_keys_stay(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--queues", "3", "--broker", broker)

    grown = admin("topic", "grow", topic, "--queues", "5", "--broker", broker)
    again = admin("topic", "grow", topic, "--queues", "5", "--broker", broker, "--json")
    fewer = admin("topic", "grow", topic, "--queues", "4", "--broker", broker)

    assert grown.stdout == f"{topic}: 5 queues, keys stay in the first 3\n"
    assert json.loads(again.stdout) == {"topic": topic, "queues": 5, "shards": 3}
    assert fewer.exit_code == exit_codes.REFUSED
    assert "never gets fewer" in fewer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["describe"], ["grow", "--queues", "9"], ["delete", "--yes"], ["delete"]])
def test_a_topic_that_does_not_exist_has_a_code_of_its_own(broker: str, arguments: list[str]) -> None:
    result = admin("topic", *arguments, "nothing-of-this-name", "--broker", broker, typed="y\n")

    assert result.exit_code == exit_codes.NO_INPUT
    assert result.stderr.startswith("rmq-admin: there is no topic 'nothing-of-this-name'")
    assert ("topic create" in result.stderr) == (arguments[0] != "delete")


@pytest.mark.slow
def test_creating_a_topic_with_an_illegal_name_is_never_advised(broker: str) -> None:
    result = admin("topic", "describe", "no name", "--broker", broker)

    assert result.stderr == "rmq-admin: there is no topic 'no name': `rmq-admin topic list` shows those that exist\n"


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["n\n", "\n", ""])
def test_deleting_asks_first_and_no_is_no(broker: str, topic: str, typed: str) -> None:
    admin("topic", "create", topic, "--broker", broker)

    result = admin("topic", "delete", topic, "--broker", broker, typed=typed)

    assert result.exit_code == exit_codes.FAILURE
    assert f"Delete {topic} with 0 messages and the progress of 0 groups? [y/N]" in result.stderr
    assert result.stderr.endswith("rmq-admin: nothing was deleted; --yes skips the question\n")
    assert described(broker, topic)["topic"] == topic


@pytest.mark.slow
def test_deleting_after_a_yes(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--broker", broker)

    result = admin("topic", "delete", topic, "--broker", broker, typed="y\n")

    assert (result.exit_code, result.stdout) == (0, f"{topic}: deleted\n")
    assert admin("topic", "describe", topic, "--broker", broker).exit_code == exit_codes.NO_INPUT


@pytest.mark.slow
def test_a_program_is_not_asked_and_must_say_yes(broker: str, topic: str) -> None:
    admin("topic", "create", topic, "--broker", broker)
    generation = described(broker, topic)["generation"]

    refused = admin("topic", "delete", topic, "--json", "--broker", broker, typed="y\n")
    scripted = admin("topic", "delete", topic, "--broker", broker)
    deleted = admin("topic", "delete", topic, "--json", "--yes", "--broker", broker)

    text = f"rmq-admin: cannot ask whether to delete {topic} with all its messages without a terminal: add --yes\n"
    assert (refused.exit_code, refused.stdout, refused.stderr) == (exit_codes.USAGE, "", text)
    assert (scripted.exit_code, scripted.stdout, scripted.stderr) == (exit_codes.USAGE, "", text)
    assert json.loads(deleted.stdout) == {"topic": topic, "generation": generation}


@pytest.mark.slow
def test_the_life_of_a_topic_through_the_real_commands(broker: str, topic: str) -> None:
    """Made by a producer, read by a consumer, described, grown, deleted, and made again from nothing."""

    def run(module: str, *arguments: str, stdin: bytes | None = None) -> list[str]:
        with Running(f"rmq.cli.{module}", *arguments, "--broker", broker, stdin=stdin) as process:
            assert process.wait() == 0, process.errors
            return process.lines

    run("rmq_produce", "--topic", topic, "--key", "k", stdin=b"one\ntwo\nthree\n")
    with ConsumerProcess(broker, topic, "--group", topic) as consumer:
        consumer.wait_for(lambda lines: len(lines) == 3, "the third message")
        assert consumer.stop() == 0

    (told,) = map(json.loads, run("rmq_admin", "topic", "describe", topic, "--json"))
    assert (told["messages"], [(group["group"], group["lag"]) for group in told["groups"]]) == (3, [(topic, 0)])
    assert run("rmq_admin", "topic", "grow", topic, "--queues", "6") == [f"{topic}: 6 queues, keys stay in the first 4"]
    assert run("rmq_admin", "topic", "delete", topic, "--yes") == [f"{topic}: deleted"]
    run("rmq_produce", "--topic", topic, "--key", "k", stdin=b"four\n")
    (again,) = map(json.loads, run("rmq_admin", "topic", "describe", topic, "--json"))
    assert again["generation"] > told["generation"]
    assert (again["messages"], len(again["queues"]), again["groups"]) == (1, 4, [])
