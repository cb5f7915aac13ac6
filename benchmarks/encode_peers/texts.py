"""The texts that are embedded: distinct within a set, and other strings in another order in each round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import read_jsonl, read_tsv

STSB, SHORT, PARAGRAPHS, OWN = "STSb", "short documents", "paragraphs", "own texts"
SHORT_COUNT, PARAGRAPH_COUNT, CALIBRATION_COUNT = 2_000, 400, 300
_SHORT_WORDS = range(15, 26)
_PARAGRAPH_TOKENS = range(128, 256)
_CORPORA = ("cisi", "arguana-rebuilt", "agentset-msmarco")
# Each ends the texts of one round. A token each, so that rounds are alike.
_ENDINGS = ".!?;:,-/*+=~"

CountTokens = Callable[[Sequence[str]], Sequence[int]]


@dataclass(frozen=True)
class TextSet:
    """Texts of one kind.

    Attributes:
        name: In the tables.
        texts: All different.
        tokens: Their mean number of tokens, special ones included.
    """

    name: str
    texts: tuple[str, ...]
    tokens: float

    def for_round(self, number: int) -> list[str]:
        """The texts in an order of that round, each with an ending of that round.

        No string of a round was seen in another one (for as many rounds as there are endings).
        """
        ending = _ENDINGS[number % len(_ENDINGS)]
        texts = [text.rstrip(_ENDINGS + " ") + ending for text in self.texts]
        random.Random(number).shuffle(texts)
        return texts


def text_sets(
    data: Path, short: Sequence[str], count_tokens: CountTokens, *, limit: int | None = None, own: Path | None = None
) -> list[TextSet]:
    """STSb test sentences, short documents, paragraphs, and the user's own lines.

    Args:
        data: Folder with `sts/` and perhaps `retrieval/`.
        short: All short documents.
        count_tokens: Tokens of each text, special ones included.
        limit: At most so many texts of each set.
        own: A file with a text a line.
    """
    chosen = {
        STSB: [row[side] for row in sts_rows(data) for side in ("sentence1", "sentence2")],
        SHORT: spaced(short, SHORT_COUNT),
        PARAGRAPHS: spaced(paragraphs(data, short, count_tokens, PARAGRAPH_COUNT), PARAGRAPH_COUNT),
    }
    if own is not None:
        chosen[OWN] = own.read_text(encoding="utf-8").splitlines()
    sets = []
    for name, texts in chosen.items():
        texts = spaced(distinct(texts), limit or len(texts))
        if texts:
            sets.append(TextSet(name, tuple(texts), sum(count_tokens(texts)) / len(texts)))
    return sets


def sts_rows(data: Path) -> list[dict[str, str]]:
    """Pairs of sentences with a gold score."""
    return list(read_tsv(data / "sts/stsb-en-test.tsv.gz"))


def short_documents(data: Path) -> list[str]:
    """Every document of 15 to 25 words."""
    texts = (row["text"] for row in read_jsonl(data / "ingest/short-docs.jsonl.gz"))
    return distinct(text for text in texts if len(text.split()) in _SHORT_WORDS)


def calibration_texts(short: Sequence[str]) -> list[str]:
    """Short documents that are not measured."""
    measured = set(spaced(short, SHORT_COUNT))
    return spaced([text for text in short if text not in measured], CALIBRATION_COUNT)


def paragraphs(data: Path, short: Sequence[str], count_tokens: CountTokens, count: int) -> list[str]:
    """Documents of 128 to 256 tokens: of the corpora, else of short documents that are put together."""
    found: list[str] = []
    for name in _CORPORA:
        corpus = data / "retrieval" / name / "corpus.jsonl.gz"
        if len(found) < count and corpus.exists():
            texts = distinct(f"{row.get('title', '')} {row['text']}".strip() for row in read_jsonl(corpus))
            found += _of_length(texts, count_tokens)
    if len(found) < count:
        found += _of_length(list(_joined(short, 7 * count)), count_tokens)
    return found


def _of_length(texts: Sequence[str], count_tokens: CountTokens) -> list[str]:
    counts = count_tokens(texts)
    return [text for text, tokens in zip(texts, counts, strict=True) if tokens in _PARAGRAPH_TOKENS]


def _joined(texts: Sequence[str], count: int) -> Iterator[str]:
    size = 7  # of about 26 tokens each
    for start in range(0, min(len(texts), count * size) - size + 1, size):
        yield " ".join(texts[start : start + size])


def distinct(texts: Iterable[str]) -> list[str]:
    """Without repetitions and empty texts; texts that differ only in how they end are one."""
    found = {text.rstrip(_ENDINGS + " "): text for text in texts}
    return [text for key, text in found.items() if key]


def spaced(texts: Sequence[str], count: int) -> list[str]:
    """At most so many of the texts, from all parts of the list."""
    if len(texts) <= count:
        return list(texts)
    return [texts[number * len(texts) // count] for number in range(count)]
