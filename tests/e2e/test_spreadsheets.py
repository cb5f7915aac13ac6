"""Tables as spreadsheets write them, through the command line: all documents are loaded, or the load is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine

ROWS = {"d0": "a man", "d1": "Größe, Höhe", "d2": "one, two"}


@pytest.fixture
def index(es9_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(es9_url)


@pytest.fixture
def ingest(cli: Cli, model: Path, es9_url: str, index: str) -> Callable[..., Done]:
    def call(*arguments: str | Path) -> Done:
        options = ("--index", index, "--url", es9_url, "--model", model, "--precision", "fp32", "--id-field", "id")
        return cli("ingest", *options, "--json", *arguments)

    return call


def test_windows_1252_is_refused_then_loaded_whole(ingest: Callable[..., Done], es9_url: str, index: str) -> None:
    lines = ["id;text", *map(";".join, ROWS.items())]
    Path("a.csv").write_bytes("\r\n".join(lines).encode("windows-1252"))
    done = ingest("a.csv")
    assert done.code == 2
    assert "a.csv: it is not UTF-8: line 3 has the byte 0xf6, at offset " in done.err
    assert "such as --encoding windows-1252" in done.err
    with open_engine(es9_url) as engine:
        assert engine.get_index(index) is None
    assert not list(Path().glob("*dead*"))
    done = ingest("a.csv", "--encoding", "windows-1252")
    assert (done.code, done.summary["indexed"], done.summary["dead"]) == (0, 3, 0)
    assert {name: source["text"] for name, source in contents(es9_url, index).items()} == ROWS


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
