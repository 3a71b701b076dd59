"""``rmq-admin dlq``: dead letters are listed, shown, exported, and replayed or dropped once each, in order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import DROPPED, DeadResult, DeadRow

from ..commands import admin
from rigs.dead_letters import bury
from rigs.faulty_broker import FakeBroker
from rigs.stalling_broker import BrokerThread


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running.address


@pytest.fixture(scope="module")
def ids(address: str) -> list[str]:
    """Seven dead letters of the group billing, of two topics."""
    orders = [
        Message("orders", b"%d" % i, index_keys=(f"o-{i}",), tag="t", properties={"trace": f"t{i}"}) for i in range(4)
    ]
    stock = [Message("stock", b"\xff%d" % i) for i in range(3)]
    return [
        *bury(address, "billing", orders, reason="TimeoutError: no answer", queue_id=1),
        *bury(address, "billing", stock, reason="ValueError: cannot be parsed\nline 2", queue_id=3),
    ]


def dlq(address: str, *arguments: str, typed: str | None = None) -> Result:
    return admin("dlq", *arguments, "--broker", address, typed=typed)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_groups_are_listed_with_what_became_of_their_dead_letters(address: str, ids: list[str]) -> None:
    bury(address, "zeta", [Message("zeta", b"x")])
    (billing, zeta) = json.loads(dlq(address, "list", "--json").stdout)

    assert (billing["group"], billing["waiting"], billing["replayed"], billing["dropped"]) == ("billing", 7, 0, 0)
    assert billing["oldest"] < billing["newest"]
    assert zeta["oldest"] == zeta["newest"]
    heading, first, _ = dlq(address, "list").stdout.splitlines()
    assert heading.split() == ["GROUP", "WAITING", "REPLAYED", "DROPPED", "OLDEST", "NEWEST"]
    assert first.split()[:4] == ["billing", "7", "0", "0"]


def test_dead_letters_for_people(address: str, ids: list[str]) -> None:
    heading, *lines = dlq(address, "show", "billing").stdout.splitlines()

    assert " ".join(heading.split()) == "OFFSET STATE DIED_AT ORIGIN ATTEMPTS KEY INDEX_KEYS REASON BODY"
    assert len(lines) == 7
    assert lines[0].split()[:2] == ["0", "waiting"]
    assert "orders/1 @0" in lines[0]
    assert lines[0].split()[-5:] == ["o-0", "TimeoutError:", "no", "answer", "0"]
    assert r"ValueError: cannot be parsed\nline 2" in lines[4]
    assert lines[4].endswith(r"\xff0")


def test_dead_letters_as_json_are_stored_messages_with_their_origin(address: str, ids: list[str]) -> None:
    first, *_, last = rows(dlq(address, "show", "billing", "--json"))

    assert first["topic"] == "%DLQ%billing"
    assert (first["queue_offset"], first["body"], first["index_keys"], first["tag"]) == (0, "0", ["o-0"], "t")
    assert (first["state"], first["reason"], first["attempts"]) == ("waiting", "TimeoutError: no answer", 0)
    assert (first["origin_topic"], first["origin_queue_id"], first["origin_offset"]) == ("orders", 1, 0)
    assert first["origin_id"] == ids[0]
    assert first["properties"]["trace"] == "t0"
    assert last["body_base64"] == "/zI="


@pytest.mark.parametrize(
    ("conditions", "offsets"),
    [
        (["--offset", "3", "--offset", "5-20"], [3, 5, 6]),
        (["--key", "o-1", "--key", "o-3"], [1, 3]),
        (["--origin-topic", "stock"], [4, 5, 6]),
        (["--origin-queue", "1"], [0, 1, 2, 3]),
        (["--reason", "value"], [4, 5, 6]),
        (["--since", "1h"], [0, 1, 2, 3, 4, 5, 6]),
        (["--until", "1h"], []),
        (["--until", "0s", "--origin-topic", "orders", "--offset", "0-1"], [0, 1]),
        (["--state", "dropped"], []),
        (["--state", "all", "--limit", "2"], [0, 1]),
    ],
)
def test_conditions_choose(address: str, ids: list[str], conditions: list[str], offsets: list[int]) -> None:
    found = rows(dlq(address, "show", "billing", "--json", *conditions))

    assert [letter["queue_offset"] for letter in found] == offsets


def test_an_id_is_that_of_the_dead_letter_or_of_its_original(address: str, ids: list[str]) -> None:
    (by_origin,) = rows(dlq(address, "show", "billing", "--json", "--id", ids[2]))
    (by_own,) = rows(dlq(address, "show", "billing", "--json", "--id", by_origin["message_id"]))

    assert by_origin == by_own
    assert by_own["queue_offset"] == 2


def test_a_limit_that_leaves_some_out_is_reported(address: str, ids: list[str]) -> None:
    assert dlq(address, "show", "billing", "--limit", "6").stderr == "more than 6 match: raise --limit\n"
    assert dlq(address, "show", "billing", "--limit", "7").stderr == ""


def test_an_export_holds_what_show_shows(address: str, ids: list[str], tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    result = dlq(address, "export", "billing", "--origin-topic", "stock", "--output", str(path))

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "billing: 3 exported\n")
    shown = dlq(address, "show", "billing", "--origin-topic", "stock", "--json").stdout
    assert path.read_text() == shown
    assert dlq(address, "export", "billing", "--origin-topic", "stock", "--output", "-").stdout == shown
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_fails_leaves_the_file_as_it_was(address: str, tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_text("before")

    result = dlq(address, "export", "nobody", "--output", str(path))

    assert result.exit_code == exit_codes.NO_INPUT
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("letters.jsonl", "before")]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["show", "nobody"], exit_codes.NO_INPUT, "rmq-admin: the group 'nobody' has no dead letters: `rmq-admin dlq"),
        (["replay", "nobody", "--yes"], exit_codes.NO_INPUT, "rmq-admin: the group 'nobody' has no dead letters"),
        (["show", "billing", "--offset", "x"], exit_codes.USAGE, "'x' is not an offset"),
        (["show", "billing", "--since", "soon"], exit_codes.USAGE, "'soon' is not a time"),
        (["export", "billing", "--output", "/nowhere/x"], exit_codes.OS_ERROR, "cannot write /nowhere/x: No such"),
        (
            ["export", "billing", "--output", ""],
            exit_codes.OS_ERROR,
            "directory; choose another file with --output",
        ),
        (["export", "billing"], exit_codes.USAGE, "--output"),
    ],
)
def test_mistakes_end_in_one_line(address: str, ids: list[str], arguments: list[str], code: int, sentence: str) -> None:
    result = dlq(address, *arguments)

    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def group(address: str, request: pytest.FixtureRequest) -> str:
    """A group of this test's own, with five dead letters of the topic of its name."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[-100:]
    bury(address, name, [Message(name, b"%d" % i, index_keys=(f"k-{i}",)) for i in range(5)], queue_id=2)
    return name


def bodies(address: str, topic: str, queue_id: int = 0) -> list[bytes]:
    async def read() -> list[bytes]:
        async with Admin(address) as admin:
            return [m.body async for some in admin.read(MessageQueue(topic, queue_id), 0, 1 << 40) for m in some]

    return asyncio.run(read())


def counts(address: str, group: str) -> tuple[int, int, int]:
    (row,) = [row for row in json.loads(dlq(address, "list", "--json").stdout) if row["group"] == group]
    return row["waiting"], row["replayed"], row["dropped"]


def test_replayed_ones_go_to_the_group_in_order_and_once(address: str, group: str) -> None:
    result = dlq(address, "replay", group, "--offset", "3", "--offset", "0-1")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{group} @0: replayed to %RETRY%{group}/0 @0",
        f"{group} @1: replayed to %RETRY%{group}/0 @1",
        f"{group} @3: replayed to %RETRY%{group}/0 @2",
        f"{group}: 3 replayed",
    ]
    again = dlq(address, "replay", group, "--offset", "0-2")
    assert again.exit_code == 0
    assert again.stdout.splitlines() == [
        f"{group} @0: replayed before",
        f"{group} @1: replayed before",
        f"{group} @2: replayed to %RETRY%{group}/0 @3",
        f"{group}: 2 replayed before, 1 replayed",
    ]
    assert bodies(address, f"%RETRY%{group}") == [b"0", b"1", b"3", b"2"]
    assert counts(address, group) == (1, 4, 0)


def test_to_their_topic_they_go_to_the_queue_they_came_from(address: str, group: str) -> None:
    result = dlq(address, "replay", group, "--to-topic", "--key", "k-4", "--key", "k-1")

    assert result.stdout.splitlines() == [
        f"{group} @1: replayed to {group}/2 @5",
        f"{group} @4: replayed to {group}/2 @6",
        f"{group}: 2 replayed",
    ]
    assert bodies(address, group, 2) == [b"0", b"1", b"2", b"3", b"4", b"1", b"4"]


def test_dropped_ones_wait_no_longer_and_are_not_replayed(address: str, group: str) -> None:
    dropped = dlq(address, "drop", group, "--offset", "1", "--offset", "3")
    assert dropped.stdout.splitlines() == [f"{group} @1: dropped", f"{group} @3: dropped", f"{group}: 2 dropped"]
    assert dlq(address, "drop", group, "--offset", "3").stdout.splitlines()[0] == f"{group} @3: dropped before"

    replayed = dlq(address, "replay", group, "--offset", "0-1")

    assert replayed.stdout.splitlines() == [
        f"{group} @0: replayed to %RETRY%{group}/0 @0",
        f"{group} @1: dropped before",
        f"{group}: 1 replayed, 1 dropped before",
    ]
    assert dlq(address, "drop", group, "--offset", "0").stdout.splitlines()[0] == f"{group} @0: replayed before"
    assert counts(address, group) == (2, 1, 2)
    shown = dlq(address, "show", group, "--state", "all", "--json").stdout.splitlines()
    assert [json.loads(line)["state"] for line in shown] == ["replayed", "dropped", "waiting", "dropped", "waiting"]


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_a_dry_run_does_nothing(address: str, group: str, verb: str) -> None:
    result = dlq(address, verb, group, "--dry-run")

    assert result.exit_code == 0
    done = {"replay": "replayed", "drop": "dropped"}[verb]
    to = f" to %RETRY%{group}/0" if verb == "replay" else ""
    assert result.stdout.splitlines() == [
        *(f"{group} @{offset}: would be {done}{to}" for offset in range(5)),
        f"{group}: 5 would be {done}",
    ]
    assert result.stderr == "dry run: nothing was changed\n"
    assert counts(address, group) == (5, 0, 0)


def test_all_that_wait_are_meant_without_a_condition_and_that_needs_a_yes(address: str, group: str) -> None:
    for more in ([], ["--json"], ["--state", "all"]):
        refused = dlq(address, "replay", group, *more)
        assert refused.exit_code == exit_codes.USAGE
        assert refused.stderr == (
            "rmq-admin: cannot ask whether to replay all of them without a terminal: give a condition, or --yes\n"
        )
    dlq(address, "drop", group, "--offset", "2")

    result = dlq(address, "replay", group, "--yes")

    assert result.stdout.splitlines()[-1] == f"{group}: 4 replayed"
    assert bodies(address, f"%RETRY%{group}") == [b"0", b"1", b"3", b"4"]
    again = dlq(address, "replay", group, "--yes")
    assert (again.exit_code, again.stdout) == (0, f"{group}: nothing to replay\n")


@pytest.mark.parametrize(("typed", "is_done"), [("y\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_the_user_is_asked(address: str, group: str, typed: str, is_done: bool) -> None:
    result = dlq(address, "drop", group, typed=typed)

    assert f"Drop all 5 dead letters of {group}? [y/N]: " in result.stderr
    assert counts(address, group) == ((0, 0, 5) if is_done else (5, 0, 0))
    if not is_done:
        assert result.exit_code == exit_codes.FAILURE
        assert result.stderr.endswith("rmq-admin: nothing was changed; --yes skips the question\n")


def test_as_json_each_is_an_object_and_the_sum_comes_last(address: str, group: str) -> None:
    dlq(address, "drop", group, "--offset", "1")

    result = dlq(address, "replay", group, "--offset", "0-1", "--json")

    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {
            "group": group, "queue_offset": 0, "result": "replayed", "state": "replayed",
            "to_topic": f"%RETRY%{group}", "to_queue_id": 0, "to_offset": 0,
        },
        {"group": group, "queue_offset": 1, "result": "dropped_before", "state": "dropped"},
        {"summary": {"group": group, "dry_run": False, "total": 2, "replayed": 1, "dropped_before": 1}},
    ]  # fmt: skip


def test_some_that_fail_have_a_code_of_their_own(address: str, group: str) -> None:
    bury(address, group, [Message(f"{group}-gone", b"x")], queue_id=0)

    async def forget() -> None:
        async with Admin(address) as admin:
            await admin.delete_topic(f"{group}-gone")

    asyncio.run(forget())

    some = dlq(address, "replay", group, "--to-topic", "--offset", "4-5", "--json")
    assert some.exit_code == exit_codes.PARTIAL == 3
    assert some.stderr == "rmq-admin: 1 of 2 failed\n"
    good, bad, total = (json.loads(line) for line in some.stdout.splitlines())
    assert good["result"] == "replayed"
    assert (bad["queue_offset"], bad["result"], bad["state"], bad["code"]) == (
        5,
        "failed",
        "waiting",
        "TOPIC_NOT_FOUND",
    )
    assert total["summary"]["failed"] == 1

    none = dlq(address, "replay", group, "--to-topic", "--offset", "5")
    assert none.exit_code == exit_codes.NO_INPUT
    assert none.stdout.startswith(f"{group} @5: failed: ")
    assert none.stderr.startswith("rmq-admin: all 1 failed: ")


def test_what_is_named_and_does_not_exist_is_told(address: str, group: str) -> None:
    result = dlq(address, "replay", group, "--offset", "4", "--offset", "99")
    assert result.exit_code == exit_codes.NO_INPUT
    assert result.stdout.splitlines()[-1] == f"{group}: 1 replayed"
    shown = f"`rmq-admin dlq show {group} --state all` shows them"
    assert result.stderr == f"rmq-admin: the group {group!r} has no dead letter at offset 99: {shown}\n"

    result = dlq(address, "drop", group, "--offset", "10-20")
    assert result.stderr == f"rmq-admin: the group {group!r} has no dead letter at offset 10-20: {shown}\n"

    result = dlq(address, "drop", group, "--id", "f" * 32)
    assert result.exit_code == exit_codes.NO_INPUT
    assert result.stderr == f"rmq-admin: the group {group!r} has no dead letter with the id {'f' * 32}: {shown}\n"


def test_more_than_one_request_holds_are_replayed_in_order(address: str) -> None:
    group = "many"
    bury(address, group, [Message(group, b"%d" % i, index_keys=("k",)) for i in range(1000)])
    bury(address, group, [Message(group, b"%d" % i, index_keys=("k",)) for i in range(1000, 1500)])

    for conditions in (["--offset", "0-1100"], ["--key", "k"]):
        result = dlq(address, "replay", group, *conditions)
        assert result.exit_code == 0

    assert bodies(address, f"%RETRY%{group}") == [b"%d" % i for i in range(1500)]
    assert counts(address, group) == (0, 1500, 0)


@pytest.mark.slow
def test_the_real_command_says_to_scripts_how_it_ended(address: str, group: str) -> None:
    def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rmq.cli.rmq_admin", "dlq", *arguments, "--broker", address]
        quiet = subprocess.DEVNULL
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, stdin=quiet)

    refused = admin("replay", group)
    done = admin("replay", group, "--yes", "--json")
    missing = admin("replay", group, "--offset", "77")

    assert (refused.returncode, refused.stdout) == (exit_codes.USAGE, "")
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 6)
    assert missing.returncode == exit_codes.NO_INPUT
    assert missing.stdout == f"{group}: nothing to replay\n"


class LeavingBroker(FakeBroker):
    """Has 1500 dead letters, and goes away after it was asked to drop the first of them."""

    drops = 0

    def serve(self, op: Op, payload: Any) -> Any:
        if op is Op.LIST_DEAD:
            return [] if payload[0] else [DeadRow("g", "%DLQ%g", 0, 1500, 1500, 0, 0)]
        if op is Op.DEAD_STATES:
            return []
        if op is Op.DROP_DEAD:
            self.drops += 1
            if self.drops == 2:
                raise OSError("hangs up")
            return [DeadResult(0, DROPPED, True)] * len(payload[1])
        return super().serve(op, payload)


def test_results_before_a_broker_failure_are_summed_up() -> None:
    with LeavingBroker() as leaving:
        result = dlq(leaving.address, "drop", "g", "--yes")

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert len(result.stdout.splitlines()) == 1025
    assert result.stdout.endswith("g @1023: dropped\ng: 1024 dropped\n")
    assert len(result.stderr.splitlines()) == 1
