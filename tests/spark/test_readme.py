"""What README.md and the tutorial show of Spark, run in the Spark that all tests share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq.client import Message, Producer

from rigs.doc_blocks import ADDRESS, Block, blocks, missing
from rigs.real_broker import RealBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/tutorial.md")


def report(document: str) -> tuple[Block, Block | None]:
    """The file that reads with Spark, and what it is said to print."""
    found = blocks((ROOT / document).read_text())
    (place,) = [place for place, block in enumerate(found) if block.file_name == "report.py"]
    assert found[place + 1].text == "python report.py\n"
    after = found[place + 2] if place + 2 < len(found) else None
    return found[place], after if after is not None and after.language == "text" else None


async def send(address: str, topic: str) -> None:
    async with Producer(address) as producer:
        for tag in ("created", "paid", "shipped"):
            await producer.send(Message(topic, tag.encode(), tag=tag), key="o-17")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_report_prints_what_it_says(
    document: str, spark: SparkSession, real_broker: RealBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"shown_by_{Path(document).stem}"
    asyncio.run(send(real_broker.address, topic))
    code, said = report(document)

    exec(code.text.replace(ADDRESS, real_broker.address).replace('"orders"', f'"{topic}"'), {})

    printed = capsys.readouterr().out
    assert missing(said.text if said else "| paid| 1|\n", printed) == []
