"""The page of a report: markup, style, script and data in one file.

Ids, texts and names were written by others. They are on the page as JSON in an element that browsers do not execute,
and the script makes text nodes of them. The content security policy allows the page's own script and style by their
hashes and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.report.contents import Report, ReportKind
from es_sbert.analysis.report.page_sample import MAX_GROUPS, MAX_TEXTS, PageGroup, character_limit, sample_page
from es_sbert.analysis.report.word_diff import Span, differing_words
from es_sbert.printable import printable

# Joined in this order into one module, so that the names of one file are known in those after it.
_SCRIPTS = ("elements", "words", "data", "grid", "raster", "map", "members", "groups", "find", "main")
_DECIMALS = 5


def report_bytes(report: Report, *, max_texts: int = MAX_TEXTS, max_groups: int = MAX_GROUPS) -> bytes:
    """Write a report as an HTML file, in UTF-8.

    Args:
        report: What to show.
        max_texts: Texts on the page; of more, a sample is shown, and the page says so.
        max_groups: Groups on the page; of more, the first ones are shown, and the page says so.
    """
    theme, script, style = _asset("theme.js"), "".join(_asset(f"{name}.js") for name in _SCRIPTS), _asset("report.css")
    parts = {
        "title": html.escape(printable(report.title)),
        "policy": _policy([theme, script], style),
        "style": style,
        "theme": theme,
        "data": _script_json(_page_data(report, max_texts, max_groups)),
        "script": script,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))
    return page.encode()


def _asset(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], style: str) -> str:
    def source(content: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    return "; ".join((
        "default-src 'none'", f"script-src {' '.join(map(source, scripts))}", f"style-src {source(style)}",
        "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
    ))  # fmt: skip


def _script_json(data: Any) -> str:
    """JSON that cannot end the element that it is in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _page_data(report: Report, max_texts: int, max_groups: int) -> dict[str, Any]:
    """What the page's script reads; texts are named by their number on the page."""
    sample = sample_page(report, max_texts, max_groups)
    whole = [_encodable(report.texts[position]) for position in sample.texts]
    limit = character_limit(whole)
    texts = [text if len(text) <= limit else text[:limit] for text in whole]
    numbers = np.full(len(report.ids), -1)  # (texts,)
    numbers[sample.texts] = np.arange(len(sample.texts))
    grouped = np.zeros(len(report.ids), bool)
    for group in report.groups:
        grouped[np.asarray(group.members)] = True
    return {
        "kind": report.kind.value,
        "title": _encodable(report.title),
        "facts": [[_encodable(name), _encodable(value)] for name, value in report.facts],
        "projection": _encodable(report.projection),
        "ids": [_encodable(report.ids[position]) for position in sample.texts],
        "texts": texts,
        "shortened": [number for number, text in enumerate(whole) if len(text) > limit],
        "limit": limit,
        "points": _packed(report.points[sample.texts]),
        "groups": [_group_data(report.kind, group, numbers, whole, texts) for group in sample.groups],
        "total": {"texts": len(report.ids), "groups": len(report.groups), "grouped": int(grouped.sum())},
    }


def _group_data(kind: ReportKind, shown: PageGroup, numbers: NDArray[np.int64], whole: Sequence[str],
                texts: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    group = shown.group
    members = [int(numbers[group.members[place]]) for place in shown.places]
    data = {
        "name": _encodable(group.name),
        "size": len(group.members),
        "cosine": round(_group_cosine(kind, group.cosines), _DECIMALS),
        "members": members,
        "cosines": [round(float(group.cosines[place]), _DECIMALS) for place in shown.places],
    }
    if kind is ReportKind.CLUSTERS:
        return data
    kept = members[0] if group.kept is None else int(numbers[group.kept])
    marks = [_marks(kept, member, whole, texts) for member in members]
    return data | {"kept": kept, "marks": marks}


def _group_cosine(kind: ReportKind, cosines: Sequence[float]) -> float:
    """The mean of a cluster, the lowest of others."""
    return float(np.mean(cosines)) if kind is ReportKind.CLUSTERS else float(min(cosines))


def _marks(kept: int, member: int, whole: Sequence[str], texts: Sequence[str]) -> list[Any] | None:
    """Differing words of the kept text and of a member, differences, and whether more come after what is shown.

    None: nothing to compare, or nothing that differs.
    """
    if kept == member or whole[kept] == whole[member] or not whole[kept] or not whole[member]:
        return None
    diff = differing_words(texts[kept], texts[member])
    rest = whole[kept][len(texts[kept]) :] != whole[member][len(texts[member]) :]
    return [_flat(diff.first), _flat(diff.second), diff.differences, int(rest)]


def _flat(spans: Sequence[Span]) -> list[int]:
    return [offset for span in spans for offset in span]


def _packed(points: NDArray[np.float32]) -> str:
    """Points in a square, both axes in the same unit, as base64 of little-endian 16-bit numbers."""
    if not len(points):
        return ""
    wide = points.astype(np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    extent = float((high - low).max())
    scaled = (wide - (low + high) / 2) / (extent or 1.0) + 0.5
    packed = np.rint(scaled * 65_535).astype("<u2").tobytes()
    return base64.b64encode(packed).decode()


def _encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, as �; two that make a character become it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
