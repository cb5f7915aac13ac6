"""Compare how fast es-sbert loads documents with what a user could choose instead.

    python -m benchmarks.ingest_peers --data DATA --url http://localhost:9200 [--url …] [--rounds 3] [--write]
    python -m benchmarks.ingest_peers --kept --write

DATA holds `ingest/short-docs.jsonl.gz`; its first 10,000 distinct documents are loaded. The engines need no credentials
and are measured one after another. The index `ingest-peers` of each is created and deleted again and again. Each peer
is installed in its own environment on first use (about 7 GB together, most of it PyTorch, which the environments of
`benchmarks.encode_peers` share) and runs in its own process. In each round every contender starts, loads the documents
into a new index and ends; then the index is checked and deleted. Before the first round, the engine is warmed up by
loads that do not count. Each round has another order of the documents, and another punctuation mark at the end of every
text, so that no cache is measured.

Embedding alone and loading ready vectors alone are measured right before each load of es-sbert.

--write keeps the run in `benchmarks/results/ingest/KIND.json`, where it replaces that of the same engine on the same
kind of processor, and writes the section of docs/results.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import click

from benchmarks.common import read_jsonl
from benchmarks.encode_peers.environments import Environments
from benchmarks.encode_peers.processor import this_processor
from benchmarks.encode_peers.texts import TextSet, distinct
from benchmarks.ingest_peers.contenders import contenders
from benchmarks.ingest_peers.measure import Comparison
from benchmarks.ingest_peers.results import LOAD, SECTION, WHOLE, LoadRun
from benchmarks.kept_runs import conditions, peers_folder, report, run_options
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.runtime.tokenizer import SentenceTokenizer


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", "urls", multiple=True, help="An engine without credentials.")
@click.option("--documents", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--index-type", type=click.Choice(["hnsw", "flat"]), default="hnsw", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 11), default=3, show_default=True)
@run_options
def main(
    data: Path | None,
    urls: tuple[str, ...],
    documents: int,
    index_type: str,
    rounds: int,
    only: tuple[str, ...],
    environments: Path | None,
    write: bool,
    kept: bool,
) -> None:
    """Run all contenders in turn against each engine and print the tables."""
    if kept:
        SECTION.show_kept(write=write)
        return
    if data is None or not urls:
        raise click.UsageError("--data and --url are needed.")
    if write and only:
        raise click.UsageError("--write is for whole runs, without --only.")
    folder = peers_folder(environments)
    runs = (_run(data, url, documents, index_type, rounds, only, folder) for url in urls)
    SECTION.finish(runs, write=write)


def first_documents(data: Path, count: int) -> list[str]:
    """The texts of the first distinct documents."""
    rows = islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), 2 * count)
    return distinct(row["text"] for row in rows)[:count]


def _run(data: Path, url: str, count: int, index_type: str, rounds: int, only: Sequence[str], folder: Path) -> LoadRun:
    processor = this_processor()
    begun = conditions(processor)
    source = resolve_model(DEFAULT_MODEL)
    tokenizer = SentenceTokenizer(read_sentence_model(source, DEFAULT_MODEL))
    texts = first_documents(data, count)
    tokens = float(tokenizer(texts).tokens.mean())
    with tempfile.TemporaryDirectory() as work, closing(connect(EngineSettings(url=url))) as engine:
        everyone = contenders(engine.info)
        chosen = [one for one in everyone if not only or any(part in one.label for part in only)]
        comparison = Comparison(
            engine=engine,
            model=DEFAULT_MODEL,
            folder=source,
            environments=Environments(folder, report),
            threads=processor.cores,
            texts=TextSet(LOAD, tuple(texts), tokens),
            index_type=index_type,
            work=Path(work),
            report=report,
        )
        found = comparison.run(chosen, rounds)
        label = engine.info.label
    figures = {"texts": len(texts), "tokens": tokens}
    return LoadRun(
        model=DEFAULT_MODEL,
        rounds=rounds,
        threads=processor.cores,
        **begun,
        sets={LOAD: figures, WHOLE: figures},
        contenders=found,
        engine=label,
        index_type=index_type,
        limits=comparison.limits,
        settings={one.label: one.settings for one in chosen},
    )


if __name__ == "__main__":
    main()
