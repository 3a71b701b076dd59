"""Our commands as children: they are waited for by what they say, and do not outlive the block."""

from __future__ import annotations

import asyncio
import os

import pytest

from rmq.cli import exit_codes
from rmq.cli.child import child, line_of, own_broker
from rmq.cli.command import Failure
from rmq.client.connection import Connection

pytestmark = pytest.mark.slow


async def test_a_broker_of_ones_own_serves_within_the_block_and_is_gone_after_it() -> None:
    async with own_broker("--flush", "async") as address:
        connection = Connection(address)
        await connection.open(timeout_s=10)
        await connection.close()

    with pytest.raises(OSError):
        await asyncio.open_connection(*address.split(":"))


async def test_a_broker_that_cannot_start_is_a_failure() -> None:
    with pytest.raises(Failure, match="ended too early"):
        async with own_broker("--flush", "never"):
            pass


async def test_a_child_that_says_nothing_is_not_waited_for_for_ever() -> None:
    async with child("http.server", "--bind", "127.0.0.1", "0") as process:
        with pytest.raises(Failure, match="said nothing for 0 s") as caught:
            await line_of(process, 0.0)

    assert caught.value.exit_code == exit_codes.TEMPORARY
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
