"""Sends that the broker refuses for a reason that may pass: reported at once, and raised when the time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from rmq.client import Message, Producer
from rmq.wire import errors
from rmq.wire.batch.layout import Header

from .fake_broker import DropBefore, FakeBroker
from .producing import TOPIC, message, numbers, send_each, time, until

pytestmark = pytest.mark.virtual_time

SENTENCE = "the disk has 3 MiB free"


class Refusing:
    """Refuses every batch while there is an error to refuse it with."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __call__(self, _header: Header) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(broker: FakeBroker) -> Refusing:
    broker.before_store = refusing = Refusing(errors.DiskFull(SENTENCE))
    return refusing


CALLS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "send": lambda producer: producer.send(message(1)),
    "send_many": lambda producer: producer.send_many([message(1), message(2)]),
    "send_bodies": lambda producer: producer.send_bodies(TOPIC, [b"1", b"2"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_is_refused_until_its_deadline_raises_the_refusal(
    broker: FakeBroker, disk: Refusing, call: Callable[[Producer], Awaitable[object]]
) -> None:
    async with Producer(broker.address) as producer:
        with pytest.raises(errors.DiskFull) as raised:
            await call(producer)

    assert time() == pytest.approx(30, abs=0.1)
    assert str(raised.value) == f"nothing was stored in 'orders' within 30 s: {SENTENCE}"
    assert broker.stored == []


async def test_a_one_way_message_that_is_refused_until_its_deadline_is_logged_with_the_refusal(
    broker: FakeBroker, disk: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer(broker.address) as producer:
        producer.send_nowait(message(1))
        await producer.flush()

    assert producer.failed_one_way == 1
    assert f"producer.one_way_failed topic=orders error=\"nothing was stored in 'orders' within 30 s: {SENTENCE}\"" in (
        caplog.text
    )


async def test_messages_that_wait_behind_a_refused_batch_raise_its_refusal(broker: FakeBroker, disk: Refusing) -> None:
    broker.create(TOPIC, 40)
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        calls = [producer.send(message(i), queue_id=i) for i in range(40)]  # more than are tried within the time
        outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert {(type(outcome), str(outcome)) for outcome in outcomes} == {
        (errors.DiskFull, f"nothing was stored in 'orders' within 5 s: {SENTENCE}")
    }


@pytest.mark.parametrize("refusal", [errors.TooManyInFlight("1024 wait"), errors.DiskFull(SENTENCE)])
async def test_any_refusal_that_proves_that_nothing_was_stored_is_raised_as_itself(
    broker: FakeBroker, disk: Refusing, refusal: errors.Refused
) -> None:
    disk.error = refusal
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        with pytest.raises(type(refusal), match=str(refusal)):
            await producer.send(message(1))


async def test_a_store_that_cannot_write_leaves_the_outcome_unknown_and_is_named(
    broker: FakeBroker, disk: Refusing
) -> None:
    """The batch stays in line and is sent again after the deadline, so it must not be reported as refused."""
    disk.error = errors.StoreFailed("the log could not be written: Input/output error")
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        sent = asyncio.create_task(producer.send(message(1), queue_id=0))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(producer.send(message(2), queue_id=0))

        with pytest.raises(errors.OutcomeUnknown, match=r"last refused with STORE_FAILED: the log could not be .* may"):
            await sent
        with pytest.raises(errors.StoreFailed, match="nothing was stored in 'orders' within 5 s: the log could not"):
            await waiting
        disk.error = None
        await producer.send(message(3), queue_id=0)

    assert numbers(broker) == [1, 3]


async def test_an_attempt_without_an_answer_is_never_reported_as_a_refusal(broker: FakeBroker, disk: Refusing) -> None:
    async with Producer(broker.address, delivery_timeout_s=2) as producer:
        sent = asyncio.create_task(producer.send(message(1), queue_id=0))
        await until(lambda: len(broker.arrived) == 2)
        disk.error, broker.holding = None, True  # the third attempt is stored, and its answer does not come

        with pytest.raises(errors.OutcomeUnknown, match="last refused with DISK_FULL"):
            await sent
        broker.release()

    assert numbers(broker) == [1]


async def test_a_broker_that_went_away_after_a_refusal_is_reported_as_away(broker: FakeBroker, disk: Refusing) -> None:
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        sent = asyncio.create_task(producer.send(message(1)))
        await until(lambda: bool(broker.arrived))
        disk.error = DropBefore()
        await broker.stop()

        with pytest.raises(errors.RequestTimeout, match="not connected to"):
            await sent
        await broker.start()


async def test_a_route_that_is_refused_until_the_deadline_raises_the_refusal(broker: FakeBroker) -> None:
    broker.route_refusals = [errors.Internal("defect 17")] * 100
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        with pytest.raises(errors.Internal, match="nothing was stored in 'orders' within 5 s: defect 17"):
            await producer.send(message(1))


async def test_a_refused_route_is_reported_at_once_and_once_and_so_is_its_end(broker: FakeBroker) -> None:
    reported: list[tuple[float, str]] = []
    broker.route_refusals = [errors.DiskFull(SENTENCE)] * 20
    async with Producer(broker.address, on_refusal=lambda error: reported.append((time(), str(error)))) as producer:
        await producer.send(message(1))
        await asyncio.sleep(0)

    assert [text for _, text in reported] == [SENTENCE, "None"]
    assert [at for at, _ in reported] == pytest.approx([0, 2], abs=0.1)


@pytest.mark.parametrize("refusal", [errors.DiskFull(SENTENCE), errors.StoreFailed("the log could not be written")])
async def test_a_hello_that_is_refused_for_now_is_reported_at_once_and_repeated(
    broker: FakeBroker, refusal: errors.Refused
) -> None:
    reported: list[str] = []
    broker.refuse_hello = refusal
    producer = Producer(broker.address, producer_epoch=3, on_refusal=lambda error: reported.append(str(error)))
    opening = asyncio.create_task(producer.open())
    await asyncio.sleep(3)
    assert reported == [str(refusal)]
    assert len(broker.hellos) > 2
    broker.refuse_hello = None
    await opening
    await producer.send(message(1))
    await asyncio.sleep(0)
    await producer.close()

    assert reported == [str(refusal), "None"]


async def test_a_hello_that_is_refused_until_the_deadline_raises_the_refusal(broker: FakeBroker) -> None:
    broker.refuse_hello = errors.DiskFull(SENTENCE)

    with pytest.raises(errors.DiskFull, match=SENTENCE):
        await Producer(broker.address, producer_epoch=3).open()

    assert time() == pytest.approx(30, abs=0.1)


async def test_a_hello_that_is_refused_after_a_reconnect_is_raised_by_what_waits(broker: FakeBroker) -> None:
    async with Producer(broker.address, producer_epoch=3, delivery_timeout_s=5) as producer:
        await producer.send(message(1))
        await broker.stop()
        broker.refuse_hello = errors.DiskFull(SENTENCE)
        await broker.start()

        with pytest.raises(errors.DiskFull, match=f"nothing was stored in .* within 5 s: .*{SENTENCE}"):
            await producer.send(message(2))


async def test_a_refusal_is_not_given_as_the_reason_of_a_later_time_out(broker: FakeBroker, disk: Refusing) -> None:
    async with Producer(broker.address, delivery_timeout_s=5) as producer:
        with pytest.raises(errors.DiskFull):
            await producer.send(message(1))
        await asyncio.sleep(2)
        broker.answering = False  # not even the route of another topic

        with pytest.raises(errors.RequestTimeout, match="nothing was stored in 'others'"):
            await producer.send(Message("others", b""))


async def test_a_refusal_is_reported_at_once_and_once_and_so_is_its_end(
    broker: FakeBroker, disk: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reported: list[tuple[float, str]] = []
    async with Producer(
        broker.address, on_refusal=lambda error: reported.append((round(time()), str(error)))
    ) as producer:
        sending = asyncio.create_task(send_each(producer, range(20)))
        await asyncio.sleep(10)
        disk.error = None
        await sending
        disk.error = errors.DiskFull("again")
        sending = asyncio.create_task(send_each(producer, range(20, 40)))
        await asyncio.sleep(10)
        disk.error = None
        await sending

    logged = [record.message for record in caplog.records if record.message.startswith("producer.")]
    assert logged == [
        f"producer.refused error='DISK_FULL: {SENTENCE}'",
        "producer.accepted",
        "producer.refused error='DISK_FULL: again'",
        "producer.accepted",
    ]
    assert [text for _, text in reported] == [SENTENCE, "None", "again", "None"]
    assert [at for at, _ in reported][:3] == [0, 10, 10]
    assert numbers(broker) == list(range(40))


async def test_a_refusal_of_another_kind_is_reported_as_well(broker: FakeBroker, disk: Refusing) -> None:
    reported: list[object] = []
    async with Producer(broker.address, on_refusal=reported.append) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await asyncio.sleep(3)
        disk.error = errors.StoreFailed("the log could not be written")
        await asyncio.sleep(3)
        disk.error = None
        await sending

    assert [type(error) for error in reported] == [errors.DiskFull, errors.StoreFailed, type(None)]


async def test_a_callback_that_raises_does_not_disturb_the_sending(broker: FakeBroker, disk: Refusing) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))

    def fail(_error: object) -> None:
        raise ValueError("of the caller")

    async with Producer(broker.address, on_refusal=fail) as producer:
        sending = asyncio.create_task(producer.send(message(1)))
        await asyncio.sleep(3)
        disk.error = None
        await sending

    assert numbers(broker) == [1]
    assert reported == ["ValueError('of the caller')"] * 2


async def test_a_refusal_is_over_when_something_is_stored_also_if_nobody_waited_any_more(
    broker: FakeBroker, disk: Refusing
) -> None:
    reported: list[str | None] = []
    note = lambda error: reported.append(None if error is None else error.name)  # noqa: E731
    async with Producer(broker.address, delivery_timeout_s=5, on_refusal=note) as producer:
        with pytest.raises(errors.DiskFull):
            await producer.send(message(1))
        disk.error = errors.BadBatch("not this one")
        with pytest.raises(errors.BadBatch):
            await producer.send(message(2))
        assert reported == ["DISK_FULL"]
        disk.error = None
        await producer.send(message(3))
        await asyncio.sleep(0)

    assert reported == ["DISK_FULL", None]
