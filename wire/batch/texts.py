"""The columns of texts in a batch to be: lengths and bytes in a row, hashes of keys, codes of tags."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence

from ..errors import BadBatch
from .checksum import crc32
from .columns import count_keys
from .native import native

_SWAP = sys.byteorder == "big"


def little(typecode: str, values: Sequence[int]) -> bytes:
    """Numbers as a column."""
    column = array(typecode, values)
    if _SWAP:  # pragma: no cover  # needs a big-endian machine
        column.byteswap()
    return column.tobytes()


def pack_codes(values: Sequence[str | None], codes: Mapping[str | None, int]) -> bytes:
    """The column of a code each; raises KeyError for a value that has none."""
    packed = None if native is None else native.pack_codes(values, codes)
    return pack_any_codes(values, codes) if packed is None else packed


def pack_any_codes(values: Sequence[str | None], codes: Mapping[str | None, int]) -> bytes:
    """The same for values and codes of any kind."""
    return little("H", list(map(codes.__getitem__, values)))


def pack_keys(rows: Sequence[Sequence[str]]) -> tuple[list[bytes], bytes]:
    """
    The columns of keys and of their hashes.

    Raises:
        BadBatch: a key is empty or holds a space.
    """
    if native is not None and (packed := native.pack_keys(rows)) is not None:
        lengths, blob, hashes = packed
        return [lengths, blob], hashes
    return pack_any_keys(rows)


def pack_any_keys(rows: Sequence[Sequence[str]]) -> tuple[list[bytes], bytes]:
    """The same for any rows, also for those that have several keys or none."""
    try:
        texts = keys = [key for (key,) in rows]  # one each is the rule
    except ValueError:
        texts, keys = [" ".join(row) for row in rows], [key for row in rows for key in row]
    encoded, blob = encode_all(texts)
    hashes = list(map(crc32, encoded if keys is texts else encode_all(keys)[0]))
    lengths = list(map(len, encoded))
    if count_keys(lengths, blob) != len(hashes):
        raise BadBatch("a key is empty or holds a space")
    return [little("I", lengths), blob], little("I", hashes)


def encode_all(texts: list[str]) -> tuple[list[bytes], bytes]:
    """Each text, and all of them in a row. Encoding them together takes half the time of one by one."""
    together = "\0".join(texts).encode()
    encoded = together.split(b"\0")
    if len(encoded) == len(texts):
        return encoded, together.replace(b"\0", b"")
    encoded = [text.encode() for text in texts]  # one of them has the separator
    return encoded, b"".join(encoded)


def pack_texts(texts: list[str]) -> list[bytes] | None:
    """The column of a text each; None if all of them are empty."""
    if not any(texts):
        return None
    if texts.count(texts[0]) == len(texts):  # many messages of one key are the rule: no work for each
        text = texts[0].encode()
        return [little("I", [len(text)]) * len(texts), text * len(texts)]
    encoded, blob = encode_all(texts)
    return [little("I", list(map(len, encoded))), blob]
