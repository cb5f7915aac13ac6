"""Names for clusters: their most distinctive words, by class-based TF-IDF (Grootendorst 2022, arXiv 2203.05794).

A word scores its frequency in the cluster times log(1 + A / f): f is its frequency in all texts, A the mean number of
words in a cluster. Noise counts as one more cluster, which gets no name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.clusters import Clustering
from es_sbert.errors import UsageError, require_extra

DEFAULT_WORDS = 4

# A word must be so much more frequent in its cluster than outside, or it comes after all that are.
_MIN_FREQUENCY_RATIO = 2

# Beyond it there are only ideographs and characters for private use.
_LAST_CODE_POINT = 0x20000

# Missing in scikit-learn's list, with the parts of don't, we'll and the like.
_EXTRA_STOP_WORDS = frozenset([
    "did", "does", "doing", "having", "just", "ain", "aren", "couldn", "didn", "doesn", "don", "hadn", "hasn", "haven",
    "isn", "ll", "shouldn", "ve", "wasn", "weren", "won", "wouldn",
])  # fmt: skip


def cluster_names(
    texts: Sequence[str],
    clustering: Clustering,
    *,
    words: int = DEFAULT_WORDS,
    stop_words: Collection[str] | Literal["english"] = "english",
) -> list[tuple[str, ...]]:
    """Name clusters by their words with the greatest class-based TF-IDF, the greatest first, ties in code point order.

    Words are in lower case. They may hold hyphens; an apostrophe separates words. Numbers and single letters are left
    out. A word that is not twice as frequent in its cluster as outside only fills up a name: function words of any
    language are about as frequent everywhere.

    Args:
        texts: Texts of the collection; empty where they are not known.
        clustering: Its clusters.
        words: Words of a name, at most.
        stop_words: Words that are left out, or `english`: the list of scikit-learn with some additions.

    Returns:
        The words of each cluster; none where its texts have none.

    Raises:
        UsageError: there is not one text for each position, words is below 1, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    from sklearn.feature_extraction.text import CountVectorizer

    if words < 1:
        raise UsageError(f"names of {words} words", "Ask for one word at least.")
    positions = [cluster.members for cluster in clustering.clusters]
    if len(texts) != sum(map(len, positions)) + len(clustering.noise):
        raise UsageError(f"{len(texts):,} texts are given, and others were clustered", "Give the texts of the vectors.")
    stopped = _english_stop_words() if stop_words == "english" else frozenset(map(_normalize, stop_words))

    def words_of_cluster(members: Iterable[int]) -> list[str]:
        return [word for member in members for word in split_words(texts[member]) if word not in stopped]

    if not any(words_of_cluster([member]) for members in positions for member in members):
        return [()] * len(positions)
    counter = CountVectorizer(analyzer=words_of_cluster, dtype=np.int64)
    counts = counter.fit_transform([*positions, clustering.noise] if clustering.noise else positions)
    vocabulary = counter.get_feature_names_out()  # in code point order
    of_all = np.asarray(counts.sum(axis=0)).ravel()  # (words,)
    of_clusters = np.asarray(counts.sum(axis=1)).ravel()  # (clusters,)
    return [
        tuple(vocabulary[_rank_words(counts, of_all, of_clusters, number)[:words]].tolist())
        for number in range(len(positions))
    ]


def display_names(names: Iterable[Sequence[str]]) -> list[str]:
    """What to call clusters: their words, or `cluster N` by the position from 0; no two are called the same."""
    shown: dict[str, None] = {}
    for number, words in enumerate(names):
        name = wanted = ", ".join(words) or f"cluster {number}"
        again = 1
        while name in shown:
            again += 1
            name = f"{wanted} ({again})"
        shown[name] = None
    return list(shown)


def split_words(text: str) -> list[str]:
    """The words of a text, normalised: letters and digits of any script with the marks that they carry."""
    return [word for word in _word_pattern().findall(_normalize(text)) if _is_word(word)]


def _is_word(word: str) -> bool:
    # A single character is a word in scripts without upper and lower case, such as Chinese.
    return (len(word) > 1 or word == word.upper()) and any(map(str.isalpha, word))


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text.lower())


@cache
def _word_pattern() -> re.Pattern[str]:
    # \w leaves out the combining marks without which Hindi or Thai falls to pieces, and the joiners of Persian.
    marks = "".join(chr(code) for code in range(_LAST_CODE_POINT) if unicodedata.category(chr(code))[0] == "M")
    character = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"{character}+(?:[-\u2010\u2011]{character}+)*")


@cache
def _english_stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return _EXTRA_STOP_WORDS.union(ENGLISH_STOP_WORDS)


def _rank_words(
    counts: Any, of_all: NDArray[np.int64], of_clusters: NDArray[np.int64], number: int
) -> NDArray[np.int64]:
    """Words of a cluster, the best first.

    Args:
        counts: How often each word is in each cluster, sparse. *Shape:* ``(clusters, words)``.
        of_all: How often it is in all of them. *Shape:* ``(words,)``.
        of_clusters: Words of each cluster, repeated ones counted. *Shape:* ``(clusters,)``.
    """
    row = counts[[number]]
    own, here = row.indices, row.data  # (words of the cluster,)
    scores = here * np.log1p(of_clusters.mean() / of_all[own])
    outside, words_outside = of_all[own] - here, of_clusters.sum() - of_clusters[number]
    typical = here * words_outside >= _MIN_FREQUENCY_RATIO * outside * of_clusters[number]
    best: NDArray[np.int64] = own[np.lexsort((own, -scores, ~typical))]
    return best
