"""
What a crash may leave of a directory: a model of a file system that keeps no more than it was made to promise.

It replays what :class:`rigs.disk.recording.RecordingFiles` noted, up to any place, and then makes one of the states in
which the machine may come up again. What it holds the disk to:

- Syncing a file makes its content and its length durable, but not its name.
- Syncing a directory makes durable what happened to the names in it until then: made, renamed, removed. It does not
  do so for the names in the directories below, nor for its own name in the one above.
- A rename is atomic, also between two directories: after a crash the file has the old name or the new one.
- Syncing the file system makes everything durable.
- The directory that is recorded, and all that was in it at first, is there whatever happens.

Whatever else was done may be there or not, each operation for itself and in any order: a name that was made may be
missing, one that was removed may be back, a file may have its new name and not its content. A write that was not
synced may be gone, there, cut at any byte, there in some of its sectors of 512 bytes and not in others, or have
left nothing but a longer file (zeros). Bytes that were not written never appear.

A killed process is not a crash of the machine: then everything that was done is there (``kept``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

from rigs.disk.recording import (
    AllSynced,
    Created,
    DirectoryMade,
    DirectoryRemoved,
    DirectorySynced,
    Operation,
    Recording,
    Renamed,
    Resized,
    Start,
    Synced,
    Unlinked,
    Wrote,
)

LOST = "lost"  # nothing survived but what was synced
KEPT = "kept"  # everything survived: the process was killed, the machine ran on
TORN = "torn"  # each thing that was not synced has a fate of its own, drawn by the seed
INTERRUPTED = "interrupted"  # killed within the last write: that one is cut, all before it is there
POLICIES = (LOST, KEPT, TORN, INTERRUPTED)

SECTOR = 512
_ROOT = 0
_MOODS = (0.0, 0.3, 0.6, 0.9, 1.0)  # how likely each thing survives, so that also states near "all" and "nothing" come

Image: TypeAlias = dict[str, bytes | None]  # what a directory holds: the content of files, None for directories
Edit: TypeAlias = tuple[int, str, int | None]  # in a directory, a name, means this node from now on
Change: TypeAlias = Wrote | Resized


class _File:
    """A file: what is durable of it, what is not yet, and what a reader sees now."""

    __slots__ = ("durable", "now", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.pending: list[Change] = []
        self.now = bytearray(content)

    def change(self, change: Change) -> None:
        self.pending.append(change)
        _put(self.now, change)

    def sync(self) -> None:
        if self.pending:
            self.durable = bytes(self.now)
            self.pending.clear()


class Disk:
    """The model. ``apply`` operations in their order, then ask for an ``image``."""

    def __init__(self, start: Start | None = None) -> None:
        self._files: dict[int, _File] = {}
        self._now: dict[int, dict[str, int]] = {_ROOT: {}}  # directory -> name -> node, as programs see it
        self._durable: dict[int, dict[str, int]] = {_ROOT: {}}
        self._pending: list[list[Edit]] = []  # each survives as a whole or not at all
        self._last: Operation | None = None
        self._directories = 0
        if start is not None:
            for path in start.directories:
                self.apply(DirectoryMade(path))
            for path, number in start.files.items():
                self.apply(Created(path, number))
                self._files[number] = _File(start.content[number])
            self.apply(AllSynced())

    # ---- what happens

    def apply(self, operation: Operation) -> None:
        """Let one thing happen."""
        self._last = operation
        match operation:
            case Created(path, file):
                self._files[file] = _File()
                self._edit([(*self._place(path), file)])
            case Wrote(file) | Resized(file):
                self._files[file].change(operation)
            case Synced(file):
                self._files[file].sync()
            case DirectoryMade(path):
                self._directories -= 1  # directories count down, files up
                self._now[self._directories] = {}
                self._durable[self._directories] = {}
                self._edit([(*self._place(path), self._directories)])
            case Renamed(path, to):
                folder, name = self._place(path)
                self._edit([(folder, name, None), (*self._place(to), self._now[folder][name])])
            case Unlinked(path) | DirectoryRemoved(path):
                self._edit([(*self._place(path), None)])
            case DirectorySynced(path):
                self._sync_names(self._directory(path))
            case AllSynced():
                self._sync_everything()

    def _directory(self, path: str) -> int:
        node = _ROOT
        for name in Path(path).parts:
            node = self._now[node][name]
        return node

    def _place(self, path: str) -> tuple[int, str]:
        parent, name = Path(path).parent, Path(path).name
        return self._directory(str(parent)), name

    def _edit(self, edits: list[Edit]) -> None:
        _rename(self._now, edits)
        self._pending.append(edits)

    def _sync_names(self, directory: int) -> None:
        rest: list[list[Edit]] = []
        for edits in self._pending:
            if any(folder == directory for folder, _, _ in edits):
                _rename(self._durable, edits)
                # What a name meant before cannot come back: the rename out of it is durable, and it was before that.
                places = {(folder, name) for folder, name, _ in edits}
                rest = [[edit for edit in earlier if edit[:2] not in places] for earlier in rest]
            else:
                rest.append(edits)
        self._pending = [edits for edits in rest if edits]

    def _sync_everything(self) -> None:
        for edits in self._pending:
            _rename(self._durable, edits)
        self._pending = []
        for file in self._files.values():
            file.sync()

    # ---- what may be left of it

    def image(self, policy: str, seed: int = 0) -> Image:
        """One state in which the directory may be found again."""
        chance = Random(f"crash {seed}")
        if policy == LOST:
            return self._walk(self._durable, lambda file: file.durable)
        if policy == KEPT:
            return self._walk(self._now, lambda file: bytes(file.now))
        if policy == INTERRUPTED:
            return self._walk(self._now, lambda file: self._interrupted(file, chance))
        assert policy == TORN, f"{policy!r} is none of {POLICIES}"
        likely = chance.choice(_MOODS)
        names = {node: dict(entries) for node, entries in self._durable.items()}
        for edits in self._pending:
            if chance.random() < likely:
                _rename(names, edits)
        mood = chance.choice(_MOODS)
        return self._walk(names, lambda file: _torn(file, mood, chance))

    def _interrupted(self, file: _File, chance: Random) -> bytes:
        last = self._last
        if not isinstance(last, Wrote) or self._files[last.file] is not file:
            return bytes(file.now)
        content = bytearray(file.durable)
        for change in file.pending[:-1]:
            _put(content, change)
        _put(content, last._replace(data=last.data[: chance.randrange(len(last.data) + 1)]))
        return bytes(content)

    def _walk(self, names: dict[int, dict[str, int]], content: Callable[[_File], bytes]) -> Image:
        image: Image = {}

        def visit(directory: int, path: str) -> None:
            for name, node in sorted(names[directory].items()):
                if node < 0:
                    image[path + name] = None
                    visit(node, f"{path}{name}/")
                else:
                    image[path + name] = content(self._files[node])

        visit(_ROOT, "")
        return image


def _put(content: bytearray, change: Change) -> None:
    if isinstance(change, Resized):
        content[change.size :] = bytes(max(change.size - len(content), 0))
    elif change.data:
        content.extend(bytes(max(change.at - len(content), 0)))  # not written: a hole
        content[change.at : change.at + len(change.data)] = change.data


def _rename(names: dict[int, dict[str, int]], edits: list[Edit]) -> None:
    for folder, name, node in edits:
        if node is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = node


def _torn(file: _File, likely: float, chance: Random) -> bytes:
    content = bytearray(file.durable)
    for change in file.pending:
        if chance.random() < likely:
            _put(content, change)
        elif isinstance(change, Wrote):
            _put_part(content, change, chance)
    return bytes(content)


def _put_part(content: bytearray, change: Wrote, chance: Random) -> None:
    """What is left of a write that did not survive as a whole."""
    end = change.at + len(change.data)
    match chance.randrange(4):
        case 0:
            pass
        case 1:
            _put(content, change._replace(data=change.data[: chance.randrange(len(change.data) + 1)]))
        case 2:
            _put(content, Resized(change.file, max(end, len(content))))
        case _:
            _put(content, Resized(change.file, max(end, len(content))))
            for start, stop in sectors(change.at, end):
                if chance.random() < 0.5:
                    content[start:stop] = change.data[start - change.at : stop - change.at]


def sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a range of a file that a disk writes as one."""
    while start < end:
        stop = min(start - start % SECTOR + SECTOR, end)
        yield start, stop
        start = stop


class Crash(NamedTuple):
    """One state after a crash, and how it came about: the same four values give it again."""

    prefix: int
    policy: str
    seed: int
    image: Image

    def __str__(self) -> str:
        return f"a crash after step {self.prefix}, {self.policy}, seed {self.seed}"

    @property
    def digest(self) -> bytes:
        """Equal for equal states."""
        return digest(self.image)


def digest(image: Image) -> bytes:
    """A short name for what a directory holds."""
    named = hashlib.blake2b(digest_size=16)
    for path, content in image.items():
        named.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        named.update(content or b"")
    return named.digest()


def crash(recording: Recording, prefix: int, policy: str, seed: int = 0) -> Crash:
    """The state after a crash that follows the first ``prefix`` steps."""
    disk = Disk(recording.start)
    for step in recording.steps[:prefix]:
        disk.apply(step.operation)
    return Crash(prefix, policy, seed, disk.image(policy, seed))


def crashes(recording: Recording, *, torn_seeds: Sequence[int], policies: Sequence[str] = POLICIES) -> Iterator[Crash]:
    """
    The states after a crash at every place of a recording, under every policy; ``torn`` once for each seed.

    Those that equal one of the place before come again, since more may have been promised meanwhile.
    """
    disk = Disk(recording.start)
    for prefix in range(len(recording.steps) + 1):
        if prefix:
            disk.apply(recording.steps[prefix - 1].operation)
        for policy in policies:
            for seed in torn_seeds if policy == TORN else torn_seeds[:1]:
                drawn = seed * 1_000_003 + prefix
                yield Crash(prefix, policy, drawn, disk.image(policy, drawn))


def materialise(image: Image, folder: Path) -> None:
    """Put a state on the real disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def image_of(folder: Path) -> Image:
    """What a real directory holds."""
    paths = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts)
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}
