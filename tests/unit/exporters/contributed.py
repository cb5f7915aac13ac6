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

from es_sbert.exporters.numpy_reference import erf

Array = np.ndarray[Any, Any]


class PackedMultiHeadAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        offsets: Array,
        cumulated: Array,
        relative: Array | None = None,
        num_heads: int | None = None,
    ) -> tuple[Array]:
        assert num_heads is not None
        assert bias is None
        assert query.shape == key.shape == value.shape
        assert query.dtype == key.dtype == value.dtype
        assert offsets.dtype == cumulated.dtype == np.int32
        batch, longest = offsets.shape
        assert sorted(offsets.ravel()) == list(range(batch * longest))
        assert cumulated.shape == (batch + 1,)
        assert cumulated[-1] == len(query)
        if relative is not None:
            assert relative.shape == (1, num_heads, longest, longest)
            assert relative.dtype == query.dtype
        texts = []
        for row, (start, end) in enumerate(pairwise(cumulated)):
            count = end - start
            # The operator's description: first the places of tokens, text after text, then those of padding.
            assert offsets.ravel()[start:end].tolist() == list(range(row * longest, row * longest + count))
            near = None if relative is None else relative[0, :, :count, :count]
            texts.append(attend(query[start:end], key[start:end], value[start:end], num_heads, near))
        return (np.concatenate(texts),)


def attend(query: Array, key: Array, value: Array, heads: int, relative: Array | None) -> Array:
    """Attention within one text: arrays (its tokens, hidden), `relative` of (heads, its tokens, its tokens)."""
    size = query.shape[1] // heads
    columns = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = (query[:, part] @ key[:, part].T).astype(np.float32) / math.sqrt(size)  # (tokens, tokens)
        if relative is not None:
            scores = scores + relative[head]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        columns.append((powers / powers.sum(axis=1, keepdims=True)).astype(query.dtype) @ value[:, part])
    return np.concatenate(columns, axis=1)


class SkipLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, gamma: Array, beta: Array, bias: Array | None = None, epsilon: float | None = None
    ) -> tuple[Array]:
        assert x.shape == skip.shape
        assert x.dtype == skip.dtype == gamma.dtype == beta.dtype
        total = x.astype(np.float32) + skip
        if bias is not None:
            assert bias.dtype == x.dtype
            total = total + bias
        centred = total - total.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        return ((normed * gamma + beta).astype(x.dtype),)


class BiasGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        assert x.dtype == bias.dtype
        y = x.astype(np.float32) + bias
        return ((0.5 * y * (1 + erf(y * np.float32(math.sqrt(0.5))))).astype(x.dtype),)


class FastGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        assert x.dtype == bias.dtype
        y = x.astype(np.float32) + bias
        return ((0.5 * y * (1 + np.tanh(0.797885 * y + 0.035677 * y**3))).astype(x.dtype),)


OPERATORS = [PackedMultiHeadAttention, SkipLayerNormalization, BiasGelu, FastGelu]
