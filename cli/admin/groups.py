"""
``rmq-admin group``: consumer groups, their members, their progress and their lag, in messages and in time.

The lag in time is the age of the oldest message of a queue that the group has not consumed. Only queues with a lag are
asked for it, and it is measured by the broker's clock, which stamped the message: the local clock may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from rmq.wire.errors import GroupNotFound, MemberSilent
from rmq.wire.model import MessageQueue, from_us
from rmq.wire.protocol.ops.groups import ANSWER_S

from ..output import terminal
from ..output.render import counted, epoch_text, member_end, printable, seconds, shortened, table, to_json
from ..shell.command import Group
from ..shell.connect import ask
from ..shell.options import admin_options
from .member_text import info_text, plain
from .offsets import reset_offset

if TYPE_CHECKING:
    from rmq.client import Admin, GroupDescription, GroupRow, MemberReport
    from rmq.client.admin.messages import Head
    from rmq.wire.protocol.ops.groups import GroupQueue, MemberState

LIST_COLUMNS = ("group", "mode", "members", "leases", "topics", "lag", "age")
MEMBER_COLUMNS = ("member", "address", "state", "heard", "leases")
QUEUE_COLUMNS = ("topic", "queue", "committed", "end", "lag", "age", "owner", "left")
BROADCAST_COLUMNS = ("topic", "queue", "first", "end")  # each member has its own progress, and no queue an owner
SHORTEST = 8  # characters that are left of a name
MOST_AGED = 100  # groups of a list that are asked for their age, one after the other


@click.group(
    cls=Group,
    examples="""
    rmq-admin group list
    rmq-admin group describe billing
    rmq-admin group members billing --verbose
    rmq-admin group reset-offset billing --topic orders --to first --dry-run
    """,
)
def group() -> None:
    """Inspect consumer groups and reset their offsets."""


@group.command(
    "list",
    examples="""
    rmq-admin group list
    rmq-admin group list --json
    """,
)
@admin_options
def list_groups(broker: str, as_json: bool) -> None:
    """
    List groups that have members, locks or progress.

    LAG: messages the group has not consumed, in all queues of its topics. AGE: how long the oldest of them has been
    stored (for the first 100 groups with a lag). A broadcasting group has neither, since each member has its own. With
    --json: one array of objects; the age is lag_s.
    """
    rows = ask(broker, _list)
    objects = [row_object(*row) for row in rows]
    click.echo(to_json(objects) if as_json else list_text(rows, terminal.columns()), nl=as_json)
    if not rows:
        click.echo("no groups yet: a group is created when its first consumer joins", err=True)


async def _list(admin: Admin) -> list[tuple[GroupRow, float | None]]:
    rows = await admin.list_groups()
    lagging = [row.group for row in rows if row.lag and not _is_broadcasting(row)]
    ahead = await ask_ahead(admin)
    ages = {group: await _age(admin, group, ahead) for group in lagging[:MOST_AGED]}
    return [(row, ages.get(row.group)) for row in rows]


async def _age(admin: Admin, group: str, ahead: timedelta) -> float | None:
    try:
        return oldest(await ask_ages(admin, await admin.describe_group(group), datetime.now(UTC) + ahead))
    except GroupNotFound:  # its topic was deleted in between
        return None


def row_object(row: GroupRow, lag_s: float | None) -> dict[str, Any]:
    """A line of the list as JSON."""
    return {**row._asdict(), "lag": None if _is_broadcasting(row) else row.lag, "lag_s": lag_s}


def list_text(rows: list[tuple[GroupRow, float | None]], columns: int = 0) -> str:
    """Return the list for people; with shortened modes and names if ``columns`` are too few (0: unlimited)."""
    cells = [list_cells(row, lag_s) for row, lag_s in rows]
    text = table(LIST_COLUMNS, cells)
    if terminal.fits(text, columns):
        return text
    for line, (row, _) in zip(cells, rows, strict=True):
        line[1] = None if row.ordered is None else "broadcast" if _is_broadcasting(row) else str(_mode(row)).split()[0]
    longest = max(len(row.group) for row, _ in rows)
    text = table(LIST_COLUMNS, cells)
    if not terminal.fits(text, columns):
        longest = max(longest - max(map(len, text.splitlines())) + columns, SHORTEST)
        text = table(
            LIST_COLUMNS,
            [[shortened(row.group, longest), *line[1:]] for line, (row, _) in zip(cells, rows, strict=True)],
        )
    return text


def list_cells(row: GroupRow, lag_s: float | None) -> list[object]:
    """A line of the list for people."""
    lag: object = f"{row.lag}+" if row.more_queues else row.lag  # too many queues to look at all of them
    lag = None if _is_broadcasting(row) else lag
    return [row.group, _mode(row), row.members, row.leases, row.topics, lag, _age_cell(lag_s)]


def _age_cell(lag_s: float | None) -> str | None:
    return None if lag_s is None else seconds(lag_s)


@group.command(
    examples="""
    rmq-admin group describe billing
    rmq-admin group describe billing --topic orders
    rmq-admin group describe billing --json | python3 -m json.tool
    """,
)
@click.argument("name", metavar="GROUP")
@click.option("--topic", metavar="TOPIC", help="Only the queues of this topic.")
@admin_options
def describe(name: str, topic: str | None, broker: str, as_json: bool) -> None:
    """
    Show the members of GROUP, and the progress and owner of each queue.

    COMMITTED: the offset to consume next. END: the offset after the last message. LAG: the messages in between. AGE:
    how long the oldest of them has been stored. OWNER: the end of the owner's member id. LEFT: how long its lock lasts
    unless renewed. Each member of a broadcasting group reads all queues and keeps its own progress: `group members
    --verbose` shows it. With --json: one object with more fields; the age is lag_s. `rmq-admin explain` says why a
    queue stands still.
    """
    described, ages = ask(broker, lambda admin: _describe(admin, name, topic))
    click.echo(to_json(group_object(described, ages)) + "\n" if as_json else group_text(described, ages), nl=False)


async def _describe(admin: Admin, name: str, topic: str | None) -> tuple[GroupDescription, Ages]:
    described = await admin.describe_group(name, topic)
    return described, await ask_ages(admin, described, datetime.now(UTC) + await ask_ahead(admin))


def group_object(described: GroupDescription, ages: Ages) -> dict[str, Any]:
    """A group as JSON."""
    return {
        **described._asdict(),
        "lag": None if _is_broadcasting(described) else described.lag,
        "lag_s": oldest(ages),
        "members": [member._asdict() for member in described.members],
        "queues": [_queue_object(queue, _is_broadcasting(described), ages) for queue in described.queues],
    }


def _queue_object(queue: GroupQueue, is_broadcasting: bool, ages: Ages) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in queue._asdict().items():
        fields[name] = value
        if name == "lag":
            fields["lag_s"] = ages.get(MessageQueue(queue.topic, queue.queue_id))
    if is_broadcasting:
        fields["lag"] = None
    for name in ("committed", "retry_offset", "suspect_offset"):
        fields[name] = None if fields[name] < 0 else fields[name]
    fields["epoch"] = epoch_text(queue.epoch)
    if queue.owner is None:
        fields["epoch"] = fields["lease_left_s"] = None
    return fields


def group_text(described: GroupDescription, ages: Ages) -> str:
    """A group for people."""
    lag = "progress per member" if _is_broadcasting(described) else f"{counted(described.lag, 'message')} behind"
    lag_s = oldest(ages)
    lag += "" if lag_s is None else f", the oldest is {seconds(lag_s)} old"
    text = f"{described.group}: {_mode(described) or 'no members'}, {lag}\n"
    for topic, expression in sorted(described.subscriptions.items()):
        text += printable(f"subscribes to {topic}: {expression}") + "\n"
    text += "\n" + (member_table(described.members) if described.members else "no members\n")
    if described.more_members:
        text += f"and {described.more_members} more members\n"
    if described.queues:
        text += "\n" + _queue_table(described, ages)
    if described.more_queues:
        text += f"and {described.more_queues} more queues: --topic shows those of one topic\n"
    if _is_broadcasting(described):
        return (
            text + f"\neach member keeps its own progress: see `rmq-admin group members {described.group} --verbose`\n"
        )
    troubles = [trouble for queue in described.queues if (trouble := _trouble(queue)) is not None]
    return text + ("\n" + "".join(f"{trouble}\n" for trouble in troubles) if troubles else "")


def member_table(members: list[MemberState]) -> str:
    """The members for people; without any, the heading alone."""
    return table(MEMBER_COLUMNS, [_member_cells(member) for member in members])


def _member_cells(member: MemberState) -> list[object]:
    return [member.member, member.address, member.state, f"{seconds(member.heard_ago_s)} ago", member.leases]


def _queue_table(described: GroupDescription, ages: Ages) -> str:
    if _is_broadcasting(described):
        ends = [[queue.topic, queue.queue_id, queue.min_offset, queue.max_offset] for queue in described.queues]
        return table(BROADCAST_COLUMNS, ends)
    return table(QUEUE_COLUMNS, [_queue_cells(queue, ages) for queue in described.queues])


def _queue_cells(queue: GroupQueue, ages: Ages) -> list[object]:
    committed = None if queue.committed < 0 else queue.committed
    age = _age_cell(ages.get(MessageQueue(queue.topic, queue.queue_id)))
    owner = left = None
    if queue.owner is not None:
        owner, left = member_end(queue.owner), seconds(queue.lease_left_s)
    return [queue.topic, queue.queue_id, committed, queue.max_offset, queue.lag, age, owner, left]


def _trouble(queue: GroupQueue) -> str | None:
    """Return what keeps a queue from progressing, or None."""
    where = f"{queue.topic}/{queue.queue_id}"
    if queue.state not in (None, "held", "grace"):
        return printable(f"{where}: {queue.state}")
    parts = ["no owner"]
    if queue.attempts:
        parts.append(f"offset {queue.retry_offset} failed {counted(queue.attempts, 'time')}")
    if queue.abandoned:
        parts.append(f"{counted(queue.abandoned, 'owner')} lost at offset {queue.suspect_offset}")
    return f"{where}: {', '.join(parts)}" if len(parts) > 1 else None


@group.command(
    examples="""
    rmq-admin group members billing
    rmq-admin group members billing --verbose
    rmq-admin group members billing --verbose --json | python3 -m json.tool
    """,
)
@click.argument("name", metavar="GROUP")
@click.option("--verbose", "-v", is_flag=True, help="Ask each member for its state, queue by queue.")
@admin_options
def members(name: str, verbose: bool, broker: str, as_json: bool) -> None:
    """
    Show the members of GROUP.

    With --verbose the broker asks each member, which has 1 s to reply: one that hangs is shown as silent. With --json:
    one array of objects; "info" is the member's reply, or null.
    """
    described, reports = ask(broker, lambda admin: _members(admin, name, verbose))
    if as_json:
        click.echo(to_json([_member_object(member, reports) for member in described.members]))
    elif verbose:
        click.echo("\n".join(member_card(member, reports) for member in described.members), nl=False)
    else:
        click.echo(member_table(described.members), nl=False)
    if described.more_members:
        click.echo(f"and {described.more_members} more members", err=True)
    if not described.members:
        click.echo(f"the group has no members: `rmq-admin explain {name}` shows what waits for it", err=True)


async def _members(admin: Admin, name: str, verbose: bool) -> tuple[GroupDescription, dict[str, MemberReport]]:
    described = await admin.describe_group(name)
    reports = await admin.members_info(name) if verbose else []
    return described, {report.member: report for report in reports}


def _member_object(member: MemberState, reports: dict[str, MemberReport]) -> dict[str, Any]:
    fields = member._asdict()
    if reports:
        report = reports.get(member.member)
        fields["info"] = None if report is None or report.status else plain(report.info)
        fields["error"] = "has left the group" if report is None else report.text
    return fields


def member_card(member: MemberState, reports: dict[str, MemberReport]) -> str:
    """Return a member and its report, for people."""
    where = f"at {member.address}, " if member.address else ""
    heard = f"heard {seconds(member.heard_ago_s)} ago"
    text = printable(f"{member.member}: {where}{member.state}, {heard}, {counted(member.leases, 'lock')}") + "\n"
    report = reports.get(member.member)
    if report is None:
        return text + "  has left the group\n"
    if report.status:
        return text + f"  {_why_not(report)}\n"
    return text + "".join(f"  {line}\n" for line in info_text(report.info).splitlines())


group.add_command(reset_offset)


def _why_not(report: MemberReport) -> str:
    if report.status == MemberSilent.code:
        return f"silent: no answer within {ANSWER_S:g} s; it may be stopped, or its event loop is blocked"
    return printable(f"not asked: {report.text or 'no reason given'}")


def _mode(described: GroupRow | GroupDescription) -> str | None:
    if described.ordered is None:
        return None
    return f"{'ordered' if described.ordered else 'concurrent'} {described.model} {described.strategy}"


def _is_broadcasting(described: GroupRow | GroupDescription) -> bool:
    return described.model == "broadcasting"


Ages: TypeAlias = Mapping[MessageQueue, float]


def next_offsets(described: GroupDescription) -> dict[MessageQueue, int]:
    """Return the next offset of each queue with a lag."""
    return {
        MessageQueue(queue.topic, queue.queue_id): max(queue.committed, queue.min_offset)
        for queue in described.queues
        if queue.lag > 0
    }


def ages_of(heads: Mapping[MessageQueue, Head], now: datetime) -> dict[MessageQueue, float]:
    """Return the age of each message in seconds; one that cannot be read or was consumed meanwhile has none."""
    return {
        queue: max(0.0, round((now - head.stored_at).total_seconds(), 3))
        for queue, head in heads.items()
        if head.stored_at is not None
    }


def oldest(ages: Ages) -> float | None:
    """Return the largest age in all queues, or None if no message is known to wait."""
    return max(ages.values(), default=None)


def ahead(stats: Mapping[str, Mapping[str, Any]], now: datetime) -> timedelta:
    """Return how far the broker's clock is ahead of the local one; 0 from a version that does not report it."""
    time_us = stats.get("broker", {}).get("time_us")
    return from_us(time_us) - now if isinstance(time_us, int) else timedelta()


async def ask_ahead(admin: Admin) -> timedelta:
    """Ask a broker for the same."""
    return ahead(await admin.stats(), datetime.now(UTC))


async def ask_ages(admin: Admin, described: GroupDescription, now: datetime) -> dict[MessageQueue, float]:
    """Return the ages of a group's queues; a broadcasting group has none, since each member has its own progress."""
    if described.model == "broadcasting":
        return {}
    asked = next_offsets(described)
    return ages_of(await admin.heads(asked), now) if asked else {}
