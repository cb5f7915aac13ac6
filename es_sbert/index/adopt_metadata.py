"""Write the metadata of adopted vectors with partial updates that change nothing else in the documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from es_sbert.index.document_vectors import (
    UNKNOWN_FINGERPRINT,
    DocumentMeta,
    action_metadata,
    if_unchanged,
    json_bytes,
    raw_document_meta,
    text_hash,
)
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
        return asdict(self) | {"failing": [one.as_json() for one in self.failing]}


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

    Attributes:
        counts: What became of the documents so far.
    """

    def __init__(
        self,
        engine: Engine,
        adoptable: AdoptableField,
        meta: VectorFieldMeta,
        encoder: Encoder,
        *,
        policy: RetryPolicy,
        on_wait: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._adoptable = adoptable
        self._meta = meta
        self._encoder = encoder
        self._retrying = make_retrier(policy, on_wait)
        self._updates = VersionedUpdates(engine, adoptable.state, policy, on_wait)
        self._conflicts: list[_MetadataUpdate] = []
        self.counts = MetadataCounts()

    def write(
        self,
        failing: Collection[ComparedDocument],
        min_cosine: float,
        *,
        all_documents: bool,
        progress: Callable[[int], None],
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
        name, state, template = self._adoptable.name, self._adoptable.state, self._adoptable.template
        known = {one.key: one for one in failing}
        # First of all: a run that is interrupted must not leave them to the next one, whose sample may miss them.
        for found in self._find_again(list(known), template.fields, without_metadata_query(name)):
            self._write_page(TextPage.of(list(found.values()), template).documents, known)
        read = 0
        for hits in self._engine.scan(
            state.name,
            query=without_metadata_query(name),
            source_includes=[*template.fields, *([name] if all_documents else [])],
            page=min(PAGE, state.result_window),
            vectors=all_documents,
        ):
            page = TextPage.of(hits, template)
            self.counts.without_text += page.without_text
            self.counts.unreadable += page.unreadable
            others = [document for document in page.documents if document.key not in known]
            compared = compare_vectors(self._encoder, others, name) if all_documents else ()
            self._write_page(others, {one.key: one for one in compared if one.cosine < min_cosine})
            read += len(hits)
            progress(read)
        if self._conflicts:
            self._count_conflicts()
        self._retrying(partial(self._engine.refresh, state.name))
        self.counts.failing.sort(key=lambda one: one.cosine)
        return self.counts

    def _find_again(
        self, keys: Sequence[DocumentKey], fields: Sequence[str], query: Json | None = None
    ) -> Iterator[dict[DocumentKey, Json]]:
        """These documents as they are now, as far as they still match the query, in batches."""
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
            action = {"update": action_metadata(document.hit) | if_unchanged(document.hit)}
            changed = {"doc": {document_meta_field(self._adoptable.name): meta.as_json()}}
            yield _MetadataUpdate(document.key, is_adopted, json_bytes(action) + b"\n" + json_bytes(changed) + b"\n")

    def _count_conflicts(self) -> None:
        """Count rejected updates: the document has a newer version, another writer's or one whose response was lost."""
        name, meta_field = self._adoptable.state.name, document_meta_field(self._adoptable.name)
        self._retrying(partial(self._engine.refresh, name))
        found: dict[DocumentKey, Json] = {}
        for hits in self._find_again([update.key for update in self._conflicts], [meta_field]):
            found |= hits
        for update in self._conflicts:
            hit = found.get(update.key)
            if hit is None:
                self.counts.deleted += 1
            elif "fingerprint" in (raw_document_meta(hit.get("_source") or {}, meta_field) or {}):
                self.counts.adopted += update.is_adopted
            else:
                self.counts.changed.append(update.key[0])
