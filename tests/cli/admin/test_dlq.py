"""``rmq-admin dlq list, show, export``: dead letters from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq.cli.rmq_admin import command
from rmq.cli.shell import exit_codes
from rmq.client import Message

from support.broker_thread import BrokerThread
from support.dead_letters import bury


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running.address


@pytest.fixture(scope="module")
def ids(address: str) -> list[str]:
    """Seven dead letters of the group billing, of two topics."""
    orders = [Message("orders", b"%d" % i, keys=(f"o-{i}",), tag="t", properties={"trace": f"t{i}"}) for i in range(4)]
    stock = [Message("stock", b"\xff%d" % i) for i in range(3)]
    return [
        *bury(address, "billing", orders, reason="TimeoutError: no answer", queue_id=1),
        *bury(address, "billing", stock, reason="ValueError: cannot be parsed\nline 2", queue_id=3),
    ]


def dlq(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["dlq", *arguments, "--broker", address], prog_name="rmq-admin")


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("path", [[], ["list"], ["show"], ["replay"], ["export"], ["drop"]])
def test_help_has_examples(path: list[str]) -> None:
    result = CliRunner().invoke(command, ["dlq", *path, "--help"], prog_name="rmq-admin")

    assert result.exit_code == 0
    assert "Examples:\n  rmq-admin dlq " in result.stdout


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

    assert heading.split() == ["OFFSET", "STATE", "DIED_AT", "ORIGIN", "ATTEMPTS", "KEYS", "REASON", "BODY"]
    assert len(lines) == 7
    assert lines[0].split()[:2] == ["0", "waiting"]
    assert "orders/1 @0" in lines[0]
    assert lines[0].split()[-5:] == ["o-0", "TimeoutError:", "no", "answer", "0"]
    assert r"ValueError: cannot be parsed\nline 2" in lines[4]
    assert lines[4].endswith(r"\xff0")


def test_dead_letters_as_json_are_stored_messages_with_their_origin(address: str, ids: list[str]) -> None:
    first, *_, last = rows(dlq(address, "show", "billing", "--json"))

    assert first["topic"] == "%DLQ%billing"
    assert (first["queue_offset"], first["body"], first["keys"], first["tag"]) == (0, "0", ["o-0"], "t")
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


def test_a_limit_that_leaves_some_out_is_said(address: str, ids: list[str]) -> None:
    assert dlq(address, "show", "billing", "--limit", "6").stderr == "there are more than these 6: raise --limit\n"
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
        (["show", "billing", "--offset", "x"], exit_codes.USAGE, "'x' is no offset"),
        (["show", "billing", "--since", "soon"], exit_codes.USAGE, "'soon' is no time"),
        (["export", "billing", "--output", "/nowhere/x"], exit_codes.OS_ERROR, "/nowhere/x cannot be written: No such"),
        (["export", "billing", "--output", ""], exit_codes.OS_ERROR, "Is a directory; name another file with --output"),
        (["export", "billing"], exit_codes.USAGE, "--output"),
    ],
)
def test_mistakes_end_in_one_line(address: str, ids: list[str], arguments: list[str], code: int, sentence: str) -> None:
    result = dlq(address, *arguments)

    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_broker_it_says_how_to_start_one(nowhere: str) -> None:
    result = dlq(nowhere, "list")

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert result.stderr.startswith("rmq-admin: ")
