"""Measure the cosines of relevant and unrelated documents in an index, to calibrate its minimum cosine.

The queries are labeled, or made from documents. A pseudo-query is a sentence of a document, and it should find the rest
of the document. This is the inverse cloze task (Lee, Chang and Toutanova 2019, "Latent Retrieval for Weakly Supervised
Open Domain Question Answering"). The sentence is removed from the document, because real queries rarely repeat a
sentence of the document they look for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.batched import batched
from es_sbert.diagnostics.calibration import (
    CalibrationReport,
    CosineSample,
    Counts,
    calibrate,
    count_unrelated,
)
from es_sbert.diagnostics.recall import document_cosines
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, SourceError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import read_document_meta, text_hash
from es_sbert.index.mapping import and_query, document_meta_field, has_vector_query, vector_path
from es_sbert.index.text_template import TextTemplate, format_vector_field_option
from es_sbert.index.vector_field import check_field_model, require_index, vector_field_from_state
from es_sbert.index.vector_reading import doc_value_request, hit_vectors
from es_sbert.io.tables import read_table
from es_sbert.messages import pluralize
from es_sbert.vectors import Vectors


@dataclass(frozen=True)
class LabeledQuery:
    """A text to search for, and its relevant documents.

    Attributes:
        text: The query.
        ids: Ids of the documents that are relevant to it, at least one, each once.
    """

    text: str
    ids: tuple[str, ...]


_JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_LABELLED_REMEDY = 'Write one object per line: {"query": "a text", "ids": ["id of a relevant document", …]}.'


def read_labeled_queries(path: Path) -> list[LabeledQuery]:
    """Read `{"query": …, "ids": […]}` from JSON Lines, also compressed; other keys are ignored.

    Raises:
        SourceError: the file is missing, has another format, holds no queries, or has an invalid line.
    """
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file", "Check the path.")
    if not path.name.lower().endswith(_JSONL_SUFFIXES):
        raise SourceError(f"{path} is not named {', '.join(_JSONL_SUFFIXES)}", _LABELLED_REMEDY)
    table = read_table(path, ["query", "ids"])
    problems = table.problems()
    texts = table.texts("query", problems)
    queries = []
    for text, ids, line in zip(texts, table.columns["ids"], table.lines.tolist(), strict=True):
        reason = _ids_problem(ids)
        if reason is not None:
            problems.add(line, reason)
            continue
        queries.append(LabeledQuery(text, tuple(dict.fromkeys(map(str, ids)))))
    problems.check(_LABELLED_REMEDY)
    return queries


def _ids_problem(ids: object) -> str | None:
    """Describe the problem with the ids of a query, or return None. Numbers are valid: engines make them strings."""
    if ids is None:
        return "ids is missing"
    if not isinstance(ids, list):
        return "ids is not a list of document ids"
    if not ids:
        return "ids is empty"
    wrong = next((id for id in ids if isinstance(id, bool) or not isinstance(id, str | int) or id == ""), None)
    if wrong is not None or None in ids:
        return f"ids holds {wrong!r}, which is not a document id"
    return None


# The end of a sentence: a period and any closing marks, followed by white space, or the period of a script without
# spaces. The end of a line counts too, because line feeds join the fields of a text, and titles have no period.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]»]*\s+|[。！？｡]+[」』”’）]*\s*|\s*\n\s*")
_MIN_SENTENCE_WORDS = 3
_MIN_UNSPACED_CHARACTERS = 8


class QueryKind(StrEnum):
    """The part of a document that is used as a pseudo-query."""

    SENTENCE = "first sentence"
    FIELD = "first field"
    HALF = "first half of the words"


@dataclass(frozen=True)
class PseudoQuery:
    """A part of a document as a query.

    Attributes:
        text: The query, never the whole text of the document.
        kind: The part of the document.
        end: Position in the document's text after the query; 0 for a field, which may be anywhere in the text.
        rest: The document's text without the query. None if the text is one sentence, because its halves make no sense
            on their own; the query is then compared with the whole text.
    """

    text: str
    kind: QueryKind
    end: int
    rest: str | None


def make_pseudo_query(template: TextTemplate, document: Mapping[str, Any], text: str) -> PseudoQuery | None:
    """Make a query that should find the document.

    The query is the first sentence if the text has several. Otherwise it is the first field if the template has
    several, or else the first half of the words.

    Args:
        template: Template of the text.
        document: The document.
        text: Text of the document by the template.

    Returns:
        The query; None if the text is too short for one.
    """
    end = first_sentence_end(text)
    if end is not None:
        return PseudoQuery(text[:end].strip(), QueryKind.SENTENCE, end, text[end:].strip())
    if len(template.fields) > 1:
        field = (template.of_fields(template.fields[:1]).text_of(document) or "").strip()
        rest = text.replace(field, "", 1).strip()
        if field and any(map(str.isalnum, rest)):
            return PseudoQuery(field, QueryKind.FIELD, 0, rest)
    half = first_half(text)
    return None if half is None else PseudoQuery(half, QueryKind.HALF, len(half), None)


def first_sentence_end(text: str) -> int | None:
    """Find the position after the first sentence of at least three words; None if no text follows it."""
    for end in _SENTENCE_END.finditer(text):
        sentence = text[: end.end()].strip()
        if not any(map(str.isalnum, text[end.end() :])):
            return None
        if len(sentence.split()) >= _MIN_SENTENCE_WORDS or _is_unspaced(sentence):
            return end.end()
    return None


def first_half(text: str) -> str | None:
    """Return the first half of the words, or of the characters in a script without spaces; None for one word."""
    words = text.split()
    if len(words) > 1:
        return " ".join(words[: (len(words) + 1) // 2])
    return text.strip()[: len(text.strip()) // 2] if _is_unspaced(text) else None


def _is_unspaced(text: str) -> bool:
    """Whether a text is in a script without spaces between words, and long enough for a query."""
    return not text.isascii() and len(text.strip()) >= _MIN_UNSPACED_CHARACTERS and len(text.split()) == 1


_PAGE = 500


@dataclass(frozen=True)
class CalibrationDocument:
    """A document with its vectors.

    Attributes:
        id: Id of the document.
        source: The requested part of `_source`.
        text: Text by the field's template; empty if there is none.
        spans: For each vector, its first character in the document's text and the one after the last; 0 and 0 if the
            vector covers the whole text.
        vectors: One vector, or one per passage. *Shape:* ``(vectors, dimensions)``.
    """

    id: str
    source: Json
    text: str
    spans: Sequence[tuple[int, int]]
    vectors: Vectors


@dataclass(frozen=True)
class CalibrationQueries:
    """Queries with the documents that are relevant to them.

    Attributes:
        queries: The queries; each has a relevant document in the index.
        relevant: For each query, the vectors of each relevant document, of *shape* ``(vectors, dimensions)``.
        kinds: Part of a document → number of queries made of it; empty for labeled queries.
        left_out: Reason → number of documents or queries that were left out for it.
    """

    queries: Sequence[LabeledQuery]
    relevant: Sequence[Sequence[Vectors]]
    kinds: Mapping[str, int]
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class MeasuredCosines:
    """The measured cosines, before a value is chosen.

    Attributes:
        queries: The queries.
        cosines: The cosines of the queries, in the same order.
        documents: Number of documents with a vector.
        sample: Number of documents that serve as unrelated documents.
    """

    queries: CalibrationQueries
    cosines: CosineSample
    documents: int
    sample: int


class IndexCalibrator:
    """One vector field of an index, as a search of the given name sees it.

    Args:
        engine: The engine.
        name: Index, or alias of one index. The filter of an alias applies.
        vector_field: The field.

    Raises:
        IndexMissing, IndexMismatch: the index or the field does not exist, or its vectors cannot be read.
        EngineError: the engine failed.
    """

    def __init__(self, engine: Engine, name: str, vector_field: str) -> None:
        state = require_index(engine, name)
        self._engine, self._name, self._state = engine, name, state
        self._filter = state.alias_filter(name)
        self.field = vector_field_from_state(engine, state, vector_field)
        self._doc_values = doc_value_request(engine.info.engine_type, [self.field])
        self._has_vector = and_query(has_vector_query(vector_field, self.field.meta), self._filter)
        self._template = None if self.field.meta.text is None else TextTemplate.parse(self.field.meta.text)

    def calibrate(
        self, measured: MeasuredCosines, keep: float, max_unrelated: float | None = None
    ) -> CalibrationReport:
        """Recommend a minimum cosine.

        Args:
            measured: Result of `measure`.
            keep, max_unrelated: Condition for the recommended value, see `calibrate`.
        """
        queries = measured.queries
        return CalibrationReport(
            index=self._name,
            field=self.field.name,
            model=self.field.meta.model,
            documents=measured.documents,
            sample=measured.sample,
            queries=len(queries.queries),
            labelled=not queries.kinds,
            kinds=queries.kinds,
            left_out={reason: count for reason, count in queries.left_out.items() if count},
            keep=keep,
            max_unrelated=max_unrelated,
            calibration=calibrate(measured.cosines, keep, max_unrelated),
        )

    def measure(
        self,
        encoder: Encoder,
        queries: Sequence[LabeledQuery] | None = None,
        *,
        sample: int = 1000,
        seed: int = 0,
        report: Callable[[str], None] = lambda message: None,
    ) -> MeasuredCosines:
        """Measure the cosines of queries with their relevant documents, and with others.

        The index should not be written to at the same time.

        Args:
            encoder: The model of the field.
            queries: Labeled queries; None makes pseudo-queries from the sampled documents.
            sample: Number of documents to compare every query with.
            seed: Seed of the random sample.
            report: Called with a message before each step.

        Raises:
            IndexMismatch: the encoder has another model, or there are no vectors, queries or unrelated documents.
            EngineError: the engine failed.
        """
        check_field_model(self.field, encoder.info.fingerprint, encoder.info.model)
        if queries is None and self._template is None:
            raise IndexMismatch(
                f"the text of {self.field.index}.{self.field.name} is not known, so queries cannot be made from it",
                "Pass labeled queries with `queries=FILE`, or set the text: `es-sbert index create "
                f"{self._name} --text-field FIELD{format_vector_field_option(self.field.name)}`.",
            )
        self._engine.refresh(self.field.index)
        documents = self._engine.count(self.field.index, self._has_vector)
        every = self._engine.count(self.field.index, self._filter)
        left_out = Counter({"documents without a vector": every - documents})
        report(f"reading {min(sample, documents, self._state.result_window):,} of {pluralize(documents, 'document')}")
        sampled = self._sample_documents(sample, seed, left_out)
        if not sampled:
            raise IndexMismatch(
                f"no document of {self._name} has a vector of {self.field.meta.model} in {self.field.name}",
                f"Embed its documents first: `es-sbert ingest --index {self._name}"
                f"{format_vector_field_option(self.field.name)}`.",
            )
        if queries is None:
            wanted = self._pseudo_queries(encoder, sampled, left_out)
        else:
            wanted = self._labeled(queries, left_out)
        report(f"embedding {pluralize(len(wanted.queries), 'query', 'queries')}")
        vectors = encoder.encode([query.text for query in wanted.queries], "query")
        return MeasuredCosines(wanted, self._cosines(wanted, sampled, vectors), documents, len(sampled))

    def _sample_documents(self, count: int, seed: int, left_out: Counter[str]) -> list[CalibrationDocument]:
        """Read random documents; a seed selects the same ones as long as the index does not change."""
        most = min(count, self._state.result_window)
        source, extra = self._source(), self._doc_values
        hits = random_hits(self._engine, self.field.index, self._has_vector, most, seed, source=source, extra=extra)
        return list(self._read(hits, left_out))

    def _source(self) -> Json | bool:
        """The parts of a document to read."""
        name, texts = self.field.name, () if self._template is None else self._template.fields
        path = vector_path(name, self.field.meta)
        return self._engine.info.source_with_vectors([name, path, document_meta_field(name), *texts])

    def _read(self, hits: Iterable[Json], left_out: Counter[str]) -> Iterator[CalibrationDocument]:
        """Convert hits to documents; count those without usable vectors of the field's model in `left_out`."""
        name, meta = self.field.name, self.field.meta
        for hit in hits:
            found: Json = hit["_source"]
            made = read_document_meta(found, document_meta_field(name))
            if made is not None and made.fingerprint != meta.fingerprint:
                left_out["documents whose vector is of another model"] += 1
                continue
            stored = hit_vectors(hit, self.field)
            vectors = np.stack([vector for _, _, vector in stored])
            if not (np.isfinite(vectors).all() and vectors.any(axis=1).all()):
                left_out["documents whose vector is zero or not finite"] += 1
                continue
            text = "" if self._template is None else self._template.readable_text(found)
            spans = [(start, end) for start, end, _ in stored]
            yield CalibrationDocument(hit["_id"], found, text, spans, vectors)

    def _pseudo_queries(
        self, encoder: Encoder, sampled: Sequence[CalibrationDocument], left_out: Counter[str]
    ) -> CalibrationQueries:
        made: list[tuple[CalibrationDocument, PseudoQuery]] = []
        for document in sampled:
            query = self._pseudo_query(document)
            if isinstance(query, PseudoQuery):
                made.append((document, query))
            else:
                left_out[query] += 1
        if not made:
            raise IndexMismatch(
                f"queries cannot be made from the {pluralize(len(sampled), 'sampled document')} of {self._name}: "
                + ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count),
                "Pass labeled queries with `queries=FILE`.",
            )
        queries = [LabeledQuery(query.text, (document.id,)) for document, query in made]
        kinds = dict(Counter(query.kind.value for _, query in made))
        return CalibrationQueries(queries, self._vectors_without_query(encoder, made), kinds, left_out)

    def _vectors_without_query(
        self, encoder: Encoder, made: Sequence[tuple[CalibrationDocument, PseudoQuery]]
    ) -> list[list[Vectors]]:
        """Compute the vectors that each document would have without its query."""
        rests: dict[int, str] = {}
        kept: list[Vectors] = []
        for number, (document, query) in enumerate(made):
            if query.rest is None:
                kept.append(document.vectors)
                continue
            first_end = document.spans[0][1]
            later = [place for place, (start, _) in enumerate(document.spans) if 0 < query.end <= start]
            # Later passages keep their vectors; the first one is embedded again without the query.
            rest = document.text[query.end : first_end].strip() if later else query.rest
            kept.append(document.vectors[later])
            if rest:
                rests[number] = rest
        embedded = encoder.encode(list(rests.values()), "document")
        for number, vector in zip(rests, embedded, strict=True):
            kept[number] = np.concatenate([vector[None], kept[number]])
        return [[vectors] for vectors in kept]

    def _pseudo_query(self, document: CalibrationDocument) -> PseudoQuery | str:
        """Make a query from a document's text, or return the reason why none can be made."""
        assert self._template is not None
        if not document.text or document.text.isspace():
            return "documents without a text"
        made = read_document_meta(document.source, document_meta_field(self.field.name))
        if made is not None and made.text_hash != text_hash(document.text):
            return "documents whose text changed after their vector was made"
        query = make_pseudo_query(self._template, document.source, document.text)
        return query or "documents whose text is too short for a query"

    def _labeled(self, queries: Sequence[LabeledQuery], left_out: Counter[str]) -> CalibrationQueries:
        ids = list(dict.fromkeys(id for query in queries for id in query.ids))
        size = max(1, min(_PAGE, self._state.result_window) // 2)  # documents with different routings may share an id
        bodies: Iterator[Json] = (
            {
                "query": and_query({"ids": {"values": part}}, self._has_vector),
                "size": 2 * size,
                "_source": self._source(),
                **self._doc_values,
            }
            for part in batched(ids, size)
        )
        hits = (hit for body in bodies for hit in self._engine.search(self.field.index, body)["hits"]["hits"])
        found = {document.id: document for document in self._read(hits, left_out)}
        kept = [
            LabeledQuery(query.text, own) for query in queries if (own := tuple(id for id in query.ids if id in found))
        ]
        left_out["labelled documents that the index does not hold with a vector"] += len(ids) - len(found)
        left_out["queries without a relevant document in the index"] += len(queries) - len(kept)
        if not kept:
            reason = f"{self._name} holds none of the {len(ids):,} labeled documents with a vector, such as {ids[0]!r}"
            raise IndexMismatch(reason, "Check that the ids are those of this index (`_id`).")
        vectors = [[found[id].vectors for id in query.ids] for query in kept]
        return CalibrationQueries(kept, vectors, {}, left_out)

    def _cosines(
        self, wanted: CalibrationQueries, sampled: Sequence[CalibrationDocument], vectors: Vectors
    ) -> CosineSample:
        places = {document.id: place for place, document in enumerate(sampled)}
        own = [[places[id] for id in query.ids if id in places] for query in wanted.queries]
        passed, compared = count_unrelated(vectors, *_stack_vectors([document.vectors for document in sampled]), own)
        if not compared.any():
            raise IndexMismatch(f"{self._name} holds no unrelated documents", "Calibrate on a larger index.")
        relevant = [
            document_cosines(vector[None], *_stack_vectors(documents))[0]
            for documents, vector in zip(wanted.relevant, vectors, strict=True)
        ]
        return CosineSample(relevant, passed, compared)


def _stack_vectors(documents: Sequence[Vectors]) -> tuple[Vectors, Counts]:
    """Join the vectors of all documents; return them and the row of each document's first vector."""
    starts = np.cumsum([0, *(len(vectors) for vectors in documents[:-1])]).astype(np.int64)
    return np.concatenate(documents), starts
