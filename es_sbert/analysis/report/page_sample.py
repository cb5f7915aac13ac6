"""Which texts and groups of a report fit on its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.report.contents import Report, ReportGroup, ReportKind

# A browser draws this many points in a frame, and reads their texts in about a second.
MAX_TEXTS = 50_000
MAX_GROUPS = 10_000
# Texts are shortened to the first of these limits with which the page stays below so many characters.
_CHARACTER_LIMITS = (2_000, 1_000, 500, 200)
_MAX_CHARACTERS = 20_000_000
# Members of each cluster that come before a random choice: the first ones say best what it is about.
_FIRST_MEMBERS = 20
_SEED = 0


@dataclass(frozen=True)
class PageGroup:
    """A group with those members that are on the page.

    Attributes:
        group: The whole group.
        places: Places in `group.members` of the members on the page, ascending.
    """

    group: ReportGroup
    places: Sequence[int]


@dataclass(frozen=True)
class PageSample:
    """What is on the page.

    Attributes:
        texts: Positions of the texts, ascending.
        groups: The groups, in the report's order.
    """

    texts: NDArray[np.int64]
    groups: Sequence[PageGroup]


def sample_page(report: Report, max_texts: int = MAX_TEXTS, max_groups: int = MAX_GROUPS) -> PageSample:
    """Choose the texts and groups of the page: all of them, if they fit.

    Of more texts, whole pairs and groups of near-duplicates are taken in their order, and of each cluster its first
    members. The rest is a random sample, which is the same in each run.
    """
    count = len(report.ids)
    chosen = np.ones(count, bool)  # (texts,)
    if count > max_texts:
        chosen = _first_members(report, max_texts, max_groups)
        rest = np.flatnonzero(~chosen)
        random = np.random.default_rng(_SEED).choice(rest, max_texts - int(chosen.sum()), replace=False)
        chosen[random] = True
    groups: list[PageGroup] = []
    least = 1 if report.kind is ReportKind.CLUSTERS else 2
    for group in report.groups[:max_groups]:
        places = np.flatnonzero(chosen[np.asarray(group.members)]).tolist()
        kept_is_there = group.kept is None or bool(chosen[group.kept])
        if len(places) >= min(least, len(group.members)) and kept_is_there:
            groups.append(PageGroup(group, places))
    return PageSample(np.flatnonzero(chosen), groups)


def _first_members(report: Report, max_texts: int, max_groups: int) -> NDArray[np.bool_]:
    chosen = np.zeros(len(report.ids), bool)  # (texts,)
    clusters = report.kind is ReportKind.CLUSTERS
    # Half of a map of clusters is a random sample, so that it shows how large each is.
    room = max_texts // 2 if clusters else max_texts
    for group in report.groups[:max_groups]:
        members = np.asarray(group.members[:_FIRST_MEMBERS] if clusters else group.members)
        if group.kept is not None:
            members = np.concatenate([[group.kept], members[members != group.kept]])
        new = members[~chosen[members]][:room]
        chosen[new] = True
        room -= len(new)
        if not room:
            break
    return chosen


def character_limit(texts: Sequence[str]) -> int:
    """The length to shorten texts to, so that the page does not grow too large."""
    for limit in _CHARACTER_LIMITS:
        if sum(min(len(text), limit) for text in texts) <= _MAX_CHARACTERS:
            return limit
    return _CHARACTER_LIMITS[-1]
