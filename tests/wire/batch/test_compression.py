"""Codecs by name and number; what is packed comes back, and nothing unpacks to more than was announced."""

from __future__ import annotations

import importlib
import os
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.compression import CODECS, MIN_SIZE, NAMES, NUMBERS, Codecs
from rmq.wire.errors import BadBatch, UnsupportedFormat

from rigs.batches import every_codec, quick

MIB = 1 << 20


def without(*packages: str) -> Codecs:
    """Codecs on a machine that has not installed some packages."""

    def load(module: str) -> Any:
        if module.split(".", maxsplit=1)[0] in packages:
            raise ModuleNotFoundError(f"No module named {module!r}")
        return importlib.import_module(module)

    return Codecs(load)


def test_the_numbers_never_change() -> None:
    assert NUMBERS == {"zlib": 1, "lz4": 2, "zstd": 3}


@every_codec
def test_a_codec_is_found_by_name_and_by_number(name: str) -> None:
    codec = CODECS.by_name(name)

    assert codec is CODECS.by_number(NUMBERS[name])
    assert (codec.name, codec.number) == (name, NUMBERS[name])


def test_zlib_is_always_there() -> None:
    bare = without("lz4", "zstandard")

    assert bare.available() == ["zlib"]
    assert bare.by_name("zlib").number == 1


@pytest.mark.parametrize(("name", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_a_codec_that_is_not_installed_is_refused_with_the_extra_to_install(name: str, package: str) -> None:
    bare = without(package)

    for _ in range(2):
        with pytest.raises(
            UnsupportedFormat, match=rf"^{name} compression is not installed .*pip install 'rmq\[{name}"
        ):
            bare.by_name(name)
        with pytest.raises(UnsupportedFormat, match=name):
            bare.by_number(NUMBERS[name])
    assert name not in bare.available()


def test_packages_are_not_imported_before_they_are_needed() -> None:
    asked: list[str] = []

    codecs = Codecs(lambda module: asked.append(module) or importlib.import_module(module))

    codecs.by_name("zlib")
    assert asked == []


@pytest.mark.parametrize("name", ["", "gzip", "ZLIB", "none"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"compression '{name}' is unknown: it is one of zlib, lz4, zstd"):
        CODECS.by_name(name)


@pytest.mark.parametrize("number", [n for n in range(-1, 9) if n not in NAMES])
def test_an_unknown_number_is_refused(number: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"compression codec {number} is unknown"):
        CODECS.by_number(number)


@every_codec
@quick
@given(st.binary(max_size=300), st.integers(1, 40))
def test_what_is_packed_comes_back(name: str, some: bytes, times: int) -> None:
    codec, raw = CODECS.by_name(name), some * times

    packed = codec.shrink(raw, 1)

    if packed is not None:
        assert len(packed) < len(raw)
        for buffer in (packed, bytearray(packed), memoryview(packed)):
            assert codec.unpack(buffer, len(raw)) == raw


@every_codec
def test_bytes_that_do_not_shrink_enough_are_left_alone(name: str) -> None:
    codec = CODECS.by_name(name)
    packed = codec.compress(bytes(1000))

    assert codec.shrink(os.urandom(1000), 1) is None
    assert codec.shrink(bytes(1000), 1000 - len(packed)) == packed
    assert codec.shrink(bytes(1000), 1001 - len(packed)) is None
    assert codec.shrink(bytes(MIN_SIZE - 1), 1) is None


@every_codec
@pytest.mark.parametrize("announced", [1, 999, 1001, 5000])
def test_another_size_than_announced_is_refused(name: str, announced: int) -> None:
    codec = CODECS.by_name(name)

    with pytest.raises(BadBatch, match=rf"the bodies (are not {name}|do not unpack to the {announced} bytes)"):
        codec.unpack(codec.compress(bytes(1000)), announced)


@every_codec
def test_bytes_behind_the_end_or_missing_there_are_refused(name: str) -> None:
    codec = CODECS.by_name(name)
    packed = codec.compress(bytes(range(256)) * 8)

    for wrong in (packed + b"\0", packed + packed, packed[:-1], packed[: len(packed) // 2], packed[:1], b""):
        with pytest.raises(BadBatch):
            codec.unpack(wrong, 2048)


@every_codec
@quick
@given(st.binary(max_size=200), st.integers(1, 400), st.integers(0, 300))
def test_garbage_raises_only_a_refusal(name: str, garbage: bytes, raw_size: int, at: int) -> None:
    codec = CODECS.by_name(name)
    packed = codec.compress(b"created paid " * 30)

    for wrong in (garbage, packed[:at] + garbage, packed[:at] + garbage + packed[at + len(garbage) :]):
        try:
            assert len(codec.unpack(wrong, raw_size)) == raw_size
        except BadBatch as error:
            assert error.text


def bombs(name: str) -> list[bytes]:
    """64 MiB of zeros in a few bytes, in each form that the codec has for it."""
    raw = bytes(64 * MIB)
    found = [CODECS.by_name(name).compress(raw)]
    if name == "zlib":
        found.append(zlib.compress(raw, 9))
    if name == "zstd":
        zstandard = importlib.import_module("zstandard")
        found.append(zstandard.ZstdCompressor(write_content_size=False).compress(raw))
        parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
        found.append(zstandard.ZstdCompressor(compression_params=parameters).compress(raw))
    return found


@every_codec
@pytest.mark.parametrize("announced", [1, 1000, MIB])
def test_a_bomb_takes_no_more_memory_than_it_announces(name: str, announced: int) -> None:
    codec = CODECS.by_name(name)
    for bomb in bombs(name):
        tracemalloc.start()
        try:
            with pytest.raises(BadBatch):
                codec.unpack(bomb, announced)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < 2 * announced + len(bomb) + 64 * 1024


def test_a_zstd_frame_may_leave_out_its_size_but_not_lie() -> None:
    zstandard = pytest.importorskip("zstandard")
    codec = CODECS.by_name("zstd")

    assert codec.unpack(zstandard.ZstdCompressor(write_content_size=False).compress(bytes(500)), 500) == bytes(500)
    with pytest.raises(BadBatch, match="the frame holds 500 bytes, and 501 are announced"):
        codec.unpack(zstandard.ZstdCompressor().compress(bytes(500)), 501)
