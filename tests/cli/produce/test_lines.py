"""Lines as they come, from files, pipes and memory."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from rmq.cli.produce.lines import CHUNK, read_lines


async def all_lines(stream: BinaryIO, longest: int = 1 << 20) -> list[bytes]:
    return [line async for group in read_lines(stream, longest) for line in group]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"a\r\n", [b"a\r"]),
        (b"x" * (CHUNK + 5) + b"\ny\n", [b"x" * (CHUNK + 5), b"y"]),
    ],
)
async def test_one_message_a_line_wherever_they_come_from(tmp_path: Path, text: bytes, lines: list[bytes]) -> None:
    file = tmp_path / "lines"
    file.write_bytes(text)

    assert await all_lines(io.BytesIO(text)) == lines
    with file.open("rb") as stream:
        assert await all_lines(stream) == lines


@pytest.mark.both_loops
async def test_a_line_in_a_pipe_is_given_before_the_pipe_ends() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as stream:
        groups = read_lines(stream, 100)
        async with asyncio.timeout(10):
            os.write(write, b"one\ntw")
            assert await anext(groups) == [b"one"]
            os.write(write, b"o\n")
            assert await anext(groups) == [b"two"]
            os.close(write)
            with pytest.raises(StopAsyncIteration):
                await anext(groups)


async def test_waiting_for_a_pipe_can_be_cancelled() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as stream, os.fdopen(write, "wb"), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await all_lines(stream)


async def test_a_line_without_end_is_given_up_early(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"ok\n" + b"x" * (20 * CHUNK))

    with file.open("rb") as stream:
        first, last = await all_lines(stream, longest=CHUNK)

    assert first == b"ok"
    assert CHUNK < len(last) <= 3 * CHUNK


async def test_the_null_device_has_no_lines() -> None:
    with open(os.devnull, "rb") as stream:
        assert await all_lines(stream) == []
