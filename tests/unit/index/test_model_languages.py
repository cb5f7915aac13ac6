"""The languages of a model: from its name, and from the model card in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.bundle.catalog import MODELS
from es_sbert.bundle.local_registry import register_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.index.text_languages import known_languages, read_card_languages
from tests.tiny import write_tiny_bert

FINGERPRINT = "f" * 32


@pytest.mark.parametrize(
    "name",
    [
        *MODELS, "sentence-transformers/all-MiniLM-L12-v2", "all-MiniLM-L6-v2@128",
        "BAAI/bge-base-en-v1.5", "intfloat/e5-large", "thenlper/gte-base", "/models/e5-small-v2/",
        "sentence-transformers/msmarco-distilbert-base-v4",
    ],
)  # fmt: skip
def test_english_models_are_known_by_name(name: str) -> None:
    assert known_languages(name, FINGERPRINT) == {"en"}


@pytest.mark.parametrize(
    "name",
    [
        "", "tickets", "intfloat/multilingual-e5-small", "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        "BAAI/bge-m3", "BAAI/bge-small-zh-v1.5", "google/embeddinggemma-300m", "Alibaba-NLP/gte-multilingual-base",
        "Snowflake/snowflake-arctic-embed-m-v2.0", "all-MiniLM-L6-v2-tuned", "msmarco-distilbert-multilingual-en-de",
    ],
)  # fmt: skip
def test_languages_of_other_models_are_not_known(name: str) -> None:
    assert known_languages(name, FINGERPRINT) == frozenset()


@pytest.mark.parametrize(
    ("card", "languages"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A model", {"en"}),
        ("---\r\nlicense: mit\r\nlanguage:\r\n- en\r\n- de\r\n---\r\n", {"en", "de"}),
        ("---\nlanguage:\n  - 'de'\n  - pt-BR\ntags:\n- fr\n---\n", {"de", "pt-br"}),
        ('---\nlanguage: ["en", "sv"] # two\n---\n', {"en", "sv"}),
        ("---\nlanguage: multilingual\n---\n", {"multilingual"}),
        ("---\nlanguage:\nlicense: mit\n---\n", set()),
        ("---\nlicense: mit\n---\nlanguage: en\n", set()),
        ("# A model\nlanguage: en\n", set()),
        ("---\nlanguage: en\n", set()),
        ("", set()),
    ],
)
def test_card_languages(tmp_path: Path, card: str, languages: set[str]) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert read_card_languages(tmp_path) == languages


def test_folder_without_a_card(tmp_path: Path) -> None:
    assert read_card_languages(tmp_path) == frozenset()
    (tmp_path / "README.md").mkdir()
    assert read_card_languages(tmp_path) == frozenset()


def test_card_of_a_folder_and_of_a_registered_model(tmp_path: Path) -> None:
    # Its own card counts, whatever its name.
    folder = write_tiny_bert(tmp_path / "all-MiniLM-L6-v2")
    (folder / "README.md").write_text("---\nlanguage: de\n---\n")
    fingerprint = read_sentence_model(folder).fingerprint
    assert known_languages(str(folder), fingerprint) == {"de"}
    assert known_languages("tickets", fingerprint) == frozenset()
    register_model(folder, fingerprint, name="tickets")
    assert known_languages("tickets", fingerprint) == {"de"}
