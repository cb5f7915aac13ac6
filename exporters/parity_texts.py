"""Texts and pairs for the parity check: deterministic, of every length and script that a model may meet.

Most sentences come in groups of paraphrases, so that the ranks of their cosines are meaningful; the rest test the
tokenizer and the limits of the input length.
"""

from __future__ import annotations

import random


def parity_pairs(max_tokens: int, count: int = 1024) -> tuple[list[str], list[str]]:
    """Deterministic pairs: wordings of one statement, statements that share nothing, empty and very long texts."""
    first = parity_sentences(max_tokens, count)
    return first, [*first[1:], first[0]]


_SUBJECTS = (
    ("a nurse", "a hospital nurse"), ("the old fisherman", "the elderly fisherman"), ("two children", "a pair of kids"),
    ("the city council", "the town council"), ("a small startup", "a young company"),
    ("my neighbour", "the man next door"),
    ("the physics teacher", "the science teacher"), ("a stray dog", "a dog without an owner"),
    ("the orchestra", "the symphony orchestra"), ("an engineer", "a mechanical engineer"),
    ("the night train", "the overnight train"), ("a group of hikers", "several hikers"),
    ("the central bank", "the reserve bank"), ("a street musician", "a busker"),
    ("the satellite", "the weather satellite"), ("her grandmother", "her father's mother"),
)  # fmt: skip
_ACTIONS = (
    ("repaired {o}", "fixed {o}"), ("bought {o} last week", "purchased {o} a week ago"),
    ("is looking for {o}", "searches for {o}"), ("could not find {o}", "failed to find {o}"),
    ("described {o} in detail", "gave a detailed account of {o}"),
    ("sold {o} for a good price", "got good money for {o}"),
    ("was afraid of {o}", "feared {o}"), ("will replace {o} next year", "is going to replace {o} in a year"),
    ("photographed {o} at dawn", "took pictures of {o} at sunrise"), ("never understood {o}", "did not ever grasp {o}"),
    ("carried {o} up the stairs", "brought {o} upstairs"), ("wrote a report about {o}", "reported on {o} in writing"),
)  # fmt: skip
_OBJECTS = (
    ("the broken bicycle", "the damaged bike"), ("a house by the lake", "a lakeside house"),
    ("the annual budget", "the budget for the year"), ("an unusual melody", "a strange tune"),
    ("the water pump", "the pump for the water"), ("a letter from abroad", "a foreign letter"),
    ("the mountain path", "the trail over the mountain"), ("three boxes of books", "3 boxes full of books"),
    ("the new timetable", "the changed schedule"), ("a recipe for lentil soup", "instructions for cooking lentil soup"),
    ("the interest rate", "the rate of interest"), ("the telescope", "the large telescope"),
    ("the missing suitcase", "the lost luggage"), ("a vaccine trial", "a test of a vaccine"),
)  # fmt: skip
_SETTINGS = (
    "", "", "", "in the rain", "before breakfast", "although nobody had asked", "for the third time this month",
    "while the shops were closing", "on 14 March 2019", "near the harbour, far from any road", "without any help",
    "because the old one had failed", "in front of 2,500 people", "and nobody noticed",
)  # fmt: skip

_PROBES = (
    "", "a", "I", "7", "?", "...", "yes", "No!", "42", "3.14159", "-0.5", "1,000,000", "€ 99,95", "10^-6 m/s²", "C++",
    "e-mail", "U.S.A.", "#hashtag", "@someone", "C:\\temp\\new.txt", "https://example.org/a?b=c&d=%20e#f",
    "SELECT * FROM users WHERE id = 7;", "def f(x): return x ** 2", "{\"key\": [1, 2, null]}", "<b>bold</b> & more",
    "<pad>", "a <pad> inside", "[PAD]", "[MASK] and [SEP] spelled out", "<s> and </s> too", "don't can't won't",
    "ALL CAPITALS HERE", "MiXeD cAsE", "tab\tseparated\twords", "two\nlines", "  spaces   everywhere  ", "naïve café",
    "nai\u0308ve cafe\u0301", "Straße, Übermut und Äpfel", "Die Katze schläft auf dem warmen Ofen.",
    "Le train de nuit arrive à six heures.", "El perro duerme bajo la mesa.", "Il treno è in ritardo di un'ora.",
    "Поезд опаздывает на час.", "Η γάτα κοιμάται.", "القطار متأخر ساعة", "הרכבת מאחרת בשעה", "列车晚点一个小时。",
    "電車は一時間遅れています。", "기차가 한 시간 늦습니다.", "ट्रेन एक घंटा देर से है।", "รถไฟล่าช้าหนึ่งชั่วโมง", "🚂",
    "🙂🙃 great!",
    "👩‍👩‍👧‍👦 family",
    "ﬁne ligature", "ｆｕｌｌ ｗｉｄｔｈ", "zero\u200bwidth", "soft\u00adhyphen", "non\u00a0breaking", "Zürich–Genève",
    "“quoted”",
    "antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaft", "x" * 120, "ab " * 40, "\ufffd", "½ + ¼ = ¾",
)  # fmt: skip

# Longest inputs, as parts of the model's maximum: just inside, at and beyond it.
_LONG_TEXT_RATIOS = (0.25, 0.4, 0.6, 0.85, 1.0, 1.3)


def parity_sentences(max_tokens: int, count: int = 1024) -> list[str]:
    """Deterministic sentences to compare two implementations on.

    Args:
        max_tokens: Longest input of the model; some sentences reach and pass it.
        count: How many, at least 256.

    Returns:
        Distinct texts, the same for the same arguments.
    """
    if count < 256:
        raise ValueError(f"{count} sentences are too few to probe a model with")
    choose = random.Random(20190827)
    texts = dict.fromkeys(_PROBES)
    for part in _LONG_TEXT_RATIOS:
        words = int(part * max_tokens)
        text = " ".join(_sentence(choose)[0] for _ in range(words // 6 + 1))
        texts[" ".join(text.split()[:words])] = None
    while len(texts) < count:
        for text in _sentence(choose):
            texts[text] = None
    return list(texts)[:count]


def _sentence(choose: random.Random) -> list[str]:
    """One statement in two or three wordings, sometimes as a question or joined with another."""
    parts = choose.choice(_SUBJECTS), choose.choice(_ACTIONS), choose.choice(_OBJECTS)
    setting = choose.choice(_SETTINGS)
    wordings = [_wording(parts, 0, setting), _wording(parts, 1, setting)]
    if choose.random() < 0.3:
        wordings.append(f"Is it true that {wordings[0][0].lower()}{wordings[0][1:-1]}?")
    if choose.random() < 0.15:
        other = _wording((choose.choice(_SUBJECTS), choose.choice(_ACTIONS), choose.choice(_OBJECTS)), 0, "")
        wordings.append(f"{wordings[0]} {other}")
    return wordings


def _wording(parts: tuple[tuple[str, str], tuple[str, str], tuple[str, str]], wording: int, setting: str) -> str:
    (subject, action, thing) = (part[wording] for part in parts)
    text = f"{subject} {action.format(o=thing)}{' ' + setting if setting else ''}."
    return text[0].upper() + text[1:]
