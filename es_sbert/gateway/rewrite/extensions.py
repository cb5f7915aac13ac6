"""What the gateway adds to the engine's queries, left out for an engine that is to say what is wrong with the rest."""

from __future__ import annotations

from typing import Any

from es_sbert.engines.protocol import Json

# Of a query on the virtual field; the engine's own `match` knows none of them.
_OPTIONS = frozenset({"k", "min_cosine"})


def without_extensions(body: Json, virtual_field: str) -> Json:
    """A search for an index that does not exist, or that the caller may not search, as the engine can read it.

    Returns:
        The very same object where nothing is left out.
    """
    changed = _without(body, virtual_field)
    return changed if isinstance(changed, dict) else body


def _without(value: Any, virtual_field: str) -> Any:
    if isinstance(value, list):
        new = [_without(inner, virtual_field) for inner in value]
        return new if any(one is not other for one, other in zip(new, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    changed: Json = {}
    for name, inner in value.items():
        kept = inner
        if isinstance(inner, dict) and (name == virtual_field or name.startswith(f"{virtual_field}.")):
            if not _OPTIONS.isdisjoint(inner):
                kept = {option: said for option, said in inner.items() if option not in _OPTIONS}
        else:
            kept = _without(inner, virtual_field)
        if kept is not inner:
            changed[name] = kept
    return value | changed if changed else value
