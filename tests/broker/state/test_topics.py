"""Topics are made once, keep their shape, and never share a generation."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq.broker.state.attempts import AttemptTable
from rmq.broker.state.leases import LeaseTable
from rmq.broker.state.offsets import OffsetTable
from rmq.broker.state.topics import Topic, TopicTable
from rmq.broker.store.changes import Change, Committed, TopicDeleted, TopicMade, pack_changes, unpack_changes
from rmq.wire.errors import BadName, BadRequest, QueueNotFound, Refused, TopicExists, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.names import MAX_QUEUES
from rmq.wire.protocol.hello import AttemptRun


@pytest.fixture
def table() -> TopicTable:
    return TopicTable()


def test_a_new_topic_has_as_many_shards_as_queues(table: TopicTable) -> None:
    topic, made = table.create("orders", 4, created_at=17)

    assert made
    assert topic == Topic("orders", generation=1, queues=4, shards=4, created_at=17)
    assert table.get("orders") is table.require("orders") is topic


def test_making_it_again_with_the_same_shape_is_no_error_and_changes_nothing(table: TopicTable) -> None:
    first, _ = table.create("orders", 4, created_at=17)

    again, made = table.create("orders", 4, created_at=99)

    assert (again, made) == (first, False)


def test_making_it_again_with_another_shape_is_refused_with_both_numbers(table: TopicTable) -> None:
    table.create("orders", 4, created_at=0)

    with pytest.raises(TopicExists, match="'orders' exists with 4 queues, not 8"):
        table.create("orders", 8, created_at=0)


@pytest.mark.parametrize("queues", [1, 1024])
def test_a_topic_may_have_1_to_1024_queues(table: TopicTable, queues: int) -> None:
    assert table.create("orders", queues, created_at=0)[0].queues == queues


@pytest.mark.parametrize("queues", [-1, 0, 1025])
def test_no_topic_has_more_or_fewer(table: TopicTable, queues: int) -> None:
    with pytest.raises(BadRequest, match=f"1 to 1024 queues, not {queues}"):
        table.create("orders", queues, created_at=0)

    assert table.all() == []


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "x" * 128])
def test_illegal_names_are_refused(table: TopicTable, name: str) -> None:
    with pytest.raises(BadName):
        table.create(name, 4, created_at=0)


def test_a_missing_topic_is_refused_with_the_command_that_makes_it(table: TopicTable) -> None:
    assert table.get("orders") is None
    with pytest.raises(TopicNotFound, match=r"no topic 'orders'.*`rmq-admin topic create orders`"):
        table.require("orders")
    with pytest.raises(TopicNotFound):
        table.require_queue("orders", 0)


@pytest.mark.parametrize(("queue_id", "there"), [(-1, False), (0, True), (3, True), (4, False)])
def test_queues_are_numbered_from_0_and_a_missing_one_is_refused_with_the_range(
    table: TopicTable, queue_id: int, there: bool
) -> None:
    topic, _ = table.create("orders", 4, created_at=0)

    if there:
        assert table.require_queue("orders", queue_id) is topic
    else:
        with pytest.raises(QueueNotFound, match=f"'orders' has the queues 0 to 3, not {queue_id}"):
            table.require_queue("orders", queue_id)


def test_all_topics_come_by_name(table: TopicTable) -> None:
    for name in ("b", "c", "a"):
        table.create(name, 1, created_at=0)

    assert [topic.name for topic in table.all()] == ["a", "b", "c"]


def test_the_log_brings_topics_back_and_their_generations_stay_used(table: TopicTable) -> None:
    topic, _ = table.create("orders", 4, created_at=17)
    again = TopicTable()

    again.apply(TopicMade("payments", 9, 2, 2, 5))
    again.apply(topic.made())

    assert again.get("orders") == topic
    assert again.create("new", 1, created_at=0)[0].generation == 10


def test_repeating_a_change_does_nothing_and_a_dead_generation_does_not_come_back(table: TopicTable) -> None:
    young = TopicMade("orders", 5, 8, 8, 50)

    for change in (young, young, TopicMade("orders", 2, 4, 4, 20)):
        table.apply(change)

    assert [topic.made() for topic in table.all()] == [young]


# ---- topics grow and end; what the log repeats gives the same table, and no generation comes twice


ORDERS, PAYMENTS = MessageQueue("orders", 0), MessageQueue("payments", 0)


@pytest.fixture
def table_life() -> TopicTable:
    table_life = TopicTable()
    table_life.create("orders", 4, created_at=17)
    return table_life


# ---- growth


def test_a_topic_that_grows_keeps_its_generation_its_age_and_its_shards(table_life: TopicTable) -> None:
    assert table_life.grow("orders", 6) == (Topic("orders", 1, queues=6, shards=4, created_at=17), True)
    assert table_life.require_queue("orders", 5) == table_life.get("orders")


def test_growing_to_what_it_has_is_no_error_and_no_change(table_life: TopicTable) -> None:
    assert table_life.grow("orders", 4) == (table_life.get("orders"), False)


@pytest.mark.parametrize("queues", [3, 0, -1, MAX_QUEUES + 1])
def test_a_topic_never_gets_fewer_queues_or_too_many(table_life: TopicTable, queues: int) -> None:
    with pytest.raises(BadRequest, match="queues"):
        table_life.grow("orders", queues)

    assert table_life.require("orders").queues == 4


def test_a_topic_may_grow_to_1024_queues(table_life: TopicTable) -> None:
    assert table_life.grow("orders", MAX_QUEUES)[0].queues == MAX_QUEUES


def test_a_missing_topic_does_not_grow(table_life: TopicTable) -> None:
    with pytest.raises(TopicNotFound):
        table_life.grow("payments", 9)


def test_a_growth_from_the_log_stands_also_if_an_older_change_is_repeated(table_life: TopicTable) -> None:
    made = table_life.require("orders").made()
    grown = table_life.grow("orders", 6)[0].made()
    again = TopicTable()

    for change in (made, grown, made):
        again.apply(change)

    assert list(map(Topic.made, again.all())) == [grown]


# ---- the end


def test_a_deleted_topic_is_not_found_and_its_generation_is_not_given_again(table_life: TopicTable) -> None:
    gone = table_life.delete("orders")

    assert gone.deleted() == TopicDeleted("orders", 1)
    assert table_life.get("orders") is None
    assert table_life.create("orders", 2, created_at=20)[0].generation == 2


def test_a_missing_topic_cannot_be_deleted(table_life: TopicTable) -> None:
    with pytest.raises(TopicNotFound, match="no topic 'payments': `rmq-admin topic list`"):
        table_life.delete("payments")


def test_only_the_generation_that_was_looked_at_is_deleted(table_life: TopicTable) -> None:
    table_life.delete("orders", 1)
    table_life.create("orders", 4, created_at=0)

    with pytest.raises(TopicNotFound, match="generation 1 of 'orders' is gone: there is generation 2"):
        table_life.delete("orders", 1)
    assert table_life.delete("orders", 2).generation == 2


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing"])
def test_what_the_broker_made_for_a_group_can_be_deleted(table_life: TopicTable, name: str) -> None:
    table_life.apply(TopicMade(name, 5, 1, 1, 0))

    assert table_life.delete(name).generation == 5


def test_the_topic_of_delays_cannot_be_deleted_or_grown(table_life: TopicTable) -> None:
    name = "SCHEDULE_TOPIC_XXXX"
    table_life.apply(TopicMade(name, 5, 18, 18, 0))

    with pytest.raises(BadName, match="belongs to the broker"):
        table_life.delete(name)
    with pytest.raises(BadName):
        table_life.grow(name, 19)
    assert table_life.get(name) is not None


def test_an_end_from_the_log_does_not_touch_a_younger_generation() -> None:
    table_life = TopicTable()
    table_life.apply(TopicMade("orders", 5, 4, 4, 0))

    assert not table_life.apply_deleted(TopicDeleted("orders", 3))
    assert table_life.require("orders").generation == 5
    assert table_life.apply_deleted(TopicDeleted("orders", 5))
    assert table_life.all() == []


def test_a_younger_generation_from_the_log_says_that_it_ends_the_older() -> None:
    """A snapshot may tell of it before the change that ended the older one could be written."""
    table_life = TopicTable()
    first, grown, second = (
        TopicMade("orders", 1, 4, 4, 0),
        TopicMade("orders", 1, 6, 4, 0),
        TopicMade("orders", 2, 4, 4, 9),
    )

    assert [table_life.apply(change) for change in (first, first, grown, second, second, grown)] == [
        False, False, False, True, False, False,
    ]  # fmt: skip
    assert list(map(Topic.made, table_life.all())) == [second]


def test_generations_of_forgotten_topics_stay_used() -> None:
    table_life = TopicTable()
    table_life.restore_generation(41)
    table_life.restore_generation(7)
    table_life.apply_deleted(TopicDeleted("orders", 12))

    assert table_life.last_generation == 41
    assert table_life.create("orders", 1, created_at=0)[0].generation == 42


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
        self.log = list(map(Topic.made, self.table.all()))
        self.table = self.replayed()

    def replayed(self) -> TopicTable:
        table_life = TopicTable()
        for change in unpack_changes(pack_changes(self.log)):
            if isinstance(change, TopicMade):
                table_life.apply(change)
            else:
                assert isinstance(change, TopicDeleted)
                assert table_life.apply_deleted(change)
        table_life.restore_generation(self.snapshot)
        return table_life

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        for table_life in (self.table, self.replayed()):
            assert {t.name: (t.generation, t.queues, t.shards) for t in table_life.all()} == self.model
            assert table_life.last_generation == max(self.given, default=0)


TestTopics = Topics.TestCase
