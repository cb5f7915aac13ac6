"""The pipeline of a load: read → sort out → tokenise → embed → pack → write, all at the same time.

Every arrow is a bounded channel, so the slowest stage sets the pace and memory does not grow with the corpus.
Tokenising, the model and the network release Python's lock; the stages really overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import TokenizedTexts, Vectors
from es_sbert.engines.protocol import Engine
from es_sbert.errors import EngineError
from es_sbert.index.meta import DocumentMeta
from es_sbert.index.vectors import bulk_value
from es_sbert.ingest.actions import Action, bodies, index_action, update_action
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.channel import Channel
from es_sbert.ingest.control import Control
from es_sbert.ingest.dead_letters import now
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.threads import Stages
from es_sbert.ingest.throttle import Throttle
from es_sbert.ingest.triage import lost_tokens

# Threads that send; how many of them do at a time is the throttle's.
WRITERS = 4
# A window may hold this much text; with the channels below, a dozen windows at most are on their way.
WINDOW_BYTES = 16 << 20


@dataclass
class Sorted:
    """A window after change detection.

    Attributes:
        embed: Documents that need a vector.
        actions: Actions that need none any more.
    """

    embed: list[Document]
    actions: list[Action] = field(default_factory=list)


@dataclass
class _Tokenized:
    window: Sorted
    texts: TokenizedTexts


@dataclass
class _Embedded:
    window: Sorted
    texts: TokenizedTexts
    vectors: Vectors  # (documents to embed, dimensions)


class Loader:
    """Runs windows of documents through the pipeline.

    Args:
        sort_out: Change detection; enters what needs nothing more in `outcomes` itself.
        writer: Takes groups of actions.
        throttle: Says how large a group may be.
    """

    def __init__(self, engine: Engine, encoder: Encoder, vector_field: str, *, throttle: Throttle,
                 sort_out: Callable[[list[Document]], Sorted], writer: BulkWriter, outcomes: Outcomes,
                 control: Control) -> None:  # fmt: skip
        self._engine = engine
        self._encoder = encoder
        self._vector_field = vector_field
        self._throttle = throttle
        self._sort_out = sort_out
        self._writer = writer
        self._outcomes = outcomes
        self._control = control

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
            try:
                wanted = self._sort_out(window) if self._control.lost is None else Sorted(window)
            except EngineError as error:
                # The lookup has its own retries: the engine is gone.
                self._control.lose(error.message)
                wanted = Sorted(window)
            if self._control.lost is not None:
                self._leave(wanted)
                continue
            texts = self._encoder.tokenize([document.text for document in wanted.embed], "document")
            out.put(_Tokenized(wanted, texts))

    def _embed(self, source: Iterable[_Tokenized], out: Channel[_Embedded]) -> None:
        for entry in source:
            if self._control.lost is not None:
                # Vectors that nobody will take are not worth the electricity.
                self._leave(entry.window)
                continue
            vectors = self._encoder.embed(entry.texts)  # (documents to embed, dimensions)
            out.put(_Embedded(entry.window, entry.texts, vectors))

    def _pack(self, source: Iterable[_Embedded], out: Channel[list[Action]]) -> None:
        for entry in source:
            for group in bodies(self._actions(entry), self._throttle.body_bytes):
                out.put(group)

    def _write(self, source: Iterable[list[Action]]) -> None:
        for group in source:
            self._writer.send(group)

    def _actions(self, entry: _Embedded) -> Iterator[Action]:
        info = self._engine.info
        yield from entry.window.actions
        embedded_at = now()
        for row, document in enumerate(entry.window.embed):
            tokens = int(entry.texts.tokens[row])
            meta = DocumentMeta(
                fingerprint=self._encoder.info.fingerprint, text_hash=document.text_hash,
                document_hash=document.document_hash, tokens=tokens, truncated=bool(entry.texts.truncated[row]),
                embedded_at=embedded_at,
            )  # fmt: skip
            vector = entry.vectors[row]  # (dimensions,)
            value = bulk_value(info, vector)
            build = index_action if document.version is None else update_action
            body = build(document, self._vector_field, value, meta)
            lost = lost_tokens(tokens, entry.texts.max_tokens)
            yield Action(document, body, Outcome.INDEXED, lost, embedded_at)

    def _leave(self, window: Sorted) -> None:
        self._outcomes.left(len(window.embed) + len(window.actions))
