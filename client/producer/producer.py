"""
The producer: sends messages in order and without duplicates, across lost connections and restarts of the broker.

The order of calls on one producer is the order in each queue. A call returns when its messages are stored; it raises
:class:`~rmq.wire.errors.RequestTimeout` or the broker's refusal if they certainly are not, and
:class:`~rmq.wire.errors.OutcomeUnknown` if the answer never came: only then may sending again store a message twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Final, NoReturn

from rmq.engine.native.connection import Connection
from rmq.runtime import clock
from rmq.runtime.logging import get_logger
from rmq.wire.batch.compression import CODECS, Codec
from rmq.wire.batch.layout import MAX_BODY
from rmq.wire.batch.texts import Bodies, pack_bodies
from rmq.wire.deferral import Delay, delay_of
from rmq.wire.errors import (
    BadName,
    ConfigError,
    ConnectionLost,
    MessageTooLarge,
    RmqError,
    TooManyInFlight,
    UnsupportedFormat,
    WireError,
)
from rmq.wire.model import KEY, Message, gather
from rmq.wire.names import check_namespace, wrap
from rmq.wire.protocol.hello import HelloReply

from .pending import Deadlines, PendingMessage, PendingSend
from .receipts import Receipt, Receipts
from .routing import Choice, Router, Selector, choice, keyed, runs_of
from .sender import Sender

log = get_logger("rmq.client")

ONE_WAY_BYTES: Final = 64 << 20
ONE_WAY_OVERHEAD: Final = 600  # bytes per message on top of its body, so that many small ones are bounded too
MANY_TOPICS: Final = 10_000
MAX_IN_FLIGHT: Final = 256  # as many batches of a producer as the broker remembers


class Producer:
    """
    Sends messages to a broker; use it as ``async with Producer("127.0.0.1:10911") as producer``.

    Entering waits up to ``delivery_timeout_s`` for the broker. Leaving without an error waits until everything was
    answered; leaving with one does not. ``linger_s`` delays messages so that more of them share a batch;
    ``auto_create`` creates a missing topic with the broker's default number of queues. ``compression`` is None, "zlib",
    or, where ``rmq[lz4]`` or ``rmq[zstd]`` is installed here, at the broker and at all readers, "lz4" or "zstd".

    If a writer must not run twice, give all its incarnations the same ``producer_id``, and each a higher
    ``producer_epoch`` than the one before: once a higher one has opened, everything that a lower one sends is refused
    with :class:`~rmq.wire.errors.ProducerFenced`. Both are numbers, of 63 and 16 bits.

    A ``namespace`` separates topics from those of other namespaces: consumers with the same one see them, under the
    names that are used here.

    A message with a delay is deferred by the broker, and gets its place in its queue when it is due; until then its
    ``queue_offset`` is -1. ``wall_us`` returns the time from which ``delay_s`` counts, in microseconds since 1970.

    While the broker refuses for a temporary reason, such as a full disk, messages are kept and sent again.
    ``on_refusal`` is called with that refusal at once, on the event loop, and with None when the broker accepts again.
    """

    def __init__(
        self,
        address: str,
        *,
        linger_s: float = 0.0,
        delivery_timeout_s: float = 30.0,
        max_in_flight: int = MAX_IN_FLIGHT,
        auto_create: bool = True,
        compression: str | None = None,
        producer_id: int | None = None,
        producer_epoch: int = 0,
        namespace: str = "",
        wall_us: Callable[[], int] = clock.wall_us,
        on_refusal: Callable[[WireError | None], None] | None = None,
    ) -> None:
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise ConfigError(f"max_in_flight must be 1 to {MAX_IN_FLIGHT}, not {max_in_flight}")
        if delivery_timeout_s <= 0 or linger_s < 0:
            raise ConfigError("delivery_timeout_s must be above 0 and linger_s not below 0")
        self._codec = _codec(compression)
        self._namespace = _namespace(namespace)
        if producer_id is not None and not (isinstance(producer_id, int) and 0 < producer_id < 1 << 63):
            raise ConfigError(f"producer_id must be a number of 63 bits above 0, not {producer_id!r}")
        if not (isinstance(producer_epoch, int) and 0 <= producer_epoch < 1 << 16):
            raise ConfigError(f"producer_epoch must be a number of 16 bits, not {producer_epoch!r}")
        self.producer_id = producer_id or random.SystemRandom().getrandbits(63) or 1
        self.producer_epoch = producer_epoch
        self.failed_one_way = 0  # messages of send_nowait that were not stored, as far as is known
        self._address = address
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._max_in_flight = max_in_flight
        self._auto_create = auto_create
        self._wall_us = wall_us
        self._on_refusal = on_refusal
        self._one_way_bytes = 0
        self._wrap = lru_cache(MANY_TOPICS)(partial(wrap, self._namespace))  # a topic as the broker knows it
        self._store_id: int | None = None
        self._ended: RmqError | None = None  # why nothing can be sent any more
        self._opened = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._connection: Connection
        self._sender: Sender
        self._router: Router
        self._deadlines: Deadlines

    # Life

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def open(self) -> None:
        """
        Connect; cancelling ends the producer.

        Raises:
            ConnectionLost: no broker answers at the address.
            DiskFull, StoreFailed: the broker could not record ``producer_epoch`` within ``delivery_timeout_s``.
            ProducerFenced: a producer with this id and a higher epoch was opened before.
        """
        if self._opened:
            raise ConfigError("a producer is opened once: make another one")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._delivery_timeout_s, self._state, self._refusal)
        self._sender = Sender(
            self.producer_id,
            self.producer_epoch,
            max_in_flight=self._max_in_flight,
            linger_s=self._linger_s,
            on_fenced=self._fenced,
            on_refusal=self._on_refusal,
            after_answers=self._deadlines.tidy,
        )
        self._connection = Connection(
            self._address,
            on_connected=self._connected,
            on_lost=self._sender.lost,
            on_writable=self._sender.writable,
            on_ended=self._end,
            on_refused=self._sender.report,
            producer_hello=self._sender.producer_hello,
            keep_alive=True,
        )
        self._router = Router(
            self._connection,
            auto_create=self._auto_create,
            on_placed=self._sender.placed,
            on_refused=self._sender.report,
            codec=self._codec,
        )
        self._sender.attach(self._connection, self._router)
        await self._connection.open(timeout_s=self._delivery_timeout_s)

    async def close(self) -> None:
        """Close at once, so that pending calls fail; call :meth:`flush` before. Cancelling is safe."""
        if not self._opened or self._closed:
            return
        self._closed = True
        self._sender.notify_all()
        self._deadlines.fail_all("the producer was closed")
        self._sender.close()
        await self._router.close()
        await self._connection.close()

    async def flush(self) -> None:
        """Wait until all that was sent before is stored, has failed or has run out of time; cancelling is safe."""
        self._check_open()
        self._sender.hurry()
        await self._deadlines.all_settled()

    # Sending

    async def send(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue_id: int | None = None,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> Receipt:
        """
        Send one message and wait until it is stored; messages of one loop turn and queue share a batch.

        Equal keys go to one queue: ``key``, or else that of the message. ``queue_id`` and ``selector`` choose the queue
        in another way; the message keeps its key. With neither of them and no key, queues take turns.

        Cancelling takes the message back if it was not handed to the network yet; else it may be stored. The order of
        other messages is not touched.

        Raises:
            ConfigError: ``key`` is not the key that the message has.
            RequestTimeout: not stored within ``delivery_timeout_s``.
            OutcomeUnknown: sent, and no answer within ``delivery_timeout_s``.
            ProducerFenced: a producer with this id and a higher epoch has replaced this one.
            Refused: not stored; the class says why, such as BadDelay for an unknown level. A temporary reason, such as
                DiskFull, is raised only if it lasts for ``delivery_timeout_s``.
        """
        # Not by _deliver and _accept, which do the same: a coroutine and a call more for every message.
        pending = self._single(message, choice(key, queue_id, selector, arg))
        pending.future = future = self._loop.create_future()
        self._router.deliver(pending)
        self._deadlines.add(pending)
        try:
            receipt: Receipt = await future
        except asyncio.CancelledError:
            self._give_up(pending, future)
            raise
        return receipt

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: str | None = None,
        queue_id: int | None = None,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> Sequence[Receipt]:
        """
        Send messages of one topic, in order, in as few batches as they fit into.

        All go to one queue, unless they have different keys: then each goes to the queue of its key, and each queue
        gets its messages in order. ``queue_id``, and a ``selector`` other than ``by_int``, choose one queue for all, by
        the first message. Cancelling and errors as with :meth:`send`; after either the first part of the messages of a
        queue may be stored, never a later one without those before it, unless those cannot be encoded or the broker
        refused them.
        Of several errors the first is raised, once the outcome of all messages is known.

        Raises:
            ValueError: the messages have different topics.
            ConfigError: ``key`` is not the key that one of the messages has.
        """
        everything = tuple(messages)
        if not everything:
            return ()
        bodies, extras = gather(everything)
        wanted = choice(key, queue_id, selector, arg)
        if extras & KEY:
            runs = runs_of(wanted, everything)
            if len(runs) > 1:
                return await self._deliver_runs(runs)
            ((wanted, _),) = runs
        pending = self._pending(everything[0].topic, pack_bodies(bodies), everything, wanted, extras=extras)
        receipts: Receipts = await self._deliver(pending)
        return receipts

    async def send_bodies(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        queue_id: int | None = None,
        delay_level: int = 0,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
    ) -> Sequence[Receipt]:
        """
        Send messages that consist of a body alone, which is fastest. Otherwise like :meth:`send_many`.

        One of the last three arguments defers all of them, as in a :class:`Message`.
        """
        everything = bodies if type(bodies) is list else list(bodies)
        delay = delay_of(delay_level, delay_s, deliver_at)
        wanted = choice(key, queue_id, None, None)
        if not everything:
            return ()
        receipts: Receipts = await self._deliver(
            self._pending(topic, pack_bodies(everything), None, wanted, delay=delay)
        )
        return receipts

    def send_nowait(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue_id: int | None = None,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> None:
        """
        Send one message one-way: it keeps its place in the order and is retried like any other, without a receipt.

        What is not stored is counted in ``failed_one_way`` and logged.

        Raises:
            TooManyInFlight: 64 MiB of one-way messages wait already; :meth:`flush` waits for them.
        """
        if self._one_way_bytes + len(message.body) + ONE_WAY_OVERHEAD > ONE_WAY_BYTES:
            raise TooManyInFlight(f"more than {ONE_WAY_BYTES >> 20} MiB of one-way messages wait: flush() first")
        pending = self._single(message, choice(key, queue_id, selector, arg))
        self._accept(pending)
        pending.on_settled = self._one_way_settled
        self._one_way_bytes += pending.size + ONE_WAY_OVERHEAD

    # Inside

    async def _deliver(self, pending: PendingSend) -> Any:
        pending.future = future = self._loop.create_future()
        self._accept(pending)
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(pending, future)
            raise

    async def _deliver_runs(self, runs: Sequence[tuple[Choice, Sequence[Message]]]) -> Sequence[Receipt]:
        """
        Deliver messages of several queues, all with one deadline.

        A later message of a key must not be sent after an earlier one has run out of time.
        """
        sends: list[tuple[PendingSend, asyncio.Future[Any]]] = []
        for wanted, messages in runs:
            if len(messages) == 1:
                pending: PendingSend = self._single(messages[0], wanted)
            else:
                bodies, extras = gather(tuple(messages))
                pending = self._pending(messages[0].topic, pack_bodies(bodies), messages, wanted, extras=extras)
            pending.future = self._loop.create_future()
            sends.append((pending, pending.future))
        now = self._loop.time()
        for pending, _ in sends:
            self._accept(pending, now)
        self._sender.hurry()  # the caller has gathered them already
        try:
            await asyncio.wait([future for _, future in sends])
        except asyncio.CancelledError:
            for pending, future in sends:
                self._give_up(pending, future)
            raise
        errors = [error for _, future in sends if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        receipts: list[Receipt] = []
        for pending, future in sends:
            receipts += [future.result()] if type(pending) is PendingMessage else future.result()
        return receipts

    def _give_up(self, pending: PendingSend, future: asyncio.Future[Any]) -> None:
        """Whoever waited for the future was cancelled."""
        pending.give_up()
        self._deadlines.tidy()
        if future.done() and not future.cancelled():
            future.exception()  # it lost the race against the cancellation, so no caller retrieves it

    def _single(self, message: Message, wanted: Choice) -> PendingMessage:
        if self._ended is not None or self._closed or not self._opened:
            self._refuse()
        topic = message.topic
        if len(message.body) > MAX_BODY:
            raise _too_large(len(message.body))
        if message.key is not None:
            wanted = keyed(wanted, message.key)
        return PendingMessage(self._wrap(topic), message, wanted, wanted.key, self._wall_us())

    def _pending(
        self,
        topic: str,
        bodies: Bodies,
        messages: Sequence[Message] | None,
        wanted: Choice,
        *,
        delay: Delay | None = None,
        extras: int | None = None,
    ) -> PendingSend:
        if self._ended is not None or self._closed or not self._opened:
            self._refuse()
        if bodies.size > MAX_BODY and bodies.longest > MAX_BODY:
            raise _too_large(bodies.longest)
        return PendingSend(
            self._wrap(topic),
            bodies,
            messages,
            choice=wanted,
            key=wanted.key,
            born_at=self._wall_us(),
            shown_topic=topic,
            delay=delay,
            extras=extras,
        )

    def _accept(self, pending: PendingSend, now: float | None = None) -> None:
        # Synchronous from the caller to here: the order of calls is the order in which sends are placed.
        self._router.deliver(pending)
        self._deadlines.add(pending, now)

    def _one_way_settled(self, pending: PendingSend, error: Exception | None) -> None:
        self._one_way_bytes -= pending.size + ONE_WAY_OVERHEAD
        if error is not None:
            self.failed_one_way += pending.count
            log.warning("producer.one_way_failed", topic=pending.topic, error=error)

    def _connected(self, hello: HelloReply) -> None:
        if self._store_id not in (None, hello.store_id):
            self._router.forget_all()
        self._store_id = hello.store_id
        self._sender.connected(hello)

    def _fenced(self, error: RmqError) -> None:
        self._end(error)
        self._connection.give_up(error)

    def _end(self, error: Exception) -> None:
        """Fail all pending calls and all later ones, as nothing can be sent any more."""
        self._ended = error if isinstance(error, RmqError) else ConnectionLost(str(error))
        self._sender.notify_all()
        self._deadlines.fail_all(str(error), self._ended)
        self._sender.close()

    def _state(self) -> str:
        return "" if self._connection.connected else f", not connected to {self._connection.address}"

    def _refusal(self) -> WireError | None:
        return self._sender.refusal if self._connection.connected else self._connection.refusal

    def _refuse(self) -> NoReturn:
        self._check_open()
        assert self._ended is not None, "it is open, and can send no more"
        raise self._ended.with_traceback(None)

    def _check_open(self) -> None:
        if not self._opened:
            raise ConnectionLost("the producer is not open: use `async with Producer(...) as producer`")
        if self._closed:
            raise ConnectionLost("the producer was closed")


def _too_large(size: int) -> MessageTooLarge:
    return MessageTooLarge(f"a body of {size} bytes is over the limit of {MAX_BODY}")


def _namespace(name: str) -> str:
    try:
        if name:
            check_namespace(name)
    except BadName as error:
        raise ConfigError(f"namespace: {error}") from error
    return name


def _codec(compression: str | None) -> Codec | None:
    if compression is None:
        return None
    try:
        return CODECS.by_name(compression)
    except UnsupportedFormat as error:
        raise ConfigError(error.text) from error
