"""The settings of a broker, loaded from ``conf/broker.toml``, then the environment, then flags."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmq.wire.errors import ConfigError
from rmq.wire.names import MAX_QUEUES

MAX_DELAY_S = 100 * 365 * 86_400


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker. An impossible value raises :class:`ConfigError` with the field's name."""

    listen: str = _setting("127.0.0.1:10911", "host:port to bind; port 0 picks a free one")
    data_dir: str = _setting("", "where the log lies; empty means $RMQ_HOME or ~/.rmq/data")
    name: str = _setting("rmq", "this broker's name in routes")
    cluster: str = _setting("default", "the cluster's name, sent to clients")
    flush: str = _setting("sync", "sync: acknowledge after fdatasync; async: at once, synced later")
    flush_interval_s: float = _setting(0.5, "async only: sync at least this often")
    segment_bytes: int = _setting(1 << 30, "a log segment that has reached this is closed, unless the disk is too slow")
    index_file_entries: int = _setting(300_000, "entries of one file of a queue's index")
    recent_bytes: int = _setting(32 << 20, "the newest part of the log that is kept in memory")
    read_threads: int = _setting(2, "threads that read what is not in memory")
    checkpoint_bytes: int = _setting(256 << 20, "a checkpoint is taken when the log has grown by this much")
    checkpoint_s: float = _setting(60.0, "and after this long, if anything was written")
    retention_hours: float = _setting(72.0, "log segments older than this are removed; 0 keeps them")
    retention_bytes: int = _setting(0, "the oldest segments go when the log is larger than this; 0: only by age")
    min_free_bytes: int = _setting(256 << 20, "sends are refused below this much free disk space")
    recognise_copies: bool = _setting(
        True, "a copied data directory becomes a store of its own at its first start; off where inodes are not stable"
    )
    auto_create_topics: bool = _setting(True, "make a topic when a producer first asks for it")
    message_delay_level: str = _setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "how long each level of delay is, from level 1 on"
    )
    max_delay_s: float = _setting(
        2_592_000.0, "the longest delay of a send; the log is kept from the oldest waiting one on"
    )
    max_retries: int = _setting(16, "a message given back more often becomes a dead letter, unless its consumer says")
    default_queues: int = _setting(4, "queues of a topic that was made automatically")
    lock_lease_s: float = _setting(60.0, "a lease not renewed for longer than this is free")
    grace_s: float = _setting(5.0, "a lost connection keeps its leases and membership this long")
    ping_s: float = _setting(1.0, "clients with leases ping this often")
    member_expiry_s: float = _setting(120.0, "a member without heartbeat for longer than this is gone")
    max_park_s: float = _setting(30.0, "the longest a pull may ask to be parked")
    park_sweep_s: float = _setting(5.0, "how often parked pulls are checked for missed arrivals")
    offset_flush_s: float = _setting(0.1, "progress that rides on pulls reaches the log within this")
    hello_timeout_s: float = _setting(10.0, "a connection must greet within this")
    stall_timeout_s: float = _setting(30.0, "a peer that reads nothing, or stops within a frame, is closed after this")
    drain_timeout_s: float = _setting(5.0, "how long a stop waits for answers to be written")
    max_connections: int = _setting(0, "connections at once; 0 leaves 100 file descriptors for the store")
    max_in_flight: int = _setting(1024, "unanswered requests of one connection")
    receive_memory_bytes: int = _setting(64 << 20, "memory for unfinished frames of all connections")
    answer_memory_bytes: int = _setting(128 << 20, "memory for unread answers of all connections")
    write_high_water_bytes: int = _setting(1 << 20, "unread answers of a connection before its pulls wait")

    def __post_init__(self) -> None:
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush must be 'sync' or 'async', not {self.flush!r}")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:  # so that NaN is refused as well
                raise ConfigError(f"{name} must be more than 0, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.segment_bytes < 1 << 12:
            raise ConfigError(f"segment_bytes must be at least 4096, not {self.segment_bytes}")
        for longer, shorter in _LONGER:
            if not getattr(self, longer) > getattr(self, shorter):
                lengths = getattr(self, longer), getattr(self, shorter)
                raise ConfigError(f"{longer} ({lengths[0]}) must be longer than {shorter} ({lengths[1]})")
        self._check_delays()
        if not 1 <= self.default_queues <= MAX_QUEUES:
            raise ConfigError(f"default_queues must be 1 to {MAX_QUEUES}, not {self.default_queues}")

    def _check_delays(self) -> None:
        longest_us = max(parse_levels(self.message_delay_level))
        if self.max_delay_s > MAX_DELAY_S:
            raise ConfigError(f"max_delay_s must be at most {MAX_DELAY_S} (100 years), not {self.max_delay_s}")
        if longest_us > self.max_delay_s * 1_000_000:
            raise ConfigError(
                f"message_delay_level holds a level of {longest_us // 1_000_000} s, which is longer than max_delay_s "
                f"({self.max_delay_s:.0f}): raise max_delay_s or shorten the level"
            )

    def data_path(self) -> Path:
        """The data directory, with the default resolved."""
        try:
            if self.data_dir:
                return Path(self.data_dir).expanduser()
            home = os.environ.get("RMQ_HOME")
            return Path(home).expanduser() if home else Path.home() / ".rmq" / "data"
        except RuntimeError as error:  # a ~ of an unknown user, or a user without a home
            where = self.data_dir or os.environ.get("RMQ_HOME") or "~/.rmq/data"
            raise ConfigError(f"{where} has a ~ whose home folder is not known: write the data_dir out") from error


_LONGER = (("grace_s", "ping_s"), ("lock_lease_s", "grace_s"), ("member_expiry_s", "grace_s"))
_NOT_NEGATIVE = (
    "max_connections", "min_free_bytes", "retention_hours", "retention_bytes", "recent_bytes", "max_retries",
)  # fmt: skip
_POSITIVE = (
    "flush_interval_s", "lock_lease_s", "grace_s", "ping_s", "member_expiry_s", "max_park_s", "park_sweep_s",
    "offset_flush_s", "hello_timeout_s", "stall_timeout_s", "drain_timeout_s", "max_in_flight",
    "receive_memory_bytes", "answer_memory_bytes", "write_high_water_bytes", "index_file_entries", "read_threads",
    "checkpoint_bytes", "checkpoint_s", "max_delay_s",
)  # fmt: skip
_LEVEL: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])\Z", re.ASCII)
_UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
MAX_LEVELS: Final = 65_535  # what the field of a batch can name


def parse_levels(text: str) -> tuple[int, ...]:
    """
    How long each level is, in microseconds.

    Raises:
        ConfigError: there are none, one is not a length of time, or there are more than a batch can name.
    """
    levels = tuple(map(_level, text.split()))
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise ConfigError(
            f"message_delay_level must name 1 to {MAX_LEVELS} levels, such as '1s 10s 5m', not {len(levels)}"
        )
    return levels


def _level(text: str) -> int:
    match = _LEVEL.match(text)
    if match is None:
        raise ConfigError(f"message_delay_level holds {text[:40]!r}: a level is a number and s, m, h or d, such as 30s")
    return int(match[1]) * _UNITS[match[2]]
