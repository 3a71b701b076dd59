"""``rmq-broker``: runs a broker, or restores a backup."""

from __future__ import annotations

import errno
import gc
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq.broker.config import BrokerConfig

from .output.stdout import silence_stdout
from .shell import exit_codes
from .shell.command import Failure, Group, run, store_failure, version_option
from .shell.options import config_options, log_options
from .shell.signals import first_of, stop_signals

if TYPE_CHECKING:
    from rmq.broker.app import Broker

_FLAGS = {"listen": "--listen HOST:PORT", "data_dir": "--data-dir FOLDER", "flush": "--flush sync|async"}


@click.group(
    cls=Group,
    examples="""
    rmq-broker start
    rmq-broker start --listen 127.0.0.1:0 --data-dir /tmp/rmq-try
    """,
)
@version_option
def command() -> None:
    """An ordered message broker in one process."""


@command.command(
    examples="""
    rmq-broker start
    rmq-broker start --listen 0.0.0.0:10911 --data-dir /var/lib/rmq
    rmq-broker start --flush async -o default_queues=16 -o segment_bytes=256MiB
    rmq-broker start --show-config > broker.toml
    rmq-broker start --config broker.toml
    """,
)
@config_options(BrokerConfig, "RMQ_BROKER_", _FLAGS)
@log_options("info")
def start(config: BrokerConfig) -> None:
    """
    Run a broker until it is stopped.

    Prints one line with "ready" and the address once it accepts connections. SIGTERM or Ctrl-C drains it and exits
    with code 0; a second signal exits at once with code 130. Neither loses acknowledged messages.
    """
    run(_serve(config))


@command.command(
    examples="""
    rmq-broker restore /backups/monday /var/lib/rmq
    rmq-broker start --data-dir /var/lib/rmq
    """,
)
@click.argument("backup", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@log_options("error")
def restore(backup: Path, directory: Path) -> None:
    """
    Copy BACKUP to DIRECTORY, a new or empty folder that a broker can then start on.

    BACKUP is a copy by `rmq-admin broker backup` or the data directory of a stopped broker; it is not modified. Leases
    end, groups continue at the offsets in the backup, and messages keep their ids.
    """
    from rmq.broker.offline.backup import restore as copy
    from rmq.broker.store.directory import StoreError

    try:
        copied = copy(backup, directory)
    except (OSError, StoreError) as error:
        raise store_failure(error, directory) from error
    size = copied.end - copied.start
    click.echo(
        f"{directory}: {size} bytes, up to position {copied.end}; start a broker on it with --data-dir {directory}"
    )


async def _serve(config: BrokerConfig) -> None:
    from rmq.broker.app import Broker
    from rmq.broker.process import keep_freed_memory, raise_open_files
    from rmq.broker.store.directory import StoreError

    raise_open_files()  # each connection is one
    keep_freed_memory()
    with stop_signals() as asked:
        broker = Broker(config)
        try:
            await broker.start()
        except (OSError, StoreError) as error:
            raise _cannot_start(config, error) from error
        gc.collect()
        gc.freeze()  # what a start made stays for good: looking through it would hold the loop for 15 ms
        try:
            _say_ready(broker)
            await first_of(asked, broker.failed)
        finally:
            await broker.stop()
    if broker.failed.is_set():
        raise Failure(broker.failure, exit_codes.TEMPORARY)


def _say_ready(broker: Broker) -> None:
    config = broker.config
    try:
        click.echo(f"rmq-broker ready on {broker.address}, data in {config.data_path()}, flush {config.flush}")
    except BrokenPipeError:  # standard output is closed: not a reason for a daemon to stop
        silence_stdout()


def _cannot_start(config: BrokerConfig, error: Exception) -> Failure:
    if not isinstance(error, OSError):
        return store_failure(error, config.data_path())
    if error.errno == errno.EADDRINUSE:
        text = f"{config.listen} is in use: is a broker running there? Choose another address with --listen"
    elif error.errno in (errno.EADDRNOTAVAIL, errno.EACCES) and not error.filename:
        text = f"cannot listen on {config.listen} ({os.strerror(error.errno)}): choose another address with --listen"
    elif isinstance(error, socket.gaierror):
        text = f"cannot listen on {config.listen}: unknown host name; choose another address with --listen"
    else:
        return store_failure(error, config.data_path())
    return Failure(text, exit_codes.OS_ERROR)


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-broker")


if __name__ == "__main__":
    main()
