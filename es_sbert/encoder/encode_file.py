"""Encode a file of texts into a .npy or JSONL file, in bounded memory."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.encoder import Encoder, EncoderInfo, preparation_text
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.filesystem import is_stream, open_output
from es_sbert.io.file_formats import FileFormat, text_chunks
from es_sbert.io.text_formats import CorruptStream, WrongFormat, split_lines
from es_sbert.messages import be, pluralize, size_text
from es_sbert.vectors import Vectors

VECTOR_FIELD = "embedding"
_CHUNK = 1 << 16
# No text is this long: it is a damaged or hostile file.
_MAX_LINE = 64 << 20


# Returns the text in a field of an object; None if the field holds no text.
TextReader = Callable[[Mapping[str, Any], str], str | None]
# A text, and the JSON object to which its vector will be added.
_TextRecord = tuple[str, bytes]


@dataclass
class EncodeSummary:
    """The result of `encode_file`.

    Attributes:
        texts: Texts read, each of which has a vector in the output.
        truncated: Texts longer than the model reads.
        lost_tokens: Tokens of these texts that were not read.
        max_tokens: Maximum tokens that the model reads of a text.
        seconds: Wall time.
    """

    texts: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    max_tokens: int = 0
    seconds: float = 0.0

    def describe(self, info: EncoderInfo) -> str:
        """Format the summary as lines of text."""
        rate = self.texts / self.seconds if self.seconds else 0.0
        lines = [
            f"{pluralize(self.texts, 'text')} in {self.seconds:.1f} s ({rate:,.0f}/s) by {info.model} "
            f"({info.variant}, {info.provider}, {info.device}){preparation_text(info.prepared_seconds)}"
        ]
        if self.truncated:
            lines.append(
                f"{pluralize(self.truncated, 'text')} {be(self.truncated, past=True)} longer than "
                f"{self.max_tokens} tokens and {be(self.truncated, past=True)} truncated "
                f"({pluralize(self.lost_tokens, 'token')} lost)"
            )
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in info.warnings)])


def encode_file(
    encoder: Encoder,
    source: BinaryIO,
    target: Path | BinaryIO,
    *,
    form: str = "lines",
    text_field: str = "text",
    text_of: TextReader | None = None,
    kind: PromptKind | None = None,
    encoding: str | None = None,
) -> EncodeSummary:
    """Encode every text of a file, in order.

    Args:
        source: Lines, each a text (`lines`) or a JSON object with `text_field` (`jsonl`); may be compressed by gzip or
            zstd.
        text_of: Reads the text of an object; None to read the string under its key `text_field`.
        encoding: Encoding of the lines; None for UTF-8, or UTF-16 with a byte order mark.
        target: A path (with the suffix .npy, an array is written, otherwise JSONL), or a stream, to which JSONL is
            written. A file appears under its name only when it is complete; a pipe or a device is written to directly.

    Raises:
        SourceError: the input is not text, or a line cannot be decoded, is not JSON, or has no text. Nothing is left
            out silently: the output has one vector per line, or there is no output file.
        OutputError: the output cannot be written (no such folder, a full disk).
        UsageError: the text field is the vector field, or an array cannot be written to a pipe.
        BrokenPipeError: the reader has closed the stream.
    """
    if text_field.partition(".")[0] == VECTOR_FIELD:
        raise UsageError(
            f"the text field {text_field!r} conflicts with {VECTOR_FIELD!r}, where the vector is written",
            "Rename the text field.",
        )
    started = time.perf_counter()
    summary = EncodeSummary(max_tokens=encoder.input_limit(kind))
    records = _read_records(_read_lines(source, form, encoding), form, text_field, text_of or _top_level, encoding)
    parts = _encode_records(encoder, records, kind, summary)
    is_array = isinstance(target, Path) and target.suffix == ".npy"
    if isinstance(target, Path) and is_array and is_stream(target):
        raise UsageError(f"{target} is a pipe or a device, which cannot hold an array", "Write it to a file.")
    try:
        with open_output(target) if isinstance(target, Path) else nullcontext(target) as file:
            if is_array:
                _write_npy(file, parts, encoder.info.dimensions)
            else:
                _write_jsonl(file, parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = target if isinstance(target, Path) else "the output"
        raise OutputError(
            f"{name} cannot be written: {error.strerror}", "Free space there, or choose another `output`."
        ) from error
    summary.seconds = time.perf_counter() - started
    return summary


def read_texts(source: BinaryIO) -> list[str]:
    """Read the texts of a file, one per line. The file may be compressed; empty lines are left out.

    Raises:
        SourceError: the file cannot be read, or a line is not UTF-8.
    """
    records = _read_records(_read_lines(source, "lines", None), "lines", "text", _top_level, None)
    return [text for text, _ in records if text.strip()]


def _encode_records(
    encoder: Encoder, records: Iterator[_TextRecord], kind: PromptKind | None, summary: EncodeSummary
) -> Iterator[tuple[list[bytes], Vectors]]:
    """Yield windows of records with their vectors, *shape* ``(records, dimensions)``, and count them in `summary`."""
    pending: deque[bytes] = deque()

    def texts() -> Iterator[str]:
        for text, line in records:
            pending.append(line)
            yield text

    for result in encoder.encode_stream(texts(), kind):
        count = len(result.vectors)
        summary.texts += count
        summary.truncated += int(result.truncated.sum())
        summary.lost_tokens += int(np.maximum(result.tokens - summary.max_tokens, 0).sum())
        yield [pending.popleft() for _ in range(count)], result.vectors


def _top_level(record: Mapping[str, Any], field: str) -> str | None:
    value = record.get(field)
    return value if isinstance(value, str) else None


def _read_records(
    lines: Iterable[bytes], form: str, text_field: str, text_of: TextReader, encoding: str | None
) -> Iterator[_TextRecord]:
    """Yield the text of each line, and its JSON object."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode().rstrip("\r")
            record: Any = {text_field: text} if form == "lines" else orjson.loads(text)
        except UnicodeDecodeError as error:
            remedy = "Convert the file to UTF-8, or name its encoding with `encoding`."
            raise SourceError(f"line {number} is not {encoding or 'UTF-8'}: {error.reason}", remedy) from error
        except orjson.JSONDecodeError as error:
            raise SourceError(
                f"line {number} is not JSON: {error}", 'Write one JSON object per line, or set `form="lines"`.'
            ) from error
        found = text if form == "lines" else text_of(record, text_field) if isinstance(record, dict) else None
        if found is None and _is_null(record, text_field):
            raise SourceError(
                f"line {number} has null under {text_field!r}",
                "Remove the line, or give it a text; an empty string has a vector too.",
            )
        if found is None:
            raise SourceError(
                f"line {number} has no string under {text_field!r}",
                "Set `text_field` to the field that holds the text.",
            )
        if form == "jsonl" and VECTOR_FIELD not in record:
            # The line is copied, so that numbers that orjson cannot represent, and the spelling of others, are kept.
            yield found, text.strip().encode()
        else:
            old = {name: value for name, value in record.items() if name != VECTOR_FIELD}
            yield found, orjson.dumps(old)


def _is_null(record: Any, field: str) -> bool:
    """Whether a field, dotted if nested, is null."""
    for name in [field] if isinstance(record, dict) and field in record else field.split("."):
        if not isinstance(record, dict) or name not in record:
            return False
        record = record[name]
    return record is None


def _read_lines(source: BinaryIO, form: str, encoding: str | None) -> Iterator[bytes]:
    # `read1` returns data as soon as it arrives: a pipe may deliver its lines one by one.
    read = getattr(source, "read1", source.read)
    text = text_chunks(iter(partial(read, _CHUNK), b""), FileFormat(form), encoding)
    try:
        for line in split_lines(text, _MAX_LINE):
            if line.is_too_long:
                raise SourceError(
                    f"line {line.number} has {size_text(line.size)}, more than the limit of {size_text(_MAX_LINE)}",
                    "Split it into several texts, or remove it.",
                )
            yield line.data
    except OSError as error:
        raise SourceError(f"the input cannot be read: {error.strerror}", "Check the file and its disk.") from error
    except WrongFormat as wrong:
        raise SourceError(f"the input cannot be read: {wrong}", wrong.remedy) from wrong
    except CorruptStream as broken:
        raise SourceError(f"the input cannot be read: {broken}", "Fix the file, or write it again.") from broken


def _write_jsonl(file: BinaryIO, parts: Iterable[tuple[list[bytes], Vectors]]) -> None:
    for lines, vectors in parts:
        for line, vector in zip(lines, vectors, strict=True):
            numbers = orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
            file.write(b'%s,"%s":%s}\n' % (line[:-1], VECTOR_FIELD.encode(), numbers))
        file.flush()


def _write_npy(file: BinaryIO, parts: Iterable[tuple[list[bytes], Vectors]], dimensions: int) -> None:
    file.write(npy_header(0, dimensions))  # the number of rows is only known at the end
    rows = 0
    for _, vectors in parts:
        file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        rows += len(vectors)
    file.seek(0)
    file.write(npy_header(rows, dimensions))


def npy_header(rows: int, dimensions: int) -> bytes:
    """Return the header of a .npy file of `(rows, dimensions)` little-endian float32.

    NumPy reserves space for a longer first axis, so the header has the same length for any number of rows.
    Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})
    return header.getvalue()
