"""``rmq-admin``: inspects and administers a broker."""

from __future__ import annotations

import click

from .admin.broker import broker as broker_group
from .admin.completion import completion
from .admin.deferrals import delay
from .admin.dlq import dlq
from .admin.explain import explain
from .admin.groups import group as group_group
from .admin.locks import lock_status
from .admin.messages import message
from .admin.rocketmq_import import import_rocketmq
from .admin.topics import topic
from .shell.command import Group, version_option
from .top.command import top


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
    """Inspect and administer a broker."""


for each in (
    topic, lock_status, group_group, broker_group, message, dlq, delay, top, explain, import_rocketmq, completion,
):  # fmt: skip
    command.add_command(each)


def main() -> None:
    """Run the command."""
    command(prog_name="rmq-admin")


if __name__ == "__main__":
    main()
