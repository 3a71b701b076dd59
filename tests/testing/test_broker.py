"""The broker that tests embed, in a thread: what it promises to tests of users, which block or do not."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rmq.broker.store.directory import StoreError
from rmq.client import ConnectionLost, Message, TopicExists
from rmq.client.sync import Producer
from rmq.testing import BrokerThread, InMemoryBroker
from rmq.wire.errors import ConfigError


def test_what_was_sent_is_told_queue_by_queue_in_order() -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", queues=2)
        with Producer(broker.address) as producer:
            for number in range(6):
                producer.send(Message("orders", b"%d" % number), queue_id=1 - number % 2)

        assert [(message.queue_id, message.body) for message in broker.messages("orders")] == [
            (0, b"1"), (0, b"3"), (0, b"5"), (1, b"0"), (1, b"2"), (1, b"4")
        ]  # fmt: skip
        assert broker.messages("nothing-was-sent-here") == []


def test_a_stop_is_a_broker_that_is_away_and_a_start_has_all_that_was_stored() -> None:
    with BrokerThread() as broker:
        address = broker.address
        with Producer(address) as producer:
            producer.send_bodies("orders", [b"stored"])
        broker.stop()
        with pytest.raises(ConnectionLost), Producer(address, delivery_timeout_s=0.05):
            pass
        broker.start()

        assert broker.address == address
        assert [message.body for message in broker.messages("orders")] == [b"stored"]


def test_a_topic_that_exists_otherwise_is_refused() -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", queues=2)
        with pytest.raises(TopicExists):
            broker.create_topic("orders", queues=3)


async def test_an_asynchronous_test_may_ask_it_too() -> None:
    with BrokerThread(default_queues=1) as broker:
        broker.restart()
        assert broker.messages("orders") == []


def test_nothing_is_left_of_it_when_it_cannot_start() -> None:
    with BrokerThread() as first:
        second = BrokerThread(listen=first.address)
        with pytest.raises(OSError, match="in use"), second:
            pass

    assert [thread for thread in threading.enumerate() if thread.name == "rmq-test-broker"] == []
    assert not Path(second._broker.config.data_dir).exists()


def test_little_free_memory_refuses_nothing_unless_the_data_is_to_be_kept(tmp_path: Path) -> None:
    with BrokerThread() as broker:
        assert broker._broker.config.min_free_bytes == 0
    assert InMemoryBroker(data_dir=str(tmp_path)).config.min_free_bytes == 256 << 20


def test_it_needs_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import rmq.testing"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_wrong_setting_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: pytest.fail("a folder was made"))

    with pytest.raises(ConfigError, match="default_queues"):
        BrokerThread(default_queues=-1)


def test_outside_of_its_block_it_says_so() -> None:
    broker = BrokerThread()
    with pytest.raises(RuntimeError, match="`with` block"):
        _ = broker.address
    with pytest.raises(RuntimeError, match="`with` block"):
        broker.start()
    with broker:
        pass
    with pytest.raises(RuntimeError, match="`with` block"):
        broker.messages("orders")


def test_a_second_start_is_refused_and_the_broker_goes_on() -> None:
    with BrokerThread() as broker:
        with pytest.raises(StoreError, match="another broker"):
            broker.start()
        assert broker.messages("orders") == []
        directory = Path(broker._broker.config.data_dir)

    assert not directory.exists()
