"""A large model for documents with a table of token vectors for queries: quality, and what a query costs.

    python -m benchmarks.asymmetric --data DATA [--url http://localhost:9200] [--write]
    python -m benchmarks.asymmetric --kept --write

DATA holds `ingest/short-docs.jsonl.gz` and `retrieval/SET/` in the BEIR layout. A StaticEmbedding with the tokenizer of
the large model is fitted to its vectors of short documents, none of which is a query or a document of the test
collections; `es-sbert model pair` then puts the two together. Retrieval ranks all documents by cosine; queries that
are documents leave themselves out. Start and memory are those of a new process that embeds one query. With --url, the
documents of the first collection are loaded with the large model, and `es-sbert search` is timed, each in a new
process.

--write keeps the run in `benchmarks/results/asymmetric/KIND.json` and writes its table into docs/results.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.acceptance import delete
from benchmarks.common import peak_memory, read_jsonl, seconds, spread, table
from benchmarks.encode_peers.processor import KINDS, this_processor
from benchmarks.encode_peers.texts import short_documents, spaced
from benchmarks.kept_runs import (
    ROOT,
    conditions,
    processor_text,
    read_kinds,
    rounded_numbers,
    write_kind,
    write_section,
)
from benchmarks.model_choice import model_folder, ranking_quality
from benchmarks.retrieval import load_collection, read_collection
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.catalog.model_pair import built_in_texts, make_pair, measure_agreement
from es_sbert.config import cache_folder
from es_sbert.encoder.encoder import Encoder
from es_sbert.vectors import Vectors

RESULTS = ROOT / "benchmarks/results/asymmetric"
PAGE = ROOT / "docs/results.md"
NAME, MAKER = "asymmetric", "benchmarks.asymmetric"

SETS = ("cisi", "arguana-rebuilt")
_EPOCHS, _BATCH, _RATE = 6, 256, 0.01
_PRECISION = "int8"  # of a table the same as fp32
_STARTS, _WARM = 5, 200  # new processes, and queries in one of them
_LARGE, _PAIR, _SMALL = "large for both", "pair", "table for both"


def training_texts(data: Path, count: int) -> list[str]:
    """Short documents from all parts of the file, without those of the test collections."""
    measured = set[str]()
    for name in SETS:
        collection = read_collection(data / "retrieval" / name)
        measured |= {*collection.queries.values(), *(document["text"] for document in collection.documents)}
    texts = dict.fromkeys(row["text"] for row in read_jsonl(data / "ingest/short-docs.jsonl.gz"))
    return spaced([text for text in texts if text not in measured], count)


def fit_static_queries(large: str, texts: Sequence[str], output: Path) -> None:
    """Write a StaticEmbedding whose vectors of texts are near those that a model makes of them as queries.

    The table begins with the model's vector of each token alone. Adam then maximizes the cosine of the mean of a text's
    rows and the model's vector. The length of a row becomes its token's weight.

    Args:
        large: The model.
        texts: What to fit it on.
        output: A new folder.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
    from tokenizers import Tokenizer

    model = read_sentence_model(resolve_model(large))
    tokenizer = Tokenizer.from_str(json.dumps(model.tokenizer_json()))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    with Encoder(large, precision=_PRECISION) as encoder:
        targets = torch.from_numpy(encoder.encode(texts, "query"))  # (texts, dimensions)
        rows = torch.from_numpy(encoder.encode([word.removeprefix("##") for word in words]))  # (tokens, dimensions)
    ids = [torch.tensor(one.ids) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    bag = torch.nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode="mean")
    optimizer = torch.optim.Adam(bag.parameters(), lr=_RATE)
    torch.manual_seed(0)
    steps = _EPOCHS * -(-len(ids) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for _ in range(_EPOCHS):
        for batch in torch.randperm(len(ids)).split(_BATCH):
            chosen = [ids[number] for number in batch if len(ids[number])]
            expected = targets[[number for number in batch if len(ids[number])]]
            offsets = torch.tensor([0, *(len(one) for one in chosen[:-1])]).cumsum(0)
            loss = 1 - torch.cosine_similarity(bag(torch.cat(chosen), offsets), expected).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    static = StaticEmbedding(tokenizer, embedding_weights=bag.weight.detach().numpy())
    SentenceTransformer(modules=[static, Normalize()], device="cpu").save(str(output))


def query_process(model: str, queries: Sequence[str]) -> dict[str, float]:
    """Milliseconds to open a model and embed one query, milliseconds a further query, and the process's peak in MB.

    Called in a new process, in which everything was imported.
    """
    opened, encoder = seconds(lambda: Encoder(model, kind="query", precision=_PRECISION))
    with encoder:
        first, _ = seconds(lambda: encoder.encode(queries[0], "query"))
        memory = peak_memory()
        warm = statistics.median(seconds(lambda text=text: encoder.encode(text, "query"))[0] for text in queries[1:])
    return {"start": 1000 * (opened + first), "warm": 1000 * warm, "memory": memory}


def measure_queries(model: str, queries: Sequence[str]) -> dict[str, list[float]]:
    """The figures of several new processes."""
    found: dict[str, list[float]] = {}
    for _ in range(_STARTS):
        command = [sys.executable, "-m", MAKER, "--query-process", model]
        done = subprocess.run(command, input=json.dumps(queries), capture_output=True, text=True, check=True, cwd=ROOT)
        for name, value in json.loads(done.stdout).items():
            found.setdefault(name, []).append(value)
    return found


def measure_searches(url: str, index: str, model: str, query: str) -> list[float]:
    """Milliseconds of `es-sbert search` in new processes, after one that is not counted."""
    command = [sys.executable, "-m", "es_sbert", "search", "--url", url, "--index", index, "--model", model]
    command += ["--precision", _PRECISION, query]
    found = []
    for _ in range(_STARTS + 1):
        begin = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        found.append(1000 * (time.perf_counter() - begin))
    return found[1:]


def measure(large: str, small: str, pair: str, data: Path, sets: Sequence[str], url: str | None) -> dict[str, Any]:
    """The figures of all three ways to embed."""
    queries = spaced(short_documents(data), _WARM + 1)
    index = "asymmetric-benchmark"
    rows: dict[str, Any] = {}
    collections = {one: read_collection(data / "retrieval" / one) for one in sets}
    if url is not None:
        load_collection(url, index, collections[sets[0]], _PRECISION, large)
    # A pair embeds documents as its large model does.
    documents: dict[tuple[str, str], Vectors] = {}
    for label, model in ((_LARGE, large), (_PAIR, pair), (_SMALL, small)):
        with Encoder(model, precision=_PRECISION) as encoder:
            quality = {}
            for one, held in collections.items():
                key = encoder.info.fingerprint, one
                if key not in documents:
                    documents[key] = encoder.encode([document["text"] for document in held.documents], "document")
                questions = encoder.encode(list(held.queries.values()), "query")
                quality[one] = ranking_quality(held, documents[key], questions)
        rows[label] = {"quality": quality, **measure_queries(model, queries)}
        if url is not None and label != _SMALL:
            rows[label]["search"] = measure_searches(url, index, model, queries[0])
        click.echo(f"{label}: {rows[label]}", err=True)
    if url is not None:
        delete(url, index)
    return rows


def other_agreements(large: str, others: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How models of other spaces agree with the large one, by the measure that refuses them as its pair."""
    texts = built_in_texts()
    with Encoder(large, precision=_PRECISION) as encoder:
        documents, by_documents = (encoder.encode(texts, kind) for kind in ("document", "query"))
    found = {}
    for other in others:
        with Encoder(model_folder(other), precision=_PRECISION) as encoder:
            found[other] = measure_agreement(documents, by_documents, encoder.encode(texts, "query")).model_dump()
    return found


def section(runs: dict[str, Any]) -> str:
    """The tables of all kinds of processors."""
    return "\n\n".join(run_text(kind, run) for kind, run in runs.items()) or "No processor has been measured."


def run_text(kind: str, run: dict[str, Any]) -> str:
    """Conditions and table of one run."""
    sets = list(run["rows"][_LARGE]["quality"])
    header = ["queries and documents", *(f"nDCG@10, {one}" for one in sets), "first query, ms", "next queries, ms"]
    header += ["memory, MB", "`es-sbert search`, ms"]
    rows = [
        [
            label,
            *(f"{row['quality'][one]:.1f}" for one in sets),
            spread(row["start"]),
            spread(row["warm"], 2),
            spread(row["memory"]),
            spread(row["search"]) if "search" in row else "–",
        ]
        for label, row in run["rows"].items()
    ]
    agreement = run["agreement"]
    measured = f"{run['date']}, commit {run['commit']}; load average before the run {run['load']:.1f}; median"
    about = (
        f"{KINDS[kind]}: {processor_text(run['processor'])}; {measured} (least–most) of {_STARTS} processes. The "
        f"large model is {run['large']} in {_PRECISION}; the table was fitted to its vectors of {run['texts']:,} short "
        f"documents in {run['seconds']:.0f} s."
    )
    agreements = {"the table": agreement, **run["others"]}
    compared = [
        [name, *(f"{one[key]:.3f}" for key in ("mean_cosine", "centered_cosine")), f"{one['rank_agreement']:.1f}"]
        for name, one in agreements.items()
    ]
    names = ["model for queries", "mean cosine", "centered cosine", "rank agreement"]
    return f"{about}\n\n{table(header, rows)}\n\nAs `es-sbert model pair` measures them:\n\n{table(names, compared)}"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--large", default="all-MiniLM-L6-v2", show_default=True, help="The model of the documents.")
@click.option("--texts", type=click.IntRange(min=1), default=20_000, show_default=True, help="How many to fit it on.")
@click.option("--set", "sets", multiple=True, default=SETS, show_default=True)
@click.option(
    "--other",
    "others",
    multiple=True,
    default=("bge-small-en-v1.5", "e5-small-v2"),
    show_default=True,
    help="Models of other spaces, whose agreement is measured.",
)
@click.option("--url", help="An engine, for the time of `es-sbert search`.")
@click.option("--write", is_flag=True, help="Keep the run, and write its table into docs/results.md.")
@click.option("--kept", "only_kept", is_flag=True, help="Run nothing; show, or write, what is kept.")
@click.option("--query-process", hidden=True, help="A model to measure in this process; queries on stdin.")
def main(
    data: Path | None,
    large: str,
    texts: int,
    sets: Sequence[str],
    others: Sequence[str],
    url: str | None,
    *,
    write: bool,
    only_kept: bool,
    query_process: str | None,
) -> None:
    """Fit a table, pair it, measure and print the table."""
    if query_process is not None:
        click.echo(json.dumps(measure_query_process(query_process)))
        return
    if not only_kept:
        if data is None:
            raise click.UsageError("Give --data FOLDER, or --kept.")
        processor = this_processor()
        run = conditions(processor) | {"large": large, "texts": texts}
        place = cache_folder() / "benchmark-models"
        small, pair = place / f"asymmetric-{large}-{texts}", place / f"asymmetric-{large}-{texts}-pair"
        if not (small / "fitted.json").exists():
            fitted, _ = seconds(lambda: fit_static_queries(large, training_texts(data, texts), small))
            (small / "fitted.json").write_text(json.dumps(fitted))
        record = make_pair(
            read_sentence_model(resolve_model(large), large),
            read_sentence_model(small, "static"),
            pair,
            report=lambda line: click.echo(line, err=True),
        )
        run |= {
            "seconds": json.loads((small / "fitted.json").read_text()),
            "agreement": record.agreement.model_dump(),
            "others": other_agreements(large, others),
            "rows": measure(large, str(small), str(pair), data, sets, url),
        }
        click.echo(run_text(processor.kind, run))
        if write:
            write_kind(RESULTS, processor.kind, rounded_numbers(run))
    if write:
        write_section(PAGE, NAME, section(read_kinds(RESULTS)), maker=MAKER)
    elif only_kept:
        click.echo(section(read_kinds(RESULTS)))


def measure_query_process(model: str) -> dict[str, float]:
    """See `query_process`; the queries are read from stdin."""
    return query_process(model, json.load(sys.stdin))


if __name__ == "__main__":
    main()
