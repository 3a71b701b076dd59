"""The page of Python classes shows what a program may call, and how."""

from __future__ import annotations

import importlib

from refdocs.python_api import MODULES, render


def section(name: str) -> str:
    return render().split(f"\n### {name}\n")[1].split("\n### ")[0].split("\n## ")[0]


def test_every_class_without_asyncio_has_a_twin_on_the_page() -> None:
    listed = {name for _, _, names in MODULES for name in names}

    blocking = {"rmq.client.sync": {"Producer"}, "rmq.consumer.sync": {"Consumer", "PullConsumer"}}
    for module, names in blocking.items():
        assert all(hasattr(importlib.import_module(module), name) for name in names)
        assert names <= listed


def test_a_constructor_is_shown_with_its_defaults_and_without_parameters_for_tests() -> None:
    consumer = section("Consumer")

    assert "    delivery_timeout_s: float = 30.0,\n" in section("Producer")
    assert "    tag: str | None = None,\n" in section("Message")
    assert "    listener: Listener,\n" in consumer
    assert "connect:" not in consumer
    assert "now:" not in consumer


def test_a_method_is_shown_with_its_call_result_and_errors() -> None:
    assert "| `await list_groups() -> list[GroupRow]` | Return all groups" in section("Admin")
    raised = "Raises `ConfigError`, `RequestTimeout`, `OutcomeUnknown`, `ProducerFenced`, `Refused`. |"
    assert raised in section("Producer")
    assert "`await send(message: Message, *, key: str \\| None = None" in section("Producer")


def test_a_class_that_programs_only_receive_has_properties_and_no_constructor() -> None:
    message = section("StoredMessage")

    assert "```python" not in message
    assert "| `queue_offset` | Its offset in the queue;" in message
    assert "`attempt` is 1 at its first delivery" in message


def test_an_example_in_a_docstring_keeps_its_indents() -> None:
    assert '```python\nasync with Consumer("127.0.0.1:10911"' in section("Consumer")
    assert '\n    consumer.subscribe("orders", "created || paid")\n' in section("Consumer")


def test_an_enum_is_its_names() -> None:
    assert "`SUCCESS`, `SUSPEND`, `COMMIT`, `ROLLBACK`, `RETRY`" in section("ConsumeStatus")
