"""The pipeline of a load: read → detect changes → tokenize → embed → pack → write, all at the same time.

The stages are connected by bounded queues: the slowest stage sets the pace, and memory does not grow with the corpus.
Tokenizing, inference and network calls release the GIL, so the stages overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from es_sbert.clock import Clock
from es_sbert.encoder.batching import Vectors, slice_by_size
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.tokenizer import Chunker, TokenizedTexts
from es_sbert.engines.protocol import Engine, EngineInfo
from es_sbert.engines.retry import Throttle
from es_sbert.errors import EngineError
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingProvenance,
    EmbeddingTargets,
    VectorFieldValue,
    build_field_value,
    bulk_bodies,
)
from es_sbert.index.mapping import NESTED_LIMIT, nested_limit
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.change_detection import ChangeDetection, EmbeddingTask, WindowPlan
from es_sbert.ingest.documents import (
    Document,
    DocumentAction,
    DocumentRules,
    RecordStream,
    cleared_fields,
    document_windows,
    index_action,
    read_documents,
    update_action,
)
from es_sbert.ingest.ledger import DocumentOutcome, OutcomeRecorder
from es_sbert.ingest.load_context import (
    LoadContext,
    check_index_uuid,
    moved_alias_reason,
    retrying_unless_halted,
)
from es_sbert.ingest.pipeline import ClosableQueue, LoadControl, LoadHalted, Pipeline
from es_sbert.ingest.progress import LoadObserver
from es_sbert.ingest.read_back import ReadBackCheck


def load_sources(
    context: LoadContext, encoder: Encoder, stream: RecordStream, tick: Callable[[], None], *, empty_index: bool
) -> None:
    """Bring every document of the plan's sources to its end.

    Args:
        stream: Their records.
        tick: Called several times a second.
        empty_index: Whether the index held nothing when the load began.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    assert context.memory is not None, "a load of files remembers what it met"
    settings, outcomes = context.plan.settings, context.outcomes
    detect = ChangeDetection(
        context.engine,
        context.index,
        settings.index,
        context.targets,
        outcomes,
        patiently=partial(retrying_unless_halted, context),
        # Where there are other vector fields, another load may be filling them just now.
        empty_index=empty_index and all(target.filled for target in context.targets),
        # A letter gives way to a later version of its document, also to one that was written a moment ago.
        refresh=settings.retry is not None,
        distrusted=context.memory.is_distrusted(),
    )
    rules = DocumentRules.of(context.targets, settings.id_field, context.index.alias_routing(settings.index))
    documents = read_documents(stream, rules, context.memory, outcomes)
    read_back = ReadBackCheck(context)
    loader = build_pipeline(context, encoder, detect, fail_on_conflict, read_back)
    loader.run(document_windows(documents, batch_window(context, encoder), WINDOW_BYTES), tick)
    read_back.check_sample()


def fail_on_conflict(action: DocumentAction) -> None:
    raise RuntimeError(f"{action.document.id} was sent without a version, yet conflicted")


def batch_window(context: LoadContext, encoder: Encoder) -> int:
    """Texts that are sorted by length and embedded together.

    A GPU wants all that the encoder takes; on a CPU half of it costs nothing, and documents reach the index sooner.
    """
    asked = context.plan.settings.batch_window
    return asked or (encoder.window // 2 if encoder.info.device == "cpu" else encoder.window)


def build_pipeline(
    context: LoadContext,
    encoder: Encoder,
    sort_out: Callable[[list[Document]], WindowPlan],
    on_conflict: Callable[[DocumentAction], None],
    read_back: ReadBackCheck,
) -> LoadPipeline:
    writer = BulkWriter(
        # The index itself: behind an alias that goes over to another model's meanwhile, vectors would be mixed.
        context.engine,
        context.index.name,
        context.policy,
        context.throttle,
        context.outcomes,
        context.control,
        on_conflict,
        context.observer,
        read_back,
        partial(check_index_uuid, context),
        partial(moved_alias_reason, context),
    )
    return LoadPipeline(
        context.engine,
        encoder,
        context.targets,
        throttle=context.throttle,
        sort_out=sort_out,
        writer=writer,
        outcomes=context.outcomes,
        control=context.control,
        observer=context.observer,
        clock=context.clock,
        nested_limit=nested_limit(context.index),
    )


class DocumentChunker:
    """Cuts the texts of documents by the rules of each target.

    Raises:
        UsageError: rules that do not go with the model.
    """

    def __init__(self, encoder: Encoder, targets: EmbeddingTargets) -> None:
        self._targets = targets
        self._splitters: list[Chunker | None] = [
            encoder.splitter(target.meta.passages.tokens, target.meta.passages.overlap, "document")
            if target.filled and target.meta.passages is not None
            else None
            for target in targets
        ]

    def __call__(self, wanted: Sequence[tuple[Document, tuple[int, ...]]]) -> list[list[ChunkedText]]:
        """The pieces of each document.

        Args:
            wanted: Documents, each with the targets that it gets a vector for.
        """
        cut: dict[tuple[int, int], ChunkedText] = {}
        for number, splitter in enumerate(self._splitters):
            rows = [row for row, (_, targets) in enumerate(wanted) if number in targets]
            if splitter is not None and rows:
                # All at once: the library spreads them over the processors.
                found = splitter([wanted[row][0].texts[number] for row in rows])
                for row, passages in zip(rows, found, strict=True):
                    cut[row, number] = ChunkedText.cut(self._targets[number], wanted[row][0].texts[number], passages)
        return [
            [cut.get((row, number)) or ChunkedText(self._targets[number], document.texts[number]) for number in targets]
            for row, (document, targets) in enumerate(wanted)
        ]


def chunk_limit_problem(pieces: Sequence[ChunkedText], kept: Sequence[VectorFieldValue], limit: int) -> str | None:
    """Why an index would refuse a document with so many passages; None where it would not.

    Args:
        pieces: What is embedded of the document.
        kept: Vector fields that it keeps.
        limit: Nested objects that the index takes of a document, those of its other fields included.
    """
    passages = sum(len(piece.spans) for piece in pieces if piece.spans is not None)
    passages += sum(field.meta.passages or 0 for field in kept)
    if passages <= limit:
        return None
    return (
        f"its text is cut into {passages:,} passages, but the index takes {limit:,} nested objects a document "
        f"({NESTED_LIMIT}): raise the setting, or use larger passages"
    )


class WindowVectors:
    """The vectors of a window, handed out piece by piece in the order in which the pieces were embedded.

    Args:
        info: The engine, for the form of a vector.
        tokenized: What the model read.
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        embedded_at: When, in UTC, ISO 8601.
    """

    def __init__(self, info: EngineInfo, tokenized: TokenizedTexts, vectors: Vectors, embedded_at: str) -> None:
        self._info = info
        self._tokenized = tokenized
        self._vectors = vectors
        self._embedded_at = embedded_at
        self._next = 0

    def skip(self, pieces: Sequence[ChunkedText]) -> None:
        """Pass over the next pieces, of which not all were embedded."""
        self._next += sum(len(piece.texts) for piece in pieces)

    def next_field(self, document: Document, piece: ChunkedText) -> tuple[VectorFieldValue, int]:
        """The vector field of the next piece, and how many tokens of its text the model did not read."""
        rows = slice(self._next, self._next + len(piece.texts))
        self._next = rows.stop
        tokens = self._tokenized.tokens[rows].tolist()  # (texts of the piece,)
        most = self._tokenized.max_tokens
        origins = EmbeddingProvenance(document.document_hash, self._embedded_at)
        filled = build_field_value(self._info, piece, self._vectors[rows], tokens, most, origins)
        return filled, sum(max(0, count - most) for count in tokens)


# Threads that send; how many of them do at a time is the throttle's.
WRITERS = 4
# A window may hold this much text; with the channels below, a dozen windows at most are on their way.
WINDOW_BYTES = 16 << 20
# Documents that are cut, or texts that are tokenised, at a time, and characters of them: a load that is halted waits
# for one group, of about a second. The libraries spread each over the processors.
_CHUNKED_GROUP, _CHUNKED_SIZE = 256, 1 << 17
_TOKENIZED_GROUP, _TOKENIZED_SIZE = 4096, 1 << 20


@dataclass
class _Tokenized:
    window: WindowPlan
    pieces: list[list[ChunkedText]]  # of each task
    texts: TokenizedTexts  # of all pieces, one after another


@dataclass
class _Embedded:
    tokenized: _Tokenized
    vectors: Vectors  # (texts, dimensions)
    made: NDArray[np.bool_]  # (texts,), False where the load was halted before the text was embedded


class LoadPipeline:
    """Runs windows of documents through the pipeline.

    Args:
        targets: The load's vector fields.
        sort_out: Change detection; enters what needs nothing more in `outcomes` itself.
        writer: Takes groups of actions.
        throttle: Says how large a group may be.
        clock: Gives the vectors their times.
        nested_limit: Nested objects that the index takes of a document.

    Raises:
        UsageError: rules for passages that do not go with the model.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        targets: EmbeddingTargets,
        *,
        throttle: Throttle,
        sort_out: Callable[[list[Document]], WindowPlan],
        writer: BulkWriter,
        outcomes: OutcomeRecorder,
        control: LoadControl,
        observer: LoadObserver,
        clock: Clock,
        nested_limit: int,
    ) -> None:
        self._engine = engine
        self._encoder = encoder
        self._targets = targets
        self._cut = DocumentChunker(encoder, targets)
        self._throttle = throttle
        self._sort_out = sort_out
        self._writer = writer
        self._outcomes = outcomes
        self._control = control
        self._observer = observer
        self._clock = clock
        self._nested_limit = nested_limit

    def run(self, windows: Iterable[list[Document]], tick: Callable[[], None]) -> None:
        """Load all windows; returns when every document has come to an end.

        Raises:
            EsSbertError: a stage failed (never because of a single document).
        """
        stages = Pipeline(self._control)
        read: ClosableQueue[list[Document]] = stages.channel(2)
        tokenized: ClosableQueue[_Tokenized] = stages.channel(1)
        embedded: ClosableQueue[_Embedded] = stages.channel(1)
        packed: ClosableQueue[list[DocumentAction]] = stages.channel(WRITERS)
        stages.start("read", lambda: self._read(windows, read), closes=[read])
        stages.start("tokenise", lambda: self._tokenise(read, tokenized), closes=[tokenized])
        stages.start("embed", lambda: self._embed(tokenized, embedded), closes=[embedded])
        stages.start("pack", lambda: self._pack(embedded, packed), closes=[packed])
        for number in range(WRITERS):
            stages.start(f"write-{number}", lambda: self._write(packed))
        stages.wait(tick)

    def _read(self, windows: Iterable[list[Document]], out: ClosableQueue[list[Document]]) -> None:
        # `stop` is looked at by the source, which knows what of it has been counted as read.
        for window in windows:
            out.put(window)

    def _tokenise(self, source: Iterable[list[Document]], out: ClosableQueue[_Tokenized]) -> None:
        for window in source:
            wanted = self._sorted(window)
            if wanted is None:
                self._outcomes.left(len(window))
                continue
            try:
                out.put(self._tokenized(wanted))
            except LoadHalted:
                self._outcomes.left(len(wanted.embed) + len(wanted.actions))

    def _sorted(self, window: list[Document]) -> WindowPlan | None:
        """A window after change detection; None where it is left for the next run."""
        try:
            self._control.check()
            return self._sort_out(window)
        except LoadHalted:
            return None
        except EngineError as error:
            if not self._control.halted.is_set():
                # The lookup has its own retries: the engine is gone.
                self._control.mark_unreachable(error.message)
            return None

    def _tokenized(self, window: WindowPlan) -> _Tokenized:
        """The token ids of a window, made in groups: a window may be a minute's work.

        Raises:
            Halted: between two groups.
        """
        tasks: list[EmbeddingTask] = []
        pieces: list[list[ChunkedText]] = []
        refused: list[tuple[Document, str]] = []
        for some in slice_by_size(window.embed, lambda task: task.document.size, _CHUNKED_SIZE, _CHUNKED_GROUP):
            self._control.check()
            for task, own in zip(some, self._cut([(task.document, task.wanted) for task in some]), strict=True):
                problem = chunk_limit_problem(own, task.kept, self._nested_limit)
                if problem is None:
                    tasks.append(task)
                    pieces.append(own)
                else:
                    refused.append((task.document, problem))
        texts = [text for own in pieces for piece in own for text in piece.texts]
        parts: list[TokenizedTexts] = []
        for part in slice_by_size(texts, len, _TOKENIZED_SIZE, _TOKENIZED_GROUP):
            self._control.check()
            parts.append(self._encoder.tokenize(part, "document"))
        for document, problem in refused:
            partial = document.version is not None
            self._outcomes.dead(document.origin, problem, document.source, document.id, partial=partial)
        tokenized = TokenizedTexts.joined(parts, self._encoder.info.max_tokens)
        return _Tokenized(WindowPlan(tasks, window.actions), pieces, tokenized)

    def _embed(self, source: Iterable[_Tokenized], out: ClosableQueue[_Embedded]) -> None:
        for entry in source:
            if self._control.lost is not None:
                # Vectors that nobody will take are not worth the electricity.
                self._outcomes.left(len(entry.window.embed) + len(entry.window.actions))
                continue
            progress = partial(self._embedded, len(entry.window.embed))
            with self._observer.embed():
                # vectors: (texts, dimensions), made: (texts,)
                vectors, made = self._encoder.embed_until(entry.texts, self._control.halted, progress)
            out.put(_Embedded(entry, vectors, made))

    def _embedded(self, documents: int, part: float) -> None:
        self._outcomes.ledger.add_embedded(part * documents)

    def _pack(self, source: Iterable[_Embedded], out: ClosableQueue[list[DocumentAction]]) -> None:
        for entry in source:
            for group in bulk_bodies(self._actions(entry), self._throttle.body_bytes):
                out.put(group)

    def _write(self, source: Iterable[list[DocumentAction]]) -> None:
        for group in source:
            self._writer.send(group)

    def _actions(self, entry: _Embedded) -> Iterator[DocumentAction]:
        tokenized, embedded_at = entry.tokenized, self._clock.now()
        yield from tokenized.window.actions
        vectors = WindowVectors(self._engine.info, tokenized.texts, entry.vectors, embedded_at)
        first = 0
        for task, pieces in zip(tokenized.window.embed, tokenized.pieces, strict=True):
            end = first + sum(len(piece.texts) for piece in pieces)
            whole, first = bool(entry.made[first:end].all()), end
            if not whole:
                vectors.skip(pieces)
                self._outcomes.left(1)
                continue
            made = [vectors.next_field(task.document, piece) for piece in pieces]
            fields = (*task.kept, *(filled for filled, _ in made))
            lost_tokens = sum(lost for _, lost in made)
            yield DocumentAction(
                task.document,
                self._body(task.document, fields),
                DocumentOutcome.INDEXED,
                lost_tokens,
                embedded_at,
                fields,
                passages=sum(len(piece.spans) for piece in pieces if piece.spans is not None),
            )

    def _body(self, document: Document, fields: Sequence[VectorFieldValue]) -> bytes:
        if document.version is None:
            return index_action(document, fields)
        return update_action(document, fields, cleared_fields(document, self._targets))
