"""The two attentions of a poly-encoder: by hand, against loops, at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from es_sbert.networks.poly_encoder import attend_with_codes, attention_cosine

LOG3 = math.log(3)


def test_codes_attend_to_tokens() -> None:
    # One text of two tokens; the first code likes the first token three times as well, the second both alike.
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    codes = torch.tensor([[LOG3, 0.0], [0.0, 0.0]])
    vectors = attend_with_codes(tokens, torch.ones(1, 2, dtype=torch.int64), codes)
    assert vectors[0].tolist() == [pytest.approx([0.75, 0.5]), pytest.approx([0.5, 1.0])]


def test_padding_gets_no_attention() -> None:
    tokens = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    codes = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    short = attend_with_codes(tokens[:1, :3], mask[:1, :3], codes)
    torch.testing.assert_close(attend_with_codes(tokens, mask, codes)[:1], short)


def test_a_candidate_attends_to_codes() -> None:
    # y₁ = (1, 0), y₂ = (0, 1), x = (ln 3, 0): weights 3/4 and 1/4, y = (3/4, 1/4), cos = 3/√10.
    contexts = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    scores = attention_cosine(contexts, torch.tensor([[[LOG3, 0.0]]]))
    assert scores.tolist() == [[pytest.approx(3 / math.sqrt(10))]]


def _by_loops(contexts: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Section 4.4 of the paper word by word, with the cosine at its end; candidates ``(candidates, width)``."""
    scores = np.empty((len(contexts), len(candidates)))
    for i, vectors in enumerate(contexts):
        for j, candidate in enumerate(candidates):
            weights = np.array([math.exp(candidate @ vector) for vector in vectors])
            weights /= weights.sum()
            final = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
            scores[i, j] = final @ candidate / (np.linalg.norm(final) * np.linalg.norm(candidate))
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_attention_cosine_equals_a_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    contexts, candidates = random.normal(size=(3, 4, 6)), random.normal(size=(5, 6))
    expected = _by_loops(contexts, candidates)
    shared = attention_cosine(torch.tensor(contexts), torch.tensor(candidates).unsqueeze(0))
    np.testing.assert_allclose(shared, expected, atol=1e-12)
    own = attention_cosine(torch.tensor(contexts), torch.tensor(candidates[:3]).unsqueeze(1))
    np.testing.assert_allclose(own[:, 0], np.diag(expected), atol=1e-12)


def test_equal_context_vectors_give_the_plain_cosine() -> None:
    vector, candidate = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    scores = attention_cosine(vector.expand(1, 7, 2), candidate.reshape(1, 1, 2))
    assert scores.item() == pytest.approx(24 / 25)


def test_gradients_pass_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    candidates = torch.randn(1, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(attention_cosine, (contexts, candidates))


@pytest.mark.parametrize("zero", ["context", "candidate"])
def test_zero_vectors_score_zero_with_finite_gradients(zero: str) -> None:
    contexts = (torch.zeros if zero == "context" else torch.ones)(1, 2, 3).requires_grad_()
    candidates = (torch.zeros if zero == "candidate" else torch.ones)(1, 1, 3).requires_grad_()
    score = attention_cosine(contexts, candidates)
    score.sum().backward()
    assert score.item() == 0
    assert contexts.grad is not None
    assert candidates.grad is not None
    assert torch.isfinite(contexts.grad).all()
    assert torch.isfinite(candidates.grad).all()
