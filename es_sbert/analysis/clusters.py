"""Clusters of texts by embedding (k-means, agglomerative, HDBSCAN and communities), and names for them.

All methods use the cosine: vectors are normalized first. A text with several vectors (chunks) counts once, by the
normalized mean of its normalized vectors. k-means of up to `KMEANS_TEXTS` texts computes in float64, so that the
result does not depend on the number of threads.

A cluster is named by its most distinctive words, by class-based TF-IDF (Grootendorst 2022, arXiv 2203.05794). A word
scores its frequency in the cluster times log(1 + A / f): f is its frequency in all texts, A the mean number of words in
a cluster. Noise counts as one more cluster, which gets no name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.similarity import (
    DECIMALS,
    Float64Array,
    Int64Array,
    check_cosine,
    check_starts,
    pairs_above,
    round_cosines,
    vector_lengths,
)
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import pluralize
from es_sbert.vectors import Vectors

DEFAULT_MIN_COSINE = 0.75
DEFAULT_MIN_SIZE = 5

# Texts up to which k-means looks at all of them in each step; of more, at one batch.
KMEANS_TEXTS = 50_000
# Most texts of the methods that hold all distances: 8 n² and 16 n² bytes, 3 to 4 GB.
AGGLOMERATIVE_TEXTS = 20_000
HDBSCAN_TEXTS = 15_000

# Numbers of clusters that `auto` tries, up to the square root of the number of texts (up to 10 in any case).
AUTO_CANDIDATES = (
    2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 120, 140, 160, 180,
    200,
)  # fmt: skip
# Texts on which k-means tries them.
AUTO_TEXTS = 5_000

# Starts of k-means, of which the best is kept.
_KMEANS_STARTS = 4
_KMEANS_BATCH = 4096
# Texts whose cosines with all others are held at a time.
_ROWS = 256
_BLOCK = 2048
ClusterCount = int | Literal["auto"]


class ClusterMethod(StrEnum):
    """How texts are clustered."""

    KMEANS = "kmeans"
    AGGLOMERATIVE = "agglomerative"
    HDBSCAN = "hdbscan"
    COMMUNITIES = "communities"


# What k, min_cosine and min_size are called in messages, and the methods that take them.
_OPTION_METHODS = (
    ("a number of clusters (k)", (ClusterMethod.KMEANS, ClusterMethod.AGGLOMERATIVE)),
    ("a minimum cosine", (ClusterMethod.COMMUNITIES,)),
    ("a minimum size", (ClusterMethod.HDBSCAN, ClusterMethod.COMMUNITIES)),
)


class TextCluster(NamedTuple):
    """Texts that belong together.

    Attributes:
        members: Positions of the texts, the most central first; of equal cosines the lower position.
        cosines: Of each member with the center: the mean of the members, or of a community its central text. Rounded
            to `DECIMALS` decimals.
    """

    members: tuple[int, ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True)
class Clustering:
    """Clusters of a collection.

    Attributes:
        clusters: The largest first; of equal sizes the one with the lowest member.
        noise: Positions of the texts in no cluster, ascending.
        method: How they were found.
        silhouette: Mean silhouette by cosine of all texts in clusters, -1 to 1; None with fewer than two clusters.
    """

    clusters: tuple[TextCluster, ...]
    noise: tuple[int, ...]
    method: ClusterMethod
    silhouette: float | None

    @property
    def labels(self) -> Int64Array:
        """The cluster of each text by its position in `clusters`; -1 for noise. *Shape:* ``(texts,)``."""
        labels = np.full(sum(len(cluster.members) for cluster in self.clusters) + len(self.noise), -1, np.int64)
        for number, cluster in enumerate(self.clusters):
            labels[list(cluster.members)] = number
        return labels


def cluster_texts(
    vectors: Vectors,
    method: str = ClusterMethod.KMEANS,
    *,
    k: ClusterCount | None = None,
    min_cosine: float | None = None,
    min_size: int | None = None,
    starts: Int64Array | None = None,
    seed: int = 0,
) -> Clustering:
    """Cluster the texts of a collection.

    | method | clusters | texts |
    |---|---|---|
    | `kmeans` | k clusters around means; mini-batches for more than `KMEANS_TEXTS` texts | any number |
    | `agglomerative` | k clusters by Ward's linkage | up to `AGGLOMERATIVE_TEXTS` |
    | `hdbscan` | dense regions of at least `min_size` texts; the rest is noise | up to `HDBSCAN_TEXTS` |
    | `communities` | at least `min_size` texts near a central text; the rest is noise | any number |

    The result is the same for the same arguments. Mini-batches may find fewer than k clusters.

    Args:
        vectors: Embeddings, normalized or not. *Shape:* ``(vectors, dimensions)``.
        method: A `ClusterMethod` or its name; see the table.
        k: Number of clusters, for `kmeans` and `agglomerative`. `auto`, also where it is not given: the one of
            `AUTO_CANDIDATES` with the greatest mean silhouette by cosine, of several the smallest. `kmeans` tries them
            on `AUTO_TEXTS` texts at most.
        min_cosine: For `communities`: minimum cosine with the central text. Not given: `DEFAULT_MIN_COSINE`.
        min_size: For `hdbscan` and `communities`: least number of texts. Not given: `DEFAULT_MIN_SIZE`.
        starts: For texts with several vectors: the row of each text's first, ascending from 0. *Shape:* ``(texts,)``.
        seed: Of the random choices of `kmeans`.

    Raises:
        UsageError: an option is out of range or does not go with the method, there are more texts than the method
            takes or fewer different ones than k, a vector is zero or not finite, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    method = check_options(method, k=k, min_cosine=min_cosine, min_size=min_size)
    if not 0 <= seed < 2**32:
        raise UsageError(f"a seed of {seed}", "Give a number from 0 to 4294967295.")
    texts = text_vectors(vectors, starts)
    least = DEFAULT_MIN_SIZE if min_size is None else min_size
    if not len(texts):
        return Clustering((), (), method, None)
    match method:
        case ClusterMethod.KMEANS:
            return _build_clustering(texts, _kmeans(texts, k or "auto", seed), method)
        case ClusterMethod.AGGLOMERATIVE:
            return _build_clustering(texts, _agglomerative(texts, k or "auto"), method)
        case ClusterMethod.HDBSCAN:
            return _build_clustering(texts, _hdbscan(texts, least), method)
        case ClusterMethod.COMMUNITIES:
            threshold = DEFAULT_MIN_COSINE if min_cosine is None else min_cosine
            labels, centers = _communities(texts, threshold, least)
            return _build_clustering(texts, labels, method, centers)


def check_options(
    method: str, *, k: ClusterCount | None = None, min_cosine: float | None = None, min_size: int | None = None
) -> ClusterMethod:
    """Make sure that options of `cluster_texts` go with the method and are in range.

    Returns:
        The method.

    Raises:
        UsageError: they are not.
    """
    if method not in list(ClusterMethod):
        raise UsageError(f"{method} is not a method", f"Use one of {', '.join(ClusterMethod)}.")
    method = ClusterMethod(method)
    for value, (name, methods) in zip((k, min_cosine, min_size), _OPTION_METHODS, strict=True):
        if value is not None and method not in methods:
            raise UsageError(f"{name} does not apply to {method}", f"Leave it out, or use {' or '.join(methods)}.")
    if k is not None and k != "auto" and k < 1:
        raise UsageError(f"the number of clusters is {k}", "Give at least 1, or auto.")
    if min_cosine is not None:
        check_cosine(min_cosine)
    if min_size is not None and min_size < 2:
        raise UsageError(f"min_size is {min_size}", "Give 2 texts or more.")
    return method


def text_vectors(vectors: Vectors, starts: Int64Array | None = None) -> Vectors:
    """One vector of length 1 a text: its vector, or the mean of its vectors, all of which count the same.

    Args:
        vectors, starts: See `cluster_texts`.

    Returns:
        *Shape:* ``(texts, dimensions)``.

    Raises:
        UsageError: a vector is zero or not finite, the vectors of a text cancel out, or `starts` do not ascend.
    """
    units, sums = normalize_and_sum(vectors, starts)
    return units if sums is None else _normalize(sums)


def normalize_and_sum(vectors: Vectors, starts: Int64Array | None = None) -> tuple[Vectors, Float64Array | None]:
    """The vectors with length 1, and the sum of those of each text.

    Returns:
        *Shape:* ``(vectors, dimensions)`` and ``(texts, dimensions)``; no sums where each text has one vector.

    Raises:
        UsageError: a vector is zero or not finite, or `starts` do not ascend.
    """
    units = _normalize(np.asarray(vectors))
    starts = check_starts(starts, len(units))
    return units, None if starts is None else np.add.reduceat(units, starts, axis=0, dtype=np.float64)


def mean_silhouette(texts: Vectors, labels: Int64Array) -> float | None:
    """Mean silhouette by cosine (Rousseeuw 1987) of all texts in clusters, rounded to `DECIMALS` decimals.

    The mean cosine distance to a cluster follows from the sum of its vectors, so that all texts count and no n²
    distances are computed. A text that is alone in its cluster has a silhouette of 0.

    Args:
        texts: Vectors of length 1. *Shape:* ``(texts, dimensions)``.
        labels: Cluster of each text; -1 for noise. *Shape:* ``(texts,)``.

    Returns:
        None where there are fewer than two clusters.
    """
    texts, labels = texts[labels >= 0], labels[labels >= 0]
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
        # Rounding errors of identical texts are not distances.
        inside, outside = (np.maximum(distance, 0).round(2 * DECIMALS) for distance in (inside, outside))
        greater = np.maximum(inside, outside)
        silhouettes = np.divide(outside - inside, greater, out=np.zeros(len(block)), where=(greater > 0) & (size > 1))
        total += float(silhouettes.sum())
    return round(total / len(texts), DECIMALS)


def _normalize(vectors: NDArray[Any]) -> Vectors:
    return (vectors / vector_lengths(vectors)[:, None]).astype(np.float32)


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, count, size))


def _kmeans(texts: Vectors, k: ClusterCount, seed: int) -> Int64Array:
    """Clusters around means."""
    if k == "auto":
        sample = texts
        if len(texts) > AUTO_TEXTS:
            chosen = np.random.default_rng(seed).choice(len(texts), AUTO_TEXTS, replace=False)
            sample = texts[np.sort(chosen)]
        k = _best_k(sample, len(texts), lambda candidate: _kmeans_labels(sample, candidate, seed, starts=1))
    _check_distinct(texts, k)
    return _kmeans_labels(texts, k, seed, starts=_KMEANS_STARTS)


def _kmeans_labels(texts: Vectors, k: int, seed: int, *, starts: int) -> Int64Array:
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if len(texts) <= KMEANS_TEXTS:
        model = KMeans(k, n_init=starts, random_state=seed)
        texts = texts.astype(np.float64)
    else:
        model = MiniBatchKMeans(k, n_init=starts, random_state=seed, batch_size=_KMEANS_BATCH)
    return np.asarray(model.fit(texts).labels_, np.int64)


def _agglomerative(texts: Vectors, k: ClusterCount) -> Int64Array:
    """Clusters of Ward's linkage."""
    from sklearn.cluster import AgglomerativeClustering

    _check_count(texts, AGGLOMERATIVE_TEXTS, ClusterMethod.AGGLOMERATIVE)
    if k != "auto":
        _check_distinct(texts, k)
    if len(texts) == 1:
        return np.zeros(1, np.int64)
    # The whole tree, which is cut for each candidate.
    tree = AgglomerativeClustering(n_clusters=None, distance_threshold=0, linkage="ward")
    merges = tree.fit(texts.astype(np.float64)).children_
    if k == "auto":
        k = _best_k(texts, len(texts), lambda candidate: _cut_tree(merges, candidate))
    return _cut_tree(merges, k)


def _cut_tree(merges: Int64Array, k: int) -> Int64Array:
    """The k clusters of a tree.

    Args:
        merges: The two nodes of each merge, the nearest first; the i-th merge makes node `texts + i`.
            *Shape:* ``(texts - 1, 2)``.

    Returns:
        *Shape:* ``(texts,)``.
    """
    count = len(merges) + 1
    above = np.arange(2 * count - 1)  # (nodes,): what each was merged into
    made = np.arange(count, 2 * count - k)
    above[merges[: len(made)]] = made[:, None]
    while (above != above[above]).any():
        above = above[above]
    return np.unique(above[:count], return_inverse=True)[1].astype(np.int64)


def _best_k(texts: Vectors, count: int, labels_of: Callable[[int], Int64Array]) -> int:
    """The candidate with the greatest mean silhouette, of several the smallest; 1 where no two texts differ.

    Args:
        texts: Texts on which candidates are tried.
        count: Texts of the collection.
        labels_of: Finds so many clusters of them.
    """
    most = min(max(10, int(count**0.5)), len(texts) - 1)
    most = _count_distinct(texts, most) if most > 0 else 0
    scores = {k: mean_silhouette(texts, labels_of(k)) for k in AUTO_CANDIDATES if k <= most}
    return max(scores, key=lambda k: (scores[k] or 0.0, -k)) if scores else 1


def _count_distinct(texts: Vectors, most: int) -> int:
    """How many different vectors there are, counted up to `most`. Those that differ by rounding errors are the same."""
    found: set[bytes] = set()
    for rows in _blocks(len(texts), _BLOCK):
        for row in texts[rows].round(DECIMALS) + np.float32(0):  # 0 turns -0.0 into 0.0
            found.add(row.tobytes())
            if len(found) == most:
                return most
    return len(found)


def _check_distinct(texts: Vectors, k: int) -> None:
    if k > len(texts):
        raise UsageError(
            f"{pluralize(k, 'cluster')} of {pluralize(len(texts), 'text')}",
            "Ask for fewer clusters, or give more texts.",
        )
    found = _count_distinct(texts, k)
    if found < k:
        remedy = f"Ask for {pluralize(found, 'cluster')} at most, or give more texts."
        raise UsageError(
            f"{pluralize(k, 'cluster')} of {pluralize(len(texts), 'text')}, which have only "
            f"{pluralize(found, 'different vector')}",
            remedy,
        )


def _check_count(texts: Vectors, most: int, method: ClusterMethod) -> None:
    if len(texts) > most:
        reason = f"{method} holds the distances of all pairs, and {len(texts):,} texts are more than {most:,}"
        raise UsageError(reason, f"Use {ClusterMethod.KMEANS} or {ClusterMethod.COMMUNITIES}, or give fewer texts.")


def _hdbscan(texts: Vectors, min_size: int) -> Int64Array:
    """Dense regions."""
    from sklearn.cluster import HDBSCAN

    _check_count(texts, HDBSCAN_TEXTS, ClusterMethod.HDBSCAN)
    if len(texts) < min_size:
        return np.full(len(texts), -1, np.int64)
    if _count_distinct(texts, 2) == 1:
        # HDBSCAN never takes the whole collection as one cluster.
        return np.zeros(len(texts), np.int64)
    # scikit-learn's trees take ten times as long with some hundred dimensions. Distances of unit vectors order pairs as
    # cosines do, and take less memory.
    model = HDBSCAN(min_cluster_size=min_size, algorithm="brute", copy=True)
    return np.asarray(model.fit(texts).labels_, np.int64)


def _communities(texts: Vectors, min_cosine: float, min_size: int) -> tuple[Int64Array, list[int]]:
    """Texts near a central text, as sentence-transformers' `community_detection` finds them.

    Every text is the center of those that are near it. The text with the most comes first, of several the first, and
    takes those that are in no community yet. It makes a community where these are enough.

    Returns:
        Community of each text, -1 for none, and the center of each community.
    """
    sizes = np.ones(len(texts), np.int64)  # (texts,): texts near each, itself included
    for first, second, _ in pairs_above(texts, min_cosine):
        sizes += np.bincount(first, minlength=len(texts)) + np.bincount(second, minlength=len(texts))
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] >= min_size]
    labels = np.full(len(texts), -1, np.int64)
    centers: list[int] = []
    # All pairs above the threshold may be n², so those of a few possible centers are computed again.
    for rows in _blocks(len(order), _ROWS):
        possible = order[rows][labels[order[rows]] < 0]
        for center, near in zip(possible.tolist(), _neighbor_mask(texts, possible, min_cosine), strict=True):
            members = np.flatnonzero(near & (labels < 0))
            if labels[center] < 0 and len(members) >= min_size:
                labels[members] = len(centers)
                centers.append(center)
    return labels, centers


def _neighbor_mask(texts: Vectors, some: Int64Array, min_cosine: float) -> NDArray[np.bool_]:
    """Which texts have at least a cosine with some of them. *Shape:* ``(some, texts)``."""
    near = np.empty((len(some), len(texts)), bool)
    wide = texts[some].astype(np.float64)
    for columns in _blocks(len(texts), _BLOCK):
        near[:, columns] = round_cosines(wide @ texts[columns].astype(np.float64).T) >= min_cosine
    near[np.arange(len(some)), some] = True
    return near


def _build_clustering(
    texts: Vectors, labels: Int64Array, method: ClusterMethod, centers: Sequence[int] | None = None
) -> Clustering:
    """The result from the cluster of each text, and the central text of each cluster where it has one."""
    order = np.argsort(labels, kind="stable")
    numbers, first = np.unique(labels[order], return_index=True)
    groups = dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))
    noise = groups.pop(-1, np.empty(0, np.int64))
    clusters = [
        _build_cluster(texts, members, None if centers is None else centers[number])
        for number, members in groups.items()
    ]
    clusters.sort(key=lambda cluster: (-len(cluster.members), min(cluster.members)))
    return Clustering(tuple(clusters), tuple(noise.tolist()), method, mean_silhouette(texts, labels))


def _build_cluster(texts: Vectors, members: Int64Array, central: int | None) -> TextCluster:
    own = texts[members].astype(np.float64)
    center = own.sum(axis=0) if central is None else texts[central].astype(np.float64)
    length = float(np.linalg.norm(center))
    # Vectors that cancel out have no mean direction.
    cosines = round_cosines(own @ center / length) if length > 0 else np.zeros(len(own))
    order = np.lexsort((members, -cosines))
    return TextCluster(tuple(members[order].tolist()), tuple(cosines[order].tolist()))


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
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

    if words < 1:
        raise UsageError(f"names of {words} words", "Ask for one word at least.")
    positions = [cluster.members for cluster in clustering.clusters]
    if len(texts) != sum(map(len, positions)) + len(clustering.noise):
        raise UsageError(f"{len(texts):,} texts are given, and others were clustered", "Give the texts of the vectors.")
    is_english = stop_words == "english"
    stopped = _EXTRA_STOP_WORDS | ENGLISH_STOP_WORDS if is_english else frozenset(map(_lower_case, stop_words))

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
    """The words of a text, normalized: letters and digits of any script with the marks that they carry."""
    # A single character is a word in scripts without upper and lower case, such as Chinese.
    words = [word for word in _word_pattern().findall(_lower_case(text)) if len(word) > 1 or word == word.upper()]
    return [word for word in words if any(map(str.isalpha, word))]


def _lower_case(text: str) -> str:
    return unicodedata.normalize("NFC", text.lower())


@cache
def _word_pattern() -> re.Pattern[str]:
    # \w leaves out the combining marks without which Hindi or Thai falls to pieces, and the joiners of Persian.
    marks = "".join(chr(code) for code in range(_LAST_CODE_POINT) if unicodedata.category(chr(code))[0] == "M")
    character = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"{character}+(?:[-\u2010\u2011]{character}+)*")


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
