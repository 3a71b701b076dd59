"""The options of the source, which are those of any scan (:mod:`rmq.client.scan.options`), and its schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

COLUMNS: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "tag": "string",
    "keys": "array<string>",
    "body": "binary",
    "properties": "map<string,string>",
    "born_at": "timestamp",
    "stored_at": "timestamp",
    "attempt": "int",
}
"""The columns of the source and their types, as Spark writes them."""


def ddl(columns: Iterable[str]) -> str:
    """The schema with these columns, as Spark reads it."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)
