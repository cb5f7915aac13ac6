"""What is on a report's page, and that the page holds everything it needs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.analysis import html_report
from es_sbert.analysis.html_report import (
    AnalysisReport,
    ReportGroup,
    ReportKind,
    character_limit,
    differing_words,
    map_points,
    report_bytes,
    sample_page,
)


class _Elements(HTMLParser):
    """Elements of a page: tag, attributes and text.

    Attributes:
        found: In their order.
    """

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._inside = False
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data


def report(
    texts: list[str], groups: list[ReportGroup], kind: ReportKind = ReportKind.CLUSTERS, **parts: Any
) -> AnalysisReport:
    """A report whose points are on a line."""
    given: dict[str, Any] = {
        "title": "A report", "facts": [("texts", str(len(texts)))], "ids": [str(n) for n in range(len(texts))],
        "points": np.column_stack([np.arange(len(texts)), np.zeros(len(texts))]).astype(np.float32),
    }  # fmt: skip
    return AnalysisReport(kind=kind, texts=texts, groups=groups, **given | parts)


def page_data(page: bytes) -> dict[str, Any]:
    """What the page's script reads."""
    [text] = [text for tag, attributes, text in _Elements(page).found if attributes.get("id") == "data"]
    data: dict[str, Any] = json.loads(text)
    return data


TWO = [ReportGroup("1", (0, 1), (0.9, 0.9))]


def test_page_references_no_other_file() -> None:
    page = report_bytes(report(["a", "b"], TWO, title="</title><b>"))
    assert b"<b>" not in page
    assert page_data(report_bytes(report(["\ud83d a", "b"], TWO)))["texts"] == ["\ufffd a", "b"]
    for _, attributes, _ in _Elements(page).found:
        assert not attributes.keys() & {"src", "srcset", "action", "style", "onclick", "onload"}
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(rb"https?:|@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", page)


def test_csp_allows_only_the_page_script_and_style() -> None:
    elements = _Elements(report_bytes(report(["a", "b"], TWO))).found
    [policy] = [attributes["content"] or "" for _, attributes, _ in elements if "http-equiv" in attributes]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    scripts = [text for tag, attributes, text in elements if tag == "script" and attributes.get("id") != "data"]
    styles = [text for tag, _, text in elements if tag == "style"]
    assert rules["script-src"].split() == [_source(script) for script in scripts]
    assert rules["style-src"].split() == [_source(style) for style in styles]
    assert len(scripts) == 1


def _source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# Without lone surrogates, which are replaced; Hypothesis takes them from the constants of any module that is loaded.
HOSTILE = st.text(
    st.characters(exclude_categories=("Cs",)) | st.sampled_from("</scripttitle><!--\u2028\x00&\"'{}"), max_size=30
)


@given(st.lists(HOSTILE, min_size=2))
def test_texts_ids_and_names_cannot_change_the_markup(texts: list[str]) -> None:
    group = ReportGroup(texts[0], (0, 1), (0.5, 0.5))
    facts = [(texts[0], texts[1])]
    page = report_bytes(report(texts, [group], ids=texts, title=texts[0], facts=facts))
    plain = report_bytes(report(["a"] * len(texts), TWO))
    assert [found[0] for found in _Elements(page).found] == [found[0] for found in _Elements(plain).found]
    # Browsers end a script at more than Python's parser does.
    raw = page.split(b'<script id="data" type="application/json">')[1].split(b"</script>")[0].decode()
    assert not set("<>&\u2028\u2029") & set(raw)
    data = page_data(page)
    assert data["texts"] == texts
    assert data["ids"] == texts
    assert data["groups"][0]["name"] == texts[0]


# What is on the page.


def test_texts_are_shortened_only_if_together_they_are_too_long() -> None:
    long, short = "x" * 3000, "x" * 100
    pages = [[], [long] * 100, [short] * 50_000 + [long] * 5_000, [long] * 20_000, [long] * 150_000]
    assert [character_limit(texts) for texts in pages] == [2000, 2000, 2000, 1000, 200]


def test_cluster_page_has_top_members_and_a_random_sample() -> None:
    groups = [ReportGroup(str(g), range(g * 100, g * 100 + 100), np.linspace(1, 0, 100).tolist()) for g in range(5)]
    whole = report([f"text {n}" for n in range(600)], groups)
    positions, shown_groups = sample_page(whole, max_texts=300)
    assert len(positions) == 300
    assert [places[:20] for _, places in shown_groups] == [list(range(20))] * 5
    assert (positions >= 500).any()
    assert (sample_page(whole, max_texts=300)[0] == positions).all()
    data = page_data(report_bytes(whole, max_texts=300))
    assert data["total"] == {"texts": 600, "groups": 5, "grouped": 500}
    assert [group["size"] for group in data["groups"]] == [100] * 5
    assert data["groups"][0]["cosine"] == 0.5  # of all members
    for group, shown in zip(groups, data["groups"], strict=True):
        assert [data["ids"][member] for member in shown["members"][:2]] == [str(member) for member in group.members[:2]]


def test_page_of_near_duplicates_has_whole_groups_with_their_kept_texts() -> None:
    groups = [ReportGroup("1", (0, 1, 2), (0.9, 0.9, 1), kept=2), ReportGroup("2", (3, 4), (1, 0.9), kept=3)]
    positions, shown = sample_page(report(list("abcde"), groups, ReportKind.DUPLICATES), max_texts=2)
    assert (positions.tolist(), shown) == ([0, 2], [(groups[0], [0, 2])])


def test_empty_collection_has_a_page_and_equal_texts_are_one_point() -> None:
    assert page_data(report_bytes(report([], [])))["points"] == ""
    assert map_points(np.ones((3, 2), np.float32)).tolist() == [[0, 0]] * 3


# Differing words.


@pytest.mark.parametrize(
    ("first", "second", "parts", "others"),
    [
        ("a b c", "a b c", [], []),
        ("a red car", "a blue car", ["red"], ["blue"]),
        ("it is", "it is not so", [], ["not so"]),
        ("can't", "can not", ["'t"], ["not"]),
        ("東京は雨", "東京は晴れ", ["雨"], ["晴れ"]),
        ("यह हिन्दी है", "यह हिंदी है", ["हिन्दी"], ["हिंदी"]),
    ],
)
def test_differing_words(first: str, second: str, parts: list[str], others: list[str]) -> None:
    found = differing_words(first, second)
    assert [first[start:end] for (start, end), _ in found if start < end] == parts
    assert [second[start:end] for _, (start, end) in found if start < end] == others


@pytest.mark.parametrize(("end", "later"), [("", 0), ("x", 1)])
def test_end_of_a_shortened_text_is_no_difference(end: str, later: int) -> None:
    same = " ".join(str(number) for number in range(1000))
    group = ReportGroup("1", (0, 1), (0.9, 0.9))
    data = page_data(report_bytes(report([f"ArrayType {same}", f"array {same}{end}"], [group], ReportKind.PAIRS)))
    assert data["groups"][0]["marks"] == [None, [[0, 9], [0, 5], 1, later]]


# The map.


@pytest.mark.parametrize("sampled", [1000, 40])
def test_map_keeps_neighbors_together(monkeypatch: pytest.MonkeyPatch, sampled: int) -> None:
    monkeypatch.setattr(html_report, "_MAP_TEXTS", sampled)
    random = np.random.default_rng(1)
    topics = np.repeat(np.arange(4), 30)
    vectors = np.eye(4, 32, dtype=np.float32)[topics] + 0.1 * random.standard_normal((120, 32), np.float32)
    points = map_points(vectors)
    assert (points == map_points(vectors)).all()
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(120, np.inf))
    assert (topics[distances.argmin(axis=1)] == topics).all()


def test_identical_texts_share_a_point_and_unknown_ones_do_not() -> None:
    vectors = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32)
    texts = [f"text {number % 30}" for number in range(35)] + [""] * 5
    vectors[30:35] = vectors[:5] + 1e-6  # as if embedded in another batch
    points = map_points(vectors, texts=texts)
    assert (points[30:35] == points[:5]).all()
    assert len(np.unique(points, axis=0)) == 35


@pytest.mark.parametrize(("count", "dimensions"), [(2, 3), (3, 8), (6, 2), (30, 1)])
def test_map_of_few_texts_or_dimensions(count: int, dimensions: int) -> None:
    vectors = np.random.default_rng(2).standard_normal((count, dimensions)).astype(np.float32)
    points = map_points(vectors)
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert (map_points(np.ones((count, dimensions), np.float32)) == 0).all()
