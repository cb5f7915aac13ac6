"""Write the metadata of adopted vectors with partial updates that change nothing else in the documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from es_sbert import clock
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.multi_get import batched, multi_get
from es_sbert.engines.protocol import DocumentKey, Engine, Json
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.adopt_sample import (
    PAGE,
    ComparedDocument,
    TextDocument,
    TextPage,
    compare_vectors,
    without_metadata_query,
)
from es_sbert.index.document_vectors import UNKNOWN_FINGERPRINT, DocumentMeta, json_bytes, raw_document_meta, text_hash
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field
from es_sbert.index.versioned_updates import CONFLICT, VersionedUpdates, is_deleted


@dataclass
class MetadataCounts:
    """What became of the documents that had a vector and no metadata.

    Attributes:
        adopted: Documents whose metadata names the model now.
        failing: Documents whose metadata says that the vector is not the model's, the most distant first.
        without_text: Documents with a vector whose text is empty or missing; they get no metadata.
        unreadable: Documents with something else than a string in a field of the text; they get no metadata.
        changed: Ids of documents that somebody has written since they were read.
        deleted: Documents that were deleted since.
        refused: Id → why the engine did not take the update.
    """

    adopted: int = 0
    failing: list[ComparedDocument] = field(default_factory=list)
    without_text: int = 0
    unreadable: int = 0
    changed: list[str] = field(default_factory=list)
    deleted: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> Json:
        return {
            "adopted": self.adopted,
            "failing": [one.as_json() for one in self.failing],
            "without_text": self.without_text,
            "unreadable": self.unreadable,
            "changed": self.changed,
            "deleted": self.deleted,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class _MetadataUpdate:
    """The metadata of one document as lines of a bulk request."""

    key: DocumentKey
    is_adopted: bool
    body: bytes


class MetadataWriter:
    """Writes the metadata of all vectors of a field that have none.

    A document is updated only if nobody has written it since it was read. What was written stays when the command is
    stopped, and the next run resumes with the other documents.

    Args:
        engine: Where.
        adoptable: The field.
        meta: What the mapping says of it now.
        encoder: Its model: counts the tokens of the texts.
        policy: How long transient failures are waited out.
        on_wait: Told why a request is tried again.
    """

    def __init__(
        self,
        engine: Engine,
        adoptable: AdoptableField,
        meta: VectorFieldMeta,
        encoder: Encoder,
        *,
        policy: RetryPolicy,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._engine = engine
        self._adoptable = adoptable
        self._meta = meta
        self._encoder = encoder
        self._retrying = make_retrier(policy, on_wait)
        self._updates = VersionedUpdates(engine, adoptable.state, policy, on_wait)

    def write(
        self,
        failing: Collection[ComparedDocument],
        min_cosine: float,
        *,
        all_documents: bool,
        progress: Callable[[int], None] = lambda count: None,
    ) -> MetadataCounts:
        """Go through the documents that have a vector and no metadata.

        Args:
            failing: Documents that are known to have another vector.
            min_cosine: Cosine from which on a vector counts as the model's.
            all_documents: Whether every document is embedded and compared; else all but the failing ones are adopted.
            progress: Told how many documents were read so far.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed. What was written until then stays.
        """
        counts = MetadataCounts()
        conflicts: list[_MetadataUpdate] = []
        adoptable = self._adoptable
        known = {one.key: one for one in failing}
        # First of all: a run that is interrupted must not leave them to the next one, whose sample may miss them.
        for documents in self._read_again(list(known)):
            self._write_page(documents, known, counts, conflicts)
        fields = [*adoptable.template.fields, *([adoptable.name] if all_documents else [])]
        read = 0
        for hits in self._engine.scan(
            adoptable.state.name,
            query=without_metadata_query(adoptable.name),
            source_includes=fields,
            page=min(PAGE, adoptable.state.result_window),
            vectors=all_documents,
        ):
            page = TextPage.of(hits, adoptable.template)
            counts.without_text += page.without_text
            counts.unreadable += page.unreadable
            others = [document for document in page.documents if document.key not in known]
            compared = compare_vectors(self._encoder, others, adoptable.name) if all_documents else ()
            self._write_page(others, {one.key: one for one in compared if one.cosine < min_cosine}, counts, conflicts)
            read += len(hits)
            progress(read)
        self._count_conflicts(conflicts, counts)
        self._retrying(partial(self._engine.refresh, adoptable.state.name))
        counts.failing.sort(key=lambda one: one.cosine)
        return counts

    def _read_again(self, keys: Sequence[DocumentKey]) -> Iterator[list[TextDocument]]:
        """These documents as they are now, as far as they still have a vector, a text and no metadata."""
        adoptable, wanted = self._adoptable, set(keys)
        window = adoptable.state.result_window
        for some in batched(keys, max(1, min(PAGE, window - 1))):
            find = partial(
                multi_get,
                self._engine,
                adoptable.state.name,
                [document_id for document_id, _ in some],
                query=without_metadata_query(adoptable.name),
                source={"includes": list(adoptable.template.fields)},
                result_window=window,
            )
            hits = [hit for key, hit in self._retrying(find).items() if key in wanted]
            yield TextPage.of(hits, adoptable.template).documents

    def _write_page(
        self,
        documents: Sequence[TextDocument],
        failing: Mapping[DocumentKey, ComparedDocument],
        counts: MetadataCounts,
        conflicts: list[_MetadataUpdate],
    ) -> None:
        counts.failing += [failing[document.key] for document in documents if document.key in failing]
        for update, result in self._updates.send(list(self._page_updates(documents, failing))):
            if result.ok:
                counts.adopted += update.is_adopted
            elif result.status == CONFLICT:
                conflicts.append(update)
            elif is_deleted(result):
                counts.deleted += 1
            else:
                counts.refused[update.key[0]] = f"({result.status}) {result.reason}"

    def _page_updates(
        self, documents: Sequence[TextDocument], failing: Collection[DocumentKey]
    ) -> Iterator[_MetadataUpdate]:
        if not documents:
            return
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
            yield self._update(document.hit, is_adopted, meta)

    def _update(self, hit: Json, is_adopted: bool, meta: DocumentMeta) -> _MetadataUpdate:
        head: Json = {"_id": hit["_id"], "if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
        routing = hit.get("_routing")
        if routing is not None:
            head["routing"] = routing
        changed: Json = {"doc": {document_meta_field(self._adoptable.name): meta.as_json()}}
        body = b"".join(json_bytes(line) + b"\n" for line in ({"update": head}, changed))
        return _MetadataUpdate((hit["_id"], routing), is_adopted, body)

    def _count_conflicts(self, conflicts: Sequence[_MetadataUpdate], counts: MetadataCounts) -> None:
        """Count rejected updates: the document has a newer version, another writer's or one whose response was lost."""
        if not conflicts:
            return
        name, meta_field = self._adoptable.state.name, document_meta_field(self._adoptable.name)
        self._retrying(partial(self._engine.refresh, name))
        window = self._adoptable.state.result_window
        for some in batched(conflicts, max(1, min(PAGE, window - 1))):
            find = partial(
                multi_get,
                self._engine,
                name,
                [update.key[0] for update in some],
                source={"includes": [meta_field]},
                result_window=window,
            )
            found = self._retrying(find)
            for update in some:
                hit = found.get(update.key)
                if hit is None:
                    counts.deleted += 1
                elif "fingerprint" in (raw_document_meta(hit.get("_source") or {}, meta_field) or {}):
                    counts.adopted += update.is_adopted
                else:
                    counts.changed.append(update.key[0])
