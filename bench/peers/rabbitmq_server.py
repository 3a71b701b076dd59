"""RabbitMQ: a durable queue, persistent messages and publisher confirms, in a node that nothing else knows of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .peer import Peer, missing_client, missing_server
from .server import LOCAL, Server, found, free_port, run_server

GREETING = b"AMQP\x00\x00\x09\x01"
START_FRAME = b"\x01\x00\x00"  # of a method, on channel 0: the server introduces itself
NAMES = b"\x00\x01n"  # asks epmd for the nodes it knows; the answer begins with its port


def peer() -> Peer:
    """RabbitMQ as it is installed."""
    return Peer(
        name="rabbitmq",
        durability="fsync before confirms",
        why_not=missing_server("rabbitmq-server", "rabbitmq-server") or missing_client("pika"),
        client="rmq.bench.peers.rabbitmq_client",
        start=start,
    )


def script(wrapper: Path) -> Path:
    """The server itself: Debian's command of that name insists on a user and on directories of its own."""
    debian = wrapper.parent.parent / "lib" / "rabbitmq" / "bin" / wrapper.name
    return debian if debian.exists() else wrapper


def configuration(port: int) -> str:
    """Its settings."""
    return f"listeners.tcp.1 = {LOCAL}:{port}\nlog.file.level = warning\nlog.console.level = warning\n"


def environment(folder: Path, epmd_port: int, node_port: int) -> dict[str, str]:
    """What keeps it from the files, the ports and the node names of the machine's own."""
    return {
        "HOME": str(folder),  # where its cookie is
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": LOCAL,
        "RABBITMQ_NODENAME": f"rmq-bench-{node_port}@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


@contextmanager
def start(folder: Path) -> Iterator[Server]:
    """A node that runs, with a port mapper of its own: Erlang would start one and leave it behind."""
    port, epmd_port = free_port(), free_port()
    names = folder / "epmd"
    names.mkdir()
    (folder / "rabbitmq.conf").write_text(configuration(port))
    (folder / "plugins").write_text("[].\n")
    command = [str(script(Path(found("rabbitmq-server"))))]
    surroundings = {**os.environ, **environment(folder, epmd_port, free_port())}
    epmd = [found("epmd"), "-port", str(epmd_port), "-address", LOCAL]
    with (
        run_server("epmd", epmd, epmd_port, names, ask=NAMES, answer=epmd_port.to_bytes(4, "big")),
        run_server(
            "rabbitmq-server", command, port, folder, ask=GREETING, answer=START_FRAME, environment=surroundings
        ) as server,
    ):
        yield server
