"""`Reranker`: scores pairs of texts with a cross-encoder, in input order. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.bundle.bundle import RerankerBundle, open_reranker_bundle
from es_sbert.bundle.cross_encoder_model import ScoreActivation
from es_sbert.bundle.sentence_model import Precision
from es_sbert.encoder.batching import BATCH_TOKENS, WINDOW, plan_batches
from es_sbert.encoder.device import Device, choose_device, cuda_devices, has_int8_products, open_with_cpu_fallback
from es_sbert.encoder.onnx_session import InferencePool, OnnxModel, available_providers, worker_count
from es_sbert.encoder.tokenizer import CUDA_LENGTH_MULTIPLE, PairTokenizer, TokenizedPairs
from es_sbert.errors import ModelError, UsageError

Scores = NDArray[np.float32]

# Padded tokens of one batch. On CUDA fewer than for the sentence encoder: a traced graph holds a mask for every two
# tokens of a pair and, where its attention is not fused, a score for each head as well.
_BATCH_TOKENS = {"cpu": BATCH_TOKENS["cpu"], "cuda": 32_768}


@dataclass(frozen=True)
class PairScores:
    """Scores in the order of the pairs.

    Attributes:
        scores: *Shape:* ``(pairs,)`` float32.
        truncated: *Shape:* ``(pairs,)``, True where the pair was longer than the model reads.
    """

    scores: Scores
    truncated: NDArray[np.bool_]


_ACTIVATIONS: dict[ScoreActivation, Callable[[Scores], Scores]] = {
    ScoreActivation.IDENTITY: lambda x: x,
    # By tanh, which does not overflow where exp(-x) would.
    ScoreActivation.SIGMOID: lambda x: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
}


class Reranker(OnnxModel):
    """A cross-encoder on onnxruntime (a `PairScorer` of `es_sbert.evaluation.evaluated_models`).

    Thread-safe. Close it, or use it as a context manager, to end its threads.

    Usage:
        with Reranker.open(Path("my-reranker")) as reranker:
            scores = reranker.score(["how do magnets work"] * 2, ["Iron in a field.", "A cat sleeps."])  # (2,)

    Args:
        bundle: An opened reranker.
        variant: `fp32`, `int8` or `fp16`.
        device: Where to run it.
        threads: CPU threads, or the sessions that run batches side by side on CUDA.
        budget: Padded tokens of one batch; by default as many as suit the device.
        warnings: What every summary must repeat.

    Attributes:
        name: Of model and variant, for tables.
        labels: Names of the outputs.
        warnings: What every summary must repeat.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: the variant's file or the tokenizer is broken.
    """

    def __init__(
        self,
        bundle: RerankerBundle,
        variant: str,
        device: Device,
        *,
        threads: int,
        budget: int | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._workers = InferencePool(bundle.variant_file(variant), device, threads)
        self._tokenizer = PairTokenizer(bundle.model, bundle.manifest.pairs)
        self._budget = budget or _BATCH_TOKENS[device.kind]
        self._multiple = CUDA_LENGTH_MULTIPLE if device.kind == "cuda" else 1
        self._window = WINDOW[device.kind]
        self._activation = _ACTIVATIONS[bundle.model.activation]
        self.labels = bundle.model.labels
        self.name = f"{bundle.model.name} ({variant})"
        self.warnings = tuple(warnings)
        if bundle.manifest.variants[variant].forced:
            self.warnings += (f"variant {variant} was written below its parity bar (--force)",)

    @classmethod
    def open(cls, folder: Path, device: str = "auto", precision: str = "auto", threads: int | None = None) -> Reranker:
        """Open a folder that `es-sbert export CROSS_ENCODER -o FOLDER` wrote.

        Args:
            folder: The folder.
            device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails rather than run elsewhere; `auto` takes the CPU
                where CUDA does not run.
            precision: `fp32`, `int8` (CPU only), `fp16` (CUDA only), or `auto`: fp16 on CUDA, int8 on a CPU that
                multiplies it natively, where the folder has it; else fp32. On CUDA `warnings` then says so.
            threads: As for `worker_count`.

        Raises:
            ModelError: no reranker, broken, edited, or without that variant.
            DeviceError: the device asked for is not the one that would run.
            UsageError: a device and precision that do not go together.
        """
        bundle = open_reranker_bundle(Path(folder))
        chosen = choose_device(device, available_providers(), cuda_devices())

        def open_on(where: Device, warnings: Sequence[str] = ()) -> Reranker:
            variant, fallback = _choose_reranker_variant(bundle, where, precision)
            return cls(bundle, variant, where, threads=worker_count(where, threads), warnings=(*warnings, *fallback))

        return open_with_cpu_fallback(device, chosen, open_on)

    def score(self, first: Sequence[str], second: Sequence[str]) -> Scores:
        """Scores of pairs, *shape* ``(pairs,)``, as sentence-transformers' CrossEncoder gives them.

        Raises:
            UsageError: the sides differ in length, a side is a single string, a text is not valid Unicode, or the
                model has several labels (`outputs` gives them all).
            ModelError: a score is not finite.
        """
        return self.score_pairs(first, second).scores

    def score_pairs(self, first: Sequence[str], second: Sequence[str]) -> PairScores:
        """As `score`, saying of each pair whether it was cut."""
        if len(self.labels) != 1:
            raise UsageError(
                f"{self.name} tells {len(self.labels)} labels apart ({', '.join(self.labels)}), and gives no one score",
                "Use a cross-encoder with one output, or all of them by Reranker.outputs.",
            )
        outputs, truncated = self._outputs(first, second)
        return PairScores(outputs[:, 0], truncated)

    def outputs(self, first: Sequence[str], second: Sequence[str]) -> Scores:
        """All outputs behind the model's activation: *shape* ``(pairs, labels)``, in the order of the pairs.

        Raises:
            UsageError, ModelError: as `score`, but for the labels.
        """
        return self._outputs(first, second)[0]

    def _outputs(self, first: Sequence[str], second: Sequence[str]) -> tuple[Scores, NDArray[np.bool_]]:
        """Outputs, *shape* ``(pairs, labels)``, and which pairs were cut, *shape* ``(pairs,)``."""
        if isinstance(first, str) or isinstance(second, str):
            raise UsageError("a side of the pairs is one string", "Give two sequences of texts: score([a], [b]).")
        if len(first) != len(second):
            raise UsageError(f"{len(first)} first texts and {len(second)} second ones are no pairs", "Give as many.")
        scores = np.empty((len(first), len(self.labels)), dtype=np.float32)  # (pairs, labels)
        truncated = np.zeros(len(first), dtype=np.bool_)  # (pairs,)
        for start in range(0, len(first), self._window):
            part = slice(start, start + self._window)
            tokenized = self._tokenizer(first[part], second[part])
            self._run(tokenized, scores[part])
            truncated[part] = tokenized.truncated
        return self._activation(scores), truncated

    def _run(self, tokenized: TokenizedPairs, scores: Scores) -> None:
        """Run the model on all pairs; `scores`, *shape* ``(pairs, labels)``, receives what it gives."""

        def run_batch(session: onnxruntime.InferenceSession, members: NDArray[np.int64]) -> None:
            (outputs,) = session.run(["score"], self._tokenizer.feed(tokenized, members, multiple=self._multiple))
            if not np.isfinite(outputs).all():
                raise ModelError(
                    f"{self.name} gave a score that is infinite or undefined",
                    "Numbers of fp16 end at 65,504: use --precision fp32, and report the model.",
                )
            scores[members] = outputs

        self._workers.run(plan_batches(tokenized.lengths, self._budget), run_batch)


def _choose_reranker_variant(bundle: RerankerBundle, device: Device, asked: str) -> tuple[str, tuple[str, ...]]:
    """The variant to run, and what every summary must say of that choice.

    Raises:
        UsageError: a precision that does not run on the device, or is none.
        ModelError: the bundle lacks it.
    """
    present = bundle.manifest.variants
    if device.kind == "cuda":
        best_first = (Precision.FP16, Precision.FP32)
    else:
        best_first = (Precision.INT8, Precision.FP32) if has_int8_products() else (Precision.FP32, Precision.INT8)
    if asked not in ("auto", *best_first):
        raise UsageError(
            f"--precision {asked}: a reranker does not run so on {device.kind}", f"Use {' or '.join(best_first)}."
        )
    wanted = best_first if asked == "auto" else (Precision(asked),)
    for name in wanted:
        if name in present:
            slower = device.kind == "cuda" and name != wanted[0]
            return name, ((f"the reranker has no {wanted[0]} variant: {name} runs instead",) if slower else ())
    raise ModelError(
        f"{bundle.folder} has no {' or '.join(wanted)} variant for {device.kind}, only {', '.join(present) or 'none'}",
        f"Add it: es-sbert export {bundle.folder} -o {bundle.folder} --precision {wanted[0]}",
    )
