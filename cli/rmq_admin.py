"""``rmq-admin``: look at a broker and change it."""

from __future__ import annotations

import click

from .admin_broker import broker as broker_group
from .admin_completion import completion
from .admin_delays import delay
from .admin_dlq import dlq
from .admin_explain import explain
from .admin_groups import group as group_group
from .admin_import import import_rocketmq
from .admin_locks import lock_status
from .admin_messages import message
from .admin_top import top
from .admin_topics import topic
from .command import Group, version_option


@click.group(
    cls=Group,
    examples="""
    rmq-admin topic create orders --queues 8
    rmq-admin topic list
    rmq-admin explain billing
    rmq-admin group describe billing
    rmq-admin message query --key o-17
    rmq-admin delay list
    rmq-admin lock-status --watch
    rmq-admin top
    """,
)
@version_option
def command() -> None:
    """Look at a broker and change it."""


command.add_command(topic)
command.add_command(lock_status)
command.add_command(group_group)
command.add_command(broker_group)
command.add_command(message)
command.add_command(dlq)
command.add_command(delay)
command.add_command(top)
command.add_command(explain)
command.add_command(import_rocketmq)
command.add_command(completion)


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-admin")


if __name__ == "__main__":
    main()
