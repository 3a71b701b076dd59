"""``rmq-admin explain``: why the queues of a group progress or stand still, and what to do."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from ..output.render import counted, epoch_text, member_end, printable, seconds, table, to_json
from ..shell import exit_codes
from ..shell.command import Command
from ..shell.connect import ask
from ..shell.options import admin_options

if TYPE_CHECKING:
    from rmq.client import Explanation, QueueStory

COLUMNS: Final = ("  queue", "reason", "wait", "head", "age", "try", "next", "owner", "left")
LOCK: Final = 2  # of them, the last ones, are about the lock
MARKS: Final = {"ACTION_REQUIRED": "!", "WATCH": "?", "OK": " "}
WIDTH: Final = 80
MOST: Final = 10  # queues of one reason that are shown one by one, unless all are asked for
_WHOLE = re.compile(r"`[^`]*`|\b\d[\d.,]* (?:s|h|min)\b")  # commands, and numbers with their unit
_COMMAND = re.compile(r"`(rmq-admin (?!broker verify-store)[^`]*)`")  # those that talk to a broker
_GLUE = "\x00"  # in the place of their spaces, so that they stay on one line


@click.command(
    cls=Command,
    examples="""
    rmq-admin explain billing
    rmq-admin explain billing orders --all
    rmq-admin explain billing --json | python3 -m json.tool
    rmq-admin explain billing >/dev/null || echo "billing requires action"
    """,
)
@click.argument("group")
@click.argument("topic", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Show every queue: healthy ones too, and more than 10 per reason.",
)  # fmt: skip
@admin_options
def explain(group: str, topic: str | None, everything: bool, broker: str, as_json: bool) -> None:
    """
    Explain why the queues of GROUP progress or stand still, and what to do.

    For every queue: the reason, the number of waiting messages, the first of them and its age, its next delivery, and
    the lock's owner and remaining time. Worst first: "!" requires action, "?" may resolve by itself. Members are asked
    through the broker, which takes 1 to 3 s.

    Exit code 4 if a queue requires action, otherwise 0. docs/explain.md describes each reason. With --json: one object.
    """
    answer = ask(broker, lambda admin: admin.explain(group, topic))
    context = click.get_current_context()
    if context.get_parameter_source("broker") is click.core.ParameterSource.COMMANDLINE:
        answer = naming_broker(answer, broker)
    click.echo(json_text(answer) if as_json else text(answer, everything=everything, width=_width()), nl=False)
    if answer.requires_action:
        context.exit(exit_codes.ATTENTION)


def naming_broker(answer: Explanation, broker: str) -> Explanation:
    """Add --broker to every advised command, so that it reaches the same broker when it is copied."""

    def named(text: str) -> str:
        return _COMMAND.sub(rf"`\1 --broker {broker}`", text)

    return answer._replace(
        queues=[story._replace(sentence=named(story.sentence), advice=named(story.advice)) for story in answer.queues],
        notes=[note._replace(sentence=named(note.sentence), advice=named(note.advice)) for note in answer.notes],
    )


def _width() -> int:
    """Return the width of the terminal, 60 to 120; 80 without one."""
    return min(max(shutil.get_terminal_size().columns, 60), 120) if sys.stdout.isatty() else WIDTH


def json_text(answer: Explanation) -> str:
    """Return an explanation as one JSON object."""
    from rmq.client.explain.collect import as_object

    shown = as_object(answer)
    shown["queues"] = [{**queue, "epoch": epoch_text(queue["epoch"])} for queue in shown["queues"]]
    return to_json(shown) + "\n"


def text(answer: Explanation, *, everything: bool = False, width: int = WIDTH) -> str:
    """Return an explanation for people."""
    ill = [story for story in answer.queues if story.urgency.name != "OK"]
    well = [story for story in answer.queues if story.urgency.name == "OK"]
    parts = [headline(answer)]
    if ill:
        parts.append("\n" + _stories(ill, width, most=None if everything else MOST))
    if well and ill:
        parts.append(f"\n{counted(len(well), 'queue')} well: {_sum_of(well)}\n")
    elif well:
        parts.append(f"  {_sum_of(well)}\n")
    if well and everything:
        parts.append("\n" + _stories(well, width))
    if answer.notes:
        parts.append("\n")
    for note in answer.notes:
        parts.append(_indented(f"note: {note.sentence} {note.advice}", "", "  ", width))
    return "".join(parts)


def headline(answer: Explanation) -> str:
    """Return one line with the overall state."""
    counts = Counter(story.urgency.name for story in answer.queues)
    total = counted(len(answer.queues), "queue")
    if not answer.queues:
        how = "no queues"
    elif counts["ACTION_REQUIRED"]:
        how = f"{counts['ACTION_REQUIRED']} of {total} require{'s' if counts['ACTION_REQUIRED'] == 1 else ''} action"
    elif counts["WATCH"]:
        how = f"{counts['WATCH']} of {total} to watch"
    else:
        how = f"{total}, all well"
    mode = "" if answer.ordered is None else f"{'ordered' if answer.ordered else 'concurrent'}, "
    mode = "broadcasting, " if answer.model == "broadcasting" else mode
    return (
        printable(f"{answer.group}: {how} ({mode}{counted(answer.members, 'member')}, {_waiting(answer.lag)})") + "\n"
    )


def _stories(stories: Sequence[QueueStory], width: int, most: int | None = None) -> str:
    """Return a line for each queue (at most ``most`` per reason), and after equal ones the cause and the advice."""
    by_reason = [list(found) for _, found in itertools.groupby(stories, key=lambda story: story[2:4])]
    left_out = {found[most - 1]: found[most:] for found in by_reason if most is not None and len(found) > most}
    stories = [story for found in by_reason for story in found[:most]]
    rows = [_cells(story) for story in stories]
    lines = _table(COLUMNS, rows)
    if max(map(len, lines)) > width:  # the lock gets a line of its own
        lines = _table(COLUMNS[:-LOCK], [row[:-LOCK] for row in rows])
        lines[1:] = [line + _lock(row) for line, row in zip(lines[1:], rows, strict=True)]
    parts = [f"{lines[0]}\n"]
    alike = itertools.groupby(zip(stories, lines[1:], strict=True), key=lambda pair: pair[0][4:6])
    for (sentence, advice), group in alike:
        pairs = list(group)
        parts += [f"{line}\n" for _, line in pairs]
        parts.append(_indented(sentence, "     ", "     ", width))
        if advice:
            parts.append(_indented(f"do: {advice}", "     ", "         ", width))
        parts += [_more(left_out[story]) for story, _ in pairs if story in left_out]
    return "".join(parts)


def _more(left_out: Sequence[QueueStory]) -> str:
    mark, waiting = MARKS[left_out[0].urgency.name], _waiting(sum(story.lag for story in left_out))
    return f"{mark} {counted(len(left_out), 'more queue')} {left_out[0].reason.value} ({waiting}): --all shows them\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table without its empty columns."""
    kept = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows]).splitlines()


def _lock(row: Sequence[object]) -> str:
    owner, left = row[-LOCK:]
    lasts = f", {left} left" if left else ""
    return "" if owner is None else f"\n     held by {printable(str(owner))}{lasts}"


def _cells(story: QueueStory) -> list[object]:
    return [
        f"{MARKS[story.urgency.name]} {story.topic}/{story.queue_id}",
        story.reason.value,
        story.lag or None,
        story.head_offset,
        None if story.head_age_s is None else seconds(story.head_age_s),
        story.attempt if story.attempt > 1 else None,
        None if story.retry_in_s is None else seconds(story.retry_in_s),
        None if story.owner is None else member_end(story.owner),
        None if story.lease_left_s is None else seconds(story.lease_left_s),
    ]


def _sum_of(stories: Sequence[QueueStory]) -> str:
    """Summarise healthy queues in one line."""
    counts = Counter(story.reason.value for story in stories)
    answer = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    moving = [(story.lag, story.per_s) for story in stories if story.per_s]
    speed = ""
    if moving:
        left = seconds(max(lag / per_s for lag, per_s in moving))
        speed = f" ({sum(per_s for _, per_s in moving):,.0f} messages/s, through in {left})"
    return f"{answer}{speed}"


def _indented(sentence: str, first: str, others: str, width: int) -> str:
    """Wrap a sentence; commands in it stay on one line, to be copied."""
    glued = _WHOLE.sub(lambda found: found[0].replace(" ", _GLUE), printable(sentence.strip()))
    lines = textwrap.wrap(
        glued, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{line.replace(_GLUE, ' ')}\n" for line in lines)


def _waiting(lag: int) -> str:
    return f"{lag:,} messages wait" if lag != 1 else "1 message waits"
