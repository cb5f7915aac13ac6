"""Cosines and distances, and their gradients where vectors vanish or coincide."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.networks.siamese_encoder import normalize_vectors
from es_sbert.training.losses import pairwise_cosine, pairwise_distance
from es_sbert.training.recipe import TripletDistance
from tests.unit.training.objectives.samples import columns, tensor


def test_similarities_by_hand() -> None:
    u, v = tensor([3, 4], [0, 2]), tensor([4, 3], [0, -5])
    assert normalize_vectors(u).flatten().tolist() == pytest.approx([0.6, 0.8, 0, 1])
    assert pairwise_cosine(u, v).tolist() == pytest.approx([24 / 25, -1])
    assert pairwise_distance(u, v, TripletDistance.EUCLIDEAN).tolist() == pytest.approx([2**0.5, 7])
    assert pairwise_distance(u, v, TripletDistance.MANHATTAN).tolist() == [2, 7]
    assert pairwise_distance(u, v, TripletDistance.COSINE).tolist() == pytest.approx([1 / 25, 2])


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(1e-4, 1e4))
def test_cosine_is_independent_of_length(seed: int, factor: float) -> None:
    u, v = columns(2, seed)
    torch.testing.assert_close(pairwise_cosine(factor * u, v), pairwise_cosine(u, v), rtol=1e-4, atol=1e-6)


def test_gradients_pass_gradcheck() -> None:
    u, v = (column.detach().double().requires_grad_() for column in columns(2))
    assert torch.autograd.gradcheck(pairwise_cosine, (u, v))
    for distance in TripletDistance:
        assert torch.autograd.gradcheck(lambda a, b, kind=distance: pairwise_distance(a, b, kind), (u, v))


def test_zero_vector_has_cosine_0_and_no_gradient() -> None:
    u = tensor([0, 0], [1e-12, 0]).requires_grad_()
    v = tensor([1, 2], [3, 4]).requires_grad_()
    cosines = pairwise_cosine(u, v)
    assert cosines.tolist() == [0, 0]
    cosines.sum().backward()
    assert u.grad is not None
    assert v.grad is not None
    assert not u.grad.any()
    assert not v.grad.any()


@pytest.mark.parametrize("distance", TripletDistance)
def test_equal_vectors_have_distance_0_and_a_finite_gradient(distance: TripletDistance) -> None:
    u = tensor([3, 4], [0, 0]).requires_grad_()
    distances = pairwise_distance(u, u.detach().clone(), distance)
    assert distances[0].item() == pytest.approx(0, abs=1e-6)
    distances.sum().backward()
    assert u.grad is not None
    assert u.grad.flatten().tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6)
