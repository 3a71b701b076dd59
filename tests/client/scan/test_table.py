"""Topics as tables without Spark: the rows that were asked for, and what was left out."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from rmq.client.scan.arrow import ARROW_TYPES
from rmq.client.scan.table import SKIPPED_KEY, read_table
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import ConfigError, ConnectionLost, MessagesLost, TopicNotFound

from rigs.faulty_broker import STORED_AT, FakeBroker


@pytest.fixture
def broker(fake_broker: FakeBroker) -> FakeBroker:
    """Two topics; orders has two queues of 20 messages, whose bodies say where they are."""
    fake_broker.create("orders", 2)
    fake_broker.create("empty")
    for queue_id in range(2):
        for first in (0, 10):
            bodies = [b"%d-%d" % (queue_id, i) for i in range(first, first + 10)]
            tags = ["even" if i % 2 == 0 else "odd" for i in range(10)]
            fake_broker.append("orders", queue_id, Rows(bodies, 7, tags=tags))
    return fake_broker


def bodies(table: pa.Table) -> list[str]:
    return [body.decode() for body in table.column("body").to_pylist()]


def in_order(*ranges: tuple[int, int, int]) -> list[str]:
    return [f"{queue_id}-{i}" for queue_id, start, end in ranges for i in range(start, end)]


def test_a_table_has_all_columns_and_all_messages_queue_by_queue(broker: FakeBroker) -> None:
    table = read_table(broker.address, "orders")

    assert table.schema.equals(pa.schema(list(ARROW_TYPES.items())))
    assert bodies(table) == in_order((0, 0, 20), (1, 0, 20))
    assert table.slice(13, 1).to_pylist() == [
        {
            "topic": "orders",
            "queue_id": 0,
            "queue_offset": 13,
            "message_id": table.column("message_id")[13].as_py(),
            "key": None,
            "tag": "odd",
            "index_keys": [],
            "body": b"0-13",
            "properties": [],
            "born_at": datetime.fromtimestamp(0.000007, UTC),
            "stored_at": datetime.fromtimestamp(STORED_AT // 1_000_000, UTC),
            "attempt": 1,
        }
    ]
    assert SKIPPED_KEY.encode() not in (table.schema.metadata or {})


def test_an_empty_topic_is_an_empty_table(broker: FakeBroker) -> None:
    table = read_table(broker.address, "empty")

    assert table.num_rows == 0
    assert table.schema.names == list(ARROW_TYPES)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"start": {0: 5, 1: 18}}, in_order((0, 5, 20), (1, 18, 20))),
        ({"start": {"orders": {0: 5, 1: 18}}, "end": {0: 7, 1: 18}}, in_order((0, 5, 7))),
        ({"start": "earliest", "end": "latest", "queues": [1]}, in_order((1, 0, 20))),
        ({"queues": [0], "tags": "odd"}, [f"0-{i}" for i in range(1, 20, 2)]),
        ({"verify": False, "timeout_s": 5, "end": {0: 1, 1: 1}}, in_order((0, 0, 1), (1, 0, 1))),
    ],
)
def test_arguments_choose_what_is_read(broker: FakeBroker, arguments: dict[str, Any], expected: list[str]) -> None:
    assert bodies(read_table(broker.address, "orders", **arguments)) == expected


def test_several_topics_are_one_table(broker: FakeBroker) -> None:
    broker.append("empty", 0, Rows([b"2-0"], 0))

    assert read_table(broker.address, ["empty", "orders"], columns=["topic"]).column(0).value_counts().to_pylist() == [
        {"values": "empty", "counts": 1},
        {"values": "orders", "counts": 40},
    ]


def test_only_the_columns_asked_for_are_there_in_their_order(broker: FakeBroker) -> None:
    assert read_table(broker.address, "orders", columns=["tag", "queue_id"]).schema.names == ["tag", "queue_id"]


def test_what_was_left_out_stands_in_the_schema(broker: FakeBroker) -> None:
    data = bytearray(broker.topics["orders"][1].batches[0])
    data[-9] ^= 1
    broker.topics["orders"][1].batches[0] = bytes(data)

    table = read_table(broker.address, "orders", on_damage="skip")

    assert bodies(table) == in_order((0, 0, 20), (1, 10, 20))
    (left_out,) = json.loads(table.schema.metadata[SKIPPED_KEY.encode()])
    assert (left_out["topic"], left_out["queue_id"], left_out["start"], left_out["end"]) == ("orders", 1, 0, 10)
    assert "checksum" in left_out["reason"]


def test_what_cannot_be_read_is_one_error(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFound, match="nothing"):
        read_table(broker.address, "nothing")
    with pytest.raises(ConfigError, match="onDamage"):
        read_table(broker.address, "orders", on_damage="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        read_table(broker.address, "orders", path="/somewhere")
    with pytest.raises(ConnectionLost, match=r"no broker at 127\.0\.0\.1:1"):
        read_table("127.0.0.1:1", "orders")


def test_retention_between_plan_and_read_fails_or_is_left_out(broker: FakeBroker) -> None:
    def removed(answer: Any) -> Any:
        broker.topics["orders"][0].min_offset = 10
        return [answer[0]._replace(status=MessagesLost.code, next_offset=10, batches=b"", text="retention")]

    from rmq.wire.protocol.ops.core import Op

    broker.fail_next(Op.PULL, removed)
    with pytest.raises(MessagesLost, match="topic orders, queue 0, offset 0"):
        read_table(broker.address, "orders", queues=[0])
    broker.topics["orders"][0].min_offset = 0
    broker.fail_next(Op.PULL, removed)

    table = read_table(broker.address, "orders", queues=[0], fail_on_data_loss=False)

    assert bodies(table) == in_order((0, 10, 20))
    assert json.loads(table.schema.metadata[SKIPPED_KEY.encode()])[0]["end"] == 10


@pytest.mark.parametrize(
    ("statement", "is_there"), [("import rmq.client", False), ("import rmq.client.scan.table", True)]
)
def test_pyarrow_is_imported_by_tables_alone(statement: str, is_there: bool) -> None:
    code = f"import sys; {statement}; print('pyarrow' in sys.modules, 'asyncio' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(is_there), "False"]


def test_a_missing_pyarrow_is_one_clear_line() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import rmq.client.scan.table"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    last = done.stderr.strip().splitlines()[-1]
    assert last == "ModuleNotFoundError: tables of messages need pyarrow: pip install 'rmq[spark]'"
