"""Build the requests that add an index's vector fields to its index template, so that a rollover creates them too.

Nothing is sent: the template may apply to other indices too, so its owner should review the change first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.derived_fields import is_within
from es_sbert.index.mapping import META_KEY, IndexType, document_meta_field, vector_fields
from es_sbert.index.vector_field import check_not_being_removed, index_not_found
from es_sbert.index.write_limits import index_template_of, matches_patterns

# The members of an index template, as an engine returns it, that a request may set.
_TEMPLATE_MEMBERS = (
    "index_patterns", "template", "composed_of", "priority", "version", "_meta", "data_stream", "allow_auto_create",
    "ignore_missing_component_templates",
)  # fmt: skip
# The generation suffix in the name of a rollover index.
_GENERATION = re.compile(r"-\d+$")


class TemplateRequest(NamedTuple):
    """A request that changes a template: `PUT PATH` with this body."""

    path: str
    body: Json


def template_requests(engine: Engine, name: str) -> list[TemplateRequest]:
    """Build the requests that give new indices the vector fields of an index, in the order to send them.

    They change the template that applies to an index of this name, or add one if there is none.

    Args:
        name: Index, alias or data stream. Of several indices, the last one by name that has vector fields is used.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the index has no vector field.
        EngineError: the engine failed.
    """
    states = engine.get_indices(name)
    if not states:
        raise index_not_found(name, engine)
    state = next((state for state in reversed(states) if vector_fields(state.mappings, state.name)), None)
    if state is None:
        check_not_being_removed(states[-1])
        raise IndexMismatch(
            f"{name} has no vector field to put into a template",
            f"Add one first: `es-sbert ingest --index {states[-1].name} --text-field FIELD`.",
        )
    return _requests_for(engine, state)


def _requests_for(engine: Engine, state: IndexState) -> list[TemplateRequest]:
    created = state.data_stream or state.name
    stem = _GENERATION.sub("", created)
    part = vector_template(engine.info.engine_type, state)
    template = index_template_of(engine, created)
    if template is not None:
        component = f"{template[0]}-vectors"
        body = {member: template[1][member] for member in _TEMPLATE_MEMBERS if member in template[1]}
        body["composed_of"] = list(dict.fromkeys([*body.get("composed_of", []), component]))
        return [
            TemplateRequest(f"_component_template/{component}", {"template": part}),
            TemplateRequest(f"_index_template/{template[0]}", body),
        ]
    order = _highest_legacy_order(engine, created)
    patterns = [created if state.data_stream else f"{stem}-*"]
    if order is not None:
        # Legacy templates are merged in their order, unless a composable one matches.
        return [TemplateRequest(f"_template/{stem}-vectors", {"index_patterns": patterns, "order": order + 1, **part})]
    return [TemplateRequest(f"_index_template/{stem}-vectors", {"index_patterns": patterns, "template": part})]


def vector_template(engine_type: EngineType, state: IndexState) -> Json:
    """Build the part of a template that adds the vector fields of an index: settings and mappings."""
    fields = vector_fields(state.mappings, state.name)
    names = [name for field in fields for name in (field, document_meta_field(field))]
    properties = state.mappings.get("properties", {})
    entries = state.mappings["_meta"][META_KEY]["fields"]
    mappings: Json = {
        "_meta": {META_KEY: {"fields": entries}},
        # With `subobjects: false`, the metadata consists of several fields with a dot in their names.
        "properties": {name: field for name, field in properties.items() if is_within(name, names)},
    }
    if engine_type is EngineType.OPENSEARCH:
        graph = any(meta.index_type != IndexType.FLAT for meta in fields.values())
        return {"settings": {"index.knn": graph}, "mappings": mappings}
    return {"mappings": mappings}


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


def merge_legacy_templates(engine_type: EngineType, templates: Json, name: str) -> Json:
    """Merge the legacy templates that apply to a new index, as the engine does if no composable template applies.

    Of templates of the same order, the first one in the response wins.

    Args:
        templates: The response to `GET /_template`.

    Returns:
        `settings` and `mappings`, as far as the templates have them.
    """
    matching = [body for body in templates.values() if matches_patterns(name, body.get("index_patterns", []))]
    merged: Json = {}
    for body in sorted(matching, key=lambda body: -int(body.get("order", 0))):
        mappings = body.get("mappings", {})
        part = {"settings": body.get("settings", {}), "mappings": mappings.get("_doc", mappings)}
        merged = _merge_defaults(engine_type, merged, part)
    return merged


def _merge_defaults(engine_type: EngineType, content: Any, defaults: Any) -> Any:
    """Add members of objects that the content lacks; Elasticsearch adds values of lists too."""
    if isinstance(content, dict) and isinstance(defaults, dict):
        both = content.keys() & defaults.keys()
        merged = {key: _merge_defaults(engine_type, content[key], defaults[key]) for key in both}
        return defaults | content | merged
    if engine_type is EngineType.ELASTICSEARCH and isinstance(content, list) and isinstance(defaults, list):
        return [*defaults, *(each for each in content if each not in defaults)]
    return content


def _components(engine: Engine, names: Sequence[str]) -> list[TemplatePart]:
    answer = (engine.request_api("/_component_template") or {}) if names else {}
    found = {entry["name"]: entry["component_template"] for entry in answer.get("component_templates", [])}
    return [
        TemplatePart(f"The component template {name}", found[name].get("template") or {})
        for name in names
        if name in found
    ]


def _highest_legacy_order(engine: Engine, name: str) -> int | None:
    """Find the highest order of the legacy templates that match a name; None if no template does."""
    answer = engine.request_api("/_template") or {}
    matching = (body for body in answer.values() if matches_patterns(name, body.get("index_patterns", [])))
    return max((int(body.get("order", 0)) for body in matching), default=None)


def _flat_names(settings: Json, prefix: str = "") -> Iterator[str]:
    # OpenSearch has no `flat_settings` for templates.
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
