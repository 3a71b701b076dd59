"""The levels of delay as an operator writes them."""

from __future__ import annotations

import pytest

from rmq.broker.config import BrokerConfig, parse_levels
from rmq.wire.errors import ConfigError

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
