"""Bytes to lines, in any chunking, with long lines passed over."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.io.text_formats import SAMPLE_BYTES, Line, split_lines


@given(st.lists(st.binary(max_size=30)))
def test_lines_are_independent_of_chunk_boundaries(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    lines = list(split_lines(chunks, 1000))
    assert [line.data for line in lines] == expected
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))


@given(st.lists(st.binary(max_size=30)), st.integers(1, 10))
def test_lines_beyond_the_limit_are_marked_with_their_size(chunks: list[bytes], limit: int) -> None:
    for line, whole in zip(split_lines(chunks, limit), split_lines(chunks, 10_000), strict=True):
        assert line.size == len(whole.data)
        assert line.is_too_long == (len(whole.data) > limit)


def test_too_long_line_is_not_held_in_memory() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"short\n"
        for _ in range(800):
            yield b"x" * 65536
        yield b"\nlast"

    tracemalloc.start()
    try:
        lines = list(split_lines(chunks(), 1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(line.number, line.size, line.is_too_long) for line in lines] == [
        (1, 5, False),
        (2, 800 * 65536, True),
        (3, 4, False),
    ]
    assert len(lines[1].data) == SAMPLE_BYTES
    assert peak < 8 << 20


def test_carriage_return_is_kept() -> None:
    assert list(split_lines([b"a\r\nb"], 10)) == [Line(1, b"a\r", 2), Line(2, b"b", 1)]
