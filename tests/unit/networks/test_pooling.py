"""Pooling against numbers worked by hand; against sentence-transformers in test_folder."""

import pytest
import torch

from es_sbert.bundle.modules import Pooling
from es_sbert.networks.siamese_encoder import pool

# Two texts of two and three tokens, vectors of width 2; the padded place holds what must not count.
TOKENS = torch.tensor([[[1.0, 2.0], [3.0, -4.0], [99.0, 99.0]], [[1.0, 0.0], [0.0, 6.0], [2.0, 3.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])

BY_HAND = {
    Pooling.CLS: [[1, 2], [1, 0]],
    Pooling.MAX: [[3, 2], [2, 6]],
    Pooling.MEAN: [[2, -1], [1, 3]],
    Pooling.MEAN_SQRT_LEN: [[4 / 2**0.5, -2 / 2**0.5], [3 / 3**0.5, 9 / 3**0.5]],
    # (1·1 + 2·3) / 3, (1·2 − 2·4) / 3; (1 + 0 + 3·2) / 6, (0 + 2·6 + 3·3) / 6
    Pooling.WEIGHTEDMEAN: [[7 / 3, -6 / 3], [7 / 6, 21 / 6]],
    Pooling.LASTTOKEN: [[3, -4], [2, 3]],
}


def test_every_pooling_mode_has_an_expected_result() -> None:
    assert set(BY_HAND) == set(Pooling)


@pytest.mark.parametrize("mode", list(Pooling))
def test_pooling_mode_by_hand(mode: Pooling) -> None:
    torch.testing.assert_close(pool(TOKENS, MASK, [mode]), torch.tensor(BY_HAND[mode], dtype=torch.float32))
