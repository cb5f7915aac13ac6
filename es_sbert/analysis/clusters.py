"""Cluster texts by their embeddings with k-means, and name the clusters.

Texts are compared by cosine: vectors are normalized first. A text with several vectors (chunks) counts once, by the
normalized mean of its normalized vectors. k-means of up to `KMEANS_TEXTS` texts computes in float64, so that the
result does not depend on the number of threads.

The name of a cluster is made of its most distinctive words by class-based TF-IDF (Grootendorst 2022, arXiv 2203.05794).
The score of a word is its frequency in the cluster times log(1 + A / f), where f is its frequency in all texts and A
the mean number of words in a cluster.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.similarity import DECIMALS, Int64Array, check_starts, round_cosines, vector_lengths
from es_sbert.arguments import as_texts, check_arguments
from es_sbert.errors import UsageError, require_extra
from es_sbert.io.text_language import detect_language
from es_sbert.io.text_language import stop_words as language_stop_words
from es_sbert.messages import pluralize
from es_sbert.settings import Count
from es_sbert.vectors import Vectors

# Up to this number of texts, each step of k-means uses all of them; above it, one batch.
KMEANS_TEXTS = 50_000

# Numbers of clusters that `auto` tries, up to the square root of the number of texts (up to 10 in any case).
AUTO_CANDIDATES = (
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 120, 140, 160, 180,
    200,
)  # fmt: skip
# Number of texts on which k-means tries these numbers.
AUTO_TEXTS = 5_000

# Number of starts of k-means; the best result is kept.
_KMEANS_STARTS = 4
_KMEANS_BATCH = 4096
# Seed of the random choices of k-means.
_SEED = 0
_BLOCK = 2048
ClusterCount = Count | Literal["auto"]


class TextCluster(NamedTuple):
    """Texts that belong together.

    Usage:
        ```python
        largest = cluster_texts(vectors, k=2).clusters[0]
        print([texts[member] for member in largest.members])
        ```

    Attributes:
        members: Positions of the texts, most central first; ties are sorted by position.
        cosines: Cosine of each member with the center, the mean of the members. Rounded to five decimals.
    """

    members: tuple[int, ...]
    cosines: tuple[float, ...]


class Clustering(NamedTuple):
    """Clusters of a collection.

    Usage:
        ```python
        found = cluster_texts(vectors, k=2)
        print(len(found.clusters), found.silhouette)
        ```

    Attributes:
        clusters: The clusters, largest first; clusters of equal size are sorted by their lowest member.
        silhouette: Mean cosine silhouette of the texts, -1 to 1; None with fewer than two clusters.
    """

    clusters: tuple[TextCluster, ...]
    silhouette: float | None


@check_arguments
def cluster_texts(vectors: Vectors, *, k: ClusterCount = "auto", starts: Int64Array | None = None) -> Clustering:
    """Cluster the texts of a collection around k means; in mini-batches if there are more than 50,000 texts.

    Usage:
        ```python
        for cluster in cluster_texts(vectors, k=2).clusters:
            print(texts[cluster.members[0]])
        ```

    The result is the same for the same arguments. Mini-batches may find fewer than k clusters. For `auto`, 30 numbers
    from 2 to 200 are tried on 5,000 texts at most, and the smallest with the greatest mean cosine silhouette is taken.

    Args:
        vectors: Embeddings, normalized or not. *Shape:* ``(vectors, dimensions)``.
        k: Number of clusters; auto tries up to 200 and takes the one with the highest silhouette.
        starts: Row of each text's first vector, ascending from 0, if texts have several vectors. *Shape:* ``(texts,)``.

    Raises:
        UsageError: k is below 1 or above the number of distinct texts, a vector is zero or not finite, `starts` do not
            ascend, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    texts = text_vectors(vectors, starts)
    if not len(texts):
        return Clustering((), None)
    labels = _kmeans(texts, k)
    order = np.argsort(labels, kind="stable")
    _, first = np.unique(labels[order], return_index=True)
    clusters = [_build_cluster(texts, members) for members in np.split(order, first[1:])]
    clusters.sort(key=lambda cluster: (-len(cluster.members), min(cluster.members)))
    return Clustering(tuple(clusters), mean_silhouette(texts, labels))


def text_vectors(vectors: Vectors, starts: Int64Array | None = None) -> Vectors:
    """Compute one vector of length 1 per text: its vector, or the mean of its vectors with equal weights.

    The vectors of a text may cancel out. Such a text has no direction, and gets its first vector.

    Args:
        vectors, starts: See `cluster_texts`.

    Returns:
        The vectors. *Shape:* ``(texts, dimensions)``.

    Raises:
        UsageError: a vector is zero or not finite, or `starts` do not ascend.
    """
    units: Vectors = (vectors / vector_lengths(vectors)[:, None]).astype(np.float32)
    starts = check_starts(starts, len(units))
    if starts is None:
        return units
    sums = np.add.reduceat(units, starts, axis=0, dtype=np.float64)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)  # (texts, 1)
    return np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), units[starts]).astype(np.float32)


def mean_silhouette(texts: Vectors, labels: Int64Array) -> float | None:
    """Compute the mean cosine silhouette (Rousseeuw 1987) of texts, rounded to `DECIMALS` decimals.

    The mean cosine distance to a cluster follows from the sum of its vectors, so all texts can be used without
    computing n² distances. A text that is alone in its cluster has a silhouette of 0.

    Args:
        texts: Vectors of length 1. *Shape:* ``(texts, dimensions)``.
        labels: Cluster of each text. *Shape:* ``(texts,)``.

    Returns:
        The mean; None if there are fewer than two clusters.
    """
    names, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return None
    sums = np.stack([texts[labels == number].sum(axis=0, dtype=np.float64) for number in range(len(names))])
    total = 0.0
    for rows in _blocks(len(texts), _BLOCK):
        block = texts[rows].astype(np.float64)
        own, each = labels[rows], np.arange(len(block))
        products = block @ sums.T  # (rows, clusters)
        size = sizes[own]
        with_itself = np.einsum("td,td->t", block, block)
        inside = 1 - (products[each, own] - with_itself) / np.maximum(size - 1, 1)  # (rows,)
        cosines = products / sizes
        cosines[each, own] = -np.inf
        outside = 1 - cosines.max(axis=1)  # (rows,): to the nearest other cluster
        # Remove rounding errors: distances of identical texts are 0.
        inside, outside = (np.maximum(distance, 0).round(2 * DECIMALS) for distance in (inside, outside))
        greater = np.maximum(inside, outside)
        silhouettes = np.divide(outside - inside, greater, out=np.zeros(len(block)), where=(greater > 0) & (size > 1))
        total += float(silhouettes.sum())
    return round(total / len(texts), DECIMALS)


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, count, size))


def _kmeans(texts: Vectors, k: ClusterCount) -> Int64Array:
    """Assign each text to a cluster. *Shape:* ``(texts,)``."""
    if k == "auto":
        k = _best_k(texts)
    found = _count_distinct(texts, k)
    if found < k:
        raise UsageError(
            f"{pluralize(k, 'cluster')} requested for {pluralize(len(texts), 'text')} with "
            f"{pluralize(found, 'different vector')}",
            f"Request at most {pluralize(found, 'cluster')}, or use more texts.",
        ).about("k", k)
    return _kmeans_labels(texts, k, starts=_KMEANS_STARTS)


def _kmeans_labels(texts: Vectors, k: int, *, starts: int) -> Int64Array:
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if len(texts) <= KMEANS_TEXTS:
        model = KMeans(k, n_init=starts, random_state=_SEED)
        texts = texts.astype(np.float64)
    else:
        model = MiniBatchKMeans(k, n_init=starts, random_state=_SEED, batch_size=_KMEANS_BATCH)
    return np.asarray(model.fit(texts).labels_, np.int64)


def _best_k(texts: Vectors) -> int:
    """Choose the smallest candidate with the greatest mean silhouette; 1 if all texts are equal."""
    sample = texts
    if len(texts) > AUTO_TEXTS:
        chosen = np.random.default_rng(_SEED).choice(len(texts), AUTO_TEXTS, replace=False)
        sample = texts[np.sort(chosen)]
    most = min(max(10, int(len(texts) ** 0.5)), len(sample) - 1)
    most = _count_distinct(sample, most) if most > 0 else 0
    scores = {k: mean_silhouette(sample, _kmeans_labels(sample, k, starts=1)) for k in AUTO_CANDIDATES if k <= most}
    return max(scores, key=lambda k: (scores[k] or 0.0, -k)) if scores else 1


def _count_distinct(texts: Vectors, most: int) -> int:
    """Count distinct vectors, up to `most`. Vectors that differ only by rounding errors count as equal."""
    found: set[bytes] = set()
    for rows in _blocks(len(texts), _BLOCK):
        for row in texts[rows].round(DECIMALS) + np.float32(0):  # 0 turns -0.0 into 0.0
            found.add(row.tobytes())
            if len(found) == most:
                return most
    return len(found)


def _build_cluster(texts: Vectors, members: Int64Array) -> TextCluster:
    own = texts[members].astype(np.float64)
    center = own.sum(axis=0)
    length = float(np.linalg.norm(center))
    # Vectors that cancel out have no mean direction.
    cosines = round_cosines(own @ center / length) if length > 0 else np.zeros(len(own))
    order = np.lexsort((members, -cosines))
    return TextCluster(tuple(members[order].tolist()), tuple(cosines[order].tolist()))


# Maximum number of words in the name of a cluster.
_WORDS = 4

# Words that are at least this many times more frequent in their cluster than outside are ranked first.
_MIN_FREQUENCY_RATIO = 2

# Above this there are only ideographs and private-use characters.
_LAST_CODE_POINT = 0x20000

# Words that scikit-learn's list lacks, including the parts of don't, we'll and similar words.
_EXTRA_STOP_WORDS = frozenset([
    "did", "does", "doing", "having", "just", "ain", "aren", "couldn", "didn", "doesn", "don", "hadn", "hasn", "haven",
    "isn", "ll", "shouldn", "ve", "wasn", "weren", "won", "wouldn",
])  # fmt: skip


# Texts of a cluster whose language is estimated, and the share of a language among the known ones from which it counts.
_LANGUAGE_TEXTS = 100
_MIN_LANGUAGE_SHARE = 0.2


# Not `strip_html`, which refuses texts of deeply nested elements, and lone surrogates: any text can be clustered.
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


def cluster_names(texts: Sequence[str], clustering: Clustering) -> list[str]:
    """Name clusters by their words with the greatest class-based TF-IDF, the greatest first, ties in code point order.

    Usage:
        ```python
        found = cluster_texts(vectors, k=2)
        print(cluster_names(texts, found))
        ```

    Words are in lower case. They may contain hyphens; an apostrophe separates words. Numbers and single letters are
    left out. Words that are less than twice as frequent in the cluster as outside are used only if there are too few
    others, because function words of any language are about as frequent everywhere. Stop words of English and of each
    language that a fifth of the central texts of the cluster are in are left out, and HTML tags.

    Args:
        texts: Texts of the collection; empty strings if they are not known.
        clustering: The clusters of the collection.

    Returns:
        The name of each cluster: four words at most, or `cluster N` by its position from 0 if its texts have no words.
        No two names are the same.

    Raises:
        UsageError: a text is not a str, their number is not that of the clustering, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

    texts = as_texts(texts)
    positions = [cluster.members for cluster in clustering.clusters]
    if len(texts) != sum(map(len, positions)):
        raise UsageError(
            f"{len(texts):,} texts were passed, but others were clustered", "Pass the clustered texts."
        ).about("texts")
    english = _EXTRA_STOP_WORDS | ENGLISH_STOP_WORDS

    def kept_words(members: Sequence[int]) -> list[str]:
        left_out = english.union(_stop_words_of(texts[member] for member in members[:_LANGUAGE_TEXTS]))
        untagged = (_TAG.sub(" ", texts[member]) for member in members)
        return [word for text in untagged for word in split_words(text) if word not in left_out]

    if not any(map(kept_words, positions)):
        return [f"cluster {number}" for number in range(len(positions))]
    counter = CountVectorizer(analyzer=kept_words, dtype=np.int64)
    counts = counter.fit_transform(positions)
    vocabulary = counter.get_feature_names_out()  # in code point order
    of_all = np.asarray(counts.sum(axis=0)).ravel()  # (words,)
    of_clusters = np.asarray(counts.sum(axis=1)).ravel()  # (clusters,)
    names: dict[str, None] = {}
    for number in range(len(positions)):
        words = vocabulary[_rank_words(counts, of_all, of_clusters, number)[:_WORDS]].tolist()
        name = wanted = ", ".join(words) or f"cluster {number}"
        again = 1
        while name in names:
            again += 1
            name = f"{wanted} ({again})"
        names[name] = None
    return list(names)


def _stop_words_of(texts: Iterable[str]) -> list[str]:
    """The stop words of the languages that many of the texts are in."""
    counts = Counter(filter(None, map(detect_language, texts)))
    languages = [name for name, count in counts.items() if count >= _MIN_LANGUAGE_SHARE * counts.total()]
    return [word for name in languages for word in language_stop_words().get(name, ())]


def split_words(text: str) -> list[str]:
    """Split a text into normalized words: letters and digits of any script with their combining marks."""
    # Keep single characters of scripts without upper and lower case: in Chinese, for example, they are words.
    lower = unicodedata.normalize("NFC", text.lower())
    words = [word for word in _word_pattern().findall(lower) if len(word) > 1 or word == word.upper()]
    return [word for word in words if any(map(str.isalpha, word))]


@cache
def _word_pattern() -> re.Pattern[str]:
    # \w does not match combining marks, so Hindi and Thai words would break apart, or the joiners of Persian.
    marks = "".join(chr(code) for code in range(_LAST_CODE_POINT) if unicodedata.category(chr(code))[0] == "M")
    character = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"{character}+(?:[-\u2010\u2011]{character}+)*")


def _rank_words(
    counts: Any, of_all: NDArray[np.int64], of_clusters: NDArray[np.int64], number: int
) -> NDArray[np.int64]:
    """Rank a cluster's words; return their indices, the best first.

    Args:
        counts: Frequency of each word in each cluster, sparse. *Shape:* ``(clusters, words)``.
        of_all: Frequency of each word in all clusters. *Shape:* ``(words,)``.
        of_clusters: Number of words in each cluster, with repetitions. *Shape:* ``(clusters,)``.
    """
    row = counts[[number]]
    own, here = row.indices, row.data  # (words of the cluster,)
    scores = here * np.log1p(of_clusters.mean() / of_all[own])
    outside, words_outside = of_all[own] - here, of_clusters.sum() - of_clusters[number]
    typical = here * words_outside >= _MIN_FREQUENCY_RATIO * outside * of_clusters[number]
    best: NDArray[np.int64] = own[np.lexsort((own, -scores, ~typical))]
    return best
