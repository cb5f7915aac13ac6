"""The pipeline of a load: read → sort out → tokenise → embed → pack → write, all at the same time.

Every arrow is a bounded channel, so the slowest stage sets the pace and memory does not grow with the corpus.
Tokenising, the model and the network release Python's lock; the stages really overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from es_sbert.clock import Clock
from es_sbert.encoder.batches import slices_within
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import TokenizedTexts, Vectors
from es_sbert.engines.protocol import Engine
from es_sbert.errors import EngineError
from es_sbert.index.bulk_lines import bodies
from es_sbert.index.filled import FilledField, Piece
from es_sbert.index.targets import Targets
from es_sbert.ingest.actions import Action, index_action, update_action
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.channel import Channel
from es_sbert.ingest.control import Control, Halted
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.observer import Observer
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.pieces import Cutter, WindowVectors, too_many_passages
from es_sbert.ingest.threads import Stages
from es_sbert.ingest.throttle import Throttle

# Threads that send; how many of them do at a time is the throttle's.
WRITERS = 4
# A window may hold this much text; with the channels below, a dozen windows at most are on their way.
WINDOW_BYTES = 16 << 20
# Documents that are cut, or texts that are tokenised, at a time, and characters of them: a load that is halted waits
# for one group, of about a second. The libraries spread each over the processors.
_CUT_GROUP, _CUT_SIZE = 256, 1 << 17
_TOKENIZED_GROUP, _TOKENIZED_SIZE = 4096, 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """A document that gets vectors.

    Attributes:
        document: The document.
        wanted: Targets, by number, that get one; at least one of them.
        kept: Vector fields that it keeps, where it is written as a whole.
    """

    document: Document
    wanted: tuple[int, ...]
    kept: tuple[FilledField, ...] = ()


@dataclass
class Sorted:
    """A window after change detection.

    Attributes:
        embed: Documents that get vectors.
        actions: Actions of documents that get none any more.
    """

    embed: list[Task]
    actions: list[Action] = field(default_factory=list)


@dataclass
class _Tokenized:
    window: Sorted
    pieces: list[list[Piece]]  # of each task
    texts: TokenizedTexts  # of all pieces, one after another


@dataclass
class _Embedded:
    tokenized: _Tokenized
    vectors: Vectors  # (texts, dimensions)
    made: NDArray[np.bool_]  # (texts,), False where the load was halted before the text was embedded


class Loader:
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

    def __init__(self, engine: Engine, encoder: Encoder, targets: Targets, *, throttle: Throttle,
                 sort_out: Callable[[list[Document]], Sorted], writer: BulkWriter, outcomes: Outcomes,
                 control: Control, observer: Observer, clock: Clock, nested_limit: int) -> None:  # fmt: skip
        self._engine = engine
        self._encoder = encoder
        self._targets = targets
        self._cut = Cutter(encoder, targets)
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
        stages = Stages(self._control)
        read: Channel[list[Document]] = stages.channel(2)
        tokenized: Channel[_Tokenized] = stages.channel(1)
        embedded: Channel[_Embedded] = stages.channel(1)
        packed: Channel[list[Action]] = stages.channel(WRITERS)
        stages.start("read", lambda: self._read(windows, read), closes=[read])
        stages.start("tokenise", lambda: self._tokenise(read, tokenized), closes=[tokenized])
        stages.start("embed", lambda: self._embed(tokenized, embedded), closes=[embedded])
        stages.start("pack", lambda: self._pack(embedded, packed), closes=[packed])
        for number in range(WRITERS):
            stages.start(f"write-{number}", lambda: self._write(packed))
        stages.wait(tick)

    def _read(self, windows: Iterable[list[Document]], out: Channel[list[Document]]) -> None:
        # `stop` is looked at by the source, which knows what of it has been counted as read.
        for window in windows:
            out.put(window)

    def _tokenise(self, source: Iterable[list[Document]], out: Channel[_Tokenized]) -> None:
        for window in source:
            wanted = self._sorted(window)
            if wanted is None:
                self._outcomes.left(len(window))
                continue
            try:
                out.put(self._tokenized(wanted))
            except Halted:
                self._outcomes.left(len(wanted.embed) + len(wanted.actions))

    def _sorted(self, window: list[Document]) -> Sorted | None:
        """A window after change detection; None where it is left for the next run."""
        try:
            self._control.check()
            return self._sort_out(window)
        except Halted:
            return None
        except EngineError as error:
            if not self._control.halted.is_set():
                # The lookup has its own retries: the engine is gone.
                self._control.lose(error.message)
            return None

    def _tokenized(self, window: Sorted) -> _Tokenized:
        """The token ids of a window, made in groups: a window may be a minute's work.

        Raises:
            Halted: between two groups.
        """
        tasks: list[Task] = []
        pieces: list[list[Piece]] = []
        refused: list[tuple[Document, str]] = []
        for some in slices_within(window.embed, lambda task: task.document.size, _CUT_SIZE, _CUT_GROUP):
            self._control.check()
            for task, own in zip(some, self._cut([(task.document, task.wanted) for task in some]), strict=True):
                problem = too_many_passages(own, task.kept, self._nested_limit)
                if problem is None:
                    tasks.append(task)
                    pieces.append(own)
                else:
                    refused.append((task.document, problem))
        texts = [text for own in pieces for piece in own for text in piece.texts]
        parts: list[TokenizedTexts] = []
        for part in slices_within(texts, len, _TOKENIZED_SIZE, _TOKENIZED_GROUP):
            self._control.check()
            parts.append(self._encoder.tokenize(part, "document"))
        for document, problem in refused:
            partial = document.version is not None
            self._outcomes.dead(document.origin, problem, document.source, document.id, partial=partial)
        tokenized = TokenizedTexts.joined(parts, self._encoder.info.max_tokens)
        return _Tokenized(Sorted(tasks, window.actions), pieces, tokenized)

    def _embed(self, source: Iterable[_Tokenized], out: Channel[_Embedded]) -> None:
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

    def _pack(self, source: Iterable[_Embedded], out: Channel[list[Action]]) -> None:
        for entry in source:
            for group in bodies(self._actions(entry), self._throttle.body_bytes):
                out.put(group)

    def _write(self, source: Iterable[list[Action]]) -> None:
        for group in source:
            self._writer.send(group)

    def _actions(self, entry: _Embedded) -> Iterator[Action]:
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
            made = [vectors.field_of(task.document, piece) for piece in pieces]
            fields = (*task.kept, *(filled for filled, _ in made))
            lost_tokens = sum(lost for _, lost in made)
            yield Action(
                task.document, self._body(task.document, fields), Outcome.INDEXED, lost_tokens, embedded_at, fields,
                passages=sum(len(piece.spans) for piece in pieces if piece.spans is not None),
            )  # fmt: skip

    def _body(self, document: Document, fields: Sequence[FilledField]) -> bytes:
        if document.version is None:
            return index_action(document, fields)
        return update_action(document, fields, cleared_fields(document, self._targets))


def cleared_fields(document: Document, targets: Targets) -> list[str]:
    """Vector fields that a document of the index loses, because it lost their text."""
    return [targets[number].field for number in document.stale if not document.texts[number]]
