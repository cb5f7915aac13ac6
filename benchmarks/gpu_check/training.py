"""The steps `training` and `reranker`: both compared with sentence-transformers on the same GPU."""

from __future__ import annotations

import contextlib
import gzip
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.card import load_libraries
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.random_models import SHAPES, make_texts, whole_words, write_cross_encoder
from benchmarks.gpu_check.results import JSON, goal, spread
from benchmarks.gpu_check.speed import best_batch, rate, sentence_transformers_model

_CHECKOUT = Path(__file__).parents[2]
_STSB = "sts/stsb-en-train.tsv.gz"
_STSB_PAIRS = 5749
# Batch and precision.
_TRAININGS = ((16, "bf16"), (256, "bf16"), (16, "fp32"), (256, "fp32"))
_STEPS = 120

_PAIRS, _PAIR_TOKENS = 16_384, 64  # tokens of one side
_AGREEMENT = 99.5  # Spearman's ρ × 100, as the bar of fp16 rerankers


def training(context: Context) -> JSON:
    """Steps a second of `benchmarks.train_speed`: ours and sentence-transformers' trainer, in turn."""
    model, folder = context.first_model
    data = context.data if context.data is not None else _made_up_data(context, folder)
    cases: JSON = {}
    for batch, precision in _TRAININGS:
        name = f"batch {batch}, {precision}"
        if not context.wants(name):
            continue
        say(f"training: {name}")
        try:
            context.check_time(60)
            cases[name] = _train(context, folder, data, batch, precision)
        except OutOfTime as error:
            cases[name] = {"error": str(error)}
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            cases[name] = {"error": _of_process(error)}
    return {"model": model, "real_data": context.data is not None, "steps": _STEPS, "cases": cases}


def _train(context: Context, folder: Path, data: Path, batch: int, precision: str) -> JSON:
    command = [
        sys.executable, "-m", "benchmarks.train_speed", "--data", str(data), "--model", str(folder),
        "--device", "cuda", "--precision", precision, "--batch", str(batch), "--steps", str(_STEPS),
        "--rounds", str(min(2, context.rounds)),
    ]  # fmt: skip
    limit = max(1.0, context.time_left())
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit, cwd=_CHECKOUT)
    return training_case(json.loads(done.stdout.splitlines()[-1]))


def training_case(measured: JSON) -> JSON:
    """What `benchmarks.train_speed` found for one size of a batch, with the goal for our trainer.

    Args:
        measured: Rates, and ratios to sentence-transformers' trainer, by name of the trainer, a number for each round.
    """
    ratios = {side: statistics.median(found) for side, found in measured["ratio"].items()}
    ours = {side: ratio for side, ratio in ratios.items() if side.startswith("es-sbert")}
    goals = [goal(f"{side}: times sentence-transformers' trainer", ratio, at_least=1) for side, ratio in ours.items()]
    return {**measured, "goals": goals}


def _of_process(error: Exception) -> str:
    told = getattr(error, "stderr", None) or ""
    lines = (told.decode() if isinstance(told, bytes) else told).strip().splitlines()
    return f"{type(error).__name__}: {error}" + "".join(f"\n{line}" for line in lines[-5:])


def _made_up_data(context: Context, folder: Path) -> Path:
    """A data folder with as many pairs as STSb-train has, of random words and scores."""
    data = context.scratch / "data"
    path = data / _STSB
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        words, rng = whole_words(folder / "tokenizer.json"), np.random.default_rng(0)
        sides = [make_texts(words, _STSB_PAIRS, 13, seed) for seed in (1, 2)]
        scores = rng.uniform(0, 5, _STSB_PAIRS).round(2)
        with gzip.open(path, "wt", encoding="utf-8", newline="\n") as file:
            file.write("sentence1\tsentence2\tscore\n")
            for first, second, score in zip(*sides, scores, strict=True):
                file.write(f"{first}\t{second}\t{score}\n")
    return data


def reranker(context: Context) -> JSON:
    """Pairs a second of a cross-encoder in fp16, compared with sentence-transformers' CrossEncoder in fp16."""
    load_libraries()
    from es_sbert.bundle.cross_encoder_model import read_cross_encoder
    from es_sbert.bundle.variants import Variant
    from es_sbert.encoder.reranker import Reranker
    from es_sbert.exporters.export_bundle import export_reranker

    name = "minilm"
    folder = write_cross_encoder(context.scratch / f"cross-{name}", SHAPES[name])
    exported = context.scratch / f"reranker-{name}"
    if not exported.exists():
        export_reranker(read_cross_encoder(folder), exported, [Variant.FP16], force=True, on_progress=say)
    words, count = whole_words(folder / "tokenizer.json"), context.at_most(_PAIRS)
    seeds = iter(range(1, 10_000))

    def new_pairs(number: int = count) -> list[tuple[str, str]]:
        first, second = (make_texts(words, number, _PAIR_TOKENS, next(seeds)) for _ in range(2))
        return list(zip(first, second, strict=True))

    with contextlib.closing(Reranker(exported, device="cuda", precision="fp16")) as ours:
        _score(ours, new_pairs())
        theirs = sentence_transformers_model("CrossEncoder", folder)

        def predict(size: int) -> Callable[[list[tuple[str, str]]], Any]:
            return lambda batch: theirs.predict(batch, batch_size=size)

        best, tried = best_batch(None if theirs is None else predict, new_pairs, count)
        mine: list[float] = []
        others: list[float] = []
        for _ in range(context.rounds):
            pairs = new_pairs()
            mine.append(rate(lambda batch: _score(ours, batch), pairs))
            if theirs is not None:
                others.append(rate(predict(best), pairs))
        agreement = None if theirs is None else _agreement(_score(ours, pairs), folder, pairs)
    ratios = [one / other for one, other in zip(mine, others, strict=True)] if others else []
    return {
        "shape": name,
        "pairs": count,
        "pairs_per_second": spread(mine),
        "sentence_transformers": {"best": {"batch": best, **spread(others)}, "tried": tried} if others else None,
        "ratio_to_best": spread(ratios) if ratios else None,
        "rank_agreement_with_fp32": agreement,
        "goals": [
            goal("Spearman's ρ × 100 with fp32 scores", agreement, at_least=_AGREEMENT),
            goal("times sentence-transformers", statistics.median(ratios) if ratios else None, at_least=1),
        ],
    }


def _score(reranker: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    first, second = zip(*pairs, strict=True)
    return reranker.score(first, second)


def _agreement(scores: Any, folder: Path, pairs: list[tuple[str, str]]) -> float:
    """Spearman's ρ × 100 between our scores and those of sentence-transformers in fp32."""
    from sentence_transformers import CrossEncoder

    from es_sbert.exporters.parity import spearman

    exact = CrossEncoder(str(folder), device="cuda", local_files_only=True).predict(pairs, batch_size=128)
    return spearman(np.asarray(scores, np.float64), np.asarray(exact, np.float64))
