"""The servers of the floor do the work that they are measured by: all arrives, in order, in the file."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

from rmq.bench.floor.server import (
    ANSWER,
    BUFFER,
    HEADER,
    LENGTH,
    PULL,
    Appender,
    Echo,
    Log,
    Reader,
    Receiver,
    drain,
    packed,
    unpacked,
)


class Wire:
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)


def fed(receiver: Receiver, data: bytes, step: int) -> bytes:
    """What it sends when it gets the data in pieces of so many bytes."""
    wire = Wire()
    receiver.connection_made(cast(asyncio.Transport, wire))
    at = 0
    while at < len(data):
        room = receiver.get_buffer(-1)
        piece = data[at : at + min(step, len(room))]
        room[: len(piece)] = piece
        receiver.buffer_updated(len(piece))
        at += len(piece)
    return wire.sent


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log", 2)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_batches_get_the_offsets_of_their_queue_for_any_chunking(log: Log, step: int) -> None:
    batches = [packed(0, [b"a", b"bb"]), packed(1, [b"c"]), packed(0, [b"d"])]

    answers = fed(Appender(log), b"".join(map(b"".join, batches)), step)

    assert [offset for (offset,) in ANSWER.iter_unpack(answers)] == [0, 0, 2]
    assert log.ends == [3, 1]


def test_a_pull_gets_the_batches_of_its_queue_as_they_are_in_the_file(log: Log) -> None:
    batches = [b"".join(packed(i % 2, [b"%d" % i])) for i in range(6)]
    fed(Appender(log), b"".join(batches), 100)

    sent = fed(Reader(log), PULL.pack(1, 1, 2), 5)

    payloads = [batches[i][HEADER.size :] for i in (3, 5)]
    assert sent == b"".join(HEADER.pack(len(payload), 1, 1, 1 + i) + payload for i, payload in enumerate(payloads))


def test_a_batch_larger_than_the_buffer_is_taken_whole(log: Log) -> None:
    batch = b"".join(packed(0, [b"x" * 3 * BUFFER]))

    fed(Appender(log), batch, 1 << 18)

    assert os.fstat(log.file).st_size == len(batch)
    assert log.ends == [1, 0]


@pytest.mark.parametrize("step", [1, 100])
def test_the_echo_sends_back_each_frame(step: int) -> None:
    frames = (LENGTH.pack(1) + b"\x90") * 3

    assert fed(Echo(), frames, step) == frames


def test_the_socket_is_written_to_the_file_and_acknowledged_once(tmp_path: Path) -> None:
    data = os.urandom(3 * BUFFER + 5)
    ours, theirs = socket.socketpair()
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    thread = threading.Thread(target=drain, args=(theirs, file, len(data)))
    with ours, theirs:
        thread.start()
        ours.sendall(data)
        assert ours.recv(2) == b"\0"
        thread.join()
    os.close(file)

    assert (tmp_path / "log").read_bytes() == data


def test_a_batch_is_unpacked_to_what_was_packed() -> None:
    bodies = [b"", b"a", b"bc" * 40_000]

    batch = b"".join(packed(3, bodies))
    payload = memoryview(batch)[HEADER.size :]
    lengths, row = unpacked(payload)

    assert HEADER.unpack_from(batch) == (len(payload), 3, 3, 0)
    assert list(lengths) == [0, 1, 80_000]
    assert row == b"".join(bodies)
