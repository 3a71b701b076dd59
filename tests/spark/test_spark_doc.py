"""docs/spark.md says what the code does: its tables are compared with it, and its recipes are run."""

from __future__ import annotations

import asyncio
import re
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq.client import Message, Producer
from rmq.client.scan.options import NAMES, ScanOptions
from rmq.consumer import ConsumeContext, Consumer, StoredMessage
from rmq.spark.source import COLUMNS
from rmq.wire.names import dead_letter_topic

from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "spark.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", TEXT, re.DOTALL | re.MULTILINE)]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without the quotes of code."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def block(sign: str) -> str:
    """The one block that has a text in it."""
    (found,) = [block for block in BLOCKS if sign in block]
    return found


def test_the_table_of_columns_has_the_columns_and_their_types() -> None:
    assert {name: kind.replace("\\", "") for name, kind, _ in rows("Columns")} == COLUMNS


def test_the_table_of_options_has_every_option() -> None:
    assert [name for name, _, _ in rows("Options")] == list(NAMES)


@pytest.mark.parametrize(
    ("name", "default"), [(name, text) for name, text, _ in rows("Options") if text not in ("", "all", "cores")]
)
def test_a_default_that_is_said_is_no_different_from_saying_nothing(name: str, default: str) -> None:
    needed = {"broker": "127.0.0.1:10911", "topic": "orders"}
    if default.startswith("needed, or "):
        other = default.removeprefix("needed, or ")
        assert other in NAMES
        with pytest.raises(Exception, match=f'needs the option "{name}".* or "{other}"'):
            ScanOptions.parse({key: value for key, value in needed.items() if key != name})
    else:
        assert ScanOptions.parse({**needed, name: default}) == ScanOptions.parse(needed)


def test_what_is_quoted_of_an_example_is_in_it() -> None:
    quoted = block("starts = {queue:")

    assert quoted in (ROOT / "examples" / "spark_incremental.py").read_text()


def test_every_block_is_python_and_every_link_leads_somewhere() -> None:
    for each in BLOCKS:
        compile(each, "spark.md", "exec")
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
    headings = {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


# The recipes, run


async def bury(broker: str, topic: str, group: str) -> None:
    """Send three messages and let a group give the second up."""
    async with Producer(broker) as producer:
        for tag in ("created", "paid", "shipped"):
            await producer.send(Message(topic, tag.encode(), tag=tag), queue_id=0)
    done = asyncio.Event()

    async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> Any:
        if messages[0].tag == "shipped":
            done.set()
        if messages[0].tag == "paid":
            raise ValueError("no such account")

    consumer = Consumer(broker, group=group, listener=on_messages, topics={topic: "*"}, max_attempts=1, suspend_s=0.01)
    async with consumer, asyncio.timeout(60):
        await done.wait()


@pytest.mark.spark
@pytest.mark.slow
def test_the_recipes_that_need_a_broker_run(
    spark: SparkSession, real_broker: RealBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = "spark_doc", "spark_doc_billing"
    asyncio.run(bury(real_broker.address, topic, group))

    def run(sign: str) -> dict[str, Any]:
        names: dict[str, Any] = {"spark": spark, "broker": real_broker.address}
        code = block(sign).replace("127.0.0.1:10911", real_broker.address).replace('"orders"', f'"{topic}"')
        exec(code.replace("%DLQ%billing", dead_letter_topic(group)), names)
        return names

    assert run("rmq.spark.session()")["orders"].count() == 3
    run("letters =")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "paid" in line]
    assert [cell.strip() for cell in row.split("|")[1:4]] == ["0", "1", "paid"]
    assert run("read_table")["orders"].column("body").to_pylist() == [b"paid"]
    assert capsys.readouterr().out == "1 payments\n"


@pytest.mark.spark
@pytest.mark.slow
def test_the_join_of_dead_letters_finds_the_same_messages_after_a_restore(spark: SparkSession, tmp_path: Path) -> None:
    topic, group = "spark_doc", "spark_doc_billing"
    live, data = tmp_path / "live", tmp_path / "restored"

    def found(broker: RealBroker) -> list[tuple[Any, ...]]:
        code = block("letters =").replace('"orders"', f'"{topic}"').replace("%DLQ%billing", dead_letter_topic(group))
        names: dict[str, Any] = {"spark": spark, "broker": broker.address}
        exec(code, names)
        rows = names["orders"].join(names["dead"], "message_id").orderBy("queue_offset", "given_up_at").collect()
        return [(row.message_id, row.queue_offset, row.reason, row.given_up_at) for row in rows]

    with RealBroker(live) as broker:
        asyncio.run(bury(broker.address, topic, group))
        before = found(broker)
    assert before
    shutil.copytree(live, data)
    with RealBroker(data) as broker:
        assert found(broker) == before
        asyncio.run(bury(broker.address, topic, group))
        after = found(broker)
    assert set(before) < set(after)
    assert {row[0][:16] for row in after} != {row[0][:16] for row in before}
