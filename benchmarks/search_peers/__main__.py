"""Compare the latency and the rate of semantic searches by es-sbert and by other libraries.

    python -m benchmarks.search_peers --data DATA --url http://localhost:9200 [--documents 100000] [--write]
    python -m benchmarks.search_peers --kept --write

DATA holds `ingest/short-docs.jsonl.gz` and `sts/stsb-en-*.tsv.gz`. The engine needs no credentials; the index
`search-peers` is deleted and made anew. The first documents are embedded once and kept in a file. They are loaded into
an index of each type in turn: one shard without replicas, merged into one segment and refreshed.

Each path to the hits runs in its own process: `SemanticIndex.search`; an HTTP client and the gateway
(`es-sbert serve -k 10 --num-candidates 100`, started for each turn); on `hnsw` also other libraries, each in its own
environment, installed on first use (about 7 GB, most of it PyTorch). All ask for 10 hits of 100 candidates. The same
HTTP client sends the library's request with a ready vector to the engine alone. Clients send the next query once they
have an answer. Queries are sentences that are not documents, in another order and with another punctuation mark at the
end in each round and for each number of clients; ready vectors come again. A cell fails if an answer has fewer than
10 hits, lacks shards or timed out (other libraries do not tell of shards).

Recall@10 compares with the exact cosines of the path's own query vectors. CPU shares are of all logical processors;
the engine's and the gateway's are what they report themselves.

--write keeps the run in `benchmarks/results/search/KIND.json`, where it replaces that of the same engine on the same
kind of processor, and writes the section of docs/results.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from benchmarks.encode_peers.environments import Environments
from benchmarks.encode_peers.processor import this_processor
from benchmarks.kept_runs import conditions, peers_folder, report, run_options
from benchmarks.search_peers.contenders import MAIN_TYPE, SearchPath, offered_types, own_paths, peer_paths
from benchmarks.search_peers.corpus import query_set, read_corpus
from benchmarks.search_peers.measure import SearchComparison
from benchmarks.search_peers.results import SECTION, Run
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.index.mapping import IndexType

_DOCUMENTS = 100_000


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", help="An engine without credentials.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="One that the gateway finds, too.")
@click.option("--documents", type=click.IntRange(min=1_000), default=_DOCUMENTS, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=1.5, max=15), default=3.0, show_default=True, help="Of a cell.")
@click.option("--types", default="", help="Only these index types, separated by commas, for a trial.")
@run_options
def main(
    data: Path | None,
    url: str | None,
    model: str,
    documents: int,
    rounds: int,
    seconds: float,
    types: str,
    only: tuple[str, ...],
    environments: Path | None,
    write: bool,
    kept: bool,
) -> None:
    """Search an engine by all paths in turn and print the tables."""
    if kept:
        SECTION.show_kept(write=write)
        return
    if data is None or url is None:
        raise click.UsageError("--data and --url are needed.")
    if write and (only or types or documents != _DOCUMENTS):
        raise click.UsageError("--write is for whole runs, without --only, --types and --documents.")
    folder = peers_folder(environments)
    chosen = [IndexType(name) for name in types.split(",") if name]
    run = _run(data, url, model, documents, rounds, seconds, chosen, only, folder)
    SECTION.finish([run], write=write)


def _run(
    data: Path,
    url: str,
    model: str,
    documents: int,
    rounds: int,
    seconds: float,
    types: Sequence[IndexType],
    only: Sequence[str],
    folder: Path,
) -> Run:
    processor = this_processor()
    begun = conditions(processor)
    with (
        closing(connect(EngineSettings(url=url, timeout=3600))) as engine,
        Encoder(model, device="cpu") as encoder,
        tempfile.TemporaryDirectory() as work,
    ):
        corpus = read_corpus(data, documents, encoder, folder / "vectors", report)
        queries = query_set(data, corpus.texts)

        def paths(index_type: IndexType) -> list[SearchPath]:
            found = own_paths() + (peer_paths(engine.info) if index_type is MAIN_TYPE else [])
            return [path for path in found if not only or any(part in path.label for part in only)]

        comparison = SearchComparison(
            engine=engine,
            encoder=encoder,
            folder=resolve_model(model),
            corpus=corpus,
            queries=queries,
            environments=Environments(folder, report),
            threads=processor.cores,
            seconds=seconds,
            work=Path(work),
            report=report,
        )
        comparison.run(types or offered_types(engine.info), paths, rounds)
        return Run(
            engine=engine.info.label,
            model=encoder.info.model,
            variant=encoder.info.variant,
            rounds=rounds,
            seconds=seconds,
            threads=processor.cores,
            documents=len(corpus.ids),
            queries=len(queries.texts),
            **begun,
            indices=comparison.indices,
            cells=comparison.cells,
            figures=comparison.goals,
            versions=comparison.versions,
        )


if __name__ == "__main__":
    main()
