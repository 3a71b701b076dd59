"""Topics grow and end; what the log repeats gives the same table, and no generation comes twice."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.attempts import AttemptTable
from rmq.broker.state.leases import LeaseTable
from rmq.broker.state.offsets import OffsetTable
from rmq.broker.state.topics import Topic, TopicTable
from rmq.broker.store.changes import Change, Committed, TopicDeleted, TopicMade, pack_changes, unpack_changes
from rmq.wire.errors import BadName, BadRequest, Refused, TopicExists, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.names import MAX_QUEUES
from rmq.wire.protocol.hello import AttemptRun

ORDERS, PAYMENTS = MessageQueue("orders", 0), MessageQueue("payments", 0)


@pytest.fixture
def table() -> TopicTable:
    table = TopicTable()
    table.create("orders", 4, created_at=17)
    return table


# ---- growth


def test_a_topic_that_grows_keeps_its_generation_its_age_and_its_shards(table: TopicTable) -> None:
    assert table.grow("orders", 6) == (Topic("orders", 1, queues=6, shards=4, created_at=17), True)
    assert table.require_queue("orders", 5) == table.get("orders")


def test_growing_to_what_it_has_is_no_error_and_no_change(table: TopicTable) -> None:
    assert table.grow("orders", 4) == (table.get("orders"), False)


@pytest.mark.parametrize("queues", [3, 0, -1, MAX_QUEUES + 1])
def test_a_topic_never_gets_fewer_queues_or_too_many(table: TopicTable, queues: int) -> None:
    with pytest.raises(BadRequest, match="queues"):
        table.grow("orders", queues)

    assert table.require("orders").queues == 4


def test_a_topic_may_grow_to_1024_queues(table: TopicTable) -> None:
    assert table.grow("orders", MAX_QUEUES)[0].queues == MAX_QUEUES


def test_a_missing_topic_does_not_grow(table: TopicTable) -> None:
    with pytest.raises(TopicNotFound):
        table.grow("payments", 9)


def test_a_growth_from_the_log_stands_also_if_an_older_change_is_repeated(table: TopicTable) -> None:
    made = table.require("orders").made()
    grown = table.grow("orders", 6)[0].made()
    again = TopicTable()

    for change in (made, grown, made):
        again.apply(change)

    assert list(again.rows()) == [grown]


# ---- the end


def test_a_deleted_topic_is_not_found_and_its_generation_is_not_given_again(table: TopicTable) -> None:
    gone = table.delete("orders")

    assert gone.deleted() == TopicDeleted("orders", 1)
    assert table.get("orders") is None
    assert table.create("orders", 2, created_at=20)[0].generation == 2


def test_a_missing_topic_cannot_be_deleted(table: TopicTable) -> None:
    with pytest.raises(TopicNotFound, match="no topic 'payments': `rmq-admin topic list`"):
        table.delete("payments")


def test_only_the_generation_that_was_looked_at_is_deleted(table: TopicTable) -> None:
    table.delete("orders", 1)
    table.create("orders", 4, created_at=0)

    with pytest.raises(TopicNotFound, match="generation 1 of 'orders' is gone: there is generation 2"):
        table.delete("orders", 1)
    assert table.delete("orders", 2).generation == 2


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing"])
def test_what_the_broker_made_for_a_group_can_be_deleted(table: TopicTable, name: str) -> None:
    table.apply(TopicMade(name, 5, 1, 1, 0))

    assert table.delete(name).generation == 5


def test_the_topic_of_delays_cannot_be_deleted_or_grown(table: TopicTable) -> None:
    name = "SCHEDULE_TOPIC_XXXX"
    table.apply(TopicMade(name, 5, 18, 18, 0))

    with pytest.raises(BadName, match="belongs to the broker"):
        table.delete(name)
    with pytest.raises(BadName):
        table.grow(name, 19)
    assert table.get(name) is not None


def test_an_end_from_the_log_does_not_touch_a_younger_generation() -> None:
    table = TopicTable()
    table.apply(TopicMade("orders", 5, 4, 4, 0))

    assert not table.apply_deleted(TopicDeleted("orders", 3))
    assert table.require("orders").generation == 5
    assert table.apply_deleted(TopicDeleted("orders", 5))
    assert table.all() == []


def test_a_younger_generation_from_the_log_says_that_it_ends_the_older() -> None:
    """A snapshot may tell of it before the change that ended the older one could be written."""
    table = TopicTable()
    first, grown, second = (
        TopicMade("orders", 1, 4, 4, 0),
        TopicMade("orders", 1, 6, 4, 0),
        TopicMade("orders", 2, 4, 4, 9),
    )

    assert [table.apply(change) for change in (first, first, grown, second, second, grown)] == [
        False, False, False, True, False, False,
    ]  # fmt: skip
    assert list(table.rows()) == [second]


def test_generations_of_topics_that_nobody_remembers_stay_used() -> None:
    table = TopicTable()
    table.restore_generation(41)
    table.restore_generation(7)
    table.apply_deleted(TopicDeleted("orders", 12))

    assert table.last_generation == 41
    assert table.create("orders", 1, created_at=0)[0].generation == 42


# ---- what hangs on a topic


def test_offsets_of_a_deleted_topic_are_forgotten_in_all_groups() -> None:
    offsets = OffsetTable()
    for group, queue in (("a", ORDERS), ("a", PAYMENTS), ("b", ORDERS)):
        offsets.commit(group, queue, 5)

    assert offsets.groups("orders") == ["a", "b"]
    offsets.forget_topic("orders")
    offsets.forget_topic("orders")

    assert list(offsets.rows()) == [Committed("a", "payments", 0, 5)]
    assert (offsets.groups("orders"), offsets.groups("payments")) == ([], ["a"])
    assert offsets.commit("b", ORDERS, 1), "a topic of the same name begins at 0"
    assert offsets.groups("orders") == ["b"]


def test_attempts_of_a_deleted_topic_are_forgotten() -> None:
    attempts = AttemptTable()
    attempts.record("g", ORDERS, [AttemptRun(5, 6, 2)])
    attempts.record("g", PAYMENTS, [AttemptRun(6, 7, 3)])

    attempts.forget_topic("orders")

    assert [row.topic for row in attempts.rows()] == ["payments"]


def test_leases_of_a_deleted_topic_end_and_later_epochs_are_higher() -> None:
    locks = LeaseTable()
    mine = locks.acquire("g", ORDERS, b"s", "m", now=0.0)
    other = locks.acquire("g", PAYMENTS, b"s", "m", now=0.0)
    assert mine is not None and other is not None

    assert locks.release_topic("orders") == [mine]

    assert not locks.renew("g", ORDERS, b"s", mine.epoch, now=1.0)
    assert locks.renew("g", PAYMENTS, b"s", other.epoch, now=1.0)
    again = locks.acquire("g", ORDERS, b"t", "n", now=1.0)
    assert again is not None and again.epoch > other.epoch


# ---- against a model

names = st.sampled_from(["a", "b", "c"])
counts = st.integers(-1, 6) | st.just(MAX_QUEUES + 1)


class Topics(RuleBasedStateMachine):
    """A table beside a plain dictionary; the log is replayed in whole, or from a snapshot on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TopicTable()
        self.model: dict[str, tuple[int, int, int]] = {}  # generation, queues, shards
        self.given: set[int] = set()
        self.log: list[Change] = []
        self.snapshot = 0  # the last generation that a snapshot tells, where the log begins with one
        self.time = 0

    @rule(name=names, queues=counts)
    def create(self, name: str, queues: int) -> None:
        self.time += 1
        known = self.model.get(name)
        try:
            topic, made = self.table.create(name, queues, created_at=self.time)
        except TopicExists:
            assert known is not None and known[1] != queues
            return
        except BadRequest:
            assert not 1 <= queues <= MAX_QUEUES
            return
        assert made == (known is None)
        if made:
            assert topic.generation not in self.given
            assert topic.generation > max(self.given, default=0)
            self.given.add(topic.generation)
            self.model[name] = (topic.generation, queues, queues)
            self.log.append(topic.made())

    @rule(name=names, queues=counts)
    def grow(self, name: str, queues: int) -> None:
        known = self.model.get(name)
        try:
            topic, grown = self.table.grow(name, queues)
        except Refused as error:
            assert isinstance(error, TopicNotFound) == (known is None)
            assert known is None or queues < known[1] or queues > MAX_QUEUES
            return
        assert known is not None
        assert grown == (queues > known[1])
        self.model[name] = (known[0], queues, known[2])
        if grown:
            self.log.append(topic.made())

    @rule(name=names, generation=st.integers(0, 8))
    def delete(self, name: str, generation: int) -> None:
        known = self.model.get(name)
        try:
            topic = self.table.delete(name, generation)
        except TopicNotFound:
            assert known is None or generation not in (0, known[0])
            return
        assert known is not None
        del self.model[name]
        self.log.append(topic.deleted())

    @rule()
    def restart(self) -> None:
        """Go on with what the log gives back."""
        self.table = self.replayed()

    @rule()
    def restart_from_a_snapshot(self) -> None:
        """The log before the snapshot is gone, and with it all that was deleted."""
        self.snapshot = self.table.last_generation
        self.log = list(self.table.rows())
        self.table = self.replayed()

    def replayed(self) -> TopicTable:
        table = TopicTable()
        for change in unpack_changes(pack_changes(self.log)):
            if isinstance(change, TopicMade):
                table.apply(change)
            else:
                assert isinstance(change, TopicDeleted)
                assert table.apply_deleted(change)
        table.restore_generation(self.snapshot)
        return table

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        for table in (self.table, self.replayed()):
            assert {t.name: (t.generation, t.queues, t.shards) for t in table.all()} == self.model
            assert table.last_generation == max(self.given, default=0)


TestTopics = Topics.TestCase
