"""The schema of the source is that of any scan, in the words of Spark."""

from __future__ import annotations

from rmq.client.scan import options
from rmq.spark.source import COLUMNS, ddl


def test_the_schema_is_the_one_that_users_rely_on() -> None:
    assert ddl(COLUMNS) == (
        "topic string, queue_id int, queue_offset bigint, message_id string, tag string, keys array<string>, "
        "body binary, properties map<string,string>, born_at timestamp, stored_at timestamp, attempt int"
    )


def test_the_columns_are_those_of_any_scan() -> None:
    assert tuple(COLUMNS) == options.COLUMNS


def test_a_schema_has_the_columns_it_is_asked_for_in_their_order() -> None:
    assert ddl(("body", "queue_id")) == "body binary, queue_id int"
