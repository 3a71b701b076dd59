"""The consumer for code without asyncio: it is the other one, call by call, and everybody may stop it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq import consumer
from rmq.client.sync import Producer
from rmq.consumer import ConsumeContext, ConsumeStatus, MessageQueue, StoredMessage
from rmq.consumer.sync import Consumer
from rmq.wire.errors import ConfigError, GroupMismatch

from .sync_shapes import public, same_shape
from support.broker_thread import BrokerThread, eventually

DEADLINE_S = 30.0
SUCCESS = ConsumeStatus.SUCCESS


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic, and a group, of this test's own."""
    name: str = request.node.name
    return name[-100:]


class Heard:
    """
    A listener that notes what it got; ``then`` is done at the message with that number, before it returns.

    What ``then`` refers to must be there before the consumer is started.
    """

    def __init__(self, then: Callable[[], object] | None = None, at: int = 3) -> None:
        self.bodies: list[bytes] = []
        self.threads: set[str] = set()
        self.then = then
        self._at = at

    def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.threads.add(threading.current_thread().name)
        for message in messages:
            self.bodies.append(message.body)
            if len(self.bodies) == self._at and self.then is not None:
                self.then()
        return SUCCESS


def send(broker: BrokerThread, topic: str, count: int = 3) -> list[bytes]:
    bodies = [b"%d" % i for i in range(count)]
    with Producer(broker.address) as producer:
        producer.send_bodies(topic, bodies, queue_id=0)
    return bodies


def test_names_and_arguments_are_those_of_the_other_consumer() -> None:
    assert public(Consumer) == public(consumer.Consumer) | {"config"}  # an attribute there
    for name in [*public(consumer.Consumer), "__init__"]:
        assert same_shape(getattr(Consumer, name), getattr(consumer.Consumer, name)), name


def test_a_listener_consumes_and_stops_the_consumer(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic)
    heard = Heard(lambda: running.stop())

    running = Consumer(broker.address, group=topic, listener=heard)
    with running:
        running.subscribe(topic)
        running.run()

    assert heard.bodies == sent
    assert all(name.startswith("rmq-listener") for name in heard.threads)
    assert not running._thread._thread.is_alive()


def test_what_was_consumed_is_committed_by_the_stop(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic, 3)
    for _ in range(2):
        heard = Heard()
        running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
        heard.then = running.stop
        with running:
            running.run()
        assert heard.bodies == sent
        sent = send(broker, topic, 3)


def test_a_listener_may_stop_it_before_run_is_called(broker: BrokerThread, topic: str) -> None:
    sent, heard = send(broker, topic), Heard()
    running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
    heard.then = running.stop

    with running:
        asyncio.run_coroutine_threadsafe(running._member._stopped.wait(), running._thread._loop).result(DEADLINE_S)
        running.run()

    assert heard.bodies == sent


def test_a_coroutine_listener_runs_on_the_loop_and_may_use_all_calls_that_do_not_wait(
    broker: BrokerThread, topic: str
) -> None:
    sent, heard, seen = send(broker, topic), Heard(), {}

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        heard(messages, context)
        if len(heard.bodies) == 3:
            running.pause(topic)
            running.resume()
            seen.update(running.running_info())
            running.stop()
        return SUCCESS

    running = Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"})
    with running:
        running.run()

    assert heard.bodies == sent
    assert heard.threads == {"rmq-consumer"}
    assert seen


def test_another_thread_stops_it_and_waits_for_the_end_of_calls(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        begun.set()
        go_on.wait(DEADLINE_S)
        order.append("call ended")
        return SUCCESS

    def stop() -> None:
        begun.wait(DEADLINE_S)
        threading.Timer(0.05, go_on.set).start()
        running.stop()
        order.append("stopped")

    running = Consumer(broker.address, group=topic, listener=listener, topics={topic: "*"})
    stopper = threading.Thread(target=stop)
    stopper.start()
    running.run()
    stopper.join(DEADLINE_S)

    assert order == ["call ended", "stopped"]
    assert not running._thread._thread.is_alive()


def test_it_is_paused_looked_at_and_resumed_while_it_runs(broker: BrokerThread, topic: str) -> None:
    sent = send(broker, topic)
    done = threading.Event()
    heard = Heard(done.set)

    running = Consumer(broker.address, group=topic, listener=heard)
    with running:
        running.pause()
        running.subscribe(topic)
        eventually(lambda: MessageQueue(topic, 0) in running.assignment, "the assignment")
        assert heard.bodies == []
        running.resume()
        assert done.wait(DEADLINE_S)
        eventually(lambda: f"{topic}@{topic}" in running.statistics(), "the statistics")
        assert running.running_info()
        assert running.stopped_queues == {}
        running.unsubscribe(topic)
        eventually(lambda: running.assignment == [], "the hand-over")

    assert heard.bodies == sent
    assert running.config.group == topic


def test_hooks_are_called(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)
    heard = Heard(lambda: running.stop(), at=1)
    called: list[str] = []

    class Hook:
        def before(self, info: Any) -> None:
            called.append("before")

        def after(self, info: Any) -> None:
            called.append("after")

    running = Consumer(broker.address, group=topic, listener=heard, topics={topic: "*"})
    with running:
        running.add_hook(Hook())
        running.run()

    assert called == ["before", "after"]


def test_before_the_start_and_after_the_stop_it_still_answers(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard())
    assert (running.statistics(), running.running_info(), running.assignment) == ({}, {}, [])
    running.subscribe(topic)
    running.start()
    running.start()
    running.stop()
    running.stop()

    assert running.assignment == []
    assert running.statistics() == {}
    assert running.running_info()["group"] == topic
    running.pause()
    running.subscribe("another")
    running.unsubscribe(topic)


def test_it_runs_once(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})
    running.stop()

    for again in (running.run, running.start):
        with pytest.raises(RuntimeError, match="this consumer was stopped: make another one"):
            again()


def test_mistakes_are_told_at_once(broker: BrokerThread, topic: str) -> None:
    with pytest.raises(ConfigError, match="a consumer needs a group"):
        Consumer(broker.address, listener=Heard())
    running = Consumer(broker.address, group=topic, listener=Heard())
    with pytest.raises(ConfigError, match="call subscribe"):
        running.run()
    with pytest.raises(ConfigError):
        running.subscribe("not a name")  # it may still be mended
    running.stop()


def test_what_ends_the_consumer_is_raised_by_run_or_at_the_end_of_the_block(broker: BrokerThread, topic: str) -> None:
    settings = {"group": topic, "topics": {topic: "*"}}
    with Consumer(broker.address, listener=Heard(), **settings) as first:
        eventually(lambda: bool(first.assignment) or bool(first.running_info()), "the first member")
        eventually(lambda: _has_joined(broker, topic), "the first member")
        other = {**settings, "strategy": "circle"}
        with pytest.raises(GroupMismatch):
            Consumer(broker.address, listener=Heard(), **other).run()
        with pytest.raises(GroupMismatch), Consumer(broker.address, listener=Heard(), **other) as second:
            eventually(lambda: second._consumer._error is not None, "the refusal")
            second.stop()


def _has_joined(broker: BrokerThread, group: str) -> bool:
    from rmq.client import Admin, RmqError

    async def members() -> int:
        async with Admin(broker.address) as admin:
            try:
                return len((await admin.describe_group(group)).members)
            except RmqError:
                return 0

    return broker.do(members) > 0


async def test_in_a_running_loop_it_is_refused(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})

    for use in (running.start, running.run, running.stop, running.__enter__):
        with pytest.raises(RuntimeError, match=r"use rmq\.consumer\.Consumer with it"):
            use()


def test_one_that_nobody_refers_to_stops(broker: BrokerThread, topic: str) -> None:
    running = Consumer(broker.address, group=topic, listener=Heard(), topics={topic: "*"})
    running.start()
    thread = running._thread._thread

    del running
    gc.collect()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()


PROGRAM = """
import sys, threading
from rmq.consumer import ConsumeStatus
from rmq.consumer.sync import Consumer
heard = threading.Event()
def listener(messages, context):
    heard.set()
    return ConsumeStatus.SUCCESS
consumer = Consumer(sys.argv[1], group=sys.argv[2], listener=listener, topics={sys.argv[2]: "*"})
consumer.start()
print(heard.wait(20), flush=True)
"""


@pytest.mark.slow
def test_a_program_that_does_not_stop_it_ends_and_loses_nothing(broker: BrokerThread, topic: str) -> None:
    send(broker, topic, 1)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address, topic], capture_output=True, text=True, timeout=30, check=True
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
    again = Heard(lambda: running.stop(), at=1)
    sent = send(broker, topic, 1)
    running = Consumer(broker.address, group=topic, listener=again, topics={topic: "*"})
    with running:
        running.run()
    assert again.bodies == sent


ENDING = """
import sys, time, threading
from rmq.client import Message
from rmq.client.sync import Producer
from rmq.consumer import ConsumeStatus
from rmq.consumer.sync import Consumer
address, topic, directory = sys.argv[1:]
heard, began = threading.Event(), threading.Event()
def listener(messages, context):
    print(messages[0].body.decode(), flush=True)
    heard.set()
    if messages[0].body == b"slow":
        began.set()
        time.sleep(0.3)  # meanwhile the program comes to its end, and idle threads go
        producer.send(Message(topic, b"late"), queue_id=1)
        time.sleep(0.3)
    return ConsumeStatus.SUCCESS
consumer = Consumer(
    address, group=topic, listener=listener, topics={topic: "*"}, orderly=False, model="broadcasting",
    offsets_dir=directory,
)
producer = Producer(address)
producer.open()
consumer.start()
producer.send(Message(topic, b"first"), queue_id=1)
heard.wait(20)
producer.send(Message(topic, b"slow"), queue_id=0)
began.wait(20)
"""


@pytest.mark.slow
def test_a_message_that_comes_while_the_program_ends_has_not_failed_and_comes_again(
    broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, broker.address, topic, str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip

    assert sorted(done.stdout.split()) == ["first", "slow"]
    assert "passed" not in done.stderr
    again = Heard(lambda: running.stop(), at=1)
    settings: dict[str, Any] = {"model": "broadcasting", "offsets_dir": str(tmp_path), "orderly": False}
    running = Consumer(broker.address, group=topic, listener=again, topics={topic: "*"}, **settings)
    with running:
        running.run()
    assert again.bodies == [b"late"]
