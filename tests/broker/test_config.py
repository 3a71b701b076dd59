"""The levels of delay as an operator writes them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.config import BrokerConfig, parse_levels
from rmq.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"max_delay_s": 7199.0},
            "message_delay_level holds a level of 7200 s, which is longer than max_delay_s (7199): raise "
            "max_delay_s or shorten the level",
        ),
        ({"flush": "maybe"}, "flush must be 'sync' or 'async', not 'maybe'"),
        ({"flush_interval_s": 0}, "flush_interval_s must be more than 0, not 0"),
        ({"lock_lease_s": -1}, "lock_lease_s must be more than 0, not -1"),
        ({"lock_lease_s": float("nan")}, "lock_lease_s must be more than 0, not nan"),
        ({"grace_s": 0}, "grace_s must be more than 0, not 0"),
        ({"grace_s": 1.0}, "grace_s (1.0) must be longer than ping_s (1.0)"),
        ({"grace_s": 2, "ping_s": 3}, "grace_s (2) must be longer than ping_s (3)"),
        ({"lock_lease_s": 5.0}, "lock_lease_s (5.0) must be longer than grace_s (5.0)"),
        ({"member_expiry_s": 4}, "member_expiry_s (4) must be longer than grace_s (5.0)"),
        ({"ping_s": 0}, "ping_s must be more than 0, not 0"),
        ({"member_expiry_s": 0}, "member_expiry_s must be more than 0, not 0"),
        ({"max_park_s": 0}, "max_park_s must be more than 0, not 0"),
        ({"park_sweep_s": 0}, "park_sweep_s must be more than 0, not 0"),
        ({"offset_flush_s": 0}, "offset_flush_s must be more than 0, not 0"),
        ({"hello_timeout_s": 0}, "hello_timeout_s must be more than 0, not 0"),
        ({"stall_timeout_s": 0}, "stall_timeout_s must be more than 0, not 0"),
        ({"drain_timeout_s": 0}, "drain_timeout_s must be more than 0, not 0"),
        ({"max_in_flight": 0}, "max_in_flight must be more than 0, not 0"),
        ({"receive_memory_bytes": 0}, "receive_memory_bytes must be more than 0, not 0"),
        ({"write_high_water_bytes": 0}, "write_high_water_bytes must be more than 0, not 0"),
        ({"index_file_entries": 0}, "index_file_entries must be more than 0, not 0"),
        ({"read_threads": 0}, "read_threads must be more than 0, not 0"),
        ({"checkpoint_bytes": 0}, "checkpoint_bytes must be more than 0, not 0"),
        ({"checkpoint_s": 0}, "checkpoint_s must be more than 0, not 0"),
        ({"retention_hours": -1}, "retention_hours must not be negative, not -1"),
        ({"retention_bytes": -1}, "retention_bytes must not be negative, not -1"),
        ({"recent_bytes": -1}, "recent_bytes must not be negative, not -1"),
        ({"max_connections": -1}, "max_connections must not be negative, not -1"),
        ({"min_free_bytes": -1}, "min_free_bytes must not be negative, not -1"),
        ({"max_retries": -1}, "max_retries must not be negative, not -1"),
        ({"max_delay_s": 0}, "max_delay_s must be more than 0, not 0"),
        ({"max_delay_s": float("inf")}, "max_delay_s must be at most 3153600000 (100 years), not inf"),
        ({"segment_bytes": 4095}, "segment_bytes must be at least 4096, not 4095"),
        ({"default_queues": 0}, "default_queues must be 1 to 1024, not 0"),
        ({"default_queues": 1025}, "default_queues must be 1 to 1024, not 1025"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerConfig(**settings)

    assert str(refusal.value) == sentence


def test_the_defaults_can_be() -> None:
    assert BrokerConfig().flush == "sync"


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_bytes": 4096},
        {"default_queues": 1024},
        {"min_free_bytes": 0},
        {"max_connections": 1},
        {"retention_hours": 0, "retention_bytes": 0, "recent_bytes": 0},
    ],
)
def test_the_bounds_themselves_can_be(settings: dict[str, Any]) -> None:
    config = BrokerConfig(**settings)

    assert {name: getattr(config, name) for name in settings} == settings


def test_every_setting_says_what_it_is() -> None:
    assert [field.name for field in fields(BrokerConfig) if not field.metadata.get("help")] == []


@pytest.mark.parametrize(
    ("data_dir", "rmq_home", "path"),
    [
        ("", None, "{home}/.rmq/data"),
        ("", "/srv/rmq", "/srv/rmq"),
        ("", "~/queue", "{home}/queue"),
        ("/data", "/srv/rmq", "/data"),
        ("~/mine", None, "{home}/mine"),
    ],
)
def test_where_the_data_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: str, rmq_home: str | None, path: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RMQ_HOME", raising=False)
    if rmq_home is not None:
        monkeypatch.setenv("RMQ_HOME", rmq_home)

    assert BrokerConfig(data_dir=data_dir).data_path() == Path(path.format(home=tmp_path))


def test_a_home_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="~nobody-of-this-name/x has a ~ whose home folder is not known"):
        BrokerConfig(data_dir="~nobody-of-this-name/x").data_path()


SECOND = 1_000_000


def test_the_default_levels_are_the_eighteen_of_rocketmq() -> None:
    """MessageStoreConfig: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h."""
    minutes = [*range(1, 11), 20, 30, 60, 120]

    levels = parse_levels(BrokerConfig().message_delay_level)

    assert levels == tuple(s * SECOND for s in [1, 5, 10, 30, *(60 * minute for minute in minutes)])


@pytest.mark.parametrize(
    ("text", "levels"),
    [("1s", (1,)), ("2m  1s", (120, 1)), (" 1h\n3d ", (3600, 259_200)), ("999999999s", (999_999_999,))],
)
def test_a_level_is_a_number_and_a_unit(text: str, levels: tuple[int, ...]) -> None:
    assert parse_levels(text) == tuple(level * SECOND for level in levels)


@pytest.mark.parametrize("text", ["0s", "1", "s", "1.5s", "-1s", "1w", "1S", "01s", "1s,5s", "٣s", "1000000000s"])
def test_what_is_no_length_of_time_is_refused_with_the_name_of_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match="message_delay_level holds"):
        BrokerConfig(message_delay_level=f"1s {text}")


@pytest.mark.parametrize("text", ["", "   ", "1s " * 65_536])
def test_there_is_at_least_one_level_and_no_more_than_a_batch_can_name(text: str) -> None:
    with pytest.raises(ConfigError, match="message_delay_level must name 1 to 65535 levels"):
        BrokerConfig(message_delay_level=text)
