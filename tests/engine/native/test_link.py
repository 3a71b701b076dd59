"""A link by itself: gathering, dropping, draining; the rest is tested through the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.engine.native.link import FLUSH_AT, Link
from rmq.wire.batch.layout import Buffer

pytestmark = pytest.mark.virtual_time


class Recorder(asyncio.Transport):
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[Buffer]] = []
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, parts: Any) -> None:
        self.writes.append(list(parts))

    def abort(self) -> None:
        self.aborted = True


def linked() -> tuple[Link, Recorder, list[Exception]]:
    ends: list[Exception] = []
    link = Link(memoryview(bytearray(64)), lambda link, parts: None, lambda link, error: ends.append(error))
    transport = Recorder()
    link.connection_made(transport)
    return link, transport, ends


async def test_what_is_written_in_one_turn_leaves_at_once() -> None:
    link, transport, _ = linked()
    link.write([b"a", b"b"], 2)
    link.write([b"c"], 1)
    assert transport.writes == []

    await asyncio.sleep(0)

    assert transport.writes == [[b"a", b"b", b"c"]]


async def test_much_leaves_before_the_turn_ends() -> None:
    link, transport, _ = linked()

    link.write([bytes(FLUSH_AT)], FLUSH_AT)

    assert len(transport.writes) == 1


async def test_an_end_is_told_once_with_its_first_reason() -> None:
    link, transport, ends = linked()
    link.write([b"a"], 1)
    link.drop(ConnectionResetError("first"))
    link.drop(ConnectionResetError("second"))
    link.connection_lost(None)
    await asyncio.sleep(0)

    assert [str(error) for error in ends] == ["first"]
    assert transport.aborted and transport.writes == []
    assert link.ended.done() and not link.writable


@pytest.mark.parametrize("how", ["resume", "drop"])
async def test_draining_ends_with_room_or_with_the_link(how: str) -> None:
    link, _, _ = linked()
    link.pause_writing()
    draining = asyncio.create_task(link.drain())
    await asyncio.sleep(0)
    assert not draining.done() and not link.writable

    if how == "resume":
        link.resume_writing()
    else:
        link.drop(ConnectionResetError())
    await draining
