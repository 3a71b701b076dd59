"""How dead letters and what became of them are shown, for people and for programs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rmq.cli.admin.dlq_text import (
    SHOWN,
    Outcomes,
    letter_cells,
    letter_object,
    letters_text,
    row_cells,
    row_object,
    rows_text,
)
from rmq.wire.batch import batch as batches
from rmq.wire.errors import DiskFull
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, WAITING, DeadResult, DeadRow
from rmq.wire.stores import StoreIds

from rigs.batches import STORE_ID, sample
from rigs.stored import stored_message

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wanted", "dry_run", "result", "line", "summary"),
    [
        (REPLAYED, False, DeadResult(0, REPLAYED, True, "%RETRY%g", 0, 7), "replayed to %RETRY%g/0 @7", "1 replayed"),
        (REPLAYED, False, DeadResult(0, REPLAYED), "replayed before", "1 replayed before"),
        (REPLAYED, False, DeadResult(0, DROPPED), "dropped before", "1 dropped before"),
        (REPLAYED, True, DeadResult(0, WAITING, True, "orders", 3), "would be replayed to orders/3",
         "1 would be replayed"),
        (DROPPED, False, DeadResult(0, DROPPED, True), "dropped", "1 dropped"),
        (DROPPED, True, DeadResult(0, WAITING, True), "would be dropped", "1 would be dropped"),
        (DROPPED, False, DeadResult(DiskFull.code, text="the disk is full"), "failed: the disk is full", "1 failed"),
        (DROPPED, False, DeadResult(DiskFull.code), "failed: the broker gave no reason", "1 failed"),
    ],
)  # fmt: skip
def test_what_became_of_one(wanted: int, dry_run: bool, result: DeadResult, line: str, summary: str) -> None:
    outcomes = Outcomes("g", wanted, dry_run=dry_run)

    assert outcomes.line(outcomes.add(17, result)) == f"g @17: {line}"
    assert outcomes.summary() == f"g: {summary}"
    assert (outcomes.total, outcomes.failed) == (1, int(result.status != 0))


def test_an_error_is_reported_with_its_code_and_the_first_is_kept() -> None:
    outcomes = Outcomes("g", REPLAYED, dry_run=False)
    told = outcomes.add(1, DeadResult(DiskFull.code, text="full"))
    outcomes.add(2, DeadResult(4711, text="unknown to us"))

    assert told == {
        "group": "g", "queue_offset": 1, "result": "failed", "state": "waiting", "code": "DISK_FULL", "error": "full",
    }  # fmt: skip
    assert isinstance(outcomes.first_error, DiskFull)
    assert outcomes.summary_object() == {"summary": {"group": "g", "dry_run": False, "total": 2, "failed": 2}}


def test_of_nothing_it_says_so() -> None:
    assert Outcomes("g", DROPPED, dry_run=False).summary() == "g: nothing to drop"


def test_a_group_with_its_times() -> None:
    row = DeadRow("g", "%DLQ%g", 3, 9, 3, 2, 1)

    assert row_cells(row_object(row, NOON, NOON)) == ["g", 3, 2, 1, *["2026-01-31T12:00:00.000+00:00"] * 2]
    assert row_cells(row_object(row, None, None))[-2:] == [None, None]


def test_a_message_that_says_nothing_of_its_origin_is_shown_all_the_same() -> None:
    (first, *_) = batches.read(sample(), stores=StoreIds(STORE_ID)).messages()

    shown = letter_object(first, "waiting")

    names = ("origin_topic", "origin_queue_id", "origin_offset", "origin_id", "attempts", "reason")
    assert [shown[name] for name in names] == [None] * 6
    assert letter_cells(first, "waiting")[:2] == [1000, "waiting"]
    assert all(len(str(cell)) <= SHOWN for cell in letter_cells(first, "waiting"))


def test_a_narrow_terminal_gets_short_times_and_nothing_that_wraps() -> None:
    row = row_object(DeadRow("billing", "%DLQ%billing", 3, 9, 3, 2, 1), NOON, NOON)

    assert "2026-01-31T12:00:00.000+00:00" in rows_text([row])
    assert rows_text([row], 80).splitlines()[1].split() == ["billing", "3", "2", "1", *["01-31", "12:00:00Z"] * 2]


def test_a_dead_letter_that_does_not_fit_into_a_line_gets_three() -> None:
    said = {"RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "1", "RMQ_ORIGIN_OFFSET": "7", "RMQ_ATTEMPTS": "3"}
    said["RMQ_DEAD_REASON"] = "delivery 3 failed: ValueError: " + "y" * 200
    letter = stored_message("%DLQ%g", 0, 4, b"\x1b[2J" + b"x" * 9000, position=8, properties=said)

    head, reason, body = letters_text([(letter, "waiting")], 80).splitlines()

    assert head == "@4 waiting, 01-01 00:00:00Z, of orders/1 @7, failed 3x"
    assert (reason[:36], reason[-4:], len(reason)) == ("    reason: delivery 3 failed: Value", "y...", 80)
    assert (body[:15], len(body)) == ("    body: \\x1b[", 80)
    assert letters_text([(letter, "waiting")]).startswith("OFFSET  STATE")
