"""What goes where: new offsets, translated progress, names, cross checks, and what somebody should know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.importer.plan import GroupPlan, Plan, QueuePlan, TopicPlan, Wishes, make_plan
from rmq.client.importer.store_files import BadStore, StoreMissing
from rmq.client.importer.survey import RocketMQStore

from rigs.rocketmq_store import StoreBuilder


def plan_of(root: Path, **wishes: Any) -> Plan:
    return make_plan(RocketMQStore(root), Wishes(**wishes))


@given(st.sets(st.integers(0, 40)), st.integers(0, 50))
def test_a_new_offset_is_the_number_of_messages_before_the_old_one(offsets: set[int], asked: int) -> None:
    queue = QueuePlan()
    for offset in sorted(offsets):
        queue.add(offset)

    assert queue.translate(asked) == sum(offset < asked for offset in offsets)
    assert queue.messages == len(offsets)
    assert (queue.first, queue.last) == (min(offsets, default=None), max(offsets, default=None))


def test_a_queue_without_holes_keeps_its_offsets() -> None:
    queue = QueuePlan()
    for offset in range(5):
        queue.add(offset)

    assert [queue.translate(offset) for offset in range(7)] == [0, 1, 2, 3, 4, 5, 5]
    assert queue.holes == 0


def test_topics_have_as_many_queues_as_they_had_or_need(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(a=8, b=2, empty=3)
        store.put("a", 1)
        store.put("b", 5)
        store.delay("b", 6, b"", 1)

    plan = plan_of(tmp_path)

    assert list(plan.topics.values()) == [
        TopicPlan("a", "a", 8),
        TopicPlan("b", "b", 7),
        TopicPlan("empty", "empty", 3),
    ]


def test_only_the_topics_that_are_asked_for(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(a=1, b=1)
        store.offsets({"a@g": {0: 0}, "b@g": {0: 1}})
        store.put("a")
        store.put("b")
        store.delay("a", 0, b"", 1)

    plan = plan_of(tmp_path, topics={"b"})

    assert list(plan.topics) == ["b"]
    assert (plan.messages, plan.deferred) == (1, [])
    assert plan.groups == [GroupPlan("g", "g", "b", 0, 1, 1)]
    assert plan.skipped == {
        "other topics": 1, "delayed, other topics": 1, "progress in topics that are not taken over": 1
    }  # fmt: skip


def test_what_is_asked_for_and_not_there_is_told(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        for n in range(11):
            store.put(f"t{n:02}")
        store.offsets({"t00@g": {0: 1}})

    for wishes in ({"topics": {"x"}}, {"topic_names": {"x": "y"}}):
        with pytest.raises(StoreMissing, match=r"no topic 'x': it has t00, .*, t09 and 1 more"):
            plan_of(tmp_path, **wishes)
    with pytest.raises(StoreMissing, match="the topic 't01' is not taken over, as it is empty or not among those"):
        plan_of(tmp_path, topics={"t00"}, topic_names={"t01": "y"})
    with pytest.raises(StoreMissing, match="the store has no progress of a group 'h', which --map-group names"):
        plan_of(tmp_path, group_names={"h": "y"})


def test_progress_goes_to_the_same_message_whatever_retention_has_removed(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, start=8192, first_offsets={("t", 0): 70}) as store:
        store.topics(t=2)
        for _ in range(5):
            store.put("t", 0)
        store.offsets({"t@behind": {0: 3}, "t@within": {0: 72}, "t@end": {0: 75, 1: 9}, "t@beyond": {0: 99}})

    plan = plan_of(tmp_path)

    assert (plan.queues["t", 0].first, plan.queues["t", 0].last) == (70, 74)
    assert {(row.group, row.queue_id): row.new_offset for row in plan.groups} == {
        ("behind", 0): 0, ("within", 0): 2, ("end", 0): 5, ("end", 1): 0, ("beyond", 0): 5,
    }  # fmt: skip


def test_progress_that_belongs_nowhere_is_told(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0)
        store.offsets({"t@g": {0: 1, 9: 4}, "x@g": {0: 1}, "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 2}})

    plan = plan_of(tmp_path)

    assert plan.groups == [GroupPlan("g", "g", "t", 0, 1, 1)]
    assert plan.skipped["progress in topics that are not taken over"] == 2
    assert "g has progress in t/9, a queue that does not exist: left out" in plan.notes


def test_retries_and_dead_letters_go_to_plain_topics_with_their_progress(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("%RETRY%g", 0, b"again", reconsume_times=1)
        store.put("%DLQ%g", 0, b"dead")
        store.delay("%RETRY%g", 0, b"later", 3)
        store.offsets({"%RETRY%g@g": {0: 1}})

    plan = plan_of(tmp_path)

    assert [topic.new for topic in plan.topics.values()] == ["DLQ-g", "RETRY-g"]
    assert plan.deferred[0].topic == "%RETRY%g"
    assert plan.groups == [GroupPlan("g", "g", "%RETRY%g", 0, 1, 1)]


def test_retry_topics_without_messages_are_not_made(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(**{"t": 1, "%RETRY%g": 1, "%DLQ%g": 1})
        store.put("t")
        store.offsets({"%RETRY%g@g": {0: 0}})

    plan = plan_of(tmp_path)

    assert list(plan.topics) == ["t"]
    assert plan.skipped == {"progress in empty retry topics": 1}


@pytest.mark.parametrize(
    ("topics", "wishes", "text"),
    [
        (["a|b"], {}, "choose another one with --map 'a|b=NAME', or leave the topic out"),
        (["a", "b"], {"topic_names": {"a": "b"}}, "the topics 'a' and 'b' would both become 'b'"),
        (["%RETRY%g", "RETRY-g"], {}, "would both become 'RETRY-g'"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, topics: list[str], wishes: Any, text: str) -> None:
    with StoreBuilder(tmp_path) as store:
        for topic in topics:
            store.put(topic)

    with pytest.raises(BadStore) as caught:
        plan_of(tmp_path, **wishes)
    assert text in str(caught.value)


def test_a_group_whose_name_is_refused_and_a_topic_with_too_many_queues(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path / "a") as store:
        store.put("t")
        store.offsets({"t@a|b": {0: 1}})
    with StoreBuilder(tmp_path / "b") as store:
        store.put("t", 1024)

    with pytest.raises(BadStore, match=r"--map-group 'a\|b=NAME'"):
        plan_of(tmp_path / "a")
    assert plan_of(tmp_path / "a", group_names={"a|b": "ab"}).groups == [GroupPlan("a|b", "ab", "t", 0, 1, 1)]
    with pytest.raises(BadStore, match="the topic 't' has 1025 queues, and a topic here has at most 1024"):
        plan_of(tmp_path / "b")


def test_entries_without_a_record_are_damage_of_a_clean_store_and_the_loss_of_a_crash(tmp_path: Path) -> None:
    for name, clean in (("clean", True), ("crash", False)):
        with StoreBuilder(tmp_path / name, clean=clean) as store:
            store.put("t", 0)
            store.queues["t", 0].append((2000, 100, 0))

    clean_plan, crash_plan = plan_of(tmp_path / "clean"), plan_of(tmp_path / "crash")

    assert str(clean_plan.damage[-1]).endswith("at 2000: the record was never written (lost: t/0 @1)")
    assert crash_plan.damage == []
    assert "consume queues name 1 messages behind the end of the log: the crash took them" in crash_plan.notes


def test_an_entry_that_points_into_a_record_is_damage(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0)
        store.queues["t", 1] = [(10, 100, 0)]

    (damage,) = plan_of(tmp_path).damage

    assert str(damage) == "consumequeue/t/1 at 0: names 1 messages, of 1, that are not in the log"


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_file_that_is_missing_is_damage(tmp_path: Path, clean: bool) -> None:
    with StoreBuilder(tmp_path, file_size=1024, clean=clean) as store:
        for _ in range(30):
            store.put("t", 0)
    *_, last = sorted((tmp_path / "commitlog").iterdir())
    last.unlink()

    (damage,) = plan_of(tmp_path).damage

    assert str(damage).startswith("consumequeue at 0: names ")
    assert str(damage).endswith("messages behind the last file of the log")


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (7, "has no messages of t/1 between the queue offsets 1 and 7"),
        (None, "has no messages of t/2 before the queue offset 1, and begins at 0"),
    ],
)
def test_a_record_that_tells_a_wrong_place_leaves_a_hole(tmp_path: Path, offset: int | None, text: str) -> None:
    with StoreBuilder(tmp_path, clean=False, first_offsets={("t", 2): 1}) as store:
        store.put("t", 1)
        store._offsets["t", 1] = offset or 1
        store.put("t", 1 if offset else 2, indexed=False)

    (damage,) = plan_of(tmp_path).damage

    assert damage.text == text


def test_two_groups_cannot_become_one(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t")
        store.offsets({"t@a": {0: 1}, "t@b": {0: 0}})

    with pytest.raises(BadStore, match="the groups 'a' and 'b' would both become 'b'"):
        plan_of(tmp_path, group_names={"a": "b"})


def test_what_somebody_should_know(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, clean=False) as store:
        store.put("t", 0, indexed=False)
        store.delay("t", 0, b"x", 1, indexed=False)
        store.delay("t", 0, b"y", 2)
        store.delays({2: 1})
        table = '{"b":{"retryMaxTimes":3},"a":{},"c":{"consumeEnable":false}}'
        store.config["subscriptionGroup.json"] = f'{{"subscriptionGroupTable":{table}}}'

    assert plan_of(tmp_path).notes == [
        "not there in config/: topics.json, consumerOffset.json",
        "its broker was not stopped in order (abort is there): the log ends at 376",
        "2 messages are in the log and not yet in a consume queue: taken over",
        "1 delayed messages have no time in a consume queue: default levels used",
        "1 delayed messages are said to be delivered, and the log has no copy: not taken over",
        "settings of the group b are not taken over: retryMaxTimes 3",
        "settings of the group c are not taken over: retryMaxTimes 16, consuming disabled",
    ]


def test_a_topic_that_is_not_in_the_table_and_a_delayed_message_that_is_gone_are_told(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.topics(t=1)
        store.put("lost", 0)
        store.put("gone", 0, indexed=False)
        store.delay("t", 0, b"later", 3)
        store.delays({3: 99})

    plan = plan_of(tmp_path)

    assert plan.skipped == {"deleted topic lost": 1, "deleted topic gone": 1}
    assert plan.notes[1:] == [
        "lost is not in topics.json and has consume queues: left out, --topic 'lost' takes it",
        "1 delayed messages are said to be delivered, and the log has no copy: not taken over",
    ]


def test_the_bar_gets_to_its_end(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path, file_size=1 << 20, start=1 << 20) as store:
        for _ in range(3):
            store.put("t", 0, bytes(600_000))
    steps: list[int] = []

    make_plan(RocketMQStore(tmp_path), Wishes(), steps.append)

    assert sum(steps) == 3 << 20
    assert len(steps) > 1
