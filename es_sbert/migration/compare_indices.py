"""Compare a new index with the one that it replaces: index templates and the engine may have added something to it.

Searches of the new index would then find something else, or writes to it would go through another pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, SettingValue, matches_patterns
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.derived_fields import is_within, mapped_fields, without_mapped_fields
from es_sbert.messages import setting

LIFECYCLE = "index.lifecycle."
FINAL_PIPELINE = "index.final_pipeline"
# A final pipeline has processed the documents already, and an index lifecycle policy may freeze or delete an index:
# the new index gets both at the swap.
SET_AT_SWAP = re.compile(rf"{re.escape(LIFECYCLE)}.*|{re.escape(FINAL_PIPELINE)}")
# Settings that an engine sets itself, that it does not know any more, or that describe the state of the old index.
_NOT_COPIED = re.compile(
    r"archived\..*|index\.(uuid|creation_date.*|provided_name|version\..*|history\.uuid|resize\..*|blocks\..*"
    r"|routing\.allocation\.initial_recovery\..*|shrink\..*|split\..*|verified_before_close|verified_read_only|frozen"
    r"|store\.snapshot\..*)"
)
ROUTING_SHARDS = "index.number_of_routing_shards"
REFRESH_INTERVAL = "index.refresh_interval"
_MAX_DIFFERENCES = 10


def copied_settings(source: IndexState) -> dict[str, SettingValue]:
    """Return the settings with which the replacement of an index is created."""
    return {
        name: value
        for name, value in source.settings.items()
        if not (_NOT_COPIED.fullmatch(name) or SET_AT_SWAP.fullmatch(name))
    }


def lifecycle_settings(index: IndexState) -> dict[str, SettingValue]:
    """The settings of an index for Elasticsearch's index lifecycle management."""
    return {name: value for name, value in index.settings.items() if name.startswith(LIFECYCLE)}


def _flat_names(settings: Json, prefix: str = "") -> Iterator[str]:
    # OpenSearch has no `flat_settings` for templates.
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def matching_templates(engine: Engine, name: str) -> dict[str, Json] | None:
    """Find the templates that apply to a new index of this name, and their components, by kind and name.

    Returns:
        `settings`, `mappings` and `aliases` of each, as far as it has them; None if this user may not read them.

    Raises:
        EngineError: the engine failed.
    """
    try:
        found = {
            (int(entry["index_template"].get("priority", 0)), entry["name"]): entry["index_template"]
            for entry in (engine.request_api("/_index_template") or {}).get("index_templates", [])
            if matches_patterns(name, entry["index_template"]["index_patterns"])
        }
        if not found:
            return {
                f"The template {legacy}": body
                for legacy, body in (engine.request_api("/_template") or {}).items()
                if matches_patterns(name, body.get("index_patterns", []))
            }
        (_, template), body = max(found.items(), key=lambda item: item[0])
        composed_of = body.get("composed_of") or ()
        answer = (engine.request_api("/_component_template") or {}) if composed_of else {}
    except AccessDenied:
        return None
    components = {entry["name"]: entry["component_template"] for entry in answer.get("component_templates", [])}
    return {f"The index template {template}": body.get("template") or {}} | {
        f"The component template {each}": components[each].get("template") or {}
        for each in composed_of
        if each in components
    }


def check_template_aliases(engine: Engine, name: str) -> None:
    """Refuse the name of a new index to which a template adds an alias: searches would find it before it is filled.

    Raises:
        IndexMismatch: a template does.
        EngineError: the engine failed.
    """
    for label, template in (matching_templates(engine, name) or {}).items():
        for alias in template.get("aliases") or {}:
            raise IndexMismatch(
                f"{label} gives the new index {name} the alias {alias} before it has any documents",
                f"Set {setting('name')} to a name that the template does not match, or take the alias out of the "
                "template; the swap moves all aliases of the old index.",
            ).about("name", name)


def check_same_index(engine: Engine, source: str, target: IndexState, body: Json, replaced: Collection[str]) -> None:
    """Refuse a new index that differs from the old one in more than what the migration changes.

    Args:
        source: The old index.
        target: The new index, as the engine has created it.
        body: The settings and the mapping that it was created with: those of the old index, but for the vector fields.
        replaced: Dotted names of the fields that the migration changes or leaves out.

    Raises:
        IndexMismatch: the indices differ.
        EngineError: the engine failed.
    """
    templates = matching_templates(engine, target.name)
    differences = [
        *_different_settings(body["settings"], target, templates),
        *_different_mappings(body["mappings"], target.mappings, replaced),
        *(f"it has the alias {alias}" for alias in sorted(target.aliases)),
    ]
    if not differences:
        return
    more = len(differences) - _MAX_DIFFERENCES
    listed = "; ".join(differences[:_MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
    labels = " and ".join(templates or ())
    raise IndexMismatch(
        f"the new index {target.name} would differ from {source}: {listed}"
        + (f". {labels} applies to its name" if labels else ""),
        f"Set {setting('name')} to a name that no index template matches, or give {source} the same values "
        f"(`PUT {source}/_settings`, `PUT {source}/_mapping`).",
    )


def _different_settings(
    asked: dict[str, SettingValue], target: IndexState, templates: Mapping[str, Json] | None
) -> Iterator[str]:
    """Describe each setting that differs.

    A setting of the new index alone that no template has is one that the engine sets itself.

    Args:
        templates: The templates that apply to the new index; None if they are unknown.
    """
    new = copied_settings(target)
    parts = (templates or {}).values()
    of_templates = {name for part in parts for name in _flat_names(part.get("settings") or {})}
    unequal = {ROUTING_SHARDS}  # not every engine returns it
    if asked.get("index.auto_expand_replicas") not in (None, "false"):
        unequal.add("index.number_of_replicas")  # the engine derives their number
    for name in sorted((asked.keys() | new.keys()) - unequal):
        if name in asked or templates is None or name in of_templates:
            yield from _differences(name, asked.get(name), new.get(name))


def _different_mappings(asked: Json, new: Json, replaced: Collection[str]) -> Iterator[str]:
    for key in sorted((asked.keys() | new.keys()) - {"properties"}):
        yield from _differences(key, asked.get(key), new.get(key))
    before, after = (without_mapped_fields(mapping.get("properties", {}), replaced) for mapping in (asked, new))
    for name in sorted(before.keys() | after.keys()):
        yield from _differences(f"the field {name}", before.get(name), after.get(name))
    for name in sorted(replaced):
        wanted, found = _mapped_field(asked, name), _mapped_field(new, name)
        if not _contains(found, wanted):
            yield from _differences(f"the field {name}", wanted, found)


def _mapped_field(mapping: Json, name: str) -> Any:
    """The field of a dotted name; if it has only members, as with `subobjects: false`, these; None without any."""
    fields = {path: field for path, field in mapped_fields(mapping.get("properties", {})) if is_within(path, [name])}
    return fields.get(name, fields or None)


def _contains(field: Any, asked: Any) -> bool:
    """Whether a field has all the parameters that it was created with; the engine adds its defaults.

    The type of numbers is left out where it is the engine's default.
    """
    if isinstance(asked, dict) and isinstance(field, dict):
        kept = {key: value for key, value in asked.items() if key in field or key not in ("element_type", "data_type")}
        return all(_contains(field.get(key), value) for key, value in kept.items())
    return bool(field == asked) or str(field).lower() == str(asked).lower()  # OpenSearch returns `BYTE` for `byte`


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(f"{path}.{key}", old.get(key), new.get(key))
        return
    yield f"{path} is {_shown(new)} instead of {_shown(old)}"


def _shown(value: Any) -> str:
    return "not set" if value is None else orjson.dumps(value).decode()
