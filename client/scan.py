"""
Plans a scan: asks once what there is, and freezes ``[start, end)`` of every queue.

A running broker and a stopped log are asked the same questions, so all that follows from the answers is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rmq.wire import message_ops, ops
from rmq.wire.codec import decode, decode_list
from rmq.wire.errors import OK, TopicNotFound, from_wire
from rmq.wire.ops import MAX_ENTRIES, Op
from rmq.wire.stores import StoreIds

from .blocking import BlockingConnection
from .naming import naming
from .scan_options import ScanOptions
from .scan_plan import QueueHolds, QueueRange, TopicHolds, check_topics, chosen_queues, ranges, split
from .stopped_log import open_log


class Source(Protocol):
    """Whoever answers questions about topics."""

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """The payload of the answer."""


def plan(options: ScanOptions, *, cores: int = 1) -> list[QueueRange]:
    """
    The ranges to read, cut into pieces for as many tasks; none, if there is nothing to read.

    Raises:
        RmqError: no broker or log, no such topic or queue, or messages that were asked for are gone.
    """
    what = f"topic {', '.join(options.topics)}" if options.topics else f"topics {options.pattern}"
    if options.path:
        with naming(f"{what}, {options.where}"):
            log = open_log(options.path)
        with log, naming(options.where):
            parts = _planned(options, log, log.stores, cores)
            return [replace(part, hint=log.hint(part.topic, part.queue_id, part.start, part.end)) for part in parts]
    with naming(f"{what}, {options.where}"):
        connection = BlockingConnection(options.broker, timeout_s=options.manner.timeout_s)
    with connection, naming(options.where):
        return _planned(options, connection, connection.hello.stores, cores)


def _planned(options: ScanOptions, source: Source, stores: StoreIds, cores: int) -> list[QueueRange]:
    infos = _matching(options.pattern, source) if options.pattern else [_route(name, source) for name in options.topics]
    check_topics([info.topic for info in infos], options)
    chosen = [
        [
            ops.QueueRef(info.topic, queue_id)
            for queue_id in chosen_queues(info.topic, [queue.queue_id for queue in info.queues], options)
        ]
        for info in infos
    ]
    holds = iter(_holds(options, [ref for refs in chosen for ref in refs], source))
    topics = [
        TopicHolds(info.topic, info.generation, {ref.queue_id: next(holds) for ref in refs})
        for info, refs in zip(infos, chosen, strict=True)
    ]
    return split(
        ranges(options, topics, stores),
        max_records=options.max_records,
        min_partitions=options.min_partitions,
        cores=cores,
    )


def _route(topic: str, source: Source) -> ops.TopicInfo:
    try:
        return decode(ops.TopicInfo, source.request(Op.ROUTE, ops.Route(topic)))
    except TopicNotFound:
        known = [info.topic for info in _all_topics(source)]
        raise TopicNotFound(f"there is no topic {topic}; {_known(known)}") from None


def _matching(pattern: str, source: Source) -> list[ops.TopicInfo]:
    known = list(_all_topics(source))
    # Retry and dead letter topics hold copies: a pattern for the others should not read messages twice.
    found = [info for info in known if re.fullmatch(pattern, info.topic) and (info.topic[0] != "%" or "%" in pattern)]
    if not found:
        raise TopicNotFound(f"no topic matches; {_known([info.topic for info in known])}")
    return found


def _known(names: list[str]) -> str:
    return f"there are {', '.join(sorted(names))}" if names else "there is no topic at all"


def _all_topics(source: Source) -> Iterable[ops.TopicInfo]:
    after = ""
    while page := decode_list(ops.TopicInfo, source.request(Op.LIST_TOPICS, ops.ListTopics(after))):
        yield from page
        after = page[-1].topic


def _holds(options: ScanOptions, refs: Sequence[ops.QueueRef], source: Source) -> list[QueueHolds]:
    found: list[QueueHolds] = []
    for at in range(0, len(refs), MAX_ENTRIES):
        part = list(refs[at : at + MAX_ENTRIES])
        held = _answered(ops.Range, part, source.request(Op.RANGES, ops.Ranges(None, part)))
        starts = _offsets_at(options.start.time_us, part, source)
        ends = _offsets_at(options.end.time_us, part, source)
        found += [
            QueueHolds(range_.min_offset, range_.max_offset, start, end)
            for range_, start, end in zip(held, starts, ends, strict=True)
        ]
    return found


def _offsets_at(time_us: int | None, refs: list[ops.QueueRef], source: Source) -> Sequence[int | None]:
    if time_us is None:
        return [None] * len(refs)
    answer = source.request(Op.OFFSETS_AT, message_ops.OffsetsAt(time_us, refs))
    return [found.offset for found in _answered(message_ops.OffsetAt, refs, answer)]


def _answered(shape: Any, refs: list[ops.QueueRef], answer: Any) -> list[Any]:
    found = decode_list(shape, answer)
    for ref, item in zip(refs, found, strict=True):
        if item.status != OK:
            raise from_wire(item.status, f"queue {ref.queue_id} of topic {ref.topic}: {item.text}")
    return found
