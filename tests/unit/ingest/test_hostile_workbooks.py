"""Workbooks that expand to far more than their size: refused by a limit, with the way out."""

from __future__ import annotations

import threading
import zipfile
from pathlib import Path

import openpyxl
import openpyxl.chart
import pytest

from es_sbert.errors import SourceError
from es_sbert.ingest.sources import workbook_source
from es_sbert.ingest.sources.document_source import ByteCounter, ReadSettings, check_sources, read_records
from es_sbert.ingest.sources.find_sources import find_sources

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
SETTINGS = ReadSettings(max_bytes=1_000_000, plain_text_field="text")

pytestmark = pytest.mark.filterwarnings("ignore:Workbook contains no default style")


def workbook(
    path: Path,
    rows: str = "",
    *,
    strings: str = "",
    styles: str = "<cellXfs><xf/></cellXfs>",
    after: str = "",
    sheets: int = 1,
    prolog: str = "",
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write a workbook with a header and the given XML of other rows, shared strings, styles and parts after them."""
    overrides = "".join(
        f'<Override PartName="/xl/{name}.xml" ContentType="{TYPE}.{kind}+xml"/>'
        for name, kind in (("workbook", "sheet.main"), ("sharedStrings", "sharedStrings"), ("styles", "styles"))
    )
    # All sheets are the same part.
    listed = "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="rId1"/>' for n in range(1, sheets + 1))
    header = '<row r="1"><c r="A1" t="inlineStr"><is><t>text</t></is></c></row>'
    parts = {
        "[Content_Types].xml": "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'>"
        f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>',
        "xl/workbook.xml": f'<workbook {MAIN} xmlns:r="{RELATIONS}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/"
        f'relationships\'><Relationship Id="rId1" Type="{RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/>'
        "</Relationships>",
        "xl/styles.xml": f"<styleSheet {MAIN}>{styles}</styleSheet>",
        "xl/sharedStrings.xml": f"{prolog}<sst {MAIN}>{strings}</sst>",
        "xl/worksheets/sheet1.xml": f"<worksheet {MAIN}><sheetData>{header}{rows}</sheetData>{after}</worksheet>",
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def row(number: int, text: str = "a") -> str:
    return f'<row r="{number}"><c r="A{number}" t="inlineStr"><is><t>{text}</t></is></c></row>'


def load(path: Path) -> list[str]:
    """Check and read a workbook; return its texts, or the reasons for what is rejected."""
    sources = find_sources([str(path)], None)
    check_sources(sources, SETTINGS.max_bytes, ("text",), None)
    records = read_records(sources, SETTINGS, ByteCounter(), threading.Event(), pytest.fail)
    return [getattr(record, "reason", None) or record.fields["text"] for record in records]  # type: ignore[union-attr]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook_source, "_MAX_OPENED", 1_000_000)
    monkeypatch.setattr(workbook_source, "_MAX_ROW", 200_000)


def test_workbook_within_the_limits_is_read(tmp_path: Path, small_limits: None) -> None:
    texts = [f"{n}" * 1000 for n in range(2, 1000)]
    assert load(workbook(tmp_path / "a.xlsx", "".join(map(row, range(2, 1000), texts)))) == texts


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "parts",
    [
        {"strings": f"<si><t>{'a' * 2_000_000}</t></si>"},
        {"strings": "<si/>" * 100_000},
        {"strings": f"<!--{' ' * 2_000_000}-->"},
        {"styles": f"<!--{' ' * 2_000_000}-->"},
        {"styles": f"<cellXfs>{'<xf/>' * 5_000}</cellXfs>"},
        {"sheets": 10_000},
    ],
    ids=["text", "texts", "comment", "styles", "formats", "sheets"],
)
def test_parts_that_are_held_in_memory_are_limited(tmp_path: Path, parts: dict[str, str]) -> None:
    path = workbook(tmp_path / "a.xlsx", **parts)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"texts and formats .* the limit of 1\.0 MB: save it as CSV UTF-8"):
        load(path)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "rows", [row(3, "a" * 2_000_000), f"<row r='3'>{'<c/>' * 50_000}</row>", "<row r='2'/>" * 50_000, "<x/>" * 50_000]
)
def test_one_row_is_limited(tmp_path: Path, rows: str) -> None:
    first, reason = load(workbook(tmp_path / "a.xlsx", row(2) + rows))
    assert first == "a"
    assert "ends early after the record of line 2" in reason
    assert "a row of the sheet" in reason
    assert "would take more memory than the limit of 200.0 kB" in reason
    assert "save it as CSV UTF-8" in reason


@pytest.mark.usefixtures("small_limits")
def test_what_follows_the_rows_is_limited(tmp_path: Path) -> None:
    merged = "<mergeCells>" + '<mergeCell ref="A2:B2"/>' * 20_000 + "</mergeCells>"
    first, reason = load(workbook(tmp_path / "a.xlsx", row(2), after=merged))
    assert first == "a"
    assert "what follows the last row, would take more memory" in reason


def test_unpacked_size_is_limited_before_anything_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook_source, "_MAX_UNPACKED", 1_000_000)
    path = workbook(tmp_path / "a.xlsx", "".join(row(n, "a" * 1000) for n in range(2, 1002)))
    with pytest.raises(SourceError, match=r"has 1\.\d MB .*the limit of 1\.0 MB: save it as CSV UTF-8"):
        load(path)


def test_size_that_the_archive_understates_is_not_believed(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", styles=" " * 3_000_000)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("xl/styles.xml").file_size
    path.write_bytes(data.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(SourceError, match="damaged"):
        load(path)


@pytest.mark.parametrize("number", [1_048_577, 1_000_000_000, 10**30])
def test_row_beyond_the_limit_of_the_format_is_refused(tmp_path: Path, number: int) -> None:
    first, reason = load(workbook(tmp_path / "a.xlsx", row(2) + row(number)))
    assert first == "a"
    assert "it has rows after row 1,048,576, the limit of the format" in reason


def test_last_row_of_the_format_is_read(tmp_path: Path) -> None:
    assert load(workbook(tmp_path / "a.xlsx", row(2) + row(1_048_576, "b"))) == ["a", "b"]


def test_column_beyond_the_limit_of_the_format_is_refused(tmp_path: Path) -> None:
    rows = '<row r="2"><c r="A2" t="inlineStr"><is><t>a</t></is></c><c r="XFE2"><v>1</v></c></row>'
    [reason] = load(workbook(tmp_path / "a.xlsx", rows))
    assert "column 16385" in reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_refused(tmp_path: Path, encoding: str) -> None:
    entities = f'<!DOCTYPE sst [<!ENTITY a "{"a" * 10_000}">]>'
    path = workbook(tmp_path / "a.xlsx", prolog=f"<?xml version='1.0'?><!--{' ' * 16_350}-->{entities}")
    if encoding == "utf-16":
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in parts.items():
                archive.writestr(name, text.decode().encode(encoding) if "Strings" in name else text)
    with pytest.raises(SourceError, match="a document type, which the format does not allow"):
        load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(tmp_path: Path, compression: int) -> None:
    path = workbook(tmp_path / "a.xlsx", row(2), compression=compression)
    with pytest.raises(SourceError, match="not compressed by DEFLATE"):
        load(path)


def test_damaged_parts_are_reported(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", strings=f"<!--{list(range(10_000))}-->")
    data = bytearray(path.read_bytes())
    start = data.index(b"sharedStrings.xml") + 1000
    data[start : start + 1000] = b"\xff" * 1000
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        load(path)


def test_messages_name_a_limited_number_of_sheets(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has 2000 sheets: 's1', 's2'") as error:
        load(workbook(tmp_path / "a.xlsx", sheets=2000))
    assert len(error.value.message) < 2000


def test_sheets_of_charts_are_left_out(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["text"])
    book.active.append(["a"])
    book.create_chartsheet("chart").add_chart(openpyxl.chart.BarChart())
    book.save(tmp_path / "a.xlsx")
    assert load(tmp_path / "a.xlsx") == ["a"]
