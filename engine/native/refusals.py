"""What a broker's refusal says, as text for people."""

from __future__ import annotations

import socket
from typing import Any

from rmq.wire.address import Address
from rmq.wire.errors import BadFrame, BadRequest, ConnectionLost, FrameTooLarge, WireError, code_name, from_wire


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


def unreachable(address: Address, error: Exception | None, *, reached: bool = False) -> ConnectionLost:
    """
    What a first attempt fails with when its time is over.

    ``error`` is how the last one ended, None if it did not; ``reached``: something had taken the connection.
    """
    if isinstance(error, BadFrame | FrameTooLarge):
        return ConnectionLost(f"what listens at {address} is no rmq broker: check the address and its port")
    if isinstance(error, socket.gaierror):
        return ConnectionLost(f"no broker at {address}: there is no host of this name; check the address")
    if reached and (error is None or isinstance(error, OSError)):
        text = "it is no rmq broker, or one that hangs; check the address and its port"
        return ConnectionLost(f"what listens at {address} takes the connection and does not greet: {text}")
    if error is None or isinstance(error, TimeoutError):
        return ConnectionLost(f"no broker at {address}: nothing there answers; check the address and the network")
    if isinstance(error, OSError):
        return ConnectionLost(f"no broker at {address}: start one with `rmq-broker start`")
    return ConnectionLost(f"the broker at {address} cannot be used: {describe(error)}")
