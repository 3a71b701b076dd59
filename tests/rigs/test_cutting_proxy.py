"""The proxy itself: it passes on, changes, cuts, and knows who reads."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from rigs.cutting_proxy import CuttingProxy, Piece, reading_process


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def connected(proxy: CuttingProxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_it_passes_on_what_is_made_of_a_piece(echo: str) -> None:
    with CuttingProxy(echo, change=bytes.upper) as proxy, connected(proxy) as reader:
        reader.sendall(b"hello")

        assert reader.recv(100) == b"HELLO"


def test_it_cuts_where_told_and_tells_of_which_connection_and_process(echo: str) -> None:
    seen: list[tuple[int, int, int]] = []

    def cut(piece: Piece) -> bool:
        seen.append((piece.connection, piece.sent, reading_process(piece)))
        return piece.sent > 0

    with CuttingProxy(echo, cut) as proxy:
        for _ in range(2):
            with connected(proxy) as reader:
                reader.sendall(b"first")
                assert reader.recv(100) == b"first"
                reader.sendall(b"second")
                assert reader.recv(100) == b""

    me = os.getpid()
    assert seen == [(0, 0, me), (0, 5, me), (1, 0, me), (1, 5, me)]
