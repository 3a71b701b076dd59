"""NATS is started with settings of our own."""

from __future__ import annotations

from pathlib import Path

from peers import nats_jetstream


def test_its_settings_keep_streams_in_our_folder_and_stay_on_loopback() -> None:
    text = nats_jetstream.configuration(7000, Path("/scratch"))

    assert text.splitlines() == [
        'listen: "127.0.0.1:7000"', "max_payload: 8388608", 'jetstream: { store_dir: "/scratch" }',
    ]  # fmt: skip
