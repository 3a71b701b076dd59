"""Names of RocketMQ, and what they become here."""

from __future__ import annotations

import pytest

from rmq.client.importer.messages import is_system_group, is_system_topic, new_group, new_topic
from rmq.wire.errors import BadName


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("orders", "orders"),
        ("INST%orders", "INST%orders"),
        ("%RETRY%billing", "RETRY-billing"),
        ("%DLQ%billing", "DLQ-billing"),
        ("%RETRY%INST%billing", "INST%RETRY-billing"),
        ("a|b", "renamed"),
        ("%DLQ%a|b", "dead"),
    ],
)
def test_a_topic_keeps_its_name_or_gets_a_plain_one(old: str, new: str) -> None:
    assert new_topic(old, {"a|b": "renamed", "%DLQ%a|b": "dead"}) == new


@pytest.mark.parametrize("old", ["a|b", "%x", "a%b%c", "%RETRY%a|b", "x" * 128])
def test_a_name_that_is_refused_here_is_told_with_what_to_do(old: str) -> None:
    with pytest.raises(BadName) as caught:
        new_topic(old, {})

    assert str(caught.value).endswith(f": choose another one with --map '{old}=NAME', or leave the topic out")


def test_a_new_name_is_judged_too() -> None:
    with pytest.raises(BadName, match="may hold only letters"):
        new_topic("orders", {"orders": "a b"})


def test_groups_keep_their_names_or_are_given_one() -> None:
    assert new_group("billing", {}) == "billing"
    assert new_group("a|b", {"a|b": "ab"}) == "ab"
    with pytest.raises(BadName, match=r"--map-group 'a\|b=NAME'"):
        new_group("a|b", {})


@pytest.mark.parametrize(
    ("name", "is_system"),
    [
        ("SCHEDULE_TOPIC_XXXX", True), ("RMQ_SYS_TRANS_HALF_TOPIC", True), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("TRANS_CHECK_MAX_TIME_TOPIC", True), ("SELF_TEST_TOPIC", True), ("OFFSET_MOVED_EVENT", True),
        ("TBW102", True), ("BenchmarkTest", True), ("RMQ_SYS_TRACE_TOPIC", True), ("rmq_sys_x", True),
        ("c1_REPLY_TOPIC", True), ("c2_REPLY_TOPIC", False), ("orders", False), ("%RETRY%g", False),
    ],
)  # fmt: skip
def test_topics_that_rocketmq_keeps_for_itself(name: str, is_system: bool) -> None:
    assert is_system_topic(name, {"c1"}) is is_system


def test_groups_that_rocketmq_keeps_for_itself() -> None:
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert is_system_group("TOOLS_CONSUMER")
    assert not is_system_group("billing")
