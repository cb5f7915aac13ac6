"""A small index that es-sbert has filled, and the examples that search it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.search.semantic_index import SemanticIndex
from tests.engine.ingest_support import load, write_jsonl

EXAMPLES = Path(__file__).parents[2] / "examples/python"
QUESTION = "someone makes music"
ARTICLES = [
    ("en", "A man is playing a guitar on the stage."),
    ("en", "The stock market fell sharply after the bank raised interest rates."),
    ("xx", "A band performs its songs in the park."),
    ("en", "Vaccines train the immune system to recognize a virus."),
    ("xx", "Heavy rain flooded the streets of the old town."),
    ("xx", "She baked fresh bread for breakfast."),
]
TEXTS = [text for _, text in ARTICLES]

Fill = Callable[..., str]
RunExample = Callable[..., list[str]]


@pytest.fixture
def fill(encoder: Encoder, fresh_index: Callable[[str], str], tmp_path: Path) -> Fill:
    """A function url → name of an index that a load has filled; `text_field` is where its texts stand."""

    def filled(url: str, text_field: str = "text", **options: object) -> str:
        name = fresh_index(url)
        documents = [
            {"id": str(number), text_field: text, "language": language}
            for number, (language, text) in enumerate(ARTICLES)
        ]
        file = write_jsonl(tmp_path / f"{name}.jsonl", documents)
        summary = load(
            url, encoder, name, file, dead=tmp_path / "dead", id_field="id", text_fields=(text_field,), **options
        )
        assert summary.indexed == len(ARTICLES)
        return name

    return filled


@pytest.fixture
def run_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunExample:
    """A function that runs an example as a user does and gives the lines that it prints."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def expected_lines(url: str, index: str, encoder: Encoder, text_field: str = "text") -> list[str]:
    """What every example prints: cosine and text of the three nearest, as es-sbert itself finds them."""
    with SemanticIndex(index, url, encoder=encoder) as semantic:
        lines = [f"{hit.cosine:.4f}  {hit.source[text_field]}" for hit in semantic.search(QUESTION, 3)]
    assert [line.partition("  ")[2] for line in lines[:2]] == [TEXTS[0], TEXTS[2]]
    return lines


def same_lines(printed: list[str], expected: list[str]) -> bool:
    """Whether texts are equal, and cosines but for the last of their digits."""
    pairs = [(line.split("  ", 1), other.split("  ", 1)) for line, other in zip(printed, expected, strict=True)]
    return all(
        text == other and abs(float(cosine) - float(of_other)) < 2e-4 for (cosine, text), (of_other, other) in pairs
    )
