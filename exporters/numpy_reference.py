"""The reference that exported graphs are compared with: sentence-transformers if requested, else a numpy forward
pass.

The numpy pass shares only the weight names with the graph builders. It follows the papers step by step, folds nothing,
rotates by products of complex numbers, and computes MPNet's position buckets independently. The tests compare it with
transformers for every architecture.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from es_sbert.bundle.model_files import read_optional_json
from es_sbert.bundle.modules import Activation, Dense, LayerNorm, Normalize, Pooling, PromptKind, VectorModule
from es_sbert.bundle.sentence_model import PROMPT_NAMES, SentenceModel
from es_sbert.exporters.transformer_weights import (
    AttentionWeights,
    BlockNorms,
    EmbeddingWeights,
    EncoderWeights,
    FeedForwardWeights,
    Floats,
    HiddenActivation,
    LinearWeights,
    NormWeights,
    StaticWeights,
    TransformerWeights,
)
from es_sbert.exporters.vector_modules import read_dense, read_layer_norm
from es_sbert.runtime.batching import pad, plan_batches, token_ids
from es_sbert.runtime.device import available_cores
from es_sbert.runtime.tokenizer import SentenceTokenizer

ReferenceKind = Literal["auto", "numpy", "sentence-transformers"]

# Texts and their kind → vectors of shape (texts, dimensions).
EncodeFunction = Callable[[Sequence[str], PromptKind | None], Floats]


@dataclass(frozen=True)
class Reference:
    """An implementation that exported graphs are compared with.

    Attributes:
        name: Name and version.
        encode: Texts of a kind → their vectors; puts the prompt of the kind in front.
        tokenize: A text of a kind → its token ids; None if the reference has no tokenizer.
    """

    name: str
    encode: EncodeFunction
    tokenize: Callable[[str, PromptKind | None], list[int]] | None = None


# Small enough that a feed-forward block stays in a core's cache.
_BATCH_TOKENS = 512
_TORCH_BATCH_TOKENS = 16_384


def choose_reference(model: SentenceModel, transformer: EncoderWeights | None, kind: ReferenceKind) -> Reference:
    """Choose the reference of a model.

    Args:
        model: The model.
        transformer: Its weights, for the numpy pass; without them sentence-transformers is the reference.
        kind: The implementation. `auto` takes sentence-transformers if it is installed. Importing it takes longer than
            the numpy pass over all parity sentences of a small model.
    """
    if kind == "auto":
        kind = "sentence-transformers" if importlib.util.find_spec("sentence_transformers") else "numpy"
    if kind == "sentence-transformers" or transformer is None:
        return _torch_reference(model)
    return Reference(f"numpy {np.__version__}", NumpyReference(model, transformer).encode)


def reference_batch_size(max_tokens: int) -> int:
    """Return the batch size in sentence-transformers for texts of up to `max_tokens` tokens.

    Attention over a full batch of texts of 8,192 tokens would need more memory than most machines have.
    """
    return max(1, min(32, _TORCH_BATCH_TOKENS // max_tokens))


def _torch_reference(model: SentenceModel) -> Reference:
    from sentence_transformers import SentenceTransformer

    from es_sbert.runtime.siamese_encoder import quiet_transformers

    # Silence progress bars and reports, which would mix with a command's own log.
    with quiet_transformers():
        # Checkpoints in half precision must compute in float32, as the graph does.
        network = SentenceTransformer(str(model.folder), device="cpu", local_files_only=True).float()
    batch_size = reference_batch_size(model.longest_input)
    stated = read_optional_json(model.folder / "config_sentence_transformers.json").get("prompts") or {}

    def prompt(kind: PromptKind | None) -> str | None:
        if kind is None:
            return network.prompts.get(network.default_prompt_name) if network.default_prompt_name else None
        # This follows the documentation of `encode_document`. Version 6.2 itself prefers its default `document` prompt,
        # which is empty, to a `passage` or `corpus` prompt in the file.
        names = PROMPT_NAMES[kind]
        return network.prompts.get(next((name for name in names if name in stated), names[0]))

    def encode(texts: Sequence[str], kind: PromptKind | None) -> Floats:
        task: dict[str, Any] = {} if kind is None else {"task": kind}
        vectors = network.encode(
            list(texts), prompt=prompt(kind) or "", batch_size=batch_size, show_progress_bar=False, **task
        )
        return np.asarray(vectors, dtype=np.float32)

    def tokenize(text: str, kind: PromptKind | None) -> list[int]:
        task = {} if kind is None else {"task": kind}
        ids: list[int] = network.preprocess([text], prompt=prompt(kind) or None, **task)["input_ids"].flatten().tolist()
        return ids

    name = f"sentence-transformers {importlib.metadata.version('sentence-transformers')}"
    return Reference(name, encode, tokenize)


class NumpyReference:
    """The forward pass of a sentence encoder in numpy, float32.

    Args:
        model: The model.
        transformer: Its weights.
    """

    def __init__(self, model: SentenceModel, transformer: EncoderWeights) -> None:
        self._model = model
        self._transformer = transformer
        self._tokenize = SentenceTokenizer(model)
        self._token_modules = [_vector_function(model, module) for module in model.token_modules]
        self._modules = [_vector_function(model, module) for module in model.modules]

    def encode(self, texts: Sequence[str], kind: PromptKind | None = None) -> Floats:
        """Compute sentence vectors, *shape* ``(texts, dimensions)``, in the order of the texts."""
        rows = self._tokenize(texts, kind).ids
        batches = plan_batches(np.array([len(row) for row in rows], dtype=np.int64), _BATCH_TOKENS)
        vectors = np.empty((len(rows), self._model.dimensions), dtype=np.float32)

        def encode_batch(batch: NDArray[np.int64]) -> None:
            vectors[batch] = self.forward(*pad([rows[number] for number in batch]))

        # Between products, the other threads of the matrix library would wait in a loop, at twice the processor time.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(available_cores()) as threads:
            list(threads.map(encode_batch, batches))
        return vectors

    def forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Floats:
        """Compute sentence vectors of one batch: two arrays of *shape* ``(batch, tokens)`` → ``(batch, dimensions)``.

        Args:
            ids: Token ids; those that are not pooled are marked, see `mark_unpooled`.
            mask: 1 for tokens, 0 for padding.
        """
        pooled, ids = mask * (ids >= 0), token_ids(ids)
        x = self.token_vectors(ids, mask)
        for function in self._token_modules:
            x = function(x)
        vector = np.concatenate([_pool_tokens(mode, x, pooled) for mode in self._model.pooling], axis=1)
        for function in self._modules:
            vector = function(vector)
        kept: Floats = vector[:, : self._model.truncate_dim]
        return kept

    def token_vectors(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Floats:
        """Compute token vectors with the transformer or a static table, *shape* ``(batch, tokens, hidden)``.

        Args:
            ids: Token ids, *shape* ``(batch, tokens)``.
            mask: 1 for tokens, 0 for padding.
        """
        weights = self._transformer
        if isinstance(weights, StaticWeights):
            table: Floats = weights.table[ids]
            return table
        x = _embed(weights.embeddings, ids)
        bias = None if weights.relative_bias is None else _relative_bias(weights.relative_bias, ids.shape[1])
        for layer in weights.layers:
            norms = layer.attention_norms
            attended = _attend(weights, layer.attention, _apply_norm(norms.before, x), mask, bias)
            x = _add_residual(x, norms, attended)
            norms = layer.feed_forward_norms
            fed = _feed_forward(weights.activation, layer.feed_forward, _apply_norm(norms.before, x))
            x = _add_residual(x, norms, fed)
        return _apply_norm(weights.final_norm, x)


def _embed(embeddings: EmbeddingWeights, ids: NDArray[np.int64]) -> Floats:
    x: Floats = embeddings.words[ids] * np.float32(embeddings.scale)
    if embeddings.positions is not None:
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        if embeddings.padding_id is not None:
            real = ids != embeddings.padding_id
            positions = np.where(real, np.cumsum(real, axis=1), 0) + embeddings.padding_id
        x = x + embeddings.positions[positions]
    return _apply_norm(embeddings.norm, x if embeddings.token_type is None else x + embeddings.token_type)


def _add_residual(x: Floats, norms: BlockNorms, y: Floats) -> Floats:
    return _apply_norm(norms.after, x + _apply_norm(norms.output, y))


# Scores in memory at a time, so that a long text does not need memory for all of them.
_MAX_SCORES = 1 << 22


def _attend(
    weights: TransformerWeights, block: AttentionWeights, x: Floats, mask: NDArray[np.int64], bias: Floats | None
) -> Floats:
    """Attention: (batch, tokens, hidden) → the same.

    Args:
        bias: On scores, by relative position; see `_relative_bias`.
    """
    tokens = x.shape[1]
    query = _apply_norm(block.query_norm, _split_heads(_apply_linear(block.query, x), weights.heads))
    key = _apply_norm(block.key_norm, _split_heads(_apply_linear(block.key, x), weights.key_heads))
    value = _split_heads(_apply_linear(block.value, x), weights.key_heads)
    if block.frequencies is not None:
        query, key = _rotate(query, block.frequencies), _rotate(key, block.frequencies)
    key, value = (np.repeat(part, weights.heads // weights.key_heads, axis=1) for part in (key, value))
    query = query * np.float32(weights.score_scale)  # each (batch, heads, tokens, head size)
    mixed = np.empty_like(query)
    places = np.arange(tokens)
    reach = tokens if block.window is None else block.window
    count = max(1, _MAX_SCORES // (query.shape[0] * query.shape[1] * tokens))
    for start in range(0, tokens, count):
        rows = slice(start, min(start + count, tokens))
        columns = slice(max(0, start - reach), rows.stop + (0 if weights.is_causal else reach))
        distance = places[None, columns] - places[rows, None]
        is_seen = np.abs(distance) <= reach
        if weights.is_causal:
            is_seen &= distance <= 0
        scores = query[:, :, rows] @ key[:, :, columns].swapaxes(-1, -2)  # (batch, heads, rows, columns)
        scores = scores if bias is None else scores + bias[:, :, rows, columns]
        # Finite, because a row of padding may see nothing.
        scores = np.where(is_seen & (mask[:, None, None, columns] == 1), scores, np.float32(-1e30))
        mixed[:, :, rows] = _softmax(scores) @ value[:, :, columns]
    return _apply_linear(block.output, mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))


def _rotate(heads: Floats, frequencies: Floats) -> Floats:
    """Rotate the coordinates i and i + size / 2, as one complex number, by position times frequency."""
    half = len(frequencies)
    angles = np.arange(heads.shape[-2], dtype=np.float32)[:, None] * frequencies  # (tokens, size / 2)
    turned = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1).astype(np.float32)


def _feed_forward(activation: HiddenActivation, block: FeedForwardWeights, x: Floats) -> Floats:
    up, activate = _apply_linear(block.up, x), _ACTIVATIONS[activation]
    inner = activate(up) if block.gate is None else activate(_apply_linear(block.gate, x)) * up
    return _apply_linear(block.down, inner)


def _apply_linear(linear: LinearWeights, x: Floats) -> Floats:
    """x W + b: (…, in_features) → (…, out_features)."""
    # One product of two matrices is seven times as fast as a stack of them, which numpy multiplies one by one.
    rows = x.reshape(-1, x.shape[-1])
    y: Floats = rows @ linear.weight + linear.bias
    return y.reshape(*x.shape[:-1], -1)


def _apply_norm(norm: NormWeights | None, x: Floats) -> Floats:
    """Normalize over the last axis; None leaves x unchanged."""
    if norm is None:
        return x
    centred = x if norm.is_rms else x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    y: Floats = centred / np.sqrt(variance + np.float32(norm.epsilon)) * norm.weight + norm.bias
    return y


def _split_heads(x: Floats, heads: int) -> Floats:
    """(batch, tokens, hidden) → (batch, heads, tokens, head size)."""
    batch, tokens, _ = x.shape
    return x.reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3)


def _softmax(scores: Floats) -> Floats:
    powers: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def erf(x: Floats) -> Floats:
    """Compute erf, accurate to 5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26)."""
    t: Floats = np.reciprocal(1 + np.float32(0.3275911) * np.abs(x))
    series: Floats = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = np.add(series * t, np.float32(coefficient), dtype=np.float32)
    y: Floats = np.copysign(1 - series * t * np.exp(-x * x), x)
    return y


def _gelu(x: Floats) -> Floats:
    y: Floats = np.float32(0.5) * x * (1 + erf(x * np.float32(math.sqrt(0.5))))
    return y


def _gelu_tanh(x: Floats) -> Floats:
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + 0.044715 * x**3)))
    return y


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))


def _silu(x: Floats) -> Floats:
    y: Floats = x / (1 + np.exp(-x))
    return y


_ACTIVATIONS: dict[HiddenActivation, Callable[[Floats], Floats]] = {
    HiddenActivation.GELU: _gelu,
    HiddenActivation.GELU_TANH: _gelu_tanh,
    HiddenActivation.RELU: _relu,
    HiddenActivation.SILU: _silu,
}
_DENSE_ACTIVATIONS: dict[Activation, Callable[[Floats], Floats]] = {
    Activation.IDENTITY: lambda x: x,
    Activation.TANH: np.tanh,
    Activation.RELU: _relu,
    Activation.GELU: _gelu,
    Activation.SILU: _silu,
    Activation.SIGMOID: lambda x: np.reciprocal(1 + np.exp(-x)),
}


def _vector_function(model: SentenceModel, module: VectorModule) -> Callable[[Floats], Floats]:
    """Return the function of a module from vectors to vectors: (…, width) → (…, the module's output width)."""
    match module:
        case Dense():
            weights = read_dense(model, module)
            residual = weights.residual

            def apply_dense(x: Floats) -> Floats:
                y = _DENSE_ACTIVATIONS[module.activation](_apply_linear(weights.linear, x))
                if not module.residual:
                    return y
                return y + (x if residual is None else x @ residual)

            return apply_dense
        case LayerNorm():
            norm = read_layer_norm(model, module)
            return lambda x: _apply_norm(norm, x)
        case Normalize():
            return lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-12))


def _pool_tokens(mode: Pooling, x: Floats, mask: NDArray[np.int64]) -> Floats:
    """(batch, tokens, hidden) → (batch, hidden). Pools text by text, so that padding cannot have an effect."""
    return np.stack([_pool_text(mode, row, np.flatnonzero(kept)) for row, kept in zip(x, mask, strict=True)])


def _pool_text(mode: Pooling, tokens: Floats, places: NDArray[np.int64]) -> Floats:
    """Pool the token vectors at some positions of a text: (tokens, hidden) → (hidden,)."""
    text = tokens[places]  # (pooled tokens, hidden)
    if not len(places):
        # In this case sentence-transformers takes the first vector, the least value, or zero divided by a small number.
        if mode is Pooling.CLS:
            first: Floats = tokens[0]
            return first
        return np.full_like(tokens[0], -np.inf if mode is Pooling.MAX else 0)
    functions: dict[Pooling, Callable[[], Floats]] = {
        Pooling.CLS: lambda: text[0],
        Pooling.MAX: lambda: text.max(axis=0),
        Pooling.MEAN: lambda: text.sum(axis=0) / np.float32(len(text)),
        Pooling.MEAN_SQRT_LEN: lambda: text.sum(axis=0) / np.float32(math.sqrt(len(text))),
        Pooling.WEIGHTEDMEAN: lambda: np.average(text, axis=0, weights=places + 1),
        Pooling.LASTTOKEN: lambda: text[-1],
    }
    pooled: Floats = functions[mode]().astype(np.float32)
    return pooled


def _relative_bias(table: Floats, tokens: int) -> Floats:
    """MPNet's bias on scores, *shape* ``(1, heads, tokens, tokens)``, from a table ``(32, heads)``."""
    buckets = [[_bucket(query - key) for key in range(tokens)] for query in range(tokens)]
    bias: Floats = table[np.array(buckets)].transpose(2, 0, 1)[None]
    return bias


def _bucket(distance_before: int) -> int:
    """Bucket of a key `distance_before` tokens before the query (negative: after it)."""
    half = 0 if distance_before >= 0 else 16
    distance = abs(distance_before)
    if distance < 8:
        return half + distance
    return half + min(15, 8 + int(math.log(distance / 8) / math.log(128 / 8) * 8))
