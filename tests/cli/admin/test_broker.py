"""``rmq-admin broker``: numbers, a copy of a running broker, a scrub."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq.broker.store.files import AnyPath, Files
from rmq.cli.rmq_admin import command
from rmq.cli.rmq_broker import command as broker_command
from rmq.cli.shell import exit_codes
from rmq.client import Admin, Message, Producer

from support.processes import BrokerProcess


def admin(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, prog_name="rmq-admin")


def restore(backup: Path, target: Path) -> Result:
    return CliRunner().invoke(broker_command, ["restore", str(backup), str(target)], prog_name="rmq-broker")


def send(address: str, topic: str, count: int) -> None:
    async def sending() -> None:
        async with Producer(address) as producer:
            await producer.send_many([Message(topic, b"%d" % i, keys=(f"k{i}",)) for i in range(count)], queue_id=0)

    asyncio.run(sending())


def count(address: str, topic: str) -> int:
    async def counting() -> int:
        async with Admin(address) as asking:
            return sum(queue.max_offset for queue in (await asking.describe_topic(topic)).queues)

    return asyncio.run(counting())


@pytest.mark.parametrize("path", [[], ["stats"], ["backup"], ["verify-store"]])
def test_help_has_examples(path: list[str]) -> None:
    result = admin("broker", *path, "--help")

    assert result.exit_code == 0
    assert "Examples:\n  rmq-admin broker " in result.stdout


def test_the_numbers_name_each_part_of_the_broker(broker: str) -> None:
    shown = admin("broker", "stats", "--broker", broker)
    numbers = json.loads(admin("broker", "stats", "--broker", broker, "--json").stdout)

    assert shown.stdout.splitlines()[0].split() == ["PART", "NAME", "VALUE"]
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


def test_without_a_broker_there_is_nothing_to_copy(nowhere: str, tmp_path: Path) -> None:
    result = admin("broker", "backup", str(tmp_path / "copy"), "--broker", nowhere)

    assert result.exit_code == exit_codes.UNAVAILABLE
    assert "no broker at" in result.stderr


def test_the_directory_of_a_running_broker_is_not_scrubbed(broker: str) -> None:
    numbers = json.loads(admin("broker", "stats", "--broker", broker, "--json").stdout)

    result = admin("broker", "verify-store", numbers["broker"]["data_dir"])

    assert result.exit_code == exit_codes.OS_ERROR
    assert "a broker uses" in result.stderr


def test_the_exit_code_tells_damage_of_the_log_from_damage_beside_it(broker: str, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 10)
    copy = tmp_path / "copy"
    admin("broker", "backup", str(copy), "--broker", broker)
    with BrokerProcess(copy) as other:
        other.stop()  # which leaves a checkpoint
    assert admin("broker", "verify-store", str(copy)).exit_code == 0

    checkpoint = copy / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    beside = admin("broker", "verify-store", str(copy))
    assert (beside.exit_code, "the log is sound" in beside.stdout) == (exit_codes.FAILURE, True)

    segment = sorted((copy / "commitlog").iterdir())[0]
    content = bytearray(segment.read_bytes())
    content[300] ^= 1
    segment.write_bytes(content)
    damaged = admin("broker", "verify-store", str(copy), "--json")
    assert damaged.exit_code == exit_codes.DATA_ERROR
    assert any(finding["in_log"] for finding in json.loads(damaged.stdout)["findings"])


def test_a_folder_that_is_not_there_and_one_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
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


def test_a_folder_without_a_log_is_refused_in_one_line(tmp_path: Path) -> None:
    result = admin("broker", "verify-store", str(tmp_path))

    assert result.exit_code == exit_codes.OS_ERROR
    assert result.stderr.count("\n") == 1
    assert "holds no log" in result.stderr
