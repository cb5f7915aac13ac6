"""The parity check: compare an exported variant with the reference implementation, and report the differences."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from es_sbert.bundle.bundle import DifferenceCause, ParityReport, ScoreParityReport
from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import KINDS, SentenceModel
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.errors import DeviceError, EsSbertError, ModelError, UnsupportedArchitecture, error_summary
from es_sbert.exporters.fp16 import emulate_fp16
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.numpy_reference import EncodeFunction, Reference, ReferenceKind, choose_reference
from es_sbert.exporters.transformer_weights import EncoderWeights, Floats, TransformerWeights
from es_sbert.runtime.batching import InputBuilder, plan_batches, token_ids
from es_sbert.runtime.device import Device, choose_device, cuda_devices
from es_sbert.runtime.inference_pool import InferencePool, compile_model
from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS, available_providers, open_session
from es_sbert.runtime.tokenizer import SentenceTokenizer, TokenizedTexts

# Each of `subjects`, `actions` and `objects` is a pair of wordings; `probes` are texts that tokenizers disagree on.
_TEXTS = json.loads(Path(__file__).with_name("parity_texts.json").read_text(encoding="utf-8"))

# Lengths of long texts as shares of the model's maximum, up to and beyond it.
_LONG_TEXT_RATIOS = (0.25, 0.4, 0.6, 0.85, 1.0, 1.3)


def parity_sentences(max_tokens: int, count: int = 1024) -> list[str]:
    """Return deterministic sentences on which to compare two implementations.

    Args:
        max_tokens: Longest input of the model, in tokens; some sentences reach or exceed it.
        count: Number of sentences, at least 256.

    Returns:
        Distinct texts, the same for the same arguments.
    """
    choose = random.Random(20190827)
    texts = dict.fromkeys(_TEXTS["probes"])
    for part in _LONG_TEXT_RATIOS:
        words = int(part * max_tokens)
        text = " ".join(_sentence(choose)[0] for _ in range(words // 6 + 1))
        texts[" ".join(text.split()[:words])] = None
    while len(texts) < count:
        for text in _sentence(choose):
            texts[text] = None
    return list(texts)[:count]


def _sentence(choose: random.Random) -> list[str]:
    """Make a statement in two to four wordings, sometimes as a question or joined with another statement."""
    parts = _choose_parts(choose)
    setting = choose.choice(_TEXTS["settings"])
    wordings = [_wording(parts, 0, setting), _wording(parts, 1, setting)]
    if choose.random() < 0.3:
        wordings.append(f"Is it true that {wordings[0][0].lower()}{wordings[0][1:-1]}?")
    if choose.random() < 0.15:
        other = _wording(_choose_parts(choose), 0, "")
        wordings.append(f"{wordings[0]} {other}")
    return wordings


def _choose_parts(choose: random.Random) -> list[list[str]]:
    """Choose subject, action and object, each in two wordings."""
    return [choose.choice(_TEXTS[kind]) for kind in ("subjects", "actions", "objects")]


def _wording(parts: Sequence[Sequence[str]], wording: int, setting: str) -> str:
    subject, action, thing = (part[wording] for part in parts)
    text = f"{subject} {action.format(o=thing)}{' ' + setting if setting else ''}."
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class ParityThresholds:
    """Thresholds that a variant of a sentence encoder must reach.

    Attributes:
        min_cosine: Minimum cosine between the reference's and the variant's vector of a sentence.
        rank_agreement: Minimum Spearman's ρ × 100 between their pairwise cosines.
    """

    min_cosine: float
    rank_agreement: float

    def __str__(self) -> str:
        return f"min cosine ≥ {self.min_cosine:g}, rank agreement ≥ {self.rank_agreement:g}"


# fp32 differs from its reference by rounding only.
#
# Quantization may move vectors but must not reorder them, because search and STS depend on ranks. Lost bits hardly
# change gold scores but do change agreement with the reference's ranks, so that is the main threshold. Two models that
# were measured (docs/results.md, Measured once) stay well above it; coarser weights (5 bits, or one scale per matrix)
# fell below it. The threshold of the minimum cosine serves only to catch single wrong vectors.
#
# fp16 rounds activations to 11 bits; its thresholds allow for CUDA kernels that sum in fp16.
PARITY_THRESHOLDS = {
    Precision.FP32: ParityThresholds(min_cosine=0.99999, rank_agreement=99.99),
    Precision.INT8: ParityThresholds(min_cosine=0.9, rank_agreement=99.0),
    Precision.FP16: ParityThresholds(min_cosine=0.999, rank_agreement=99.8),
    Precision.BF16: ParityThresholds(min_cosine=0.99, rank_agreement=99.5),
}


def average_ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute ranks from 1; equal values share their mean rank. *Shape:* that of ``values``, one-dimensional."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[where]
    return mean


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Compute Spearman's ρ × 100 of two sequences of equal length; 0 if one of them is constant."""
    first, second = average_ranks(a), average_ranks(b)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(100 * np.corrcoef(first, second)[0, 1])


def normalize_rows(vectors: Floats) -> NDArray[np.float64]:
    """Scale vectors to length 1 in float64; a zero vector stays zero. *Shape:* ``(texts, dimensions)``."""
    wide = vectors.astype(np.float64)
    scaled: NDArray[np.float64] = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return scaled


def row_cosines(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Compute the cosine of each row with the same row of the other; 1 for two zero vectors. *Shape:* ``(texts,)``."""
    cosines: NDArray[np.float64] = np.einsum("td,td->t", normalize_rows(first), normalize_rows(second))
    # A text without tokens has a zero vector, such as the empty text if the tokenizer adds no special tokens.
    return np.where(~first.any(axis=1) & ~second.any(axis=1), 1.0, cosines)


def pairwise_cosines(vectors: Floats) -> NDArray[np.float64]:
    """Compute the cosines of all pairs of different texts: *shape* ``(texts · (texts − 1) / 2,)``, to 5 decimals.

    Many pairs tie exactly if a model truncates texts; rounding errors of float32 must not put them in an order.
    """
    normed = normalize_rows(vectors)
    upper: NDArray[np.float64] = np.round((normed @ normed.T)[np.triu_indices(len(normed), k=1)], 5)
    return upper


def max_padding_batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Plan batches of two texts with as much padding as possible: the longest with the shortest, and so on.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    order = np.argsort(lengths, kind="stable")  # (texts,)
    half = len(order) // 2
    pairs = np.stack([order[:half], order[::-1][:half]], axis=1)  # (texts // 2, 2)
    return [*pairs, *([order[half : half + 1]] if len(order) % 2 else [])]


def compare_vectors(
    precision: Precision, reference_name: str, reference: Floats, variant: Floats, *, emulated: bool = False
) -> ParityReport:
    """Compare a variant's vectors with the reference and check the thresholds of its precision.

    Args:
        precision: Precision of the variant; determines the thresholds.
        reference_name: Name and version of the reference.
        reference, variant: Vectors of the same sentences. *Shape:* ``(sentences, dimensions)``.
        emulated: Whether the variant's vectors come from a processor that only emulates its number format.
    """
    thresholds = PARITY_THRESHOLDS[precision]
    cosines = row_cosines(reference, variant)
    agreement = spearman(pairwise_cosines(reference), pairwise_cosines(variant))
    finite = bool(np.isfinite(variant).all())
    passed = finite and cosines.min() >= thresholds.min_cosine and agreement >= thresholds.rank_agreement
    # Figures that are not finite would make es_sbert.json unreadable as JSON.
    figures = np.nan_to_num([cosines.mean(), cosines.min(), np.abs(variant - reference).max(), agreement], nan=0.0)
    return ParityReport(
        reference=reference_name,
        sentences=len(reference),
        mean_cosine=float(figures[0]),
        min_cosine=float(figures[1]),
        max_abs_difference=float(figures[2]),
        rank_agreement=float(figures[3]),
        bar=str(thresholds) if finite else f"{thresholds}; vectors must be finite",
        passed=bool(passed),
        emulated=emulated,
    )


def describe_parity(report: ParityReport | ScoreParityReport) -> str:
    """Format the metrics of a report as one line."""
    emulation = " (fp16 emulated on the CPU)" if report.emulated else ""
    if isinstance(report, ScoreParityReport):
        return (
            f"difference mean {report.mean_difference:.6f}, max {report.max_difference:.6f} sd, "
            f"rank agreement {report.rank_agreement:.2f}; against {report.reference} on {report.pairs} pairs{emulation}"
        )
    worst = "" if report.worst is None else f"; worst for {report.worst}: {report.cause}"
    return (
        f"cosine mean {report.mean_cosine:.6f}, min {report.min_cosine:.6f}, "
        f"rank agreement {report.rank_agreement:.2f}; against {report.reference} on {report.sentences} sentences"
        f"{emulation}{worst}"
    )


@dataclass(frozen=True)
class ScoreParityThresholds:
    """Thresholds that a variant of a cross-encoder must reach.

    Attributes:
        mean_difference, max_difference: Maximum of the mean and of the largest difference of outputs, in standard
            deviations of the reference's outputs.
        rank_agreement: Minimum Spearman's ρ × 100 between the two orders of the pairs.
    """

    mean_difference: float
    max_difference: float
    rank_agreement: float

    def __str__(self) -> str:
        return (
            f"difference ≤ {self.mean_difference:g} sd on average, ≤ {self.max_difference:g} sd at most, "
            f"rank agreement ≥ {self.rank_agreement:g}"
        )


# fp32 differs from its reference by rounding only. For int8, differences are limited more strictly than ranks, because
# training drives most scores to one of two extremes, where the smallest difference changes their order.
#
# fp16 rounds weights and activations to 11 bits. Outputs of a trained MiniLM moved by 0.006 sd at most, and those of
# networks with random weights by 0.17.
SCORE_PARITY_THRESHOLDS = {
    Precision.FP32: ScoreParityThresholds(mean_difference=0.0001, max_difference=0.001, rank_agreement=99.9),
    Precision.INT8: ScoreParityThresholds(mean_difference=0.1, max_difference=1.0, rank_agreement=95.0),
    Precision.FP16: ScoreParityThresholds(mean_difference=0.02, max_difference=0.2, rank_agreement=99.5),
    Precision.BF16: ScoreParityThresholds(mean_difference=0.05, max_difference=0.5, rank_agreement=99.0),
}


def compare_scores(
    precision: Precision, reference_name: str, reference: Floats, variant: Floats, *, emulated: bool = False
) -> ScoreParityReport:
    """Compare a variant's outputs with the reference and check the thresholds of its precision.

    Args:
        precision: Precision of the variant; determines the thresholds.
        reference_name: Name and version of the reference.
        reference, variant: Outputs for the same pairs, before any activation. *Shape:* ``(pairs, labels)``.
        emulated: Whether the variant's outputs come from a processor that only emulates the variant's number format.
    """
    thresholds = SCORE_PARITY_THRESHOLDS[precision]
    spread = np.maximum(reference.std(axis=0), 1e-12)  # (labels,)
    differences = np.abs(variant - reference) / spread  # (pairs, labels)
    # Pairs that are truncated to the same tokens tie; rounding errors of float32 must not put them in an order.
    expected, actual = (np.round(scores.astype(np.float64) / spread, 5) for scores in (reference, variant))
    agreement = min(spearman(expected[:, label], actual[:, label]) for label in range(expected.shape[1]))
    finite = bool(np.isfinite(variant).all())
    figures = np.nan_to_num([differences.mean(), differences.max(), agreement], nan=0.0, posinf=0.0)
    close = differences.mean() <= thresholds.mean_difference and differences.max() <= thresholds.max_difference
    passed = finite and close and agreement >= thresholds.rank_agreement
    return ScoreParityReport(
        reference=reference_name,
        pairs=len(reference),
        mean_difference=float(figures[0]),
        max_difference=float(figures[1]),
        rank_agreement=float(figures[2]),
        bar=str(thresholds) if finite else f"{thresholds}; scores must be finite",
        passed=bool(passed),
        emulated=emulated,
    )


def is_packed(weights: EncoderWeights | None) -> bool:
    """Whether the fp16 graph of a network takes tokens without padding."""
    return isinstance(weights, TransformerWeights) and not weights.is_rotary


_CHECK_BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}


# Longest parity sentences in tokens, even for a model that reads longer texts (a StaticEmbedding has no limit).
_LONGEST_TEXT = 8_192
# Number of parity sentences that are also embedded as queries and as documents: probes, long texts and some others.
_SENTENCES_OF_A_KIND = 96


class ParityCheck:
    """The parity check of one model. Reference vectors are computed once, when the first variant needs them.

    Args:
        model: The model.
        transformer: The model's weights; None for traced graphs, whose reference is always sentence-transformers.
        reference: The reference implementation.
    """

    def __init__(self, model: SentenceModel, transformer: EncoderWeights | None, reference: ReferenceKind) -> None:
        self._model = model
        self._transformer = transformer
        # Only the library that made the graph or the tokenizer knows the right output.
        is_ours = transformer is not None and model.tokenizer_is_known
        self._kind: ReferenceKind = reference if is_ours else "sentence-transformers"
        self._tokenizer = SentenceTokenizer(model)
        readable = self._tokenizer.readable(parity_sentences(min(model.longest_input, _LONGEST_TEXT)))
        # Drop texts without tokens: in sentence-transformers, their vectors depend on the batch.
        sentences = [text for text, row in zip(readable, self._tokenizer(readable).ids, strict=True) if len(row)]
        # All sentences are texts without a kind; some of them are also queries and documents.
        self._texts = [(kind, sentences[:_SENTENCES_OF_A_KIND] if kind else sentences) for kind in KINDS]

    @cached_property
    def _reference(self) -> tuple[Reference, Floats]:
        """The reference, and its vectors of the parity sentences."""
        try:
            return self._encode_by(self._kind)
        except EsSbertError:
            raise
        except Exception as error:  # the library raises many types for folders that it cannot open
            reason = f"sentence-transformers fails on it: {type(error).__name__}: {error_summary(error)}"
            if self._kind != "auto" or not self._model.tokenizer_is_known:
                raise ModelError(
                    f"{self._model.folder} cannot be compared with its reference: {reason}",
                    "Open the folder with SentenceTransformer(...) and fix the cause of the error.",
                ) from error
            reference, vectors = self._encode_by("numpy")
            return replace(reference, name=f"{reference.name} ({reason})"), vectors

    def _encode_by(self, kind: ReferenceKind) -> tuple[Reference, Floats]:
        reference = choose_reference(self._model, self._transformer, kind)
        return reference, self._encode_texts(reference.encode)

    def _encode_texts(self, encode: EncodeFunction) -> Floats:
        return np.concatenate([encode(texts, kind) for kind, texts in self._texts])

    def run(self, path: Path, variant: Variant) -> ParityReport:
        """Run an ONNX file as a variant does, and return the parity report.

        A padded fp16 graph runs on CUDA, or is emulated on the CPU if CUDA is not available.

        Raises:
            DeviceError: this machine lacks the variant's device, or the graph does not run on it.
            BundleInvalid: the runtime rejects the file.
            UnsupportedArchitecture: a traced graph only runs on texts of the lengths that it was traced with.
            ModelError: sentence-transformers cannot open the model.
        """

        def encode(texts: Sequence[str], kind: PromptKind | None) -> Floats:
            tokenized = self._tokenizer(texts, kind)
            try:
                return self._encode(pool, device, tokenized)
            except ModelError as error:
                if self._transformer is not None:
                    raise
                raise UnsupportedArchitecture(
                    f"{self._model.name} ({self._model.architecture}): the traced graph does not run on texts of other "
                    f"lengths: {error.message}",
                    "Choose a model with another architecture, or run this one with its own library.",
                ) from error

        precision = variant.precision
        with (
            self._runnable_graph(path, precision) as (file, device, emulated),
            closing(InferencePool(compile_model(file, variant.runtime, precision, device, threads=1))) as pool,
        ):
            reference, expected = self._reference
            vectors = self._encode_texts(encode)
        report = compare_vectors(precision, reference.name, expected, vectors, emulated=emulated)
        return report if report.passed else self._explain(report, reference, precision, row_cosines(expected, vectors))

    def _runnable_graph(self, path: Path, precision: Precision) -> AbstractContextManager[tuple[Path, Device, bool]]:
        """Call `fp16_graph` for a padded fp16 graph. Packed graphs run only on GPUs, so they are not emulated."""
        if precision is Precision.FP16 and not is_packed(self._transformer):
            return fp16_graph(path)
        return nullcontext((path, choose_device(precision.device, available_providers(), cuda_devices()), False))

    def _explain(
        self, report: ParityReport, reference: Reference, precision: Precision, cosines: NDArray[np.float64]
    ) -> ParityReport:
        """Add the text with the lowest cosine, and the most likely cause, to a report."""
        texts = [(kind, text) for kind, texts in self._texts for text in texts]
        kind, text = texts[int(np.nan_to_num(cosines, nan=-2.0).argmin())]
        ids = token_ids(self._tokenizer([text], kind).ids[0]).tolist()
        theirs = None if reference.tokenize is None else reference.tokenize(text, kind)
        shown = text if len(text) <= _LONGEST_SHOWN_TEXT else f"{text[:_LONGEST_SHOWN_TEXT]}…"
        worst = repr(shown) if kind is None else f"{shown!r} as a {kind}"
        cause = _likely_cause(ids, theirs, kind)
        if cause is DifferenceCause.NETWORK and precision is not Precision.FP32:
            # The network itself may differ as well; checking the fp32 variant shows that.
            cause = DifferenceCause.ROUNDING
        return report.model_copy(update={"worst": worst, "cause": cause})

    def _encode(self, pool: InferencePool, device: Device, tokenized: TokenizedTexts) -> Floats:
        """Compute sentence vectors with an exported graph, *shape* ``(texts, dimensions)``."""
        rows = tokenized.ids
        lengths = np.array([len(row) for row in rows])  # (texts,)
        # The model's own code may not have been written for padding, so a traced graph is checked with a lot of it.
        is_traced = self._transformer is None
        batches = max_padding_batches(lengths) if is_traced else plan_batches(lengths, _CHECK_BATCH_TOKENS[device.kind])
        vectors = np.empty((len(rows), self._model.dimensions), dtype=np.float32)
        with pool.session() as session:
            padded_length = partial(pool.model.padded_length, most=self._model.longest_input)
            inputs = InputBuilder(session.input_names, session.properties, padded_length)
        for batch in batches:
            output = np.empty((len(batch), self._model.dimensions), dtype=np.float32)
            # As in the encoder, short texts use a separate attention kernel.
            is_short = inputs.packed and lengths[batch].max() <= SHORT_TEXT_TOKENS
            with pool.session(short=is_short) as session:
                session.run(inputs([rows[number] for number in batch]), output)
            vectors[batch] = output
        return vectors


@contextmanager
def fp16_graph(path: Path) -> Iterator[tuple[Path, Device, bool]]:
    """Yield a form of a padded fp16 graph that runs on this machine: its file, its device, whether it emulates fp16."""
    try:
        device = choose_device("cuda", available_providers(), cuda_devices())
        # A driver alone is not enough: CUDA and cuDNN are needed too, and only opening a session checks for them.
        open_session(path, device)
    except DeviceError:
        with tempfile.TemporaryDirectory() as folder:
            emulated = Path(folder) / "emulated.onnx"
            save_graph(emulate_fp16(onnx.load(str(path))), emulated)
            yield emulated, Device("cpu"), True
    else:
        yield path, device, False


_LONGEST_SHOWN_TEXT = 60


def _likely_cause(ids: list[int], reference: list[int] | None, kind: PromptKind | None) -> DifferenceCause:
    """Find the most likely cause of a difference.

    Args:
        ids: Token ids of the text.
        reference: The reference's token ids of the text; None if it has no tokenizer.
        kind: The kind of the text.
    """
    if reference is None or ids == reference:
        return DifferenceCause.NETWORK
    shorter, longer = sorted((ids, reference), key=len)
    if len(shorter) < len(longer) and shorter[:-1] == longer[: len(shorter) - 1]:
        return DifferenceCause.LENGTH
    return DifferenceCause.TOKENIZER if kind is None else DifferenceCause.KIND
