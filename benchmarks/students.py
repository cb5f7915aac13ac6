"""Quality and speed of students that `es-sbert distill` makes of a teacher.

    python -m benchmarks.students --data DATA --work WORK [--teacher MODEL] [--texts N] [--layers N …] [--base MODEL …]
        [--write]
    python -m benchmarks.students --kept --write

DATA holds `sts/`, `nli/nli-train.tsv.gz`, `retrieval/SET/` in the BEIR layout and `ingest/short-docs.jsonl.gz`.
Students are trained on sentences of NLI and short documents of at most 20 words, without labels, and without the
sentences of STSb dev and test. They are kept in WORK: a run that was interrupted resumes there, and a student that is
finished is measured only. The settings of the training are those of `es-sbert distill`, unless options say otherwise.

STSb is Spearman's ρ × 100 on its test set; retrieval ranks all documents by cosine: by the student's vectors of both,
and by the student's vectors of the queries and the teacher's of the documents. Speeds are texts a second through
`Encoder.encode_stream`, as `es-sbert ingest` runs it, on documents that differ. All models are open at the same time
and take turns; ratios are those of the same round.

--write keeps the run in `benchmarks/results/students/KIND.json`, in place of that of the same teacher, and writes the
tables into docs/results.md.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from benchmarks.common import read_jsonl, read_tsv, seconds, spread, table
from benchmarks.encode_peers.measure import sts_correlation
from benchmarks.encode_peers.processor import KINDS, this_processor
from benchmarks.encode_peers.texts import spaced, sts_rows
from benchmarks.kept_runs import (
    ROOT,
    Goal,
    conditions,
    load_text,
    processor_text,
    read_kinds,
    rounded_numbers,
    write_kind,
    write_section,
)
from benchmarks.model_choice import ranking_quality
from benchmarks.retrieval import Collection, read_collection
from es_sbert.bundle.bundle import is_encoder_bundle
from es_sbert.encoder.encoder import Encoder
from es_sbert.training import distill
from es_sbert.vectors import Vectors

RESULTS = ROOT / "benchmarks/results/students"
PAGE = ROOT / "docs/results.md"
NAME, MAKER = "students", "benchmarks.students"

_MAX_WORDS = 20  # of a training text
# Of a round: several windows, so that texts are tokenized while others are embedded.
_SPEED_TEXTS, _STATIC_TEXTS = 12_000, 60_000
UNTRAINED, STATIC = "static, untrained", "static"
_WITH_GOALS = "all-MiniLM-L6-v2"


def training_texts(data: Path, count: int) -> list[str]:
    """Sentences and short documents, in an order that is drawn once; none is a sentence of STSb dev or test."""
    measured = {
        row[side].strip()
        for part in ("dev", "test")
        for row in read_tsv(data / f"sts/stsb-en-{part}.tsv.gz")
        for side in ("sentence1", "sentence2")
    }
    sentences = [row[side] for row in read_tsv(data / "nli/nli-train.tsv.gz") for side in ("sentence1", "sentence2")]
    documents = [row["text"] for row in read_jsonl(data / "ingest/short-docs.jsonl.gz")]
    texts = dict.fromkeys(text.strip() for text in (*sentences, *documents))
    kept = [text for text in texts if text not in measured]
    random.Random(0).shuffle(kept)
    return [text for text in kept if 0 < len(text.split()) <= _MAX_WORDS][:count]


def students(layers: Sequence[int], bases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name of each student → arguments of `distill`."""
    return {
        STATIC: {},
        UNTRAINED: {"texts": ()},
        **{layer_name(number): {"layers": number} for number in layers},
        **{f"from {base}": {"base": base} for base in bases},
    }


def layer_name(layers: int) -> str:
    """Name of a student with so many layers."""
    return f"{layers} layers"


def make_student(name: str, teacher: str, texts: Sequence[str], work: Path, options: dict[str, Any]) -> Path:
    """The folder of a student, trained if it is not there."""
    folder = work / f"{name} of {Path(teacher).name}".replace(", ", "-").replace(" ", "-")
    if not is_encoder_bundle(folder):
        resume = (folder / "training/run.json").exists()
        arguments = {"texts": texts, "resume": resume, **options}
        distill(teacher, folder, report=lambda line: click.echo(f"{name}: {line}", err=True), **arguments)
    return folder


def speeds(
    models: dict[str, Encoder], data: Path, rounds: int, report: Callable[[str], None]
) -> dict[str, list[float]]:
    """Texts a second of each model in each round, in turn."""
    documents = [row["text"] for row in read_jsonl(data / "ingest/short-docs.jsonl.gz")]
    documents = list(dict.fromkeys(documents))
    found: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds):
        for name, encoder in models.items():
            count = _STATIC_TEXTS if name in (STATIC, UNTRAINED) else _SPEED_TEXTS
            texts = spaced(documents, count * rounds)[number::rounds]
            if number == 0:
                encoder.encode(texts[:200])
            took, vectors = seconds(
                lambda encoder=encoder, texts=texts: sum(
                    len(part.vectors) for part in encoder.encode_stream(texts, "document")
                )
            )
            assert vectors == len(texts)
            found[name].append(len(texts) / took)
            report(f"round {number + 1}, {name}: {found[name][-1]:,.0f} texts/s")
    return found


def measure(
    encoder: Encoder, collections: dict[str, Collection], of_teacher: dict[str, Vectors], data: Path
) -> dict[str, Any]:
    """Quality of one model, and what it is.

    Args:
        of_teacher: The teacher's vectors of the documents of each collection.
    """
    rows = sts_rows(data)
    pairs = [row["sentence1"] for row in rows] + [row["sentence2"] for row in rows]
    alone, with_teacher = {}, {}
    for name, collection in collections.items():
        questions = encoder.encode(list(collection.queries.values()), "query")
        alone[name] = ranking_quality(collection, document_vectors(encoder, collection), questions)
        with_teacher[name] = ranking_quality(collection, of_teacher[name], questions)
    return {
        "variant": encoder.info.variant,
        "sts": sts_correlation(encoder.encode(pairs), [float(row["score"]) for row in rows]),
        "retrieval": alone,
        "teachers_documents": with_teacher,
    }


def document_vectors(encoder: Encoder, collection: Collection) -> Vectors:
    """A model's vectors of the documents of a collection."""
    return encoder.encode([document["text"] for document in collection.documents], "document")


def kept() -> dict[str, Any]:
    """Kind of processor → teacher → its run, best kind first."""
    return read_kinds(RESULTS)


def section(kinds: dict[str, Any]) -> str:
    """The tables of all kinds of processors and all teachers."""
    texts = [run_text(kind, run) for kind, runs in kinds.items() for run in runs.values()]
    return "\n\n".join(texts) or "No processor has been measured."


def run_text(kind: str, run: dict[str, Any]) -> str:
    """Conditions, table and goals of one run."""
    models: dict[str, dict[str, Any]] = run["models"]
    own = models[run["teacher"]]["speeds"]
    sets = list(models[run["teacher"]]["retrieval"])
    rankings = {f"nDCG@10, {one}": ("retrieval", one) for one in sets}
    if "teachers_documents" in models[run["teacher"]]:
        rankings |= {f"{one}, documents by the teacher": ("teachers_documents", one) for one in sets}
    header = ["model", "STSb ρ", *rankings, "texts/s", "× teacher", "variant"]
    rows = [
        [
            name,
            f"{figures['sts']:.2f}",
            *(f"{figures[ranking][one]:.1f}" for ranking, one in rankings.values()),
            spread(figures["speeds"]),
            spread([speed / teacher for speed, teacher in zip(figures["speeds"], own, strict=True)], 2),
            figures["variant"],
        ]
        for name, figures in models.items()
    ]
    how = ", ".join(f"{option} {value}" for option, value in run["options"].items()) or "the default settings"
    learned = f"The static student learned from {run['texts']:,} texts"
    if run["layers"] or run.get("bases"):
        learned += f", the transformers from the first {run['layer_texts']:,} of them, with {how}"
    about = (
        f"{processor_text(run['processor'])}; {run['date']}, commit {run['commit']}, {run['rounds']} rounds, median "
        f"(min–max). {load_text(run['load'], [])} The teacher is {run['teacher']}. {learned}."
    )
    goals = "".join(f"\n- {goal}" for goal in find_goals(run))
    return f"{KINDS[kind]}: {about}\n\n{table(header, rows)}" + (goals and f"\n{goals}")


def find_goals(run: dict[str, Any]) -> list[Goal]:
    """What students of all-MiniLM-L6-v2 should reach; none for other teachers."""
    if run["teacher"] != _WITH_GOALS:
        return []
    models: dict[str, dict[str, Any]] = run["models"]
    three, static, own = models.get(layer_name(3)), models.get(STATIC), models[run["teacher"]]["speeds"]
    ratio = None
    if three is not None:
        ratio = statistics.median(speed / teacher for speed, teacher in zip(three["speeds"], own, strict=True))
    return [
        Goal("3 layers at least 1.8 times as fast as their teacher", None if ratio is None else ratio >= 1.8),
        Goal("3 layers with at least 80.0 on STSb test", None if three is None else three["sts"] >= 80),
        Goal("static with at least 72 on STSb test", None if static is None else static["sts"] >= 72),
        Goal(
            "static with at least 30,000 short documents a second",
            None if static is None else statistics.median(static["speeds"]) >= 30_000,
        ),
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of the students.")
@click.option("--teacher", default=_WITH_GOALS, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), multiple=True, default=(3,), show_default=True)
@click.option("--base", "bases", multiple=True, help="Also make a student that starts from this model. Repeatable.")
@click.option("--static-only", is_flag=True, help="Make static students only.")
@click.option("--texts", "count", type=click.IntRange(min=100), default=400_000, show_default=True)
@click.option("--set", "sets", multiple=True, default=("cisi",), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--layer-texts", type=click.IntRange(min=100), help="Of students that are not static.  [default: all]")
@click.option("--epochs", type=float, help="Of students that are not static.")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="Of their training.")
@click.option("--write", is_flag=True, help="Keep the run, and write its table into docs/results.md.")
@click.option("--kept", "only_kept", is_flag=True, help="Run nothing; show, or write, what is kept.")
def main(
    data: Path | None,
    work: Path | None,
    teacher: str,
    layers: Sequence[int],
    bases: Sequence[str],
    static_only: bool,
    count: int,
    sets: Sequence[str],
    rounds: int,
    layer_texts: int | None,
    epochs: float | None,
    precision: str | None,
    *,
    write: bool,
    only_kept: bool,
) -> None:
    """Make the students that are not there, measure them and print the table."""
    if not only_kept:
        if data is None or work is None:
            raise click.UsageError("Give --data FOLDER and --work FOLDER, or --kept.")
        texts = training_texts(data, count)
        layers, bases = ((), ()) if static_only else (layers, bases)
        fewer = texts[:layer_texts]
        given = {name: value for name, value in (("epochs", epochs), ("precision", precision)) if value is not None}
        models: dict[str, str | Path] = {teacher: teacher}
        for name, options in students(layers, bases).items():
            if name in (STATIC, UNTRAINED):
                models[name] = make_student(name, teacher, texts, work, options)
            else:
                models[name] = make_student(name, teacher, fewer, work, {**options, **given})
        processor = this_processor()
        run: dict[str, Any] = {**conditions(processor), "rounds": rounds, "teacher": teacher, "texts": len(texts)}
        run |= {"layers": list(layers), "bases": list(bases), "layer_texts": len(fewer), "options": given, "models": {}}
        with ExitStack() as stack:
            opened = {name: stack.enter_context(Encoder(model)) for name, model in models.items()}
            found = speeds(opened, data, rounds, lambda line: click.echo(line, err=True))
            collections = {name: read_collection(data / "retrieval" / name) for name in sets}
            of_teacher = {name: document_vectors(opened[teacher], one) for name, one in collections.items()}
            for name, encoder in opened.items():
                run["models"][name] = {**measure(encoder, collections, of_teacher, data), "speeds": found[name]}
        click.echo(run_text(processor.kind, run))
        if write:
            runs = kept().get(processor.kind, {})
            write_kind(RESULTS, processor.kind, {**runs, teacher: rounded_numbers(run)})
    if write:
        write_section(PAGE, NAME, section(kept()), maker=MAKER)
    elif only_kept:
        click.echo(section(kept()))


if __name__ == "__main__":
    main()
