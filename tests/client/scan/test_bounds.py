"""
Saved offsets carry the history that they belong to.

Where a scan begins and ends is a word, offsets by topic and queue, or a time; anything else is refused by name.
"""

from __future__ import annotations

import json

import pytest

from rmq.client import starting_offsets
from rmq.client.scan.bounds import NEWEST, OLDEST, Bound, SavedHistory, check_order, end_of, start_of, time_text
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.errors import OK, ConfigError, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Range
from rmq.wire.stores import FormerStore, StoreIds
from spark_incremental import next_range

STORE = 0x9C0E5F7A1B2C3D4E
QUEUES = [MessageQueue("a", 0), MessageQueue("a", 1), MessageQueue("b", 0)]


def held(end: int, log_epoch: int, store_id: int = STORE) -> Range:
    return Range(OK, 0, end, store_id=store_id, log_epoch=log_epoch)


def test_the_ends_of_queues_are_the_starting_offsets_of_the_next_scan() -> None:
    saved = starting_offsets(QUEUES, [held(17, 900), held(0, 0), held(5, 901)])

    assert saved == {
        "a": {"0": 17, "1": 0},
        "b": {"0": 5},
        "@history": {"store": "9c0e5f7a1b2c3d4e", "epochs": {"a": {"0": 900}, "b": {"0": 901}}},
    }
    assert start_of({"startingoffsets": json.dumps(saved)}) == Bound(
        "startingOffsets",
        offsets={"a": {0: 17, 1: 0}, "b": {0: 5}},
        history=SavedHistory(STORE, {"a": {0: 900}, "b": {0: 901}}),
    )


def test_no_queue_has_no_history() -> None:
    assert starting_offsets([], []) == {}


def test_offsets_of_a_broker_that_names_no_store_have_no_history() -> None:
    saved = starting_offsets(QUEUES[:2], [Range(OK, 0, 17), Range(OK, 0, 5)])

    assert saved == {"a": {"0": 17, "1": 5}}
    assert start_of({"startingoffsets": json.dumps(saved)}).history is None
    assert next_range({"offsets": saved["a"], "@history": saved.get("@history")}, "a", saved) == {
        "startingOffsets": '{"a": {"0": 17, "1": 5}, "@history": null}',
        "endingOffsets": '{"a": {"0": 17, "1": 5}}',
    }


def test_a_queue_that_was_refused_is_an_error() -> None:
    with pytest.raises(TopicNotFound, match="the topic 'b' does not exist"):
        starting_offsets(QUEUES[-1:], [Range(TopicNotFound.code, text="the topic 'b' does not exist")])


def test_ranges_of_two_stores_are_refused() -> None:
    with pytest.raises(ValueError, match="the ranges are of different stores"):
        starting_offsets(QUEUES[:2], [held(1, 5), held(1, 5, STORE + 1)])


COPIED = StoreIds(3, [FormerStore(1, 100, 50), FormerStore(2, 200, 80)])


@pytest.mark.parametrize(
    ("store_id", "saved", "stores", "log_epoch"),
    [
        (3, 90, COPIED, 90),  # the store as it is now
        (3, 0, COPIED, 0),
        (1, 40, COPIED, 40),  # a store that was copied since
        (1, 0, COPIED, 49),  # whose epoch is not known: none that is later than the copy
        (1, 60, COPIED, 49),  # which went on, and used higher epochs than its copy has
        (2, 79, COPIED, 79),
        (2, 0, COPIED, 79),
    ],
)
def test_an_offset_of_a_copied_store_is_compared_by_an_epoch_that_the_copy_has_of_it(
    store_id: int, saved: int, stores: StoreIds, log_epoch: int
) -> None:
    assert SavedHistory(store_id, {"a": {0: saved}}).log_epoch("a", 0, stores) == log_epoch


def test_a_queue_without_an_epoch_is_compared_as_one_whose_epoch_is_not_known() -> None:
    assert SavedHistory(3, {"a": {0: 90}}).log_epoch("a", 1, COPIED) == 0
    assert SavedHistory(1, {"a": {0: 40}}).log_epoch("b", 0, COPIED) == 49


@pytest.mark.parametrize(
    ("store_id", "saved", "log_epoch", "position", "is_read"),
    [
        (3, 90, 90, 500, True),
        (3, 90, 91, 500, False),
        (3, 0, 90, 500, True),  # nothing is known of it
        (1, 40, 40, 50, True),
        (1, 40, 49, 50, False),  # a message that took the place of one that a crash lost
        (1, 0, 40, 99, True),  # the copy has it from the original
        (1, 0, 50, 100, False),
    ],
)
def test_the_message_before_an_offset_shows_whether_it_was_read(
    store_id: int, saved: int, log_epoch: int, position: int, is_read: bool
) -> None:
    batch = encode("a", 0, Rows([b"x"], 0))
    header = layout.parse_header(batch)._replace(log_epoch=log_epoch, physical_offset=position)

    assert SavedHistory(store_id, {"a": {0: saved}}).has_read(header, COPIED) == is_read


NOON_US = 1_769_860_800_000_000


def start(text: str) -> Bound:
    return start_of({"startingoffsets": text})


def end(text: str) -> Bound:
    return end_of({"endingoffsets": text})


def test_nothing_said_everything_is_read() -> None:
    assert start_of({}) == Bound("startingOffsets", OLDEST)
    assert end_of({}) == Bound("endingOffsets", NEWEST)


def test_the_words_are_read_in_any_case() -> None:
    assert start(" EARLIEST ").mark == OLDEST
    assert end("Latest").mark == NEWEST


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"orders": {"0": 17}}', {"orders": {0: 17}}),
        ('{"a": {"0": 1, "3": "2"}, "b": {"0": 0}}', {"a": {0: 1, 3: 2}, "b": {0: 0}}),
        ('{"a": {"0": "earliest", "1": -2}}', {"a": {0: OLDEST, 1: OLDEST}}),
        ('{"a": {}}', {"a": {}}),
    ],
)
def test_offsets_are_json_by_topic_and_queue(text: str, offsets: dict[str, dict[int, int]]) -> None:
    assert start(text) == Bound("startingOffsets", offsets=offsets)


def test_an_end_in_json_may_be_the_latest() -> None:
    assert end('{"a": {"0": "LATEST", "1": -1}}').offsets == {"a": {0: NEWEST, 1: NEWEST}}


STORE_SCAN_BOUNDS = "9c0e5f7a1b2c3d4e"


@pytest.mark.parametrize(
    ("history", "saved"),
    [
        ("null", None),
        ('{"store": "0000000000000000", "epochs": {}}', None),  # saved of an older broker, which names no store
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{}}}}', SavedHistory(0x9C0E5F7A1B2C3D4E, {})),
        (
            f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"0": 26961234, "01": "7"}}}}}}',
            SavedHistory(0x9C0E5F7A1B2C3D4E, {"a": {0: 26961234, 1: 7}}),
        ),
    ],
)
def test_offsets_may_come_with_their_history(history: str, saved: SavedHistory | None) -> None:
    bound = start(f'{{"a": {{"0": 17, "1": 5, "2": "earliest"}}, "@history": {history}}}')

    assert bound == Bound("startingOffsets", offsets={"a": {0: 17, 1: 5, 2: OLDEST}}, history=saved)


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ("5", r'has 5 for "@history" where a store and log epochs are due: {"store": "9c0e5f7a1b2c3d4e", "epochs": {'),
        ("{}", r'has {} for "@history" where a store'),
        (f'{{"store": "{STORE_SCAN_BOUNDS}"}}', "where a store and log epochs are due"),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": 5}}', "where a store and log epochs are due"),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{}}, "epoch": 5}}', "where a store and log epochs are due"),
        ('{"store": 5, "epochs": {}}', 'has 5 for the store in "@history": its id has 16 hex digits'),
        ('{"store": "9c0e", "epochs": {}}', "has '9c0e' for the store"),
        (f'{{"store": "{STORE_SCAN_BOUNDS.upper()}", "epochs": {{}}}}', "for the store"),
        (
            f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": 5}}}}',
            "has 5 for 'a' where log epochs by queue are due",
        ),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"x": 5}}}}}}', "names the queue 'x' of a"),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"0": 5, "00": 5}}}}}}', "names the queue 0 of a twice"),
        (
            f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"0": -1}}}}}}',
            'has -1 in "@history" for queue 0 of a: a log epoch',
        ),
        (
            f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"0": 2147483648}}}}}}',
            "a log epoch is a whole number below 2^31",
        ),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"0": true}}}}}}', "has True in"),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"a": {{"1": 5}}}}}}', "for queue 1 of a, and no offset"),
        (f'{{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{"b": {{"0": 5}}}}}}', "for queue 0 of b, and no offset"),
    ],
)
def test_a_mistake_in_a_history_is_reported_with_its_place(history: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(f'{{"a": {{"0": 17}}, "@history": {history}}}')

    assert str(caught.value).startswith('the option "startingOffsets" ')
    assert sentence in str(caught.value)


def test_a_history_alone_names_no_topic() -> None:
    with pytest.raises(ConfigError, match="names no topic"):
        start(f'{{"@history": {{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{}}}}}}')


def test_the_end_of_a_scan_has_no_history() -> None:
    with pytest.raises(ConfigError, match='"endingOffsets" has "@history", which belongs to startingOffsets only'):
        end(f'{{"a": {{"0": 17}}, "@history": {{"store": "{STORE_SCAN_BOUNDS}", "epochs": {{}}}}}}')


@pytest.mark.parametrize("text", ["latest", '{"a": {"0": "latest"}}', '{"a": {"0": -1}}'])
def test_a_batch_cannot_start_at_the_latest(text: str) -> None:
    with pytest.raises(ConfigError, match=r'"startingOffsets" cannot be "latest" for .*: a batch that starts there'):
        start(text)


@pytest.mark.parametrize("text", ["earliest", '{"a": {"0": "earliest"}}', '{"a": {"0": -2}}'])
def test_a_batch_cannot_end_at_the_earliest(text: str) -> None:
    with pytest.raises(ConfigError, match=r'"endingOffsets" cannot be "earliest" for .*: a batch that ends there'):
        end(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("first", 'is "earliest" or offsets by topic and queue.*not .first.'),
        ("17", 'is "earliest" or offsets by topic'),
        ("", 'is "earliest" or offsets by topic'),
        ("[]", 'is "earliest" or offsets by topic'),
        ('{"a": {"0": 1}', "is not JSON"),
        ("{}", "names no topic"),
        ('{"a": 5}', r'has 5 for .a. where offsets by queue are due: \{"a": \{"0": 17\}\}'),
        ('{"a": {"x": 1}}', "names the queue .x. of a: queues are numbers"),
        ('{"a": {"-1": 1}}', "names the queue .-1. of a"),
        ('{"a": {"0": 1, "0": 2}}', "names .0. twice"),
        ('{"a": {"0": 1, "00": 2}}', "names the queue 0 of a twice"),
        ('{"a": {"0": 1}, "a": {"0": 1}}', "names .a. twice"),
        ('{"a": {"0": true}}', "has True for queue 0 of a: an offset is a whole number"),
        ('{"a": {"0": 1.5}}', "has 1.5 for queue 0 of a"),
        ('{"a": {"0": -3}}', "has -3 for queue 0 of a"),
        ('{"a": {"0": null}}', "has None for queue 0 of a"),
        ('{"a": {"0": "x"}}', "has .x. for queue 0 of a"),
        ('{"a": {"0": [1]}}', "for queue 0 of a"),
        ('{"a": {"0": 1000000000000000000}}', "has 1000000000000000000 for queue 0 of a"),
        ('{"a": {"' + "1" * 5000 + '": 1}}', "names the queue"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f'the option "startingOffsets" {sentence}|"startingOffsets".*{sentence}'):
        start(text)


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1769860800000", NOON_US),
        ("2026-01-31T12:00:00Z", NOON_US),
        ("2026-01-31T13:00:00+01:00", NOON_US),
        ("2026-01-31 12:00:00.000001+00:00", NOON_US + 1),
        ("0", 0),
        ("1950-01-01T00:00:00Z", 0),
    ],
)
def test_a_time_is_iso_8601_with_a_zone_or_milliseconds(text: str, time_us: int) -> None:
    assert start_of({"startingtimestamp": text}) == Bound("startingTimestamp", time_us=time_us)
    assert end_of({"endingtimestamp": text}) == Bound("endingTimestamp", time_us=time_us)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("yesterday", "a time is written 2026-01-31T12:00:00Z"),
        ("-5", "a time is written"),
        ("", "a time is written"),
        ("253402300800000", "a time is written"),  # microseconds, or nanoseconds
        ("9" * 5000, "a time is written"),
        ("2026-01-31T12:00:00", "has no time zone: write 2026-01-31T12:00:00Z"),
    ],
)
def test_what_is_no_time_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f'"endingTimestamp" is .*{sentence}'):
        end_of({"endingtimestamp": text})


def test_an_offset_and_a_time_for_the_same_end_are_refused() -> None:
    with pytest.raises(ConfigError, match='"startingOffsets" and "startingTimestamp" say the same in two ways'):
        start_of({"startingoffsets": "earliest", "startingtimestamp": "0"})
    with pytest.raises(ConfigError, match='"endingOffsets" and "endingTimestamp" say the same in two ways'):
        end_of({"endingoffsets": "latest", "endingtimestamp": "0"})


def test_a_time_for_one_end_and_offsets_for_the_other_go_together() -> None:
    assert start_of({"startingtimestamp": "5", "endingoffsets": "latest"}).time_us == 5000


def test_an_end_before_the_start_is_refused_and_both_are_named() -> None:
    early, late = Bound("startingTimestamp", time_us=NOON_US), Bound("endingTimestamp", time_us=NOON_US)
    check_order(early, late)

    with pytest.raises(
        ConfigError, match='"startingTimestamp" is 2026-01-31T12:00:00Z, which is later than "endingTimestamp" 2026-01'
    ):
        check_order(early, Bound("endingTimestamp", time_us=NOON_US - 1))


def test_the_last_hours_of_all_zones_are_those_of_utc_and_can_be_shown() -> None:
    start = start_of({"startingtimestamp": "9999-12-31T23:59:59-14:00"})

    with pytest.raises(ConfigError, match=r"is 9999-12-31T23:59:59\.999000Z, which is later"):
        check_order(start, Bound("endingTimestamp", time_us=NOON_US))


def test_a_time_is_shown_to_the_microsecond() -> None:
    assert time_text(NOON_US + 1) == "2026-01-31T12:00:00.000001Z"
