"""The languages of the texts of an index, and a warning if its model was not trained on them."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from es_sbert.bundle.model_languages import known_languages
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.mapping import VectorFieldMeta, has_vector_query
from es_sbert.index.text_template import TextTemplate
from es_sbert.io.text_language import LANGUAGE_NAMES, detect_language
from es_sbert.messages import setting_text

UNKNOWN = "unknown"
# Texts of a load whose language is estimated. Each takes about 50 microseconds, less than embedding it takes.
LOAD_SAMPLE = 1000
# Documents that are read from an index.
INDEX_SAMPLE = 200
# Chosen among this many documents per shard, so that a large index is not read completely.
_CHOSEN_FROM = 10_000

# Share of the recognized texts in other languages from which there is a warning. It is chosen so that a fifth of the
# texts is enough, as stop words recognize fewer texts of most languages than of English.
MIN_SHARE = 0.15
# In fewer texts, it may be a quotation.
MIN_TEXTS = 3

# `es-sbert model fetch` adds its prompts (bundle/trained_prompts.py).
_MULTILINGUAL_MODEL = "intfloat/multilingual-e5-small"


class LanguageSample:
    """The languages of a random sample of texts. Samples of parts can be merged.

    A text is in the sample if its random number is among the largest. The numbers begin anew for each sample, so that a
    load is reproducible.

    Args:
        size: Maximum number of texts.
    """

    def __init__(self, size: int = LOAD_SAMPLE) -> None:
        self._size = size
        self._random = random.Random(0)
        self._kept: list[tuple[float, str]] = []  # random number and language
        self._least = 0.0

    def add(self, texts: Iterable[str]) -> None:
        """Offer texts to the sample. Only the language of a text that is taken is estimated."""
        for text in texts:
            number = self._random.random()
            if number >= self._least:
                self._keep([(number, detect_language(text) or UNKNOWN)])

    def merge(self, other: LanguageSample) -> None:
        """Add the texts of another sample."""
        self._keep(other._kept)

    def _keep(self, texts: list[tuple[float, str]]) -> None:
        self._kept += texts
        if len(self._kept) >= 2 * self._size:
            self._kept = heapq.nlargest(self._size, self._kept)
            self._least = self._kept[-1][0]

    def counts(self) -> dict[str, int]:
        """Language, or `unknown` → number of texts of the sample, the most frequent first."""
        counts = Counter(language for _, language in heapq.nlargest(self._size, self._kept))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item)))


def sample_languages(engine: Engine, index: str, field: str, meta: VectorFieldMeta) -> dict[str, int]:
    """Estimate the languages of some of the texts that a vector field was made from.

    Returns:
        As `LanguageSample.counts`; empty if the text of the field is not known, is not in `_source`, or cannot be read.
    """
    if meta.text is None:
        return {}
    template = TextTemplate.parse(meta.text)
    sample = LanguageSample(INDEX_SAMPLE)
    query, source = has_vector_query(field, meta), {"includes": list(template.fields)}
    limit = {"terminate_after": _CHOSEN_FROM}
    try:
        for hit in random_hits(engine, index, query, INDEX_SAMPLE, 0, source=source, extra=limit):
            if text := template.readable_text(hit.get("_source") or {}):
                sample.add([text])
    except EngineError:  # the estimate is not worth an error
        return {}
    return sample.counts()


class LanguageWarning(NamedTuple):
    """A warning about texts in languages that the model was not trained on.

    Attributes:
        message: The languages, and what they cause.
        remedy: What to do, with a command.
    """

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}"


def language_warning(
    counts: Mapping[str, int], index: str, model: str, fingerprint: str, *, is_embedded: bool = True
) -> LanguageWarning | None:
    """Compare the languages of texts with those of their model.

    There is no warning if the model's languages are not known, or if `detect_language` cannot recognize one of them:
    texts in that language may count as another one.

    Args:
        counts: Language → number of texts, as `LanguageSample.counts` returns them.
        index: Name of the index, for the command.
        model, fingerprint: The model of the index.
        is_embedded: Whether the index has vectors of the model; otherwise another one can be chosen for it.
    """
    recognized = {language: count for language, count in counts.items() if language != UNKNOWN}
    total = sum(recognized.values())
    trained_on = known_languages(model, fingerprint) if total else frozenset()
    if not trained_on or not trained_on <= LANGUAGE_NAMES.keys():
        return None
    others = Counter({language: count for language, count in recognized.items() if language not in trained_on})
    if others.total() < max(MIN_TEXTS, MIN_SHARE * total):
        return None
    first, trained = others.most_common(1)[0][0], sorted(LANGUAGE_NAMES[language] for language in trained_on)
    multilingual = PurePath(_MULTILINGUAL_MODEL).name
    next_step = f"`es-sbert index migrate {index} --model {multilingual}`"
    return LanguageWarning(
        f"about {others.total() / total:.0%} of the {total:,} sampled texts with a recognizable language are in other "
        f"languages, mostly {LANGUAGE_NAMES[first]}, than {model} was trained on ({', '.join(trained)}): searches in "
        "them find less",
        "Use a multilingual model (docs/choosing-a-model.md, Other languages): `es-sbert model fetch "
        f"{_MULTILINGUAL_MODEL}`, then {next_step if is_embedded else setting_text('model', multilingual)}",
    )
