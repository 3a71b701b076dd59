"""Writing beside a running loop: whole, in order, never blocking it, and aware of a reader that left."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from rmq.cli.output.stdout import Output, OutputClosed, OutputFailed


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as reader, os.fdopen(write, "wb", buffering=0) as writer:
        yield reader, writer


async def test_what_was_written_has_left_the_process(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    output = Output(writer)

    await output.write(b"one\n")
    await output.write(b"two\n")

    assert reader.read(100) == b"one\ntwo\n"


async def test_a_slow_reader_does_not_stop_the_loop(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    output = Output(writer)
    lines = [b"%d" % i * 3000 + b"\n" for i in range(100)]

    async def write_all() -> None:
        for line in lines:
            await output.write(line)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write_all())
        done, _ = await asyncio.wait([writing], timeout=0.05)  # the pipe holds 64 KiB: it cannot end
        assert not done
        found = b""
        while len(found) < sum(map(len, lines)):
            found += await asyncio.to_thread(reader.read, 1 << 16)

    assert found == b"".join(lines)


async def test_pieces_of_several_writers_stay_whole(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    output = Output(writer)
    sizes = [10, 9000, 30, 20000, 5]

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for i, size in enumerate(sizes):
            tasks.create_task(output.write(b"%d" % i * size + b"\n"))

    pieces = reader.read(1 << 16).splitlines()
    assert sorted(pieces) == sorted(b"%d" % i * size for i, size in enumerate(sizes))


async def test_a_reader_that_left_is_seen_without_writing(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    output = Output(writer)
    assert not output.closed

    reader.close()

    assert output.closed


@pytest.mark.parametrize("size", [1, 100_000])
async def test_writing_to_a_reader_that_left_says_so(pipe: tuple[BinaryIO, BinaryIO], size: int) -> None:
    reader, writer = pipe
    output = Output(writer)
    reader.close()

    with pytest.raises(OutputClosed):
        await output.write(bytes(size))


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_full_disk_differs_from_a_reader_that_left(size: int) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        output = Output(full)

        with pytest.raises(OutputFailed, match="No space left on device"):
            await output.write(bytes(size))


async def test_a_stream_in_memory_will_do() -> None:
    stream = io.BytesIO()
    output = Output(stream)

    await output.write(b"x" * 10_000)

    assert stream.getvalue() == b"x" * 10_000
    assert not output.closed
