"""Choose a minimum cosine for an index, from the shares of relevant and unrelated documents that each value keeps.

The queries are labeled, or made from documents. A pseudo-query is a sentence of a document, and it should find the rest
of the document. This is the inverse cloze task (Lee, Chang and Toutanova 2019, "Latent Retrieval for Weakly Supervised
Open Domain Question Answering"). The sentence is removed from the document, because real queries rarely repeat a
sentence of the document they look for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from es_sbert.arguments import check_arguments, spell_out, with_defaults
from es_sbert.batched import batched
from es_sbert.diagnostics.confidence_interval import ConfidenceInterval
from es_sbert.diagnostics.min_cosine import (
    CosineRecommendation,
    CosineSample,
    Counts,
    ThresholdRow,
    count_unrelated,
    recommend_cosine,
)
from es_sbert.diagnostics.recall import document_cosines
from es_sbert.encoder.encoder import Encoder, ModelOptions, chosen_encoder, report_warnings
from es_sbert.engines.connect import EngineOrClient, connected
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import CosinesOverlap, IndexMismatch
from es_sbert.evaluation.judgement_files import LabeledQuery, labeled_queries
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import doc_value_request, hit_vectors, read_document_meta, text_hash
from es_sbert.index.mapping import and_query, document_meta_field, has_vector_query, vector_path
from es_sbert.index.privileges import SAVE_MIN_COSINE, require_privileges
from es_sbert.index.text_template import TextTemplate, format_vector_field_option
from es_sbert.index.vector_field import check_field_model, require_index, save_min_cosine, vector_field_from_state
from es_sbert.messages import escape_unprintable, pluralize, setting
from es_sbert.settings import CalibrationOptions, VectorFieldName, no_report
from es_sbert.vectors import Vectors

# The end of a sentence: a period and any closing marks, followed by white space, or the period of a script without
# spaces. The end of a line counts too, because line feeds join the fields of a text, and titles have no period.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]»]*\s+|[。！？｡]+[」』”’）]*\s*|\s*\n\s*")
_MIN_SENTENCE_WORDS = 3
_MIN_UNSPACED_CHARACTERS = 8


@dataclass(frozen=True)
class PseudoQuery:
    """A part of a document as a query.

    Attributes:
        text: The query, never the whole text of the document.
        kind: The part of the document, in words.
        end: Position in the document's text after the query.
        rest: The document's text without the query. None if the text is one sentence, because its halves make no sense
            on their own; the query is then compared with the whole text.
    """

    text: str
    kind: str
    end: int
    rest: str | None


def make_pseudo_query(text: str) -> PseudoQuery | None:
    """Make a query that should find the document with this text; None if the text is too short for one.

    The query is the first sentence if the text has several, or else the first half of the words.
    """
    end = first_sentence_end(text)
    if end is not None:
        return PseudoQuery(text[:end].strip(), "first sentence", end, text[end:].strip())
    half = first_half(text)
    return None if half is None else PseudoQuery(half, "first half of the words", len(half), None)


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


@dataclass(frozen=True)
class Calibration:
    """The results of a calibration.

    Usage:
        ```python
        calibration = calibrate_index("docs", "http://localhost:9200")
        print(calibration.sample, len(calibration.queries), calibration.as_json()["recommended"])
        ```

    Attributes:
        index, field, model: The index and the field that are searched, and the model of the field.
        documents: Number of documents with a vector.
        sample: Number of documents that serve as unrelated documents.
        queries: The queries; each has a relevant document in the index.
        kinds: Part of a document → number of queries made of it; empty for labeled queries.
        left_out: Reason → number of documents or queries that were left out for it.
        keep: Share of the relevant documents that the recommended value keeps.
        max_unrelated: Largest share of the unrelated documents that a useful value lets pass.
        cosines: The cosines of the queries, in the same order.
        rows: The values to show, in ascending order.
        recommended: The value to use.
    """

    index: str
    field: str
    model: str
    documents: int
    sample: int
    queries: Sequence[LabeledQuery]
    kinds: Mapping[str, int]
    left_out: Mapping[str, int]
    keep: float
    max_unrelated: float
    cosines: CosineSample
    rows: Sequence[ThresholdRow]
    recommended: CosineRecommendation

    def as_json(self) -> Json:
        """Return the results as a dictionary, as `es-sbert index calibrate --json` prints them."""
        shown = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "cosines"}
        return shown | {
            "queries": len(self.queries),
            "labelled": not self.kinds,
            "rows": [asdict(row) for row in self.rows],
            "recommended": asdict(self.recommended),
        }


def calibration_lines(report: Calibration) -> list[str]:
    """Format the report as lines: the measured data, a table of values, the recommendation, commands that apply it."""
    recommended, row = report.recommended, report.recommended.row
    made = ", ".join(f"{kind}: {n:,}" for kind, n in report.kinds.items())
    what = f"queries made of documents ({made})" if made else "labeled queries"
    lines = [
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')} with vectors of "
        f"{escape_unprintable(report.model)}",
        f"{len(report.queries):,} {what}, compared with a sample of {pluralize(report.sample, 'document')}",
    ]
    if report.left_out:
        lines.append("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in report.left_out.items()))
    lines.append(f"{'min_cosine':>10}{'recall':>9}{'95 % interval':>17}{'unrelated':>12}{'per 100,000':>13}")
    lines += [
        f"{each.min_cosine:>10.2f}{each.recall.mean:>9.3f}{f'{each.recall.low:.3f}–{each.recall.high:.3f}':>17}"
        f"{f'{each.unrelated.mean:.3%}':>12}{100_000 * each.unrelated.mean:>13,.0f}"
        for each in report.rows
    ]
    if made:
        lines.append(
            "These queries are parts of documents, each compared with the rest of its document, not real queries. The "
            f"value may be too high or too low for real queries. {setting('queries', 'FILE')} gives a better one."
        )
    interval = (
        f"at most {recommended.high:.2f}; for a lower end, use more queries"
        if recommended.low is None
        else f"{recommended.low:.2f}–{recommended.high:.2f}"
    )
    lines.append(
        f"Recommended to keep {report.keep:g} of the relevant documents: {row.min_cosine:.2f} (95 % interval: "
        f"{interval}). It keeps {_format_percent(row.recall)}, and lets {_format_percent(row.unrelated)} of unrelated "
        f"documents pass: about {row.unrelated.mean * report.documents:,.0f} of {report.documents:,} for each query."
    )
    if recommended.overlaps:
        lines.append(
            f"More than {report.max_unrelated:.2%} of unrelated documents pass: a minimum cosine does not separate "
            "them from relevant ones. Rank by cosine without a minimum, use a hybrid search, or use a model that was "
            f"trained on such texts. The lowest value that at most {report.max_unrelated:.2%} pass is "
            f"{recommended.separating.min_cosine:.2f}. It keeps {_format_percent(recommended.separating.recall)} of "
            "the relevant documents."
        )
    value = f"{row.min_cosine:.2f}"
    request = f'{{"match": {{"semantic": {{"query": "…", "min_cosine": {value}}}}}}}'
    lines.append(f"Use it for all searches: `es-sbert serve --min-cosine {value}`, or in one request: `{request}`")
    return lines


def overlap_error(report: Calibration) -> CosinesOverlap:
    """Make the error for a value that too many unrelated documents pass, and that is therefore not stored."""
    row, kept = report.recommended.row, report.recommended.separating.recall.mean
    keep, passing = math.floor(1000 * kept) / 1000, math.ceil(1000 * row.unrelated.mean) / 1000
    error = CosinesOverlap(
        f"{row.min_cosine:.2f} was not stored: {row.unrelated.mean:.2%} of unrelated documents pass it",
        f"{setting('queries', 'FILE')} may give a better value. {setting('keep', keep)} stores one that few pass, but "
        f"loses relevant documents. {setting('max_unrelated', passing)} stores {row.min_cosine:.2f} all the same.",
    )
    error.calibration = report
    return error


def _format_percent(share: ConfidenceInterval) -> str:
    return f"{share.mean:.2%} ({share.low:.2%}–{share.high:.2%})"


_PAGE = 500
# Vectors of each relevant document of a query, *shape:* ``(vectors, dimensions)``.
RelevantVectors = Sequence[Vectors]


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
        self._filter = state.alias(name).get("filter")
        self.field = vector_field_from_state(engine, state, vector_field)
        self._doc_values = doc_value_request(engine.info.engine_type, [self.field])
        self._has_vector = and_query(has_vector_query(vector_field, self.field.meta), self._filter)
        self._template = None if self.field.meta.text is None else TextTemplate.parse(self.field.meta.text)

    def calibrate(
        self,
        encoder: Encoder,
        queries: Sequence[LabeledQuery] | None = None,
        *,
        report: Callable[[str], None] = no_report,
        **options: Unpack[CalibrationOptions],
    ) -> Calibration:
        """Measure the cosines of queries with their relevant documents, and with others; recommend a minimum cosine.

        The index should not be written to at the same time.

        Args:
            encoder: The model of the field.
            queries: Labeled queries; None makes pseudo-queries from the sampled documents.
            options: See `CalibrationOptions`; nothing is saved here.
            report: Called with a message before each step.

        Raises:
            IndexMismatch: the encoder has another model, or there are no vectors, queries or unrelated documents.
            EngineError: the engine failed.
        """
        chosen = with_defaults(CalibrationOptions, options)
        keep, max_unrelated = chosen["keep"], chosen["max_unrelated"]
        check_field_model(self.field, encoder.info.fingerprint, encoder.info.model)
        if queries is None and self._template is None:
            raise IndexMismatch(
                f"the text of {self.field.index}.{self.field.name} is not known, so queries cannot be made from it",
                f"Pass labeled queries with {setting('queries', 'FILE')}, or set the text: `es-sbert index create "
                f"{self._name} --text-field FIELD{format_vector_field_option(self.field.name)}`.",
            )
        self._engine.refresh(self.field.index)
        documents = self._engine.count(self.field.index, self._has_vector)
        every = self._engine.count(self.field.index, self._filter)
        left_out = Counter({"documents without a vector": every - documents})
        most = min(chosen["sample"], self._state.result_window)
        report(f"reading {min(most, documents):,} of {pluralize(documents, 'document')}")
        source, extra = self._source(), self._doc_values
        hits = random_hits(self._engine, self.field.index, self._has_vector, most, source=source, extra=extra)
        sampled = list(self._read(hits, left_out))
        if not sampled:
            raise IndexMismatch(
                f"no document of {self._name} has a vector of {self.field.meta.model} in {self.field.name}",
                f"Embed its documents first: `es-sbert ingest --index {self._name}"
                f"{format_vector_field_option(self.field.name)}`.",
            )
        kinds: Counter[str] = Counter()
        if queries is None:
            used, relevant = self._pseudo_queries(encoder, sampled, kinds, left_out)
        else:
            used, relevant = self._labeled(queries, left_out)
        report(f"embedding {pluralize(len(used), 'query', 'queries')}")
        vectors = encoder.encode([query.text for query in used], "query")
        places = {document.id: place for place, document in enumerate(sampled)}
        own = [[places[id] for id in query.ids if id in places] for query in used]
        counts = count_unrelated(vectors, *_stack_vectors([document.vectors for document in sampled]), own)
        if not counts[0].compared.any():
            raise IndexMismatch(f"{self._name} holds no unrelated documents", "Calibrate on a larger index.")
        near = [
            document_cosines(vector[None], *_stack_vectors(documents))[0]
            for documents, vector in zip(relevant, vectors, strict=True)
        ]
        made_of = [place for [place] in own] if queries is None else None
        cosines = CosineSample(near, *counts, made_of)
        return Calibration(
            self._name,
            self.field.name,
            self.field.meta.model,
            documents,
            len(sampled),
            used,
            kinds,
            {reason: count for reason, count in left_out.items() if count},
            keep,
            max_unrelated,
            cosines,
            *recommend_cosine(cosines, keep, max_unrelated),
        )

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
        self,
        encoder: Encoder,
        sampled: Sequence[CalibrationDocument],
        kinds: Counter[str],
        left_out: Counter[str],
    ) -> tuple[list[LabeledQuery], list[RelevantVectors]]:
        made: list[tuple[CalibrationDocument, PseudoQuery]] = []
        for document in sampled:
            query = self._pseudo_query(document)
            if isinstance(query, PseudoQuery):
                made.append((document, query))
                kinds[query.kind] += 1
            else:
                left_out[query] += 1
        if not made:
            raise IndexMismatch(
                f"queries cannot be made from the {pluralize(len(sampled), 'sampled document')} of {self._name}: "
                + ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count),
                f"Pass labeled queries with {setting('queries', 'FILE')}.",
            )
        queries = [LabeledQuery(query.text, (document.id,)) for document, query in made]
        return queries, self._vectors_without_query(encoder, made)

    def _vectors_without_query(
        self, encoder: Encoder, made: Sequence[tuple[CalibrationDocument, PseudoQuery]]
    ) -> list[RelevantVectors]:
        """Compute the vectors that each document would have without its query."""
        rests: dict[int, str] = {}
        kept: list[Vectors] = []
        for number, (document, query) in enumerate(made):
            if query.rest is None:
                kept.append(document.vectors)
                continue
            first_end = document.spans[0][1]
            later = [place for place, (start, _) in enumerate(document.spans) if query.end <= start]
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
        if not document.text or document.text.isspace():
            return "documents without a text"
        made = read_document_meta(document.source, document_meta_field(self.field.name))
        if made is not None and made.text_hash != text_hash(document.text):
            return "documents whose text changed after their vector was made"
        query = make_pseudo_query(document.text)
        return query or "documents whose text is too short for a query"

    def _labeled(
        self, queries: Sequence[LabeledQuery], left_out: Counter[str]
    ) -> tuple[list[LabeledQuery], list[RelevantVectors]]:
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
        return kept, [[found[id].vectors for id in query.ids] for query in kept]


class CalibrateOptions(ModelOptions, VectorFieldName, CalibrationOptions, total=False):
    """Keyword arguments of `calibrate_index`: the model, by default that of the index, and how to measure.

    Attributes:
        queries: Labeled queries: a file (JSON Lines of `{"query": "…", "ids": ["…"]}`, or a judgement list), or a list
            of `LabeledQuery`; by default, queries are made of the sampled documents.
    """

    queries: str | Path | Sequence[LabeledQuery] | None


@check_arguments
@spell_out(CalibrateOptions)
def calibrate_index(index: str, engine: EngineOrClient = None, **options: Unpack[CalibrateOptions]) -> Calibration:
    """Measure and recommend a minimum cosine for searches of an index, as `es-sbert index calibrate` does.

    Usage:
        ```python
        print(calibrate_index("docs", "http://localhost:9200").recommended.row.min_cosine)
        ```

    Args:
        index: Index, or alias of one.
        engine: As for `SemanticIndex`.
        options: See `CalibrateOptions`. `report` is called with a message before each step.

    Raises:
        CosinesOverlap: with `save`: more unrelated documents pass the value than `max_unrelated`.
        IndexMissing, IndexMismatch: there is no such index or field, or it has no vectors or queries.
        SourceError: the file of queries cannot be read.
        ModelError, DeviceError, UsageError: as for `Encoder`.
        EngineError: the engine failed.
    """
    chosen: Any = with_defaults(CalibrateOptions, options)
    save, report = chosen["save"], chosen["report"]
    queries = labeled_queries("queries", chosen["queries"])
    with connected(engine) as opened:
        calibrator = IndexCalibrator(opened, index, chosen["vector_field"])
        field = calibrator.field
        if save:
            require_privileges(opened, field.index, SAVE_MIN_COSINE)
        with chosen_encoder(options, (field.index, field.meta.model, field.meta.fingerprint)) as encoder:
            report_warnings(encoder, report)
            measuring: Any = {name: chosen[name] for name in CalibrationOptions.__annotations__}
            found = calibrator.calibrate(encoder, queries, report=report, **measuring)
        if save and found.recommended.overlaps:
            raise overlap_error(found)
        if save:
            save_min_cosine(opened, field, found.recommended.row.min_cosine)
        return found


def _stack_vectors(documents: Sequence[Vectors]) -> tuple[Vectors, Counts]:
    """Join the vectors of all documents; return them and the row of each document's first vector."""
    starts = np.cumsum([0, *(len(vectors) for vectors in documents[:-1])]).astype(np.int64)
    return np.concatenate(documents), starts
