"""Quality, speed and memory of the models that `es-sbert model fetch` knows.

    python -m benchmarks.model_choice --data DATA [--model NAME …] [--write]
    python -m benchmarks.model_choice --kept --write

DATA holds `sts/`, `retrieval/SET/` in the BEIR layout and `ingest/short-docs.jsonl.gz`. Each model is fetched, runs
in a process of its own, and takes the variant that is the fastest on this machine. Retrieval ranks all documents by
cosine; queries and documents get the prompts of the model, and queries that are documents leave themselves out. STSb is
Spearman's ρ × 100 on its test set. Speeds are texts a second, the best of the rounds, on texts that differ.

--write keeps the run in `benchmarks/results/models/KIND.json` and writes its table into docs/models.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.common import in_own_process, peak_memory, seconds, table
from benchmarks.encode_peers.measure import sts_correlation
from benchmarks.encode_peers.processor import KINDS, this_processor
from benchmarks.encode_peers.texts import paragraphs, short_documents, spaced, sts_rows
from benchmarks.kept_runs import (
    ROOT,
    conditions,
    processor_text,
    read_kinds,
    rounded_numbers,
    write_kind,
    write_section,
)
from benchmarks.retrieval import Collection, evaluate, read_collection
from es_sbert.bundle.model_lookup import installed_model_folder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.catalog.fetch_model import fetch_and_register
from es_sbert.catalog.models import MODELS
from es_sbert.config import cache_folder
from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.tokenizer import SentenceTokenizer

RESULTS = ROOT / "benchmarks/results/models"
PAGE = ROOT / "docs/models.md"
NAME, MAKER = "model choice", "benchmarks.model_choice"

SETS = ("cisi", "arguana-rebuilt", "agentset-msmarco")
_DEPTH = 100
_SHORT, _PARAGRAPHS = 2000, 200


@dataclass(frozen=True)
class ModelFigures:
    """What was measured of a model.

    Attributes:
        variant: Runtime and precision that ran.
        dimensions: Length of a vector.
        max_tokens: What it reads of a text.
        megabytes: Of its weights in float32.
        sts: ρ × 100 on STSb test.
        retrieval: Test collection → nDCG@10 × 100.
        short, paragraphs: Texts a second.
        memory: Peak of the process in MB, with the sets of texts.
    """

    variant: str
    dimensions: int
    max_tokens: int
    megabytes: float
    sts: float
    retrieval: dict[str, float]
    short: float
    paragraphs: float
    memory: float


def measure(folder: str, name: str, data: Path, sets: Sequence[str], rounds: int) -> dict[str, Any]:
    """The figures of one model; called in a new process."""
    with Encoder(folder, called=name) as encoder:
        short = short_documents(data)
        count = SentenceTokenizer(read_sentence_model(Path(folder)))
        long = paragraphs(data, short, lambda texts: count(texts).tokens.tolist(), _PARAGRAPHS)[:_PARAGRAPHS]
        encoder.encode(short[:64] + long[:16])
        speeds = [
            max(len(texts) / seconds(lambda texts=texts: encoder.encode(texts))[0] for _ in range(rounds))
            for texts in (spaced(short, _SHORT), long)
        ]
        rows = sts_rows(data)
        pairs = [row["sentence1"] for row in rows] + [row["sentence2"] for row in rows]
        figures = ModelFigures(
            variant=encoder.info.variant,
            dimensions=encoder.info.dimensions,
            max_tokens=encoder.info.max_tokens,
            megabytes=Path(folder, "model.safetensors").stat().st_size / 1e6,
            sts=sts_correlation(encoder.encode(pairs), [float(row["score"]) for row in rows]),
            retrieval={one: ndcg(encoder, data / "retrieval" / one) for one in sets},
            short=speeds[0],
            paragraphs=speeds[1],
            memory=peak_memory(),
        )
    return asdict(figures)


def ndcg(encoder: Encoder, folder: Path) -> float:
    """nDCG@10 × 100 of all documents ranked by cosine."""
    collection = read_collection(folder)
    documents = encoder.encode([document["text"] for document in collection.documents], "document")
    return ranking_quality(collection, documents, encoder.encode(list(collection.queries.values()), "query"))


def ranking_quality(collection: Collection, documents: Vectors, questions: Vectors) -> float:
    """nDCG@10 × 100 of all documents ranked by cosine.

    Args:
        documents, questions: *Shape:* ``(documents, dimensions)`` and ``(queries, dimensions)``.
    """
    ids = [document["id"] for document in collection.documents]
    documents, questions = unit(documents), unit(questions)
    run = {}
    for query, question in zip(collection.queries, questions, strict=True):
        cosines = documents @ question  # (documents,)
        best = np.argsort(-cosines, kind="stable")[: _DEPTH + 1]
        run[query] = {
            ids[place]: float(cosines[place]) for place in best if query not in collection.own or ids[place] != query
        }
    return evaluate(run, collection.qrels)[0]


def unit(vectors: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Vectors of length 1; a zero vector, of a text without tokens, stays zero."""
    scaled: np.ndarray[Any, np.dtype[np.float32]] = vectors / np.maximum(
        np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12
    )
    return scaled


def kept() -> dict[str, Any]:
    """Kind of processor → its run, best kind first."""
    return read_kinds(RESULTS)


def section(runs: dict[str, Any]) -> str:
    """The tables of all kinds of processors."""
    return "\n\n".join(run_text(kind, run) for kind, run in runs.items()) or "No processor has been measured."


def run_text(kind: str, run: dict[str, Any]) -> str:
    """Conditions and table of one run."""
    models: dict[str, dict[str, Any]] = run["models"]
    sets = list(next(iter(models.values()))["retrieval"])
    header = ["model", *(f"nDCG@10, {one}" for one in sets), "mean", "STSb ρ", "short documents/s", "paragraphs/s"]
    header += ["dimensions", "tokens", "weights, MB", "memory, MB", "variant"]
    rows = []
    for name, figures in models.items():
        scores = list(figures["retrieval"].values())
        rows.append([
            name,
            *(f"{score:.1f}" for score in scores),
            f"{sum(scores) / len(scores):.1f}",
            f"{figures['sts']:.2f}",
            *(f"{figures[key]:,.0f}" for key in ("short", "paragraphs", "dimensions", "max_tokens")),
            *(f"{figures[key]:,.0f}" for key in ("megabytes", "memory")),
            figures["variant"],
        ])  # fmt: skip
    about = (
        f"{processor_text(run['processor'])}; {run['date']}, commit {run['commit']}, best of {run['rounds']} rounds."
    )
    return f"{KINDS[kind]}: {about}\n\n{table(header, rows)}"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", "names", multiple=True, default=tuple(MODELS), show_default=True)
@click.option("--set", "sets", multiple=True, default=SETS, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--write", is_flag=True, help="Keep the run, and write its table into docs/models.md.")
@click.option("--kept", "only_kept", is_flag=True, help="Run nothing; show, or write, what is kept.")
def main(
    data: Path | None, names: Sequence[str], sets: Sequence[str], rounds: int, *, write: bool, only_kept: bool
) -> None:
    """Measure all models and print the table."""
    if not only_kept:
        if data is None:
            raise click.UsageError("Give --data FOLDER, or --kept.")
        processor = this_processor()
        run: dict[str, Any] = {**conditions(processor), "rounds": rounds, "models": {}}
        for name in names:
            run["models"][name] = in_own_process(measure, model_folder(name), name, data, sets, rounds)
            click.echo(f"{name}: {run['models'][name]}", err=True)
        click.echo(run_text(processor.kind, run))
        if write:
            write_kind(RESULTS, processor.kind, rounded_numbers(run))
    if write:
        write_section(PAGE, NAME, section(kept()), maker=MAKER)
    elif only_kept:
        click.echo(section(kept()))


def model_folder(name: str) -> str:
    """The folder of a model of the catalog, fetched if it is not there."""
    installed = installed_model_folder(name)
    if installed is not None:
        return str(installed)
    output = cache_folder() / "benchmark-models" / name
    return str(fetch_and_register(MODELS[name], output, None, lambda line: click.echo(line, err=True)).folder)


if __name__ == "__main__":
    main()
