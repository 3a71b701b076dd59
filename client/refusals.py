"""What a broker's refusal says, as text for people."""

from __future__ import annotations

from typing import Any

from rmq.wire.address import Address
from rmq.wire.errors import BadRequest, ConnectionLost, WireError, code_name, from_wire


def refusal(status: int, payload: Any) -> WireError:
    """The error in a reply whose status is not OK."""
    if isinstance(payload, list) and payload and isinstance(payload[0], str):
        return from_wire(status, payload[0])
    return from_wire(status, f"the broker refused with {code_name(status)}")


def farewell(payload: Any) -> WireError:
    """Why the broker says that it closes the connection."""
    if isinstance(payload, list) and len(payload) > 1 and isinstance(payload[0], int):
        return from_wire(payload[0], str(payload[1]))
    return BadRequest("the broker closed the connection with a reason that cannot be read")


def describe(error: Exception) -> str:
    """An error in one sentence, with its code if it has one."""
    return f"{error.name}: {error}" if isinstance(error, WireError) else str(error) or type(error).__name__


def lost(address: Address, error: Exception) -> ConnectionLost:
    """What requests without an answer fail with when their connection ended by ``error``."""
    if isinstance(error, ConnectionLost):
        return error
    wrapped = ConnectionLost(f"the connection to {address} ended: {describe(error)}")
    wrapped.__cause__ = error
    return wrapped


def unreachable(address: Address, error: Exception | None) -> ConnectionLost:
    """What a first attempt fails with when its time is over; ``error`` is how the last one ended."""
    if error is None or isinstance(error, OSError):
        return ConnectionLost(f"no broker at {address}: start one with `rmq-broker start`")
    return ConnectionLost(f"the broker at {address} cannot be used: {describe(error)}")
