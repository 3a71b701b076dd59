"""A dead letter that an operator replays is consumed by its group, once more and no more, under its original topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from rmq.cli.rmq_admin import command
from rmq.client.sync import Producer
from rmq.consumer import ConsumeContext, ConsumeStatus, StoredMessage
from rmq.consumer.sync import Consumer

from rigs.stalling_broker import BrokerThread, eventually

pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(min_free_bytes=0) as running:
        yield running


class Repaired:
    """A listener that fails at odd numbers until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False
        self.done: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        with self._lock:
            for message in messages:
                if int(message.body) % 2 and not self.is_mended:
                    raise ValueError("an odd number")
                self.done.append((message.topic, message.body))
        return ConsumeStatus.SUCCESS


@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "concurrent"])
def test_dead_letters_are_replayed_to_the_running_group(broker: BrokerThread, orderly: bool) -> None:
    def dlq(*arguments: str) -> str:
        result = CliRunner().invoke(command, ["dlq", *arguments, "--broker", broker.address])
        assert result.exit_code == 0, result.output
        return result.stdout

    listener = Repaired()
    settings: dict[str, Any] = {"topics": {"orders": "*"}, "max_attempts": 1, "orderly": orderly}
    with Producer(broker.address) as producer:
        producer.send_bodies("orders", [b"%d" % i for i in range(6)], queue_id=1)
    with Consumer(broker.address, group="g", listener=listener, **settings):
        eventually(lambda: len(listener.done) == 3, "the even ones")
        eventually(lambda: dlq("list").split()[6:8] == ["g", "3"], "three dead letters")
        listener.is_mended = True

        assert dlq("replay", "g", "--reason", "odd").splitlines()[-1] == "g: 3 replayed"
        eventually(lambda: len(listener.done) == 6, "the odd ones")
        assert dlq("replay", "g", "--yes") == "g: nothing to replay\n"

    assert listener.done[:3] == [("orders", b"0"), ("orders", b"2"), ("orders", b"4")]
    assert sorted(listener.done[3:]) == [("orders", b"1"), ("orders", b"3"), ("orders", b"5")]
    if orderly:
        assert listener.done[3:] == sorted(listener.done[3:])
