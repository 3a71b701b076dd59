"""NATS with JetStream: a stream in files, consumed by a durable pull consumer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .peer import Peer, missing_client, missing_server
from .server import LOCAL, Server, found, free_port, run_server

MAX_PAYLOAD = 8 << 20


def peer() -> Peer:
    """NATS as it is installed: its streams have no setting that syncs before the answer."""
    return Peer(
        name="nats",
        durability="fsync later",
        why_not=missing_server("nats-server", "nats-server") or missing_client("nats"),
        client="rmq.bench.peers.nats_client",
        start=start,
    )


def configuration(port: int, folder: Path) -> str:
    """The whole of its settings: nothing of the machine's own is read. Messages may be as large as ours."""
    return (
        f'listen: "{LOCAL}:{port}"\nmax_payload: {MAX_PAYLOAD}\njetstream: {{ store_dir: {json.dumps(str(folder))} }}\n'
    )


@contextmanager
def start(folder: Path) -> Iterator[Server]:
    """A server that runs; it greets whoever connects."""
    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(configuration(port, folder))
    command = [found("nats-server"), "--config", str(settings)]
    with run_server("nats-server", command, port, folder, answer=b"INFO ") as server:
        yield server
