"""The commands: the whole pipeline, or one step of it against a broker that runs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from rmq import RmqError

from . import consume, facts, orders, produce
from .page import render_html
from .report import render_text
from .run import Interrupted, run, say

EPILOG = """
examples:
  python examples/pipeline                                      everything, with a broker of its own
  python examples/pipeline --dir out --orders 20000
  python examples/pipeline produce --broker 127.0.0.1:10911     one step
  python examples/pipeline consume --broker 127.0.0.1:10911 --group billing --name billing-1 --dir out
  python examples/pipeline report --broker 127.0.0.1:10911 --dir out
"""


def main(arguments: list[str] | None = None) -> None:
    """Run what is asked for; an error is one line."""
    asked = _parser().parse_args(arguments)
    if asked.command is not _consume:
        logging.basicConfig(level=logging.CRITICAL)  # what went wrong is said once, here
    try:
        asked.command(asked)
    except (RmqError, ValueError, OSError, Interrupted) as error:
        sys.exit(f"pipeline: {error}")
    except KeyboardInterrupt:
        sys.exit("pipeline: interrupted")


def _parser() -> argparse.ArgumentParser:
    shop = argparse.ArgumentParser(add_help=False)
    shop.add_argument("--orders", type=int, default=2000, help="how many orders there are (2000)")
    shop.add_argument("--seed", type=int, default=1, help="the same orders for the same number (1)")
    shop.add_argument("--queues", type=int, default=8, help="queues of the topic (8)")
    parser = argparse.ArgumentParser(
        prog="pipeline",
        description="Orders through a broker, ordered consumers and a Spark job, to Parquet and a report.",
        epilog=EPILOG,
        parents=[shop],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reach = argparse.ArgumentParser(add_help=False)
    reach.add_argument("--broker", required=True, metavar="HOST:PORT", help="a broker that runs")
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--dir", type=Path, required=True, help="folder of the deliveries, the Parquet and the report")
    parser.add_argument("--dir", type=Path, help="empty folder for everything; without, one in the temporary folder")
    parser.set_defaults(command=_run)
    steps = parser.add_subparsers(title="steps", metavar="STEP")
    step = steps.add_parser("produce", parents=[reach, shop], help="send the orders, with faults")
    step.set_defaults(command=_produce)
    step = steps.add_parser("consume", parents=[reach, place], help="be a member of a group until Ctrl-C")
    step.add_argument("--group", choices=sorted(consume.GROUPS), required=True)
    step.add_argument("--name", required=True, help="name of the file that deliveries are noted in")
    step.set_defaults(command=_consume)
    step = steps.add_parser("report", parents=[reach, place], help="archive the topic and report on it, with Spark")
    step.set_defaults(command=_report)
    return parser


def _run(asked: argparse.Namespace) -> None:
    run(asked.orders, asked.seed, asked.queues, asked.dir)


def _produce(asked: argparse.Namespace) -> None:
    events, planted = orders.with_faults(orders.two_days(asked.orders, asked.seed))
    asyncio.run(produce.produce(asked.broker, events, asked.queues, say))
    first, second = planted.swapped
    say(f"planted: {planted.repeated} sent twice, {first} sent before {second}, {planted.poisoned} cannot be booked")


def _consume(asked: argparse.Namespace) -> None:
    (asked.dir / consume.DELIVERIES).mkdir(parents=True, exist_ok=True)
    # Failures are part of the story here: they go to a file, and not between the lines of progress.
    logging.basicConfig(filename=asked.dir / f"{asked.name}.log", format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(consume.consume(asked.broker, asked.group, asked.name, asked.dir))


def _report(asked: argparse.Namespace) -> None:
    from rmq.spark import session

    from .job import make_report

    known = asyncio.run(facts.ask(asked.broker, orders.TOPIC, consume.GROUPS))
    # Days and hours are those of UTC wherever this runs. Two cores are enough, and few partitions for so little.
    spark = session("pipeline", conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 4})
    try:
        say(f"Spark {spark.version} is ready")
        report = make_report(spark, asked.broker, known, consume.GROUPS, folder=asked.dir, say=say)
    finally:
        spark.stop()
    for name, text in (
        ("report.txt", render_text(report)),
        ("report.html", render_html(report)),
        ("report.json", report.as_json()),
    ):
        (asked.dir / name).write_text(text)
