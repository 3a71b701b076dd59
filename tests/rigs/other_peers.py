"""What may listen at an address instead of a broker of ours: other servers, silence, a broker of tomorrow."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rmq.wire.errors import ProtocolUnsupported
from rmq.wire.protocol import frames

Answer = Callable[[bytes], bytes | None]

OTHER_PROTOCOL = "this broker speaks protocol 2, the client 1: run the same version of rmq on both sides"


def web_server(_request: bytes) -> bytes:
    """As most of them answer bytes that are no HTTP."""
    return b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


def hanging_up(_request: bytes) -> bytes:
    """Closes at once."""
    return b""


def silent(_request: bytes) -> None:
    """Says nothing and waits."""


def refusing_broker(request: bytes) -> bytes:
    """A broker of a later protocol, which refuses the clients of this one."""
    _, number, *_ = frames.unpack(request[4:], trusted=True)
    return frames.pack(frames.REPLY, number, ProtocolUnsupported.code, [OTHER_PROTOCOL])


def later_broker(request: bytes) -> bytes:
    """A broker that answers with a later protocol."""
    _, number, *_ = frames.unpack(request[4:], trusted=True)
    return frames.pack(frames.REPLY, number, 0, {"proto": 2})


@contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """Within the block ``answer`` is what every connection gets for the first thing it says; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=_serve, args=(server, answer), daemon=True)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


@contextmanager
def black_hole() -> Iterator[str]:
    """Within the block connections to the address that is yielded are neither taken nor refused."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than wait to be taken; they are never taken
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, answer: Answer) -> None:
    held = []  # those that are left without an answer stay open
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # it was shut down
            break
        with contextlib.suppress(OSError):
            said = answer(connection.recv(1 << 16))
            if said is None:
                held.append(connection)
                continue
            connection.sendall(said)
        connection.close()
    for connection in held:
        connection.close()
