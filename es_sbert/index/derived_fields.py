"""Fields that the engine fills from other fields: aliases, multi-fields, targets of `copy_to`, runtime fields.

Queries may name them, but documents do not have them in `_source`, so no text can be read from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DerivedField:
    """A field that the engine fills.

    Attributes:
        kind: In the engine's words.
        sources: Dotted names of the fields that it is filled from; none for a runtime field.
    """

    kind: str
    sources: tuple[str, ...]

    def explain(self, name: str) -> str:
        """What to say of a text that names the field."""
        if not self.sources:
            return f"{name} is a {self.kind}, which no document has."
        listed = " and ".join(self.sources)
        return f"{name} is {self.kind} of {listed}, and documents have only {listed}: name that."


def derived_fields(mappings: Mapping[str, Any]) -> dict[str, DerivedField]:
    """The derived fields of a mapping, by dotted name.

    Args:
        mappings: Whole, or only what `gateway.index_lookup` reads of it: `path` and `copy_to` of the fields.
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
    """All fields by dotted name, objects and the fields in them too; with `subobjects: false`, names have dots already.

    Args:
        properties: `properties` of a mapping.
    """
    for name, field in properties.items():
        yield f"{prefix}{name}", field
        yield from mapped_fields(field.get("properties", {}), f"{prefix}{name}.")


def nested_objects(properties: Mapping[str, Any]) -> frozenset[str]:
    """Dotted names of the objects that are of the type `nested`.

    Args:
        properties: `properties` of a mapping.
    """
    return frozenset(name for name, field in mapped_fields(properties) if field.get("type") == "nested")


def source_names(derived: Mapping[str, DerivedField], name: str) -> set[str]:
    """All fields whose words a query on this field searches: the field itself, and those that it is filled from."""
    found, waiting = {name}, [name]
    while waiting:
        field = derived.get(waiting.pop())
        for source in field.sources if field is not None else ():
            # An alias may be one of a multi-field, of whose kind the gateway knows nothing.
            for each in (source, source.rpartition(".")[0]):
                if each and each not in found:
                    found.add(each)
                    waiting.append(each)
    return found
