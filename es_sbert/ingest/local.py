"""A load that runs in this process."""

from __future__ import annotations

from pathlib import Path

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import EncoderInfo
from es_sbert.index.meta import PassageRules
from es_sbert.ingest.backfill import IndexReader
from es_sbert.ingest.context import LoadContext, patiently
from es_sbert.ingest.flows import embed_in_place, load_sources, ticker
from es_sbert.ingest.memory import LoadIdentity, LoadMemory
from es_sbert.ingest.milestones import begin, record_watch
from es_sbert.ingest.runner import ModelIdentity
from es_sbert.ingest.sources.letters import take_aside
from es_sbert.ingest.state import LoadState
from es_sbert.ingest.stream import RecordStream
from es_sbert.ingest.watch import Changes


class LocalRunner:
    """Runs a load with one encoder, on this machine's processors or one of its GPUs.

    Args:
        encoder: What embeds; it stays open.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def model(self) -> ModelIdentity:
        info = self._encoder.info
        return ModelIdentity(info.model, info.fingerprint, info.dimensions)

    def check_passages(self, rules: PassageRules) -> None:
        self._encoder.splitter(rules.tokens, rules.overlap, "document")

    def open_memory(self, path: Path, identity: LoadIdentity) -> LoadMemory:
        return LoadState(path, identity)

    def load(self, context: LoadContext) -> EncoderInfo:
        begin(context, self._encoder.info)
        if context.plan.sources:
            self._load_sources(context)
        elif context.plan.settings.watch_seconds is None:
            self._load_index(context, IndexReader(context))
        else:
            self._watch(context, context.plan.settings.watch_seconds)
        return self._encoder.info

    def _load_sources(self, context: LoadContext) -> None:
        settings = context.plan.settings
        if settings.retry is not None:
            take_aside(settings.retry)
        # Of the index itself: an alias may have a filter.
        empty = patiently(context, lambda: context.engine.count(context.index.name)) == 0
        stream = context.stream or RecordStream(context.plan.sources, context.plan.reading, context.control)
        sizes = [source.size for source in context.plan.sources]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        tick = ticker(context, lambda: stream.counter.bytes / total if total else None)
        load_sources(context, self._encoder, stream, tick, empty_index=empty)

    def _load_index(self, context: LoadContext, reader: IndexReader) -> None:
        # A point in time sees what was refreshed; documents written a moment ago are to be embedded too.
        engine, name = context.engine, context.plan.settings.index
        patiently(context, lambda: engine.refresh(name))
        total = patiently(context, lambda: engine.count(name))
        ledger = context.outcomes.ledger
        tick = ticker(context, lambda: min(1.0, ledger.read / total) if total else None)
        embed_in_place(context, self._encoder, reader, reader.documents, tick)

    def _watch(self, context: LoadContext, seconds: float) -> None:
        reader = IndexReader(context)
        # Noted before the first look at everything, so that nothing falls between the two.
        changes = Changes(context, reader)
        self._load_index(context, reader)
        if not context.control.stop.is_set():
            record_watch(context, seconds)
        idle = True
        tick = ticker(context, lambda: None, watching=lambda: idle)
        tick()
        while not context.control.stop.wait(seconds):
            if changes.are_there():
                idle = False
                embed_in_place(context, self._encoder, reader, changes.documents, tick)
                idle = True
            tick()
