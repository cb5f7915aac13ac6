"""Quality, speed and memory of the models that `es-sbert model fetch` knows.

    python -m benchmarks.model_choice --data DATA [--part quality|speed] [--model NAME …] [--write]
    python -m benchmarks.model_choice --kept --write

DATA holds `sts/`, `retrieval/SET/` in the BEIR layout and `ingest/short-docs.jsonl.gz`. Each model is fetched, and
takes the variant that is the fastest on this machine. Retrieval ranks all documents by cosine; queries and documents
get the prompts of the model, and queries that are documents leave themselves out. Intervals are those of the paired t
test over queries. STSb is Spearman's ρ × 100 on its test set. Speeds are texts a second, on texts that differ: all
models run in turn in one process, and a speed is the best of the rounds. Memory is the peak of a process that has only
embedded these texts.

--write keeps what was measured in `benchmarks/results/models/KIND.json`, in place of what was kept of the same part and
model, and writes the table into docs/choosing-a-model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
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
from es_sbert.bundle.catalog import MODELS
from es_sbert.bundle.model_lookup import installed_model_folder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import cache_folder
from es_sbert.encoder.encoder import Encoder
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.evaluated_models import OnnxEmbedder
from es_sbert.evaluation.ranking import MAIN_METRIC, measure_queries, rank_in_memory
from es_sbert.evaluation.significance import paired_difference
from es_sbert.exporters.fetch_model import fetch_and_register
from es_sbert.runtime.tokenizer import SentenceTokenizer

RESULTS = ROOT / "benchmarks/results/models"
PAGE = ROOT / "docs/choosing-a-model.md"
NAME, MAKER = "model choice", "benchmarks.model_choice"

SETS = ("cisi", "arguana-rebuilt", "agentset-msmarco")
_SHORT, _PARAGRAPHS = 2000, 200
PARTS = ("quality", "speed")


def quality(folder: str, name: str, data: Path) -> dict[str, Any]:
    """What a model is and how well it ranks; called in a new process."""
    with Encoder(folder, called=name) as encoder:
        rows, embedder = sts_rows(data), OnnxEmbedder(encoder)
        pairs = [row["sentence1"] for row in rows] + [row["sentence2"] for row in rows]
        scores = {one: query_scores(embedder, data / "retrieval" / one) for one in SETS}
        return {
            "variant": encoder.info.variant,
            "dimensions": encoder.info.dimensions,
            "max_tokens": encoder.info.max_tokens,
            "megabytes": Path(folder, "model.safetensors").stat().st_size / 1e6,  # of its weights in float32
            "sts": sts_correlation(embedder.embed(pairs), [float(row["score"]) for row in rows]),
            "retrieval": {one: float(np.mean(own)) for one, own in scores.items()},
            "scores": {one: " ".join(f"{score:.2f}" for score in own) for one, own in scores.items()},
        }


def memory(folder: str, name: str, data: Path) -> float:
    """Peak memory in MB of a process that embeds short documents and paragraphs; called in a new process."""
    short = short_documents(data)
    with Encoder(folder, called=name) as encoder:
        for texts in timed_texts(folder, data, short):
            encoder.encode(texts)
    return peak_memory()


def timed_texts(folder: str, data: Path, short: Sequence[str]) -> tuple[list[str], list[str]]:
    """Short documents and paragraphs."""
    count = SentenceTokenizer(read_sentence_model(Path(folder)))
    long = paragraphs(data, short, lambda texts: count(texts).tokens.tolist(), _PARAGRAPHS)[:_PARAGRAPHS]
    return spaced(short, _SHORT), long


def speeds(folders: dict[str, str], data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Texts a second of each model, measured in turn."""
    short = short_documents(data)
    best = {name: {"short": 0.0, "paragraphs": 0.0} for name in folders}
    with ExitStack() as stack:
        encoders = {name: stack.enter_context(Encoder(folder, called=name)) for name, folder in folders.items()}
        kinds = dict(zip(("short", "paragraphs"), timed_texts(next(iter(folders.values())), data, short), strict=True))
        for encoder in encoders.values():
            encoder.encode(kinds["short"][:64] + kinds["paragraphs"][:16])
        for _ in range(rounds):
            for name, encoder in encoders.items():
                for kind, texts in kinds.items():
                    taken = seconds(lambda encoder=encoder, texts=texts: encoder.encode(texts))[0]
                    best[name][kind] = max(best[name][kind], len(texts) / taken)
    return best


def query_scores(embedder: OnnxEmbedder, folder: Path) -> list[float]:
    """nDCG@10 × 100 of each query, all documents ranked by cosine."""
    collection = read_beir_folder(folder)
    found = measure_queries(rank_in_memory(embedder, collection), collection.judgements)
    return [found[query][MAIN_METRIC] for query in sorted(found)]


def differences(models: dict[str, dict[str, Any]]) -> str:
    """The table of each model against the one that ranks best on average, with 95 % intervals."""
    scored = {
        name: {one: np.array(own.split(), np.float64) for one, own in figures["scores"].items()}
        for name, figures in models.items()
    }
    best = max(scored, key=lambda name: sum(models[name]["retrieval"].values()))
    rows = []
    for name in scored.keys() - {best}:
        found = [paired_difference(scored[name][one], scored[best][one]) for one in SETS]
        rows.append([name, *(f"{each.difference:+.1f} ({each.low:+.1f} to {each.high:+.1f})" for each in found)])
    return f"\n\n{table([f'nDCG@10 minus that of {best}', *SETS], sorted(rows))}"


def section(runs: dict[str, Any]) -> str:
    """The tables of all kinds of processors."""
    return "\n\n".join(run_text(kind, run) for kind, run in runs.items()) or "No processor has been measured."


def run_text(kind: str, run: dict[str, Any]) -> str:
    """Conditions and table of one kind of processor."""
    models: dict[str, dict[str, Any]] = run["quality"]["models"]
    timed: dict[str, dict[str, Any]] = run["speed"]["models"]
    sets = list(next(iter(models.values()))["retrieval"])
    header = ["model", *(f"nDCG@10, {one}" for one in sets), "mean", "STSb ρ", "short documents/s", "paragraphs/s"]
    header += ["dimensions", "tokens", "weights, MB", "memory, MB", "variant"]
    rows = []
    for name, figures in models.items():
        scores = list(figures["retrieval"].values())
        measured = timed.get(name, {})
        rows.append([
            name,
            *(f"{score:.1f}" for score in scores),
            f"{sum(scores) / len(scores):.1f}",
            f"{figures['sts']:.2f}",
            *(f"{measured[key]:,.0f}" if key in measured else "–" for key in ("short", "paragraphs")),
            *(f"{figures[key]:,.0f}" for key in ("dimensions", "max_tokens", "megabytes")),
            f"{measured['memory']:,.0f}" if "memory" in measured else "–",
            figures["variant"],
        ])  # fmt: skip
    about = f"{processor_text(run['quality']['processor'])}; quality {run['quality']['date']}, commit "
    about += f"{run['quality']['commit']}"
    if timed:
        speed = run["speed"]
        about += f"; speed on {speed['processor']['name']}, {speed['date']}, commit {speed['commit']}, best of "
        about += f"{speed['rounds']} rounds in turn"
    return f"{KINDS[kind]}: {about}.\n\n{table(header, rows)}{differences(models)}"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, show_default=True)
@click.option("--model", "names", multiple=True, default=tuple(MODELS), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--write", is_flag=True, help="Keep what was measured, and write the table into docs/choosing-a-model.md."
)
@click.option("--kept", "only_kept", is_flag=True, help="Run nothing; show, or write, what is kept.")
def main(
    data: Path | None,
    parts: Sequence[str],
    names: Sequence[str],
    rounds: int,
    *,
    write: bool,
    only_kept: bool,
) -> None:
    """Measure all models and print the table."""
    if not only_kept:
        if data is None:
            raise click.UsageError("Give --data FOLDER, or --kept.")
        processor = this_processor()
        folders = {name: model_folder(name) for name in names}
        about = {**conditions(processor), "rounds": rounds}
        run = read_kinds(RESULTS).get(processor.kind, {})

        def keep(found: dict[str, dict[str, Any]]) -> None:
            nonlocal run
            run = merged(run, found, about)
            if write:  # after each model: a whole run may take an hour
                write_kind(RESULTS, processor.kind, rounded_numbers(run))

        if "quality" in parts:
            for name, folder in folders.items():
                keep({"quality": {name: in_own_process(quality, folder, name, data)}})
                click.echo(f"{name}: {run['quality']['models'][name]}", err=True)
        if "speed" in parts:
            measured: dict[str, dict[str, Any]] = in_own_process(speeds, folders, data, rounds)
            for name, folder in folders.items():
                measured[name]["memory"] = in_own_process(memory, folder, name, data)
            keep({"speed": measured})
        click.echo(run_text(processor.kind, run))
    if write:
        write_section(PAGE, NAME, section(read_kinds(RESULTS)), maker=MAKER)
    elif only_kept:
        click.echo(section(read_kinds(RESULTS)))


def merged(before: dict[str, Any], found: dict[str, dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """What was kept, with what was measured now in place of the same part and model.

    Speeds compare only within one run, so a new one replaces all of them.
    """
    run: dict[str, Any] = {part: before.get(part, {"models": {}}) for part in PARTS}
    for part, models in found.items():
        others = run[part]["models"] if part == "quality" else {}
        together = others | models
        known = [name for name in MODELS if name in together]
        run[part] = {**about, "models": {name: together[name] for name in [*known, *(together.keys() - set(known))]}}
    return run


def model_folder(name: str) -> str:
    """The folder of a model of the catalog, fetched if it is not there."""
    installed = installed_model_folder(name)
    if installed is not None:
        return str(installed)
    output = cache_folder() / "benchmark-models" / name
    return str(fetch_and_register(MODELS[name], output, None, lambda line: click.echo(line, err=True)).folder)


if __name__ == "__main__":
    main()
