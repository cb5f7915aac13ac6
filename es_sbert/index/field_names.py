"""Names of the fields that a mapping or documents have, and the one that a misspelt name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Names in one message; documents of some sources have thousands of fields.
_SHOWN = 20


def mapped_names(properties: Mapping[str, Any]) -> list[str]:
    """Dotted names of the fields that documents bring themselves, objects left out.

    Multi-fields and aliases are left out: they are never in `_source`.

    Args:
        properties: `properties` of a mapping.
    """
    names: list[str] = []
    for name, field in properties.items():
        if field.get("type") == "alias":
            continue
        inner = field.get("properties")
        names += [f"{name}.{below}" for below in mapped_names(inner)] if inner else [name]
    return names


def document_names(fields: Mapping[str, Any]) -> list[str]:
    """Dotted names of a document's fields, those of the objects in it included and the objects left out."""
    names: list[str] = []
    for name, value in fields.items():
        names += [f"{name}.{below}" for below in document_names(value)] if isinstance(value, Mapping) else [name]
    return names


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None where none is similar."""
    by_case = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name.lower(), by_case, n=1)
    if found:
        return by_case[found[0]]
    # The field of an object, named without the object.
    ends = [known for known in by_case.values() if known.rpartition(".")[2] == name]
    return ends[0] if len(ends) == 1 else None


def fields_hint(missing: Sequence[str], names: Sequence[str], owner: str) -> str:
    """What to say about fields that do not exist: the names that were probably meant, and those that there are.

    Args:
        missing: Names that nothing has.
        names: Names that exist.
        owner: What has them, e.g. `The documents have`.
    """
    near = {name: nearest_name(name, names) for name in missing}
    meant = [known for known in near.values() if known is not None]
    question = f"Did you mean {' and '.join(dict.fromkeys(meant))}? " if meant else ""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
    return f"{question}{owner} {f'the fields {shown}' if names else 'no fields'}."
