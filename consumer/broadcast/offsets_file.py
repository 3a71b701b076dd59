"""
Keeps the progress of a broadcasting member in a file, safe from crashes and from a second member.

The directory of a member contains::

    offsets.json        the progress; replaced as a whole, so that it is the old or the new one at any moment
    offsets.json.bak    the one before, read where the first is missing, empty, torn or damaged
    offsets.json.tmp    the next one, while it is written
    offsets-<id>.json   the progress in another store, put aside when the broker turned out to have a new one, and
                        gone on with should the other come back
    lock                locked (``flock``) as long as the member runs; the system frees it however the process ends

What ``offsets.json`` of a broadcasting member contains, as text and as values; damaged text is refused by name. Pure.

::

    {"format": 1, "group": "prices", "instance": "default", "store_id": "9c0e51b2a64f7d13",
     "topics": ["quotes"],
     "queues": [{"topic": "quotes", "generation": 1, "queue_id": 0, "offset": 17, "log_epoch": 2}]}

``offset`` is the next message to deliver, ``log_epoch`` the start of the broker under which the message before it was
stored: by that a broker that lost the end of its log is found out. ``topics`` were subscribed to when the file was
written, so that a queue of them that is not listed came into being later. People may read and edit the file while its
member does not run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmq.runtime.logging import get_logger
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import MessageQueue

log = get_logger("rmq.consumer")
HOME: Final = "~/.rmq/offsets"
MAIN: Final = "offsets.json"
BACKUP: Final = "offsets.json.bak"
NEXT: Final = "offsets.json.tmp"
LOCK: Final = "lock"
MAX_INSTANCE_LENGTH: Final = 127
_PID_DIGITS: Final = 20
_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*\Z")


class Disk:
    """What is done to files, a method a step; tests hand in one that fails or stops at a step."""

    def read(self, path: Path) -> bytes:
        """All of a file."""
        return path.read_bytes()

    def write_durably(self, path: Path, content: bytes) -> None:
        """Make a file of this content, which is on the disk when this returns."""
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another name, in place of one that had it."""
        path.replace(to)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_instance(name: str) -> None:
    """Refuse the name of an instance that cannot be that of a directory."""
    if len(name) > MAX_INSTANCE_LENGTH:
        raise BadName(f"the instance name has {len(name)} characters, at most {MAX_INSTANCE_LENGTH} are allowed")
    if not _INSTANCE.match(name):
        raise BadName(
            f"the instance name {name[:40]!r} may hold only letters, digits, '-', '_', '.' and '@', "
            "and begins with a letter or digit"
        )


def directory_of(offsets_dir: str, group: str, instance: str) -> Path:
    """
    Where the progress of a member is kept: ``offsets_dir``, or a directory of its own in the home of the user.

    Legal names of groups and instances hold nothing that means anything in a path.

    Raises:
        ConfigError: it begins with ``~``, and that user has no home.
    """
    path = os.path.expanduser(offsets_dir or f"{HOME}/{group}/{instance}")
    if path.startswith("~"):
        raise ConfigError(f"no home directory was found for {path!r}: set offsets_dir to another directory")
    return Path(path)


class OffsetsFile:
    """
    The file of one member, locked from :meth:`open` to :meth:`close`.

    :meth:`read` and :meth:`write` are for one caller at a time; they wait for the disk.
    """

    def __init__(self, directory: Path, group: str, instance: str, *, disk: Disk | None = None) -> None:
        self.directory = directory
        self._group = group
        self._instance = instance
        self._disk = disk or Disk()
        self._lock: int | None = None
        self._main_is_sound = False  # and worth being kept as the backup

    # The lock

    def open(self) -> None:
        """
        Make the directory if need be, and lock it.

        Raises:
            ConfigError: another member has it, or it cannot be written to.
        """
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self._lock = self._locked()
            self._disk.write_durably(self.directory / NEXT, b"")  # better refused now than in 5 s
        except ConfigError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            self.close()
            raise self._unusable(error) from error

    def _locked(self) -> int:
        fd = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            owner = os.pread(fd, _PID_DIGITS, 0).decode("ascii", "replace")
            os.close(fd)
            self._read(MAIN)  # if it is another member's, that is what to say
            raise ConfigError(
                f"instance {self._instance!r} of group {self._group!r} runs already with {self.directory}"
                f"{f' (process {owner})' if owner.isdigit() else ''}: give each member on this machine another instance"
            ) from error
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Let others have it; a second call does nothing."""
        fd, self._lock = self._lock, None
        if fd is not None:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too
            with suppress(OSError):
                os.close(fd)

    def _unusable(self, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ConfigError(
            f"the progress of a broadcasting member cannot be kept in {str(self.directory)!r} ({reason}): "
            "set offsets_dir to a directory that can be written to"
        )

    # The progress

    def read(self) -> OffsetsContent | None:
        """
        The progress, or the one before if the newest is missing or damaged; None if there never was any.

        Raises:
            ConfigError: nothing of what is there can be read, or it is another member's. Starting over would pass
                messages or deliver them again, so that is for people to decide.
        """
        main, why_not_main = self._read(MAIN)
        if main is not None:
            self._main_is_sound = True
            return main
        backup, why_not_backup = self._read(BACKUP)
        if backup is not None:
            log.warning("offsets.backup_used", file=str(self.directory / MAIN), reason=why_not_main or "it is missing")
            return backup
        if why_not_main is None and why_not_backup is None:
            return None
        reason = f"{MAIN}: {why_not_main or 'it is missing'}; {BACKUP}: {why_not_backup or 'it is missing'}"
        raise ConfigError(
            f"the progress in {str(self.directory)!r} cannot be read ({reason}): repair it, or remove it to start over"
        )

    def _read(self, name: str) -> tuple[OffsetsContent | None, str | None]:
        """A file, or why it is of no use; neither if there is none."""
        try:
            content = decode(self._disk.read(self.directory / name))
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, error.strerror or str(error)
        except NewerOffsets as error:
            raise ConfigError(f"{str(self.directory / name)!r} cannot be used: {error}") from error
        except BadOffsets as error:
            return None, str(error)
        if (content.group, content.instance) != (self._group, self._instance):
            raise ConfigError(
                f"{str(self.directory)!r} holds the progress of instance {content.instance!r} of group "
                f"{content.group!r}: set offsets_dir to another directory for instance {self._instance!r} of group "
                f"{self._group!r}"
            )
        return content, None

    def write(self, content: OffsetsContent) -> None:
        """
        Replace the progress; whatever happens meanwhile, the old or the new one is found afterwards.

        Raises:
            OSError: it could not be written; what was there counts on.
        """
        directory, disk = self.directory, self._disk
        disk.write_durably(directory / NEXT, encode(content))
        if self._main_is_sound:
            self._main_is_sound = False  # until the next is in its place: a failure leaves the backup as it is
            disk.rename(directory / MAIN, directory / BACKUP)
        disk.rename(directory / NEXT, directory / MAIN)
        self._main_is_sound = True
        disk.sync_directory(directory)

    def put_aside(self, content: OffsetsContent) -> Path | None:
        """Keep the progress in a store that the broker does not have any more, for people; None if that fails."""
        path = self.directory / _aside(content.store_id)
        try:
            self._disk.write_durably(path, encode(content))
        except OSError as error:
            log.error("offsets.not_put_aside", file=str(path), reason=error.strerror or str(error))
            return None
        return path

    def kept(self, store_id: int) -> OffsetsContent | None:
        """The progress in a store that was put aside, if there is any; one that cannot be used is logged."""
        name = _aside(store_id)
        try:
            content, why_not = self._read(name)
        except ConfigError as error:
            content, why_not = None, str(error)
        if content is not None and content.store_id != store_id:
            content, why_not = None, "it is about another store"
        if why_not is not None:
            log.error("offsets.aside_unused", file=str(self.directory / name), reason=why_not)
        return content


def _aside(store_id: int) -> str:
    return f"offsets-{store_id:016x}.json"


FORMAT: Final = 1
MOST: Final = (1 << 63) - 1  # of any number
STORE_ID_DIGITS: Final = 16


class BadOffsets(ValueError):
    """The text is not the progress of a member; says what is wrong with it."""


class NewerOffsets(BadOffsets):
    """The text was written by a version of rmq that knows more than this one."""


class QueueProgress(NamedTuple):
    """How far one queue was consumed, of which topic of that name, and what shows that its log is still the same."""

    generation: int
    offset: int
    log_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsContent:
    """The progress of one member in one store."""

    group: str
    instance: str
    store_id: int
    topics: frozenset[str] = frozenset()
    queues: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)


def encode(content: OffsetsContent) -> bytes:
    """The text: valid JSON, a line for each queue, in an order that depends on nothing else."""
    head = {
        "format": FORMAT,
        "group": content.group,
        "instance": content.instance,
        "store_id": f"{content.store_id:0{STORE_ID_DIGITS}x}",
        "topics": sorted(content.topics),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    queues = ",\n".join(
        "    " + json.dumps({"topic": queue.topic, "generation": at.generation, "queue_id": queue.queue_id,
                             "offset": at.offset, "log_epoch": at.log_epoch})
        for queue, at in sorted(content.queues.items())
    )  # fmt: skip
    lines.append(f'  "queues": [\n{queues}\n  ]' if queues else '  "queues": []')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode(text: bytes) -> OffsetsContent:
    """
    The values of a text.

    Raises:
        NewerOffsets: its format is a later one.
        BadOffsets: it is empty, torn, or not what :func:`encode` makes.
    """
    if not text.strip():
        raise BadOffsets("it is empty")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOffsets(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadOffsets("it is not a JSON object")
    version = _number(found, "format")
    if version > FORMAT:
        raise NewerOffsets(f"its format is {version}, and this version of rmq knows {FORMAT}")
    if version != FORMAT:
        raise BadOffsets(f"its format is {version}, not {FORMAT}")
    return OffsetsContent(
        _text(found, "group"), _text(found, "instance"), _store_id(found), _topics(found), _queues(found)
    )


def _topics(found: dict[str, Any]) -> frozenset[str]:
    topics = _list(found, "topics")
    if not all(isinstance(topic, str) and topic for topic in topics):
        raise BadOffsets('a name in "topics" is not text')
    return frozenset(topics)


def _queues(found: dict[str, Any]) -> dict[MessageQueue, QueueProgress]:
    queues: dict[MessageQueue, QueueProgress] = {}
    for entry in _list(found, "queues"):
        if not isinstance(entry, dict):
            raise BadOffsets('an entry of "queues" is not an object')
        queue = MessageQueue(_text(entry, "topic"), _number(entry, "queue_id"))
        if queue in queues:
            raise BadOffsets(f"{queue} is listed twice")
        queues[queue] = QueueProgress(*_numbers(entry, ("generation", "offset", "log_epoch")))
    return queues


def _store_id(found: dict[str, Any]) -> int:
    digits = _text(found, "store_id")
    if len(digits) != STORE_ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise BadOffsets(f'"store_id" has not the form of {STORE_ID_DIGITS} hexadecimal digits')
    return int(digits, 16)


def _list(found: dict[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise BadOffsets(f'"{name}" is not a list')
    return value


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise BadOffsets(f'"{name}" is not text')
    return value


def _numbers(found: dict[str, Any], names: Iterable[str]) -> list[int]:
    return [_number(found, name) for name in names]


def _number(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= MOST:
        raise BadOffsets(f'"{name}" is not a number from 0 to {MOST}')
    return value
