"""The step `parity`: vectors from CUDA against the numpy reference, for every architecture, pooling and precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.card import load_libraries
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.results import JSON, goal

# Half of the texts are longer than the 64 tokens at which another attention kernel takes over.
_MAX_TOKENS = 256
# Heads of 32 and 64 numbers, as in MiniLM and BERT-base, which the fused kernels take; 12 is left to the plain one.
_SIZES: dict[str, dict[str, int]] = {
    "head 32": {"hidden": 128, "heads": 4},
    "head 64": {"hidden": 128, "heads": 2},
    "head 12": {"hidden": 48, "heads": 4},
}


def parity(context: Context) -> JSON:
    """Least cosine between vectors from CUDA and from the numpy reference: fp16 at least 0.999, fp32 0.99999."""
    load_libraries()
    cases: JSON = {}
    for name, settings in _cases(context):
        if not context.wants(name):
            continue
        try:
            context.check_time(20)
        except OutOfTime as error:
            cases[name] = {"error": str(error)}
            continue
        say(f"parity: {name}")
        try:
            cases[name] = _measure(context, name, settings)
        except Exception as error:  # one model that fails must not hide the others
            cases[name] = {"error": f"{type(error).__name__}: {error}"}
    return {"cases": cases}


def _cases(context: Context) -> Iterator[tuple[str, dict[str, Any] | Path]]:
    """Name and either a folder or the settings of one of the tests' checkpoints."""
    for folder in context.models:
        yield folder.resolve().name, folder
    try:
        from tests.unit.checkpoints import ARCHITECTURES, ROTARY_ARCHITECTURES, TRACED_ARCHITECTURES
    except ImportError:  # the checkpoints are written by torch
        if not context.models:
            raise
        return
    from es_sbert.bundle.modules import Pooling

    for architecture in ARCHITECTURES:
        for size, shape in _SIZES.items():
            yield f"{architecture}, mean, {size}", {"architecture": architecture, **shape}
    for architecture in ("bert", "mpnet"):
        for pooling in Pooling:
            settings = {"architecture": architecture, "pooling": str(pooling), "normalize": False, **_SIZES["head 32"]}
            yield f"{architecture}, {pooling}, not normalized", settings
    for activation in ("gelu_new", "relu", "silu"):
        yield f"bert, {activation}", {"architecture": "bert", "hidden_act": activation, **_SIZES["head 32"]}
    for architecture in ROTARY_ARCHITECTURES:
        for size in ("head 32", "head 64"):
            yield f"{architecture}, rotary, {size}", {"architecture": architecture, **_SIZES[size]}
    for architecture in TRACED_ARCHITECTURES:
        yield f"{architecture}, traced", {"architecture": architecture, **_SIZES["head 32"]}


def _measure(context: Context, name: str, settings: dict[str, Any] | Path) -> JSON:
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.bundle.variants import Variant

    if isinstance(settings, Path):
        folder = settings
    else:
        from tests.unit.checkpoints import write_checkpoint

        folder = context.scratch / "checkpoints" / "".join(letter if letter.isalnum() else "-" for letter in name)
        if not (folder / "modules.json").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(folder, **settings, max_tokens=_MAX_TOKENS)
    precisions = (Variant.FP16, Variant.FP32)
    bundle = context.bundle(folder, precisions)
    sections = {str(precision): _compare(bundle, precision) for precision in precisions}
    goals = [one for section in sections.values() for one in section.pop("goals")]
    return {"architecture": read_sentence_model(folder).architecture, **sections, "goals": goals}


def _compare(bundle: Any, precision: Any) -> JSON:
    """The encoder's vectors on CUDA, as users get them, against the reference."""
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.exporters.export_bundle import choose_graph_source
    from es_sbert.exporters.numpy_reference import choose_reference
    from es_sbert.exporters.parity import PARITY_THRESHOLDS, compare_vectors, parity_sentences

    model = bundle.model
    texts = parity_sentences(model.max_tokens)
    _, transformer = choose_graph_source(model)
    reference = choose_reference(model, transformer, "numpy")
    with Encoder(bundle.folder, precision=str(precision), device="cuda", threads=2) as encoder:
        report = compare_vectors(precision, reference.name, reference.encode(texts, None), encoder.encode(texts))
        provider = encoder.info.provider
    bar = PARITY_THRESHOLDS[precision].min_cosine
    return {
        "provider": provider,
        **report.model_dump(mode="json"),
        "goals": [
            goal(f"least cosine, {precision}", report.min_cosine, at_least=bar),
            goal(f"the whole bar, {precision} (1 yes, 0 no)", float(report.passed), at_least=1),
        ],
    }
