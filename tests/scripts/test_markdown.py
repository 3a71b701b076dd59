"""Texts of the code become Markdown that shows them unchanged."""

from __future__ import annotations

import pytest

from refdocs.markdown import NOTE, anchor, block, code, page, prose, table


def test_a_table_keeps_bars_within_their_cell_and_each_row_on_its_line() -> None:
    assert table(("a", "b"), [("x|y", "1\n2")]) == "| a | b |\n|---|---|\n| x\\|y | 1 2 |"


def test_a_table_without_rows_is_nothing() -> None:
    assert table(("a",), []) == ""


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("x", "`x`"), ("a`b", "`` a`b ``")])
def test_code_is_shown_as_it_is_typed(text: str, shown: str) -> None:
    assert code(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a < b", "a &lt; b"), ("all *", r"all \*"), ("the ``a < *`` of *", r"the `a < *` of \*")],
)
def test_prose_keeps_only_the_marks_of_code(text: str, shown: str) -> None:
    assert prose(text) == shown


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Disk full", "disk-full"),
        ("rmq-admin group reset-offset", "rmq-admin-group-reset-offset"),
        ("What if it's `lost`?", "what-if-its-lost"),
        ("Kafka, RabbitMQ", "kafka-rabbitmq"),
    ],
)
def test_an_anchor_matches_those_of_repository_hosts(heading: str, name: str) -> None:
    assert anchor(heading) == name


def test_a_page_says_that_it_is_generated_and_omits_empty_parts() -> None:
    assert page("T", "\nabout\n", "", block(["x"])) == f"# T\n\n{NOTE}\n\nabout\n\n```sh\nx\n```\n"
