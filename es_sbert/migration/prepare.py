"""Where a migration stands, and the new index made where there is none yet."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from shlex import quote

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import EncoderInfo
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.ensure import missing_index, read_vector_field
from es_sbert.index.load_settings import begin_load, left_behind
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.privileges import MIGRATE_FROM, MIGRATE_TO, require
from es_sbert.index.schema import vector_fields
from es_sbert.index.text import TextTemplate
from es_sbert.index.types import read_index_type
from es_sbert.ingest.triage import lost_fields
from es_sbert.migration.hold import permit_name
from es_sbert.migration.state import Migration, Notebook, Phase, point, pointed_to, read_migration, with_migration
from es_sbert.migration.target import ours, target_body, target_name
from es_sbert.migration.template_fields import check_template_fields

# A deletion is remembered this long, so that a late copy cannot bring the document back.
_GC_DELETES = "index.gc_deletes"
_GC_WHILE = "1h"


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        alias: The alias, or with `replace_index` the index that becomes one.
        vector_field: The field whose model is replaced; others that the same model fills go with it.
        name: Name of the new index; None derives it.
        index_type: Of the new fields; None keeps the old ones'.
        block_writes: Refuse writes to the old index from the last round until the swap, and after it.
        replace_index: Put the new index, under an alias, in the place of an index that has none; takes `block_writes`.
        text: Template of the text that is embedded for the vector field; None keeps the old one.
    """

    alias: str
    vector_field: str
    name: str | None = None
    index_type: str | None = None
    block_writes: bool = True
    replace_index: bool = False
    text: TextTemplate | None = None


@dataclass(frozen=True)
class Prepared:
    """A migration that can go on.

    Attributes:
        source: The old index; None where it has been removed.
        target: Name of the new one.
        fields: Vector fields of the new one that the new model fills.
        book: The note of how far it is.
        resumed: Whether an earlier run has begun it.
    """

    source: IndexState | None
    target: str
    fields: dict[str, VectorFieldMeta]
    book: Notebook
    resumed: bool


def find(engine: Engine, alias: str) -> tuple[IndexState, Migration | None]:
    """The index behind the alias, and the note in it where it came from a migration of this alias.

    Raises:
        IndexMissing, IndexMismatch: no such alias, or one of several indices.
    """
    state = engine.get_index(alias)
    if state is None:
        raise missing_index(alias, engine)
    return state, read_migration(state)


def prepare(engine: Engine, wanted: Wanted, encoder: Encoder) -> Prepared:
    """Look where a migration stands; begin it where it has not begun.

    Raises:
        IndexMissing, IndexMismatch, UsageError: what is asked for cannot be done; nothing was changed.
        EngineError: the engine failed.
    """
    model = encoder.info
    state, note = find(engine, wanted.alias)
    if note is not None and note.phase is Phase.CLOSING:
        fields = _filled_by(state, note)
        _check_same_migration(state.name, fields, wanted, model, text=wanted.text)
        return _resume(engine, state, note, engine.get_index(note.source))
    _check_no_stream(state, model)
    stored = read_vector_field(engine, state.name, wanted.vector_field).meta
    pointer = pointed_to(state)
    begun = None if pointer is None else engine.get_index(pointer)
    note = None if begun is None else _note_of(begun, state)
    if begun is not None and note is not None:
        text = wanted.text or _text_of(stored)
        _check_same_migration(begun.name, _filled_by(begun, note), wanted, model, text=text)
        _check_source(engine, state, wanted, model)
        return _resume(engine, begun, note, state)
    _check_needed(state, stored, wanted, model)
    _check_source(engine, state, wanted, model)
    name = wanted.name or target_name(wanted.alias, model.fingerprint, state.name)
    there = engine.get_index(name)
    if there is not None:
        raise IndexMismatch(
            f"the index {there.name}, which the migration would create, is there already",
            "Give another name by --name, or delete that index if it is not needed.",
        )
    _check_privileges(engine, state.name, wanted.alias, name)
    if wanted.text is not None:
        check_template_fields(engine, state, wanted.text)
    return _begin(engine, state, wanted, encoder, name)


def _check_privileges(engine: Engine, source: str, alias: str, target: str) -> None:
    """Make sure that the user may do all of it, the block and the swap included, before anything is done."""
    for name in dict.fromkeys((source, alias, permit_name(target, "0" * 12))):
        require(engine, name, MIGRATE_FROM)
    require(engine, target, MIGRATE_TO)


def _check_same_migration(begun: str, fields: dict[str, VectorFieldMeta], wanted: Wanted, model: EncoderInfo, *,
                          text: TextTemplate | None) -> None:  # fmt: skip
    """Refuse to go on with a migration that was begun with other options.

    Args:
        begun: The new index.
        fields: Its vector fields that the migration fills.
        text: The text that the vector field is to have; None accepts any.

    Raises:
        IndexMismatch: name, model, index type or text differ.
    """
    there = fields.get(wanted.vector_field)
    differs = (
        wanted.name not in (None, begun)
        or there is None
        or any(meta.fingerprint != model.fingerprint for meta in fields.values())
    )
    if not differs and there is not None:
        if wanted.index_type not in (None, there.index_type):
            options = f"with --index-type {there.index_type}"
        elif text is not None and there.text is not None and text.template != there.text:
            options = f"with --text-template {quote(there.text)}"
        else:
            return
    else:
        options = "with another name or model"
    raise IndexMismatch(
        f"{wanted.alias} is being migrated to {begun} already, {options}",
        f"Finish that with the same command, or, as long as it has not been swapped, remove it: `es-sbert index "
        f"migrate {wanted.alias} --rollback`.",
    )


def _text_of(meta: VectorFieldMeta) -> TextTemplate | None:
    return None if meta.text is None else TextTemplate.parse(meta.text)


def _begin(engine: Engine, source: IndexState, wanted: Wanted, encoder: Encoder, name: str) -> Prepared:
    fields = _new_fields(engine, source, wanted, encoder.info)
    for meta in fields.values():
        if meta.passages is not None:
            # Rules that do not go with the new model are refused before an index is made for them.
            encoder.splitter(meta.passages.tokens, meta.passages.overlap, "document")
    note = Migration(
        alias=wanted.alias, source=source.name, source_uuid=source.settings["index.uuid"], fields=tuple(fields),
        run=uuid.uuid4().hex, copied=tuple(-1 for _ in engine.sequence_numbers(source.name)),
    )  # fmt: skip
    body = target_body(engine.info.flavour, source, fields)
    body["mappings"]["_meta"] = with_migration(body["mappings"]["_meta"], note)
    # The pointer first: an index that nobody knows of would stand in the way of the next run.
    point(engine, source, name)
    engine.create_index(name, body)
    state = engine.get_index(name)
    if state is None:
        raise missing_index(name, engine)
    begin_load(engine, state)
    return Prepared(source, name, fields, Notebook(engine, name, note), resumed=False)


def _resume(engine: Engine, target: IndexState, note: Migration, source: IndexState | None) -> Prepared:
    book = Notebook(engine, target.name, note)
    book.take_over(target, uuid.uuid4().hex)
    if source is not None and source.settings["index.uuid"] != note.source_uuid:
        source = None
    return Prepared(source, target.name, _filled_by(target, note), book, resumed=True)


def _check_no_stream(source: IndexState, model: EncoderInfo) -> None:
    if source.data_stream is not None:
        raise IndexMismatch(
            f"{source.name} belongs to the data stream {source.data_stream}, which cannot go over to another index",
            f"Give each of its indices a vector field of the new model: `es-sbert ingest --index {source.name} "
            f"--vector-field NAME --model {model.model}`.",
        )


def _check_needed(source: IndexState, stored: VectorFieldMeta, wanted: Wanted, model: EncoderInfo) -> None:
    if (
        stored.fingerprint == model.fingerprint
        and wanted.index_type in (None, stored.index_type)
        and (wanted.text is None or wanted.text.template == stored.text)
    ):
        of_text = "" if wanted.text is None else f" for the text {wanted.text.template!r}"
        raise IndexMismatch(
            f"{wanted.alias} points to {source.name}, which has vectors of {stored.model} "
            f"({model.fingerprint[:12]}) already{of_text}",
            f"There is nothing to do; the index before it, if it stands, goes with `es-sbert index migrate "
            f"{wanted.alias} --drop`.",
        )


def _check_source(engine: Engine, source: IndexState, wanted: Wanted, model: EncoderInfo) -> None:
    lost = lost_fields(source.mappings, ours(list(_new_fields(engine, source, wanted, model))))
    if lost is not None:
        raise IndexMismatch(
            f"the index {source.name} keeps no {lost}, so its documents cannot be copied",
            "Load the documents from files into a new index.",
        )
    if left_behind(source) is not None:
        raise IndexMismatch(
            f"a load is under way in {source.name}, or was killed in it",
            f"Let it finish, or end it: `es-sbert index repair {source.name}`.",
        )
    if source.name == wanted.alias and not wanted.replace_index:
        aliases = sorted(engine.aliases(source.name).get(source.name, {}))
        raise UsageError(
            f"{wanted.alias} is an index, not an alias, so it cannot be swapped for another",
            f"Migrate its alias {aliases[0]}, which applications should use."
            if aliases
            else "--replace-index puts an alias of that name in its place: writes to it are blocked for the last "
            "moment, and the old index is deleted in the same step.",
        )
    if source.name != wanted.alias and wanted.replace_index:
        raise UsageError(f"{wanted.alias} is an alias already", "Leave --replace-index out.")


def _new_fields(engine: Engine, source: IndexState, wanted: Wanted, model: EncoderInfo) -> dict[str, VectorFieldMeta]:
    """The vector fields of the old model, as the new one fills them.

    Where neither model nor index type changes, vectors of the other fields are copied as they are.
    """
    stored = vector_fields(source.mappings, source.name)
    old = stored[wanted.vector_field]
    same = old.fingerprint == model.fingerprint and wanted.index_type in (None, old.index_type)
    return {
        name: meta.model_copy(
            update={
                "fingerprint": model.fingerprint, "model": model.model, "dimensions": model.dimensions,
                "index_type": read_index_type(wanted.index_type or meta.index_type, engine.info, model.dimensions),
            } | ({"text": wanted.text.template} if wanted.text is not None and name == wanted.vector_field else {})
        )
        for name, meta in stored.items()
        if (name == wanted.vector_field if same else meta.fingerprint == old.fingerprint)
    }  # fmt: skip


def _note_of(target: IndexState, source: IndexState) -> Migration | None:
    """The note of an unfinished migration from this source."""
    note = read_migration(target)
    if note is None or note.phase is Phase.DONE or note.source_uuid != source.settings["index.uuid"]:
        return None
    return note


def _filled_by(target: IndexState, note: Migration) -> dict[str, VectorFieldMeta]:
    """The vector fields of the new index that the migration fills."""
    return {name: meta for name, meta in vector_fields(target.mappings, target.name).items() if name in note.fields}


def remember_deletions(engine: Engine, target: str) -> None:
    """From now on deletions in the new index are remembered for an hour."""
    engine.put_settings(target, {_GC_DELETES: _GC_WHILE})


def forget_deletions(engine: Engine, target: str, source: IndexState | None) -> None:
    """The setting is as it was in the old index."""
    engine.put_settings(target, {_GC_DELETES: None if source is None else source.settings.get(_GC_DELETES)})
