"""
The data source ``rmq``: what Spark asks for when a user says ``spark.read.format("rmq")``.

The options of the source, which are those of any scan (:mod:`rmq.client.scan.options`), and its schema.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from rmq.client.scan.options import ScanOptions
from rmq.wire.errors import ConfigError

from .batch import TopicReader
from .shipping import shipped


class RmqDataSource(DataSource):
    """Reads a topic as a DataFrame; the options are in :mod:`rmq.client.scan.options`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Without it Spark's workers die with no more than "exited unexpectedly".
        if importlib.util.find_spec("pyarrow") is None:
            raise ConfigError(
                f"pyarrow is not installed in {sys.executable}, which Spark runs: "
                f"{sys.executable} -m pip install pyarrow"
            )
        self._read = ScanOptions.parse(options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to workers in a way that tells what is missing there."""
        return shipped(type(self), (dict(self.options),))

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "rmq"

    def schema(self) -> str:
        """The columns asked for; the broker is not needed to know them."""
        return ddl(self._read.manner.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query; ``schema`` may be the user's own choice of our columns."""
        for field in schema.fields:
            if COLUMNS.get(field.name) != field.dataType.simpleString() or not field.nullable:
                wanted = f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
                raise ConfigError(f"the rmq source has no column `{wanted}`; it has {ddl(tuple(COLUMNS))}")
        columns, asked = tuple(schema.fieldNames()), self._read.manner.columns
        if columns != asked and any(name.lower() == "columns" for name in self.options):
            raise ConfigError(
                f'the option "columns" names {", ".join(asked)}, and the schema {", ".join(columns)}: '
                "leave one of them out"
            )
        manner = replace(self._read.manner, columns=columns)
        return TopicReader(replace(self._read, manner=manner))


COLUMNS: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "key": "string",
    "tag": "string",
    "index_keys": "array<string>",
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
