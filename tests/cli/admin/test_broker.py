"""``rmq-admin broker``: settings and metrics of a running broker, backup and restore, verification of a directory."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq.broker.config import BrokerConfig
from rmq.broker.store.files import AnyPath, Files
from rmq.cli.admin.broker import COLUMNS, in_force, settings_table
from rmq.cli.rmq_broker import command as broker_command
from rmq.cli.shell import exit_codes
from rmq.cli.shell.settings import load
from rmq.client import Admin, Message, Producer

from ..commands import admin
from rigs.processes import BrokerProcess, Running


def restore(backup: Path, target: Path) -> Result:
    return CliRunner().invoke(broker_command, ["restore", str(backup), str(target)], prog_name="rmq-broker")


def send(address: str, topic: str, count: int) -> None:
    async def sending() -> None:
        async with Producer(address) as producer:
            await producer.send_many(
                [Message(topic, b"%d" % i, index_keys=(f"k{i}",)) for i in range(count)], queue_id=0
            )

    asyncio.run(sending())


def count(address: str, topic: str) -> int:
    async def counting() -> int:
        async with Admin(address) as asking:
            return sum(queue.max_offset for queue in (await asking.describe_topic(topic)).queues)

    return asyncio.run(counting())


def test_stats_has_the_same_metrics_as_table_and_json(broker: str) -> None:
    heading, *lines = admin("broker", "stats", "--broker", broker).stdout.splitlines()
    numbers = json.loads(admin("broker", "stats", "--broker", broker, "--json").stdout)

    assert heading.split() == ["PART", "NAME", "VALUE"]
    names = [(part, name) for part, values in numbers.items() for name in values]
    assert [tuple(line.split()[:2]) for line in lines] == names
    assert max(map(len, lines)) <= 120
    assert set(numbers) == {"broker", "log", "flush", "commit", "upkeep", "delays", "serving", "traffic"}
    assert numbers["broker"]["address"] == broker
    assert numbers["broker"]["refuses_sends"] is None
    assert numbers["log"]["log_written"] >= numbers["log"]["log_durable"] >= 0
    assert numbers["upkeep"]["key_index_lag_bytes"] >= 0
    assert numbers["delays"]["waiting_batches"] >= 0  # other tests may have left some


def test_a_copy_of_a_running_broker_is_sound_and_can_be_started(broker: str, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 500)

    copied = admin("broker", "backup", str(tmp_path / "copy"), "--broker", broker)
    assert (copied.exit_code, copied.stderr) == (0, "")
    assert "1 segment," in copied.stdout
    verified = admin("broker", "verify-store", str(tmp_path / "copy"))
    assert (verified.exit_code, verified.stdout.split(": ")[-1]) == (0, "sound\n")

    with BrokerProcess(tmp_path / "copy") as other:
        assert count(other.address, topic) == 500


def test_a_restored_backup_serves_what_it_held_and_its_history_can_be_accepted(
    broker: str, topic: str, tmp_path: Path
) -> None:
    send(broker, topic, 50)
    admin("broker", "backup", str(tmp_path / "backup"), "--broker", broker)

    restored = restore(tmp_path / "backup", tmp_path / "data")

    assert (restored.exit_code, restored.stderr) == (0, "")
    assert restored.stdout.startswith(f"{tmp_path / 'data'}: ")
    with BrokerProcess(tmp_path / "data") as other:
        assert count(other.address, topic) == 50
        numbers = json.loads(admin("broker", "stats", "--broker", other.address, "--json").stdout)
        accepted = admin("broker", "accept-history", "--broker", other.address)
        again = admin("broker", "accept-history", "--broker", other.address, "--json")
    store_id = numbers["log"]["store_id"]
    assert (
        accepted.stdout == f"the history of store {store_id} is accepted: readers continue where it parts from theirs\n"
    )
    assert json.loads(again.stdout) == {"store_id": store_id, "before": True}


@pytest.mark.parametrize(
    ("backup", "target", "text"),
    [
        ("nothing", "data", "holds no log"),
        ("backup", "taken", "exists and is not empty: name a new or an empty folder"),
    ],
)
def test_a_restore_that_cannot_be_is_refused_in_one_line(
    broker: str, tmp_path: Path, backup: str, target: str, text: str
) -> None:
    admin("broker", "backup", str(tmp_path / "backup"), "--broker", broker)
    (tmp_path / "taken" / "commitlog").mkdir(parents=True)

    result = restore(tmp_path / backup, tmp_path / target)

    assert result.exit_code == exit_codes.OS_ERROR
    assert result.stderr.count("\n") == 1 and text in result.stderr


def test_a_copy_says_in_json_what_it_holds(broker: str, tmp_path: Path) -> None:
    told = json.loads(admin("broker", "backup", str(tmp_path / "copy"), "--broker", broker, "--json").stdout)

    assert (told["start"], told["linked"], told["target"]) == (0, 0, str(tmp_path / "copy"))
    assert told["end"] > 0


def test_a_folder_that_is_taken_is_refused_in_one_line(broker: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    result = admin("broker", "backup", str(tmp_path), "--broker", broker)

    assert result.exit_code == exit_codes.OS_ERROR
    assert result.stderr == f"rmq-admin: {tmp_path} exists and is not empty: name a new or an empty folder\n"


def test_the_directory_of_a_running_broker_is_not_verified(broker: str) -> None:
    numbers = json.loads(admin("broker", "stats", "--broker", broker, "--json").stdout)

    result = admin("broker", "verify-store", numbers["broker"]["data_dir"])

    assert (result.exit_code, result.stdout) == (exit_codes.OS_ERROR, "")
    assert "a broker uses" in result.stderr and "stop it first" in result.stderr


def test_a_missing_and_an_unreadable_folder_have_different_codes(tmp_path: Path) -> None:
    missing = admin("broker", "verify-store", str(tmp_path / "missing"))
    unreadable = admin("broker", "verify-store", str(tmp_path / ("x" * 256)))

    text = f"rmq-admin: {tmp_path}/missing does not exist: name the data directory of a broker or a backup\n"
    assert (missing.exit_code, missing.stderr) == (exit_codes.NO_INPUT, text)
    assert unreadable.exit_code == exit_codes.OS_ERROR
    assert unreadable.stderr.endswith(": File name too long; name another folder\n")


@pytest.mark.parametrize(
    ("number", "code", "advice"),
    [
        (errno.ESTALE, exit_codes.TEMPORARY, "check the disk and try again; if it stays so, see 'The disk failed'"),
        (errno.EACCES, exit_codes.OS_ERROR, "the folder or file belongs to another user: run this as that user"),
    ],
)
def test_a_segment_that_cannot_be_opened_is_named_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, advice: str
) -> None:
    data = tmp_path / "data"
    (data / "commitlog").mkdir(parents=True)
    segment = data / "commitlog" / "00000000000000000000"
    segment.write_bytes(bytes(8192))

    opening = Files.open_to_read

    def failing(self: Files, path: AnyPath) -> int:
        if str(path) == str(segment):
            raise OSError(number, os.strerror(number), str(path))
        return opening(self, path)

    monkeypatch.setattr(Files, "open_to_read", failing)
    for result in (admin("broker", "verify-store", str(data)), restore(data, tmp_path / "new")):
        assert result.exit_code == code
        assert f"{segment}: {os.strerror(number)}; {advice}" in result.stderr


def config(broker: str, *arguments: str) -> Result:
    return admin("broker", "config", *arguments, "--broker", broker)


def test_what_differs_is_marked_with_its_default() -> None:
    told = in_force(asdict(BrokerConfig(flush="async", data_dir="/d")))
    changed = [setting for setting in told if setting.changed]

    assert [(setting.setting, setting.value, setting.default) for setting in changed] == [
        ("data_dir", "/d", ""),
        ("flush", "async", "sync"),
    ]
    lines = [line.split() for line in settings_table(told).splitlines()]
    assert lines[0] == [name.upper() for name in COLUMNS]
    assert ["flush", "async", "sync"] in lines
    assert ["data_dir", "/d", '""'] in lines
    assert ["grace_s", "5.0"] in lines
    assert max(map(len, settings_table(told).splitlines())) <= 80


def test_a_setting_of_a_later_broker_is_shown_all_the_same() -> None:
    (told,) = in_force({"of_tomorrow": "x\x1b"})

    assert (told.changed, told.default, told.help) == (True, None, "")
    assert settings_table([told]).splitlines()[1].split() == ["of_tomorrow", "x\\x1b", "None"]


@pytest.mark.slow
def test_the_settings_of_a_running_broker_as_table_toml_and_json(broker: str) -> None:
    rows = json.loads(config(broker, "--json").stdout)
    assert [row["setting"] for row in rows] == [field.name for field in fields(BrokerConfig)]
    assert {row["setting"] for row in rows if row["changed"]} >= {"data_dir", "listen"}

    toml = config(broker, "--toml").stdout
    told = tomllib.loads(toml)
    assert told == {row["setting"]: row["value"] for row in rows}
    assert "\n# host:port to bind; port 0 picks a free one\nlisten = " in toml

    changed = config(broker, "--changed").stdout.splitlines()
    assert [line.split()[0] for line in changed[1:]] == [row["setting"] for row in rows if row["changed"]]


@pytest.mark.slow
def test_the_file_that_is_printed_can_be_given_to_a_broker(broker: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(config(broker, "--toml").stdout)

    again = load(BrokerConfig, prefix="RMQ_BROKER_", file=file, environ={})

    assert asdict(again) == {row["setting"]: row["value"] for row in json.loads(config(broker, "--json").stdout)}


def test_only_one_form_can_be_asked_for() -> None:
    result = config("127.0.0.1:1", "--toml", "--json")

    assert (result.exit_code, result.stderr) == (
        exit_codes.USAGE,
        "rmq-admin: --toml and --json cannot be combined\n",
    )


MARK = b"a-body-to-be-found"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backup of a stopped broker with two messages, next to its data; tests restore what they damage."""
    folder = tmp_path_factory.mktemp("copied")
    with BrokerProcess(folder / "data", "127.0.0.1:0", "-o", "index_file_entries=1") as broker:
        with Running(
            "rmq.cli.rmq_produce", "--broker", broker.address, "--topic", "orders", "--key", "k", stdin=MARK + b"\n2\n"
        ) as producer:
            assert producer.wait() == 0
        result = admin("broker", "backup", str(folder / "copy"), "--broker", broker.address)
        assert (result.exit_code, result.stderr) == (0, "")
        broker.stop()
    # Sound, though its indexes were written under a setting that verify-store does not know.
    assert admin("broker", "verify-store", str(folder / "data")).exit_code == 0
    return folder / "copy"


@pytest.mark.slow
def test_a_sound_copy_is_called_sound(copy: Path) -> None:
    for_people, for_programs = (
        admin("broker", "verify-store", str(copy)),
        admin("broker", "verify-store", str(copy), "--json"),
    )

    assert (for_people.exit_code, for_programs.exit_code) == (0, 0)
    assert for_people.stdout.endswith(" 2 messages in 1 queue: sound\n")
    report = json.loads(for_programs.stdout)
    assert (report["findings"], report["messages"], report["torn"]) == ([], 2, 0)


@pytest.mark.slow
def test_damage_has_a_code_of_its_own_and_says_which_messages_it_took(copy: Path) -> None:
    data = copy.with_name("data")  # a clean stop proves what was synced
    (segment,) = (data / "commitlog").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(MARK, MARK.upper()))
    try:
        for_people, for_programs = (
            admin("broker", "verify-store", str(data)),
            admin("broker", "verify-store", str(data), "--json"),
        )
    finally:
        segment.write_bytes(whole)

    assert (for_people.exit_code, for_programs.exit_code) == (exit_codes.DATA_ERROR, exit_codes.DATA_ERROR)
    assert "it held offsets 0 to " in for_people.stdout
    assert for_people.stdout.endswith(": damaged\n")
    # The key index still lists the batch: its message has a key.
    assert [finding["in_log"] for finding in json.loads(for_programs.stdout)["findings"]] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_lost"), [("consumequeue/**/0000*", True), ("checkpoint", False)])
def test_files_that_the_log_rebuilds_have_a_code_of_their_own(copy: Path, name: str, is_lost: bool) -> None:
    data = copy.with_name("data")
    damaged = next(path for path in data.glob(name) if path.is_file())
    kept = damaged.read_bytes()
    if is_lost:
        damaged.unlink()
    else:
        damaged.write_bytes(kept[:-1])
    try:
        result = admin("broker", "verify-store", str(data))
    finally:
        damaged.write_bytes(kept)

    assert result.exit_code == exit_codes.FAILURE
    assert result.stdout.endswith("the log is sound, the next start rebuilds the rest\n")


@pytest.mark.slow
def test_a_directory_without_a_log_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    result = admin("broker", "verify-store", str(tmp_path))

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (exit_codes.OS_ERROR, "", 1)
    assert "holds no log" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "00000000000000000000").symlink_to("00000000000000000000")  # also root cannot open this

    result = admin("broker", "verify-store", str(tmp_path))

    assert (result.exit_code, result.stdout) == (exit_codes.OS_ERROR, "")
    assert result.stderr.startswith("rmq-admin: ")
    assert len(result.stderr.splitlines()) == 1
