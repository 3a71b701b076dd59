"""Connects commands to a broker: fails soon with advice where a library would wait, and names existing topics."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rmq.wire.names import DEAD_LETTERS, RETRIES

from . import exit_codes
from .command import Failure, run

if TYPE_CHECKING:
    from rmq.client import Admin
    from rmq.wire.address import Address

T = TypeVar("T")
_SHOWN = 10
_PATIENCE_S = 1.0  # a broker that is just starting is not missing


async def require_broker(address: str) -> None:
    """
    Check within a second that a broker listens, where a library would wait for it.

    Raises:
        ConnectionLost: there is none; the sentence says how to start one.
    """
    from rmq.engine.native.connection import Connection

    connection = Connection(address)
    await _require_host(connection.address)
    with quiet_clients():
        await connection.open(timeout_s=_PATIENCE_S)
    await connection.close()


async def _require_host(address: Address) -> None:
    """Refuse an unknown host at once; a slow resolver is left to the connection to wait for."""
    from rmq.engine.native.connection import unreachable

    try:
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return
    except (socket.gaierror, UnicodeError) as error:  # a host name may not even be encodable
        raise unreachable(address, socket.gaierror(str(error))) from error


@contextmanager
def quiet_clients() -> Iterator[None]:
    """Within the block a connection that fails is not logged: the command says it in a sentence."""
    log = logging.getLogger("rmq.client")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@asynccontextmanager
async def admin_of(address: str) -> AsyncIterator[Admin]:
    """An :class:`~rmq.client.Admin` of a broker that is there; raises as :func:`require_broker` does."""
    from rmq.client import Admin

    await require_broker(address)
    async with Admin(address) as admin:
        yield admin


def ask(address: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    """Run a question to a broker, for commands that ask one and then print; raises what :func:`admin_of` raises."""

    async def asked() -> T:
        async with admin_of(address) as admin:
            return await question(admin)

    return run(asked())


async def refuse_missing_topic(broker: str) -> NoReturn:
    """End the command with the topics that exist, or with how to make one."""
    from rmq.wire.errors import RmqError

    try:
        async with admin_of(broker) as admin:
            names = of_users(info.topic for info in await admin.list_topics())
    except RmqError as error:
        raise Failure(f"--topic is required ({error})", exit_codes.USAGE) from error
    raise Failure(f"--topic is required; {existing(names)}", exit_codes.USAGE)


def of_users(topics: Iterable[str]) -> list[str]:
    """Return the topics of users, without those that rmq creates for groups."""
    return sorted(topic for topic in topics if not topic.startswith((DEAD_LETTERS, RETRIES)))


def existing(names: list[str]) -> str:
    """Return the clause that names existing topics."""
    if not names:
        return "no topics exist yet; create one with `rmq-admin topic create NAME`"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"existing topic{'s' if len(names) > 1 else ''}: {', '.join(names[:_SHOWN])}{more}"
