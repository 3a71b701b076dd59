"""What a broker and a backup leave on the disk is for their user only, whatever the umask says."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.wire.batch.batch import Rows, encode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op

from rigs.processes import BrokerProcess
from rigs.raw_peer import RawPeer

pytestmark = pytest.mark.slow

BATCH = bytes(encode("orders", 0, Rows([b"secret"] * 10, 1_700_000_000_000_000, index_keys=["k"] * 10)))


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """New files get all the permissions that are asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    """Return the files that other users may read or write, and the directory itself if they may enter it."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert found
    shared = stat.S_IRWXG | stat.S_IRWXO
    return [str(path) for path in (directory, *found) if path.stat().st_mode & shared]


async def test_a_new_store_and_its_backup_are_for_their_owner_only_and_show_no_whole_session(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    options = "-o", "checkpoint_s=0.1", "-o", "index_file_entries=4"
    with BrokerProcess(data, "127.0.0.1:0", *options) as broker:
        async with RawPeer(broker.address) as peer:
            await peer.ask(Op.CREATE_TOPIC, ["orders", 4])
            await peer.ask(Op.JOIN, ops.Join("g", True, "clustering", "average", {"orders": "*"}))
            await peer.ask(Op.ACQUIRE, ["g", [["orders", 0]]])
            for _ in range(3):
                await peer.ask(Op.SEND, [[[0, BATCH]]])
            ((*_, session, _, _, _, _, _),) = (await peer.ask(Op.LOCK_STATUS, ["g"]))[3]
            locks = data / "config" / "locks.json"
            while not (locks.exists() and json.loads(locks.read_text())["locks"]):
                await peer.ask(Op.PING, [])
        arguments = ["broker", "backup", "--broker", broker.address, str(copy)]
        subprocess.run([sys.executable, "-m", "rmq.cli.rmq_admin", *arguments], check=True, capture_output=True)
        assert not any("store.open_to_others" in line for line in broker.errors)

    (lease,) = json.loads(locks.read_text())["locks"]
    assert lease["session"] == session
    assert len(session) == 8
    assert open_to_others(data) == []
    assert open_to_others(copy) == []


async def test_a_directory_that_others_may_enter_stays_so_and_the_broker_logs_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)

    with BrokerProcess(tmp_path / "data") as broker:
        broker.wait_for_error(lambda lines: any("store.open_to_others" in line for line in lines), "the warning")

    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755
