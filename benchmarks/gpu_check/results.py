"""The JSON file that every step adds its section to, and its goals."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from es_sbert.filesystem import open_output

JSON = dict[str, Any]

# A part of a section whose entries are kept when the step runs again for other cases only.
CASES = "cases"


def merge(document: Mapping[str, Any], step: str, section: Mapping[str, Any]) -> JSON:
    """The document with a step's section added.

    A section replaces the step's older one. Only its `cases` are merged: a step can be run for one case at a time.

    Args:
        document: What the file holds; empty for a new file.
        step: Name of the step.
        section: Its result.
    """
    steps = dict(document.get("steps", {}))
    cases = {**steps.get(step, {}).get(CASES, {}), **section.get(CASES, {})}
    steps[step] = {**section, **({CASES: cases} if cases else {})}
    return {**document, "steps": steps}


def read(path: Path) -> JSON:
    """What a file holds; empty where there is none.

    Raises:
        ValueError: it is no JSON object, and would be overwritten.
    """
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds no JSON object; name another --output")
    return document


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that an interrupted run leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    with open_output(path) as file:
        file.write(text.encode())


def goal(name: str, measured: float | None, *, at_least: float | None = None, at_most: float | None = None) -> JSON:
    """A figure and its goal; a figure that is missing or not a number misses its goal."""
    met = measured is not None and (at_least is None or measured >= at_least)
    met = met and measured is not None and (at_most is None or measured <= at_most)
    wanted = {key: value for key, value in (("at_least", at_least), ("at_most", at_most)) if value is not None}
    return {"goal": name, **wanted, "measured": measured, "met": met}


def goals_of(section: Mapping[str, Any]) -> Iterator[JSON]:
    """The goals of a section and of its cases."""
    yield from section.get("goals", ())
    for case in section.get(CASES, {}).values():
        yield from case.get("goals", ())


def errors_of(section: Mapping[str, Any]) -> list[str]:
    """What failed in a section and in its cases."""
    cases = section.get(CASES, {}).items()
    own = [section["error"]] if "error" in section else []
    return own + [f"{name}: {case['error']}" for name, case in cases if "error" in case]


def summary(document: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """A line for each goal and each error of some steps."""
    lines = []
    for name in names:
        section = document.get("steps", {}).get(name, {})
        lines += [f"{name}: failed: {error}" for error in errors_of(section)]
        for one in goals_of(section):
            wanted = f">= {one['at_least']:g}" if "at_least" in one else f"<= {one.get('at_most', 0):g}"
            shown = "nothing" if one["measured"] is None else f"{one['measured']:g}"
            lines.append(f"{name}: {'met' if one['met'] else 'MISSED'}: {one['goal']}: {shown} (wanted {wanted})")
    return lines


def spread(values: Sequence[float]) -> JSON:
    """Median, least and greatest of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}
