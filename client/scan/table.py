"""
Topics as tables of Arrow, without Spark.

::

    from rmq.client.scan.table import read_table

    orders = read_table("127.0.0.1:10911", "orders", columns=["queue_id", "tag", "body"])

The rows are exactly those that the Spark source gives for the same options: both read with the same code.
Needs pyarrow: ``pip install 'rmq[spark]'``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from .arrow import table_of
from .options import DEFAULT_TIMEOUT_S, ScanOptions
from .plan import plan
from .reader import Skipped, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

SKIPPED_KEY: Final = "rmq.skipped"
"""Where the metadata of a table's schema says, in JSON, which offsets were left out; missing if none were."""

Bound = str | datetime | Mapping[int, int] | Mapping[str, Mapping[int, int]]
"""``earliest`` or ``latest``, a time, or offsets: by queue for one topic, by topic and queue for several."""


def read_table(
    broker: str | None, topic: str | Sequence[str], *,
    start: Bound | None = None, end: Bound | None = None, queues: Iterable[int] | None = None, tags: str = "*",
    columns: Sequence[str] | None = None, verify: bool = True, on_damage: Literal["fail", "skip"] = "fail",
    fail_on_data_loss: bool = True, timeout_s: float = DEFAULT_TIMEOUT_S, path: str | os.PathLike[str] | None = None,
) -> pa.Table:  # fmt: skip
    """
    The messages of a topic, or of several, as they are now: queue by queue, each in order.

    ``broker`` is ``host:port``; None, with the data directory of a stopped broker as ``path``. ``start`` and ``end``
    bound what is read: everything, if they are left out; what :func:`rmq.client.starting_offsets` returned is a start
    that is compared with the log first. ``tags`` is an expression such as ``"created || paid"``.
    ``columns`` names those to have. What the others mean is told in :mod:`rmq.client.scan.options`.

    The table is held in memory as a whole. What was left out, where that is allowed, is listed in the metadata of its
    schema under :data:`SKIPPED_KEY`.

    Raises:
        ConfigError: an argument cannot be; the sentence calls it as the option of the Spark source is called.
        RmqError: what was asked for cannot be read whole; the sentence names topic, queue, offset and broker.
    """
    topics = [topic] if isinstance(topic, str) else list(topic)
    given = {
        "topic": ",".join(topics),
        "tags": tags,
        "verify": str(verify),
        "onDamage": on_damage,
        "failOnDataLoss": str(fail_on_data_loss),
        "timeout": str(timeout_s),
        **_bound("starting", start, topics),
        **_bound("ending", end, topics),
    }
    if broker is not None:
        given["broker"] = broker
    if path is not None:
        given["path"] = os.fspath(path)
    if queues is not None:
        given["queues"] = ",".join(map(str, queues))
    if columns is not None:
        given["columns"] = ",".join(columns)
    return _read(ScanOptions.parse(given))


def _read(options: ScanOptions) -> pa.Table:
    skipped: list[Skipped] = []
    batches = [rows for part in plan(options) for rows in rows_of(part, options.manner, report=skipped.append)]
    table = table_of(batches, options.manner.columns)
    if skipped:
        return table.replace_schema_metadata({SKIPPED_KEY: json.dumps([each._asdict() for each in skipped])})
    return table


def _bound(which: str, bound: Bound | None, topics: Sequence[str]) -> dict[str, str]:
    if bound is None:
        return {}
    if isinstance(bound, datetime):
        return {f"{which}Timestamp": bound.isoformat()}
    if isinstance(bound, str):
        return {f"{which}Offsets": bound}
    by_topic = bound if all(isinstance(key, str) for key in bound) else dict.fromkeys(topics, bound)
    return {f"{which}Offsets": json.dumps(by_topic)}
