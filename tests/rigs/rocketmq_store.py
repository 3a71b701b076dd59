"""Writes stores as RocketMQ 4.9 does: commit log, consume queues and the files of its settings."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Self
from zlib import crc32

BLANK = 0xCBD43194
MESSAGE = 0xDAA320A7
IPV4 = bytes([127, 0, 0, 1])
DELAYS_MS = [1000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)]
NOW_MS = 1_700_000_000_000


def host(address: bytes = IPV4, port: int = 10911) -> bytes:
    """A host as a record holds it."""
    return address + struct.pack(">i", port)


def encode_properties(properties: dict[str, str], *, closed: bool = False) -> bytes:
    """The text of properties; older producers close it with a separator."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return (text + ("\x02" if closed and text else "")).encode()


def encode_record(
    *, topic: str, body: bytes = b"", queue_id: int = 0, queue_offset: int = 0, physical_offset: int = 0,
    properties: dict[str, str] | None = None, flag: int = 0, sysflag: int = 0, born_at: int = NOW_MS,
    stored_at: int = NOW_MS, born_host: bytes | None = None, store_host: bytes | None = None, reconsume_times: int = 0,
    prepared_offset: int = 0, closed: bool = False,
) -> bytes:  # fmt: skip
    """One record; hosts with an address of IPv6 set their bits in ``sysflag``."""
    born, store = born_host or host(), store_host or host()
    sysflag |= (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0)
    named, text = topic.encode(), encode_properties(properties or {}, closed=closed)
    crc = crc32(body) & 0x7FFFFFFF if body else 0
    rest = b"".join(
        [
            struct.pack(">iiiqqiq", crc, queue_id, flag, queue_offset, physical_offset, sysflag, born_at),
            born, struct.pack(">q", stored_at), store,
            struct.pack(">iqi", reconsume_times, prepared_offset, len(body)), body,
            bytes([len(named)]), named, struct.pack(">h", len(text)), text,
        ]
    )  # fmt: skip
    return struct.pack(">iI", len(rest) + 8, MESSAGE) + rest


def java_hash(text: str) -> int:
    """The tags code of a tag."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


class StoreBuilder:
    """
    A store in ``root``, written when the ``with`` block ends.

    ``start`` is the physical offset of its first byte, ``first_offsets`` the queue offsets that queues begin with: what
    was before them retention has removed.
    """

    def __init__(
        self, root: Path, *, file_size: int = 4096, entries: int = 50, start: int = 0, clean: bool = True,
        first_offsets: dict[tuple[str, int], int] | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self.clean = clean
        self._file_size = file_size
        self._entries = entries
        self._start = start
        self._log = bytearray()
        self._offsets = dict(first_offsets or {})
        self._first = dict(first_offsets or {})
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.config: dict[str, str] = {}
        self.spare_files = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.write()

    def put(
        self, topic: str, queue_id: int = 0, body: bytes = b"", *, tags: str | None = None, keys: str | None = None,
        uniq: str | None = None, properties: dict[str, str] | None = None, tags_code: int | None = None,
        indexed: bool = True, **fields: Any,
    ) -> int:  # fmt: skip
        """Append a message; returns its physical offset."""
        named = {"KEYS": keys, "UNIQ_KEY": uniq, "TAGS": tags}
        everything = {name: value for name, value in named.items() if value is not None} | (properties or {})
        has_place = fields.get("sysflag", 0) & 0xC not in (0x4, 0xC)
        queue = (topic, queue_id)
        offset = self._offsets.get(queue, 0) if has_place else 0
        record = self._place(
            topic=topic, body=body, queue_id=queue_id, queue_offset=offset, properties=everything, **fields
        )
        position = self._start + len(self._log)
        self._log += record
        if has_place:
            self._offsets[queue] = offset + 1
            if indexed:
                code = java_hash(tags) if tags_code is None and tags else tags_code or 0
                self.queues.setdefault(queue, []).append((position, len(record), code))
        return position

    def delay(self, topic: str, queue_id: int, body: bytes, level: int, **more: Any) -> int:
        """Append a message that waits; returns its physical offset."""
        properties = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)} | more.pop("properties", {})
        due = more.get("stored_at", NOW_MS) + DELAYS_MS[level - 1]
        return self.put("SCHEDULE_TOPIC_XXXX", level - 1, body, properties=properties, tags_code=due, **more)

    def delivered(self, topic: str, queue_id: int, body: bytes, level: int, **more: Any) -> int:
        """Append the copy of a message whose time has come."""
        properties = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)} | more.pop("properties", {})
        return self.put(topic, queue_id, body, properties=properties, **more)

    def topics(self, **queues: int) -> None:
        """Write ``topics.json``, next to what RocketMQ makes itself."""
        rows = {"TBW102": (8, 7), "DefaultCluster": (16, 7), "SCHEDULE_TOPIC_XXXX": (18, 6)}
        rows |= {name: (count, 6) for name, count in queues.items()}
        table = ",\n".join(
            f'\t\t"{name}":{{"order":false,"perm":{perm},"readQueueNums":{count},"topicFilterType":"SINGLE_TAG",'
            f'"topicName":"{name}","topicSysFlag":0,"writeQueueNums":{count}}}'
            for name, (count, perm) in rows.items()
        )
        head = '{\n\t"dataVersion":{"counter":2,"timestamp":1700000000000},\n\t"topicConfigTable":{\n'
        self.config["topics.json"] = f"{head}{table}\n\t}}\n}}"

    def offsets(self, rows: dict[str, dict[int, int]]) -> None:
        """Write ``consumerOffset.json``: ``topic@group`` and the next offset of each queue."""
        lines = ",\n".join(f'\t\t"{name}":{_numbers(row, 2)}' for name, row in rows.items())
        self.config["consumerOffset.json"] = f'{{\n\t"offsetTable":{{\n{lines}\n\t}}\n}}'

    def delays(self, rows: dict[int, int]) -> None:
        """Write ``delayOffset.json``."""
        self.config["delayOffset.json"] = f'{{\n\t"offsetTable":{_numbers(rows, 1)}\n}}'

    def write(self) -> None:
        """Write all files."""
        folder = self.root / "commitlog"
        folder.mkdir(parents=True)
        size = self._file_size
        files = max(1, -(-len(self._log) // size)) + self.spare_files
        log = bytes(self._log).ljust(files * size, b"\0")
        for at in range(0, files * size, size):
            (folder / f"{self._start + at:020}").write_bytes(log[at : at + size])
        for queue, entries in self.queues.items():
            self._write_queue(queue, entries)
        (self.root / "lock").write_bytes(b"lock")
        if not self.clean:
            (self.root / "abort").touch()
        for name, text in self.config.items():
            (self.root / "config").mkdir(exist_ok=True)
            (self.root / "config" / name).write_text(text)

    def _write_queue(self, queue: tuple[str, int], entries: list[tuple[int, int, int]]) -> None:
        first = self._first.get(queue, 0)
        folder = self.root / "consumequeue" / queue[0] / str(queue[1])
        folder.mkdir(parents=True)
        begin = first // self._entries * self._entries
        packed = struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * (first - begin)
        packed += b"".join(struct.pack(">qiq", *entry) for entry in entries)
        size = 20 * self._entries
        for at in range(0, len(packed) or 1, size):
            (folder / f"{begin * 20 + at:020}").write_bytes(packed[at : at + size].ljust(size, b"\0"))

    def _place(self, **fields: Any) -> bytes:
        """The record for the next place, which a blank one may move to the next file."""
        record = encode_record(physical_offset=self._start + len(self._log), **fields)
        left = self._file_size - len(self._log) % self._file_size
        if len(record) + 8 > left:
            assert len(record) + 8 <= self._file_size, "the record does not fit into a file"
            self._log += struct.pack(">iI", left, BLANK).ljust(left, b"\0")
            record = encode_record(physical_offset=self._start + len(self._log), **fields)
        return record


def _numbers(row: dict[int, int], depth: int) -> str:
    """A table with numbers as keys, the way it is written by RocketMQ: without quotes, the brace on the next line."""
    return "{" + ",".join(f"{key}:{value}" for key, value in row.items()) + "\n" + "\t" * depth + "}"
