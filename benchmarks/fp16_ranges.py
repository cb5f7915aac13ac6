"""How near a model's intermediate values come to the largest number of fp16 (65,504), and what fp16 storage changes.

    python -m benchmarks.fp16_ranges --data DATA [--model all-MiniLM-L6-v2 --model FOLDER] [--sentences 10000]

DATA as in `benchmarks.acceptance`: sentences are taken at even distances from `ingest/short-docs.jsonl.gz`.
`es-sbert model fetch all-mpnet-base-v2` makes a folder of that model. Needs no GPU: the forward pass is
`NumpyReference`. It runs twice over texts of equal length, so that no value belongs to padding: in float32, where the
largest magnitudes are read, and with fp16 emulated: weights and what the CUDA graph stores between its operators are
rounded to float16, sums are in float32. What a fused operator keeps to itself, scores and sums with the residual, is
not rounded.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, read_jsonl, replaced, seconds, table
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.exporters.numpy_reference import NumpyReference, ValueHook
from es_sbert.exporters.parity import normalize_rows
from es_sbert.exporters.transformer_weights import Floats, read_transformer_weights
from es_sbert.runtime.tokenizer import SentenceTokenizer

T = TypeVar("T")

RESULT = Path(__file__).parent / "results/fp16_ranges.json"
LARGEST = float(np.finfo(np.float16).max)
_BATCH_TOKENS = 512

# Place in the graph → the values of the reference that are stored or computed there.
PLACES = {
    "input of LayerNorm: embeddings": ("embedding sum",),
    "input of LayerNorm: attention and residual": ("attention sum",),
    "input of LayerNorm: feed-forward and residual": ("feed-forward sum",),
    "hidden states": ("embedding norm", "attention norm", "feed-forward norm"),
    "queries, keys, values": ("query", "key", "value"),
    "queries · keys, not scaled": ("unscaled scores",),
    "attention scores before softmax": ("attention scores",),
    "what softmax's exponent sees (score − largest)": ("exponent",),
    "attention, its product": ("attention", "attention product"),
    "input of GELU": ("activation input",),
    "output of GELU": ("activation",),
    "product of the feed-forward block": ("feed-forward product",),
    "sum of a text's tokens (pooling)": ("pooling sum",),
}

# Never stored by the CUDA graph: attention's and SkipLayerNormalization's kernels keep them in float32.
NOT_STORED = frozenset({"embedding sum", "attention sum", "feed-forward sum", "attention scores"})
_WORST = 3  # sentences shown with their cosine


def fp16(value: Floats) -> Floats:
    """The nearest float16, as float32."""
    return value.astype(np.float16).astype(np.float32)


def rounded(value: T) -> T:
    """A dataclass of weights with all its arrays rounded to float16."""
    if isinstance(value, np.ndarray):
        return fp16(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(map(rounded, value))  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: rounded(getattr(value, field.name)) for field in fields(value)})
    return value


def stored(place: str, value: Floats) -> Floats:
    """A value as the CUDA graph hands it on."""
    return value if place in NOT_STORED else fp16(value)


class Ranges:
    """Largest magnitudes of a forward pass, by name and layer; its `observe` goes into `NumpyReference`.

    Args:
        layers: Of the network.
        head_size: Of its attention.

    Attributes:
        largest: Name → largest magnitude in each layer, from the first to the last.
    """

    def __init__(self, layers: int, head_size: int) -> None:
        self.largest: dict[str, list[float]] = defaultdict(lambda: [0.0] * layers)
        self._layers = layers
        self._head_size = head_size
        self._seen: Counter[str] = Counter()

    def observe(self, name: str, value: Floats) -> Floats:
        """Note a value; what softmax and pooling make of it is noted too."""
        layer = self._seen[name] % (1 if name.startswith("embedding") else self._layers)
        self._seen[name] += 1
        self._note(name, layer, value)
        if name == "attention scores":
            self._note("unscaled scores", layer, value * np.float32(np.sqrt(self._head_size)))
            self._note("exponent", layer, value - value.max(axis=-1, keepdims=True))
        if name == "feed-forward norm" and layer == self._layers - 1:
            self._note("pooling sum", layer, value.sum(axis=1))
        return value

    def _note(self, name: str, layer: int, value: Floats) -> None:
        self.largest[name][layer] = max(self.largest[name][layer], float(np.abs(value).max()))


def equal_lengths(rows: Sequence[NDArray[np.int64]]) -> Iterator[list[int]]:
    """Batches of texts with the same number of tokens."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_length[len(row)].append(number)
    for length, members in by_length.items():
        size = max(1, _BATCH_TOKENS // length)
        yield from (members[start : start + size] for start in range(0, len(members), size))


def measure(name: str, texts: list[str]) -> dict[str, Any]:
    """The figures of one model."""
    model = read_sentence_model(resolve_model(name), name)
    transformer = read_transformer_weights(model)
    rows = SentenceTokenizer(model)(texts).ids

    def encode(weights: Any, observe: ValueHook) -> Floats:
        reference = NumpyReference(model, weights, observe)
        vectors = np.empty((len(rows), model.dimensions), dtype=np.float32)  # (texts, dimensions)
        for batch in equal_lengths(rows):
            ids = np.stack([rows[number] for number in batch])  # (batch, tokens)
            vectors[batch] = reference.forward(ids, np.ones_like(ids))
        return vectors

    ranges = Ranges(len(transformer.layers), transformer.head_size)
    took, exact = seconds(lambda: encode(transformer, ranges.observe))
    took_fp16, emulated = seconds(lambda: encode(rounded(transformer), stored))
    cosines = np.einsum("td,td->t", normalize_rows(exact), normalize_rows(emulated))
    worst = np.argsort(cosines)[:_WORST]
    return {
        "model": Path(name).name,
        "sentences": len(rows),
        "tokens": sum(map(len, rows)),
        "longest": max(map(len, rows)),
        "seconds": [took, took_fp16],
        "largest": dict(ranges.largest),
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "worst": [
            {"cosine": float(cosines[number]), "tokens": len(rows[number]), "text": texts[number]} for number in worst
        ],
    }


def largest(result: dict[str, Any], names: Sequence[str]) -> tuple[float, int]:
    """The largest magnitude of several values, and the layer it is in, counted from 1."""
    return max((value, layer + 1) for name in names for layer, value in enumerate(result["largest"][name]))


def section(results: list[dict[str, Any]], command: str) -> str:
    """The tables."""
    header = ["value"]
    for result in results:
        header += [result["model"], "layer", "headroom"]
    lines: list[list[str]] = []
    for place, names in PLACES.items():
        line = [place]
        for result in results:
            value, layer = largest(result, names)
            shown = "–" if names[0] in ("embedding sum", "pooling sum") else str(layer)
            line += [f"{value:,.1f}", shown, f"{LARGEST / value:,.0f}"]
        lines.append(line)
    cosines = [
        [
            result["model"],
            f"{result['min_cosine']:.6f}",
            f"{result['mean_cosine']:.6f}",
            f"{result['sentences']:,}",
            f"{result['tokens']:,}",
            result["longest"],
        ]
        for result in results
    ]
    return "\n".join(
        [
            f"`{command}`: largest magnitude of each value, the layer it is in, and its headroom.",
            "",
            table(header, lines),
            "",
            "With weights and what the CUDA graph stores rounded to float16, against float32:",
            "",
            table(["model", "min cosine", "mean cosine", "sentences", "tokens", "longest"], cosines),
        ]
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", "models", multiple=True, default=(DEFAULT_MODEL,), show_default=True)
@click.option("--sentences", default=10_000, show_default=True)
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the tables into."
)
def main(data: Path, models: tuple[str, ...], sentences: int, page: Path | None) -> None:
    """Measure each model, print the tables."""
    every = [str(row["text"]) for row in read_jsonl(data / "ingest/short-docs.jsonl.gz")]
    texts = every[:: max(1, len(every) // sentences)][:sentences]
    results = []
    for name in models:
        click.echo(f"{name}: {len(texts):,} sentences", err=True)
        results.append(measure(name, texts))
    RESULT.write_text(json.dumps({"machine": machine(), "models": results}, indent=2) + "\n")
    shown = " ".join(f"--model {'FOLDER' if Path(name).is_dir() else name}" for name in models)
    text = section(results, f"python -m benchmarks.fp16_ranges --data DATA {shown} --sentences {sentences}")
    if page is not None:
        page.write_text(replaced(page.read_text(), "fp16 ranges", text, maker="benchmarks.fp16_ranges"))
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
