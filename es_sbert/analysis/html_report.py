"""The HTML report of an analysis: a map, the groups and their texts in one file that works offline.

Ids, texts and names are untrusted. They are embedded as JSON in an element that browsers do not execute, and the
script creates text nodes from them. The content security policy only allows the page's own scripts and style, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from importlib import resources
from itertools import chain
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.clusters import text_vectors
from es_sbert.errors import require_extra
from es_sbert.messages import escape_unprintable
from es_sbert.vectors import Vectors

Points = NDArray[np.float32]


# Number of texts that t-SNE places, in about 8 seconds on one core. The others are placed next to the nearest of them.
_MAP_TEXTS = 3_000
_MAP_STEPS = 500
_MAP_COMPONENTS = 50
_MAP_SEED = 0
_BLOCK = 2048


def map_points(vectors: Vectors, starts: NDArray[np.int64] | None = None, texts: Sequence[str] = ()) -> Points:
    """Place texts on a map by t-SNE (van der Maaten 2008) of their unit vectors: neighbors are similar texts.

    A text with several vectors (chunks) is placed by the mean of its unit vectors. Identical texts share a point. Of
    more than `_MAP_TEXTS` texts, a random sample is placed by t-SNE, and each other text next to the most similar one
    of the sample. The result is the same for the same vectors.

    Args:
        vectors: Embeddings, normalized or not. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each text's first vector, ascending from 0, if texts have several vectors; None for one vector
            per text. *Shape:* ``(texts,)``.
        texts: The texts; empty strings, or none at all, if they are not known.

    Returns:
        The points, of *shape* ``(texts, 2)``; all at the origin if all vectors are equal.

    Raises:
        UsageError: a vector is zero or not finite, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    every = text_vectors(vectors, starts)
    numbers: dict[object, int] = {}
    named = texts or [""] * len(every)
    same = [numbers.setdefault(text or place, len(numbers)) for place, text in enumerate(named)]
    every = every[np.unique(same, return_index=True)[1]]  # one of each text
    random = np.random.default_rng(_MAP_SEED)
    chosen = np.zeros(len(every), bool)  # (texts,)
    chosen[random.choice(len(every), min(len(every), _MAP_TEXTS), replace=False)] = True
    sample, placed = every[chosen], _neighbor_map(every[chosen])
    points = np.zeros((len(every), 2), np.float32)
    points[chosen] = placed
    rest = np.flatnonzero(~chosen)
    for rows in (rest[first : first + _BLOCK] for first in range(0, len(rest), _BLOCK)):
        cosines = every[rows] @ sample.T  # (rows, sample)
        # Less similar texts are farther away, in any direction.
        away = np.ptp(placed, axis=0).max() / 50 * (1 - cosines.max(axis=1, keepdims=True))
        points[rows] = placed[cosines.argmax(axis=1)] + away * random.standard_normal((len(rows), 2))
    return points[same]


def _neighbor_map(texts: Vectors) -> Points:
    """Place texts by t-SNE; a few by principal component analysis."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    points = np.zeros((len(texts), 2), np.float32)
    if len(texts) < 2 or np.ptp(texts, axis=0).max() < 1e-6:
        return points
    components = PCA(min(_MAP_COMPONENTS, *texts.shape), svd_solver="full").fit_transform(texts)
    if min(components.shape) < 5:
        points[:, : components.shape[1]] = components[:, :2]
        return points
    perplexity = min(30.0, (len(texts) - 1) / 3)
    model = TSNE(init="pca", perplexity=perplexity, max_iter=_MAP_STEPS, random_state=_MAP_SEED)
    # Threads that wait for each other on a busy machine take ten times as long.
    with threadpool_limits(1):
        return np.asarray(model.fit_transform(components), np.float32)


class ReportKind(StrEnum):
    """The analysis of a report."""

    PAIRS = "pairs"
    DUPLICATES = "duplicates"
    CLUSTERS = "clusters"


@dataclass(frozen=True)
class ReportGroup:
    """Texts that belong together: a pair, a group of near-duplicates, or a cluster.

    Attributes:
        name: Keywords, or a number.
        members: Positions of the texts, in the order to show them.
        cosines: Cosine of each member with the kept text or with the center, or cosine of the pair.
        kept: For near-duplicates, the position of the kept text, which is one of the members.
    """

    name: str
    members: Sequence[int]
    cosines: Sequence[float]
    kept: int | None = None


@dataclass(frozen=True)
class AnalysisReport:
    """The contents of a report.

    Attributes:
        kind: The kind of analysis.
        title: Heading of the page.
        facts: Names and values of the summary, such as `("model", "all-MiniLM-L6-v2")`.
        ids: Id of each text, or `FILE:LINE`.
        texts: The texts; empty strings if they are not known.
        groups: The groups, in the order in which they are shown.
        points: Position of each text on the map. *Shape:* ``(texts, 2)``.
    """

    kind: ReportKind
    title: str
    facts: Sequence[tuple[str, str]]
    ids: Sequence[str]
    texts: Sequence[str]
    groups: Sequence[ReportGroup]
    points: NDArray[np.float32]


# Default maximum of texts: a browser can draw this many points in a frame, and read the texts in about a second.
MAX_TEXTS = 50_000
MAX_GROUPS = 10_000
# Texts are shortened to the first of these limits that keeps the page below the maximum number of characters.
_CHARACTER_LIMITS = (2_000, 1_000, 500, 200)
_MAX_CHARACTERS = 20_000_000
# Number of first members of each cluster to show before a random choice, because they represent the cluster best.
_FIRST_MEMBERS = 20
_SAMPLE_SEED = 0


# A group, and the indices in its `members` of the texts on the page, ascending.
PageGroup = tuple[ReportGroup, list[int]]


def sample_page(
    report: AnalysisReport, max_texts: int, max_groups: int = MAX_GROUPS
) -> tuple[NDArray[np.int64], list[PageGroup]]:
    """Choose the texts and groups of the page: all of them if they fit.

    If there are more texts, whole pairs and groups of near-duplicates are chosen in their order, or the first members
    of each cluster. The rest is a random sample, which is the same in every run.

    Returns:
        Positions of the texts, ascending, and the groups in the report's order.
    """
    count = len(report.ids)
    chosen = np.ones(count, bool)  # (texts,)
    if count > max_texts:
        chosen = _first_members(report, max_texts, max_groups)
        rest = np.flatnonzero(~chosen)
        random = np.random.default_rng(_SAMPLE_SEED).choice(rest, max_texts - int(chosen.sum()), replace=False)
        chosen[random] = True
    groups: list[PageGroup] = []
    least = 1 if report.kind is ReportKind.CLUSTERS else 2
    for group in report.groups[:max_groups]:
        places = np.flatnonzero(chosen[np.asarray(group.members)]).tolist()
        kept_is_there = group.kept is None or bool(chosen[group.kept])
        if len(places) >= min(least, len(group.members)) and kept_is_there:
            groups.append((group, places))
    return np.flatnonzero(chosen), groups


def _first_members(report: AnalysisReport, max_texts: int, max_groups: int) -> NDArray[np.bool_]:
    chosen = np.zeros(len(report.ids), bool)  # (texts,)
    clusters = report.kind is ReportKind.CLUSTERS
    # Half of a map of clusters is a random sample, so that the map shows the sizes of the clusters.
    free = max_texts // 2 if clusters else max_texts
    for group in report.groups[:max_groups]:
        members = np.asarray(group.members[:_FIRST_MEMBERS] if clusters else group.members)
        if group.kept is not None:
            members = np.concatenate([[group.kept], members[members != group.kept]])
        new = members[~chosen[members]][:free]
        chosen[new] = True
        free -= len(new)
        if not free:
            break
    return chosen


def character_limit(texts: Sequence[str]) -> int:
    """Choose the length to which the texts of a page are shortened."""
    lengths = np.array([len(text) for text in texts], np.int64)
    fitting = (limit for limit in _CHARACTER_LIMITS if np.minimum(lengths, limit).sum() <= _MAX_CHARACTERS)
    return next(fitting, _CHARACTER_LIMITS[-1])


# Compare scripts without spaces between words by character.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Marks that belong to a letter but do not match `\w`: accents, Hebrew and Arabic points, vowels of Indic scripts.
_COMBINING_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff\u200c\u200d"
_WORD_PATTERN = re.compile(rf"[{_UNSPACED}]|(?:[^\W{_UNSPACED}]|[{_COMBINING_MARKS}])+|[^\w\s]")

WordSpan = tuple[int, int]


def differing_words(first: str, second: str) -> list[tuple[WordSpan, WordSpan]]:
    """Find where two texts differ, by whole words and symbols. White space is ignored.

    Returns:
        The start and end of each difference in both texts, in characters; an empty part where one text lacks words.
    """
    spans = [[match.span() for match in _WORD_PATTERN.finditer(text)] for text in (first, second)]
    words = [[text[start:end] for start, end in own] for text, own in zip((first, second), spans, strict=True)]
    ends = [[*own, (len(text), len(text))] for text, own in zip((first, second), spans, strict=True)]

    def part(text: int, start: int, end: int) -> WordSpan:
        return ends[text][start][0], ends[text][end - 1][1] if end > start else ends[text][start][0]

    opcodes = SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes()
    return [(part(0, *codes[:2]), part(1, *codes[2:])) for kind, *codes in opcodes if kind != "equal"]


# Number of characters after the shown part of a text that are compared, too: between texts that are shifted by a few
# words, the end of the shown part is not a difference.
_COMPARED_AFTER = 400

# The files are joined in this order into one module, so that each can use the names of those before it.
_SCRIPTS = ("elements", "words", "data", "labels", "map", "members", "groups", "find", "main")
_DECIMALS = 5


def report_bytes(report: AnalysisReport, *, max_texts: int = MAX_TEXTS, max_groups: int = MAX_GROUPS) -> bytes:
    """Render the report as the contents of an HTML file, in UTF-8.

    Args:
        report: The report.
        max_texts: Maximum number of texts on the page. If there are more, the page shows a sample and says so.
        max_groups: Maximum number of groups on the page. If there are more, the page shows the first ones and says so.
    """
    style = _read_asset("report.css")
    script = "".join(_read_asset(f"{name}.js") for name in _SCRIPTS)
    page = Template(_read_asset("page.html")).substitute(
        title=html.escape(escape_unprintable(report.title)),
        script_hash=_policy_hash(script),
        style_hash=_policy_hash(style),
        style=style,
        data=_script_json(_page_data(report, max_texts, max_groups)),
        script=script,
    )
    return page.encode()


def _read_asset(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


def _policy_hash(content: str) -> str:
    """Return the source expression of a script or a style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _script_json(data: Any) -> str:
    """Encode as JSON that cannot close the element around it."""
    text = _replace_surrogates(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _page_data(report: AnalysisReport, max_texts: int, max_groups: int) -> dict[str, Any]:
    """Build the data for the page's script, which refers to texts by their number on the page."""
    positions, groups = sample_page(report, max_texts, max_groups)
    whole = [_replace_surrogates(report.texts[position]) for position in positions]
    limit = character_limit(whole)
    texts = [text if len(text) <= limit else text[:limit] for text in whole]
    numbers = {position: number for number, position in enumerate(positions.tolist())}
    grouped = set(chain.from_iterable(group.members for group in report.groups))
    return {
        "kind": report.kind.value,
        "title": report.title,
        "facts": report.facts,
        "ids": [report.ids[position] for position in positions],
        "texts": texts,
        "shortened": [number for number, text in enumerate(whole) if len(text) > limit],
        "limit": limit,
        "points": _pack_points(report.points[positions]),
        "groups": [_group_data(report.kind, group, numbers, whole, limit) for group in groups],
        "total": {"texts": len(report.ids), "groups": len(report.groups), "grouped": len(grouped)},
    }


def _group_data(
    kind: ReportKind, page_group: PageGroup, numbers: Mapping[int, int], whole: Sequence[str], limit: int
) -> dict[str, Any]:
    group, places = page_group
    members = [numbers[group.members[place]] for place in places]
    # The mean cosine of a cluster, the lowest cosine of other groups.
    cosine = float(np.mean(group.cosines)) if kind is ReportKind.CLUSTERS else float(min(group.cosines))
    data = {
        "name": group.name,
        "size": len(group.members),
        "cosine": round(cosine, _DECIMALS),
        "members": members,
        "cosines": [round(float(group.cosines[place]), _DECIMALS) for place in places],
    }
    if kind is ReportKind.CLUSTERS:
        return data
    kept = members[0] if group.kept is None else numbers[group.kept]
    marks = [_word_differences(whole[kept], whole[member], limit) for member in members]
    return data | {"kept": kept, "marks": marks}


def _word_differences(kept: str, member: str, limit: int) -> list[Any] | None:
    """Compare the kept text with a member: differing words, their number, and whether parts that are not shown differ.

    None if there is nothing to compare or the texts are equal.
    """
    if kept == member or not kept or not member:
        return None
    texts = kept[: limit + _COMPARED_AFTER], member[: limit + _COMPARED_AFTER]
    differences = differing_words(*texts)
    shown = [parts for parts in differences if any(start < min(end, limit) for start, end in parts)]
    tails = [len(text) for text in texts]
    last = differences[-1] if differences else None
    reaches_end = last is not None and all(not text[end:].strip() for text, (_, end) in zip(texts, last, strict=True))
    if last is not None and reaches_end:
        tails = [start for start, _ in last]
    if reaches_end and last in shown:
        later = max(len(kept), len(member)) > limit
    else:
        rest = (_WORD_PATTERN.findall(text[tail:]) for text, tail in zip((kept, member), tails, strict=True))
        later = len(differences) - len(shown) > reaches_end or len({tuple(words) for words in rest}) > 1
    spans = ([(start, min(end, limit)) for start, end in (parts[text] for parts in shown)] for text in (0, 1))
    marks = (list(chain(*(span for span in own if span[0] < span[1]))) for own in spans)
    return [*marks, len(shown), int(later)]


def _pack_points(points: NDArray[np.float32]) -> str:
    """Scale points to a square, with the same unit for both axes; encode them as base64 of 16-bit little-endian."""
    if not len(points):
        return ""
    wide = points.astype(np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    extent = float((high - low).max())
    scaled = (wide - (low + high) / 2) / (extent or 1.0) + 0.5
    packed = np.rint(scaled * 65_535).astype("<u2").tobytes()
    return base64.b64encode(packed).decode()


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot represent, by �. A pair of surrogates becomes its character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
