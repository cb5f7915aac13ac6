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
from itertools import repeat
from typing import Any, BinaryIO, cast

from es_sbert.errors import SourceError, UsageError, error_summary, require_extra
from es_sbert.ingest.records import Origin, Record, RejectedRecord
from es_sbert.ingest.sources.document_source import (
    FileSource,
    ReadCancelled,
    ReadContext,
    ReadSettings,
    RequiredColumns,
    preview_context,
)
from es_sbert.ingest.sources.json_values import UnserializableValue, value_to_json
from es_sbert.ingest.sources.table_rows import WORKBOOK_ROWS, row_record
from es_sbert.io.file_formats import Compression
from es_sbert.io.file_signatures import SIGNATURE_BYTES, recognize_file, recognize_markup
from es_sbert.io.text_formats import CorruptStream, parse_header

_BUFFER_BYTES = 1 << 18
# Greater integers are not exact in a workbook.
_EXACT_INTEGER = 2**53


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
        from openpyxl import load_workbook

        with _workbook_errors(), ExitStack() as stack:

            def open_sheet(values: bool) -> Any:
                book = load_workbook(file, read_only=True, data_only=values)
                stack.enter_context(closing(book))
                sheet = self._find_sheet(book)
                # Some programs write wrong dimensions, after which rows and columns would be left out.
                sheet.reset_dimensions()
                return sheet.iter_rows()

            values = open_sheet(values=True)
            formulas = open_sheet(values=False) if _has_formulas(file) else repeat(())
            for number, (cells, own_formulas) in enumerate(zip(values, formulas, strict=False), 1):
                if any(cell.value is not None for cell in cells) or any(map(_is_formula, own_formulas)):
                    yield number, cells, own_formulas

    def _find_sheet(self, book: Any) -> Any:
        sheets = {sheet.title: sheet for sheet in book.worksheets}
        if self.sheet is not None and self.sheet not in sheets:
            remedy = f"Set `sheet` to one of its sheets: {', '.join(map(repr, sheets))}."
            raise SourceError(f"{self.name} has no sheet {self.sheet!r}", remedy)
        if self.sheet is not None:
            return sheets[self.sheet]
        visible = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
        if not visible:
            raise SourceError(f"{self.name} has no visible sheet of cells", "Set `sheet` to a hidden one.")
        if len(visible) > 1:
            names = ", ".join(repr(sheet.title) for sheet in visible)
            raise SourceError(f"{self.name} has {len(visible)} sheets: {names}", "Set `sheet` to one of them.")
        return visible[0]


@contextmanager
def _workbook_errors() -> Iterator[None]:
    from xml.etree.ElementTree import ParseError

    from openpyxl.utils.exceptions import InvalidFileException

    try:
        yield
    except (zipfile.BadZipFile, InvalidFileException, ParseError, KeyError, ValueError, TypeError, EOFError) as error:
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
