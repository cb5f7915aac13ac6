"""What the catalog promises about its builds."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from es_sbert.config import DEFAULT_URL
from es_sbert.engines.local import ENGINES
from tests.docs import PAGES


def test_default_engine_uses_the_default_url_port() -> None:
    assert DEFAULT_URL.endswith(f":{ENGINES['es9'].port}")


def test_default_ports_are_unique() -> None:
    assert len({build.port for build in ENGINES.values()}) == len(ENGINES)


def rows_of_page(begin: str) -> list[list[str]]:
    """Cells of the table whose head begins so in the command's page, without the head."""
    lines = (PAGES / "engine.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(begin))
    table = takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table]


def test_docs_page_lists_the_builds() -> None:
    rows = rows_of_page("| name |")
    assert [row[0] for row in rows] == list(ENGINES)
    for (_, server, port, download), build in zip(rows, ENGINES.values(), strict=True):
        assert build.label in server or build.name == "opensearch-ml"
        assert (port, download) == (str(build.port), f"{build.megabytes:,} MB")


def test_changed_pieces_change_the_home_folder() -> None:
    build = ENGINES["opensearch"]
    fewer = replace(build, pieces=build.pieces[:-1])
    assert fewer.folder_name != build.folder_name
    assert fewer.folder_name.startswith("opensearch-3.6.0-")
