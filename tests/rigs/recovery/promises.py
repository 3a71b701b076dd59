"""
What must hold after a crash, whatever the machine did: judged by what was asked for and acknowledged before it.

- ``sync``: every acknowledged batch and value is there, and whatever a reader was given.
- ``async``: the same, but for what was acknowledged within the last 500 ms.
- In both: what else is there was asked for before the crash; the log is a run of what was written, without a hole and
  without anything else; queues are dense; and all that was made from the log equals what a rebuild makes of it.
- A delayed message is delivered once, whole, and not before it was sent. A broker that recovered is asked twice: as it
  is, and when nothing is deferred any more; by then everything acknowledged is there, unless its topic is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rmq.wire import names
from rmq.wire.batch import batch as batches

from rigs.disk.crash import Crash
from rigs.disk.recording import Created, Recording, Resized, Unlinked, Wrote
from rigs.recovery.served import INTERVAL_S, Found, LogBatch, Message, Queue, Recovered, read_log
from rigs.recovery.workload import Acknowledged, Asked, Batch, Learned, Values

ROUNDING_S = 1e-6
WINDOW = 256  # of batches whose fate a broker remembers

Stream = tuple[str, int, int]  # topic, generation, queue


class Version(NamedTuple):
    """A value that a key was given: from when on it may hold, and from when on it must."""

    value: Any
    asked_at: int
    acknowledged_at: int | None


class Placed(NamedTuple):
    """A batch, where it went, and when that was asked for and acknowledged."""

    batch: Batch
    base_offset: int
    position: int
    asked_at: int
    acknowledged_at: int


class History:
    """A whole run in the order of the recording: what was asked for, when, and what became of it."""

    def __init__(self, recording: Recording, flush: str) -> None:
        self._steps = recording.steps
        self._flush = flush
        self.log = _written_log(recording)
        self._places = {batch: i for i, batch in enumerate(self.log)}
        self.versions: dict[Hashable, list[Version]] = defaultdict(list)
        self.streams: dict[Stream, list[Placed]] = defaultdict(list)
        self.delayed: dict[Stream, list[Placed]] = defaultdict(list)  # with the offset -1
        self.learned: list[tuple[int, Learned]] = []
        self._removals = _removals(recording)
        self._read(recording)

    def _read(self, recording: Recording) -> None:
        asked: dict[int, tuple[int, Asked]] = {}
        for i, mark in recording.marks():
            if isinstance(mark, Asked):
                asked[mark.number] = i, mark
        acknowledged = {mark.number: (i, mark) for i, mark in recording.marks() if isinstance(mark, Acknowledged)}
        for number, (i, mark) in asked.items():
            when, answer = acknowledged.get(number, (None, None))
            if isinstance(mark.fact, Values):
                for key, value in mark.fact.pairs:
                    given = answer.base_offset if value == "any" and answer is not None else value
                    self.versions[key].append(Version(given, i, when))
            elif when is not None and answer is not None:
                placed = Placed(mark.fact, answer.base_offset, answer.position, i, when)
                (self.delayed if answer.base_offset < 0 else self.streams)[mark.fact[:3]].append(placed)
        for stream in self.streams.values():
            stream.sort(key=lambda placed: placed.base_offset)
        self.learned = [(i, mark) for i, mark in recording.marks() if isinstance(mark, Learned)]

    def must_hold(self, at: int | None, prefix: int) -> bool:
        """Whether something acknowledged at a step must have survived a crash after ``prefix`` steps."""
        if at is None or at >= prefix:
            return False
        if self._flush == "sync":
            return True
        end = self._steps[min(prefix, len(self._steps) - 1)].moment
        return end - self._steps[at].moment > INTERVAL_S + ROUNDING_S

    def removed_until(self, prefix: int) -> int:
        """The position below which retention may have removed the log, in the first ``prefix`` steps."""
        return max((until for at, until in self._removals if at < prefix), default=0)

    def copies_of(self, parked: Placed) -> list[int]:
        """Where the run delivered a delayed batch."""
        return list(copies([(batch.position, batch.origin) for batch in self.log], parked.position))

    def place(self, batch: LogBatch) -> int | None:
        """Which batch of the run this is, None if it is none."""
        return self._places.get(batch)


def violations(history: History, crash: Crash, recovered: Recovered) -> list[str]:
    """Every promise that a recovery broke, a line each."""
    found, rebuilt = recovered.found, recovered.rebuilt
    if history.removed_until(crash.prefix):  # what became of batches that are gone is in the checkpoint alone
        found, rebuilt = found.without_fates(), rebuilt.without_fates()
    return [
        *_log_violations(history, crash.prefix, recovered),
        *_stream_violations(history, crash.prefix, found),
        *_delay_violations(history, crash.prefix, recovered),
        *_value_violations(history, crash.prefix, found),
        *_producer_violations(history, crash.prefix, recovered),
        *(f"not as a rebuild: {line}" for line in found.differences(rebuilt)),
        *(f"the scrub found {finding}" for finding in recovered.findings),
    ]


def _log_violations(history: History, prefix: int, recovered: Recovered) -> Iterator[str]:
    yield from (f"the log is not clean {line}" for line in recovered.odd)
    places = [history.place(batch) for batch in recovered.log]
    old = [place for place in places if place is not None]
    new = [batch for batch, place in zip(recovered.log, places, strict=True) if place is None]
    if places[: len(old)] != old:
        yield "batches of the run lie after those of the new start"
    for before, after in pairwise(recovered.log):
        if before.position + before.size != after.position:
            yield f"a hole in the log between {before} and {after}"
    for place, following in pairwise(old):
        if following != place + 1:
            yield f"batch {place} of the log is followed by {following}"
    if old and old[0] != 0 and history.log[old[0]].position > history.removed_until(prefix):
        yield f"the log begins with batch {old[0]}"
    highest = max((history.log[place].log_epoch for place in old), default=0)
    if any(batch.log_epoch <= highest for batch in new):
        yield f"the new start has a log epoch that is not above {highest}"


def _streams(found: Found, queues: dict[Queue, list[Message]]) -> dict[Stream, dict[int, bytes]]:
    """What queues hold; but for dead letters, which were not sent: each is a value of its own."""
    return {
        (topic, found.topics[topic][0], queue_id): {message.offset: message.body for message in messages}
        for (topic, queue_id), messages in queues.items()
        if not topic.startswith(names.DEAD_LETTERS)
    }


def _delay_violations(history: History, prefix: int, recovered: Recovered) -> Iterator[str]:
    """When nothing waits any more, every delayed batch was delivered once."""
    streams = _streams(recovered.found, recovered.delivered)
    for stream, sent in history.delayed.items():
        if stream not in streams and _may_be_gone(history, prefix, stream):
            continue
        found = deliveries(sent, streams.get(stream, {}), prefix)
        yield from (f"{stream}: {line}" for line in found.broken)
        for one in sent:
            is_gone = any(position < history.removed_until(prefix) for position in history.copies_of(one))
            if one not in found.there and not is_gone and history.must_hold(one.acknowledged_at, prefix):
                yield f"{stream} lost the delayed batch {one.batch.bodies[0][:12]!r}, acknowledged"


def _stream_violations(history: History, prefix: int, found: Found) -> Iterator[str]:
    for of, messages in found.messages.items():
        offsets = [message.offset for message in messages]
        if offsets != list(range(*found.ranges[of])):
            yield f"{of}: offsets {offsets} are not those of the range {found.ranges[of]}"
    streams = _streams(found, found.messages)
    for stream in history.streams.keys() | streams.keys():
        if stream in streams or not _may_be_gone(history, prefix, stream):
            first = found.ranges.get((stream[0], stream[2]), (0, 0))[0]
            yield from _one_stream(history, prefix, stream, streams.get(stream, {}), first)


def _one_stream(history: History, prefix: int, stream: Stream, messages: dict[int, bytes], first: int) -> Iterator[str]:
    end = max(messages, default=first - 1) + 1
    delayed = deliveries(history.delayed[stream], messages, prefix)
    yield from (f"{stream}: {line}" for line in delayed.broken)
    messages = {offset: body for offset, body in messages.items() if offset not in delayed.offsets}
    known: set[int] = set()
    for one in history.streams[stream]:
        offsets = range(one.base_offset, one.base_offset + len(one.batch.bodies))
        known.update(offsets)
        there = [messages.get(offset) for offset in offsets]
        if there == list(one.batch.bodies):
            if one.asked_at >= prefix:
                yield f"{stream} has {one.batch.bodies[0][:12]!r} before it was sent"
        elif any(body is not None for body in there):
            yield f"{stream} at {one.base_offset}: {there!r:.120} is not {one.batch.bodies!r:.120}"
        elif history.must_hold(one.acknowledged_at, prefix) and one.position >= history.removed_until(prefix):
            yield f"{stream} lost the acknowledged batch at {one.base_offset}"
    if messages.keys() - known:
        yield f"{stream} has messages that were not sent at {sorted(messages.keys() - known)}"
    read = [one.offset for at, one in history.learned if one[:3] == stream and history.must_hold(at, prefix)]
    if max(read, default=0) > end:
        yield f"{stream} ends at {end}, a reader got up to {max(read)}"


def _may_be_gone(history: History, prefix: int, stream: Stream) -> bool:
    """Whether the deletion of a topic had been asked for."""
    versions = history.versions["topic", stream[0]]
    return any(version.value is None and version.asked_at < prefix for version in versions)


def _value_violations(history: History, prefix: int, found: Found) -> Iterator[str]:
    for key, versions in history.versions.items():
        allowed: list[Any] = [None]
        for version in versions:
            if history.must_hold(version.acknowledged_at, prefix):
                allowed = [version.value]
            elif version.asked_at < prefix:
                allowed.append(version.value)
        held = _held(found, key)
        if held is None and _is_letter(key) and history.removed_until(prefix):
            continue  # its place in the log is not known: retention may have had it
        if held not in allowed:
            yield f"{key} is {held!r}, not one of {allowed!r}"


def _producer_violations(history: History, prefix: int, recovered: Recovered) -> Iterator[str]:
    """A producer's line ends with its last stored batch: else one is stored twice, or the next one refused."""
    stored = {batch.position for batch in recovered.log if history.place(batch) is not None}
    lines: dict[int, list[Placed]] = defaultdict(list)
    for placed in (*history.streams.values(), *history.delayed.values()):
        for one in placed:
            lines[one.batch.producer_id].append(one)
    for producer_id, line in lines.items():
        there = [one for one in line if one.position in stored]
        least = max((one.batch.sequence for one in there), default=0)
        most = max((one.batch.sequence for one in line if one.asked_at < prefix), default=0)
        _, last, fates = recovered.found.producers.get(producer_id, (0, 0, {}))
        if not least <= last <= most:
            yield f"producer {producer_id} ends at {last}, not within {least} to {most}"
        for one in there:
            fate = fates.get(one.batch.sequence)
            if one.batch.sequence > last - WINDOW and (fate is None or fate.base_offset != one.base_offset):
                which = f"batch {one.batch.sequence} of producer {producer_id}"
                yield f"{which} lies at {one.base_offset}, not as in {fate}"


def _is_letter(key: Any) -> bool:
    return bool(key[0] == "letter")


def _held(found: Found, key: Any) -> Any:
    match key:
        case ("topic", topic):
            return found.topics[topic][1] if topic in found.topics else None
        case ("lease", *of):
            return found.leases.get(tuple(of))
        case ("committed", *of):
            return found.committed.get(tuple(of))
        case ("attempts", *of):
            return found.attempts.get(tuple(of))
        case ("announced", *of):
            return found.announced.get(tuple(of))
        case ("letter", group, body):
            letters = found.messages.get((names.dead_letter_topic(group), 0), ())
            return sum(letter.body == body for letter in letters) or None
    raise AssertionError(key)


def _written_log(recording: Recording) -> list[LogBatch]:
    """Every batch that was ever written to the log, also to segments that are gone."""
    segments: dict[int, int] = {}
    content: dict[int, bytearray] = {}
    for path, number in recording.start.files.items():
        if _is_segment(path):
            segments[number] = int(path.rpartition("/")[2])
            content[number] = bytearray(recording.start.content[number])
    for step in recording.steps:
        match step.operation:
            case Created(path, number) if _is_segment(path):
                segments[number] = int(path.rpartition("/")[2])
                content[number] = bytearray()
            case Wrote(number, at, data) if number in segments:
                content[number].extend(bytes(max(at - len(content[number]), 0)))
                content[number][at : at + len(data)] = data
            case Resized(number, size) if number in segments:
                del content[number][size:]
    found, odd = read_log({start: bytes(content[number]) for number, start in segments.items()})
    assert not odd, odd
    return found


def _is_segment(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == "commitlog" and name.isdigit()


def _removals(recording: Recording) -> list[tuple[int, int]]:
    """The steps that removed a segment, each with the position at which the log then begins."""
    paths = [*recording.start.files, *(s.operation.path for s in recording.steps if isinstance(s.operation, Created))]
    starts = sorted(int(path.rpartition("/")[2]) for path in paths if _is_segment(path))
    found = []
    for i, step in enumerate(recording.steps):
        if isinstance(step.operation, Unlinked) and _is_segment(step.operation.path):
            removed = int(step.operation.path.rpartition("/")[2])
            found.append((i, min((start for start in starts if start > removed), default=removed)))
    return found


class Deliveries(NamedTuple):
    """Which offsets of a queue hold delayed messages, which batches are there, and what is wrong with that."""

    offsets: set[int]
    there: list[Placed]
    broken: list[str]


def deliveries(sent: Sequence[Placed], messages: dict[int, bytes], prefix: int) -> Deliveries:
    """Find the delayed batches in a queue. Bodies are unique, so each shows where its batch lies."""
    found = Deliveries(set(), [], [])
    places: dict[bytes, list[int]] = {}
    for offset, body in messages.items():
        places.setdefault(body, []).append(offset)
    for one in sent:
        bodies = one.batch.bodies
        begins = places.get(bodies[0], [])
        for begin in begins:
            offsets = range(begin, begin + len(bodies))
            found.offsets.update(offsets)
            if [messages.get(offset) for offset in offsets] != list(bodies):
                found.broken.append(f"the delayed batch {bodies[0][:12]!r} is not whole at {begin}")
        if begins:
            found.there.append(one)
        if len(begins) > 1:
            found.broken.append(f"the delayed batch {bodies[0][:12]!r} was delivered twice, at {begins}")
        if begins and one.asked_at >= prefix:
            found.broken.append(f"the delayed batch {bodies[0][:12]!r} was delivered before it was sent")
    return found


def copies(log: Sequence[tuple[int, int]], parked_at: int) -> Iterator[int]:
    """Return where a run delivered a parked batch; ``log`` are positions and origins."""
    origin = batches.handle(parked_at, 0)
    yield from (position for position, of in log if of == origin)
