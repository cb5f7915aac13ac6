"""Adopt the vectors of a known model without embedding the documents again (`es-sbert index adopt`).

The mapping shows whether es-sbert can search the field. A sample of the vectors is compared with the model. If it
passes, the mapping gets the field's metadata. Each document gets the metadata of its vector by a partial update that
changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from statistics import median
from typing import Any, NamedTuple, Unpack, cast

import numpy as np

from es_sbert import clock
from es_sbert.arguments import check_arguments, spell_out, with_defaults
from es_sbert.batched import batched
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder, ModelOptions, chosen_encoder, report_warnings
from es_sbert.engines.bulk_request import BulkOutcome
from es_sbert.engines.connect import EngineOrClient, connected
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.error_mapping import killed_migration_remedy
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryingEngine, RetryPolicy, make_retrier
from es_sbert.errors import IndexMismatch
from es_sbert.index.derived_fields import derived_fields
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import (
    UNKNOWN_FINGERPRINT,
    DocumentMeta,
    hit_vectors,
    row_cosines,
    text_hash,
)
from es_sbert.index.index_meta import require_index_knn, update_mapping
from es_sbert.index.mapping import (
    VECTOR_TYPES,
    VectorFieldMeta,
    check_field_name,
    document_meta_field,
    mapping_addition,
    plain_vector_fields,
    read_vector_mapping,
    vector_fields,
)
from es_sbert.index.privileges import ADOPT, SEARCH, require_all_visible, require_privileges
from es_sbert.index.source_mode import check_can_hold_vectors, check_source_is_whole
from es_sbert.index.text_template import (
    DEFAULT_TEXT_FIELD,
    TextTemplate,
    check_name_conflicts,
    fields_hint,
    format_vector_field_option,
    mapping_field_names,
    parse_text_options,
)
from es_sbert.index.vector_field import (
    VectorField,
    check_field_model,
    check_meta_field_is_free,
    require_index,
    text_mismatch,
    vector_field_from_state,
)
from es_sbert.index.versioned_updates import BulkWrite, VersionedUpdates
from es_sbert.index.whole_documents import read_inexact, write_lines
from es_sbert.messages import escape_unprintable, pluralize, setting
from es_sbert.settings import AdoptionOptions, RetryOptions, VectorFieldName

# Number of documents to read in one request.
PAGE = 500
# Share of the sample that must have a vector of the model.
REQUIRED_SHARE = 0.99
# Maximum number of documents that are shown.
_MAX_SHOWN = 10
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

    def meta(self, fingerprint: str, model: str, dimensions: int) -> VectorFieldMeta:
        """Return the field's metadata in the mapping once it is adopted.

        Raises:
            IndexMismatch: the model cannot have made the field's vectors: the dimensions differ, or es-sbert already
                fills the field with another model.
        """
        if dimensions != self.entry.dimensions:
            raise IndexMismatch(
                f"{self.state.name}.{self.name} holds vectors of {self.entry.dimensions} dimensions, but the model "
                f"{model!r} makes {dimensions}",
                f"Set {setting('model')} to the model that made the vectors.",
            ).about("model", model)
        if not self.is_known:
            return self.entry.model_copy(update={"fingerprint": fingerprint, "model": model})
        check_field_model(VectorField(self.state.name, self.name, self.entry), fingerprint, model)
        return self.entry


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
    known = vector_field_from_state(engine, state, vector_field)
    if known.meta.passages is not None:
        raise _several_vectors(state.name, vector_field)
    if text is not None and known.meta.text not in (None, text.template):
        raise text_mismatch(index, known, text.template)
    return AdoptableField(state, vector_field, known.meta.changed(text=known.meta.text or template))


def adoptable_field(info: EngineInfo, state: IndexState, vector_field: str, template: str) -> AdoptableField:
    """Like `read_adoptable_field`, for an index that was already read and a field that es-sbert does not fill."""
    check_field_name(vector_field)
    mapping: Json | None = state.mappings.get("properties", {}).get(vector_field)
    if mapping is None:
        others = plain_vector_fields(info.engine_type, state.mappings, state.name)
        raise IndexMismatch(
            f"the index {state.name} has no field {vector_field!r}",
            f"Set {setting('vector_field')} to one of: {', '.join(others)}."
            if others
            else "The index has no vectors to adopt. Embed its documents: "
            f"`es-sbert ingest --index {state.name} --text-field FIELD`.",
        ).about("vector_field", vector_field)
    mapped = read_vector_mapping(info.engine_type, state.settings, mapping)
    if mapped is not None and mapping.get("type") == "nested":
        raise _several_vectors(state.name, vector_field)
    if mapped is None:
        raise IndexMismatch(
            f"the field {vector_field!r} of {state.name} is of type {mapping.get('type', 'object')}, not "
            f"{VECTOR_TYPES[info.engine_type]}",
            f"Set {setting('vector_field')} to the field that holds the vectors.",
        ).about("vector_field", vector_field)
    _check_takes_updates(state)
    require_index_knn(info, state, _copy_remedy(vector_field))
    problem = mapped.problem
    if problem is not None or mapped.dimensions is None:
        problem = problem or "is mapped without its number of dimensions"
        remedy = _copy_remedy(vector_field)
        raise IndexMismatch(f"{state.name}.{vector_field} {problem}", remedy).about("vector_field", vector_field)
    rename = "with a `script` that renames the conflicting field"
    check_meta_field_is_free(state, vector_field, _copy_remedy(vector_field, rename))
    entry = VectorFieldMeta(
        fingerprint="",
        model="",
        dimensions=mapped.dimensions,
        index_type=mapped.index_type,
        text=template,
    )
    return AdoptableField(state, vector_field, entry)


def _several_vectors(index: str, vector_field: str) -> IndexMismatch:
    return IndexMismatch(
        f"{index}.{vector_field} holds several vectors per document, and it is not known which part of the text each "
        "was made from",
        "Embed the documents into another field: "
        f"`es-sbert ingest --index {index} --vector-field OTHER --passages 256 --text-field FIELD`.",
    )


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
        f"`es-sbert index adopt NEW` with the same options."
    )


class ComparedDocument(NamedTuple):
    """A document whose vector was compared.

    Attributes:
        key: Its id and routing.
        cosine: Cosine of the stored vector and the model's; 0 if one of them is zero or not finite.
        is_truncated: Whether its text is longer than the model reads.
    """

    key: DocumentKey
    cosine: float
    is_truncated: bool

    def as_json(self) -> Json:
        document_id, routing = self.key
        named: Json = {"id": document_id} if routing is None else {"id": document_id, "routing": routing}
        return named | {"cosine": round(self.cosine, 6), "truncated": self.is_truncated}


@dataclass
class MetadataCounts:
    """Results for the documents that had a vector but no metadata.

    Usage:
        ```python
        written = adopt_vectors("docs", "http://localhost:9200", model="my-model").written
        if written is not None:
            print(written.adopted, written.refused)
        ```

    Attributes:
        adopted: Documents whose metadata now names the model.
        without_text: Documents without a text, or with a value other than a string in it.
        changed: Ids of documents that were written after they were read and still have no metadata.
        refused: Id → the engine's reason for rejecting the update.
    """

    adopted: int = 0
    without_text: int = 0
    changed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass
class AdoptionReport:
    """The results of an adoption.

    Usage:
        ```python
        report = adopt_vectors("docs", "http://localhost:9200", model="my-model", dry_run=True)
        print(report.is_accepted, report.without_metadata)
        ```

    Attributes:
        index, field: The index and the vector field.
        meta: The field's metadata for the mapping.
        documents: Documents of the index.
        with_vector: Documents with a vector.
        without_metadata: Documents with a vector but no metadata: those to adopt.
        min_cosine: Lowest cosine at which a vector counts as the model's.
        compared: The compared documents of the sample, at least one, the most distant first.
        without_text: Sampled documents without a text, or with a value other than a string in it.
        written: Results for the documents; None if nothing was written.
    """

    index: str
    field: str
    meta: VectorFieldMeta
    documents: int
    with_vector: int
    without_metadata: int
    min_cosine: float
    compared: Sequence[ComparedDocument]
    without_text: int = 0
    written: MetadataCounts | None = None

    @property
    def failing(self) -> list[ComparedDocument]:
        """Sampled documents whose vector is not the model's, the most distant first."""
        return [one for one in self.compared if one.cosine < self.min_cosine]

    @property
    def is_accepted(self) -> bool:
        """Whether enough documents have a vector of the model."""
        return len(self.compared) - len(self.failing) >= REQUIRED_SHARE * len(self.compared)

    @property
    def exit_code(self) -> int:
        """1 if the vectors are not the model's, or documents were not adopted that could be; otherwise 0."""
        written = self.written
        return int(not self.is_accepted or bool(written and (written.refused or written.changed)))

    def as_json(self) -> Json:
        """Return the report as a dictionary, as `es-sbert index adopt --json` prints it."""
        matching, cosines = len(self.compared) - len(self.failing), [one.cosine for one in self.compared]
        return {
            "index": self.index,
            "field": self.field,
            "accepted": self.is_accepted,
            "meta": self.meta.model_dump(mode="json", exclude_none=True),
            "documents": self.documents,
            "with_vector": self.with_vector,
            "without_metadata": self.without_metadata,
            "sample": {
                "compared": len(cosines),
                "matching": matching,
                "share": round(matching / len(cosines), 6),
                "required_share": REQUIRED_SHARE,
                "min_cosine": self.min_cosine,
                "lowest_cosine": round(cosines[0], 6),
                "median_cosine": round(median(cosines), 6),
                "without_text": self.without_text,
                "failing": [one.as_json() for one in self.failing],
            },
            "written": self.written and asdict(self.written),
        }

    def lines(self, name: str) -> Iterator[str]:
        """Format the comparison, the result, the failing documents and what to do next.

        Args:
            name: The index or alias as the user gave it.
        """
        sample, written = self.as_json()["sample"], self.written
        yield (
            f"{self.index}.{self.field}: {pluralize(self.documents, 'document')}, {self.with_vector:,} with a vector, "
            f"{self.without_metadata:,} of them without metadata"
        )
        yield (
            f"compared with {escape_unprintable(self.meta.model)}, text {escape_unprintable(repr(self.meta.text))}: "
            f"{pluralize(len(self.compared), 'sampled document')}; {self.without_text:,} more have no text"
        )
        yield (
            f"cosine: lowest {sample['lowest_cosine']:.4f}, median {sample['median_cosine']:.4f}; at least "
            f"{self.min_cosine:g} in {sample['matching']:,} ({sample['share']:.1%})"
        )
        for one in self.failing[:_MAX_SHOWN]:
            cut = ", longer than the model reads" if one.is_truncated else ""
            yield f"  {one.cosine:7.4f}  {escape_unprintable(one.key[0])}{cut}"
        if len(self.failing) > _MAX_SHOWN:
            yield f"  and {len(self.failing) - _MAX_SHOWN:,} more below {self.min_cosine:g}"
        ingest = f"es-sbert ingest --index {name}"
        if not self.is_accepted:
            yield (
                f"Not adopted: {sample['share']:.1%} of the vectors are the model's, but {REQUIRED_SHARE:.0%} have to "
                f"be. Nothing was written. Try other values of {setting('model')}, {setting('text_template')} or "
                f"{setting('precision')}; if only long texts fail, a copy of the model with another `max_seq_length`. "
                f"If the vectors cannot be explained, embed the documents into another field: `{ingest} --vector-field "
                "OTHER --text-field FIELD`."
            )
            return
        if written is None:
            yield f"The vectors are the model's. Nothing was written ({setting('dry_run')})."
            return
        ingest = f"`{ingest}{format_vector_field_option(self.field)}`"
        yield f"Adopted: {pluralize(written.adopted, 'vector')} of {self.index}.{self.field}."
        changed = f"changed during the adoption, such as {escape_unprintable(''.join(written.changed[:1]))}"
        refused = [f"{escape_unprintable(name)}: {escape_unprintable(why)}" for name, why in written.refused.items()]
        for count, which, result in (
            (len(self.failing), "with a vector that is not the model's", f"marked; {ingest} embeds them again"),
            (written.without_text, "with a vector but without a text", f"not adopted; {ingest} removes their vectors"),
            (len(written.changed), changed, f"not adopted; {ingest} embeds them"),
            (len(refused), "whose update was refused", f"such as {'; '.join(refused[:3])}"),
            (self.documents - self.with_vector, "without a vector", f"{ingest} embeds them"),
        ):
            if count:
                yield f"{pluralize(count, 'document')} {which}: {result}."


class AdoptOptions(ModelOptions, VectorFieldName, RetryOptions, AdoptionOptions, total=False):
    """Keyword arguments of `adopt_vectors`: the model of the vectors, and how to compare them with it."""


@check_arguments
@spell_out(AdoptOptions)
def adopt_vectors(index: str, engine: EngineOrClient = None, **options: Unpack[AdoptOptions]) -> AdoptionReport:
    """Check a sample of the vectors that another program wrote, and adopt them, as `es-sbert index adopt` does.

    Nothing is embedded again. Later loads detect changed texts by the metadata. The index should not be written to
    during the adoption.

    Usage:
        ```python
        report = adopt_vectors("docs", "http://localhost:9200", model="all-MiniLM-L6-v2", text_fields="body")
        print(report.is_accepted, report.written)
        ```

    Args:
        index: Index, or alias of one.
        engine: As for `SemanticIndex`.
        options: See `AdoptOptions`. `report` is called with progress messages.

    Returns:
        The results of the check and, if anything was written, of the adoption.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist, the dimensions or the model differ, or the field has no
            vector to adopt or no text.
        ModelError, DeviceError, UsageError: as for `Encoder`; or options are invalid.
        EngineError: the engine failed. Updates written before that are kept, and the same call resumes.
    """
    chosen: Any = with_defaults(AdoptOptions, options)
    report, vector_field = chosen["report"], chosen["vector_field"]
    text = parse_text_options(chosen["text_fields"], chosen["text_template"])

    def on_wait(reason: str) -> None:
        report(f"waiting for the engine: {reason}")

    with connected(engine) as opened:
        retrying = make_retrier(RetryPolicy(chosen["retry_seconds"]), on_wait)
        field = retrying(lambda: read_adoptable_field(opened, index, vector_field, text))
        check_name_conflicts({vector_field: field.template})
        retrying(lambda: require_privileges(opened, field.state.name, SEARCH if chosen["dry_run"] else ADOPT))
        if chosen["encoder"] is None:
            chosen["model"] = name = str(chosen["model"] or field.entry.model or DEFAULT_MODEL)
            # Check the model before it is loaded, and perhaps exported, which takes a while.
            read = read_sentence_model(resolve_model(name), name)
            field.meta(read.fingerprint, read.name, read.dimensions)
        with chosen_encoder(chosen) as encoder:
            report_warnings(encoder, report)
            return _adopt(opened, field, encoder, chosen, on_wait)


def _adopt(
    engine: Engine, adoptable: AdoptableField, encoder: Encoder, options: AdoptOptions, on_wait: Callable[[str], None]
) -> AdoptionReport:
    sample, min_cosine, report = options["sample"], options["min_cosine"], options["report"]
    info, policy, name = encoder.info, RetryPolicy(options["retry_seconds"]), adoptable.state.name
    meta = adoptable.meta(info.fingerprint, info.model, info.dimensions)
    retrying = make_retrier(policy, on_wait)
    # This engine is for reads only. Each change is retried as a whole and uses the plain engine.
    reads = cast(Engine, RetryingEngine(engine, retrying))
    reads.refresh_if_allowed(name)
    require_all_visible(engine, name, retrying)
    meta_field, has_vector = document_meta_field(adoptable.name), {"exists": {"field": adoptable.name}}
    without_metadata: Json = {
        "bool": {"filter": [has_vector], "must_not": [{"exists": {"field": f"{meta_field}.fingerprint"}}]}
    }
    documents, with_vector = reads.count(name), reads.count(name, has_vector)
    waiting = reads.count(name, without_metadata)
    of_model: Json = {"bool": {"filter": [has_vector, {"term": {f"{meta_field}.fingerprint": info.fingerprint}}]}}
    if not with_vector:
        # A load refuses a field that another program fills.
        other = "" if adoptable.is_known else " --vector-field OTHER"
        raise IndexMismatch(
            f"no document of {name} has a vector in {adoptable.name}",
            f"Embed the documents: `es-sbert ingest --index {name}{other} --text-field FIELD`.",
        )
    if not waiting and adoptable.is_known:
        raise IndexMismatch(
            f"es-sbert already fills {name}.{adoptable.name}: all {with_vector:,} vectors in it have metadata",
            f"`es-sbert index show {name}` shows the model; `es-sbert ingest --index {name}` embeds what is outdated.",
        )
    compared = waiting or with_vector
    report(f"comparing {min(sample, compared):,} of {pluralize(compared, 'vector')} with those of {info.model}")
    # If all documents have metadata, only the field's entry in `_meta` is missing: another program replaced `_meta`.
    query = without_metadata if waiting else has_vector
    result = AdoptionReport(
        *(name, adoptable.name, meta, documents, with_vector, waiting, min_cosine),
        *_compare_sample(reads, adoptable, query, encoder, sample),
    )
    if options["dry_run"] or not result.is_accepted:
        return result
    retrying(partial(put_adopted_field, engine, adoptable, meta))
    report(f"writing the metadata of {pluralize(waiting, 'vector')}")
    before = reads.count(name, of_model)
    updates = VersionedUpdates(engine, adoptable.state, policy, on_wait, source=adoptable.state)
    writer = _MetadataWriter(engine, adoptable, encoder, retrying, updates, {one.key for one in result.failing}, report)
    result.written = writer.write(without_metadata, waiting)
    result.written.adopted = reads.count(name, of_model) - before
    # Check the entry again: another machine may have erased it in the meantime.
    retrying(partial(put_adopted_field, engine, adoptable, meta))
    return result


def put_adopted_field(engine: Engine, adoptable: AdoptableField, meta: VectorFieldMeta) -> None:
    """Record in the mapping that es-sbert fills the field; the mapping of the field itself stays unchanged.

    Raises:
        IndexMismatch: another process has adopted the field with another model in the meantime.
        IndexMissing, EngineError: see `update_mapping`.
    """

    def plan(state: IndexState) -> Json | None:
        stored = vector_fields(state.mappings, state.name).get(adoptable.name)
        # The stored entry keeps the index type of the field's creation.
        if stored is not None and stored.changed(index_type=meta.index_type) == meta:
            return None
        if stored is not None:
            check_field_model(VectorField(state.name, adoptable.name, stored), meta.fingerprint, meta.model)
        body = mapping_addition(engine.info.engine_type, adoptable.name, meta, state.mappings.get("_meta", {}))
        del body["properties"][adoptable.name]
        return body

    update_mapping(engine, adoptable.state, plan)


def _with_texts(hits: Sequence[Json], template: TextTemplate) -> list[tuple[Json, str]]:
    """The hits that have a text, each with the text."""
    read = ((hit, template.readable_text(hit.get("_source") or {})) for hit in hits)
    return [(hit, text) for hit, text in read if text and not text.isspace()]


def _compare_sample(
    engine: Engine, adoptable: AdoptableField, query: Json, encoder: Encoder, size: int
) -> tuple[list[ComparedDocument], int]:
    """Compare the vectors of a random sample of documents with the model.

    Args:
        query: Query for the documents to choose from; each has a vector.

    Returns:
        The documents, the most distant first, and the number of sampled documents without a text.

    Raises:
        IndexMismatch: none of the sampled documents has a text, or the engine does not return a vector.
        EngineError: the engine failed.
    """
    state, template = adoptable.state, adoptable.template
    source = engine.info.source_with_vectors([adoptable.name, *template.fields])
    hits = list(random_hits(engine, state.name, query, min(size, state.result_window), source=source))
    documents = _with_texts(hits, template)
    if not documents:
        names = mapping_field_names(state.mappings.get("properties", {}))
        missing = [name for name in template.fields if name not in names]
        raise IndexMismatch(
            f"none of the {len(hits):,} sampled documents of {state.name} has a text for {template.template!r}",
            f"Set {setting('text_fields')} or {setting('text_template')} to what it was when the vectors were made. "
            + fields_hint(missing, names, "The index has", derived_fields(state.mappings)),
        )
    encoded = encoder.pipeline.encode_details([text for _, text in documents], "document")
    vector_field = VectorField(state.name, adoptable.name, adoptable.entry)
    stored = np.stack([vector for hit, _ in documents for *_, vector in hit_vectors(hit, vector_field)])
    cosines, truncated = row_cosines(stored, encoded.vectors).tolist(), encoded.truncated.tolist()
    compared = map(ComparedDocument, [document_key(hit) for hit, _ in documents], cosines, truncated)
    return sorted(compared, key=lambda one: one.cosine), len(hits) - len(documents)


@dataclass
class _MetadataWriter:
    """Writes metadata for the vectors of a field that lack it.

    A document is updated only if it has not been written since it was read. If the command is stopped, its updates are
    kept, and the next run resumes with the other documents.

    Attributes:
        encoder: The model of the vectors.
        failing: Sampled documents whose vector is not the model's.
        report: Called with the progress.
        counts: The results so far.
        conflicts: Ids of documents with a newer version than the one that was read.
    """

    engine: Engine
    adoptable: AdoptableField
    encoder: Encoder
    retrying: Retrier
    updates: VersionedUpdates
    failing: set[DocumentKey]
    report: Callable[[str], None]
    counts: MetadataCounts = field(default_factory=MetadataCounts)
    conflicts: list[str] = field(default_factory=list)

    def write(self, query: Json, total: int) -> MetadataCounts:
        """Write metadata to the documents that have a vector but no metadata; the adopted ones are not counted.

        Args:
            query: Query for these documents.
            total: Their number.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed. Updates written before that are kept.
        """
        if self.failing:
            # They come first: if this run is interrupted, the sample of the next one may miss them.
            self._write_matching(_with_ids(query, [document_id for document_id, _ in self.failing]), total)
        self._write_matching(query, total)
        # Another writer wrote the newer version, or this one did and the response was lost.
        for ids in batched(self.conflicts, min(PAGE, self.adoptable.state.result_window)):
            body: Json = {"query": _with_ids(query, ids), "size": len(ids), "_source": False}
            found = self.retrying(partial(self.engine.search, self.adoptable.state.name, body))
            self.counts.changed += [hit["_id"] for hit in found["hits"]["hits"]]
        return self.counts

    def _write_matching(self, query: Json, total: int) -> None:
        state, read = self.adoptable.state, 0
        for page in scan_index(
            self.engine,
            state.name,
            query=query,
            source_includes=self.adoptable.template.fields,
            page=PAGE,
            retrying=self.retrying,
        ):
            for update, result in self.updates.send(list(self._plan_updates(page.hits))):
                if result.outcome is BulkOutcome.CONFLICT:
                    self.conflicts.append(update.key[0])
                elif result.outcome is BulkOutcome.REFUSED:
                    self.counts.refused[update.key[0]] = f"({result.status}) {result.reason}"
            read += len(page.hits)
            if read < total and 10 * read // total > 10 * (read - len(page.hits)) // total:
                self.report(f"{read:,} of {total:,}")
        self.retrying(partial(self.engine.refresh, state.name))

    def _plan_updates(self, hits: Sequence[Json]) -> Iterator[BulkWrite]:
        documents = _with_texts(hits, self.adoptable.template)
        self.counts.without_text += len(hits) - len(documents)
        if not documents:
            return
        inexact = read_inexact(self.engine, self.adoptable.state, [hit for hit, _ in documents], self.retrying)
        tokenized = self.encoder.pipeline.tokenize([text for _, text in documents], "document")
        at = clock.current_timestamp()
        for (hit, text), tokens, truncated in zip(
            documents, tokenized.tokens.tolist(), tokenized.truncated.tolist(), strict=True
        ):
            whole = inexact.get(document_key(hit))
            if whole is not None and whole.problem:
                self.counts.refused[hit["_id"]] = whole.problem
                continue
            is_failing = document_key(hit) in self.failing
            fingerprint = UNKNOWN_FINGERPRINT if is_failing else self.encoder.info.fingerprint
            meta = DocumentMeta(fingerprint, text_hash(text), None, tokens, truncated, at)
            change = {document_meta_field(self.adoptable.name): meta.as_json()}
            yield BulkWrite(document_key(hit), write_lines(hit, change, whole))


def _with_ids(query: Json, ids: Sequence[str]) -> Json:
    return {"bool": {"filter": [query, {"ids": {"values": ids}}]}}
