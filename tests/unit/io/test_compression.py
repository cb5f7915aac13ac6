"""gzip and zstd streams: whole, in several members, cut off and damaged."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.io.file_formats import Compression, decompress, detect_compression
from es_sbert.io.text_formats import CorruptStream
from tests.raised import raises_as_recorded

PACK = {Compression.GZIP: gzip.compress, Compression.ZSTD: zstandard.ZstdCompressor().compress}
packed = pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])


def in_chunks(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def unpack(chunks: Iterator[bytes]) -> tuple[bytes, str]:
    """What comes out, and how it broke off."""
    out = bytearray()
    try:
        for chunk in decompress(chunks):
            out += chunk
    except CorruptStream as broken:
        return bytes(out), str(broken)
    return bytes(out), ""


@packed
@given(members=st.lists(st.binary(max_size=3000), min_size=1, max_size=4), size=st.integers(1, 5000))
def test_concatenated_members_are_decompressed(compression: Compression, members: list[bytes], size: int) -> None:
    data = b"".join(PACK[compression](member) for member in members)
    assert b"".join(decompress(in_chunks(data, size))) == b"".join(members)


@given(data=st.binary(max_size=200), size=st.integers(1, 50))
def test_uncompressed_bytes_pass_through(data: bytes, size: int) -> None:
    if detect_compression(data) is Compression.NONE:
        assert b"".join(decompress(in_chunks(data, size))) == data


@packed
@given(data=st.binary(min_size=200, max_size=2000), where=st.floats(0.3, 0.99))
def test_truncated_stream_yields_a_prefix_and_raises(compression: Compression, data: bytes, where: float) -> None:
    whole = PACK[compression](data)
    out, problem = unpack(in_chunks(whole[: int(len(whole) * where)], 100))
    assert "truncated" in problem
    assert data.startswith(out)


@packed
def test_damaged_data_raises_corrupt_stream(compression: Compression) -> None:
    whole = bytearray(PACK[compression](bytes(range(256)) * 50))
    whole[4:20] = b"\xff" * 16
    with raises_as_recorded(CorruptStream):
        b"".join(decompress(in_chunks(bytes(whole), 10)))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_zstd_skippable_frames_are_skipped(size: int) -> None:
    note = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    data = note + PACK[Compression.ZSTD](b"one\n") + note + note + PACK[Compression.ZSTD](b"two\n") + note
    assert detect_compression(data) is Compression.ZSTD
    assert unpack(in_chunks(data, size)) == (b"one\ntwo\n", "")
    assert unpack(in_chunks(data[:-1], size))[1] == "the zstd data ends early: the file is truncated"


def test_zeros_after_gzip_data_are_padding() -> None:
    assert b"".join(decompress([gzip.compress(b"text") + b"\0" * 500, b"\0" * 12])) == b"text"


@packed
def test_decompression_step_is_bounded(compression: Compression) -> None:
    bomb = PACK[compression](b"\0" * (64 << 20))
    assert max(len(chunk) for chunk in decompress([bomb])) <= 33 << 20
