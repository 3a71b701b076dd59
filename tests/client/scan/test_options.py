"""Options are refused by a sentence that names them, or understood."""

from __future__ import annotations

import pickle

import pytest

from rmq.client.scan.bounds import NEWEST, OLDEST
from rmq.client.scan.options import COLUMNS, NAMES, ScanOptions
from rmq.client.scan.ranges import DEFAULT_RECORDS
from rmq.engine.native.source import Manner
from rmq.wire.errors import ConfigError

NEEDED = {"broker": "127.0.0.1:10911", "topic": "orders"}


def parsed(**options: str) -> ScanOptions:
    return ScanOptions.parse({**NEEDED, **options})


def without(*names: str, **options: str) -> ScanOptions:
    return ScanOptions.parse({**{key: value for key, value in NEEDED.items() if key not in names}, **options})


def test_broker_and_topic_are_enough_and_mean_everything_there_is() -> None:
    options = parsed()

    assert (options.broker, options.path, options.topics, options.pattern) == ("127.0.0.1:10911", "", ("orders",), "")
    assert (options.start.mark, options.end.mark, options.queues) == (OLDEST, NEWEST, None)
    assert (options.min_partitions, options.max_records) == (None, DEFAULT_RECORDS)
    assert options.manner == Manner(COLUMNS)


def test_a_directory_stands_in_for_a_broker_and_a_pattern_for_topics() -> None:
    options = without("broker", "topic", path=" /data ", topicPattern="orders.*")

    assert (options.broker, options.path, options.topics, options.pattern) == ("", "/data", (), "orders.*")
    assert (options.where, parsed().where) == ("directory /data", "broker 127.0.0.1:10911")


def test_a_directory_is_the_same_in_whichever_folder_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")

    assert without("broker", path="data/rmq").path == "/data/rmq"


def test_every_way_to_read_can_be_chosen() -> None:
    options = parsed(
        tags="a || b", verify="false", timeout="2.5", onDamage="SKIP", failOnDataLoss="False", columns="body, queue_id"
    )

    assert options.manner == Manner(("body", "queue_id"), "a || b", False, 2.5, skip_damage=True, skip_lost=True)


def test_the_number_of_tasks_can_be_chosen() -> None:
    options = parsed(minPartitions="12", maxRecordsPerPartition="500")

    assert (options.min_partitions, options.max_records) == (12, 500)


def test_names_are_read_in_any_case() -> None:
    assert parsed(STARTINGOFFSETS='{"orders": {"0": 7}}').start.offsets == {"orders": {0: 7}}


def test_options_can_be_pickled() -> None:
    options = parsed(startingOffsets='{"orders": {"0": 5}}')

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(("text", "topics"), [("a", ("a",)), (" b , a ", ("b", "a")), ("%DLQ%g", ("%DLQ%g",))])
def test_topics_are_joined_by_commas(text: str, topics: tuple[str, ...]) -> None:
    assert parsed(topic=text).topics == topics


@pytest.mark.parametrize(("text", "ids"), [("3", (3,)), ("2, 0", (0, 2)), ("[1,1]", (1,))])
def test_queues_are_a_list_of_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parsed(queues=text).queues == ids


def test_columns_keep_the_order_they_are_named_in() -> None:
    assert parsed(columns="body, queue_id").manner.columns == ("body", "queue_id")


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        ("broker", r'needs the option "broker": add \.option\("broker", "127.0.0.1:10911"\), or "path"'),
        ("topic", r'needs the option "topic": add \.option\("topic", "orders"\), or "topicPattern"'),
    ],
)
def test_a_missing_option_is_named_with_the_one_that_would_do_as_well(left_out: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        without(left_out)
    with pytest.raises(ConfigError, match=sentence):
        parsed(**{left_out: "  "})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": "/data"}, 'takes the option "broker" or "path", not both'),
        ({"topicPattern": ".*"}, 'takes the option "topic" or "topicPattern", not both'),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, '"startingOffsets" and "startingTimestamp"'),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, '"endingOffsets" and "endingTimestamp"'),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, '"startingTimestamp" is .* later than "endingTimestamp"'),
        ({"startingOffsets": "latest"}, '"startingOffsets" cannot be "latest"'),
        ({"broker": "localhost"}, '"broker".*host:port'),
        ({"broker": "localhost:99999"}, '"broker".*is not 1 to 65535'),
        ({"topic": "a b"}, '"topic".*only letters'),
        ({"topic": "a,,b"}, '"topic"'),
        ({"topic": "a,b,a"}, '"topic" names a twice'),
        ({"queues": "one"}, '"queues" holds'),
        ({"queues": ""}, '"queues" holds'),
        ({"queues": "1" * 5000}, '"queues" holds'),
        ({"tags": "a, b"}, '"tags": the expression .a, b. is not'),
        ({"minPartitions": "0"}, '"minPartitions" must be 1 or more'),
        ({"maxRecordsPerPartition": "0"}, '"maxRecordsPerPartition" must be 1 or more'),
        ({"maxRecordsPerPartition": "many"}, '"maxRecordsPerPartition" holds'),
        ({"failOnDataLoss": "no"}, '"failOnDataLoss" is true or false'),
        ({"verify": "1"}, '"verify" is true or false'),
        ({"onDamage": "ignore"}, '"onDamage" is fail or skip, not .ignore.'),
        ({"timeout": "0"}, '"timeout" is a number of seconds above 0'),
        ({"timeout": "inf"}, '"timeout" is a number of seconds above 0'),
        ({"timeout": "1e10"}, '"timeout" is a number of seconds above 0 and up to 1000000000, not .1e10.'),
        ({"timeout": "soon"}, '"timeout" is a number of seconds above 0 and up to 1000000000, not .soon.'),
        ({"columns": "offset"}, '"columns" names .offset.: there are topic'),
        ({"columns": "body,body"}, "twice"),
        ({"columns": ""}, '"columns" names ..: there are topic'),
        ({"zzz": "1"}, 'no option "zzz": known are broker'),
        ({"paths": '["a","b"]'}, '"path" and load.. take one directory'),
    ],
)
def test_a_mistake_is_answered_by_a_sentence_with_the_name_of_the_option(
    options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(**options)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match='"topicPattern" is no regular expression'):
        without("topic", topicPattern="(")


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("startOffset", '"startingOffsets"'),
        ("endOffset", '"endingOffsets"'),
        ("includeBody", '"columns"'),
        ("maxRowsPerPartition", '"maxRecordsPerPartition"'),
    ],
)
def test_a_former_name_is_answered_with_the_one_of_today(former: str, now: str) -> None:
    with pytest.raises(ConfigError, match=f'no option "{former.lower()}": it is {now} now'):
        parsed(**{former: "1"})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("topics", "topic"),
        ("failOnDataloss_", "failOnDataLoss"),
        ("minPartition", "minPartitions"),
        ("tag", "tags"),
        ("endingTimeStamps", "endingTimestamp"),
    ],
)
def test_a_name_that_is_mistyped_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f'no option "{typed.lower()}": did you mean "{meant}"'):
        parsed(**{typed: "1"})


def test_every_option_is_in_the_table_of_the_module() -> None:
    from rmq.client.scan import options as scan_options

    assert scan_options.__doc__ is not None
    listed = [line.split()[0] for line in scan_options.__doc__.splitlines() if line[:1].isalpha()]
    assert [name for name in listed if name in NAMES] == list(NAMES)
