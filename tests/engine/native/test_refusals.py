"""Refusals as exceptions and sentences."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rmq.engine.native.connection import describe, farewell, lost, refusal, unreachable
from rmq.wire import errors
from rmq.wire.address import Address

HERE = Address("127.0.0.1", 10911)


def test_a_refusal_is_raised_by_its_class_with_the_brokers_sentence() -> None:
    error = refusal(errors.DiskFull.code, ["256 MiB are needed"])

    assert isinstance(error, errors.DiskFull)
    assert describe(error) == "DISK_FULL: 256 MiB are needed"


@pytest.mark.parametrize("payload", [None, [], [7], "text", {}])
def test_a_refusal_without_a_sentence_has_its_name(payload: Any) -> None:
    assert str(refusal(errors.DiskFull.code, payload)) == "the broker refused with DISK_FULL"


def test_a_code_that_is_not_known_is_a_plain_refusal() -> None:
    error = refusal(999, ["from the future"])

    assert type(error) is errors.Refused
    assert error.code == 999


@pytest.mark.parametrize("payload", [None, [], [7], ["x", "y"]])
def test_a_farewell_that_cannot_be_read_is_one_all_the_same(payload: Any) -> None:
    assert "cannot be read" in str(farewell(payload))


def test_a_lost_connection_keeps_its_cause() -> None:
    cause = ConnectionResetError("reset by peer")
    error = lost(HERE, cause)

    assert str(error) == "the connection to 127.0.0.1:10911 ended: reset by peer"
    assert error.__cause__ is cause
    assert lost(HERE, error) is error


@pytest.mark.parametrize(
    ("error", "reached", "text"),
    [
        (ConnectionRefusedError(), False, f"no broker at {HERE}: start one with `rmq-broker start`"),
        (socket.gaierror(-2, "?"), False, f"no broker at {HERE}: there is no host of this name; check the address"),
        (None, False, f"no broker at {HERE}: nothing there answers; check the address and the network"),
        (TimeoutError(), False, f"no broker at {HERE}: nothing there answers; check the address and the network"),
        (
            None,
            True,
            f"what listens at {HERE} takes the connection and does not greet: it is no rmq broker, or one that",
        ),
        (ConnectionResetError(), True, f"what listens at {HERE} takes the connection and does not greet: "),
        (
            errors.FrameTooLarge("HTTP"),
            True,
            f"what listens at {HERE} is no rmq broker: check the address and its port",
        ),
        (errors.BadFrame("SSH-"), True, f"what listens at {HERE} is no rmq broker: check the address and its port"),
        (
            errors.TooManyConnections("1000 are connected"),
            True,
            f"the broker at {HERE} cannot be used: TOO_MANY_CONNECTIONS: 1000 are connected",
        ),
    ],
)
def test_what_keeps_from_a_broker_is_told_apart(error: Exception | None, reached: bool, text: str) -> None:
    assert str(unreachable(HERE, error, reached=reached)).startswith(text)
