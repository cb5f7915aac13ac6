"""Create, find and check the vector field of an index.

Vectors of different models are never mixed in one field.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from es_sbert.arguments import spell_out
from es_sbert.config import DEFAULT_MODEL, DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json, is_index_expression
from es_sbert.errors import EsSbertError, IndexMismatch, IndexMissing, RequestFailed
from es_sbert.index.derived_fields import derived_fields
from es_sbert.index.index_meta import require_index_knn, update_mapping
from es_sbert.index.mapping import (
    DEFAULT_INDEX_TYPE,
    ChunkRules,
    IndexType,
    VectorFieldMeta,
    check_field_name,
    document_meta_field,
    has_vector_query,
    index_body,
    mapping_addition,
    merge_field_meta,
    parse_index_type,
    plain_vector_fields,
    read_vector_mapping,
    vector_fields,
    with_source,
)
from es_sbert.index.source_mode import check_can_hold_vectors
from es_sbert.index.text_template import (
    TextTemplate,
    check_name_conflicts,
    closest_name,
    format_text_options,
    format_vector_field_option,
    parse_text_options,
)
from es_sbert.messages import setting
from es_sbert.settings import IndexOptions

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder


def _other_field_remedy() -> str:
    return f"Use another {setting('vector_field')} or another index; `es-sbert index show` lists the fields."


class FieldOutcome(StrEnum):
    CREATED = "created"
    ADDED = "added"
    TEXT_SET = "text set"
    PRESENT = "present"


@dataclass(frozen=True)
class VectorField:
    """A vector field that a model can use.

    Usage:
        ```python
        print(index.field.index, index.field.name)
        ```

    Attributes:
        index: The concrete index, even if an alias was given.
        name: The field.
        meta: Its metadata in the mapping.
        outcome: Whether the index was created, the field added, the text of its vectors set, or nothing changed.
    """

    index: str
    name: str
    meta: VectorFieldMeta
    outcome: FieldOutcome = FieldOutcome.PRESENT


@dataclass(frozen=True)
class FieldRequest:
    """The vector field that a load needs.

    Attributes:
        name: The field.
        fingerprint, model_name, dimensions: The model.
        index_type: For a new field (default: hnsw; on an OpenSearch 3 index without `index.knn`: flat). For an existing
            field, it must be that of the field.
        text: Template of the text that is embedded; None to keep the field's template.
        passages: For a new field: split texts into chunks by these rules. For an existing field, they must be those of
            the field.
        documents_checked: Whether the fields of the text were found in documents. Otherwise, fields that the engine
            fills according to the mapping are refused.
    """

    name: str
    fingerprint: str
    model_name: str
    dimensions: int
    index_type: str | None = None
    text: str | None = None
    passages: ChunkRules | None = None
    documents_checked: bool = False

    def new_meta(self, engine: Engine) -> VectorFieldMeta:
        """Build the `_meta` entry of a new field.

        Raises:
            UsageError: the engine or the dimensions rule out the index type, or the field name is invalid.
        """
        check_field_name(self.name)
        index_type = self.index_type or DEFAULT_INDEX_TYPE
        return VectorFieldMeta(
            fingerprint=self.fingerprint,
            model=self.model_name,
            dimensions=self.dimensions,
            index_type=parse_index_type(index_type, engine.info, self.dimensions),
            text=self.text,
            passages=self.passages,
        )


def ensure_vector_field(
    engine: Engine,
    index: str,
    request: FieldRequest,
    *,
    create: bool = True,
    shards: int | None = None,
    replicas: int | None = None,
) -> VectorField:
    """Make sure that an index has a vector field for a model.

    A missing index is created, a missing field is added, a field of the same model is kept. The text template of a
    field is set with the field or by the first load. It may change only while no document has a vector, because vectors
    of different texts do not belong in one field.

    Args:
        index: Index, or alias of one.
        create: Whether a missing index may be created.
        shards, replicas: For a new index.

    Returns:
        The field; its `outcome` tells what was changed.

    Raises:
        IndexMissing: there is no such index, and `create` is False.
        IndexMismatch: the alias points to several indices; or the field has another model, number of dimensions,
            similarity, text, index type or chunk rules; or es-sbert does not fill it, or the OpenSearch index cannot
            take the index type.
        UsageError: the engine or the dimensions rule out the index type, or the field name is invalid.
        EngineError: the engine failed.
    """
    meta = request.new_meta(engine)
    state = engine.get_index(index)
    if state is None and not create:
        raise index_not_found(index, engine)
    if state is None:
        body = index_body(engine.info.engine_type, request.name, meta, shards=shards, replicas=replicas)
        try:
            engine.create_index(index, body)
            return VectorField(index, request.name, meta, FieldOutcome.CREATED)
        except RequestFailed:
            # Another process may have created the index in the meantime; then that index is checked.
            state = engine.get_index(index)
            if state is None:
                raise
    if shards is not None or replicas is not None:
        raise IndexMismatch(
            f"the index {state.name} already exists, so its shards and replicas cannot be chosen",
            f"Omit {setting('shards')} and {setting('replicas')}, or create an index with another name.",
        )
    planned: list[VectorField] = []

    def plan(found: IndexState) -> Json | None:
        if planned and request.name not in vector_fields(found.mappings, found.name):
            # Another machine has erased the entry that was just written.
            return {"_meta": merge_field_meta(found.mappings.get("_meta", {}), request.name, planned[-1].meta)}
        field, change = plan_field_change(engine, found, request, name=index)
        planned.append(field)
        return change

    update_mapping(engine, state, plan)
    return replace(planned[-1], outcome=planned[0].outcome)


def similar_fields(states: Iterable[IndexState]) -> dict[str, VectorField]:
    """Return the vector fields of several indices, by name. If several indices have a field, the first one counts.

    Raises:
        IndexMismatch: `_meta.es_sbert` of a mapping is damaged.
    """
    found: dict[str, VectorField] = {}
    for state in states:
        for name, meta in vector_fields(state.mappings, state.name).items():
            found.setdefault(name, VectorField(state.name, name, meta))
    return found


def plan_field_change(
    engine: Engine, state: IndexState, request: FieldRequest, *, name: str
) -> tuple[VectorField, Json | None]:
    """Plan the change of the mapping that an existing index needs; nothing is written.

    Args:
        name: The index or alias as the user gave it, for messages.

    Returns:
        The field afterwards, and the body of `PUT /index/_mapping`; None if nothing changes.

    Raises:
        IndexMismatch, UsageError: see `ensure_vector_field`.
        EngineError: the engine failed.
    """
    vector_fields(state.mappings, state.name)  # refuses entries that cannot be read
    new_meta = with_source(request.new_meta(engine), request.name, state)
    if request.name not in state.mappings.get("properties", {}):
        check_passages_kept(VectorField(state.name, request.name, new_meta))
        _check_text_fields(state, request)
        return _add_field(engine, state, request, new_meta)
    field = _check_existing_field(engine, state, request)
    check_passages_kept(field)
    stored, text = field.meta, request.text
    if text is None or text == stored.text:
        return field, None
    _check_text_fields(state, request)
    if stored.text is not None:
        engine.refresh_if_allowed(field.index)
        if engine.count(field.index, has_vector_query(field.name, field.meta)):
            raise text_mismatch(name, field, text)
    meta = stored.changed(text=text)
    body = {"_meta": merge_field_meta(state.mappings.get("_meta", {}), request.name, meta)}
    return VectorField(state.name, request.name, meta, FieldOutcome.TEXT_SET), body


def check_passages_kept(field: VectorField) -> None:
    """Refuse passages that `_source` lacks: searches could not show them, and their vectors could not be read.

    Passages are other documents to the engine, so a search for documents does not return their doc values.

    Raises:
        IndexMismatch: the field holds such passages.
    """
    if field.meta.passages is not None and not field.meta.in_source:
        raise IndexMismatch(
            f"the index {field.index} does not keep {field.name} in its _source, so its passages cannot be read back",
            f"Load the documents into an index whose `_source` keeps {field.name}, or omit {setting('passages')} "
            "there: a single vector per document is read from doc values.",
        )


def _check_text_fields(state: IndexState, request: FieldRequest) -> None:
    """Refuse a text of fields that are only in the mapping.

    Raises:
        IndexMismatch: the engine fills a field of the text from other fields, so documents do not have it.
    """
    if request.text is None or request.documents_checked:
        return
    derived = derived_fields(state.mappings)
    filled = [name for name in TextTemplate.parse(request.text).fields if name in derived]
    if filled:
        raise IndexMismatch(
            f"documents of {state.name} do not contain the text field {' and '.join(filled)}, only its mapping does",
            " ".join(derived[name].explain(name) for name in filled),
        )


def _add_field(
    engine: Engine, state: IndexState, request: FieldRequest, meta: VectorFieldMeta
) -> tuple[VectorField, Json]:
    engine_type = engine.info.engine_type
    check_can_hold_vectors(state)
    require_index_knn(engine.info, state)
    # With index.knn, OpenSearch builds a graph for every vector field; without, for none.
    possible = DEFAULT_INDEX_TYPE if state.has_setting("index.knn") else IndexType.FLAT
    if engine_type is EngineType.OPENSEARCH and (meta.index_type == IndexType.FLAT) != (possible is IndexType.FLAT):
        if request.index_type is not None:
            raise IndexMismatch(
                f"the index {state.name} was created with{'out' if possible is IndexType.FLAT else ''} index.knn, so a "
                f"vector field in it cannot have the index type {meta.index_type}",
                f"Use {setting('index_type', possible)} here, or load the documents into a new index.",
            ).about("index_type", meta.index_type)
        meta = meta.model_copy(update={"index_type": possible})
    check_meta_field_is_free(state, request.name, _other_field_remedy())
    _check_flat_mapping(engine.info, state, meta)
    body = mapping_addition(engine_type, request.name, meta, state.mappings.get("_meta", {}))
    return VectorField(state.name, request.name, meta, FieldOutcome.ADDED), body


def _check_flat_mapping(info: EngineInfo, state: IndexState, meta: VectorFieldMeta) -> None:
    """Refuse a mapping without objects in which every document would be rejected.

    Elasticsearch 8 acknowledges a nested field under `subobjects: false` but makes flat fields of its members. If the
    mapping is strict as well, it rejects every object in a document.

    Raises:
        IndexMismatch: the mapping cannot hold the field.
    """
    is_flat = state.mappings.get("subobjects", True) is False and info.version < (9, 0, 0)
    if is_flat and (meta.passages is not None or state.mappings.get("dynamic") == "strict"):
        raise IndexMismatch(
            f"the mapping of {state.name} has `subobjects: false`, with which {info.label} keeps no passages, and with "
            "`dynamic: strict` rejects the metadata of vectors",
            f"Omit {setting('passages')}, set `dynamic` to false (`PUT {state.name}/_mapping`), or use another index.",
        )


def check_meta_field_is_free(state: IndexState, vector_field: str, remedy: str) -> None:
    """Refuse a vector field whose metadata object has the name of another field.

    Raises:
        IndexMismatch: another field has that name.
    """
    meta_field = document_meta_field(vector_field)
    if "properties" not in state.mappings.get("properties", {}).get(meta_field, {"properties": {}}):
        raise IndexMismatch(
            f"the field {meta_field!r} of {state.name} conflicts with es-sbert, which stores vector metadata in an "
            "object of that name",
            remedy,
        )


def _check_existing_field(engine: Engine, state: IndexState, request: FieldRequest) -> VectorField:
    meta = mapped_field_meta(engine.info.engine_type, state, request.name)
    field = VectorField(state.name, request.name, meta)
    check_field_model(field, request.fingerprint, request.model_name)
    for kind in ("dimensions", "index_type", "passages"):
        wanted, stored = getattr(request, kind), getattr(meta, kind)
        if wanted not in (None, stored):
            raise IndexMismatch(
                f"{state.name}.{request.name} has one vector per document, not passages"
                if stored is None
                else f"the {kind.replace('_', ' ')} of {state.name}.{request.name} is {stored}, not {wanted}",
                f"This is fixed in a field: omit {setting(kind)}, or use another {setting('vector_field')} or index.",
            ).about(kind, wanted)
    return field


def read_vector_field(engine: Engine, index: str, vector_field: str) -> VectorField:
    """Read the vector field of an index, for searches.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the field does not exist, or es-sbert does not fill it.
    """
    return vector_field_from_state(engine, require_index(engine, index), vector_field)


def has_vector_field(state: IndexState, vector_field: str) -> bool:
    """Whether an index has a field of this name that es-sbert fills.

    Raises:
        IndexMismatch: `_meta.es_sbert` of the mapping is damaged.
    """
    mapped = vector_field in state.mappings.get("properties", {})
    return mapped and vector_field in vector_fields(state.mappings, state.name)


def vector_field_from_state(engine: Engine, state: IndexState, vector_field: str) -> VectorField:
    """Like `read_vector_field`, for an index that has already been read."""
    own = vector_fields(state.mappings, state.name)
    if vector_field not in state.mappings.get("properties", {}):
        others = ", ".join(own)
        plain = plain_vector_fields(engine.info.engine_type, state.mappings, state.name)
        remedy = f"Embed its documents first: `es-sbert ingest --index {state.name} --text-field FIELD`."
        if others:
            remedy = f"Set {setting('vector_field')} to one of: {others}."
        elif plain:
            remedy = (
                f"{', '.join(plain)} holds vectors that es-sbert did not make. If you know their model, check and "
                f"adopt them: {adopt_command(state.name, plain[0])}. Otherwise embed the documents: "
                f"`es-sbert ingest --index {state.name} --text-field FIELD`."
            )
        problem = f"the index {state.name} has no vector field {vector_field!r}"
        raise IndexMismatch(problem, remedy).about("vector_field", vector_field)
    meta = mapped_field_meta(engine.info.engine_type, state, vector_field)
    return VectorField(state.name, vector_field, meta)


def has_one_index_type(state: IndexState, field: VectorField) -> bool:
    """Whether all vectors of a field are stored in its index type: the type was not changed in place."""
    return vector_fields(state.mappings, state.name)[field.name].index_type == field.meta.index_type


def check_one_index_type(engine: Engine, field: VectorField) -> None:
    """Refuse to measure a mixture of index types, whose figures change with every merge.

    Raises:
        IndexMismatch: the index type of the field was changed in place.
        EngineError: the engine failed.
    """
    if not has_one_index_type(require_index(engine, field.index), field):
        raise IndexMismatch(
            f"the index type of {field.index}.{field.name} was changed to {field.meta.index_type} in place, so older "
            "documents may still be stored in an earlier type, and figures would not be those of this type",
            f"Move the documents to an index of one type: `es-sbert index migrate {field.index} --index-type "
            f"{field.meta.index_type}{format_vector_field_option(field.name)}`.",
        )


def check_field_model(field: VectorField, fingerprint: str, model_name: str) -> None:
    """Refuse a model whose vectors do not belong in the field.

    Raises:
        IndexMismatch: the field was filled by another model.
    """
    if field.meta.fingerprint != fingerprint:
        raise IndexMismatch(
            f"{field.index}.{field.name} holds vectors of the model {field.meta.model!r} "
            f"({field.meta.fingerprint[:12]}), not of {model_name!r} ({fingerprint[:12]})",
            f"Omit {setting('model')} to use the model that made them (`es-sbert model add FOLDER` registers it), "
            f"embed with {model_name!r} into another {setting('vector_field')} or index, or embed all documents again: "
            f"`es-sbert index migrate {field.index} --model MODEL`.",
        ).about("model", model_name)


def text_mismatch(name: str, field: VectorField, text: str) -> IndexMismatch:
    """Return the error for a text other than the one that a field's vectors were made from.

    Args:
        name: The index or alias as the user gave it.
        text: The other text.
    """
    return IndexMismatch(
        f"the vectors in {field.index}.{field.name} were made from the text {field.meta.text!r}, not from {text!r}",
        f"Leave out {setting('text_fields')}, {setting('text_template')} and {setting('strip_html')} to keep that "
        f"text. To embed all documents from the new text, run `es-sbert index migrate {name} "
        f"{format_text_options(field.name, text)}`: searches never see vectors of both texts.",
    ).about("text_template", text)


def mapped_field_meta(engine_type: EngineType, state: IndexState, vector_field: str) -> VectorFieldMeta:
    """Read the `_meta` entry of a mapped field and check it against the mapping; the index type is the mapping's.

    Raises:
        IndexMismatch: the field holds no vectors, es-sbert does not fill it, or es-sbert cannot search its vectors.
    """
    where, field = f"{state.name}.{vector_field}", state.mappings["properties"][vector_field]
    mapped = read_vector_mapping(engine_type, state.settings, field)
    meta = vector_fields(state.mappings, state.name).get(vector_field)
    if mapped is None or mapped.dimensions is None:
        raise IndexMismatch(
            f"the field {vector_field!r} of {state.name} is of type {field.get('type', 'object')}, not a vector field",
            _other_field_remedy(),
        ).about("vector_field", vector_field)
    if meta is None:
        raise IndexMismatch(
            f"the vectors in {where} were not made by es-sbert, so their model is not known",
            f"If you know the model, check and adopt them: {adopt_command(state.name, vector_field)}. Otherwise use "
            f"another {setting('vector_field')} or another index.",
        )
    new = "Load the documents into a new index, or copy them with their vectors to one that `es-sbert index create` "
    new += "makes for the same model and text (`POST _reindex`)."
    if mapped.problem is not None:
        raise IndexMismatch(f"{where} {mapped.problem}", new)
    if (mapped.dimensions, field.get("type") == "nested") != (meta.dimensions, meta.passages is not None):
        raise IndexMismatch(
            f"{where} is mapped with {mapped.dimensions} dimensions and the type {field['type']}, but its _meta says "
            f"{meta.dimensions} dimensions and {meta.passages or 'one vector per document'}: another program made or "
            "changed one of them",
            new,
        )
    # The type can be changed without es-sbert: Elasticsearch accepts some changes in `PUT /index/_mapping`.
    return meta.changed(index_type=str(mapped.index_type))


def adopt_command(index: str, vector_field: str) -> str:
    """The command that adopts vectors of another program, for messages."""
    return f"`es-sbert index adopt {index} --vector-field {vector_field} --model MODEL --text-field FIELD`"


def embed_command(state: IndexState, similar: Iterable[VectorField] = ()) -> str:
    """The command that embeds the documents of an index in place, for messages.

    Args:
        similar: Vector fields of other indices; the command adds the first one that the index lacks.
    """
    missing = next((field for field in similar if not has_vector_field(state, field.name)), None)
    command = ["es-sbert", "ingest", "--index", state.name]
    if missing is not None:
        meta = missing.meta
        command += ["--vector-field", missing.name, "--model", meta.model]
        command += [] if meta.text is None else ["--text-template", meta.text]
        if meta.passages is not None:
            command += ["--passages", str(meta.passages.tokens), "--passage-overlap", str(meta.passages.overlap)]
    return f"`{shlex.join(command)}`"


def require_index(engine: Engine, index: str) -> IndexState:
    """Read an index, or the one index of an alias.

    Raises:
        IndexMissing: there is no such name.
        IndexMismatch: the alias points to several indices.
        EngineError: the engine failed.
    """
    state = engine.get_index(index)
    if state is None:
        raise index_not_found(index, engine)
    return state


def index_not_found(index: str, engine: Engine) -> IndexMissing:
    """Return the error for a name that no index or alias has, with the name that was probably meant."""
    meant = did_you_mean(index, engine)
    found, new = f"there is no index {index!r}", index
    if is_index_expression(index):
        found, new = f"{index!r} does not match any index, or names one that does not exist", "NAME"
    return engine.index_missing(
        index,
        f"{found} ({engine.info.label} at {engine.info.url})",
        f"{meant}Check the name (`GET _cat/indices`, `GET _cat/aliases`), or create it: `es-sbert index create {new}`, "
        f"in Python SemanticIndex.create({new!r}, {engine.info.url!r}, text_fields=…).",
    )


def did_you_mean(expression: str, engine: Engine) -> str:
    """`Did you mean tickets? `, for an expression with a name that no index has; empty if none is similar.

    Patterns are not changed. Only names that this user may see are suggested.
    """
    given = expression.split(",")
    with suppress(EsSbertError):
        known = engine.visible_names()
        meant = [name if name in known or "*" in name else closest_name(name, known) or name for name in given]
        if meant != given:
            return f"Did you mean {','.join(meant)}? "
    return ""


def save_min_cosine(engine: Engine, field: VectorField, min_cosine: float) -> None:
    """Store a minimum cosine in `_meta`, for semantic queries through the gateway.

    Args:
        field: The field for which it was measured.

    Raises:
        IndexMissing: the index was deleted in the meantime.
        IndexMismatch: the index was replaced, or the field now has another model or text.
        EngineError: the engine failed.
    """

    def plan(found: IndexState) -> Json | None:
        meta = vector_field_from_state(engine, found, field.name).meta
        if (meta.fingerprint, meta.text) != (field.meta.fingerprint, field.meta.text):
            raise IndexMismatch(
                f"the model or the text of {field.index}.{field.name} has changed since its cosines were measured",
                "Run the command again.",
            )
        if meta.min_cosine == min_cosine:
            return None
        changed = meta.changed(min_cosine=min_cosine)
        return {"_meta": merge_field_meta(found.mappings.get("_meta", {}), field.name, changed)}

    update_mapping(engine, require_index(engine, field.index), plan)


@spell_out(IndexOptions)
def request_vector_field(
    model: str | Path | Encoder | None = None, vector_field: str = DEFAULT_VECTOR_FIELD, **options: Unpack[IndexOptions]
) -> FieldRequest:
    """Make the request for a vector field of a model and check it before an engine is contacted.

    Args:
        model: A loaded encoder, or a model's folder, bundle, hub id, installed or registered name.

    Raises:
        UsageError: the settings conflict, or passages are longer than the model reads.
        ModelError: the model cannot be found or is broken.
    """
    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.runtime.tokenizer import SentenceTokenizer

    text = parse_text_options(options.get("text_fields", ()), options.get("text_template"))
    if text is not None:
        check_name_conflicts({vector_field: text})
    if model is None or isinstance(model, str | Path):
        name = str(model or DEFAULT_MODEL)
        loaded = read_sentence_model(resolve_model(name), name)
        identity = (loaded.fingerprint, loaded.name, loaded.dimensions)
    else:
        identity = (model.info.fingerprint, model.info.model, model.info.dimensions)
    rules = ChunkRules.from_options(options.get("passages"), options.get("passage_overlap"))
    if rules is not None:
        # `make_chunker` rejects passages that are longer than the model reads.
        steps = SentenceTokenizer(loaded) if model is None or isinstance(model, str | Path) else model.pipeline
        steps.make_chunker(rules.tokens, rules.overlap, "document")
    return FieldRequest(
        vector_field,
        *identity,
        index_type=options.get("index_type"),
        text=None if text is None else text.template,
        passages=rules,
    )
