"""Addresses: what is one, and what is said of the rest."""

from __future__ import annotations

import pytest

from rmq.wire.address import Address, parse_address
from rmq.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10911", Address("127.0.0.1", 10911)),
        ("localhost:1", Address("localhost", 1)),
        (" broker.example:65535 ", Address("broker.example", 65535)),
        ("[::1]:10911", Address("::1", 10911)),
    ],
)
def test_host_and_port_are_told_apart(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize("text", ["", "host", "host:", ":10911", "host:x", "host:-1", "host:1²"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:10911"):
        parse_address(text)


@pytest.mark.parametrize("text", ["host:0", "host:65536", "host:" + "9" * 5000])
def test_a_port_that_cannot_be_is_told_apart(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not 1 to 65535: write for example host:10911"):
        parse_address(text)


def test_an_ipv6_host_without_brackets_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match=r"\[::1\]:10911"):
        parse_address("::1:10911")


def test_a_web_address_is_refused_with_what_to_leave_out() -> None:
    with pytest.raises(ConfigError, match="'http://localhost:10911' is not host:port: write it without http://"):
        parse_address("http://localhost:10911")


def test_port_0_is_an_address_only_to_listen_on() -> None:
    assert parse_address("127.0.0.1:0", any_port=True) == Address("127.0.0.1", 0)
    with pytest.raises(ConfigError):
        parse_address("127.0.0.1:65536", any_port=True)
