"""Which vector fields a load fills, and from what: the options of a command beside what the index says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from es_sbert.errors import UsageError
from es_sbert.index.meta import PassageRules, VectorFieldMeta
from es_sbert.index.schema import check_field_name
from es_sbert.index.text import TextTemplate
from es_sbert.index.text_options import DEFAULT_TEXT_FIELD, check_own_names, read_text_options, text_options
from es_sbert.ingest.settings import IngestSettings


@dataclass(frozen=True)
class PlannedField:
    """A vector field that a load is to fill.

    Attributes:
        field: Its name.
        template: The text of its vectors.
        passages: Rules that were asked for; None leaves them to the index.
        stored: What the mapping says of it; None where it is new.
        text_options: The options by which the text was given, for messages; None where the index or the default says
            it.
    """

    field: str
    template: TextTemplate
    passages: PassageRules | None
    stored: VectorFieldMeta | None
    text_options: str | None = None


def planned_fields(settings: IngestSettings, stored: Mapping[str, VectorFieldMeta]) -> tuple[PlannedField, ...]:
    """The vector fields that the settings ask for.

    Args:
        stored: The index's own.

    Raises:
        UsageError: options that contradict each other or cannot be read, or a new field without a text.
    """
    texts = _texts(settings, stored)
    check_own_names(texts, () if settings.id_field is None else (settings.id_field,))
    passages = _passages(settings, list(texts))
    return tuple(
        PlannedField(field, template, passages.get(field), stored.get(field), _text_options(settings, field))
        for field, template in texts.items()
    )


def _text_options(settings: IngestSettings, field: str) -> str | None:
    """The options by which a field's text was given, as `ingest` and `index migrate` take them for this field alone."""
    for given in settings.vectors:
        name, _, template = given.partition("=")
        if name == field and template:
            return text_options(field, (), template)
    return text_options(field, settings.text_fields, settings.text_template)


def _texts(settings: IngestSettings, stored: Mapping[str, VectorFieldMeta]) -> dict[str, TextTemplate]:
    if not settings.vectors:
        field = settings.vector_field
        return {field: _template(settings, stored.get(field))}
    if settings.text_fields or settings.text_template is not None:
        raise UsageError("--vector says itself which text it stands for", "Leave --text-field and --text-template out.")
    texts: dict[str, TextTemplate] = {}
    for given in settings.vectors:
        field, equals, template = given.partition("=")
        check_field_name(field)
        known = stored.get(field)
        if field in texts:
            raise UsageError(f"the vector field {field} is named twice", "Name each --vector once.")
        if equals:
            texts[field] = TextTemplate.parse(template)
        elif known is not None and known.text is not None:
            texts[field] = TextTemplate.parse(known.text)
        else:
            raise UsageError(
                f"the index does not say which text {field} stands for", f"Write --vector '{field}={{FIELD}}'."
            )
    return texts


def _template(settings: IngestSettings, stored: VectorFieldMeta | None) -> TextTemplate:
    given = read_text_options(settings.text_fields, settings.text_template)
    if given is not None:
        return given
    if stored is not None and stored.text is not None:
        return TextTemplate.parse(stored.text)
    return TextTemplate.of_fields([DEFAULT_TEXT_FIELD])


def _passages(settings: IngestSettings, fields: list[str]) -> dict[str, PassageRules]:
    """Vector field → the rules asked for: `256` for all of them, `body=256` for one."""
    if settings.passage_overlap is not None and not settings.passages:
        raise UsageError("--passage-overlap is for passages", "Give --passages TOKENS too.")
    rules: dict[str, PassageRules] = {}
    for given in settings.passages:
        field, _, number = given.rpartition("=")
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise UsageError(
                f"--passages {given!r} is no number of tokens", "Write --passages 256, or --passages FIELD=256."
            )
        if field and field not in fields:
            raise UsageError(
                f"--passages names {field}, which this load does not fill", f"Name one of: {', '.join(fields)}."
            )
        for name in [field] if field else fields:
            rules[name] = PassageRules.of(int(number), settings.passage_overlap)
    return rules
