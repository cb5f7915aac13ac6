"""Find the index templates that apply to a new index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied


def matches_patterns(name: str, patterns: Iterable[str]) -> bool:
    """Whether a template with these index patterns applies to an index; only `*` is a wildcard."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) for pattern in patterns)


def index_template_of(engine: Engine, name: str) -> tuple[str, Json] | None:
    """Find the name and body of the template that applies to a new index of this name; None if there is none."""
    answer = engine.request_api("/_index_template") or {}
    found = [
        (int(entry["index_template"].get("priority", 0)), entry["name"], entry["index_template"])
        for entry in answer.get("index_templates", [])
        if matches_patterns(name, entry["index_template"]["index_patterns"])
    ]
    if not found:
        return None
    _, template, body = max(found, key=lambda entry: entry[:2])
    return template, body


class TemplatePart(NamedTuple):
    """A template, or a component of one, that applies to an index.

    Attributes:
        label: Its kind and name, for messages.
        template: Its `settings`, `mappings` and `aliases`, as far as it has them.
    """

    label: str
    template: Json

    @property
    def settings(self) -> set[str]:
        """The flat names of its settings."""
        return set(_flat_names(self.template.get("settings") or {}))


def matching_templates(engine: Engine, name: str) -> list[TemplatePart] | None:
    """Find the templates that apply to a new index of this name; None if this user may not read them.

    Raises:
        EngineError: the engine failed.
    """
    try:
        template = index_template_of(engine, name)
        if template is not None:
            own = TemplatePart(f"The index template {template[0]}", template[1].get("template") or {})
            return [own, *_components(engine, template[1].get("composed_of") or ())]
        answer = engine.request_api("/_template") or {}
    except AccessDenied:
        return None
    return [
        TemplatePart(f"The template {legacy}", body)
        for legacy, body in answer.items()
        if matches_patterns(name, body.get("index_patterns", []))
    ]


def _components(engine: Engine, names: Sequence[str]) -> list[TemplatePart]:
    answer = (engine.request_api("/_component_template") or {}) if names else {}
    found = {entry["name"]: entry["component_template"] for entry in answer.get("component_templates", [])}
    return [
        TemplatePart(f"The component template {name}", found[name].get("template") or {})
        for name in names
        if name in found
    ]


def _flat_names(settings: Json, prefix: str = "") -> Iterator[str]:
    # OpenSearch has no `flat_settings` for templates.
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
