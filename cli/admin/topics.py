"""``rmq-admin topic``: creates, inspects, grows and deletes topics."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rmq.wire.errors import TopicNotFound
from rmq.wire.names import MAX_QUEUES

from ..output.render import counted, table, to_json
from ..shell import exit_codes
from ..shell.command import Failure, Group, confirm
from ..shell.connect import ask
from ..shell.options import admin_options

if TYPE_CHECKING:
    from rmq.client import Admin, TopicDescription
    from rmq.wire.protocol.ops.core import TopicInfo

LIST_COLUMNS = ("topic", "queues", "shards", "messages")
QUEUE_COLUMNS = ("queue", "broker", "first", "end", "messages")
GROUP_COLUMNS = ("group", "members", "lag", "queues", "largest_lag")


@click.group(
    cls=Group,
    examples="""
    rmq-admin topic create orders --queues 8
    rmq-admin topic list --json
    rmq-admin topic describe orders
    rmq-admin topic grow orders --queues 16
    rmq-admin topic delete orders
    """,
)
def topic() -> None:
    """Create, inspect, grow and delete topics."""


@topic.command(
    examples="""
    rmq-admin topic create orders
    rmq-admin topic create orders --queues 8 --json
    """,
)
@click.argument("name")
@click.option(
    "--queues", metavar="N", type=click.IntRange(1, MAX_QUEUES), default=4, show_default=True,
    help="Number of queues: the most members of an ordered group that can work at once.",
)  # fmt: skip
@admin_options
def create(name: str, queues: int, broker: str, as_json: bool) -> None:
    """
    Create the topic NAME.

    Repeating it with as many queues is harmless. A topic cannot get fewer queues later, and messages with a
    key stay in those that it began with: choose as many as members of a group shall ever work at once. Producers make a
    topic by themselves, with the broker's default_queues, unless auto_create_topics is off.
    """
    ask(broker, lambda admin: admin.create_topic(name, queues))
    click.echo(to_json({"topic": name, "queues": queues}) if as_json else f"{name}: {counted(queues, 'queue')}")


@topic.command(
    "list",
    examples="""
    rmq-admin topic list
    rmq-admin topic list --json
    """,
)
@admin_options
def list_topics(broker: str, as_json: bool) -> None:
    """List the topics: their queues, and how many messages can be read."""
    rows = ask(broker, _topic_rows)
    cells = [list(row.values()) for row in rows]
    click.echo(to_json(rows) if as_json else table(LIST_COLUMNS, cells), nl=as_json)
    if not rows:
        click.echo("no topics yet: create one with `rmq-admin topic create NAME`", err=True)


async def _topic_rows(admin: Admin) -> list[dict[str, Any]]:
    return [await _topic_row(admin, info) for info in await admin.list_topics()]


async def _topic_row(admin: Admin, info: TopicInfo) -> dict[str, Any]:
    from rmq.wire.protocol.ops.core import QueueRef

    ranges = await admin.ranges([QueueRef(info.topic, queue.queue_id) for queue in info.queues])
    messages = sum(held.max_offset - held.min_offset for held in ranges)
    return {"topic": info.topic, "queues": len(info.queues), "shards": info.shards, "messages": messages}


@topic.command(
    examples="""
    rmq-admin topic describe orders
    rmq-admin topic describe orders --json | python3 -m json.tool
    """,
)
@click.argument("name", metavar="TOPIC")
@admin_options
def describe(name: str, broker: str, as_json: bool) -> None:
    """
    Show TOPIC: what each queue holds, and how far each group has read.

    Groups are those that have committed progress. LAG is the number of messages that a group has not
    consumed, LARGEST_LAG that of the queue with the most. With --json: one object, with the lag of every queue.
    """
    described = ask(broker, lambda admin: admin.describe_topic(name))
    click.echo(to_json(topic_object(described)) + "\n" if as_json else topic_text(described), nl=False)


def topic_object(described: TopicDescription) -> dict[str, Any]:
    """Return a topic as JSON."""
    return {
        "topic": described.topic,
        "generation": described.generation,
        "shards": described.shards,
        "created_at": _created(described),
        "messages": described.messages,
        "queues": [{**queue._asdict(), "messages": queue.lag(-1)} for queue in described.queues],
        "groups": [
            {
                "group": group.group,
                "members": group.members,
                "lag": sum(lags := described.lags(group)),
                "queues": [
                    {"queue_id": queue.queue_id, "committed": None if committed < 0 else committed, "lag": lag}
                    for queue, committed, lag in zip(described.queues, group.committed, lags, strict=True)
                ],
            }
            for group in described.groups
        ],
        "more_groups": described.more_groups,
    }


def topic_text(described: TopicDescription) -> str:
    """Return a topic for people."""
    text = (
        f"{described.topic}: {counted(len(described.queues), 'queue')}, {counted(described.shards, 'shard')}, "
        f"{counted(described.messages, 'message')}, "
        f"generation {described.generation}, created {_created(described):%Y-%m-%d %H:%M:%S} UTC\n\n"
    )
    text += table(QUEUE_COLUMNS, [(*queue, queue.lag(-1)) for queue in described.queues])
    if described.groups:
        text += "\n" + table(GROUP_COLUMNS, [_group_cells(described, i) for i in range(len(described.groups))])
    if described.more_groups:
        text += f"and {described.more_groups} more groups\n"
    return text


def _group_cells(described: TopicDescription, i: int) -> list[object]:
    group = described.groups[i]
    lags = described.lags(group)
    begun = sum(committed >= 0 for committed in group.committed)
    worst = max(range(len(lags)), key=lags.__getitem__)
    largest = f"{lags[worst]} in queue {described.queues[worst].queue_id}" if lags[worst] else None
    return [group.group, group.members, sum(lags), f"{begun}/{len(lags)}", largest]


def _created(described: TopicDescription) -> datetime:
    return datetime.fromtimestamp(described.created_at / 1_000_000, UTC)


@topic.command(
    examples="""
    rmq-admin topic grow orders --queues 16
    rmq-admin topic grow orders --queues 16 --json
    """,
)
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues", metavar="N", type=click.IntRange(1, MAX_QUEUES), required=True,
    help="New number of queues; cannot shrink.",
)  # fmt: skip
@admin_options
def grow(name: str, queues: int, broker: str, as_json: bool) -> None:
    """
    Give TOPIC more queues.

    Messages with a key stay in the queues they have always gone to, so that their order is kept; only
    messages without one go to the new queues too. Consumers are notified at once, producers ask every 30 s.
    """
    info = ask(broker, lambda admin: admin.grow_topic(name, queues))
    grown = {"topic": name, "queues": len(info.queues), "shards": info.shards}
    shards = f"keys stay in the first {info.shards}" if info.shards < len(info.queues) else "keys use all of them"
    click.echo(to_json(grown) if as_json else f"{name}: {len(info.queues)} queues, {shards}")


@topic.command(
    examples="""
    rmq-admin topic delete orders
    rmq-admin topic delete orders --yes --json
    """,
)
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Skip the question.")
@admin_options
def delete(name: str, yes: bool, broker: str, as_json: bool) -> None:
    """
    Delete TOPIC with its messages and the progress of all groups in it.

    This cannot be undone, so it asks for confirmation; scripts need --yes. Stop producers first: one that keeps sending
    recreates the topic, empty, unless automatic creation is off. Consumers may keep running: they are notified, and
    start at 0 if the topic is created again.
    """
    if not yes and (as_json or not sys.stdin.isatty()):
        text = f"cannot ask whether to delete {name} with all its messages without a terminal: add --yes"
        raise Failure(text, exit_codes.USAGE)
    generation = 0
    if not yes:
        try:
            described = ask(broker, lambda admin: admin.describe_topic(name))
        except TopicNotFound as error:  # whose own advice is to make it
            text = f"there is no topic {name!r}: `rmq-admin topic list` shows those that exist"
            raise Failure(text, exit_codes.of(error)) from error
        generation = described.generation  # whatever is made while we wait for the answer stays
        _confirm(described)
    gone = ask(broker, lambda admin: admin.delete_topic(name, generation))
    click.echo(to_json(gone._asdict()) if as_json else f"{name}: deleted")


def _confirm(described: TopicDescription) -> None:
    groups = len(described.groups) + described.more_groups
    what = f"{counted(described.messages, 'message')} and the progress of {counted(groups, 'group')}"
    confirm(f"Delete {described.topic} with {what}?", "nothing was deleted; --yes skips the question")
