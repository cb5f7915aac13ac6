"""numpy versions of onnxruntime's contributed operators, to run CUDA-only graphs in onnx.reference on any machine.

Written from the operators' documentation (onnxruntime, docs/ContribOperators.md) and kept as literal as it is:
texts are taken apart one by one, so that none can see another's tokens or padding.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class RemovePadding(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
        batch, tokens, hidden = x.shape
        assert counts.dtype == np.int32
        assert counts.shape == (batch,)
        places = np.arange(batch * tokens).reshape(batch, tokens)
        real = [places[row, : counts[row]] for row in range(batch)]
        padding = [places[row, counts[row] :] for row in range(batch)]
        offsets = np.concatenate([*real, *padding]).reshape(batch, tokens).astype(np.int32)
        cumulated = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        packed = x.reshape(-1, hidden)[np.concatenate(real)]  # (all tokens, hidden)
        return packed, offsets, cumulated, np.array([counts.max()], dtype=np.int32)


class RestorePadding(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, offsets: Array) -> tuple[Array]:
        padded = np.zeros((offsets.size, x.shape[1]), dtype=x.dtype)
        padded[offsets.reshape(-1)[: len(x)]] = x
        return (padded.reshape(*offsets.shape, x.shape[1]),)


def attend(x: Array, weight: Array, bias: Array, heads: int, relative: Array | None) -> Array:
    """Attention within one text: (its tokens, hidden) → the same shape, in x's number format.

    `relative`: (heads, its tokens, its tokens), added to the scaled scores.
    """
    assert x.dtype == weight.dtype == bias.dtype
    hidden = weight.shape[1] // 3
    size = hidden // heads
    query, key, value = np.split(x @ weight + bias, 3, axis=1)  # each (tokens, hidden)
    columns = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = (query[:, part] @ key[:, part].T).astype(np.float32) / math.sqrt(size)  # (tokens, tokens)
        if relative is not None:
            assert relative.dtype == x.dtype
            scores = scores + relative[head]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        columns.append((powers / powers.sum(axis=1, keepdims=True)).astype(x.dtype) @ value[:, part])
    return np.concatenate(columns, axis=1)


class PackedAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, weight: Array, bias: Array, offsets: Array, cumulated: Array, relative: Array | None = None,
        num_heads: int | None = None,
    ) -> tuple[Array]:  # fmt: skip
        assert num_heads is not None
        assert x.ndim == 2
        batch, tokens = offsets.shape
        assert cumulated.shape == (batch + 1,)
        assert cumulated[-1] == len(x)
        if relative is not None:
            assert relative.shape == (1, num_heads, tokens, tokens)
        texts = []
        for start, end in pairwise(cumulated):
            count = end - start
            near = None if relative is None else relative[0, :, :count, :count]
            texts.append(attend(x[start:end], weight, bias, num_heads, near))
        return (np.concatenate(texts),)


class Attention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, weight: Array, bias: Array, lengths: Array, past: Array | None = None,
        relative: Array | None = None, num_heads: int | None = None, **_of_onnx: Any,
    ) -> tuple[Array]:  # fmt: skip
        # onnx.reference takes attributes from ONNX's own operator of this name; only num_heads is ours.
        assert num_heads is not None
        assert past is None
        assert lengths.dtype == np.int32
        out = np.zeros_like(x)
        for row, count in enumerate(lengths):
            near = None if relative is None else relative[0, :, :count, :count]
            out[row, :count] = attend(x[row, :count], weight, bias, num_heads, near)
        return (out,)


class SkipLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, gamma: Array, beta: Array, bias: Array, epsilon: float | None = None
    ) -> tuple[Array]:
        assert x.dtype == skip.dtype == gamma.dtype == beta.dtype == bias.dtype
        total = (x + skip + bias).astype(np.float32)
        centred = total - total.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        return ((normed * gamma + beta).astype(x.dtype),)


class FastGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array) -> tuple[Array]:
        y = 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3))
        return (y.astype(x.dtype),)


OPERATORS = [RemovePadding, RestorePadding, PackedAttention, Attention, SkipLayerNormalization, FastGelu]
