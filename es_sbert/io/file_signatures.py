"""Recognize files that are not text by their first bytes, and advise how to load them."""

from __future__ import annotations

import codecs
from typing import NamedTuple

from es_sbert.messages import setting_text

# Bytes from the beginning of a file that are examined.
SIGNATURE_BYTES = 1 << 13

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_SAVE_AS_CSV = "Save it as CSV UTF-8 in a spreadsheet program, or run: `soffice --headless --convert-to csv FILE`"
_READ_WORKBOOK = "print(pandas.read_excel('FILE').to_json(orient='records', lines=True, date_format='iso'))"
_UNPACK = "Unpack it, or pipe the text to stdin: `{command} FILE | es-sbert ingest … - --format …`."


class Signature(NamedTuple):
    """The recognized format of a file.

    Attributes:
        kind: Format with an article: `a PDF document`.
        remedy: Advice on loading its contents.
    """

    kind: str
    remedy: str


_WORKBOOK = Signature(
    "an Excel workbook (xlsx)",
    "Save the sheet as CSV UTF-8, or with pandas and openpyxl: "
    f'`python -c "import pandas; {_READ_WORKBOOK}" | es-sbert ingest … --format jsonl -`.',
)
_PREFIXES = (
    (b"%PDF-", Signature("a PDF document", "Extract its text first, for example with pdftotext.")),
    (b"SQLite format 3\0", Signature("an SQLite database", 'Add `database="sqlite:///FILE"` and `sql="SELECT …"`.')),
    (b"ARROW1\0\0", Signature("an Arrow file", 'Add `format="arrow"`, or name the file .arrow.')),
    (b"FEA1\0", Signature("a Feather file of version 1", "Write it again in version 2, or as Parquet.")),
    (b"\x1f\x8b", Signature("a gzip file", _UNPACK.format(command="zcat"))),
    (b"\x28\xb5\x2f\xfd", Signature("a zstd file", _UNPACK.format(command="zstdcat"))),
    (b"\xfd7zXZ\0", Signature("an xz file", _UNPACK.format(command="xzcat"))),
    (b"7z\xbc\xaf\x27\x1c", Signature("a 7z archive", "Unpack it and name the files in it.")),
    (b"Rar!\x1a\x07", Signature("a RAR archive", "Unpack it and name the files in it.")),
)


def recognize_file(head: bytes) -> Signature | None:
    """Recognize a file by its first `SIGNATURE_BYTES` bytes; None if it may be text."""
    for prefix, signature in _PREFIXES:
        if head.startswith(prefix):
            return signature
    if head.startswith(_ZIP):
        return _recognize_zip(head)
    if head.startswith(_OLE):
        if _ENCRYPTED_PACKAGE in head:
            return Signature("an encrypted Excel workbook", "Save it without a password, or as CSV UTF-8.")
        return Signature("an old (.xls) or an encrypted Excel workbook", "Save it as CSV UTF-8, without a password.")
    # The signatures of both formats are letters, which could also begin a text: more bytes are checked.
    if head.startswith(b"PAR1") and head[4:5] < b" " and not head[4:5].isspace():
        return Signature("a Parquet file", 'Add `format="parquet"`, or name the file .parquet.')
    if head.startswith(b"BZh") and head[4:10] == b"1AY&SY":
        return Signature("a bzip2 file", _UNPACK.format(command="bzcat"))
    if head[257:262] == b"ustar":
        return Signature("a tar archive", "Unpack it and name the files in it.")
    return None


def _recognize_zip(head: bytes) -> Signature:
    if b"application/vnd.oasis.opendocument.spreadsheet" in head:
        return Signature("an OpenDocument spreadsheet (ods)", f"{_SAVE_AS_CSV}.")
    if b"application/vnd.oasis.opendocument" in head:
        return Signature("an OpenDocument file", "Extract its text first.")
    if b"xl/" in head:
        return _WORKBOOK
    if b"[Content_Types].xml" in head[:200] and not (b"word/" in head or b"ppt/" in head):
        return _WORKBOOK
    if b"[Content_Types].xml" in head:
        return Signature("an Office document", "Extract its text first.")
    return Signature(
        "a zip archive", "Unpack it and load the files in it, or give one as 'zip://NAME::FILE' (extra `remote`)."
    )


def recognize_utf16(head: bytes) -> Signature | None:
    """Recognize UTF-16 without a byte order mark: every other byte of Western text is zero."""
    pairs = len(head) // 2
    if pairs < 4 or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return None
    for encoding, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[0::2])):
        if zeros.count(0) > pairs * 0.7 and head.count(0) < pairs * 1.2:
            return Signature("UTF-16 without a byte order mark", f"Add {setting_text('encoding', encoding)}.")
    return None


def recognize_line_ends(head: bytes) -> Signature | None:
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
