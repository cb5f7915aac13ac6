"""Samples of languages, and the warning about languages that a model was not trained on."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.index.text_languages import (
    MIN_SHARE,
    UNKNOWN,
    LanguageSample,
    language_warning,
)

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


@pytest.mark.parametrize(
    "counts", [{}, {"en": 100}, {"unknown": 100}, {"de": 2}, {"de": 14, "en": 86}, {"de": 10, "fr": 4, "en": 86}]
)
def test_no_warning(counts: dict[str, int]) -> None:
    assert warn(**counts) is None


@pytest.mark.parametrize("model", ["intfloat/multilingual-e5-small", "tickets", ""])
def test_unknown_model_gives_no_warning(model: str) -> None:
    assert warn(model, de=100) is None


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ("[en, de]", "mostly Japanese, than {} was trained on (English, German)"),
        ("ja", None),
        # Its texts may look like another language.
        ("[en, no]", None),
        ("multilingual", None),
    ],
)
def test_model_card(tmp_path: Path, languages: str, message: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\nlanguage: {languages}\n---\n")
    found = warn(str(tmp_path), ja=10)
    assert (found is None) == (message is None)
    assert found is None or message is None or message.format(tmp_path) in found[0]


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


def test_small_collection_is_counted_completely() -> None:
    sample = LanguageSample(10)
    sample.add([GERMAN, "4711", ENGLISH, GERMAN])
    assert list(sample.counts().items()) == [("de", 2), ("en", 1), (UNKNOWN, 1)]


def test_merged_samples_have_the_share_of_each_part() -> None:
    whole = LanguageSample(200)
    for text, count in ((GERMAN, 600), (ENGLISH, 2400)):
        part = LanguageSample(200)
        part.add([text] * count)
        whole.merge(pickle.loads(pickle.dumps(part)))
    counts = whole.counts()
    assert sum(counts.values()) == 200
    assert 20 < counts["de"] < 60
