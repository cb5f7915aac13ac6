"""Mappings of indices with vector fields: index types, the field's `_meta` entry, and queries for vectors.

| index type | what it is | supported by |
|---|---|---|
| `hnsw` | graph over float32 vectors; the default: approximate search, exact scores | both |
| `int8_hnsw` | graph over vectors quantized to one byte per dimension | both (OpenSearch: Lucene's 7-bit `sq`) |
| `int4_hnsw`, `bbq_hnsw` | graph over half a byte, over one bit per dimension | Elasticsearch |
| `flat` | no graph: every search compares all vectors, so results are exact | both (OpenSearch: from 3.0) |
| `int8_flat`, `int4_flat`, `bbq_flat` | quantized, no graph | Elasticsearch |
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState, SettingValue
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.source_mode import NameForm, is_in_source
from es_sbert.mappings import read_body
from es_sbert.messages import setting

META_KEY = "es_sbert"


class ChunkRules(BaseModel):
    """Rules for splitting long texts into passages, each with its own vector.

    Usage:
        ```python
        passages = index.field.meta.passages
        print("one vector per document" if passages is None else passages.tokens)
        ```

    Attributes:
        tokens: Maximum number of tokens of a passage as the model reads it, prompt and special tokens included.
        overlap: Maximum number of tokens at the end of a passage that are repeated at the beginning of the next one.
    """

    model_config = ConfigDict(frozen=True)

    tokens: int = Field(ge=1)
    overlap: int = Field(ge=0)

    @classmethod
    def from_tokens(cls, tokens: int, overlap: int | None = None) -> ChunkRules:
        """Create rules; the default overlap is an eighth, enough for a sentence that both neighboring passages need."""
        return cls(tokens=tokens, overlap=tokens // 8 if overlap is None else overlap)

    @classmethod
    def from_options(cls, tokens: int | None, overlap: int | None) -> ChunkRules | None:
        """Create the rules that options give; None without any.

        Raises:
            UsageError: there is an overlap without passages.
        """
        if tokens is not None:
            return cls.from_tokens(tokens, overlap)
        if overlap is not None:
            raise UsageError(
                f"{setting('passage_overlap')} requires {setting('passages')}", f"Add {setting('passages', 'TOKENS')}."
            ).about("passage_overlap", overlap)
        return None

    def __str__(self) -> str:
        return f"passages of {self.tokens} tokens, {self.overlap} of them shared"


class VectorFieldMeta(BaseModel):
    """`_meta.es_sbert.fields.<vector field>`: which model fills the field, and from what text.

    Usage:
        ```python
        meta = index.field.meta
        print(meta.model, meta.dimensions, meta.index_type, meta.text)
        ```

    Attributes:
        fingerprint: Fingerprint of the model; ingest and search refuse any other.
        model: The model's name, to load it by default.
        dimensions: Length of a vector.
        similarity: Always `cosine`.
        index_type: `hnsw`, `int8_hnsw`, `flat`, ….
        text: Template of the text that is embedded, e.g. `{title}. {body}`, or None before the first load.
        passages: Rules for splitting texts; None if a document has one vector, made from the part of its text that the
            model reads.
        min_cosine: Minimum cosine of hybrid searches and of semantic queries through the gateway, as measured by
            `es-sbert index calibrate --save` for this model and text; None for no minimum.
        in_source: Whether `_source` of the index keeps the vectors, and with passages their offsets. Read from the
            mapping, not part of the entry.
        name_form: The form of names in `_source` of the index, which a partial update must use too. Known only to the
            gateway's writes, not part of the entry.
        problem: Why the field cannot be searched as it is mapped, and the remedy; None if it can. Known only to the
            gateway, not part of the entry.
    """

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    model: str
    dimensions: int
    similarity: str = "cosine"
    index_type: str
    text: str | None = None
    passages: ChunkRules | None = None
    min_cosine: float | None = Field(default=None, ge=-1.0, le=1.0)
    in_source: bool = Field(default=True, exclude=True)
    name_form: NameForm = Field(default=NameForm.AS_SENT, exclude=True)
    problem: tuple[str, str] | None = Field(default=None, exclude=True)

    def changed(self, **changes: Any) -> VectorFieldMeta:
        """Copy this entry with other values; the minimum cosine is dropped if the model or the text changes."""
        new = self.model_copy(update=changes)
        if (new.fingerprint, new.text) == (self.fingerprint, self.text):
            return new
        return new.model_copy(update={"min_cosine": None})


def with_meta_entry(meta: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """Return a mapping's `_meta` with `_meta.es_sbert.<name>` set, or without it if the value is None.

    A mapping update replaces `_meta` as a whole, so all other entries are kept. `_meta.es_sbert` is removed with its
    last entry.
    """
    ours = {key: kept for key, kept in meta.get(META_KEY, {}).items() if key != name}
    if value is None and not ours:
        return {key: kept for key, kept in meta.items() if key != META_KEY}
    return meta | {META_KEY: ours if value is None else ours | {name: value}}


def read_meta_entry(mappings: dict[str, Any], name: str) -> Any:
    """`_meta.es_sbert.<name>` of a mapping; None if there is none."""
    ours = mappings.get("_meta", {}).get(META_KEY, {})
    return ours.get(name) if isinstance(ours, dict) else None


def document_meta_field(vector_field: str) -> str:
    """Name of the metadata object next to a vector (`embedding` → `embedding_meta`)."""
    return f"{vector_field}_meta"


class IndexType(StrEnum):
    HNSW = "hnsw"
    INT8_HNSW = "int8_hnsw"
    INT4_HNSW = "int4_hnsw"
    BBQ_HNSW = "bbq_hnsw"
    FLAT = "flat"
    INT8_FLAT = "int8_flat"
    INT4_FLAT = "int4_flat"
    BBQ_FLAT = "bbq_flat"


# Elasticsearch can change hnsw to a quantized type in place, but not back, so the default is the type without loss.
DEFAULT_INDEX_TYPE = IndexType.HNSW

# Candidates to rescore by their float32 vectors, as a multiple of k. The coarser the numbers that the search compares,
# the more of the true neighbors rank just below its first k. Types that are not listed compare float32 vectors anyway.
OVERSAMPLE = {
    IndexType.INT8_HNSW: 1.5,
    IndexType.INT8_FLAT: 1.5,
    IndexType.INT4_HNSW: 2.0,
    IndexType.INT4_FLAT: 2.0,
    IndexType.BBQ_HNSW: 3.0,
    IndexType.BBQ_FLAT: 3.0,
}

OPENSEARCH_TYPES = (IndexType.HNSW, IndexType.INT8_HNSW, IndexType.FLAT)
OPENSEARCH_2_TYPES = (IndexType.HNSW, IndexType.INT8_HNSW)
MAX_DIMENSIONS = {EngineType.ELASTICSEARCH: 4096, EngineType.OPENSEARCH: 16_000}
BBQ_MIN_DIMENSIONS = 64


def supported_index_types(info: EngineInfo) -> tuple[IndexType, ...]:
    """The index types that the engine supports without failing shards."""
    if info.engine_type is EngineType.ELASTICSEARCH:
        return tuple(IndexType)
    return OPENSEARCH_2_TYPES if info.needs_index_knn else OPENSEARCH_TYPES


def parse_index_type(text: str, info: EngineInfo, dimensions: int) -> IndexType:
    """Parse the name of an index type that the engine supports for vectors of this length.

    Raises:
        UsageError: the type does not work with this engine or number of dimensions.
    """
    supported, most = supported_index_types(info), MAX_DIMENSIONS[info.engine_type]
    problem, remedy = None, f"Use one of {', '.join(supported)}."
    if text not in list(supported):
        problem = f"{info.label} does not support the index type {text}"
    elif dimensions > most:
        problem = f"{info.label} takes vectors of up to {most} dimensions, but the model has {dimensions}"
        remedy = "Use a model with shorter vectors."
    elif text.startswith("int4") and dimensions % 2:
        problem = f"{text} packs two dimensions into a byte, but the model has {dimensions}, an odd number"
    elif text.startswith("bbq") and dimensions < BBQ_MIN_DIMENSIONS:
        problem = f"{text} needs at least {BBQ_MIN_DIMENSIONS} dimensions, but the model has {dimensions}"
    if problem is not None:
        raise UsageError(problem, remedy).about("index_type", text)
    return IndexType(text)


# Names inside the nested object of a passage. Offsets are in characters of the document's text; the end is exclusive.
CHUNK_VECTOR = "vector"
CHUNK_START = "start"
CHUNK_END = "end"


def vector_path(field: str, meta: VectorFieldMeta) -> str:
    """Full name of the field that holds the vectors."""
    return field if meta.passages is None else f"{field}.{CHUNK_VECTOR}"


def chunk_inner_hits(field: str, name: str) -> Json:
    """`inner_hits` of a search, for the best passage of each document.

    Args:
        name: Name of the inner hits, unique in the request.
    """
    return {"name": name, "size": 1, "_source": {"includes": [f"{field}.{CHUNK_START}", f"{field}.{CHUNK_END}"]}}


def has_vector_query(field: str, meta: VectorFieldMeta, name: str | None = None) -> Json:
    """Build a query for the documents that have a vector in this field.

    Args:
        name: Name of the query in a hit's `matched_queries`.
    """
    named = {} if name is None else {"_name": name}
    if meta.passages is None:
        return {"exists": {"field": field, **named}}
    inner: Json = {"exists": {"field": vector_path(field, meta)}}
    # Like `exists`, match no document of an index without the field: the search may be of several indices.
    return {"nested": {"path": field, "query": inner, "ignore_unmapped": True, **named}}


def and_query(first: Json, *others: Json | None) -> Json:
    """Build a query for the documents that match all queries; None matches all documents."""
    given = [first, *(query for query in others if query is not None)]
    return first if len(given) == 1 else {"bool": {"filter": given}}


def random_order_query(query: Json | None, seed: int) -> Json:
    """Build a query for the same documents in an order that depends only on the seed while the index is unchanged.

    Args:
        query: None for all documents.
    """
    score: Json = {"random_score": {"seed": seed, "field": "_seq_no"}, "boost_mode": "replace"}
    return {"function_score": score if query is None else {"query": query, **score}}


def named_vectors_query(fields: Iterable[tuple[str, VectorFieldMeta]]) -> Json:
    """Build a query for all documents; `matched_queries` of a hit holds the numbers of the fields with a vector."""
    should = [has_vector_query(field, meta, str(number)) for number, (field, meta) in enumerate(fields)]
    return {"bool": {"must": [{"match_all": {}}], "should": should}}


def chunks_property(vector: Json) -> Json:
    """Build the mapping of a field of passages, around the mapping of one vector."""
    # Offsets are not indexed: they are only read from `_source`.
    offset: Json = {"type": "integer", "index": False, "doc_values": False}
    properties = {CHUNK_VECTOR: vector, CHUNK_START: offset, CHUNK_END: dict(offset)}
    return {"type": "nested", "properties": properties}


def vector_property(field: Json) -> Json:
    """Return the mapping of the vector, in the field itself or in its chunks: the inverse of `chunks_property`."""
    if field.get("type") != "nested":
        return field
    inner: Json = field.get("properties", {}).get(CHUNK_VECTOR, {})
    return inner


# The engines' defaults today, of which recall depends as much as on the index type.
GRAPH_PARAMETERS = {"m": 16, "ef_construction": 100}
VECTOR_TYPES = {EngineType.ELASTICSEARCH: "dense_vector", EngineType.OPENSEARCH: "knn_vector"}
# The names that the engines give to the cosine in a mapping.
COSINE_SIMILARITIES = ("cosine", "cosinesimil")
_PLACEHOLDER = "{vector_field}"


def index_body(
    engine_type: EngineType,
    vector_field: str,
    meta: VectorFieldMeta,
    *,
    shards: int | None = None,
    replicas: int | None = None,
) -> Json:
    """Build the body of `PUT /index` for an index with this vector field.

    Args:
        shards, replicas: None for the engine's defaults.
    """
    body = copy.deepcopy(read_body(f"{engine_type}/index"))
    settings: Json = body["settings"]
    if engine_type is EngineType.OPENSEARCH and meta.index_type == IndexType.FLAT:
        # With index.knn on, OpenSearch builds a graph for every vector field.
        settings["index.knn"] = False
    if shards is not None:
        settings["index.number_of_shards"] = shards
    if replicas is not None:
        settings["index.number_of_replicas"] = replicas
    mappings: Json = body["mappings"]
    mappings |= mapping_addition(engine_type, vector_field, meta, mappings["_meta"])
    return body


def mapping_addition(engine_type: EngineType, vector_field: str, meta: VectorFieldMeta, existing_meta: Json) -> Json:
    """Build the body of `PUT /index/_mapping` that adds a vector field, its metadata object and its `_meta` entry."""
    properties = read_body(f"{engine_type}/index")["mappings"]["properties"]
    return {
        "_meta": merge_field_meta(existing_meta, vector_field, meta),
        "properties": {
            vector_field: _field_property(engine_type, properties[_PLACEHOLDER], meta),
            document_meta_field(vector_field): copy.deepcopy(properties[document_meta_field(_PLACEHOLDER)]),
        },
    }


def _field_property(engine_type: EngineType, template: Json, meta: VectorFieldMeta) -> Json:
    vector = copy.deepcopy(template)
    if engine_type is EngineType.ELASTICSEARCH:
        vector["dims"] = meta.dimensions
        vector["index_options"] = {"type": meta.index_type}
    else:
        vector["dimension"] = meta.dimensions
        if meta.index_type == IndexType.FLAT:
            del vector["method"], vector["compression_level"]
            vector["space_type"] = "cosinesimil"
        elif meta.index_type == IndexType.INT8_HNSW:
            del vector["compression_level"]  # that of the encoder
            vector["method"]["parameters"]["encoder"] = {"name": "sq", "parameters": {"bits": 7}}
    if "hnsw" in meta.index_type:
        graph_options(vector).update(GRAPH_PARAMETERS)
    return vector if meta.passages is None else chunks_property(vector)


def graph_options(field: Json) -> Json:
    """Return the object of a vector field's mapping that holds `m` and `ef_construction`; empty if it has no such."""
    vector = vector_property(field)
    options: Json = vector.get("index_options") or (vector.get("method") or {}).get("parameters", {})
    return options


def sparser_graph(field: Json) -> str | None:
    """Describe a graph of fewer links than es-sbert's, with which searches miss more neighbors; None for any other.

    A value that OpenSearch's mapping does not state is at least es-sbert's in all versions up to 3.9.
    """
    found = graph_options(field)
    fewer = [
        f"`{name}` {found[name]} instead of {usual}"
        for name, usual in GRAPH_PARAMETERS.items()
        if found.get(name, usual) < usual
    ]
    return " and ".join(fewer) or None


def merge_field_meta(existing_meta: Json, vector_field: str, meta: VectorFieldMeta) -> Json:
    """Return a mapping's `_meta` with this field's entry set.

    An update replaces `_meta` as a whole, so all other entries are kept. An entry keeps the index type that the field
    was created with: another program may have changed that of the mapping in place, for new vectors only.
    """
    ours = existing_meta.get(META_KEY, {})
    fields = ours.get("fields", {})
    # Defaults are left out, so that the entries of earlier versions do not change.
    unset = {name for name in ("passages", "min_cosine") if getattr(meta, name) is None}
    entry = meta.model_dump(mode="json", exclude=unset)
    entry["index_type"] = fields.get(vector_field, entry)["index_type"]
    return existing_meta | {META_KEY: ours | {"fields": fields | {vector_field: entry}}}


def vector_fields(mappings: Json, index: str) -> dict[str, VectorFieldMeta]:
    """Vector fields that es-sbert fills, by name.

    Raises:
        IndexMismatch: an entry of `_meta.es_sbert` was damaged by hand.
    """
    try:
        entries = mappings.get("_meta", {}).get(META_KEY, {}).get("fields", {})
        metas = {name: VectorFieldMeta.model_validate(entry) for name, entry in entries.items()}
    except (ValidationError, AttributeError) as error:
        raise IndexMismatch(
            f"_meta.{META_KEY} in the mapping of {index} cannot be read", "Load the documents into a new index."
        ) from error
    return {name: with_source(meta, name, IndexState(index, mappings, {})) for name, meta in metas.items()}


def with_source(meta: VectorFieldMeta, vector_field: str, state: IndexState) -> VectorFieldMeta:
    """Return the metadata of a field with `in_source` as the index has it."""
    chunk = (CHUNK_VECTOR, CHUNK_START, CHUNK_END)
    names = [vector_field] if meta.passages is None else [f"{vector_field}.{name}" for name in chunk]
    return meta.model_copy(update={"in_source": all(is_in_source(name, state) for name in names)})


def plain_vector_fields(engine_type: EngineType, mappings: Json, index: str) -> list[str]:
    """Top-level vector fields that other programs fill with one vector per document.

    Raises:
        IndexMismatch: `_meta.es_sbert` was damaged by hand.
    """
    own = vector_fields(mappings, index)
    properties = mappings.get("properties", {})
    return [
        name for name, field in properties.items() if name not in own and field.get("type") == VECTOR_TYPES[engine_type]
    ]


class VectorMapping(NamedTuple):
    """The mapping of vectors, as the engine names its values.

    Attributes:
        dimensions: Length of a vector; None if the mapping does not say.
        index_type: The index type, or the description of a type that es-sbert does not search.
    """

    dimensions: int | None
    similarity: str
    element_type: str
    index_type: IndexType | str

    @property
    def problem(self) -> str | None:
        """Why es-sbert cannot search the vectors, as the end of a sentence; None if it can."""
        if self.element_type != "float":
            return f"holds vectors of {self.element_type}, but es-sbert writes float"
        if self.similarity not in COSINE_SIMILARITIES:
            return f"compares vectors by {self.similarity}, but es-sbert by their cosine"
        if not isinstance(self.index_type, IndexType):
            return f"has the index type {self.index_type}, which es-sbert cannot search"
        return None


def read_vector_mapping(
    engine_type: EngineType, settings: Mapping[str, SettingValue], field: Json
) -> VectorMapping | None:
    """Read the mapping of a vector field, of one vector or of passages; None if it is another field.

    Args:
        settings: Flat settings of the index.
    """
    field = vector_property(field)
    if field.get("type") != VECTOR_TYPES[engine_type]:
        return None
    if engine_type is EngineType.ELASTICSEARCH:
        # Elasticsearch returns the type that it chose. Without one, it is hnsw: for bytes, with `index_options: null`,
        # and in indices older than 8.14.
        name = str((field.get("index_options") or {}).get("type", IndexType.HNSW))
        index_type = IndexType(name) if name in list(IndexType) else name
        similarity = "nothing (`index: false`)" if field.get("index") is False else field.get("similarity", "none")
        return VectorMapping(field.get("dims"), similarity, field.get("element_type", "float"), index_type)
    similarity = (field.get("method") or {}).get("space_type") or field.get("space_type") or "l2"
    # OpenSearch returns the type in capitals.
    element_type = field.get("data_type", "float").lower()
    return VectorMapping(field.get("dimension"), similarity, element_type, _opensearch_index_type(settings, field))


# `index.version.created` of the first version after 3.9, which still made float32 graphs by default.
_OPENSEARCH_3_10 = (1 << 27) + 3_10_00_00


def _opensearch_index_type(settings: Mapping[str, SettingValue], field: Json) -> IndexType | str:
    if settings.get("index.knn") != "true":
        return IndexType.FLAT
    method = field.get("method")
    # An ordinary graph of float32 vectors has these two values.
    is_compressed = field.get("mode", "in_memory") != "in_memory" or field.get("compression_level", "1x") != "1x"
    if method is None or is_compressed:
        return "chosen by the engine (a mapping without `method`, or with `mode` or `compression_level`)"
    kind = f"{method.get('name')} of {method.get('engine')}"
    encoder = method.get("parameters", {}).get("encoder", {"name": "flat"})
    if kind == "hnsw of lucene" and encoder.get("name") == "flat":
        # Indices of future versions have one bit by default (opensearch-project/k-NN#3290).
        is_known = "compression_level" in field or int(str(settings.get("index.version.created", 0))) < _OPENSEARCH_3_10
        return IndexType.HNSW if is_known else f"{kind}, whose `compression_level` the mapping does not state"
    # Before 3.6, seven bits are the default and the only choice. One bit, new in 3.6, cannot be searched: it crashes a
    # node of 3.6.0.
    bits = encoder.get("parameters", {}).get("bits", 7 if kind == "hnsw of lucene" else None)
    if kind == "hnsw of lucene" and (encoder.get("name"), bits) == ("sq", 7):
        return IndexType.INT8_HNSW
    of_bits = "" if bits is None else f" of {bits} {'bit' if bits == 1 else 'bits'}"
    return kind if encoder.get("name") == "flat" else f"{kind} with the encoder {encoder.get('name')}{of_bits}"


def check_field_name(vector_field: str) -> None:
    """Refuse names that the engines read as paths, patterns or their own fields.

    Raises:
        UsageError: the name is empty, starts with an underscore, or has such a character.
    """
    if not vector_field or vector_field[0] == "_" or any(c in vector_field for c in ".*?,{}'\"\\ \t\n"):
        raise UsageError(
            f"{vector_field!r} cannot be the name of a vector field",
            "Use letters, digits and underscores, and do not start with an underscore.",
        ).about("vector_field", vector_field)


def exists_query(field: str, properties: Mapping[str, Any]) -> Json:
    """Build a query for documents that have a value in a field, which may be in nested objects.

    Args:
        field: Dotted name.
        properties: `properties` of the mapping.
    """
    query: Json = {"exists": {"field": field}}
    path: list[str] = []
    nested: list[str] = []
    for name in field.split("."):
        path.append(name)
        mapped = properties.get(name, {})
        if mapped.get("type") == "nested":
            nested.append(".".join(path))
        properties = mapped.get("properties", {})
    for outer in reversed(nested):
        query = {"nested": {"path": outer, "query": query}}
    return query
