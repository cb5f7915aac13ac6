"""Adopt the vectors of a known model without embedding the documents again (`es-sbert index adopt`).

A sample of the vectors is compared with the model. If it passes, the mapping gets the field's metadata. Each document
gets the metadata of its vector by a partial update that changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from es_sbert import clock
from es_sbert.batched import batched
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Engine
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryingEngine, RetryPolicy, make_retrier
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.adopt_report import AdoptionReport, MetadataCounts
from es_sbert.index.adopt_sample import (
    PAGE,
    ComparedDocument,
    SampleCheck,
    TextDocument,
    TextPage,
    compare_vectors,
    read_sample,
    without_metadata_query,
)
from es_sbert.index.derived_fields import derived_fields
from es_sbert.index.document_vectors import (
    UNKNOWN_FINGERPRINT,
    DocumentMeta,
    read_document_meta,
    text_hash,
)
from es_sbert.index.hidden_documents import require_all_visible
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import fields_hint, mapping_field_names
from es_sbert.index.vector_field import VectorField, check_field_model
from es_sbert.index.versioned_updates import CONFLICT, VersionedUpdates, is_deleted
from es_sbert.index.whole_documents import read_inexact, write_lines
from es_sbert.messages import pluralize

_MIN_COSINE = 0.999


@dataclass(frozen=True)
class AdoptionSettings:
    """Settings for checking and adopting vectors.

    Attributes:
        sample: Number of documents that are embedded and compared before anything is written.
        seed: Seed of the random sample.
        min_cosine: Lowest cosine at which a vector counts as the model's; None for the default, see `least_cosine`.
        share: Share of the sample that must have such a vector.
        all_documents: Whether to compare each of the other documents too before it is adopted.
        dry_run: Whether to check the sample without writing anything.
        retry_seconds: Seconds for which transient failures are retried.
    """

    sample: int = 300
    seed: int = 0
    min_cosine: float | None = None
    share: float = 0.99
    all_documents: bool = False
    dry_run: bool = False
    retry_seconds: float = 300.0

    @property
    def least_cosine(self) -> float:
        """The lowest cosine at which a vector counts as the model's."""
        return _MIN_COSINE if self.min_cosine is None else self.min_cosine


def adopt_vectors(
    engine: Engine,
    adoptable: AdoptableField,
    encoder: Encoder,
    settings: AdoptionSettings,
    *,
    report: Callable[[str], None] = lambda message: None,
) -> AdoptionReport:
    """Check a sample of the vectors and adopt the field if it passes.

    Later loads detect changed texts by the metadata. The index should not be written to during the adoption.

    Args:
        report: Called with progress messages.

    Returns:
        The results of the check and, if anything was written, of the adoption.

    Raises:
        IndexMismatch: the dimensions or the model differ, or the field has no vector to adopt or no text.
        EngineError: the engine failed. Updates written before that are kept, and the same command resumes.
    """
    info, plain = encoder.info, engine
    retrying = make_retrier(
        RetryPolicy(settings.retry_seconds), lambda reason: report(f"waiting for the engine: {reason}")
    )
    # This engine is for reads only. Each change is retried as a whole and uses the plain engine.
    engine = cast(Engine, RetryingEngine(plain, retrying))
    adoptable.check_model(info.fingerprint, info.model, info.dimensions)
    name = adoptable.state.name
    engine.refresh_if_allowed(name)
    require_all_visible(plain, name, retrying)
    documents = engine.count(name)
    has_vector: Json = {"exists": {"field": adoptable.name}}
    sampled = without_metadata_query(adoptable.name)
    with_vector, waiting = engine.count(name, has_vector), engine.count(name, sampled)
    if not waiting:
        if adoptable.stored is not None or not with_vector:
            raise _nothing_to_adopt_error(adoptable, with_vector)
        # The documents have metadata. Only the field's entry in `_meta` is missing: another program replaced `_meta`.
        sampled = has_vector
    compared = waiting or with_vector
    report(
        f"comparing {min(settings.sample, compared):,} of {pluralize(compared, 'vector')} with those of {info.model}"
    )
    check = check_sample(engine, adoptable, sampled, encoder, settings)
    found = AdoptionReport(
        name, adoptable.name, adoptable.meta(info.fingerprint, info.model), documents, with_vector, waiting, check
    )
    if settings.dry_run or not check.is_accepted:
        return found
    retrying(partial(put_adopted_field, plain, adoptable, found.meta))
    report(f"writing the metadata of {pluralize(waiting, 'vector')}")
    writer = MetadataWriter(plain, adoptable, found.meta, encoder, settings, report)
    written = writer.write(check.failing, waiting)
    # Check the entry again: another machine may have erased it in the meantime.
    retrying(partial(put_adopted_field, plain, adoptable, found.meta))
    return replace(found, written=written)


def put_adopted_field(engine: Engine, adoptable: AdoptableField, meta: VectorFieldMeta) -> None:
    """Record in the mapping that es-sbert fills the field.

    Raises:
        IndexMismatch: another process has adopted the field with another model in the meantime.
        IndexMissing, EngineError: see `update_mapping`.
    """

    def plan(state: IndexState) -> Json | None:
        stored = vector_fields(state.mappings, state.name).get(adoptable.name)
        if stored == meta:
            return None
        if stored is not None:
            check_field_model(VectorField(state.name, adoptable.name, stored), meta.fingerprint, meta.model)
        return adoptable.mapping_change(engine.info, meta, state.mappings.get("_meta", {}))

    update_mapping(engine, adoptable.state, plan)


def check_sample(
    engine: Engine, adoptable: AdoptableField, query: Json, encoder: Encoder, settings: AdoptionSettings
) -> SampleCheck:
    """Compare the vectors of a random sample of documents with the model.

    Args:
        query: See `read_sample`.

    Raises:
        IndexMismatch: none of the sampled documents has a text.
        EngineError: the engine failed.
    """
    sample = read_sample(engine, adoptable, query, settings.sample, settings.seed)
    if not sample.documents:
        raise _no_text_error(adoptable, sample.without_text, sample.unreadable)
    compared = list(compare_vectors(encoder, sample.documents, adoptable.name))
    limit = encoder.input_limit("document")
    least = settings.least_cosine
    return SampleCheck(compared, least, settings.share, sample.without_text, sample.unreadable, limit)


def _nothing_to_adopt_error(adoptable: AdoptableField, with_vector: int) -> IndexMismatch:
    name = adoptable.state.name
    if not with_vector:
        # A load refuses a field that another program fills.
        other = "" if adoptable.stored is not None else " --vector-field OTHER"
        return IndexMismatch(
            f"no document of {name} has a vector in {adoptable.name}",
            f"Embed the documents: `es-sbert ingest --index {name}{other} --text-field FIELD`.",
        )
    return IndexMismatch(
        f"es-sbert already fills {adoptable.where}: all {with_vector:,} vectors in it have metadata",
        f"`es-sbert index show {name}` shows the model; `es-sbert ingest --index {name}` embeds outdated documents.",
    )


def _no_text_error(adoptable: AdoptableField, without_text: int, unreadable: int) -> IndexMismatch:
    template, name = adoptable.template, adoptable.state.name
    names = mapping_field_names(adoptable.state.mappings.get("properties", {}))
    missing = [field for field in template.fields if field not in names]
    reason = f"{without_text:,} have no text" + (
        f", and {unreadable:,} have a value that is not a string" if unreadable else ""
    )
    own = [field for field in names if field.partition(".")[0] != adoptable.name]
    return IndexMismatch(
        f"none of the sampled documents of {name} has a text for {template.template!r}: {reason}",
        "Set `text_fields` or `text_template` to what it was when the vectors were made. "
        + fields_hint(missing, own, "The index has", derived_fields(adoptable.state.mappings)),
    )


@dataclass(frozen=True)
class _MetadataUpdate:
    """The metadata of one document, as lines of a bulk request."""

    key: DocumentKey
    is_adopted: bool
    body: bytes


class MetadataWriter:
    """Writes metadata for the vectors of a field that lack it.

    A document is updated only if it has not been written since it was read. If the command is stopped, its updates are
    kept, and the next run resumes with the other documents.

    Args:
        adoptable: The field.
        meta: The field's metadata in the mapping.
        encoder: The encoder of its model.
        settings: Settings for checking documents and for retrying transient failures.
        report: Called with the reason for each retry and with the progress.

    Attributes:
        counts: The results so far.
    """

    def __init__(
        self,
        engine: Engine,
        adoptable: AdoptableField,
        meta: VectorFieldMeta,
        encoder: Encoder,
        settings: AdoptionSettings,
        report: Callable[[str], None],
    ) -> None:
        def on_wait(reason: str) -> None:
            report(f"waiting for the engine: {reason}")

        self._engine = engine
        self._adoptable = adoptable
        self._meta = meta
        self._encoder = encoder
        self._settings = settings
        self._report = report
        policy = RetryPolicy(settings.retry_seconds)
        self._retrying = make_retrier(policy, on_wait)
        self._updates = VersionedUpdates(engine, adoptable.state, policy, on_wait, source=adoptable.state)
        self._conflicts: list[_MetadataUpdate] = []
        self.counts = MetadataCounts()

    def write(self, failing: Collection[ComparedDocument], waiting: int) -> MetadataCounts:
        """Write metadata to the documents that have a vector but no metadata.

        Args:
            failing: Sampled documents whose vector is not the model's.
            waiting: Number of documents without metadata, for the progress.

        Returns:
            The results for all documents.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed. Updates written before that are kept.
        """
        name, state, template = self._adoptable.name, self._adoptable.state, self._adoptable.template
        known = {one.key: one for one in failing}
        # The failing documents come first: if this run is interrupted, the sample of the next one may miss them.
        least = self._settings.least_cosine
        compare = partial(compare_vectors, self._encoder, vector_field=name)
        for found in self._find_again(list(known), template.fields, without_metadata_query(name)):
            self._write_page(TextPage.from_hits(list(found.values()), template).documents, known)
        read = 0
        for _, hits, _ in scan_index(
            self._engine,
            state.name,
            query=without_metadata_query(name),
            source_includes=[*template.fields, *([name] if self._settings.all_documents else [])],
            page=min(PAGE, state.result_window),
            vectors=self._settings.all_documents,
            retrying=self._retrying,
        ):
            page = TextPage.from_hits(hits, template)
            self.counts.without_text += page.without_text
            self.counts.unreadable += page.unreadable
            others = [document for document in page.documents if document.key not in known]
            compared = compare(others) if self._settings.all_documents else ()
            self._write_page(others, {one.key: one for one in compared if one.cosine < least})
            before, read = read, read + len(hits)
            if read < waiting and 10 * read // waiting > 10 * before // waiting:
                self._report(f"{read:,} of {waiting:,}")
        if self._conflicts:
            self._count_conflicts()
        self._retrying(partial(self._engine.refresh, state.name))
        self.counts.failing.sort(key=lambda one: one.cosine)
        return self.counts

    def _find_again(
        self, keys: Sequence[DocumentKey], fields: Sequence[str], query: Json | None = None
    ) -> Iterator[dict[DocumentKey, Json]]:
        """Read documents again, in batches; documents that no longer match the query are left out."""
        state = self._adoptable.state
        for some in batched(keys, max(1, min(PAGE, state.result_window - 1))):
            find = partial(
                multi_get,
                self._engine,
                state.name,
                [document_id for document_id, _ in some],
                query=query,
                source={"includes": list(fields)},
                result_window=state.result_window,
            )
            wanted = set(some)
            yield {key: hit for key, hit in self._retrying(find).items() if key in wanted}

    def _write_page(self, documents: Sequence[TextDocument], failing: Mapping[DocumentKey, ComparedDocument]) -> None:
        counts = self.counts
        counts.failing += [failing[document.key] for document in documents if document.key in failing]
        for update, result in self._updates.send(list(self._page_updates(documents, failing))):
            if result.ok:
                counts.adopted += update.is_adopted
            elif result.status == CONFLICT:
                self._conflicts.append(update)
            elif is_deleted(result):
                counts.deleted += 1
            else:
                counts.refused[update.key[0]] = f"({result.status}) {result.reason}"

    def _page_updates(
        self, documents: Sequence[TextDocument], failing: Collection[DocumentKey]
    ) -> Iterator[_MetadataUpdate]:
        if not documents:
            return
        hits = [document.hit for document in documents]
        inexact = read_inexact(self._engine, self._adoptable.state, hits, self._retrying)
        tokenized = self._encoder.tokenize([document.text for document in documents], "document")
        at = clock.current_timestamp()
        for document, tokens, truncated in zip(
            documents, tokenized.tokens.tolist(), tokenized.truncated.tolist(), strict=True
        ):
            is_adopted = document.key not in failing
            meta = DocumentMeta(
                fingerprint=self._meta.fingerprint if is_adopted else UNKNOWN_FINGERPRINT,
                text_hash=text_hash(document.text),
                document_hash=None,
                tokens=tokens,
                truncated=truncated,
                embedded_at=at,
            )
            whole = inexact.get(document.key)
            if whole is not None and whole.problem:
                self.counts.refused[document.key[0]] = whole.problem
                continue
            change = {document_meta_field(self._adoptable.name): meta.as_json()}
            body = write_lines(document.hit, change, whole)
            yield _MetadataUpdate(document.key, is_adopted, body)

    def _count_conflicts(self) -> None:
        """Count updates that were rejected because the document has a newer version.

        Another writer wrote that version, or this one did and the response was lost.
        """
        name, meta_field = self._adoptable.state.name, document_meta_field(self._adoptable.name)
        self._retrying(partial(self._engine.refresh, name))
        found: dict[DocumentKey, Json] = {}
        for hits in self._find_again([update.key for update in self._conflicts], [meta_field]):
            found |= hits
        for update in self._conflicts:
            hit = found.get(update.key)
            meta = None if hit is None else read_document_meta(hit.get("_source") or {}, meta_field)
            if hit is None:
                self.counts.deleted += 1
            elif meta is not None and meta.fingerprint is not None:
                self.counts.adopted += update.is_adopted
            else:
                self.counts.changed.append(update.key[0])
