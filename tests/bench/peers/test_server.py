"""The server of a peer is used once it answers, and always ended."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from rmq.bench.peers.server import asked, found, free_port, last_words, run_server
from rmq.bench.processes import BenchError

ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    connection.sendall(b"+" + connection.recv(100))
    connection.close()
"""


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script, *arguments]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_answers_when_it_is_given_out_and_is_ended_by_ctrl_c(tmp_path: Path) -> None:
    port = free_port()

    with (
        pytest.raises(KeyboardInterrupt),
        run_server("echo", python(ECHO, str(port)), port, tmp_path, ask=b"PING", answer=b"+PING") as server,
    ):
        answered = asked(server.port, b"hello")
        raise KeyboardInterrupt

    assert answered == b"+hello"
    assert not is_alive(server.pid)


def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    port = free_port()
    child = "pipe = open('alive', 'w'); pipe.write('alive'); pipe.flush()\n" + ECHO
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', *sys.argv[1:]])"
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    with run_server("pair", python(parent, child, str(port)), port, tmp_path, ask=b"x", answer=b"+x"):
        assert os.read(alive, 100) == b"alive"

    os.set_blocking(alive, True)
    assert os.read(alive, 100) == b""  # the end of the pipe: nobody is left who could write to it
    os.close(alive)


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    command = python("print('one'); print('no room for me'); raise SystemExit(1)")

    with (
        pytest.raises(BenchError, match="broken ended too early: no room for me"),
        run_server("broken", command, free_port(), tmp_path),
    ):
        pass


def test_a_server_without_words_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "output").touch()

    assert last_words(tmp_path / "output") == "it said nothing"


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_server_is_also_found_beside_the_programs_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbin" / "some-server"
    program.parent.mkdir()
    program.touch(mode=0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    beside = found("some-server")
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))

    assert beside == str(program)
    assert found("some-server") == ""
