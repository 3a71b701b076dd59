"""A peer that is not here is told, not failed; figures of different brokers are of the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.bench.options import Load
from rmq.bench.peers import peers
from rmq.bench.peers.peer import missing_client, missing_server, one_each


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_without_servers_each_peer_says_what_to_install(
    flush: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    found = peers(flush)

    assert found
    for peer in found:
        assert peer.why_not == f"{peer.name}-server is not installed: apt install {peer.name}-server"
        assert peer.native_why_not
        assert peer.durability


def test_a_missing_client_is_told_with_the_group_that_brings_it() -> None:
    assert missing_client("json") == ""
    assert missing_client("json", "no_such_client") == (
        "the client is not installed (no no_such_client): pip install 'rmq[peers]'"
    )


def test_a_server_that_is_found_is_not_missing() -> None:
    assert missing_server("sh", "dash") == ""


def test_peers_are_compared_by_one_producer_and_one_consumer() -> None:
    load = one_each(Load(messages=7, producers=3, consumers=2, connections=4))

    assert load == Load(messages=7)
