"""Checks of `es-sbert doctor --index`: blocks, leftover settings, vector fields and their models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from es_sbert.diagnostics.doctor import Finding, failure, ok, warning
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EsSbertError, IndexMismatch
from es_sbert.index.index_summary import FieldSummary, describe_index_state
from es_sbert.index.load_settings import unrestored_settings
from es_sbert.index.mapping import plain_vector_fields, vector_fields
from es_sbert.index.vector_field import VectorField, adopt_command, vector_field_from_state
from es_sbert.search.search_scope import SearchScope

_BLOCK_REMEDIES = {
    "index.blocks.read_only": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.read_only_allow_delete": "A disk was full: free space, then set it to null.",
    "index.blocks.write": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.read": "Set it to null: `PUT {index}/_settings`.",
    "index.blocks.metadata": "Set it to null: `PUT {index}/_settings`.",
}


@dataclass(frozen=True)
class IndexInspection:
    """The indices behind a name, as far as they could be read.

    Attributes:
        states: The index, or all that an alias points to.
        fields: The vector fields of each that can be loaded and searched, by the index's name.
        findings: What was wrong on the way.
    """

    states: tuple[IndexState, ...]
    fields: Mapping[str, tuple[VectorField, ...]]
    findings: tuple[Finding, ...]

    @property
    def first_field_by_model(self) -> dict[str, VectorField]:
        """Fingerprint of each model that made vectors → the first field that holds them."""
        found: dict[str, VectorField] = {}
        for field in (field for fields in self.fields.values() for field in fields):
            found.setdefault(field.meta.fingerprint, field)
        return found


def inspect_index(engine: Engine, name: str) -> IndexInspection:
    """Read the mappings behind a name, and whether their vector fields are what they say.

    Args:
        name: Index or alias.
    """
    try:
        states = engine.get_indices(name)
    except EsSbertError as error:
        return IndexInspection((), {}, (Finding.of("index", error),))
    findings = []
    if not states:
        findings.append(
            warning("index", f"there is no index {name}", "`es-sbert ingest` creates it; check the name otherwise.")
        )
    fields: dict[str, tuple[VectorField, ...]] = {}
    for state in states:
        found, problems = _read_fields(engine, state)
        fields[state.name] = found
        findings += problems
    if len(states) > 1:
        findings += _multi_index_findings(name, fields)
    return IndexInspection(tuple(states), fields, tuple(findings))


def _multi_index_findings(name: str, fields: Mapping[str, tuple[VectorField, ...]]) -> Iterator[Finding]:
    """What searches and loads make of a name that points to several indices."""
    yield warning(
        "index",
        f"{name} points to {len(fields)} indices, which searches take together and loads do not",
        f"Load into one of them: {', '.join(list(fields)[:5])}.",
    )
    by_name: dict[str, list[VectorField]] = {}
    for field in (field for found in fields.values() for field in found):
        by_name.setdefault(field.name, []).append(field)
    for field_name, same in by_name.items():
        lacking = [index for index in fields if index not in {field.index for field in same}]
        if lacking:
            yield failure(
                f"field {field_name}",
                f"{', '.join(lacking[:5])} has none, so that {name} cannot be searched",
                f"Embed its documents: `es-sbert ingest --index {lacking[0]} --vector-field {field_name}`.",
            )
        try:
            SearchScope(tuple(same))
        except IndexMismatch as error:
            yield Finding.of(f"field {field_name}", error)


def _read_fields(engine: Engine, state: IndexState) -> tuple[tuple[VectorField, ...], list[Finding]]:
    """The vector fields of an index, and why others are none."""
    try:
        names = vector_fields(state.mappings, state.name)
    except IndexMismatch as error:
        return (), [Finding.of("index", error)]
    found, problems = [], []
    for name in names:
        try:
            found.append(vector_field_from_state(engine, state, name))
        except IndexMismatch as error:
            problems.append(Finding.of(f"field {name}", error))
    if not names:
        problems.append(_no_vector_field_finding(engine, state))
    return tuple(found), problems


def _no_vector_field_finding(engine: Engine, state: IndexState) -> Finding:
    plain = plain_vector_fields(engine.info.engine_type, state.mappings, state.name)
    if not plain:
        return warning("index", f"{state.name} has no vector field", f"`es-sbert ingest --index {state.name}` adds it.")
    return warning(
        "index",
        f"{state.name} has no vector field that es-sbert fills, but {', '.join(plain)} of another program",
        f"If you know the model of its vectors: {adopt_command(state.name, plain[0])} checks it and takes them over. "
        f"Else `es-sbert ingest --index {state.name}` adds a field.",
    )


def check_index(
    engine: Engine, state: IndexState, fields: Sequence[VectorField], models: Mapping[str, EncoderInfo | None]
) -> Iterator[Finding]:
    """Blocks, settings left behind, and vectors that are not of the model.

    Args:
        fields: Those of its vector fields that can be searched.
        models: By the fingerprint in the mapping what it is to be searched with; None where no model could be opened.
    """
    yield from settings_findings(state)
    try:
        summary = describe_index_state(engine, state)
    except EsSbertError as error:
        yield Finding.of("index", error)
        return
    size = "" if summary.bytes is None else f", {summary.bytes / 1e6:,.1f} MB"
    yield ok("index", f"{summary.name}: {summary.documents:,} documents{size}")
    fit = {field.name for field in fields}
    for field in summary.fields:
        if field.name in fit:
            yield from field_findings(summary.name, field, summary.documents, models[field.meta.fingerprint])


def settings_findings(state: IndexState) -> Iterator[Finding]:
    """Blocks, and what a load that was killed has left."""
    for setting, remedy in _BLOCK_REMEDIES.items():
        if state.settings.get(setting) == "true":
            yield failure("index", f"{state.name} has {setting}", remedy.format(index=state.name))
    before = unrestored_settings(state)
    if before is not None:
        yield warning(
            "index",
            f"a load has changed {' and '.join(before)} of {state.name} and not put it back",
            f"If none is running now: `es-sbert index repair {state.name}`.",
        )


def field_findings(index: str, field: FieldSummary, documents: int, model: EncoderInfo | None) -> Iterator[Finding]:
    """How far a vector field is filled, by which model, and how many texts were cut."""
    about = f"field {field.name}"
    if model is not None and field.meta.fingerprint != model.fingerprint and field.meta.model == model.model:
        yield failure(
            about,
            f"holds vectors of {field.meta.model} as it was ({field.meta.fingerprint[:12]}); what opens here by "
            f"that name is another model ({model.fingerprint[:12]})",
            "Register the folder of the model that it was (es-sbert model add FOLDER), or embed with the new one into "
            "another --vector-field.",
        )
    elif model is not None and field.meta.fingerprint != model.fingerprint:
        yield warning(
            about,
            f"holds vectors of {field.meta.model} ({field.meta.fingerprint[:12]}), not of {model.model}",
            "Leave --model out to search it with its own model, or name another --vector-field.",
        )
    if field.current < field.vectors:
        named = f"{index} --vector-field {field.name}"
        yield failure(
            about,
            f"{field.vectors - field.current:,} of {field.vectors:,} vectors are not known to be of the field's model",
            f"Embed them anew: `es-sbert ingest --index {named}`. If another program wrote them with this model: "
            f"`es-sbert index adopt {named}`.",
        )
    if field.vectors < documents:
        yield warning(
            about,
            f"{documents - field.vectors:,} of {documents:,} documents have no vector, so no search by meaning "
            "finds them",
            f"Embed them: `es-sbert ingest --index {index} --vector-field {field.name}`.",
        )
    else:
        yield ok(about, f"all {documents:,} documents have a vector, {field.meta.index_type}")
    if field.truncated:
        yield warning(
            about,
            f"{field.truncated:,} texts are longer than the model reads",
            "Their ends are not found. Load shorter texts, or use a model that reads more.",
        )
