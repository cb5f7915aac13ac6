"""What only a machine with CUDA can show: parity and speed of the fp16 variants, as JSON.

    python benchmarks/gpu_check.py [--model FOLDER …] [--sentences 20000] [--output FILE]

Runs from a checkout (PYTHONPATH=checkout) or an installation. Without --model two models with random weights
are made, in the shapes of all-MiniLM-L6 and of BERT-base. Exits with 2 where there is no CUDA.
"""

from __future__ import annotations

# First of all: torch brings CUDA's and cuDNN's libraries, which onnxruntime then finds already loaded.
import torch  # isort: skip

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]


def missing_cuda() -> str | None:
    """Why this machine cannot run the check, or None."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "the installed onnxruntime has no CUDA provider: install onnxruntime-gpu in its place"
    return None


def random_models(folder: Path) -> dict[str, Path]:
    """Two models with random weights: speed depends on their shape alone."""
    from tests.unit.checkpoints import write_checkpoint

    return {
        "random MiniLM-L6": write_checkpoint(folder / "minilm", hidden=384, heads=12, layers=6, max_tokens=256),
        "random BERT-base": write_checkpoint(folder / "base", hidden=768, heads=12, layers=12, max_tokens=256),
    }


def sentences(count: int) -> list[str]:
    """Distinct sentences of common lengths; the few very long ones of the parity set stay out."""
    from es_sbert.exporters.sentences import parity_sentences

    return [text for text in parity_sentences(256, count + 512) if 0 < len(text) < 400][:count]


def rate(encode: Callable[[list[str]], Any], texts: list[str], rounds: int) -> dict[str, float]:
    """Sentences per second over some rounds, after one to warm up."""
    encode(texts)
    rates = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        encode(texts)
        torch.cuda.synchronize()
        rates.append(len(texts) / (time.perf_counter() - started))
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def measure_sentence_transformers(folder: Path, texts: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Speed of sentence-transformers in fp16, over batch sizes: which is best depends on model and card."""
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(str(folder), device="cuda", local_files_only=True).half()
    return {
        f"batch {size}": rate(
            lambda batch, size=size: network.encode(batch, prompt="", batch_size=size, show_progress_bar=False),
            texts, rounds,
        )
        for size in (32, 128, 512, 2048)
    }  # fmt: skip


def measure_variant(bundle: Any, name: str, texts: list[str], rounds: int) -> dict[str, Any]:
    """Speed of one of our variants, and where it really ran."""
    from es_sbert.encoder.device import Device
    from es_sbert.encoder.encoder import Encoder

    with Encoder(bundle, name, Device("cuda"), threads=1) as encoder:
        speed = rate(encoder.encode, texts, rounds)
        parity = bundle.manifest.variants[name].parity
        return {
            "provider": encoder.info.provider,
            "parity": parity.model_dump(mode="json") if parity else None,
            "sentences per second": speed,
        }


def measure(name: str, folder: Path, texts: list[str], rounds: int, scratch: Path) -> dict[str, Any]:
    """Parity and speed of one model."""
    from es_sbert.bundle.checkpoint import read_model
    from es_sbert.bundle.model import Precision
    from es_sbert.bundle.store import open_bundle
    from es_sbert.exporters.export import export_bundle

    def log(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    target = scratch / f"bundle of {folder.name}"
    # Forced, so that a variant below its bar is measured and shown rather than hidden behind an error.
    manifest = export_bundle(
        read_model(folder, name), target, [Precision.FP16], force=True, reference="sentence-transformers",
        on_progress=log,
    )  # fmt: skip
    log("measuring sentence-transformers")
    theirs = measure_sentence_transformers(folder, texts, rounds)
    torch.cuda.empty_cache()
    bundle = open_bundle(target)
    ours = {}
    for variant in manifest.variants:
        log(f"measuring {variant}")
        ours[variant] = measure_variant(bundle, variant, texts, rounds)
    best_theirs = max(figures["median"] for figures in theirs.values())
    best_ours = max(figures["sentences per second"]["median"] for figures in ours.values())
    return {
        "model": name,
        "variants": ours,
        "sentence-transformers fp16": theirs,
        "times sentence-transformers' best": best_ours / best_theirs,
    }


def main() -> int:
    """Run the check and print JSON; 0 when every variant passed its parity bar, 1 when one did not, 2 without CUDA."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[], help="sentence-transformers folder")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    reason = missing_cuda()
    if reason is not None:
        print(f"gpu-check needs a machine with CUDA: {reason}.", file=sys.stderr)
        return 2
    sys.path.insert(0, str(CHECKOUT))
    import onnxruntime
    import sentence_transformers

    texts = sentences(arguments.sentences)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        models = {folder.name: folder for folder in arguments.model} or random_models(scratch)
        results = [measure(name, folder, texts, arguments.rounds, scratch) for name, folder in models.items()]
    report = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "onnxruntime": onnxruntime.__version__,
        "sentences": len(texts),
        "results": results,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    checked = [variant["parity"] for result in results for variant in result["variants"].values()]
    return 0 if all(parity is not None and parity["passed"] for parity in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
