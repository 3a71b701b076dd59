"""The producer for code without asyncio: the other one call by call, and it keeps no program from ending."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator

import pytest

from rmq import client
from rmq.client import Message
from rmq.client.sync import Producer
from rmq.wire import errors

from rigs.interrupts import interrupt
from rigs.stalling_broker import BrokerThread, eventually

TOPIC = "orders"
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def shape(function: object) -> list[tuple[str, object, object, object]]:
    """Names, kinds, defaults and types; what a call returns is Self or the class, which mypy checks."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default, one.annotation) for one in parameters]


def test_names_and_arguments_are_those_of_the_other_producer() -> None:
    theirs, ours = public(client.Producer), public(Producer)

    assert set(ours) - set(theirs) == {"producer_id", "producer_epoch", "failed_one_way"}  # attributes there
    assert set(theirs) <= set(ours)
    for name in [*theirs, "__init__"]:
        assert shape(getattr(Producer, name)) == shape(getattr(client.Producer, name)), name


def test_what_is_sent_is_stored_in_order(broker: BrokerThread) -> None:
    with Producer(broker.address, producer_id=7, producer_epoch=3) as producer:
        first = producer.send(Message("in-order", b"0"), queue_id=1)
        many = producer.send_many((Message("in-order", b"%d" % i) for i in range(1, 4)), queue_id=1)
        bodies = producer.send_bodies("in-order", (b"%d" % i for i in range(4, 6)), queue_id=1)
        producer.send_nowait(Message("in-order", b"6"), queue_id=1)
        last = producer.send(Message("in-order", b"7"), queue_id=1)

    offsets = [receipt.queue_offset for receipt in (first, *many, *bodies, last)]
    assert offsets == [0, 1, 2, 3, 4, 5, 7]
    assert (producer.producer_id, producer.producer_epoch, producer.failed_one_way) == (7, 3, 0)


def test_each_of_many_threads_keeps_its_order(broker: BrokerThread) -> None:
    offsets: dict[int, list[int]] = {}

    with Producer(broker.address) as producer:

        def send_some(number: int) -> None:
            offsets[number] = [producer.send(Message("threads", b""), queue_id=0).queue_offset for _ in range(25)]

        threads = [threading.Thread(target=send_some, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)

    assert all(mine == sorted(mine) for mine in offsets.values())
    assert sorted(offset for mine in offsets.values() for offset in mine) == list(range(200))


def test_threads_that_send_at_once_share_batches(broker: BrokerThread) -> None:
    with Producer(broker.address, max_in_flight=1) as producer:
        producer.send(Message("shared", b"the topic"), queue_id=0)
        broker.stall()
        threads = [
            threading.Thread(target=producer.send, args=(Message("shared", b"x"),), kwargs={"queue_id": 0})
            for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(producer._producer._deadlines._sends) == 40, "40 messages that wait")
        before = broker.broker.broker._store.log.written
        broker.go_on()
        for thread in threads:
            thread.join(DEADLINE_S)
        written = broker.broker.broker._store.log.written - before

    assert 0 < written < 40 * 100  # 40 batches would be 40 headers of more than a hundred bytes


def test_errors_are_the_same_and_show_the_callers_line(broker: BrokerThread) -> None:
    with Producer(broker.address, auto_create=False) as producer:
        with pytest.raises(errors.TopicNotFound) as raised:
            producer.send(Message("missing", b""))  # of the caller
        with pytest.raises(ValueError, match="one topic"):
            producer.send_many([Message("a", b""), Message("b", b"")])
        with pytest.raises(ValueError, match="give one of"):
            producer.send_nowait(Message("a", b""), queue_id=1, key="k")

    assert 'producer.send(Message("missing", b""))  # of the caller' in "".join(
        traceback.format_exception(raised.value)
    )


def test_a_full_disk_is_reported_at_once_and_raised_at_the_deadline() -> None:
    reported: list[object] = []
    with (
        BrokerThread(min_free_bytes=1 << 60) as full,
        Producer(full.address, delivery_timeout_s=0.5, on_refusal=reported.append) as producer,
        pytest.raises(errors.DiskFull, match=r"within 0\.5 s: the disk has \d+ MiB free"),
    ):
        producer.send(Message(TOPIC, b""))

    assert [type(error) for error in reported] == [errors.DiskFull]


def test_settings_are_judged_when_it_is_made() -> None:
    with pytest.raises(errors.ConfigError, match="max_in_flight must be"):
        Producer("127.0.0.1:1", max_in_flight=0)


def test_without_a_broker_opening_fails_and_leaves_no_thread() -> None:
    producer = Producer("127.0.0.1:1", delivery_timeout_s=0.05)

    with pytest.raises(errors.ConnectionLost):
        producer.open()

    assert not producer._thread._thread.is_alive()
    with pytest.raises(errors.ConfigError, match="opened once"):
        producer.open()


def test_it_says_when_it_is_not_open(broker: BrokerThread) -> None:
    producer = Producer(broker.address)
    with pytest.raises(errors.ConnectionLost, match="use `with Producer"):
        producer.send(Message(TOPIC, b""))
    producer.open()
    producer.close()
    producer.close()

    with pytest.raises(errors.ConnectionLost, match="the producer was closed"):
        producer.send(Message(TOPIC, b""))
    never = Producer(broker.address)
    never.close()
    with pytest.raises(errors.ConnectionLost, match="the producer was closed"):
        never.open()


def test_a_close_tells_threads_that_wait(broker: BrokerThread) -> None:
    producer = Producer(broker.address)
    producer.open()
    producer.send(Message("closing", b""))
    raised: list[Exception] = []

    def send() -> None:
        try:
            producer.send(Message("closing", b""))
        except errors.RmqError as error:
            raised.append(error)

    broker.stall()
    thread = threading.Thread(target=send)
    thread.start()
    eventually(lambda: bool(producer._producer._deadlines._sends), "a message that waits")
    producer.close()
    thread.join(DEADLINE_S)
    broker.go_on()

    assert [str(error) for error in raised] == [str(raised[0])]
    assert "the producer was closed" in str(raised[0])


def test_ctrl_c_ends_a_send_that_waits_and_nothing_else(broker: BrokerThread) -> None:
    with Producer(broker.address) as producer:
        producer.send(Message("interrupted", b""))
        broker.stall()
        waiting = threading.Thread(
            target=lambda: (
                eventually(lambda: bool(producer._producer._deadlines._sends), "a message that waits"),
                interrupt(),
            )
        )
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            producer.send(Message("interrupted", b""))
        waiting.join(DEADLINE_S)
        broker.go_on()

        assert producer.send(Message("interrupted", b"")).queue_offset >= 0


async def test_in_a_running_loop_it_is_refused(broker: BrokerThread) -> None:
    with pytest.raises(RuntimeError, match=r"use rmq\.client\.Producer with it"):
        Producer(broker.address).open()


def test_one_that_nobody_refers_to_ends_its_thread(broker: BrokerThread) -> None:
    producer = Producer(broker.address)
    producer.open()
    producer.send(Message("forgotten", b""))
    thread = producer._thread._thread

    del producer
    gc.collect()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()


PROGRAM = """
import os, sys
from rmq.client import Message
from rmq.client.sync import Producer
producer = Producer(sys.argv[1])
producer.open()
print(producer.send(Message("program", b"")).queue_offset >= 0, flush=True)
"""
FORK = """
if (child := os.fork()) == 0:
    try:
        producer.send(Message("program", b""))
    except RuntimeError as error:
        print(error, flush=True)
    producer.close()
    sys.exit()
os.waitpid(child, 0)
print(producer.send(Message("program", b"")).queue_offset >= 0, flush=True)
producer.close()
"""


def run(program: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_program_that_does_not_close_it_ends(broker: BrokerThread) -> None:
    assert run(PROGRAM, broker.address) == ["True"]


@pytest.mark.slow
def test_in_a_fork_it_says_so_and_the_parent_goes_on(broker: BrokerThread) -> None:
    first, refused, last = run(PROGRAM + FORK, broker.address)

    assert first == last == "True"
    assert refused.startswith("this producer belongs to process ")
    assert refused.endswith(": after a fork make another one")


def test_no_loop_is_left_for_the_thread_that_used_it(broker: BrokerThread) -> None:
    with Producer(broker.address) as producer:
        producer.send(Message(TOPIC, b""))

    assert asyncio._get_running_loop() is None
    assert os.getpid() == producer._thread._pid
