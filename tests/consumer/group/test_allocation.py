"""
Every member computes the same shares: disjoint, complete where they should be, and as even as they promise.

Shares are computed topic by topic; one that fails does not touch the others, and each change is told once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.group.allocation import (
    AVERAGE,
    MAX_NAME,
    PlacedQueue,
    Share,
    Shares,
    Strategy,
    average,
    by_config,
    circle,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    named,
    parse_strategy,
)
from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueInfo

from rigs.batches import quick

MEMBERS = ["a", "b", "c", "d"]


def queues(count: int, broker: str = "b", topic: str = "t") -> list[PlacedQueue]:
    return [PlacedQueue(topic, broker, queue_id) for queue_id in range(count)]


def ids(shared: Sequence[PlacedQueue]) -> list[int]:
    return [queue.queue_id for queue in shared]


def shares(
    allocate: Callable[..., Sequence[PlacedQueue]], offered: list[PlacedQueue], members: list[str]
) -> list[Sequence[PlacedQueue]]:
    return [allocate(offered, members, member) for member in members]


# RocketMQ's vectors


def test_ten_queues_over_four_members_are_runs_of_3_3_2_2() -> None:
    """RocketMQ's AllocateMessageQueueAveragelyTest."""
    assert [ids(share) for share in shares(average, queues(10), MEMBERS)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_more_members_than_queues_leave_the_last_ones_without() -> None:
    assert [ids(share) for share in shares(average, queues(2), ["a", "b", "c"])] == [[0], [1], []]


def test_a_circle_gives_one_after_the_other() -> None:
    """RocketMQ's AllocateMessageQueueAveragelyByCircleTest."""
    assert [ids(share) for share in shares(circle, queues(10), MEMBERS)] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_a_fixed_list_is_the_same_for_everybody() -> None:
    """RocketMQ's AllocateMessageQueueByConfigTest; what does not exist is not given."""
    allocate = partial(by_config, wanted={MessageQueue("t", 1), MessageQueue("t", 3), MessageQueue("t", 99)})

    assert [ids(share) for share in shares(allocate, queues(4), ["a", "b"])] == [[1, 3], [1, 3]]


def test_only_the_queues_of_the_named_rooms_are_shared_out() -> None:
    """RocketMQ's AllocateMessageQueueByMachineRoomTest: ten queues, five in the room, two members."""
    near, far = queues(5, "room1@b"), [PlacedQueue("t", "room2@b", i) for i in range(5, 10)]
    allocate = partial(machine_room, zones={"room1"})

    assert [ids(share) for share in shares(allocate, near + far, ["a", "b"])] == [[0, 1, 4], [2, 3]]


@pytest.mark.parametrize("text", ["average", "circle", "consistent_hash", "machine_room:r", "config:t/0"])
def test_a_member_that_is_not_in_the_list_gets_nothing(text: str) -> None:
    strategy = parse_strategy(text)

    assert strategy.share(queues(4, "r@b"), ["a", "b"], "c") == set()
    assert strategy.share(queues(4, "r@b"), [], "c") == set()


def test_a_member_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="without a name"):
        AVERAGE.share(queues(4), ["a", "b"], "")
    with pytest.raises(ValueError, match="without a name"):
        AVERAGE.share(queues(4), ["", "b"], "b")


# Rules


@quick
@given(st.integers(0, 60), st.integers(1, 20))
@pytest.mark.parametrize("text", ["average", "circle", "consistent_hash", "consistent_hash:3", "machine_room:r"])
def test_shares_are_disjoint_complete_and_the_same_in_any_order(text: str, count: int, size: int) -> None:
    strategy, offered = parse_strategy(text), queues(count, "r@b")
    members = [f"member-{i}" for i in range(size)]
    mixed, shuffled = random.sample(offered, count), random.sample(members, size)

    parts = [strategy.share(offered, members, member) for member in members]

    assert sorted(queue for part in parts for queue in part) == [placed.queue for placed in offered]
    assert [strategy.share(mixed, shuffled, member) for member in members] == parts
    if "hash" not in text:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@quick
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 11))
def test_a_consistent_hash_moves_only_the_queues_of_who_went_or_came(count: int, size: int, which: int) -> None:
    """RocketMQ's AllocateMessageQueueConsitentHashTest: removing one id moves only its queues, one more takes some."""
    allocate = partial(consistent_hash, nodes=3)
    more = [f"member-{i}" for i in range(size + 1)]
    gone = more[which % len(more)]
    fewer = [member for member in more if member != gone]

    for member in fewer:
        before, after = set(allocate(queues(count), more, member)), set(allocate(queues(count), fewer, member))
        assert before <= after
        assert after - before <= set(allocate(queues(count), more, gone))


def test_a_consistent_hash_is_that_of_rocketmq() -> None:
    """The first four bytes of an MD5, unsigned and big-endian; the keys are RocketMQ's texts."""
    members = ["CID_PREFIX0", "CID_PREFIX1"]

    assert [ids(share) for share in shares(consistent_hash, queues(8, "brokerName", "TopicA"), members)] == [
        [0, 3],
        [1, 2, 4, 5, 6, 7],
    ]


@quick
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    st.sampled_from(["machine_room_nearby", "machine_room_nearby:circle", "machine_room_nearby:consistent_hash"]),
)
def test_nearby_is_complete_disjoint_and_keeps_to_the_room(homes: list[int], crews: list[int], text: str) -> None:
    """RocketMQ's AllocateMachineRoomNearByTest: same, more and fewer rooms with members than with brokers."""
    offered = [PlacedQueue("t", f"r{room}@b", i) for room, count in enumerate(homes) for i in range(count)]
    offered = [queue._replace(queue_id=number) for number, queue in enumerate(offered)]
    members = [f"r{room}/host@{i}#x" for room, count in enumerate(crews) for i in range(count)]
    strategy = parse_strategy(text)

    parts = {member: strategy.share(offered, members, member) for member in members}

    assert sorted(queue for part in parts.values() for queue in part) == [placed.queue for placed in offered]
    for placed in offered:
        room = placed.broker.partition("@")[0]
        (owner,) = [member for member, part in parts.items() if placed.queue in part]
        if any(member.startswith(f"{room}/") for member in members):
            assert owner.startswith(f"{room}/")


def test_queues_of_a_room_without_members_are_shared_by_all() -> None:
    members = ["r1/a", "r1/b"]

    assert [ids(share) for share in shares(machine_room_nearby, queues(4, "r2@b"), members)] == [[0, 1], [2, 3]]


def test_nearby_refuses_what_is_in_no_room() -> None:
    with pytest.raises(ValueError, match="the broker 'b' is in no zone"):
        machine_room_nearby(queues(1, "b"), ["r/a"], "r/a")
    with pytest.raises(ValueError, match="the member 'a' is in no zone"):
        machine_room_nearby(queues(1, "r@b"), ["a", "r/b"], "r/b")


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("average", "average"),
        ("circle", "circle"),
        ("consistent_hash", "consistent_hash"),
        ("consistent_hash:10", "consistent_hash"),
        ("consistent_hash:3", "consistent_hash:3"),
        ("config:t/0", "config"),
        ("config:t/1,ns%u/2", "config"),
        ("machine_room:b,a", "machine_room:a,b"),
        ("machine_room:a, b,a", "machine_room:a,b"),
        ("machine_room_nearby", "machine_room_nearby"),
        ("machine_room_nearby:average", "machine_room_nearby"),
        ("machine_room_nearby:consistent_hash:10", "machine_room_nearby:consistent_hash"),
    ],
)
def test_members_that_compute_alike_have_the_same_name(text: str, name: str) -> None:
    assert parse_strategy(text).name == name


def test_long_names_differ_where_the_parameters_do() -> None:
    rooms = [f"room-number-{i}" for i in range(20)]
    one, other = (parse_strategy("machine_room:" + ",".join(some)).name for some in (rooms, rooms[:-1]))

    assert one != other
    assert max(len(one), len(other)) <= MAX_NAME


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("evenly", "there is none of the form 'evenly'; it is average, circle"),
        ("average:3", "there is none of the form"),
        ("consistent_hash:", "nothing follows the colon"),
        ("consistent_hash:0", "1 to 1000 nodes for a member, not '0'"),
        ("consistent_hash:many", "1 to 1000 nodes"),
        ("config", "there is none of the form 'config'"),
        ("config:t", "config lists queues as TOPIC/ID, such as config:orders/0,orders/3, not 't'"),
        ("config:a b/0", "may hold only"),
        ("machine_room", "there is none of the form"),
        ("machine_room:a@b", "the zone 'a@b' must be"),
        ("machine_room_nearby:machine_room_nearby", "cannot be inside"),
        ("machine_room_nearby:evenly", "there is none of the form 'evenly'"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_with_what_to_do(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_strategy(text)


# A user's own


def test_a_function_of_the_users_is_known_by_its_name() -> None:
    def by_weight(offered: Sequence[PlacedQueue], members: Sequence[str], member: str) -> list[PlacedQueue]:
        return list(offered)

    assert named(by_weight).name == "custom:by_weight"
    assert named(by_weight).share(queues(2), ["a"], "a") == {MessageQueue("t", 0), MessageQueue("t", 1)}
    assert len(named(Strategy("n" * 100, by_weight)).name) == MAX_NAME


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy must be text, a Strategy or a function, not 7"):
        named(7)  # type: ignore[arg-type]
    for strategy in (Strategy("", average), Strategy(5, average), Strategy("mine", None)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a Strategy needs a name and a function"):
            named(strategy)


def test_a_queue_that_was_not_offered_is_refused() -> None:
    strategy = named(lambda offered, members, member: [PlacedQueue("t", "b", 9)])

    with pytest.raises(ValueError, match="which is none of the queues it was given"):
        strategy.share(queues(2), ["a"], "a")


TOPICS = {"t": [QueueInfo(i, "b") for i in range(3)], "u": [QueueInfo(0, "b")]}


def queues_shares(topic: str, *ids: int) -> frozenset[MessageQueue]:
    return frozenset(MessageQueue(topic, queue_id) for queue_id in ids)


def fails_at_t(offered: Any, members: Any, member: Any) -> Any:
    if offered[0].topic == "t":
        raise KeyError("weight")
    return offered


def test_each_topic_is_shared_out_for_itself() -> None:
    shares = Shares(AVERAGE).of_topics(TOPICS, ["a", "b"], "a", owned=[])

    assert shares == {"t": Share(queues_shares("t", 0, 1), 3, 2), "u": Share(queues_shares("u", 0), 1, 2)}


def test_a_topic_whose_strategy_raises_keeps_what_is_held_and_the_others_go_on() -> None:
    shares = Shares(named(fails_at_t)).of_topics(
        TOPICS, ["a"], "a", owned=[*queues_shares("t", 2), *queues_shares("u", 0)]
    )

    assert shares["t"] == Share(queues_shares("t", 2), 3, 1, "KeyError: 'weight'")
    assert shares["u"] == Share(queues_shares("u", 0), 1, 1)


def test_the_strategy_sees_topics_without_their_namespace() -> None:
    offered: list[PlacedQueue] = []

    def all_of_them(placed: Any, members: Any, member: Any) -> Any:
        offered.extend(placed)
        return placed

    shares = Shares(named(all_of_them), "team").of_topics({"team%t": TOPICS["u"]}, ["a"], "a", owned=[])

    assert offered == [PlacedQueue("t", "b", 0)]
    assert shares["team%t"].ours == queues_shares("team%t", 0)


def test_a_change_is_told_once_with_strategy_sizes_and_result(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    shares = Shares(AVERAGE)
    for members in (["a"], ["a"], ["a", "b"], ["a", "b"]):
        shares.report("g", shares.of_topics({"t": TOPICS["t"]}, members, "a", owned=[]))

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    for part in ("rebalance.changed", "average", "3", "[0, 1]"):
        assert part in told[1]


def test_a_topic_that_does_not_exist_when_it_is_subscribed_to_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    shares = Shares(AVERAGE)
    for infos in ([], [], TOPICS["t"], []):  # one that goes later is told of by whoever hears of that
        shares.report("g", shares.of_topics({"ordres": infos}, ["a"], "a", owned=[]))

    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "topic.awaited" in told[0] and "ordres" in told[0]


def test_a_failure_is_told_once_until_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    shares = Shares(named(fails_at_t))
    for _ in range(3):
        shares.report("g", shares.of_topics({"t": TOPICS["t"]}, ["a"], "a", owned=[]))

    assert caplog.text.count("rebalance.failed") == 1
    assert "KeyError: 'weight'" in caplog.text


def test_the_retries_of_the_group_are_shared_evenly_whatever_the_strategy_leaves_out() -> None:
    nobody = Strategy("nobody", lambda queues, members, member: [])

    shares = Shares(nobody, retry_topic="u").of_topics(TOPICS, ["a", "b"], "a", owned=[])

    assert (shares["t"].ours, shares["u"].ours) == (frozenset(), queues_shares("u", 0))


def test_nothing_is_told_of_retries_before_there_are_any(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    shares = Shares(AVERAGE, retry_topic="%RETRY%g")
    for infos in ([], TOPICS["u"], []):
        shares.report("g", shares.of_topics({"%RETRY%g": infos}, ["a"], "a", owned=[]))

    told = [record.getMessage() for record in caplog.records]
    assert [("queues=1" in text, "queues=0" in text) for text in told] == [(True, False), (False, True)]
