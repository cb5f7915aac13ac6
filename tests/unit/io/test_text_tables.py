"""JSON Lines, CSV and TSV as tables: values, line numbers, and what is said of bad input."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from es_sbert.errors import SourceError
from es_sbert.io.tables import read_table


def write(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    elif path.suffix == ".zst":
        raw = zstandard.compress(raw)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("t.tsv", 'a\tb\nx "1"\t2.5\n"y\t3\n', [2, 3]),
        ("t.csv", 'a,b\n"x ""1""",2.5\n"""y",3\n', [2, 3]),
        ("t.jsonl", '{"a": "x \\"1\\"", "b": "2.5"}\n\n{"b": "3", "a": "\\"y"}\n', [1, 3]),
        ("t.NDJSON", '{"a": "x \\"1\\"", "b": "2.5"}\n{"b": "3", "a": "\\"y"}', [1, 2]),
    ],
)
def test_formats_by_extension(name: str, text: str, lines: list[int], ending: str, tmp_path: Path) -> None:
    table = read_table(write(tmp_path / (name + ending), text), ["b", "a"])
    assert table.columns == {"b": ["2.5", "3"], "a": ['x "1"', '"y']}
    assert table.texts("a") == ['x "1"', '"y']
    assert table.floats("b").tolist() == [2.5, 3.0]
    assert table.lines.tolist() == lines
    assert len(table) == 2


def test_multiline_row_is_numbered_by_its_first_line(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", 'a\r\n"1\n2\n3"\r\n4\r\n'), ["a"])
    assert table.columns["a"] == ["1\n2\n3", "4"]
    assert table.lines.tolist() == [2, 5]


def test_limit_reads_no_further(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.jsonl", '{"a": 1}\n{"a": 2}\n{broken\n'), ["a"], limit=2)
    assert table.columns["a"] == [1, 2]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.tsv", b"a\tb\n1\t2\n1\n", "line 3: the row has 1 column, the header 2"),
        ("t.csv", b"a\n1\n\xe9\n", "line 3 has the byte 0xe9, at offset 4 of the text\n  Save it as UTF-8"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n', "line 2: malformed JSON"),
        ("t.csv", b"b,c\n1,2\n", "has no column a\n  Choose one of its columns: b, c"),
        ("t.jsonl", b'{"b": 1}\n{"c": 1}\n', "has no column a\n  Choose one of its columns: b, c"),
        ("t.csv", b"PK\x03\x04" + b"\0" * 30 + b"xl/workbook.xml", "it is UTF-16 or not a text"),
        ("t.tsv", b"", "has no rows"),
        ("t.tsv", b"a\tb\n", "has no rows"),
        ("t.txt", b"a\n1\n", "does not indicate a format that is read here\n  Use a file that ends in .jsonl"),
        ("t.gz", b"a\n1\n", "does not indicate a format that is read here"),
    ],
)
def test_invalid_files_are_rejected(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(SourceError) as caught:
        read_table(path, ["a"])
    assert message in str(caught.value)
    assert str(path) in caught.value.message


def test_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "\ufeffa;b\n1;2,5\n2;3\n")
    assert read_table(path, ["a", "b"]).columns == {"a": ["1", "2"], "b": ["2,5", "3"]}


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no.tsv does not exist\n.*`data`"):
        read_table(tmp_path / "no.tsv", ["a"])


def test_permission_denied_raises_source_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "t.tsv", "a\n1\n")
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        read_table(path, ["a"])


def test_damaged_compression_names_the_last_good_line(tmp_path: Path) -> None:
    lines = "".join(f'{{"a": "{number * number}"}}\n' for number in range(100_000))
    path = write(tmp_path / "t.jsonl.gz", lines)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(SourceError, match=r"t.jsonl.gz, after line \d{4,5}: .*truncated"):
        read_table(path, ["a"])


def test_error_lists_the_first_problems_and_counts_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"a": 1}\n' + "[]\n" * 1007)
    with pytest.raises(SourceError) as caught:
        read_table(path, ["a"])
    shown = caught.value.message.splitlines()
    assert [line.partition(":")[0] for line in shown[:-1]] == [f"{path}, line {number}" for number in range(2, 7)]
    assert shown[-1] == "… and 1,002 more"
