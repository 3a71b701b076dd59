"""
A TCP proxy in threads that a test can let fail: it stands between a broker and readers in other processes.

For each piece that the broker sends, a test is asked whether it is the end; it may also do something to the reader
first, which is known by its process id, since all run on one machine. What is passed on can be changed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq.wire.address import parse_address

PIECE: Final = 64 << 10


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, about to be passed on."""

    connection: int
    """The how manieth connection to the proxy it is of, from 0."""
    sent: int
    """How many bytes of this connection were passed on before."""
    reader_port: int
    """The port of the reader."""
    proxy_port: int
    """The port it is connected to."""


class CuttingProxy:
    """Passes on what ``change`` makes of it, until ``cut`` says otherwise; use it in a ``with`` block."""

    def __init__(
        self,
        broker: str,
        cut: Callable[[Piece], bool] = lambda piece: False,
        change: Callable[[bytes], bytes] = lambda piece: piece,
    ) -> None:
        self._broker = broker
        self._cut = cut
        self._change = change
        self._lock = threading.Lock()  # pieces are judged one at a time
        self._connections: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()
        for connection in self._connections:
            _end(connection)

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                reader, (_, port) = self._server.accept()
            except OSError:
                return
            broker = socket.create_connection(parse_address(self._broker))
            self._connections += [reader, broker]
            for target, arguments in ((self._pass_up, (reader, broker)), (self._down, (broker, reader, number, port))):
                threading.Thread(target=target, args=arguments, daemon=True).start()
            number += 1

    def _pass_up(self, reader: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while piece := reader.recv(PIECE):
                broker.sendall(piece)
        _end(broker)

    def _down(self, broker: socket.socket, reader: socket.socket, number: int, port: int) -> None:
        sent = 0
        with suppress(OSError):
            while piece := broker.recv(PIECE):
                with self._lock:
                    if self._cut(Piece(number, sent, port, self._port)):
                        break
                reader.sendall(self._change(piece))
                sent += len(piece)
        _end(reader)
        _end(broker)


def reading_process(piece: Piece) -> int:
    """The process that reads; both ports are looked at, since a local one may have connections to several others."""
    port, ends = piece.reader_port, [f"0100007F:{port:04X}" for port in (piece.reader_port, piece.proxy_port)]
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    inode = next(row[9] for row in rows if row[1:3] == ends)
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(entry) == f"socket:[{inode}]":
                return int(entry.parts[2])
    raise AssertionError(f"no process has the port {port}")


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
