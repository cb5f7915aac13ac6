"""The articles of `examples/`, and loads with the model that es-sbert comes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.cli.main import main
from tests.node import EXAMPLES

ARTICLES = EXAMPLES / "articles.jsonl"
# What is searched for, and the article that is meant: they share no word, nor do any other article and the query.
QUERY = "cosmonauts"
MEANT = "Living on board a space station"


def articles() -> list[dict[str, Any]]:
    """id, title, text, topic and year of each."""
    return [orjson.loads(line) for line in ARTICLES.read_bytes().splitlines()]


def cli(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def ingest(url: str, index: str, file: Path, *options: str) -> None:
    """Load a file as README.md does."""
    template = ("--text-template", "{title}. {text}")
    cli("ingest", "--url", url, "--index", index, "--id-field", "id", *template, *options, str(file))
