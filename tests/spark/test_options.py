"""Options are refused by a sentence that names them, or understood."""

from __future__ import annotations

import pickle

import pytest

from rmq.spark.options import COLUMNS, ReadOptions, ddl
from rmq.wire.errors import ConfigError

NEEDED = {"broker": "127.0.0.1:10911", "topic": "orders"}


def parsed(**options: str) -> ReadOptions:
    return ReadOptions.parse({**NEEDED, **options})


def test_broker_and_topic_are_enough_and_mean_everything_there_is() -> None:
    options = ReadOptions.parse(NEEDED)

    assert (options.broker, options.topic, options.queues) == ("127.0.0.1:10911", "orders", None)
    assert (options.start.of(3), options.end.of(3)) == ("earliest", "latest")
    assert options.columns == tuple(COLUMNS)


def test_the_schema_is_the_one_that_users_rely_on() -> None:
    assert ddl(ReadOptions.parse(NEEDED).columns) == (
        "topic string, queue_id int, queue_offset bigint, message_id string, tag string, keys array<string>, "
        "body binary, properties map<string,string>, born_at timestamp, stored_at timestamp, attempt int"
    )


@pytest.mark.parametrize("name", ["broker", "topic"])
def test_a_missing_option_is_named(name: str) -> None:
    given = {key: value for key, value in NEEDED.items() if key != name}

    with pytest.raises(ConfigError, match=rf'needs the option "{name}": add \.option'):
        ReadOptions.parse(given)


def test_names_are_read_in_any_case() -> None:
    assert parsed(STARTOFFSET="7").start.of(0) == 7


def test_what_load_adds_is_no_mistake() -> None:
    assert parsed(path="/tmp/x") == parsed()


def test_options_can_be_pickled() -> None:
    options = parsed(startOffset='{"0": 5}')

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("text", "zero", "one"),
    [
        ("earliest", "earliest", "earliest"),
        ("LATEST", "latest", "latest"),
        ("17", 17, 17),
        ('{"1": 5}', "earliest", 5),
        ('{"0": "latest", "1": "8"}', "latest", 8),
    ],
)
def test_an_offset_is_a_word_a_number_or_json_by_queue(text: str, zero: object, one: object) -> None:
    start = parsed(startOffset=text).start

    assert (start.of(0), start.of(1)) == (zero, one)


@pytest.mark.parametrize(("text", "ids"), [("3", (3,)), ("2, 0", (0, 2)), ("[1,1]", (1,))])
def test_queues_are_a_list_of_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parsed(queues=text).queues == ids


def test_the_body_can_be_left_out() -> None:
    assert parsed(includeBody="False").columns == tuple(name for name in COLUMNS if name != "body")


def test_columns_keep_the_order_they_are_named_in() -> None:
    assert parsed(columns="body, queue_id").columns == ("body", "queue_id")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"broker": "localhost"}, '"broker".*host:port'),
        ({"broker": "localhost:99999"}, '"broker".*host:port'),
        ({"broker": "::1:5"}, '"broker".*host:port'),
        ({"topic": "a b"}, '"topic".*only letters'),
        ({"startOffset": "first"}, '"startOffset" is earliest, latest'),
        ({"startOffset": "-1"}, '"startOffset" is earliest, latest'),
        ({"endOffset": "1.5"}, '"endOffset" is earliest, latest'),
        ({"endOffset": '{"0": true}'}, '"endOffset" is earliest, latest'),
        ({"endOffset": '{"x": 1}'}, '"endOffset" holds'),
        ({"endOffset": '{"0": 1'}, '"endOffset" is not JSON'),
        ({"queues": "one"}, '"queues" holds'),
        ({"queues": ""}, '"queues" holds'),
        ({"maxRowsPerPartition": "0"}, '"maxRowsPerPartition" must be 1 or more'),
        ({"maxRowsPerPartition": "many"}, '"maxRowsPerPartition" holds'),
        ({"includeBody": "no"}, '"includeBody" is true or false'),
        ({"columns": "offset"}, '"columns" names .offset.: there are topic'),
        ({"columns": "body,body"}, "twice"),
        ({"columns": "body", "includeBody": "false"}, "leave no column"),
        ({"startingOffsets": "1"}, 'no option "startingoffsets": did you mean "startOffset"'),
        ({"zzz": "1"}, 'no option "zzz": known are broker'),
    ],
)
def test_a_mistake_is_answered_by_a_sentence_with_the_name_of_the_option(
    options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parsed(**options)
