"""A bar plot of a run as SVG, readable on light and dark pages."""

from __future__ import annotations

import statistics
from html import escape

from benchmarks.encode_peers.processor import KINDS
from benchmarks.encode_peers.results import ContenderResult, Run, fastest_peer, ratio

_WIDTH, _MARGIN = 900, 16
_LABELS, _FIGURES = 310, 120  # widths on the left and on the right of the bars
_ROW, _BAR, _TITLE = 22, 14, 34
# The picture has its own background: a page's theme may differ from that of the system.
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 14px }
  .page { fill: #ffffff } .own { fill: #0969da } .peer { fill: #9aa4af } .range { stroke: #1f2328 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #0d1117 } .own { fill: #4493f8 } .peer { fill: #656d76 } .range { stroke: #e6edf3 }
  }
"""


def bar_plot(run: Run, measured: str = "Texts a second") -> str:
    """A group of bars for each set of texts, the fastest contender first.

    A bar is the median of the rounds, the line on it goes from the slowest to the fastest one.

    Args:
        measured: What the figures are, for the title.
    """
    title = f"{measured}, {run.model}, {KINDS[run.processor['kind']]}, {run.processor['cores']} cores"
    parts = [_text(_MARGIN, _MARGIN + 12, title, style="title")]
    top = _MARGIN + _TITLE
    for name, figures in run.sets.items():
        parts.append(_text(_MARGIN, top + 14, f"{name}, {figures['tokens']:.0f} tokens", style="title"))
        top += _TITLE - 8
        bars, top = _bars(run, name, top)
        parts += [*bars]
        top += _ROW // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
            f'role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{top}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _bars(run: Run, name: str, top: int) -> tuple[list[str], int]:
    """The bars of a set, and where they end."""
    base = fastest_peer(run, name)
    contenders = sorted(run.measured, key=lambda one: -statistics.median(one.speeds[name]))
    largest = max((max(contender.speeds[name]) for contender in contenders), default=1.0)
    scale = (_WIDTH - 2 * _MARGIN - _LABELS - _FIGURES) / largest
    parts = []
    for contender in contenders:
        parts += _bar(contender, contender.speeds[name], scale, top)
        figure = f"{statistics.median(contender.speeds[name]):,.0f}"
        if base is not None:
            figure += f" ({ratio(contender, base, name):.2f} ×)"
        parts.append(_text(_MARGIN + _LABELS + max(contender.speeds[name]) * scale + 8, top + 12, figure))
        top += _ROW
    return parts, top


def _bar(contender: ContenderResult, speeds: list[float], scale: float, top: int) -> list[str]:
    left, middle = _MARGIN + _LABELS, top + 8
    kind = "own" if contender.ours else "peer"
    return [
        _text(left - 8, top + 12, contender.label, anchor="end"),
        f'<rect class="{kind}" x="{left}" y="{middle - _BAR / 2}" width="{statistics.median(speeds) * scale:.1f}" '
        f'height="{_BAR}" rx="2"/>',
        f'<line class="range" x1="{left + min(speeds) * scale:.1f}" x2="{left + max(speeds) * scale:.1f}" '
        f'y1="{middle}" y2="{middle}"/>',
    ]


def _text(x: float, y: float, text: str, *, style: str = "", anchor: str = "start") -> str:
    chosen = f' class="{style}"' if style else ""
    return f'<text{chosen} x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
