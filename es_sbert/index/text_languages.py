"""The languages of the texts of an index and of its model, and a warning if the model was not trained on them."""

from __future__ import annotations

import heapq
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path, PurePath

from es_sbert import bundle
from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder
from es_sbert.bundle.shortened_model import whole_name
from es_sbert.config import expand_home
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.mapping import VectorFieldMeta, has_vector_query
from es_sbert.index.text_template import TextTemplate
from es_sbert.io.text_language import LANGUAGE_NAMES, detect_language

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
        for hit in random_hits(engine, index, query, INDEX_SAMPLE, source=source, extra=limit):
            if text := template.readable_text(hit.get("_source") or {}):
                sample.add([text])
    except EngineError:  # the estimate is not worth an error
        return {}
    return sample.counts()


def language_warning(counts: Mapping[str, int], index: str, model: str, fingerprint: str) -> tuple[str, str] | None:
    """Compare the languages of texts with those of their model.

    There is no warning if the model's languages are not known, or if `detect_language` cannot recognize one of them:
    texts in that language may count as another one.

    Args:
        counts: Language → number of texts, as `LanguageSample.counts` returns them.
        index: Name of the index, for the command.
        model, fingerprint: The model of the index.

    Returns:
        The languages and what they cause, and what to do; None if many texts are in the model's languages.
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
    return (
        f"about {others.total() / total:.0%} of the {total:,} sampled texts with a recognizable language are in other "
        f"languages, mostly {LANGUAGE_NAMES[first]}, than {model} was trained on ({', '.join(trained)}): searches in "
        "them find less",
        "Use a multilingual model (docs/choosing-a-model.md, Other languages): `es-sbert model fetch "
        f"{_MULTILINGUAL_MODEL}`. Then load with it, or `es-sbert index migrate {index} --model "
        f"{PurePath(_MULTILINGUAL_MODEL).name}`",
    )


@cache
def _english_models() -> tuple[str, ...]:
    """Patterns of names of models for English on the hub, without the organization, in lower case.

    Their folders often lack the model card, for example if they come from `es-sbert model fetch`.
    """
    return tuple(json.loads(resources.files(bundle).joinpath("english_models.json").read_text(encoding="utf-8")))


_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# `language: en`, `language: [en, de]`, or one `- en` per line.
_LANGUAGE = re.compile(r"^languages?:([^\n]*(?:\n[ \t]*-[^\n]*)*)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#[^\n]*")
_MAX_CARD_BYTES = 1 << 18


def known_languages(name: str, fingerprint: str) -> frozenset[str]:
    """Find out which languages a model was trained on, from what this machine has. The hub is not asked.

    Args:
        name: Name of the model in the mapping: folder, hub id, installed or registered name, also with `@DIMENSIONS`.
        fingerprint: Its fingerprint.

    Returns:
        The languages as the model card has them, ISO 639-1 for most models; empty if they are not known.
    """
    name = whole_name(name)
    folder = expand_home(name)
    if name and folder.is_dir() and (languages := read_card_languages(folder)):
        return languages
    hub_name = PurePath(name).name.lower()
    if "multilingual" not in hub_name and any(fnmatchcase(hub_name, pattern) for pattern in _english_models()):
        return frozenset({"en"})
    for found in (find_registered_folder(fingerprint, []), installed_model_folder(name)):
        if found is not None and (languages := read_card_languages(found)):
            return languages
    return frozenset()


def read_card_languages(folder: Path) -> frozenset[str]:
    """Read `language` from the front matter of a model card; empty if there is none.

    Args:
        folder: The folder with the `README.md`.
    """
    try:
        with (folder / "README.md").open("rb") as file:
            card = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace")
    except OSError:  # without a card, the languages are not known
        return frozenset()
    front_matter = _FRONT_MATTER.match(card)
    found = front_matter and _LANGUAGE.search(front_matter[1])
    if found is None:
        return frozenset()
    return frozenset(word.lower() for word in re.findall(r"[A-Za-z]+(?:-[A-Za-z]+)*", _COMMENT.sub("", found[1])))
