"""Compare es-sbert with every library that a user could choose instead.

    python -m benchmarks.encode_peers --data DATA [--model FOLDER] [--rounds 5] [--write]
    python -m benchmarks.encode_peers --kept --write

DATA holds `sts/stsb-en-test.tsv.gz`, `ingest/short-docs.jsonl.gz` and, if it is there, `retrieval/`. Each peer is
installed in its own environment on first use (about 8 GB together, most of it PyTorch) and runs in its own process. In
each round every contender starts, embeds a warm-up, is timed on each set of texts and ends; nothing
else of the benchmark runs at that time. All get the same texts in the same order and as many threads as there are
physical cores. The texts of a set are distinct, and each round has another order and another punctuation mark at the
end of every text, so that no cache and no repeated text is measured. ρ is measured once, on the unchanged sentences.

--write keeps the run in `benchmarks/results/encode/KIND.json`, where it replaces that of the same model on the same
kind of processor, and writes the section of docs/results.md.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.encode_peers.contenders import Contender, own_contenders, peer_contenders
from benchmarks.encode_peers.environments import Environments
from benchmarks.encode_peers.measure import Comparison
from benchmarks.encode_peers.processor import onnx_instructions, this_processor
from benchmarks.encode_peers.results import SECTION, Run
from benchmarks.encode_peers.texts import calibration_texts, short_documents, sts_rows, text_sets
from benchmarks.kept_runs import conditions, peers_folder, report, run_options
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.runtime.tokenizer import SentenceTokenizer

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--texts", "own_texts", type=_FILE, help="Also embed the lines of this file.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="At most so many texts of each set, for a trial or a large model."
)
@run_options
def main(
    data: Path | None,
    model: str,
    rounds: int,
    own_texts: Path | None,
    limit: int | None,
    only: tuple[str, ...],
    environments: Path | None,
    write: bool,
    kept: bool,
) -> None:
    """Run all contenders in turn and print the table."""
    if kept:
        SECTION.show_kept(write=write)
        return
    if data is None:
        raise click.UsageError("--data is needed.")
    if write and (only or own_texts or (limit and model == DEFAULT_MODEL)):
        raise click.UsageError("--write is for runs without --only and --texts; with --limit only for a larger model.")
    folder = peers_folder(environments)
    run = _run(data, model, rounds, own_texts, limit, only, folder)
    SECTION.finish([run], write=write)


def _run(
    data: Path,
    model: str,
    rounds: int,
    own_texts: Path | None,
    limit: int | None,
    only: Sequence[str],
    folder: Path,
) -> Run:
    processor = this_processor()
    begun = conditions(processor)
    source = resolve_model(model)
    name = source.resolve().name if Path(model).expanduser().is_dir() else model  # no path of this machine
    described = read_sentence_model(source, name)
    tokenizer = SentenceTokenizer(described)
    report("Reading texts …")
    short = short_documents(data)
    sets = text_sets(data, short, lambda texts: tokenizer(texts).tokens.tolist(), limit=limit, own=own_texts)
    calibration = _write_calibration(folder, calibration_texts(short))
    contenders: list[Contender] = [
        contender
        for contender in [*own_contenders(), *peer_contenders(onnx_instructions(processor), calibration)]
        if not only or any(part in contender.label for part in only)
    ]
    prepared = folder / "models" / f"{name}-{described.fingerprint[:8]}"
    prepared.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(
            model=model,
            folder=source,
            prepared=prepared,
            environments=Environments(folder, report),
            threads=processor.cores,
            sets=sets,
            sts=sts_rows(data),
            work=Path(work),
            report=report,
        )
        found = comparison.run(contenders, rounds)
    return Run(
        model=name,
        rounds=rounds,
        threads=processor.cores,
        **begun,
        sets={texts.name: {"texts": len(texts.texts), "tokens": texts.tokens} for texts in sets},
        contenders=found,
    )


def _write_calibration(folder: Path, texts: Sequence[str]) -> str:
    """A folder that `datasets` reads, with a name that changes with the texts."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    place = folder / f"calibration-{hashlib.sha256(lines.encode()).hexdigest()[:8]}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.jsonl").write_text(lines, encoding="utf-8")
    return str(place)


if __name__ == "__main__":
    main()
