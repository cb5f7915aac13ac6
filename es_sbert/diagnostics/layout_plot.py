"""Draw the plot of `es-sbert index advise` as SVG: the recall of every layout against its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from es_sbert.diagnostics.index_advice import IndexAdvice, K, LayoutMeasurement
from es_sbert.index.mapping import ElementType, IndexType
from es_sbert.messages import pluralize, size_text

# A value → its position on an axis.
Scale = Callable[[float], float]
_WIDTH, _HEIGHT = 900, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 690, 60, 470
# The palette of Okabe and Ito, suitable for color vision deficiency. Types without a graph have light colors.
_COLORS = {
    IndexType.HNSW: "#0072b2",
    IndexType.FLAT: "#56b4e9",
    IndexType.INT8_HNSW: "#009e73",
    IndexType.INT8_FLAT: "#66cdaa",
    IndexType.INT4_HNSW: "#d55e00",
    IndexType.INT4_FLAT: "#e69f00",
    IndexType.BBQ_HNSW: "#8e3b7a",
    IndexType.BBQ_FLAT: "#cc79a7",
}


def layout_plot(advice: IndexAdvice) -> str:
    """Draw the plot as the text of an SVG file.

    Circles are float, squares bfloat16. A label shows the number of dimensions, a bar the 95 %
    interval, and a ring the recommended layout. Memory has a logarithmic scale.

    Raises:
        ValueError: no layout was measured.
    """
    rows = advice.rows
    memory = [row.estimate.memory for row in rows]
    low, high = min(memory) / 1.2, max(memory) * 1.2
    bottom = min(0.9, *(row.recall.low for row in rows), advice.min_recall)
    bottom = math.floor(20 * bottom) / 20

    def x(size: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log(size / low) / math.log(high / low)

    def y(recall: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (recall - bottom) / (1 - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 24, f"{advice.index}.{advice.field}: recall and memory of vector layouts", size=15),
        _text(
            _LEFT, 42,
            f"{advice.engine}; measured on {pluralize(advice.sampled, 'document')}, "
            f"{pluralize(advice.queries, 'query', 'queries')}; memory calculated "
            f"for {pluralize(advice.vectors, 'vector')}",
        ),
        *_axes(low, high, bottom, x, y),
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y(advice.min_recall):.1f}" y2="{y(advice.min_recall):.1f}" '
        'stroke="#b00020" stroke-dasharray="6 4"/>',
        _text(_RIGHT - 6, y(advice.min_recall) + 15, f"minimum {advice.min_recall:g}", color="#b00020", anchor="end"),
    ]  # fmt: skip
    for row in rows:
        parts += _point(row, x(row.estimate.memory), y, recommended=row is advice.recommended)
    parts += [*_legend(rows), "</svg>"]
    return "\n".join(parts) + "\n"


def _axes(low: float, high: float, bottom: float, x: Scale, y: Scale) -> Iterator[str]:
    frame = f'x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}"'
    yield f'<rect {frame} fill="none" stroke="#666666"/>'
    step = 0.01 if bottom >= 0.9 else 0.05 if bottom >= 0.6 else 0.1
    for number in range(round((1 - bottom) / step) + 1):
        recall = 1 - number * step
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y(recall):.1f}" y2="{y(recall):.1f}" stroke="#e5e5e5"/>'
        yield _text(_LEFT - 6, y(recall) + 4, f"{recall:.2f}", anchor="end")
    for size in _round_sizes(low, high):
        yield f'<line x1="{x(size):.1f}" x2="{x(size):.1f}" y1="{_TOP}" y2="{_BOTTOM}" stroke="#e5e5e5"/>'
        yield _text(x(size), _BOTTOM + 18, size_text(round(size)), anchor="middle")
    yield _text(
        (_LEFT + _RIGHT) / 2, _BOTTOM + 44, "memory for the whole index (graph and compared vectors)", anchor="middle"
    )
    yield (
        f'<text x="20" y="{(_TOP + _BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 20 {(_TOP + _BOTTOM) / 2})">recall@{K}</text>'
    )


def _round_sizes(low: float, high: float) -> list[float]:
    """Choose ticks within a range: 1, 2 and 5 times the powers of ten, or only the powers if the range is wide."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    factors = (1, 2, 5) if high / low < 10_000 else (1,)
    return [size for power in powers for size in (factor * power for factor in factors) if low <= size <= high]


def _point(row: LayoutMeasurement, x: float, y: Scale, *, recommended: bool) -> Iterator[str]:
    color, recall = _COLORS[row.layout.index_type], row.recall
    top, center, base = y(recall.high), y(recall.mean), y(recall.low)
    title = (
        f"{row.layout}: recall {recall.mean:.4f} ({recall.low:.4f}–{recall.high:.4f}), {size_text(row.estimate.memory)}"
    )
    yield f"<g><title>{escape(title)}</title>"
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{base:.1f}" stroke="{color}"/>'
    if row.layout.element_type is ElementType.FLOAT:
        yield f'<circle cx="{x:.1f}" cy="{center:.1f}" r="5" fill="{color}"/>'
    else:
        yield f'<rect x="{x - 5:.1f}" y="{center - 5:.1f}" width="10" height="10" fill="{color}"/>'
    if recommended:
        yield f'<circle cx="{x:.1f}" cy="{center:.1f}" r="10" fill="none" stroke="#000000" stroke-width="2"/>'
    below = row.layout.element_type is not ElementType.FLOAT
    yield _text(x + 9, center + (15 if below else -6), str(row.layout.dimensions), color=color) + "</g>"


def _legend(rows: Sequence[LayoutMeasurement]) -> Iterator[str]:
    left, top = _RIGHT + 30, _TOP + 90
    used = [index_type for index_type in _COLORS if any(row.layout.index_type is index_type for row in rows)]
    for number, index_type in enumerate(used):
        yield f'<circle cx="{left}" cy="{top + 20 * number}" r="5" fill="{_COLORS[index_type]}"/>'
        yield _text(left + 12, top + 20 * number + 4, str(index_type))
    below = top + 20 * len(used) + 10
    for number, line in enumerate(
        (
            "number: dimensions",
            "circle: float",
            "square: bfloat16",
            "bar: 95 % interval",
            "ring: recommended",
        )
    ):
        yield _text(left - 5, below + 18 * number, line, color="#555555")


def _text(x: float, y: float, text: str, *, size: int = 12, color: str = "#222222", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'
    )
