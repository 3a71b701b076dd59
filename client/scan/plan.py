"""
Plans a scan: asks once what there is, and freezes ``[start, end)`` of every queue.

A running broker and a stopped log are asked the same questions, so all that follows from the answers is the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from rmq.engine.native.blocking import BlockingConnection
from rmq.engine.native.source import QueueRange, open_log
from rmq.wire.batch import layout
from rmq.wire.errors import OK, LogTruncated, OtherHistory, TopicNotFound, from_wire
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages
from rmq.wire.protocol.ops.core import MAX_ENTRIES, Op
from rmq.wire.stores import FormerStore, StoreIds

from .bounds import EARLIEST, HISTORY, time_text
from .options import ScanOptions
from .ranges import QueueBounds, TopicBounds, check_topics, chosen_queues, naming, ranges, split

log = logging.getLogger("rmq.client.scan.plan")

Report = Callable[[str], object]

MOST_NAMED: Final = 10  # queues in one line of the log
NO_HISTORY: Final = (
    f'has no "{HISTORY}": if the store was restored from a backup, or a crash lost messages, since these offsets were '
    "saved, messages are missed and nothing shows it; save what rmq.client.starting_offsets() returns"
)


class Endpoint(Protocol):
    """Answers requests about topics: a running broker, or a stopped log."""

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """The payload of the answer."""


def plan(options: ScanOptions, *, cores: int = 1, report: Report = log.warning) -> list[QueueRange]:
    """
    The ranges to read, cut into pieces for as many tasks; none, if there is nothing to read.

    Offsets with a history are compared with the log first. If it lost messages before them, the scan begins where it
    lost them; so it does in a store that was restored from a backup, once an operator accepted that. That, and offsets
    without a history, are reported.

    Raises:
        OtherHistory: the offsets are of another store, or of one that the broker's was copied from, which has other
            messages before them.
        RmqError: no broker or log, no such topic or queue, or messages that were asked for are gone.
    """
    what = f"topic {', '.join(options.topics)}" if options.topics else f"topics {options.pattern}"
    if options.path:
        with naming(f"{what}, {options.where}"):
            stopped = open_log(options.path)
        with stopped, naming(options.where):
            parts = _planned(options, stopped, stopped.stores, cores, report)
            return [replace(part, hint=stopped.hint(part.topic, part.queue_id, part.start, part.end)) for part in parts]
    with naming(f"{what}, {options.where}"):
        connection = BlockingConnection(options.broker, timeout_s=options.manner.timeout_s)
    with connection, naming(options.where):
        return _planned(options, connection, connection.hello.stores, cores, report)


def _planned(options: ScanOptions, source: Endpoint, stores: StoreIds, cores: int, report: Report) -> list[QueueRange]:
    infos = _matching(options.pattern, source) if options.pattern else [_route(name, source) for name in options.topics]
    check_topics([info.topic for info in infos], options)
    chosen = [
        [
            ops.QueueRef(info.topic, queue_id)
            for queue_id in chosen_queues(info.topic, [queue.queue_id for queue in info.queues], options)
        ]
        for info in infos
    ]
    named = [ref for refs in chosen for ref in refs]
    holds = iter(_holds(options, named, source))
    options = _agreed(options, named, source, stores, report)
    topics = [
        TopicBounds(info.topic, info.generation, {ref.queue_id: next(holds) for ref in refs})
        for info, refs in zip(infos, chosen, strict=True)
    ]
    return split(
        ranges(options, topics, stores),
        max_records=options.max_records,
        min_partitions=options.min_partitions,
        cores=cores,
    )


def _route(topic: str, source: Endpoint) -> ops.TopicInfo:
    try:
        return decode(ops.TopicInfo, source.request(Op.ROUTE, ops.Route(topic)))
    except TopicNotFound:
        known = [info.topic for info in _all_topics(source)]
        raise TopicNotFound(f"there is no topic {topic}; {_known(known)}") from None


def _matching(pattern: str, source: Endpoint) -> list[ops.TopicInfo]:
    known = list(_all_topics(source))
    # Retry and dead letter topics hold copies: a pattern for the others should not read messages twice.
    found = [info for info in known if re.fullmatch(pattern, info.topic) and (info.topic[0] != "%" or "%" in pattern)]
    if not found:
        raise TopicNotFound(f"no topic matches; {_known([info.topic for info in known])}")
    return found


def _known(names: list[str]) -> str:
    return f"there are {', '.join(sorted(names))}" if names else "there is no topic at all"


def _all_topics(source: Endpoint) -> Iterable[ops.TopicInfo]:
    after = ""
    while page := decode_list(ops.TopicInfo, source.request(Op.LIST_TOPICS, ops.ListTopics(after))):
        yield from page
        after = page[-1].topic


def _holds(options: ScanOptions, refs: Sequence[ops.QueueRef], source: Endpoint) -> list[QueueBounds]:
    found: list[QueueBounds] = []
    for at in range(0, len(refs), MAX_ENTRIES):
        part = list(refs[at : at + MAX_ENTRIES])
        held = _answered(ops.Range, part, source.request(Op.RANGES, ops.Ranges(None, part)))
        starts = _offsets_at(options.start.time_us, part, source)
        ends = _offsets_at(options.end.time_us, part, source)
        found += [
            QueueBounds(range_.min_offset, range_.max_offset, start, end)
            for range_, start, end in zip(held, starts, ends, strict=True)
        ]
    return found


def _agreed(
    options: ScanOptions, refs: Sequence[ops.QueueRef], source: Endpoint, stores: StoreIds, report: Report
) -> ScanOptions:
    """Return the options with a start that the log agrees with, as far as the start has a history; see :func:`plan`."""
    start, history = options.start, options.start.history
    saved = {ref: offset for ref in refs if (offset := start.exact(*ref))}  # before offset 0 is nothing to compare
    if history is None:
        if saved:
            report(f'{options.where}: the option "{start.name}" {NO_HISTORY}')
        return options
    if not stores.has(history.store_id):
        raise OtherHistory(
            f'"{start.name}" is of the store {history.store_id:016x}; this one is {stores.current:016x}, which is not '
            f'a copy of it: read from the store that the offsets were saved of, or start again with "{EARLIEST}"'
        )
    moved = {}
    for ref, offset in saved.items():
        before = _header_at(ref, offset - 1, source)
        if before is not None and history.has_read(before, stores):
            continue
        answer = _pulled(ops.PullQueue(*ref, offset, log_epoch=history.log_epoch(*ref, stores)), source)
        if answer.status == LogTruncated.code:
            moved[ref] = answer
        elif answer.status == OtherHistory.code:
            raise from_wire(answer.status, answer.text or "this log has other messages than the reader has read")
        elif before is not None:  # the broker remembers only some of its starts
            raise OtherHistory(
                f"{MessageQueue(*ref)} has another message before offset {offset} than the one that was read, and the "
                f"broker was started too often since to know where the two part: {_anew(stores.find(history.store_id))}"
            )
    return _moved(options, moved, report) if moved else options


def _moved(options: ScanOptions, moved: dict[ops.QueueRef, ops.PullResult], report: Report) -> ScanOptions:
    """Return the options with a start where the answers for some queues say, and report it."""
    assert options.start.offsets is not None  # only named offsets are compared
    starts = [f"{answer.next_offset} of {MessageQueue(*ref)}" for ref, answer in moved.items()]
    more = f" and {len(starts) - MOST_NAMED} other queues" if len(starts) > MOST_NAMED else ""
    reason = next(iter(moved.values())).text
    report(f"{options.where}: {reason}; reading from offset {', '.join(starts[:MOST_NAMED])}{more}")
    offsets = {topic: dict(queues) for topic, queues in options.start.offsets.items()}
    for ref, answer in moved.items():
        offsets[ref.topic][ref.queue_id] = answer.next_offset
    return replace(options, start=replace(options.start, offsets=offsets))


def _anew(former: FormerStore | None) -> str:
    """Return what to do where the offset at which a reader could continue is not known."""
    if former is None:
        return f'start again with "{EARLIEST}"'
    return f"read from startingTimestamp {time_text(former.copied_at)} on, when the store was restored"


def _header_at(ref: ops.QueueRef, offset: int, source: Endpoint) -> layout.Header | None:
    """Return the header of the batch that a message lies in; None if the message cannot be read."""
    answer = _pulled(ops.PullQueue(*ref, offset), source)
    header = layout.parse_header(answer.batches) if answer.status == OK and answer.batches else None
    return header if header is not None and header.base_offset <= offset else None


def _pulled(asked: ops.PullQueue, source: Endpoint) -> ops.PullResult:
    """Pull one batch of one queue, without waiting for it."""
    answers = decode_list(ops.PullResult, source.request(Op.PULL, ops.Pull(None, 0, 1, [asked])))
    return answers[0] if answers else ops.PullResult(0, ops.EMPTY, asked.queue_offset, 0, 0, b"")


def _offsets_at(time_us: int | None, refs: list[ops.QueueRef], source: Endpoint) -> Sequence[int | None]:
    if time_us is None:
        return [None] * len(refs)
    answer = source.request(Op.OFFSETS_AT, messages.OffsetsAt(time_us, refs))
    return [found.offset for found in _answered(messages.OffsetAt, refs, answer)]


def _answered(shape: Any, refs: list[ops.QueueRef], answer: Any) -> list[Any]:
    found = decode_list(shape, answer)
    for ref, item in zip(refs, found, strict=True):
        if item.status != OK:
            raise from_wire(item.status, f"queue {ref.queue_id} of topic {ref.topic}: {item.text}")
    return found
