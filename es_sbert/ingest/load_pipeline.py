"""The pipeline of a load: read → detect changes, chunk and tokenize → embed → pack bulk bodies → send them.

Each stage has its own thread, sending has several. Bounded queues connect them: the slowest stage sets the pace, and
memory does not grow with the corpus. Tokenizing, inference and network calls release the GIL, so the stages overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from es_sbert.batched import slice_by_size
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.bulk_request import group_actions
from es_sbert.errors import EngineError
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingTargets,
    build_field_value,
    to_wire_order,
)
from es_sbert.ingest.bulk_writer import BulkWriter, DocumentAction, bulk_lines
from es_sbert.ingest.change_detection import ChangeDetection, EmbeddingTask, WindowPlan
from es_sbert.ingest.dead_letters import quarantine
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.ingest.load_threads import EmbeddingStopped, StageThreads
from es_sbert.ingest.read_documents import (
    Document,
    RecordStream,
    cleared_fields,
    document_windows,
    read_documents,
)
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

# Writer threads; the throttle limits how many of them send at a time.
WRITERS = 4
# Maximum bytes of documents in a window. With the queues below, at most a dozen windows are in flight.
WINDOW_BYTES = 16 << 20
# Documents chunked, or texts tokenized, at a time, and their characters: a load that is stopped waits for one group of
# about a second. The libraries spread each group over the CPU cores.
_CHUNKED_GROUP, _CHUNKED_SIZE = 256, 1 << 17
_TOKENIZED_GROUP, _TOKENIZED_SIZE = 4096, 1 << 20


def load_sources(context: LoadContext, encoder: Encoder, stream: RecordStream | None) -> None:
    """Load the documents of the plan's sources.

    Args:
        stream: The records of the sources, if the first ones have been checked; None reads the sources from the start.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    plan = context.plan
    if plan.settings.retry is not None:
        quarantine(plan.settings.retry)
    empty = context.retrying(context.engine.count, context.index.concrete) == 0
    records = stream or RecordStream(plan.sources, plan.reading, context.control)
    sizes = [source.size for source in plan.sources if source.size is not None]
    total = sum(sizes) if len(sizes) == len(plan.sources) else None
    tick = context.progress_callback(lambda: records.counter.bytes / total if total else None)
    load_records(context, encoder, records, tick, empty_index=empty)


def load_records(
    context: LoadContext, encoder: Encoder, stream: RecordStream, tick: Callable[[], None], *, empty_index: bool
) -> None:
    """Load the documents of a stream of records.

    Args:
        tick: Called several times a second.
        empty_index: Whether the index was empty when the load started.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    assert context.checkpoint is not None, "a load of files has a checkpoint"
    rules = context.plan.document_rules(context.targets, context.engine.info, context.index.state)
    documents = read_documents(stream, rules, context.checkpoint, context.outcomes)
    # If the index has other vector fields, another load may be filling them right now.
    detect = ChangeDetection(context, empty_index=empty_index and all(target.filled for target in context.targets))
    pipeline = LoadPipeline(context, encoder, detect)
    pipeline.run(documents, tick)
    pipeline.writer.read_back.check_sample()


def batch_window(context: LoadContext, encoder: Encoder) -> int:
    """Number of texts that are sorted by length and embedded together.

    A GPU needs the encoder's whole window; on a CPU half of it is as fast, and documents reach the index sooner.
    """
    window = context.plan.settings.batch_window
    return window or (encoder.pipeline.window // 2 if encoder.info.device == "cpu" else encoder.pipeline.window)


@dataclass
class _TokenizedWindow:
    plan: WindowPlan
    chunks: list[list[ChunkedText]]  # of each task
    texts: TokenizedTexts  # of all chunks, one after another


# A window, the vectors of its texts, (texts, dimensions), and whether each text was embedded before a stop, (texts,).
_EmbeddedWindow = tuple[_TokenizedWindow, Vectors, NDArray[np.bool_]]


class LoadPipeline:
    """Runs documents through the pipeline.

    Args:
        detect: Change detection: plans a window, and records the outcome of documents that need no write.

    Attributes:
        writer: The last stage.

    Raises:
        UsageError: the chunk rules do not fit the model.
    """

    def __init__(self, context: LoadContext, encoder: Encoder, detect: Callable[[list[Document]], WindowPlan]) -> None:
        self.writer = BulkWriter(context)
        self._context = context
        self._encoder = encoder
        self._detect = detect
        self._chunker = DocumentChunker(encoder, context.targets)
        self._control = context.control
        self._outcomes = context.outcomes

    def run(self, documents: Iterable[Document], tick: Callable[[], None]) -> None:
        """Load documents, and return when each of them has an outcome.

        Raises:
            EsSbertError: a stage failed (never because of a single document).
        """
        windows = document_windows(documents, batch_window(self._context, self._encoder), WINDOW_BYTES)
        threads = StageThreads(self._control)
        # The source itself checks `stop`: it knows which records have been counted as read.
        read = threads.add_stage("read", windows, capacity=2)
        tokenized = threads.add_stage("tokenize", self._detect_and_tokenize(read), capacity=1)
        embedded = threads.add_stage("embed", self._embed(tokenized), capacity=1)
        groups = (group_actions(self._actions(*window), self._context.throttle.body_bytes) for window in embedded)
        packed = threads.add_stage("pack", chain.from_iterable(groups), capacity=WRITERS)
        for number in range(WRITERS):
            threads.start(f"write-{number}", lambda: self._write(packed))
        threads.wait(tick)

    def _detect_and_tokenize(self, windows: Iterable[list[Document]]) -> Iterator[_TokenizedWindow]:
        for window in windows:
            unfinished = [document.key for document in window]
            try:
                self._control.check()
                plan = self._detect(window)
                unfinished = plan.keys
                tokenized = self._tokenize_window(plan)
            except EmbeddingStopped:
                self._outcomes.leave(unfinished)
            except EngineError as error:
                if not self._control.stop_embedding.is_set():
                    # The lookup has been retried: the engine is unreachable, or refuses it.
                    self._control.stop_sending_after(error)
                self._outcomes.leave(unfinished)
            else:
                yield tokenized

    def _tokenize_window(self, plan: WindowPlan) -> _TokenizedWindow:
        """Chunk and tokenize the texts of a window, in groups: a window may take a minute.

        Raises:
            EmbeddingStopped: embedding was stopped before the window was complete.
        """
        chunks: list[list[ChunkedText]] = []
        for group in slice_by_size(plan.embed, lambda task: task.document.size, _CHUNKED_SIZE, _CHUNKED_GROUP):
            self._control.check()
            chunks += self._chunker.chunk(group)
        texts = [text for document_chunks in chunks for chunk in document_chunks for text in chunk.texts]
        parts: list[TokenizedTexts] = []
        for part in slice_by_size(texts, len, _TOKENIZED_SIZE, _TOKENIZED_GROUP):
            self._control.check()
            parts.append(self._encoder.pipeline.tokenize(part, "document"))
        self._outcomes.ledger.add_texts(task.document.texts[number] for task in plan.embed for number in task.to_embed)
        tokenized = TokenizedTexts.joined(parts, self._encoder.pipeline.input_limit("document"))
        self._outcomes.ledger.add(words=tokenized.words.words, new_words=tokenized.words.new)
        return _TokenizedWindow(plan, chunks, tokenized)

    def _embed(self, windows: Iterable[_TokenizedWindow]) -> Iterator[_EmbeddedWindow]:
        ledger = self._outcomes.ledger
        for window in windows:
            if self._control.engine_lost:
                self._outcomes.leave(window.plan.keys)
                continue
            documents = len(window.plan.embed)
            # vectors: (texts, dimensions), embedded: (texts,)
            vectors, embedded = self._encoder.pipeline.embed_until(
                window.texts,
                self._control.stop_embedding,
                lambda part, documents=documents: ledger.add(embedded=part * documents),  # type: ignore[misc]
            )
            yield window, vectors, embedded

    def _write(self, groups: Iterable[list[DocumentAction]]) -> None:
        for group in groups:
            self.writer.send(group)

    def _actions(
        self, window: _TokenizedWindow, all_vectors: Vectors, embedded: NDArray[np.bool_]
    ) -> Iterator[DocumentAction]:
        """Build the bulk actions of a window, with its vectors."""
        yield from window.plan.actions
        info, targets, embedded_at = self._context.engine.info, self._context.targets, self._context.clock.now()
        all_tokens, limit = window.texts.tokens.tolist(), window.texts.max_tokens  # (texts,)
        converted = to_wire_order(info, all_vectors)
        failed = set(np.flatnonzero(~embedded).tolist())
        next_row = 0
        for task, chunks in zip(window.plan.embed, window.chunks, strict=True):
            row = next_row
            for chunk in chunks:
                next_row += chunk.vector_count
            if failed and not failed.isdisjoint(range(row, next_row)):
                self._outcomes.leave([task.document.key])
                continue
            document, document_hash = task.document, task.document.document_hash
            fields, lost_tokens, chunk_count = list(task.reused_fields), 0, 0
            for chunk in chunks:
                rows = slice(row, row + chunk.vector_count)
                row = rows.stop
                vectors = converted[rows]  # (texts of the chunk, dimensions)
                tokens = all_tokens[rows]  # (texts of the chunk,)
                fields.append(build_field_value(info, chunk, vectors, tokens, limit, document_hash, embedded_at))
                if max(tokens) > limit:
                    lost_tokens += sum(max(0, count - limit) for count in tokens)
                if chunk.spans is not None:
                    chunk_count += len(chunk.spans)
            body = bulk_lines(document, fields, cleared_fields(document, targets))
            yield DocumentAction(document, body, DocumentOutcome.INDEXED, tuple(fields), lost_tokens, chunk_count)


class DocumentChunker:
    """Splits the texts of documents into chunks, by the rules of each target.

    Raises:
        UsageError: the chunk rules do not fit the model.
    """

    def __init__(self, encoder: Encoder, targets: EmbeddingTargets) -> None:
        self._targets = targets
        self._chunkers: list[Chunker | None] = []
        for target in targets:
            rules = target.meta.passages if target.filled else None
            chunker = None if rules is None else encoder.pipeline.make_chunker(rules.tokens, rules.overlap, "document")
            self._chunkers.append(chunker)

    def chunk(self, tasks: Sequence[EmbeddingTask]) -> list[list[ChunkedText]]:
        """Split the texts of each document into chunks: one `ChunkedText` per target that gets a vector."""
        chunked: list[Iterator[ChunkedText]] = []  # of each target
        for number, (target, chunker) in enumerate(zip(self._targets, self._chunkers, strict=True)):
            texts = [task.document.texts[number] for task in tasks if number in task.to_embed]
            if chunker is None or not texts:
                chunks = [ChunkedText(target, text) for text in texts]
            else:
                # All texts are passed at once: the library spreads them over the CPU cores.
                cuts = zip(texts, chunker(texts), strict=True)
                chunks = [ChunkedText.cut(target, text, spans) for text, spans in cuts]
            chunked.append(iter(chunks))
        return [[next(chunked[number]) for number in task.to_embed] for task in tasks]
