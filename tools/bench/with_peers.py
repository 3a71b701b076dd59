"""
``rmq-bench`` with other brokers next to ours: in ``produce``, ``end-to-end`` and ``all``, and in a command ``peers``.

    python tools/bench/with_peers.py all            what `make bench` runs
    python tools/bench/with_peers.py peers --help

The options are those of ``rmq-bench``. A broker whose server or Python client is not installed is not shown, and the
report says what to install.
"""

from __future__ import annotations

import click

from peers.peer import peers
from rmq.bench.suite import LOAD, Benchmark
from rmq.cli import rmq_bench
from rmq.cli.shell.command import Group

PEERS = Benchmark(
    "peers", tuple(name for name in LOAD if name not in ("producers", "consumers")), place="peers.compare"
)


@click.group(
    cls=Group,
    commands=dict(rmq_bench.command.commands),
    examples="""
    python tools/bench/with_peers.py all --json
    python tools/bench/with_peers.py peers --batch 1 --messages 50000
    """,
)
def command() -> None:
    """Measure this machine as rmq-bench does, and next to it the other brokers that are installed."""


@rmq_bench.benchmark_command(
    PEERS,
    """
    python tools/bench/with_peers.py peers
    python tools/bench/with_peers.py peers --batch 1 --messages 50000
    python tools/bench/with_peers.py peers --flush sync --json
    """,
)
def compared() -> None:
    """
    Compare rmq with Redis, NATS and RabbitMQ: the same messages, one process that sends and one that consumes.

    Those whose server (apt install redis-server nats-server rabbitmq-server) and client (pip install 'rmq[peers]') are
    installed are started, each with a directory of its own. The others are not shown.
    """


command.add_command(compared)

if __name__ == "__main__":
    command(prog_name="with_peers.py", obj=peers)
