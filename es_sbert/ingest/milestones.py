"""Milestones of a load as events: its beginning, the watch for changes, its end."""

from __future__ import annotations

import logging

from es_sbert.encoder.types import EncoderInfo
from es_sbert.events import record
from es_sbert.index.targets import filled
from es_sbert.ingest.context import LoadContext
from es_sbert.ingest.summary import Summary
from es_sbert.printable import printable


def begin(context: LoadContext, encoder: EncoderInfo) -> None:
    """Tell whoever observes the load what is loaded where, and by what."""
    plan, engine = context.plan, context.engine.info
    context.observer.began(plan.settings.index, engine, encoder, context.outcomes.ledger, context.throttle)
    settings = plan.settings.model_dump(
        mode="json", include={"id_field", "batch_window", "bulk_bytes", "retry_seconds", "prune"}
    )
    texts = {target.field: target.template.template for target in filled(context.targets)}
    record(
        "load_started", f"loading into {context.index.name} on {engine.label}", index=context.index.name,
        engine=engine.label, url=engine.url, sources=[source.name for source in plan.sources],
        texts=texts, model=encoder.model, fingerprint=encoder.fingerprint,
        precision=encoder.precision, provider=encoder.provider, device=encoder.device, threads=encoder.threads,
        state=None if context.memory is None else str(context.memory.path),
        resumed=context.memory is not None and context.memory.resumed, dead_letters=str(plan.dead_letters), **settings,
    )  # fmt: skip


def record_watch(context: LoadContext, seconds: float) -> None:
    """The documents that were there have vectors; from now on changes are embedded."""
    index = context.plan.settings.index
    message = f"Watching {printable(index)} for changes every {seconds:g} s; Ctrl-C ends the command."
    record("watching", message, text=message, index=index, seconds=seconds)


def record_end(summary: Summary, *, shown: bool = True) -> None:
    """The summary, after the dead letters where there are any.

    Args:
        shown: Whether a terminal shows it.
    """
    if summary.dead:
        record(
            "dead_letters", f"{summary.dead:,} documents could not be loaded: see {summary.dead_letters}",
            logging.WARNING, text="", documents=summary.dead, file=summary.dead_letters,
        )  # fmt: skip
    level = logging.INFO if summary.exit_code == 0 else logging.WARNING
    lines = summary.lines()
    text = "\n".join(map(printable, lines)) if shown else ""
    record("load_ended", lines[0], level, text=text, exit_code=summary.exit_code,
           **summary.model_dump(mode="json"))  # fmt: skip
