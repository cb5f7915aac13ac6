"""The languages of texts, and of the model that embeds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.bundle.catalog import MODELS
from es_sbert.bundle.local_registry import register_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.index.text_languages import (
    MIN_SHARE,
    UNKNOWN,
    LanguageSample,
    known_languages,
    language_warning,
    read_card_languages,
)
from tests.tiny import write_tiny_bert

GERMAN = "Der Drucker im zweiten Stock druckt seit dem Update nicht mehr."
ENGLISH = "The printer on the second floor does not print after the update."


def warn(model: str = "all-MiniLM-L6-v2", **counts: int) -> tuple[str, str] | None:
    return language_warning(counts, "docs", model, "f" * 32)


def test_warning_names_languages_model_and_command() -> None:
    found = warn(de=62, fr=2, en=36, unknown=10)
    assert found is not None
    assert found[0].startswith(
        "about 64% of the 100 sampled texts with a recognizable language are in other languages, mostly German, than "
        "all-MiniLM-L6-v2 was trained on (English)"
    )
    assert "`es-sbert model fetch intfloat/multilingual-e5-small`" in found[1]
    assert "`es-sbert index migrate docs --model multilingual-e5-small`" in found[1]


@given(st.dictionaries(st.sampled_from(["en", "de", "ru", UNKNOWN]), st.integers(0, 1000)))
def test_warning_depends_on_recognized_texts_only(counts: dict[str, int]) -> None:
    other = sum(count for language, count in counts.items() if language in ("de", "ru"))
    total = other + counts.get("en", 0)
    assert (warn(**counts) is not None) == (other >= 3 and other >= MIN_SHARE * total)


def test_sample_is_random_and_limited() -> None:
    sample = LanguageSample(200)
    sample.add([ENGLISH] * 2000)
    sample.add([GERMAN] * 2000)
    counts = sample.counts()
    assert sum(counts.values()) == 200
    assert 70 < counts["de"] < 130


FINGERPRINT = "f" * 32


@pytest.mark.parametrize("name", [*MODELS, "all-MiniLM-L6-v2@128", "BAAI/bge-base-en-v1.5", "/models/e5-small-v2/"])
def test_english_models_are_known_by_name(name: str) -> None:
    assert known_languages(name, FINGERPRINT) == {"en"}


@pytest.mark.parametrize(
    "name", ["tickets", "intfloat/multilingual-e5-small", "BAAI/bge-small-zh-v1.5", "all-MiniLM-L6-v2-tuned"]
)
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
        ("---\nlicense: mit\n---\nlanguage: en\n", set()),
        ("", set()),
    ],
)
def test_card_languages(tmp_path: Path, card: str, languages: set[str]) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert read_card_languages(tmp_path) == languages


def test_card_of_a_folder_and_of_a_registered_model(tmp_path: Path) -> None:
    # Its own card counts, whatever its name.
    folder = write_tiny_bert(tmp_path / "all-MiniLM-L6-v2")
    (folder / "README.md").write_text("---\nlanguage: de\n---\n")
    fingerprint = read_sentence_model(folder).fingerprint
    assert known_languages(str(folder), fingerprint) == {"de"}
    assert known_languages("tickets", fingerprint) == frozenset()
    register_model(folder, fingerprint, name="tickets")
    assert known_languages("tickets", fingerprint) == {"de"}
