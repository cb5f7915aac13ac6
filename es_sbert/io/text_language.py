"""Estimate the language of a text: by its script, or for Latin script by stop words.

The estimate is for the share of each language in a collection: it is made to be unknown rather than wrong. Names, code,
numbers and texts of a few words are not evidence of a language.

`stop_words.json` has a list of stop words for each language in Latin script. The search page uses the same lists.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from functools import cache
from importlib import resources

# ISO 639-1 code → English name, for every language that can be recognized. A script that several languages share is
# named after the one with the most speakers: Persian counts as Arabic, Marathi as Hindi, Bulgarian as Russian.
LANGUAGE_NAMES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt": "Portuguese",
    "nl": "Dutch", "pl": "Polish", "cs": "Czech", "sv": "Swedish", "ru": "Russian", "uk": "Ukrainian", "el": "Greek",
    "ar": "Arabic", "he": "Hebrew", "hi": "Hindi", "zh": "Chinese", "ja": "Japanese", "ko": "Korean", "th": "Thai",
}  # fmt: skip

# Characters of a text that are read.
_READ = 1000
# Different stop words that a text needs, not all of one letter.
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
_LETTERS_OF_IDEOGRAPH = 3
# Japanese without any kana is rare, except in names.
_MIN_KANA_SHARE = 0.1

_SCRIPTS = {
    "cyrillic": re.compile(r"[\u0400-\u052f]"),
    "el": re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]"),
    "ar": re.compile(r"[\u0620-\u064a\u066e-\u06d3\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc]"),
    "he": re.compile(r"[\u05d0-\u05ea]"),
    "hi": re.compile(r"[\u0900-\u0963\u0970-\u097f]"),
    "th": re.compile(r"[\u0e01-\u0e4e]"),
    "han": re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"),
    "kana": re.compile(r"[\u3041-\u3096\u30a1-\u30fa\uff66-\uff9d]"),
    "ko": re.compile(r"[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]"),
}
_IDEOGRAPHS = frozenset({"han", "kana", "ko"})
_ANY_SCRIPT = re.compile("|".join(script.pattern for script in _SCRIPTS.values()))
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_UKRAINIAN = re.compile(r"[іїєґІЇЄҐ]")
_NOT_UKRAINIAN = re.compile(r"[ыэёъЫЭЁЪ]")

_TAG = re.compile(r"<[^<>]{1,500}>")
_AROUND_WORDS = ".,:;!?…\"'()[]«»„“”‘’‚*_-–—¿¡"
_SENTENCE_ENDS = ".!?:"
# Of names: José de la Cruz, Ludwig van der Rohe, Müller und Schmidt. They do not count after capitalized words.
_PARTICLES = frozenset({
    "da", "das", "de", "degli", "dei", "del", "della", "den", "der", "des", "di", "do", "dos", "du", "e", "et", "i",
    "la", "las", "le", "les", "los", "ten", "ter", "und", "van", "von", "y", "zu", "zum", "zur",
})  # fmt: skip
# Letters beyond a to z of each language in Latin script. A text with others is in a language without a list, such as
# Danish or Hungarian, whose stop words look like those of its neighbors. English texts may quote any word.
_SPECIAL_LETTER = re.compile(r"[\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff]")
_SPECIAL_LETTERS = {
    "de": "äöüß",
    "fr": "àâæçéèêëîïôœùûüÿ",
    "es": "áéíñóúü",
    "it": "àèéìíîòóùú",
    "pt": "àáâãçéêíóôõú",
    "nl": "áéèêëïíóöúü",
    "pl": "ąćęłńóśźż",
    "cs": "áčďéěíňóřšťúůýž",
    "sv": "åäöé",
}


@cache
def stop_words() -> dict[str, tuple[str, ...]]:
    """Language code → its stop words in lower case. A word may be in the lists of several languages."""
    lists = json.loads(resources.files(__package__).joinpath("stop_words.json").read_text(encoding="utf-8"))
    return {language: tuple(" ".join(lines).split()) for language, lines in lists.items()}


@cache
def _languages_of_words() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for language, words in stop_words().items():
        for word in words:
            found[word] = (*found.get(word, ()), language)
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
        name: len(script.findall(text)) * (_LETTERS_OF_IDEOGRAPH if name in _IDEOGRAPHS else 1)
        for name, script in _SCRIPTS.items()
    }
    east_asian = letters.pop("han"), letters.pop("kana")
    letters["ja" if east_asian[1] >= _MIN_KANA_SHARE * sum(east_asian) else "zh"] = sum(east_asian)
    language = max(letters, key=lambda name: letters[name])
    count = letters[language]
    if count < _MIN_LETTERS or count < _MIN_LETTER_SHARE * (sum(letters.values()) + len(_LATIN.findall(text))):
        return None
    if language == "cyrillic":
        return "uk" if len(_UKRAINIAN.findall(text)) > len(_NOT_UKRAINIAN.findall(text)) else "ru"
    return language


def _language_of_stop_words(text: str) -> str | None:
    languages_of = _languages_of_words()
    words = 0
    hits: Counter[str] = Counter()  # language → its stop words in the text
    found: set[str] = set()
    special_letters: set[str] = set()
    begins_sentence, in_name = True, False
    for token in text.split():
        word = token.strip(_AROUND_WORDS)
        words += bool(word)
        in_name = in_name and word in _PARTICLES
        # A capitalized word in a sentence belongs to a name: Los Angeles, Die Hard. Capitals may be a code: DE, IT.
        if word and not in_name and (not word[0].isupper() or (begins_sentence and not word[1:].isupper())):
            # Elisions and short forms: l'eau, dell’arte, it's.
            for part in word.lower().replace("’", "'").split("'"):
                if part in languages_of:
                    found.add(part)
                    hits.update(languages_of[part])
            if not word.isascii():
                special_letters.update(_SPECIAL_LETTER.findall(word.lower()))
        in_name = in_name or word[:1].isupper()
        begins_sentence = token[-1] in _SENTENCE_ENDS
    if not hits:
        return None
    (best, count), *others = hits.most_common()
    own = [word for word in found if best in languages_of[word]]
    is_running_text = len(own) >= _MIN_STOP_WORDS and max(map(len, own)) > 1 and count >= _MIN_STOP_WORD_SHARE * words
    if not is_running_text or (others and others[0][1] == count):
        return None
    if best == "en":
        return best
    is_ahead = "en" not in hits or count - hits["en"] >= _MIN_LEAD_OVER_ENGLISH
    return best if is_ahead and special_letters.issubset(_SPECIAL_LETTERS[best]) else None
