"""Numbers, copies and scrubs of a broker, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq.cli.rmq_admin import command
from rmq.cli.shell import exit_codes

from support.processes import BrokerProcess, Running

pytestmark = pytest.mark.slow

MARK = b"a-body-to-be-found"


def admin(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["broker", *arguments], prog_name="rmq-admin")


@pytest.fixture
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy of a broker with two messages, which has stopped since."""
    folder = tmp_path_factory.mktemp("copied")
    with BrokerProcess(folder / "data", "127.0.0.1:0", "-o", "index_file_entries=1") as broker:
        with Running(
            "rmq.cli.rmq_produce", "--broker", broker.address, "--topic", "orders", "--key", "k", stdin=MARK + b"\n2\n"
        ) as producer:
            assert producer.wait() == 0
        result = admin("backup", str(folder / "copy"), "--broker", broker.address)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "1 segment, " in result.stdout

        again = admin("backup", str(folder / "copy"), "--broker", broker.address)
        assert (again.exit_code, again.stdout) == (exit_codes.OS_ERROR, "")
        assert "name a new or an empty folder" in again.stderr
        used = admin("verify-store", str(folder / "data"))
        assert (used.exit_code, used.stdout) == (exit_codes.OS_ERROR, "")
        assert "stop it first" in used.stderr
        broker.stop()
    assert admin("verify-store", str(folder / "data")).exit_code == 0  # and an index of a setting that is not ours
    return folder / "copy"


@pytest.mark.parametrize("name", ["stats", "backup", "verify-store"])
def test_help_has_examples(name: str) -> None:
    assert "Examples:\n  rmq-admin broker " in admin(name, "--help").stdout


def test_the_numbers_are_the_same_for_people_and_for_programs(broker: str) -> None:
    for_people, for_programs = admin("stats", "--broker", broker), admin("stats", "--broker", broker, "--json")

    numbers = json.loads(for_programs.stdout)
    shown = [tuple(line.split()[:2]) for line in for_people.stdout.splitlines()[1:]]
    assert shown == [(part, name) for part, values in numbers.items() for name in values]
    assert numbers["broker"]["address"] == broker
    assert max(map(len, for_people.stdout.splitlines())) <= 120


@pytest.mark.parametrize("arguments", [["stats"], ["backup", "/tmp/rmq-there-is-none"]])
def test_without_a_broker_one_line_says_how_to_start_one(nowhere: str, arguments: list[str]) -> None:
    result = admin(*arguments, "--broker", nowhere)

    assert (result.exit_code, result.stdout) == (exit_codes.UNAVAILABLE, "")
    assert result.stderr == f"rmq-admin: no broker at {nowhere}: start one with `rmq-broker start`\n"


def test_a_sound_copy_is_called_sound(copy: Path) -> None:
    for_people, for_programs = admin("verify-store", str(copy)), admin("verify-store", str(copy), "--json")

    assert (for_people.exit_code, for_programs.exit_code) == (0, 0)
    assert for_people.stdout.endswith(" 2 messages in 1 queue: sound\n")
    report = json.loads(for_programs.stdout)
    assert (report["findings"], report["messages"], report["torn"]) == ([], 2, 0)


def test_damage_has_a_code_of_its_own_and_says_which_messages_it_took(copy: Path) -> None:
    data = copy.with_name("data")  # a clean stop proves what was synced
    (segment,) = (data / "commitlog").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(MARK, MARK.upper()))
    try:
        for_people, for_programs = admin("verify-store", str(data)), admin("verify-store", str(data), "--json")
    finally:
        segment.write_bytes(whole)

    assert (for_people.exit_code, for_programs.exit_code) == (exit_codes.DATA_ERROR, exit_codes.DATA_ERROR)
    assert "it held offsets 0 to " in for_people.stdout
    assert for_people.stdout.endswith(": damaged\n")
    assert [finding["in_log"] for finding in json.loads(for_programs.stdout)["findings"]] == [True]


def test_a_lost_index_has_another_code_since_the_log_makes_it_again(copy: Path) -> None:
    data = copy.with_name("data")
    lost = next((data / "consumequeue").rglob("0000*"))
    kept = lost.read_bytes()
    lost.unlink()
    try:
        result = admin("verify-store", str(data))
    finally:
        lost.write_bytes(kept)

    assert result.exit_code == exit_codes.FAILURE
    assert result.stdout.endswith("the log is sound, the next start repairs the rest\n")


def test_a_directory_without_a_log_is_told_apart(tmp_path: Path) -> None:
    result = admin("verify-store", str(tmp_path))

    assert (result.exit_code, result.stdout) == (exit_codes.OS_ERROR, "")
    assert "holds no log" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "00000000000000000000").symlink_to("00000000000000000000")  # also root cannot open this

    result = admin("verify-store", str(tmp_path))

    assert (result.exit_code, result.stdout) == (exit_codes.OS_ERROR, "")
    assert result.stderr.startswith("rmq-admin: ")
    assert len(result.stderr.splitlines()) == 1
