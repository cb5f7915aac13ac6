"""Whether the model can be opened and runs where it is wanted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from es_sbert.doctor.findings import Finding, failure, ok, warning
from es_sbert.encoder.types import EncoderInfo
from es_sbert.errors import EsSbertError
from es_sbert.index.ensure import VectorField
from es_sbert.loading import LoadOptions, load_encoder, load_index_encoder

_TEXT = "Does this machine embed a sentence?"


def check_model(
    name: str | None, device: str, precision: str, threads: int | None, field: VectorField | None = None
) -> tuple[EncoderInfo | None, list[Finding]]:
    """Open the model and embed a sentence with it.

    Args:
        name: Of the model; None for that of the field, or the default one.
        device, precision, threads: As for `load_encoder`.
        field: A field whose model is needed.

    Returns:
        What really ran, None where nothing did; and the findings.
    """
    options: LoadOptions = {"device": device, "precision": precision, "threads": threads}
    try:
        if field is None:
            opened = load_encoder(name, **options)
        else:
            meta = field.meta
            opened = load_index_encoder(field.index, meta.model, meta.fingerprint, model=name, **options)
        with opened as encoder:
            vectors = encoder.encode([_TEXT]).vectors  # (1, dimensions)
            return encoder.info, list(_judged(encoder.info, vectors))
    except EsSbertError as error:
        return None, [Finding.of("model", error)]


def _judged(info: EncoderInfo, vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Iterator[Finding]:
    length = float(np.linalg.norm(vectors[0]))
    if abs(length - 1) > 1e-3:
        yield failure(
            "model", f"{info.model} gives a vector of length {length:.4f}, not 1", "Export it anew: `es-sbert export`."
        )
    else:
        yield ok(
            "model",
            f"{info.model} ({info.fingerprint[:12]}), {info.dimensions} dimensions, reads {info.max_tokens} tokens",
        )
    threads = f", {info.threads} threads" if info.threads else ""
    yield ok("device", f"{info.precision} by {info.provider} on {info.device}{threads}")
    for message in info.warnings:
        yield warning("device", message, "See `es-sbert encode --help` for --device and --precision.")
