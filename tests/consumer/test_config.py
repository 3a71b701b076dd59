"""
Settings that cannot be are refused when they are made, with what to do.

``first``, ``last`` or a point in time; anything else is refused with what would do.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, tzinfo
from typing import Any

import pytest

from rmq.consumer.config import ConsumerConfig, configure, parse_start, to_us
from rmq.wire.errors import ConfigError


def test_the_defaults_are_the_documented_ones() -> None:
    config = ConsumerConfig()

    assert (config.max_continuous_s, config.relock_first_s, config.relock_every_s, config.lock_ttl_s) == (60, 1, 20, 30)
    assert (config.rebalance_every_s, config.heartbeat_s, config.pull_wait_s, config.pull_timeout_s) == (20, 30, 15, 30)
    assert (config.slots, config.batch, config.cache_messages, config.cache_bytes) == (20, 1, 1000, 64 << 20)
    assert (config.suspend_s, config.lock_retry_s, config.commit_every_s, config.start_from) == (1, 3, 0.2, "first")
    assert config.on_gap == "stop"
    assert (config.orderly, config.model, config.max_span, config.send_back_retry_s) == (True, "clustering", 2000, 5)
    assert (config.consume_timeout_s, config.max_attempts) == (900, -1)
    assert (config.instance, config.offsets_dir, config.offsets_every_s) == ("default", "", 5)
    assert config.auto_commit_every_s == 5


def test_every_field_has_help_and_a_plain_type() -> None:
    for item in fields(ConsumerConfig):
        assert item.metadata["help"]
        assert type(item.default) in (str, int, float, bool)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"relock_every_s": 30.0}, r"relock_every_s \(30\) must be less than lock_ttl_s \(30\)"),
        ({"relock_first_s": 31.0}, "relock_first_s .* must be less than lock_ttl_s"),
        ({"lock_ttl_s": 60.0}, "lock_ttl_s must be from 0.001 to 59, not 60"),
        ({"pull_wait_s": 30.0}, "pull_wait_s .* must be less than pull_timeout_s"),
        ({"slots": 0}, "slots must be from 1 to 1000, not 0"),
        ({"slots": 2.0}, "slots must be a whole number, not 2.0"),
        ({"slots": True}, "slots must be a whole number, not True"),
        ({"suspend_s": "1"}, "suspend_s must be a number, not '1'"),
        ({"group": "a%b%c"}, "group: .* may hold only"),
        ({"group": ""}, "group: .* is empty"),
        ({"start_from": "yesterday"}, 'start_from must be "first", "last" or a time such as 2026-01-31T12:00'),
        ({"strategy": "evenly"}, "strategy: there is none of the form 'evenly'; it is average, circle"),
        ({"strategy": "machine_room_nearby"}, "needs to know where this member is: set zone"),
        ({"zone": "a/b"}, "zone: the zone 'a/b' must be"),
        ({"namespace": "a%b"}, "namespace: .* may hold only"),
        ({"namespace": "n", "group": "m%g"}, "group: .* may hold only"),
        ({"namespace": "n" * 100, "group": "g" * 100}, "group: .* has 201 characters, at most 127 are allowed"),
        (
            {"pull_interval_s": 60.0, "pull_expiry_s": 60.0},
            r"pull_interval_s \(60\) must be less than pull_expiry_s \(60\)",
        ),
        ({"pull_expiry_s": 15.0}, r"pull_wait_s \(15\) must be less than pull_expiry_s \(15\)"),
        ({"crash_limit": 2}, "crash_limit must be from 3 to .*, not 2"),
        ({"on_gap": "ignore"}, 'on_gap must be "stop" or "skip", not \'ignore\''),
        ({"model": "broadcasting", "strategy": "circle"}, "a broadcasting member has every queue: leave strategy out"),
        ({"instance": "../other"}, "instance: .* may hold only letters"),
        ({"instance": ""}, "instance: .* may hold only letters"),
        ({"model": "anycast"}, 'model must be "clustering" or "broadcasting", not \'anycast\''),
        ({"max_attempts": 0}, r"max_attempts must be -1 \(no limit\) or 1 and more, not 0"),
        ({"max_span": 0}, "max_span must be from 1 to 65535, not 0"),
        ({"send_back_retry_s": 0.0}, "send_back_retry_s must be from 0.01 to 3600, not 0"),
        ({"auto_commit_every_s": -1.0}, "auto_commit_every_s must be from 0 to 3600, not -1"),
        ({"pull_interval_s": 66.0}, "pull_interval_s must be from 0 to 65.535, not 66"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s must be from"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ConsumerConfig(**settings)


def test_whole_numbers_are_fine_where_a_number_is_asked_for() -> None:
    assert configure(None, suspend_s=2).suspend_s == 2.0


@pytest.mark.parametrize("zone", [None, UTC])
def test_a_group_may_begin_at_a_datetime(zone: tzinfo | None) -> None:
    time = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=zone)

    assert parse_start(configure(None, start_from=time).start_from) == time.astimezone(UTC)


def test_settings_replace_fields_of_a_configuration() -> None:
    config = configure(ConsumerConfig(group="billing", slots=3), slots=4)

    assert (config.group, config.slots) == ("billing", 4)


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no setting 'slot'; it has broker, group"):
        configure(None, slot=3)


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("first", "first"),
        ("last", "last"),
        ("2026-01-31T12:00Z", NOON),
        ("timestamp:2026-01-31T12:00Z", NOON),
        ("2026-01-31T14:00+02:00", NOON),
        ("20260131T120000Z", NOON),
    ],
)
def test_what_is_meant(text: str, meant: object) -> None:
    assert parse_start(text) == meant


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_start("2026-01-31T12:00") == datetime(2026, 1, 31, 12).astimezone(UTC)


@pytest.mark.parametrize("text", ["", "middle", "timestamp:", "timestamp:last", "2026-13-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='start_from must be "first", "last" or a time such as 2026-01-31T12:00'):
        parse_start(text)


def test_a_time_travels_as_microseconds() -> None:
    assert to_us(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
