"""Fields that the engine fills from other fields: aliases, multi-fields, targets of `copy_to`, runtime fields.

Queries may name them, but documents do not have them in `_source`, so no text can be read from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DerivedField:
    """A field that the engine fills.

    Attributes:
        kind: The engine's term for it, as messages use it.
        sources: Dotted names of the fields that it is filled from; none for a runtime field.
    """

    kind: str
    sources: tuple[str, ...]

    def explain(self, name: str) -> str:
        """Explain, for a message, why a text cannot use the field."""
        if not self.sources:
            return f"{name} is a {self.kind}, which documents do not contain."
        listed = " and ".join(self.sources)
        return f"{name} is {self.kind} of {listed}. Documents contain only {listed}: use that instead."


def derived_fields(mappings: Mapping[str, Any]) -> dict[str, DerivedField]:
    """The derived fields of a mapping, by dotted name.

    Args:
        mappings: The whole mapping, or only what `gateway.index_lookup` reads: `path` and `copy_to` of the fields.
    """
    found: dict[str, DerivedField] = {}
    copied: dict[str, list[str]] = {}
    for name, field in mapped_fields(mappings.get("properties", {})):
        path, targets = field.get("path"), field.get("copy_to", [])
        if isinstance(path, str) and field.get("type", "alias") == "alias":
            found[name] = DerivedField("an alias", (path,))
        for target in [targets] if isinstance(targets, str) else targets:
            copied.setdefault(target, []).append(name)
        for inner in field.get("fields", {}):
            found[f"{name}.{inner}"] = DerivedField("a multi-field", (name,))
    found |= {target: DerivedField("the `copy_to` target", tuple(names)) for target, names in copied.items()}
    found |= {name: DerivedField("runtime field", ()) for name in mappings.get("runtime", {})}
    return found


def mapped_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all fields by dotted name, including objects and the fields in them.

    With `subobjects: false`, the names in a mapping already have dots.

    Args:
        properties: `properties` of a mapping.
    """
    for name, field in properties.items():
        yield f"{prefix}{name}", field
        yield from mapped_fields(field.get("properties", {}), f"{prefix}{name}.")


def is_within(path: str, names: Iterable[str]) -> bool:
    """Whether a dotted name is one of the fields, or a field below one of them."""
    return any(path == name or path.startswith(f"{name}.") for name in names)


def without_mapped_fields(properties: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return `properties` of a mapping without these fields, the fields below them, and objects that become empty.

    Args:
        names: Dotted names.
    """
    kept: dict[str, Any] = {}
    for key, field in properties.items():
        if is_within(key, names):
            continue
        below = [name[len(key) + 1 :] for name in names if name.startswith(f"{key}.")]
        inner = field.get("properties")
        if not below or not inner:
            kept[key] = field
            continue
        left = without_mapped_fields(inner, below)
        others = {name: each for name, each in field.items() if name != "properties"}
        if left or others.keys() - {"type"}:
            kept[key] = others | ({"properties": left} if left else {})
    return kept


def nested_objects(properties: Mapping[str, Any]) -> frozenset[str]:
    """Dotted names of the objects of type `nested`.

    Args:
        properties: `properties` of a mapping.
    """
    return frozenset(name for name, field in mapped_fields(properties) if field.get("type") == "nested")


def source_names(derived: Mapping[str, DerivedField], name: str) -> set[str]:
    """All fields whose text a query on this field searches: the field itself, and those that it is filled from."""
    found, waiting = {name}, [name]
    while waiting:
        field = derived.get(waiting.pop())
        for source in field.sources if field is not None else ():
            # An alias may point to a multi-field, which the gateway cannot tell from other fields.
            for each in (source, source.rpartition(".")[0]):
                if each and each not in found:
                    found.add(each)
                    waiting.append(each)
    return found
