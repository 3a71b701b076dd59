"""``ConsumerConfig``: every limit and timer of a consumer, checked when it is made; and how ``start_from`` is read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from rmq.wire.address import parse_address
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.names import check_group, check_namespace, wrap
from rmq.wire.zones import check_zone

from .broadcast.offsets_file import check_instance
from .group.allocation import needs_zone, parse_strategy

SUSPEND_MIN_S = 0.01
SUSPEND_MAX_S = 30.0
MIB = 1 << 20


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Everything a user may set; a value that cannot be raises ``ConfigError`` with what to do."""

    broker: str = _setting("127.0.0.1:10911", "host:port of the broker")
    group: str = _setting("rmq-consume", "name of the consumer group; its members share the queues")
    orderly: bool = _setting(
        True, "one message of a queue after the other; false: many at a time; rmq-consume: by its flags"
    )
    model: str = _setting(
        "clustering", "clustering: each message goes to one member of the group; broadcasting: to every member"
    )
    start_from: str = _setting(
        "first", "where a group without progress begins: first, last, or a time such as 2026-01-31T12:00"
    )
    on_gap: str = _setting(
        "stop", "what to do where the log lost messages before the group got them: stop the queue there, or skip"
    )
    strategy: str = _setting(
        "average",
        "how queues are shared out: average, circle, consistent_hash[:NODES], config:TOPIC/ID,..., "
        "machine_room:ZONE,... or machine_room_nearby[:STRATEGY]",
    )
    zone: str = _setting("", "the zone (machine room) of this member, for the strategies that look at zones")
    namespace: str = _setting("", "prefix that keeps the groups and topics of one team apart from those of others")
    slots: int = _setting(20, "how many calls of the listener run at the same time, in order: of as many queues")
    batch: int = _setting(1, "most messages in one call of the listener, or of a poll")
    max_attempts: int = _setting(
        -1, "a message that failed this often becomes a dead letter; -1: never if orderly, else after 16 retries"
    )
    crash_limit: int = _setting(
        5, "a queue stops (or dead-letters, with max_attempts) at a message that ended the process this often"
    )
    consume_timeout_s: float = _setting(
        900.0,
        "a call that takes longer is a time-out; not orderly: its messages come again; pull consumer: without a poll "
        "its queues go to others",
    )
    cancel_on_loss: bool = _setting(False, "cancel a running call when its lock is lost; one in a thread runs on")
    max_continuous_s: float = _setting(60.0, "a queue gives its slot to others after this long, between two calls")
    turn_share_s: float = _setting(0.0, "give the slot up after this long if another queue waits for it; 0 is off")
    max_span: int = _setting(2000, "not orderly: no pull while first and last held offset are further apart than this")
    send_back_retry_s: float = _setting(5.0, "not orderly: pause before a message that cannot be given back is retried")
    instance: str = _setting("default", "broadcasting: which of the members on this machine this is")
    offsets_dir: str = _setting(
        "", "broadcasting: where the progress is kept; empty means ~/.rmq/offsets/GROUP/INSTANCE"
    )
    offsets_every_s: float = _setting(5.0, "broadcasting: how often the progress is written")
    auto_commit_every_s: float = _setting(5.0, "pull consumer: how often the progress is committed; 0: only when asked")
    suspend_s: float = _setting(1.0, "first pause before a failed message is tried again; doubles up to 30 s")
    relock_first_s: float = _setting(1.0, "first renewal of the queue locks after the start")
    relock_every_s: float = _setting(20.0, "time between renewals of the queue locks")
    lock_ttl_s: float = _setting(30.0, "a lock whose renewal was asked for longer ago than this is not believed in")
    lock_retry_s: float = _setting(
        3.0, "time until a refused lock is asked for again, unless it is reported free before"
    )
    lock_timeout_s: float = _setting(1.0, "time for the broker to answer a request for locks or their renewal")
    rebalance_every_s: float = _setting(20.0, "time between checks of which queues are ours")
    rebalance_gather_s: float = _setting(0.1, "how long notices of changed members are gathered before acting")
    heartbeat_s: float = _setting(30.0, "time between reports that this member is alive")
    pull_wait_s: float = _setting(15.0, "how long the broker holds a pull that finds nothing")
    pull_timeout_s: float = _setting(30.0, "a pull without an answer for this long is asked again")
    pull_expiry_s: float = _setting(120.0, "a queue that was not pulled for this long is given up and taken again")
    pull_interval_s: float = _setting(0.0, "pause between two pulls that found something")
    pull_when_drained: bool = _setting(False, "pull a queue only when the listener has finished all that is held of it")
    pull_bytes: int = _setting(1 * MIB, "most bytes asked for with one pull")
    cache_bytes: int = _setting(64 * MIB, "most bytes held for the listener, shared out to the queues")
    cache_messages: int = _setting(1000, "a queue that holds more messages than this is not pulled")
    topic_cache_bytes: int = _setting(0, "most bytes held of one topic, divided over its queues here; 0 is off")
    topic_cache_messages: int = _setting(
        0, "a topic that holds more messages than this, divided over its queues here, is not pulled; 0 is off"
    )
    commit_every_s: float = _setting(0.2, "longest time that progress stays unreported")
    request_timeout_s: float = _setting(3.0, "time for the broker to answer a request")
    stall_limit_s: float = _setting(5.0, "no batch is started while the event loop is late by more than this")
    drain_s: float = _setting(
        30.0,
        "how long a stop waits for running calls before they are cancelled; pull consumer: and a hand-over for what "
        "was polled",
    )

    def __post_init__(self) -> None:
        self._check_types()
        self._check_names()
        self._check_choices()
        self._check_ranges()
        self._check_order()

    def _check_types(self) -> None:
        for item in fields(self):
            value, kind = getattr(self, item.name), type(item.default)
            if kind is float and type(value) is int:
                object.__setattr__(self, item.name, float(value))
            elif type(value) is not kind:
                raise ConfigError(f"{item.name} must be {_article(kind)}, not {value!r}")

    def _check_names(self) -> None:
        parse_address(self.broker)
        for what, check, name in (
            ("namespace", check_namespace, self.namespace),
            ("group", check_group, wrap(self.namespace, self.group)),
            ("zone", check_zone, self.zone),
            ("instance", check_instance, self.instance),
        ):
            try:
                if name or what in ("group", "instance"):
                    check(name)
            except BadName as error:
                raise ConfigError(f"{what}: {error}") from error

    def _check_choices(self) -> None:
        parse_start(self.start_from)
        parse_strategy(self.strategy)
        if needs_zone(self.strategy) and not self.zone:
            raise ConfigError(f"strategy {self.strategy!r} needs to know where this member is: set zone")
        if self.on_gap not in ("stop", "skip"):
            raise ConfigError(f'on_gap must be "stop" or "skip", not {self.on_gap!r}')
        if self.model not in ("clustering", "broadcasting"):
            raise ConfigError(f'model must be "clustering" or "broadcasting", not {self.model!r}')
        if self.model == "broadcasting" and self.strategy != "average":
            raise ConfigError("a broadcasting member has every queue: leave strategy out")
        if self.max_attempts != -1 and self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be -1 (no limit) or 1 and more, not {self.max_attempts}")

    def _check_ranges(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} must be from {least:g} to {most:g}, not {value:g}")

    def _check_order(self) -> None:
        for name, smaller, other, larger in (
            ("relock_every_s", self.relock_every_s, "lock_ttl_s", self.lock_ttl_s),
            ("relock_first_s", self.relock_first_s, "lock_ttl_s", self.lock_ttl_s),
            ("pull_wait_s", self.pull_wait_s, "pull_timeout_s", self.pull_timeout_s),
            ("pull_wait_s", self.pull_wait_s, "pull_expiry_s", self.pull_expiry_s),
            ("pull_interval_s", self.pull_interval_s, "pull_expiry_s", self.pull_expiry_s),
        ):
            if smaller >= larger:
                raise ConfigError(f"{name} ({smaller:g}) must be less than {other} ({larger:g})")


# The broker's own limits bound some: it forgets a lease after 60 s and a member after 120 s.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("slots", 1, 1000),
    ("batch", 1, 1024),
    ("max_attempts", -1, (1 << 31) - 1),
    ("crash_limit", 3, 1 << 30),  # the first two ends of a process convict no message: they make its heirs careful
    ("consume_timeout_s", 0.001, 86400 * 7),
    ("max_continuous_s", 0.001, 86400),
    ("turn_share_s", 0, 86400),
    ("max_span", 1, 65_535),
    ("send_back_retry_s", 0.01, 3600),
    ("offsets_every_s", 0.01, 3600),
    ("auto_commit_every_s", 0, 3600),
    ("suspend_s", 0, 86400),  # and clamped where it is used, as RocketMQ does
    ("relock_first_s", 0.001, 59),
    ("relock_every_s", 0.001, 59),
    ("lock_ttl_s", 0.001, 59),
    ("lock_retry_s", 0.01, 3600),
    ("lock_timeout_s", 0.01, 600),
    ("rebalance_every_s", 0.01, 3600),
    ("rebalance_gather_s", 0, 60),
    ("heartbeat_s", 0.01, 110),
    ("pull_wait_s", 0.001, 3600),
    ("pull_timeout_s", 0.01, 7200),
    ("pull_expiry_s", 0.1, 86400),
    ("pull_interval_s", 0, 65.535),
    ("pull_bytes", 1, 8 * MIB),
    ("cache_bytes", 1, 1 << 40),
    ("cache_messages", 1, 1 << 31),
    ("topic_cache_bytes", 0, 1 << 40),
    ("topic_cache_messages", 0, 6_553_500),
    ("commit_every_s", 0.001, 5),
    ("request_timeout_s", 0.01, 600),
    ("stall_limit_s", 0.1, 3600),
    ("drain_s", 0, 86400),
)


def configure(config: ConsumerConfig | None, **settings: Any) -> ConsumerConfig:
    """
    ``config`` (or the defaults) with some fields replaced; an unknown one is refused by name.

    ``start_from`` may be a ``datetime``, too; one without a zone is local.
    """
    names = [item.name for item in fields(ConsumerConfig)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"a consumer has no setting {name!r}; it has {', '.join(names)}")
    if isinstance(start := settings.get("start_from"), datetime):
        settings["start_from"] = start.isoformat()
    values = {} if config is None else {name: getattr(config, name) for name in names}
    return ConsumerConfig(**{**values, **settings})


def _article(kind: type) -> str:
    return {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}[kind.__name__]


FIRST = "first"
LAST = "last"
_TIMESTAMP = "timestamp:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_start(text: str) -> str | datetime:
    """
    ``first``, ``last``, or the time of ``2026-01-31T12:00`` or ``timestamp:2026-01-31T12:00``.

    A time is one of ISO 8601, local unless it has a zone.

    Raises:
        ConfigError: it is none of them.
    """
    if text in (FIRST, LAST):
        return text
    try:
        return datetime.fromisoformat(text.removeprefix(_TIMESTAMP)).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f'start_from must be "first", "last" or a time such as 2026-01-31T12:00, not {text!r}'
        ) from error


def to_us(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)
