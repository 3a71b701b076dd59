"""docs/howto.md: every block of every recipe does what the recipe says."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message
from rmq.client.sync import Producer as BlockingProducer
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import BrokerThread

from .howto import INTRODUCTION, RECIPES, TEXT, Recipe
from .running import EXAMPLES

REQUIRES_ACTION = 4
TRIED: list[str] = []

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("logging_as_before", "plain_signals")]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


@pytest.fixture
def recipe(request: pytest.FixtureRequest, broker: BrokerThread) -> Iterator[Recipe]:
    recipe = Recipe(request.param, broker)
    yield recipe
    recipe.check_done()


def shows(title: str) -> pytest.MarkDecorator:
    TRIED.append(title)
    return pytest.mark.parametrize("recipe", [title], indirect=True)


def send(broker: BrokerThread, topic: str, *bodies: bytes, tag: str | None = None) -> None:
    with BlockingProducer(broker.address) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tag=tag), queue_id=0)


@pytest.fixture(scope="module")
def billing(broker: BrokerThread) -> Recipe:
    """The first recipe, cooked: a topic ``orders`` and a group ``billing`` that is at its end."""
    recipe = Recipe("Keep the order of a key", broker)
    recipe.python()
    recipe.python(until=lambda: len(recipe.said) == 3)
    return recipe


def test_keep_the_order_of_a_key(billing: Recipe) -> None:
    assert billing.said == ["o-17 created", "o-17 paid", "o-17 shipped"]
    assert "16" in billing.shell()
    assert "32" in billing.shell()
    billing.check_done()


TRIED.append("Keep the order of a key")


@shows("Let several services read a topic")
def test_let_several_services_read_a_topic(recipe: Recipe) -> None:
    send(recipe.broker, "events", b"created", tag="created")
    send(recipe.broker, "events", b"paid", tag="paid")

    recipe.python(until=lambda: len(recipe.said) == 3)

    assert sorted(recipe.said) == ["accounts: ['paid']", "mails: ['created']", "mails: ['paid']"]


@shows("Tell every process")
def test_tell_every_process(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def change_a_price() -> None:
        await asyncio.to_thread(send, recipe.broker, "invalidations", b"price-1")

    recipe.python(until=lambda: len(recipe.names.get("cache", "")) == 1, meanwhile=change_a_price)

    assert recipe.names["cache"] == {"price-2": 20}


@shows("Deliver later")
def test_deliver_later(recipe: Recipe) -> None:
    recipe.python()

    assert recipe.shell().count("reminders") == 3


@shows("Choose when to give up")
def test_choose_when_to_give_up(recipe: Recipe) -> None:
    send(recipe.broker, "charges", b"ten", b"20")

    recipe.python(until=lambda: recipe.said == ["charged 20"])

    assert "charging" in recipe.shell()
    assert "delivery 3 failed: ValueError" in recipe.shell()


@shows("Replay dead letters")
def test_replay_dead_letters(recipe: Recipe) -> None:
    send(recipe.broker, "charges", b"eleven")
    giving_up = Recipe("Choose when to give up", recipe.broker)

    async def is_dead() -> None:
        async with Admin(recipe.broker.address) as admin:
            found.extend(row for row in await admin.list_dead_letters() if row.group == "charging" and row.waiting)

    found: list[object] = []
    giving_up.python(until=lambda: bool(found), meanwhile=is_dead)

    assert "would" in recipe.shell()
    assert "replayed" in recipe.shell()


@shows("Skip a poisoned message")
def test_skip_a_poisoned_message(recipe: Recipe) -> None:
    send(recipe.broker, "payouts", b"poison", b"good")
    paid: list[bytes] = []
    tried: list[int] = []

    async def pay(messages: list[Message], context: object) -> ConsumeStatus:
        tried.append(len(messages))
        assert messages[0].body != b"poison"
        paid.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async def until(condition: list[int] | list[bytes]) -> None:
        group = Consumer(recipe.broker.address, group="payouts", listener=pay, topics={"payouts": "*"})
        async with group, asyncio.timeout(20):
            while not condition:
                await asyncio.sleep(0.01)

    asyncio.run(until(tried))
    assert "payouts" in recipe.shell(exit_codes.OK, REQUIRES_ACTION)
    recipe.shell()
    recipe.shell()
    asyncio.run(until(paid))

    assert paid == [b"good"]


@shows("Start a new group at the end, or at a time")
def test_start_a_new_group_at_the_end_or_at_a_time(recipe: Recipe) -> None:
    send(recipe.broker, "news", b"old")

    async def more_news() -> None:
        if "recent: old" in recipe.said:
            await asyncio.to_thread(send, recipe.broker, "news", b"fresh")

    recipe.python(until=lambda: "new: fresh" in recipe.said, meanwhile=more_news)

    assert "new: old" not in recipe.said


@shows("Put a group elsewhere")
def test_put_a_group_elsewhere(recipe: Recipe, billing: Recipe) -> None:
    for _ in range(3):
        assert "orders" in recipe.shell()
    recipe.python()

    ((queue, result),) = recipe.names["results"].items()
    assert (str(queue), result.status) == ("orders/0", 0)


@shows("Have an effect exactly once")
def test_have_an_effect_exactly_once(recipe: Recipe) -> None:
    assert recipe.take("python") in (EXAMPLES / "fencing_sqlite.py").read_text()
    assert recipe.take("sh") == "python examples/fencing_sqlite.py"  # by test_fencing_sqlite.py


@shows("Shut down gracefully")
def test_shut_down_gracefully(recipe: Recipe) -> None:
    send(recipe.broker, "jobs", b"a job")

    killed: list[int] = []

    async def terminate() -> None:
        if recipe.said and not killed:
            killed.append(os.getpid())
            os.kill(os.getpid(), signal.SIGTERM)

    recipe.python(meanwhile=terminate)

    assert recipe.said == ["worked on a job", "stopped"]
    assert killed


@shows("Keep a slow part from drowning")
def test_keep_a_slow_part_from_drowning(recipe: Recipe) -> None:
    recipe.python()
    assert recipe.names["consumer"].config.cache_messages == 200

    recipe.python()
    assert len(recipe.broker.messages("clicks")) == 1000


@shows("Compress")
def test_compress(recipe: Recipe) -> None:
    recipe.python()

    stored = recipe.broker.messages("logs")
    assert [message.body for message in stored] == [b'{"level": "info", "text": "all is well"}'] * 500


@shows("Send large things")
def test_send_large_things(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    recipe.python()

    (message,) = recipe.broker.messages("scans")
    assert (tmp_path / "scans" / message.body.decode()).stat().st_size == int(message.properties["bytes"])


@shows("Use it from threads and Django")
def test_use_it_from_threads_and_django(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.python()
    recipe.names["announce"](17)
    recipe.names["producer"]().close()
    recipe.python()

    def on_shop(*given: object) -> None:
        assert listener(*given) is ConsumeStatus.SUCCESS
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # run() has not begun
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    listener, recipe.names["on_shop"] = recipe.names["on_shop"], on_shop
    recipe.names["handle"]()

    assert capsys.readouterr().out == "shop: created\n"


@shows("Test with a real broker")
def test_test_with_a_real_broker(recipe: Recipe) -> None:
    """They run in test_testing.py."""
    assert recipe.take("python") in (EXAMPLES / "testing" / "conftest.py").read_text()
    assert recipe.take("python") in (EXAMPLES / "testing" / "test_orders.py").read_text()


@shows("Find messages by key")
def test_find_messages_by_key(recipe: Recipe, billing: Recipe) -> None:
    assert recipe.shell().count("o-17") == 3
    assert recipe.shell() == ""
    recipe.python()

    assert [line.split()[-1] for line in recipe.said] == ["b'shipped'", "b'paid'", "b'created'"]
    assert "billing" in recipe.shell(ID=recipe.said[0].split()[-2])


@shows("Read with Spark")
def test_read_with_spark(recipe: Recipe) -> None:
    """As the README has it, which runs in tests/spark/test_readme.py."""
    assert recipe.take("python") in (EXAMPLES.parent / "README.md").read_text()


@shows("Watch the lag")
def test_watch_the_lag(recipe: Recipe, billing: Recipe) -> None:
    assert "orders" in recipe.shell()
    assert "billing" in recipe.shell(exit_codes.OK, REQUIRES_ACTION)
    assert "billing" in recipe.shell()
    recipe.python()

    assert recipe.names["lag"] >= 0


@shows("Run under systemd")
def test_run_under_systemd(recipe: Recipe) -> None:
    """The units are checked in test_deploy.py; this machine's own are left alone."""
    unit = (EXAMPLES / "deploy" / "rmq-broker.service").read_text()
    assert recipe.take("sh").removeprefix("sudo ") in unit
    assert [recipe.take("sh").split()[0] for _ in range(6)] == ["sudo"] * 5 + ["journalctl"]


@shows("Run in a container")
def test_run_in_a_container(recipe: Recipe) -> None:
    """The file is checked in test_deploy.py."""
    said = (EXAMPLES / "deploy" / "Containerfile").read_text()
    for _ in range(2):
        assert f"#   {recipe.take('sh')}\n" in said
    assert recipe.take("sh").removesuffix(" rmq") in said


def test_every_recipe_is_tried() -> None:
    assert sorted(TRIED) == sorted(RECIPES)


def test_every_recipe_is_in_the_table_and_every_link_leads_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in RECIPES}

    assert set(re.findall(r"\]\(#([\w-]+)\)", INTRODUCTION)) == anchors
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (EXAMPLES.parent / "docs" / link).exists(), link
