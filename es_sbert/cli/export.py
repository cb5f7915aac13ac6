"""`es-sbert export`: export a model to an ONNX bundle and check it against the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert import exporters
from es_sbert.bundle.bundle import (
    EncoderManifest,
    ParityReport,
    RerankerManifest,
)
from es_sbert.bundle.variants import Variant
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import FILE_TYPE, json_option, setting_option, setting_options
from es_sbert.cli.output import align_columns
from es_sbert.config import DEFAULT_MODEL
from es_sbert.errors import UsageError
from es_sbert.messages import log_message


def _parse_variants(context: click.Context, parameter: click.Parameter, value: str | None) -> list[Variant] | None:
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Variant)]
    if unknown or not names:
        remedy = "Separate several by commas: --precision fp32,int8"
        raise UsageError(f"--precision {value!r} is not a list of {', '.join(Variant)}", remedy)
    return [Variant(name) for name in names]


@cloup.command()
@click.argument("model", default=DEFAULT_MODEL)
@option_group(
    "Options",
    setting_option(exporters.export_model, "output -o --output BUNDLE", type=FILE_TYPE),
    setting_option(
        exporters.export_model,
        "variants --precision LIST",
        multiple=False,
        callback=_parse_variants,
        help="Variants to write: fp32, int8, openvino-fp32, openvino-bf16, openvino-int8 (for CPUs), fp16 (for CUDA), "
        "separated by commas.  [default: those for CPUs that run on this machine]",
    ),
    setting_options(exporters.export_model, "ignore_settings KEY", "force"),
    json_option("Print the bundle's manifest as JSON on stdout."),
    log_format_option,
)
def export(model: str, output: Path, variants: list[Variant] | None, as_json: bool, **options: Any) -> None:
    """Export MODEL to a checked ONNX bundle.

    MODEL is a sentence-transformers folder, a hub id, or the name of an installed model package. The graph is built
    directly from the weights, without torch. For architectures that es-sbert does not know (XLNet, ELECTRA, …), it is
    traced with torch, which the extra `train` installs. Every variant is compared with the reference implementation
    (sentence-transformers if it is installed, else a forward pass in numpy) on more than 1,000 sentences, and is
    written only if it meets its parity bar.

    MODEL may also be a cross-encoder, as transformers or sentence-transformers writes it. Its graph scores pairs of
    texts, for reranking; it is always traced, and compared on more than 1,000 pairs.

    The bundle also opens in sentence-transformers, and is registered under the folder's name (es-sbert model list).

    \b
    Examples:
      es-sbert export all-MiniLM-L6-v2 -o minilm
      es-sbert export ./my-model -o my-bundle --precision fp32,int8,fp16
      es-sbert export my-bundle -o my-bundle --precision fp16
      es-sbert export ./my-cross-encoder -o my-reranker --precision fp32,int8,fp16
    """
    manifest = exporters.export_model(model, output, variants, register=True, report=log_message, **options)
    click.echo(manifest.model_dump_json(indent=2) if as_json else export_summary(manifest, output))


def export_summary(manifest: EncoderManifest | RerankerManifest, output: Path) -> str:
    """Format the written variants as a table, one line each."""
    is_encoder = isinstance(manifest, EncoderManifest)
    measures = ("min cosine", "mean cosine") if is_encoder else ("mean difference", "max difference")
    rows = [("variant", "device", *measures, "rank", "parity")]
    for name, variant in manifest.variants.items():
        report = variant.parity
        if report is None:
            rows.append((name, variant.device, "–", "–", "–", "NOT CHECKED on CUDA"))
            continue
        if isinstance(report, ParityReport):
            shown = f"{report.min_cosine:.6f}", f"{report.mean_cosine:.6f}"
        else:
            shown = f"{report.mean_difference:.6f} sd", f"{report.max_difference:.6f} sd"
        label = f"{'FORCED below its bar' if variant.forced else 'passed'} ({report.bar})"
        label += f", {variant.precision} emulated: no CUDA on this machine" if report.emulated else ""
        rows.append((name, variant.device, *shown, f"{report.rank_agreement:.2f}", label))
    return "\n".join([f"{manifest.name} → {output} (fingerprint {manifest.fingerprint})", *align_columns(rows)])
