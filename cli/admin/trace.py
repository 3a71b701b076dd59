"""``rmq-admin message trace``: what became of a message, derived from what the broker stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from ..output.render import epoch_text, member_end, printable, seconds, stored_object, to_json
from ..shell.command import Command
from ..shell.connect import ask
from ..shell.options import admin_options, message_id_argument

if TYPE_CHECKING:
    from rmq.client.admin.trace import MessageCopy, Standing, Trace
    from rmq.wire.model import StoredMessage

_POSITIONS: Final = {
    "past": "consumed it",
    "at": "next message",
    "none": "no progress in its queue yet",
    "broadcasting": "broadcasting: each member keeps its own progress",
}

_STATES: Final = {
    "failed": "failed",
    "past": "done",
    "at": "is the next one",
    "before": "others come first",
    "none": "not begun",
}


@click.command(
    cls=Command,
    examples="""
    rmq-admin message trace 8f1c0a5f6f2e4b90000000000012c003
    rmq-admin message trace 8f1c0a5f6f2e4b90000000000012c003 --json | python3 -m json.tool
    """,
)
@message_id_argument
@admin_options
def trace(message_id: str, broker: str, as_json: bool) -> None:
    """
    Show what became of the message with this ID.

    Shows where it is stored, the progress of each group of its topic and the owner of its queue, and its copies:
    retries, dead letters and replayed dead letters. ID may be that of a copy, or the one in the receipt of a delayed
    message. Everything is derived from stored data, so what retention has removed is not shown. Times are in UTC. With
    --json: one object.
    """
    result = ask(broker, lambda admin: admin.trace(message_id))
    click.echo(to_json(trace_object(result)) + "\n" if as_json else trace_text(result, datetime.now(UTC)), nl=False)


def trace_object(result: Trace) -> dict[str, Any]:
    """Return a trace as JSON."""
    return {
        "message": {**stored_object(result.message), "due_at": result.message.due_at, "size": len(result.message.body)},
        "is_waiting": result.is_deferred,
        "origin": result.origin._asdict() if result.is_copy else None,
        "source": None if result.source is None else _place(result.source),
        "became": None if result.became is None else _place(result.became),
        "groups": [{**standing._asdict(), "epoch": epoch_text(standing.epoch)} for standing in result.standings],
        "copies": [copy._asdict() for copy in result.copies],
        "remarks": result.remarks,
        "unsure": result.unsure,
    }


def _place(message: StoredMessage) -> dict[str, Any]:
    return {
        "topic": message.stored_topic,
        "queue_id": message.queue_id,
        "queue_offset": None if message.queue_offset < 0 else message.queue_offset,
        "message_id": message.message_id,
        "stored_at": message.stored_at,
        "due_at": message.due_at,
    }


# ---- for people


def trace_text(result: Trace, now: datetime) -> str:
    """Return a trace for people: fields, then a line for each group, then the copies, oldest first."""
    lines = [f"message {result.message.message_id}"]
    fields = card_fields(result, now)
    width = max(map(len, fields))
    lines += [f"  {name.ljust(width)}  {text}" for name, text in fields.items()]
    if result.standings:
        lines += [
            "",
            f"groups that read {result.origin.topic}, at {result.origin.queue} @{result.origin.queue_offset}:",
        ]
        widest = max(len(standing.group) for standing in result.standings)
        for each in result.standings:
            first, *more = standing_lines(each, result.copies, unsure=each.group in result.unsure)
            lines += [f"  {each.group.ljust(widest)}  {first}", *(f"  {'':{widest}}  {line}" for line in more)]
    elif result.origin.queue_offset >= 0:
        lines += ["", f"no group reads {result.origin.topic}"]
    if result.copies:
        lines += ["", "copies, in the order they were made:"]
        for copy in result.copies:
            mark = " (this one)" if copy.message_id == result.message.message_id else ""
            lines += [f"  {_time(copy.stored_at)}  {copy_line(copy, now)}"]
            lines += [f"    {_copy_place(copy)}, id {copy.message_id}{mark}"]
            lines += [f"    reason: {copy.reason}"] if copy.reason else []
    if result.remarks:
        lines += ["", *result.remarks]
    return "".join(f"{printable(line)}\n" for line in lines)


def card_fields(result: Trace, now: datetime) -> dict[str, str]:
    """Return the fields of the message itself."""
    message = result.message
    fields = {"stored": f"{_where(message)}, {_time(message.stored_at)}, {len(message.body)} bytes"}
    optional = {"tag": message.tag, "index keys": " ".join(message.index_keys), "key": message.key}
    fields |= {name: text for name, text in optional.items() if text}
    if result.is_copy:
        fields["copy of"] = f"{result.origin.queue} @{result.origin.queue_offset}, id {result.origin.message_id}"
    elif message.copy_of is not None:
        fields["made of"] = _source(message.copy_of, result.source)
    if result.is_deferred and message.due_at is not None:
        fields["waits"] = f"until {_time(message.due_at)}, {_left(message.due_at, now)}"
    if result.became is not None:
        fields["became"] = f"{_where(result.became)}, id {result.became.message_id}"
    return fields


def _source(message_id: str, source: StoredMessage | None) -> str:
    if source is None:
        return f"{message_id}, which is no longer stored"
    if source.due_at is not None:
        return f"the delayed message {message_id}"
    return f"{_where(source)}, id {message_id}"


def standing_lines(standing: Standing, copies: list[MessageCopy], *, unsure: bool = False) -> list[str]:
    """Return the progress of a group and the owner of its queue; ``unsure``: not all copies were examined."""
    own = sum(copy.group == standing.group for copy in copies)
    is_doubtful = unsure and not own and standing.position == "past"
    parts = [_position(standing, has_failed=own > 0 or is_doubtful)]
    if is_doubtful:
        parts.append("unknown whether it failed, see below")
    if own:
        parts.append(f"failed: {own} {'copy' if own == 1 else 'copies'} below")
    if standing.attempts:
        parts.append(f"failed {standing.attempts} {'time' if standing.attempts == 1 else 'times'} so far")
    if standing.abandoned:
        parts.append(f"{standing.abandoned} owners in a row were lost while processing it")
    return ["; ".join(parts)] if standing.position == "broadcasting" else ["; ".join(parts), _owner(standing)]


def _position(standing: Standing, *, has_failed: bool) -> str:
    committed = "" if standing.committed is None else f" (committed {standing.committed})"
    if standing.position == "unwanted":
        return f"filters its tag out: subscribes to {standing.expression}"
    if standing.position == "before":
        count = standing.messages_before
        text = f"{count} {'message comes' if count == 1 else 'messages come'} before it{committed}"
        return text + (", it may be consumed already" if standing.ordered is False and not has_failed else "")
    if standing.position == "past" and has_failed:
        return f"past it{committed}"
    return _POSITIONS[standing.position] + committed


def _owner(standing: Standing) -> str:
    if standing.owner is None or standing.lease_left_s is None:
        return "the queue has no owner"
    owner = (
        f"held by ..{member_end(standing.owner)}" if member_end(standing.owner) != standing.owner else standing.owner
    )
    return f"{owner}, epoch {standing.epoch}, {seconds(standing.lease_left_s)} left"


def copy_line(copy: MessageCopy, now: datetime) -> str:
    """Return a copy and its state."""
    if copy.kind == "dead_letter":
        times = copy.delivery or 0
        return f"dead letter, {times} {'delivery' if times == 1 else 'deliveries'} failed, {copy.state}"
    if copy.kind == "returned":
        return "sent back to its topic by a replay"
    what = "replayed" if copy.kind == "replay" else f"for delivery {copy.delivery}"
    if copy.due_at is not None:
        return f"{what}, due {_left(copy.due_at, now)}"
    return f"{what}, {_STATES.get(copy.state or '', 'unknown')}"


def _copy_place(copy: MessageCopy) -> str:
    return f"{copy.topic}/{copy.queue_id}" + ("" if copy.queue_offset is None else f" @{copy.queue_offset}")


def _where(message: StoredMessage) -> str:
    at = f" @{message.queue_offset}" if message.queue_offset >= 0 else ""
    return f"{message.stored_topic}/{message.queue_id}{at}"


def _left(due_at: datetime, now: datetime) -> str:
    left = (due_at - now).total_seconds()
    return f"in {seconds(left)}" if left > 0 else "now"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z"
