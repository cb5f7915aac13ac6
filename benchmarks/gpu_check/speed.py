"""The steps `speed` and `pairs`: texts and tokens a second, compared with sentence-transformers."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.arithmetic import Shape, flops
from benchmarks.gpu_check.card import load_libraries, measured_tflops, memory_used_mib
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.random_models import make_texts, whole_words
from benchmarks.gpu_check.results import JSON, goal, spread

# Mean tokens a text → texts of a round, ours and sentence-transformers'.
_ROUND = {15: (200_000, 16_384), 64: (60_000, 8_192), 256: (16_000, 4_096)}
BATCHES = (32, 128, 512, 2048)
_FASTER = {"minilm": 3.0, "bert-base": 1.6}  # times sentence-transformers at its best batch
_SHORT_TEXTS_A_SECOND = 150_000
_PAIRS = 10_000
_PAIRS_SECONDS = 0.5


def speed(context: Context) -> JSON:
    """Ours and sentence-transformers in turn, in fp16, with new texts in each round."""
    load_libraries()
    peak = measured_tflops()
    cases: JSON = {}
    for model, folder in context.named_models.items():
        wanted = [tokens for tokens in _ROUND if context.wants(f"{model}/{tokens}")]
        if not wanted:
            continue
        words = whole_words(folder / "tokenizer.json")
        with contextlib.ExitStack() as stack:
            before = memory_used_mib()
            encoder = stack.enter_context(_encoder(context, folder))
            for tokens in wanted:
                encoder.encode(make_texts(words, context.at_most(_ROUND[tokens][0]), tokens, seed=0))
            grown = _grown(before)  # before sentence-transformers takes some, too
            network = sentence_transformers_model("SentenceTransformer", folder)
            for tokens in wanted:
                name = f"{model}/{tokens}"
                say(f"speed: {name}")
                try:
                    context.check_time(60)
                    cases[name] = _side_by_side(context, encoder, network, folder, words, tokens, peak)
                    cases[name]["memory_mib"] = grown
                except OutOfTime as error:
                    cases[name] = {"error": str(error)}
                except Exception as error:  # sentence-transformers may run out of memory, and the rest counts
                    cases[name] = {"error": f"{type(error).__name__}: {error}"}
    return {"fp16_measured_tflops": peak, "cases": cases}


def _side_by_side(
    context: Context,
    encoder: Any,
    network: Any,
    folder: Path,
    words: Sequence[str],
    tokens: int,
    peak: float | None,
) -> JSON:
    from es_sbert.bundle.sentence_model import read_sentence_model

    count, their_count = (context.at_most(number) for number in _ROUND[tokens])
    seeds = iter(range(1, 10_000))

    def new_texts(number: int) -> list[str]:
        return make_texts(words, number, tokens, next(seeds))

    encoder.encode(new_texts(min(count, encoder.pipeline.window)))
    best, tried = best_batch(None if network is None else partial(_by, network), new_texts, their_count)
    ours, theirs, at_best, token_counts = [], [], [], []
    model = read_sentence_model(folder)
    shape = Shape.of_config(model.transformer_config)
    work: list[float] = []
    for number in range(context.rounds):
        if number >= 2 and context.time_left() < 0:
            break
        texts = new_texts(count)
        ours.append(rate(lambda batch: encoder.encode(batch), texts))
        lengths = np.minimum(encoder.pipeline.tokenize(texts).tokens, model.max_tokens)
        token_counts.append(float(lengths.mean()))
        work.append(flops(shape, lengths) / len(texts))
        if network is not None:
            theirs.append(rate(_by(network, BATCHES[0]), texts[:their_count]))
            at_best.append(rate(_by(network, best), texts[:their_count]))
    median = statistics.median(ours)
    achieved = median * statistics.median(work) / 1e12
    ratios = [mine / other for mine, other in zip(ours, at_best, strict=True)] if network is not None else []
    goals = []
    if tokens == min(_ROUND) and shape.layers == 6 and shape.hidden == 384:
        goals.append(goal("sentences a second", median, at_least=_SHORT_TEXTS_A_SECOND))
    wanted = _FASTER["minilm"] if shape.hidden == 384 else _FASTER["bert-base"]
    if shape.hidden in (384, 768):
        measured = statistics.median(ratios) if ratios else None
        goals.append(goal("times sentence-transformers at its best batch", measured, at_least=wanted))
    return {
        "texts": count,
        "mean_tokens": statistics.mean(token_counts),
        "texts_per_second": spread(ours),
        "tokens_per_second": median * statistics.mean(token_counts),
        "tflops": achieved,
        "share_of_measured_peak": achieved / peak if peak else None,
        "sentence_transformers": None
        if network is None
        else {
            "texts": their_count,
            "batch_32": spread(theirs),
            "best": {"batch": best, **spread(at_best)},
            "tried": tried,
        },
        "ratio_to_best": spread(ratios) if ratios else None,
        "goals": goals,
    }


def best_batch(
    by: Callable[[int], Callable[[list[Any]], Any]] | None, new_texts: Callable[[int], list[Any]], count: int
) -> tuple[int, JSON]:
    """sentence-transformers' fastest batch size on this card, and what each gave.

    Args:
        by: Size → what is timed; None where sentence-transformers cannot run.
    """
    if by is None:
        return BATCHES[0], {}
    tried = {}
    for size in BATCHES:
        by(size)(new_texts(min(2 * size, count)))
        tried[size] = rate(by(size), new_texts(count))
    return max(tried, key=lambda size: tried[size]), {str(size): found for size, found in tried.items()}


def _by(network: Any, size: int) -> Callable[[list[str]], Any]:
    return lambda texts: network.encode(texts, prompt="", batch_size=size, show_progress_bar=False)


def rate(encode: Callable[[list[Any]], Any], texts: list[Any]) -> float:
    """Texts a second; vectors are on the host when `encode` returns."""
    begun = time.perf_counter()
    encode(texts)
    return len(texts) / (time.perf_counter() - begun)


def _encoder(context: Context, folder: Path, **settings: Any) -> Any:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.runtime.onnx_session import CUDA_WORKERS

    settings = {"threads": CUDA_WORKERS, **settings}
    return Encoder(context.bundle(folder).folder, precision="fp16", device="cuda", **settings)


def sentence_transformers_model(kind: str, folder: Path) -> Any:
    """The same model in sentence-transformers, fp16 on the card; None where it is not installed or sees no card."""
    try:
        import sentence_transformers
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    network = getattr(sentence_transformers, kind)(str(folder), device="cuda", local_files_only=True)
    (network if kind == "SentenceTransformer" else network.model).half()
    return network


def _grown(before: float | None) -> float | None:
    after = memory_used_mib()
    return None if before is None or after is None else after - before


def pairs(context: Context) -> JSON:
    """Seconds from 10,000 sentences to their most similar pair, embedding and exact search."""
    load_libraries()
    from es_sbert.analysis import most_similar_pairs

    cases: JSON = {}
    for model, folder in context.named_models.items():
        if not context.wants(model):
            continue
        words = whole_words(folder / "tokenizer.json")
        embedding, comparing, together = [], [], []
        with _encoder(context, folder) as encoder:
            for number in range(context.rounds + 1):
                texts = _sentences(context, words, number)
                begun = time.perf_counter()
                vectors = encoder.encode(texts)
                embedded = time.perf_counter()
                most_similar_pairs(vectors, 1)
                ended = time.perf_counter()
                if number:  # the first round warms up
                    embedding.append(embedded - begun)
                    comparing.append(ended - embedded)
                    together.append(ended - begun)
        goals = (
            [
                goal(
                    f"seconds to the most similar pair of {_PAIRS:,}",
                    statistics.median(together),
                    at_most=_PAIRS_SECONDS,
                )
            ]
            if len(texts) == _PAIRS
            else []
        )
        cases[model] = {
            "sentences": len(texts),
            "real_sentences": context.data is not None,
            "seconds": {"embedding": spread(embedding), "comparing": spread(comparing), "together": spread(together)},
            "goals": goals if "base" not in model else [],
        }
    return {"cases": cases}


def _sentences(context: Context, words: Sequence[str], number: int) -> list[str]:
    """Other sentences in each round: real ones where there are data, in another order each time."""
    count = context.at_most(_PAIRS)
    if context.data is None:
        return make_texts(words, count, 15, seed=number)
    from benchmarks.pairs import sentences

    found = sentences(context.data)[:count]
    return [found[place] for place in np.random.default_rng(number).permutation(len(found))]
