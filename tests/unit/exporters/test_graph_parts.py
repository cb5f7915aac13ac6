"""The exporter's small parts: position buckets, quantization, ranks, the gate, the sentences, gold pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import spearmanr

from es_sbert.bundle.variants import Precision
from es_sbert.exporters.parity import PARITY_THRESHOLDS, compare_vectors, parity_sentences, spearman
from es_sbert.exporters.quantization import quantize_columns
from es_sbert.exporters.sentence_graph import relative_position_buckets


def test_position_buckets_equal_mpnet() -> None:
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    offsets = np.arange(-1200, 1201)
    expected = MPNetEncoder.relative_position_bucket(torch.from_numpy(offsets)).numpy()
    np.testing.assert_array_equal(relative_position_buckets(offsets), expected)


@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=st.floats(-100, 100, width=32)
    )
)
def test_quantization_error_is_at_most_half_a_step(weight: np.ndarray) -> None:
    quantized, scale = quantize_columns(weight)
    assert quantized.dtype == np.int8
    assert quantized.min() >= -127
    steps = np.abs(quantized * scale.astype(np.float64) - weight)
    assert (steps <= 0.5001 * scale + 1e-30).all()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=50))
@settings(deadline=None)
def test_spearman_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert spearman(a, b) == 0
    else:
        assert spearman(a, b) == pytest.approx(100 * spearmanr(a, b).statistic, abs=1e-9)


def vectors(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(300, 16)).astype(np.float32)


@pytest.mark.parametrize(
    ("precision", "noise", "larger"),
    [(Precision.FP32, 1e-6, 0.01), (Precision.INT8, 0.02, 0.5), (Precision.FP16, 5e-4, 0.1)],
)
def test_parity_accepts_the_noise_of_a_number_format_and_no_more(
    precision: Precision, noise: float, larger: float
) -> None:
    a = vectors()
    assert not compare_vectors(precision, "reference", a, a + larger * vectors(1)).passed
    report = compare_vectors(precision, "reference 1", a, a + noise * vectors(1))
    assert report.passed
    assert report.bar == str(PARITY_THRESHOLDS[precision])


def test_single_wrong_sentence_fails_parity() -> None:
    a, b = vectors(), vectors()
    b[17] = -b[17]
    report = compare_vectors(Precision.INT8, "reference", a, b)
    assert report.min_cosine == pytest.approx(-1)
    assert report.rank_agreement > 98
    assert not report.passed


def test_non_finite_vectors_fail_parity() -> None:
    b = vectors()
    b[3, 3] = np.nan
    report = compare_vectors(Precision.FP16, "reference", vectors(), b)
    assert not report.passed
    assert "finite" in report.bar
    json.loads(json.dumps(report.model_dump(mode="json"), allow_nan=False))


@pytest.mark.parametrize("max_tokens", [32, 512])
def test_parity_sentences(max_tokens: int) -> None:
    texts = parity_sentences(max_tokens)
    assert len(texts) == len(set(texts)) == 1024
    assert texts == parity_sentences(max_tokens)
    words = [len(text.split()) for text in texts]
    assert min(words) == 0
    assert max(words) > max_tokens
    assert sum(max_tokens / 2 < count <= max_tokens for count in words) >= 3
    assert any(not text.isascii() for text in texts)
