"""The articles of `examples/`, in an index with vectors of the model that es-sbert comes with."""

from __future__ import annotations

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


def ingest_articles(url: str, index: str) -> None:
    """Load them as README.md loads a file."""
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "ingest",
                "--url",
                url,
                "--index",
                index,
                "--id-field",
                "id",
                "--text-template",
                "{title}. {text}",
                str(ARTICLES),
            ]
        )
    assert ended.value.code == 0
