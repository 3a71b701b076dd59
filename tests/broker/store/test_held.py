"""A directory is read while no broker uses it, by any number of readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.broker.store.directory import DataDirectory, Held, StoreError


def test_a_directory_in_use_is_refused_with_what_to_do(memory_path: Path) -> None:
    directory = DataDirectory(memory_path)

    with pytest.raises(StoreError, match=f"a broker uses {memory_path}: stop it first, or read a backup"):
        Held(memory_path, "read a backup").take()
    directory.close()
    with Held(memory_path, "read a backup"):
        pass


def test_readers_share_a_directory_and_keep_a_broker_off(memory_path: Path) -> None:
    DataDirectory(memory_path).close()

    with Held(memory_path, "x"), Held(memory_path, "x"), pytest.raises(StoreError, match="another broker uses"):
        DataDirectory(memory_path)
    DataDirectory(memory_path).close()


def test_a_reader_is_refused_even_if_the_lock_file_of_a_broker_was_removed(memory_path: Path) -> None:
    directory = DataDirectory(memory_path)
    (memory_path / "lock").unlink()

    with pytest.raises(StoreError, match=f"a broker uses {memory_path}"):
        Held(memory_path, "read a backup").take()
    directory.close()


def test_a_reader_keeps_a_broker_off_even_if_the_lock_file_was_removed(memory_path: Path) -> None:
    DataDirectory(memory_path).close()

    with Held(memory_path, "x"):
        (memory_path / "lock").unlink()
        with pytest.raises(StoreError, match="another broker uses"):
            DataDirectory(memory_path)


def test_a_copy_without_a_lock_is_free(memory_path: Path) -> None:
    with Held(memory_path, "x"):
        assert not (memory_path / "lock").exists()


def test_a_directory_that_is_missing_is_for_its_reader_to_report(memory_path: Path) -> None:
    with Held(memory_path / "missing", "x"):
        assert not (memory_path / "missing").exists()


def test_closed_once_or_again_it_lets_a_broker_start(memory_path: Path) -> None:
    DataDirectory(memory_path).close()
    held = Held(memory_path, "x")
    held.take()
    held.close()
    held.close()

    started = DataDirectory(memory_path)
    assert started.path == memory_path
    started.close()

    DataDirectory(memory_path).close()
