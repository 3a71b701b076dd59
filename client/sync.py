"""
The blocking producer, for programs without asyncio: the same names, arguments, promises and errors.

::

    from rmq import Message
    from rmq.client.sync import Producer

    with Producer("127.0.0.1:10911") as producer:
        receipt = producer.send(Message("orders", b"paid", key="o-17"))

Threads may share one: the calls of each thread keep their order, and messages sent at the same time share batches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from rmq.runtime import clock
from rmq.runtime.loop_thread import LoopEnded, LoopThread
from rmq.wire.errors import ConfigError, ConnectionLost, WireError
from rmq.wire.model import Message

from .producer.producer import MAX_IN_FLIGHT
from .producer.producer import Producer as AsyncProducer
from .producer.receipts import Receipt
from .producer.routing import Selector

P = ParamSpec("P")
T = TypeVar("T")


class Producer:
    """
    Sends messages to a broker; takes the arguments of :class:`rmq.client.Producer`.

    It runs an event loop in a thread; a ``selector`` and ``on_refusal`` are called there. Ctrl-C while a call waits
    cancels that call: the message is taken back if it was not sent yet, otherwise it may be stored.

    A producer that is not closed does not keep the program from ending: messages with a receipt are stored, and those
    of :meth:`send_nowait` that were not sent yet are lost. It refuses to work inside a running event loop and after a
    fork: create another one there.
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
        self._producer = AsyncProducer(
            address,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
            max_in_flight=max_in_flight,
            auto_create=auto_create,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            namespace=namespace,
            wall_us=wall_us,
            on_refusal=on_refusal,
        )
        self._opened = False
        self._thread = LoopThread("producer", instead="rmq.client.Producer", close=self._producer.close)
        self._thread.end_with(self)

    @property
    def producer_id(self) -> int:
        """The number that identifies it at the broker."""
        return self._producer.producer_id

    @property
    def producer_epoch(self) -> int:
        """The incarnation of the writer."""
        return self._producer.producer_epoch

    @property
    def failed_one_way(self) -> int:
        """How many messages of :meth:`send_nowait` were not stored, as far as is known."""
        return self._producer.failed_one_way

    # Life

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def open(self) -> None:
        """
        Connect; Ctrl-C ends the producer.

        Raises:
            ConnectionLost: no broker answers at the address.
            ProducerFenced: a producer with this id and a higher epoch was opened before.
        """
        if self._opened:
            raise ConfigError("a producer is opened once: make another one")
        try:
            self._thread.start()
        except LoopEnded:
            raise ConnectionLost("the producer was closed") from None
        self._opened = True
        try:
            self._call(self._producer.open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close at once, so that pending calls fail; call :meth:`flush` before. May be called again."""
        try:
            if self._opened and not self._thread.is_forked():
                self._thread.call(self._producer.close)
        except LoopEnded:
            pass  # another thread has closed it
        finally:
            self._thread.end()

    def flush(self) -> None:
        """Wait until all that was sent before is stored, has failed or has run out of time."""
        self._call(self._producer.flush)

    # Sending

    def send(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue_id: int | None = None,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> Receipt:
        """
        Send one message and wait until it is stored.

        Equal keys go to one queue: ``key``, or else that of the message. ``queue_id`` and ``selector`` choose the queue
        in another way; the message keeps its key. With neither of them and no key, queues take turns.

        Raises:
            ConfigError: ``key`` is not the key that the message has.
            RequestTimeout: not stored within ``delivery_timeout_s``.
            OutcomeUnknown: sent, and no answer within ``delivery_timeout_s``.
            ProducerFenced: a producer with this id and a higher epoch has replaced this one.
            Refused: not stored; the class says why. A temporary reason, such as DiskFull, is raised only if it lasts
                for ``delivery_timeout_s``.
        """
        return self._call(self._producer.send, message, key=key, queue_id=queue_id, selector=selector, arg=arg)

    def send_many(
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
        the first message. Errors as with :meth:`send`; after one the first part of the messages of a queue may be
        stored, never a later one without those before it, unless those cannot be encoded or the broker refused them.

        Raises:
            ValueError: the messages have different topics.
            ConfigError: ``key`` is not the key that one of the messages has.
        """
        everything = tuple(messages)  # here: what makes them may take its time
        return self._call(
            self._producer.send_many,
            everything,
            key=key,
            queue_id=queue_id,
            selector=selector,
            arg=arg,
        )

    def send_bodies(
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
        everything = list(bodies)
        return self._call(
            self._producer.send_bodies,
            topic,
            everything,
            key=key,
            queue_id=queue_id,
            delay_level=delay_level,
            delay_s=delay_s,
            deliver_at=deliver_at,
        )

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

        async def accept() -> None:
            self._producer.send_nowait(message, key=key, queue_id=queue_id, selector=selector, arg=arg)

        self._call(accept)

    def _call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        if not self._opened:
            raise ConnectionLost("the producer is not open: use `with Producer(...) as producer`")
        try:
            return self._thread.call(function, *args, **named)
        except LoopEnded:
            raise ConnectionLost("the producer was closed") from None
