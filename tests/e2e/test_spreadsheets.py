"""Tables as spreadsheets write them, through the command line: all documents are loaded, or the load is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine

# 250 of 3,000 rows are not ASCII, less than the 10 % at which a load stops.
ROWS = [(f"d{number}", f"Größe {number}" if number % 12 == 5 else f"a man {number}") for number in range(3000)]
FEW = [("1", "Größe, Höhe"), ("2", "one, two")]


def table(rows: list[tuple[str, str]], delimiter: str) -> str:
    return "\r\n".join(delimiter.join(row) for row in [("id", "text"), *rows])


@pytest.fixture
def index(es9_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(es9_url)


@pytest.fixture
def ingest(cli: Cli, model: Path, es9_url: str, index: str) -> Callable[..., Done]:
    def call(*arguments: str | Path) -> Done:
        options = ("--index", index, "--url", es9_url, "--model", model, "--precision", "fp32", "--id-field", "id")
        return cli("ingest", *options, "--json", *arguments)

    return call


def texts(url: str, index: str) -> dict[str, str]:
    return {name: source["text"] for name, source in contents(url, index).items()}


def test_windows_1252_is_refused_then_loaded_whole(ingest: Callable[..., Done], es9_url: str, index: str) -> None:
    Path("a.csv").write_bytes(table(ROWS, ";").encode("windows-1252"))
    done = ingest("a.csv")
    assert done.code == 2
    assert "a.csv: it is not UTF-8: line 7 has the byte 0xf6, at offset " in done.err
    assert "such as --encoding windows-1252" in done.err
    with open_engine(es9_url) as engine:
        assert engine.get_index(index) is None
    assert not list(Path().glob("*dead*"))
    done = ingest("a.csv", "--encoding", "windows-1252")
    assert (done.code, done.summary["indexed"], done.summary["dead"]) == (0, 3000, 0)
    assert texts(es9_url, index) == dict(ROWS)


def pipe(name: str, data: bytes) -> str:
    os.mkfifo(name)
    threading.Thread(target=Path(name).write_bytes, args=[data], daemon=True).start()
    return name


@pytest.mark.parametrize("before", [0, 1500])
def test_pipe_in_windows_1252_ends_with_exit_2(
    ingest: Callable[..., Done], es9_url: str, index: str, before: int
) -> None:
    rows = [(f"d{number}", f"a man {number}") for number in range(before)] + FEW
    done = ingest(pipe("a.csv", table(rows, ";").encode("windows-1252")))
    assert done.code == 2
    assert f"not UTF-8: line {before + 2:,} has the byte" in done.err
    if not before:
        with open_engine(es9_url) as engine:
            assert engine.get_index(index) is None


def test_other_way_of_reading_starts_the_load_anew(ingest: Callable[..., Done], es9_url: str, index: str) -> None:
    Path("a.csv").write_text('id,text\n0,the cat\n1,"never closed\n')
    # A load that does not complete keeps its checkpoint.
    done = ingest("a.csv", "--max-errors", "0", "--state", "state", "--dead-letters", "dead")
    assert done.code == 1
    assert Path("state").exists()
    Path("a.csv").write_text("id,text\n0,the cat\n")
    done = ingest("a.csv", "--delimiter", ",", "--state", "state", "--dead-letters", "dead")
    assert "files that were read differently (--format, --delimiter" in done.err
    assert done.code == 0
    assert texts(es9_url, index) == {"0": "the cat"}


PRODUCTS = """id;text;price;in_stock;added
1;a cup;1234.56;yes;31.01.2026
2;a plate;;0;
3;a bowl;about 5;yes;01.02.2026
4;a jug;7;maybe;01.02.2026
"""
TYPES = {"price": {"type": "float"}, "in_stock": {"type": "boolean"}, "added": {"type": "date", "format": "dd.MM.yyyy"}}


def letters(path: str) -> list[tuple[str, int, str]]:
    lines = map(orjson.loads, Path(path).read_bytes().splitlines())
    return [(letter["source"], letter["line"], letter["reason"].partition(" has ")[0]) for letter in lines]


def test_columns_have_the_types_of_the_mapping(ingest: Callable[..., Done], es9_url: str, index: str) -> None:
    Path("a.csv").write_text(PRODUCTS)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"mappings": {"properties": TYPES}})
    done = ingest("a.csv", "--dry-run")
    problems = [document["problem"] for document in done.summary["documents"]]
    assert problems[:2] == [None, None]
    assert problems[2].startswith("the column price has 'about 5', which is not a number with a decimal point")
    done = ingest("a.csv", "--dead-letters", "dead", "--max-errors", "off")
    assert (done.code, done.summary["indexed"], done.summary["dead"]) == (1, 2, 2)
    assert letters("dead") == [("a.csv", 4, "the column price"), ("a.csv", 5, "the column in_stock")]
    found = {
        name: [source[key] for key in ("price", "in_stock", "added")]
        for name, source in contents(es9_url, index).items()
    }
    assert found == {"1": [1234.56, True, "31.01.2026"], "2": [None, False, None]}


def test_pairs_reads_the_same_tables(cli: Cli, model: Path) -> None:
    Path("a.csv").write_text(table(FEW, "#"))
    options = ("--model", model, "--precision", "fp32", "--id-field", "id", "--json")
    done = cli("pairs", "a.csv", *options, "--delimiter", "#")
    assert done.code == 0
    assert orjson.loads(done.out)["first"]["text"] == "Größe, Höhe"
    Path("b.csv").write_bytes(table(FEW, ";").encode("windows-1252"))
    done = cli("pairs", "b.csv", *options)
    assert (done.code, "such as --encoding windows-1252" in done.err) == (2, True)
    assert cli("pairs", "b.csv", *options, "--encoding", "windows-1252").code == 0
    done = cli("pairs", "--index", "docs", "--delimiter", ";")
    assert (done.code, "Leave out --text-field" in done.err) == (2, True)


def test_options_of_files_are_refused_for_other_sources(ingest: Callable[..., Done]) -> None:
    done = ingest("--retry", "dead.jsonl", "--delimiter", ";")
    assert (done.code, "--encoding apply only to FILE" in done.err) == (2, True)
    assert ingest("--delimiter", ";").code == 2
    done = ingest("a.csv", "--types", "price=float")
    assert (done.code, "there is no --types any more" in done.err) == (2, True)
