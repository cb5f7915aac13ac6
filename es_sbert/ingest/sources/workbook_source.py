"""Excel workbooks (xlsx): the rows of one sheet, with its first row as the header.

| cell | JSON |
|---|---|
| text, number, true or false | the same; a number without a fraction is an integer |
| date, date with time, time of day | ISO 8601 without a zone |
| duration | ISO 8601 (`P1DT2H`) |
| formula | the value that was stored with it; rejected if the workbook was never calculated |
| error (`#N/A`) | rejected |
| empty, or a cell of a merged range other than its first | null |
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, BinaryIO, cast

from es_sbert.errors import SourceError, UsageError, error_summary, require_extra
from es_sbert.ingest.sources.document_source import (
    FileSource,
    Origin,
    ReadCancelled,
    ReadContext,
    ReadSettings,
    Record,
    RejectedRecord,
    RequiredColumns,
    SourceUnavailable,
    preview_context,
)
from es_sbert.ingest.sources.json_values import UnserializableValue, value_to_json
from es_sbert.ingest.sources.table_rows import WORKBOOK_ROWS, row_record
from es_sbert.io.file_formats import Compression
from es_sbert.io.file_signatures import SIGNATURE_BYTES, recognize_file, recognize_markup
from es_sbert.io.text_formats import CorruptStream, parse_header
from es_sbert.messages import shorten, size_text

_BUFFER_BYTES = 1 << 18
# Greater integers are not exact in a workbook.
_EXACT_INTEGER = 2**53

# Limits on workbooks, which a few megabytes of a zip archive can exceed a thousandfold. openpyxl holds the shared texts
# and the formats in memory, and then one row of the sheet at a time.
_MAX_UNPACKED = 2 << 30  # bytes of all parts
_MAX_OPENED = 512 << 20  # cost of what is read before the first row
_MAX_ROW = 128 << 20  # cost of what is read from one row to the next
_MAX_ROWS = 1 << 20  # rows of a sheet in the format
# The cost of a part that is read: its bytes, more for each tag and each part, which become objects, and more for parts
# that are read as a whole, because openpyxl makes objects of all their elements.
_TAG_COST = 32
_PART_COST = 16 << 10
_WHOLE_PART_FACTOR = 16
_SAVE_AS_CSV = "save it as CSV UTF-8, which is read line by line"


@dataclass(frozen=True)
class WorkbookSource(FileSource):
    """A sheet of an Excel workbook.

    Rows are read one by one, but the library holds the distinct texts of the workbook in memory.

    Attributes:
        compression: Compression of the whole file, by its name. There should be none.
        sheet: Name of the sheet; None for the only one that is visible.
    """

    compression: Compression | None = None
    sheet: str | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        require_extra("excel", "openpyxl")
        if not self.input.is_rereadable:
            raise UsageError(
                f"{self.name} cannot be read as a workbook: the index of a workbook is at its end", "Name a file."
            )
        if self.compression is not None:
            raise SourceError(f"{self.name} is an Excel workbook inside {self.compression}", "Unpack it first.")
        with self._opened(preview_context(max_bytes)) as file:
            self._check_signature(file)
            for _, cells, _ in self._rows(file):
                required.check(self.name, _header(cells))
                break

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        with self._opened(context) as file:
            names: list[str] | None = None
            for number, cells, formulas in self._rows(file):
                if context.stop.is_set():
                    raise ReadCancelled
                if names is None:
                    names = _header(cells)
                else:
                    yield self._record(names, number, cells, formulas, context.settings)
            context.counter.bytes += self.size or 0

    def _record(
        self, names: Sequence[str], number: int, cells: Sequence[Any], formulas: Sequence[Any], settings: ReadSettings
    ) -> Record | RejectedRecord:
        row: dict[str, Any] = dict.fromkeys(names)
        for column, (cell, formula) in enumerate(zip(cells, formulas or repeat(None, len(cells)), strict=False)):
            value = _cell_value(cell, formula)
            if column < len(names):
                row[names[column]] = value
            elif value is not None:
                row[f"column {column + 1}"] = UnserializableValue("it has a value, but no name in the header")
        return row_record(row, Origin(self.name, number), settings, WORKBOOK_ROWS)

    @contextmanager
    def _opened(self, context: ReadContext) -> Iterator[BinaryIO]:
        with self.input.open(context) as opened:
            # Buffered, because archives are read in small pieces, each of which would be a request to an object store.
            yield (
                cast(BinaryIO, io.BufferedReader(opened, _BUFFER_BYTES)) if isinstance(opened, io.RawIOBase) else opened
            )

    def _check_signature(self, file: BinaryIO) -> None:
        """Check that the file is a workbook by its first bytes.

        Raises:
            SourceError: the file is not a workbook.
        """
        head = file.read(SIGNATURE_BYTES)
        file.seek(0)
        signature = recognize_file(head) or recognize_markup(head)
        if signature is None:
            remedy = 'If it is CSV, add `format="csv"`. Otherwise save it as .xlsx again.'
            raise SourceError(f"{self.name} is not an Excel workbook (xlsx)", remedy)
        if not signature.is_workbook:
            raise SourceError(f"{self.name} is not an Excel workbook (xlsx): it is {signature.kind}", signature.remedy)

    def _rows(self, file: BinaryIO) -> Iterator[tuple[int, Sequence[Any], Sequence[Any]]]:
        """Yield number, cells and formulas of each row that is not empty; no formulas if the workbook has none.

        Raises:
            SourceError: the named sheet does not exist, or no sheet is named and not exactly one is visible.
            CorruptStream: the file is damaged.
        """
        require_extra("excel", "openpyxl")
        from openpyxl.reader.excel import ExcelReader
        from openpyxl.styles.stylesheet import apply_stylesheet

        with _workbook_errors(), ExitStack() as stack:
            archives: list[_Archive] = []

            def open_sheet(values: bool) -> Any:
                reader = ExcelReader(file, read_only=True, data_only=values, keep_links=False)
                reader.archive = _Archive(file)
                archives.append(reader.archive)
                # The steps of `load_workbook` without those that read other parts.
                reader.read_manifest()
                reader.read_strings()
                reader.read_workbook()
                stack.enter_context(closing(reader.wb))
                apply_stylesheet(reader.archive, reader.wb)
                with reader.archive.without_content():
                    reader.read_worksheets()
                sheet = self._find_sheet(reader.wb)
                # Some programs write wrong dimensions, after which rows and columns would be left out.
                sheet.reset_dimensions()
                # openpyxl yields an empty row for each number that is left out.
                return sheet.iter_rows(max_row=_MAX_ROWS + 1)

            values = open_sheet(values=True)
            formulas = open_sheet(values=False) if _has_formulas(file) else repeat(())
            for number, (cells, own_formulas) in enumerate(zip(values, formulas, strict=False), 1):
                if number > _MAX_ROWS:
                    raise CorruptStream(f"it has rows after row {_MAX_ROWS:,}, the limit of the format: {_SAVE_AS_CSV}")
                for archive in archives:
                    archive.start_row()
                if any(cell.value is not None for cell in cells) or any(map(_is_formula, own_formulas)):
                    yield number, cells, own_formulas

    def _find_sheet(self, book: Any) -> Any:
        sheets = {sheet.title: sheet for sheet in book.worksheets}
        if self.sheet is not None and self.sheet not in sheets:
            remedy = f"Set `sheet` to one of its sheets: {shorten(', '.join(map(repr, sheets)))}."
            raise SourceError(f"{self.name} has no sheet {self.sheet!r}", remedy)
        if self.sheet is not None:
            return sheets[self.sheet]
        visible = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
        if not visible:
            raise SourceError(f"{self.name} has no visible sheet of cells", "Set `sheet` to a hidden one.")
        if len(visible) > 1:
            names = shorten(", ".join(repr(sheet.title) for sheet in visible))
            raise SourceError(f"{self.name} has {len(visible)} sheets: {names}", "Set `sheet` to one of them.")
        return visible[0]


class _Archive(zipfile.ZipFile):
    """The parts of a workbook for openpyxl, within the limits.

    Raises:
        CorruptStream: a limit is exceeded, or a part is not as the format requires.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        unpacked = sum(entry.file_size for entry in self.infolist())
        if unpacked > _MAX_UNPACKED:
            raise CorruptStream(
                f"the workbook has {size_text(unpacked)} when it is unpacked, more than the limit of "
                f"{size_text(_MAX_UNPACKED)}: {_SAVE_AS_CSV}"
            )
        # The format has no other compression, and Python does not unpack others in pieces.
        if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in self.infolist()):
            raise CorruptStream("the workbook is not compressed by DEFLATE; save it again")
        self._what, self._limit = "the texts and formats of the workbook", _MAX_OPENED
        self._cost = 0
        self._has_content = True

    @contextmanager
    def without_content(self) -> Iterator[None]:
        """Open sheets as empty ones: to list them, openpyxl would read each of them to its end for its dimensions."""
        self._has_content = False
        yield
        self._has_content = True

    def start_row(self) -> None:
        self._what, self._limit = "a row of the sheet, or what follows the last row,", _MAX_ROW
        self._cost = 0

    def add_cost(self, cost: int) -> None:
        self._cost += cost
        if self._cost > self._limit:
            limit = size_text(self._limit)
            raise CorruptStream(f"{self._what} would take more memory than the limit of {limit}: {_SAVE_AS_CSV}")

    def open(self, name: Any, *args: Any, **options: Any) -> Any:
        self.add_cost(_PART_COST)
        if not self._has_content and not name.endswith(".rels"):
            return io.BytesIO(b"<worksheet/>")
        return _Part(cast(BinaryIO, super().open(name, *args, **options)), self)


# Entities multiply texts, and the format does not allow document types.
_DOCUMENT_TYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be"))


class _Part(io.BufferedIOBase):
    """A part of a workbook, unpacked in pieces: an archive can understate its size."""

    def __init__(self, part: BinaryIO, archive: _Archive) -> None:
        super().__init__()
        self._part, self._archive = part, archive
        self._tail = b""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(partial(self._read_piece, _BUFFER_BYTES, _WHOLE_PART_FACTOR), b""))
        return self._read_piece(size)

    def _read_piece(self, size: int, factor: int = 1) -> bytes:
        piece = self._part.read(size)
        self._archive.add_cost(factor * (len(piece) + _TAG_COST * piece.count(b"<")))
        data = self._tail + piece
        if any(mark in data for mark in _DOCUMENT_TYPES):
            raise CorruptStream("the workbook has a document type, which the format does not allow; save it again")
        self._tail = data[-max(map(len, _DOCUMENT_TYPES)) :]
        return piece

    def close(self) -> None:
        self._part.close()
        super().close()


@contextmanager
def _workbook_errors() -> Iterator[None]:
    try:
        yield
    except (SourceError, SourceUnavailable, CorruptStream, ReadCancelled, OSError):
        raise
    except Exception as error:  # openpyxl raises many kinds on damaged files
        raise CorruptStream(f"the Excel workbook is damaged ({error_summary(error)})") from error


_SHEETS = "xl/worksheets/"


def _has_formulas(file: BinaryIO) -> bool:
    """Whether a sheet of the workbook has a formula."""
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if not entry.filename.startswith(_SHEETS):
                continue
            with archive.open(entry) as sheet:
                rest = b""
                while chunk := sheet.read(_BUFFER_BYTES):
                    data = rest + chunk
                    if b"<f>" in data or b"<f " in data or b"<f/" in data:
                        return True
                    rest = data[-2:]
    return False


def _header(cells: Sequence[Any]) -> list[str]:
    """Read the names of the columns.

    Raises:
        CorruptStream: the row is not a header.
    """
    return parse_header(["" if cell.value is None else str(cell.value) for cell in cells])


def _is_formula(cell: Any) -> bool:
    return bool(getattr(cell, "data_type", None) == "f")


def _cell_value(cell: Any, formula: Any) -> Any:
    """Convert a cell to its JSON value.

    Args:
        cell: The cell with the stored value.
        formula: The same cell with its formula; None if the workbook has no formulas.
    """
    value = cell.value
    if value is None:
        if not _is_formula(formula):
            return None
        return UnserializableValue("its formula was never calculated: open the workbook in Excel and save it")
    if cell.data_type == "e":
        return UnserializableValue(f"the cell has the error {value}")
    if isinstance(value, datetime) and _is_date_only(cell.number_format):
        return value.date().isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_INTEGER:
        return int(value)
    return value_to_json(value)


def _is_date_only(number_format: str) -> bool:
    from openpyxl.styles.numbers import is_datetime

    return bool(is_datetime(number_format) == "date")
