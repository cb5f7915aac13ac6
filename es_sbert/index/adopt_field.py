"""Check whether es-sbert can adopt a vector field that another program fills."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.error_mapping import killed_migration_remedy
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.index_meta import require_index_knn
from es_sbert.index.mapping import (
    VECTOR_TYPES,
    ElementType,
    IndexType,
    VectorFieldMeta,
    VectorMapping,
    check_field_name,
    mapping_addition,
    plain_vector_fields,
    read_vector_mapping,
    supported_element_types,
    vector_fields,
)
from es_sbert.index.source_mode import check_can_hold_vectors, check_source_is_whole
from es_sbert.index.text_template import DEFAULT_TEXT_FIELD, TextTemplate, format_vector_field_option
from es_sbert.index.vector_field import (
    VectorField,
    check_field_model,
    check_meta_field_is_free,
    require_index,
    text_mismatch,
    vector_field_from_state,
)

# Engine type → the similarity that es-sbert uses, and the mapping parameter that sets it.
_COSINE_BY_ENGINE = {
    EngineType.ELASTICSEARCH: ("cosine", "similarity"),
    EngineType.OPENSEARCH: ("cosinesimil", "space_type"),
}

_WRITE_BLOCKS = (
    "index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete", "index.blocks.metadata",
)  # fmt: skip


@dataclass(frozen=True)
class AdoptableField:
    """A vector field whose mapping suits es-sbert.

    Attributes:
        state: Its index.
        name: The field.
        entry: Its entry in `_meta.es_sbert`. The fingerprint is empty unless es-sbert already fills the field;
            documents without metadata can still be adopted then.
    """

    state: IndexState
    name: str
    entry: VectorFieldMeta

    @property
    def is_known(self) -> bool:
        """Whether es-sbert already fills the field."""
        return bool(self.entry.fingerprint)

    @cached_property
    def template(self) -> TextTemplate:
        """The text that its vectors are supposed to be made from."""
        return TextTemplate.parse(self.entry.text or "")

    def meta(self, fingerprint: str, model: str) -> VectorFieldMeta:
        """Return the field's metadata in the mapping once it is adopted."""
        if self.is_known:
            return self.entry
        return self.entry.model_copy(update={"fingerprint": fingerprint, "model": model})

    def check_model(self, fingerprint: str, model: str, dimensions: int) -> None:
        """Refuse a model that cannot have made the field's vectors.

        Raises:
            IndexMismatch: the dimensions differ, or es-sbert already fills the field with another model.
        """
        if dimensions != self.entry.dimensions:
            raise IndexMismatch(
                f"{self.state.name}.{self.name} holds vectors of {self.entry.dimensions} dimensions, but the model "
                f"{model!r} makes {dimensions}",
                "Set `model` to the model that made the vectors.",
            )
        if self.is_known:
            check_field_model(VectorField(self.state.name, self.name, self.entry), fingerprint, model)

    def mapping_change(self, info: EngineInfo, meta: VectorFieldMeta, existing_meta: Json) -> Json:
        """Build the body of `PUT /index/_mapping` that adds es-sbert's metadata; the field's mapping stays unchanged.

        Args:
            existing_meta: The current `_meta` of the mapping.
        """
        body = mapping_addition(info.engine_type, self.name, meta, existing_meta)
        del body["properties"][self.name]
        return body


def read_adoptable_field(engine: Engine, index: str, vector_field: str, text: TextTemplate | None) -> AdoptableField:
    """Read the mapping of a vector field and check that the field can be adopted.

    Args:
        index: Index, or alias of one.
        text: The text that its vectors were made from; None for the text in `_meta`, or else the field `text`.

    Raises:
        IndexMissing: there is no such index.
        IndexMismatch: the alias points to several indices, the field does not exist, it does not hold vectors that
            es-sbert can search, or es-sbert fills it from another text.
        VectorIndexError: documents of the index cannot be updated.
        UsageError: the field name is invalid.
        EngineError: the engine failed.
    """
    state = require_index(engine, index)
    template = (text or TextTemplate.from_fields([DEFAULT_TEXT_FIELD])).template
    if vector_field not in vector_fields(state.mappings, state.name):
        return adoptable_field(engine.info, state, vector_field, template)
    _check_takes_updates(state)
    field = vector_field_from_state(engine, state, vector_field)
    if field.meta.passages is not None:
        raise _several_vectors_error(state, vector_field)
    if text is not None and field.meta.text not in (None, text.template):
        raise text_mismatch(index, field, text.template)
    return AdoptableField(state, vector_field, field.meta.changed(text=field.meta.text or template))


def adoptable_field(info: EngineInfo, state: IndexState, vector_field: str, template: str) -> AdoptableField:
    """Like `read_adoptable_field`, for an index that was already read and a field that es-sbert does not fill."""
    mapped = _vector_mapping(info, state, vector_field)
    _check_takes_updates(state)
    if mapped.dimensions is None:
        raise IndexMismatch(
            f"the mapping of {state.name}.{vector_field} does not set the number of dimensions",
            f"Embed the documents into another field: `es-sbert ingest --index {state.name} --vector-field OTHER`.",
        )
    require_index_knn(info, state, _copy_remedy(vector_field))
    problem = _mapping_problem(info, state.mappings["properties"][vector_field], mapped)
    if problem is not None:
        raise IndexMismatch(f"{state.name}.{vector_field} {problem}", _copy_remedy(vector_field))
    rename = "with a `script` that renames the conflicting field"
    check_meta_field_is_free(state, vector_field, _copy_remedy(vector_field, rename))
    entry = VectorFieldMeta(
        fingerprint="",
        model="",
        dimensions=mapped.dimensions,
        index_type=mapped.index_type,
        element_type=ElementType(mapped.element_type),
        text=template,
    )
    return AdoptableField(state, vector_field, entry)


def _check_takes_updates(state: IndexState) -> None:
    """Refuse an index whose documents cannot be updated or would lose fields in an update."""
    check_can_hold_vectors(state)
    check_source_is_whole(state)
    # Some blocks let the mapping be changed, which would then declare vectors that no document has metadata of.
    block = next((name for name in _WRITE_BLOCKS if state.has_setting(name)), None)
    if block is not None:
        raise IndexMismatch(
            f"{state.name} has the block {block}, so metadata cannot be added to its documents",
            (f"{killed_migration_remedy(state.name)} " if block == _WRITE_BLOCKS[0] else "")
            + f'Remove a block that was set by hand: `PUT {state.name}/_settings {{"{block}": null}}`.',
        )


def _copy_remedy(vector_field: str, how: str = "which copies their vectors too") -> str:
    """Return the remedy if the vectors cannot be adopted in their current field or index."""
    create = f"es-sbert index create NEW --model MODEL --text-field FIELD{format_vector_field_option(vector_field)}"
    return (
        f"Create a suitable index (`{create}`), copy the documents there (`POST _reindex`, {how}), and run "
        "`es-sbert index adopt NEW` with the same options."
    )


def _vector_mapping(info: EngineInfo, state: IndexState, vector_field: str) -> VectorMapping:
    """Return the mapping of the field.

    Raises:
        IndexMismatch: the field does not exist, is inside an object, or does not hold one vector per document.
        UsageError: the field name is invalid.
    """
    properties: Json = state.mappings.get("properties", {})
    if "." in vector_field and vector_field.partition(".")[0] in properties:
        raise IndexMismatch(
            f"{vector_field} of {state.name} is inside an object, but es-sbert searches top-level fields only",
            _copy_remedy("embedding", "with a `script` that moves each vector to the new field"),
        )
    check_field_name(vector_field)
    property: Json | None = properties.get(vector_field)
    if property is None:
        others = plain_vector_fields(info.engine_type, state.mappings, state.name)
        raise IndexMismatch(
            f"the index {state.name} has no field {vector_field!r}",
            f"Set `vector_field` to one of: {', '.join(others)}."
            if others
            else "The index has no vectors to adopt. Embed its documents: "
            f"`es-sbert ingest --index {state.name} --text-field FIELD`.",
        )
    if property.get("type") == "nested":
        raise _several_vectors_error(state, vector_field)
    mapped = read_vector_mapping(info.engine_type, state.settings, property)
    if mapped is None:
        raise IndexMismatch(
            f"the field {vector_field!r} of {state.name} is of type {property.get('type', 'object')}, not "
            f"{VECTOR_TYPES[info.engine_type]}",
            "Set `vector_field` to the field that holds the vectors.",
        )
    return mapped


def _several_vectors_error(state: IndexState, vector_field: str) -> IndexMismatch:
    return IndexMismatch(
        f"{state.name}.{vector_field} holds several vectors per document, and it is not known which part of the text "
        "each was made from",
        "Embed the documents into another field: "
        f"`es-sbert ingest --index {state.name} --vector-field OTHER --passages 256 --text-field FIELD`.",
    )


def _mapping_problem(info: EngineInfo, property: Json, mapped: VectorMapping) -> str | None:
    """Return the reason why es-sbert cannot search a field's vectors, as the end of a sentence; None if it can."""
    if property.get("index", True) is False:
        return "is mapped with `index: false`, so kNN searches cannot find its vectors"
    supported = supported_element_types(info)
    if mapped.element_type not in list(supported):
        return f"holds vectors of {mapped.element_type}, but es-sbert writes {' or '.join(supported)}"
    wanted, parameter = _COSINE_BY_ENGINE[info.engine_type]
    if mapped.similarity != wanted:
        return f"compares vectors by {mapped.similarity}, but es-sbert by their cosine (`{parameter}: {wanted}`)"
    if not isinstance(mapped.index_type, IndexType):
        return f"has the index type {mapped.index_type}, which es-sbert cannot search"
    return None
