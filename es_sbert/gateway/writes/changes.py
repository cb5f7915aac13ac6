"""What becomes of the vectors of a document that is written, whole or in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.index.meta import document_hash, is_current, meta_object, stored_meta
from es_sbert.index.targets import Target
from es_sbert.index.text import MISSING, NoText, TextTemplate, find_field


class Absent(Enum):
    """Why the document that an update is about is not at hand."""

    MISSING = auto()  # there is none
    UNKNOWN = auto()  # it cannot be known what will be there


# A document as it stands before an update: the fields that matter.
Standing = Json | Absent


@dataclass(frozen=True)
class Change:
    """What an object that is written gets and loses.

    Attributes:
        wanted: Vector fields that get a new vector, each with the text.
        removed: Members of the object that are left out: vectors of an older text, and the objects beside them.
        cleared: Vector fields that a partial document takes away from the document.
        document_hash: Of the whole document; None for a part of one.
    """

    wanted: tuple[tuple[Target, str], ...] = ()
    removed: frozenset[str] = frozenset()
    cleared: tuple[str, ...] = ()
    document_hash: str | None = None

    def __bool__(self) -> bool:
        return bool(self.wanted or self.removed or self.cleared)


NOTHING = Change()


def whole_document(fields: Json, targets: Sequence[Target]) -> Change:
    """What a document that takes the place of another (or of none) gets: a vector for each text that it has.

    A vector that the client brings stays, unless the object beside it says that it is of another text or model: then
    it is a copy of what the index held before.
    """
    wanted: list[tuple[Target, str]] = []
    removed: set[str] = set()
    for target in targets:
        text = _text(fields, target.template)
        if not _is_brought(fields, target, text):
            removed |= _own_members(fields, target, bool(text))
            wanted += [(target, text)] if text else []
    if not wanted and not removed:
        return NOTHING
    content = {name: value for name, value in fields.items() if name not in removed}
    return Change(tuple(wanted), frozenset(removed), (), document_hash(content))


def partial_document(doc: Json, standing: Standing, targets: Sequence[Target], *, creates: bool) -> Change:
    """What a partial document gets for the texts that it changes.

    Args:
        standing: The document before.
        creates: Whether the partial document is the whole one where there is none yet (`doc_as_upsert`).
    """
    wanted: list[tuple[Target, str]] = []
    removed: set[str] = set()
    cleared: list[str] = []
    for target in targets:
        if not _is_touched(doc, target.template):
            continue
        if _is_complete(doc, target.template) or (standing is Absent.MISSING and creates):
            text: str | None = _text(doc, target.template)
        elif isinstance(standing, dict):
            text = _text(merged(standing, doc), target.template)
            if is_current(meta_object(standing, target.meta_field), text, target.meta.fingerprint):
                continue
        elif standing is Absent.UNKNOWN:
            text = None
        else:
            continue  # there is nothing to update, and the engine says so
        if _is_brought(doc, target, text or ""):
            continue
        removed |= _own_members(doc, target, True)
        if text:
            wanted.append((target, text))
        else:
            cleared.append(target.field)
    return Change(tuple(wanted), frozenset(removed), tuple(cleared))


def needed_fields(doc: Json, targets: Sequence[Target]) -> tuple[str, ...]:
    """What must be known of the document before, so that the texts that a partial document changes are whole."""
    needed = [
        name
        for target in targets
        if _is_touched(doc, target.template) and not _is_complete(doc, target.template)
        for name in (*target.template.fields, target.meta_field)
    ]
    return tuple(dict.fromkeys(needed))


def merged(standing: Mapping[str, Any], doc: Mapping[str, Any]) -> Json:
    """A document after a partial update, as engines do it: objects are merged, all else is replaced."""
    result = dict(standing)
    for name, value in doc.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def _text(fields: Json, template: TextTemplate) -> str:
    """The text to embed; empty where there is none, or none that a model could read."""
    try:
        text = "" if template.is_missing(fields) else template.render(fields)
    except NoText:
        return ""
    return text if text.strip() else ""


def _is_brought(fields: Json, target: Target, text: str) -> bool:
    """Whether the object brings a vector that is to stay."""
    if fields.get(target.field) is None:
        return False
    if stored_meta(fields, target.meta_field) is None:
        return True
    return is_current(meta_object(fields, target.meta_field), text, target.meta.fingerprint)


def _own_members(fields: Json, target: Target, replaced: bool) -> set[str]:
    """Members that give way; nulls only to what replaces them."""
    names = (target.field, target.meta_field)
    return {name for name in names if name in fields and (replaced or fields[name] is not None)}


def _is_touched(doc: Json, template: TextTemplate) -> bool:
    return any(_says(doc, field) for field in template.fields)


def _is_complete(doc: Json, template: TextTemplate) -> bool:
    return all(_says(doc, field) for field in template.fields)


def _says(doc: Json, field: str) -> bool:
    """Whether a partial document decides what stands at a dotted name, be it by something else in an object's place."""
    if find_field(doc, field) is not MISSING:
        return True
    head, dot, _ = field.rpartition(".")
    while dot:
        value = find_field(doc, head)
        if value is not MISSING:
            return not isinstance(value, Mapping)
        head, dot, _ = head.rpartition(".")
    return False
