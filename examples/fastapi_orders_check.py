"""
The check of ``fastapi_orders.py``, apart from rmq's own tests since it needs FastAPI.

    pip install fastapi httpx pytest
    pytest -c /dev/null examples/fastapi_orders_check.py
"""

from __future__ import annotations

from collections.abc import Iterator

import fastapi_orders
import pytest
from fastapi.testclient import TestClient

from rmq.testing import BrokerThread

pytest_plugins = ["rmq.testing.plugin"]


@pytest.fixture
def client(rmq_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The service, with a broker of its own."""
    monkeypatch.setenv("RMQ_BROKER", rmq_broker.address)
    monkeypatch.setattr(fastapi_orders, "SEND_S", 0.5)
    with TestClient(fastapi_orders.app) as client:
        yield client


def test_an_event_is_accepted_with_its_receipt(client: TestClient, rmq_broker: BrokerThread) -> None:
    answer = client.post("/orders", json={"order": "o-17", "step": "created"})

    (stored,) = rmq_broker.messages(fastapi_orders.TOPIC)
    assert answer.status_code == 202
    assert answer.json() == {
        "message_id": stored.message_id,
        "queue_id": stored.queue_id,
        "queue_offset": 0,
        "durable": True,
    }
    assert stored.key == "o-17"


def test_the_steps_of_an_order_are_seen_in_order(client: TestClient) -> None:
    for step in ("created", "paid", "shipped"):
        client.post("/orders", json={"order": "o-17", "step": step})
    for _ in range(1000):
        answer = client.get("/orders/o-17")
        if answer.status_code == 200 and len(answer.json()["steps"]) == 3:
            break

    assert answer.json() == {"order": "o-17", "steps": ["created", "paid", "shipped"]}


def test_a_step_that_does_not_exist_is_refused_before_it_is_sent(client: TestClient, rmq_broker: BrokerThread) -> None:
    assert client.post("/orders", json={"order": "o-17", "step": "eaten"}).status_code == 422
    assert rmq_broker.messages(fastapi_orders.TOPIC) == []


def test_without_the_broker_the_caller_is_told_and_may_try_again(client: TestClient, rmq_broker: BrokerThread) -> None:
    event = {"order": "o-17", "step": "created"}
    assert client.post("/orders", json=event).status_code == 202

    rmq_broker.stop()
    refused = client.post("/orders", json={"order": "o-17", "step": "paid"})
    assert refused.status_code == 503
    assert "not connected to" in refused.json()["detail"]

    rmq_broker.start()
    for _ in range(20):
        if client.post("/orders", json=event).status_code == 202:
            return
    pytest.fail("the producer did not connect again")
