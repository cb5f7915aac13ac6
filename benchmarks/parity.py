"""How closely exported graphs give the model's vectors: every CPU variant of one or several models.

    python -m benchmarks.parity [--model all-MiniLM-L6-v2 --model FOLDER …] [--sts stsb-test.tsv.gz] [--json FILE]

Each model is exported to a temporary folder with the reference of `es-sbert export`: sentence-transformers.
`es-sbert model fetch all-mpnet-base-v2` makes a folder of that model.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.common import machine, table
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.exporters.export_bundle import export_bundle

HEADER = (
    "model", "variant", "min cosine", "mean cosine", "max |Δ|", "rank agreement", "STS ρ reference", "STS ρ variant",
    "MB", "passed",
)  # fmt: skip


def measure(name: str, sts: Path | None, kind: Any) -> dict[str, Any]:
    """Export one model and collect the figures of its variants."""
    model = read_sentence_model(resolve_model(name), name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bundle"
        started = time.perf_counter()
        manifest = export_bundle(
            model,
            folder,
            [Variant.FP32, Variant.INT8],
            force=True,
            sts_file=sts,
            reference=kind,
            on_progress=lambda line: click.echo(line, err=True),
        )
        seconds = time.perf_counter() - started
        sizes = {name: (folder / variant.file).stat().st_size for name, variant in manifest.variants.items()}
    variants = {
        name: {**variant.model_dump(mode="json"), "bytes": sizes[name]} for name, variant in manifest.variants.items()
    }
    label = Path(name).name if Path(name).is_dir() else name
    return {"model": label, "architecture": model.architecture, "seconds": seconds, "variants": variants}


def rows(result: dict[str, Any]) -> list[list[object]]:
    """A model's lines of the table."""
    lines: list[list[object]] = []
    for name, variant in result["variants"].items():
        report = variant["parity"]
        sts = [f"{report[key]:.2f}" if report[key] is not None else "–" for key in ("sts_reference", "sts_variant")]
        lines.append(
            [
                result["model"],
                name,
                f"{report['min_cosine']:.7f}",
                f"{report['mean_cosine']:.7f}",
                f"{report['max_abs_difference']:.1e}",
                f"{report['rank_agreement']:.2f}",
                *sts,
                f"{variant['bytes'] / 1e6:.0f}",
                "yes" if report["passed"] else "no",
            ]
        )
    return lines


@click.command()
@click.option("--model", "models", multiple=True, default=(DEFAULT_MODEL,), show_default=True)
@click.option("--sts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--reference", type=click.Choice(["auto", "numpy", "sentence-transformers"]), default="auto")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write the figures here.")
def main(models: tuple[str, ...], sts: Path | None, reference: str, output: Path | None) -> None:
    """Print a Markdown table of parity figures."""
    results = [measure(name, sts, reference) for name in models]
    click.echo(table(HEADER, [line for result in results for line in rows(result)]))
    for result in results:
        report = next(iter(result["variants"].values()))["parity"]
        click.echo(
            f"\n{result['model']}: against {report['reference']} on {report['sentences']} sentences, "
            f"export with all checks {result['seconds']:.0f} s"
        )
    if output is not None:
        output.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
