"""
The progress of a broadcasting member on the disk: never half written, never shared by two members.

The text of ``offsets.json``: what is written is read again, and anything else is refused by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.consumer.broadcast.offsets_file import (
    MOST,
    BadOffsets,
    Disk,
    NewerOffsets,
    OffsetsContent,
    OffsetsFile,
    QueueProgress,
    check_instance,
    decode,
    directory_of,
    encode,
)
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import MessageQueue

from ..recorder import QUEUE


def progress(offset: int, *, group: str = "g", instance: str = "a", store_id: int = 7) -> OffsetsContent:
    return OffsetsContent(group, instance, store_id, frozenset({"t"}), {QUEUE: QueueProgress(1, offset, 2)})


def opened(directory: Path, disk: Disk | None = None) -> OffsetsFile:
    file = OffsetsFile(directory, "g", "a", disk=disk)
    file.open()
    return file


def found(directory: Path) -> int | None:
    """The offset that the next start finds."""
    file = opened(directory)
    try:
        content = file.read()
    finally:
        file.close()
    return None if content is None else content.queues[QUEUE].offset


def written(directory: Path, *offsets: int) -> None:
    file = opened(directory)
    file.read()
    for offset in offsets:
        file.write(progress(offset))
    file.close()


# Where it is


def test_each_member_has_a_directory_of_its_own_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data/u")

    assert directory_of("", "team%prices", "left-1") == Path("/data/u/.rmq/offsets/team%prices/left-1")
    assert directory_of("~/x", "g", "a") == Path("/data/u/x")
    assert directory_of("/data/x", "g", "a") == Path("/data/x")


@pytest.mark.parametrize("name", ["default", "7", "web-1.example.org", "a@b_c", "x" * 127])
def test_a_name_that_is_safe_in_a_path_may_be_an_instance(name: str) -> None:
    check_instance(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\0b", "a\n", "a b", "-x", "ä", "x" * 128])
def test_any_other_name_may_not(name: str) -> None:
    with pytest.raises(BadName, match="the instance name"):
        check_instance(name)


def test_a_home_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no home directory was found for '~no_such_user/x': set offsets_dir"):
        directory_of("~no_such_user/x", "g", "a")


def test_the_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    written(tmp_path / "g" / "a", 5)

    assert decode((tmp_path / "g" / "a" / "offsets.json").read_bytes()) == progress(5)


def test_a_directory_that_cannot_be_written_to_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"cannot be kept in .*file/x' \(Not a directory\): set offsets_dir to"):
        opened(tmp_path / "file" / "x")


def test_a_path_that_no_file_can_have_is_refused_as_well() -> None:
    with pytest.raises(ConfigError, match="cannot be kept in"):
        opened(Path("/tmp/a\0b"))


def test_a_directory_whose_disk_is_full_is_refused_at_the_start_and_left_unlocked(tmp_path: Path) -> None:
    class Full(Disk):
        def write_durably(self, path: Path, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"\(No space left on device\)"):
        opened(tmp_path, Full())

    opened(tmp_path).close()


# What is found again


def test_a_member_that_never_wrote_finds_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) is None


def test_the_newest_is_found_and_the_one_before_kept(tmp_path: Path) -> None:
    written(tmp_path, 5, 6, 7)

    assert found(tmp_path) == 7
    assert decode((tmp_path / "offsets.json.bak").read_bytes()) == progress(6)


@pytest.mark.parametrize("damage", ["empty", "torn", "corrupt", "missing", "a directory"])
def test_a_main_file_that_is_of_no_use_is_replaced_by_the_one_before(tmp_path: Path, damage: str) -> None:
    """Scenario 79."""
    written(tmp_path, 5, 6)
    main = tmp_path / "offsets.json"
    text = main.read_bytes()
    main.unlink()
    if damage == "a directory":
        main.mkdir()
    elif damage != "missing":
        main.write_bytes({"empty": b"", "torn": text[:-20], "corrupt": text.replace(b"offset", b"\xff\xff")}[damage])

    assert found(tmp_path) == 5


def test_a_damaged_main_file_does_not_take_the_place_of_the_one_before(tmp_path: Path) -> None:
    written(tmp_path, 5, 6)
    (tmp_path / "offsets.json").write_bytes(b"")

    written(tmp_path, 7)

    assert decode((tmp_path / "offsets.json.bak").read_bytes()) == progress(5)
    assert found(tmp_path) == 7


@pytest.mark.parametrize(("main", "backup"), [(b"", b"{"), (b"", None), (None, b"")])
def test_when_nothing_can_be_read_people_decide(tmp_path: Path, main: bytes | None, backup: bytes | None) -> None:
    for name, text in (("offsets.json", main), ("offsets.json.bak", backup)):
        if text is not None:
            (tmp_path / name).write_bytes(text)

    with pytest.raises(ConfigError, match=r"cannot be read .* repair it, or remove it to start over"):
        found(tmp_path)


def test_a_later_format_is_refused_and_not_replaced_by_the_one_before(tmp_path: Path) -> None:
    written(tmp_path, 5, 6)
    (tmp_path / "offsets.json").write_bytes(b'{"format": 2}')

    with pytest.raises(ConfigError, match=r"offsets.json' cannot be used: its format is 2"):
        found(tmp_path)


@pytest.mark.parametrize("other", [progress(5, group="h"), progress(5, instance="b")])
def test_the_progress_of_another_member_is_refused(tmp_path: Path, other: OffsetsContent) -> None:
    (tmp_path / "offsets.json").write_bytes(encode(other))

    with pytest.raises(ConfigError, match=r"holds the progress of instance .* set offsets_dir to another directory"):
        found(tmp_path)


class Crashing(Disk):
    """The process ends at a step; a file that was being written is torn."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1

    def write_durably(self, path: Path, content: bytes) -> None:
        super().write_durably(path, content[: len(content) // 2])
        self._step()
        super().write_durably(path, content)

    def rename(self, path: Path, to: Path) -> None:
        self._step()
        super().rename(path, to)

    def sync_directory(self, path: Path) -> None:
        self._step()


def test_whenever_the_process_ends_the_old_or_the_new_progress_is_found(tmp_path: Path) -> None:
    outcomes = []
    for steps in count(1):
        directory = tmp_path / str(steps)
        written(directory, 5)
        file = opened(directory, Crashing(steps))
        try:
            file.read()
            file.write(progress(6))
            ended = True
        except KeyboardInterrupt:
            ended = False
        file.close()
        outcomes.append(found(directory))
        if ended:
            break

    assert outcomes == [5, 5, 5, 6, 6]


def test_a_write_that_fails_leaves_what_was_there_and_the_next_one_succeeds(tmp_path: Path) -> None:
    class FailsOnce(Disk):
        def __init__(self, at: int) -> None:
            self.left = at

        def rename(self, path: Path, to: Path) -> None:
            self.left -= 1
            if self.left == 0:
                raise OSError(5, "Input/output error")
            super().rename(path, to)

    for at in (1, 2):
        directory = tmp_path / str(at)
        written(directory, 5)
        file = opened(directory, FailsOnce(at))
        file.read()
        with pytest.raises(OSError, match="Input/output error"):
            file.write(progress(6))
        file.close()
        assert found(directory) == 5

        file = opened(directory)
        file.read()
        file.write(progress(7))
        file.write(progress(8))
        file.close()
        assert found(directory) == 8
        assert decode((directory / "offsets.json.bak").read_bytes()) == progress(7)


def test_the_progress_in_another_store_is_put_aside(tmp_path: Path) -> None:
    file = opened(tmp_path)

    path = file.put_aside(progress(5, store_id=0xAB))

    assert path == tmp_path / "offsets-00000000000000ab.json"
    assert decode(path.read_bytes()).store_id == 0xAB
    assert file.kept(0xAB) == progress(5, store_id=0xAB)
    assert file.kept(0xAC) is None
    file.close()


@pytest.mark.parametrize("content", [b"", encode(progress(5)), encode(progress(5, store_id=0xAB, instance="b"))])
def test_what_was_put_aside_and_cannot_be_used_is_told_of_and_left(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file, aside = opened(tmp_path), tmp_path / "offsets-00000000000000ab.json"
    aside.write_bytes(content)

    assert file.kept(0xAB) is None

    assert "offsets.aside_unused" in caplog.text
    assert aside.read_bytes() == content
    file.close()


# The lock


def test_a_second_member_is_refused_in_one_sentence_until_the_first_has_closed(tmp_path: Path) -> None:
    first = opened(tmp_path)

    with pytest.raises(ConfigError) as refused:
        opened(tmp_path)
    assert str(refused.value) == (
        f"instance 'a' of group 'g' runs already with {tmp_path} (process {os.getpid()}): "
        "give each member on this machine another instance"
    )

    first.close()
    first.close()
    opened(tmp_path).close()


def test_a_second_member_with_the_directory_of_another_is_told_whose_it_is(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(progress(5))

    with pytest.raises(ConfigError, match="holds the progress of instance 'a' of group 'g': set offsets_dir"):
        OffsetsFile(tmp_path, "g", "b").open()
    first.close()


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first._lock is not None
    in_the_fork = os.dup(first._lock)

    first.close()

    opened(tmp_path).close()
    os.close(in_the_fork)


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rmq.consumer.broadcast.offsets_file import OffsetsFile\n"
        "OffsetsFile(Path(sys.argv[1]), 'g', 'a').open(); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=rf"runs already .*\(process {child.pid}\)"):
            opened(tmp_path)
    finally:
        child.kill()
        child.communicate()

    opened(tmp_path).close()


names = st.text("abcXYZ019_-%", min_size=1, max_size=12)
numbers = st.integers(0, MOST)
contents = st.builds(
    OffsetsContent,
    names,
    names,
    st.integers(0, (1 << 64) - 1),
    st.frozensets(names, max_size=3),
    st.dictionaries(st.builds(MessageQueue, names, numbers), st.builds(QueueProgress, numbers, numbers, numbers)),
)
CONTENT = OffsetsContent(
    "g", "default", 0x9C0E51B2A64F7D13, frozenset({"t"}), {MessageQueue("t", 0): QueueProgress(1, 17, 2)}
)


@given(contents)
@settings(max_examples=60)
def test_what_is_written_is_read_again(content: OffsetsContent) -> None:
    assert decode(encode(content)) == content


def test_it_is_json_with_the_store_and_for_each_queue_its_generation_offset_and_log_epoch() -> None:
    assert json.loads(encode(CONTENT)) == {
        "format": 1,
        "group": "g",
        "instance": "default",
        "store_id": "9c0e51b2a64f7d13",
        "topics": ["t"],
        "queues": [{"topic": "t", "generation": 1, "queue_id": 0, "offset": 17, "log_epoch": 2}],
    }


def test_a_torn_text_is_refused_wherever_it_was_cut() -> None:
    text = encode(CONTENT)

    for length in range(len(text.rstrip())):
        with pytest.raises(BadOffsets):
            decode(text[:length])


@given(st.binary(max_size=60))
@settings(max_examples=60)
def test_garbage_is_refused_and_raises_nothing_else(text: bytes) -> None:
    with pytest.raises(BadOffsets):
        decode(text)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BadOffsets):
        decode(b"[" * 200_000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 0}, "its format is 0"),
        ({"format": True}, '"format" is not a number'),
        ({"group": ""}, '"group" is not text'),
        ({"instance": 7}, '"instance" is not text'),
        ({"store_id": "9C0E51B2A64F7D13"}, '"store_id" has not the form'),
        ({"store_id": "12"}, '"store_id" has not the form'),
        ({"store_id": 12}, '"store_id" is not text'),
        ({"topics": "t"}, '"topics" is not a list'),
        ({"topics": [1]}, 'a name in "topics" is not text'),
        ({"queues": None}, '"queues" is not a list'),
        ({"queues": [[]]}, 'an entry of "queues" is not an object'),
    ],
)
def test_a_field_that_cannot_be_is_named(change: dict[str, Any], reason: str) -> None:
    text = json.dumps({**json.loads(encode(CONTENT)), **change}).encode()

    with pytest.raises(BadOffsets, match=reason):
        decode(text)


@pytest.mark.parametrize("name", ["generation", "queue_id", "offset", "log_epoch"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, MOST + 1])
def test_a_number_of_a_queue_that_cannot_be_is_named(name: str, value: object) -> None:
    found = json.loads(encode(CONTENT))
    found["queues"][0][name] = value

    with pytest.raises(BadOffsets, match=f'"{name}" is not a number'):
        decode(json.dumps(found).encode())


def test_a_queue_that_is_listed_twice_is_refused() -> None:
    found = json.loads(encode(CONTENT))
    found["queues"] *= 2

    with pytest.raises(BadOffsets, match="t/0 is listed twice"):
        decode(json.dumps(found).encode())


def test_a_later_format_is_told_apart_from_damage() -> None:
    with pytest.raises(NewerOffsets, match="its format is 2, and this version of rmq knows 1"):
        decode(b'{"format": 2, "something": "else"}')


def test_what_a_later_version_adds_within_the_format_is_passed_over() -> None:
    found = {**json.loads(encode(CONTENT)), "remark": "by hand"}

    assert decode(json.dumps(found).encode()) == CONTENT
