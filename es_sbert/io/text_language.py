"""Estimate the language of a text: by its script, or for Latin script by stop words.

The estimate is for the share of each language in a collection: it is made to be unknown rather than wrong. Names, code,
numbers and texts of a few words are not evidence of a language.

`languages.json` has what each language is recognized by: ranges of its script, or stop words and the letters beyond a
to z. The search page uses the same stop words.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from functools import cache
from importlib import resources
from typing import Any

_FILE = resources.files(__package__).joinpath("languages.json")
_DATA: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
# ISO 639-1 code → English name, for every language that can be recognized. A script that several languages share is
# named after the one with the most speakers: Persian counts as Arabic, Marathi as Hindi, Bulgarian as Russian.
LANGUAGE_NAMES: dict[str, str] = {code: data["name"] for code, data in _DATA.items()}

# Characters of a text that are read.
_READ = 1000
# Different stop words in lower case that a text needs.
_MIN_STOP_WORDS = 2
# Share of stop words among the words of a text. Running text has 20 to 60 %, names of products and code far less.
_MIN_STOP_WORD_SHARE = 0.1
# Some English words that are not stop words are those of other languages (man, one), and English is quoted everywhere.
# So a text with English stop words is in another language only if that has this many more.
_MIN_LEAD_OVER_ENGLISH = 2
# Letters of a script that a text needs, and their share of all letters.
_MIN_LETTERS = 12
_MIN_LETTER_SHARE = 0.5
# A character of these scripts is about half a word.
_LETTERS_OF_IDEOGRAPH = {"zh": 3, "ko": 3}
# Share of the letters of a script that only one of its languages has: kana in Japanese, і, ї, є and ґ in Ukrainian.
_MIN_MARK_SHARE = 0.03

_LATIN = "latin"
_SCRIPTS = {code: re.compile(f"[{data['script']}]") for code, data in _DATA.items() if "script" in data}
_ANY_SCRIPT = re.compile("|".join(script.pattern for script in _SCRIPTS.values()))
_SCRIPTS[_LATIN] = re.compile(r"[A-Za-z\u00c0-\u024f]")
# Script → the language that its marks tell, and the marks.
_MARKS: dict[str, tuple[str, re.Pattern[str]]] = {
    data["script_of"]: (code, re.compile(f"[{data['marks']}]")) for code, data in _DATA.items() if "marks" in data
}

_TAG = re.compile(r"<[^<>]{1,500}>")
_AROUND_WORDS = ".,:;!?…\"'()[]«»„“”‘’‚*_-–—¿¡"
# Of names: José de la Cruz, Ludwig van der Rohe, Müller und Schmidt. They do not count after capitalized words.
_PARTICLES = frozenset({
    "da", "das", "de", "degli", "dei", "del", "della", "den", "der", "des", "di", "do", "dos", "du", "et", "la", "las",
    "le", "les", "los", "ten", "ter", "und", "van", "von", "zu", "zum", "zur",
})  # fmt: skip
# A text with letters that its language lacks is in a language without a list, such as Danish or Hungarian, whose stop
# words look like those of its neighbors. English texts may quote any word.
_SPECIAL_LETTER = re.compile(r"[\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff]")


@cache
def stop_words() -> dict[str, tuple[str, ...]]:
    """Language code → its stop words in lower case. A word may be in the lists of several languages."""
    return {code: tuple(" ".join(data["stop_words"]).split()) for code, data in _DATA.items() if "stop_words" in data}


@cache
def _languages_of_words() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for language, words in stop_words().items():
        for word in words:
            if len(word) > 1:
                found.setdefault(word, []).append(language)
    return found


def detect_language(text: str) -> str | None:
    """Estimate the language of a text from its first 1,000 characters.

    Args:
        text: The text; tags of HTML are skipped.

    Returns:
        A key of `LANGUAGE_NAMES`; None without evidence, or with as much for another language.
    """
    text = text[:_READ]
    if "<" in text:
        text = _TAG.sub(" ", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        if _ANY_SCRIPT.search(text) and (language := _language_of_script(text)) is not None:
            return language
    return _language_of_stop_words(text)


def _language_of_script(text: str) -> str | None:
    letters = {
        name: len(script.findall(text)) * _LETTERS_OF_IDEOGRAPH.get(name, 1) for name, script in _SCRIPTS.items()
    }
    language = max(letters, key=lambda name: letters[name])
    if language == _LATIN or letters[language] < max(_MIN_LETTERS, _MIN_LETTER_SHARE * sum(letters.values())):
        return None
    marked, marks = _MARKS.get(language, (language, _ANY_SCRIPT))
    return marked if len(marks.findall(text)) >= _MIN_MARK_SHARE * len(_SCRIPTS[language].findall(text)) else language


def _language_of_stop_words(text: str) -> str | None:
    languages_of = _languages_of_words()
    words = text.split()
    hits: Counter[str] = Counter()  # language → its stop words in the text
    found: set[str] = set()
    in_name = False
    for word in words:
        # A capitalized word belongs to a name or begins a sentence, and capitals may be a code: Los Angeles, DE, IT.
        in_name = word[:1].isupper() or (in_name and word in _PARTICLES)
        if in_name or not word.islower():
            continue
        # Elisions and short forms: l'eau, dell’arte, it's.
        for part in word.strip(_AROUND_WORDS).replace("’", "'").split("'"):
            if part in languages_of:
                found.add(part)
                hits.update(languages_of[part])
    (best, count), (_, second) = [*hits.most_common(2), ("", 0), ("", 0)][:2]
    own = sum(best in languages_of[word] for word in found)
    if own < _MIN_STOP_WORDS or count < _MIN_STOP_WORD_SHARE * len(words) or count == second:
        return None
    if best == "en":
        return best
    is_ahead = "en" not in hits or count - hits["en"] >= _MIN_LEAD_OVER_ENGLISH
    return best if is_ahead and set(_SPECIAL_LETTER.findall(text.lower())) <= set(_DATA[best]["letters"]) else None
