"""The JSON files of a RocketMQ broker: read strictly, with the older copy where the file is not sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq.client.importer.config_files import GroupConfig, TopicConfig, parse, read
from rmq.client.importer.store_files import BadStore, StoreUnreadable

from rigs.rocketmq_store import StoreBuilder


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"offsetTable":{"T@g":{0:250,1:7\n\t\t}\n\t}\n}', {"offsetTable": {"T@g": {"0": 250, "1": 7}}}),
        ('{"a":{"0":1}}', {"a": {"0": 1}}),
        ("{ 3 : 2 , -1:4}", {"3": 2, "-1": 4}),
        ('{"text":"{0:1,2:3","n":[1,2]}', {"text": "{0:1,2:3", "n": [1, 2]}),
        ('{"quote\\"{1:2":"x"}', {'quote"{1:2': "x"}),
    ],
)
def test_keys_that_are_numbers_need_no_quotes(text: str, value: Any) -> None:
    assert parse(text) == value


def test_what_rocketmq_writes_is_read(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "store")
    builder.topics(orders=8)
    builder.offsets({"orders@billing": {0: 250, 1: 7}, "%RETRY%billing@billing": {0: 1}})
    builder.delays({3: 2, 4: 1})
    builder.config["subscriptionGroup.json"] = (
        '{"dataVersion":{},"subscriptionGroupTable":{"billing":{"retryMaxTimes":3,"consumeEnable":false},"b":{}}}'
    )
    builder.write()

    config = read(tmp_path / "store" / "config")

    assert config.topics is not None
    assert config.topics["orders"] == TopicConfig(8, 6, False)
    assert config.topics["TBW102"] == TopicConfig(8, 7, False)
    assert config.offsets == {("orders", "billing"): {0: 250, 1: 7}, ("%RETRY%billing", "billing"): {0: 1}}
    assert config.groups == {"billing": GroupConfig(3, False), "b": GroupConfig(16, True)}
    assert config.delays == {3: 2, 4: 1}
    assert config.notes == []


def test_files_that_are_not_there_are_none_and_told(tmp_path: Path) -> None:
    config = read(tmp_path)

    assert config[:4] == (None, None, None, None)
    assert config.notes == [
        "not there in config/: topics.json, consumerOffset.json, subscriptionGroup.json, delayOffset.json"
    ]


@pytest.mark.parametrize(("text", "why"), [("", "is empty"), ("{", "is not what it should be"), (None, "is not there")])
def test_the_older_copy_is_used_and_told(tmp_path: Path, text: str | None, why: str) -> None:
    write(tmp_path, delayOffset_json_bak='{"offsetTable":{1:5\n}}')
    if text is not None:
        write(tmp_path, delayOffset_json=text)

    config = read(tmp_path)

    assert config.delays == {1: 5}
    note, missing = config.notes
    assert missing == "not there in config/: topics.json, consumerOffset.json, subscriptionGroup.json"
    assert note.startswith(f"config/delayOffset.json {why}")
    assert note.endswith("config/delayOffset.json.bak, the state before it, is used instead")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topics.json", "[]"),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":"6"}}}'),
        ("topics.json", '{"topicConfigTable":{"t":7}}'),
        ("topics.json", '{"topicConfigTable":{"t":{"order":1}}}'),
        ("consumerOffset.json", '{"offsetTable":{"no-group":{0:1}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":[1]}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:1.5}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{-1:1}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:-5}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:true}}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":[]}'),
        ("delayOffset.json", '{"offsetTable":{"x":1}}'),
        ("delayOffset.json", "\x00"),
    ],
)
def test_what_is_not_what_it_should_be_is_refused_in_one_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(BadStore) as caught:
        read(tmp_path)

    said = str(caught.value)
    assert said.startswith(f"{tmp_path / name} is not what it should be (")
    assert said.endswith("put a sound one there, or take the file away to do without it")
    assert "\n" not in said


def test_progress_that_was_never_made_is_none(tmp_path: Path) -> None:
    write(tmp_path, consumerOffset_json='{"offsetTable":{"t@g":{0:-1,1:4}}}')

    assert read(tmp_path).offsets == {("t", "g"): {1: 4}}


def test_a_file_that_the_system_does_not_give_is_told(tmp_path: Path) -> None:
    (tmp_path / "topics.json").symlink_to("topics.json")

    with pytest.raises(StoreUnreadable, match="cannot be read"):
        read(tmp_path)
