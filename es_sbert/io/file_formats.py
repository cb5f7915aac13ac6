"""File formats, recognized by a file's name or first bytes; decompression and Parquet, with bounded memory.

Files that are not text are named for what they are, with advice how to load them.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import zstandard

from es_sbert.errors import error_summary, require_extra
from es_sbert.io.text_formats import CorruptStream, WrongFormat, read_head, to_utf8
from es_sbert.messages import setting_text


class FileFormat(StrEnum):
    """Format of a file inside its compression."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    PARQUET = "parquet"


FORMAT_HINT = 'Add `format="jsonl"`, csv, tsv, lines or parquet.'

_SUFFIXES = {
    FileFormat.JSONL: (".jsonl", ".ndjson", ".json"),
    FileFormat.CSV: (".csv",),
    FileFormat.TSV: (".tsv", ".tab"),
    FileFormat.LINES: (".txt",),
    FileFormat.PARQUET: (".parquet", ".pq"),
}
_FORMATS_BY_SUFFIX = {suffix: form for form, suffixes in _SUFFIXES.items() for suffix in suffixes}
_ARROW_SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")


def guess_format(name: str) -> tuple[FileFormat | None, Compression | None]:
    """Guess format and compression from a file's name; None if the name does not indicate them."""
    suffix, compression = _split_suffix(name)
    return _FORMATS_BY_SUFFIX.get(suffix), compression


def _split_suffix(name: str) -> tuple[str, Compression | None]:
    path = PurePosixPath(name)
    compression = _COMPRESSION_SUFFIXES.get(path.suffix.lower())
    inner = PurePosixPath(path.stem) if compression else path
    return inner.suffix.lower(), compression


_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Sixteen kinds of skippable frames: pzstd writes one before every frame (RFC 8878, 3.1.2).
_ZSTD_SKIPPABLE = tuple(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
MAGIC_BYTES = 4

# Bytes that are unpacked at a time, to at most 16 MiB for gzip and 32 MiB for zstd, and bytes that are yielded at a
# time: short lines take twenty times their size.
_GZIP_MAX_INPUT = 1 << 14
_ZSTD_MAX_INPUT = 1 << 10
_MAX_OUTPUT = 1 << 20


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_COMPRESSION_SUFFIXES = {".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}


def detect_compression(head: bytes) -> Compression:
    """Recognize the compression from a file's first bytes."""
    if head.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    return Compression.ZSTD if head.startswith((_ZSTD_MAGIC, *_ZSTD_SKIPPABLE)) else Compression.NONE


def decompress(chunks: Iterable[bytes], compression: Compression | None = None) -> Iterator[bytes]:
    """Decompress a stream, as far as possible.

    Args:
        chunks: Raw bytes.
        compression: None detects it from the first bytes.

    Raises:
        CorruptStream: the data is damaged or truncated; everything before the damage has been yielded.
    """
    source: Iterable[bytes] = chunks
    if compression is None:
        head, rest = read_head(chunks, MAGIC_BYTES)
        compression = detect_compression(head)
        source = chain([head] if head else [], rest)
    if compression is Compression.NONE:
        yield from source
    else:
        yield from _decompress(source, compression)


def _decompress(source: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    # Both formats allow several members (frames) in a row, such as from `cat a.gz b.gz`.
    is_gzip = compression is Compression.GZIP
    max_input = _GZIP_MAX_INPUT if is_gzip else _ZSTD_MAX_INPUT
    decoder: Any = None
    try:
        for chunk in source:
            data = chunk
            while data:
                if decoder is None:
                    # Tape archives and some tools pad gzip files with zeros.
                    data = data.lstrip(b"\0") if is_gzip else data
                    if not data:
                        break
                    decoder = zlib.decompressobj(wbits=31) if is_gzip else zstandard.ZstdDecompressor().decompressobj()
                out, data = decoder.decompress(data[:max_input]), data[max_input:]
                for start in range(0, len(out), _MAX_OUTPUT):
                    yield out[start : start + _MAX_OUTPUT]
                if decoder.eof:
                    data = decoder.unused_data + data
                    decoder = None
        if decoder is not None:
            raise CorruptStream(f"the {compression} data ends early: the file is truncated")
    except (zlib.error, zstandard.ZstdError) as error:
        raise CorruptStream(f"the {compression} data is damaged ({error})") from error


# Bytes from the beginning of a file that are examined.
SIGNATURE_BYTES = 1 << 13

_SAVE_AS_CSV = "Save it as CSV UTF-8 in a spreadsheet program, or run: `soffice --headless --convert-to csv FILE`"
_READ_WORKBOOK = "print(pandas.read_excel('FILE').to_json(orient='records', lines=True, date_format='iso'))"


class Signature(NamedTuple):
    """The recognized format of a file.

    Attributes:
        kind: Format with an article: `a PDF document`.
        remedy: Advice on loading its contents.
    """

    kind: str
    remedy: str


_WORKBOOK = Signature(
    "an Excel workbook",
    "Save the sheet as CSV UTF-8, without a password, or with pandas and openpyxl: "
    f'`python -c "import pandas; {_READ_WORKBOOK}" | es-sbert ingest … --format jsonl -`.',
)
_ARROW = Signature(
    "an Arrow or Feather file",
    "Write its table as Parquet: pyarrow.parquet.write_table(pyarrow.feather.read_table('FILE'), 'FILE.parquet'), or "
    "with pyarrow.ipc.open_stream('FILE').read_all() for a stream.",
)
_ARCHIVE = Signature(
    "an archive or a compressed file",
    "Unpack it and name the files in it, or pipe its text to stdin (`xzcat FILE` or `unzip -p FILE`, for example).",
)
_SQLITE = Signature(
    "an SQLite database",
    'Write the rows of a query to a file: `sqlite3 -header -csv FILE "SELECT …" > rows.csv`.',
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_OTHER_ARCHIVES = (b"\xfd7zXZ\0", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
_PREFIXES = (
    (b"%PDF-", Signature("a PDF document", "Extract its text first, for example with pdftotext.")),
    (b"SQLite format 3\0", _SQLITE),
    *((prefix, _ARROW) for prefix in (b"ARROW1\0\0", b"FEA1\0")),
    # Files of Excel before 2007, and encrypted ones.
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _WORKBOOK),
    *((prefix, _ARCHIVE) for prefix in (_GZIP_MAGIC, _ZSTD_MAGIC, *_ZIP, *_OTHER_ARCHIVES)),
)


def recognize_name(name: str) -> Signature | None:
    """Recognize a file by its name: Arrow, whose streams begin with no signature and which may be compressed."""
    return _ARROW if _split_suffix(name)[0] in _ARROW_SUFFIXES else None


def recognize_file(head: bytes) -> Signature | None:
    """Recognize a file by its first `SIGNATURE_BYTES` bytes; None if it may be text."""
    if head.startswith(_ZIP) and (office := _recognize_office(head)) is not None:
        return office
    for prefix, signature in _PREFIXES:
        if head.startswith(prefix):
            return signature
    # The signatures of these formats are letters, which could also begin a text: more bytes are checked.
    if head.startswith(b"PAR1") and head[4:5] < b" " and not head[4:5].isspace():
        return Signature("a Parquet file", 'Add `format="parquet"`, or name the file .parquet.')
    if (head.startswith(b"BZh") and head[4:10] == b"1AY&SY") or head[257:262] == b"ustar":
        return _ARCHIVE
    return None


def _recognize_office(head: bytes) -> Signature | None:
    """Recognize the zip archives of office programs."""
    if b"application/vnd.oasis.opendocument.spreadsheet" in head:
        return Signature("an OpenDocument spreadsheet (ods)", f"{_SAVE_AS_CSV}.")
    is_document = b"application/vnd.oasis.opendocument" in head or b"word/" in head or b"ppt/" in head
    if b"xl/" in head or (b"[Content_Types].xml" in head[:200] and not is_document):
        return _WORKBOOK
    return Signature("an Office document", "Extract its text first.") if is_document else None


def recognize_utf16(head: bytes) -> Signature | None:
    """Recognize UTF-16 without a byte order mark: every other byte of Western text is zero."""
    pairs = len(head) // 2
    if pairs < 4 or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return None
    for encoding, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[0::2])):
        if zeros.count(0) > pairs * 0.7 and head.count(0) < pairs * 1.2:
            return Signature("UTF-16 without a byte order mark", f"Add {setting_text('encoding', encoding)}.")
    return None


def _recognize_line_ends(head: bytes) -> Signature | None:
    """Recognize a text whose lines end in a bare carriage return, as in Excel's "CSV (Macintosh)"; else None."""
    # UTF-16 is left out, because 0x0D is a part of other characters there.
    if b"\n" in head or b"\0" in head or head.count(b"\r") < 2:
        return None
    kind = "a text whose lines end in a carriage return alone"
    return Signature(kind, "Convert it: tr '\\r' '\\n' < FILE > NEW. Or save it as CSV UTF-8.")


def recognize_markup(head: bytes) -> Signature | None:
    """Recognize HTML or XML, which web applications also name .csv or .xls; else None."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<table", b"<head", b"<body", b"<meta")):
        return Signature(
            "an HTML page",
            f"If it is an error or a login page, download the file again; if it is a table: {_SAVE_AS_CSV}.",
        )
    if start.startswith((b"<?xml", b"<workbook", b"<ss:workbook")):
        return Signature("an XML file", f"If it is a table: {_SAVE_AS_CSV}. Otherwise convert it to JSON Lines.")
    return None


def text_chunks(chunks: Iterable[bytes], form: FileFormat, encoding: str | None = None) -> Iterator[bytes]:
    """Yield the text of a file, decompressed and as UTF-8.

    Args:
        chunks: The bytes of the file.
        form: One of the text formats.
        encoding: See `to_utf8`.

    Raises:
        WrongFormat: the file is not a text, or not UTF-8 although no encoding is given.
        CorruptStream: the compression is damaged, or the file is truncated.
    """
    # No more bytes are awaited, because a pipe may deliver a single short line.
    head, rest = read_head(decompress(chunks), MAGIC_BYTES)
    start = head[:SIGNATURE_BYTES]
    signature = (
        recognize_file(start)
        or (recognize_utf16(start) if encoding is None else None)
        or _recognize_line_ends(start)
        or (recognize_markup(start) if form is not FileFormat.LINES else None)
    )
    if signature is not None:
        expected = "plain text" if form is FileFormat.LINES else form.upper()
        raise WrongFormat(f"it is {signature.kind}, not {expected}", signature.remedy)
    yield from to_utf8(chain([head], rest), encoding)


# Bytes of a column that are read at a time, and bytes and number of rows that are decoded at a time. The size of a row
# group is stated before decoding: with a dictionary or run lengths, a few bytes can be the same long text or list in
# every row. Therefore batches are small; larger ones are hardly faster.
_READ_BYTES = 1 << 20
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 6


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file, read its footer, and yield a `pyarrow.parquet.ParquetFile`.

    Raises:
        OSError: the file does not exist, or cannot be opened.
        CorruptStream: the file is not a Parquet file, or its data is damaged.
        UsageError: pyarrow is not installed.
    """
    require_extra("parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    with open(path, "rb"):  # to get the system's error rather than Arrow's
        pass
    try:
        # Read page by page: `pre_buffer` would fetch whole row groups.
        with ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
            yield opened
    # Names may not be UTF-8, and a length may be more than the memory.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise CorruptStream(f"the Parquet data is damaged ({error_summary(error)})") from error


def parquet_batches(
    file: Any, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None
) -> Iterator[Any]:
    """Yield record batches in the order of the file, with memory for one batch.

    Args:
        file: The result of `open_parquet`.
        columns: Names of the columns to read; None reads all.
        groups: Row groups to read; None reads all.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        meta = file.metadata.row_group(group)
        a_row = max(1, meta.total_byte_size // max(1, meta.num_rows))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // a_row))
        # Read group by group, so that data fetched ahead for a group is released with it.
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
