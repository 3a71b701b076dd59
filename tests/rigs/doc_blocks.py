"""
A document that is followed word for word: its files are written, its commands typed, its output compared.

A fenced block of a document is one of

- ``python``: a file; the paragraph before it ends with the file's name, as in "Put this into `worker.py`:";
- ``sh``: commands, one a line, typed into one shell in a folder of its own; those that never end (a broker, a
  consumer) have a terminal of their own, until the same program is started there again;
- ``text``: what the commands before it print, now or soon, in their own or in another terminal;
- ``none``: a drawing.

Output is compared line by line by its shape: numbers, ids and the widths of columns are those of another day.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ADDRESS = "127.0.0.1:10911"
COMMANDS = ("rmq-broker", "rmq-consume", "rmq-produce", "rmq-admin", "rmq-bench")
DEADLINE_S = 40.0
REQUIRES_ACTION = 4  # what `rmq-admin explain` ends with when it says so
LOOKS = 12  # how often a command that only looks is typed again, a second apart
PATIENCE = threading.Event()  # is never set
READY = re.compile(r"\bready on (\S+?),")
# Commands that change nothing may be typed again until they show what they should.
LOOKING = re.compile(r"rmq-admin (lock-status|explain|\w+ (list|describe|show|members|query|stats))\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what is in it, the paragraph before it, and the line it begins at."""

    language: str
    text: str
    before: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The file that the paragraph before it names, if it ends so."""
        named = re.search(r"`([\w./]+\.\w+)`:$", self.before)
        return named[1] if named else None


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a document."""
    found = []
    before: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.startswith("```"):
            body = list(_until_fence(lines))
            paragraph = " ".join("\n".join(before).strip().split("\n\n")[-1].split())
            found.append(Block(line[3:].strip(), "\n".join(body) + "\n", paragraph, number))
            before = []
        else:
            before.append(line)
    return found


def _until_fence(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.startswith("```"):
            return
        yield line
    raise AssertionError("a fenced block that does not end")


def commands(block: Block) -> list[str]:
    """The commands of a block, without comments."""
    lines = (re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in block.text.splitlines())
    return [line for line in lines if line]


def shape(line: str) -> str:
    """What stays the same of a line from day to day."""
    line = re.sub(r"(?<![\w./])~?/[\w./-]+", "PATH", line)
    line = re.sub(r"\b\d{4}-\d\d-\d\d[T ][\d:.]+(\+[\d:]+|Z)?", "TIME", line)
    line = re.sub(r"[\w.-]+@\d+#[0-9a-f]{8}|\b[0-9a-f]{32}\b|\b(?=\w*[a-f])[0-9a-f]{8}\b|\b\d{8}\b", "ID", line)
    line = re.sub(r"\d[\d,]*(\.\d+)?(?=\b|[a-z]|$)", "N", line)
    return re.sub(r"[\s|+─-]+", " ", line).strip()


def missing(wanted: str, *seen: str) -> list[str]:
    """The lines of an output block that were not printed so often; a line of dots stands for any lines."""
    shapes = Counter(shape(line) for text in seen for line in text.splitlines())
    left = []
    for line in wanted.splitlines():
        if not line.strip(" ."):
            continue
        shapes[shape(line)] -= 1
        if shapes[shape(line)] < 0:
            left.append(line)
    return left


class Terminal:
    """A program, and what it has printed so far."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # ended as a whole
        )
        self.output = ""
        self._known = 0
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line
                self._changed.notify_all()

    def wait_for(self, pattern: str, start: int = 0) -> re.Match[str]:
        """Wait until something is printed."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            found.extend(re.finditer(pattern, self.output[start:], re.MULTILINE))
            return bool(found)

        with self._changed:
            assert self._changed.wait_for(seen, DEADLINE_S), f"{pattern} was not printed: {self.output[start:]}"
        return found[0]

    def type(self, line: str) -> tuple[int, str]:
        """Have a shell run a line; its exit code and what was printed meanwhile."""
        assert self.process.stdin is not None
        start = len(self.output)
        self.process.stdin.write(f"{line}\necho __ended__ $?\n")
        self.process.stdin.flush()
        ended = self.wait_for(r"^__ended__ (\d+)\n", start)
        return int(ended[1]), self.output[start:].replace(ended[0], "")

    def look_away(self) -> None:
        """From now on only what comes is new."""
        self._known = len(self.output)

    @property
    def news(self) -> str:
        """What was printed since the last look."""
        return self.output[self._known :]

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(DEADLINE_S) == 0, f"it did not stop cleanly: {self.output}"

    def close(self) -> None:
        """End it and whatever it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(DEADLINE_S)
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()


class Follower:
    """Follows a document as a reader does, in a new folder; ``elsewhere`` are commands that other tests run."""

    def __init__(self, folder: Path, *, endless: Collection[str], elsewhere: Collection[str]) -> None:
        self._folder = folder / "here"
        self._endless = endless
        self._elsewhere = elsewhere
        self._files: set[str] = set()  # written, not used yet
        self._address = ""
        self._printed: list[str] | None = []  # by each command of the last block; none if other tests run it
        self._repeat = ""  # the last command, if it only looks
        self._running: dict[str, Terminal] = {}  # by program
        self._stack = ExitStack()
        self._folder.mkdir()
        self._environment = environment(folder)

    def __enter__(self) -> Self:
        self._shell = self._open(["bash", "--norc"])
        self._shell.type("set -o pipefail")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def follow(self, document: str) -> None:
        """From the first block to the last; fails at the first that does not do what it says."""
        for block in blocks(document):
            try:
                self._do(block)
            except AssertionError as error:
                raise AssertionError(f"the block at line {block.line}: {error}\n{block.text}") from error
        assert not self._files, f"written and never used: {self._files}"

    def _do(self, block: Block) -> None:
        match block.language:
            case "python" | "toml":
                assert block.file_name, f"no file is named before it: {block.before}"
                (self._folder / block.file_name).write_text(block.text.replace(ADDRESS, self._address))
                self._files.add(block.file_name)
            case "sh":
                self._type(commands(block))
            case "text":
                self._look(block.text)
            case "none":
                pass
            case unknown:
                raise AssertionError(f"what is a block of {unknown!r}?")

    def _type(self, lines: list[str]) -> None:
        self._files = {name for name in self._files if not any(Path(name).stem in line for line in lines)}
        for terminal in self._running.values():
            terminal.look_away()
        here = [line for line in lines if line not in self._elsewhere]
        self._printed = [self._run(line) for line in here] if here else None

    def _run(self, line: str) -> str:
        self._repeat = ""
        if line in self._endless:
            program = line.split(maxsplit=1)[0]
            if program in self._running:
                self._running[program].interrupt()
            terminal = self._running[program] = self._open(["bash", "-c", f"exec {line}"])
            if line.startswith("rmq-broker"):
                self._address = terminal.wait_for(READY.pattern)[1]
                self._shell.type(f"export RMQ_BROKER={self._address}")
                self._environment["RMQ_BROKER"] = self._address
            return ""
        self._repeat = line if LOOKING.match(line) else ""
        code, printed = self._shell.type(line)
        for _ in range(LOOKS if self._repeat else 0):
            if code in (0, REQUIRES_ACTION):
                break
            PATIENCE.wait(1)  # what it looks for may come yet
            code, printed = self._shell.type(line)
        assert code in (0, REQUIRES_ACTION), f"{line} ended with {code}: {printed}"
        return printed

    def _look(self, wanted: str) -> None:
        """Until everything is seen; what only looks is typed again meanwhile."""
        if self._printed is None:
            return
        for _ in range(LOOKS if self._repeat else int(DEADLINE_S * 10)):
            seen = [*self._printed, *(terminal.news for terminal in self._running.values())]
            if not (left := missing(wanted, *seen)):
                return
            PATIENCE.wait(1 if self._repeat else 0.1)
            if self._repeat:
                self._printed[-1] = self._shell.type(self._repeat)[1]
        raise AssertionError(f"never printed: {left}; but: {''.join(seen)}")

    def _open(self, command: list[str]) -> Terminal:
        terminal = Terminal(command, self._folder, self._environment)
        self._stack.callback(terminal.close)
        return terminal


def environment(folder: Path) -> dict[str, str]:
    """
    That of a user who has just installed rmq: its commands are found, and a broker takes a free port.

    The commands run the modules under test, wherever they are installed.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in COMMANDS:
        module = f"rmq.cli.{name.replace('-', '_')}"
        _program(programs / name, f'exec {sys.executable} -m {module} "$@"')
    _program(programs / "python", f'exec {sys.executable} "$@"')
    return {
        "HOME": str(folder),
        "PATH": f"{programs}:{os.path.dirname(shutil.which('bash') or '/bin/bash')}:/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "100",
        "RMQ_HOME": str(folder / "data"),
        "RMQ_BROKER_LISTEN": "127.0.0.1:0",
        "RMQ_BROKER_MIN_FREE_BYTES": "0",
    }


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
