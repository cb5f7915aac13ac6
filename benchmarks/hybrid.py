"""Hybrid search in a real index: nDCG@10 of questions, and the ranks of known items, for several fusions.

    python -m benchmarks.hybrid --data DATA --url http://localhost:9200 [--set cisi] [--limit 200] [--seed 1] [--demo]

DATA holds `retrieval/SET/` in the BEIR layout. Titles are prepended to texts; the words are looked for with the
engine's default analyzer. The index type is flat, so that nothing is lost to a graph. Queries that are documents of the
collection leave themselves out. Each fusion looks at the first 100 of each ranking. `--demo` adds the index of
`make demo` (the documentation of Python's library), which has known items only.

All fusions are computed from the responses to the searches of one hybrid search; `default` is what the library returns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import click
import numpy as np
import orjson

from benchmarks.common import machine, table
from benchmarks.known_items import KnownItem, make_known_items
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.ranking_metrics import MAIN_METRIC, measure_ranking
from es_sbert.evaluation.significance import difference_line, paired_difference
from es_sbert.evaluation.task_data import RetrievalCollection
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.search.hybrid_search import HybridSearch, hybrid_request
from es_sbert.search.search_scope import read_search_scope

DEPTH = 100
Scores = dict[str, float]  # document → score, of the first `DEPTH`
Fusion = Callable[[Scores, Scores], Scores]


def rrf(semantic_weight: float, *, missing: int | None = None, min_cosine_score: float = 0.0) -> Fusion:
    """Reciprocal rank fusion; `missing` is the rank of a document that a ranking lacks, None for no share at all."""

    def fuse(meaning: Scores, words: Scores) -> Scores:
        near = {id: score for id, score in meaning.items() if score >= min_cosine_score}
        fused: dict[str, float] = defaultdict(float)
        for weight, scores in ((semantic_weight, near), (1.0, words)):
            ranks = {id: rank for rank, id in enumerate(scores, start=1)}
            for id in near.keys() | words.keys():
                if id in ranks or missing is not None:
                    fused[id] += weight / (60 + ranks.get(id, missing or 0))
        return fused

    return fuse


def scaled(share: float, bounds: Callable[[np.ndarray], tuple[float, float]]) -> Fusion:
    """Weighted sum of scores that are scaled to 0…1 between two bounds; a missing document has 0."""

    def fuse(meaning: Scores, words: Scores) -> Scores:
        fused: dict[str, float] = defaultdict(float)
        for weight, scores in ((share, meaning), (1 - share, words)):
            if scores:
                low, high = bounds(np.array(list(scores.values())))
                for id, score in scores.items():
                    fused[id] += weight * min(1.0, max(0.0, (score - low) / (high - low or 1.0)))
        return fused

    return fuse


def three_sigma(scores: np.ndarray) -> tuple[float, float]:
    """The bounds of distribution-based score fusion (DBSF)."""
    return scores.mean() - 3 * scores.std(), scores.mean() + 3 * scores.std()


OLD = "rrf 3:1, missing 0 (before)"
DEFAULT = "default: exact first, rrf 3:1"
FUSIONS: dict[str, Fusion] = {
    "words": lambda meaning, words: words,
    "meaning": lambda meaning, words: meaning,
    OLD: rrf(3),
    "rrf 1:1, missing 0": rrf(1),
    "rrf 3:1, missing 101": rrf(3, missing=DEPTH + 1),
    "rrf 3:1, cosine ≥ 0.4": rrf(3, min_cosine_score=0.7),  # the engines' score is (1 + cosine) / 2
    "min-max 0.5": scaled(0.5, lambda scores: (scores.min(), scores.max())),
    "min-max 0.7": scaled(0.7, lambda scores: (scores.min(), scores.max())),
    "DBSF 0.7": scaled(0.7, three_sigma),
}


class Collection:
    """An index of texts, searched by every fusion."""

    def __init__(self, engine: Engine, encoder: Encoder, documents: Mapping[str, str]) -> None:
        self._engine = engine
        self._encoder = encoder
        self.name = f"hybrid-{uuid.uuid4().hex[:12]}"
        self.load(documents)
        self._scope = read_search_scope(engine, [self.name], ["embedding"])

    def load(self, documents: Mapping[str, str]) -> None:
        """Write documents by the ingest pipeline; those of the same id are replaced."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "documents.jsonl"
            rows = ({"id": identifier, "text": text} for identifier, text in documents.items())
            file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            wanted = IngestSettings(
                index=self.name,
                files=(str(file),),
                id_field="id",
                text_fields=("text",),
                index_type="flat",
                dead_letters=Path(folder) / "dead.jsonl",
            )
            plan = plan_load(self._engine, wanted, resolve_sources(wanted))
            summary = run_load(self._engine, self._encoder, plan, LoadControl(), SilentMeter())
        if summary.indexed != len(documents):
            raise click.ClickException(f"{self.name} took {summary.indexed:,} of {len(documents):,} documents")
        self._engine.refresh(self.name)

    def rankings(self, text: str) -> dict[str, list[str]]:
        """Fusion → ids, best first."""
        search = HybridSearch.from_options(text, DEPTH, {"source": False, "lexical_fields": ["text"]})
        vector = self._encoder.encode(text, "query")
        request = hybrid_request(self._engine.info.engine_type, self._scope, {"embedding": vector}, search)
        answers = self._engine.multi_search(request.indices, request.bodies, routing=request.routing)
        meaning, words = (_scores(answer) for answer in answers[:2])
        found = {}
        for name, fusion in FUSIONS.items():
            fused = fusion(meaning, words)
            found[name] = sorted(fused, key=lambda id: (-fused[id], id))
        found[DEFAULT] = [hit.id for hit in request.read(answers)]
        return found

    def delete(self) -> None:
        self._engine.delete_index(self.name)


def _scores(answer: Json) -> Scores:
    return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def measure_questions(collection: Collection, data: RetrievalCollection) -> dict[str, list[float]]:
    """nDCG@10 × 100 of each query, by fusion."""
    scores: dict[str, list[float]] = defaultdict(list)
    for query, text in data.queries.items():
        own = data.own(query)
        for name, ranking in collection.rankings(text).items():
            kept = [id for id in ranking if id != own]
            scores[name].append(measure_ranking(kept, data.judgements[query])[MAIN_METRIC])
    return scores


def measure_items(collection: Collection, items: Sequence[KnownItem]) -> dict[str, dict[str, list[int]]]:
    """Rank of the last known document of each query, minus the number of the others, by fusion and kind."""
    ranks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        for name, ranking in collection.rankings(item.query).items():
            places = [ranking.index(id) + 1 if id in ranking else 1000 for id in item.documents]
            ranks[name][item.kind].append(max(places) - len(places) + 1)
    return ranks


def item_table(ranks: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """A row for each kind; a cell has the queries whose document is first, and the last rank of all."""
    kinds = list(next(iter(ranks.values())))
    rows = []
    for kind in kinds:
        cells = []
        for own in ranks.values():
            worst = max(own[kind])
            cells.append(f"{sum(rank == 1 for rank in own[kind])}; {'–' if worst >= 1000 - 10 else worst}")
        rows.append([f"{kind} ({len(next(iter(ranks.values()))[kind])})", *cells])
    return table(["known item (queries)", *ranks], rows)


def demo_documents() -> dict[str, str]:
    """The documentation of Python's library, as `make demo` loads it."""
    script = Path(__file__).parent.parent / "examples" / "stdlib_docs.py"
    lines = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout.splitlines()
    return {row["id"]: row["text"] for row in map(orjson.loads, lines)}


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option(
    "--set", "sets", multiple=True, default=("cisi", "agentset-msmarco", "arguana-rebuilt"), show_default=True
)
@click.option("--limit", type=int, default=200, show_default=True, help="Queries of a set, drawn by a fixed seed.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the known items.")
@click.option("--demo", is_flag=True, help="Known items of the demo's index too.")
@click.option("--model", help="As for every command.")
@click.option("--precision", default="auto", show_default=True)
def main(
    data: Path, url: str, sets: tuple[str, ...], limit: int, seed: int, demo: bool, model: str | None, precision: str
) -> None:
    """Load, rank, measure."""
    questions: dict[str, dict[str, list[float]]] = {}
    items: dict[str, dict[str, dict[str, list[int]]]] = {}
    with Encoder(model, precision=precision) as encoder, closing(connect(EngineSettings(url=url))) as engine:
        for name in sets:
            found = read_beir_folder(data / "retrieval" / name, limit=limit)
            click.echo(f"{name}: {len(found.queries):,} queries", err=True)
            collection = Collection(engine, encoder, found.documents)
            try:
                questions[name] = measure_questions(collection, found)
                known = make_known_items(found.documents, seed)
                collection.load(known.changed)
                items[name] = measure_items(collection, known.items)
            finally:
                collection.delete()
        if demo:
            documents = demo_documents()
            known = make_known_items(documents, seed)
            collection = Collection(engine, encoder, documents | known.changed)
            try:
                items["demo"] = measure_items(collection, known.items)
            finally:
                collection.delete()
        click.echo(f"{engine.info.label}; {encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
    columns = [f"{name} ({len(scores[OLD]):,} queries)" for name, scores in questions.items()]
    rows = [
        [fusion, *(f"{np.mean(scores[fusion]):.2f}" for scores in questions.values())] for fusion in (*FUSIONS, DEFAULT)
    ]
    if questions:
        click.echo(table(["nDCG@10", *columns], rows))
    for name, scores in questions.items():
        difference = paired_difference(scores[DEFAULT], scores[OLD])
        click.echo(f"\n{name}: " + difference_line(difference, "default", "before", "nDCG@10"))
    for name, ranks in items.items():
        click.echo(f"\nKnown items of {name}: queries whose document is first; the worst rank\n")
        click.echo(item_table(ranks))


if __name__ == "__main__":
    main()
