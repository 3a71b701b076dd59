"""``rmq-admin group``: output for people and programs, exit codes, and lag in time."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli.admin.groups import (
    MEMBER_COLUMNS,
    QUEUE_COLUMNS,
    ages_of,
    ahead,
    group_object,
    group_text,
    list_cells,
    list_text,
    member_card,
    next_offsets,
    oldest,
    row_object,
)
from rmq.cli.rmq_admin import command
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Producer
from rmq.client.admin.messages import Head
from rmq.engine.native.connection import Connection
from rmq.wire.errors import Damaged, MemberNotFound, MemberSilent
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, Join, Op
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue, GroupRow, MemberReport, MemberState

from ..commands import admin
from rigs.processes import ConsumerProcess, Running

OWNER = "host@17#abcd1234"
MEMBERS = [
    MemberState(OWNER, "abcd1234", "127.0.0.1:5555", "connected", 0.25, 1),
    MemberState("host@18#00ff00ff", "00ff00ff", None, "grace", 3.0, 0),
]
TOLD = GroupDescription(
    "billing", True, "clustering", "average", 0, 0, {"orders": "paid || sent"}, MEMBERS,
    [
        GroupQueue("orders", 0, 2, 9, 4, 5, OWNER, (1 << 32) + 7, 51.5, "held"),
        GroupQueue("orders", 1, 0, 3, -1, 3, None, 0, 0.0, None, 1, 4, 1, 2),
        GroupQueue("orders", 2, 0, 3, 3, 0, OWNER, 9, 4.0, "grace, retrying offset 2 (attempt 3)", 2, 2),
    ],
)  # fmt: skip
AGES = {MessageQueue("orders", 0): 754.2, MessageQueue("orders", 1): 3.5}


# ---- what is printed


def test_a_group_for_people() -> None:
    lines = group_text(TOLD, AGES).splitlines()

    assert lines[:2] == [
        "billing: ordered clustering average, 8 messages behind, the oldest is 12m34s old",
        "subscribes to orders: paid || sent",
    ]
    assert [line.split() for line in lines[3:6]] == [
        [name.upper() for name in MEMBER_COLUMNS],
        [OWNER, "127.0.0.1:5555", "connected", "0.2s", "ago", "1"],
        ["host@18#00ff00ff", "-", "grace", "3.0s", "ago", "0"],
    ]
    assert [line.split() for line in lines[7:11]] == [
        [name.upper() for name in QUEUE_COLUMNS],
        ["orders", "0", "4", "9", "5", "12m34s", "abcd1234", "51.5s"],
        ["orders", "1", "-", "3", "3", "3.5s", "-", "-"],
        ["orders", "2", "3", "3", "0", "-", "abcd1234", "4.0s"],
    ]
    assert lines[12:] == [
        "orders/1: no owner, offset 1 failed 4 times, 2 owners lost at offset 1",
        "orders/2: grace, retrying offset 2 (attempt 3)",
    ]
    assert max(map(len, lines)) <= 80


def test_a_group_without_members_and_with_too_many_queues() -> None:
    empty = GroupDescription("g", None, None, None, 3, 9, {}, [], [GroupQueue("orders", 0, 0, 1, 0, 1)])

    assert group_text(empty, {}).splitlines() == [
        "g: no members, 1 message behind", "", "no members", "and 3 more members", "",
        "TOPIC   QUEUE  COMMITTED  END  LAG  AGE  OWNER  LEFT",
        "orders      0          0    1    1    -  -         -",
        "and 9 more queues: --topic shows those of one topic",
    ]  # fmt: skip


def test_a_group_for_programs() -> None:
    told = group_object(TOLD, AGES)

    assert (told["group"], told["ordered"], told["lag"], told["more_queues"]) == ("billing", True, 8, 0)
    assert (told["lag_s"], [queue["lag_s"] for queue in told["queues"]]) == (754.2, [754.2, 3.5, None])
    assert told["subscriptions"] == {"orders": "paid || sent"}
    assert told["members"][1] == {
        "member": "host@18#00ff00ff", "session": "00ff00ff", "address": None, "state": "grace", "heard_ago_s": 3.0,
        "leases": 0,
    }  # fmt: skip
    assert told["queues"][1] == {
        "topic": "orders", "queue_id": 1, "min_offset": 0, "max_offset": 3, "committed": None, "lag": 3, "lag_s": 3.5,
        "owner": None, "epoch": None, "lease_left_s": None, "state": None, "retry_offset": 1, "attempts": 4,
        "suspect_offset": 1, "abandoned": 2, "former": None,
    }  # fmt: skip


def test_members_of_a_broadcasting_group_keep_their_progress_and_have_no_lag_in_common() -> None:
    queue = GroupQueue("quotes", 0, 2, 9, -1, 7)
    told = GroupDescription("p", False, "broadcasting", "all", 0, 0, {"quotes": "*"}, MEMBERS[:1], [queue])
    row = GroupRow("p", False, "broadcasting", "all", 1, 0, 1, 7)

    lines = group_text(told, {}).splitlines()

    assert lines[0] == "p: concurrent broadcasting all, progress per member"
    assert [line.split() for line in lines[6:8]] == [["TOPIC", "QUEUE", "FIRST", "END"], ["quotes", "0", "2", "9"]]
    assert lines[8:] == ["", "each member keeps its own progress: see `rmq-admin group members p --verbose`"]
    assert (group_object(told, {})["lag"], group_object(told, {})["queues"][0]["lag"]) == (None, None)
    assert (row_object(row, None)["lag"], row_object(row, None)["lag_s"]) == (None, None)
    assert list_cells(row, None) == ["p", "concurrent broadcasting all", 1, 0, 1, None, None]
    assert list_cells(row._replace(model="clustering", more_queues=1), 3.25)[-2:] == ["7+", "3.2s"]


def test_a_narrow_terminal_is_shown_less_of_modes_and_of_long_names() -> None:
    rows: list[tuple[GroupRow, float | None]] = [
        (GroupRow("billing-" + "n" * 119, False, "clustering", "average", 1, 3, 2, 643), 2.9),
        (GroupRow("prices", True, "broadcasting", "all", 2, 0, 1, 0), None),
        (GroupRow("old", None, None, None, 0, 0, 1, 9), 90.0),
    ]

    wide, narrow = list_text(rows), list_text(rows, 80)

    assert rows[0][0].group in wide
    assert max(map(len, narrow.splitlines())) == 80
    first, second, third = (line.split() for line in narrow.splitlines()[1:])
    assert first[0].startswith("billing-nnn")
    assert [first[1], second[1], third[1]] == ["concurrent", "broadcast", "-"]
    assert "concurrent clustering average" in list_text([(rows[0][0]._replace(group="short"), 2.9)], 80)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (MemberReport(MemberSilent.code, OWNER, "..."), "silent: no answer within 1 s; it may be stopped, or "),
        (MemberReport(MemberNotFound.code, OWNER, "m has no connection\x1b"), "not asked: m has no connection\\x1b"),
        (MemberReport(0, OWNER, None, {"version": "9"}), "rmq 9"),
        (None, "has left the group"),
    ],
)
def test_a_member_that_does_not_answer_is_shown_as_such(report: MemberReport | None, line: str) -> None:
    reports = {} if report is None else {OWNER: report}

    heading, told = member_card(MEMBERS[0], reports).splitlines()

    assert heading == f"{OWNER}: at 127.0.0.1:5555, connected, heard 0.2s ago, 1 lock"
    assert told.startswith(f"  {line}")


# ---- with a broker


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["describe"], ["members"], ["members", "--verbose"], ["members", "--json"]])
def test_a_group_that_does_not_exist_has_a_code_of_its_own(broker: str, arguments: list[str]) -> None:
    result = admin("group", *arguments, "nobody-of-this-name", "--broker", broker)

    assert (result.exit_code, result.stdout) == (exit_codes.NO_INPUT, "")
    text = "there is no group 'nobody-of-this-name': `rmq-admin group list` shows those that exist"
    assert result.stderr == f"rmq-admin: {text}\n"


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--verbose"], ["--json"]])
def test_a_group_without_members_is_reported_on_standard_error(broker: str, topic: str, more: list[str]) -> None:
    admin("topic", "create", topic, "--broker", broker)
    admin("group", "reset-offset", topic, "--topic", topic, "--to", "first", "--create", "--broker", broker)

    result = admin("group", "members", topic, "--broker", broker, *more)

    assert result.exit_code == 0
    assert result.stderr == f"the group has no members: `rmq-admin explain {topic}` shows what waits for it\n"


@pytest.mark.slow
def test_a_name_that_cannot_be_is_a_mistake_of_the_command_line(broker: str) -> None:
    result = admin("group", "describe", "no name", "--broker", broker)

    assert result.exit_code == exit_codes.USAGE
    assert "may hold only letters" in result.stderr


@pytest.mark.slow
def test_a_topic_that_does_not_exist_is_refused(broker: str, topic: str) -> None:
    result = admin("group", "describe", topic, "--topic", "nothing-of-this-name", "--broker", broker)

    assert result.exit_code == exit_codes.NO_INPUT
    assert "there is no topic 'nothing-of-this-name'" in result.stderr


@asynccontextmanager
async def odd_member(broker: str, group: str) -> AsyncIterator[Connection]:
    """A member that answers every question with something odd."""

    def answer(push: int, payload: list[Any]) -> None:
        told = {"version": 7, "queues": [3, {"topic": b"\xff"}], "statistics": [], "x": [b"\0"]}
        asyncio.get_running_loop().create_task(connection.request(Op.RUNNING_INFO, (payload[0], told)))

    connection = Connection(broker, client="odd", on_push=answer)
    await connection.open(timeout_s=5)
    await connection.request(Op.JOIN, Join(group, True, "clustering", "average", {"t": "*"}))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.slow
async def test_a_malformed_member_report_is_shown_without_an_error(broker: str, topic: str) -> None:
    async with odd_member(broker, topic) as member:
        text = await asyncio.to_thread(admin, "group", "members", topic, "--verbose", "--broker", broker)
        told = await asyncio.to_thread(admin, "group", "members", topic, "--verbose", "--json", "--broker", broker)

    assert text.exit_code == told.exit_code == 0
    assert "rmq of an unknown version\n" in text.stdout
    (row,) = json.loads(told.stdout)
    assert (row["member"], row["error"]) == (member.member, None)
    assert row["info"] == {"version": 7, "queues": [3, {"topic": "ff"}], "statistics": [], "x": ["00"]}


def _rows(broker: str, group: str) -> list[dict[str, Any]]:
    listed = json.loads(admin("group", "list", "--json", "--broker", broker).stdout)
    return [row for row in listed if row["group"] == group]


@pytest.mark.slow
def test_a_group_through_the_real_commands(broker: str, topic: str) -> None:
    """Listed, described, asked, with a member that is stopped; and still known when all have left."""

    def run(*arguments: str, stdin: bytes | None = None, module: str = "rmq_admin") -> list[str]:
        with Running(f"rmq.cli.{module}", *arguments, "--broker", broker, stdin=stdin) as process:
            assert process.wait() == 0, process.errors
            return process.lines

    run("--topic", topic, "--key", "k", stdin=b"one\ntwo\nthree\n", module="rmq_produce")
    with ConsumerProcess(broker, topic, "--group", topic, "-o", "batch=2") as consumer:
        consumer.wait_for(lambda lines: len(lines) == 3, "the third message")
        (told,) = json.loads(run("group", "members", topic, "--verbose", "--json")[0])
        assert told["info"]["settings"]["batch"] == 2
        assert [queue["queue_id"] for queue in told["info"]["queues"]] == [0, 1, 2, 3]
        assert told["info"]["statistics"][f"{topic}@{topic}"]["consumed_ok"]["total"] == 3
        card = run("group", "members", topic, "--verbose")
        assert card[0].startswith(f"{told['member']}: at 127.0.0.1:")
        assert any(line.startswith("  settings: batch=2") for line in card)

        consumer.process.send_signal(signal.SIGSTOP)
        silent = run("group", "members", topic, "--verbose")
        (unknown,) = json.loads(run("group", "members", topic, "--verbose", "--json")[0])
        consumer.process.send_signal(signal.SIGCONT)

        assert silent[1].startswith("  silent: no answer within 1 s")
        assert (unknown["info"], "did not answer within 1 s" in unknown["error"]) == (None, True)
        assert run("group", "members", topic)[0].split() == [name.upper() for name in MEMBER_COLUMNS]
        assert consumer.stop() == 0

    (described,) = map(json.loads, run("group", "describe", topic, "--json"))
    assert (described["ordered"], described["members"], described["lag"]) == (None, [], 0)
    assert [(row["members"], row["leases"], row["topics"], row["lag"]) for row in _rows(broker, topic)] == [
        (0, 0, 1, 0)
    ]
    assert [topic, "-", "0", "0", "1", "0", "-"] in [line.split() for line in run("group", "list")]

    run("--topic", topic, "--key", "k", stdin=b"four\n", module="rmq_produce")
    (described,) = map(json.loads, run("group", "describe", topic, "--json"))
    (behind,) = [queue for queue in described["queues"] if queue["lag"]]
    assert (behind["lag"], described["lag_s"]) == (1, behind["lag_s"])
    assert 0 <= behind["lag_s"] < 60
    assert [(row["lag"], 0 <= row["lag_s"] < 60) for row in _rows(broker, topic)] == [(1, True)]


NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_only_queues_with_a_lag_are_asked_from_where_they_go_on() -> None:
    queues = [
        GroupQueue("t", 0, 2, 9, 4, 5),
        GroupQueue("t", 1, 0, 3, 3, 0),
        GroupQueue("t", 2, 7, 9, -1, 2),
        GroupQueue("t", 3, 7, 9, 5, 2),  # retention was faster than the group
    ]
    told = GroupDescription("g", True, "clustering", "average", 0, 0, {}, [], queues)

    assert {queue.queue_id: offset for queue, offset in next_offsets(told).items()} == {0: 4, 2: 7, 3: 7}


def test_the_age_is_since_it_was_stored_and_what_cannot_be_read_has_none() -> None:
    heads = {
        MessageQueue("t", 0): Head(0, 4, NOW - timedelta(seconds=90.5), "id", None),
        MessageQueue("t", 1): Head(0, 4, NOW + timedelta(seconds=1), "id", None),  # the clock there is ahead
        MessageQueue("t", 2): Head(EMPTY, 4, None, None, None),
        MessageQueue("t", 3): Head(Damaged.code, 4, None, None, "cannot be read"),
    }

    ages = ages_of(heads, NOW)

    assert {queue.queue_id: age for queue, age in ages.items()} == {0: 90.5, 1: 0.0}
    assert (oldest(ages), oldest({})) == (90.5, None)


@pytest.mark.parametrize(
    ("stats", "seconds"),
    [
        ({"broker": {"time_us": int(NOW.timestamp() * 1e6) + 300_000_000}}, 300.0),
        ({"broker": {"time_us": int(NOW.timestamp() * 1e6) - 1_000_000}}, -1.0),
        ({"broker": {"time_us": "soon"}}, 0.0),
        ({}, 0.0),
    ],
)
def test_ages_are_by_the_clock_of_the_broker(stats: dict[str, dict[str, object]], seconds: float) -> None:
    assert ahead(stats, NOW) == timedelta(seconds=seconds)


@pytest.mark.slow
async def test_a_thousand_lagging_queues_are_described_at_once(broker: str, topic: str) -> None:
    queues = [MessageQueue(topic, queue_id) for queue_id in range(1024)]
    async with Admin(broker) as admin, Producer(broker) as producer:
        await admin.create_topic(topic, len(queues))
        await asyncio.gather(*(producer.send_bodies(topic, [b"x"], queue_id=queue.queue_id) for queue in queues))
        await admin.reset_offsets(topic, dict.fromkeys(queues, 0))

    began = time.perf_counter()
    result = await asyncio.to_thread(
        CliRunner().invoke, command, ["group", "describe", topic, "--json", "--broker", broker], prog_name="rmq-admin"
    )
    took_s = time.perf_counter() - began

    told = json.loads(result.stdout)
    assert (told["lag"], told["more_queues"]) == (1024, 0)
    assert all(queue["lag_s"] >= 0 for queue in told["queues"])
    assert took_s < 3
