"""
A network in memory that carries bytes between the processes of a simulation, late, or not at all.

Each process has a *link*. Of each link, what goes up (from the process) and what comes down (to it) can be held back:
what is held is neither lost nor reordered, it is what TCP would send again until the link heals or one end gives up.
A dial over a held link waits. The end of a connection travels the same way as bytes do, so a held link hides that, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

UP, DOWN = "up", "down"
SOCKET_BUFFER: Final = 64 << 10  # bytes on the way that the writer does not see as waiting
CHUNK: Final = 32 << 10
EOF: Final = b""  # nothing more will be written


class Owner(Protocol):
    """A process, as far as the network knows it."""

    name: str
    dead: bool
    context: contextvars.Context


class Link:
    """The way of one process into the network."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.delay_s = 0.0


class Listening:
    """What ``create_server`` returns, as far as we use it."""

    def __init__(self, network: Network, owner: Owner | None, factory: Callable[[], Any], address: tuple[str, int]):
        self._network = network
        self.owner = owner
        self.factory = factory
        self._address = address
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        """Take no more connections; those there are stay."""
        self._network.unlisten(self._address[1], self)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, link: Link, way: str) -> None:
        self._network = network
        self.link = link
        self.way = way
        self.source: End
        self.target: End
        self._items: deque[tuple[float, bytes | None]] = deque()  # None: the connection ended
        self.waiting = 0
        self._scheduled = False

    def send(self, item: bytes | None) -> None:
        """Put something on the way."""
        due = self._network.loop.time() + self.link.delay_s
        if self._items:
            due = max(due, self._items[-1][0])
        self._items.append((due, item))
        self.waiting += len(item or b"")
        self.pump()

    def pump(self) -> None:
        """Have the next item delivered when it may be."""
        if self._scheduled or not self._items or self.way in self.link.held or self.target.deaf:
            return
        self._scheduled = True
        due, _ = self._items[0]
        loop, context = self._network.loop, self.target.context
        if due <= loop.time():
            loop.call_soon(self._deliver, context=context)
        else:
            loop.call_at(due, self._deliver, context=context)

    def _deliver(self) -> None:
        self._scheduled = False
        if not self._items or self.way in self.link.held or self.target.deaf:
            return
        _, item = self._items.popleft()
        if item is None:
            self._items.clear()
            self.target.ended(None if self.source.graceful else ConnectionResetError("the peer reset the connection"))
            return
        self.waiting -= len(item)
        self.source.drained()
        self.target.received(item)
        self.pump()


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, owner: Owner | None, peername: tuple[str, int]) -> None:
        super().__init__({"peername": peername})
        self._network = network
        self.owner = owner
        self.context = contextvars.Context() if owner is None else owner.context.copy()
        self.out: Pipe
        self.into: Pipe
        self.protocol: Any = None
        self.deaf = True  # until the protocol knows its transport
        self.graceful = True
        self._closing = False
        self._over = False
        self._high, self._low = 64 << 10, 16 << 10
        self._told_to_wait = False

    def begin(self, protocol: Any) -> None:
        """Hand the end to its protocol."""
        self.protocol = protocol
        protocol.connection_made(self)
        if not self._closing:
            self.resume_reading()

    # What arrives

    def received(self, data: bytes) -> None:
        """Give bytes to the protocol."""
        if self._closing:
            return
        if data == EOF:
            if not self.protocol.eof_received():
                self.close()
            return
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            return self.protocol.data_received(data)
        rest = memoryview(data)
        while rest and not self._closing:
            buffer = memoryview(self.protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.protocol.buffer_updated(count)

    def ended(self, error: Exception | None) -> None:
        """The other end is gone."""
        if not self._closing:
            self._closing = True
            self._finish(error)

    def drained(self) -> None:
        """Something of what was written has arrived."""
        if self._told_to_wait and self.get_write_buffer_size() <= self._low:
            self._told_to_wait = False
            self._network.loop.call_soon(self._resume_writing, context=self.context)

    def _resume_writing(self) -> None:
        if not self._over:
            self.protocol.resume_writing()

    def _finish(self, error: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._network.forget(self)
            self.protocol.connection_lost(error)

    # What the protocol asks for

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._closing:
            return
        data = b"".join(list_of_data)
        for at in range(0, len(data), CHUNK):
            self.out.send(data[at : at + CHUNK])
        if not self._told_to_wait and self.get_write_buffer_size() > self._high:
            self._told_to_wait = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self.out.send(EOF)

    def get_write_buffer_size(self) -> int:
        return max(self.out.waiting - SOCKET_BUFFER, 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self.deaf = True

    def resume_reading(self) -> None:
        self.deaf = False
        self.into.pump()

    def is_reading(self) -> bool:
        return not self.deaf

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._close(graceful=True)

    def abort(self) -> None:
        self._close(graceful=False)

    def _close(self, *, graceful: bool) -> None:
        if self._closing:
            return
        self._closing = True
        self.vanish(graceful=graceful)
        self._network.loop.call_soon(self._finish, None, context=self.context)

    def vanish(self, *, graceful: bool) -> None:
        """Show the other end that this one is gone; this end does not notice."""
        self.graceful = graceful
        self.out.send(None)


class Network:
    """All links, servers and connections of a simulation."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Callable[[], Owner | None]) -> None:
        self.loop = loop
        self._owner = owner
        self._links: dict[str, Link] = {}
        self._servers: dict[int, Listening] = {}
        self._ends: dict[End, None] = {}
        self._ports = itertools.count(20_000)
        self._dialling: list[tuple[Link, asyncio.Future[None]]] = []

    def link(self, name: str) -> Link:
        """The link of a process."""
        return self._links.setdefault(name, Link())

    # Connections

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listening:
        """Take connections at a port; 0 chooses one."""
        port = port or next(self._ports)
        if port in self._servers:
            raise OSError(98, f"port {port} is in use")
        server = Listening(self, self._owner(), factory, (host, port))
        self._servers[port] = server
        return server

    def unlisten(self, port: int, server: Listening) -> None:
        """The reverse of ``listen``."""
        if self._servers.get(port) is server:
            del self._servers[port]

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[End, Any]:
        """Connect the running process to a port, when its link lets it."""
        caller = self._owner()
        link = self.link("" if caller is None else caller.name)
        while link.held:
            open_again = self.loop.create_future()
            self._dialling.append((link, open_again))
            await open_again
        if link.delay_s:
            await asyncio.sleep(link.delay_s)
        server = self._servers.get(port)
        if server is None:
            raise ConnectionRefusedError(111, f"no process listens at port {port}")
        near, far = End(self, caller, ("127.0.0.1", port)), End(self, server.owner, ("127.0.0.1", next(self._ports)))
        near.out = far.into = _pipe(self, link, UP, near, far)
        near.into = far.out = _pipe(self, link, DOWN, far, near)
        self._ends[near] = self._ends[far] = None
        protocol = factory()
        near.begin(protocol)
        self.loop.call_soon(lambda: far.begin(server.factory()), context=far.context)
        return near, protocol

    def forget(self, end: End) -> None:
        """An end is over."""
        self._ends.pop(end, None)

    # Faults

    def hold(self, name: str, *ways: str) -> None:
        """Hold back what goes these ways over a link."""
        self.link(name).held.update(ways)

    def heal(self, name: str) -> None:
        """Let everything pass again, what was held first."""
        link = self.link(name)
        link.held.clear()
        waiting, self._dialling = self._dialling, []
        for of, open_again in waiting:
            if of is not link:
                self._dialling.append((of, open_again))
            elif not open_again.done():
                open_again.set_result(None)
        for end in self.ends(name):
            end.out.pump()
            end.into.pump()

    def ends(self, name: str) -> list[End]:
        """Both ends of the connections over a link."""
        link = self.link(name)
        return [end for end in self._ends if end.out.link is link]

    def cut(self, name: str) -> None:
        """Reset the connections over a link: both ends find out by themselves."""
        for end in self.ends(name):
            self.loop.call_soon(end.ended, ConnectionResetError("the network cut it"), context=end.context)

    def end_far(self, name: str) -> None:
        """Let the peers of a process give the connections up."""
        for end in self.ends(name):
            if end.out.way == DOWN:
                self.loop.call_soon(end.abort, context=end.context)

    def process_ended(self, process: Owner) -> None:
        """A process died: the system ends its connections and its ports."""
        for port, server in list(self._servers.items()):
            if server.owner is process:
                del self._servers[port]
        for end in list(self._ends):
            if end.owner is process and not end.is_closing():
                end.vanish(graceful=False)
                self.forget(end)
                end._over = end._closing = True


def _pipe(network: Network, link: Link, way: str, source: End, target: End) -> Pipe:
    pipe = Pipe(network, link, way)
    pipe.source, pipe.target = source, target
    return pipe
