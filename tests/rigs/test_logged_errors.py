"""Errors of clients and brokers are collected, and nothing else."""

from __future__ import annotations

from rmq.runtime.logging import get_broker_logger as broker_logger
from rmq.runtime.logging import get_logger as client_logger

from rigs.logged_errors import logged_errors


def test_errors_of_clients_and_brokers_are_told_while_they_happen() -> None:
    with logged_errors() as errors:
        client_logger("rmq.client").warning("connection.lost")
        client_logger("rmq.client").error("keeper.failed", address="a")
        broker_logger("rmq.broker.app").info("lock.granted")
        broker_logger("rmq.broker.app").critical("store.poisoned")

        assert [line.split()[0] for line in errors()] == ["keeper.failed", "store.poisoned"]
