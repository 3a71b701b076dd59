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
    "--queues",
    metavar="N",
    type=click.IntRange(1, MAX_QUEUES),
    default=4,
    show_default=True,
    help="Number of queues: the most members of an ordered group that can work at once.",
)
@admin_options
def create(name: str, queues: int, broker: str, as_json: bool) -> None:
    """
    Create the topic NAME.

    Making it again with as many queues is no error. A topic cannot get fewer queues later, and messages with a
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
    if as_json:
        click.echo(to_json(rows))
    else:
        columns = ("topic", "queues", "shards", "messages")
        click.echo(table(columns, [[row[name] for name in columns] for row in rows]), nl=False)
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
    told = ask(broker, lambda admin: admin.describe_topic(name))
    click.echo(to_json(topic_object(told)) + "\n" if as_json else topic_text(told), nl=False)


def topic_object(told: TopicDescription) -> dict[str, Any]:
    """A topic as JSON."""
    return {
        "topic": told.topic,
        "generation": told.generation,
        "shards": told.shards,
        "created_at": _created(told),
        "messages": told.messages,
        "queues": [{**queue._asdict(), "messages": queue.lag(-1)} for queue in told.queues],
        "groups": [
            {
                "group": group.group,
                "members": group.members,
                "lag": sum(lags := told.lags(group)),
                "queues": [
                    {"queue_id": queue.queue_id, "committed": None if committed < 0 else committed, "lag": lag}
                    for queue, committed, lag in zip(told.queues, group.committed, lags, strict=True)
                ],
            }
            for group in told.groups
        ],
        "more_groups": told.more_groups,
    }


def topic_text(told: TopicDescription) -> str:
    """A topic for people."""
    text = (
        f"{told.topic}: {counted(len(told.queues), 'queue')}, {counted(told.shards, 'shard')}, "
        f"{counted(told.messages, 'message')}, "
        f"generation {told.generation}, created {_created(told):%Y-%m-%d %H:%M:%S} UTC\n\n"
    )
    text += table(QUEUE_COLUMNS, [(*queue, queue.lag(-1)) for queue in told.queues])
    if told.groups:
        text += "\n" + table(GROUP_COLUMNS, [_group_cells(told, i) for i in range(len(told.groups))])
    if told.more_groups:
        text += f"and {told.more_groups} more groups\n"
    return text


def _group_cells(told: TopicDescription, i: int) -> list[object]:
    group = told.groups[i]
    lags = told.lags(group)
    begun = sum(committed >= 0 for committed in group.committed)
    worst = max(range(len(lags)), key=lags.__getitem__)
    largest = f"{lags[worst]} in queue {told.queues[worst].queue_id}" if lags[worst] else None
    return [group.group, group.members, sum(lags), f"{begun}/{len(lags)}", largest]


def _created(told: TopicDescription) -> datetime:
    return datetime.fromtimestamp(told.created_at / 1_000_000, UTC)


@topic.command(
    examples="""
    rmq-admin topic grow orders --queues 16
    rmq-admin topic grow orders --queues 16 --json
    """,
)
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues",
    metavar="N",
    type=click.IntRange(1, MAX_QUEUES),
    required=True,
    help="New number of queues; cannot shrink.",
)
@admin_options
def grow(name: str, queues: int, broker: str, as_json: bool) -> None:
    """
    Give TOPIC more queues.

    Messages with a key stay in the queues they have always gone to, so that their order is kept; only
    messages without one go to the new queues too. Consumers are told at once, producers ask every 30 s.
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
            told = ask(broker, lambda admin: admin.describe_topic(name))
        except TopicNotFound as error:  # whose own advice is to make it
            text = f"there is no topic {name!r}: `rmq-admin topic list` shows those that exist"
            raise Failure(text, exit_codes.of(error)) from error
        generation = told.generation  # whatever is made while we wait for the answer stays
        _confirm(told)
    gone = ask(broker, lambda admin: admin.delete_topic(name, generation))
    click.echo(to_json(gone._asdict()) if as_json else f"{name}: deleted")


def _confirm(told: TopicDescription) -> None:
    groups = len(told.groups) + told.more_groups
    what = f"{counted(told.messages, 'message')} and the progress of {counted(groups, 'group')}"
    confirm(f"Delete {told.topic} with {what}?", "nothing was deleted; --yes skips the question")
