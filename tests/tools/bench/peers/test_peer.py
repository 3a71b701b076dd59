"""A missing peer is reported, its server is used once it answers and always ended, and all do the same work."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from peers import rabbitmq
from peers.peer import (
    FOLDER,
    asked,
    found,
    free_port,
    last_words,
    missing_client,
    missing_server,
    one_each,
    peers,
    run_server,
)
from rmq.bench.options import Load
from rmq.bench.processes import BenchError


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_without_servers_each_peer_says_what_to_install(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    known = peers(flush)

    assert known
    for peer in known:
        assert peer.why_not == f"{peer.name}-server is not installed: apt install {peer.name}-server"
        assert peer.native_why_not
        assert peer.durability


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_redis_is_a_peer_whether_or_not_it_is_installed(flush: str) -> None:
    assert "redis" in [peer.name for peer in peers(flush)]


def test_a_peer_without_a_benchmark_of_its_own_refuses_to_run_it() -> None:
    with pytest.raises(BenchError, match="rabbitmq: it has no benchmark of its own"):
        rabbitmq.peer().native_produce(Load())


def test_the_client_process_of_every_peer_is_found_in_the_folder_where_it_starts() -> None:
    assert [peer.name for peer in peers() if not (FOLDER / f"{peer.client.replace('.', '/')}.py").is_file()] == []


def test_a_missing_client_names_the_extra_to_install() -> None:
    assert missing_client("json") == ""
    assert missing_client("json", "no_such_client") == (
        "the client is not installed (no no_such_client): pip install 'rmq[peers]'"
    )


def test_a_server_that_is_found_is_not_missing() -> None:
    assert missing_server("sh", "dash") == ""


def test_peers_are_compared_by_one_producer_and_one_consumer() -> None:
    load = one_each(Load(messages=7, producers=3, consumers=2, connections=4))

    assert load == Load(messages=7)


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


def test_a_server_answers_within_the_block_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()

    with (
        pytest.raises(KeyboardInterrupt),
        run_server("echo", python(ECHO, str(port)), port, tmp_path, ask=b"PING", answer=b"+PING") as server,
    ):
        answered = asked(server.port, b"hello")
        raise KeyboardInterrupt

    assert answered == b"+hello"
    assert not is_alive(server.pid)


def test_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    port = free_port()
    child = "pipe = open('alive', 'w'); pipe.write('alive'); pipe.flush()\n" + ECHO
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', *sys.argv[1:]])"
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    with run_server("pair", python(parent, child, str(port)), port, tmp_path, ask=b"x", answer=b"+x"):
        assert os.read(alive, 100) == b"alive"

    os.set_blocking(alive, True)
    assert os.read(alive, 100) == b""  # the end of the pipe: no process is left that could write to it
    os.close(alive)


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    command = python("print('one'); print('no room for me'); raise SystemExit(1)")

    with (
        pytest.raises(BenchError, match="broken ended too early: no room for me"),
        run_server("broken", command, free_port(), tmp_path),
    ):
        pass


def test_a_silent_server_is_reported_as_silent(tmp_path: Path) -> None:
    (tmp_path / "output").touch()

    assert last_words(tmp_path / "output") == "it said nothing"


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_server_is_also_found_in_the_sbin_next_to_a_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbin" / "some-server"
    program.parent.mkdir()
    program.touch(mode=0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    next_to_bin = found("some-server")
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))

    assert next_to_bin == str(program)
    assert found("some-server") == ""
